"""The least tolerance with which a refused record would have been accepted, found by judging the log with it.

Here: which keys of a spec may let a record in, what each has to be, and the proof: with that value the record is
accepted, with one unit less it is not. A formula says where to look, the loop decides. Not here: the log's times
(timeops/figures/log_times.py), the events of a session's group, the words of an answer.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Literal

import numpy as np

from tidemark.timeops.calendar.grid import spans_at
from tidemark.timeops.figures.log_times import Alone, JudgedTimes, LogTimes, judged_alone, least_accepted
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.windows.sessions import CLOSED, came_alone, rules_of_sessions, sessions

_LONGEST_US = 3_652_059 * 86_400_000_000  # no duration of a spec is longer
_UNITS: tuple[Literal["millisecond", "second"], ...] = ("millisecond", "second")


@dataclass(frozen=True)
class Refusal:
    """A record that was refused, and what has to be known of it.

    Attributes:
        seq: The record.
        reason: Why it was refused.
        windows: The windows that refused it, by their place in the spec.
        groups: Of a session that refused it the accepted events of its group in the log, in order, the record itself
            among them; an event that the window leaves out is not one of them.
        dropped: The events of the same group that rule 3 drops: with another value it may accept them.
        joins_wait_us: Where joins have refused it, how far the watermark may be past it for all of them to take it,
            microseconds; None where none has.
    """

    seq: int
    reason: Reason
    windows: Sequence[int] = ()
    groups: Mapping[int, Array] = field(default_factory=dict)
    dropped: Mapping[int, Array] = field(default_factory=dict)
    joins_wait_us: int | None = None

    @property
    def is_accepted(self) -> bool:
        """True if rule 3 has accepted it: windows or joins have refused it."""
        return bool(self.windows) or self.joins_wait_us is not None


@dataclass(frozen=True)
class _Knob:
    """A key of the spec whose value may be larger.

    Attributes:
        key: The key, as `--set` takes it.
        now_us: Its value.
        step_us: The least difference of two values.
        guess_us: The value that a formula asks for.
        turned: Returns the rules with another value.
        windows: The windows that have to accept the record; none where rule 3 is enough.
    """

    key: str
    now_us: int
    step_us: int
    guess_us: int
    turned: Callable[[int], TimeRules]
    windows: Sequence[int] = ()


def admitted_by(
    times: LogTimes, rules: TimeRules, refused: Refusal, overriding: Collection[int] = ()
) -> dict[str, int]:
    """Return the keys of the spec that alone let a record in, each with the least value, microseconds.

    A pipeline that judges the log with that value accepts the record; with one unit less it does not. A key is left
    out where no value is enough, as where the clock raised the watermark, or where another rule refuses the record.

    Args:
        times: The log.
        rules: The rules by which the record is refused.
        refused: The record.
        overriding: The sources, by their place in the spec, that have an `out_of_orderness` of their own.
    """
    log = _Log.of(times, rules, refused)
    now, at = log.judged(rules), log.times.place(refused.seq)
    if at is None or now.reason_of(refused.seq) != (None if refused.is_accepted else refused.reason):
        return {}
    span, least_by_key = log.times.span_us, {}
    for knob in _knobs(rules, now, refused, overriding):

        def accepts(us: int, knob: _Knob = knob) -> bool:
            return _accepts(log.judged(knob.turned(us)), refused, knob)

        most_us = min(knob.now_us + 2 * span + knob.step_us, _LONGEST_US)
        least = least_accepted(accepts, knob.guess_us, now_us=knob.now_us, step_us=knob.step_us, most_us=most_us)
        if least is not None:
            least_by_key[knob.key] = least
    return least_by_key


def admitting_unit(times: LogTimes, rules: TimeRules, refused: Refusal) -> str | None:
    """Return the finest unit above today's with which rule 3 accepts a record that it refuses; None for none."""
    if refused.reason is not Reason.OUT_OF_ORDER:
        return None
    log = _Log.of(times, rules, refused)
    for unit in _UNITS:
        time = rules.time.model_copy(update={"unit": unit})
        lengths = {time.out_of_orderness_us, *(source.out_of_orderness_us for source in rules.sources)}
        if time.unit_us <= rules.time.unit_us or any(us % time.unit_us for us in lengths):
            continue
        if log.judged(replace(rules, time=time)).reason_of(refused.seq) is None:
            return unit
    return None


@dataclass(frozen=True, eq=False)
class _Log:
    """The part of a log that the verdict on a record depends on: up to it, and of its timeline alone.

    Where a window across timelines has refused the record, it is of all timelines.

    Attributes:
        times: That part.
        also: The numbers of records whose watermarks are asked for.
        is_alone: It is the log of one timeline alone.
    """

    times: LogTimes
    also: Array
    is_alone: bool = False
    _parts: dict[object, tuple[LogTimes, Alone]] = field(default_factory=dict)

    @classmethod
    def of(cls, times: LogTimes, rules: TimeRules, refused: Refusal) -> "_Log":
        """Return the part for a record."""
        log, groups = times.up_to(refused.seq), [*refused.groups.values(), *refused.dropped.values()]
        at, is_alone = log.place(refused.seq), not any(rules.windows[w].across for w in refused.windows)
        if rules.time.over and at is not None and is_alone:
            log = log.alone(int(log.timeline[at]), keeps_clock=rules.clock_moves)
        return cls(log, np.unique(np.concatenate([[refused.seq], *groups])), is_alone)

    def judged(self, rules: TimeRules) -> JudgedTimes:
        """Judge it; where the clock moves no watermark, only the records that do are looked at."""
        time = rules.time
        settings = time.unit, time.early, time.late
        if settings not in self._parts:
            alone = judged_alone(self.times, time)
            self._parts[settings] = (
                (self.times, alone) if rules.clock_moves else self.times.rising(alone, rules, self.also)
            )
        part, alone = self._parts[settings]
        of_one = self.is_alone and time.over
        rules_here = replace(rules, time=time.model_copy(update={"over": ()})) if of_one else rules
        return part.judged_with(alone, rules_here)


def _knobs(rules: TimeRules, now: JudgedTimes, refused: Refusal, overriding: Collection[int]) -> Iterator[_Knob]:
    time, at = rules.time, now.times.place(refused.seq)
    assert at is not None  # it is of the log
    ahead = int(now.times.event_us[at]) - int(now.times.arrival_us[at])
    if refused.reason is Reason.EARLY and time.early is not None:
        yield _Knob("time.early.tolerance", time.early.tolerance_us, 1, ahead, lambda us: _with(rules, "early", us))
    if refused.reason is Reason.LATE_ARRIVAL and time.late is not None:
        yield _Knob("time.late.tolerance", time.late.tolerance_us, 1, -ahead, lambda us: _with(rules, "late", us))
    if refused.windows:
        yield from _knobs_of_windows(rules, now, refused, overriding)
    met, t = now.before(refused.seq), int(now.t[at])
    if met.us is None or t == NONE:
        return
    if refused.joins_wait_us is not None:
        [final_t] = now.final_t(np.array([refused.seq], np.int64))
        yield from _patience(rules, met.us - int(final_t) - refused.joins_wait_us, overriding, ())
    if refused.reason is Reason.OUT_OF_ORDER:
        yield from _patience(rules, met.us - t, overriding, ())
        if time.clock_tolerance_us is not None and time.late is not None:
            guess = time.clock_tolerance_us + met.us - t
            yield _Knob("time.late.tolerance", time.late.tolerance_us, 1, guess, lambda us: _with(rules, "late", us))
        if time.early is not None and now.moved_by[at] == 1:
            guess = time.early.tolerance_us + met.us - t
            yield _Knob(
                "time.early.tolerance", time.early.tolerance_us, 1, guess, lambda us: _with(rules, "early", us)
            )


def _knobs_of_windows(
    rules: TimeRules, now: JudgedTimes, refused: Refusal, overriding: Collection[int]
) -> Iterator[_Knob]:
    windows = [rules.windows[w] for w in refused.windows]
    [t] = now.final_t(np.array([refused.seq], np.int64))
    met = [now.before(refused.seq, across=window.across).us for window in windows]
    closes = [last_close(int(t), window, _own_gap(now, refused.seq, window)) for window in windows]
    by = [(us or 0) - close + 1 for us, close in zip(met, closes, strict=True)]
    if t == NONE or None in met:
        return
    # Under drop and adjust no window has an `allowed_lateness`.
    keeps = zip(refused.windows, windows, by, strict=True) if rules.time.out_of_order == "keep" else ()
    for w, window, more_us in keeps:
        yield _Knob(
            f"windows[{w}].allowed_lateness",
            window.allowed_lateness_us,
            1,
            window.allowed_lateness_us + more_us,
            lambda us, w=w: _with_lateness(rules, w, us),  # type: ignore[misc]
            (w,),
        )
    yield from _patience(rules, max(by), overriding, refused.windows)


def last_close(t: int, window: WindowSpec, own_gap_us: int | None = None) -> int:
    """Return the watermark that closes the last window that holds an instant, as it decides on late events.

    `own_gap_us` is how long the event keeps its session open; None where all events have one gap.
    """
    if window.kind == "sliding":
        end = t + window.size_us - 1
    elif window.kind == "session":
        end = t + (window.gap_us if own_gap_us is None else own_gap_us)
    else:
        spans = spans_at(t, window)
        end = spans[-1][1] if spans else t
    return end + window.closes_after_us


def _own_gap(judged: JudgedTimes, seq: int, window: WindowSpec) -> int | None:
    return int(judged.times.gaps_of(window, np.array([seq], np.int64))[0]) if window.has_gap_of_records else None


def _patience(rules: TimeRules, more_us: int, overriding: Collection[int], windows: Sequence[int]) -> Iterator[_Knob]:
    """Return the keys that hold the watermark back: the one of `time`, and of sources that have their own."""
    time, unit = rules.time, rules.time.unit_us
    is_needed = not rules.sources or len(set(overriding)) < len(rules.sources)
    if is_needed:
        now = time.out_of_orderness_us

        def later(us: int) -> TimeRules:
            sources = tuple(
                source if place in overriding else replace(source, out_of_orderness_us=us)
                for place, source in enumerate(rules.sources)
            )
            return replace(rules, time=_time(time, out_of_orderness=timedelta(microseconds=us)), sources=sources)

        yield _Knob("time.out_of_orderness", now, unit, now + more_us, later, windows)
    for place in sorted(overriding):
        patience_us = rules.sources[place].out_of_orderness_us

        def later_of_one(us: int, place: int = place) -> TimeRules:
            sources = list(rules.sources)
            sources[place] = replace(sources[place], out_of_orderness_us=us)
            return replace(rules, sources=tuple(sources))

        yield _Knob(
            f"sources[{place}].out_of_orderness", patience_us, unit, patience_us + more_us, later_of_one, windows
        )


def _with(rules: TimeRules, rule: Literal["early", "late"], us: int) -> TimeRules:
    policy = getattr(rules.time, rule).model_copy(update={"tolerance": timedelta(microseconds=us)})
    return replace(rules, time=_time(rules.time, **{rule: policy}))


def _with_lateness(rules: TimeRules, place: int, us: int) -> TimeRules:
    windows = list(rules.windows)
    windows[place] = windows[place].model_copy(update={"allowed_lateness": timedelta(microseconds=us)})
    return replace(rules, windows=tuple(windows))


def _time(time: TimeSpec, **keys: object) -> TimeSpec:
    return time.model_copy(update=keys)


def _accepts(judged: JudgedTimes, refused: Refusal, knob: _Knob) -> bool:
    if judged.reason_of(refused.seq) is not None:
        return False
    if refused.joins_wait_us is not None:
        met, [t] = judged.before(refused.seq).us, judged.final_t(np.array([refused.seq], np.int64))
        if met is not None and met > t + refused.joins_wait_us:
            return False
    return all(_takes(judged, refused, judged.rules.windows[w], w) for w in knob.windows)


def _takes(judged: JudgedTimes, refused: Refusal, window: WindowSpec, place: int) -> bool:
    """Return whether a window takes an accepted event."""
    if window.kind == "session":
        dropped = refused.dropped.get(place, np.zeros(0, np.int64))
        dropped = dropped[dropped < refused.seq]  # the log goes no further
        seqs = np.union1d(refused.groups[place], dropped[judged.are_accepted(dropped)])
        return takes_in_sessions(judged, seqs, refused.seq, window)
    met = judged.before(refused.seq, across=window.across).us
    [t] = judged.final_t(np.array([refused.seq], np.int64))
    return met is None or last_close(int(t), window, _own_gap(judged, refused.seq, window)) > met


def takes_in_sessions(judged: JudgedTimes, seqs: Array, seq: int, window: WindowSpec) -> bool:
    """Return whether sessions take an event, where `seqs` are the accepted events of its group, in order."""
    seqs_so_far = seqs[seqs <= seq]
    t, met = judged.final_t(seqs_so_far), judged.before_each(seqs_so_far, across=window.across)
    late = np.where(t < met, met, NONE)
    came_times = came_alone(t, judged.times.gaps_of(window, seqs_so_far), late)
    rules = rules_of_sessions(window.model_copy(update={"emit": "on_close"}), keeps=True)
    placed = sessions(came_times, np.zeros(0, CLOSED), rules)
    return bool(placed.session[-1] >= 0)
