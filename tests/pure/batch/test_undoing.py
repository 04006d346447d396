"""Versions in the tables of a batch, without Spark: attempts, maintenance that joins and deletes, other writers."""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from tests.pure.batch.batches import SCHEMA, T, content, go, lake_of, process_of, rows, said_by
from tidemark.resources.delta import upkeep
from tidemark.resources.delta.lake import ConflictError, Lake
from tidemark.resources.delta.undoing import (
    ForeignChangeError,
    foreign_changes,
    keep_foreign,
    outputs,
    prepare,
    same_rows,
    take_back,
)
from tidemark.resources.delta.upkeep import compact, size_of
from tidemark.timeops.errors import FencedError, LakeError

COMMITTED = 3
"""Version of the last commit: three appends of one row each, by attempts 1 to 3."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_of(tmp_path / "shop", [1], [2], [3])


def delta(lake: Lake) -> DeltaTable:
    return DeltaTable(str(lake.path(T)))


def optimize(lake: Lake) -> None:
    delta(lake).optimize.compact()


def vacuum(lake: Lake) -> None:
    delta(lake).vacuum(0, dry_run=False, enforce_retention_duration=False)


def attempt_4(lake: Lake) -> None:
    lake.append_rows(T, rows(4), attempt=4, expect=lake.version(T))


def delete(lake: Lake) -> None:
    delta(lake).delete("k = 2")


def set_property(lake: Lake) -> None:
    delta(lake).alter.set_table_properties({"delta.checkpointInterval": "7"})


def checkpoint(lake: Lake) -> None:
    delta(lake).create_checkpoint()


def files(lake: Lake) -> int:
    return len(delta(lake).file_uris())


@pytest.mark.parametrize("also", [(), (vacuum,), (set_property, checkpoint)])
def test_maintenance_stays_and_the_next_commit_names_it(lake: Lake, also: tuple[Callable[[Lake], None], ...]) -> None:
    optimize(lake)
    for act in also:
        act(lake)
    version = lake.version(T)
    assert prepare(lake, {T: COMMITTED}, 4) == {T: version} == outputs(lake, {T: COMMITTED}, 4)
    assert same_rows(lake, T, COMMITTED)[0] == version
    assert files(lake) == 1
    assert content(lake, version) == [1, 2, 3]
    assert foreign_changes(lake, {T: COMMITTED}) == []
    if vacuum not in also:
        assert content(lake, COMMITTED) == [1, 2, 3], "readers of the last commit go on"


@pytest.mark.parametrize(
    ("acts", "left"),
    [
        ((attempt_4,), 3),
        ((optimize, attempt_4), 1),
        ((optimize, vacuum, attempt_4), 1),
        ((attempt_4, optimize), 3),
        ((optimize, attempt_4, optimize), 1),
        ((attempt_4, set_property), 3),
    ],
)
def test_what_an_unfinished_attempt_wrote_goes_wherever_maintenance_came_in_between(
    lake: Lake, acts: tuple[Callable[[Lake], None], ...], left: int
) -> None:
    for act in acts:
        act(lake)
    version = take_back(lake, T, COMMITTED, 5)
    assert content(lake) == [1, 2, 3]
    assert files(lake) == left
    assert take_back(lake, T, COMMITTED, 5) == version, "there already: no second commit"
    optimize(lake)
    assert outputs(lake, {T: COMMITTED}, 5) == {T: lake.version(T)}
    assert lake.append_rows(T, rows(5), attempt=5, expect=version).rows == 1, "OPTIMIZE came behind the look"
    assert outputs(lake, {T: COMMITTED}, 5) == {T: lake.version(T)}
    assert content(lake) == [1, 2, 3, 5]


def test_columns_that_an_unfinished_attempt_added_go_as_well(lake: Lake) -> None:
    optimize(lake)
    wider = SCHEMA.append(pa.field("w", pa.int64()))
    grown = lake.grow(T, wider, attempt=4, expect=lake.version(T))
    assert lake.append_rows(T, rows(4), attempt=4, expect=grown).rows == 1, "the columns are not yet its rows"
    assert outputs(lake, {T: COMMITTED}, 4) == {T: grown + 1}
    take_back(lake, T, COMMITTED, 5)
    assert list(lake.columns(T)) == ["k", "v"]
    assert content(lake) == [1, 2, 3]
    assert files(lake) == 1


def test_a_late_append_of_an_earlier_attempt_is_never_committed(lake: Lake) -> None:
    """Before this attempt's write it is taken out with what else is left; after it, the batch is done again."""
    expect = take_back(lake, T, COMMITTED, 5)

    def late() -> None:  # as Spark does it: it looks at no version
        mark = CommitProperties(custom_metadata={"userMetadata": "attempt 4"})
        write_deltalake(str(lake.path(T)), rows(4), mode="append", commit_properties=mark)

    late()
    with pytest.raises(ConflictError, match="is at version 4"):
        lake.append_rows(T, rows(5), attempt=5, expect=expect)
    lake.append_rows(T, rows(5), attempt=5, expect=take_back(lake, T, COMMITTED, 5))
    late()
    with pytest.raises(ConflictError, match="holds what attempt 4 wrote") as error:
        outputs(lake, {T: COMMITTED}, 5)
    assert "Run again" in str(error.value)
    prepare(lake, {T: COMMITTED}, 6)
    assert content(lake) == [1, 2, 3]


LATE = """
import sys
from pathlib import Path
import pyarrow as pa
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.undoing import take_back
from tidemark.timeops.errors import LakeError
lake = Lake(Path(sys.argv[1]))
expect = take_back(lake, "events", 3, 4)
print("ready", flush=True)
sys.stdin.readline()
rows = pa.table({"k": pa.array([4], pa.int64()), "v": ["x"]})
for act in (
    lambda: lake.append_rows("events", rows, attempt=4, expect=expect),
    lambda: take_back(lake, "events", 3, 4),
):
    try:
        act()
        print("wrote", flush=True)
    except LakeError as error:
        print(type(error).__name__, flush=True)
"""


def test_a_process_that_was_taken_for_dead_neither_writes_nor_takes_back(lake: Lake) -> None:
    with process_of(LATE, lake.root) as process:
        lake.append_rows(T, rows(5), attempt=5, expect=take_back(lake, T, COMMITTED, 5))
        go(process)
        assert [said_by(process), said_by(process)] == ["FencedError", "FencedError"]
    assert content(lake) == [1, 2, 3, 5]


class AtOnce(Lake):
    """A lake whose table another writer compacts whenever it is about to be written."""

    def _committing(self, table: str) -> None:  # noqa: ARG002
        optimize(self)


def test_a_write_is_made_again_when_maintenance_is_committed_at_the_same_moment(lake: Lake) -> None:
    crossed = AtOnce(lake.root)
    written = crossed.append_rows(T, rows(4), attempt=4, expect=COMMITTED)
    assert written.rows == 1
    assert crossed.append_rows(T, rows(4), attempt=4, expect=COMMITTED) == written
    assert content(lake) == [1, 2, 3, 4]
    assert outputs(lake, {T: COMMITTED}, 4) == {T: lake.version(T)}
    optimize(lake)
    crossed.append_rows(T, rows(5), attempt=5, expect=lake.version(T))
    take_back(crossed, T, COMMITTED, 6)
    assert content(lake) == [1, 2, 3]


@pytest.mark.parametrize("work", [prepare, outputs])
def test_rows_changed_by_somebody_else_are_named_with_what_to_do(
    lake: Lake, work: Callable[[Lake, dict[str, int], int], dict[str, int]]
) -> None:
    optimize(lake)
    delete(lake)
    with pytest.raises(ForeignChangeError) as error:
        work(lake, {T: COMMITTED}, 4)
    assert "events: version 5, DELETE at 20" in error.value.found
    assert "1 row deleted" in error.value.found
    assert "tidemark changes SPEC --accept" in error.value.remedy
    assert content(lake) == [1, 3], "it is not undone in silence"
    delta(lake).restore(4)
    assert work(lake, {T: COMMITTED}, 4) == {T: 6}, "who made the change has taken it back"


def test_a_change_by_somebody_else_can_be_taken_back_or_kept(lake: Lake) -> None:
    delete(lake)
    attempt_4(lake)
    [change] = foreign_changes(lake, {T: COMMITTED})
    assert (change.entry.version, change.entry.operation, change.entry.deleted) == (4, "DELETE", 1)
    kept = keep_foreign(lake, T, COMMITTED, 5)
    assert content(lake, kept) == [1, 3]
    assert prepare(lake, {T: kept}, 6) == {T: kept}
    take_back(lake, T, COMMITTED, 6, foreign=True)
    assert content(lake) == [1, 2, 3]


def test_a_change_on_top_of_an_unfinished_attempt_cannot_be_kept(lake: Lake) -> None:
    attempt_4(lake)
    delete(lake)
    with pytest.raises(LakeError, match="on top of what an unfinished batch wrote") as error:
        keep_foreign(lake, T, COMMITTED, 5)
    assert "--take-back" in error.value.remedy
    take_back(lake, T, COMMITTED, 5, foreign=True)
    assert content(lake) == [1, 2, 3]


def test_a_write_that_somebody_takes_back_is_missed_at_the_commit(lake: Lake) -> None:
    attempt_4(lake)
    delta(lake).restore(COMMITTED)
    with pytest.raises(ConflictError, match="lacks what this run wrote"):
        outputs(lake, {T: COMMITTED}, 4)
    assert prepare(lake, {T: COMMITTED}, 5) == {T: 5}


def test_a_later_attempt_fences_an_earlier_one(lake: Lake) -> None:
    attempt_4(lake)
    for work in (prepare, outputs):
        with pytest.raises(FencedError, match="attempt 4, a later one than this run's 3"):
            work(lake, {T: COMMITTED}, 3)
    assert content(lake) == [1, 2, 3, 4]


def test_a_log_that_has_lost_an_entry_is_an_error(lake: Lake) -> None:
    optimize(lake)
    checkpoint(lake)
    (lake.path(T) / "_delta_log" / f"{4:020}.json").unlink()
    with pytest.raises(LakeError, match="no entry of version 4"):
        prepare(lake, {T: COMMITTED}, 4)


def test_a_table_takes_over_another_in_one_commit_that_can_be_taken_back(lake: Lake, tmp_path: Path) -> None:
    other = Lake(tmp_path / "beside")
    other.create(T, pa.schema([("k", pa.string()), ("w", pa.int64())]))
    for attempt in (1, 2):
        more = pa.table({"k": [f"k{attempt}"], "w": [attempt]})
        other.append_rows(T, more, attempt=attempt, expect=attempt - 1)
    made = other.opened.version_at(T)
    for _ in range(2):  # a write may be repeated
        assert lake.take_over(T, made, attempt=4, expect=COMMITTED).version == COMMITTED + 1
    assert sorted(lake.rows(T).to_pylist(), key=str) == [{"k": "k1", "w": 1}, {"k": "k2", "w": 2}]
    assert lake.columns(T) == {"k": "string", "w": "bigint"}
    assert lake.row_count(T) == 2
    assert outputs(lake, {T: COMMITTED}, 4) == {T: COMMITTED + 1}
    assert [*lake.rows(T, filters=[("w", ">", 1)])["k"].to_pylist()] == ["k2"], "files have their bounds"

    back = take_back(lake, T, COMMITTED, 5)
    assert content(lake, back) == [1, 2, 3]
    assert lake.columns(T) == {"k": "bigint", "v": "string"}
    assert other.opened.version_at(T, made.number).has_files, "the other one is whole"
    again = lake.take_over(T, made, attempt=6, expect=back)
    vacuum(lake)
    assert (again.rows, lake.row_count(T), len(lake.rows(T))) == (2, 2, 2)

    other.empty(T, attempt=3, expect=2)
    emptied = lake.take_over(T, other.opened.version_at(T), attempt=7, expect=again.version)
    assert (emptied.version > again.version, lake.row_count(T)) == (True, 0)
    assert lake.take_over(T, other.opened.version_at(T), attempt=8, expect=emptied.version).version == emptied.version


def test_a_table_that_somebody_else_has_written_takes_nothing_over(lake: Lake, tmp_path: Path) -> None:
    other = lake_of(tmp_path / "beside", [9])
    delete(lake)
    with pytest.raises(ConflictError):
        lake.take_over(T, other.opened.version_at(T), attempt=4, expect=COMMITTED)
    assert not [*lake.path(T).glob("attempt-4-*/*")], "its files are gone"


FILES = 14


@pytest.fixture
def many(tmp_path: Path) -> Lake:
    """Return a lake with a table of many small files, whose keys are in the order of writing."""
    return lake_of(tmp_path / "many", *[range(4 * number, 4 * number + 4) for number in range(FILES)])


def of_files(lake: Lake, column: str) -> list[list[Any]]:
    """Return the values of each file as they lie in it."""
    return [pq.read_table(path.removeprefix("file://"))[column].to_pylist() for path in delta(lake).file_uris()]


def test_small_files_written_one_after_the_other_are_joined(many: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "FILE_BYTES", 3_000)
    assert compact(many, T)
    joined = sorted(sorted(file) for file in of_files(many, "k"))
    assert 1 < len(joined) < FILES / 2
    assert [key for file in joined for key in file] == list(range(4 * FILES)), "no file reaches into another"
    assert outputs(many, {T: FILES}, FILES + 1) == {T: FILES + 1}


def test_a_table_that_is_read_by_another_column_is_sorted_by_it(many: Lake) -> None:
    before = many.rows(T).sort_by("k")
    assert compact(many, T, "v")
    [values] = of_files(many, "v")
    assert values == sorted(values)
    assert many.rows(T).sort_by("k") == before


def test_a_few_files_are_left_as_they_are(many: Lake) -> None:
    assert compact(many, T)
    assert not compact(many, T)
    for number in range(7):
        many.append_rows(T, rows(number), expect=many.version(T))
    assert not compact(many, T), "eight are few"
    many.append_rows(T, rows(50), expect=many.version(T))
    assert compact(many, T)


def test_what_the_last_commit_and_the_next_batch_read_stays_however_old(many: Lake) -> None:
    compact(many, T)
    attempt = FILES + 1
    many.append_rows(T, rows(99), attempt=attempt, expect=FILES + 1)  # of a batch that is not committed
    lost = Path(str(many.path(T)), "part-of-a-write-that-was-killed.parquet")
    lost.write_bytes(b"x" * 10)
    for path in lost.parent.glob("*.parquet"):
        os.utime(path, (0, 0))
    kept = same_rows(many, T, FILES)
    assert upkeep.vacuum(many, T, timedelta(0), kept) == 0, "files in no version may be of a write at work"
    assert upkeep.vacuum(many, T, timedelta(days=2), kept) == 10
    assert not lost.exists()
    assert many.row_count(T) == 4 * FILES + 1
    assert many.rows(T, FILES).num_rows == 4 * FILES, "readers of the last commit"
    take_back(many, T, FILES, attempt + 1)
    time.sleep(0.01)
    freed = size_of(many, T).stored_bytes
    assert 0 < upkeep.vacuum(many, T, timedelta(0), [many.version(T)]) < freed
    assert many.row_count(T) == 4 * FILES
    assert many.opened.version_at(T).has_files
    assert not many.opened.version_at(T, 3).has_files


class Busy(Lake):
    """A lake that is looked after whenever a run is about to write."""

    def _committing(self, table: str) -> None:
        compact(Lake(self.root), table)
        upkeep.vacuum(Lake(self.root), table, timedelta(0), [FILES])


def test_upkeep_and_a_run_do_not_get_into_each_others_way(many: Lake) -> None:
    busy = Busy(many.root)
    expect = many.version(T)
    for attempt in range(FILES + 1, FILES + 4):
        expect = take_back(busy, T, FILES, attempt)
        assert busy.append_rows(T, rows(attempt + 80), attempt=attempt, expect=expect).rows == 1
    assert outputs(busy, {T: FILES}, attempt)[T] == many.version(T)
    assert content(many) == [*range(4 * FILES), attempt + 80]
