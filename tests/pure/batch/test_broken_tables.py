"""Tables that cannot be read or written: which one, what happened, what to do."""

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import select
from tidemark.resources.machine import ReadOnlyError
from tidemark.timeops.errors import LakeError

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a lake with a table `t` of three versions."""
    lake = Lake(tmp_path / "shop")
    lake.create("t", SCHEMA)
    for version in range(2):
        lake.append_rows("t", pa.table({"n": [version]}, schema=SCHEMA), expect=version)
    return lake


def cut_off(entry: Path) -> None:
    entry.write_text(entry.read_text()[:-40])


def emptied(entry: Path) -> None:
    entry.write_text("")


def zeros(entry: Path) -> None:
    entry.write_bytes(b"\0" * 100)


@pytest.mark.parametrize("spoil", [cut_off, emptied, zeros])
def test_a_log_with_a_spoilt_entry_is_named_with_the_entry(lake: Lake, spoil: Callable[[Path], None]) -> None:
    spoil(Path(str(lake.path("t")), "_delta_log", f"{2:020}.json"))
    with pytest.raises(LakeError) as raised:
        Lake(lake.root).rows("t")
    assert (
        raised.value.found
        == f"The log of the table {lake.path('t')} cannot be read: {2:020}.json in it is truncated or damaged."
    )
    assert "restore the pipeline's folder from a backup" in raised.value.remedy


def test_a_log_with_a_gap_is_named_with_its_place(lake: Lake) -> None:
    (lake.path("t") / "_delta_log" / f"{1:020}.json").unlink()
    with pytest.raises(LakeError, match=rf"the entry before {2:020}\.json is missing"):
        Lake(lake.root).rows("t")


def test_a_missing_file_is_named_with_its_table(lake: Lake) -> None:
    file = next(Path(str(lake.path("t"))).glob("*.parquet"))
    file.unlink()
    with pytest.raises(LakeError, match=f"A file of the table .*{file.name}"):
        Lake(lake.root).rows("t")
    for where in (None, "n >= 0"):
        with pytest.raises(LakeError, match=f"A file of the table .*{file.name}"):
            select(lake, "t", None, where=where, order=(), most=9)


def test_a_table_that_may_not_be_written_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ReadOnlyError) as raised:
        lake.append_rows("t", pa.table({"n": [2]}, schema=SCHEMA), expect=2)
    assert f"{lake.path('t')} was not written" in raised.value.found
    assert "mount the disk for writing" in raised.value.remedy
