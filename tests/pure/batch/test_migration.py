"""Tables of an earlier format, on real Delta tables without Spark: what is renamed, and what a kill leaves."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tidemark.resources import tables
from tidemark.resources.delta.columns import migrate, old_columns
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.undoing import foreign_changes, prepare, same_rows
from tidemark.resources.tables import open_in_column

SEEN, FLUSHED = tables.seen_groups_table("w"), tables.flushed_table("w")
_WINDOWS = pa.list_(pa.string())
OLD: dict[str, dict[str, list[Any]]] = {
    tables.FIRST_TIMES: {"key": ["a"], "event_us": [1]},
    tables.OPEN_EVENTS: {"__w_before": ["a column of the payload"], "_timeline": ["[]"]},
    tables.SESSION_EVENTS: {"_open_in": ["payload"], "_timeline": ["[]"], "__sessions": [["s"]]},
    tables.REVISED_EVENTS: {"__group0": ["payload"], "__w_before": [1_000_001]},
    tables.REVISED_SESSION_EVENTS: {"__w_before": [None], "__sessions": [["r", "s"]]},
    SEEN: {"_timeline": ["[]"], "__group0": ["a"], "__group11": [7], "__first_end": [1], "__last_end": [2]},
    FLUSHED: {"_timeline": ["[]"], "__group0": ["b"], "__start": [1], "__end": [2], "__last_seq": [None]},
}
NEW = OLD | {
    tables.SESSION_EVENTS: {"_open_in": ["payload"], "_timeline": ["[]"], "_open_in_": [["s"]]},
    tables.REVISED_EVENTS: {
        "__group0": ["payload"],
        "_watermark": [datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)],
    },
    tables.REVISED_SESSION_EVENTS: {"_watermark": [None], "_open_in": [["r", "s"]]},
    SEEN: {"_timeline": ["[]"], "_group_0": ["a"], "_group_11": [7], "_first_end": [1], "_last_end": [2]},
    FLUSHED: {"_timeline": ["[]"], "_group_0": ["b"], "_start": [1], "_end": [2], "_last_seq": [None]},
}
COMMITTED = 1
TYPES = {"__sessions": _WINDOWS, "__w_before": pa.int64(), "__last_seq": pa.int64()}


def rows(table: str) -> pa.Table:
    columns = OLD[table]
    kinds = {name: TYPES.get(name, pa.int64() if values == [1] else None) for name, values in columns.items()}
    if table == tables.OPEN_EVENTS:
        kinds["__w_before"] = pa.string()
    return pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "shop")
    for table in OLD:
        made.create(table, rows(table).schema)
        made.append_rows(table, rows(table), attempt=1, expect=0)
    return made


def content(lake: Lake) -> dict[str, dict[str, object]]:
    return {table: lake.rows(table).to_pydict() for table in OLD}


def test_columns_of_state_get_their_names_in_commits_that_change_no_rows(lake: Lake) -> None:
    told: list[str] = []
    before = {table: lake.open(table).metadata().configuration for table in OLD}
    migrate(lake, OLD, told.append)
    assert content(lake) == NEW
    assert told == ["renaming columns in 5 tables of `_state` that an earlier Tidemark wrote"]
    assert {table: lake.open(table).metadata().configuration for table in OLD} == before
    assert foreign_changes(lake, dict.fromkeys(OLD, COMMITTED)) == []
    renamed = [table for table in OLD if OLD[table] != NEW[table]]
    assert {table: same_rows(lake, table, COMMITTED)[0] for table in renamed} == dict.fromkeys(renamed, 2)
    assert lake.rows(SEEN, COMMITTED).to_pydict() == OLD[SEEN], "readers of the last commit see what they saw"
    migrate(lake, OLD, told.append)
    assert len(told) == 1, "nothing is left to do"
    assert [lake.version(table) for table in OLD] == [2 if table in renamed else 1 for table in OLD]


@pytest.mark.parametrize("hook", ["_committing", "_committed"])
@pytest.mark.parametrize("place", range(5))
def test_what_a_fault_leaves_is_finished_by_the_next(lake: Lake, hook: str, place: int) -> None:
    class Failing(Lake):
        left = place

    def fail(failing: Failing, *_said: object) -> None:
        Failing.left -= 1
        if Failing.left < 0:
            raise KeyboardInterrupt

    setattr(Failing, hook, fail)
    with pytest.raises(KeyboardInterrupt):
        migrate(Failing(lake.root), OLD, lambda _line: None)
    done = place + (hook == "_committed")
    assert [bool(old_columns(lake, table)) for table in OLD].count(True) == 5 - done
    prepare(lake, dict.fromkeys(OLD, COMMITTED), attempt=3)
    migrate(lake, OLD, lambda _line: None)
    assert content(lake) == NEW
    assert [lake.version(table) for table in OLD].count(2) == 5


def test_what_an_unfinished_attempt_wrote_is_taken_back_to_the_new_names(lake: Lake) -> None:
    migrate(lake, OLD, lambda _line: None)
    more = lake.rows(SEEN)
    lake.append_rows(SEEN, more, attempt=2, expect=2)
    assert prepare(lake, {SEEN: COMMITTED}, attempt=3) == {SEEN: 4}
    assert lake.rows(SEEN).to_pydict() == NEW[SEEN]


def test_a_table_of_many_rows_keeps_them_in_their_order(tmp_path: Path) -> None:
    lake, many = Lake(tmp_path / "shop"), 200_000
    made = pa.table({"n": pa.array(range(many)), "__sessions": pa.array([["s"]] * many, _WINDOWS)})
    lake.create(tables.SESSION_EVENTS, made.schema)
    lake.append_rows(tables.SESSION_EVENTS, made, attempt=1, expect=0)
    migrate(lake, [tables.SESSION_EVENTS], lambda _line: None)
    found = lake.rows(tables.SESSION_EVENTS)
    assert found.column_names == ["n", "_open_in"]
    assert found["n"].to_pylist() == list(range(many))


def test_a_payload_may_have_the_names_of_earlier_columns_of_state(tmp_path: Path) -> None:
    lake, text = Lake(tmp_path / "shop"), pa.string()
    kept = {"_timeline": text, "_watermark": pa.timestamp("us", "UTC"), "_open_in": _WINDOWS, "_batch_id": pa.int64()}
    schema = pa.schema({"__sessions": text, "__w_before": text} | kept)
    lake.create(tables.REVISED_SESSION_EVENTS, schema)
    assert old_columns(lake, tables.REVISED_SESSION_EVENTS) == {}


def test_no_column_of_the_payload_has_the_name_of_the_windows_that_keep_an_event() -> None:
    assert open_in_column(["id", "k"]) == "_open_in"
    assert open_in_column(["_OPEN_IN", "_open_in_", "k"]) == "_open_in__"
