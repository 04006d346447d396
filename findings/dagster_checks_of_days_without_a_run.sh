#!/usr/bin/env bash
# Dagster: without a run, the result of a check of a partition can be reported once, and no later one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dagster==1.13.27
"$folder/venv/bin/python" - <<'PYTHON'
import dagster as dg

print("dagster", dg.__version__)


def report(instance: dg.DagsterInstance, *, passed: bool, partition: str | None) -> str:
    """Report a result of a check without a run; return what became of it."""
    result = dg.AssetCheckEvaluation(asset_key=dg.AssetKey("day"), check_name="c", passed=passed, partition=partition)
    try:
        instance.report_runless_asset_event(result)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return "stored"


with dg.DagsterInstance.ephemeral() as instance:
    whole = [report(instance, passed=passed, partition=None) for passed in (False, True)]
    days = [report(instance, passed=passed, partition="2026-01-01") for passed in (False, True)]
print("twice for the whole asset:", whole)
print("twice for a partition:", days)
raise SystemExit(0 if whole == ["stored"] * 2 and days[0] == "stored" and "UNIQUE" in days[1] else 1)
PYTHON
