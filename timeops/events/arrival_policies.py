"""Rules 1 and 2: events too early or too late against their own arrival (A2).

Here: comparisons of event time with arrival time. Not here: watermarks; these rules know no timeline.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import (
    ADJUSTED_BY,
    ARRIVAL,
    EVENT_TIME,
    LATENESS,
    MIN_US,
    REASON,
    T,
    floor_to,
    to_us,
)
from tidemark.timeops.spec import TimeSpec


def judge_arrival(events: DataFrame, time: TimeSpec) -> DataFrame:
    """Drops or adjusts events that are early or late against their arrival, in that order.

    Args:
        events: Rows of `extract`.
        time: The spec's `time` section.

    Returns:
        `events` with `__reason` set to `early` or `late_arrival` where an event is refused, `__t` moved where
        one is adjusted, `_adjusted_by` ARRAY<STRING>, and `__lateness_us`: by how much the tolerance was too small.
    """
    ahead = to_us(EVENT_TIME) - to_us(ARRIVAL)
    is_early = _beyond(ahead, time.early.tolerance_us) if time.early else F.lit(False)
    is_late = _beyond(-ahead, time.late.tolerance_us) if time.late else F.lit(False)
    early_us = ahead - early_limit(time)
    late_us = -ahead - late_limit(time)
    drops_early = is_early if time.early and time.early.policy == "drop" else F.lit(False)
    drops_late = is_late if time.late and time.late.policy == "drop" else F.lit(False)
    reason = F.coalesce(REASON, F.when(drops_early, "early").when(drops_late, "late_arrival"))
    moved = (
        F.when(is_early, floor_to(to_us(ARRIVAL) + early_limit(time), time.unit_us))
        .when(is_late, F.greatest(F.lit(MIN_US), floor_to(to_us(ARRIVAL) - late_limit(time), time.unit_us)))
        .otherwise(F.col(T))
    )
    no_names = F.array().cast("array<string>")
    adjusted_by = F.when(is_early, F.array(F.lit("early"))).when(is_late, F.array(F.lit("late")))
    return events.withColumns(
        {
            LATENESS: F.when(F.col(REASON).isNull(), F.when(drops_early, early_us).when(drops_late, late_us)),
            REASON: reason,
            T: F.when(reason.isNull(), moved),
            ADJUSTED_BY: F.when(reason.isNull(), F.coalesce(adjusted_by, no_names)).otherwise(no_names),
        }
    )


def early_limit(time: TimeSpec) -> Column:
    """Tolerance of the early policy in microseconds, 0 without one."""
    return F.lit(time.early.tolerance_us if time.early else 0)


def late_limit(time: TimeSpec) -> Column:
    """Tolerance of the late policy in microseconds, 0 without one."""
    return F.lit(time.late.tolerance_us if time.late else 0)


def _beyond(difference_us: Column, tolerance_us: int) -> Column:
    return F.coalesce(difference_us > F.lit(tolerance_us), F.lit(False))
