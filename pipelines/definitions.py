"""The Dagster code location: every spec becomes a group of assets, its checks, a job, and what launches it.

Here: wiring. Not here: what an asset does (assets/), where things are (resources/settings.py), how a spec that is
wrong is shown (wrong_specs.py).
"""

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

import dagster
from dagster import (
    AssetSelection,
    Definitions,
    define_asset_job,
    get_dagster_logger,
    in_process_executor,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from tidemark.assets.asset_checks import live_checks
from tidemark.assets.backfill.first_day import first_day
from tidemark.assets.backfill.partitions import window_assets
from tidemark.assets.live import LiveRun, OpenWorkspace, live_assets
from tidemark.pipelines import wrong_specs
from tidemark.pipelines.launching import live_schedule, live_sensor
from tidemark.pipelines.spec_files import SpecFolder, read_folder
from tidemark.pipelines.upkeep import upkeep_job
from tidemark.resources.settings import Settings, from_environment
from tidemark.resources.spark.choice import SparkChoice, choose_spark, open_session
from tidemark.resources.workspace import Acceptance, SpecFile, Workspace, silent
from tidemark.timeops.spec.automation import OnNewInput

SPECS = Path(__file__).parent / "specs"


def build_definitions(
    settings: Settings,
    files: Sequence[SpecFile] | None = None,
    choice: SparkChoice | None = None,
    *,
    accepted: Acceptance | None = None,
    tell: Callable[[str], None] = silent,
    since: date = date.max,
) -> Definitions:
    """Definitions of pipelines.

    Args:
        settings: Where things are.
        files: The specs; by default all of the settings' folder, and an asset with a failed check for each wrong one.
        choice: Where they compute; by default as the settings say.
        accepted: A batch to commit although a blocking check fails (`tidemark accept`).
        tell: Called with a line on what is being done.
        since: The day partitions begin with this day at the latest.
    """
    folder = read_folder(settings.specs) if files is None else SpecFolder(tuple(files), ())
    specs = folder.files
    choice = choice or choose_spark(settings)
    runs = [(file, LiveRun(_opener(file, settings, choice, accepted, tell))) for file in specs]
    jobs = {file.spec.name: live_job(file) for file in specs}
    looks = [
        (Workspace(file, settings.warehouse), jobs[file.spec.name]) for file in specs
    ]  # no Spark: they only look
    wrong = wrong_specs.definitions_of(folder.wrong, lambda: read_folder(settings.specs).wrong)
    good = Definitions(
        assets=[
            one
            for file, run in runs
            for one in [
                *live_assets(file.spec, run),
                *window_assets(file.spec, run.workspace, min(since, first_day(Workspace(file, settings.warehouse)))),
            ]
        ],
        asset_checks=[one for file, run in runs for one in live_checks(file.spec, run, settings.data_docs)],
        jobs=[*jobs.values(), *(upkeep_job(file, settings) for file in specs)],
        schedules=[live_schedule(at, job) for at, job in looks if isinstance(at.spec.schedule, str)],
        sensors=[
            live_sensor(at, job, given) for at, job in looks if isinstance(given := at.spec.schedule, OnNewInput)
        ],
        resources={"spark": LazyPySparkResource(spark_config=dict(choice.config))},
        executor=in_process_executor,  # one Spark session for all steps of a run
    )
    return Definitions.merge(good, wrong) if folder.wrong else good


def job_name(file: SpecFile) -> str:
    """Name of a pipeline's live job."""
    return f"{file.spec.name}_live"


def live_job(file: SpecFile) -> UnresolvedAssetJobDefinition:
    """The job that runs one micro-batch of a pipeline."""
    windows = AssetSelection.assets(*[[file.spec.name, "windows", w.name] for w in file.spec.windows])
    group = AssetSelection.groups(file.spec.name)
    return define_asset_job(
        job_name(file),
        selection=group - windows if file.spec.windows else group,
        description=f"One micro-batch of {file.spec.name}: new input, time adjustment, windows, checks, commit.",
    )


def _opener(
    file: SpecFile,
    settings: Settings,
    choice: SparkChoice,
    accepted: Acceptance | None,
    tell: Callable[[str], None],
) -> OpenWorkspace:
    given: list[LazyPySparkResource] = []
    sessions: list[SparkSession] = []

    def session() -> SparkSession:
        if not sessions:
            open_session(choice, tell)
            sessions.append(given[0].spark_session)
        return sessions[0]

    workspace = Workspace(file, settings.warehouse, session, accepted=accepted, tell=tell)

    def opened(spark: LazyPySparkResource) -> Workspace:
        given[:] = [spark]
        return workspace

    return opened


@dagster.definitions
def defs() -> Definitions:
    """What `workspace.yaml` loads: the specs folder and the warehouse of the process's environment."""
    return build_definitions(from_environment(SPECS), tell=_to_log_of_run)


def _to_log_of_run(doing: str) -> None:
    """What is being done goes to the log of the run, beside Dagster's own lines."""
    get_dagster_logger().info(doing)
