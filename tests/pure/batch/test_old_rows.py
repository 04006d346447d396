"""Old rows of a table: removed by files alone, in a commit that can be repeated and taken back, and that says so."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.knows import Knows
from tests.pure.batch.batches import SCHEMA, T, content, lake_of, rows
from tidemark.resources.delta.lake import ConflictError, Lake
from tidemark.resources.delta.log import own_commit
from tidemark.resources.delta.undoing import foreign_changes, take_back
from tidemark.resources.delta.versions import Filters
from tidemark.resources.sources.delta import DeltaReader
from tidemark.timeops.spec import DeltaSource

OLD: Filters = [("k", "<", 5)]


def test_files_whose_rows_are_all_old_go_and_others_are_split_before(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [1, 2], [3, 7], [8, 9])
    written = lake.remove_old(T, OLD, attempt=4, expect=3)
    assert content(lake) == [7, 8, 9]
    assert (written.version, written.rows) == (5, 0)
    split, removed = (own_commit(lake.path(T), version) for version in (4, 5))
    assert not split.changes, "rows were moved, and none was changed"
    assert (len(removed.added), len(removed.removed), removed.removes_old) == (0, 2, True)
    assert content(lake, 4) == [1, 2, 3, 7, 8, 9]


def test_a_row_without_a_number_is_never_old_whatever_the_bounds_of_its_file_say(tmp_path: Path) -> None:
    table = "dead_letters"
    lake = Lake(tmp_path)
    lake.create(table, pa.schema([("_arrival_seq", pa.int64())]))
    lake.append_rows(table, pa.table({"_arrival_seq": pa.array([1, 2, None], pa.int64())}), attempt=1, expect=0)
    lake.append_rows(table, pa.table({"_arrival_seq": pa.array([3, 4], pa.int64())}), attempt=2, expect=1)
    version = lake.opened.version_at(table)
    assert len(version.bounds_by_file("_arrival_seq")) == 1
    whole, partly = version.files_meant([("_arrival_seq", "<", 9)])
    assert (len(whole), len(partly)) == (1, 1)
    lake.remove_old(table, [("_arrival_seq", "<", 9)], attempt=3, expect=2)
    assert lake.rows(table)["_arrival_seq"].to_pylist() == [None]


def test_repeated_by_its_attempt_nothing_is_written_and_without_old_rows_there_is_no_commit(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [1, 7])
    first = lake.remove_old(T, OLD, attempt=2, expect=1)
    assert lake.remove_old(T, OLD, attempt=2, expect=1) == first
    assert lake.remove_old(T, [("k", "<", 0)], attempt=3, expect=first.version).version == first.version
    with pytest.raises(ConflictError):
        lake.remove_old(T, OLD, attempt=4, expect=1)


def test_an_unfinished_attempt_is_taken_back_with_all_its_rows(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [1, 2], [3, 7])
    lake.remove_old(T, OLD, attempt=3, expect=2)
    again = Lake(lake.root)
    assert foreign_changes(again, {T: 2}) == []
    take_back(again, T, 2, attempt=4)
    assert content(again) == [1, 2, 3, 7]


def test_a_change_feed_names_the_old_rows_and_no_other(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.create(T, SCHEMA, change_feed=True)
    lake.append_rows(T, rows(1, 2, 7), attempt=1, expect=0)
    written = lake.remove_old(T, OLD, attempt=2, expect=1)
    feed = DeltaTable(str(lake.path(T))).load_cdf(starting_version=2, ending_version=written.version)
    changes = pa.table(feed.read_all()).to_pylist()
    assert sorted((row["_change_type"], row["k"]) for row in changes) == [("delete", 1), ("delete", 2)]


@pytest.mark.parametrize("changes", ["fail", "follow", "ignore"])
@pytest.mark.parametrize("by_batches", [True, False])
def test_who_follows_the_table_passes_over_old_rows_and_reads_what_comes_after(
    tmp_path: Path, changes: str, by_batches: bool
) -> None:
    lake = lake_of(tmp_path, [1, 2], [3, 7])
    settings = {"name": "s", "kind": "delta", "path": T, "schema": "k BIGINT", "changes": changes}
    reader = DeltaReader(DeltaSource.model_validate(settings), tmp_path)
    first = reader.look(Knows((), versions=(2,) if by_batches else None))
    removed = lake.remove_old(T, OLD, attempt=3, expect=2).version
    take_back(lake, T, 2, attempt=4)  # it was not committed, and the next one is
    removed = lake.remove_old(T, OLD, attempt=4, expect=lake.version(T)).version
    later = lake.append_rows(T, rows(8), attempt=5, expect=removed).version
    assert content(lake) == [7, 8]
    states = [version.state for version in first.versions]
    committed = (2, removed, later) if by_batches else None
    found = reader.look(Knows(states, versions=committed))
    assert found.errors == ()
    if by_batches:
        assert [(version.how, version.rows) for version in found.parts] == [("added", 1)]
