"""Upkeep of pipelines as a whole: tables, pages of checks, Dagster's runs; by hand and as a job in Dagster.

Here: wiring. Not here: the command's words (commands/maintain.py), what is done to tables (assets/upkeep.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from dagster import (
    Config,
    DagsterInstance,
    JobDefinition,
    OpExecutionContext,
    in_process_executor,
    job,
    op,
)
from pydantic import Field

from tidemark.assets.upkeep import BY_HAND, RETAIN, Upkeep, forget_runs, keep_up
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace, silent
from tidemark.timeops.durations import parse_duration


@dataclass(frozen=True)
class Done:
    """What the upkeep of a pipeline did.

    Attributes:
        lake: To tables and pages.
        runs: How many of Dagster's runs were deleted.
    """

    lake: Upkeep
    runs: int

    @property
    def files(self) -> tuple[int, int]:
        """Data files of the latest versions, before and after."""
        return sum(one.before.files for one in self.lake.tables), sum(one.after.files for one in self.lake.tables)

    @property
    def freed(self) -> int:
        """Bytes of the data files that were deleted."""
        return sum(one.freed for one in self.lake.tables)


def maintain(
    file: SpecFile,
    settings: Settings,
    retain: timedelta = RETAIN,
    *,
    instance: DagsterInstance,
    tell: Callable[[str], None] = silent,
) -> Done:
    """Looks after a pipeline, also beside a run of it.

    Args:
        file: The spec.
        settings: Where things are.
        retain: For how long commits stay readable, and runs and pages are kept.
        instance: Where Dagster records runs.
        tell: Called with a line on what is being done.

    Raises:
        TidemarkError: Whatever stands in the way.
    """
    workspace = Workspace(file, settings.warehouse, tell=tell)
    lake = keep_up(workspace, retain)
    tell("looking after Dagster's runs")
    jobs = (f"{file.spec.name}_live", upkeep_name(file), BY_HAND)
    before = workspace.clock.now() - retain
    return Done(lake, forget_runs(file.spec, instance, jobs, before, settings.dagster_home))


def upkeep_name(file: SpecFile) -> str:
    """Name of the job that looks after a pipeline."""
    return f"{file.spec.name}_maintain"


class UpkeepSettings(Config):
    """Run config of the job."""

    retain: str = Field("7 days", description="For how long commits stay readable, and runs and pages are kept.")


def upkeep_job(file: SpecFile, settings: Settings) -> JobDefinition:
    """The job that looks after a pipeline. It is in no pool, as it goes on beside the runs of the pipeline."""
    name = file.spec.name

    @op(name=f"{name}__maintain", description="Looks after the tables, the pages of checks and the runs.")
    def look_after(context: OpExecutionContext, config: UpkeepSettings) -> None:
        retain = parse_duration(config.retain)
        done = maintain(file, settings, retain, instance=context.instance, tell=context.log.info)
        before, after = done.files
        numbers = {"files_before": before, "files": after, "bytes_freed": done.freed}
        context.add_output_metadata({**numbers, "pages_deleted": done.lake.pages, "runs_deleted": done.runs})

    @job(
        name=upkeep_name(file),
        executor_def=in_process_executor,
        description=f"Looks after {name}: joins small files, deletes old files, pages and runs. Beside its runs.",
    )
    def upkeep() -> None:
        look_after()

    return upkeep
