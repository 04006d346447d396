"""Rebuilds of a pipeline: its derived tables computed again from the log, by jobs.

Here: the jobs, and the Spark that they need. Not here: the rebuild itself and its report to Dagster
(assets/rebuild/), running a job for a person who waits (pipelines/running/execution.py), the command's words
(pipelines/commands/operating.py).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import dagster as dg
from pydantic import Field

from tidemark.assets.catalog.display.metadata import Metadata
from tidemark.assets.catalog.runs import RETRIES, job_of, say_who_runs, told_to_dagster, under_run
from tidemark.assets.log.exclusions import numbers_in
from tidemark.assets.rebuild.decisions.forgetting import plan_forgetting
from tidemark.assets.rebuild.decisions.rejudging import plan_rejudging
from tidemark.assets.rebuild.decisions.replaying import ReplayPlan, plan_replay
from tidemark.assets.rebuild.differences import WindowDifference, window_differences
from tidemark.assets.rebuild.plan import RebuildPlan, plan_rebuild, plan_to_spec
from tidemark.assets.rebuild.report import Telling, of_decision
from tidemark.assets.rebuild.switch import rebuild
from tidemark.pipelines.code_location.downstream import to_compute_again
from tidemark.pipelines.code_location.watches import alert_look, batch_watch
from tidemark.resources.batches.plans import Commit
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import SparkChoice, open_session
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import did_you_mean
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.scope import Scope

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild.

    Attributes:
        plan: What was carried out.
        commit: The batch that switched the tables.
        rows: Rows that each table has now.
        differs: What differs in the tables of windows after a decision on records; empty after other rebuilds.
    """

    plan: RebuildPlan
    commit: Commit
    rows: Mapping[str, int]
    differs: tuple[WindowDifference, ...] = ()


def chosen_windows(spec: Spec, names: Sequence[str]) -> tuple[str, ...]:
    """Return the windows that are asked for; all if none is named.

    Raises:
        SpecError: The spec has no windows, or none of this name.
    """
    window_names = tuple(window.name for window in spec.windows)
    if not window_names:
        remedy = "to compute joins again use `tidemark rebuild`" if spec.joins else ""
        fault = f"{spec.name} has no windows, and only windows have days"
        raise SpecError(fault, expected="a spec with windows", remedy=remedy)
    for name in names:
        if name not in window_names:
            near = did_you_mean(name, window_names)
            raise SpecError(
                f"{spec.name} has no window `{name}`", expected=f"one of {', '.join(window_names)}", remedy=near
            )
    return tuple(dict.fromkeys(names)) or window_names


class RebuildSettings(dg.Config):
    """Run config of the job that computes tables again."""

    job: ClassVar[str] = "rebuild"
    does: ClassVar[str] = "Computes the derived tables of {name} again from its log, under the spec as it is now."
    reason: str | None = Field(default=None, description="Why; kept in `batches` and `log_control`.")
    windows: list[str] = Field(
        default=[], description="These windows alone, and the ones over them; by default all tables."
    )
    to_spec: bool = Field(
        default=False, description="Only what the spec asks for: some windows, all tables, or nothing."
    )
    unreadable: list[str] = Field(
        default=[], description="Tables that an audit found unreadable: they are replaced without being read."
    )

    def plan(self, workspace: Workspace) -> RebuildPlan:
        """Return the plan that is asked for.

        Raises:
            TidemarkError: It cannot be carried out, see `plan_rebuild`.
        """
        names = chosen_windows(workspace.spec, self.windows) if self.windows else ()
        if not self.to_spec:
            return plan_rebuild(workspace, Scope(names) if names else Scope.ALL, self.reason, self.unreadable)
        plan = plan_to_spec(workspace, self.reason)
        if plan.scope:
            workspace.tell(f"the spec asks for the past of {plan.scope}")
        return plan


class DecisionSettings(dg.Config):
    """Run config of a job that carries out a decision on records."""

    reason: str = Field(description="Why; kept in `log_control` and `batches`.")
    dry_run: bool = Field(default=False, description="Only show which results and days would differ; write nothing.")


class RejudgeSettings(DecisionSettings):
    """Run config of the job that takes records out of the log, or back into it: one of three."""

    job: ClassVar[str] = "rejudge"
    does: ClassVar[str] = (
        "Judges the log of {name} again without some records: `exclude`, `where` or `include`, and why."
    )
    exclude: list[int] = Field(default=[], description="Take out the records with these `_arrival_seq`.")
    where: str | None = Field(
        default=None, description="Take out the records that meet a condition, as of `tidemark show`."
    )
    include: list[int] = Field(default=[], description="Take records back that were taken out.")

    def plan(self, workspace: Workspace) -> RebuildPlan:
        """Return the plan that is asked for.

        Raises:
            SpecError: None of the three is, or several.
            TidemarkError: See `plan_rejudging`.
        """
        if sum(map(bool, (self.exclude, self.where, self.include))) != 1 or not self.reason.strip():
            raise SpecError(
                "The run config has none or several of `exclude`, `where` and `include`, or no `reason`",
                expected="one of the three, and why",
                remedy='write `{exclude: [4711], reason: "its clock lied"}`',
            )
        return plan_rejudging(
            workspace, self.reason.strip(), exclude=self.exclude, where=self.where, include=self.include
        )


class ReplaySettings(DecisionSettings):
    """Run config of the job that lets records in that are dead letters, or refuses them again."""

    job: ClassVar[str] = "replay"
    does: ClassVar[str] = (
        "Lets chosen records of {name} in that rules refused, as if they had come in time, or takes that back."
    )
    where: str = Field(description="The dead letters that meet a condition, as of `tidemark show SPEC dead_letters`.")
    undo: bool = Field(default=False, description="Refuse again what was let in.")
    corrected: list[str] = Field(
        default=[], description="Records as they should have been: JSON objects with `_arrival_seq` and the payload."
    )

    def plan(self, workspace: Workspace) -> RebuildPlan:
        """Return the plan that is asked for.

        Raises:
            SpecError: There is no `reason`.
            TidemarkError: See `plan_replay`.
        """
        if not self.reason.strip() or not self.where.strip():
            raise SpecError(
                "The run config has no `where`, or no `reason`",
                expected="a condition over `dead_letters`, and why",
                remedy='write `{where: "reason = \'out_of_order\'", reason: "the gateway was offline"}`',
            )
        return self.replay_plan(workspace).rebuild

    def replay_plan(self, workspace: Workspace) -> ReplayPlan:
        """Return the same, with what is known of the letters.

        Raises:
            SpecError: A corrected record is not a JSON object, or records are corrected that are refused again.
            TidemarkError: See `plan_replay`.
        """
        if self.undo and self.corrected:
            raise SpecError(
                "Records are corrected and refused again at once", expected="one of both", remedy="leave one out"
            )
        fixes = [_object(line, number) for number, line in enumerate(self.corrected, start=1)]
        return plan_replay(workspace, self.reason.strip(), self.where, undo=self.undo, fixes=fixes)


class ForgetSettings(DecisionSettings):
    """Run config of the run that forgets records. It names their rows: Dagster stores the config.

    There is no such job in Dagster: it would not delete what is left afterwards.
    """

    job: ClassVar[str] = "forget"
    does: ClassVar[str] = "Blanks records of {name}, and judges its log again without them."
    rows: list[list[int]] = Field(description="The first and the last `_arrival_seq` of each range of rows.")

    def plan(self, workspace: Workspace) -> RebuildPlan:
        """Return the plan that is asked for.

        Raises:
            TidemarkError: See `plan_forgetting`.
        """
        return plan_forgetting(workspace, self.reason.strip(), numbers_in(self.rows))


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise SpecError(
            f"Corrected record {number} is {line[:80]!r}",
            expected='a JSON object on one line, such as {"_arrival_seq": 12, "at": "2026-01-01T00:00:00Z"}',
        )
    return record


Asked = RebuildSettings | RejudgeSettings | ReplaySettings | ForgetSettings
IN_DAGSTER = (RebuildSettings, RejudgeSettings, ReplaySettings)
"""The jobs that Dagster shows, by their run config."""


def rebuild_jobs(
    file: SpecFile,
    settings: Settings,
    choice: SparkChoice,
    *,
    tell: Tell | None = None,
    keep: Callable[[Rebuilt], None] = lambda _rebuilt: None,
    kinds: Sequence[type[Asked]] = IN_DAGSTER,
) -> list[dg.JobDefinition]:
    """Build the jobs that judge the log of a pipeline again: as it is, without some records, or with refused ones.

    They are in no pool, as live runs continue meanwhile.

    Args:
        file: The spec.
        settings: Where the tables are.
        choice: The Spark that computes.
        tell: Reports the current work; by default to the log of the run.
        keep: Is given what was rebuilt.
        kinds: Which jobs.
    """

    def carry_out(context: dg.OpExecutionContext, request: Asked) -> Iterator[dg.Output[None]]:
        say_who_runs(context)
        session = partial(open_session, choice, tell or context.log.info)
        watch = batch_watch(lambda: context.job_name)
        workspace = Workspace(file, settings.warehouse, session, tell=tell or context.log.info, watch=watch)
        plan = request.plan(workspace)
        if not plan.scope:
            context.log.info("nothing to do")
            yield dg.Output(None)
        elif isinstance(request, DecisionSettings) and request.dry_run:
            differs = window_differences(workspace, plan.items)
            yield dg.Output(None, metadata={"dry_run": True, **_about(context, file, plan, differs)})
        else:
            telling = Telling(context.instance, under_run(context))
            rebuilt = rebuild(workspace, context.run_id, plan, telling=telling)
            alert_look(workspace)  # the checks of what it made come after its commit
            versions = rebuilt.commit.table_versions
            counts = {table: workspace.lake.row_count(table, versions[table]) for table in plan.tables}
            keep(Rebuilt(plan, rebuilt.commit, counts, rebuilt.differs))
            about = {"batch": rebuilt.commit.batch_id, "records": rebuilt.commit.plan.end_seq or 0}
            rows = {f"rows of {table}": n for table, n in counts.items()}
            yield dg.Output(None, metadata={**about, **_about(context, file, plan, rebuilt.differs), **rows})

    return [_job_for(kind, file.spec.name, carry_out) for kind in kinds]


def _about(
    context: dg.OpExecutionContext, file: SpecFile, plan: RebuildPlan, differs: Sequence[WindowDifference]
) -> Metadata:
    return {**to_compute_again(context, file, differs), **of_decision(plan, differs)}  # the page cuts what is long


def _job_for(
    settings: type[Asked], name: str, carry_out: Callable[[dg.OpExecutionContext, Asked], Iterator[dg.Output[None]]]
) -> dg.JobDefinition:
    does = settings.does.format(name=name)

    @dg.op(
        name=f"{name}__{settings.job}",
        description=does,
        config_schema=settings.to_fields_dict(),
        out=dg.Out(dg.Nothing),
        retry_policy=RETRIES,
    )
    @told_to_dagster
    def step(context: dg.OpExecutionContext) -> Iterator[dg.Output[None]]:
        yield from carry_out(context, settings(**context.op_config))

    return job_of(step, f"{name}_{settings.job}", does)
