"""The part of a log that some windows are made of, chosen by positions alone; the oracle says what they hold."""

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests import oracle
from tests.oracle.grids import windows_of
from tests.properties.logs import BASE_US, Log, generate, judged_by_oracle, shape_of
from tests.seeds import Dice
from tidemark.assets.rebuild.days import LogRange, is_made_of_a_part, part_of_log
from tidemark.assets.state.checkpoints import Checkpoint
from tidemark.resources.batches.position import Position
from tidemark.timeops.calendar.grid import closed_from
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.values.utc import us_of

Keys = dict[str, object]
Given = list[oracle.WindowResult]

CASES = 60  # logs of a policy
COUNT = {"n": "count(*)"}
PLAIN: dict[str, Keys] = {
    "tumbling": {"kind": "tumbling", "size": "10 us"},
    "shifted": {"kind": "tumbling", "size": "10 us", "offset": "3 us", "closed": "right"},
    "hopping": {"kind": "hopping", "size": "10 us", "hop": "4 us"},
    "with gaps": {"kind": "hopping", "size": "4 us", "hop": "9 us", "closed": "right"},
    "cumulative": {"kind": "cumulative", "size": "12 us", "step": "4 us"},
    "snapshot": {"kind": "snapshot"},
    "early": {"kind": "tumbling", "size": "10 us", "emit": {"early": "6 us"}},
}
LATE_TOO: dict[str, Keys] = {
    "late": {"kind": "tumbling", "size": "10 us", "allowed_lateness": "6 us"},
    "on time": {**PLAIN["shifted"], "allowed_lateness": "15 us", "emit": "on_time", "revise_every": "7 us"},
    "each": {**PLAIN["hopping"], "allowed_lateness": "5 us", "emit": "on_time", "revise_every": "0 us"},
}
LATE = {"tolerance": "12 us", "policy": "adjust"}
TIMES: dict[str, Keys] = {
    "drop": {"out_of_order": "drop", "early": {"tolerance": "9 us", "policy": "drop"}},
    "adjust": {"out_of_order": "adjust", "late": LATE, "early": {"tolerance": "5 us", "policy": "adjust"}},
    "ahead": {"out_of_order": "drop", "early": {"tolerance": "5 us", "policy": "keep"}},
    "clock": {"out_of_order": "adjust", "late": LATE, "idle": {"advance": "arrival_clock"}},
    "keep": {"out_of_order": "keep"},
}


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("policy", TIMES)
def test_a_part_of_the_log_holds_all_that_its_windows_are_made_of(policy: str, dice: Dice, *, flush: bool) -> None:
    time = TimeSpec.model_validate({"timestamp_by": "e", "out_of_orderness": "5 us", **TIMES[policy]})
    rng, parts, results = random.Random(f"{policy} {dice.seed(0)}"), 0, 0
    for log in generate(dice.seed(len(policy)), dice.some(CASES), longest=60, spread_us=20):
        for keys in (PLAIN | (LATE_TOO if policy == "keep" else {})).values():
            window = WindowSpec.model_validate({"name": "w", "aggregates": COUNT, **keys})
            checkpoints = checkpoints_of(log, time, rng, flush=flush)
            some = rng.choice([event.event_us for event in log.events if event.event_us] or [BASE_US])
            start = some - rng.randint(0, 30)
            end = start + rng.choice([1, 10, 60])
            part = part_of_log(checkpoints, window, start, end)

            def given(
                log: Log, *, flush: bool, window: WindowSpec = window, start: int = start, end: int = end
            ) -> Given:
                found = judged_by_oracle(log, time, [window], flush=flush).windows["w"]
                return [result for result in found if start <= result.window_start < end]

            found = given(log, flush=flush)
            shorter = replace(log, events=log.events[: part.end_seq])
            assert given(shorter, flush=part.end.position.final) == found, (log, window, part)
            needed = {seq for result in found for seq in result.events}
            assert needed.isdisjoint(event.seq for event in log.events[: part.first_seq]), (log, window, part)
            assert part.begin.position.watermark_us is None or part.begin.position.watermark_us < start, (
                "it has closed none of them"
            )
            parts += bool(found) and part.first_seq > 0 and part.end_seq < len(log.events)
            results += len(found)
    if dice.is_fixed:
        assert parts > 10, "whole logs would show nothing"
        assert results > 100, "neither would no results"


def checkpoints_of(log: Log, time: TimeSpec, rng: random.Random, *, flush: bool) -> list[Checkpoint]:
    """Where some batches would leave a pipeline; the largest time is a watermark without tolerance."""
    events = len(log.events)
    ends = [*sorted(rng.sample(range(events + 1), min(8, events))), events]
    seen = judged_by_oracle(log, time, []).watermarks
    largest = judged_by_oracle(log, time.model_copy(update={"out_of_orderness": timedelta(0), "idle": None}), [])

    def after(end: int, outcome: Sequence[dict[str, int | None]]) -> int | None:
        return outcome[end - 1].get(log.timeline) if end else None

    def kept_until(end: int) -> int | None:
        if time.early is None or time.early.policy != "keep":
            return None
        bound_us = time.early.tolerance_us
        events = [event for event in log.events[:end] if not event.malformed]
        timed = [(e.event_us, e.event_us - e.arrival_us) for e in events if e.event_us and e.arrival_us]
        return max((t for t, ahead_us in timed if ahead_us > bound_us), default=None)

    checkpoints = [
        Checkpoint(end, Position(after(end, seen), after(end, largest.watermarks), kept_until_us=kept_until(end)))
        for end in ends
    ]
    if flush:
        last = checkpoints[-1]
        checkpoints.append(Checkpoint(last.end_seq, replace(last.position, watermark_us=None, final=True)))
    return checkpoints


def checkpoint(end_seq: int, max_t_us: int, watermark_us: int | None) -> Checkpoint:
    return Checkpoint(end_seq, Position(max_t_us=max_t_us, watermark_us=watermark_us))


TUMBLING = {"name": "w", "kind": "tumbling", "size": "1 hour", "aggregates": COUNT, "group_by": ["k"]}
TEN = WindowSpec(name="w", kind="tumbling", size=timedelta(microseconds=10), aggregates=COUNT)


OTHER_ZONES = ("Europe/Berlin", "America/Sao_Paulo", "Pacific/Kwajalein")


def ends_of(part: LogRange) -> tuple[int, int]:
    return part.first_seq, part.end_seq


def test_a_part_begins_behind_the_last_batch_that_is_all_before_and_ends_with_the_first_that_closes_all() -> None:
    checkpoints = [
        checkpoint(10, 95, 90),
        checkpoint(20, 105, 100),
        checkpoint(30, 115, 110),
        checkpoint(40, 124, 119),
        checkpoint(50, 130, 125),
    ]
    part = part_of_log(checkpoints, TEN, 110, 120)
    assert ends_of(part) == (20, 50), "119 closes what starts before 110 only"
    assert (part.begin, part.end) == (checkpoints[1], checkpoints[4])
    assert ends_of(part_of_log(checkpoints, TEN, 0, 80)) == (0, 10), "all was closed within the first batch"
    assert ends_of(part_of_log(checkpoints, TEN, 125, 200)) == (40, 50), "not closed yet: up to the end"
    assert ends_of(part_of_log(checkpoints, TEN, 200, 300)) == (50, 50), "nothing came for them"


def test_a_watermark_that_the_clock_raised_above_all_events_may_have_closed_windows_and_moved_events_there() -> None:
    checkpoints = [checkpoint(10, 95, 115), checkpoint(20, 118, 140)]
    assert ends_of(part_of_log(checkpoints, TEN, 110, 120)) == (0, 20)


def test_a_flush_counts_only_where_the_part_reaches_it() -> None:
    flushed = Checkpoint(20, Position(max_t_us=145, final=True))
    checkpoints = [checkpoint(10, 105, 100), checkpoint(20, 145, 140), flushed]
    assert not part_of_log(checkpoints, TEN, 100, 110).end.position.final
    assert part_of_log(checkpoints, TEN, 140, 150).end.position.final
    assert part_of_log(checkpoints, TEN, 200, 210).begin == checkpoints[1]


@pytest.mark.parametrize(
    "zone",
    ["UTC", "Pacific/Apia", *(pytest.param(zone, marks=pytest.mark.long) for zone in OTHER_ZONES)],
)
@pytest.mark.parametrize("size", ["6 hours", "1 day", "1 week", "1 month", "1 quarter"])
def test_local_days_and_months_are_closed_where_it_is_said_that_they_are(zone: str, size: str) -> None:
    keys = {"kind": "tumbling", "size": size, "time_zone": zone, "closed": "right", "aggregates": COUNT}
    window = WindowSpec.model_validate({"name": "w", "allowed_lateness": "1 hour", **keys})
    around = [datetime(1969, 9, 1, tzinfo=UTC), datetime(2011, 12, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)]
    for hour in range(0, 24 * 70, 5):
        for first in around:
            before_us = us_of(first + timedelta(hours=hour))
            [(start, end)] = windows_of(shape_of(window), before_us)  # closed: right, so it starts before
            assert start < before_us
            assert end + 3_600_000_000 + 1 == closed_from(before_us, window)


@pytest.mark.parametrize(
    "keys",
    [
        {"kind": "tumbling", "size": "10 us", "offset": "3 us"},
        {"kind": "tumbling", "size": "10 us", "closed": "right"},
        {"kind": "hopping", "size": "30 us", "hop": "10 us"},
        {"kind": "hopping", "size": "4 us", "hop": "10 us", "closed": "right"},
        {"kind": "cumulative", "size": "20 us", "step": "5 us"},
        {"kind": "snapshot"},
        {"kind": "sliding", "size": "7 us"},
        {"kind": "session", "gap": "7 us"},
    ],
)
def test_windows_before_an_instant_are_closed_where_the_last_of_them_is(keys: dict[str, str]) -> None:
    """Of sessions and sliding windows that of one event; the oracle says which windows hold an instant."""
    window = WindowSpec.model_validate({"name": "w", "aggregates": COUNT, "allowed_lateness": "2 us", **keys})
    for before_us in range(100, 140):
        if window.is_linked:
            last_end = before_us - 1 + 7
        else:
            held = {one for t in range(before_us - 40, before_us + 40) for one in windows_of(shape_of(window), t)}
            last_end = max(end for start, end in held if start < before_us)
        assert closed_from(before_us, window) == last_end + 2 + window.ends_inside


def test_the_whole_log_is_read_where_a_window_is_more_than_the_time_of_its_events() -> None:
    def is_part(**keys: object) -> bool:
        return is_made_of_a_part(WindowSpec.model_validate({**TUMBLING, **keys}))

    assert is_part()
    assert is_part(allowed_lateness="1 hour", emit="on_time")
    assert not is_part(empty=True)
    assert not is_part(kind="sliding")
    assert not is_part(**{"from": "v"})
