"""How URLs of stores are written, and keys that no library takes: each object is found, or held back alone."""

import os
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql.types import LongType, StructType, TimestampType

from tests.pure.source.landed import discover
from tests.s3 import KEY, SECRET, S3Server
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.places.place import place_of
from tidemark.resources.sources.file_records import plain_file
from tidemark.timeops.spec import FilesSource

SPEC = """
name: p
sources:
  - {name: s, kind: files, path: "PATH", format: csv, options: {header: true}, schema: "t STRING, n BIGINT",
     settle: 0 s}
time: {timestamp_by: t}
"""
NOW = datetime(2099, 1, 1, tzinfo=UTC)


@pytest.fixture
def bucket(store: str) -> str:
    return store.removeprefix("s3://")


def put(server: S3Server, bucket: str, *keys: str, body: bytes | None = None) -> None:
    told: Any = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=server.address, **told)
    for number, key in enumerate(keys):
        line = f"t,n\n2026-01-01T00:00:01Z,{number}\n".encode()
        client.put_object(Bucket=bucket, Key=key, Body=line if body is None else body)


def found_at(path: str) -> tuple[list[str], list[str]]:
    """Return the names of the files that are read, and what is said of the files that are held back."""
    values = {"name": "s", "kind": "files", "format": "csv", "schema": "t STRING, n BIGINT", "settle": "0 s"}
    source = FilesSource.model_validate({**values, "path": path, "options": {"header": True}})
    found = discover(source, Path(), (), NOW)
    return [file.name for file in found.ready], [error.found for error in found.errors]


def tidemark(tmp_path: Path, command: str, path: str) -> Result:
    spec = tmp_path / "p.yaml"
    spec.write_text(SPEC.replace("PATH", path))
    warehouse = () if command == "validate" else ("--warehouse", str(tmp_path / "wh"))
    return CliRunner().invoke(main, [command, str(spec), *warehouse], env={"DAGSTER_HOME": str(tmp_path / "home")})


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3", "S3A"])
def test_a_bucket_is_found_by_every_spelling_of_its_scheme(
    server: S3Server, bucket: str, tmp_path: Path, scheme: str
) -> None:
    put(server, bucket, "in/a.csv", "in/deep/b.csv", "c.csv")
    assert found_at(f"{scheme}://{bucket}/in/*.csv") == (["a.csv"], [])
    assert found_at(f"{scheme}://{bucket}/in/**/*.csv") == (["a.csv", "deep/b.csv"], [])
    assert found_at(f"{scheme}://{bucket}/*.csv") == (["c.csv"], [])
    assert found_at(f"{scheme}://{bucket}/in/a.csv") == (["a.csv"], [])
    status = tidemark(tmp_path, "status", f"{scheme}://{bucket}/in/*.csv")
    assert "1 new file" in status.output
    assert read_spec(tmp_path / "p.yaml").spec.sources


@pytest.mark.parametrize(
    ("key", "part"),
    [
        ("in/2026//a.csv", "an empty part"),
        ("in/x/./a.csv", "the part '.'"),
        ("in/x/../a.csv", "the part '..'"),
        ("in/tab\t.csv", "the part 'tab\\t.csv'"),
        ("in/t\x01/a.csv", "the part 't\\x01'"),
        ("in/del\x7f.csv", "the part 'del\\x7f.csv'"),
    ],
)
def test_an_object_with_an_odd_key_is_held_back_alone(
    server: S3Server, bucket: str, tmp_path: Path, key: str, part: str
) -> None:
    put(server, bucket, "in/good.csv", "in/day=1/good.csv", key)
    ready, errors = found_at(f"s3://{bucket}/in/**/*.csv")
    assert ready == ["day=1/good.csv", "good.csv"]
    assert errors == [f"{f's3://{bucket}/{key}'!r}: the key of this object has {part}, which Spark cannot read"]
    status = tidemark(tmp_path, "status", f"s3://{bucket}/in/**/*.csv")
    assert "2 new files, 1 held back" in status.output


def test_an_odd_key_beside_the_files_that_a_path_means_is_nothing(server: S3Server, bucket: str) -> None:
    put(server, bucket, "in/good.csv", "in//a.csv", "in/../b.csv", "in/./c.csv", "in/tab\t.txt")
    assert found_at(f"s3://{bucket}/in/*.csv") == (["good.csv"], [])


@pytest.mark.parametrize("path", ["s3://b/../x/*.csv", "s3://b/in/./*.csv", "S3A://b/in//*.csv", "gs://b/../x.csv"])
def test_a_path_that_leads_out_of_its_bucket_is_a_bad_spec(tmp_path: Path, path: str) -> None:
    done = tidemark(tmp_path, "validate", path)
    assert done.exit_code == 2
    assert f'sources[0].path: found "{path}", with a part that is empty, `.` or `..`' in done.output


def test_files_of_this_machine_may_be_named_by_a_url(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    (folder / "x1.csv").write_text("t,n\n2026-01-01T00:00:01Z,1\n")
    (folder / "x.csv").mkdir()
    for path in (f"file://{tmp_path}/a%20b/*.csv", f"FILE://localhost{tmp_path}/a%20b/*.csv"):
        ready, errors = found_at(path)
        assert (ready, len(errors)) == (["x1.csv"], 1)
    assert found_at(f"file://{tmp_path}/a%20b/x?.csv") == (["x1.csv"], [])


def test_a_long_part_of_an_object_is_asked_for_in_pieces(server: S3Server, bucket: str) -> None:
    """One request must not take longer than a minute, and a column of a parquet file may be of any size."""
    body = os.urandom(20 << 20)
    put(server, bucket, "in/a.parquet", body=body)
    before = server.requests().get("GET", 0)
    with place_of(f"s3://{bucket}/in/a.parquet").open("rb") as file:
        assert file.read(len(body)) == body
    assert server.requests()["GET"] - before == 2


@pytest.mark.parametrize("arrival", [None, "at"], ids=["arrival_of_the_file", "arrival_in_a_column"])
def test_parquet_files_are_opened_by_the_options_of_their_store(
    server: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrival: str | None
) -> None:
    file = BytesIO()
    pq.write_table(pa.table({"n": [5, 6], "at": pa.array([1, 2], pa.timestamp("us", "UTC"))}), file)
    put(server, bucket, "in/a.parquet", body=file.getvalue())
    for name in server.environment:
        monkeypatch.delenv(name)
    options = {"access.key": KEY, "secret.key": SECRET, "endpoint": server.address}
    lines = "".join(f"spark.hadoop.fs.s3a.{name} {value}\n" for name, value in options.items())
    (tmp_path / "spark-defaults.conf").write_text(lines)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    values = {"name": "s", "kind": "files", "format": "parquet", "schema": "n BIGINT, at TIMESTAMP"}
    given = FilesSource.model_validate(
        {**values, "path": f"s3://{bucket}/in/*", "settle": "0 s", "arrival_time": arrival}
    )
    found = discover(given, Path(), (), NOW)
    schema = StructType().add("n", LongType()).add("at", TimestampType())
    [plain] = [plain_file(given, schema, "UTC", file) for file in found.ready]
    assert plain is not None
    [(_, rows)] = plain.rows.read(range(2))
    assert rows.select(["n", "_position"]).to_pydict() == {"n": [5, 6], "_position": [1, 2]}
