"""Session windows over a segment of the log: which events are in which session, which sessions close, late events.

Here: chains of events at most a gap apart (M, F), as gaps and islands by window functions. Not here: the cases in
which one event after the other must be looked at (session_folds.py; after a flush drained.py), when exactly a session
closed (dating.py).

Under drop and adjust no accepted event is behind the watermark, so none can touch a session that has closed, and the
chains are the sessions. Under `keep` they are too, unless an event of the chain came more than the allowed lateness
behind the watermark: only such an event finds closed sessions within its gap.
"""

from dataclasses import dataclass
from typing import ClassVar

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, LATENESS, MIN_US, SEQ, T_FINAL, TIMELINE, W_BEFORE, same_in, to_us
from tidemark.timeops.grid import close_time
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.windows.aggregates import results_of
from tidemark.timeops.windows.dating import W_END, with_both_ends, with_end, with_first_watermarks
from tidemark.timeops.windows.drained import refused_by_flush
from tidemark.timeops.windows.membership import (
    BY_FLUSH,
    CHANGED_BY,
    END,
    ENDS,
    FILTERED,
    FRESH,
    MISSED,
    MISSED_FROM,
    RANK,
    START,
    Rank,
    group_names,
    left_out,
    no_ends,
    takes_part,
    with_groups,
)
from tidemark.timeops.windows.segment import WindowSegment, with_end_once
from tidemark.timeops.windows.session_folds import BOUNDS, CHAIN, LAST, RISKY, bounds_of, cut_long, merge_late

_BEGINS = "__tm_begins"
_BOUNDS, _MADE_BY = "__tm_bounds", "__tm_made_by"


@dataclass(frozen=True)
class Sessions:
    """Sessions: windows that merge; see kinds.WindowKind for what each method is."""

    window: WindowSpec
    keys: ClassVar[tuple[str, ...]] = (TIMELINE, START, END)
    """With late events two of them may have one start, but not one end; bounds that are revised may share both."""
    merges: ClassVar[bool] = True
    needs_others: ClassVar[bool] = True
    needs_after_flush: ClassVar[bool] = False

    @property
    def reach_us(self) -> int:
        """A session of a longest duration may end sooner than a gap behind an event, but not before its last one."""
        return self.window.gap_us if self.window.max_duration is None else 0

    def start_of(self, end_us: Column) -> Column:
        """Start of the session of one event with this end."""
        return end_us - F.lit(self.window.gap_us)

    def with_start(self, rows: DataFrame) -> DataFrame:
        """The rows of sessions, which have their start."""
        return rows

    def place(self, events: DataFrame) -> DataFrame:
        """Adds the session that each event would begin, as if it were on time: which are late shows beside others."""
        own = F.array(F.col(T_FINAL) + F.lit(self.window.gap_us))
        placed = events.withColumn(FILTERED, left_out(events, self.window))
        return placed.withColumns({ENDS: F.when(F.col(FILTERED), no_ends()).otherwise(own), MISSED: no_ends()})

    def placed(self, segment: WindowSegment, /) -> DataFrame | None:
        """The events, each with its session. None where each who asks finds them: of revised ones, and of results."""
        if self.window.revises or self.window.input is not None:
            return None
        return sessions_of(segment.events, self.window, segment.adjusted.rules.time, segment.drained)

    def closed_contents(self, segment: WindowSegment) -> DataFrame:
        """Events of the sessions that close in the segment, with `__tm_start` and `__tm_end`."""
        found = self._placed(segment.events, segment).where(F.col(START).isNotNull())
        if segment.flushed:
            return found
        known = with_end(found, segment.adjusted.state)
        return known.where(close_time(F.col(END), self.window) <= F.col(W_END)).drop(W_END)

    def closed_results(self, segment: WindowSegment) -> DataFrame:
        """Results of the sessions that close in the segment, computed once, as they are read again to date them."""
        return segment.materialize(results_of(self.closed_contents(segment), self.keys, self.window))

    def dated(self, results: DataFrame, segment: WindowSegment) -> DataFrame:
        """Adds `_watermark`, just after the item that closed the session."""
        return with_first_watermarks(results, segment.adjusted, self.window)

    def contents_so_far(self, segment: WindowSegment, rank: Rank) -> DataFrame:
        """Events of sessions that were open before the segment or began in it, once for each bounds that hold them.

        Bounds that earlier segments changed, and those that no result can be of, are not among them.
        """
        held = self._by_bounds(segment)
        made = F.col(_MADE_BY)
        by_maker = rank(made["clock"], made["w"], made["seq"])
        own = rank(to_us(CLOCK), F.col(W_BEFORE), F.col(SEQ))
        came = with_both_ends(held, segment.adjusted).withColumn(RANK, F.greatest(own, by_maker))
        # An event of the segment made the bounds, and the row is in a result since this came.
        is_fresh = F.coalesce(made["fresh"] & (F.col(RANK) == by_maker), F.lit(False))
        return came.withColumn(FRESH, F.col(FRESH) | is_fresh).drop(_MADE_BY)

    def late_events(self, segment: WindowSegment) -> DataFrame:
        """Events that came when their session had closed, with `__tm_missed` (its end) and `__tm_lateness_us`.

        No open session was within the gap of such an event, so the session would have held it alone. With drained
        sessions also events that the flush keeps out, with `__tm_by_flush`, and `__tm_missed_from`, where the session
        begins that each would have given: others may be in it.
        """
        window = self.window
        events = segment.events
        late = self._placed(events, segment).where(F.col(START).isNull()).drop(START, END, *group_names(window))
        end = F.col(T_FINAL) + F.lit(window.gap_us)
        lateness = F.col(W_BEFORE) - end - F.lit(window.allowed_lateness_us)
        late = late.withColumns({MISSED: F.array(end), LATENESS: lateness})
        if segment.drained is None:
            return late
        passing = with_groups(events.where(takes_part(events, window)), window)
        refused = passing.drop(*group_names(window)).join(refused_by_flush(passing, segment.drained, window), SEQ)
        nothing = F.lit(None).cast("bigint")
        by_flush = {MISSED: F.array(END), LATENESS: nothing, BY_FLUSH: F.lit(True)}
        alone = {MISSED_FROM: self.start_of(F.element_at(MISSED, 1)), BY_FLUSH: F.lit(False)}
        return late.withColumns(alone).unionByName(refused.withColumns(by_flush).drop(END))

    def with_needed(self, events: DataFrame, segment: WindowSegment, into: str) -> DataFrame:
        """Adds BOOLEAN `into`: the event is in a session that is still open."""
        found = with_end_once(self._placed(events, segment), segment.adjusted.state)
        is_open = F.coalesce(close_time(F.col(END), self.window) > F.col(W_END), F.lit(True))
        marked = found.withColumn(into, F.col(START).isNotNull() & is_open)
        others = events.where(~takes_part(events, self.window))
        if segment.drained is not None:  # those that the flush keeps out of this window may be in another
            others = events.join(found.select(SEQ), SEQ, "left_anti").select(*events.columns)
        columns = [F.col(f"`{name}`") for name in events.columns]
        return marked.select(*columns, into).unionByName(others.withColumn(into, F.lit(False)))

    def needed_from(self, _watermark_us: int, /) -> int:
        """A session may have begun at any time."""
        return MIN_US

    def _placed(self, events: DataFrame, segment: WindowSegment) -> DataFrame:
        if segment.placed is not None:
            return segment.placed
        return sessions_of(events, self.window, segment.adjusted.rules.time, segment.drained)

    def _by_bounds(self, segment: WindowSegment) -> DataFrame:
        """The events once for each bounds at which they are in the session, with `__tm_made_by` and CHANGED_BY."""
        window = self.window
        placed = sessions_of(segment.fresh_and_known, window, segment.adjusted.rules.time)
        found = segment.materialize(placed.where(F.col(START).isNotNull()))
        keys = [TIMELINE, *group_names(window), START, END]
        came = F.struct(
            F.col(SEQ).alias("seq"),
            F.col(T_FINAL).alias("t"),
            F.col(W_BEFORE).alias("w"),
            to_us(CLOCK).alias("clock"),
            F.col(FRESH).alias("fresh"),
        )
        spans = bounds_of(F.sort_array(F.collect_list(came)), window)
        if window.early_every_us is None:  # of events that came in order none finds a session that W has passed
            whole = F.array(F.struct(F.col(START), F.col(END) - F.lit(window.gap_us), F.lit(None), F.lit(None)))
            spans = F.when(F.bool_or(F.col(W_BEFORE).isNotNull()), spans).otherwise(whole.cast(BOUNDS))
        bounds = found.groupBy(*keys).agg(spans.alias(_BOUNDS)).select(*keys, F.explode(_BOUNDS).alias(_BOUNDS))
        t, one = F.col(f"event.{T_FINAL}"), F.col(f"bounds.{_BOUNDS}")
        inside = (one["first"] <= t) & (t <= one["last"])
        in_time = F.coalesce(F.col(f"event.{SEQ}") < one["changed_by"]["seq"], F.lit(True))
        same = same_in("event", "bounds", keys)
        held = found.alias("event").join(bounds.alias("bounds"), same & inside & in_time)
        return held.select(
            *[F.col(f"event.`{name}`") for name in found.columns if name not in (START, END)],
            one["first"].alias(START),
            (one["last"] + F.lit(window.gap_us)).alias(END),
            one["made_by"].alias(_MADE_BY),
            one["changed_by"].alias(CHANGED_BY),
        )


def sessions_of(events: DataFrame, window: WindowSpec, time: TimeSpec, drained: DataFrame | None = None) -> DataFrame:
    """The session of every event that takes part, as it is after the segment.

    Args:
        events: Events that earlier segments kept, with `membership.OPEN_IN` and null `__tm_w_before`, and the
            accepted ones of this segment.
        window: The window.
        time: The spec's `time` section, for its policy.
        drained: Sessions that an earlier flush closed, see drained.py; by default none.

    Returns:
        The events that pass the window's filter and belong to no session that had closed before the segment, with
        the group columns of `membership.with_groups`, `__tm_start` and `__tm_end` (microseconds; both null of an
        event that came too late). Those that only a flush keeps out are not among them.
    """
    passing = with_groups(events.where(takes_part(events, window)), window)
    if drained is not None:
        passing = passing.join(refused_by_flush(passing, drained, window).select(SEQ), SEQ, "left_anti")
    chains = _chains(passing, window, time)
    if time.out_of_order == "keep" and window.input is None:  # no result is ever late
        found = merge_late(chains, window)
    elif window.max_duration is not None:
        found = cut_long(chains, window)
    else:
        found = chains.withColumn(END, F.col(LAST) + F.lit(window.gap_us))
    return found.drop(CHAIN, LAST, RISKY)


def _chains(events: DataFrame, window: WindowSpec, time: TimeSpec) -> DataFrame:
    """Adds the chain of each event: `__tm_start`, `__tm_last`, `__tm_chain`, which names it, and `__tm_risky`.

    One shuffle by timeline and group serves all of it, and what is then aggregated by session.
    """
    keys = [TIMELINE, *group_names(window)]
    in_order = Window.partitionBy(*keys).orderBy(T_FINAL)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, 0)
    whole = Window.partitionBy(*keys, START)
    apart = F.col(T_FINAL) - F.lag(T_FINAL).over(in_order) > F.lit(window.gap_us)
    begun = events.withColumn(_BEGINS, F.when(F.coalesce(apart, F.lit(True)), F.col(T_FINAL)))
    # A number is the cheaper name. But results have none, and timelines may be of several logs, each with its own.
    first = F.min(SEQ).over(whole)
    if window.input is not None:
        name = F.struct(*keys, START)
    else:
        name = F.struct(TIMELINE, first.alias("first")) if time.over else first
    risky = F.coalesce(F.col(T_FINAL) + F.lit(window.allowed_lateness_us) < F.col(W_BEFORE), F.lit(False))
    return (
        begun.withColumn(START, F.max(_BEGINS).over(so_far))
        .withColumns(
            {
                LAST: F.max(T_FINAL).over(whole),
                CHAIN: name,
                RISKY: F.max(risky).over(whole),
            }
        )
        .drop(_BEGINS)
    )
