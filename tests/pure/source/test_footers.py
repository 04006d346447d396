"""Parquet files that crash their library: they end a process that was made for it, and nothing else."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from tests.pure.source.landed import NOW, discover, land, source
from tidemark.resources.sources.footers import ParquetLooks, parquet_looks
from tidemark.timeops.errors import InputError

ROWS = pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]})


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
    land(tmp_path / "in" / "a.parquet", "")
    for name, plaintext_footer in (("b_columns", True), ("c_all", False)):
        encrypted(tmp_path / "in" / f"{name}.parquet", plaintext_footer=plaintext_footer)
    pq.write_table(ROWS, tmp_path / "in" / "d.parquet")
    given = source("in/*.parquet", format="parquet", settle="0 s")
    found = discover(given, tmp_path, (), NOW)
    assert [file.name for file in found.ready] == ["a.parquet", "d.parquet"]
    columns, whole = found.errors
    assert columns.found == (
        f"{tmp_path}/in/b_columns.parquet: this is not a readable parquet file: the library that reads such files "
        "was aborted at it"
    )
    assert columns.expected == whole.expected == "a complete parquet file, not encrypted"
    assert "c_all.parquet: this is not a readable parquet file: " in whole.found


@pytest.mark.parametrize("damage", ["no footer", "half", "zeros", "magic alone", "length", "no parquet"])
def test_a_file_with_a_damaged_end_or_of_no_parquet_is_held_back(tmp_path: Path, damage: str) -> None:
    path = land(tmp_path / "in" / "a.parquet", "")
    pq.write_table(ROWS, path)
    content = path.read_bytes()
    path.write_bytes(
        {
            "no footer": content[:-8],
            "half": content[: len(content) // 2],
            "zeros": content[:-200] + b"\0" * 192 + content[-8:],
            "magic alone": b"PAR1",
            "length": content[:-8] + b"\xff\xff\xff\x7f" + b"PAR1",
            "no parquet": b"PAR1 or not",
        }[damage]
    )
    found = discover(source("in/*.parquet", format="parquet", settle="0 s"), tmp_path, (), NOW)
    assert found.ready == ()
    [error] = found.errors
    assert "this is not a readable parquet file" in error.found


def test_looks_go_on_after_one_that_ended_their_process(tmp_path: Path) -> None:
    encrypted(tmp_path / "bad.parquet", plaintext_footer=True)
    pq.write_table(ROWS, tmp_path / "good.parquet")
    looks = parquet_looks()
    for _ in range(2):
        with pytest.raises(InputError, match="aborted"):
            looks.footer(str(tmp_path / "bad.parquet"))
        assert looks.footer(str(tmp_path / "good.parquet")).names == ("a", "b")
    assert looks.fault(str(tmp_path / "good.parquet")) == ""
    assert "decrypt" in looks.fault(str(tmp_path / "bad.parquet"))


@pytest.mark.parametrize("killed", [False, True])
def test_looks_go_on_after_their_process_has_ended_between_two_questions(tmp_path: Path, *, killed: bool) -> None:
    pq.write_table(ROWS, tmp_path / "good.parquet")
    looks = ParquetLooks(idle_s=60 if killed else 0.05)
    for _ in range(3):
        assert looks.footer(str(tmp_path / "good.parquet")).names == ("a", "b")
        process = looks._process
        assert process is not None
        if killed:
            process.kill()
        process.wait(10)
    looks.end()
