"""Dagster's launcher of runs, which `dagster.yaml` names: a run begins as a fork of the warm process.

Here: the launcher. Not here: the process that forks (pipelines/warm_process.py), what a run does
(pipelines/running/runner.py).

Without the process the launcher does as Dagster's default one: a new Python imports Dagster, Spark's client and the
checks before the first stage of each run, which takes seconds.
"""

import os
import signal
import socket
from functools import partial
from pathlib import Path

from dagster import DagsterInstance, DagsterRun, DefaultRunLauncher
from dagster._core.launcher import LaunchRunContext
from dagster._core.storage.tags import GRPC_INFO_TAG

from tidemark.assets.catalog.databases import keep_databases_open
from tidemark.pipelines.warm.asking import ask, environment, python_of


class WarmRunLauncher(DefaultRunLauncher):
    """Launches a run in a fork of the process that `tidemark serve` and `make ui` keep; else as Dagster does.

    The run has the environment and the working directory of the process that launches it, Dagster's daemon, as runs
    of `dg dev` have. A code location of another Python, or in a container, is launched as Dagster does.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        """Launch a run; errors as of Dagster's default launcher."""
        if not _is_forked(self._instance, context.dagster_run):
            super().launch_run(context)
        keep_databases_open()  # Dagster's daemon makes the next runs as well, with an event for each asset and check

    def terminate(self, run_id: str) -> bool:
        """Interrupt a run, so that its batch is undone; return whether it was there."""
        run, home = self._instance.get_run_by_id(run_id), _home(self._instance)
        if run is None or run.is_finished:
            return False
        if ask(home, {"has": run_id}):
            interrupt = partial(ask, home, {"interrupt": run_id})
        elif (fork := _left_alone(self._instance, run)) is not None:
            interrupt = partial(_interrupt, fork)
        else:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]  # of Dagster
        self._instance.report_run_canceling(run)  # before the interrupt: the run says itself that it is canceled
        return interrupt()


def _is_forked(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Return whether a process was forked for a run; else it has to be launched in another way."""
    origin = run.job_code_origin
    if origin is None or origin.repository_origin.container_image is not None:
        return False
    from dagster._grpc.types import ExecuteRunArgs  # noqa: PLC0415 - all who open the instance import this module
    from dagster._serdes import serialize_value  # noqa: PLC0415

    arguments = ExecuteRunArgs(origin, run.run_id, instance.get_ref(), set_exit_code_on_failure=True)
    request = {
        "fork": run.run_id,
        "arguments": serialize_value(arguments),
        **python_of(origin.repository_origin.executable_path),
        **environment(),
    }
    return ask(_home(instance), request)


def _left_alone(instance: DagsterInstance, run: DagsterRun) -> int | None:
    """Return the process of a run whose warm process has ended, as when `tidemark serve` was started again."""
    from tidemark.assets.catalog.runs import ATTENDED_TAG, PROCESS_TAG, own_tag  # noqa: PLC0415 - takes seconds
    from tidemark.resources.batches.plans import is_gone, owner_in  # noqa: PLC0415
    from tidemark.resources.settings import Clock  # noqa: PLC0415

    if GRPC_INFO_TAG in run.tags or ATTENDED_TAG in run.tags:  # Dagster launched it, or a person at a terminal
        return None
    process = owner_in(own_tag(instance, run, PROCESS_TAG) or "", run.run_id)
    if process is None or process.host != socket.gethostname():
        return None
    now = Clock().now()
    return None if is_gone(process, heartbeat_at=now, now=now) else process.pid


def _interrupt(process: int) -> bool:
    """Interrupt a process; return whether it was there, and may be interrupted by this user."""
    try:
        os.kill(process, signal.SIGINT)
    except OSError:
        return False
    return True


def _home(instance: DagsterInstance) -> Path:
    return Path(instance.root_directory)
