"""The answer about a record: its values, as JSON, and as a short story with its numbers for a person.

Here: what is answered, words and layout. Not here: finding it out (assets/questions/record.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tidemark.assets.questions.record_joins import RecordJoin
from tidemark.assets.questions.record_windows import RecordWindow
from tidemark.assets.questions.words import (
    AnswerInParts,
    at,
    clock_rule,
    enumerated,
    instant_text,
    labelled_lines,
    length_text,
    span_text,
    split_text,
    table_lines,
    value_text,
    waiting_for,
    when,
)
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import ADMITTED, KEPT
from tidemark.timeops.figures.log_times import NO_WATERMARK, Item, Met, SplitReach
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import is_reserved
from tidemark.timeops.values.durations import format_duration

_WIDE = 110
_MOST_WINDOWS = 12
_LONGEST_VALUE = 40


@dataclass(frozen=True)
class Setter:
    """The record that set a watermark.

    Attributes:
        seq: The record.
        event_us: Its event time.
        arrival_us: Its arrival.
        source: Its source.
        split: Its split.
        between: How many records came after it and before the one that met the watermark.
    """

    seq: int
    event_us: int | None
    arrival_us: int | None
    source: str
    split: str | None
    between: int


@dataclass(frozen=True)
class RecordAnswer(AnswerInParts):
    """The answer about one record; instants are microseconds, None for none.

    Attributes:
        pipeline: The pipeline.
        seq: The record.
        outcome: `ordered`, `held`, `kept`, `dead_letter` or `excluded`.
        row: Its row of the log.
        rules: The rules of time.
        reason: Why it, or a window, refused it, or why it was taken out of the log.
        detail: The same in a sentence, where there is one.
        event_us: Its event time.
        timestamp_us: Its `_timestamp`, where it was accepted.
        arrival_us: Its arrival.
        clock_us: The clock of the log at it.
        timeline: Its timeline.
        t_us: The time that rule 3 judged.
        met: The watermark just before it.
        setter: What set that.
        now: The watermark of its timeline now.
        splits: How far each split of its timeline has come, the slowest first.
        lateness_us: Of a dead letter: by how much the tolerance was too small.
        admitted_by: Keys of the spec, each with the least duration that would have let it in, microseconds.
        unit: The finest coarser unit that would have let it in.
        windows: The windows that hold its time.
        joins: The joins that have its source.
        adjusted_by: The rules that moved its time.
        release_seq: Its `_release_seq`.
        released_by: The item that released it; None while it is held, and where a flush did.
        by_flush: A flush released it.
        changed: The keys that have changed since the record was judged, and that change how records are judged.
        is_accepted_now: By the spec as it is now it would be accepted, but the spec then refused it.
    """

    pipeline: str
    seq: int
    outcome: str
    row: Mapping[str, Any] = field(repr=False)
    rules: TimeRules = field(repr=False)
    reason: str | None = None
    detail: str | None = None
    event_us: int | None = None
    timestamp_us: int | None = None
    arrival_us: int | None = None
    clock_us: int | None = None
    timeline: str | None = None
    t_us: int | None = None
    met: Met = NO_WATERMARK
    setter: Setter | None = None
    now: Met = NO_WATERMARK
    splits: tuple[SplitReach, ...] = ()
    lateness_us: int | None = None
    admitted_by: Mapping[str, int] = field(default_factory=dict)
    unit: str | None = None
    windows: tuple[RecordWindow, ...] = ()
    joins: tuple[RecordJoin, ...] = ()
    adjusted_by: tuple[str, ...] = ()
    release_seq: int | None = None
    released_by: Item | None = None
    by_flush: bool = False
    changed: tuple[str, ...] = ()
    is_accepted_now: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; instants are ISO 8601 in UTC, lengths as `--set` takes them."""
        lengths = {key: format_duration(timedelta(microseconds=us)) for key, us in self.admitted_by.items()}
        return {
            "_arrival_seq": self.seq,
            "outcome": self.outcome,
            "reason": self.reason,
            "detail": self.detail,
            "_event_time": instant_text(self.event_us),
            "_timestamp": instant_text(self.timestamp_us),
            "_arrival_time": instant_text(self.arrival_us),
            "_timeline": self.timeline,
            "_watermark": instant_text(self.met.us),
            "watermark_set_by": self.met.set_by,
            "lateness_us": self.lateness_us,
            "admitted_by": lengths,
            "admitted_by_unit": self.unit,
            "windows": [window.to_dict() for window in self.windows],
            "joins": [join.to_dict() for join in self.joins],
            "changed_since": list(self.changed),
        }

    def parts(self) -> Iterator[Iterable[str]]:
        """Write the story of the record, part by part."""
        yield [f"{self.pipeline}, record {self.seq:,}: {_headline(self)}"]
        yield _facts(self)
        if self.outcome != "excluded":
            for part in (_rules, _watermark, _release, _windows, _joins, _admission):
                yield part(self)
        if self.changed:
            yield _changed(self)


def _headline(answer: RecordAnswer) -> str:
    if answer.outcome == "excluded":
        return "taken out of the log" + (f": {answer.reason}" if answer.reason else "")
    by = "" if answer.lateness_us is None else f", by {length_text(answer.lateness_us)}"
    if answer.outcome == "dead_letter":
        return f"refused, {answer.reason}{by}"
    accepted = {
        "ordered": "accepted and released",
        "held": "accepted, and held",
        "kept": "accepted out of order, released at once",
    }[answer.outcome]
    if ADMITTED in answer.adjusted_by:
        return f"refused, and let in again: it is in its {_takers(answer)} as if it had come in time"
    if answer.reason in (Reason.WINDOW_CLOSED, Reason.JOIN_CLOSED):
        return f"{accepted}; too late for {_missed(answer)}{by}"
    if answer.reason == Reason.BAD_EXPRESSION:
        return f"{accepted}; a window cannot add it up"
    return accepted


def _missed(answer: RecordAnswer) -> str:
    """Name the windows that an accepted event missed, or the joins."""
    noun, takers = ("join", answer.joins) if answer.reason == Reason.JOIN_CLOSED else ("window", answer.windows)
    names = dict.fromkeys(taker.name for taker in takers if taker.outcome == "missed")
    return enumerated([*names]) or f"a {noun}"


def _takers(answer: RecordAnswer) -> str:
    """Name what takes the accepted events of the pipeline."""
    if answer.rules.joins and answer.rules.windows:
        return "windows and joins"
    return "joins" if answer.rules.joins else "windows"


def _facts(answer: RecordAnswer) -> Iterator[str]:
    rows = []
    if answer.event_us is not None:
        moved = answer.timestamp_us is not None and answer.timestamp_us != answer.event_us
        by = f", in the tables {at(answer.timestamp_us)} ({_moved_by(answer)})" if moved else ""
        rows.append(("event time", f"{at(answer.event_us)}{by}"))
    if answer.arrival_us is not None:
        rows.append(("arrived", f"{at(answer.arrival_us)}{_against(answer.arrival_us, answer.event_us)}"))
    file = answer.row.get(c.FILE)
    place = f"{file}, position {answer.row[c.POSITION]:,}" if file and answer.row.get(c.POSITION) is not None else ""
    split = f", split {value_text(answer.row[c.SPLIT])}" if answer.row.get(c.SPLIT) is not None else ""
    rows.append(("read from", f"{answer.row[c.SOURCE]}{split}{f': {place}' if place else ''}"))
    if answer.timeline not in (None, c.ONE_TIMELINE):
        rows.append(("timeline", str(answer.timeline)))
    rows += [("holds" if number == 0 else "", line) for number, line in enumerate(_payload(answer))]
    told_below = (Reason.EARLY, Reason.LATE_ARRIVAL, Reason.OUT_OF_ORDER, Reason.WINDOW_CLOSED, Reason.JOIN_CLOSED)
    if answer.detail is not None and answer.reason not in told_below:
        rows.append(("detail", answer.detail))
    yield from labelled_lines(rows)


def _moved_by(answer: RecordAnswer) -> str:
    rules = [rule for rule in answer.adjusted_by if rule != KEPT]
    return f"moved as {' and '.join(rules)}" if rules else f"cut to the {answer.rules.time.unit}"


def _payload(answer: RecordAnswer) -> Iterator[str]:
    if answer.row.get(c.MALFORMED) is not None:
        yield value_text(answer.row[c.MALFORMED], 3 * _LONGEST_VALUE)
        return
    line = ""
    for name, value in answer.row.items():
        if is_reserved(name) or value is None:
            continue
        shown = f"{name} {value_text(value)}"
        if line and len(line) + len(shown) > _WIDE - 20:
            yield line + ","
            line = ""
        line = f"{line}, {shown}" if line else shown
    if line:
        yield line


def _rules(answer: RecordAnswer) -> Iterator[str]:
    """Describe each rule of the spec in its order, up to the one that refused the record, with what it compared."""
    time, rows = answer.rules.time, list[tuple[str, str, str]]()
    reason = answer.reason if answer.outcome == "dead_letter" else None
    if reason in (Reason.MALFORMED, Reason.NO_ARRIVAL_TIME, Reason.NO_TIMESTAMP, Reason.BAD_TIMESTAMP):
        return
    if reason == Reason.BAD_EXPRESSION:
        return
    rows += [*_rule_0(answer, reason)]
    if reason != Reason.DUPLICATE and answer.event_us is not None and answer.arrival_us is not None:
        ahead = answer.event_us - answer.arrival_us
        if time.early is not None:
            rows.append(_of_arrival("early", time.early.tolerance_us, ahead, time.early.policy))
        if time.late is not None and reason != Reason.EARLY:
            rows.append(_of_arrival("late", time.late.tolerance_us, -ahead, time.late.policy))
        if reason not in (Reason.EARLY, Reason.LATE_ARRIVAL):
            rows.append(_rule_3(answer))
    yield "The rules, in order"
    yield from table_lines(rows)


def _rule_0(answer: RecordAnswer, reason: str | None) -> Iterator[tuple[str, str, str]]:
    time = answer.rules.time
    if time.deduplicate_by:
        key = ", ".join(time.deduplicate_by)
        is_one = reason == Reason.DUPLICATE
        words = f"an earlier record has its {key}, within" if is_one else f"no earlier record has its {key} within"
        yield "duplicate", f"{words} {length_text(time.within_us)}", "refused" if is_one else "passes"


def _of_arrival(rule: str, tolerance_us: int, by_us: int, policy: str) -> tuple[str, str, str]:
    names = {
        "early": ("early arrival", "ahead of its arrival", "after its arrival"),
        "late": ("late arrival", "after its time", "before its time"),
    }
    name, beyond, other = names[rule]
    far = length_text(abs(by_us))
    if far == length_text(tolerance_us) and by_us != tolerance_us:  # as far as a short text says
        far = format_duration(timedelta(microseconds=abs(by_us)))
    distance = f"{far} {beyond if by_us >= 0 else other}" if by_us else "at its arrival"
    verb = "its time is" if rule == "early" else "it came"
    verdicts = {"drop": "refused", "adjust": "moved to the edge", "keep": "kept: it moves no watermark"}
    verdict = verdicts[policy] if by_us > tolerance_us else "passes"
    return name, f"{verb} {distance}, tolerance {length_text(tolerance_us)}", verdict


def _rule_3(answer: RecordAnswer) -> tuple[str, str, str]:
    policy = answer.rules.time.out_of_order
    if answer.met.us is None:
        why = "no watermark yet" if not answer.changed else "the watermark of then is not stored"
        return "out of order", why, "passes"
    t = answer.t_us if answer.t_us is not None else answer.event_us
    assert t is not None  # a record without a time has met no such rule
    by = t - answer.met.us
    words = (
        f"its time is {length_text(abs(by))} {'behind' if by < 0 else 'ahead of'} the watermark {at(answer.met.us)}"
    )
    if not by:
        words = f"its time is the watermark {at(answer.met.us)}"
    verdicts = {"drop": "refused", "adjust": "moved to the watermark", "keep": f"kept: the {_takers(answer)} decide"}
    return "out of order", words, verdicts[policy] if by < 0 else "passes"


def _watermark(answer: RecordAnswer) -> Iterator[str]:
    if answer.met.us is None or answer.t_us is None:  # rule 3 has not seen it
        return
    yield f"The watermark it met: {at(answer.met.us)}"
    setter, rules = answer.setter, answer.rules
    if setter is None:
        if answer.met.set_by is None:
            yield from labelled_lines(
                [("set by", f"the clock, which was at {at(answer.clock_us)} ({clock_rule(answer.rules)})")]
            )
        else:
            yield from labelled_lines([("set by", f"record {answer.met.set_by:,}, which is no longer in the log")])
        return
    source = next((rule for rule in rules.sources if rule.name == setter.source), None)
    tolerance = rules.time.out_of_orderness_us if source is None else source.out_of_orderness_us
    less = f", less out_of_orderness {length_text(tolerance)}" if tolerance else ""
    rows = [("set by", f"record {setter.seq:,}, event time {at(setter.event_us)}{less}")]
    if len(answer.splits) > 1:
        origin = split_text(setter.source, setter.split)
        rows = [("set by", f"record {setter.seq:,} of {origin}: the slowest split then{less}")]
        rows.append(("", f"its event time {at(setter.event_us)}"))
    if setter.arrival_us is not None:
        against = _against(setter.arrival_us, setter.event_us).removeprefix(", ")
        origin = f", from {setter.source}" if len(rules.sources) > 1 and len(answer.splits) < 2 else ""
        rows.append(("which came", f"{at(setter.arrival_us)}, {against}{origin}"))
    words_of_setter = []
    if answer.arrival_us is not None and setter.arrival_us is not None:
        apart = answer.arrival_us - setter.arrival_us
        words = f"{length_text(abs(apart))} {'before' if apart > 0 else 'after'} this one"
        words_of_setter.append(words if apart else "at the same time as this one")
    count = f"{setter.between:,} record{'s' if setter.between != 1 else ''} between them"
    rows.append(("", ", ".join([*words_of_setter, count if setter.between else "directly before it"])))
    if rules.time.emit_every_us is not None:
        rows.append(("seen", f"from the next period of {length_text(rules.time.emit_every_us)} on"))
    yield from labelled_lines(rows)


def _release(answer: RecordAnswer) -> Iterator[str]:
    if answer.outcome == "held":
        yield "Held until the watermark has passed its time"
        assert answer.timestamp_us is not None  # an accepted event has one, and a timeline
        assert answer.timeline is not None
        yield from labelled_lines(
            [*waiting_for(answer.rules, answer.now, answer.splits, answer.timeline, answer.timestamp_us, inside=True)]
        )
    elif answer.outcome == "ordered":
        yield "Released"
        number = "" if answer.release_seq is None else f"; number {answer.release_seq:,} in its sequence"
        by = "the flush at the end of input" if answer.by_flush else when(answer.released_by, "")
        yield from labelled_lines([("by", f"{by or 'the watermark'}{number}")])


def _windows(answer: RecordAnswer) -> Iterator[str]:
    if not answer.windows:
        return
    yield "Its windows"
    rows = [_window(window, answer) for window in answer.windows[:_MOST_WINDOWS]]
    yield from table_lines(rows)
    n_left = len(answer.windows) - _MOST_WINDOWS
    if n_left > 0:
        yield f"  … and {n_left:,} more"


def _window(window: RecordWindow, answer: RecordAnswer) -> tuple[str, str, str]:
    span = "" if window.start_us is None or window.end_us is None else span_text(window.start_us, window.end_us)
    by = "a flush" if window.by_flush else when(window.closed_by, "")
    if window.outcome == "counted":
        state = f"counted; closed by {by}" if by else "counted"
    elif window.outcome == "open":
        state = "open" if window.closes_us is None else f"open; {_closes(window, answer)}"
    elif window.outcome == "missed":
        still = "missed, though it was open: no window sees what a rule of time refuses"
        state = "missed: it had closed" if window.was_closed else still
        state += f", by {by}" if by and window.was_closed else ""
    else:
        state = {
            "filtered": "left out by the window",
            "in_gap": "in a gap between two windows",
            "removed": "it may hold records that `retention` has removed from the log",
        }[window.outcome]
    return window.name, span, state


def _closes(window: RecordWindow, answer: RecordAnswer) -> str:
    window_rules = next(rules for rules in answer.rules.windows if rules.name == window.name)
    assert window.closes_us is not None  # the caller has looked
    verb = "pass" if window_rules.ends_inside else "reach"
    return f"the watermark has to {verb} {at(window.closes_us - window_rules.ends_inside_us)}"


def _joins(answer: RecordAnswer) -> Iterator[str]:
    if answer.joins:
        yield "Its joins"
        yield from table_lines([(join.name, join.side, _join(join, answer)) for join in answer.joins])


def _unanswered(join: RecordJoin, answer: RecordAnswer) -> str:
    if join.outcome == "removed":
        return "`retention` has removed old answers, among them the ones that name it"
    if answer.outcome == "dead_letter":
        return "missed: no join sees what a rule of time refuses"
    why = "its answer was final" if join.side == "left" else "no answer that it could change was open"
    why = "the time for its partners was over" if join.pairs is not None else why
    return f"missed: {why} when it came"


def _join(join: RecordJoin, answer: RecordAnswer) -> str:
    spec = next(rules for rules in answer.rules.joins if rules.name == join.name)
    until = "" if join.closes_us is None else f"until the watermark is past {at(join.closes_us)}"
    if join.outcome in ("removed", "missed"):
        return _unanswered(join, answer)
    if join.pairs is not None:
        some = f"in {join.pairs:,} pair{'s' if join.pairs != 1 else ''}" if join.pairs else "without a partner"
        return f"{some} so far; open {until}" if join.outcome == "open" else some
    if join.side == "right":
        some = f"the partner of {join.answers:,} event{'s' if join.answers != 1 else ''} of {spec.left.source}"
        return f"{some}; this may change {until}" if join.outcome == "open" else some
    partner = "without a partner" if join.right_seq is None else f"by record {join.right_seq:,}"
    partner = f"from {spec.right.table}" if spec.has_table else partner
    if join.outcome == "answered":
        return f"answered {partner}"
    some = "waits" if join.right_seq is None else f"answered {partner} so far"
    return f"{some}; open {until}"


def _admission(answer: RecordAnswer) -> Iterator[str]:
    if answer.reason is None or answer.outcome == "excluded":
        return
    if not answer.admitted_by and answer.unit is None:
        if answer.reason in (
            Reason.OUT_OF_ORDER,
            Reason.WINDOW_CLOSED,
            Reason.JOIN_CLOSED,
            Reason.EARLY,
            Reason.LATE_ARRIVAL,
        ):
            why = (
                "the spec as it is now accepts it"
                if answer.is_accepted_now
                else "no tolerance alone would have let it in"
            )
            yield f"{why[0].upper()}{why[1:]}"
        return
    yield "One of these alone would have let it in"
    rows = [
        (key, format_duration(timedelta(microseconds=us)), _today(answer, key))
        for key, us in answer.admitted_by.items()
    ]
    if answer.unit is not None:
        rows.append(("time.unit", answer.unit, f"now {answer.rules.time.unit}"))
    yield from table_lines(rows)


def _today(answer: RecordAnswer, key: str) -> str:
    time = answer.rules.time
    if key.startswith("windows["):
        window = answer.rules.windows[int(key[len("windows[") : key.index("]")])]
        return f"now {format_duration(window.allowed_lateness)}, of {window.name}"
    if key.startswith("joins["):
        join = answer.rules.joins[int(key[len("joins[") : key.index("]")])]
        return f"now {format_duration(join.allowed_lateness)}, of {join.name}"
    if key.startswith("sources["):
        source = answer.rules.sources[int(key[len("sources[") : key.index("]")])]
        return f"now {length_text(source.out_of_orderness_us)}, of {source.name}"
    policies = {"time.late.tolerance": time.late, "time.early.tolerance": time.early}
    policy = policies.get(key)
    return f"now {format_duration(time.out_of_orderness if policy is None else policy.tolerance)}"


def _changed(answer: RecordAnswer) -> Iterator[str]:
    yield "The spec has changed since: this is the verdict of then"
    yield from labelled_lines([("changed", enumerated(list(answer.changed)))])


def _against(arrival_us: int, event_us: int | None) -> str:
    if event_us is None:
        return ""
    by = arrival_us - event_us
    return (
        f", {length_text(abs(by))} {'after' if by > 0 else 'before'} its event time" if by else ", at its event time"
    )
