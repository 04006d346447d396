"""A materialization of ordered_events shows counts, quantiles, pictures, and what can delay the watermark."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from dagster import AssetCheckKey, AssetKey, DagsterEventType, DagsterInstance, TableMetadataValue
from pyspark.sql import SparkSession

from tests.runs.landing import expected, land, table, us
from tests.runs.running import materializations, pipeline
from tidemark.assets.batch import Batch
from tidemark.assets.catalog.display.lateness import (
    BINS,
    MOVED_OR_KEPT,
    ON_TIME,
    OUTCOMES,
    REFUSED,
    bucket_start,
    lateness_of_batch,
    lateness_of_log,
)
from tidemark.assets.ingestion.raw_events import ingest
from tidemark.assets.judging.segment import judge
from tidemark.assets.planning import next_segment, take_on
from tidemark.assets.schemas import create_tables
from tidemark.assets.time_adjustment import adjust_time, write_dead_letters
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.resources.workspace import Workspace

CONSERVATION = AssetCheckKey(AssetKey(["shown", "dead_letters"]), "conservation")


@pytest.mark.long
def test_the_gathered_numbers_are_those_of_the_events(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = pipeline(tmp_path, "gathered", "drop", sparse=False)
    land(tmp_path / "in_gathered", 500, seed=6)
    workspace = Workspace(file, settings.warehouse, lambda: spark)
    create_tables(workspace)
    ingest(workspace, "run")
    batch = Batch(workspace, take_on(workspace, next_segment(workspace, None, flush=False), "run"), judge)
    done = adjust_time(batch)
    found = lateness_of_batch(batch, done.outcomes)

    log = {row["_arrival_seq"]: row for row in table(settings.warehouse, file.spec, "raw_events")}
    want = expected(settings.warehouse, file.spec, flush=False)
    times = {event.seq: event.timestamp_us for event in [*want.ordered, *want.held]}
    refused = {letter.seq: letter for letter in want.dead_letters if letter.reason == "out_of_order"}
    times |= {seq: (letter.watermark_us or 0) - (letter.lateness_us or 0) for seq, letter in refused.items()}
    lateness = {seq: (us(log[seq]["_arrival_time"]) or 0) - time for seq, time in times.items()}

    counted = Counter(dict.fromkeys(OUTCOMES, 0))
    for (_, kind), n in found.histogram.items():
        counted[kind] += n
    assert counted == {ON_TIME: len(times) - len(refused), MOVED_OR_KEPT: 0, REFUSED: len(refused)}
    assert found.longest_us == max(lateness.values())
    for (bucket, kind), n in found.histogram.items():
        inside = [
            seq
            for seq, value in lateness.items()
            if bucket_start(bucket) <= value < bucket_start(bucket + 1) and (seq in refused) == (kind == REFUSED)
        ]
        assert len(inside) == n, bucket

    assert len(found.bins) <= BINS
    last = found.bins[-1]
    assert (last.last, last.watermark_us, last.newest_us) == (499, done.position.watermark_us, done.position.max_t_us)
    assert last.clock_us == done.position.clock_us
    assert sum(one.refused for one in found.bins) == len(refused)
    behind = [one.refused_behind_us for one in found.bins if one.refused_behind_us]
    clocks = {seq: us(log[seq]["_clock"]) or 0 for seq in refused}
    write_dead_letters(batch)
    tables = {name: workspace.lake.version(name) for name in workspace.tables}
    stored = lateness_of_log(workspace.lake, tables, file.spec, (0, 500), [(500, done.position)])
    assert stored == found, "the tables tell the same without Spark"
    assert min(low for low, _ in behind) == min(times[seq] - clocks[seq] for seq in refused)
    assert max(high for _, high in behind) == max(times[seq] - clocks[seq] for seq in refused)


def test_a_run_shows_lateness_pictures_and_what_can_delay_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    file, settings = pipeline(tmp_path, "shown", "keep", time="late: {tolerance: 1 h, policy: drop}")
    land(tmp_path / "in_shown", 99, seed=6)
    far = {"id": "far", "at": "2099-01-01T00:00:00Z", "got": "2026-01-02T12:00:00Z", "k": "a", "v": 1}
    (tmp_path / "in_shown" / "z.jsonl").write_text(json.dumps(far) + "\n")
    with DagsterInstance.ephemeral() as instance:
        alerts = run_pipeline(file, settings, RunOptions(), instance=instance).alerts
        [warned] = [said for said in alerts if said.startswith("check far_ahead: ")]
        [run] = instance.get_runs()
        metadata = materializations(instance, AssetKey(["shown", "ordered_events"]))[0]
        letters = materializations(instance, AssetKey(["shown", "dead_letters"]))[0]
        found = instance.event_log_storage.get_latest_asset_check_execution_by_key([CONSERVATION])[CONSERVATION].event
        outputs = [one.dagster_event for one in instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_OUTPUT)]
        assert found is not None
        assert found.dagster_event is not None
        check = found.dagster_event.asset_check_evaluation_data.metadata
    assert [event.step_output_data.metadata for event in outputs if event is not None] == [{}] * len(outputs)
    assert run.remote_job_origin is not None, "without it the run is not on Dagster's timeline"
    assert run.remote_job_origin.repository_origin.code_location_origin.location_name == "tidemark"
    assert (run.tags["tidemark/batch"], run.tags["tidemark/records"]) == ("1", "100")
    [number] = [
        row["_arrival_seq"] for row in table(settings.warehouse, file.spec, "raw_events") if row["id"] == "far"
    ]
    far_ahead = f"record {number} has the event time 2099-01-01 00:00:00 UTC, 26661 days 12 hours ahead of the clock"
    assert far_ahead in warned
    assert re.fullmatch(r"\d+ days( \d+ hours?)? ahead of the wall clock", str(metadata["watermark_delay"].value))
    assert re.fullmatch(r".* % of the records that arrived in batch 1 were lost \(.*\)", str(letters["lost"].value))
    assert letters["to_do"].value
    assert "Launch the job `shown_ask`" in str(letters["ask"].value)
    columns = metadata["dagster/column_schema"].value.columns
    assert {one.name for one in columns if one.description is None} == {"id", "at", "got", "k", "v"}
    assert {one.type for one in columns if one.name == "_adjusted_by"} == {"array<string>"}
    assert isinstance(check["counts"], TableMetadataValue)
    counts = {row.data["subject"]: row.data for row in check["counts"].records}
    assert counts["records of the log"] == {"subject": "records of the log", "expected": "100", "found": "100"}
    numbers = [metadata[f"lateness_{name}_seconds"].value for name in ("p50", "p90", "p99", "max")]
    assert numbers == sorted(numbers)
    for picture in ("watermark_against_arrival", "lateness"):
        assert str(metadata[picture].value).startswith(f"![{picture}](data:image/png;base64,")
    assert metadata["held_events"].value == len(table(settings.warehouse, file.spec, "held_events"))
    causes = str(metadata["watermark_delay_causes"].value)
    assert "| `out_of_orderness` | 10 seconds behind the newest event |" in causes
    assert "| `late.tolerance` | 1 hour: does not hold the watermark back |" in causes
    for cause in ("processing", "clocks that differ", "too little compute", "a source that is throttled", "a sink"):
        assert cause in causes
