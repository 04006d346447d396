"""The times of a whole log as arrays, judged by any rules: what questions about records and watermarks begin with.

Here: judging the stretches of a log one after the other, the watermark that a record met, the item that brought a
watermark to a value, the least tolerance with which a record is accepted. Not here: where the times are read
(assets/questions), rules 1 and 2 (timeops/rules/arrival.py), the loop (timeops/watermark/fold.py), the words of an
answer.

Instants and lengths are BIGINT microseconds; NONE means that there is no value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.timeops.calendar.grid import last_ends
from tidemark.timeops.columns import ONE_TIMELINE, SEQ, SOURCE, SPLIT, TIMELINE
from tidemark.timeops.events.stored_times import roles
from tidemark.timeops.rules.arrival import arrival_rules
from tidemark.timeops.rules.reasons import AT_INGESTION, CODES, REASONS, Reason
from tidemark.timeops.rules.time_rules import TimeRules, Waiter, Waits
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.values.instants import MIN_US, NEVER, NONE, Array
from tidemark.timeops.watermark.fold import AHEAD
from tidemark.timeops.watermark.timelines import (
    ACROSS,
    CLOCK_US,
    CLOSE,
    ROLE,
    STATE,
    T_US,
    LogPlace,
    own_timelines,
    under_other_rules,
    with_column,
)
from tidemark.timeops.watermark.watermarks import JudgedLog, judge_log, settled

Alone = tuple[Array, Array, Array]
"""The verdict of rules 1 and 2 on each record, see `judged_alone`."""
_OUTSIDE = [CODES[reason] for reason in AT_INGESTION]


@dataclass(frozen=True)
class Stretch:
    """A stretch of the log between two control items that the rules of time heed.

    Attributes:
        first_seq: Its first `_arrival_seq`.
        end_seq: Its end, exclusive.
        tick_us: The clock of the tick after it, microseconds; None for none.
        waits: The sources and splits that wait throughout it.
    """

    first_seq: int
    end_seq: int
    tick_us: int | None = None
    waits: frozenset[Waiter] = frozenset()


@dataclass(frozen=True)
class Item:
    """An item of the log, and the watermark of a timeline just after it.

    Attributes:
        seq: The record; None for a tick.
        clock_us: The clock of the log at it.
        watermark_us: The watermark that the next item finds.
        set_by: The record after which the watermark had this value first; None where the clock raised it.
    """

    seq: int | None
    clock_us: int
    watermark_us: int
    set_by: int | None


@dataclass(frozen=True, eq=False)
class LogStart:
    """The state at the beginning of a log that has lost earlier records.

    Attributes:
        state: The timelines, STATE.
        place: The clocks there.
        waits: The sources and splits that wait there.
        rules: The rules by which these records were judged.
    """

    state: pa.Table
    place: LogPlace
    waits: Waits
    rules: TimeRules

    def under(self, rules: TimeRules) -> pa.Table:
        """Return the timelines for records that are judged by some rules from here on."""
        rules_before, rules_here = (replace(rule_set, waits=self.waits) for rule_set in (self.rules, rules))
        state = under_other_rules(settled(self.state, rules_before, self.place), rules_before, rules_here, self.place)
        return state if rules.has_across else own_timelines(state, self.rules.time)

    def has_reached(self, timeline: str, wanted_us: int) -> bool:
        """Return whether the watermark of a timeline had come to a value there."""
        rows = self.state.filter(pc.equal(self.state[TIMELINE], timeline))
        return any(us is not None and us >= wanted_us for us in rows["watermark"].to_pylist())

    def of(self, timeline: str) -> "LogStart":
        """Return it for the log of one timeline."""
        state = self.state.filter(pc.equal(self.state[TIMELINE], timeline))
        names = pa.array([ONE_TIMELINE] * len(state), pa.string())
        rules = self.rules.of_timelines()
        rules = replace(rules, time=rules.time.model_copy(update={"over": ()}))
        return replace(self, state=with_column(state, TIMELINE, names), rules=rules)


@dataclass(frozen=True, eq=False)
class LogTimes:
    """The times of the records of a log, in its order.

    Attributes:
        seq: `_arrival_seq`.
        event_us: The event time; NONE where there is none.
        arrival_us: The arrival; NONE where there is none.
        clock_us: The clock of the log; NONE before the first timed record.
        why: What refused the record before rule 1, as CODES; 0 where nothing did.
        timeline: The place of its timeline in `timelines`; any number of a dead letter of ingestion.
        timelines: The timelines.
        source: The place of its source in `sources`.
        sources: The sources.
        split: The place of its split in `splits`, which holds None as well.
        splits: The splits.
        stretches: The stretches of the log.
        gaps: By session window of records that each say their own gap, how long each keeps its session open; NONE
            where one does not.
        start: The state before the first of them; None where it is the first record of all.
    """

    seq: Array
    event_us: Array
    arrival_us: Array
    clock_us: Array
    why: Array
    timeline: Array
    timelines: Sequence[str]
    source: Array
    sources: Sequence[str]
    split: Array
    splits: Sequence[str | None]
    stretches: Sequence[Stretch]
    gaps: Mapping[str, Array] = field(default_factory=dict)
    start: LogStart | None = None

    def gaps_of(self, window: WindowSpec, seqs: Array) -> Array:
        """Return how long records of the log keep sessions of a window open; NONE where one says no length."""
        if window.name in self.gaps:
            return self.gaps[window.name][np.searchsorted(self.seq, seqs)]
        return np.full(len(seqs), window.reach_us)

    def place(self, seq: int) -> int | None:
        """Return the place of a record in the arrays; None where it is not part of the log."""
        at = int(np.searchsorted(self.seq, seq))
        return at if at < len(self.seq) and int(self.seq[at]) == seq else None

    @property
    def span_us(self) -> int:
        """How long the instants of the log are apart at most."""
        instants = (self.event_us, self.clock_us)
        first = min(int(us.min(where=us != NONE, initial=NEVER)) for us in instants)
        return max(max(int(us.max(initial=NONE)) for us in instants) - first, 0)

    def up_to(self, seq: int) -> "LogTimes":
        """Return the log up to a record, without the items after it."""
        end = int(np.searchsorted(self.seq, seq, "right"))
        *earlier, last = [stretch for stretch in self.stretches if stretch.first_seq <= seq]
        cut = replace(last, end_seq=min(last.end_seq, seq + 1), tick_us=None)
        return self._rows(slice(0, end), (*earlier, cut))

    def alone(self, timeline: int, *, keeps_clock: bool) -> "LogTimes":
        """Return the log of one timeline: nothing else moves its watermark, but for the clock of all records."""
        is_own = (self.timeline == timeline) & ~np.isin(self.why, _OUTSIDE)
        log = self if keeps_clock else self._rows(is_own, self.stretches)
        why = np.where(is_own, self.why, np.int8(CODES[Reason.MALFORMED])) if keeps_clock else log.why
        start = None if self.start is None else self.start.of(self.timelines[timeline])
        zeros = np.zeros(len(log.seq), np.int32)
        return replace(log, why=why, timeline=zeros, timelines=(ONE_TIMELINE,), start=start)

    def rising(self, alone: Alone, rules: TimeRules, also: Array) -> tuple["LogTimes", Alone]:
        """Return the log without the records that move no watermark, where the clock moves none.

        Args:
            alone: What rules 1 and 2 say of each record.
            rules: The rules; an early record that they keep moves nothing.
            also: The numbers of records that stay.
        """
        rises, t = np.zeros(len(self.seq), bool), alone[0]
        t = np.where(roles(alone[1], self.event_us, self.arrival_us, rules) == AHEAD, NONE, t)
        for rows in self._by_split():
            highest = np.maximum.accumulate(t[rows])
            rises[rows] = np.diff(highest, prepend=NONE) != 0
        first, end = np.searchsorted(self.seq, also), np.searchsorted(self.seq, also, "right")
        rises[first[first < end]] = True  # some may not be part of it
        return self._rows(rises, self.stretches), (alone[0][rises], alone[1][rises], alone[2][rises])

    def _by_split(self) -> Sequence[Array | slice]:
        """Return the places of the records by timeline and split."""
        if len(self.sources) <= 1 and len(self.splits) <= 1 and len(self.timelines) <= 1:
            return [slice(0, len(self.seq))]
        split = (self.timeline.astype(np.int64) * max(len(self.sources), 1) + self.source) * len(self.splits)
        split += self.split
        order = np.argsort(split, kind="stable")
        return np.split(order, np.flatnonzero(np.diff(split[order])) + 1)

    def _rows(self, which: Array | slice, stretches: Sequence[Stretch]) -> "LogTimes":
        names = ("seq", "event_us", "arrival_us", "clock_us", "why", "timeline", "source", "split")
        gaps = {name: gap[which] for name, gap in self.gaps.items()}
        return replace(self, **{name: getattr(self, name)[which] for name in names}, stretches=stretches, gaps=gaps)

    def judged(self, rules: TimeRules, *, measures: bool = False) -> "JudgedTimes":
        """Judge the log by some rules of time; with `measures` the loop finds how late each item is.

        Raises:
            InputError: A timeline has too many splits.
        """
        return self.judged_with(judged_alone(self, rules.time), rules, measures=measures)

    def judged_with(self, alone: Alone, rules: TimeRules, *, measures: bool = False) -> "JudgedTimes":
        """Judge the log by some rules, where it is known what rules 1 and 2 say of each record."""
        t, why, moved_by = alone
        role = roles(why, self.event_us, self.arrival_us, rules)
        columns = self._columns(t, role, rules)
        state, place, waits = STATE.empty_table(), LogPlace(), Waits()
        if self.start is not None:
            state, place, waits = self.start.under(rules), self.start.place, self.start.waits
        logs: list[tuple[Stretch, JudgedLog]] = []
        for stretch in self.stretches:
            begin, end = (int(at) for at in np.searchsorted(self.seq, [stretch.first_seq, stretch.end_seq]))
            if begin == end and stretch.tick_us is None:
                continue
            waits = waits.from_here(place.before_us, stretch.waits)
            rows = pa.table({name: column[begin:end] for name, column in columns.items()})
            rules_here, until = replace(rules, waits=waits), replace(place, tick_us=stretch.tick_us)
            log = judge_log(rows, state, rules_here, until, measures=measures)
            logs.append((stretch, log))
            if stretch is not self.stretches[-1]:
                state, place = log.state, _after(place, self.clock_us[begin:end], stretch.tick_us, rules)
        return JudgedTimes(self, rules, t, why, moved_by, tuple(logs))

    def _columns(self, t: Array, role: Array, rules: TimeRules) -> dict[str, pa.Array]:
        # NONE stays as it is, as the loop takes it for null.
        columns = {
            SEQ: pa.array(self.seq),
            T_US: pa.array(t),
            CLOCK_US: pa.array(self.clock_us),
            ROLE: pa.array(role),
        }
        if rules.time.over:
            columns[TIMELINE] = _coded(self.timeline, self.timelines)
        if rules.uses_splits:
            columns |= {SOURCE: _coded(self.source, self.sources), SPLIT: _coded(self.split, self.splits)}
        for number, window in enumerate(rules.windows_to_close):
            columns[f"{CLOSE}{number}"] = pa.array(_closes(t, self.gaps.get(window.name), window, rules))
        return columns


def _coded(places: Array, texts: Sequence[str | None]) -> pa.Array:
    """Return the text at each of some places."""
    nulls = np.array([text is None for text in texts])
    codes = pa.array(places, mask=nulls[places] if nulls.any() else None)
    return pa.DictionaryArray.from_arrays(codes, pa.array([text or "" for text in texts], pa.string()))


def judged_alone(times: LogTimes, time: TimeSpec) -> Alone:
    """Apply rules 1 and 2 to the records of a log, as timeops/events/adjustment.py does to rows of Spark.

    Returns:
        The time of each that rule 3 judges, NONE where there is none; why it is refused, as CODES; and which rule
        moved it: 1 or 2, else 0.
    """
    arrival, unit = times.arrival_us, time.unit_us
    t = times.event_us if unit == 1 else times.event_us // unit * unit
    why, moved_by = times.why.copy(), np.zeros(len(times.seq), np.int8)
    for rule in arrival_rules(time):
        concerned = rule.applies(times.event_us - arrival) & (why == 0)
        if rule.policy == "drop":
            why[concerned] = CODES[rule.reason]
        elif rule.policy == "adjust":
            t, moved_by[concerned] = np.where(concerned, rule.limit(arrival), t), rule.number
    return np.where(why == 0, t, NONE) if why.any() else t, why, moved_by


def _closes(t: Array, gaps: Array | None, window: WindowSpec, rules: TimeRules) -> Array:
    """Return the close time that each event asks for, as `grid.close_asked` does in SQL; NONE in a gap."""
    is_timed = t != NONE
    closes = np.full(len(t), NONE)
    if is_timed.any():
        timed = t[is_timed]
        ends = last_ends(timed, window, None if gaps is None else gaps[is_timed])
        closes[is_timed] = np.where(ends == NONE, NONE, ends + window.clock_closes_after_us(rules.time.unit_us))
    return closes


def _after(place: LogPlace, clocks: Array, tick_us: int | None, rules: TimeRules) -> LogPlace:
    """Return the place in the log after a stretch."""
    present = clocks[clocks != NONE]
    earlier_us = [] if place.before_us is None else [place.before_us]
    instants = np.concatenate(
        [np.array(earlier_us, np.int64), present, np.array([] if tick_us is None else [tick_us], np.int64)]
    )
    if not len(instants):
        return place
    maxima = np.maximum.accumulate(instants)
    every_us = rules.time.emit_every_us
    ended = place.ended_us
    if every_us is not None:
        earlier = maxima[maxima < maxima[-1] // every_us * every_us]
        ended = int(earlier[-1]) if len(earlier) else ended
    return LogPlace(int(instants[0]) if place.first_us is None else place.first_us, int(maxima[-1]), ended)


@dataclass(frozen=True)
class Met:
    """A watermark, and the record after which it had this value first; None for none, or of the clock."""

    us: int | None
    set_by: int | None


NO_WATERMARK = Met(None, None)
"""No watermark yet."""


@dataclass(frozen=True)
class SplitReach:
    """How far a split lets the watermark of its timeline rise.

    Attributes:
        source: Its source.
        value: Its value.
        allows_us: The watermark that it allows; None before its first event.
        last_us: The clock of its last event, less the time for which it had to wait.
        is_idle: It has left the minimum.
    """

    source: str
    value: str | None
    allows_us: int | None
    last_us: int | None
    is_idle: bool


@dataclass(frozen=True, eq=False)
class JudgedTimes:
    """A log that was judged by some rules.

    Attributes:
        times: The log.
        rules: The rules.
        t: The time of each record that rule 3 judges; NONE where there is none.
        why: What refused each before rule 3, as CODES; 0 where nothing did.
        moved_by: Which rule moved its time: 1 or 2, else 0.
        logs: Each stretch, with what the loop says of it.
    """

    times: LogTimes
    rules: TimeRules
    t: Array
    why: Array
    moved_by: Array
    logs: Sequence[tuple[Stretch, JudgedLog]]

    def before(self, seq: int, *, across: bool = False) -> Met:
        """Return the watermark that a record of the log meets: of its timeline, or the one across timelines."""
        late = None if across else self._late(seq)
        if late is not None:
            return late
        value, set_by = self._before(np.array([seq], np.int64), across=across)
        return Met(_or_none(value[0]), _or_none(set_by[0]))

    def _late(self, seq: int) -> Met | None:
        """Return the watermark that a record met if its time is below it; the loop has noted that."""
        for stretch, log in self.logs:
            if stretch.first_seq <= seq < stretch.end_seq:
                letters = log.rises.findings.out_of_order
                item = int(np.searchsorted(log.rises.items.seq, seq))
                at = int(np.searchsorted(letters["item"], item))
                if at < len(letters) and int(letters["item"][at]) == item:
                    return Met(_or_none(letters["watermark"][at]), _or_none(letters["set_by"][at]))
        return None

    def before_each(self, seqs: Array, *, across: bool = False) -> Array:
        """Return the watermarks that records of the log meet, see `before`; NONE for none."""
        return self._before(seqs, across=across)[0]

    def final_t(self, seqs: Array) -> Array:
        """Return the `_timestamp` of accepted records of the log: rule 3 may move one to the watermark."""
        t = self.t[np.searchsorted(self.times.seq, seqs)]
        return np.maximum(t, self.before_each(seqs)) if self.rules.time.out_of_order == "adjust" else t

    def are_accepted(self, seqs: Array) -> Array:
        """Return for records of the log whether rules 0 to 3 accept them."""
        at = np.searchsorted(self.times.seq, seqs)
        accepted = self.why[at] == 0
        if self.rules.time.out_of_order == "drop":
            accepted &= self.t[at] >= self.before_each(seqs)  # NONE, for no watermark, is below all times
        return np.asarray(accepted)

    def _before(self, seqs: Array, *, across: bool) -> tuple[Array, Array]:
        value, set_by = np.full(len(seqs), NONE), np.full(len(seqs), NONE)
        timeline = self.times.timeline[np.searchsorted(self.times.seq, seqs)]
        for stretch, log in self.logs:
            is_inside = (seqs >= stretch.first_seq) & (seqs < stretch.end_seq)
            if not is_inside.any():
                continue
            index = {name: k for k, name in enumerate(log.names.to_pylist())}
            names = [ACROSS if across else self.times.timelines[place] for place in timeline[is_inside]]
            k = np.array([index.get(name, -1) for name in names], np.int64)
            at = np.flatnonzero(is_inside)[k >= 0]
            if len(at):
                watermarks = log.rises.before(k[k >= 0], log.rises.place_of(seqs[at]))
                value[at], set_by[at] = watermarks.value, watermarks.set_by
        return value, set_by

    def last(self, timeline: str) -> Met:
        """Return the watermark of a timeline after the last item of the log."""
        for row in self._last_rows(timeline):
            return Met(row["watermark"], row["watermark_set_by"])
        return Met(None, None)

    def splits(self, timeline: str) -> list[SplitReach]:
        """Return how far each split of a timeline has come, the one that holds the watermark back first."""
        sources = {source.name: source for source in self.rules.sources}
        reaches = []
        for row in self._last_rows(timeline):
            for split in row["splits"] or () if self.rules.uses_splits else ():
                source = sources.get(split["source"])
                tolerance = self.rules.time.out_of_orderness_us if source is None else source.out_of_orderness_us
                timeout = source.idle_timeout_us if source is not None and self.rules.excludes_idle_splits else None
                last, max_t = split["last_clock"], split["max_t"]
                is_idle = timeout is not None and last is not None and row["clock"] - last >= timeout
                allows = None if max_t is None else max(max_t - tolerance, MIN_US)
                reaches.append(SplitReach(split["source"], split["split"], allows, last, is_idle))
        return sorted(reaches, key=lambda reach: (reach.is_idle, reach.allows_us is not None, reach.allows_us or 0))

    def timelines(self) -> list[SplitReach]:
        """Return how far each timeline has come, under its name for a source, as `splits` does."""
        reaches, timeout_us = list[SplitReach](), self.rules.time.idle_timeout_us
        for row in own_timelines(self.logs[-1][1].state, self.rules.time).to_pylist() if self.logs else ():
            if row["max_t"] is None:
                continue
            name, last = row[TIMELINE], row["last_clock"]
            if self.rules.uses_splits:
                is_idle = all(split.is_idle for split in self.splits(name))
            else:
                is_idle = self.rules.excludes_idle_splits and last is not None and row["clock"] - last >= timeout_us
            reaches.append(SplitReach(name, None, row["watermark"], last, is_idle))
        return sorted(reaches, key=lambda reach: (reach.is_idle, reach.allows_us is not None, reach.allows_us or 0))

    def _last_rows(self, timeline: str) -> list[dict[str, Any]]:
        if not self.logs:
            return []
        log = self.logs[-1][1]
        k = self._index(log, timeline)
        rows: list[dict[str, Any]] = [] if k is None or k >= len(log.state) else log.state.slice(k, 1).to_pylist()
        return rows

    def reaching(self, timeline: str, wanted_us: int, from_seq: int = 0) -> Item | None:
        """Return the first item, from a record on, after which a watermark has come to a value; None for none.

        None, too, where records had brought it there that are no longer in the log.
        """
        if self.times.start is not None and self.times.start.has_reached(timeline, wanted_us):
            return None
        for stretch, log in self.logs:
            k = self._index(log, timeline)
            if stretch.end_seq <= from_seq and from_seq:  # its tick comes before the record, too
                continue
            if k is None or not len(log.rises.clock):
                continue
            first = int(np.searchsorted(log.rises.items.seq, from_seq))
            high = len(log.rises.clock)

            def has_reached(place: int, log: JudgedLog = log, k: int = k) -> bool:
                return int(log.rises.after(np.array([k]), np.array([place])).value[0]) >= wanted_us

            if first >= high or not has_reached(high - 1):
                continue
            low, end = first, high - 1
            while low < end:
                middle = (low + end) // 2
                low, end = (low, middle) if has_reached(middle) else (middle + 1, end)
            return self._item(log, k, low)
        return None

    def _item(self, log: JudgedLog, k: int, place: int) -> Item:
        watermark, seqs = log.rises.after(np.array([k]), np.array([place])), log.rises.items.seq
        return Item(
            int(seqs[place]) if place < len(seqs) else None,
            int(log.rises.clock[place]),
            int(watermark.value[0]),
            _or_none(watermark.set_by[0]),
        )

    def timeline_of(self, seq: int) -> str:
        """Return the timeline of a record."""
        at = self.times.place(seq)
        return ONE_TIMELINE if at is None else self.times.timelines[int(self.times.timeline[at])]

    @staticmethod
    def _index(log: JudgedLog, timeline: str) -> int | None:
        names = log.names.to_pylist()
        return names.index(timeline) if timeline in names else None

    def reason_of(self, seq: int) -> Reason | None:
        """Return why rules 0 to 3 refuse a record of the log; None where they accept it."""
        at = self.times.place(seq)
        assert at is not None  # it is of the log
        if self.why[at]:
            return REASONS[int(self.why[at]) - 1]
        if self.rules.time.out_of_order != "drop":
            return None
        return None if self._late(seq) is None else Reason.OUT_OF_ORDER


def _or_none(value: int) -> int | None:
    return None if value == NONE else int(value)


def least_accepted(
    accepts: Callable[[int], bool], guess_us: int, *, now_us: int, step_us: int, most_us: int
) -> int | None:
    """Return a length with which something is accepted, and with one step less it is not; None where there is none.

    Args:
        accepts: Whether it is accepted with a length.
        guess_us: What a formula says.
        now_us: A length, a whole number of steps, with which it is not accepted.
        step_us: The least difference of two lengths.
        most_us: No length above it is tried.
    """
    low, high = now_us, max(-(-guess_us // step_us) * step_us, now_us + step_us)
    if not accepts(high):
        low, high = high, -(-most_us // step_us) * step_us
        if high <= low or not accepts(high):
            return None
    elif high - step_us == now_us or not accepts(high - step_us):
        return high
    else:
        high -= step_us
    while high - low > step_us:
        middle = low + (high - low) // (2 * step_us) * step_us
        low, high = (low, middle) if accepts(middle) else (middle, high)
    return high
