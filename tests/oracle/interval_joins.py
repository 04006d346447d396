"""Interval joins of two sources, from what the oracle says of the events: one item of the log at a time.

Slow and plain: each event that comes looks at all that are open.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.oracle.model import Control, Record
from tests.oracle.outcome import OrderedEvent, Outcome


@dataclass(frozen=True)
class IntervalJoin:
    """An interval join; `on` are columns of the payload. `emit` is "on_time" or "on_close"."""

    left: str
    right: str
    on: tuple[str, ...]
    before_us: int
    after_us: int
    how: str = "inner"
    allowed_lateness_us: int = 0
    emit: str = "on_time"

    def waits_us(self, source: str) -> int:
        """Return how far after an event of a source its last partner may be."""
        return self.after_us if source == self.left else self.before_us

    def has_row_alone(self, source: str) -> bool:
        """Return whether an event of a source without a partner has a row."""
        return self.how in ("full", "left" if source == self.left else "right")


@dataclass(frozen=True)
class PairRow:
    """One row of the join; one of the numbers is None where an event has no partner."""

    left_seq: int | None
    right_seq: int | None
    revision: int
    is_final: bool
    watermark_us: int | None


@dataclass
class Paired:
    """A join of a log: all its rows, the positions of the items that made them, late events, who is open."""

    rows: list[PairRow] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    late: dict[int, int] = field(default_factory=dict)
    open: list[int] = field(default_factory=list)

    @property
    def table(self) -> list[PairRow]:
        """The rows without the ones that others revise."""
        alone = {(row.left_seq, row.right_seq): row for row in self.rows if None in (row.left_seq, row.right_seq)}
        pairs = [row for row in self.rows if None not in (row.left_seq, row.right_seq)]
        met = {(row.left_seq, None) for row in pairs} | {(None, row.right_seq) for row in pairs}
        return [*pairs, *(row for key, row in alone.items() if key not in met)]


@dataclass
class Open:
    """An event that may still get partners."""

    seq: int
    source: str
    event: OrderedEvent
    key: tuple[object, ...]
    has_partner: bool = False
    rows_alone: int = 0


@dataclass
class Given:
    """A row at the item at hand."""

    left: Open | None
    right: Open | None
    revision: int
    is_final: bool

    @property
    def timeline(self) -> str:
        """The timeline of its events."""
        of = self.left if self.left is not None else self.right
        assert of is not None
        return of.event.timeline


def paired(outcome: Outcome, items: Sequence[Record | Control], join: IntervalJoin) -> Paired:
    """Return what a join makes of the accepted events of a log that the oracle has judged."""
    accepted = {event.seq: event for event in [*outcome.ordered, *outcome.held]}
    result, opens = Paired(), list[Open]()
    for item in items:
        if isinstance(item, Record) and item.is_let_in and item.seq in accepted:  # as if before all others
            given = list[Given]()
            take(item, accepted[item.seq], opens, join, given, result)
            result.rows += [row_of(one, None) for one in given]
            result.given += [0] * len(given)
    for place, item in enumerate(items):
        given = list[Given]()
        event = accepted.get(item.seq) if isinstance(item, Record) and not item.is_let_in else None
        if isinstance(item, Record) and event is not None:
            # The clock, which comes first, may have raised the watermark that the event meets.
            settle(opens, event.timeline, event.watermark_us, join, given)
            take(item, event, opens, join, given, result)
        if isinstance(item, Control) and item.kind == "flush":
            for one in [one for one in opens if join.has_row_alone(one.source) and not one.has_partner]:
                close(one, opens, join, given)
        for timeline, watermark in outcome.watermarks[place].items():
            settle(opens, timeline, watermark, join, given)
        for row in given:
            result.rows.append(row_of(row, outcome.watermarks[place].get(row.timeline)))
            result.given.append(place)
    result.open = [one.seq for one in opens]
    return result


def row_of(given: Given, watermark_us: int | None) -> PairRow:
    left, right = (None if one is None else one.seq for one in (given.left, given.right))
    return PairRow(left, right, given.revision, given.is_final, watermark_us)


def settle(opens: list[Open], timeline: str, watermark: int | None, join: IntervalJoin, given: list[Given]) -> None:
    """Note the rows that are due at a watermark of events without a partner, and close what it has passed."""
    for one in [one for one in opens if one.event.timeline == timeline]:
        due = one.event.timestamp_us + join.waits_us(one.source)
        if watermark is None or watermark <= due:
            continue
        if watermark > due + join.allowed_lateness_us:
            close(one, opens, join, given)
        elif not one.rows_alone:
            give_alone(one, join, given)


def give_alone(one: Open, join: IntervalJoin, given: list[Given]) -> None:
    """Note a row, which is not final, of an event without a partner."""
    if join.has_row_alone(one.source) and not one.has_partner and join.emit == "on_time":
        given.append(alone(one, join, is_final=False))
        one.rows_alone += 1


def close(one: Open, opens: list[Open], join: IntervalJoin, given: list[Given]) -> None:
    opens.remove(one)
    if join.has_row_alone(one.source) and not one.has_partner:
        given.append(alone(one, join, is_final=True))


def alone(one: Open, join: IntervalJoin, *, is_final: bool) -> Given:
    is_left = one.source == join.left
    return Given(one if is_left else None, None if is_left else one, one.rows_alone, is_final)


def take(
    record: Record, event: OrderedEvent, opens: list[Open], join: IntervalJoin, given: list[Given], result: Paired
) -> None:
    """Let an accepted event meet the open ones of the other side."""
    if record.source not in (join.left, join.right):
        return
    new = Open(record.seq, record.source, event, tuple(record.payload[name] for name in join.on))
    due = event.timestamp_us + join.waits_us(record.source)
    watermark = event.watermark_us
    if watermark is not None and watermark > due + join.allowed_lateness_us:
        result.late[record.seq] = watermark - due - join.allowed_lateness_us
        return
    for other in opens:
        left, right = (new, other) if record.source == join.left else (other, new)
        if other.source != record.source and are_near(left, right, join):
            given.append(Given(left, right, other.rows_alone if not other.has_partner else 0, is_final=True))
            new.has_partner = other.has_partner = True
    opens.append(new)
    if watermark is not None and watermark > due:
        give_alone(new, join, given)


def are_near(left: Open, right: Open, join: IntervalJoin) -> bool:
    """Return whether two events of one key and timeline are in reach of each other."""
    if None in left.key or left.key != right.key or left.event.timeline != right.event.timeline:
        return False
    apart = right.event.timestamp_us - left.event.timestamp_us
    return -join.before_us <= apart <= join.after_us
