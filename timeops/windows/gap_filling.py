"""Windows with no event (`empty: true`): the rows of them that a segment of the log gives.

Here: which windows are owed to a group, and at which item of the log. Not here: the groups that were seen
(seen_groups.py), windows that hold events (aligned.py).

A group is owed a row for every window of the grid without an event of it, from its first window with one to the last
window of its timeline that holds an event of any group. The row is given at the first item of the log at which the
window is closed, and an event has come into it or into a later one. Mostly the item that closes the window is that:
the event that moves the watermark behind its end is in a later one. Else it has to be looked for: `may_wait`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, SEQ, TIMELINE, WATERMARK, same_in, to_instant, to_us
from tidemark.timeops.errors import TidemarkError
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.expressions.try_expression import as_json
from tidemark.timeops.grid import close_time, count_between, end_after, ends_between, last_closed
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.aggregates import with_aggregates
from tidemark.timeops.windows.aligned import KEYS, closes_in
from tidemark.timeops.windows.grid_bounds import LONGEST_MONTH_US
from tidemark.timeops.windows.log_items import AT
from tidemark.timeops.windows.membership import END, group_names
from tidemark.timeops.windows.seen_groups import FIRST_END, LAST_END, reaching, seen_groups
from tidemark.timeops.windows.segment_ends import W_END, W_START, with_both_ends
from tidemark.timeops.windows.watermark_at import AFTER_SEQ, watermarks_after

Span = tuple[int, int]
"""Windows that begin at or behind an instant and before another, microseconds."""

_REACH_BEFORE, _REACH_AFTER = "__reach_before", "__reach_after"
_BEHIND, _UPTO, _HELD = "__behind", "__upto", "__held"  # of the ends of windows: from, to, and how many hold events
_REACHED_BY = "__reached_by"
REACHED_W = "__reached_w"  # BIGINT: the watermark just after the item at which a row was owed; null for no such item
_OWED = "rows for windows with no event, more than its `empty_max`"


def empty_rows(
    found: DataFrame,
    adjusted: Adjusted,
    window: WindowSpec,
    seen: DataFrame | None,
    stay_closed: DataFrame | None,
    *,
    flushed: bool,
    only: Span | None,
) -> DataFrame:
    """The rows of windows with no event that a segment gives.

    Args:
        found: Those of the windows that close in it and hold events, by aligned.KEYS and `membership.group_names`,
            with the aggregates.
        adjusted: The segment.
        window: The window.
        seen: `seen_groups.seen_groups` before the segment; None for none.
        stay_closed: Windows that an earlier flush closed: their rows were given. None for none.
        flushed: As for `windows.window_results`.
        only: Windows that are asked for, of which any number may be empty; None for all, of which `empty_max` may.

    Returns:
        Rows of the columns of `found`, and `__reached_w`, see `given_watermark`. Computing them fails where a group
        is owed too many: see `told_in_words`.
    """
    fresh = reaching(adjusted.accepted, window)
    known = seen_groups(adjusted.accepted.limit(0), window) if seen is None else seen
    given = found.select(*KEYS, *group_names(window))
    if stay_closed is not None:
        given = given.unionByName(closes_in(stay_closed, adjusted, window, flushed=flushed).select(*given.columns))
    owed = _owed(given, known, fresh, adjusted, window, flushed=flushed, only=only)
    nothing = F.lit(None).cast("bigint")
    if may_wait(window, adjusted.rules):
        dated = owed.join(_reached(owed, known, fresh, adjusted), [*KEYS], "left")
    else:
        dated = owed.withColumn(REACHED_W, nothing)
    of_nothing = with_aggregates(adjusted.accepted.where(F.lit(False)).groupBy(), window.aggregates)
    typed = [F.col(name).cast(found.schema[name].dataType).alias(name) for name in window.aggregates]
    return dated.crossJoin(F.broadcast(of_nothing.select(*typed)))


def may_wait(window: WindowSpec, rules: TimeRules) -> bool:
    """Whether a window may be closed before an event has come into it or into a later one of its timeline.

    Otherwise the event with the largest t is in one, as it was accepted and the watermark is not above it.
    """
    has_gaps = window.kind == "hopping" and window.end_step_us > window.size_us
    return window.where is not None or has_gaps or rules.clock_moves


def given_watermark(window: WindowSpec) -> Column:
    """`_watermark` of rows of `empty_rows` that have the one just after the item that closed the window.

    Where an event came into this or a later window behind that item, it is the one just after that event.
    """
    was_closed = F.col(REACHED_W) >= close_time(F.col(END), window)
    return F.when(was_closed, F.col(REACHED_W)).otherwise(F.col(WATERMARK))


def _owed(
    given: DataFrame,
    seen: DataFrame,
    fresh: DataFrame,
    adjusted: Adjusted,
    window: WindowSpec,
    *,
    flushed: bool,
    only: Span | None,
) -> DataFrame:
    """The windows without an event that the segment gives, by aligned.KEYS and group columns.

    `given` are those of which there is a row: they close in the segment and hold events, or a flush closed them.
    """
    groups = group_names(window)
    keys = [TIMELINE, *groups]
    held = given.select(*keys, F.col(END).alias(FIRST_END), F.lit(1).alias(_HELD))
    both = seen.select(*keys, FIRST_END, F.lit(0).alias(_HELD)).unionByName(held)
    of_groups = both.groupBy(*keys).agg(F.min(FIRST_END).alias(FIRST_END), F.sum(_HELD).alias(_HELD))
    spans = of_groups.join(_given_between(seen, fresh, adjusted, window, flushed=flushed), TIMELINE)
    spans = spans.withColumn(_BEHIND, F.greatest(_BEHIND, F.col(FIRST_END) - F.lit(1)))
    if adjusted.rules.time.start_us is not None:
        spans = spans.withColumn(_BEHIND, F.greatest(_BEHIND, F.lit(adjusted.rules.time.start_us)))
    if only is None:
        spans = spans.withColumn(_UPTO, _unless_too_many(window))
    else:
        longest_us = LONGEST_MONTH_US if window.calendar else window.size_us
        last_us = F.least(_UPTO, F.lit(only[1] + longest_us))
        spans = spans.withColumns({_BEHIND: F.greatest(_BEHIND, F.lit(only[0])), _UPTO: last_us})
    ends = F.explode(ends_between(F.col(_BEHIND), F.col(_UPTO), window)).alias(END)
    each = spans.where(F.col(_BEHIND) < F.col(_UPTO)).select(*keys, ends)
    return each.alias("each").join(given.alias("held"), same_in("each", "held", [*KEYS, *groups]), "left_anti")


def _given_between(
    seen: DataFrame, fresh: DataFrame, adjusted: Adjusted, window: WindowSpec, *, flushed: bool
) -> DataFrame:
    """By timeline where the ends lie of the windows that the segment gives rows of, empty ones and others.

    Returns:
        `_timeline`, `__behind` (null: from the first on), `__upto`: before and after the segment, the end of the last
        window that is closed and that no event is missing for.
    """
    nothing = F.lit(None).cast("bigint")
    earlier = seen.select(TIMELINE, F.col(LAST_END).alias(_REACH_BEFORE), F.col(LAST_END).alias(_REACH_AFTER))
    both = earlier.unionByName(
        fresh.select(TIMELINE, nothing.alias(_REACH_BEFORE), F.col(LAST_END).alias(_REACH_AFTER))
    )
    reach = both.groupBy(TIMELINE).agg(*[F.max(name).alias(name) for name in (_REACH_BEFORE, _REACH_AFTER)])
    known = with_both_ends(reach, adjusted)
    before, after = last_closed(F.col(W_START), window), last_closed(F.col(W_END), window)
    given = F.when(F.col(_REACH_BEFORE).isNotNull() & before.isNotNull(), F.least(before, _REACH_BEFORE))
    upto = F.col(_REACH_AFTER) if flushed else F.when(after.isNotNull(), F.least(after, _REACH_AFTER))
    return known.select(TIMELINE, given.alias(_BEHIND), upto.alias(_UPTO))


def _reached(owed: DataFrame, seen: DataFrame, fresh: DataFrame, adjusted: Adjusted) -> DataFrame:
    """When an event of the segment came into owed windows or later ones of their timelines.

    Returns:
        aligned.KEYS and `__reached_w` BIGINT, the watermark just after the item; null where that was before the
        segment.
    """
    item = F.struct(F.col(SEQ).alias("seq"), to_us(CLOCK).alias("at"))
    before = F.struct(F.lit(-1).cast("bigint").alias("seq"), F.lit(None).cast("bigint").alias("at"))
    marks = fresh.select(TIMELINE, F.col(LAST_END).alias(END), item.alias(_REACHED_BY)).unionByName(
        seen.select(TIMELINE, F.col(LAST_END).alias(END), before.alias(_REACHED_BY))
    )
    firsts = marks.groupBy(*KEYS).agg(F.min(_REACHED_BY).alias(_REACHED_BY))
    asked = owed.select(*KEYS).distinct().withColumn("__asked", F.lit(True))
    from_above = Window.partitionBy(TIMELINE).orderBy(F.desc(END))  # with peers: the window itself counts
    both = asked.unionByName(firsts, allowMissingColumns=True)
    found = both.withColumn(_REACHED_BY, F.min(_REACHED_BY).over(from_above)).where("__asked")
    by_item = found.select(
        *KEYS, F.col(_REACHED_BY)["seq"].alias(AFTER_SEQ), F.col(_REACHED_BY)["at"].alias(AT)
    ).where(F.col(AFTER_SEQ) >= 0)
    places = by_item.select(TIMELINE, AFTER_SEQ, AT).distinct()
    stood = watermarks_after(places, adjusted).select(TIMELINE, AFTER_SEQ, F.col(WATERMARK).alias(REACHED_W))
    return by_item.join(stood, [TIMELINE, AFTER_SEQ]).select(*KEYS, REACHED_W)


def _unless_too_many(window: WindowSpec) -> Column:
    """`__upto`; where a group would be owed too many rows, computing it fails, before there are any."""
    count = count_between(F.col(_BEHIND), F.col(_UPTO), window) - F.col(_HELD)
    groups = [F.col(of).alias(name) for of, name in zip(group_names(window), window.group_columns, strict=True)]
    group = [F.lit(" to the group "), as_json(*groups)] if groups else []
    sentence = F.concat(
        F.lit(f"The window `{window.name}` gives"),
        *group,
        F.lit(" "),
        count.cast("string"),
        F.lit(f" {_OWED}, {window.empty_max}, in one batch: they end from "),
        to_instant(end_after(F.col(_BEHIND), window)).cast("string"),
        F.lit(" to "),
        to_instant(_UPTO).cast("string"),
        F.lit(" (UTC)."),
    )
    refused = F.raise_error(sentence).cast("bigint")
    return F.when(count > F.lit(window.empty_max), refused).otherwise(F.col(_UPTO))


@contextmanager
def told_in_words() -> Iterator[None]:
    """Turns the failure of a computation that meets too many windows with no event into an error with a remedy.

    Raises:
        TidemarkError: A group is owed more rows than `empty_max`.
    """
    try:
        yield
    except PySparkException as error:
        found = (error.getMessageParameters() or {}).get("errorMessage", "")
        if _OWED not in found:
            raise
        raise TidemarkError(
            found,
            expected="times of a group that are closer together: every window between them is a row",
            remedy="look for an event with a wrong time, which `early` or `late` of `time` can refuse; or raise "
            "`empty_max`; or process less at once (--max-events-per-batch)",
        ) from error
