"""As-of joins of two sources, from what the oracle says of the events: one item of the log at a time.

Slow and plain: every right event is remembered for ever, and an answer looks at all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.oracle.model import Control, Record
from tests.oracle.outcome import OrderedEvent, Outcome


@dataclass(frozen=True)
class Join:
    """An as-of join; `on` are columns of the payload. `emit` is "on_time" or "on_close"."""

    left: str
    right: str
    on: tuple[str, ...]
    within_us: int
    direction: str = "backward"
    how: str = "inner"
    allowed_lateness_us: int = 0
    emit: str = "on_time"

    @property
    def ahead_us(self) -> int:
        """How far after a left event its partner may be."""
        return 0 if self.direction == "backward" else self.within_us

    @property
    def behind_us(self) -> int:
        """How far before a left event its partner may be."""
        return 0 if self.direction == "forward" else self.within_us


@dataclass(frozen=True)
class Answer:
    """One row of a join; `right_seq` is None without a partner."""

    left_seq: int
    right_seq: int | None
    revision: int
    is_final: bool
    watermark_us: int | None


@dataclass
class Joined:
    """A join of a log: its answers, the positions of the items that made them, late events, who waits."""

    answers: list[Answer] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    late: dict[int, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)


@dataclass
class Waiting:
    """A left event that has no final answer yet."""

    event: OrderedEvent
    key: tuple[object, ...]
    answers: list[int | None] = field(default_factory=list)


Given = tuple[Waiting, int | None, bool]
"""An answer at the item at hand: whose, the partner, whether it is final."""


def joined(outcome: Outcome, items: Sequence[Record | Control], join: Join) -> Joined:
    """Return what a join makes of the accepted events of a log that the oracle has judged."""
    accepted = {event.seq: event for event in [*outcome.ordered, *outcome.held]}
    result, waiting, rights = Joined(), list[Waiting](), list[tuple[OrderedEvent, tuple[object, ...]]]()
    for item in items:
        if isinstance(item, Record) and item.is_let_in and item.seq in accepted:  # as if before all others
            take(item, accepted[item.seq], waiting, rights, join, [], result)
    for place, item in enumerate(items):
        given = list[Given]()
        event = accepted.get(item.seq) if isinstance(item, Record) and not item.is_let_in else None
        if isinstance(item, Record) and event is not None:
            # The clock, which comes first, may have raised the watermark that the event meets.
            waiting = settle(waiting, rights, event.timeline, event.watermark_us, join, given)
            take(item, event, waiting, rights, join, given, result)
        if isinstance(item, Control) and item.kind == "flush":
            given += [(left, partner_of(left, rights, join), True) for left in waiting]
            waiting = []
        for timeline, watermark in outcome.watermarks[place].items():
            waiting = settle(waiting, rights, timeline, watermark, join, given)
        for left, partner, is_final in given:
            after = outcome.watermarks[place].get(left.event.timeline)
            answer = Answer(left.event.seq, partner, len(left.answers), is_final, after)
            left.answers.append(partner)
            if partner is not None or join.how == "left":
                result.answers.append(answer)
                result.given.append(place)
    result.waiting = [left.event.seq for left in waiting]
    return result


def settle(
    waiting: list[Waiting],
    rights: Sequence[tuple[OrderedEvent, tuple[object, ...]]],
    timeline: str,
    watermark: int | None,
    join: Join,
    given: list[Given],
) -> list[Waiting]:
    """Note the answers of a timeline that are due at a watermark; return the left events that still wait."""
    stay = []
    for left in waiting:
        due = left.event.timestamp_us + join.ahead_us
        if left.event.timeline != timeline or watermark is None or watermark <= due:
            stay.append(left)
        elif watermark > due + join.allowed_lateness_us:
            given.append((left, partner_of(left, rights, join), True))
        else:
            stay.append(left)
            if join.emit == "on_time" and not was_given(left, given):
                given.append((left, partner_of(left, rights, join), False))
    return stay


def was_given(left: Waiting, given: Sequence[Given]) -> bool:
    """Return whether a left event has had an answer."""
    return bool(left.answers) or any(other is left for other, _, _ in given)


def take(
    record: Record,
    event: OrderedEvent,
    waiting: list[Waiting],
    rights: list[tuple[OrderedEvent, tuple[object, ...]]],
    join: Join,
    given: list[Given],
    result: Joined,
) -> None:
    """Offer an accepted event to its side of the join."""
    if record.source not in (join.left, join.right):
        return
    key = tuple(record.payload[name] for name in join.on)
    watermark, t = event.watermark_us, event.timestamp_us
    last_answer = t + join.ahead_us + join.allowed_lateness_us
    if record.source == join.right:
        last_answer += join.behind_us  # of the last left event that could take it
    if watermark is not None and watermark > last_answer:
        result.late[record.seq] = watermark - last_answer
        return
    if record.source == join.left:
        left = Waiting(event, key)
        waiting.append(left)
        if join.emit == "on_time" and watermark is not None and watermark > t + join.ahead_us:
            given.append((left, partner_of(left, rights, join), False))
        return
    before = [partner_of(left, rights, join) for left in waiting]
    rights.append((event, key))
    for left, partner in zip(waiting, before, strict=True):
        now = partner_of(left, rights, join)
        if now != partner and was_given(left, given):
            given.append((left, now, False))


def partner_of(left: Waiting, rights: Sequence[tuple[OrderedEvent, tuple[object, ...]]], join: Join) -> int | None:
    """Return the right event that a left one gets that has come; None for none."""
    t = left.event.timestamp_us
    if None in left.key:
        return None
    near = [
        right
        for right, key in rights
        if key == left.key
        and right.timeline == left.event.timeline
        and t - join.behind_us <= right.timestamp_us <= t + join.ahead_us
    ]
    # The nearest; of two as near the one before; of several at one instant the one that arrived last.
    order = [(abs(right.timestamp_us - t), right.timestamp_us > t, -right.seq) for right in near]
    return near[order.index(min(order))].seq if near else None
