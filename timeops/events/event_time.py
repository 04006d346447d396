"""Event time: the instant of an expression, and the way from a record of the log to an event with a time.

Here: strings, instants, local times, dates; unit, timeline, and who has no time; for how long an event keeps its
session open: what one row says by itself. Not here: tolerances and watermarks (timeops/events/adjustment.py). Sources
of the rules: A1 (TIMESTAMP BY takes any expression), F (TIMESTAMP against TIMESTAMP_LTZ).
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    DayTimeIntervalType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.timeops import columns as c
from tidemark.timeops.errors.problems import Problem, error_at
from tidemark.timeops.expressions.refusals import REFUSALS, Asked, problem_of
from tidemark.timeops.expressions.text_times import check_built_texts, hidden_time_problem
from tidemark.timeops.expressions.text_values import instant_sql
from tidemark.timeops.expressions.tokens import literal, literals
from tidemark.timeops.expressions.try_expression import Columns, text_problem, with_attempt
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.rules.time_rules import EventTime, TimeRules
from tidemark.timeops.spec import WindowSpec

US, FAILED, BAD = "__tm_instant_us", "__tm_instant_failed", "__tm_instant_bad"
_VALUE, _RAW = "__tm_instant_value", "__tm_instant_raw"


def extract(items: DataFrame, rules: TimeRules) -> DataFrame:
    """Add event time, unit, timeline and, where there is none, the reason.

    Returns:
        `items` with `_event_time` TIMESTAMP (null without one), `__tm_t` (cut down to the unit, H), `_timeline`
        STRING, and `__tm_reason`: `malformed`, `no_arrival_time`, `bad_expression`, `bad_timestamp`,
        `no_timestamp` or null.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    reason = F.expr(
        f"CASE WHEN {c.MALFORMED} IS NOT NULL THEN '{Reason.MALFORMED}' "
        f"WHEN {c.ARRIVAL} IS NULL THEN '{Reason.NO_ARRIVAL_TIME}' "
        f"WHEN {FAILED} THEN '{Reason.BAD_EXPRESSION}' "
        f"WHEN {BAD} THEN '{Reason.BAD_TIMESTAMP}' "
        f"WHEN {US} IS NULL THEN '{Reason.NO_TIMESTAMP}' END"
    )
    columns = {c.REASON: reason, c.TIMELINE: F.expr(timeline(Columns.of(items), rules.time.over))}
    expressions = rules.event_times
    if len(expressions) == 1:
        timed = with_instant(items, expressions[0].timestamp_by, expressions[0].time_zone, where="timestamp_by")
    else:
        timed = _with_instant_of_source(items, expressions)
    timed = timed.withColumns(columns)
    usable = f"IF({c.REASON} IS NULL, {US}, NULL)"
    times = {c.EVENT_TIME: f"timestamp_micros({usable})", c.T: c.floor_to(usable, rules.time.unit_us)}
    return c.with_sql(timed, times).drop(US, FAILED, BAD)


def timeline(columns: Columns, over: tuple[str, ...]) -> str:
    """Return SQL of `_timeline`: the `over` values as a JSON array of strings or null; `[]` without it (A1)."""
    if not over:
        return literal(c.ONE_TIMELINE)
    texts = [text_at(columns, text, f"time.over[{position}]") for position, text in enumerate(over)]
    return f"to_json(array({', '.join(texts)}))"


def text_at(columns: Columns, text: str, where: str) -> str:
    """Return SQL of the text of a value, which differs where values do: of a timeline, or of a part of a key.

    Raises:
        SpecError: The expression does not fit the columns, or its type has no such text.
    """
    try:
        expression = columns.read(text)
    except REFUSALS as error:
        raise error_at(problem_of(error, Asked(text, list(columns.types))), where) from None
    problem = text_problem(expression.type, text)
    if problem is not None:
        raise error_at(problem, where)
    return expression.value_text


def _with_instant_of_source(items: DataFrame, expressions: Sequence[EventTime]) -> DataFrame:
    """Add the instant of each record by the expression of its source, as `with_instant` does by one for all."""
    timed = items
    parts = (US, FAILED, BAD)
    chosen = dict.fromkeys(parts, "NULL")
    for number, expression in enumerate(expressions):
        condition = is_of(expression.sources)
        # The expression of one source must not be asked of another's records.
        by = (
            None if expression.timestamp_by is None else f"CASE WHEN {condition} THEN ({expression.timestamp_by}) END"
        )
        names = {name: f"{name}{number}" for name in parts}
        timed = with_instant(timed, by, expression.time_zone, where="timestamp_by").withColumnsRenamed(names)
        chosen = {name: f"IF({condition}, {names[name]}, {chosen[name]})" for name in parts}
    return c.with_sql(timed, chosen).drop(*[f"{name}{n}" for name in parts for n in range(len(expressions))])


def is_of(sources: tuple[str, ...]) -> str:
    """Return SQL of a BOOLEAN: the record is of one of these sources."""
    return f"{c.SOURCE} IN ({literals(sources)})"


def with_instant(frame: DataFrame, expression: str | None, time_zone: str, *, where: str) -> DataFrame:
    """Add the instant of `expression` on every row of `frame`.

    Strings are ISO 8601, with or without an offset. Strings without one, and TIMESTAMP_NTZ and DATE values, are local
    times in `time_zone`: in an overlap of the earlier offset, in a gap moved forward by its length.

    Args:
        frame: The rows.
        expression: Spark SQL over the columns of `frame`; None for the arrival, which is processing time (A2).
        time_zone: IANA name of the zone of local times.
        where: Key of the spec, for messages.

    Returns:
        `frame` with `__tm_instant_us` BIGINT (microseconds; null when there is no usable instant),
        `__tm_instant_failed` BOOLEAN (the expression failed on this row) and `__tm_instant_bad` BOOLEAN (it is a
        string that is not a time, or an instant outside the years 0001 to 9999). Each step is a projection of its
        own, so that Spark evaluates the expression once.

    Raises:
        SpecError: The expression does not fit the columns, or is neither a time nor a string.
    """
    if expression is None:
        return frame.withColumns({US: c.to_us(c.ARRIVAL), FAILED: F.lit(False), BAD: F.lit(False)})
    columns = Columns.of(frame)
    try:
        read = columns.read(expression, time_zone)
    except REFUSALS as error:
        raise error_at(problem_of(error, Asked(expression, frame.columns)), where) from None
    problem = instant_problem(read.type, expression) or hidden_time_problem(
        columns.session, expression, columns.sql_types
    )
    if problem is not None:
        raise error_at(problem, where)
    if read.column is None and not read.can_fail:  # what can fail is checked where it is compiled
        check_built_texts(columns.session, expression, columns.types)
    if read.column is None:
        tried, value, failed = with_attempt(frame, read, _VALUE, FAILED), _VALUE, {}
    else:  # it cannot fail, and trying costs more than all the rest
        tried, value, failed = frame, read.sql, {FAILED: "false"}
    if isinstance(read.type, StringType):
        placed = c.with_sql(tried, {US: f"unix_micros({instant_sql(value, time_zone)})", **failed})
        return placed.withColumn(BAD, F.expr(f"{value} IS NOT NULL AND {US} IS NULL")).drop(_VALUE)
    if not isinstance(read.type, TimestampType):
        # The session zone is UTC, so the cast keeps the local clock reading and the zone is applied after it.
        value = f"CAST({value} AS TIMESTAMP)"
        value = value if time_zone == "UTC" else f"to_utc_timestamp({value}, {literal(time_zone)})"
    placed, inside = (
        c.with_sql(tried, {_RAW: f"unix_micros({value})", **failed}),
        f"BETWEEN {c.MIN_US}L AND {c.MAX_US}L",
    )
    bounded = {US: f"IF({_RAW} {inside}, {_RAW}, NULL)", BAD: f"{_RAW} IS NOT NULL AND NOT {_RAW} {inside}"}
    return c.with_sql(placed, bounded).drop(_VALUE, _RAW)


def instant_problem(kind: DataType, expression: str) -> Problem | None:
    """Return what is wrong with an expression of this type where an instant is asked for."""
    if isinstance(kind, StringType | TimestampType | TimestampNTZType | DateType):
        return None
    return Problem(
        f"`{expression}` has the type {kind.simpleString().upper()}, which is not a time",
        expected="an ISO 8601 string, a TIMESTAMP, a TIMESTAMP_NTZ or a DATE",
        remedy=f"for a number, name its unit: timestamp_seconds({expression}), timestamp_millis({expression}) "
        f"or timestamp_micros({expression})",
    )


def gap_us(columns: Columns, window: WindowSpec) -> str:
    """Return SQL of how long an event keeps its session open, BIGINT microseconds.

    Where each event says so itself it is null if it does not: its value is null, not above zero, or longer than
    `max_gap`, or the expression fails on it.

    Raises:
        SpecError: The expression does not fit the columns, or is of another type.
    """
    if window.gap_by is None:
        return f"{window.gap_us}L"
    at = f"windows[{window.name}].gap"
    try:
        read = columns.read(window.gap_by)
    except REFUSALS as error:
        raise error_at(problem_of(error, Asked(window.gap_by, [*columns.types])), at) from error
    problem = length_problem(read.type, window.gap_by)
    if problem is not None:
        raise error_at(problem, at)
    us = f"unix_micros(timestamp_micros(0L) + {read.sql})"
    return f"get(transform(array({us}), __tm_g -> IF(__tm_g BETWEEN 1L AND {window.reach_us}L, __tm_g, NULL)), 0)"


def length_problem(kind: DataType, expression: str) -> Problem | None:
    """Return what is wrong with an expression of this type where a length of time is asked for."""
    if isinstance(kind, DayTimeIntervalType):
        return None
    remedy = "write lengths as `INTERVAL 30 MINUTES` or `INTERVAL '1:30' HOUR TO MINUTE`"
    if isinstance(kind, NumericType):
        seconds = f"make_dt_interval(0, 0, 0, {expression})"
        remedy = f"name its unit: {seconds} for seconds, make_dt_interval(0, 0, {expression}) for minutes"
    return Problem(
        f"`{expression}` has the type {kind.simpleString().upper()}, which is not a length of time",
        expected="an INTERVAL DAY TO SECOND",
        remedy=remedy,
    )
