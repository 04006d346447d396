"""Pipelines with windows of every kind, and with revised results: equal to the oracle, cut, whole, rebuilt."""

from pathlib import Path
from typing import Any

import pytest
from dagster import AssetKey, DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, assert_tables_equal_the_oracle, land, table
from tests.runs.running import (
    FLUSH,
    assert_the_report_tells_what_the_tables_hold,
    go,
    materialize_days,
    without_batch,
    written,
)
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.places.place import Place
from tidemark.timeops.spec import Spec

PREIMAGE, DELETE = "update_preimage", "delete"
SHOWN = ("n", "total", "_revision", "_is_final", "_watermark")
SPEC = (
    f"name: kinds\n{LINES}"
    """\
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 5 s
  out_of_order: keep
windows:
  - {name: growing, kind: cumulative, size: 5 minutes, step: 1 minute, closed: right, group_by: [k],
     aggregates: {n: count(*)}}
  - {name: last_20_s, kind: sliding, size: 20 s, allowed_lateness: 9 s, emit: on_time, revise_every: 5 s,
     where: v > 2, group_by: [k], aggregates: {n: count(*)}}
  - {name: instants, kind: snapshot, aggregates: {n: count(*)}}
  - {name: days, kind: tumbling, size: 1 day, time_zone: Asia/Kathmandu, aggregates: {n: count(*)}}
  - {name: revised, kind: tumbling, size: 1 minute, allowed_lateness: 2 minutes, emit: on_time, revise_every: 20 s,
     history: true, group_by: [k], aggregates: {n: count(*), total: sum(v)}}
  - {name: at_each, kind: hopping, size: 1 minute, hop: 30 s, allowed_lateness: 2 minutes, emit: on_time,
     revise_every: 0 s, history: true, group_by: [k], aggregates: {n: count(*), total: sum(v)}, having: n % 2 = 1}
  - {name: visits, kind: session, gap: 5 s, allowed_lateness: 1 minute, emit: on_time, revise_every: 5 s,
     history: true, group_by: [k], aggregates: {n: count(*), total: sum(v)}}
  - {name: quiet, kind: tumbling, size: 10 s, allowed_lateness: 3 s, empty: true, where: v > 2, group_by: [k],
     aggregates: {n: count(*), total: sum(v)}}
  - {name: soon, kind: tumbling, size: 2 minutes, emit: {early: 15 s}, group_by: [k], aggregates: {n: count(*)}}
  - {name: five, kind: tumbling, size: 5 minutes, closed: right, from: revised, allowed_lateness: 2 minutes,
     group_by: [k], aggregates: {n: sum(n), total: sum(total)}}
  - {name: all_of_ten, kind: hopping, size: 10 minutes, hop: 5 minutes, closed: right, from: five,
     allowed_lateness: 2 minutes, aggregates: {n: sum(n)}}
  - {name: spells, kind: session, gap: 2 s, from: last_20_s, allowed_lateness: 30 s, group_by: [k],
     aggregates: {n: sum(n), changes: count(*)}}
  - {name: of_spells, kind: sliding, size: 30 s, from: spells, allowed_lateness: 30 s, aggregates: {n: sum(n)}}
partitions: {start: 2026-01-01}
"""
)


@pytest.mark.long
def test_windows_of_every_kind_in_batches_give_the_oracles_tables_and_days_rebuilt_from_the_log_are_the_same(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = written(tmp_path, "kinds", SPEC)
    land(tmp_path / "in", 700, seed=5)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=400)).batches == 2
        assert_tables_equal_the_oracle(settings.warehouse, file.spec)
        assert_open_sessions_keep_the_results_that_no_closed_one_holds(settings.warehouse, file.spec)
        days = instance.get_materialized_partitions(AssetKey(["kinds", "windows", "revised"]))
        assert days == {"2026-01-01", "2026-01-02"}
        for name in ("revised", "quiet", "five", "spells", "visits"):
            live = table(settings.warehouse, file.spec, f"windows/{name}")
            assert live
            materialize_days(made, instance, name)
            rebuilt = table(settings.warehouse, file.spec, f"windows/{name}")
            assert {row["_batch_id"] for row in rebuilt} != {row["_batch_id"] for row in live}, name
            assert without_batch(rebuilt) == without_batch(live), name
        totals = {row["total"] for row in table(settings.warehouse, file.spec, "windows/quiet") if row["n"] == 0}
        assert totals == {None}, "what Spark gives over no rows"
        revised = table(settings.warehouse, file.spec, "windows/revised")
        assert {row["_is_final"] for row in revised} == {True, False}
        assert max(row["_revision"] for row in revised) > 1
        assert go(made, instance, FLUSH).batches == 1
        assert_tables_equal_the_oracle(settings.warehouse, file.spec, flush=True)
        assert_history_leads_to_the_last_revisions(settings.warehouse, file.spec)
        for name in ("revised", "at_each", "visits"):
            assert_changes_played_back_give_the_table(settings.warehouse, file.spec, name)
    page = assert_the_report_tells_what_the_tables_hold(settings.warehouse, file)
    assert "past every event: the end of input was flushed" in page
    of_all = ("watermark", "lateness", "lost by tolerance")
    assert page.count("data:image/svg+xml;base64,") == len(of_all) + len(file.spec.windows)


def assert_open_sessions_keep_the_results_that_no_closed_one_holds(warehouse: Place, spec: Spec) -> None:
    kept = len(table(warehouse, spec, "_state/open_results/spells"))
    in_closed = sum(row["changes"] for row in table(warehouse, spec, "windows/spells"))
    final = [row for row in table(warehouse, spec, "windows/last_20_s") if row["_is_final"]]
    assert kept
    assert in_closed + kept == len(final)


def assert_changes_played_back_give_the_table(warehouse: Place, spec: Spec, name: str) -> None:
    """As a reader of Delta's change data would: each row inserted, replaced or taken away, in their order."""
    keys = ("window_start", "window_end", "k")
    stands: dict[tuple[object, ...], list[Any]] = {}
    changes = [row for row in table(warehouse, spec, f"history/{name}") if row["_change_type"] != PREIMAGE]
    for row in sorted(changes, key=lambda row: (row["_batch_id"], row["_revision"], row["_change_type"] == DELETE)):
        key, shown = tuple(row[name] for name in keys), [row[name] for name in SHOWN]
        if row["_change_type"] == DELETE:
            assert stands.pop(key) == shown
            assert name != "visits" or len(row["_late_events"]) == 1, "the event that made the session another"
        else:
            assert (key in stands) == (row["_change_type"] == "update_postimage")
            stands[key] = shown
    assert (name != "revised") == any(row["_change_type"] == DELETE for row in changes)
    current = table(warehouse, spec, f"windows/{name}")
    assert {tuple(row[name] for name in keys): [row[name] for name in SHOWN] for row in current} == stands


def assert_history_leads_to_the_last_revisions(warehouse: Place, spec: Spec) -> None:
    """Each change replaces what the one before made; its events are the ones that are new in it."""
    keys = ("window_start", "window_end", "k")
    stands: dict[tuple[object, ...], dict[str, Any]] = {}
    rows = table(warehouse, spec, "history/revised")
    replaced = {(*[row[k] for k in keys], row["_revision"]): row for row in rows if row["_change_type"] == PREIMAGE}
    results = sorted((row for row in rows if row["_change_type"] != PREIMAGE), key=lambda row: row["_revision"])
    for row in results:
        key = tuple(row[name] for name in keys)
        before = stands.get(key)
        assert row["_change_type"] == ("insert" if before is None else "update_postimage")
        assert row["_revision"] == (0 if before is None else before["_revision"] + 1)
        if before is not None:
            old = replaced.pop((*key, before["_revision"]))
            assert {name: old[name] for name in SHOWN} == {name: before[name] for name in SHOWN}
            assert len(row["_late_events"]) == row["n"] - before["n"]
        stands[key] = row
    assert not replaced
    assert any(row["_late_events"] for row in results)
    current = {tuple(row[name] for name in keys): row for row in table(warehouse, spec, "windows/revised")}
    assert {key: [row[name] for name in SHOWN] for key, row in current.items()} == {
        key: [row[name] for name in SHOWN] for key, row in stands.items()
    }
