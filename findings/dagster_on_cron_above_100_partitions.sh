#!/usr/bin/env bash
# Dagster: below more than 100 partitions, on_cron takes updates from before the tick for updates after it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dagster==1.13.27
"$folder/venv/bin/python" - <<'PYTHON'
from datetime import UTC, datetime, timedelta

import dagster as dg

print("dagster", dg.__version__)


def requested(count: int) -> int:
    """Return how many of `count` partitions are requested at a tick, where all above were written before it."""
    keys = dg.StaticPartitionsDefinition([f"key{number:03}" for number in range(count)])

    @dg.asset(partitions_def=keys)
    def above() -> None: ...

    @dg.asset(partitions_def=keys, deps=[above], automation_condition=dg.AutomationCondition.on_cron("0 0 * * *"))
    def below() -> None: ...

    with dg.DagsterInstance.ephemeral() as instance:
        defs, now = dg.Definitions(assets=[above, below]), datetime.now(UTC)
        first = dg.evaluate_automation_conditions(defs=defs, instance=instance, evaluation_time=now - timedelta(minutes=1))
        for key in keys.get_partition_keys():
            instance.report_runless_asset_event(dg.AssetMaterialization("above", partition=key))
        later = dg.evaluate_automation_conditions(
            defs=defs, instance=instance, cursor=first.cursor, evaluation_time=now + timedelta(days=2)
        )
        return first.total_requested + later.total_requested


found = {count: requested(count) for count in (100, 101)}
for count, number in found.items():
    print(f"{count} partitions above, all written before the tick: {number} requested at the tick")
raise SystemExit(0 if found == {100: 0, 101: 101} else 1)
PYTHON
