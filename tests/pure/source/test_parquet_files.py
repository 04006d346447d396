"""Parquet files: what crashes their library or is damaged, and which arrivals Arrow reads as Spark does."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyspark.sql.types import StructType, TimestampType

from tests.pure.source import landed
from tests.pure.source.landed import discover, land, only_error, parquet_of
from tidemark.resources.sources.file_records import plain_file
from tidemark.resources.sources.footers import ParquetLooks, parquet_looks
from tidemark.resources.sources.known_files import FileRange
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource
from tidemark.timeops.values.instants import NONE

ROWS = pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]})
WHOLE = parquet_of(ROWS)
PARQUET = landed.source("in/*.parquet", format="parquet", settle="0 s")


class _Kms(pe.KmsClient):  # type: ignore[misc]
    """Keys that are kept in the file as they are."""

    def __init__(self, _configuration: object) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _master: str) -> bytes:
        return key_bytes.hex().encode()

    def unwrap_key(self, wrapped: bytes, _master: str) -> bytes:
        return bytes.fromhex(wrapped.decode())


def encrypted(path: Path, *, plaintext_footer: bool) -> None:
    factory = pe.CryptoFactory(_Kms)
    keys = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["b"]}, plaintext_footer=plaintext_footer)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), keys)
    with pq.ParquetWriter(path, ROWS.schema, encryption_properties=properties) as writer:
        writer.write_table(ROWS)


def test_an_encrypted_file_is_held_back_alone_whether_its_footer_is_encrypted_or_not(tmp_path: Path) -> None:
    """Only a process that was made for such looks ends."""
    land(tmp_path / "in" / "a.parquet", "")
    encrypted(tmp_path / "in" / "b_columns.parquet", plaintext_footer=True)
    encrypted(tmp_path / "in" / "c_all.parquet", plaintext_footer=False)
    land(tmp_path / "in" / "d.parquet", WHOLE)
    found = discover(PARQUET, tmp_path)
    assert [file.name for file in found.ready] == ["a.parquet", "d.parquet"]
    columns, whole = found.errors
    assert columns.found == (
        f"{tmp_path}/in/b_columns.parquet: this is not a readable parquet file: the library that reads such files "
        "was aborted at it"
    )
    assert columns.expected == whole.expected == "a complete parquet file, not encrypted"
    assert "c_all.parquet: this is not a readable parquet file: " in whole.found


DAMAGED = {
    "no footer": WHOLE[:-8],
    "half": WHOLE[: len(WHOLE) // 2],
    "zeros": WHOLE[:-200] + b"\0" * 192 + WHOLE[-8:],
    "magic alone": b"PAR1",
    "length": WHOLE[:-8] + b"\xff\xff\xff\x7f" + b"PAR1",
    "no parquet": b"PAR1 or not",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_file_with_a_damaged_end_or_of_no_parquet_is_held_back(tmp_path: Path, content: bytes) -> None:
    land(tmp_path / "in" / "a.parquet", content)
    assert "this is not a readable parquet file" in only_error(discover(PARQUET, tmp_path))


def test_looks_go_on_after_one_that_ended_their_process(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad.parquet", land(tmp_path / "good.parquet", WHOLE)
    encrypted(bad, plaintext_footer=True)
    looks = parquet_looks()
    for _ in range(2):
        with pytest.raises(InputError, match="aborted"):
            looks.footer(str(bad))
        assert looks.footer(str(good)).names == ("a", "b")
    assert looks.fault(str(good)) == ""
    assert "decrypt" in looks.fault(str(bad))


@pytest.mark.parametrize("killed", [False, True])
def test_looks_go_on_after_their_process_has_ended_between_two_questions(tmp_path: Path, *, killed: bool) -> None:
    good = land(tmp_path / "good.parquet", WHOLE)
    looks = ParquetLooks(idle_s=60 if killed else 0.05)
    for _ in range(3):
        assert looks.footer(str(good)).names == ("a", "b")
        process = looks._process
        assert process is not None
        if killed:
            process.kill()
        process.wait(10)
    looks.end()


AT_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
US = pa.timestamp("us", "UTC")


def source(**more: object) -> FilesSource:
    given = {"name": "s", "kind": "files", "path": "in/*", "format": "parquet", "arrival_time": "at", **more}
    return FilesSource.model_validate({"schema": "at TIMESTAMP", **given})


def arrived(
    folder: Path, name: str, seconds: Sequence[int | None], kind: pa.DataType = US, column: str = "at"
) -> FileRange:
    """Return a file of records that arrived so many seconds after an instant, or at none."""
    us = [None if one is None else AT_US + one * 1_000_000 for one in seconds]
    pq.write_table(pa.table({column: pa.array(us, US).cast(kind)}), folder / name, row_group_size=2)
    return file_range(folder / name)


def file_range(path: Path) -> FileRange:
    return FileRange(str(path), path.name, 1, 77, "", 0, ends_with_newline=True)


def arrivals(given: FilesSource, *files: FileRange, zone: str = "UTC", column: str = "at") -> list[list[int]] | None:
    """Return the arrivals of each file in seconds after the instant; None where Spark has to read one."""
    schema = StructType().add(column, TimestampType())
    plain = [file for each in files if (file := plain_file(given, schema, zone, each)) is not None]
    if len(plain) < len(files):
        return None
    return [[us if us == NONE else (us - AT_US) // 1_000_000 for us in file.arrival.tolist()] for file in plain]


def test_arrivals_are_read_in_any_order_also_where_some_lack(tmp_path: Path) -> None:
    files = [arrived(tmp_path, "b", [3, 1, 2]), arrived(tmp_path, "a", [None, 5]), arrived(tmp_path, "c", [])]
    assert arrivals(source(), *files) == [[3, 1, 2], [NONE, 5], []]


def test_without_an_arrival_time_a_file_arrives_when_it_was_modified(tmp_path: Path) -> None:
    [found] = arrivals(source(arrival_time=None), arrived(tmp_path, "a", [9, 1])) or []
    assert found == [(77 - AT_US) // 1_000_000] * 2


def test_milliseconds_and_renamed_columns_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    files = [arrived(tmp_path, "a", [1], pa.timestamp("ms"), "got"), arrived(tmp_path, "b", [2], column="got")]
    renamed = source(schema="got TIMESTAMP", rename={"got": "at"}, arrival_time="`at`")
    assert arrivals(renamed, *files, column="got") == [[1], [2]]


def test_local_times_of_another_zone_are_left_to_spark_as_their_instants_are_not_in_the_file(tmp_path: Path) -> None:
    local, instants = arrived(tmp_path, "a", [1], pa.timestamp("us")), arrived(tmp_path, "b", [2])
    assert arrivals(source(), local, zone="Europe/Rome") is None
    assert arrivals(source(), instants, zone="Europe/Rome") == [[2]]


def test_what_arrow_does_not_read_as_spark_does_is_left_to_it(tmp_path: Path) -> None:
    file = arrived(tmp_path, "a", [1])
    assert arrivals(source(format="json"), file) is None
    assert arrivals(source(arrival_time="at + INTERVAL 1 DAY"), file) is None
    assert arrivals(source(), file, arrived(tmp_path, "old", [-4_000_000_000])) is None, "another calendar"
