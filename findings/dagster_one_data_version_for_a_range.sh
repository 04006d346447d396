#!/usr/bin/env bash
# Dagster: a run over several partitions records one data version for all of them, so each counts as changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dagster==1.13.27
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import logging
from hashlib import sha256

import dagster as dg

print("dagster", dg.__version__)
logging.disable(logging.CRITICAL)
DAYS = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")
rows = {day: f"rows of {day}" for day in DAYS.get_partition_keys()}


@dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
def above(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    content = "".join(rows[day] for day in context.partition_keys)
    return dg.MaterializeResult(data_version=dg.DataVersion(sha256(content.encode()).hexdigest()[:8]))


CHANGED = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.data_version_changed())


@dg.asset(partitions_def=DAYS, deps=[above], automation_condition=CHANGED)
def below() -> None: ...


with dg.DagsterInstance.ephemeral() as instance:
    defs = dg.Definitions(assets=[above, below])
    job = defs.resolve_implicit_global_asset_job_def()
    whole = {"dagster/asset_partition_range_start": "2026-01-01", "dagster/asset_partition_range_end": "2026-01-03"}
    job.execute_in_process(instance=instance, asset_selection=[above.key], tags=whole)
    first = dg.evaluate_automation_conditions(defs=defs, instance=instance)
    rows["2026-01-02"] = "other rows"
    job.execute_in_process(instance=instance, asset_selection=[above.key], tags=whole)
    later = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=first.cursor)
    events = [record.asset_materialization for record in instance.fetch_materializations(above.key, limit=3).records]
    versions = {event.partition: event.tags["dagster/data_version"] for event in events}
    requested = sorted(later.get_requested_partitions(below.key))
print("rows of 2026-01-02 changed; data versions after a run over three days", dict(sorted(versions.items())))
print("data_version_changed() requests", requested)
raise SystemExit(0 if len({*versions.values()}) == 1 and len(requested) == 3 else 1)
PYTHON
