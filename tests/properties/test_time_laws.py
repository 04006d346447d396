"""Laws of time that hold between two judgements of the same logs, whatever the oracle says of each."""

from dataclasses import replace
from itertools import pairwise

import pytest
from pyspark.sql import SparkSession

from tests.properties.fold import Gathered, run
from tests.properties.logs import Log, generate
from tidemark.timeops.spec import EarlyPolicy, LatePolicy, TimeSpec
from tidemark.timeops.values.durations import parse_duration

LOGS = generate(seed=12, cases=120)


def in_arrival_order(logs: list[Log]) -> list[Log]:
    """Return the same logs as ingestion lays them by default: arrivals never go backwards."""
    found = []
    for log in logs:
        arrivals = sorted(event.arrival_us or 0 for event in log.events)
        events = (replace(event, arrival_us=at or None) for event, at in zip(log.events, arrivals, strict=True))
        found.append(replace(log, events=tuple(events)))
    return found


def judged(spark: SparkSession, logs: list[Log], out_of_orderness_us: int, **policies: int) -> Gathered:
    time = TimeSpec(
        timestamp_by="e",
        over=("case",),
        out_of_orderness=parse_duration(f"{out_of_orderness_us} us"),
        **{
            name: {"late": LatePolicy, "early": EarlyPolicy}[name](
                tolerance=parse_duration(f"{us} us"), policy="drop"
            )
            for name, us in policies.items()
        },
    )
    return run(spark, logs, time)


def refused(out: Gathered, *reasons: str) -> dict[int, tuple[str, int]]:
    """Reason and lateness of refused events, by `_arrival_seq`."""
    letters = [letter for rows in out.letters.values() for letter in rows]
    return {seq: (reason, late) for seq, _, reason, *_, late, _ in letters if not reasons or reason in reasons}


@pytest.mark.long
def test_a_larger_out_of_orderness_or_late_tolerance_adds_no_drop(spark: SparkSession) -> None:
    logs = in_arrival_order(LOGS)
    small = refused(judged(spark, logs, 4, late=10))
    for larger in (judged(spark, logs, 9, late=10), judged(spark, logs, 4, late=17)):
        assert refused(larger).keys() < small.keys(), "fewer, and none that was not refused before"


@pytest.mark.long
def test_the_watermark_never_goes_back(spark: SparkSession) -> None:
    time = TimeSpec(timestamp_by="e", over=("case",), late=LatePolicy(tolerance="9 us", policy="adjust"))
    found = [run(spark, LOGS, time, parts=parts).watermarks for parts in ((0,), (0, 1), (0, 1, 2))]
    for before, after in pairwise(found):
        assert all((after[line] or 0) >= (w or 0) for line, w in before.items())
    assert found[0] != found[2], "watermarks that stand still would show nothing"


@pytest.mark.parametrize(
    "reason", ["out_of_order", *(pytest.param(late, marks=pytest.mark.long) for late in ("late_arrival", "early"))]
)
def test_the_lateness_of_a_dead_letter_is_the_least_tolerance_that_admits_it(
    spark: SparkSession, reason: str
) -> None:
    """Of all else nothing changes: an event that rule 3 refused has moved the watermark too."""
    tolerances = {"out_of_orderness_us": 4, "late": 25, "early": 15}
    of_reason = {"out_of_order": "out_of_orderness_us", "late_arrival": "late", "early": "early"}[reason]
    letters = refused(judged(spark, LOGS, **tolerances), reason)
    latenesses = [late for _, late in letters.values()]
    lateness = max(set(latenesses), key=lambda late: (latenesses.count(late), late))
    asked = {seq for seq, (_, late) in letters.items() if late == lateness}
    assert len(asked) > 2
    enough = refused(judged(spark, LOGS, **tolerances | {of_reason: tolerances[of_reason] + lateness}), reason)
    too_little = refused(
        judged(spark, LOGS, **tolerances | {of_reason: tolerances[of_reason] + lateness - 1}), reason
    )
    assert not asked & enough.keys()
    assert {seq: too_little[seq] for seq in asked} == dict.fromkeys(asked, (reason, 1))


def test_the_names_of_timelines_mean_nothing(spark: SparkSession) -> None:
    names = {log.case: f"z{1000 - number} \"quoted\", 'and' [so on]" for number, log in enumerate(LOGS)}
    renamed = [replace(log, case=names[log.case]) for log in LOGS]
    as_they_are, otherwise = judged(spark, LOGS, 4, late=25), judged(spark, renamed, 4, late=25)
    assert as_they_are.letters == otherwise.letters
    assert {names[case]: rows for case, rows in as_they_are.ordered.items()} == otherwise.ordered
    assert {names[case]: sorted(rows) for case, rows in as_they_are.held.items()} == {
        case: sorted(rows) for case, rows in otherwise.held.items()
    }
