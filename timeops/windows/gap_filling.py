"""Windows with no event (`empty: true`): their rows in a segment of the log.

Here: which windows are owed to a group, and at which item of the log; the groups that a window has seen, with the
first and the last window that held an event of each. Not here: windows that hold events (timeops/windows/aligned.py),
storage.

A group is owed a row for every window of the grid without an event of it. These windows lie between its first window
with one and the last window of its timeline that holds an event of any group, the last one included. So a group that
was seen once can never be forgotten. The row is due at the first item of the log at which the window is closed, and
an event has come into it or into a later one. Mostly that is the item that closes the window: the event that moves
the watermark past its end is in a later one. Else it has to be looked for: `may_wait`.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import (
    close_time,
    count_between,
    end_after,
    ends_between,
    last_closed,
    last_end_of,
    start_of,
)
from tidemark.timeops.errors import TidemarkError
from tidemark.timeops.events.adjustment import Adjusted, with_both_ends, with_end
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.expressions.try_expression import Columns, as_json
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.aggregates import with_aggregates
from tidemark.timeops.windows.segment import (
    AFTER_SEQ,
    BY_END,
    END,
    START,
    WindowSegment,
    columns_of,
    group_names,
    left_out,
    no_seq,
    not_passed,
    watermarks_after,
    with_groups,
)

Span = tuple[int, int]
"""Windows that begin at or after an instant and before another, microseconds."""

FIRST_END = "__tm_first_end"
"""BIGINT: end of the first window that held an event of the group, microseconds."""
LAST_END = "__tm_last_end"
"""BIGINT: the same of the last."""

_REACH_BEFORE, _REACH_AFTER = "__tm_reach_before", "__tm_reach_after"
# Of the ends of windows: from, to, and how many hold events.
_BEHIND, _UPTO, _HELD = "__tm_after", "__tm_upto", "__tm_held"
_IS_ASKED = "__tm_is_asked"
_BEFORE_ALL = -1  # before every _arrival_seq of a segment
REACHED_W = "__tm_reached_w"
"""BIGINT: the watermark just after the item at which a row was owed; null for no such item."""
_OWED = "rows for windows with no event, more than its `empty_max`"


def reaching(events: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the accepted events of a segment that reach a window on a grid.

    They have the group columns of `segment.with_groups`, and `__tm_first_end` and `__tm_last_end` of the windows
    that each reaches: the ones that it is in and that had not closed.
    """
    earliest = end_after(c.shifted(c.T_FINAL, -window.ends_inside_us), window)
    still_open = end_after(c.shifted(c.W_BEFORE, -window.closes_after_us), window)
    ends = {FIRST_END: f"greatest({earliest}, {still_open})", LAST_END: last_end_of(c.T_FINAL, window)}
    placed = with_groups(events.where(f"NOT {left_out(Columns.of(events), window)}"), window)
    return c.with_sql(placed, ends).where(f"{FIRST_END} <= {LAST_END}")


def seen_groups(events: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the groups of accepted events that reach a window on a grid, each once.

    The columns are `_timeline`, `segment.group_names`, `__tm_first_end` and `__tm_last_end`.
    """
    return once(reaching(events, window), window)


def once(rows: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the rows that several segments have in `seen_groups` as if they were one: each group once."""
    ends = (F.min(FIRST_END).alias(FIRST_END), F.max(LAST_END).alias(LAST_END))
    return rows.groupBy(c.TIMELINE, *group_names(window)).agg(*ends)


def changed_groups(before: DataFrame, fresh: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the groups of a segment that the rows of earlier ones lack, or say less of."""
    keys = [c.TIMELINE, *group_names(window)]
    new, old = fresh.alias("new"), before.alias("old")
    says_it = F.expr(f"old.{FIRST_END} <= new.{FIRST_END} AND old.{LAST_END} >= new.{LAST_END}")
    return new.join(old, c.same_in("new", "old", keys) & says_it, "left_anti")


def flushed_of_groups(groups: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    """Return the windows with `empty` that a flush closes: each group has a row up to the timeline's last.

    `groups` is `seen_groups` after the segment.
    """
    reach = groups.groupBy(c.TIMELINE).agg(F.max(LAST_END).alias("__tm_reach"))
    with_ends = with_end(groups.join(reach, c.TIMELINE), adjusted)
    first = F.expr(f"greatest({FIRST_END} - 1L, {last_closed(c.W_END, window)})")
    spans = with_ends.withColumn(_BEHIND, first).where(f"{_BEHIND} < __tm_reach")
    ends = f"explode({ends_between(_BEHIND, '__tm_reach', window)}) AS {END}"
    with_starts = spans.selectExpr(c.TIMELINE, *group_names(window), ends).withColumn(
        START, F.expr(start_of(END, window))
    )
    return not_passed(with_starts.select("*", no_seq()), adjusted, window).select(*columns_of(window))


def empty_rows(results: DataFrame, segment: WindowSegment, window: WindowSpec, only: Span | None) -> DataFrame:
    """Return the rows of windows with no event that a segment brings.

    `results` are the rows of the windows that close in it and hold events, by `segment.BY_END` and `group_names`,
    with the aggregates. Of the windows in `only` any number may be empty; without it `empty_max` may be.

    Returns:
        Rows of the columns of `results`, and `__tm_reached_w`, see `given_watermark`. Computing them fails where a
        group is owed too many: see `told_in_words`.
    """
    accepted = segment.adjusted.accepted
    fresh = reaching(accepted, window)
    groups = seen_groups(accepted.limit(0), window) if segment.seen is None else segment.seen
    rows = results.select(*BY_END, *group_names(window))
    if segment.flushed_windows is not None:  # their rows were given
        rows = rows.unionByName(segment.closing(segment.flushed_windows, window).select(*rows.columns))
    owed = _owed(rows, groups, fresh, segment, window, only=only)
    if may_wait(window, segment.adjusted.rules):
        dated = owed.join(_marks_reached(owed, groups, fresh, segment), [*BY_END], "left")
    else:
        dated = owed.withColumn(REACHED_W, F.lit(None).cast("bigint"))
    of_nothing = with_aggregates(accepted.where(F.lit(False)).groupBy(), window.aggregates)
    typed = [F.col(name).cast(results.schema[name].dataType).alias(name) for name in window.aggregates]
    return dated.crossJoin(F.broadcast(of_nothing.select(*typed)))


def may_wait(window: WindowSpec, rules: TimeRules) -> bool:
    """Return whether a window may be closed before an event has come into it or into a later one of its timeline.

    Otherwise the event with the largest t is in one, as it was accepted and the watermark is not above it.
    """
    return window.where is not None or window.has_gaps or rules.clock_moves


def given_watermark(window: WindowSpec) -> Column:
    """Return the `_watermark` of rows of `empty_rows` that have the one just after the item that closed the window.

    Where an event came into this or a later window after that item, it is the one just after that event.
    """
    return F.expr(f"IF({REACHED_W} >= {close_time(END, window)}, {REACHED_W}, {c.WATERMARK})")


def _owed(
    rows: DataFrame,
    groups_seen: DataFrame,
    fresh: DataFrame,
    segment: WindowSegment,
    window: WindowSpec,
    *,
    only: Span | None,
) -> DataFrame:
    """Return the windows without an event that the segment brings, by `segment.BY_END` and group columns.

    `rows` are the windows that have a row: they close in the segment and hold events, or a flush closed them.
    """
    groups = group_names(window)
    keys = [c.TIMELINE, *groups]
    held = rows.select(*keys, F.col(END).alias(FIRST_END), F.lit(1).alias(_HELD))
    both = groups_seen.select(*keys, FIRST_END, F.lit(0).alias(_HELD)).unionByName(held)
    of_groups = both.groupBy(*keys).agg(F.min(FIRST_END).alias(FIRST_END), F.sum(_HELD).alias(_HELD))
    spans = of_groups.join(_given_between(groups_seen, fresh, segment, window), c.TIMELINE)
    spans = spans.withColumn(_BEHIND, F.greatest(_BEHIND, F.col(FIRST_END) - F.lit(1)))
    start_us = segment.adjusted.rules.time.start_us
    if start_us is not None:
        spans = spans.withColumn(_BEHIND, F.greatest(_BEHIND, F.lit(start_us)))
    if only is None:
        spans = spans.withColumn(_UPTO, _unless_too_many(window))
    else:
        last_us = F.least(_UPTO, F.lit(only[1] + window.longest_us))
        spans = spans.withColumns({_BEHIND: F.greatest(_BEHIND, F.lit(only[0])), _UPTO: last_us})
    ends = f"explode({ends_between(_BEHIND, _UPTO, window)}) AS {END}"
    ends_owed = spans.where(f"{_BEHIND} < {_UPTO}").selectExpr(*keys, ends)
    return ends_owed.alias("each").join(
        rows.alias("held"), c.same_in("each", "held", [*BY_END, *groups]), "left_anti"
    )


def _given_between(groups: DataFrame, fresh: DataFrame, segment: WindowSegment, window: WindowSpec) -> DataFrame:
    """Find by timeline where the windows end that the segment brings rows of, empty ones and others.

    Returns:
        `_timeline`, `__tm_after` (null: from the first on), `__tm_upto`: before and after the segment, the end of
        the last window that is closed and that no event is missing for.
    """
    nothing = F.lit(None).cast("bigint")
    earlier = groups.select(c.TIMELINE, F.col(LAST_END).alias(_REACH_BEFORE), F.col(LAST_END).alias(_REACH_AFTER))
    both = earlier.unionByName(
        fresh.select(c.TIMELINE, nothing.alias(_REACH_BEFORE), F.col(LAST_END).alias(_REACH_AFTER))
    )
    reach = both.groupBy(c.TIMELINE).agg(*[F.max(name).alias(name) for name in (_REACH_BEFORE, _REACH_AFTER)])
    with_ends = with_both_ends(reach, segment.adjusted)
    before, after = last_closed(c.W_START, window), last_closed(c.W_END, window)
    behind = f"IF({_REACH_BEFORE} IS NOT NULL AND {before} IS NOT NULL, least({before}, {_REACH_BEFORE}), NULL)"
    upto = _REACH_AFTER if segment.flushed else f"IF({after} IS NOT NULL, least({after}, {_REACH_AFTER}), NULL)"
    return with_ends.selectExpr(c.TIMELINE, f"{behind} AS {_BEHIND}", f"{upto} AS {_UPTO}")


def _marks_reached(owed: DataFrame, groups: DataFrame, fresh: DataFrame, segment: WindowSegment) -> DataFrame:
    """Find when an event of the segment came into owed windows or later ones of their timelines.

    Returns:
        `segment.BY_END` and `__tm_reached_w` BIGINT, the watermark just after the item; null where that was before
        the segment.
    """
    reached_by = fresh.select(c.TIMELINE, F.col(LAST_END).alias(END), F.col(c.SEQ).alias(AFTER_SEQ))
    earlier = groups.select(
        c.TIMELINE, F.col(LAST_END).alias(END), F.lit(_BEFORE_ALL).cast("bigint").alias(AFTER_SEQ)
    )
    ends_asked = owed.select(*BY_END).distinct().withColumn(_IS_ASKED, F.lit(True))
    both = reached_by.unionByName(earlier).unionByName(ends_asked, allowMissingColumns=True)
    here_or_later = Window.partitionBy(c.TIMELINE).orderBy(F.desc(END))  # the same end counts, too
    first = both.withColumn(AFTER_SEQ, F.min(AFTER_SEQ).over(here_or_later)).where(F.col(_IS_ASKED))
    by_item = segment.execution.materialize(first.where(F.col(AFTER_SEQ) >= 0).select(*BY_END, AFTER_SEQ))
    places = by_item.select(c.TIMELINE, AFTER_SEQ).distinct()
    stood = watermarks_after(places, segment.adjusted).withColumnRenamed(c.WATERMARK, REACHED_W)
    return by_item.join(stood, [c.TIMELINE, AFTER_SEQ]).select(*BY_END, REACHED_W)


def _unless_too_many(window: WindowSpec) -> Column:
    """Return `__tm_upto`; where a group would be owed too many rows, computing it fails, before there are any."""
    count = f"({count_between(_BEHIND, _UPTO, window)} - {_HELD})"
    names = zip(group_names(window), window.group_columns, strict=True)
    groups = [f"{of} AS {quoted(name)}" for of, name in names]
    sentence = (
        literal(f"The window `{window.name}` adds"),
        *((literal(" to the group "), as_json(*groups)) if groups else ()),
        f"' ', {count}",
        literal(f" {_OWED}, {window.empty_max}, in one batch: they end from "),
        f"timestamp_micros({end_after(_BEHIND, window)}), ' to ', timestamp_micros({_UPTO}), ' (UTC).'",
    )
    refused = f"CAST(raise_error(concat({', '.join(sentence)})) AS BIGINT)"
    return F.expr(f"IF({count} > {window.empty_max}L, {refused}, {_UPTO})")


@contextmanager
def told_in_words() -> Iterator[None]:
    """Turn the failure of a computation that meets too many windows with no event into an error with a remedy.

    Raises:
        TidemarkError: A group is owed more rows than `empty_max`.
    """
    try:
        yield
    except PySparkException as error:
        message = (error.getMessageParameters() or {}).get("errorMessage", "")
        if _OWED not in message:
            raise
        raise TidemarkError(
            message,
            expected="times of a group that are closer together: every window between them is a row",
            remedy="look for an event with a wrong time, which `early` or `late` of `time` can refuse; or raise "
            "`empty_max`; or process less at once (--max-events-per-batch)",
        ) from error
