"""Session windows over a segment of the log: which events are in which session, which sessions close, late events.

Here: the loop (M, F), arrays in and arrays out; and what takes it to Spark: a few numbers of each event that takes
part come to the driver, and the bounds of their sessions go back, with the watermark just after the item that closed
these. Not here: the moments of revisions (timeops/windows/revisions.py).

An event keeps its session open from its time until a gap later, both ends included: of two events the gap of the
earlier one decides. Events of a group whose spans meet are a chain, and events of two chains never meet. Under drop
and adjust a chain is a session, cut where it is longer than `max_duration`. Only an event that came more than the
allowed lateness behind the watermark can meet a closed session. The events of a chain with such an event are taken
one after the other as they came, against the sessions open at that point. So are the events of a chain in which a
flush has closed a session. So are the events of sessions that revise their results, as each of their bounds may have
had one.

Instants and lengths are BIGINT microseconds; NONE means that there is no value. The same functions run as
they are on few events, and compiled on many.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import ADMITTED, with_both_ends
from tidemark.timeops.events.event_time import gap_us
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.narrow import as_flat, beside, fetched, numbers, to_join
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.instants import NEVER, NONE, Array, integers
from tidemark.timeops.watermark import fold
from tidemark.timeops.windows.segment import (
    BY_BOUNDS,
    BY_FLUSH,
    CHANGED_BY,
    END,
    ENDS,
    FILTERED,
    FRESH,
    MISSED,
    MISSED_FROM,
    NO_ENDS,
    RANK,
    START,
    Rank,
    WindowSegment,
    group_names,
    left_out,
    takes_part,
    with_groups,
)

# What becomes of an event that is in no session.
LATE = -1  # it meets no open session, and its own had closed
FLUSHED = -2  # a flush has closed the session that it would make

RULES = np.dtype(
    [
        ("lateness", "i8"),
        ("longest", "i8"),  # NEVER: as long as there are events
        ("keeps", "i8"),  # 1: events may be behind the watermark
        ("revises", "i8"),  # 1: the bounds are asked for
        ("early", "i8"),  # the period of results before the end; 0: they come when the watermark has passed it
    ]
)

CLOSED = np.dtype([("group", "i8"), ("start", "i8"), ("end", "i8")])
"""A session that an earlier flush has closed."""

SPAN = np.dtype([("root", "i8"), ("first", "i8"), ("until", "i8"), ("made_by", "i8")])
"""A session as it grows, named by its first event."""

BOUNDS = np.dtype([("session", "i8"), ("first", "i8"), ("until", "i8"), ("made_by", "i8"), ("changed_by", "i8")])
"""Bounds of a session, which is named by one of its events. `made_by` and `changed_by` are events by their place: -1
where they came in order and that is enough, or where the bounds last."""


class Came(NamedTuple):
    """Events that take part, in the order in which they came.

    Attributes:
        group: The number of the group, which is of one timeline.
        t: The timestamp.
        until: How long the event keeps its session open: its timestamp and its gap.
        watermark: The one just before an event that is out of order; else NONE. Empty under drop and adjust.
        is_known: Earlier segments have kept the event: it is in an open session.
        clock: The clock of the log; empty unless results are revised.
    """

    group: Array
    t: Array
    until: Array
    watermark: Array
    is_known: Array
    clock: Array


def came_alone(t: Array, gaps: Array, watermark: Array) -> Came:
    """Return events of one group that all came in one segment, for sessions that have one result."""
    none_is_known = np.zeros(len(t), bool)
    return Came(np.zeros(len(t), np.int64), t, t + gaps, watermark, none_is_known, np.zeros(0, np.int64))


@dataclass(frozen=True)
class FoundSessions:
    """The findings of the loop.

    Attributes:
        session: Of each event the session, named by one of its events; LATE or FLUSHED.
        start: Of each event the start of its session; where it is in none, of the session that it would make.
        end: The end of the same.
        bounds: BOUNDS of sessions that revise their results: changed ones that may have had a result, and the last.
    """

    session: Array
    start: Array
    end: Array
    bounds: Array


def rules_of_sessions(window: WindowSpec, *, keeps: bool) -> Array:
    """RULES of a window, one; `keeps` says that events may be behind the watermark."""
    longest, early = window.max_duration_us, window.early_every_us
    limits = (window.allowed_lateness_us, NEVER if longest is None else longest)
    return np.array([(*limits, int(keeps), int(window.revises), early or 0)], RULES)


def sessions(came: Came, closed: Array, rules: Array) -> FoundSessions:
    """Find the session of every event; `closed` are sessions of earlier flushes, `rules` RULES, one."""
    count, groups = len(came.t), 1 + int(came.group.max(initial=-1))
    of_groups = closed[(closed["group"] >= 0) & (closed["group"] < groups)]
    of_groups = of_groups[np.argsort(of_groups["group"], kind="stable")]
    session, first, until = np.zeros(count, np.int32), np.zeros(count, np.int64), np.zeros(count, np.int64)
    bounds = np.empty(2 * count if rules[0]["revises"] else 0, BOUNDS)
    small = count < fold.COMPILED_FROM
    n_bounds = (_find if small else fold.compiled(_find))(
        np.argsort(came.t, kind="stable").astype(np.int32),
        came._replace(group=came.group.astype(np.int32)),
        of_groups,
        np.searchsorted(of_groups["group"], np.arange(groups + 1)),
        rules[0],
        session,
        first,
        until,
        bounds,
    )
    at = np.where(session >= 0, session, np.arange(count, dtype=np.int32))
    first, until = first[at], until[at]
    if rules[0]["longest"] != NEVER:
        np.minimum(until, first + rules[0]["longest"], out=until)
    return FoundSessions(session, first, until, bounds[:n_bounds])


def _find(
    by_time: Array,
    came: Came,
    closed: Array,
    closed_from: Array,
    rules: Any,
    session: Array,
    first: Array,
    until: Array,
    bounds: Array,
) -> int:
    """Run the loop over chains; return how many rows of `bounds` it wrote."""
    group, t = came.group, came.t
    order = _by_group(by_time, group, len(closed_from))
    n_bounds, begin = 0, 0
    while begin < len(order):
        end, until_us = _end_of_chain(order, begin, came)
        chain, g = order[begin:end], group[order[begin]]
        of_group = closed[closed_from[g] : closed_from[g + 1]]
        if rules["longest"] != NEVER:
            if _may_meet(of_group, t[chain[0]], t[chain[-1]]):
                _refuse_cuts(np.sort(chain), came, of_group, rules, session, first, until)
            _cut(chain, came, rules, session, first, until)
        elif _may_meet(of_group, t[chain[0]], t[chain[-1]]) or _needs_order(chain, came, rules):
            n_bounds = _take(np.sort(chain), came, of_group, rules, session, first, until, bounds, n_bounds)
        else:
            for e in chain:
                session[e] = chain[0]
            first[chain[0]], until[chain[0]] = t[chain[0]], until_us
            if rules["revises"] == 1:
                n_bounds = _note(bounds, n_bounds, chain[0], t[chain[0]], until_us, -1, -1)
        begin = end
    return n_bounds


def _by_group(by_time: Array, group: Array, groups: int) -> Array:
    """Return events by group, in each by time, of one time as they came."""
    order, begins = np.empty_like(by_time), np.zeros(groups + 1, np.int64)
    for g in group:
        begins[g + 1] += 1
    for g in range(groups):
        begins[g + 1] += begins[g]
    for e in by_time:
        order[begins[group[e]]] = e
        begins[group[e]] += 1
    return order


def _end_of_chain(order: Array, begin: int, came: Came) -> tuple[int, int]:
    """Return the place after the last event of a chain, and how long its events keep it open."""
    group, end, until_us = came.group[order[begin]], begin + 1, came.until[order[begin]]
    while end < len(order) and came.group[order[end]] == group and came.t[order[end]] <= until_us:
        until_us = max(until_us, came.until[order[end]])
        end += 1
    return end, until_us


def _may_meet(closed: Array, earliest: int, latest: int) -> bool:
    """Return whether events of a chain may make a session that a flush has closed, as that begins within it."""
    return len(closed) > 0 and bool(((earliest <= closed["start"]) & (closed["start"] <= latest)).any())


def _needs_order(chain: Array, came: Came, rules: Any) -> bool:
    """Return whether arrival order affects the sessions of a chain."""
    if rules["revises"] == 1 and rules["early"] > 0:
        return True
    if rules["keeps"] == 0:
        return False
    for e in chain:
        w = came.watermark[e]
        if w != NONE and (rules["revises"] == 1 or came.t[e] + rules["lateness"] < w):
            return True
    return False


def _take(
    chain: Array,
    came: Came,
    closed: Array,
    rules: Any,
    session: Array,
    first: Array,
    until: Array,
    bounds: Array,
    n_bounds: int,
) -> int:
    """Take the events of a chain as they came, each next to the sessions that are open then (F)."""
    is_known, lateness, first_bound = came.is_known, rules["lateness"], n_bounds
    spans = np.empty(len(chain), SPAN)  # in order of time; from `low` on they are open
    low, high = 0, 0
    for e in chain:
        w = came.watermark[e] if rules["keeps"] == 1 else NONE
        while low < high and spans[low]["until"] + lateness < w:
            low += 1
        start, end_us = came.t[e], came.until[e]
        at, end = _near(spans, low, high, start, end_us)
        if end > at:
            start, end_us = min(start, spans[at]["first"]), max(end_us, spans[end - 1]["until"])
        if end == at and end_us + lateness < w and not is_known[e]:  # NONE is below all times
            session[e], first[e], until[e] = LATE, start, end_us
        elif not is_known[e] and _closed_by_flush(closed, start, end_us):
            session[e], first[e], until[e] = FLUSHED, start, end_us
        elif end - at == 1 and start == spans[at]["first"] and end_us == spans[at]["until"]:
            session[e] = spans[at]["root"]
        else:
            if rules["revises"] == 1 and not is_known[e]:
                n_bounds = _note_changed(spans[at:end], e, w, came.clock, rules, bounds, n_bounds)
            high = _put(spans, at, end, high, e, session)
            session[e] = spans[at]["root"]
            spans[at]["first"], spans[at]["until"], spans[at]["made_by"] = start, end_us, e
    n_bounds = _settle(spans[:high], rules, first, until, bounds, n_bounds)
    _follow(chain, session)
    for b in range(first_bound, n_bounds):
        bounds[b]["session"] = session[bounds[b]["session"]]
    return n_bounds


def _follow(chain: Array, session: Array) -> None:
    """Name the sessions of events by the sessions into which they were merged."""
    for e in chain:
        while session[e] >= 0 and session[session[e]] != session[e]:
            session[e] = session[session[e]]


def _settle(spans: Array, rules: Any, first: Array, until: Array, bounds: Array, n_bounds: int) -> int:
    """Write the sessions of a chain as they are after its last event."""
    for s in range(len(spans)):
        span = spans[s]
        first[span["root"]], until[span["root"]] = span["first"], span["until"]
        if rules["revises"] == 1:
            n_bounds = _note(bounds, n_bounds, span["root"], span["first"], span["until"], span["made_by"], -1)
    return n_bounds


def _near(spans: Array, low: int, high: int, first: int, until: int) -> tuple[int, int]:
    """Return the open sessions that meet a span, from one place on and before another."""
    at = high
    while at > low and spans[at - 1]["until"] >= first:
        at -= 1
    end = at
    while end < high and spans[end]["first"] <= until:
        end += 1
    return at, end


def _put(spans: Array, at: int, end: int, high: int, event: int, session: Array) -> int:
    """Make one session of the ones near an event, or a new one; return how many there are."""
    if end == at:
        for s in range(high, at, -1):
            spans[s] = spans[s - 1]
        spans[at]["root"] = event
        return high + 1
    for s in range(at + 1, end):
        session[spans[s]["root"]] = spans[at]["root"]
    for s in range(end, high):
        spans[at + 1 + s - end] = spans[s]
    return high - (end - at - 1)


def _note_changed(
    changed: Array, event: int, watermark: int, clock: Array, rules: Any, bounds: Array, n_bounds: int
) -> int:
    """Note the bounds that an event changes and that may have given a result by then."""
    for s in range(len(changed)):
        span = changed[s]
        if rules["early"] == 0:
            may_have = watermark != NONE and watermark > span["until"]
        else:
            may_have = (clock[span["made_by"]] // rules["early"] + 1) * rules["early"] <= clock[event]
        if may_have:
            n_bounds = _note(bounds, n_bounds, span["root"], span["first"], span["until"], span["made_by"], event)
    return n_bounds


def _closed_by_flush(closed: Array, start: int, end: int) -> bool:
    """Return whether a flush has closed a session of these bounds."""
    return len(closed) > 0 and bool(((closed["start"] == start) & (closed["end"] == end)).any())


def _note(bounds: Array, n_bounds: int, session: int, first: int, until: int, made_by: int, changed_by: int) -> int:
    row = bounds[n_bounds]
    row["session"], row["first"], row["until"] = session, first, until
    row["made_by"], row["changed_by"] = made_by, changed_by
    return n_bounds + 1


def _cut(chain: Array, came: Came, rules: Any, session: Array, first: Array, until: Array) -> None:
    """Cut a chain, without the events that are refused, into sessions of at most the longest duration."""
    t, root = came.t, -1
    for e in chain:
        if session[e] == FLUSHED:
            continue
        if root < 0 or t[e] > until[root] or t[e] - first[root] > rules["longest"]:
            root, first[e], until[e] = e, t[e], came.until[e]
        session[e], until[root] = root, max(until[root], came.until[e])


def _refuse_cuts(
    chain: Array, came: Came, closed: Array, rules: Any, session: Array, first: Array, until: Array
) -> None:
    """Refuse, as they came, the events that make a session which a flush has closed, or cut one off."""
    is_known, longest = came.is_known, rules["longest"]
    times, ends, count = np.empty(len(chain) + 1, np.int64), np.empty(len(chain) + 1, np.int64), 0
    for e in chain:
        at = np.searchsorted(times[:count], came.t[e])
        for s in range(count, at, -1):
            times[s], ends[s] = times[s - 1], ends[s - 1]
        times[at], ends[at], count = came.t[e], came.until[e], count + 1
        begin, until_us = 0, ends[0]
        for s in range(1, count + 1):
            if s < count and times[s] <= until_us and times[s] - times[begin] <= longest:
                until_us = max(until_us, ends[s])
                continue
            end = min(until_us, times[begin] + longest)
            if not is_known[e] and session[e] != FLUSHED and _closed_by_flush(closed, times[begin], end):
                session[e], first[e], until[e] = FLUSHED, times[begin], end
            if s < count:
                begin, until_us = s, ends[s]
        if session[e] == FLUSHED:
            for s in range(at, count - 1):
                times[s], ends[s] = times[s + 1], ends[s + 1]
            count -= 1


_SESSION = "__tm_session"  # names a session
_ADMITTED = "__tm_admitted"
_BEFORE_ALL = 2**62  # numbers of records are smaller
_FLAT = "__tm_flat"  # and the number of a column of the group
_FIRST, _UNTIL, _MADE_BY = "__tm_first", "__tm_until", "__tm_made_by"
_GAP = "__tm_gap"  # of an event, microseconds


@dataclass(frozen=True)
class PlacedInSessions:
    """The events of a segment that take part, with their sessions: on the driver.

    Attributes:
        rows: What the loop knows about them, in the order in which they came.
        keys: The columns of `rows` by which they are found again.
        spans: What the loop says.
        watermark: Just after the item that closed the session of each; NONE where no item of the segment did.
        late: How many accepted events of the segment are in none.
        flushed: The segment ends with a flush, which closes them all.
    """

    rows: pa.Table
    keys: tuple[str, ...]
    spans: FoundSessions
    watermark: Array
    late: int
    flushed: bool

    @property
    def is_in_one(self) -> Array:
        """Of each event, true if it is in a session."""
        return self.spans.session >= 0

    @property
    def is_closed(self) -> Array:
        """Of each event, true if it is in a session that closes in the segment."""
        return np.asarray(self.is_in_one & (self.flushed | (self.watermark != NONE)))

    def some(self, which: Array, **extra: Array) -> pa.Table:
        """Return the keys of some of them, and numbers that are known of all; NONE is null."""
        columns = {name: values[which] for name, values in extra.items()}
        nullable = {name: pa.array(values, pa.int64(), mask=values == NONE) for name, values in columns.items()}
        keys = self.rows.select(self.keys).filter(pa.array(which))
        return pa.table(dict(zip(self.keys, keys.columns, strict=True)) | nullable)


@dataclass(frozen=True)
class Sessions:
    """Sessions: windows that merge; see kinds.WindowKind for what each method is."""

    window: WindowSpec
    merges: ClassVar[bool] = True
    needs_others: ClassVar[bool] = True
    needs_after_flush: ClassVar[bool] = False
    result_keys: ClassVar[tuple[str, ...]] = (*BY_BOUNDS, c.WATERMARK)

    def start_of(self, end_us: str) -> str:  # noqa: ARG002
        """Return the column of late events that says where the session begins: it does not follow from the end."""
        return MISSED_FROM

    def place(self, events: DataFrame) -> DataFrame:
        """Add the session that each event would begin, as if it were on time: which are late shows next to others."""
        columns = Columns.of(events)
        ends = f"IF({FILTERED}, {NO_ENDS}, array({c.T_FINAL} + {gap_us(columns, self.window)}))"
        placed = events.withColumn(FILTERED, F.expr(left_out(columns, self.window)))
        return c.with_sql(placed, {ENDS: ends, MISSED: NO_ENDS})

    def placed(self, segment: WindowSegment, /) -> PlacedInSessions:
        """Return the events that take part, on the driver, each with its session."""
        keys: tuple[str, ...] = (c.SEQ,)
        if self.window.input is not None:  # results have no number; results of one time are in one session
            keys = (c.TIMELINE, *group_names(self.window), c.T_FINAL)
        elif len(segment.adjusted.watermarks.logs) > 1:  # which may number their records each by itself
            keys = (c.TIMELINE, c.SEQ)
        may_be_late = segment.adjusted.rules.time.out_of_order == "keep" or self.window.across
        keeps = may_be_late and self.window.input is None
        rows, group, closed = self._loop_input(segment, keys, keeps=keeps)
        t, one_gap = integers(rows[c.T_FINAL]), self.window.gap_by is None
        events = Came(
            group=group,
            t=t,
            until=t + (self.window.gap_us if one_gap else integers(rows[_GAP])),
            watermark=integers(rows[c.W_BEFORE]) if keeps else np.zeros(0, np.int64),
            is_known=~np.asarray(rows[FRESH], bool),
            clock=integers(rows[c.CLOCK]) if self.window.revises else np.zeros(0, np.int64),
        )
        if not self.window.revises:  # only the keys are asked for again
            rows = rows.select(dict.fromkeys([*keys, *({c.TIMELINE} & set(rows.column_names))]))
        spans = sessions(events, closed, rules_of_sessions(self.window, keeps=keeps))
        closing = self._closing_watermark(rows, spans, segment)
        late = int(((spans.session < 0) & ~events.is_known).sum())
        return PlacedInSessions(rows, keys, spans, closing, late, segment.flushed)

    def closed_contents(self, segment: WindowSegment) -> DataFrame:
        """Return the events of sessions that close in the segment, with `__tm_start`, `__tm_end` and `_watermark`."""
        placed = self._placed(segment)
        columns = {START: placed.spans.start, END: placed.spans.end, c.WATERMARK: placed.watermark}
        return self._beside(segment.events, placed.some(placed.is_closed, **columns), placed.keys)

    def dated(self, results: DataFrame, segment: WindowSegment) -> DataFrame:  # noqa: ARG002
        """Return the results, which have their `_watermark`."""
        return results

    def contents_so_far(self, segment: WindowSegment, rank: Rank) -> DataFrame:
        """Return events of sessions that were open before the segment or began in it, once for each of their bounds.

        Bounds that earlier segments changed, and bounds that no result can be of, are not among them.
        """
        placed = self._placed(segment)
        in_sessions = placed.some(placed.is_in_one, **{_SESSION: placed.spans.session})
        events, bounds = self._beside(segment.fresh_and_known, in_sessions, placed.keys), _bounds(placed)
        both = events.join(to_join(events.sparkSession, bounds), _SESSION)
        in_time = f"coalesce({c.SEQ} < {CHANGED_BY}.seq, true)"
        held = both.where(f"{c.T_FINAL} BETWEEN {_FIRST} AND {_UNTIL} AND {in_time}")
        held = c.with_sql(held, {START: _FIRST, END: _UNTIL})
        by_maker = rank(f"{_MADE_BY}.clock", f"{_MADE_BY}.w", f"{_MADE_BY}.seq")
        contents = with_both_ends(held, segment.adjusted)
        moment = rank(f"unix_micros({c.CLOCK})", c.W_BEFORE, c.SEQ)
        contents = contents.withColumn(RANK, F.expr(f"greatest({moment}, {by_maker})"))
        # An event of the segment made the bounds, and the row is in a result since this came.
        is_fresh = f"{FRESH} OR coalesce({_MADE_BY}.fresh AND {RANK} = {by_maker}, false)"
        return contents.withColumn(FRESH, F.expr(is_fresh)).drop(_MADE_BY, _SESSION, _FIRST, _UNTIL)

    def late_events(self, segment: WindowSegment) -> DataFrame:
        """Return events that came when their session had closed, with `__tm_missed` (its end) and `__tm_lateness_us`.

        Such an event met no open session, so the session would have held it alone. It begins at `__tm_missed_from`.
        With flushed sessions also events that the flush keeps out, with `__tm_by_flush`: others may be in the session
        that one would have made.
        """
        window, placed = self.window, self._placed(segment)
        by_flush = placed.spans.session == FLUSHED
        columns = {MISSED_FROM: placed.spans.start, END: placed.spans.end, BY_FLUSH: by_flush.astype(np.int64)}
        late = beside(segment.adjusted.accepted, placed.some(~placed.is_in_one, **columns), placed.keys)
        lateness = f"IF({BY_FLUSH} = 0, {c.W_BEFORE} - {c.shifted(END, window.allowed_lateness_us)}, NULL)"
        derived = {MISSED: f"array({END})", c.LATENESS: lateness, BY_FLUSH: f"{BY_FLUSH} <> 0"}
        late = c.with_sql(late, derived).drop(END)
        return late.drop(BY_FLUSH) if segment.flushed_windows is None else late

    def with_needed(self, events: DataFrame, segment: WindowSegment, into: str) -> DataFrame:
        """Add BOOLEAN `into`: the event is in a session that is still open."""
        placed = self._placed(segment)
        is_open = placed.is_in_one & ~placed.is_closed
        groups = group_names(self.window) if self.window.input is not None else []
        grouped = with_groups(events, self.window) if groups else events
        marked = beside(grouped, placed.some(is_open, **{into: placed.spans.session}), placed.keys, "left")
        is_in_one = f"{into} IS NOT NULL"
        if groups:  # else each event has keys of its own
            is_in_one += f" AND {takes_part(Columns.of(events), self.window)}"
        return marked.withColumn(into, F.expr(is_in_one)).drop(*groups)

    def needed_from(self, _watermark_us: int, /) -> int:
        """Return the lowest instant: a session may have begun at any time."""
        return c.MIN_US

    def _placed(self, segment: WindowSegment) -> PlacedInSessions:
        return segment.placed if segment.placed is not None else self.placed(segment)

    def _beside(self, events: DataFrame, added: pa.Table, keys: Sequence[str]) -> DataFrame:
        """Return the events for which something was found, with their groups."""
        if set(group_names(self.window)) <= set(keys):  # one that takes no part may have the keys of one that does
            taking = events.where(takes_part(Columns.of(events), self.window))
            return beside(with_groups(taking, self.window), added, keys)
        return with_groups(beside(events, added, keys), self.window)

    def _loop_input(
        self, segment: WindowSegment, keys: Sequence[str], *, keeps: bool
    ) -> tuple[pa.Table, Array, Array]:
        """Return what the loop takes: the events that take part, the numbers of their groups, CLOSED by flushes."""
        window, over = self.window, segment.adjusted.rules.time.over
        timeline = [c.TIMELINE] if over or window.input is not None else []
        by_group = [*timeline, *group_names(window)]
        events = segment.fresh_and_known
        taking = with_groups(events.where(takes_part(Columns.of(events), window)), window)
        # Known events of a window that has one result are in open sessions, whatever they met.
        met = c.W_BEFORE if window.revises else f"IF({FRESH}, {c.W_BEFORE}, NULL)"
        columns = [f"{met} AS {c.W_BEFORE}"] if keeps or window.revises else []
        columns += [f"unix_micros({c.CLOCK}) AS {c.CLOCK}"] if window.revises else []
        # Whatever their place in the log, the ones that were let in came before all others.
        columns += [f"array_contains({c.ADJUSTED_BY}, '{ADMITTED}') AS {_ADMITTED}"] if keeps else []
        columns += [f"{gap_us(Columns.of(taking), window)} AS {_GAP}"] if window.gap_by is not None else []
        named = dict.fromkeys([*keys, c.T_FINAL, FRESH, *timeline])
        narrow = taking.selectExpr(*named, *columns, *_flat(taking, by_group))
        if window.input is not None:  # results of one time are one, also of two segments; the longest gap counts
            kept_columns = [F.col(quoted(name)) for name in narrow.columns if name not in (_GAP, FRESH)]
            longest = [F.max(_GAP).alias(_GAP)] if window.gap_by is not None else []
            narrow = narrow.groupBy(*kept_columns).agg(F.bool_and(FRESH).alias(FRESH), *longest)
        if segment.flushed_windows is not None:
            flat = _flat(segment.flushed_windows, by_group)
            ends = (f"{START} AS {c.T_FINAL}", f"{END} AS {c.W_BEFORE}")
            closed = segment.flushed_windows.selectExpr(*ends, *flat)
            narrow = narrow.unionByName(closed, allowMissingColumns=True)
        rows = fetched(narrow, segment.adjusted.seqs)
        group = numbers(rows, [f"{_FLAT}{number}" for number in range(len(by_group))])
        rows = rows.drop_columns([f"{_FLAT}{number}" for number in range(len(by_group))])
        closed_by_flush = np.zeros(0, CLOSED)
        if segment.flushed_windows is not None:
            is_event = np.asarray(rows[FRESH].is_valid())
            closed_by_flush = np.zeros(int((~is_event).sum()), CLOSED)
            closed_by_flush["group"] = group[~is_event]
            closed_by_flush["start"] = integers(rows[c.T_FINAL])[~is_event]
            closed_by_flush["end"] = integers(rows[c.W_BEFORE])[~is_event]
            rows, group = rows.filter(pa.array(is_event)), group[is_event]
        if c.SEQ in keys:
            seq = integers(rows[c.SEQ])
            if keeps:
                seq = np.where(np.asarray(rows[_ADMITTED].fill_null(False)), seq - _BEFORE_ALL, seq)
                rows = rows.drop_columns(_ADMITTED)
            if (seq[1:] < seq[:-1]).any():
                order = np.argsort(seq, kind="stable")
                rows, group = rows.take(pa.array(order)), group[order]
        return rows, group, closed_by_flush

    def _closing_watermark(self, rows: pa.Table, spans: FoundSessions, segment: WindowSegment) -> Array:
        """Return by event the watermark just after the item that closed its session."""
        roots = np.flatnonzero(spans.session == np.arange(len(rows)))
        one_timeline = pa.chunked_array([pa.nulls(len(roots), pa.string()).fill_null(c.ONE_TIMELINE)])
        timeline = rows[c.TIMELINE].take(pa.array(roots)) if c.TIMELINE in rows.column_names else one_timeline
        closes_at = spans.end[roots] + self.window.closes_after_us
        of_sessions = np.full(len(rows) + 2, NONE)  # the last two are for LATE and FLUSHED
        of_sessions[roots] = segment.adjusted.watermarks.reaching(timeline, closes_at).watermark
        return of_sessions[spans.session]


def _flat(rows: DataFrame, names: Sequence[str]) -> list[str]:
    return [f"{as_flat(rows, name)} AS {_FLAT}{number}" for number, name in enumerate(names)]


def _bounds(placed: PlacedInSessions) -> pa.Table:
    """Return the bounds of the sessions, with the events that made and changed them."""
    bounds, rows = placed.spans.bounds, placed.rows
    events = pa.StructArray.from_arrays(
        [
            pa.array(integers(rows[name]), pa.int64(), mask=np.asarray(rows[name].is_null()))
            for name in (c.SEQ, c.T_FINAL, c.W_BEFORE, c.CLOCK)
        ]
        + [rows[FRESH].combine_chunks()],
        names=["seq", "t", "w", "clock", "fresh"],
    )
    of_bounds = {_SESSION: bounds["session"], _FIRST: bounds["first"], _UNTIL: bounds["until"]}
    by = {_MADE_BY: bounds["made_by"], CHANGED_BY: bounds["changed_by"]}
    of_events = {name: events.take(pa.array(places, pa.int64(), mask=places < 0)) for name, places in by.items()}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in of_bounds.items()} | of_events)
