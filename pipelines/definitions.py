"""The Dagster code location: every spec becomes a group of assets, its checks, a job, and what launches it.

Here: wiring; and a spec that is wrong as an asset whose check fails with the message. Not here: what an asset does
(assets/), where things are (resources/settings.py).
"""

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from os import PathLike
from pathlib import Path

import dagster
from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    AssetSelection,
    AssetSpec,
    DefaultSensorStatus,
    Definitions,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    asset_check,
    define_asset_job,
    get_dagster_logger,
    in_process_executor,
    sensor,
)
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from tidemark.assets.catalog.asset_checks import live_checks
from tidemark.assets.catalog.asset_specs import Shown, Translate, asset_specs
from tidemark.assets.catalog.runs import SPARK, LiveRun, OpenWorkspace, StageContext, process_of_run
from tidemark.assets.live import BATCH, NOTHING_ASKED, live_assets
from tidemark.assets.rebuild.day_assets import window_assets
from tidemark.pipelines.code_location.launching import live_schedule, live_sensor, night_schedule
from tidemark.pipelines.code_location.questions import audit_job, question_job
from tidemark.pipelines.code_location.rebuilding import rebuild_jobs
from tidemark.pipelines.code_location.upkeep import upkeep_job
from tidemark.pipelines.code_location.watches import batch_watch
from tidemark.pipelines.command_line import SPECS
from tidemark.pipelines.spec_files import WrongSpec, read_specs
from tidemark.resources.opening import Memory
from tidemark.resources.places.place import place_of
from tidemark.resources.settings import Settings, from_environment, note_code_location
from tidemark.resources.spark.choice import SparkChoice, choose_spark, open_session
from tidemark.resources.workspace import Acceptance, SpecFile, Workspace, silent
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.printable import printable
from tidemark.timeops.spec.automation import OnNewInput

CHECK = "is_a_pipeline"
TELLER = logging.getLogger("tidemark")
"""Logs what happens in addition to a run and does not fail it."""
_HOLDS = "The file is a valid spec and the only one of its name; otherwise its pipeline has no assets here."
_MENDED = "The spec is valid now: reload the code location to get its pipeline."
_LOOK_EVERY_S = 30

Look = Callable[[], Sequence[WrongSpec]]
"""Finds what is wrong now."""


def definitions_of_wrong(wrong: Sequence[WrongSpec], look: Look, translate: Translate | None = None) -> Definitions:
    """Build an asset for each file that is wrong at first, in the group of its pipeline, with a check that says why.

    Checks and sensor look again, so that they report the files as they are.
    """
    assets = {
        spec.path: _translated(_asset(spec, key), translate) for spec, key in zip(wrong, _keys(wrong), strict=True)
    }
    by_pipeline: dict[str, dict[Path, AssetKey]] = defaultdict(dict)
    for spec in wrong:
        by_pipeline[spec.pipeline][spec.path] = assets[spec.path].key
    return Definitions(
        assets=[*assets.values()],
        asset_checks=[_check(spec, assets[spec.path].key, look) for spec in wrong],
        sensors=[_sensor(name, keys, look) for name, keys in by_pipeline.items()],
    )


def _translated(spec: AssetSpec, translate: Translate | None) -> AssetSpec:
    """Return the asset of a wrong spec as `translate` shows it.

    What a project wrote for its tables may not suit a file: then the asset stays as it is, so that a wrong spec keeps
    no other from being loaded.
    """
    with suppress(Exception):
        return translate(spec) if translate else spec
    return spec


def _keys(wrong: Sequence[WrongSpec]) -> list[AssetKey]:
    """Return a key for each, of letters that Dagster takes: the pipeline and the file, such as `shop/shop_yaml`."""
    keys: list[AssetKey] = []
    for spec in wrong:
        name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in spec.path.name)
        taken = sum(key.path[:2] == [spec.pipeline, name] for key in keys)
        keys.append(AssetKey([spec.pipeline, name, str(taken + 1)] if taken else [spec.pipeline, name]))
    return keys


def _asset(spec: WrongSpec, key: AssetKey) -> AssetSpec:
    about = (
        f"There is no pipeline for this spec.\n\n```text\n{spec.message}\n```\n\nOnce it is fixed, reload the code "
        "location."
    )
    return AssetSpec(
        key, group_name=spec.pipeline, description=about, kinds={"yaml"}, metadata={"file": str(spec.path)}
    )


def _check(spec: WrongSpec, key: AssetKey, look: Look) -> AssetChecksDefinition:
    @asset_check(asset=key, name=CHECK, description=_HOLDS)
    def is_a_pipeline() -> AssetCheckResult:
        message = _now(look).get(spec.path)
        return AssetCheckResult(
            passed=message is None, severity=AssetCheckSeverity.ERROR, description=message or _MENDED
        )

    return is_a_pipeline


def _sensor(pipeline: str, keys: dict[Path, AssetKey], look: Look) -> SensorDefinition:
    """Record the failed checks of the files about a pipeline, once for each state of them.

    Without it a check that has never run would stay unknown.
    """

    @sensor(
        name=f"{pipeline}_wrong_spec",
        minimum_interval_seconds=_LOOK_EVERY_S,
        default_status=DefaultSensorStatus.RUNNING,
        description=f"Reports what is wrong with the invalid specs of {pipeline}, at their assets.",
    )
    def wrong_specs(context: SensorEvaluationContext) -> SensorResult:
        now = {path: message for path, message in _now(look).items() if path in keys}
        messages = {"/".join(key.path): now.get(path) for path, key in keys.items()}
        reported = json.loads(context.cursor) if context.cursor else {}
        new = [
            AssetCheckEvaluation(
                asset_key=key,
                check_name=CHECK,
                passed=path not in now,
                severity=AssetCheckSeverity.ERROR,
                description=now.get(path, _MENDED),
            )
            for path, key in keys.items()
            if reported.get("/".join(key.path), "") != now.get(path)
        ]
        why = f"{len(now)} of {len(keys)} still wrong; {len(new)} newly reported"
        return SensorResult(skip_reason=why, asset_events=new, cursor=json.dumps(messages))

    return wrong_specs


def _now(look: Look) -> dict[Path, str]:
    return {spec.path: spec.message.replace("\n", "  \n") for spec in look()}  # as Markdown, line by line


Named = str | PathLike[str]


def definitions(
    specs: Named | Iterable[Named],
    warehouse: Named | None = None,
    *,
    spark: str | None = None,
    translate: Translate | None = None,
) -> Definitions:
    """Make Dagster definitions of pipelines, to merge into a project's.

    Each pipeline brings its assets, whose keys and group are the pipeline's name, and their checks. It also brings
    the jobs `<pipeline>_live`, `_maintain`, `_audit`, `_rebuild`, `_rejudge`, `_replay` and `_ask`, the schedule or
    sensor that its spec asks for, and two schedules that are off: `<pipeline>_maintain_nightly` and
    `<pipeline>_audit_weekly`. All share two resources: `tidemark_spark`, and `tidemark_batch`, which holds the
    input of a run. No Spark is started before a run needs it.

    Args:
        specs: A folder whose `*.yaml` are specs, a spec file, or several of these. A wrong spec becomes an asset
            with a check that fails with the message, so it does not keep the others from being loaded.
        warehouse: The folder of all tables, or its URL in a store, such as `s3://bucket/warehouse`; by default
            `TIDEMARK_WAREHOUSE`, else `./warehouse`.
        spark: The Spark that computes, such as `local[4]` or `sc://host:15002`; by default `TIDEMARK_SPARK`, else a
            server of `tidemark serve` that answers, else the process of the run.
        translate: Returns what the catalog shows of an asset, from what it would show: an `AssetSpec` with another
            key, group, owners, tags, kinds, description, metadata or automation condition. Upstream assets are added
            to the ones it has. Commands in the same `DAGSTER_HOME` report under these keys, too.

    Raises:
        SpecError: `specs` is empty, or `translate` returns one key for two assets, or changes the days of a window.

    Examples:
        >>> import dagster as dg
        >>> import tidemark as tm
        >>> defs = dg.Definitions.merge(mine, tm.definitions(specs="specs", warehouse="/srv/warehouse"))
    """
    places = [specs] if isinstance(specs, str | PathLike) else list(specs)
    if not places:
        raise SpecError("`specs` names no place", expected="a folder of specs, a spec file, or several of these")
    paths = [Path(place).absolute() for place in places]
    from_env = from_environment(paths[0], warehouse=place_of(warehouse) if warehouse is not None else None)
    settings = replace(from_env, spark=spark or from_env.spark)

    if not any(isinstance(handler, _ToLogOfRun) for handler in TELLER.handlers):
        TELLER.addHandler(_ToLogOfRun(logging.WARNING))
    specs_read = read_specs(paths)
    shown = asset_specs(specs_read.files, settings.warehouse, translate)
    _ensure_distinct_keys(shown)
    asset_keys = {file.spec.name: file.asset_keys for file, _ in shown.pipelines}
    note_code_location(settings.dagster_home, asset_keys, settings.warehouse)
    good = build_definitions(settings, specs_read.files, shown=shown, tell=_to_log_of_run)
    if not specs_read.wrong:
        return good
    return Definitions.merge(good, definitions_of_wrong(specs_read.wrong, lambda: read_specs(paths).wrong, translate))


def _ensure_distinct_keys(shown: Shown) -> None:
    """Check that no two assets have one key.

    Raises:
        SpecError: Two have.
    """
    taken: dict[AssetKey, str] = {}
    for file, assets in shown.pipelines:
        for name, spec in assets.items():
            here = f"{file.spec.name}: {name}"
            if (other := taken.setdefault(spec.key, here)) != here:
                raise SpecError(
                    f"The key `{spec.key.to_user_string()}` belongs to two assets, {other} and {here}",
                    expected="a separate key for each asset",
                    remedy='let it hold both, such as `key: "lake/{{ pipeline }}/{{ table }}"`, or set `key_prefix`',
                )


def build_definitions(
    settings: Settings,
    files: Sequence[SpecFile],
    choice: SparkChoice | None = None,
    *,
    shown: Shown | None = None,
    accepted: Acceptance | None = None,
    tell: Callable[[str], None] = silent,
    memory: Memory | None = None,
) -> Definitions:
    """Return definitions of pipelines whose specs were read, with the keys that these have in Dagster.

    By default the settings say where they compute. `shown` are their assets, where the project translates them;
    `accepted` is a batch to commit although a blocking check fails; `memory` is what was read of the tables, where
    there is one pipeline.
    """
    shown = shown or asset_specs(files, settings.warehouse)
    choice = choice or choose_spark(settings, [path for file, _ in shown.pipelines for path in file.inputs])
    parts = [Definitions(assets=shown.places)]
    for file, assets in shown.pipelines:
        look = Workspace(file, settings.warehouse, memory=memory or Memory())  # without Spark
        run = LiveRun(_opener(look, choice, accepted, tell))
        parts.append(_definitions_of(look, assets, settings, choice, run))
    resources = {SPARK: _spark_resource(tuple(sorted(choice.config.items()))), BATCH: NOTHING_ASKED}
    return Definitions.merge(*parts, Definitions(resources=resources))


def _definitions_of(
    looks: Workspace, assets: Mapping[str, AssetSpec], settings: Settings, choice: SparkChoice, run: LiveRun
) -> Definitions:
    """Return all definitions of one pipeline but the resource."""
    file, spec = looks.file, looks.spec
    live = live_assets(file, assets, run)
    job = define_asset_job(
        job_name(file),
        selection=AssetSelection.assets(*live),
        description=f"One micro-batch of {spec.name}: new input, time adjustment, windows, checks, commit.",
        executor_def=in_process_executor,  # one Spark session for all steps of a run
    )
    upkeep, audit = upkeep_job(file, settings), audit_job(file, settings, choice)
    schedule = spec.schedule
    schedules = [live_schedule(looks, job.name)] if isinstance(schedule, str) else []
    schedules.append(night_schedule(looks, upkeep.name, f"{upkeep.name}_nightly"))
    schedules.append(night_schedule(looks, audit.name, f"{audit.name}_weekly", weekday="sun"))
    return Definitions(
        assets=[*live, *window_assets(file, assets, run.workspace)],
        asset_checks=live_checks(file, run),
        jobs=[
            job,
            upkeep,
            audit,
            *rebuild_jobs(file, settings, choice),
            question_job(file, settings, choice),
        ],
        schedules=schedules,
        sensors=[live_sensor(looks, job.name, schedule)] if isinstance(schedule, OnNewInput) else [],
    )


def job_name(file: SpecFile) -> str:
    """Name of a pipeline's live job."""
    return f"{file.spec.name}_live"


@cache
def _spark_resource(config: tuple[tuple[str, str], ...]) -> LazyPySparkResource:
    """Return one object for each choice: Dagster merges a resource's definitions only if they are one object."""
    return LazyPySparkResource(spark_config=dict(config))


def _opener(
    looks: Workspace,
    choice: SparkChoice,
    accepted: Acceptance | None,
    tell: Callable[[str], None],
) -> OpenWorkspace:
    opened_with: list[tuple[StageContext, LazyPySparkResource]] = []
    sessions: list[SparkSession] = []

    def session() -> SparkSession:
        if not sessions:
            open_session(choice, tell)
            sessions.append(opened_with[0][1].spark_session)
        return sessions[0]

    def process() -> int:
        return process_of_run(opened_with[0][0]).pid

    watch = batch_watch(lambda: opened_with[0][0].run.job_name)
    workspace = replace(looks, session=session, process=process, accepted=accepted, tell=tell, watch=watch)

    def opened(context: StageContext, spark: LazyPySparkResource) -> Workspace:
        opened_with[:] = [(context, spark)]
        return workspace

    return opened


@dagster.definitions
def defs() -> Definitions:
    """Return the definitions for `workspace.yaml`: the environment says which specs and warehouse."""
    settings = from_environment(SPECS)
    here = Definitions(executor=in_process_executor)  # also for runs of assets that a person chooses
    return Definitions.merge(definitions(settings.specs, str(settings.warehouse)), here)


def _to_log_of_run(doing: str) -> None:
    """Send progress to the log of the run, among Dagster's own lines."""
    get_dagster_logger().info(printable(doing))


class _ToLogOfRun(logging.Handler):
    """Sends warnings about what happens in addition to a run, such as lineage that is not taken, to its log."""

    def emit(self, record: logging.LogRecord) -> None:
        get_dagster_logger().warning(printable(record.getMessage()))
