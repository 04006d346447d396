"""A pipeline that is flushed, reopened and flushed again, by the command line: its tables, checks and sentences."""

from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import SHIFTS, assert_tables_equal_the_oracle, land, table
from tests.runs.running import FLUSH, backfill, go, pipeline, written
from tidemark.pipelines.cli import main
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.places.place import Place
from tidemark.timeops.spec import Spec

SPEC = f"{SHIFTS}partitions: {{start: 2026-01-01}}\n"


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def land_more(folder: Path, warehouse: Place, spec: Spec) -> None:
    """Writes records that begin before the last that were read, so that some are for what was open then."""
    newest = max(row["_arrival_time"] for row in table(warehouse, spec, "raw_events") if row["_arrival_time"])
    land(folder, 120, seed=2, start=newest - timedelta(seconds=40), prefix="g")


@pytest.mark.long
def test_a_flushed_pipeline_takes_more_input_only_when_it_is_told_why_and_keeps_closed_what_the_flush_closed(
    folder: Path,
) -> None:
    file, settings = written(folder, "shifts", SPEC)
    warehouse, spec = settings.warehouse, file.spec
    land(folder / "in", 200, seed=1)
    assert call("run", "shifts.yaml", "--end-of-input", "flush").exit_code == 0
    assert_tables_equal_the_oracle(warehouse, spec, flush=True)

    land_more(folder / "in", warehouse, spec)
    refused = call("run", "shifts.yaml")
    assert refused.exit_code == 1
    assert 'tidemark run SPEC --reopen "why"' in refused.output
    assert call("run", "shifts.yaml", "--reopen", " ").exit_code == 2

    reopened = call("run", "shifts.yaml", "--reopen", "the late shift", "--max-events-per-batch", "70")
    assert reopened.exit_code == 0, reopened.output
    assert_tables_equal_the_oracle(warehouse, spec)
    kept_out = [row for row in table(warehouse, spec, "dead_letters") if "a flush did so" in row["detail"]]
    assert {row["window_name"] for row in kept_out} >= {"revised", "quiet"}
    again = call("run", "shifts.yaml", "--reopen", "once more")
    assert (again.exit_code, "is not flushed" in again.output) == (1, True)

    assert call("run", "shifts.yaml", "--end-of-input", "flush").exit_code == 0
    assert_tables_equal_the_oracle(warehouse, spec, flush=True)
    nothing_new = call("run", "shifts.yaml", "--reopen", "in vain")
    assert (nothing_new.exit_code, "stays flushed" in nothing_new.output) == (0, True)
    controls = sorted(table(warehouse, spec, "log_control"), key=lambda row: row["_control_seq"])
    assert [(row["kind"], row["_after_seq"], row["reason"]) for row in controls[1:]] == [
        ("end_of_input", 199, "end_of_input: flush"),
        ("reopen", 199, "the late shift"),
        ("end_of_input", 319, "end_of_input: flush"),
    ]
    live, days = results(warehouse, spec), ("--from", "2026-01-01", "--to", "2026-01-02")
    done = call("backfill", "shifts.yaml", *days, "--window", "five")  # through the windows under it, too
    assert done.exit_code == 0, done.output
    assert results(warehouse, spec) == live


def results(warehouse: Place, spec: Spec) -> dict[str, list[str]]:
    """Return the rows of all windows as texts, but for the batch that wrote them."""
    rows = {window.name: table(warehouse, spec, f"windows/{window.name}") for window in spec.windows}
    found = {name: sorted(str(row | {"_batch_id": None}) for row in some) for name, some in rows.items()}
    assert all(found.values()), "equal empty tables would show nothing"
    return found


@pytest.mark.long
def test_every_timeline_goes_on_from_its_own_watermark_and_is_flushed_again_in_one_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    by_clock = "late: {tolerance: 20 s, policy: adjust}\n  idle: {advance: arrival_clock}"
    file, settings = made = pipeline(tmp_path, "devices", "drop", over="k", time=by_clock, sessions=True)
    land(tmp_path / "in_devices", 200, seed=3)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, FLUSH)
        land_more(tmp_path / "in_devices", settings.warehouse, file.spec)
        assert go(made, instance, RunOptions(end_of_input="flush", reopen="more came in")).batches == 1
    assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)
    live = results(settings.warehouse, file.spec)
    assert backfill(file, settings, "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
    assert results(settings.warehouse, file.spec) == live
    reasons = [row["reason"] for row in table(settings.warehouse, file.spec, "dead_letters")]
    assert "window_closed" in reasons, "under drop only a flush closes windows of events that are on time"
