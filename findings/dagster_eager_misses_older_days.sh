#!/usr/bin/env bash
# Dagster: eager() of a daily asset does not run for an older day that changed above it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dagster==1.13.27
"$folder/venv/bin/python" - <<'PYTHON'
from datetime import UTC, datetime, timedelta

import dagster as dg

print("dagster", dg.__version__)
EAGER = dg.AutomationCondition.eager()


def requested(condition: dg.AutomationCondition) -> list[str]:
    """Return the days that are requested after the oldest of three days was written again above."""
    days = dg.DailyPartitionsDefinition("2026-01-01", end_date="2026-01-04")

    @dg.asset(partitions_def=days)
    def above() -> None: ...

    @dg.asset(partitions_def=days, deps=[above], automation_condition=condition)
    def below() -> None: ...

    with dg.DagsterInstance.ephemeral() as instance:
        defs, now = dg.Definitions(assets=[above, below]), datetime(2026, 1, 4, 12, tzinfo=UTC)
        for name in ("above", "below"):
            for day in days.get_partition_keys():
                instance.report_runless_asset_event(dg.AssetMaterialization(name, partition=day))
        first = dg.evaluate_automation_conditions(defs=defs, instance=instance, evaluation_time=now)
        instance.report_runless_asset_event(dg.AssetMaterialization("above", partition="2026-01-01"))
        later = dg.evaluate_automation_conditions(
            defs=defs, instance=instance, cursor=first.cursor, evaluation_time=now + timedelta(minutes=1)
        )
        return sorted(later.get_requested_partitions(dg.AssetKey("below")))


eager = requested(EAGER)
without = requested(EAGER.without(dg.AutomationCondition.in_latest_time_window()))
print("2026-01-01 of 3 days changed; eager() requests", eager)
print("without in_latest_time_window() it requests", without)
raise SystemExit(0 if eager == [] and without == ["2026-01-01"] else 1)
PYTHON
