"""Dagster's launcher of runs, which `dagster.yaml` names: a run begins as a fork of the warm process.

Here: the launcher. Not here: the process that forks (warm_process.py), what a run does (running/runner.py).

Without the process the launcher does as Dagster's default one: a new Python imports Dagster, Spark's client and the
checks before the first stage of each run, which takes seconds.
"""

from pathlib import Path

from dagster import DagsterInstance, DagsterRun, DefaultRunLauncher
from dagster._core.launcher import LaunchRunContext

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
        run = self._instance.get_run_by_id(run_id)
        home = _home(self._instance)
        if run is None or run.is_finished or not ask(home, {"has": run_id}):
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]  # of Dagster
        self._instance.report_run_canceling(run)  # before the interrupt: the run says itself that it is canceled
        return ask(home, {"interrupt": run_id})


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


def _home(instance: DagsterInstance) -> Path:
    return Path(instance.root_directory)
