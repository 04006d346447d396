"""Tables and input in an object store: a real S3 server, whose failures are told in a sentence."""

import gzip
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from dagster import DagsterInstance
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.processes import free_port
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import (
    FLUSH,
    Made,
    asked,
    assert_the_report_tells_what_the_tables_hold,
    backfill,
    changed,
    go,
    pipeline,
    rebuild,
    workspace_of,
    written,
)
from tests.runs.store.conftest import forget
from tests.s3 import KEY, READER, SECRET, S3Server
from tidemark.assets import batch as batch_at_work
from tidemark.assets.pending_work import look
from tidemark.pipelines.cli import main
from tidemark.pipelines.runner import RunOptions
from tidemark.resources.batches.committed import consistent, read
from tidemark.resources.places.credentials import delta_options
from tidemark.resources.places.place import place_of
from tidemark.resources.quality.data_docs import docs_folder

PATIENCE_S = 60
"""Four times what a person may have to wait, as other tests run beside these."""


def in_store(tmp_path: Path, store: str, policy: str = "drop", *, sessions: bool = False) -> Made:
    made = pipeline(tmp_path, "shop", policy, sparse=False, sessions=sessions)
    file, settings = changed(made, "path: in_shop", f"path: {store}/in_shop")
    return file, replace(settings, warehouse=place_of(f"{store}/warehouse"))


def upload(tmp_path: Path, store: str, files: str = "*") -> None:
    """Puts what was landed for the oracle where the pipeline reads it."""
    for path in (tmp_path / "in_shop").glob(files):
        target = place_of(f"{store}/in_shop/{path.name}")
        if not target.is_file() or target.read_bytes() != path.read_bytes():
            target.write_bytes(path.read_bytes())


def tidemark(*words: object) -> Result:
    """Return a command; it ends soon, and says nothing secret."""
    start = time.monotonic()
    result = CliRunner().invoke(main, [*map(str, words)])
    assert time.monotonic() - start < PATIENCE_S
    assert SECRET not in result.output
    return result


@pytest.mark.long
def test_tables_in_a_store_are_the_oracles_and_every_command_reads_them(
    spark: SparkSession, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_at_work, "FEW_RECORDS", 0)  # Spark writes the files, as of a large batch
    file, settings = made = in_store(tmp_path, store)
    land(tmp_path / "in_shop", 300, seed=1)
    upload(tmp_path, store)
    assert go(made, options=RunOptions(max_events_per_batch=200)).batches == 2
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    assert_the_report_tells_what_the_tables_hold(settings.warehouse, file)
    monkeypatch.setenv("TIDEMARK_WAREHOUSE", str(settings.warehouse))
    status = tidemark("status", file.path)
    assert f"{store}/warehouse/shop" in status.output
    assert "300" in status.output
    assert "e1" in tidemark("show", file.path, "raw_events").output
    assert b"batch-1" in (docs_folder(settings.warehouse / "shop") / "index.html").read_bytes()
    tables = consistent(str(settings.warehouse), "shop")
    assert str(tables["raw_events"][0]) == f"{store}/warehouse/shop/raw_events"
    assert read(spark, str(settings.warehouse), "shop", "raw_events").count() == 300


@pytest.mark.long
@pytest.mark.parametrize("most", [None, 70], ids=["whole", "cut"])
def test_sessions_and_a_flush_give_the_oracles_tables_in_a_store(
    spark: SparkSession, tmp_path: Path, store: str, most: int | None
) -> None:
    file, settings = made = in_store(tmp_path, store, "keep", sessions=True)
    land(tmp_path / "in_shop", 200, seed=7)
    upload(tmp_path, store)
    report = go(made, options=RunOptions(max_events_per_batch=most, end_of_input="flush"))
    assert report.batches == (1 if most is None else 3)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)


SMALL_BATCH = 900
"""Requests that a small batch may make: counted were up to 740, and 880 when all logs get a checkpoint."""


@pytest.mark.long
def test_a_small_batch_makes_a_bounded_number_of_requests_however_many_came_before(
    server: S3Server, spark: SparkSession, tmp_path: Path, store: str
) -> None:
    made = in_store(tmp_path, store)
    counted = []
    with DagsterInstance.ephemeral() as instance:
        for number in range(13):
            start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=5 * number)
            land(tmp_path / "in_shop", 40, seed=number, files=1, prefix=f"n{number}_", start=start)
            upload(tmp_path, store, f"n{number}_*")
            before = sum(server.requests().values())
            assert go(made, instance).batches == 1
            counted.append(sum(server.requests().values()) - before)
    assert max(counted) < SMALL_BATCH, counted
    assert sum(counted[9:13]) < sum(counted[2:6]) * 1.25, counted


@pytest.mark.long
def test_a_file_in_a_store_that_is_moved_or_copied_is_read_once_and_a_bad_one_is_held_back(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    made = changed(in_store(tmp_path, store), "*.jsonl", "**/*.jsonl*")
    land(tmp_path / "in_shop", 60, seed=4)
    upload(tmp_path, store)
    workspace = workspace_of(made)
    assert look(workspace).is_there
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance).counts["records"] == 60
        assert not look(workspace).is_there
        first = place_of(f"{store}/in_shop/f0.jsonl")
        place_of(f"{store}/in_shop/day=1/moved.jsonl").write_bytes(first.read_bytes())
        first.unlink()
        place_of(f"{store}/in_shop/day=1").write_bytes(b"")  # some programs mark folders so
        place_of(f"{store}/in_shop/copy.jsonl").write_bytes(place_of(f"{store}/in_shop/f1.jsonl").read_bytes())
        place_of(f"{store}/in_shop/broken.jsonl.gz").write_bytes(gzip.compress(b'{"id": "x"}\n' * 99)[:40])
        place_of(f"{store}/in_shop/whole name.jsonl.gz").write_bytes(gzip.compress(b'{"id": "y"}\n'))
        grown = place_of(f"{store}/in_shop/f2.jsonl")
        grown.write_bytes(grown.read_bytes() + b'{"id": "z"}\n')
        report = go(made, instance)
        assert report.counts["records"] == 2, "the new file, and the line that was added"
        assert len(report.read_before) == 2
        [held] = report.held_back
        assert f"{store}/in_shop/broken.jsonl.gz: the archive is damaged or truncated" in held


@pytest.mark.long
def test_files_of_every_format_and_tables_are_read_from_a_store(
    spark: SparkSession, tmp_path: Path, store: str
) -> None:
    rows = pa.table({"id": ["a", "b"], "at": ["2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"]})
    columns, sources = 'schema: "id STRING, at STRING"', ""
    for form, write, options in (
        ("csv", pyarrow.csv.write_csv, ", options: {header: true}"),
        ("parquet", pyarrow.parquet.write_table, ""),
    ):
        data = BytesIO()
        write(rows, data)
        place_of(f"{store}/in/a b%20.{form}").write_bytes(data.getvalue())
        given = f"path: {store}/in/*.{form}, format: {form}{options}"
        sources += f"  - {{name: {form}, kind: files, settle: 0 s, {given}, {columns}}}\n"
    write_deltalake(f"{store}/bronze", rows, storage_options=delta_options(store))
    file, settings = written(
        tmp_path,
        "all",
        f"name: all\nsources:\n{sources}  - {{name: bronze, kind: delta, path: {store}/bronze, {columns}}}\n"
        "time: {timestamp_by: at}\nwindows: [{name: w, kind: tumbling, size: 1 hour, aggregates: {n: count(*)}}]\n",
    )
    made = file, replace(settings, warehouse=place_of(f"{store}/warehouse"))
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance).counts["records"] == 6
        assert go(made, instance).batches == 0
        write_deltalake(f"{store}/bronze", rows, mode="append", storage_options=delta_options(store))
        assert go(made, instance).counts["records"] == 2


@pytest.mark.long
def test_tables_in_a_store_are_backfilled_maintained_and_made_anew(
    spark: SparkSession, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, settings = made = in_store(tmp_path, store, "keep")
    land(tmp_path / "in_shop", 300, seed=2)
    upload(tmp_path, store)
    go(made)
    assert backfill(file, settings, "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
    assert asked(made, "maintain").exit_code == 0
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    file, _ = made = changed(made, "size: 1 minute", "size: 20 s")
    done = rebuild(made)
    assert done.exit_code == 0, done.output
    assert not (settings.warehouse / "shop" / "_rebuild").is_dir()
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    later = datetime(2026, 1, 2, tzinfo=UTC)
    land(tmp_path / "in_shop", 50, seed=3, prefix="g", start=later)
    upload(tmp_path, store)
    go(made, options=FLUSH)
    assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)


def test_a_store_without_conditional_puts_is_refused(server: S3Server, tmp_path: Path, store: str) -> None:
    file, settings = in_store(tmp_path, store)
    land(tmp_path / "in_shop", 3, seed=1)
    server.tell(ignore_conditions=True)
    result = tidemark("run", file.path, "--warehouse", settings.warehouse)
    assert result.exit_code == 1
    assert f"{store} has no conditional put" in result.output


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"AWS_ACCESS_KEY_ID": "somebody-elses"}, "does not accept the credentials (InvalidAccessKeyId)"),
        ({"AWS_ACCESS_KEY_ID": READER}, "denies access (AccessDenied)"),
        ({"AWS_ENDPOINT_URL": ""}, "does not answer at http://127.0.0.1:"),
    ],
)
def test_what_keeps_a_process_out_of_a_store_is_a_sentence(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    file, settings = in_store(tmp_path, store)
    land(tmp_path / "in_shop", 3, seed=1)
    for name, value in variables.items():
        monkeypatch.setenv(name, value or f"http://127.0.0.1:{free_port()}")
    result = tidemark("run", file.path, "--warehouse", settings.warehouse)
    assert result.exit_code == 1
    assert said in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["run", "status", "validate"])
def test_a_right_key_with_a_wrong_secret_is_a_sentence(
    server: S3Server, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    file, settings = in_store(tmp_path, store)
    with server.one_user() as user:
        for name, value in user.items():
            monkeypatch.setenv(name, value)
        assert tidemark("status", file.path, "--warehouse", settings.warehouse).exit_code == 0, "the right secret"
        forget()
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"not-{user['AWS_SECRET_ACCESS_KEY']}")
        result = tidemark(command, file.path, "--warehouse", settings.warehouse)
    assert result.exit_code == 1
    assert f"{store} does not accept the credentials (SignatureDoesNotMatch)" in result.output
    assert "Traceback" not in result.output
    assert user["AWS_SECRET_ACCESS_KEY"] not in result.output


def test_a_bucket_that_does_not_exist_and_a_url_of_no_store_are_sentences(tmp_path: Path, store: str) -> None:
    file, _ = in_store(tmp_path, store)
    for command in ("run", "status"):
        result = tidemark(command, file.path, "--warehouse", "s3://no-such-bucket/warehouse")
        assert result.exit_code == 1
        assert "There is no bucket s3://no-such-bucket (NoSuchBucket)" in result.output
    result = tidemark("status", file.path, "--warehouse", "ftp://host/warehouse")
    assert result.exit_code == 2
    assert "ftp://host/warehouse is not a place" in result.output


def test_no_message_plan_or_setting_that_others_read_holds_the_secret(tmp_path: Path, store: str) -> None:
    file, settings = in_store(tmp_path, store)
    assert SECRET not in repr((file, settings, place_of(store)))
    assert KEY not in repr(place_of(store))
