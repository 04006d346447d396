"""The timelines of a log as a table between two segments, and as the arrays of the loop within one.

Here: what is stored of a timeline, a segment and the rules of a spec as the loop takes them. Not here: the loop
(timeops/watermark/fold.py), judging a segment (timeops/watermark/watermarks.py), where the table is stored
(assets/state).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.timeops.calendar.grid import ends_from
from tidemark.timeops.columns import ONE_TIMELINE, SEQ, SOURCE, SPLIT, TIMELINE
from tidemark.timeops.errors import InputError
from tidemark.timeops.rules.time_rules import TimeRules, Waits
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.values.instants import MIN_US, NEVER, NONE, Array, integers, nulled
from tidemark.timeops.watermark import fold as f
from tidemark.timeops.watermark.clock import (
    ARRIVAL_CLOCK,
    EXCLUDE_SPLIT,
    NOTHING,
    WINDOW_CLOSE,
    arrival_clock_watermark,
    waited,
)
from tidemark.timeops.watermark.fold import JUDGED, OUTSIDE

# Narrow columns of the items of a segment, besides TIMELINE, SEQ, SOURCE and SPLIT.
T_US, CLOCK_US, ROLE = "t", "clock", "role"
CLOSE = "close"  # and the number of a window that the clock may close

MOST_SPLITS = 1_000

_OF_ALL = ("max_t", "watermark", "watermark_set_by", "computed", "computed_set_by")
_SPLIT = pa.struct({"source": pa.string(), "split": pa.string(), "max_t": pa.int64(), "last_clock": pa.int64()})
STATE = pa.schema(
    [
        pa.field(TIMELINE, pa.string(), nullable=False),
        *[(name, pa.int64()) for name in _OF_ALL],
        *[(name, pa.int64()) for name in ("clock", "last_clock")],
        ("max_close", pa.list_(pa.int64())),
        ("splits", pa.list_(_SPLIT)),
    ]
)
"""A timeline between two segments of the log; instants in microseconds.

`watermark` is as events and windows saw it last, `watermark_set_by` the `_arrival_seq` after which it had this value
for the first time (null where no event did it). `computed` is the watermark that the rules set now. It is higher
where a change of the spec has just raised it, and with periodic emission, where it is seen from the next period on.
`max_t` is the largest t, `clock` the log's clock.

The others are null unless a rule needs them: `last_clock`, the idle clock at the timeline's last event, dropped or
not; `max_close`, per window of the spec the latest close time that its events ask for; `splits`, the largest t and
the idle clock of each split. Waiting is not idleness: an idle clock is the clock of the log less the time for which
some source, of a split its own, was not to be read; so a wait changes no stored row.

Where windows go across timelines, the row ACROSS represents all. It has no largest t, as it has no events of its own,
and its watermark is the one across timelines (timeops/watermark/across.py)."""

ACROSS = ONE_TIMELINE
"""`_timeline` of the row of STATE for windows across timelines. Without `over` the only timeline has that name; with
`over` each timeline has values in its name, so no other row has it."""


@dataclass(frozen=True)
class LogPlace:
    """Where a segment is in its log; microseconds, None before the first timed record.

    Attributes:
        first_us: The first clock of the log, known before the segment.
        before_us: The clock before the segment.
        ended_us: The clock of the last item before the period of emission in which `before_us` is.
        tick_us: The clock of the tick that ends the segment; None for none.
        flushed: The segment ends with a flushing end of input.
        seqs: The numbers of its records, where they are so many that they are fetched piece by piece.
    """

    first_us: int | None = None
    before_us: int | None = None
    ended_us: int | None = None
    tick_us: int | None = None
    flushed: bool = False
    seqs: range | None = None


@dataclass(frozen=True)
class SegmentArrays:
    """A segment of one log as the arrays of the loop.

    Attributes:
        items: Its items.
        start: The state before it.
        names: The timelines, in the order of their index.
        splits: Their splits.
        state: STATE before it.
        rules: The rules of time.
    """

    items: f.Items
    start: f.Fold
    names: pa.Array
    splits: "_Splits"
    state: pa.Table
    rules: TimeRules

    @classmethod
    def of(
        cls, items: pa.Table, state: pa.Table, rules: TimeRules, place: LogPlace, across: str = ACROSS
    ) -> "SegmentArrays":
        """Return the arrays of a segment; arguments as of `judge_log` in timeops/watermark/watermarks.py.

        Raises:
            InputError: A timeline has too many splits.
        """
        texts = {name: _Coded.of(items[name]) for name in (TIMELINE, SOURCE, SPLIT) if name in items.column_names}
        role = items[ROLE].to_numpy()
        names = _names(texts.get(TIMELINE), role, state, across if rules.has_across else None)
        timeline = _timeline_of(texts.get(TIMELINE), role, names)
        splits = _Splits.of(_Memberships(timeline, role, texts), state, names, rules)
        clock = integers(items[CLOCK_US])
        arrays = f.Items(
            seq=integers(items[SEQ]),
            t=integers(items[T_US]),
            clock=clock,
            timeline=timeline,
            split=splits.of_items,
            role=np.asarray(role, np.int8),
            closes=_closes(items, len(rules.windows_to_close)),
            tick=_tick(place, clock),
        )
        start = _with_grids(_start(state, names, splits, rules, place), arrays, rules)
        return cls(arrays, start, names, splits, state, rules)

    @property
    def source_of_split(self) -> pa.Table:
        """The `source` and `split` of each split, in the order of their index; no rows without splits."""
        return pa.table({"source": self.splits.sources, "split": self.splits.values})

    def state_after(self, arrays: f.Fold) -> pa.Table:
        """Return STATE after the segment, from the arrays that the loop has left."""
        return _state(arrays, self.names, self.splits, self.state, self.rules)


def arrival_watermark(clock_us: int | None, time: TimeSpec) -> int | None:
    """Return the watermark that the arrival clock sets for every timeline (A2); None where it sets none."""
    if clock_us is None or time.clock_tolerance_us is None:
        return None
    return arrival_clock_watermark(clock_us, {"clock_tolerance": time.clock_tolerance_us, "unit": time.unit_us})


def with_timelines(state: pa.Table, timelines: pa.Array) -> pa.Table:
    """Return STATE with some more timelines, about which nothing else is known."""
    fresh = timelines.filter(pc.invert(pc.is_in(timelines, value_set=state[TIMELINE].combine_chunks())))
    unknown = {field.name: pa.nulls(len(fresh), field.type) for field in STATE}
    return pa.concat_tables([state, pa.table(unknown | {TIMELINE: fresh}, schema=STATE)])


def own_timelines(state: pa.Table, time: TimeSpec) -> pa.Table:
    """Return the rows of the timelines of a log, without the one that represents all."""
    return state.filter(pc.not_equal(state[TIMELINE], ACROSS)) if time.over else state


def under_other_rules(timelines: pa.Table, before: TimeRules, rules: TimeRules, place: LogPlace) -> pa.Table:
    """Return the timelines from the place in the log on where other rules begin to hold.

    What the rules before did not ask for is counted from here on: silences, and the windows that a silence closes.
    What was one split so far, as there was one source, is the split of that source. `timelines` is STATE there by the
    rules before, see `settled` in timeops/watermark/watermarks.py.
    """
    if not len(timelines) or place.before_us is None:
        return timelines
    if rules.follows_activity and not before.follows_activity:
        fold_rules = _rules(rules)[0]
        now_us = place.before_us - int(waited(fold_rules["waited"], fold_rules["since"], place.before_us))
        timelines = with_column(timelines, "last_clock", pa.repeat(pa.scalar(now_us, pa.int64()), len(timelines)))
    if rules.closes_windows and not before.closes_windows:
        timelines = with_column(timelines, "max_close", pa.nulls(len(timelines), STATE.field("max_close").type))
    if not rules.uses_splits:
        timelines = with_column(timelines, "splits", pa.nulls(len(timelines), STATE.field("splits").type))
    elif not before.uses_splits:
        source = before.sources[0].name
        rows = timelines.select(["max_t", "last_clock"]).to_pylist()
        splits = [[{"source": source, "split": None, **row}] for row in rows]
        timelines = with_column(timelines, "splits", pa.array(splits, STATE.field("splits").type))
    return _with_out_of_orderness(timelines, rules, place)


def with_column(state: pa.Table, name: str, column: pa.Array) -> pa.Table:
    """Return timelines with other values in a column."""
    return state.set_column(state.column_names.index(name), name, column)


def _with_out_of_orderness(state: pa.Table, rules: TimeRules, place: LogPlace) -> pa.Table:
    """Return the timelines from the place in the log on where the out-of-orderness became another.

    A smaller one raises the computed watermarks. A larger one takes effect when the largest t has moved on, as a
    watermark never goes back.
    """
    names = state[TIMELINE].combine_chunks()
    computed, set_by = integers(state["computed"]), integers(state["computed_set_by"])
    if rules.uses_splits:
        splits = _Splits.of_state(state, names, rules)
        start = _start(state, names, splits, rules, place)
        log, splits_before = start.log[0], start.splits
        proposals = (f.event_watermark(timeline, splits_before, log["clock"], log) for timeline in start.timelines)
        proposed = np.fromiter(proposals, np.int64)
    else:
        max_t, tolerance = integers(state["max_t"]), _rules(rules)[0]["tolerance"]
        proposed = np.where(max_t == NONE, NONE, np.maximum(max_t - tolerance, MIN_US))
    state = with_column(state, "computed", nulled(np.maximum(proposed, computed)))
    return with_column(state, "computed_set_by", nulled(np.where(proposed > computed, NONE, set_by)))


# From tables to arrays.


def by_seq(items: pa.Table) -> pa.Table:
    """Return items by `_arrival_seq`."""
    seq = integers(items[SEQ])
    return items if (seq[1:] > seq[:-1]).all() else items.take(pa.array(np.argsort(seq, kind="stable")))


@dataclass(frozen=True)
class _Coded:
    """Texts of items, each value once: what is asked of a text is asked of few values, not of all items.

    Attributes:
        values: The values.
        codes: The place of each item's value, -1 for null.
    """

    values: pa.Array
    codes: Array

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> "_Coded":
        """Return a column of texts, which may be coded already."""
        coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        chunks = coded.unify_dictionaries().chunks
        codes = [np.asarray(pc.fill_null(chunk.indices, -1)) for chunk in chunks]
        values = chunks[0].dictionary if chunks else pa.array([], pa.string())
        return cls(values.cast(pa.string()), np.concatenate([*codes, np.zeros(0, np.int32)]))

    def places(self, values: pa.Array) -> Array:
        """Return the place of each item's text among some texts, -1 for none."""
        return np.append(_places(self.values, values), np.int32(-1))[self.codes]


def _places(texts: pa.Array | pa.ChunkedArray, values: pa.Array) -> Array:
    """Return the place of each text among others, -1 for none."""
    return np.asarray(pc.fill_null(pc.index_in(texts, value_set=values), -1).to_numpy(), np.int32)


def _names(texts: _Coded | None, role: Array, before: pa.Table, across: str | None) -> pa.Array:
    """Return the timelines of a segment: the existing ones, then the new ones.

    With the first items comes `across`, the one that represents all.
    """
    names_before = before[TIMELINE].combine_chunks()
    if texts is None:
        return names_before if len(names_before) or not len(role) else pa.array([ONE_TIMELINE], pa.string())
    names_of_items = texts.values.take(pc.unique(pa.array(texts.codes[role != OUTSIDE], pa.int32())))
    if across is not None and len(role):
        names_of_items = pa.concat_arrays([names_of_items, pa.array([across], pa.string())])
    fresh = names_of_items.filter(pc.invert(pc.is_in(names_of_items, value_set=names_before)))
    return pa.concat_arrays([names_before, fresh])


def _timeline_of(texts: _Coded | None, role: Array, names: pa.Array) -> Array:
    """Return the timeline of each item; 0 of one that belongs to none."""
    return np.zeros(len(role), np.int32) if texts is None else np.maximum(texts.places(names), 0)


def _closes(items: pa.Table, windows: int) -> Array:
    if not windows or not len(items):
        return np.zeros((len(items), windows), np.int64)
    return np.column_stack([integers(items[f"{CLOSE}{w}"]) for w in range(windows)])


def _tick(place: LogPlace, clock: Array) -> int | None:
    """Return the clock at the tick: that of the log does not go back."""
    if place.tick_us is None:
        return None
    last = int(clock[-1]) if len(clock) else place.before_us
    return place.tick_us if last is None else max(place.tick_us, last)


def _start(before: pa.Table, names: pa.Array, splits: "_Splits", rules: TimeRules, place: LogPlace) -> f.Fold:
    """Return what a segment starts from, without the grids of windows."""
    return f.Fold(
        timelines=_timelines(before, names, splits, rules, place),
        splits=splits.rows,
        max_close=_max_close(before, names, len(rules.windows_to_close)),
        grids=np.zeros(0, f.GRID),
        instants=np.zeros(0, np.int64),
        rules=_rules(rules),
        log=_log(place, rules),
    )


def _max_close(before: pa.Table, names: pa.Array, windows: int) -> Array:
    max_close = np.full((len(names), windows), NONE)
    if windows:
        for k, closes in enumerate(before["max_close"].to_pylist()):
            for w, close in enumerate((closes or [])[:windows]):
                max_close[k, w] = NONE if close is None else close
    return max_close


def _timelines(before: pa.Table, names: pa.Array, splits: "_Splits", rules: TimeRules, place: LogPlace) -> Array:
    rows = np.zeros(len(names), f.TIMELINE)
    n_before = len(before)
    for name in (*_OF_ALL, "last_clock"):
        rows[name] = NONE
        rows[name][:n_before] = integers(before[name])
    rows["period"], rows["lowest"] = NONE, NONE
    if rules.time.emit_every_us is not None:
        clocks, every_us = integers(before["clock"]), rules.time.emit_every_us
        rows["period"][:n_before] = np.where(clocks == NONE, NONE, clocks // every_us * every_us)
    rows["next_idle"] = NEVER
    if place.before_us is not None:
        rows["next_idle"][:n_before] = place.before_us
    rows["first_split"], rows["n_splits"] = splits.first, splits.count
    return rows


def _log(place: LogPlace, rules: TimeRules) -> Array:
    every_us, before_us = rules.time.emit_every_us, place.before_us
    period = None if every_us is None or before_us is None else before_us // every_us * every_us
    first = before_us if place.first_us is None else place.first_us
    instants = (first, before_us, period, place.ended_us)
    return np.array([tuple(NONE if us is None else us for us in instants)], f.LOG)


_IDLE = {
    None: NOTHING,
    "arrival_clock": ARRIVAL_CLOCK,
    "exclude_split": EXCLUDE_SPLIT,
    "window_close": WINDOW_CLOSE,
}


def _rules(rules: TimeRules) -> Array:
    time, waits = rules.time, rules.waits
    alone = rules.sources[0] if len(rules.sources) == 1 else None
    timeout_us = alone.idle_timeout_us if alone is not None and rules.excludes_idle_splits else time.idle_timeout_us
    return np.array(
        [
            (
                time.unit_us,
                time.emit_every_us or 0,
                _IDLE[time.idle.advance if time.idle else None],
                rules.sources[0].out_of_orderness_us if len(rules.sources) == 1 else time.out_of_orderness_us,
                time.clock_tolerance_us or 0,
                timeout_us or 0,
                int(rules.uses_splits),
                waits.any_waited_us,
                NONE if not waits.sources or waits.any_since_us is None else waits.any_since_us,
            )
        ],
        f.RULES,
    )


def _with_grids(state: f.Fold, items: f.Items, rules: TimeRules) -> f.Fold:
    """Return the state with the close times of the windows that the clock may close."""
    if not rules.windows_to_close:
        return state
    clocks = items.clock[items.clock != NONE]
    edges = (state.log[0]["clock"], *clocks[:1], *clocks[-1:], items.tick)
    edges_us = [int(us) for us in edges if us is not None and us != NONE]
    closes = np.concatenate([items.closes[items.role == JUDGED], state.max_close])
    grids, instants = np.zeros(len(rules.windows_to_close), f.GRID), [np.zeros(0, np.int64)]
    for w, window in enumerate(rules.windows_to_close):
        delay_us = window.clock_closes_after_us(rules.time.unit_us)
        grid, begin = grids[w], sum(map(len, instants))
        if window.local_grid is not None and edges_us and len(closes):
            timeout = rules.time.idle_timeout_us or 0
            limit = min(max(edges_us) - timeout, int(closes[:, w].max(initial=NONE)))
            instants.append(
                ends_from(min(edges_us) - timeout - window.longest_us - delay_us, limit - delay_us, window) + delay_us
            )
        elif window.closes_on_grid and window.local_grid is None:
            grid["period"], grid["anchor"] = window.end_step_us, window.offset_us + window.size_us + delay_us
        grid["first"], grid["end"] = begin, sum(map(len, instants))
    return state._replace(grids=grids, instants=np.concatenate(instants))


@dataclass(frozen=True)
class _Memberships:
    """Timelines and splits that items belong to.

    Attributes:
        timeline: The index of their timelines.
        role: What they are to it.
        texts: Their source and their split, where the rules ask for these.
    """

    timeline: Array
    role: Array
    texts: Mapping[str, _Coded]


@dataclass(frozen=True)
class _Splits:
    """The splits of the timelines of a segment.

    Attributes:
        rows: SPLIT, by timeline.
        sources: The source of each.
        values: The value of each.
        first: By timeline the first of its splits.
        count: By timeline how many it has.
        of_items: The split of each item; empty without splits.
    """

    rows: Array
    sources: pa.Array
    values: pa.Array
    first: Array
    count: Array
    of_items: Array

    @classmethod
    def of(cls, items: _Memberships, before: pa.Table, names: pa.Array, rules: TimeRules) -> "_Splits":
        """Return the splits of the items, of the state before them, and the listed ones of every timeline."""
        nothing = np.zeros(0, np.int32)
        if not rules.uses_splits:
            none, no_texts = np.zeros(len(names), np.int64), pa.array([], pa.string())
            return cls(np.zeros(0, f.SPLIT), no_texts, no_texts, none, none, nothing)
        stored_splits = pc.list_flatten(before["splits"]).combine_chunks()
        of_state = _places(before[TIMELINE], names)[pc.list_parent_indices(before["splits"]).to_numpy()]
        listed = [*rules.listed_splits] * len(names)
        of_listed = np.repeat(np.arange(len(names)), len(rules.listed_splits))
        stored_and_listed = [
            pa.concat_arrays(
                [stored_splits.field(name), pa.array([listed_split[n] for listed_split in listed], pa.string())]
            )
            for n, name in enumerate(("source", "split"))
        ]
        sources, values = (
            _sorted_texts(items.texts[n].values, more_texts)
            for n, more_texts in zip((SOURCE, SPLIT), stored_and_listed, strict=True)
        )
        source, value = (
            np.concatenate([items.texts[name].places(distinct), _places(more_texts, distinct)]).astype(np.int64) + 1
            for name, distinct, more_texts in zip((SOURCE, SPLIT), (sources, values), stored_and_listed, strict=True)
        )
        of_all = np.concatenate([items.timeline, of_state, of_listed]).astype(np.int64)
        packed = (of_all * (len(sources) + 1) + source) * (len(values) + 1) + value
        count_items = len(items.role)
        packed[:count_items][items.role == OUTSIDE] = -1
        numbers, place = _distinct_numbers(packed)
        of_each = numbers // (len(values) + 1) // (len(sources) + 1)
        first = np.searchsorted(of_each, np.arange(len(names)))
        count = np.searchsorted(of_each, np.arange(len(names)), "right") - first
        of_source = sources.take(pa.array(numbers // (len(values) + 1) % (len(sources) + 1) - 1))
        of_value = _nullable(values, numbers % (len(values) + 1))
        if len(count) and count.max() > MOST_SPLITS:
            raise InputError(
                f"A timeline has {count.max():,} splits.",
                expected=f"at most {MOST_SPLITS:,}: every one is a number to compare when the slowest moves",
                remedy="use a coarser `split`, or `over` if each value should have its own watermark",
            )
        rows = _split_rows(of_source, of_value, rules)
        at = place[count_items : count_items + len(of_state)]
        for name in ("max_t", "last_clock"):
            rows[name][at] = integers(stored_splits.field(name))
        has_events = rows["max_t"] != NONE
        rows["allows"][has_events] = np.maximum((rows["max_t"] - rows["tolerance"])[has_events], MIN_US)
        return cls(rows, of_source, of_value, first, count, place[:count_items])

    @classmethod
    def of_state(cls, state: pa.Table, names: pa.Array, rules: TimeRules) -> "_Splits":
        """Return the splits of timelines, without an item."""
        no_texts = _Coded(pa.array([], pa.string()), np.zeros(0, np.int32))
        nothing = np.zeros(0, np.int32)
        return cls.of(_Memberships(nothing, nothing, dict.fromkeys((SOURCE, SPLIT), no_texts)), state, names, rules)


def _distinct_numbers(numbers: Array) -> tuple[Array, Array]:
    """Return the different numbers that are not below zero, in order, and the place of each among them, else 0."""
    coded = pa.array(numbers).dictionary_encode()  # to sort all of them takes ten times as long
    distinct = np.asarray(coded.dictionary)
    order = np.argsort(distinct)
    order = order[distinct[order] >= 0]
    rank = np.zeros(len(distinct), np.int32)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[np.asarray(coded.indices)]


def _sorted_texts(*texts: pa.Array) -> pa.Array:
    distinct_texts = pc.unique(pa.concat_arrays(texts)).drop_null()
    return distinct_texts.take(pc.sort_indices(distinct_texts))


def _nullable(values: pa.Array, places: Array) -> pa.Array:
    return values.take(pa.array(np.maximum(places - 1, 0), mask=places == 0))


def _split_rows(sources: pa.Array, values: pa.Array, rules: TimeRules) -> Array:
    """Return the SPLIT of splits that have had no event."""
    splits = list(zip(sources.to_pylist(), values.to_pylist(), strict=True))
    by_split = {split: _split_row(*split, rules) for split in set(splits)}
    return np.array([by_split[split] for split in splits], f.SPLIT)


def _split_row(source: str, value: str | None, rules: TimeRules) -> tuple[int, ...]:
    """Return the SPLIT of a split that has had no event."""
    time = next((rule for rule in rules.sources if rule.name == source), None)
    timeout = time.idle_timeout_us if time is not None and rules.excludes_idle_splits else None
    waited, since = _waits_of(rules.waits, source, value)
    return (
        NONE,
        NONE,
        NONE,
        rules.time.out_of_orderness_us if time is None else time.out_of_orderness_us,
        NONE if timeout is None else timeout,
        waited,
        since,
        int((source, value) in rules.listed_splits),
    )


def _waits_of(waits: Waits, source: str, value: str | None) -> tuple[int, int]:
    """Return how long a split had waited, alone and with its source, and since when it waits; NONE if it does not."""
    waited = waits.waited_us.get(source, 0) + (0 if value is None else waits.waited_us.get((source, value), 0))
    waits_now = source in waits.sources or (value is not None and (source, value) in waits.sources)
    return waited, waits.since_us if waits_now and waits.since_us is not None else NONE


# From arrays to tables.


def _state(state: f.Fold, names: pa.Array, splits: _Splits, before: pa.Table, rules: TimeRules) -> pa.Table:
    timelines, n_before = state.timelines, len(before)
    fresh = len(names) - n_before
    columns: dict[str, pa.Array] = {
        TIMELINE: names,
        **{name: nulled(timelines[name]) for name in _OF_ALL},
        "clock": nulled(np.full(len(names), state.log[0]["clock"])),
    }
    if rules.follows_activity:
        windows = len(state.grids)
        columns["last_clock"] = nulled(timelines["last_clock"])
        columns["max_close"] = pa.ListArray.from_arrays(
            pa.array(np.arange(len(names) + 1) * windows, pa.int32()), nulled(state.max_close.reshape(-1))
        )
    else:
        columns |= {name: _padded_with_null(before[name], fresh) for name in ("last_clock", "max_close")}
    if rules.uses_splits:
        split_rows = pa.StructArray.from_arrays(
            [splits.sources, splits.values, nulled(state.splits["max_t"]), nulled(state.splits["last_clock"])],
            names=["source", "split", "max_t", "last_clock"],
        )
        offsets = np.append(splits.first, len(state.splits))
        columns["splits"] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), split_rows)
    else:
        columns["splits"] = (
            pa.nulls(len(names), STATE.field("splits").type)
            if rules.follows_activity
            else _padded_with_null(before["splits"], fresh)
        )
    return pa.table(columns).cast(STATE)


def _padded_with_null(column: pa.ChunkedArray, fresh: int) -> pa.ChunkedArray:
    return pa.chunked_array([*column.chunks, pa.nulls(fresh, column.type)])
