"""Bad input through the command: a clear error before anything is written, or a dead letter; nothing is lost."""

import gzip
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tests.runs.landing import table
from tidemark.assets import live
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.workspace import Workspace

SPEC = """
name: tills
sources:
  - {{name: s, kind: files, path: "in/*", format: {format}, schema: "at STRING, got STRING, v INT", arrival_time: got,
     settle: 0 s{more}}}
time: {{timestamp_by: at}}
"""
ALL_FORMATS = """
name: tills
sources:
  - {name: c, kind: files, path: "in/*.csv*", format: csv, options: {header: true}, schema: "at STRING, v INT",
     settle: 0 s}
  - {name: j, kind: files, path: "in/*.json", format: json, schema: "at STRING, v INT", settle: 0 s}
  - {name: p, kind: files, path: "in/*.parquet", format: parquet, schema: "at STRING, v INT", settle: 0 s}
time: {timestamp_by: at, out_of_orderness: 1 day}
"""


def tidemark(folder: Path, *, format: str = "csv", more: str = ", options: {header: true}") -> Result:  # noqa: A002
    (folder / "tills.yaml").write_text(SPEC.format(format=format, more=more))
    return CliRunner().invoke(main, ["run", "tills.yaml"], catch_exceptions=False)


def records(folder: Path) -> int:
    return Workspace(read_spec(folder / "tills.yaml"), folder / "warehouse").progress.log_end()


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


def test_an_error_of_a_stage_that_nobody_expected_names_its_kind_and_with_verbose_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "in" / "a.csv").write_text("at,got,v\n2026-01-01T00:00:01Z,2026-01-01T00:01:01Z,1\n")
    with monkeypatch.context() as patched:
        patched.setattr(live, "ingest", broken)
        done = tidemark(folder)
        told = CliRunner().invoke(main, ["run", "tills.yaml", "--verbose"], catch_exceptions=False).stderr
    assert done.exit_code == 1
    said = "Unexpected AssertionError\nExpected: no error in the program itself; readers still see the last commit\n"
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(r"test_bad_input\.py.*in broken(.|\n)*Unexpected AssertionError", told), told
    assert records(folder) == 0


def broken(*_: object, **__: object) -> None:
    """Fail as a fault of the code does."""
    raise AssertionError


@pytest.mark.long
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


def damaged(path: Path, *, page: int) -> None:
    """Write a parquet file of many pages and destroy some bytes of one, which only reading it shows."""
    size = 2_000
    table = pa.table({"at": ["2026-01-01T00:00:00Z"] * size, "v": pa.array(range(size), pa.int32())})
    pq.write_table(table, path, row_group_size=size // 10, use_dictionary=False)
    start = pq.read_metadata(path).row_group(page).column(1).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 60] = b"\xff" * 60
    path.write_bytes(content)


SAID = {
    "utf16.csv": "this is text in UTF-16",
    "no_mark.json": "this is text in UTF-16",
    "missing.csv": "column `v` is missing from the header: at",
    "doubled.csv.gz": "column `at` occurs more than once in the header: at, v, at",
    "broken.csv.gz": "the archive is damaged or truncated",
    "bare.csv": "column `at` is missing from the header: 2026-01-01T00:00:00Z, 1",
    "random.csv": "this is binary, not text",
    "zip.json": "this is a zip archive or an Excel file, not text",
    "named.parquet": "this is not a readable parquet file",
    "brotli.parquet": "columns are compressed with brotli, which Spark cannot read",
    "missing.parquet": "column `v` is missing from the file",
    "typed.parquet": "column `v` has the type STRING",
    "a_page.parquet": "the file cannot be read to its end",
    "pages.parquet": "the file cannot be read to its end",
}
"""Why each bad file is held back."""
MENDED = {"typed.parquet", "missing.csv", "broken.csv.gz"}
LINE = "2026-01-01T00:00:00Z,1\n"


@dataclass(frozen=True)
class Runs:
    """Three runs: over good and bad files, after some were mended and a good one was changed, without bad ones.

    Attributes:
        files: The folder with the files.
        said: The exit status of each run, and what it wrote to stderr.
        records: How many records the log had after each.
        noted: The parquet files that the second has noted as held back.
    """

    files: Path
    said: list[tuple[int, str]]
    records: list[int]
    noted: set[str]


def parquet_row(value: int) -> pa.Table:
    return pa.table({"at": ["2026-01-01T00:00:00Z"], "v": pa.array([value], pa.int32())})


def land_good_and_bad(files: Path) -> None:
    """Write four good files, and each bad one."""
    (files / "good.csv").write_text("at,v\n" + LINE)
    (files / "good.json").write_text('{"at": "2026-01-01T00:00:00Z", "v": 1}\n')
    pq.write_table(parquet_row(1), files / "good.parquet")
    pq.write_table(parquet_row(2), files / "last.parquet")
    (files / "utf16.csv").write_bytes(("at,v\n" + LINE).encode("utf-16"))
    (files / "no_mark.json").write_bytes('{"at": "2026-01-01T00:00:00Z"}\n'.encode("utf-16-le"))
    (files / "missing.csv").write_text("at\n2026-01-01T00:00:00Z\n")
    (files / "doubled.csv.gz").write_bytes(gzip.compress(b"at,v,at\nx,1,y\n"))
    (files / "broken.csv.gz").write_bytes(b"no archive")
    (files / "bare.csv").write_text(LINE * 2)
    (files / "random.csv").write_bytes(bytes(range(256)) * 9)
    (files / "zip.json").write_bytes(b"PK\x03\x04" + b"content" * 9)
    (files / "named.parquet").write_text("at,v\n" + LINE)
    pq.write_table(parquet_row(3), files / "brotli.parquet", compression="brotli")
    pq.write_table(pa.table({"at": ["x"]}), files / "missing.parquet")
    pq.write_table(pa.table({"at": ["x"], "v": ["1"]}), files / "typed.parquet")
    damaged(files / "a_page.parquet", page=4)
    damaged(files / "pages.parquet", page=9)


def mend_some(files: Path) -> None:
    """Mend MENDED, change a good file, land a new one, and damage one again in its place: it is tried again."""
    (files / "later.csv").write_text("at,v\n" + LINE.replace(",1", ",8") * 2)  # begins as no other
    pq.write_table(parquet_row(4), files / "typed.parquet")
    for name, value in (("missing.csv", 5), ("good.csv", 6)):
        (files / name).write_text(f"at,v\n2026-01-01T00:00:00Z,{value}\n")
    (files / "broken.csv.gz").write_bytes(gzip.compress(b"at,v\n2026-01-01T00:00:00Z,7\n"))
    damaged(files / "pages.parquet", page=0)


@pytest.fixture(scope="module")
def runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return three runs over files of each kind."""
    folder = tmp_path_factory.mktemp("bad")
    files = folder / "in"
    files.mkdir()
    (folder / "tills.yaml").write_text(ALL_FORMATS)
    made = Runs(files, [], [], set())

    def run() -> None:
        done = CliRunner().invoke(main, ["run", "tills.yaml"], catch_exceptions=False)
        made.said.append((done.exit_code, done.stderr))
        made.records.append(records(folder))

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("DAGSTER_HOME", str(folder / "home"))
        patched.delenv("TIDEMARK_WAREHOUSE", raising=False)
        land_good_and_bad(files)
        run()
        mend_some(files)
        run()
        committed = Workspace(read_spec(folder / "tills.yaml"), folder / "warehouse").batches.last_commit("ingest")
        assert committed is not None
        made.noted.update(Path(file["path"]).name for file in committed.plan.input["held_back"]["p"])
        for name in (SAID.keys() | {"good.csv"}) - MENDED:
            (files / name).unlink()
        run()
    return made


@pytest.mark.long
def test_every_kind_of_bad_file_is_held_back_alone_and_named(runs: Runs) -> None:
    exit_code, said = runs.said[0]
    assert (exit_code, runs.records[0]) == (1, 4)
    assert "tills: 14 file(s) held back; everything else was processed." in said
    for name, sentence in SAID.items():
        assert f"{runs.files / name}: {sentence}" in said
    assert said.count("To do:") == len(SAID)
    assert "To do: add a first line with the names of its columns" in said
    of_missing = said.partition(f"{runs.files / 'missing.csv'}: ")[2].partition("To do: ")[2]
    assert of_missing.startswith("correct `schema` or the file")


@pytest.mark.long
def test_a_bad_file_is_read_when_it_is_mended_and_a_good_one_that_is_changed_is_held_back(runs: Runs) -> None:
    exit_code, said = runs.said[1]
    assert (exit_code, runs.records[1]) == (1, 9)
    assert "12 file(s) held back" in said
    assert f"{runs.files / 'good.csv'}: " in said
    assert not any(name in said for name in MENDED)
    assert runs.noted == {"a_page.parquet", "pages.parquet"}, "only reading them shows that they are damaged"


@pytest.mark.long
def test_a_run_ends_well_when_the_bad_files_are_gone(runs: Runs) -> None:
    assert runs.said[2][0] == 0, runs.said[2]
