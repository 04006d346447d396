"""Final rows of joins, recomputed from the tables of events by searching each event's partners in its reach.

Here: which events meet, from their times, keys and the watermarks that they met, and which rows follow. It is for
tests and for an audit of whole tables. Not here: the rules of joins (timeops/joins/), which this shares no code with.

An event that is accepted late, under `keep`, is the only one that may come when others have closed: `ordered_events`
and `held_events` have the watermark that it met.
"""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame
from pyspark.sql import types as T

from tidemark.assets.log.admissions import admitted
from tidemark.assets.log.exclusions import records_between
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import KEPT
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ
from tidemark.timeops.values.instants import NONE, distinct
from tidemark.timeops.values.utc import Instant

Flags = NDArray[np.bool_]
Numbers = NDArray[np.int64]
NOBODY = -1
"""The number in place of an event that a row does not have."""
ROW = (LEFT_SEQ, RIGHT_SEQ)
"""The columns, BIGINT, of a final row: the numbers of its events."""
TIME_US = "us"
"""The column, BIGINT, with the time of a final row, microseconds."""


@dataclass(frozen=True)
class JoinStretch:
    """Rows of a join by their time, microseconds, the end not included."""

    first_us: int
    end_us: int

    @property
    def times(self) -> Filters:
        """The rows of a table in it."""
        first_us, last_us = max(self.first_us, c.MIN_US), min(self.end_us - 1, c.MAX_US)
        return [(c.TIMESTAMP, ">=", Instant(first_us)), (c.TIMESTAMP, "<=", Instant(last_us))]


def written_rows(workspace: Workspace, join: JoinSpec, stretch: JoinStretch) -> pa.Table:
    """Return the final rows, with ROW and US, that the table of a join has in a stretch."""
    table = tables.join_table(join.name)
    final: Filters = [*stretch.times, ("_is_final", "=", True)]
    read = pieces(workspace.lake, table, workspace.base_of(table), [*ROW, c.TIMESTAMP], final)
    kinds = [*((name, pa.int64()) for name in ROW), (c.TIMESTAMP, pa.timestamp("us", "UTC"))]
    rows = pa.Table.from_batches(read, pa.schema(kinds))
    seqs = {name: pc.fill_null(rows[name], NOBODY) for name in ROW}
    return pa.table({**seqs, TIME_US: rows[c.TIMESTAMP].cast(pa.int64())})


def recomputed_rows(workspace: Workspace, join: JoinSpec, stretch: JoinStretch) -> pa.Table:
    """Recompute the final rows, with ROW and US, of a join of two sources in a stretch.

    An event that the state of the join has is open: it has no last answer yet, or may yet meet others.
    """
    assert not join.has_table
    in_reach = JoinStretch(stretch.first_us - join.reach_us, stretch.end_us + join.reach_us)
    return final_rows(events_of_join(workspace, join, in_reach), join, stretch)


def final_rows(events: "JoinEvents", join: JoinSpec, stretch: JoinStretch) -> pa.Table:
    """Return the final rows, with ROW and US, of a stretch that follow from the events in reach of it."""
    rights = events.of(~events.is_left & ~events.came_later_than(join.useful_for_us))
    if not join.is_interval:
        return _answered(closed_lefts(events, join, stretch), rights, join)
    return _paired(events.of(_lefts(events, join)), rights, join, stretch)


def closed_lefts(events: "JoinEvents", join: JoinSpec, stretch: JoinStretch) -> "JoinEvents":
    """Return the left events of a stretch that have their last answer."""
    return events.of(_lefts(events, join) & events.within(stretch) & ~events.is_open)


def _lefts(events: "JoinEvents", join: JoinSpec) -> Flags:
    return events.is_left & ~events.came_later_than(join.closes_after_us)


@dataclass(frozen=True, eq=False)
class JoinEvents:
    """Events of both sides of a join, in reach of a stretch.

    Attributes:
        seqs: Their numbers.
        us: Their times, microseconds.
        met_us: The watermarks that late ones met, microseconds; NONE of others.
        keys: Of equal ones the columns of `on` and the timeline are equal.
        has_key: Whether no column of `on` is null.
        is_left: Whether they are of the left side.
        is_open: Whether the state of the join has them.
        is_first: Whether an operator has let them in: they count as if they had come before all others.
    """

    seqs: Numbers
    us: Numbers
    met_us: Numbers
    keys: Numbers
    has_key: Flags
    is_left: Flags
    is_open: Flags
    is_first: Flags

    def __len__(self) -> int:
        return len(self.seqs)

    def of(self, which: NDArray[np.bool_] | Numbers) -> "JoinEvents":
        """Return some of them, or all in an order."""
        return replace(self, **{name: values[which] for name, values in vars(self).items()})

    def came_later_than(self, by_us: int) -> Flags:
        """Return which of them came when the watermark was further than that past them."""
        return _had_closed(self.us + by_us, self.met_us)

    def within(self, stretch: JoinStretch) -> Flags:
        """Return which of them are in a stretch."""
        return np.asarray((self.us >= stretch.first_us) & (self.us < stretch.end_us))


def events_of_join(workspace: Workspace, join: JoinSpec, stretch: JoinStretch) -> JoinEvents:
    """Return the events of a join in a stretch, as the tables of events have them."""
    both = workspace.read_base(tables.ORDERED_EVENTS, filters=stretch.times).drop(c.RELEASE_SEQ)
    both = both.unionByName(workspace.read_base(tables.HELD_EVENTS, filters=stretch.times))
    met = f"IF(array_contains({c.ADJUSTED_BY}, '{KEPT}'), unix_micros({c.WATERMARK}), NULL)"
    values = {
        "seqs": c.SEQ,
        "us": f"unix_micros({c.TIMESTAMP})",
        "met_us": f"coalesce({met}, {NONE}L)",
        "keys": key_hash(both, join),
        "has_key": has_key(join),
    }
    rows = both.selectExpr(*[f"{value} AS {name}" for name, value in values.items()]).toArrow()
    named = {name: rows[name].to_numpy() for name in values}
    seqs = named["seqs"]
    is_first = np.isin(seqs, admitted(workspace).seqs)
    named["met_us"] = np.where(is_first, NONE, named["met_us"])
    of_left, of_right = _seqs_of(workspace, join, seqs)
    events = JoinEvents(
        **named, is_left=np.isin(seqs, of_left), is_open=np.isin(seqs, _open(workspace, join)), is_first=is_first
    )
    return events.of(events.is_left | np.isin(seqs, of_right))


def _seqs_of(workspace: Workspace, join: JoinSpec, seqs: Numbers) -> list[Numbers]:
    """Return which records in the range of some numbers each side has; tables of events do not have the source."""
    if not len(seqs):
        return [seqs, seqs]
    log = records_between(workspace, int(seqs.min()), int(seqs.max()) + 1).select(c.SEQ, c.SOURCE).toArrow()
    return [log.filter(pc.equal(log[c.SOURCE], source))[c.SEQ].to_numpy() for source in join.sources]


def key_hash(events: DataFrame, join: JoinSpec) -> str:
    """Return SQL of a hash of the timeline and the columns of `on`, such that equal numbers have one: 0.0 and -0.0.

    Where the right side is a table, `on` says which timeline a row is for.
    """
    floats = {field.name for field in events.schema if isinstance(field.dataType, T.FloatType | T.DoubleType)}
    lower = {name.lower() for name in floats}
    columns = [f"({quoted(on)} + 0E0)" if on.lower() in lower else quoted(on) for on in join.on]
    return f"xxhash64({', '.join([literal('') if join.has_table else c.TIMELINE, *columns])})"


def has_key(join: JoinSpec) -> str:
    """Return SQL of a BOOLEAN, never null: no column of `on` is null."""
    return " AND ".join(f"{quoted(name)} IS NOT NULL" for name in join.on) or "true"


def _open(workspace: Workspace, join: JoinSpec) -> Numbers:
    """Return the events that the state of a join has."""
    table = tables.joining_table(join.name)
    seqs = [piece[c.SEQ].to_numpy() for piece in pieces(workspace.lake, table, workspace.base_of(table), [c.SEQ])]
    return np.concatenate([np.zeros(0, np.int64), *seqs])


def _reach(lefts: JoinEvents, rights: JoinEvents, first_us: Numbers, last_us: Numbers) -> tuple[Numbers, Numbers]:
    """Return for each left event where its right ones begin and end; `rights` are ordered by key and time."""
    times, keys = distinct(rights.us), distinct(rights.keys)
    of_key = np.searchsorted(keys, lefts.keys)
    has_some = lefts.has_key & (of_key < len(keys)) & (np.append(keys, 0)[of_key] == lefts.keys)
    places = np.searchsorted(keys, rights.keys) * (len(times) + 1) + np.searchsorted(times, rights.us)
    of_key_from = of_key * (len(times) + 1)
    begin = np.searchsorted(places, of_key_from + np.searchsorted(times, first_us))
    end = np.searchsorted(places, of_key_from + np.searchsorted(times, last_us, "right"))
    return begin, np.where(has_some, end, begin)


def _answered(lefts: JoinEvents, rights: JoinEvents, join: JoinSpec) -> pa.Table:
    """Return the last answers of an as-of join to closed events."""
    partner_seqs = last_answers(lefts, rights, join)
    has_row = (partner_seqs != NOBODY) | join.keeps_left
    return pa.table([lefts.seqs[has_row], partner_seqs[has_row], lefts.us[has_row]], [*ROW, TIME_US])


def last_answers(closed: JoinEvents, rights: JoinEvents, join: JoinSpec) -> Numbers:
    """Return the nearest partner of each left event among the right ones that came while it was open, or NOBODY."""
    usable = rights.of(rights.has_key)
    partner_seqs = np.full(len(closed), NOBODY)
    apart_us = np.full(len(closed), c.MAX_US)
    for looks_us, step in ((join.looks_back_us, -1), (join.looks_ahead_us, 1)):
        if join.direction == ("forward" if step < 0 else "backward"):
            continue
        # Of several at one instant the last is the one that is met first.
        ordered = usable.of(np.lexsort((-step * usable.seqs, usable.us, usable.keys)))
        first_us, last_us = (closed.us - looks_us, closed.us) if step < 0 else (closed.us, closed.us + looks_us)
        begin, end = _reach(closed, ordered, first_us, last_us)
        at = _nearest_in_time(closed, ordered, (begin, end), step, join)
        with_partner = np.flatnonzero(at != NOBODY)
        nearer = with_partner[np.abs(ordered.us[at[with_partner]] - closed.us[with_partner]) < apart_us[with_partner]]
        partner_seqs[nearer] = ordered.seqs[at[nearer]]
        apart_us[nearer] = np.abs(ordered.us[at[nearer]] - closed.us[nearer])
    return partner_seqs


def _nearest_in_time(
    lefts: JoinEvents, rights: JoinEvents, reach: tuple[Numbers, Numbers], step: int, join: JoinSpec
) -> Numbers:
    """Return for each left event the place of the nearest right one that came before it had closed, or NOBODY."""
    begin, end = reach
    at = end - 1 if step < 0 else begin.copy()
    while True:
        in_reach = np.flatnonzero((at >= begin) & (at < end))
        late = in_reach[_had_closed(lefts.us[in_reach] + join.closes_after_us, rights.met_us[at[in_reach]])]
        if not len(late):
            return np.where((at >= begin) & (at < end), at, NOBODY)
        at[late] += step


def _had_closed(closes_us: Numbers, met_us: Numbers) -> Flags:
    return np.asarray((met_us != NONE) & (met_us > closes_us))


def _paired(lefts: JoinEvents, rights: JoinEvents, join: JoinSpec, stretch: JoinStretch) -> pa.Table:
    """Return the pairs of an interval join, and the rows of events that are closed and have no partner."""
    usable = rights.of(rights.has_key)
    usable = usable.of(np.lexsort((usable.us, usable.keys)))
    begin, end = _reach(lefts, usable, lefts.us - join.looks_back_us, lefts.us + join.looks_ahead_us)
    sizes = end - begin
    of_left = np.repeat(np.arange(len(lefts)), sizes)
    of_right = np.arange(len(of_left)) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(begin, sizes)
    is_right_later = ~usable.is_first[of_right] & (
        lefts.is_first[of_left] | (usable.seqs[of_right] > lefts.seqs[of_left])
    )
    had_closed = np.where(
        is_right_later,
        _had_closed(lefts.us[of_left] + join.closes_after_us, usable.met_us[of_right]),
        _had_closed(usable.us[of_right] + join.useful_for_us, lefts.met_us[of_left]),
    )
    of_left, of_right = of_left[~had_closed], of_right[~had_closed]
    here = lefts.within(stretch)[of_left]
    pairs = lefts.seqs[of_left], usable.seqs[of_right]
    rows = [(pairs[0][here], pairs[1][here], lefts.us[of_left][here])]
    for side, seqs, keeps in ((lefts, pairs[0], join.keeps_left), (rights, pairs[1], join.keeps_right)):
        alone = side.of(side.within(stretch) & ~side.is_open & ~np.isin(side.seqs, seqs) & keeps)
        nobody = np.full(len(alone), NOBODY)
        rows.append((alone.seqs, nobody, alone.us) if side is lefts else (nobody, alone.seqs, alone.us))
    return pa.table([np.concatenate(values) for values in zip(*rows, strict=True)], [*ROW, TIME_US])
