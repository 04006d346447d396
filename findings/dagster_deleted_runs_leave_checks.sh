#!/usr/bin/env bash
# Dagster: a run that is deleted leaves the results of its asset checks, with their metadata.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dagster==1.13.27
export DAGSTER_HOME="$folder/home"
mkdir "$DAGSTER_HOME"
"$folder/venv/bin/python" - <<'PYTHON'
import logging

import dagster as dg


@dg.asset
def orders() -> None:
    """An asset with one check."""


@dg.asset_check(asset=orders)
def is_full() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True, metadata={"note": "x" * 2_000})


print("dagster", dg.__version__)
check = dg.AssetCheckKey(dg.AssetKey("orders"), "is_full")
job = dg.Definitions(assets=[orders], asset_checks=[is_full]).resolve_implicit_global_asset_job_def()
logging.disable(logging.CRITICAL)
with dg.DagsterInstance.get() as instance:
    for _ in range(50):
        run_id = job.execute_in_process(instance=instance).run_id
        instance.delete_run(run_id)
    runs, events = len(instance.get_runs()), len(instance.all_logs(run_id))
    results = instance.event_log_storage.get_asset_check_execution_history(check, limit=100)
    said = {len(record.event.dagster_event.event_specific_data.metadata["note"].value) for record in results}
print("50 runs, each deleted when it had ended: runs", runs, "events of the last", events)
print("results of the check that are still there:", len(results), "with a note of", said, "characters")
raise SystemExit(0 if (runs, events, len(results), said) == (0, 0, 50, {2_000}) else 1)
PYTHON
