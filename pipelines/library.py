"""The functions with which a program runs pipelines: `tm.run`, `tm.backfill`, `tm.replay`, and `tm.is_complete`.

Here: their arguments, and the process of the caller, which finds its Spark and its handlers of signals as they were.
Not here: what commands and these functions share (runner.py, instance.py), `tm.status` (status.py).
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import date, datetime
from os import PathLike
from pathlib import Path
from threading import RLock

from dagster import DagsterInstance

from tidemark.assets.state.completeness import reached_by
from tidemark.pipelines.command_line import SPECS
from tidemark.pipelines.instance import dagster_instance
from tidemark.pipelines.rebuilding import ReplaySettings, chosen_windows
from tidemark.pipelines.replaying import Replayed, corrected_lines, replay_letters
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
from tidemark.resources.spark.choice import spark_as_found
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
    file = read_spec(Path(spec), overrides)
    settings, tell = _settings(warehouse, spark), _telling(file.spec.name)
    corrected = [] if fixes is None else corrected_lines(Path(fixes))
    asked = ReplaySettings(where=where, undo=undo, corrected=corrected, reason=reason)
    shown = as_shown(file, settings.dagster_home)
    with _as_guest(), ExitStack() as stack:
        return replay_letters(
            shown,
            settings,
            asked,
            instance=lambda: stack.enter_context(_instance(instance, settings, file.spec.name)),
            dry_run=dry_run,
            tell=tell,
        )


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
