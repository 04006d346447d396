"""From a record of the arrival log to an event with a time: event time, unit, timeline, and who has none.

Here: what one row says by itself. Not here: tolerances (arrival_policies.py), watermarks (watermarks.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import (
    ARRIVAL,
    EVENT_TIME,
    MALFORMED,
    ONE_TIMELINE,
    REASON,
    SOURCE,
    TIMELINE,
    T,
    floor_to,
    to_instant,
    to_us,
)
from tidemark.timeops.events.instants import BAD, FAILED, US, with_instant
from tidemark.timeops.expressions.try_expression import text_of
from tidemark.timeops.rules import TimeRules

REFUSED_AT_INGESTION = ("malformed", "no_arrival_time")
"""Reasons of records that belong to no timeline or split and are no activity."""


def extract(items: DataFrame, rules: TimeRules) -> DataFrame:
    """Adds event time, unit, timeline and, where there is none, the reason.

    Args:
        items: Records of the arrival log.
        rules: The rules of time.

    Returns:
        `items` with `_event_time` TIMESTAMP (null without one), `__t` (cut down to the unit, H), `_timeline`
        STRING, and `__reason`: `malformed`, `no_arrival_time`, `bad_expression`, `bad_timestamp`,
        `no_timestamp` or null.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    reason = (
        F.when(F.col(MALFORMED).isNotNull(), "malformed")
        .when(F.col(ARRIVAL).isNull(), "no_arrival_time")
        .when(F.col(FAILED), "bad_expression")
        .when(F.col(BAD), "bad_timestamp")
        .when(F.col(US).isNull(), "no_timestamp")
    )
    timed = _with_event_time(items, rules).withColumns({REASON: reason, TIMELINE: timeline(items, rules.time.over)})
    usable = F.when(F.col(REASON).isNull(), F.col(US))
    return timed.withColumns({EVENT_TIME: to_instant(usable), T: floor_to(usable, rules.time.unit_us)}).drop(
        US, FAILED, BAD
    )


def timeline(items: DataFrame, over: tuple[str, ...]) -> Column:
    """`_timeline`: the `over` values as a compact JSON array of strings or null, `[]` without (A1 substreams)."""
    if not over:
        return F.lit(ONE_TIMELINE)
    return F.to_json(F.array(*[text_of(items, e) for e in over]))


def _with_event_time(items: DataFrame, rules: TimeRules) -> DataFrame:
    expressions = rules.event_times
    if len(expressions) == 1:
        return _of_expression(items, expressions[0].timestamp_by, expressions[0].time_zone)
    found = items
    parts = (US, FAILED, BAD)
    chosen: dict[str, Column] = {name: F.lit(None) for name in parts}
    for number, one in enumerate(expressions):
        own = F.col(SOURCE).isin(*one.sources)
        # The expression of one source must not be asked of another's records.
        by = None if one.timestamp_by is None else f"CASE WHEN {_is_of(one.sources)} THEN ({one.timestamp_by}) END"
        names = {name: f"{name}{number}" for name in parts}
        found = _of_expression(found, by, one.time_zone).withColumnsRenamed(names)
        chosen = {name: F.when(own, F.col(names[name])).otherwise(chosen[name]) for name in parts}
    return found.withColumns(chosen).drop(*[f"{name}{n}" for name in parts for n in range(len(expressions))])


def _is_of(sources: tuple[str, ...]) -> str:
    """SQL: the record is of one of these sources, whose names are plain words."""
    return f"{SOURCE} IN ({', '.join(repr(name) for name in sources)})"


def _of_expression(items: DataFrame, timestamp_by: str | None, time_zone: str) -> DataFrame:
    if timestamp_by is None:  # processing time: A1 and A2's System.Timestamp without TIMESTAMP BY
        return items.withColumns({US: to_us(ARRIVAL), FAILED: F.lit(False), BAD: F.lit(False)})
    return with_instant(items, timestamp_by, time_zone, where="timestamp_by")
