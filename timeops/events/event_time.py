"""Event time: the instant of an expression, and the way from a record of the log to an event with a time.

Here: strings, instants, local times, dates; unit, timeline, and who has no time: what one row says by itself. Not
here: tolerances and watermarks (adjustment.py). Sources of the rules: A1 (TIMESTAMP BY takes any expression), F
(TIMESTAMP against TIMESTAMP_LTZ).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StringType, TimestampNTZType, TimestampType

from tidemark.timeops import columns as c
from tidemark.timeops.expressions.refusals import REFUSALS, Asked, problem_of
from tidemark.timeops.expressions.text_times import hidden_time_problem
from tidemark.timeops.expressions.text_values import instant_sql
from tidemark.timeops.expressions.tokens import literals
from tidemark.timeops.expressions.try_expression import (
    is_column,
    text_of,
    text_problem,
    type_of,
    types_of,
    with_attempt,
)
from tidemark.timeops.problems import Problem, error_at
from tidemark.timeops.reasons import Reason
from tidemark.timeops.rules import TimeRules

US, FAILED, BAD = "__tm_instant_us", "__tm_instant_failed", "__tm_instant_bad"
_TEXT, _LOCAL, _RAW = "__tm_instant_text", "__tm_instant_local", "__tm_instant_raw"


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
    columns = {c.REASON: reason, c.TIMELINE: timeline(items, rules.time.over)}
    timed = _with_event_time(items, rules).withColumns(columns)
    usable = f"IF({c.REASON} IS NULL, {US}, NULL)"
    times = {c.EVENT_TIME: f"timestamp_micros({usable})", c.T: c.floor_to(usable, rules.time.unit_us)}
    return c.with_sql(timed, times).drop(US, FAILED, BAD)


def timeline(items: DataFrame, over: tuple[str, ...]) -> Column:
    """Return `_timeline`: the `over` values as a compact JSON array of strings or null; `[]` without it (A1)."""
    if not over:
        return F.lit(c.ONE_TIMELINE)
    for position, expression in enumerate(over):
        check_text(items, expression, f"time.over[{position}]")
    return F.expr(f"to_json(array({', '.join(text_of(items, e) for e in over)}))")


def check_text(items: DataFrame, expression: str, where: str) -> None:
    """Check that the values of an expression have different texts: as timelines, or as parts of a key.

    Raises:
        SpecError: The expression does not fit the columns, or its type has no such text.
    """
    try:
        problem = text_problem(type_of(items, expression), expression)
    except REFUSALS as error:
        problem = problem_of(error, Asked(expression, items.columns))
    if problem is not None:
        raise error_at(problem, where)


def _with_event_time(items: DataFrame, rules: TimeRules) -> DataFrame:
    expressions = rules.event_times
    if len(expressions) == 1:
        return _of_expression(items, expressions[0].timestamp_by, expressions[0].time_zone)
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
        timed = _of_expression(timed, by, expression.time_zone).withColumnsRenamed(names)
        chosen = {name: f"IF({condition}, {names[name]}, {chosen[name]})" for name in parts}
    return c.with_sql(timed, chosen).drop(*[f"{name}{n}" for name in parts for n in range(len(expressions))])


def is_of(sources: tuple[str, ...]) -> str:
    """Return SQL of a BOOLEAN: the record is of one of these sources."""
    return f"{c.SOURCE} IN ({literals(sources)})"


def _of_expression(items: DataFrame, timestamp_by: str | None, time_zone: str) -> DataFrame:
    if timestamp_by is None:  # processing time: A1 and A2's System.Timestamp without TIMESTAMP BY
        return items.withColumns({US: c.to_us(c.ARRIVAL), FAILED: F.lit(False), BAD: F.lit(False)})
    return with_instant(items, timestamp_by, time_zone, where="timestamp_by")


def with_instant(frame: DataFrame, expression: str, time_zone: str, *, where: str) -> DataFrame:
    """Add the instant of `expression` on every row of `frame`.

    Strings are ISO 8601, with or without an offset. Strings without one, and TIMESTAMP_NTZ and DATE values, are local
    times in `time_zone`: in an overlap of the earlier offset, in a gap moved forward by its length.

    Args:
        frame: The rows.
        expression: Spark SQL over the columns of `frame`.
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
    try:
        kind = type_of(frame, expression)
    except REFUSALS as error:
        raise error_at(problem_of(error, Asked(expression, frame.columns)), where) from None
    problem = instant_problem(kind, expression) or hidden_time_problem(
        frame.sparkSession, expression, types_of(frame)
    )
    if problem is not None:
        raise error_at(problem, where)
    if isinstance(kind, StringType):
        return _from_text(frame, expression, time_zone)
    if isinstance(kind, TimestampType):
        if is_column(frame, expression):  # it cannot fail, and trying costs more than all the rest
            return _bounded(frame.withColumns({_RAW: F.unix_micros(F.expr(expression)), FAILED: F.lit(False)}))
        return _bounded(with_attempt(frame, f"unix_micros({expression}\n)", _RAW, FAILED, time_zone))
    # The session zone is UTC, so the cast keeps the local clock reading and the zone is applied after it.
    tried = with_attempt(frame, expression, _LOCAL, FAILED, time_zone)
    local = F.col(_LOCAL).cast("timestamp")
    instant = local if time_zone == "UTC" else F.to_utc_timestamp(local, time_zone)
    return _bounded(tried.withColumn(_RAW, F.unix_micros(instant)).drop(_LOCAL))


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


def _from_text(frame: DataFrame, expression: str, time_zone: str) -> DataFrame:
    if is_column(frame, expression):
        read = frame.withColumns({_TEXT: F.expr(expression), FAILED: F.lit(False)})
    else:
        read = with_attempt(frame, expression, _TEXT, FAILED, time_zone)
    placed = read.withColumn(US, F.expr(f"unix_micros({instant_sql(_TEXT, time_zone)})"))
    return placed.withColumn(BAD, F.expr(f"{_TEXT} IS NOT NULL AND {US} IS NULL")).drop(_TEXT)


def _bounded(frame: DataFrame) -> DataFrame:
    inside = f"{_RAW} BETWEEN {c.MIN_US}L AND {c.MAX_US}L"
    columns = {US: f"IF({inside}, {_RAW}, NULL)", BAD: f"{_RAW} IS NOT NULL AND NOT {inside}"}
    return c.with_sql(frame, columns).drop(_RAW)
