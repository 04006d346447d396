"""Rebuilds of a pipeline: its derived tables made anew from the log, and the jobs that do it.

Here: the Spark that it needs, what it reports to Dagster, the jobs. Not here: the rebuild itself (assets/rebuild/),
the command's words (commands/operating.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import dagster as dg
from pydantic import Field

from tidemark.assets.day_partitions import show_days_held
from tidemark.assets.display import metadata as show
from tidemark.assets.rebuild.rejudging import Decision, rejudge
from tidemark.assets.rebuild.shadow import ensure_can_begin
from tidemark.assets.rebuild.switch import rebuild
from tidemark.assets.rebuild.windows import asked_by_spec
from tidemark.assets.runs import RETRIES, job_of, key, lasts
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, RebuildInput
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import SparkChoice, choose_spark, open_session
from tidemark.resources.workspace import SpecFile, Workspace, silent
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.problems import did_you_mean
from tidemark.timeops.spec import Spec


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild.

    Attributes:
        commit: The batch that switched the tables.
        rows: Rows that each table has now.
        taken: Records that were taken out of the log, or back into it.
    """

    commit: Commit
    rows: Mapping[str, int]
    taken: int = 0


def rebuild_pipeline(
    file: SpecFile,
    settings: Settings,
    reason: str | None = None,
    windows: Sequence[str] = (),
    decision: Decision | None = None,
    *,
    to_spec: bool = False,
    instance: dg.DagsterInstance,
    choice: SparkChoice | None = None,
    run_id: str | None = None,
    tell: Callable[[str], None] = silent,
) -> Rebuilt | None:
    """Make all derived tables of a pipeline anew from its log; return None if there was nothing to do.

    With `windows`, only these and the windows over them are made anew. With `to_spec`, it is no more than the spec
    asks for. A decision takes records out of the log, or back into it. `batches` and `log_control` keep the reason.

    Raises:
        TidemarkError: Anything prevents it, see `assets.rebuild.switch.rebuild`.
    """
    names = chosen_windows(file.spec, windows) if windows else ()
    session = partial(open_session, choice or choose_spark(settings, file.inputs), tell)
    workspace = Workspace(file, settings.warehouse, session, tell=tell)
    if to_spec:
        ensure_can_begin(workspace)
        asked = asked_by_spec(workspace)
        if asked is None:
            return None
        names = asked
        tell(f"the spec asks for the past of {' and '.join(asked) or 'all tables'}")
    own_id, taken = run_id or str(uuid4()), 0
    if decision is None:
        commit = rebuild(workspace, own_id, reason, names)
    else:
        commit, taken = rejudge(workspace, own_id, decision)
    spec, lake = file.spec, workspace.lake
    anew = RebuildInput.of(commit.plan).windows
    show_days_held(instance, workspace, anew if names else None)
    ordered = [tables.ORDERED_EVENTS] if spec.outputs.ordered_events and not names else []
    made = [*ordered, tables.DEAD_LETTERS]
    for name in (*made, tables.BATCHES):
        about = {**show.table_rows(lake, name), "batch": show.number_of(commit.plan)}
        instance.report_runless_asset_event(dg.AssetMaterialization(key(spec, name), metadata=about))
    results = [name for name in workspace.result_tables if not names or name.partition("/")[2] in anew]
    rows = {name: lake.row_count(name, commit.table_versions[name]) for name in (*made, *results)}
    return Rebuilt(commit, rows, taken)


def chosen_windows(spec: Spec, names: Sequence[str]) -> tuple[str, ...]:
    """Return the windows that are asked for; all if none is named.

    Raises:
        SpecError: The spec has no windows, or none of this name.
    """
    known = tuple(window.name for window in spec.windows)
    if not known:
        raise SpecError(f"{spec.name} has no windows, and only windows have days", expected="a spec with windows")
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise SpecError(f"{spec.name} has no window `{name}`", expected=f"one of {', '.join(known)}", remedy=near)
    return tuple(dict.fromkeys(names)) or known


class RebuildSettings(dg.Config):
    """Run config of the job."""

    reason: str | None = Field(None, description="Why; kept in `batches` and `log_control`.")
    windows: list[str] = Field([], description="These windows alone, and those over them; by default all tables.")
    to_spec: bool = Field(False, description="Only what the spec asks for: some windows, all tables, or nothing.")


class RejudgeSettings(dg.Config):
    """Run config of the job that takes records out of the log, or back into it: one of three."""

    exclude: list[int] = Field([], description="Take out the records with these `_arrival_seq`.")
    where: str | None = Field(None, description="Take out the records that meet a condition, as of `tidemark show`.")
    include: list[int] = Field([], description="Take records back that were taken out.")
    reason: str = Field(description="Why; kept in `log_control` and `batches`.")

    def decision(self) -> Decision:
        """Return what is asked for.

        Raises:
            SpecError: None of the three, or several.
        """
        if sum(map(bool, (self.exclude, self.where, self.include))) != 1 or not self.reason.strip():
            raise SpecError(
                "The run config has none or several of `exclude`, `where` and `include`, or no `reason`",
                expected="one of the three, and why",
                remedy='write `{exclude: [4711], reason: "its clock lied"}`',
            )
        return Decision(self.reason.strip(), self.exclude, self.where, self.include)


def rebuild_jobs(file: SpecFile, settings: Settings, choice: SparkChoice) -> list[dg.JobDefinition]:
    """Build the jobs that judge the log of a pipeline anew, as it is and without some records.

    They are in no pool, as live runs go on beside them.
    """
    name = file.spec.name

    @dg.op(name=f"{name}__rebuild", description="Makes the derived tables anew from the log.", retry_policy=RETRIES)
    def make_anew(context: dg.OpExecutionContext, config: RebuildSettings) -> None:
        _rebuild_in_run(file, settings, choice, context, config)

    @dg.op(name=f"{name}__rejudge", description="Judges the log anew without some records.", retry_policy=RETRIES)
    def judge_anew(context: dg.OpExecutionContext, config: RejudgeSettings) -> None:
        _rebuild_in_run(file, settings, choice, context, config)

    rebuilt = f"Makes the derived tables of {name} anew from its log, under the spec as it is now."
    rejudged = f"Judges the log of {name} anew without some records: `exclude`, `where` or `include`, and why."
    return [job_of(make_anew, f"{name}_rebuild", rebuilt), job_of(judge_anew, f"{name}_rejudge", rejudged)]


def _rebuild_in_run(
    file: SpecFile,
    settings: Settings,
    choice: SparkChoice,
    context: dg.OpExecutionContext,
    config: RebuildSettings | RejudgeSettings,
) -> None:
    """Rebuild in a run of Dagster, which tries again only what may be another time otherwise."""
    instance, tell = context.instance, context.log.info
    in_run = partial(
        rebuild_pipeline, file, settings, instance=instance, choice=choice, run_id=context.run_id, tell=tell
    )
    try:
        if isinstance(config, RejudgeSettings):
            decision = config.decision()
            done = in_run(decision.reason, decision=decision)
        else:
            done = in_run(config.reason, config.windows, to_spec=config.to_spec)
    except TidemarkError as error:
        if not lasts(error):
            raise
        raise dg.Failure(str(error), allow_retries=False) from error
    if done is None:
        context.log.info("nothing needs the past")
        return
    rows = {f"rows of {table}": n for table, n in done.rows.items()}
    taken = {"records taken out or back": done.taken} if done.taken else {}
    about = {"batch": done.commit.batch_id, "records": done.commit.plan.end_seq or 0}
    context.add_output_metadata({**about, **taken, **rows})
