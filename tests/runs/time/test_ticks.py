"""Live runs: ticks after the input, through Dagster, equal to the oracle."""

from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, assert_tables_equal_the_oracle, land, table, us
from tests.runs.running import go, materialize_days, without_batch, written
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.settings import Settings
from tidemark.timeops.spec import Spec

SPEC = (
    f"name: ticking\n{LINES}"
    """\
    live: true
time:
  timestamp_by: at
  over: [k]
  out_of_orderness: 10 s
  idle: {advance: window_close, timeout: 3 s}
  emit: on_event
windows:
  - {name: early, kind: tumbling, size: 10 s, group_by: [k], aggregates: {n: count(*)}, emit: {early: 5 s}}
  - {name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {n: count(*)}, emit: {early: 5 s}}
partitions: {start: 2026-01-01}
"""
)
LIVE = RunOptions(live=True)


def ticks(settings: Settings, spec: Spec) -> list[tuple[int, int]]:
    """Place and clock of the ticks of a log."""
    rows = sorted(table(settings.warehouse, spec, "log_control"), key=lambda row: int(row["_control_seq"]))
    return [(row["_after_seq"], us(row["clock"]) or 0) for row in rows if row["kind"] == "tick"]


@pytest.mark.long
def test_live_runs_tick_behind_their_input_and_the_clock_goes_on_from_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = written(tmp_path, "ticking", SPEC)
    land(tmp_path, 240, seed=31, files=1)
    lines = (tmp_path / "f0.jsonl").read_text().splitlines()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines[:200]) + "\n")
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, LIVE).batches == 1, "the tick stands behind the records, in their batch"
        assert [after for after, _ in ticks(settings, file.spec)] == [199]
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)

        assert go(made, instance).batches == 0, "without --live nothing is new"
        done = go(made, instance, LIVE)
        assert (done.batches, done.counts["records"]) == (1, 0), "the wall clock has gone on"
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)

        (tmp_path / "in" / "b.jsonl").write_text("\n".join(lines[200:]) + "\n")
        assert go(made, instance).batches == 1
        (_, first), (_, second) = ticks(settings, file.spec)
        assert first < second
        behind = [row for row in table(settings.warehouse, file.spec, "raw_events") if row["_arrival_seq"] >= 200]
        assert min(us(row["_clock"]) or 0 for row in behind) == second, "some arrived before the tick"
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)

        for name in ("early", "visits"):
            live = without_batch(table(settings.warehouse, file.spec, f"windows/{name}"))
            materialize_days(made, instance, name)
            assert without_batch(table(settings.warehouse, file.spec, f"windows/{name}")) == live
