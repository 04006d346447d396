"""Windows that a batch wrote, without Spark: whether each is there once, and which may lack a sum."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.assets.recount import window_checks
from tidemark.assets.recount.window_checks import WrittenResults, stand_once, written_results
from tidemark.resources.delta.lake import Lake
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.utc import us_of

_INSTANT = pa.timestamp("us", "UTC")
_START = datetime(2026, 1, 1, tzinfo=UTC)
_WINDOW = WindowSpec.model_validate(
    {"name": "w", "kind": "tumbling", "size": "1 minute", "group_by": ["k"], "aggregates": {"n": "count(*)"}}
)


def lake_with(folder: Path, keys: pa.Array, starts: list[datetime] | None = None) -> Lake:
    lake = Lake(folder / "shop")
    times = pa.array(starts or [_START] * len(keys), _INSTANT)
    rows = pa.table({"window_start": times, "window_end": times, "k": keys})
    lake.create("windows/w", rows.schema)
    lake.append_rows("windows/w", rows, attempt=1, expect=0)
    return lake


def once(lake: Lake, first: datetime = _START) -> bool:
    return stand_once(lake, _WINDOW, WrittenResults(round(first.timestamp() * 1_000_000)))


def test_a_window_that_stands_twice_with_its_group_is_seen(tmp_path: Path) -> None:
    assert once(lake_with(tmp_path / "a", pa.array(["x", "y", None])))
    assert not once(lake_with(tmp_path / "b", pa.array(["x", "y", "x"])))
    assert not once(lake_with(tmp_path / "c", pa.array(["x", None, None])))


def test_windows_before_the_first_of_the_batch_are_not_looked_at(tmp_path: Path) -> None:
    later = datetime(2026, 1, 2, tzinfo=UTC)
    lake = lake_with(tmp_path, pa.array(["x", "x", "x"]), [_START, _START, later])
    assert not once(lake)
    assert once(lake, later)


@pytest.mark.parametrize("keys", [pa.array([1.0, 2.0]), pa.array([[1], [2]])], ids=["floating point", "lists"])
def test_groups_whose_bytes_do_not_say_what_is_the_same_are_left_to_spark(tmp_path: Path, keys: pa.Array) -> None:
    assert not once(lake_with(tmp_path, keys))


def test_more_rows_than_may_be_held_together_are_left_to_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = lake_with(tmp_path, pa.array(["x", "y", "z"]))
    monkeypatch.setattr(window_checks, "_MOST_ROWS", 2)
    assert not once(lake)


def results(folder: Path, **sums: list[int | None]) -> Lake:
    """Return a lake with a result a minute; the first is not final."""
    lake, n = Lake(folder / "shop"), len(next(iter(sums.values())))
    starts = pa.array([_START + timedelta(minutes=minute) for minute in range(n)], _INSTANT)
    is_final = pa.array([minute > 0 for minute in range(n)])
    rows = pa.table(
        {"window_start": starts, "window_end": starts, "_is_final": is_final, "_batch_id": [7] * n, **sums}
    )
    lake.create("windows/w", rows.schema)
    lake.append_rows("windows/w", rows, attempt=1, expect=0)
    return lake


@pytest.mark.parametrize(
    ("aggregate", "lacking"),
    [
        ("sum(n)", [2]),
        ("sum(n) / count(n)", [2]),
        ("avg(n)", [2]),
        ("coalesce(sum(n), 0)", [1, 2, 3]),  # its value does not show that a sum is null
        ("CASE WHEN sum(n) > 0 THEN 1 END", [1, 2, 3]),
        ("max(n)", []),
    ],
)
def test_the_final_results_in_which_a_sum_may_be_null_are_looked_at(
    tmp_path: Path, aggregate: str, lacking: list[int]
) -> None:
    window = _WINDOW.model_copy(update={"aggregates": {"x": aggregate}})
    look = written_results(results(tmp_path, x=[None, 1, None, 2]), window, 7)
    assert look is not None
    first_us = us_of(_START)
    assert look.first_us == first_us
    assert [(start - first_us) // 60_000_000 for start, _ in look.lacking] == lacking
    assert written_results(results(tmp_path / "other", x=[1]), window, 8) is None
