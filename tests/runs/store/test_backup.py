"""Copies of a running pipeline, which continue elsewhere with the rest of the input."""

import shutil
from pathlib import Path

import pytest
from dagster import DagsterInstance

from tests.runs.landing import SHIFTS, START, land
from tests.runs.running import (
    Made,
    assert_same_tables,
    command,
    go,
    pipeline,
    public_tables,
    rows_by_table,
    written,
)
from tidemark.assets.upkeep.backup import Backup, back_up
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import Workspace

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.long
def test_a_copy_made_at_any_moment_of_a_run_continues_elsewhere_to_the_rows_of_the_original(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    file, settings = made = written(here, "shifts", SHIFTS)
    land(here / "in", 120, seed=3, prefix="a")
    go(made)
    land(here / "in", 120, seed=4, prefix="b", start=START.replace(day=2, hour=0, minute=10))
    copies: dict[str, Backup] = {}

    def copy(doing: str) -> None:
        copies[doing] = back_up(Workspace(file, settings.warehouse), tmp_path / f"copy_{len(copies)}")

    with DagsterInstance.ephemeral() as instance:
        run_pipeline(file, settings, RunOptions(), instance=instance, tell=copy)
    copies["ended"] = back_up(Workspace(file, settings.warehouse), tmp_path / "ended")
    assert len({each.commit.batch_id for each in copies.values()}) > 2  # also between the two commits of a run
    chosen = [*[doing for doing in copies if doing.endswith("committing")][:1], "ended"]
    continued = [moved(here, copies[doing], tmp_path / f"there_{number}") for number, doing in enumerate(chosen)]
    for copied in continued:
        go(copied)  # what the original had read by then: files that come together are read in the order of arrival
    for each in (made, *continued):
        land(each[0].folder / "in", 60, seed=5, prefix="c", start=START.replace(day=2, hour=0, minute=30))
        go(each)
    expected = rows_of(made)
    for copied in continued:
        assert_same_tables(rows_of(copied), expected)


def moved(here: Path, copied: Backup, there: Path) -> Made:
    """Move a copy, and copy the spec and the input with it, as to another machine."""
    shutil.copytree(here / "in", there / "in")
    shutil.copy(here / "shifts.yaml", there)
    shutil.move(str(copied.folder.parent), there / "warehouse")
    return read_spec(there / "shifts.yaml"), Settings(there / "warehouse", there, there / "home")


def rows_of(made: Made) -> dict[str, list[str]]:
    return rows_by_table(Workspace(made[0], made[1].warehouse), public_tables(made), without=["_batch_id"])


def test_the_command_copies_the_last_commit_and_never_over_another_copy(tmp_path: Path) -> None:
    file, settings = pipeline(tmp_path, "shop", "keep")
    (tmp_path / "in_shop").mkdir()
    copy = str(tmp_path / "copy")
    early = command(tmp_path, "shop", "backup", "--to", copy)
    assert (early.exit_code, "nothing is committed" in early.stderr) == (2, True)
    land(tmp_path / "in_shop", 40, seed=3)
    go((file, settings))
    done = command(tmp_path, "shop", "backup", "--to", copy)
    assert (done.exit_code, done.stdout.splitlines()[1].strip()) == (0, f"{copy}/shop")
    original, copied = (Workspace(file, place) for place in (settings.warehouse, Path(copy)))
    assert_same_tables(rows_by_table(copied), rows_by_table(original))
    again = command(tmp_path, "shop", "backup", "--to", copy)
    assert (again.exit_code, "is not empty" in again.stderr) == (2, True)


@pytest.mark.long
def test_a_copy_that_lacks_a_file_of_the_commit_is_said_to_be_broken(tmp_path: Path) -> None:
    file, settings = written(tmp_path, "shifts", SHIFTS)
    land(tmp_path / "in", 40, seed=3)
    go((file, settings))
    next((tmp_path / "warehouse" / "shifts" / "raw_events").rglob("*.parquet")).unlink()
    broken = command(tmp_path, "shifts", "backup", "--to", str(tmp_path / "copy"))
    assert broken.exit_code == 1
    assert "raw_events" in broken.stderr
