#!/usr/bin/env bash
# Dagster on SQLite: each run leaves two handlers that Python keeps until the process ends, through Alembic.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet dagster==1.13.27 alembic==1.20.1
export DAGSTER_HOME="$folder/home"
mkdir "$DAGSTER_HOME"
"$folder/venv/bin/python" - <<'PYTHON'
import atexit
import gc
import logging
from contextlib import ExitStack

import alembic
import dagster as dg


@dg.asset
def orders() -> None:
    """An asset without a value."""


def left_over() -> tuple[int, int]:
    """Return how many handlers Python will call at its end, and how many stacks of contexts are alive."""
    gc.collect()
    return atexit._ncallbacks(), sum(isinstance(thing, ExitStack) for thing in gc.get_objects())


print("dagster", dg.__version__, "alembic", alembic.__version__)
job = dg.Definitions(assets=[orders]).resolve_implicit_global_asset_job_def()
logging.disable(logging.CRITICAL)
with dg.DagsterInstance.get() as instance:
    instance.delete_run(job.execute_in_process(instance=instance).run_id)
    before = left_over()
    for _ in range(40):
        instance.delete_run(job.execute_in_process(instance=instance).run_id)
    after = left_over()
handlers, stacks = (now - then for now, then in zip(after, before, strict=True))
print("40 runs in one process, each deleted when it had ended:", handlers, "more exit handlers,", stacks, "more stacks")
raise SystemExit(0 if (handlers, stacks) == (80, 80) else 1)
PYTHON
