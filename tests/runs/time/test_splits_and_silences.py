"""Pipelines whose watermark depends on splits, several sources, or silences: equal to the oracle, cut and whole."""

import json
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, IntMetadataValue
from pyspark.sql import SparkSession

from tests.runs.landing import assert_tables_equal_the_oracle, land, table, us
from tests.runs.running import (
    Made,
    assert_the_report_tells_what_the_tables_hold,
    go,
    materializations,
    materialize_days,
    pipeline,
    rows_of,
    without_batch,
    written,
)
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.settings import Settings
from tidemark.resources.sources import records
from tidemark.timeops import spec_check
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import Spec

LATE = "out_of_order"
TWO_SOURCES = """
name: merged
sources:
  - name: lines
    kind: files
    path: in_lines/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING, v INT"
    arrival_time: got
    settle: 0 s
    split: k
    splits: [a, c]
  - name: meters
    kind: files
    path: in_meters/*.jsonl
    format: json
    schema: "id STRING, ms BIGINT, got STRING, k {kind}, v INT"
    arrival_time: got
    settle: 0 s
    timestamp_by: timestamp_millis(ms)
    out_of_orderness: 3 s
    idle: {{timeout: 7 s}}
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 10 s
  out_of_order: keep
  late: {{tolerance: 20 s, policy: adjust}}
  idle: {{advance: exclude_split, timeout: 15 s}}
windows:
  - name: per_minute
    kind: tumbling
    size: 1 minute
    group_by: [k]
    aggregates: {{n: count(*), seen: array_sort(collect_set(id))}}
"""


def two_sources(tmp_path: Path, *, kind: str) -> Made:
    """Return the pipeline of two sources; `kind` is the type of the column `k` in the second."""
    return written(tmp_path, "merged", TWO_SOURCES.format(kind=kind))


def land_meters(folder: Path, records: int, seed: int) -> None:
    """Records as of `land`, with their time as a number."""
    land(folder, records, seed, files=1)
    path = folder / "f0.jsonl"
    lines = []
    for line in path.read_text().splitlines():
        record = json.loads(line) if line.endswith("}") else None
        if record is None or record["at"] == "yesterday":
            continue
        at = record.pop("at")
        record["ms"] = at and (us(datetime.fromisoformat(at.replace("Z", "+00:00"))) or 0) // 1_000
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.long
def test_two_sources_with_splits_and_settings_of_their_own_give_the_oracles_tables_in_batches(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = two_sources(tmp_path, kind="STRING")
    land(tmp_path / "in_lines", 400, seed=21)
    land_meters(tmp_path / "in_meters", 300, seed=22)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=350)).batches == 2
        shown = metrics(instance, "merged")
    log = table(settings.warehouse, file.spec, "raw_events")
    assert {(row["_source"], row["_split"]) for row in log if row["_malformed"] is None} == {
        *(("lines", k) for k in ("a", "b", None)),
        ("meters", None),
    }
    arrivals = [row["_arrival_time"] for row in sorted(log, key=lambda row: row["_arrival_seq"])]
    timed = [arrival for arrival in arrivals if arrival is not None]
    assert timed == sorted(timed), "the records of one ingestion are ordered over all sources"
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    met = met_by_source(settings, file.spec)
    for name in ("late_input_events", "out_of_order_events"):
        of_sources = [f"{name}_lines", f"{name}_meters"]
        assert [shown[of] for of in of_sources] == [met[of] for of in of_sources]
        assert shown[name] == sum(met[of] for of in of_sources)
        assert met[f"{name}_lines"], "none would show nothing"
    page = assert_the_report_tells_what_the_tables_hold(settings.warehouse, file)
    for source, files in (("lines", 3), ("meters", 1)):
        records = sum(row["_source"] == source for row in log)
        assert f'<td>{source}</td><td class="n">{files}</td><td class="n">{records}</td>' in page


@pytest.mark.long
def test_splits_may_have_any_text_for_a_name(spark: SparkSession, tmp_path: Path) -> None:
    splits = r"""splits: [a, "it's", "{one}", 'C:\temp']"""
    idle = "idle: {advance: exclude_split, timeout: 12 s}"
    file, settings = made = pipeline(
        tmp_path, "named", "drop", sparse=False, source=f"split: k\n    {splits}", time=idle
    )
    land(tmp_path / "in_named", 80, seed=3)
    go(made, options=RunOptions(max_events_per_batch=50))
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
    assert table(settings.warehouse, file.spec, "windows/per_minute")


def metrics(instance: DagsterInstance, pipeline: str) -> Counter[str]:
    """Return the numbers that the materializations of `ordered_events` show, summed over batches."""
    found: Counter[str] = Counter()
    for metadata in materializations(instance, AssetKey([pipeline, "ordered_events"])):
        for name, shown in metadata.items():
            if isinstance(shown, IntMetadataValue):
                found[name] += shown.value or 0
    return found


def met_by_source(settings: Settings, spec: Spec) -> Counter[str]:
    """Return how many events of each source were late and out of order, by the tables."""
    sources = {row["_arrival_seq"]: row["_source"] for row in table(settings.warehouse, spec, "raw_events")}
    names = {"late": "late_input_events", "kept_out_of_order": "out_of_order_events"}
    found: Counter[str] = Counter()
    for name in ("ordered_events", "held_events"):
        for row in table(settings.warehouse, spec, name):
            found.update(f"{names[rule]}_{sources[row['_arrival_seq']]}" for rule in row["_adjusted_by"])
    return found


@pytest.mark.long
def test_periods_show_what_the_clock_gave_and_days_recomputed_from_the_log_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    silence = "idle: {advance: window_close, timeout: 8 s}\n  emit: {every: 5 s}"
    file, settings = made = pipeline(tmp_path, "paced", "drop", over="k", time=silence, sparse=False)
    land(tmp_path / "in_paced", 500, seed=24)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=260)).batches == 2
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        by_clock = [row for row in table(settings.warehouse, file.spec, "dead_letters") if row["reason"] == LATE]
        assert {row["watermark_set_by"] is None for row in by_clock} == {True, False}
        live = table(settings.warehouse, file.spec, "windows/per_minute")
        materialize_days(made, instance, "per_minute")
        rebuilt = table(settings.warehouse, file.spec, "windows/per_minute")
        assert without_batch(rebuilt) == without_batch(live)


def test_a_column_of_two_types_in_two_sources_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    _, settings = made = two_sources(tmp_path, kind="INT")
    land(tmp_path / "in_lines", 5, seed=21)
    land(tmp_path / "in_meters", 5, seed=22)
    with pytest.raises(SpecError, match="`k` STRING and `k` INT"):
        go(made)
    assert not (settings.warehouse / "merged" / "raw_events").exists()


@pytest.mark.long
def test_a_log_with_bytes_as_splits_which_earlier_versions_took_is_judged_as_by_their_texts(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_text = pipeline(tmp_path, "texts", "drop", sparse=False, source="split: hex(unhex(concat('f', k)))")
    by_bytes = pipeline(tmp_path, "bytes", "drop", sparse=False, source="split: unhex(concat('f', k))")
    for name in ("texts", "bytes"):
        land(tmp_path / f"in_{name}", 30, seed=71)
    go(by_text)
    with pytest.raises(SpecError, match=r"sources\[0\].split: .* has the type BINARY, which has no plain text form"):
        go(by_bytes)
    monkeypatch.setattr(spec_check, "text_problem", lambda _kind, _text: None)
    monkeypatch.setattr(records, "text_at", lambda _columns, split, _at: f"CAST({split} AS STRING)")
    go(by_bytes)
    ordered = [
        sorted((row["_arrival_seq"], row["_timestamp"]) for row in rows_of(tmp_path, name, "ordered_events"))
        for name in ("texts", "bytes")
    ]
    assert ordered[0] == ordered[1]
