"""Parquet files: what crashes their library or is damaged, and which files lie in the order of the log already."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from tests.pure.source import landed
from tests.pure.source.landed import discover, land, only_error, parquet_of
from tidemark.resources.sources.footers import ParquetLooks, parquet_looks
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.parquet_files import MOST_FILES, Stretch, stretches_in_order
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource

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


def in_order(*files: FileRange, given: FilesSource | None = None, by_arrival: bool = True) -> list[str] | None:
    """Return the names of the files in the order of the log, or nothing where they have to be sorted."""
    found = stretches_in_order([(given or source(), files)], by_arrival=by_arrival)
    return None if found is None else [one.name for one in found]


def test_files_are_in_the_order_of_their_arrivals_with_rows_and_bounds(tmp_path: Path) -> None:
    files = [arrived(tmp_path, "b", [1, 1, 2]), arrived(tmp_path, "a", [5, 9]), arrived(tmp_path, "c", [])]
    found = stretches_in_order([(source(), files)], by_arrival=True)
    assert found == [
        Stretch("s", "b", files[0].path, 3, AT_US + 1_000_000, AT_US + 2_000_000),
        Stretch("s", "a", files[1].path, 2, AT_US + 5_000_000, AT_US + 9_000_000),
    ]


ORDERS: dict[str, tuple[dict[str, list[int | None]], bool, list[str] | None]] = {
    "they overlap": ({"a": [1, 5], "b": [4, 9]}, True, None),
    "they meet and their names rise": ({"a": [1, 5], "b": [5, 5], "c": [5, 6]}, True, ["a", "b", "c"]),
    "they meet and their names fall": ({"b": [1, 5], "a": [5, 6]}, True, None),
    "by position, arrivals rise with the names": ({"b": [6], "a": [1, 5]}, False, ["a", "b"]),
    "by position, the clock is not each record's arrival": ({"b": [1, 5], "a": [6]}, False, None),
    "arrivals fall in a group of rows": ({"a": [1, 3, 2], "b": [50]}, True, None),
    "arrivals fall between groups of rows": ({"a": [1, 2, 3, 1], "b": [50]}, True, None),
    "an arrival lacks": ({"a": [1, None, 2], "b": [50]}, True, None),
    "the first arrival lacks": ({"a": [None, 1], "b": [50]}, True, None),
    "an arrival is older than 1900": ({"a": [-4_000_000_000, 1], "b": [50]}, True, None),
}


@pytest.mark.parametrize(("files", "by_arrival", "order"), ORDERS.values(), ids=ORDERS)
def test_files_that_lie_in_the_order_of_the_log_are_not_sorted(
    tmp_path: Path, files: dict[str, list[int | None]], by_arrival: bool, order: list[str] | None
) -> None:
    made = [arrived(tmp_path, name, seconds) for name, seconds in files.items()]
    assert in_order(*made, by_arrival=by_arrival) == order


def test_files_of_two_sources_are_in_one_order(tmp_path: Path) -> None:
    one = [arrived(tmp_path, "a", [1, 2]), arrived(tmp_path, "c", [7])]
    two = [arrived(tmp_path, "b", [3, 4])]
    found = stretches_in_order([(source(), one), (source(name="o"), two)], by_arrival=True)
    assert [(stretch.source, stretch.name) for stretch in found or ()] == [("s", "a"), ("o", "b"), ("s", "c")]


def test_without_an_arrival_time_a_file_arrives_when_it_was_modified(tmp_path: Path) -> None:
    file = arrived(tmp_path, "a", [9, 1])
    found = stretches_in_order([(source(arrival_time=None), [file])], by_arrival=True)
    assert found == [Stretch("s", "a", file.path, 2, 77, 77)]


def test_milliseconds_local_times_and_renamed_columns_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    files = [arrived(tmp_path, "a", [1], pa.timestamp("ms"), "got"), arrived(tmp_path, "b", [2], column="got")]
    renamed = source(schema="got TIMESTAMP", rename={"got": "at"}, arrival_time="`at`")
    found = stretches_in_order([(renamed, files)], by_arrival=True)
    assert [one.first_us - AT_US for one in found or ()] == [1_000_000, 2_000_000]


def test_local_times_of_another_zone_are_sorted_as_their_instants_are_not_in_the_file(tmp_path: Path) -> None:
    local, instants = arrived(tmp_path, "a", [1], pa.timestamp("us")), arrived(tmp_path, "b", [2])
    for given, zone in ((source(), "Europe/Rome"), (source(time_zone="Asia/Tokyo"), "UTC")):
        assert stretches_in_order([(given, [local])], by_arrival=True, time_zone=zone) is None
        found = stretches_in_order([(given, [instants])], by_arrival=True, time_zone=zone)
        assert [one.name for one in found or ()] == ["b"]


def test_what_cannot_be_told_is_sorted(tmp_path: Path) -> None:
    file = arrived(tmp_path, "a", [1])
    assert in_order(file, given=source(format="json")) is None
    assert in_order(file, given=source(arrival_time="at + INTERVAL 1 DAY")) is None
    assert in_order(arrived(tmp_path, "b", [1], pa.string())) is None
    assert in_order(file_range(land(tmp_path / "c", "PAR1 no parquet"))) is None
    many = [arrived(tmp_path, f"{number:03}", [number]) for number in range(MOST_FILES + 1)]
    assert in_order(*many) is None
    assert len(in_order(*many[1:]) or ()) == MOST_FILES
