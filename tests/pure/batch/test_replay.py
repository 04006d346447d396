"""The pieces in which a rebuild judges the log: cut where live runs were, and the same wherever it was stopped."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from tidemark.assets.log_control import END_OF_INPUT, REOPEN, TICK, WAIT
from tidemark.assets.planning import LogSegment
from tidemark.assets.rebuild.shadow import Piece, pieces_left

Item = dict[str, Any]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOON_US = 1_767_268_800_000_000
MANY = 1_000_000


def item(after_seq: int, kind: str, argument: str | None = None) -> Item:
    return {"_after_seq": after_seq, "kind": kind, "clock": NOON, "argument": argument, "reason": f"why {after_seq}"}


def segments(items: Sequence[Item], end_seq: int, most: int = MANY) -> list[LogSegment]:
    return [piece.segment for piece in pieces_left(items, 0, 0, end_seq, most)]


def test_a_log_without_items_is_cut_by_its_length_alone() -> None:
    found = [(one.first_seq, one.end_seq) for one in segments([], 25, most=10)]
    assert found == [(0, 10), (10, 20), (20, 25)]
    assert segments([], 0) == []


def test_ticks_flushes_reopenings_and_waits_come_at_their_places() -> None:
    items = [
        item(4, TICK),
        item(4, TICK),
        item(9, WAIT, '["slow"]'),
        item(14, END_OF_INPUT),
        item(14, REOPEN),
        item(14, WAIT, "[]"),
    ]
    assert segments(items, 20, most=8) == [
        LogSegment(0, 5, flushes=False, tick_us=NOON_US),
        LogSegment(5, 5, flushes=False, tick_us=NOON_US),
        LogSegment(5, 10, flushes=False),
        LogSegment(10, 15, flushes=True, waits=frozenset({"slow"})),
        LogSegment(15, 20, flushes=False, reopens="why 14"),
    ]
    assert segments([item(24, END_OF_INPUT)], 25, most=10)[-1] == LogSegment(20, 25, flushes=True)


@pytest.mark.parametrize("seed", range(50))
def test_wherever_it_is_stopped_it_goes_on_with_what_is_left(seed: int) -> None:
    rng = random.Random(seed)
    items = log_of(rng)
    end = max([one["_after_seq"] + 1 for one in items], default=0) + rng.randint(0, 12)
    most = rng.randint(1, 30)
    whole = [*pieces_left(items, 0, 0, end, most)]
    for number, last in enumerate(whole):
        left = [*pieces_left(items, last.segment.end_seq, last.replayed, end, most)]
        assert told(left) == told(whole[number + 1 :])
    ends = [piece.segment.end_seq for piece in whole]
    assert [piece.segment.first_seq for piece in whole] == [0, *ends][:-1], "nothing is left out or judged twice"


@pytest.mark.parametrize("seed", range(50))
def test_what_comes_while_it_is_at_work_is_left_then(seed: int) -> None:
    rng = random.Random(seed)
    items = log_of(rng)
    end = max([one["_after_seq"] + 1 for one in items], default=0) + rng.randint(0, 12)
    some = rng.randint(0, len(items))
    until = items[some]["_after_seq"] + 1 if some < len(items) else end
    first = [*pieces_left(items[:some], 0, 0, until)]
    begin, replayed = (first[-1].segment.end_seq, first[-1].replayed) if first else (0, 0)
    both = [*first, *pieces_left(items, begin, replayed, end)]
    assert told(both) == told([*pieces_left(items, 0, 0, end)])


def told(pieces: Sequence[Piece]) -> list[tuple[Any, ...]]:
    """Return what the pieces say of each record and of each item that ends one, however the records are cut."""
    found: list[tuple[Any, ...]] = []
    for piece in pieces:
        one = piece.segment
        reopens = one.reopens
        for seq in range(one.first_seq, one.end_seq):
            found.append((seq, reopens, one.waits))
            reopens = None
        if one.tick_us or one.flushes:
            found.append(("item", one.end_seq, one.tick_us, one.flushes))
    return found


def log_of(rng: random.Random) -> list[Item]:
    """Items as live runs write them: a wait or a reopening is followed by records."""
    items: list[Item] = []
    seq, flushed = rng.randint(0, 5), False
    for _ in range(rng.randint(0, 12)):
        if flushed:
            items.append(item(seq - 1, REOPEN))
            flushed = False
        if rng.random() < 0.3:
            items.append(item(seq - 1, WAIT, rng.choice(["[]", '["a"]', '["b"]'])))
        seq += rng.randint(1, 9)
        kind = rng.choice([TICK, TICK, END_OF_INPUT, None])
        if kind is not None:
            items.append(item(seq - 1, kind))
            flushed = kind == END_OF_INPUT
    return items
