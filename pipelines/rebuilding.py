"""Rebuilds of a pipeline: its derived tables made anew from the log, by jobs.

Here: the jobs, and the Spark that they need. Not here: the rebuild itself and what Dagster is told of it
(assets/rebuild/), running a job for a person who waits (runner.py), the command's words (commands/operating.py).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dagster as dg
from pydantic import Field

from tidemark.assets.rebuild.plan import RebuildPlan, plan_rebuild, plan_to_spec
from tidemark.assets.rebuild.rejudging import plan_rejudging
from tidemark.assets.rebuild.replaying import ReplayPlan, decides_on_letters, plan_replay
from tidemark.assets.rebuild.report import Telling
from tidemark.assets.rebuild.switch import rebuild
from tidemark.assets.runs import RETRIES, job_of, say_who_runs, told_to_dagster, under_run
from tidemark.pipelines.alert_watch import alert_look, alert_watch
from tidemark.pipelines.lineage_watch import lineage_watch
from tidemark.resources.batches.plans import Commit
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import SparkChoice, open_session
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.problems import did_you_mean
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
    """

    plan: RebuildPlan
    commit: Commit
    rows: Mapping[str, int]


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

    reason: str | None = Field(default=None, description="Why; kept in `batches` and `log_control`.")
    windows: list[str] = Field(
        default=[], description="These windows alone, and those over them; by default all tables."
    )
    to_spec: bool = Field(
        default=False, description="Only what the spec asks for: some windows, all tables, or nothing."
    )

    def plan(self, workspace: Workspace) -> RebuildPlan:
        """Return the plan that is asked for.

        Raises:
            TidemarkError: It cannot be carried out, see `plan_rebuild`.
        """
        names = chosen_windows(workspace.spec, self.windows) if self.windows else ()
        if not self.to_spec:
            return plan_rebuild(workspace, Scope(names) if names else Scope.ALL, self.reason)
        plan = plan_to_spec(workspace, self.reason)
        if plan.scope:
            workspace.tell(f"the spec asks for the past of {plan.scope}")
        return plan


class RejudgeSettings(dg.Config):
    """Run config of the job that takes records out of the log, or back into it: one of three."""

    exclude: list[int] = Field(default=[], description="Take out the records with these `_arrival_seq`.")
    where: str | None = Field(
        default=None, description="Take out the records that meet a condition, as of `tidemark show`."
    )
    include: list[int] = Field(default=[], description="Take records back that were taken out.")
    reason: str = Field(description="Why; kept in `log_control` and `batches`.")

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


class ReplaySettings(dg.Config):
    """Run config of the job that lets records in that are dead letters, or refuses them again."""

    where: str = Field(description="The dead letters that meet a condition, as of `tidemark show SPEC dead_letters`.")
    undo: bool = Field(default=False, description="Refuse again what was let in.")
    corrected: list[str] = Field(
        default=[], description="Records as they should have been: JSON objects with `_arrival_seq` and the payload."
    )
    reason: str = Field(description="Why; kept in `log_control` and `batches`.")

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


def _object(line: str, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise SpecError(
            f"Corrected record {number} is {line[:80]!r}",
            expected='a JSON object on one line, such as {"_arrival_seq": 12, "at": "2026-01-01T00:00:00Z"}',
        )
    return found


def rebuild_jobs(
    file: SpecFile,
    settings: Settings,
    choice: SparkChoice,
    *,
    tell: Tell | None = None,
    keep: Callable[[Rebuilt], None] = lambda _rebuilt: None,
) -> list[dg.JobDefinition]:
    """Build the jobs that judge the log of a pipeline again: as it is, without some records, or with refused ones.

    They are in no pool, as live runs go on beside them.

    Args:
        file: The spec.
        settings: Where the tables are.
        choice: The Spark that computes.
        tell: Reports the current work; by default to the log of the run.
        keep: Is given what was rebuilt.
    """
    name = file.spec.name

    def stage(
        context: dg.OpExecutionContext, config: RebuildSettings | RejudgeSettings | ReplaySettings
    ) -> Iterator[dg.Output[None]]:
        say_who_runs(context)
        session = partial(open_session, choice, tell or context.log.info)
        watch = alert_watch(lineage_watch(lambda: context.job_name))
        workspace = Workspace(file, settings.warehouse, session, tell=tell or context.log.info, watch=watch)
        telling = Telling(context.instance, under_run(context))
        plan = config.plan(workspace)
        commit = rebuild(workspace, context.run_id, plan, telling=telling) if plan.scope else None
        alert_look(workspace)  # the checks of what it made come after its commit
        if commit is None:
            context.log.info("nothing to do")
            yield dg.Output(None)
            return
        counts = {table: workspace.lake.row_count(table, commit.table_versions[table]) for table in plan.tables}
        keep(Rebuilt(plan, commit, counts))
        rows = {f"rows of {table}": n for table, n in counts.items()}
        what = "records let in or refused again" if decides_on_letters(plan) else "records taken out or back"
        taken = {what: plan.records} if plan.records else {}
        about = {"batch": commit.batch_id, "records": commit.plan.end_seq or 0}
        yield dg.Output(None, metadata={**about, **taken, **rows})

    @dg.op(
        name=f"{name}__rebuild",
        description="Makes the derived tables anew from the log.",
        out=dg.Out(dg.Nothing),
        retry_policy=RETRIES,
    )
    @told_to_dagster
    def make_anew(context: dg.OpExecutionContext, config: RebuildSettings) -> Iterator[dg.Output[None]]:
        yield from stage(context, config)

    @dg.op(
        name=f"{name}__rejudge",
        description="Judges the log anew without some records.",
        out=dg.Out(dg.Nothing),
        retry_policy=RETRIES,
    )
    @told_to_dagster
    def judge_anew(context: dg.OpExecutionContext, config: RejudgeSettings) -> Iterator[dg.Output[None]]:
        yield from stage(context, config)

    @dg.op(
        name=f"{name}__replay",
        description="Lets records in that are dead letters.",
        out=dg.Out(dg.Nothing),
        retry_policy=RETRIES,
    )
    @told_to_dagster
    def let_in(context: dg.OpExecutionContext, config: ReplaySettings) -> Iterator[dg.Output[None]]:
        yield from stage(context, config)

    rebuilt = f"Makes the derived tables of {name} anew from its log, under the spec as it is now."
    rejudged = f"Judges the log of {name} anew without some records: `exclude`, `where` or `include`, and why."
    replayed = (
        f"Lets chosen records of {name} in that rules refused, as if they had come in time, or takes that back."
    )
    return [
        job_of(make_anew, f"{name}_rebuild", rebuilt),
        job_of(judge_anew, f"{name}_rejudge", rejudged),
        job_of(let_in, f"{name}_replay", replayed),
    ]
