"""The rules of joins on arrays equal plain loops over the same events, without Spark."""

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tidemark.timeops.joins import as_of, order
from tidemark.timeops.joins.events import NOBODY, OF_EARLIER, OF_SEGMENT, Events, fates, still_needed
from tidemark.timeops.joins.order import last_of_equal, passed
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import NONE
from tidemark.timeops.watermark.watermarks import Watermarks

SIDES = {"left": {"source": "s"}, "right": {"source": "r"}, "on": ["k"], "name": "j"}


def as_of_join(**keys: object) -> JoinSpec:
    return JoinSpec.model_validate({"kind": "as_of", "within": "7 us", **SIDES, **keys})


def drawn_events(rng: random.Random, count: int) -> Events:
    """Return events of two timelines and some keys; a good part is late, and some had come before the segment."""
    us = np.array([rng.randint(100, 140) for _ in range(count)])
    key = np.array([rng.choice([NOBODY, 0, 1, 5, 70_000]) for _ in range(count)])
    timeline, end_us = np.where(key == 5, 1, 0).astype(np.int32), np.array([120, 130])  # a key is of one timeline
    start_us = np.array([rng.choice([NONE, 105]), 90])
    is_fresh = np.array([rng.random() < 0.6 for _ in range(count)])
    some_us = us + [rng.randint(1, 30) for _ in range(count)]
    met_us = np.where(is_fresh, np.clip(some_us, start_us[timeline], end_us[timeline]), start_us[timeline])
    is_behind = is_fresh & (us < start_us[timeline])
    is_late = is_behind | ((met_us > us) & (np.array([rng.random() for _ in range(count)]) < 0.6))
    return Events(
        timelines=pa.array(["[]", "[1]"]),
        timeline=timeline,
        seq=np.array(rng.sample(range(1_000), count)),
        us=us,
        met_us=np.where(is_late, met_us, NONE),
        key=key,
        origin=np.where(is_fresh, OF_SEGMENT, OF_EARLIER).astype(np.int8),
        is_left=np.array([rng.random() < 0.5 for _ in range(count)]),
        had_partner=np.full(count, NOBODY, np.int8),
        start_us=start_us,
        end_us=end_us,
    )


def partner_by_loop(events: Events, left: int, join: JoinSpec) -> int:
    """Return the nearest right event of the key that came while a left event was open; NOBODY for none."""
    best, best_is = NOBODY, (0, 0, 0)
    for right in range(len(events)):
        apart = int(events.us[right] - events.us[left])
        in_reach = -join.looks_back_us <= apart <= join.looks_ahead_us
        closed = events.us[left] + join.closes_after_us
        if events.is_left[right] or events.key[right] != events.key[left] or events.key[left] == NOBODY:
            continue
        too_late = events.met_us[right] > events.us[right] + join.useful_for_us
        if not in_reach or too_late or (events.is_late[right] and events.met_us[right] > closed):
            continue
        goodness = (-abs(apart), int(apart <= 0), int(events.seq[right]))
        if best == NOBODY or goodness > best_is:
            best, best_is = right, goodness
    return best


@pytest.mark.parametrize("direction", ["backward", "forward", "nearest"])
@pytest.mark.parametrize("lateness", ["0 us", "9 us"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_left_event_gets_the_partner_that_a_loop_over_all_events_finds(
    monkeypatch: pytest.MonkeyPatch, direction: str, lateness: str, *, flushed: bool
) -> None:
    closing = {"emit": "on_close"} if lateness != "0 us" else {}
    join = as_of_join(direction=direction, allowed_lateness=lateness, how="left", **closing)
    monkeypatch.setattr(order, "PAIRS", 5)  # left events are looked at few at a time
    answered = 0
    for seed in range(60):
        events = drawn_events(random.Random(seed), 40)
        found = as_of.answers(events, join, Watermarks(()), flushed=flushed)
        past_us = events.us + join.closes_after_us
        closes = flushed | (past_us < events.end_us[events.timeline])
        was_open = past_us >= events.start_us[events.timeline]
        wanted = np.flatnonzero(events.is_left & (events.met_us <= past_us) & was_open & closes)
        assert found.left.tolist() == wanted.tolist()
        assert found.right.tolist() == [partner_by_loop(events, left, join) for left in wanted.tolist()]
        inner = as_of.answers(events, join.model_copy(update={"how": "inner"}), Watermarks(()), flushed=flushed)
        assert inner.right.tolist() == [right for right in found.right if right != NOBODY]
        answered += len(inner.right)
    assert answered > 30


def test_answers_of_no_events_are_none() -> None:
    nobody = drawn_events(random.Random(1), 3)
    empty = replace(nobody, **{name: getattr(nobody, name)[:0] for name in ARRAYS})
    for join in (as_of_join(), as_of_join(direction="nearest", allowed_lateness="5 us")):
        assert not len(as_of.answers(empty, join, Watermarks(()), flushed=True).left)
        assert not len(still_needed(empty, join, flushed=False))


ARRAYS = ("timeline", "seq", "us", "met_us", "key", "origin", "is_left", "had_partner")


def test_what_is_needed_gives_the_same_answers_as_all_events_do() -> None:
    join, later = as_of_join(how="left"), 12
    for seed in range(60):
        events = drawn_events(random.Random(seed), 40)
        needed = still_needed(events, join, flushed=False)
        some = replace(events, **{name: getattr(events, name)[needed] for name in ARRAYS})
        following = {"start_us": events.end_us, "end_us": events.end_us + later}
        whole, kept = (
            as_of.answers(replace(rows, **following), join, Watermarks(()), flushed=False) for rows in (events, some)
        )
        assert events.seq[whole.left].tolist() == some.seq[kept.left].tolist()
        rights = [
            np.append(rows.seq, NOBODY)[found.right].tolist() for rows, found in ((events, whole), (some, kept))
        ]
        assert rights[0] == rights[1]


def test_each_left_event_waits_is_answered_or_came_too_late() -> None:
    join = as_of_join(how="left")
    for seed in range(30):
        events = drawn_events(random.Random(seed), 40)
        is_stored = (events.origin == OF_SEGMENT) | (~events.came_too_late(join) & events.was_open(join))
        events = replace(events, **{name: getattr(events, name)[is_stored] for name in ARRAYS})
        left, right = fates(events, join, np.zeros(len(events), bool))
        waiting = np.count_nonzero(events.is_left[still_needed(events, join, flushed=False)])
        waited = np.count_nonzero(events.is_left & ~events.is_fresh)
        assert waited + left.fresh == left.passed + left.late + waiting
        assert right.fresh == np.count_nonzero(~events.is_left & events.is_fresh)


@pytest.mark.parametrize("most", [3, 70_000])
def test_events_before_another_are_counted_by_key_and_time(most: int) -> None:
    drawn = np.random.default_rng(most)
    keys, us = drawn.integers(0, most, 50), drawn.integers(0, 9, 50)
    by_key_and_time = np.lexsort((us, keys))
    keys, us = keys[by_key_and_time], us[by_key_and_time]
    of_keys, of_us = drawn.integers(-1, most, 200), drawn.integers(-2, 11, 200)
    of_keys[:100] = drawn.choice(keys, 100)
    events = [*zip(keys.tolist(), us.tolist(), strict=True)]
    for and_equal in (False, True):
        wanted = [
            sum(event < other or (and_equal and event == other) for event in events)
            for other in zip(of_keys.tolist(), of_us.tolist(), strict=True)
        ]
        assert passed(keys, us, of_keys, of_us, and_equal=and_equal).tolist() == wanted
    last = [max(n for n, event in enumerate(events) if event == own) for own in events]
    assert last_of_equal(keys, us).tolist() == last
    assert passed(keys[:0], us[:0], of_keys, of_us, and_equal=True).tolist() == [0] * 200
