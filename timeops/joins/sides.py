"""The two sides of a join: which events they are, which of them came too late, which are needed after a segment.

Here: what one event says by itself, and the watermarks around the segment. Not here: which events meet (as_of.py,
interval.py).

A left event is open until the watermark is further past it than `JoinSpec.closes_after_us`; what comes after that
changes nothing. A right event is useful until the watermark is further past it than `useful_for_us`: until then a
left event that takes it may be open, or may yet come. In an interval join both sides are alike: an event is open
until the watermark is further than that past it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import with_both_ends, with_end
from tidemark.timeops.expressions.tokens import literal, literals, quoted
from tidemark.timeops.joins.gathering import IS_LEFT
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.windows.membership import FRESH
from tidemark.timeops.windows.segment import WindowSegment

IS_LATE = f"coalesce({c.W_BEFORE} > {c.T_FINAL}, false)"
"""SQL of a BOOLEAN, never null: the event came when the watermark had passed it."""


def with_side(events: DataFrame, join: JoinSpec) -> DataFrame:
    """Return the events of both sides, with IS_LEFT."""
    both = events.where(f"{c.SOURCE} IN ({literals(join.sources)})")
    return both.withColumn(IS_LEFT, F.expr(f"{c.SOURCE} = {literal(join.left.source)}"))


def has_key(join: JoinSpec) -> str:
    """Return SQL of a BOOLEAN, never null: no column of `on` is null, so that the event may meet others."""
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in join.on) or "true"


def _past_by(join: JoinSpec) -> str:
    """Return SQL: the watermark that an event of a side with IS_LEFT is too late for, or needed up to."""
    return f"({c.T_FINAL} + IF({IS_LEFT}, {join.closes_after_us}L, {join.useful_for_us}L))"


def came_too_late(join: JoinSpec) -> str:
    """Return SQL of a BOOLEAN, never null: when the event of a side came, the join could no longer take it."""
    return f"coalesce({c.W_BEFORE} > {_past_by(join)}, false)"


def is_open(join: JoinSpec) -> str:
    """Return SQL of a BOOLEAN, never null: the watermark before the segment, W_START, had not passed the event.

    Some that are passed may be stored still, as it costs more to take them out.
    """
    return f"NOT coalesce({_past_by(join)} < {c.W_START}, false)"


IS_FRESH_LEFT, IS_ANSWERED, IS_LATE_LEFT = "is_fresh_left", "is_answered", "is_late_left"
IS_FRESH_RIGHT, IS_PASSED_RIGHT, IS_LATE_RIGHT = "is_fresh_right", "is_passed_right", "is_late_right"
FATES = (IS_FRESH_LEFT, IS_ANSWERED, IS_LATE_LEFT, IS_FRESH_RIGHT, IS_PASSED_RIGHT, IS_LATE_RIGHT)


def fates(events: DataFrame, segment: WindowSegment, join: JoinSpec, *, by_flush: str = "true") -> DataFrame:
    """Return the events of a join with FATES, six BOOLEAN, never null, that say what becomes of each in a segment.

    An event of the left side came in it; gets its last answer in it; came in it too late for the join. The same of
    the right side, where the watermark passes an event instead.

    Args:
        events: The events of both sides that came in the segment or were known before, with IS_LEFT.
        segment: The segment.
        join: The join.
        by_flush: SQL of a BOOLEAN, never null: a flush closes the event.
    """
    with_ends = with_both_ends(events, segment.adjusted)
    late = f"{FRESH} AND {came_too_late(join)}"
    passed = f"coalesce({_past_by(join)} < {c.W_END}, false)"
    closes = f"({passed} OR {by_flush})" if segment.flushed else passed
    conditions: dict[str, str] = {}
    for side, names in ((IS_LEFT, FATES[:3]), (f"NOT {IS_LEFT}", FATES[3:])):
        fate = (FRESH, f"NOT ({late}) AND {is_open(join)} AND {closes}", late)
        conditions |= {name: f"{side} AND {value}" for name, value in zip(names, fate, strict=True)}
    return with_ends.selectExpr(*[f"{value} AS {name}" for name, value in conditions.items()])


def late_events(accepted: DataFrame, join: JoinSpec, *, clock_moves: bool) -> DataFrame:
    """Return the accepted events that came when a join could no longer take them.

    Returns:
        The events with `__tm_lateness_us`: the least extra allowed lateness that would have let the event in; null
        where the clock had raised the watermark.
    """
    late = with_side(accepted, join).where(came_too_late(join))
    lateness = f"{c.W_BEFORE} - {_past_by(join)}"
    if clock_moves:  # no lateness lets in what the clock has passed
        lateness = f"IF({c.W_SET_BY} IS NULL, NULL, {lateness})"
    return late.withColumn(c.LATENESS, F.expr(lateness))


def not_passed(segment: WindowSegment, join: JoinSpec) -> DataFrame:
    """Return the events of both sides that the watermark has not passed after a segment, as they came.

    Returns:
        The events with IS_LEFT and W_END.
    """
    events = with_end(with_side(segment.events_as_they_came, join), segment.adjusted)
    is_passed = f"coalesce({_past_by(join)} < {c.W_END}, false)"
    return events.where(f"NOT {came_too_late(join)} AND NOT {is_passed}")
