"""The functions with which a program runs pipelines, and asks them: `tm.run`, `tm.backfill`, `tm.explain` and others.

Here: their arguments, and the process of the caller, which finds its Spark and its handlers of signals as they were.
Not here: what commands and these functions share (runner.py, instance.py), `tm.status` (status.py).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import date, datetime
from os import PathLike
from pathlib import Path
from threading import RLock

from dagster import DagsterInstance

from tidemark.assets.questions.asking import MOST, Answer, Question
from tidemark.assets.questions.asking import explain as answer_to
from tidemark.assets.state.completeness import reached_by
from tidemark.pipelines.case_tests.capture import Captured
from tidemark.pipelines.case_tests.capture import capture as captured
from tidemark.pipelines.command_line import SPECS
from tidemark.pipelines.instance import dagster_instance
from tidemark.pipelines.rebuilding import chosen_windows
from tidemark.pipelines.runner import (
    BackfillReport,
    RunOptions,
    RunReport,
    backfill_days,
    check_live,
    chosen_days,
    run_pipeline,
)
from tidemark.pipelines.spec_files import as_shown, read_spec
from tidemark.resources.machine import listening
from tidemark.resources.settings import Clock, Settings, ensure_dagster_home, from_environment
from tidemark.resources.spark.choice import choose_spark, open_session, spark_as_found
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.printable import printable

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

    Files that were held back are no error: `held_back` of the result names them, and all else was processed. Progress
    goes to the logger `tidemark`, level INFO. Ctrl-C and SIGTERM end it with a KeyboardInterrupt: what was committed
    stays. Afterwards the handlers of signals are those of before. A session of Spark that the process had is used and
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
    with _as_guest(), _instance(instance, settings, file.spec.name) as used:
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
    """Compute days of window tables anew from the arrival log, as `tidemark backfill` does; return what was done.

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
    if isinstance(windows, str):
        raise SpecError(f"`windows` is the text {windows!r}", expected="a list of names", remedy=f"[{windows!r}]")
    names = chosen_windows(file.spec, windows)
    days = chosen_days(file.spec, _day(first), _day(last), now=Clock().now())
    settings, tell = _settings(warehouse, spark), _telling(file.spec.name)
    shown = as_shown(file, settings.dagster_home)
    with _as_guest(), _instance(instance, settings, file.spec.name) as used:
        return backfill_days(shown, settings, names, days, instance=used, tell=tell)


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
    reached = {each.name: reached_by(workspace, each) for each in file.spec.windows if each.name == name}
    return reached[name].has_completed(of_day)


def explain(
    spec: Named,
    *,
    seq: int | None = None,
    where: str | None = None,
    window: str | None = None,
    start: datetime | str | None = None,
    group: Mapping[str, str | None] | None = None,
    most: int = MOST,
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
    with _as_guest():
        session = lambda: open_session(choose_spark(settings, file.inputs))  # noqa: E731 - asked for if need be
        workspace = Workspace(file, settings.warehouse, session, tell=_telling(file.spec.name))
        return answer_to(workspace, Question(seq, where, window, start, group, most))


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
    with _as_guest():
        session = lambda: open_session(choose_spark(settings, file.inputs))  # noqa: E731 - asked for if need be
        workspace = Workspace(file, settings.warehouse, session, tell=_telling(file.spec.name))
        return captured(workspace, first, last, redact)


def _check(options: RunOptions) -> None:
    most, end, why = options.max_events_per_batch, options.end_of_input, options.reopen
    if end not in (None, "flush", "hold"):
        raise SpecError(f"`end_of_input` is {end!r}", expected='"flush", "hold" or None')
    if most is not None and most < 1:
        raise SpecError(f"`max_events_per_batch` is {most}", expected="a number of records, at least 1, or None")
    if why is not None and not why.strip():
        raise SpecError("`reopen` is empty", expected="a sentence that says why, or None")


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


def _instance(
    instance: DagsterInstance | None, settings: Settings, pipeline: str
) -> AbstractContextManager[DagsterInstance]:
    if instance is not None:
        return nullcontext(instance)
    ensure_dagster_home(settings.dagster_home)
    return dagster_instance(settings, pipeline, tell=_LOG.info)


@contextmanager
def _as_guest() -> Iterator[None]:
    """Work in a process that goes on afterwards."""
    with _ONE_AT_A_TIME, listening(then_ends=False), spark_as_found():
        yield
