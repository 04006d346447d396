"""The log in the pieces in which a rebuild judges it: its control items end some, the others are of a handy size.

Here: which pieces are left to do. Not here: judging one (shadow.py), the items themselves (../log_control.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.assets.log_control import END_OF_INPUT, REOPEN, TICK, WAIT, waiters_of
from tidemark.assets.planning import LogSegment
from tidemark.timeops.rules import Waiter
from tidemark.timeops.utc import us_of

REPLAYED_KINDS = (TICK, WAIT, END_OF_INPUT, REOPEN)
"""The control items that a segment of the log begins or ends with."""

MOST_RECORDS = 10_000_000
"""The most records of one piece: a rebuild that is stopped loses at most the work on one piece."""


@dataclass(frozen=True)
class Piece:
    """A segment of the log, and how many control items are done after it.

    Attributes:
        segment: The segment.
        replayed: Items of REPLAYED_KINDS that it and the pieces before it have dealt with.
    """

    segment: LogSegment
    replayed: int


def pieces_left(
    items: Sequence[Mapping[str, Any]], begin_seq: int, replayed: int, end_seq: int, most: int | None = None
) -> Iterator[Piece]:
    """Return the pieces of the log that are not done yet, in order.

    Args:
        items: The control items of REPLAYED_KINDS, in order.
        begin_seq: The first `_arrival_seq` that is not done.
        replayed: How many of the items are done.
        end_seq: End of the log, as far as it is to be judged.
        most: Records of a piece; by default MOST_RECORDS.
    """
    first, waits, reopens, most = begin_seq, frozenset[Waiter](), None, most or MOST_RECORDS
    for number, item in enumerate(items):
        if number < replayed:
            waits = waiters_of(item) if item["kind"] == WAIT else waits
            continue
        kind, end = item["kind"], int(item["_after_seq"]) + 1
        tick_us = us_of(item["clock"]) if kind == TICK else None
        done = number + 1 if kind in (TICK, END_OF_INPUT) else number
        last = LogSegment(first, end, flushes=kind == END_OF_INPUT, tick_us=tick_us, reopens=reopens, waits=waits)
        for segment in _cut(last, most):
            yield Piece(segment, done if segment.end_seq == end else number)
            first, reopens = segment.end_seq, None
        waits = waiters_of(item) if kind == WAIT else waits
        reopens = str(item["reason"]) if kind == REOPEN else reopens
    for segment in _cut(LogSegment(first, max(first, end_seq), flushes=False, reopens=reopens, waits=waits), most):
        yield Piece(segment, len(items))


def _cut(segment: LogSegment, most: int) -> Iterator[LogSegment]:
    """Cut a segment into smaller ones; its tick or flush ends the last one. Empty segments are left out."""
    first, reopens = segment.first_seq, segment.reopens
    while segment.end_seq - first > most:
        yield LogSegment(first, first + most, flushes=False, reopens=reopens, waits=segment.waits)
        first, reopens = first + most, None
    last = LogSegment(first, segment.end_seq, segment.flushes, segment.tick_us, reopens, segment.waits)
    if not last.is_empty:
        yield last
