"""Opened tables: the newest version is never missed, and a commit on a version that was overtaken is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.resources.delta.lake import ConflictError, Lake
from tidemark.resources.delta.versions import Opened
from tidemark.timeops.errors import LakeError

T = "windows/w"
SCHEMA = pa.schema([("k", pa.int64())])


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": pa.array(keys, pa.int64())}, schema=SCHEMA)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "shop")
    made.create(T, SCHEMA)
    made.append_rows(T, rows(1), attempt=1, expect=0)
    return made


def other(lake: Lake) -> Lake:
    """Return the same tables, as another process has them."""
    return Lake(lake.root)


def content(lake: Lake, version: int | None = None) -> list[int]:
    return sorted(lake.rows(T, version)["k"].to_pylist())


def test_what_others_write_is_seen_at_once_but_while_the_lease_is_kept(lake: Lake) -> None:
    other(lake).append_rows(T, rows(2), expect=1)
    assert lake.version(T) == 2
    assert content(lake) == [1, 2]
    with lake.settled():
        other(lake).append_rows(T, rows(3), expect=2)
        assert lake.version(T) == 2
        assert lake.newest(T, 0) == 3
    assert content(lake) == [1, 2, 3]


def test_own_writes_are_seen_while_the_lease_is_kept(lake: Lake) -> None:
    with lake.settled():
        assert lake.append_rows(T, rows(2), expect=1).version == 2
        assert content(lake) == [1, 2]
        assert content(lake, 1) == [1]


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
    before = opened.seen(T)
    delta = opened.take(T)
    delta.delete("k = 1")
    opened.keep(T, delta)
    assert before.dataset.to_table().num_rows == 1
    assert opened.seen(T).dataset.to_table().num_rows == 0
    assert opened.seen(T, before.number) is before
