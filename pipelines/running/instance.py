"""Dagster's instance of a process: the one at its home, or for a trial run one that ends with it.

Here: opening it, at once or when it is needed; whether a look that found nothing to do needs it. Not here: where the
home is (resources/settings.py), whether a run counts there (the same file), the note on looks
(resources/last_look.py).

Importing Dagster takes longer than all else that a look without work does, so nothing here imports it before it opens
an instance.
"""
# ruff: noqa: PLC0415 - the reason is above

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from tidemark.resources.last_look import LastLook
from tidemark.resources.settings import Settings, counted_warehouse, from_environment
from tidemark.timeops.errors import SpecError

if TYPE_CHECKING:
    from dagster import DagsterInstance

_NO_CAPTURE = {
    "compute_logs": {"module": "dagster._core.storage.noop_compute_log_manager", "class": "NoOpComputeLogManager"}
}


class InstanceAtNeed:
    """An instance that is opened when it is first asked for.

    Attributes:
        is_trial: It ends with the process, and no person sees it.
        last_look: The note of its home on the last look; None for an instance that a program has opened itself, to
            which every look reports.
    """

    def __init__(
        self, opened: Callable[[], "DagsterInstance"], last_look: LastLook | None = None, *, is_trial: bool = False
    ) -> None:
        self.is_trial = is_trial
        self.last_look = last_look
        self._opened = opened
        self._instance: DagsterInstance | None = None

    def __call__(self) -> "DagsterInstance":
        """Return the instance.

        Raises:
            SpecError: The `dagster.yaml` of the home is not a configuration.
        """
        if self._instance is None:
            self._instance = self._opened()
        return self._instance

    def knows(self, look: str, now: datetime) -> bool:
        """Return whether a look without work has nothing new to report."""
        return self.is_trial or (self.last_look is not None and self.last_look.was(look, now))


@contextmanager
def instance_at_need(
    settings: Settings, pipeline: str, *, tell: Callable[[str], None], captures_output: bool = False
) -> Iterator[InstanceAtNeed]:
    """Find Dagster's instance at the home of this process; for a trial run, a hidden one that ends with it.

    In a new home Dagster makes its databases. It fails if another process is making them, so one process at a time
    opens it. If the home cannot be written, its databases are elsewhere.

    Runs here write to the terminal of the person who waits for them. Dagster's capture of output, for its UI, starts
    processes that a Ctrl-C there reaches too, and that print tracebacks: it is for runs that Dagster launches.

    Args:
        settings: Names the home and the warehouse.
        pipeline: Name of the pipeline.
        tell: Gets a sentence about a trial run.
        captures_output: Take the instance with what it captures, as to delete that.
    """
    home = settings.dagster_home
    with _alone(home):
        usual, here = from_environment(settings.specs).warehouse, settings.warehouse
        counted = counted_warehouse(home, pipeline, here, usual)
    is_trial = counted != str(here)
    if is_trial:
        tell(f"{pipeline}: a trial run, which Dagster does not show: there the pipeline is in {counted}")
    with ExitStack() as until_the_end:

        def opened() -> "DagsterInstance":
            from dagster import DagsterInstance

            from tidemark.assets.catalog.databases import databases_open

            until_the_end.enter_context(databases_open())
            with _alone(home):
                overrides = {} if captures_output else _NO_CAPTURE
                instance = DagsterInstance.ephemeral() if is_trial else _of_home(home, overrides)
            return until_the_end.enter_context(instance)

        yield InstanceAtNeed(opened, LastLook(home, pipeline), is_trial=is_trial)


@contextmanager
def dagster_instance(
    settings: Settings, pipeline: str, *, tell: Callable[[str], None], captures_output: bool = False
) -> "Iterator[DagsterInstance]":
    """Open the instance at once; arguments and errors as of `instance_at_need` and of what it yields."""
    with instance_at_need(settings, pipeline, tell=tell, captures_output=captures_output) as instance:
        yield instance()


def _alone(home: Path) -> AbstractContextManager[object]:
    """Let one process at a time work on a home; one that cannot be written needs no such order."""
    return FileLock(home / ".tidemark.lock") if os.access(home, os.W_OK) else nullcontext()


def _of_home(home: Path, overrides: dict[str, Any]) -> "DagsterInstance":
    """Open the instance of a home, with other settings than its `dagster.yaml` has."""
    from dagster import DagsterInstance, DagsterInvalidConfigError
    from yaml import YAMLError

    try:
        return DagsterInstance.local_temp(str(home), overrides)  # the documented way to override a setting
    except (DagsterInvalidConfigError, YAMLError, IsADirectoryError) as error:
        fault = " ".join(str(error).split())
        raise SpecError(
            f"{home / 'dagster.yaml'} is not a valid configuration of Dagster: {fault[:300]}",
            expected="the settings of an instance, as `tidemark init` writes them",
            remedy="correct it, or move it away: the next run writes one",
        ) from error
