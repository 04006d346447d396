"""Tables that are lost, older or damaged between two runs: every command names them, and nothing is written."""

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.runs.running import command, over_source, run
from tidemark.resources.batches.committed import consistent
from tidemark.resources.delta.lake import Lake
from tidemark.resources.tables import OF_THE_LOG

COLUMNS = 'schema: "id STRING, at STRING, k STRING, v INT"'
LINES = f'{{name: lines, kind: files, path: "in/*", format: json, settle: 0 s, {COLUMNS}}}'
TIME = "over: [k]\n  deduplicate_by: [id]\n  within: 1 day"


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pipeline with state of every kind after a run, and with new input."""
    base = tmp_path_factory.mktemp("lost")
    over_source(base, "meter", LINES, time=TIME)
    (base / "in").mkdir()
    lines = [f'{{"id": "{n}", "at": "2026-01-01T00:{n:02}:00Z", "k": "a", "v": 1}}\n' for n in range(9)]
    (base / "in" / "1").write_text("".join(lines[:6]) + "no object\n")
    run(base, "meter")
    (base / "in" / "2").write_text("".join(lines[6:]))
    return base


def the_folder(table: Path) -> None:
    shutil.rmtree(table)


def its_log(table: Path) -> None:
    shutil.rmtree(table / "_delta_log")


def a_file(table: Path) -> None:
    next(table.rglob("*.parquet")).unlink()


def half_a_file(table: Path) -> None:
    file = next(table.rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-9])


def zeros_in_a_file(table: Path) -> None:
    file = next(table.rglob("*.parquet"))
    file.write_bytes(bytes(len(file.read_bytes())))


def pages_of_a_file(table: Path) -> None:
    """Its footer stays as it was."""
    file = next(table.rglob("*.parquet"))
    data, footer = file.read_bytes(), pq.read_metadata(file).serialized_size + 8
    file.write_bytes(data[:4] + bytes(len(data) - 4 - footer) + data[-footer:])


def the_last_commit(table: Path) -> None:
    max((table / "_delta_log").glob("*.json")).unlink()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


TABLES = ("raw_events", "ordered_events", "dead_letters", "watermarks", "log_control", "windows/per_minute")
STATE = ("held_events", "_state/first_times", "_state/open_events", "_state/timelines", "_state/files")
LOSSES = (the_folder, its_log, a_file, half_a_file, zeros_in_a_file, the_last_commit)


@pytest.mark.parametrize("table", ["batches", *TABLES, *STATE])
def test_what_is_lost_of_a_table_is_named_and_nothing_is_written(kept: Path, tmp_path: Path, table: str) -> None:
    # An older log of batches is another test.
    losses = LOSSES[:-1] if table == "batches" else LOSSES[(*TABLES, *STATE).index(table) % 3 :: 3]
    for lose in losses:
        base = tmp_path / lose.__name__
        shutil.copytree(kept, base)
        lose(base / "warehouse" / "meter" / table)
        before = contents(base / "warehouse" / "meter")
        for word in ("run", "status"):
            done = command(base, "meter", word)
            assert done.exit_code == 1, (lose, word, done.output)
            assert f"meter/{table}" in done.output, (lose, word, done.output)
            remedy = "To do: rebuild the table from the log with `tidemark rebuild SPEC`"
            remedy = "restore " if table in OF_THE_LOG else remedy
            assert remedy in done.output, (lose, word, done.output)
            assert ("tidemark rebuild" in done.output) == (table not in OF_THE_LOG)
            assert contents(base / "warehouse" / "meter") == before, (lose, word)


def test_a_log_of_batches_that_is_older_than_the_tables_empties_none(kept: Path, tmp_path: Path) -> None:
    base = tmp_path / "older"
    shutil.copytree(kept, base)
    folder = base / "warehouse" / "meter"
    for entry in sorted((folder / "batches" / "_delta_log").glob("*.json"))[1:]:
        entry.unlink()
    rows = Lake(folder).row_count("raw_events")
    for _ in range(2):
        done = command(base, "meter")
        assert done.exit_code == 1, done.output
        assert "`batches` is older than " in done.output
        assert "To do: restore" in done.output
        assert Lake(folder).row_count("raw_events") == rows == 7


@pytest.mark.parametrize("table", ["held_events", pytest.param("_state/first_times", marks=pytest.mark.long)])
def test_a_file_whose_rows_cannot_be_read_is_named_when_they_are(kept: Path, tmp_path: Path, table: str) -> None:
    shutil.copytree(kept, tmp_path / "pages")
    pages_of_a_file(tmp_path / "pages" / "warehouse" / "meter" / table)
    done = command(tmp_path / "pages", "meter")
    assert done.exit_code == 1
    assert f"meter/{table}/" in done.output
    assert "cannot be read: " in done.output
    assert "with `tidemark rebuild SPEC`, or restore the pipeline's folder" in done.output
    assert "\tat " not in done.output


@pytest.mark.long
def test_tables_that_are_lost_are_made_anew_from_the_log(kept: Path, tmp_path: Path) -> None:
    whole, base = tmp_path / "whole", tmp_path / "lost"
    for folder in (whole, base):
        shutil.copytree(kept, folder)
    warehouse = base / "warehouse" / "meter"
    the_folder(warehouse / "held_events")
    its_log(warehouse / "_state" / "timelines")
    a_file(warehouse / "_state" / "open_events")
    zeros_in_a_file(warehouse / "ordered_events")
    the_last_commit(warehouse / "watermarks")
    (warehouse / "dead_letters" / "_delta_log" / f"{1:020}.json").write_text("{broken")
    done = command(base, "meter", "rebuild")
    assert done.exit_code == 0, done.output
    for folder in (whole, base):
        run(folder, "meter")
    assert rows_of(base) == rows_of(whole)


def test_a_rebuild_of_a_log_that_is_lost_says_so_and_changes_nothing(kept: Path, tmp_path: Path) -> None:
    shutil.copytree(kept, tmp_path / "lost")
    a_file(tmp_path / "lost" / "warehouse" / "meter" / "raw_events")
    before = contents(tmp_path / "lost" / "warehouse" / "meter")
    done = command(tmp_path / "lost", "meter", "rebuild")
    assert (done.exit_code, "To do: restore" in done.output) == (1, True), done.output
    assert contents(tmp_path / "lost" / "warehouse" / "meter") == before


def rows_of(base: Path) -> dict[str, list[str]]:
    """Return the rows of the tables of events and results as of the last commit, but for their batches."""
    versions, lake = consistent(base / "warehouse", "meter"), Lake(base / "warehouse" / "meter")
    names = [name for name in (*TABLES, "held_events") if name not in ("watermarks", "log_control")]
    rows = {name: lake.rows(name, versions[name][1]).drop_columns("_batch_id").to_pylist() for name in names}
    assert all(rows.values())
    return {name: sorted(map(str, some)) for name, some in rows.items()}
