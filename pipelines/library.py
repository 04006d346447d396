"""The functions with which a program runs, plans and asks pipelines: `tm.run`, `tm.replay`, `tm.explain` and others.

Here: their arguments, and the process of the caller, which finds its Spark and its handlers of signals as they were.
Not here: what commands and these functions share (pipelines/running/runner.py, pipelines/running/execution.py,
pipelines/running/instance.py), `tm.status` (pipelines/views/status.py).
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import date, datetime
from os import PathLike
from pathlib import Path
from threading import RLock

from dagster import DagsterInstance

from tidemark.assets.questions.advice import advice_of
from tidemark.assets.questions.advice_answer import Advice
from tidemark.assets.questions.asking import MOST_EXPLAINED, Answer, Question
from tidemark.assets.questions.asking import explain as answer_to
from tidemark.assets.questions.what_if.simulation import simulation_of
from tidemark.assets.questions.what_if.simulation_answer import Simulation
from tidemark.assets.questions.what_if.spec_plan import SpecPlan, plan_of
from tidemark.assets.state.completeness import reached_by
from tidemark.pipelines.case_tests.capture import Captured
from tidemark.pipelines.case_tests.capture import capture as captured
from tidemark.pipelines.case_tests.suite import CasesReport, judge, read_cases
from tidemark.pipelines.code_location.questions import settings_with, stretch_of
from tidemark.pipelines.code_location.rebuilding import (
    RebuildSettings,
    Rebuilt,
    RejudgeSettings,
    ReplaySettings,
    chosen_windows,
)
from tidemark.pipelines.command_line import SPECS, pipeline_of
from tidemark.pipelines.operators.deciding import Rejudged, Replayed, corrected_lines, decide
from tidemark.pipelines.running.execution import BackfillReport, backfill_days, chosen_days, rebuild_pipeline
from tidemark.pipelines.running.instance import InstanceAtNeed, instance_at_need
from tidemark.pipelines.running.runner import RunOptions, RunReport, check_live, run_pipeline
from tidemark.pipelines.spec_files import as_shown, read_spec
from tidemark.resources.machine import listening
from tidemark.resources.settings import Clock, Settings, ensure_dagster_home, from_environment
from tidemark.resources.spark.choice import choose_spark, open_session, spark_as_found
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.printable import printable

Named = str | PathLike[str]
_LOG = logging.getLogger("tidemark")
_ONE_AT_A_TIME = RLock()  # a process has one Spark, and one call must not stop that of another


def run(
    spec: Named,
    *,
    warehouse: Named | None = None,
    overrides: Sequence[str] = (),
    end_of_input: str | None = None,
    live: bool = False,
    max_events_per_batch: int | None = None,
    reopen: str | None = None,
    reread: bool = False,
    spark: str | None = None,
    instance: DagsterInstance | None = None,
) -> RunReport:
    """Ingest and process all that is waiting, as `tidemark run` does; return what was done.

    Files held back are not an error: `held_back` of the result names them, and all else was processed. Progress
    goes to the logger `tidemark`, level INFO. Ctrl-C and SIGTERM end it with a KeyboardInterrupt: what was committed
    stays. Afterwards the handlers of signals are restored. A session of Spark that the process had is used and
    gets its settings back; one that the call started is stopped. Calls in several threads wait for each other.

    Args:
        spec: The path of a spec file.
        warehouse: The folder of all tables, or its URL; by default `TIDEMARK_WAREHOUSE`, else `./warehouse`.
        overrides: Keys of the spec to set to other values, as `--set` does, such as `time.unit=second`.
        end_of_input: `flush` or `hold` instead of what the spec says.
        live: When all that waits is processed, end with a tick.
        max_events_per_batch: Most records in one batch.
        reopen: Why a flushed pipeline takes new input.
        reread: Read files with the same bytes as others that were read, too.
        spark: The Spark that computes, such as `local[4]` or `sc://host:15002`; by default `TIDEMARK_SPARK`, else a
            server of `tidemark serve` that answers, else this process.
        instance: The instance of Dagster that shows the run; by default that of `DAGSTER_HOME`, else of `./.dagster`,
            which is made if it is not there. `DagsterInstance.ephemeral()` shows it nowhere.

    Raises:
        SpecError: The spec or an argument is wrong.
        BusyError: Another run is at work on the pipeline.
        TidemarkError: Anything else prevents it, such as a failed blocking check; see the other subclasses.
        KeyboardInterrupt: The process was asked to stop.
    """
    file = read_spec(Path(spec), overrides)
    options = RunOptions(max_events_per_batch, end_of_input, live=live, reopen=reopen, reread=reread)
    _check(options)
    tell = _telling(file.spec.name)
    if live:
        check_live(file, end_of_input, tell)
    settings = _settings(warehouse, spark)
    shown = as_shown(file, settings.dagster_home)
    with as_guest(), _at_need(instance, settings, file.spec.name) as used:
        return run_pipeline(shown, settings, options, instance=used, tell=tell)


def backfill(
    spec: Named,
    first: date | str,
    last: date | str,
    *,
    windows: Sequence[str] = (),
    warehouse: Named | None = None,
    overrides: Sequence[str] = (),
    spark: str | None = None,
    instance: DagsterInstance | None = None,
) -> BackfillReport:
    """Recompute days of window tables from the arrival log, as `tidemark backfill` does; return what was done.

    The rest is as of `run`.

    Args:
        spec: The path of a spec file.
        first: The first day of `partitions.time_zone`: a date, or a text such as `2026-01-31`.
        last: The last day; it is computed too.
        windows: Names of windows; by default all.
        warehouse: As of `run`.
        overrides: As of `run`.
        spark: As of `run`.
        instance: As of `run`.

    Raises:
        SpecError: The spec, a window or a day is wrong.
        TidemarkError: Anything else prevents it, as of `run`.
        KeyboardInterrupt: The process was asked to stop.
    """
    file = read_spec(Path(spec), overrides)
    names = chosen_windows(file.spec, _names(windows))
    days = chosen_days(file.spec, _day(first), _day(last), now=Clock().now())
    settings, tell = _settings(warehouse, spark), _telling(file.spec.name)
    shown = as_shown(file, settings.dagster_home)
    with as_guest(), _instance(instance, settings, file.spec.name) as used:
        return backfill_days(shown, settings, names, days, instance=used, tell=tell)


def rebuild(
    spec: Named,
    *,
    windows: Sequence[str] = (),
    to_spec: bool = False,
    reason: str | None = None,
    warehouse: Named | None = None,
    overrides: Sequence[str] = (),
    spark: str | None = None,
    instance: DagsterInstance | None = None,
) -> Rebuilt | None:
    """Compute derived tables again from the arrival log, as `tidemark rebuild` does; return what was done.

    Readers see the old tables until one commit switches all of them. The rest is as of `run`.

    Args:
        spec: The path of a spec file.
        windows: Names of windows, to compute these and the windows over them again; by default all tables.
        to_spec: Compute only what the spec asks for: some windows, all tables, or nothing.
        reason: Why, for `log_control` and `batches`.
        warehouse: As of `run`.
        overrides: As of `run`.
        spark: As of `run`.
        instance: As of `run`.

    Returns:
        The plan that was carried out, the batch and the rows of each table. None with `to_spec` if nothing needs the
        past.

    Raises:
        SpecError: The spec or an argument is wrong.
        LakeError: The log is lost or damaged, or nothing of it was processed.
        TidemarkError: Anything else prevents it, as of `run`.
        KeyboardInterrupt: The process was asked to stop.
    """
    file = read_spec(Path(spec), overrides)
    _check_reason(reason)
    if windows and to_spec:
        raise SpecError("Both `windows` and `to_spec` are given", expected="one of them", remedy="leave one out")
    names = chosen_windows(file.spec, _names(windows)) if windows else ()
    settings, tell = _settings(warehouse, spark), _telling(file.spec.name)
    shown = as_shown(file, settings.dagster_home)
    request = RebuildSettings(reason=reason, windows=[*names], to_spec=to_spec)
    with as_guest(), _instance(instance, settings, file.spec.name) as used:
        return rebuild_pipeline(shown, settings, request, instance=used, tell=tell)


def plan(
    spec: Named, *, warehouse: Named | None = None, overrides: Sequence[str] = (), spark: str | None = None
) -> SpecPlan:
    """Find what a changed spec means for the tables, as `tidemark plan` does; nothing is written.

    Args:
        spec: The path of a spec file.
        warehouse: As of `run`.
        overrides: As of `run`.
        spark: As of `run`. Spark is asked only where time or windows have changed.

    Returns:
        The changes, with what each means; the work of a run and of a rebuild; the rows that would differ. `to_dict()`
        is what `tidemark plan --json` prints.

    Raises:
        SpecError: The spec is wrong, or another file of its name made the tables.
        LakeError: A table is gone, or a file of it is missing or damaged.
    """
    file = read_spec(Path(spec), overrides)
    settings, tell = _settings(warehouse, spark), _telling(file.spec.name)
    with as_guest():
        return plan_of(pipeline_of(file, settings, tell))


def test(spec: Named, *cases: Named, overrides: Sequence[str] = (), spark: str | None = None) -> CasesReport:  # noqa: PT028
    """Run cases against a spec in memory, as `tidemark test` does; return the verdict on each.

    Args:
        spec: The path of a spec file.
        *cases: Paths of files with cases, at least one.
        overrides: As of `run`.
        spark: As of `run`.

    Raises:
        SpecError: The spec is wrong; a file of cases is missing, or its cases are not valid cases of the spec.
    """
    if not cases:
        raise SpecError(
            "There is no file of cases", expected="at least one path", remedy="docs/how-to/test-a-spec.md"
        )
    file = read_spec(Path(spec), overrides)
    read = [read_cases(file.spec, Path(path)) for path in cases]
    with as_guest():
        session = open_session(choose_spark(_settings(None, spark), tables=False), _telling(file.spec.name))
        return CasesReport({cases.file: tuple(judge(file, cases, session)) for cases in read})


def replay(
    spec: Named,
    where: str,
    reason: str,
    *,
    fixes: Named | None = None,
    undo: bool = False,
    dry_run: bool = False,
    warehouse: Named | None = None,
    overrides: Sequence[str] = (),
    spark: str | None = None,
    instance: DagsterInstance | None = None,
) -> Replayed:
    """Let dead letters in again, as `tidemark replay` does: into their windows, as if they had come in time.

    The rest is as of `run`. Letters that are let in already are not touched: where there are no others, nothing is
    done.

    Args:
        spec: The path of a spec file.
        where: The dead letters that meet a condition in SQL over `dead_letters`.
        reason: Why; kept in `log_control` and `batches`.
        fixes: A file of records as they should have been: JSON objects, one a line, each with `_arrival_seq`.
        undo: Refuse again what was let in.
        dry_run: Only return what would be different.
        warehouse: As of `run`.
        overrides: As of `run`.
        spark: As of `run`.
        instance: As of `run`.

    Raises:
        SpecError: The spec or an argument is wrong, no dead letter meets the condition, one of them cannot be let in,
            or the tables are not as the spec has them.
        BusyError: Another rebuild is at work on the pipeline.
        TidemarkError: Anything else prevents it, as of `run`.
        KeyboardInterrupt: The process was asked to stop.
    """
    for name, text in (("where", where), ("reason", reason)):
        if not text.strip():
            raise SpecError(f"`{name}` is empty", expected="a condition in SQL" if name == "where" else "a sentence")
    corrected = [] if fixes is None else corrected_lines(Path(fixes))
    request = ReplaySettings(where=where, undo=undo, corrected=corrected, reason=reason, dry_run=dry_run)
    decided = _decide(read_spec(Path(spec), overrides), request, _settings(warehouse, spark), instance)
    assert isinstance(decided, Replayed)
    return decided


def rejudge(
    spec: Named,
    reason: str,
    *,
    exclude: Collection[int] = (),
    where: str | None = None,
    include: Collection[int] = (),
    dry_run: bool = False,
    warehouse: Named | None = None,
    overrides: Sequence[str] = (),
    spark: str | None = None,
    instance: DagsterInstance | None = None,
) -> Rejudged:
    """Judge the log again without some records, or with them again, as `tidemark rejudge` does.

    The rest is as of `run`.

    Args:
        spec: The path of a spec file.
        reason: Why; kept in `log_control` and `batches`.
        exclude: Records to take out of the log, by their `_arrival_seq`.
        where: In place of it a condition in SQL over `raw_events`: records to take out.
        include: In place of it records to take back.
        dry_run: Only return what would be different.
        warehouse: As of `run`.
        overrides: As of `run`.
        spark: As of `run`.
        instance: As of `run`.

    Returns:
        How many records, the batch, and which results and days differ, or would.

    Raises:
        SpecError: The spec or an argument is wrong, there are no such records, or it is decided already.
        LakeError: The log is lost or damaged, or nothing of it was processed.
        TidemarkError: Anything else prevents it, as of `run`.
        KeyboardInterrupt: The process was asked to stop.
    """
    if not reason.strip():
        raise SpecError("`reason` is empty", expected="a sentence")
    if sum(map(bool, (exclude, where, include))) != 1:
        raise SpecError("None or several of `exclude`, `where` and `include` are there", expected="one of them")
    request = RejudgeSettings(exclude=[*exclude], where=where, include=[*include], reason=reason, dry_run=dry_run)
    decided = _decide(read_spec(Path(spec), overrides), request, _settings(warehouse, spark), instance)
    assert isinstance(decided, Rejudged)
    return decided


def is_complete(spec: Named, window: str, day: date | str, *, warehouse: Named | None = None) -> bool:
    """Return whether no live run changes a day of a window any more: its windows are closed, on every timeline.

    Backfills, rebuilds and people may still change it. With `over`, a new timeline may begin with old events.

    Args:
        spec: The path of a spec file.
        window: The name of a window.
        day: A day of `partitions.time_zone`: a date, or a text such as `2026-01-31`.
        warehouse: As of `run`.

    Raises:
        SpecError: The spec, the window or the day is wrong.
        LakeError: A table is gone, or a file of it is missing or damaged.
    """
    file, of_day = read_spec(Path(spec)), _day(day)
    [name] = chosen_windows(file.spec, [window])
    workspace = Workspace(file, _settings(warehouse, None).warehouse)
    workspace.ensure_whole()
    watermarks = {window.name: reached_by(workspace, window) for window in file.spec.windows if window.name == name}
    return watermarks[name].has_completed(of_day)


def explain(
    spec: Named,
    *,
    seq: int | None = None,
    where: str | None = None,
    window: str | None = None,
    start: datetime | str | None = None,
    group: Mapping[str, str | None] | None = None,
    most: int = MOST_EXPLAINED,
    warehouse: Named | None = None,
    spark: str | None = None,
) -> Answer:
    """Explain why a record or a window is as it is, as `tidemark explain` does; nothing is written.

    Spark starts only if an expression of the spec has to be computed.

    Args:
        spec: The path of a spec file.
        seq: A record, by its `_arrival_seq`.
        where: In place of it a condition in SQL, as DuckDB reads it, over `raw_events`.
        window: In place of it a window of the spec; with `start`.
        start: Where the window begins: an instant, UTC without an offset.
        group: Columns of the window's groups and texts of their values; by default all groups.
        most: At most so many records of `where`.
        warehouse: As of `run`.
        spark: As of `run`.

    Returns:
        A frozen value with `to_dict()`, of instants in ISO 8601, and `text`: a `RecordAnswer`, of `where` a
        `RecordAnswers`, of `window` a `WindowAnswer`.

    Raises:
        SpecError: The spec or the question is wrong: there is no such record, window or group.
        TidemarkError: Nothing is committed yet, or the record is not processed yet.
    """
    file, settings = read_spec(Path(spec)), _settings(warehouse, spark)
    with as_guest():
        workspace = pipeline_of(file, settings, _telling(file.spec.name))
        return answer_to(workspace, Question(seq, where, window, start, group, most))


def advise(
    spec: Named, *, warehouse: Named | None = None, overrides: Sequence[str] = (), spark: str | None = None
) -> Advice:
    """Return how late the events of a pipeline are, and what every out-of-orderness would lose, as `tidemark advise`.

    The whole log is judged by the spec as it is; nothing is written. `text` of the result is what the command prints.

    Args:
        spec: The path of a spec file.
        warehouse: The folder of all tables, or its URL; by default `TIDEMARK_WAREHOUSE`, else `./warehouse`.
        overrides: Keys of the spec to set to other values, as `--set` does.
        spark: The Spark that computes, as of `run`.

    Raises:
        SpecError: The spec is wrong, or has no event time.
        TidemarkError: Nothing was processed yet.
    """
    file = read_spec(Path(spec), overrides)
    known_settings = _settings(warehouse, spark)
    with as_guest():
        return advice_of(pipeline_of(file, known_settings, _telling(file.spec.name)))


def simulate(
    spec: Named,
    settings: Sequence[Sequence[str]],
    *,
    first: datetime | str | None = None,
    end: datetime | str | None = None,
    warehouse: Named | None = None,
    spark: str | None = None,
) -> Simulation:
    """Return what other settings would make of the log of a pipeline, as `tidemark simulate` shows it.

    The log is judged from its beginning with each setting; nothing is written. `text` of the result is what the
    command prints.

    Args:
        spec: The path of a spec file.
        settings: Each a list of keys and values, such as `["time.out_of_orderness=10s"]`.
        first: Windows that start, and events, from here on are compared; by default all. Without an offset in UTC.
        end: Windows that start, and events, before this are compared; by default all.
        warehouse: As of `advise`.
        spark: As of `run`.

    Raises:
        SpecError: The spec or a setting is wrong, or the log cannot answer for it.
        TidemarkError: Nothing was processed yet.
    """
    if isinstance(settings, str) or any(isinstance(setting, str) for setting in settings):
        raise SpecError(
            f"`settings` is {settings!r}",
            expected="a list of settings, each a list of texts",
            remedy='[["time.out_of_orderness=10s"]]',
        )
    file, alternatives, stretch = read_spec(Path(spec)), settings_with(Path(spec), settings), stretch_of(first, end)
    known_settings = _settings(warehouse, spark)
    with as_guest():
        return simulation_of(pipeline_of(file, known_settings, _telling(file.spec.name)), alternatives, stretch)


def capture(
    spec: Named,
    first: int,
    last: int,
    *,
    redact: Sequence[str] = (),
    warehouse: Named | None = None,
    spark: str | None = None,
) -> Captured:
    """Return a stretch of the log as a file of cases, as `tidemark capture` does; nothing is written.

    Args:
        spec: The path of a spec file.
        first: The first record, by its `_arrival_seq`.
        last: The last record.
        redact: Columns whose values are replaced, equal ones by equal ones.
        warehouse: As of `run`.
        spark: As of `run`.

    Raises:
        SpecError: The spec, the stretch or a column is wrong.
        TidemarkError: Nothing is committed yet.
    """
    file, settings = read_spec(Path(spec)), _settings(warehouse, spark)
    with as_guest():
        return captured(pipeline_of(file, settings, _telling(file.spec.name)), first, last, redact)


def _decide(
    file: SpecFile, request: ReplaySettings | RejudgeSettings, settings: Settings, instance: DagsterInstance | None
) -> Replayed | Rejudged:
    shown, name = as_shown(file, settings.dagster_home), file.spec.name
    with as_guest(), ExitStack() as stack:
        return decide(
            shown,
            settings,
            request,
            instance=lambda: stack.enter_context(_instance(instance, settings, name)),
            tell=_telling(name),
        )


def _check(options: RunOptions) -> None:
    most, end, why = options.max_events_per_batch, options.end_of_input, options.reopen
    if end not in (None, "flush", "hold"):
        raise SpecError(f"`end_of_input` is {end!r}", expected='"flush", "hold" or None')
    if most is not None and most < 1:
        raise SpecError(f"`max_events_per_batch` is {most}", expected="a number of records, at least 1, or None")
    _check_reason(why, "reopen")


def _check_reason(reason: str | None, argument: str = "reason") -> None:
    if reason is not None and not reason.strip():
        raise SpecError(f"`{argument}` is empty", expected="a sentence that says why, or None")


def _names(windows: Sequence[str]) -> Sequence[str]:
    """Return the names of windows; a text would be a list of letters."""
    if isinstance(windows, str):
        raise SpecError(f"`windows` is the text {windows!r}", expected="a list of names", remedy=f"[{windows!r}]")
    return windows


def _day(day: date | str) -> date:
    if isinstance(day, date) and not isinstance(day, datetime):
        return day
    try:
        return date.fromisoformat(str(day))
    except ValueError:
        raise SpecError(
            f"{day!r} is not a day",
            expected="a date, or a text such as 2026-01-31",
            remedy="for an instant, use its date in `partitions.time_zone` of the spec",
        ) from None


def _settings(warehouse: Named | None, spark: str | None) -> Settings:
    return from_environment(SPECS, warehouse=warehouse, spark=spark)


def _telling(pipeline: str) -> Callable[[str], None]:
    return lambda doing: _LOG.info("%s: %s", pipeline, printable(doing))


@contextmanager
def _instance(instance: DagsterInstance | None, settings: Settings, pipeline: str) -> Iterator[DagsterInstance]:
    with _at_need(instance, settings, pipeline) as at_need:
        yield at_need()


def _at_need(
    instance: DagsterInstance | None, settings: Settings, pipeline: str
) -> AbstractContextManager[InstanceAtNeed]:
    if instance is not None:
        return nullcontext(InstanceAtNeed(lambda: instance))
    ensure_dagster_home(settings.dagster_home)
    return instance_at_need(settings, pipeline, tell=_LOG.info)


@contextmanager
def as_guest() -> Iterator[None]:
    """Work in a process that lives on afterwards."""
    with _ONE_AT_A_TIME, listening(then_ends=False), spark_as_found():
        yield
