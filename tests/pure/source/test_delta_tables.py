"""Discovery in real Delta tables, without Spark: which versions are read, and what stops a source.

Tables are written as other pipelines leave them, with delta-rs.
"""

import json
import shutil
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.knows import Knows
from tidemark.resources.sources.delta import DeltaReader, VersionsFound
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.sources.reader import HeldBack, still_held
from tidemark.resources.sources.table_versions import reading_place
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import DeltaSource
from tidemark.timeops.values.utc import instant_of


def source(**settings: object) -> DeltaSource:
    """Return the source of table `t`."""
    values = {"name": "s", "kind": "delta", "path": "t", "schema": "id BIGINT"}
    return DeltaSource.model_validate({**values, **settings})


def add(base: Path, *commits: int | Sequence[int], **more: Any) -> DeltaTable:
    """Adds a row for each id, or for each of several, in a commit of its own."""
    for ids in commits:
        rows = pa.table({"id": pa.array([ids] if isinstance(ids, int) else ids, pa.int64())})
        write_deltalake(str(base / "t"), rows, mode="append", **more)
    return DeltaTable(str(base / "t"))


def look(
    base: Path, given: DeltaSource | None = None, read: VersionsFound | None = None, **more: Any
) -> VersionsFound:
    """Return what is found, after what an earlier look has found was read."""
    return DeltaReader(given or source(), base).look(Knows(states(read), **more))


def states(read: VersionsFound | None) -> Sequence[FileState]:
    """Return what is remembered once what was found was read."""
    return [version.state for version in read.versions] if read is not None else []


def shown(found: VersionsFound) -> list[tuple[int, str, int]]:
    """Number, kind and rows of each version that is to be read."""
    return [(version.version, version.how, version.rows) for version in found.versions]


def numbers(found: VersionsFound) -> list[int]:
    return [version.version for version in found.versions]


def only_error(found: VersionsFound) -> str:
    """Return the one thing that is wrong."""
    (error,) = found.errors
    return str(error)


def log_entry(base: Path, version: int) -> Path:
    return base / "t" / "_delta_log" / f"{version:020}.json"


def test_at_first_the_whole_table_is_one_version_and_then_each_commit(tmp_path: Path) -> None:
    add(tmp_path, [1, 2], 3)
    first = look(tmp_path)
    assert shown(first) == [(1, "whole", 3)]
    assert shown(look(tmp_path, read=first)) == []
    add(tmp_path, 4, [5, 6])
    assert shown(look(tmp_path, read=first)) == [(2, "added", 1), (3, "added", 2)]


def test_a_start_version_reads_what_it_and_later_ones_added(tmp_path: Path) -> None:
    add(tmp_path, 0, 1, 2, 3)
    assert shown(look(tmp_path, source(start_version=0))) == [(n, "added", 1) for n in range(4)]
    assert shown(look(tmp_path, source(start_version=3))) == [(3, "added", 1)]
    assert shown(look(tmp_path, source(start_version=4))) == []
    assert "has no version 5 yet: it is at version 3" in only_error(look(tmp_path, source(start_version=5)))


def test_a_start_version_passes_over_versions_of_a_table_that_is_read(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    add(tmp_path, 2, 3, 4)
    assert shown(look(tmp_path, source(start_version=2), first)) == [(2, "added", 1), (3, "added", 1)]


def test_a_start_timestamp_reads_what_was_committed_then_or_later(tmp_path: Path) -> None:
    table = add(tmp_path, 0, 1, 2)
    times = [version.modified_us for version in look(tmp_path, source(start_version=0)).versions]
    given = source(start_timestamp=instant_of(times[1]))
    assert numbers(look(tmp_path, given)) == [n for n in range(3) if times[n] >= times[1]]
    assert shown(look(tmp_path, source(start_timestamp=instant_of(times[2]) + timedelta(days=1)))) == []
    table.create_checkpoint()
    log_entry(tmp_path, 0).unlink()
    early = look(tmp_path, source(start_timestamp=instant_of(times[0]) - timedelta(days=1)))
    assert "the log begins with version 1, which is later than `start_timestamp`" in only_error(early)


def test_a_table_that_never_was_is_an_error_of_the_spec_and_a_vanished_one_stops_the_source(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a Delta table"):
        look(tmp_path)
    (tmp_path / "t").mkdir()
    with pytest.raises(InputError, match="is not a Delta table"):
        look(tmp_path)
    add(tmp_path, 1)
    read = look(tmp_path)
    shutil.rmtree(tmp_path / "t")
    assert "the table that was read before is gone" in only_error(look(tmp_path, read=read))


def test_a_table_that_was_made_anew_or_taken_back_is_not_read(tmp_path: Path) -> None:
    add(tmp_path, 1, 2)
    read = look(tmp_path)
    log_entry(tmp_path, 1).unlink()
    assert "is at version 0, and version 1 was read before" in only_error(look(tmp_path, read=read))
    shutil.rmtree(tmp_path / "t")
    add(tmp_path, 1, 2)
    assert "was replaced by another table: its id was" in only_error(look(tmp_path, read=read))


def test_maintenance_adds_no_records_and_is_remembered(tmp_path: Path) -> None:
    table = add(tmp_path, 1, 2)
    first = look(tmp_path)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    found = look(tmp_path, read=first)
    assert {how for _, how, _ in shown(found)} == {"nothing"}
    assert not found.is_ready
    assert [state.name for state in states(found)] == [str(version) for version in numbers(found)]
    assert look(tmp_path, read=found).versions == ()


@pytest.mark.parametrize("changes", ["fail", "ignore"])
def test_a_commit_that_changes_rows_stops_the_source_or_is_passed_over_whole(tmp_path: Path, changes: str) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    add(tmp_path, 2)
    DeltaTable(str(tmp_path / "t")).delete("id = 1")
    add(tmp_path, 3)
    found = look(tmp_path, source(changes=changes), first)
    if changes == "fail":
        assert shown(found) == [(1, "added", 1)]
        assert "version 2 (DELETE at " in only_error(found)
        assert "`changes: rows`" in only_error(found)
        assert "set `start_version: 3`: this commit is skipped" in only_error(found)
        assert shown(look(tmp_path, source(start_version=3), first)) == [(3, "added", 1)]
    else:
        assert shown(found) == [(1, "added", 1), (2, "nothing", 0), (3, "added", 1)]
        (said,) = [version.passed_over for version in found.versions if version.passed_over]
        assert "skipped entirely, because `changes` is ignore" in said


def test_changed_rows_are_read_where_the_table_keeps_a_change_feed(tmp_path: Path) -> None:
    given = source(changes="rows")
    table = add(tmp_path, 1, configuration={"delta.enableChangeDataFeed": "true"})
    first = look(tmp_path, given)
    table.update(predicate="id = 1", updates={"id": "9"})
    assert [how for _, how, _ in shown(look(tmp_path, given, first))] == ["changed"]
    table = add(tmp_path / "other", 1)
    first = look(tmp_path / "other", given)
    table.delete("id = 1")
    said = only_error(look(tmp_path / "other", given, first))
    assert "the table kept no change data feed then" in said
    assert "delta.enableChangeDataFeed" in said


def test_a_log_entry_that_was_cleaned_up_stops_the_source_until_it_is_passed_over(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    add(tmp_path, 2, 3, 4, 5).create_checkpoint()
    for version in (0, 1, 2):
        log_entry(tmp_path, version).unlink()
    said = only_error(look(tmp_path, read=first))
    assert "the log no longer has an entry of version 1" in said
    assert "`start_version: 3` skips what is missing" in said
    assert shown(look(tmp_path, source(start_version=4), first)) == [(4, "added", 1)]


def test_files_that_were_vacuumed_stop_the_source_behind_what_is_whole(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    newest = add(tmp_path, 2, 3).file_uris()[0]
    Path(newest.removeprefix("file://")).unlink()
    found = look(tmp_path, read=first)
    assert "and this file is gone" in only_error(found)
    assert "VACUUM" in only_error(found)
    assert shown(found) == [(1, "added", 1)]


def test_a_damaged_entry_of_the_log_stops_the_source(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    add(tmp_path, 2, 3)
    log_entry(tmp_path, 1).write_text('{"add": ')
    found = look(tmp_path, read=first)
    assert (found.versions, bool(found.errors)) == ((), True)


def test_added_columns_are_left_out_and_one_that_is_gone_stops_the_source(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    more = pa.table({"id": pa.array([2], pa.int64()), "other": ["x"]})
    write_deltalake(str(tmp_path / "t"), more, mode="append", schema_mode="merge")
    found = look(tmp_path, read=first)
    assert shown(found) == [(1, "added", 1)]
    assert found.versions[0].layout.columns == ["id", "other"]
    said = only_error(look(tmp_path, source(schema="id BIGINT, othr STRING")))
    assert "column `othr` is missing from the table, which has: id, other" in said
    assert "did you mean `other`?" in said


@pytest.mark.parametrize(
    ("most", "read", "left"),
    [({"max_versions": 2}, [0, 1], 3), ({"max_bytes": 1}, [0], 4)],
    ids=["versions", "bytes"],
)
def test_one_ingestion_reads_a_bounded_number_of_versions_and_bytes(
    tmp_path: Path, most: dict[str, int], read: list[int], left: int
) -> None:
    add(tmp_path, 0, 1, 2, 3, 4)
    found = look(tmp_path, source(start_version=0, **most))
    assert (numbers(found), found.left) == (read, left)


def test_aligned_tables_are_read_by_the_times_of_commits_or_one_version_at_a_time(tmp_path: Path) -> None:
    add(tmp_path, 0, 1, 2)
    group = {"group": "g", "max_drift": "1 s"}
    slow = look(tmp_path, source(start_version=0, alignment={**group, "update_interval": "1 ms"}))
    assert len(slow.versions) < 3
    wide = look(tmp_path, source(start_version=0, alignment={**group, "update_interval": "1 hour"}))
    assert (numbers(wide), wide.left) == ([0, 1, 2], 0)
    alone = look(tmp_path, source(start_version=0, alignment=group, arrival_time="timestamp_seconds(id)"))
    assert (numbers(alone), alone.left) == ([0], 2)


def test_commits_whose_clocks_disagree_still_follow_each_other(tmp_path: Path) -> None:
    add(tmp_path, 0, 1, 2)
    entry = log_entry(tmp_path, 1)
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "commitInfo" in line:
            line["commitInfo"]["timestamp"] -= 3_600_000
    entry.write_text("\n".join(map(json.dumps, lines)))
    at_once = [version.modified_us for version in look(tmp_path, source(start_version=0)).versions]
    assert at_once[1] == at_once[0] + 1_000
    one_by_one: list[int] = []
    read: list[FileState] = []
    for _ in range(3):
        (version,) = DeltaReader(source(start_version=0, max_versions=1), tmp_path).look(Knows(read)).versions
        one_by_one.append(version.modified_us)
        read.append(version.state)
    assert one_by_one == at_once


def test_a_version_that_could_not_be_read_is_not_tried_again_before_the_source_changes(tmp_path: Path) -> None:
    add(tmp_path, 0, 1, 2)
    given = source(start_version=0)
    bad = HeldBack.of(look(tmp_path, given).versions[1], given, InputError("wrong type"))
    found = look(tmp_path, given, held=still_held([bad], given))
    assert (shown(found), found.held) == ([(0, "added", 1)], (bad,))
    assert only_error(found) == "wrong type"
    other = source(start_version=0, rename={"id": "n"})
    assert len(look(tmp_path, other, held=still_held([bad], other)).versions) == 3


def test_of_another_pipelines_table_only_committed_versions_are_read_each_as_one(tmp_path: Path) -> None:
    add(tmp_path, 0, 1)
    first = look(tmp_path, versions=[1])
    assert shown(first) == [(1, "whole", 2)]
    table = add(tmp_path, 7)  # of an attempt that dies
    assert look(tmp_path, read=first, versions=[1]).versions == ()
    table.restore(1)
    add(tmp_path, 2)
    assert shown(look(tmp_path, read=first, versions=[1, 4])) == [(4, "added", 1)]
    assert look(tmp_path, versions=[]).versions == ()


def test_a_correction_in_another_pipelines_table_is_passed_over_or_read_anew(tmp_path: Path) -> None:
    table = add(tmp_path, [1, 2])
    first = look(tmp_path, versions=[0])
    table.delete("id = 1")
    add(tmp_path, 9)  # a batch of two commits
    said = only_error(look(tmp_path, read=first, versions=[0, 2]))
    assert "its pipeline has recomputed results, as a backfill or a revision does" in said
    assert "set `start_version: 3`" in said
    assert "take them in with `changes: follow`" in said
    add(tmp_path, 3)
    assert shown(look(tmp_path, source(start_version=3), first, versions=[0, 2, 3])) == [(3, "added", 1)]
    assert shown(look(tmp_path, versions=[0, 2, 3])) == [(3, "whole", 3)]  # under another name


def test_what_a_look_goes_by_changes_with_the_newest_version(tmp_path: Path) -> None:
    reader, known = DeltaReader(source(), tmp_path), Knows()
    assert reader.seen(known) == [None]
    add(tmp_path, 1)
    before = reader.seen(known)
    assert reader.seen(known) == before
    add(tmp_path, 2)
    assert reader.seen(known) != before


def test_a_run_that_was_taken_for_dead_leaves_alone_what_another_run_reads(tmp_path: Path) -> None:
    with reading_place(tmp_path) as stopped:
        assert isinstance(stopped, Path)
        stopped.mkdir(parents=True)
        with reading_place(tmp_path) as place:
            assert isinstance(place, Path)
            place.mkdir(parents=True)
            assert not stopped.exists()
            stopped.mkdir(parents=True)
            (stopped / "x").write_text("written after it resumed")
            assert [*place.iterdir()] == []
        assert not place.exists()
    assert not (tmp_path / "_state" / "reading").exists()
