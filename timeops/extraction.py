"""From a record of the arrival log to an event with a time: event time, unit, timeline, and who has none.

Here: what one row says by itself. Not here: tolerances (policies.py), watermarks (watermarks.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timeops.columns import (
    ARRIVAL,
    EVENT_TIME,
    MALFORMED,
    ONE_TIMELINE,
    REASON,
    TIMELINE,
    T,
    floor_to,
    to_instant,
    to_us,
)
from timeops.instants import BAD, FAILED, US, with_instant
from timeops.safely import null_if_it_fails
from timeops.spec import TimeSpec


def extract(items: DataFrame, time: TimeSpec) -> DataFrame:
    """Adds event time, unit, timeline and, where there is none, the reason.

    Args:
        items: Records of the arrival log.
        time: The spec's `time` section.

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
    timed = _with_event_time(items, time).withColumns({REASON: reason, TIMELINE: timeline(items, time.over)})
    usable = F.when(F.col(REASON).isNull(), F.col(US))
    return timed.withColumns({EVENT_TIME: to_instant(usable), T: floor_to(usable, time.unit_us)}).drop(
        US, FAILED, BAD
    )


def timeline(items: DataFrame, over: tuple[str, ...]) -> Column:
    """`_timeline`: the `over` values as a compact JSON array of strings or null, `[]` without (A1 substreams)."""
    if not over:
        return F.lit(ONE_TIMELINE)
    return F.to_json(F.array(*[null_if_it_fails(items, e).cast("string") for e in over]))


def _with_event_time(items: DataFrame, time: TimeSpec) -> DataFrame:
    if time.timestamp_by is None:  # processing time: A1 and A2's System.Timestamp without TIMESTAMP BY
        return items.withColumns({US: to_us(ARRIVAL), FAILED: F.lit(False), BAD: F.lit(False)})
    return with_instant(items, time.timestamp_by, time.time_zone, where="time.timestamp_by")
