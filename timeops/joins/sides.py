"""The two sides of a join: which events they are, which of them came too late, which are needed after a segment.

Here: what one event says by itself, and the watermarks around the segment. Not here: which event of the right side an
event of the left side gets (as_of.py).

A left event is open until the watermark is further past it than `JoinSpec.closes_after_us`; what comes after that
changes nothing. A right event is useful until the watermark is further past it than `useful_for_us`: until then a
left event that takes it may be open, or may yet come.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import with_both_ends, with_end
from tidemark.timeops.expressions.tokens import literal, literals, quoted
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.windows.membership import FRESH
from tidemark.timeops.windows.segment import WindowSegment

IS_LEFT = "__tm_is_left"
"""BOOLEAN, never null: the event is of the left side."""


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


IS_FRESH_LEFT, IS_ANSWERED = "is_fresh_left", "is_answered"
IS_LATE_LEFT, IS_LATE_RIGHT = "is_late_left", "is_late_right"
FATES = (IS_FRESH_LEFT, IS_ANSWERED, IS_LATE_LEFT, IS_LATE_RIGHT)


def fates(segment: WindowSegment, join: JoinSpec) -> DataFrame:
    """Return the events of a join with FATES, four BOOLEAN, never null, that say what becomes of each in a segment.

    An event came in it and is of the left side; is of the left side and gets its last answer in it; came in it too
    late for the join, of the left or of the right side.
    """
    events = with_both_ends(with_side(segment.fresh_and_known, join), segment.adjusted)
    late = f"{FRESH} AND {came_too_late(join)}"
    is_open = f"NOT coalesce({_past_by(join)} < {c.W_START}, false)"
    closes = "true" if segment.flushed else f"coalesce({_past_by(join)} < {c.W_END}, false)"
    conditions = {
        IS_FRESH_LEFT: f"{FRESH} AND {IS_LEFT}",
        IS_ANSWERED: f"{IS_LEFT} AND NOT ({late}) AND {is_open} AND {closes}",
        IS_LATE_LEFT: f"{IS_LEFT} AND {late}",
        IS_LATE_RIGHT: f"NOT {IS_LEFT} AND {late}",
    }
    return events.selectExpr(*[f"{value} AS {name}" for name, value in conditions.items()])


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


def still_needed(segment: WindowSegment, join: JoinSpec) -> DataFrame:
    """Return the events that a join still needs after a segment, as they came, with IS_LEFT.

    Left events wait for their last answer, which a flush brings to all of them.
    """
    events = with_end(with_side(segment.events_as_they_came, join), segment.adjusted)
    is_passed = f"coalesce({_past_by(join)} < {c.W_END}, false)"
    of_side = f"IF({IS_LEFT}, {'false' if segment.flushed else 'true'}, {has_key(join)})"
    return events.where(f"NOT {came_too_late(join)} AND NOT {is_passed} AND {of_side}").drop(c.W_END)
