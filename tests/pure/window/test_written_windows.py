"""Windows that a batch wrote, without Spark: whether each is there once, and which are computed again."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.assets.recount import windows as recount
from tidemark.assets.recount.windows import Look, most_windows, stand_once
from tidemark.resources.delta.lake import Lake
from tidemark.timeops.spec import WindowSpec

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
    return stand_once(lake, _WINDOW, Look(round(first.timestamp() * 1_000_000)))


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
    monkeypatch.setattr(recount, "_MOST_ROWS", 2)
    assert not once(lake)


def test_windows_that_lack_a_sum_are_computed_again_before_others() -> None:
    starts = list(range(0, 6_000, 60))
    lacks = [start == 300 for start in starts]
    windows = pa.table({"window_start": starts, "window_end": [start + 60 for start in starts], "lacks": lacks})
    doubled = pa.concat_tables([windows, windows])
    chosen = recount._first_of(doubled, 12)
    assert chosen["window_start"][0].as_py() == 300
    assert len(set(chosen["window_start"].to_pylist())) == 12
    # Piece by piece the same windows are chosen as from all at once.
    first = recount._first_of(windows.slice(0, 40), 12)
    assert recount._first_of(pa.concat_tables([first, windows.slice(40)]), 12).equals(chosen)


def test_of_a_small_batch_all_windows_are_computed_again_and_of_a_large_one_a_sample() -> None:
    assert (most_windows(1), most_windows(10_000), most_windows(10_000_000)) == (1_000, 200, 12)
