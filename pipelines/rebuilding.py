"""Rebuilds of a pipeline: its derived tables made anew from the log, by jobs.

Here: the jobs, and the Spark that they need. Not here: the rebuild itself and what Dagster is told of it
(assets/rebuild/), running a job for a person who waits (runner.py), the command's words (commands/operating.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import dagster as dg
from pydantic import Field

from tidemark.assets.rebuild.rejudging import Decision, rejudge
from tidemark.assets.rebuild.report import Telling
from tidemark.assets.rebuild.shadow import ensure_can_begin
from tidemark.assets.rebuild.switch import rebuild
from tidemark.assets.rebuild.windows import asked_by_spec
from tidemark.assets.runs import RETRIES, job_of, say_who_runs, told_to_dagster, under_run
from tidemark.pipelines.alert_watch import alert_look, alert_watch
from tidemark.pipelines.lineage_watch import lineage_watch
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, RebuildInput
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import SparkChoice, open_session
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.problems import did_you_mean
from tidemark.timeops.spec import Spec

Tell = Callable[[str], None]


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


def rebuild_jobs(
    file: SpecFile,
    settings: Settings,
    choice: SparkChoice,
    *,
    tell: Tell | None = None,
    keep: Callable[[Rebuilt], None] = lambda _rebuilt: None,
) -> list[dg.JobDefinition]:
    """Build the jobs that judge the log of a pipeline anew, as it is and without some records.

    They are in no pool, as live runs go on beside them.

    Args:
        file: The spec.
        settings: Where the tables are.
        choice: The Spark that computes.
        tell: Reports the current work; by default to the log of the run.
        keep: Is given what was rebuilt.
    """
    name = file.spec.name

    def stage(context: dg.OpExecutionContext, config: RebuildSettings | RejudgeSettings) -> Iterator[dg.Output[None]]:
        say_who_runs(context)
        session = partial(open_session, choice, tell or context.log.info)
        watch = alert_watch(lineage_watch(lambda: context.job_name))
        workspace = Workspace(file, settings.warehouse, session, tell=tell or context.log.info, watch=watch)
        telling = Telling(context.instance, under_run(context))
        done = _rebuilt(workspace, context.run_id, config, telling)
        alert_look(workspace)  # the checks of what it made come after its commit
        if done is None:
            context.log.info("nothing needs the past")
            yield dg.Output(None)
            return
        keep(done)
        rows = {f"rows of {table}": n for table, n in done.rows.items()}
        taken = {"records taken out or back": done.taken} if done.taken else {}
        about = {"batch": done.commit.batch_id, "records": done.commit.plan.end_seq or 0}
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

    rebuilt = f"Makes the derived tables of {name} anew from its log, under the spec as it is now."
    rejudged = f"Judges the log of {name} anew without some records: `exclude`, `where` or `include`, and why."
    return [job_of(make_anew, f"{name}_rebuild", rebuilt), job_of(judge_anew, f"{name}_rejudge", rejudged)]


def _rebuilt(
    workspace: Workspace, run_id: str, config: RebuildSettings | RejudgeSettings, telling: Telling
) -> Rebuilt | None:
    """Rebuild as a run config asks for; return None if there was nothing to do.

    Raises:
        TidemarkError: Anything prevents it, see `assets.rebuild.switch.rebuild`.
    """
    spec, names, taken = workspace.spec, tuple[str, ...](), 0
    if isinstance(config, RejudgeSettings):
        decision = config.decision()
        commit, taken = rejudge(workspace, run_id, decision, telling=telling)
    else:
        names = chosen_windows(spec, config.windows) if config.windows else ()
        if config.to_spec:
            ensure_can_begin(workspace)
            asked = asked_by_spec(workspace)
            if asked is None:
                return None
            names = asked
            workspace.tell(f"the spec asks for the past of {' and '.join(asked) or 'all tables'}")
        commit = rebuild(workspace, run_id, config.reason, names, telling=telling)
    anew = RebuildInput.of(commit.plan).windows
    ordered = [tables.ORDERED_EVENTS] if spec.outputs.ordered_events and not names else []
    results = [name for name in workspace.result_tables if not names or name.partition("/")[2] in anew]
    made = (*ordered, tables.DEAD_LETTERS, *results)
    rows = {name: workspace.lake.row_count(name, commit.table_versions[name]) for name in made}
    return Rebuilt(commit, rows, taken)
