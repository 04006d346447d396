"""The log of a table whose old entries upkeep has deleted: it can be read from a checkpoint on, and is written on."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tests.pure.batch.batches import SCHEMA, T, content, rows
from tidemark.resources.delta.history import history_of
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.log import LOG_FOLDER, commit_of_attempt, entry_path, newest_change
from tidemark.resources.delta.undoing import prepare, take_back
from tidemark.resources.delta.upkeep import trim_log

LATEST, COMMITTED = 25, 23
DAY = timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a table with a row of each of 25 attempts, whose entries are two days old but for the last five."""
    lake = Lake(tmp_path / "shop")
    lake.create(T, SCHEMA)
    for attempt in range(1, LATEST + 1):
        lake.append_rows(T, rows(attempt), attempt=attempt, expect=attempt - 1)
    for version in range(LATEST - 4):
        path = str(entry_path(lake.path(T), version))
        os.utime(path, (seconds := os.stat(path).st_mtime - 2 * 86_400, seconds))
    return Lake(lake.root)


def log_of(lake: Lake) -> list[str]:
    return sorted(path.name for path in Path(str(lake.path(T)), LOG_FOLDER).iterdir())


def checkpoints(lake: Lake) -> list[int]:
    return [int(name[:20]) for name in log_of(lake) if name.endswith(".checkpoint.parquet")]


def test_entries_before_the_last_checkpoint_that_is_needed_go_and_all_later_versions_stay(lake: Lake) -> None:
    begins = max(number for number in checkpoints(lake) if number <= COMMITTED and number <= LATEST - 5)
    assert begins > 9, "else nothing could go"
    before = {version: sorted(lake.rows(T, version)["k"].to_pylist()) for version in range(begins, LATEST + 1)}
    assert trim_log(lake, T, DAY, [COMMITTED]) > 0
    assert min(name for name in log_of(lake) if name[0].isdigit())[:20] == f"{begins:020}"
    afresh = Lake(lake.root)
    assert {version: sorted(afresh.rows(T, version)["k"].to_pylist()) for version in before} == before
    assert DeltaTable(str(lake.path(T)), version=begins).version() == begins
    with pytest.raises(DeltaError):
        DeltaTable(str(lake.path(T)), version=begins - 1)
    assert afresh.opened.still_readable(T, begins) is not None
    assert afresh.opened.still_readable(T, begins - 1) is None
    assert trim_log(afresh, T, DAY, [COMMITTED]) == 0, "once is enough"


def test_runs_go_on_with_a_table_whose_log_was_trimmed(lake: Lake) -> None:
    trim_log(lake, T, DAY, [COMMITTED])
    afresh = Lake(lake.root)
    assert prepare(afresh, {T: COMMITTED}, LATEST + 1)[T] == LATEST + 1, "what came after the commit is taken back"
    afresh.append_rows(T, rows(99), attempt=LATEST + 1, expect=LATEST + 1)
    assert content(afresh) == [*range(1, COMMITTED + 1), 99]
    assert take_back(afresh, T, COMMITTED, LATEST + 2) == LATEST + 3
    assert content(afresh) == [*range(1, COMMITTED + 1)]


def test_looking_back_ends_where_the_log_begins(lake: Lake) -> None:
    folder = lake.path(T)
    trim_log(lake, T, DAY, [COMMITTED])
    assert commit_of_attempt(folder, LATEST, 3) is None
    newest = commit_of_attempt(folder, LATEST, LATEST - 1)
    assert newest is not None
    assert newest.version == LATEST - 1
    for number in range(30):  # upkeep alone, until no entry of a write is left
        lake.set_properties(T, {"delta.deletedFileRetentionDuration": f"interval {number + 8} days"})
    for path in Path(str(folder), LOG_FOLDER).glob("*.json"):
        os.utime(path, (0, 0))
    assert trim_log(lake, T, DAY, [LATEST + 30]) > 0
    assert newest_change(folder, LATEST + 30) is None


def test_the_files_of_versions_that_stay_are_known_from_the_checkpoint(lake: Lake) -> None:
    whole = {file.path: file.size for file in history_of(lake.path(T), LATEST).named_by({COMMITTED, LATEST})}
    trim_log(lake, T, DAY, [COMMITTED])
    history = history_of(lake.path(T), LATEST)
    assert history.is_whole
    assert {file.path: file.size for file in history.named_by({COMMITTED, LATEST})} == whole
    entry_path(lake.path(T), LATEST - 1).unlink()
    assert history_of(lake.path(T), LATEST).lacking == (LATEST - 1,)


def test_nothing_goes_that_something_needs(lake: Lake) -> None:
    names = log_of(lake)
    first = checkpoints(lake)[0]
    assert trim_log(lake, T, timedelta(days=3), [COMMITTED]) == 0, "all were the latest within the retention"
    assert trim_log(lake, T, DAY, [first - 1]) == 0, "no checkpoint is old enough"
    checkpoint = Path(str(lake.path(T)), LOG_FOLDER, f"{checkpoints(lake)[-1]:020}.checkpoint.parquet")
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(data[: len(data) // 2])
    assert trim_log(lake, T, DAY, [COMMITTED]) == 0, "the checkpoint is damaged"
    checkpoint.write_bytes(data)
    gap = Path(str(entry_path(lake.path(T), LATEST - 1)))
    gap.rename(gap.with_suffix(".aside"))
    assert trim_log(lake, T, DAY, [COMMITTED]) == 0, "an entry is missing, which an audit has to find"
    gap.with_suffix(".aside").rename(gap)
    assert log_of(lake) == names
