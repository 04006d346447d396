"""Session windows at their edges, cut at every record, and their laws; every case against the oracle as well."""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations_with_replacement, count, pairwise

import pytest
from pyspark.sql import SparkSession

from tests.properties import fold
from tests.properties.fold import Gathered, assert_equal_to_oracle, run
from tests.properties.logs import BASE_US, Event, Log, generate
from tidemark.timeops.spec import TimeSpec, WindowSpec

Came = Sequence[tuple[int, int]]  # time and group of each event, in order of arrival
Session = tuple[int, int, tuple[int, ...], int | None]  # start, end, its events by place in the log, watermark

PUSHER = 9  # a group whose events only move the watermark


def time_spec(policy: str, out_of_orderness: str = "0 us") -> TimeSpec:
    return TimeSpec(timestamp_by="e", over=("case",), out_of_order=policy, out_of_orderness=out_of_orderness)


def sessions(name: str, **keys: str) -> WindowSpec:
    return fold.window(name=name, kind="session", gap="10 us", group_by=("case", "v"), **keys)


def logs_of(cases: Mapping[str, Came], cuts: Mapping[str, tuple[int, int]] | None = None) -> list[Log]:
    seqs = count()
    return [
        Log(
            case,
            tuple(Event(next(seqs), BASE_US + i, BASE_US + t, v) for i, (t, v) in enumerate(came)),
            (cuts or {}).get(case, ()),
        )
        for case, came in cases.items()
    ]


def found(out: Gathered, window: str, log: Log, group: int = 1) -> list[Session]:
    """Return the sessions of a group of a log, as written in the cases."""
    first = log.events[0].seq
    return sorted(
        (start - BASE_US, end - BASE_US, tuple(seq - first for seq in seqs), None if w is None else w - BASE_US)
        for start, end, (_, v), seqs, _, _, w in out.windows[window][log.case]
        if v == group
    )


def test_sessions_at_their_edges(spark: SparkSession) -> None:
    cases: dict[str, Came] = {
        "one gap apart joins": [(0, 1), (10, 1), (21, 1), (99, PUSHER)],
        "watermark on end and lateness": [(0, 1), (13, PUSHER)],
        "watermark behind it": [(0, 1), (14, PUSHER)],
        "late between two open ones": [(0, 1), (20, 1), (10, 1), (99, PUSHER)],
        "late near a closed one": [(0, 1), (15, PUSHER), (8, 1), (99, PUSHER)],
        "late on its own end": [(0, 1), (18, PUSHER), (8, 1), (99, PUSHER)],
        "late behind its own end": [(0, 1), (19, PUSHER), (8, 1), (99, PUSHER)],
        "late, but an open one is near": [(18, 1), (25, PUSHER), (12, 1), (99, PUSHER)],
        "late beside one that just closed": [(1, 1), (12, PUSHER), (11, 1), (99, PUSHER)],
        "one start, two ends": [(10, 1), (12, 1), (24, 1), (24, 1), (19, 1), (10, 1), (99, PUSHER)],
        "refused ones join nobody": [(0, 1), (40, 1), (9, 1), (30, 1), (20, 1), (10, 1), (99, PUSHER)],
        "as told in sessions.md": [(0, 1), (10, 1), (20, PUSHER), (5, 1), (21, PUSHER), (12, 1), (1, 1)],
    }
    windows = (sessions("s0"), sessions("s3", allowed_lateness="3 us"), sessions("s20", allowed_lateness="20 us"))
    logs = {log.case: log for log in logs_of(cases)}
    time = time_spec("keep")
    out = run(spark, list(logs.values()), time, windows)
    assert_equal_to_oracle(list(logs.values()), out, time, windows)

    def given(window: str, case: str) -> list[Session]:
        return found(out, window, logs[case])

    assert given("s0", "one gap apart joins") == [(0, 20, (0, 1), 21), (21, 31, (2,), 99)]
    assert given("s3", "watermark on end and lateness") == []
    assert given("s3", "watermark behind it") == [(0, 10, (0,), 14)]
    assert given("s20", "late between two open ones") == [(0, 30, (0, 1, 2), 99)]
    assert given("s0", "late between two open ones") == [(0, 10, (0,), 20), (10, 30, (1, 2), 99)]
    assert given("s0", "late near a closed one") == [(0, 10, (0,), 15), (8, 18, (2,), 99)]
    assert given("s0", "late on its own end") == [(0, 10, (0,), 18), (8, 18, (2,), 99)]
    assert given("s0", "late behind its own end") == [(0, 10, (0,), 19)]
    assert given("s20", "late behind its own end") == [(0, 18, (0, 2), 99)]
    assert given("s0", "late, but an open one is near") == [(12, 28, (0, 2), 99)]
    assert given("s0", "late beside one that just closed") == [(1, 11, (0,), 12), (11, 21, (2,), 99)]
    assert given("s0", "one start, two ends") == [(10, 22, (0, 1), 24), (10, 34, (2, 3, 4, 5), 99)]
    assert given("s0", "refused ones join nobody") == [(0, 10, (0,), 40), (10, 50, (1, 3, 4, 5), 99)]

    assert given("s0", "as told in sessions.md") == [(0, 20, (0, 1, 3), 21)]

    def refused(case: str, place: int) -> list[tuple[object, ...]]:
        letters = out.letters[str(logs[case].events[place].seq)]
        return [(window, missed, late) for _, _, _, window, missed, _, _, late, _ in letters]

    assert refused("late behind its own end", 2) == [("s0", ((BASE_US + 8, BASE_US + 18),), 1)]
    assert ("s0", ((BASE_US + 1, BASE_US + 11),), 10) in refused("as told in sessions.md", 6)


@pytest.mark.long
def test_a_session_ends_at_its_longest_duration_and_the_next_event_begins_another(spark: SparkSession) -> None:
    cases: dict[str, Came] = {
        "on the longest": [(0, 1), (8, 1), (15, 1), (16, 1), (20, 1), (99, PUSHER)],
        "out of order": [(20, 1), (8, 1), (16, 1), (0, 1), (15, 1), (99, PUSHER), (200, PUSHER)],
        "one at a time": [(t, 1) for t in range(0, 200, 10)],
        "ties": [(0, 1), (15, 1), (15, 1), (7, 1), (16, 1), (16, 1), (99, PUSHER), (200, PUSHER)],
        "on the end": [(0, 1), (9, 1), (15, PUSHER), (15, 1), (26, PUSHER), (99, PUSHER)],
    }
    windows = (
        sessions("long", max_duration="15 us"),
        sessions("short", max_duration="4 us"),  # less than the gap
        sessions("least", max_duration="1 us"),
    )
    logs = {log.case: log for log in logs_of(cases)}
    for policy, out_of_orderness in (("drop", "40 us"), ("adjust", "0 us")):
        time = time_spec(policy, out_of_orderness)
        out = run(spark, list(logs.values()), time, windows, flush=True)
        assert_equal_to_oracle(list(logs.values()), out, time, windows, flush=True)
        assert [s[:3] for s in found(out, "long", logs["on the longest"])] == [
            (0, 15, (0, 1, 2)),
            (16, 30, (3, 4)),
        ]
        if policy == "drop":
            spans = [s[:3] for s in found(out, "long", logs["out of order"])]
            assert spans == [(0, 15, (1, 3, 4)), (16, 30, (0, 2))]
            assert [s[:2] for s in found(out, "short", logs["ties"])] == [(0, 4), (7, 11), (15, 19)]


LATE: Came = [(0, 1), (12, 1), (30, 1), (5, 1), (22, 1), (31, 1), (13, 1), (60, 1), (48, 1), (39, 1), (80, PUSHER)]


@pytest.mark.long
def test_a_log_gives_the_same_sessions_wherever_it_is_cut(spark: SparkSession) -> None:
    cuts = {f"c{i}-{j}": (i, j) for i, j in combinations_with_replacement(range(len(LATE) + 1), 2)}
    logs = logs_of(dict.fromkeys(cuts, LATE), cuts)
    late = (sessions("s0"), sessions("s9", allowed_lateness="9 us"))
    long = (sessions("long", max_duration="20 us"), sessions("any"))
    for time, windows in ((time_spec("keep"), late), (time_spec("adjust", "3 us"), long)):
        out = run(spark, logs, time, windows, parts=(0, 1, 2))
        assert_equal_to_oracle(logs, out, time, windows)
        for window in windows:
            assert len({tuple(found(out, window.name, log)) for log in logs}) == 1, window.name


@pytest.mark.long
def test_sessions_do_not_depend_on_the_order_of_events_that_are_on_time(spark: SparkSession) -> None:
    rng = random.Random(11)
    cases: dict[str, Came] = {}
    for number in range(40):
        came = [(rng.randint(0, 120), rng.randint(0, 2)) for _ in range(rng.randint(1, 25))]
        for order in range(4):
            cases[f"{number}-{order}"] = rng.sample(came, len(came))
    logs = logs_of(cases)
    for policy, window in (("keep", sessions("s")), ("drop", sessions("s", max_duration="25 us"))):
        out = run(spark, logs, time_spec(policy, "200 us"), (window,), flush=True)
        tables: dict[str, set[tuple[object, ...]]] = {}
        for log in logs:
            times = {event.seq: (event.event_us, event.value) for event in log.events}
            rows = tuple(
                sorted(
                    (start, end, v, tuple(sorted(times[seq] for seq in seqs)))
                    for start, end, (_, v), seqs, *_ in out.windows["s"][log.case]
                )
            )
            tables.setdefault(log.case.split("-")[0], set()).add(rows)
        assert all(len(different) == 1 for different in tables.values()), policy
        assert len(tables) == 40


def test_a_long_backlog_of_late_events_is_refused_one_by_one(spark: SparkSession) -> None:
    backlog = [(t, 1) for t in range(0, 100, 8)]
    live = [(290 + t, 1) for t in range(13)]
    mixed = [event for pair in zip(backlog, live, strict=True) for event in pair]
    ahead = [(300, PUSHER)]
    logs = logs_of({"alone": ahead + backlog, "mixed": ahead + mixed, "bridged": ahead + live + [(285, 1)] + backlog})
    time, windows = time_spec("keep"), (sessions("s"),)
    out = run(spark, logs, time, windows, flush=True)
    assert_equal_to_oracle(logs, out, time, windows, flush=True)
    assert [len(found(out, "s", log)) for log in logs] == [0, 1, 1]
    assert out.tally["s.window_closed"] == 3 * len(backlog)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["drop", "adjust"])
def test_without_an_event_time_arrivals_that_go_back_are_behind_the_watermark_and_in_no_session_that_was_cut(
    spark: SparkSession, policy: str
) -> None:
    """With `order: position` a file's records may arrive before those ahead of them: rule 3 judges their arrival."""
    time = TimeSpec(over=("case",), out_of_order=policy)
    windows = (sessions("long", max_duration="13 us"), sessions("short", max_duration="2 us"))
    logs = generate(22, 120)
    assert any(
        a.arrival_us and b.arrival_us and b.arrival_us < a.arrival_us for log in logs for a, b in pairwise(log.events)
    )
    for parts in ((None,), (0, 1, 2)):
        out = run(spark, logs, time, windows, parts=parts)
        assert_equal_to_oracle(logs, out, time, windows)
