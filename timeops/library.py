"""Time adjustment and windows of any DataFrame, with no pipeline around it.

Here: the DataFrame as an arrival log, with the columns that it lacks, and the results of the engine in the shape of
the pipeline's tables. Not here: the rules (timeops/engine.py). The watermarks are found at once, from few columns of
the events; the rest is lazy: Spark computes what is asked for.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, MapType, StringType, TimestampType

from tidemark.timeops import columns as c
from tidemark.timeops.calendar.zones import problems_of_zone
from tidemark.timeops.computing.materialize import Execution, computed, from_driver
from tidemark.timeops.computing.session import check_session
from tidemark.timeops.engine import Outcome, State, advance
from tidemark.timeops.errors import InputError
from tidemark.timeops.errors.problems import Problem, error_at, problems_of, spec_error
from tidemark.timeops.events.adjustment import RELEASE_ORDER, Released, Segment
from tidemark.timeops.events.event_time import BAD, FAILED, US, with_instant
from tidemark.timeops.expressions.text_times import hidden_time_problem
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import Columns, utf8_sql
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import TimeSpec, WindowSpec, is_reserved, read_part
from tidemark.timeops.spec.fields import InstantExpression
from tidemark.timeops.spec.pipeline import keys_by_arrival, rules_between_parts, without_event_time
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.timelines import LogPlace
from tidemark.timeops.windows.results import last_revisions, passing
from tidemark.timeops.windows.segment import on_events

SOURCE_NAME = "events"
"""`_source` of events that have none."""

TAKEN = {
    c.SEQ: (IntegralType, "whole numbers"),
    c.ARRIVAL: (TimestampType, "TIMESTAMP"),
    c.SOURCE: (StringType, "STRING"),
    c.SPLIT: (StringType, "STRING"),
}
"""Columns of the product that events may have, with their types."""


def arrival_log(events: DataFrame, time: TimeSpec, arrival_time: str | None) -> DataFrame:
    """Return the events with all that a record of the log has; see `adjust` for the columns that have a meaning.

    Raises:
        SpecError: `arrival_time` is wrong, or does not fit the columns.
        InputError: The events have no order of arrival, or a column that has another meaning here.
    """
    _check_columns(events, arrival_time)
    timed = _with_arrival(events, time, arrival_time)
    nothing = F.lit(None).cast("string")
    columns = {
        c.SEQ: F.col(c.SEQ).cast("bigint") if c.SEQ in events.columns else _numbers(events),
        c.SOURCE: F.col(c.SOURCE) if c.SOURCE in events.columns else F.lit(SOURCE_NAME),
        c.SPLIT: F.expr(utf8_sql(c.SPLIT)) if c.SPLIT in events.columns else nothing,
    }
    earlier = Window.orderBy(c.SEQ).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return timed.withColumns(columns).withColumns(
        {
            c.CLOCK: F.max(c.ARRIVAL).over(earlier),
            c.POSITION: F.col(c.SEQ),
            c.FILE: nothing,
            c.MALFORMED: nothing,
            c.BATCH: F.lit(0).cast("bigint"),
        }
    )


def _check_columns(events: DataFrame, arrival_time: str | None) -> None:
    taken = sorted(name for name in events.columns if is_reserved(name) and name.lower() not in TAKEN)
    if taken:
        raise InputError(
            f"the events have the column {', '.join(f'`{name}`' for name in taken)}, a name that is reserved by "
            "Tidemark",
            expected=f"other names; of the reserved ones only {', '.join(TAKEN)}",
            remedy=f'rename it: events.withColumnRenamed("{taken[0]}", "another_name"), or drop it',
        )
    for name, (kind, words) in TAKEN.items():
        if name in events.columns and not isinstance(events.schema[name].dataType, kind):
            actual = events.schema[name].dataType.simpleString().upper()
            raise InputError(f"the column `{name}` is {actual}", expected=words, remedy="cast it")
    if arrival_time is not None and c.ARRIVAL in events.columns:
        raise InputError(
            f"the events have a column `{c.ARRIVAL}`, and `arrival_time` is {arrival_time!r} as well",
            expected="only one of them",
            remedy="leave `arrival_time` out, or drop the column",
        )
    if arrival_time is None and not {c.ARRIVAL, c.SEQ} & set(events.columns):
        raise InputError(
            f"the events have no order of arrival: no `arrival_time`, no column `{c.ARRIVAL}` or `{c.SEQ}`",
            expected="one of these: results depend on the order in which events arrived",
            remedy=f'name the column that says when an event arrived: arrival_time="…"; or number them in `{c.SEQ}`',
        )


def _with_arrival(events: DataFrame, time: TimeSpec, arrival_time: str | None) -> DataFrame:
    if arrival_time is not None:
        read = with_instant(events, _expression(arrival_time), time.time_zone, where="arrival_time")
        return read.withColumn(c.ARRIVAL, c.to_instant(US)).drop(US, FAILED, BAD)
    if c.ARRIVAL in events.columns:
        return events
    if keys := keys_by_arrival(time):
        raise no_arrival(keys)
    return events.withColumn(c.ARRIVAL, c.to_instant("0L"))


def _expression(arrival_time: str) -> str:
    try:
        return str(TypeAdapter(InstantExpression).validate_python(arrival_time))
    except ValidationError as error:
        raise spec_error("arrival_time", problems_of(error, {}), {}) from None


def no_arrival(keys: list[str]) -> InputError:
    """Return the error that rules go by arrivals that are not known."""
    return InputError(
        f"{', '.join(keys)} needs to know when events arrived",
        expected=f"`arrival_time`, or a column `{c.ARRIVAL}`",
        remedy='name the column that says when an event arrived: arrival_time="…"',
    )


def _numbers(events: DataFrame) -> Column:
    """Return 0, 1, 2, … by arrival; ties by all columns, so that only equal rows share a place."""
    values = [
        F.to_json(F.col(quoted(field.name))) if isinstance(field.dataType, MapType) else F.col(quoted(field.name))
        for field in events.schema
    ]
    return F.row_number().over(Window.orderBy(F.col(c.ARRIVAL).asc_nulls_last(), *values)).cast("bigint") - 1


_EVENT_COLUMNS = (c.TIMESTAMP, c.EVENT_TIME, c.ARRIVAL, c.SEQ, c.TIMELINE)


@dataclass(frozen=True)
class AdjustedEvents:
    """Judged events; columns as in the tables of a pipeline, without `_batch_id`.

    Attributes:
        accepted: All accepted events: `_timestamp`, `_event_time`, `_arrival_time`, `_arrival_seq`, `_timeline`,
            `_adjusted_by`, and `_watermark` just before the event where it was out of order.
        ordered: The events that the watermark has passed, in order, with `_release_seq` per timeline.
        held: The events that it has not passed yet.
        dead_letters: The others: `reason`, `detail`, `lateness_us`, `payload`, …
        watermarks: Per timeline `watermark` (null when all was flushed), `max_timestamp` and `watermark_set_by`.
        time: The rules that they were judged by.

    Examples:
        >>> events = spark.createDataFrame(
        ...     [("a", "2026-01-01 12:00:00", "2026-01-01 12:00:01"),
        ...      ("b", "2026-01-01 12:00:09", "2026-01-01 12:00:10"),
        ...      ("c", "2026-01-01 12:00:03", "2026-01-01 12:00:11")],
        ...     "id STRING, at STRING, came STRING")
        >>> judged = adjust(events, {"timestamp_by": "at", "out_of_orderness": "5 seconds"}, arrival_time="came")
        >>> judged.ordered.select("id", "_timestamp", "_release_seq").show()
        +---+-------------------+------------+
        | id|         _timestamp|_release_seq|
        +---+-------------------+------------+
        |  a|2026-01-01 12:00:00|           0|
        +---+-------------------+------------+
        <BLANKLINE>
        >>> judged.dead_letters.select("_arrival_seq", "reason", "lateness_us").show()
        +------------+------------+-----------+
        |_arrival_seq|      reason|lateness_us|
        +------------+------------+-----------+
        |           2|out_of_order|    1000000|
        +------------+------------+-----------+
        <BLANKLINE>
    """

    accepted: DataFrame
    ordered: DataFrame
    held: DataFrame
    dead_letters: DataFrame
    watermarks: DataFrame
    time: TimeSpec
    _segment: Segment = field(repr=False)
    _outcome: Outcome = field(repr=False)
    _payload: tuple[str, ...] = field(repr=False)
    _has_arrival: bool = field(repr=False)


def adjust(
    events: DataFrame,
    time: TimeSpec | Mapping[str, Any],
    arrival_time: str | None = None,
    *,
    tick: datetime | None = None,
) -> AdjustedEvents:
    """Judge events by their time, as a pipeline judges the records of its log; AdjustedEvents has an example.

    Args:
        events: The events, in any order. Four columns have a meaning where they are there: `_arrival_seq` (the order
            of arrival: whole numbers, each once, best 0, 1, 2, …), `_arrival_time` (TIMESTAMP), `_source` and
            `_split` (STRING; by default "events" and null).
        time: The keys of a spec's `time` as a mapping, or the `time` of a spec that was read.
        arrival_time: Spark SQL that says when an event arrived, read as in a spec's source. Without it the column
            `_arrival_time` says so. With neither, and `_arrival_seq` given, all events arrive at 1970-01-01T00:00Z:
            an error where a rule goes by arrival.
        tick: An aware instant: all events up to it are there, and the clock has come so far, as in a live run. By
            default the clock stops at the last event.

    Returns:
        Accepted, released, held and refused events. Without `_arrival_seq` they are numbered by arrival (the ones
        without one last), then by the values of their columns from left to right. That sorts all of them in one
        task: for many events add `_arrival_seq`.

    Raises:
        SpecError: `time` or `arrival_time` is wrong, or does not fit the columns; or Java has other rules for the
            time zone than Python.
        InputError: The events have no order of arrival, or a column that has another meaning here; or `tick` has no
            offset.
        TidemarkError: The session has another time zone than UTC, or other settings that change what is meant.
    """
    check_session(events.sparkSession)
    spec = time if isinstance(time, TimeSpec) else read_part("time", TimeSpec, time)
    _refuse(spec, events.sparkSession)
    for text in (*spec.over, *spec.deduplicate_by):
        _refuse_hidden_time(events, text, "time")
    rules = TimeRules(spec)
    log = arrival_log(events, spec, arrival_time)
    payload = tuple(name for name in events.columns if name not in TAKEN)
    flushed = spec.flushes()
    where = LogPlace(tick_us=None if tick is None else _us_of_tick(tick), flushed=flushed)
    segment = Segment(log, where)
    outcome = advance(segment, State(), rules)
    columns, last = [*map(quoted, payload), *_EVENT_COLUMNS], (c.ADJUSTED_BY, c.WATERMARK)
    order = c.TIMELINE, F.col(c.RELEASE_SEQ).asc_nulls_last(), c.SEQ
    watermark = F.lit(None).cast("timestamp") if flushed else c.to_instant("watermark")
    of_timelines = watermark.alias("watermark"), c.to_instant("max_t").alias("max_timestamp"), "watermark_set_by"
    return AdjustedEvents(
        accepted=outcome.accepted.select(*columns, *last),
        ordered=_numbered(outcome.released).select(*columns, c.RELEASE_SEQ, *last).orderBy(*order),
        held=outcome.released.held.select(*columns, *last),
        dead_letters=outcome.dead_letters(payload),
        watermarks=from_driver(events.sparkSession, outcome.timelines).select(c.TIMELINE, *of_timelines),
        time=spec,
        _segment=segment,
        _outcome=outcome,
        _payload=payload,
        _has_arrival=arrival_time is not None or c.ARRIVAL in events.columns,
    )


def _numbered(released: Released) -> DataFrame:
    """Return the released events, with `_release_seq` where they have a place in the order."""
    place = F.row_number().over(Window.partitionBy(c.TIMELINE).orderBy(*RELEASE_ORDER[1:])).cast("bigint") - 1
    return released.sequence.withColumn(c.RELEASE_SEQ, place).unionByName(released.passed, allowMissingColumns=True)


def windows(events: AdjustedEvents, window: WindowSpec | Mapping[str, Any]) -> DataFrame:
    """Return the results of the windows that the watermark has closed; with `end_of_input: flush` in `time`, of all.

    Args:
        events: What `adjust` returned.
        window: The keys of one of a spec's `windows` as a mapping, or a window of a spec that was read.

    Returns:
        One row per window and group, as in the table `windows/<name>`: its last revision. Of a window that revises
        its results, parts are computed by this call. With `empty`, where a group would get more than `empty_max` rows
        without an event, computing it fails with a sentence that says so.

    Raises:
        SpecError: The window is wrong, or does not go with `time`.

    Examples:
        >>> events = spark.createDataFrame([(f"2026-01-01 12:0{minute}:00",) for minute in (1, 2, 6, 7)], "at STRING")
        >>> judged = adjust(events, {"timestamp_by": "at", "end_of_input": "flush"}, arrival_time="at")
        >>> window = {"name": "w", "kind": "tumbling", "size": "5 minutes", "aggregates": {"n": "count(*)"}}
        >>> windows(judged, window).select("window_start", "n").orderBy("window_start").show()
        +-------------------+---+
        |       window_start|  n|
        +-------------------+---+
        |2026-01-01 12:00:00|  2|
        |2026-01-01 12:05:00|  2|
        +-------------------+---+
        <BLANKLINE>
    """
    read = _window(events, window)
    outcome = _with_window(events, read)
    if read.revises:  # its results are made in several steps, which all read the judged events
        judged = replace(outcome.judged, accepted=computed(outcome.judged.accepted))
        outcome = replace(outcome, judged=judged, execution=Execution(computed))
    return passing(last_revisions(outcome.results(read), read))


def window_dead_letters(events: AdjustedEvents, window: WindowSpec | Mapping[str, Any]) -> DataFrame:
    """Return accepted events that a window or its aggregates refuse.

    The window had closed when they came (some only with `out_of_order: keep`), or an aggregate fails on them.

    Args:
        events: What `adjust` returned.
        window: As for `windows`.

    Returns:
        Rows as in `dead_letters`, with the reason `window_closed` or `bad_expression`.

    Raises:
        SpecError: The window is wrong, or does not go with `time`.
    """
    read = _window(events, window)
    letters = _with_window(events, read).dead_letters(events._payload)
    return letters.where(F.col("window_name") == read.name)


def _with_window(events: AdjustedEvents, window: WindowSpec) -> Outcome:
    """Return the outcome of the events with one window; across timelines their watermarks are found again."""
    outcome = events._outcome
    rules = replace(outcome.judged.rules, windows=(window,))
    if window.across:
        return advance(events._segment, State(), rules)
    judged = replace(outcome.judged, rules=rules)
    return Outcome(judged, outcome.before, outcome.flushed, outcome.execution)


def _refuse(time: TimeSpec, session: SparkSession) -> None:
    """Refuse settings that ask for more than events and their time, and zones that Java has by other rules."""
    problems = [] if time.timestamp_by else list(without_event_time(time))
    if time.idle is not None and time.idle.advance != "arrival_clock":
        fault = f"{time.idle.advance} depends on the splits or windows of a pipeline, which are unknown here"
        remedy = "run a pipeline, or use arrival_clock"
        problems.append(Problem(fault, remedy=remedy, at=("time", "idle", "advance")))
    problems += problems_of_zone(session, time.time_zone, ("time", "time_zone"))
    if problems:
        raise spec_error("time", [replace(problem, at=problem.at[1:]) for problem in problems], {})


def _refuse_hidden_time(events: DataFrame, expression: str, where: str) -> None:
    """Refuse an expression in which a text of an event is taken for a time, and completed from the clock."""
    problem = hidden_time_problem(events.sparkSession, expression, Columns.of(events).sql_types)
    if problem is not None:
        raise error_at(problem, where)


def _us_of_tick(tick: datetime) -> int:
    if tick.tzinfo is None:
        raise InputError(
            f"tick: found {tick}, which has no offset.", expected="an instant with an offset, such as one in UTC"
        )
    return us_of(tick)


def _window(events: AdjustedEvents, window: WindowSpec | Mapping[str, Any]) -> WindowSpec:
    read = window if isinstance(window, WindowSpec) else read_part("windows", WindowSpec, window)
    problems = rules_between_parts(time=events.time, windows={0: read}, has_windows=True)
    session = events.accepted.sparkSession
    problems = [*problems, *problems_of_zone(session, read.time_zone, ("windows", 0, "time_zone"))]
    if problems:
        relative = [
            replace(problem, at=problem.at[2:] if problem.at[:1] == ("windows",) else problem.at)
            for problem in problems
        ]
        raise spec_error(f"window {read.name}", relative, {})
    if meeting := [*read.meeting_problems(name for name in events.accepted.columns if not is_reserved(name))]:
        raise spec_error(f"window {read.name}", meeting, {})
    expressions = [*filter(None, [read.where, read.gap_by]), *(text for _, text in read.group_expressions)]
    for text in (*expressions, *on_events(read)):
        _refuse_hidden_time(events.accepted, text, f"window {read.name}")
    if not events._has_arrival and (keys := keys_by_arrival(events.time, [read])):
        raise no_arrival(keys)
    return read
