"""Dagster's instance of a process: the one at its home, or for a trial run one that ends with it.

Here: opening it. Not here: where the home is (resources/settings.py), whether a run counts there (the same file).
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, DagsterInvalidConfigError
from filelock import FileLock
from yaml import YAMLError

from tidemark.resources.settings import Settings, counted_warehouse, from_environment
from tidemark.timeops.errors import SpecError

_NO_CAPTURE = {
    "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
}


@contextmanager
def dagster_instance(
    settings: Settings, pipeline: str, *, tell: Callable[[str], None], captures_output: bool = False
) -> Iterator[DagsterInstance]:
    """Open Dagster's instance at the home of this process; for a trial run, a hidden one that ends with it.

    In a new home Dagster makes its databases. It fails if another process is making them, so one process at a time
    opens it. If the home cannot be written, its databases are elsewhere.

    Runs here write to the terminal of the person who waits for them. Dagster's capture of output, for its UI, starts
    processes that a Ctrl-C there reaches too, and that print tracebacks: it is for runs that Dagster launches.

    Args:
        settings: Names the home and the warehouse.
        pipeline: Name of the pipeline.
        tell: Gets a sentence about a trial run.
        captures_output: Take the instance with what it captures, as to delete that.

    Raises:
        SpecError: The `dagster.yaml` of the home is not a configuration.
    """
    home = settings.dagster_home
    with FileLock(home / ".tidemark.lock") if os.access(home, os.W_OK) else nullcontext():
        usual, here = from_environment(settings.specs).warehouse, settings.warehouse
        counted = counted_warehouse(home, pipeline, here, usual)
        is_trial = counted != str(here)
        overrides = {} if captures_output else _NO_CAPTURE
        instance = DagsterInstance.ephemeral() if is_trial else _opened(home, overrides)
    if is_trial:
        tell(f"{pipeline}: a trial run, which Dagster does not show: there the pipeline is in {counted}")
    with instance:
        yield instance


def _opened(home: Path, overrides: dict[str, Any]) -> DagsterInstance:
    """Open the instance of a home, with other settings than its `dagster.yaml` has."""
    try:
        return DagsterInstance.local_temp(str(home), overrides)  # the documented way to override a setting
    except (DagsterInvalidConfigError, YAMLError, IsADirectoryError) as error:
        fault = " ".join(str(error).split())
        raise SpecError(
            f"{home / 'dagster.yaml'} is not a valid configuration of Dagster: {fault[:300]}",
            expected="the settings of an instance, as `tidemark init` writes them",
            remedy="correct it, or move it away: the next run writes one",
        ) from error
