"""Delta tables without Spark: versions others write, newest rows, damage, and columns that become others."""

import os
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.aged import age
from tests.pure.batch.batches import SCHEMA, T, content, lake_of, rows
from tidemark.resources import tables
from tidemark.resources.delta.columns import sql_types_of
from tidemark.resources.delta.lake import ConflictError, Lake
from tidemark.resources.delta.migration import fit, migrate, old_columns
from tidemark.resources.delta.queries import newest_rows, pieces, python_rows, select
from tidemark.resources.delta.undoing import foreign_changes, prepare, same_rows, take_back
from tidemark.resources.delta.upkeep import keep_readable
from tidemark.resources.delta.versions import DELETED_FILE_RETENTION, Opened
from tidemark.resources.machine import ReadOnlyError
from tidemark.resources.tables import open_in_column
from tidemark.timeops.errors import LakeError
from tidemark.timeops.values.utc import Instant


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "shop", [1])


def other(lake: Lake) -> Lake:
    """Return the same tables, as another process has them."""
    return Lake(lake.root)


def log_entry(lake: Lake, version: int) -> Path:
    return Path(str(lake.path(T)), "_delta_log", f"{version:020}.json")


def test_what_others_write_is_seen_at_once_but_while_the_lease_is_kept_only_own_writes_are(lake: Lake) -> None:
    other(lake).append_rows(T, rows(2), expect=1)
    assert (lake.version(T), content(lake)) == (2, [1, 2])
    with lake.settled():
        assert lake.append_rows(T, rows(3), expect=2).version == 3
        assert (content(lake), content(lake, 1)) == ([1, 2, 3], [1])
        other(lake).append_rows(T, rows(4), expect=3)
        assert (lake.version(T), lake.newest(T, 0)) == (3, 4)
    assert content(lake) == [1, 2, 3, 4]


COMMITS: dict[str, Callable[[Lake], object]] = {
    "append": lambda lake: lake.append_rows(T, rows(9), attempt=9, expect=1),
    "grow": lambda lake: lake.grow(T, SCHEMA.append(pa.field("new", pa.int64())), attempt=9, expect=1),
    "restore": lambda lake: lake.restore(T, 0, expect=1),
}


@pytest.mark.parametrize("commit", COMMITS.values(), ids=COMMITS)
@pytest.mark.parametrize("overtaken_by", [1, 2, 12])
def test_a_commit_on_a_version_that_was_overtaken_is_refused(
    lake: Lake, commit: Callable[[Lake], object], overtaken_by: int
) -> None:
    """Beyond a checkpoint, too. Afterwards the newest version is known."""
    with lake.settled():
        assert lake.version(T) == 1
        foreign = other(lake)
        for n in range(overtaken_by):
            foreign.append_rows(T, rows(100 + n), expect=1 + n)
        with pytest.raises(ConflictError):
            commit(lake)
        assert lake.version(T) == 1 + overtaken_by
    assert content(other(lake)) == [1, *range(100, 100 + overtaken_by)]


def test_maintenance_in_between_is_no_conflict(lake: Lake) -> None:
    with lake.settled():
        other(lake).open(T).alter.set_table_properties({"delta.checkpointInterval": "7"})
        assert lake.append_rows(T, rows(2), attempt=2, expect=1).version == 3
    assert content(lake) == [1, 2]


@pytest.mark.parametrize("condition", [("v", "=", "odd"), ("v", "!=", "even"), ("v", "in", ["odd", "none"])])
def test_rows_are_found_by_a_text_also_in_a_file_that_delta_rs_rewrote(
    lake: Lake, condition: tuple[str, str, object]
) -> None:
    """Its DELETE writes texts of another type, which Arrow does not compare with the text of a condition."""
    lake.append_rows(T, rows(2, 3, 4), expect=1)
    DeltaTable(str(lake.path(T))).delete("k = 4")
    assert sorted(lake.rows(T, filters=[condition])["k"].to_pylist()) == [1, 3]


def test_a_folder_that_was_put_back_is_opened_anew(lake: Lake, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(folder, tmp_path / "backup")
    lake.append_rows(T, rows(2), expect=1)
    shutil.rmtree(folder)
    with pytest.raises(LakeError, match="There is no table"):
        lake.version(T)
    shutil.copytree(tmp_path / "backup", folder)
    assert content(lake) == [1]


def test_a_version_stays_as_it_was_when_its_table_goes_on(lake: Lake) -> None:
    opened = Opened(lake.root)
    before = opened.version_at(T)
    delta = opened.take(T)
    delta.delete("k = 1")
    opened.keep(T, delta)
    assert before.dataset.to_table().num_rows == 1
    assert opened.version_at(T).dataset.to_table().num_rows == 0
    assert opened.version_at(T, before.number) is before


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), max_size=4), st.integers(1, 12), st.booleans())
def test_the_newest_rows_are_the_largest_of_all_files(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], most: int, odd: bool
) -> None:
    lake = lake_of(tmp_path_factory.mktemp("lake"), *files)
    filters = [("v", "=", "odd")] if odd else []
    found = newest_rows(lake, T, lake.version(T), ["v", "k"], by="k", most=most, filters=filters)
    wanted = sorted((k for keys in files for k in keys if not odd or k % 2), reverse=True)
    assert found["k"].to_pylist() == wanted[:most]
    assert found.column_names == ["v", "k"]


def test_files_without_a_newest_row_are_not_opened(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.create(T, pa.schema([("_arrival_seq", pa.int64())]))
    for version, numbers in enumerate([[1, 2, 3], [7, 8, 9]]):
        lake.append_rows(T, pa.table({"_arrival_seq": numbers}), expect=version)
        if not version:
            [old] = (tmp_path / T).rglob("*.parquet")
    old.write_bytes(b"")
    assert newest_rows(lake, T, 2, ["_arrival_seq"], by="_arrival_seq", most=2)["_arrival_seq"].to_pylist() == [9, 8]


@pytest.mark.parametrize(
    ("version", "filters", "keys"),
    [(1, [], [1, 2]), (2, [], [1, 2, 3]), (2, [("k", ">", 1)], [2, 3])],
    ids=["the first", "the newest", "some rows"],
)
def test_pieces_are_those_of_a_version(
    tmp_path: Path, version: int, filters: list[tuple[str, str, object]], keys: list[int]
) -> None:
    found = pieces(lake_of(tmp_path, [1, 2], [3]), T, version, ["k"], filters)
    assert sorted(k for piece in found for k in piece["k"].to_pylist()) == keys


def test_instants_before_and_behind_the_years_of_python_are_found_by_every_condition(tmp_path: Path) -> None:
    """Of a file with the year 10000 in its statistics delta-rs would find no row by any of them."""
    ends = [Instant(-62_135_600_400_000_000), Instant(0), Instant(253_402_300_800_000_000)]
    assert list(map(str, ends)) == ["0000-12-31 23:00:00", "1970-01-01 00:00:00", "+10000-01-01 00:00:00"]
    lake, kind = Lake(tmp_path), pa.timestamp("us", "UTC")
    lake.create(T, pa.schema([("at", kind)]))
    for version, one in enumerate(ends):
        lake.append_rows(T, pa.table({"at": pa.array([one.us], kind)}), expect=version)
    for number, end in enumerate(ends):
        found = {sign: lake.rows(T, filters=[("at", sign, end)]).num_rows for sign in ("<", "=", ">=")}
        assert found == {"<": number, "=": 1, ">=": 3 - number}
    newest = newest_rows(lake, T, 3, ["at"], by="at", most=2)
    assert python_rows(newest) == [{"at": ends[2]}, {"at": ends[1]}]
    span = pa.struct([("end", kind), ("n", pa.int8())])
    spans = pa.array([[{"end": end.us, "n": 1}, None] for end in ends], pa.list_(span))
    read = python_rows(pa.table({"spans": spans}))
    assert [row["spans"] for row in read] == [[{"end": end, "n": 1}, None] for end in ends]


@pytest.mark.parametrize(
    "spoilt",
    [lambda entry: entry[:-40], lambda _entry: b"", lambda _entry: b"\0" * 100],
    ids=["cut off", "emptied", "zeros"],
)
def test_a_log_with_a_spoilt_entry_is_named_with_the_entry(lake: Lake, spoilt: Callable[[bytes], bytes]) -> None:
    entry = log_entry(lake, 1)
    entry.write_bytes(spoilt(entry.read_bytes()))
    with pytest.raises(LakeError) as raised:
        other(lake).rows(T)
    assert raised.value.found == (
        f"The log of the table {lake.path(T)} cannot be read: {1:020}.json in it is truncated or damaged."
    )
    assert "restore the pipeline's folder from a backup" in raised.value.remedy


def test_a_log_with_a_gap_is_named_with_its_place(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "shop", [1], [2])
    log_entry(lake, 1).unlink()
    with pytest.raises(LakeError, match=rf"the entry before {2:020}\.json is missing"):
        other(lake).rows(T)


def test_a_missing_file_is_named_with_its_table(lake: Lake) -> None:
    [file] = Path(str(lake.path(T))).rglob("*.parquet")
    file.unlink()
    for read in (
        lambda: other(lake).rows(T),
        lambda: select(lake, T, None, where=None, order=(), most=9),
        lambda: select(lake, T, None, where="k >= 0", order=(), most=9),
    ):
        with pytest.raises(LakeError, match=f"A file of the table .*{file.name}"):
            read()


def test_a_table_that_may_not_be_written_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ReadOnlyError) as raised:
        lake.append_rows(T, rows(2), expect=1)
    assert f"{lake.path(T)} was not written" in raised.value.found
    assert "mount the disk for writing" in raised.value.remedy


ZERO, MIDNIGHT = Decimal("0"), datetime(2026, 3, 28, 23, tzinfo=UTC)
# Each column with its type before and now, and its values before and now. In Berlin the year 1 began before that of
# UTC, which no instant may.
COLUMNS: list[tuple[str, pa.DataType | None, pa.DataType | None, list[Any], list[Any]]] = [
    ("n", pa.int32(), pa.int64(), [1, None, 2], [1, None, 2]),
    ("x", pa.float32(), pa.float64(), [0.1, None, 0.5], [0.10000000149011612, None, 0.5]),
    ("cost", pa.decimal128(5, 2), pa.decimal128(9, 4), [Decimal("1.25"), None, ZERO], [Decimal("1.25"), None, ZERO]),
    ("day", pa.date32(), pa.timestamp("us", "UTC"), [date(2026, 3, 29), None, date(1, 1, 1)], [MIDNIGHT, None, None]),
    ("list", pa.list_(pa.int16()), pa.list_(pa.int64()), [[1, None], None, []], [[1, None], None, []]),
    ("gone", pa.string(), None, ["a", None, "c"], ["a", None, "c"]),
    ("more", None, pa.string(), [], [None, None, None]),
]
BEFORE = pa.schema([(name, before) for name, before, *_ in COLUMNS if before])
NOW = pa.schema([(name, now) for name, _, now, *_ in COLUMNS if now])


@pytest.fixture
def before(tmp_path: Path) -> Lake:
    """Return a lake whose table has rows of an earlier spec, since version 1."""
    made = Lake(tmp_path / "before")
    made.create(T, BEFORE)
    values = {name: values for name, before, _, values, _ in COLUMNS if before}
    made.append_rows(T, pa.table(values, schema=BEFORE), expect=0, attempt=1)
    return made


def test_rows_before_get_wider_types_and_nulls_and_the_table_stays_one_that_all_can_read(before: Lake) -> None:
    assert fit(before, T, NOW, "Europe/Berlin")
    assert before.rows(T).to_pydict() == {name: values for name, *_, values in COLUMNS}
    assert before.columns(T)["day"] == "timestamp"
    protocol = before.open(T).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    version = before.version(T)
    assert not fit(before, T, NOW, "Europe/Berlin")
    assert before.version(T) == version, "there is nothing more to do"
    assert same_rows(before, T, 1)[0] == version, "it counts as maintenance"


def test_what_an_unfinished_batch_wrote_is_taken_back_and_the_columns_stay(before: Lake) -> None:
    fit(before, T, NOW, "UTC")
    fresh = pa.Table.from_pylist([{"n": 3_000_000_000, "more": "m"}], schema=NOW)
    before.append_rows(T, fresh, expect=before.version(T), attempt=2)
    assert before.row_count(T) == 4
    take_back(before, T, 1, 3)
    assert before.rows(T)["n"].to_pylist() == [1, None, 2]
    assert "more" in before.columns(T)


def test_types_are_written_as_in_spark_sql(tmp_path: Path) -> None:
    spans = pa.list_(pa.struct([("start", pa.timestamp("us", "UTC")), ("n", pa.int64())]))
    kinds = {"a": pa.int32(), "b": pa.decimal128(9, 2), "c": spans, "d": pa.map_(pa.string(), pa.int8())}
    write_deltalake(tmp_path, pa.table({name: pa.array([], kind) for name, kind in kinds.items()}))
    assert sql_types_of(DeltaTable(tmp_path).schema()) == {
        "a": "int",
        "b": "decimal(9,2)",
        "c": "array<struct<start:timestamp,n:bigint>>",
        "d": "map<string,tinyint>",
    }


SEEN, FLUSHED = tables.seen_groups_table("w"), tables.flushed_table("w")
NO_NUMBER = pa.array([None], pa.int64())
OLD: dict[str, pa.Table] = {
    tables.FIRST_TIMES: pa.table({"key": ["a"], "event_us": [1]}),
    tables.OPEN_EVENTS: pa.table({"__w_before": ["a column of the payload"], "_timeline": ["[]"]}),
    tables.SESSION_EVENTS: pa.table({"_open_in": ["payload"], "_timeline": ["[]"], "__sessions": [["s"]]}),
    tables.REVISED_EVENTS: pa.table({"__group0": ["payload"], "__w_before": [1_000_001]}),
    tables.REVISED_SESSION_EVENTS: pa.table({"__w_before": NO_NUMBER, "__sessions": [["r", "s"]]}),
    SEEN: pa.table({"_timeline": ["[]"], "__group0": ["a"], "__group11": [7], "__first_end": [1], "__last_end": [2]}),
    FLUSHED: pa.table(
        {"_timeline": ["[]"], "__group0": ["b"], "__start": [1], "__end": [2], "__last_seq": NO_NUMBER}
    ),
}
NEW: dict[str, dict[str, list[Any]]] = {
    **{table: first.to_pydict() for table, first in OLD.items()},
    tables.SESSION_EVENTS: {"_open_in": ["payload"], "_timeline": ["[]"], "_open_in_": [["s"]]},
    tables.REVISED_EVENTS: {"__group0": ["payload"], "_watermark": [datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)]},
    tables.REVISED_SESSION_EVENTS: {"_watermark": [None], "_open_in": [["r", "s"]]},
    SEEN: {"_timeline": ["[]"], "_group_0": ["a"], "_group_11": [7], "_first_end": [1], "_last_end": [2]},
    FLUSHED: {"_timeline": ["[]"], "_group_0": ["b"], "_start": [1], "_end": [2], "_last_seq": [None]},
}
RENAMED = [table for table, first in OLD.items() if first.to_pydict() != NEW[table]]
COMMITTED = 1


@pytest.fixture
def old(tmp_path: Path) -> Lake:
    """Return a lake whose tables of state have the columns of an earlier format."""
    made = Lake(tmp_path / "old")
    for table, first in OLD.items():
        made.create(table, first.schema)
        made.append_rows(table, first, attempt=1, expect=0)
    return made


def state_in(lake: Lake) -> dict[str, dict[str, list[Any]]]:
    return {table: lake.rows(table).to_pydict() for table in OLD}


def test_columns_of_state_get_their_names_in_commits_that_change_no_rows(old: Lake) -> None:
    told: list[str] = []
    settings_before = {table: old.open(table).metadata().configuration for table in OLD}
    migrate(old, OLD, told.append)
    assert state_in(old) == NEW
    assert told == ["renaming columns in 5 tables of `_state` that an earlier Tidemark wrote"]
    assert {table: old.open(table).metadata().configuration for table in OLD} == settings_before
    assert foreign_changes(old, dict.fromkeys(OLD, COMMITTED)) == []
    assert {table: same_rows(old, table, COMMITTED)[0] for table in RENAMED} == dict.fromkeys(RENAMED, 2)
    assert old.rows(SEEN, COMMITTED) == OLD[SEEN], "readers of the last commit see what they saw"
    migrate(old, OLD, told.append)
    assert len(told) == 1, "nothing is left to do"
    assert [old.version(table) for table in OLD] == [2 if table in RENAMED else 1 for table in OLD]


@pytest.mark.parametrize("hook", ["_committing", "_committed"])
@pytest.mark.parametrize("place", range(5))
def test_what_a_fault_leaves_is_finished_by_the_next(old: Lake, hook: str, place: int) -> None:
    class Failing(Lake):
        left = place

    def fail(failing: Failing, *_said: object) -> None:
        Failing.left -= 1
        if Failing.left < 0:
            raise KeyboardInterrupt

    setattr(Failing, hook, fail)
    with pytest.raises(KeyboardInterrupt):
        migrate(Failing(old.root), OLD, lambda _line: None)
    done = place + (hook == "_committed")
    assert [bool(old_columns(old, table)) for table in OLD].count(True) == 5 - done
    prepare(old, dict.fromkeys(OLD, COMMITTED), attempt=3)
    migrate(old, OLD, lambda _line: None)
    assert state_in(old) == NEW
    assert [old.version(table) for table in OLD].count(2) == 5


def test_what_an_unfinished_attempt_wrote_is_taken_back_to_the_new_names(old: Lake) -> None:
    migrate(old, OLD, lambda _line: None)
    old.append_rows(SEEN, old.rows(SEEN), attempt=2, expect=2)
    assert prepare(old, {SEEN: COMMITTED}, attempt=3) == {SEEN: 4}
    assert old.rows(SEEN).to_pydict() == NEW[SEEN]


def test_a_table_of_many_rows_keeps_them_in_their_order(tmp_path: Path) -> None:
    lake, many = Lake(tmp_path), range(200_000)
    made = pa.table({"n": many, "__sessions": [["s"]] * len(many)})
    lake.create(tables.SESSION_EVENTS, made.schema)
    lake.append_rows(tables.SESSION_EVENTS, made, attempt=1, expect=0)
    migrate(lake, [tables.SESSION_EVENTS], lambda _line: None)
    found = lake.rows(tables.SESSION_EVENTS)
    assert found.column_names == ["n", "_open_in"]
    assert found["n"].to_pylist() == list(many)


def test_a_payload_may_have_the_names_of_earlier_columns_of_state(tmp_path: Path) -> None:
    lake, text = Lake(tmp_path), pa.string()
    payload = {"__sessions": text, "__w_before": text}
    own = {"_watermark": pa.timestamp("us", "UTC"), "_open_in": pa.list_(text), "_batch_id": pa.int64()}
    lake.create(tables.REVISED_SESSION_EVENTS, pa.schema(payload | {"_timeline": text} | own))
    assert old_columns(lake, tables.REVISED_SESSION_EVENTS) == {}


def test_no_column_of_the_payload_has_the_name_of_the_windows_that_keep_an_event() -> None:
    assert open_in_column(["id", "k"]) == "_open_in"
    assert open_in_column(["_OPEN_IN", "_open_in_", "k"]) == "_open_in__"


@pytest.mark.parametrize(
    ("before", "age_days", "retain_days", "after"),
    [
        (None, 0, None, 87_600),  # of a former version: nothing was deleted
        (None, 0, 7, 168),
        (87_600, 1, 30, 720),  # from then on files are deleted
        (720, 1, 7, 168),
        (720, 1, None, 720),
        (720, 1, 1 / 24, 168),  # what Delta has for tables that say nothing
        (168, 10, None, 960),  # the last commit stays readable while a batch is at work
        (960, 15, 7, 960),  # no commit a night where nothing runs
        (960, 25, 7, 2_400),
        (2_400, 0, 7, 168),
    ],
)
def test_how_old_a_version_may_be_is_what_maintenance_says_and_never_less_than_the_last_commit(
    lake: Lake, before: int | None, age_days: int, retain_days: float | None, after: int
) -> None:
    words = "interval a while" if before is None else f"interval {before} hours"
    lake.set_properties(T, {DELETED_FILE_RETENTION: words})
    age(lake.path(T), timedelta(days=age_days))
    there = lake.version(T)
    for _ in range(2):  # a second time there is nothing to do
        keep_readable(lake, T, 1, None if retain_days is None else timedelta(days=retain_days))
    assert lake.opened.version_at(T).properties[DELETED_FILE_RETENTION] == f"interval {after} hours"
    assert lake.version(T) == there + (before != after)
    assert content(lake, lake.version(T)) == content(lake, 1)
