"""Discovery in real Delta tables, without Spark: which versions are read, and what stops a source."""

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.knows import Knows
from tests.pure.source.tables import add, drop_log, look, only_error, shown, source, states
from tidemark.resources.sources.delta import DeltaReader
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.sources.reader import HeldBack, still_held
from tidemark.timeops.errors import InputError
from tidemark.timeops.utc import instant_of

FEED = {"delta.enableChangeDataFeed": "true"}


def test_at_first_the_whole_table_is_one_version_and_then_each_commit(tmp_path: Path) -> None:
    add(tmp_path, 1, 2)
    add(tmp_path, 3)
    first = look(tmp_path)
    assert shown(first) == [(1, "whole", 3)]
    assert shown(look(tmp_path, read=first)) == []
    add(tmp_path, 4)
    add(tmp_path, 5, 6)
    assert shown(look(tmp_path, read=first)) == [(2, "added", 1), (3, "added", 2)]


def test_a_start_version_reads_what_it_and_later_ones_added(tmp_path: Path) -> None:
    for number in range(4):
        add(tmp_path, number)
    assert shown(look(tmp_path, source(start_version=0))) == [(n, "added", 1) for n in range(4)]
    assert shown(look(tmp_path, source(start_version=3))) == [(3, "added", 1)]
    assert shown(look(tmp_path, source(start_version=4))) == []
    assert "has no version 5 yet: it is at version 3" in only_error(look(tmp_path, source(start_version=5)))


def test_a_start_version_passes_over_versions_of_a_table_that_is_read(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    for number in range(2, 5):
        add(tmp_path, number)
    assert shown(look(tmp_path, source(start_version=2), first)) == [(2, "added", 1), (3, "added", 1)]


def test_a_start_timestamp_reads_what_was_committed_then_or_later(tmp_path: Path) -> None:
    for number in range(3):
        add(tmp_path, number)
    times = [version.modified_us for version in look(tmp_path, source(start_version=0)).versions]
    given = source(start_timestamp=instant_of(times[1]))
    assert [version for version, *_ in shown(look(tmp_path, given))] == [n for n in range(3) if times[n] >= times[1]]
    assert shown(look(tmp_path, source(start_timestamp=instant_of(times[2]) + timedelta(days=1)))) == []
    DeltaTable(str(tmp_path / "t")).create_checkpoint()
    drop_log(tmp_path, 0)
    early = look(tmp_path, source(start_timestamp=instant_of(times[0]) - timedelta(days=1)))
    assert "the log begins with version 1, which is later than `start_timestamp`" in only_error(early)


def test_a_table_that_never_was_is_an_error_of_the_spec_and_one_that_vanished_stops_the_source(
    tmp_path: Path,
) -> None:
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
    add(tmp_path, 1)
    add(tmp_path, 2)
    read = look(tmp_path)
    drop_log(tmp_path, 1)
    assert "is at version 0, and version 1 was read before" in only_error(look(tmp_path, read=read))
    shutil.rmtree(tmp_path / "t")
    add(tmp_path, 1)
    add(tmp_path, 2)
    assert "was replaced by another table: its id was" in only_error(look(tmp_path, read=read))


def test_maintenance_adds_no_records_and_is_remembered(tmp_path: Path) -> None:
    add(tmp_path, 1)
    table = add(tmp_path, 2)
    first = look(tmp_path)
    table.optimize.compact()
    DeltaTable(str(tmp_path / "t")).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    found = look(tmp_path, read=first)
    assert {how for _, how, _ in shown(found)} == {"nothing"}
    assert not found.is_ready
    assert [state.name for state in states(found)] == [str(version) for version, *_ in shown(found)]
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
        assert "set `start_version: 3`: this commit is passed over" in only_error(found)
        assert shown(look(tmp_path, source(start_version=3), first)) == [(3, "added", 1)]
    else:
        assert shown(found) == [(1, "added", 1), (2, "nothing", 0), (3, "added", 1)]
        (said,) = [version.passed_over for version in found.versions if version.passed_over]
        assert "passed over whole, as `changes` is ignore" in said


def test_changed_rows_are_read_where_the_table_keeps_a_change_feed(tmp_path: Path) -> None:
    add(tmp_path, 1, configuration=FEED)
    first = look(tmp_path, source(changes="rows"))
    DeltaTable(str(tmp_path / "t")).update(predicate="id = 1", updates={"id": "9"})
    assert [how for _, how, _ in shown(look(tmp_path, source(changes="rows"), first))] == ["changed"]
    add(tmp_path / "other", 1)
    first = look(tmp_path / "other", source(changes="rows"))
    DeltaTable(str(tmp_path / "other" / "t")).delete("id = 1")
    said = only_error(look(tmp_path / "other", source(changes="rows"), first))
    assert "the table kept no change data feed then" in said
    assert "delta.enableChangeDataFeed" in said


def test_a_log_entry_that_was_cleaned_up_stops_the_source_until_it_is_passed_over(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    for number in range(2, 6):
        table = add(tmp_path, number)
    table.create_checkpoint()
    drop_log(tmp_path, 0, 1, 2)
    said = only_error(look(tmp_path, read=first))
    assert "the log has no entry of version 1 any more" in said
    assert "`start_version: 3` passes over what is missing" in said
    assert shown(look(tmp_path, source(start_version=4), first)) == [(4, "added", 1)]


def test_files_that_were_vacuumed_stop_the_source_behind_what_is_whole(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    add(tmp_path, 2)
    table = add(tmp_path, 3)
    gone = table.file_uris()[0]
    Path(gone.removeprefix("file://")).unlink()
    found = look(tmp_path, read=first)
    assert "and this file is gone" in only_error(found)
    assert "VACUUM" in only_error(found)
    assert shown(found) == [(1, "added", 1)]


def test_a_damaged_entry_of_the_log_stops_the_source(tmp_path: Path) -> None:
    add(tmp_path, 1)
    first = look(tmp_path)
    add(tmp_path, 2)
    add(tmp_path, 3)
    (tmp_path / "t" / "_delta_log" / f"{1:020}.json").write_text('{"add": ')
    assert look(tmp_path, read=first).versions == ()
    assert look(tmp_path, read=first).errors


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


def test_one_ingestion_reads_a_bounded_number_of_versions_and_bytes(tmp_path: Path) -> None:
    for number in range(5):
        add(tmp_path, number)
    found = look(tmp_path, source(start_version=0, max_versions=2))
    assert ([version for version, *_ in shown(found)], found.left) == ([0, 1], 3)
    found = look(tmp_path, source(start_version=0, max_bytes=1))
    assert ([version for version, *_ in shown(found)], found.left) == ([0], 4)


def test_aligned_tables_are_read_by_the_times_of_commits_or_one_version_at_a_time(tmp_path: Path) -> None:
    for number in range(3):
        add(tmp_path, number)
    group = {"group": "g", "max_drift": "1 s"}
    slow = look(tmp_path, source(start_version=0, alignment={**group, "update_interval": "1 ms"}))
    assert len(slow.versions) < 3
    wide = look(tmp_path, source(start_version=0, alignment={**group, "update_interval": "1 hour"}))
    assert (len(wide.versions), wide.left) == (3, 0)
    alone = look(tmp_path, source(start_version=0, alignment=group, arrival_time="timestamp_seconds(id)"))
    assert (len(alone.versions), alone.left) == (1, 2)


def test_commits_whose_clocks_disagree_still_follow_each_other(tmp_path: Path) -> None:
    for number in range(3):
        add(tmp_path, number)
    entry = tmp_path / "t" / "_delta_log" / f"{1:020}.json"
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
    for number in range(3):
        add(tmp_path, number)
    given = source(start_version=0)
    bad = HeldBack.of(look(tmp_path, given).versions[1], given, InputError("wrong type"))
    found = look(tmp_path, given, held=still_held([bad], given))
    assert (shown(found), found.held) == ([(0, "added", 1)], (bad,))
    assert only_error(found) == "wrong type"
    other = source(start_version=0, rename={"id": "n"})
    assert len(look(tmp_path, other, held=still_held([bad], other)).versions) == 3


def test_of_another_pipelines_table_only_committed_versions_are_read_each_as_one(tmp_path: Path) -> None:
    for number in range(2):
        add(tmp_path, number)
    first = look(tmp_path, versions=[1])
    assert shown(first) == [(1, "whole", 2)]
    add(tmp_path, 7)  # of an attempt that dies
    assert look(tmp_path, read=first, versions=[1]).versions == ()
    DeltaTable(str(tmp_path / "t")).restore(1)
    add(tmp_path, 2)
    assert shown(look(tmp_path, read=first, versions=[1, 4])) == [(4, "added", 1)]
    assert look(tmp_path, versions=[]).versions == ()


def test_a_correction_in_another_pipelines_table_is_passed_over_or_read_anew(tmp_path: Path) -> None:
    add(tmp_path, 1, 2)
    first = look(tmp_path, versions=[0])
    DeltaTable(str(tmp_path / "t")).delete("id = 1")
    add(tmp_path, 9)  # a batch of two commits
    said = only_error(look(tmp_path, read=first, versions=[0, 2]))
    assert "its pipeline has computed results anew, as a backfill or a revision does" in said
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
