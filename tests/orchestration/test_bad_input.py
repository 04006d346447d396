"""Bad input through the command: a clear error before anything is written, or a dead letter; nothing is lost."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from pipelines.cli import main
from pipelines.specfiles import read_spec
from resources.workspace import Workspace
from tests.orchestration.landing import table

SPEC = """
name: tills
sources:
  - {{name: s, kind: files, path: "in/*", format: {format}, schema: "at STRING, got STRING, v INT", arrival_time: got,
     settle: 0 s{more}}}
time: {{timestamp_by: at}}
"""
GOOD = "2026-01-01T00:00:{second:02}Z,2026-01-01T00:01:{second:02}Z,{second}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    return tmp_path


def tidemark(folder: Path, *, format: str = "csv", more: str = ", options: {header: true}") -> Result:  # noqa: A002
    (folder / "tills.yaml").write_text(SPEC.format(format=format, more=more))
    return CliRunner().invoke(main, ["run", "tills.yaml"], catch_exceptions=False)


def records(folder: Path) -> int:
    return Workspace(read_spec(folder / "tills.yaml"), folder / "warehouse").log_end()


def test_a_missing_column_is_an_error_and_no_record_is_written(folder: Path) -> None:
    (folder / "in" / "a.csv").write_text("at,got,v\n" + GOOD.format(second=1) + "\n")
    (folder / "in" / "b.csv").write_text("at,got\n2026-01-01T00:00:00Z,2026-01-01T00:00:01Z\n")
    done = tidemark(folder)
    assert done.exit_code == 1
    assert "b.csv: column `v` is missing from the header: at, got" in done.stderr
    assert "To do: correct `schema` or the file" in done.stderr
    assert records(folder) == 0

    (folder / "in" / "b.csv").write_text("at,got,v\n" + GOOD.format(second=2) + "\n")
    assert tidemark(folder).exit_code == 0
    assert records(folder) == 2


def test_a_broken_archive_and_a_changed_file_are_held_back_and_the_rest_is_taken(folder: Path) -> None:
    (folder / "in" / "a.csv").write_text("at,got,v\n" + GOOD.format(second=1) + "\n")
    (folder / "in" / "b.csv.gz").write_bytes(b"no archive")
    done = tidemark(folder)
    assert done.exit_code == 1
    assert "1 file(s) held back, everything else was processed." in done.stderr
    assert "b.csv.gz: the archive is broken or cut off" in done.stderr
    assert records(folder) == 1

    (folder / "in" / "b.csv.gz").write_bytes(gzip.compress(b"at,got,v\n" + GOOD.format(second=2).encode() + b"\n"))
    (folder / "in" / "a.csv").write_text("at,got,v\n" + GOOD.format(second=3) + "\n")
    done = tidemark(folder)
    assert done.exit_code == 1
    assert "a.csv" in done.stderr
    assert "b.csv.gz" not in done.stderr
    assert records(folder) == 2


def test_records_that_cannot_be_parsed_or_dated_are_dead_letters_that_say_why(folder: Path) -> None:
    lines = [
        '{"at": "2026-01-01T00:00:01Z", "got": "2026-01-01T00:01:01Z", "v": 1}',
        '{"at": "2026-01-01T00:00:01Z", "got": "2026-01-01T00:01:02Z", "v": "many"}',
        '{"at": "2026-01-01T00:00:01Z", "got": ',
        '{"at": "in the morning", "got": "2026-01-01T00:01:03Z", "v": 1}',
        '{"at": "+300000-01-01T00:00:00Z", "got": "2026-01-01T00:01:04Z", "v": 1}',
        '{"got": "2026-01-01T00:01:05Z", "v": 1}',
        '{"at": "2026-01-01T00:00:01Z", "v": 1}',
    ]
    (folder / "in" / "a.jsonl").write_text("\n".join(lines) + "\n")
    done = tidemark(folder, format="json", more="")
    assert done.exit_code == 0, done.stderr
    letters = table(folder / "warehouse", read_spec(folder / "tills.yaml").spec, "dead_letters")
    assert sorted((row["reason"], row["payload"]) for row in letters) == [
        ("bad_timestamp", '{"at":"+300000-01-01T00:00:00Z","got":"2026-01-01T00:01:04Z","v":1}'),
        ("bad_timestamp", '{"at":"in the morning","got":"2026-01-01T00:01:03Z","v":1}'),
        ("malformed", lines[2]),
        ("malformed", lines[1]),
        ("no_arrival_time", '{"at":"2026-01-01T00:00:01Z","got":null,"v":1}'),
        ("no_timestamp", '{"at":null,"got":"2026-01-01T00:01:05Z","v":1}'),
    ]
    assert all(row["detail"] for row in letters)


def test_parquet_of_another_type_or_of_another_kind_is_an_error_that_names_the_file(folder: Path) -> None:
    pq.write_table(pa.table({"at": ["x"], "got": ["y"], "v": [[1]]}), folder / "in" / "a.parquet")
    done = tidemark(folder, format="parquet", more="")
    assert done.exit_code == 1
    assert "a.parquet" in done.stderr
    assert "`v`" in done.stderr
    (folder / "in" / "a.parquet").write_text("no parquet at all")
    done = tidemark(folder, format="parquet", more="")
    assert done.exit_code == 1
    assert "a.parquet" in done.stderr
    assert "Unexpected" not in done.stderr
    assert records(folder) == 0
