"""As-of joins equal the oracle on generated logs, whole and cut, row by row."""

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests import oracle
from tests.oracle.joins import Answer, Joined, joined
from tests.properties.logs import (
    BASE_US,
    Event,
    Log,
    controlled,
    cut,
    generate,
    items,
    join_of,
    places_of,
    record_of,
    rules_of,
)
from tests.properties.test_oracle_equality import MODES, WITH_SPLITS, source_times, time_spec, turned
from tests.seeds import Dice
from tidemark.timeops.columns import to_us
from tidemark.timeops.computing.materialize import Execution, computed
from tidemark.timeops.engine import Outcome, State, advance_all
from tidemark.timeops.events.adjustment import Segment
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.joins.gathering import IS_LEFT
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules
from tidemark.timeops.spec import JoinSpec, TimeSpec
from tidemark.timeops.spec.join import JoinColumns

CASES = 350
PAYLOAD = ("case", "e", "v")
COLUMNS = JoinColumns.of(PAYLOAD, PAYLOAD)
JOIN_MODES = tuple(mode for mode in MODES if "silence" not in mode)  # which needs a window


def join_spec(dice: Dice, turn: int, *, keeps: bool) -> JoinSpec:
    keys: dict[str, Any] = {
        "name": "j",
        "kind": "as_of",
        "left": {"source": "s"},
        "right": {"source": "r"},
        "on": dice.choice(turned([("case", "v"), ("case",)], turn)),
        "how": dice.choice(turned(["left", "inner"], turn // 2)),
        "within": dice.choice(turned(["20 us", "7 us", "1 us", "200 us"], turn)),
        "direction": dice.choice(turned(["backward", "nearest", "forward"], turn)),
    }
    if keeps:
        keys["allowed_lateness"] = dice.choice(turned(["12 us", "1000 us", "0 us", "1 us"], turn))
        if keys["allowed_lateness"] != "0 us":
            keys["emit"] = dice.choice(turned(["on_time", "on_time", "on_close"], turn))
    return JoinSpec.model_validate(keys)


def two_sided(logs: Sequence[Log], seed: int) -> list[Log]:
    """Return logs whose events are of two sources, some with no key."""
    rng = random.Random(seed)

    def event(old: Event) -> Event:
        value: Any = None if rng.random() < 0.05 else rng.randint(0, 2)
        return replace(old, source=rng.choice("sr"), value=value)

    return [replace(log, events=tuple(map(event, log.events))) for log in logs]


def run(
    spark: SparkSession,
    logs: Sequence[Log],
    time: TimeSpec,
    join: JoinSpec,
    *,
    sources: tuple[SourceTime, ...] = (),
    parts: Sequence[int | None] = (None,),
    flush: bool = False,
    flushed_after: Sequence[int] = (),
) -> Mapping[str, Joined]:
    """Join all logs, segment by segment; return what each case has."""
    rules = TimeRules(time, sources, bool(sources), joins=(join,), join_columns={join.name: COLUMNS})
    found: defaultdict[str, Joined] = defaultdict(Joined)
    case_of = {event.seq: log.case for log in logs for event in log.events}

    def step(part: int | None) -> tuple[Segment, TimeRules]:
        rows = items(spark, logs, part).localCheckpoint()
        rows = rows.withColumn("_timeline", F.expr(timeline(Columns.of(rows), time.over)))
        flushed = part in flushed_after or (flush and part == parts[-1])
        return Segment(
            rows, places_of(logs, part, time.emit_every_us or 1, flushed=flushed), Execution(computed)
        ), rules

    def carry(outcome: Outcome) -> State:
        return outcome.state().materialized(computed)

    for outcome in advance_all(map(step, parts), State(), carry):
        for row in outcome.answers(join).withColumn("w", to_us("_watermark")).collect():
            answer = Answer(*(row[name] for name in ("_left_seq", "_right_seq", "_revision", "_is_final", "w")))
            found[row["case"]].answers.append(answer)
            assert row["right_case"] == (None if answer.right_seq is None else row["case"])
        letters = outcome.dead_letters(PAYLOAD).where("stage = 'join'")
        for row in letters.collect():
            found[case_of[row["_arrival_seq"]]].late[row["_arrival_seq"]] = row["lateness_us"]
    for row in carry(outcome).joins[join.name].where(IS_LEFT).collect():
        found[row["case"]].waiting.append(row["_arrival_seq"])
    return found


def judged_by_oracle(
    log: Log,
    time: TimeSpec,
    join: JoinSpec,
    sources: tuple[SourceTime, ...],
    *,
    flush: bool,
    flushed_after: Sequence[int] = (),
) -> Joined:
    log_items = list(controlled(log, [record_of(event, log) for event in log.events], flushed_after, flush=flush))
    return joined(oracle.run(log_items, rules_of(time, sources)), log_items, join_of(join))


def assert_equal(
    logs: Sequence[Log],
    found: Mapping[str, Joined],
    time: TimeSpec,
    join: JoinSpec,
    sources: tuple[SourceTime, ...] = (),
    *,
    flush: bool = False,
    flushed_after: Sequence[int] = (),
) -> None:
    for log in logs:
        expected = judged_by_oracle(log, time, join, sources, flush=flush, flushed_after=flushed_after)
        here = found[log.case] if log.case in found else Joined()
        order = lambda answer: (answer.left_seq, answer.revision)  # noqa: E731
        assert sorted(here.answers, key=order) == sorted(expected.answers, key=order), (log, join)
        assert sorted(here.waiting) == sorted(expected.waiting), (log, join)
        assert here.late.keys() == expected.late.keys(), (log, join)
        if time.idle is None:  # what the clock has passed no lateness lets in
            assert here.late == expected.late, (log, join)


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode == "events" else [pytest.mark.long]) for mode in JOIN_MODES]
)
def test_a_join_of_a_log_whole_or_cut_into_batches_gives_the_oracles_rows(
    spark: SparkSession, mode: str, dice: Dice
) -> None:
    turn = JOIN_MODES.index(mode)
    time = time_spec(dice, mode, turn)
    join = join_spec(dice, turn, keeps=time.out_of_order == "keep")
    sources = source_times(dice, time) if mode in WITH_SPLITS else ()
    flush = dice.choice(turned([False, True], turn))
    logs, parts = cut(two_sided(generate(dice.seed(0), dice.some(CASES)), dice.seed(1)), dice)
    ways: Sequence[Sequence[int | None]] = (parts, (None,), parts)
    found = run(spark, logs, time, join, sources=sources, parts=dice.turn(ways, turn), flush=flush)
    assert_equal(logs, found, time, join, sources, flush=flush)


def test_an_answer_has_as_many_revisions_in_batches_as_late_events_have_changed_it(spark: SparkSession) -> None:
    times = [("r", 100), ("s", 110), ("r", 112), ("r", 104), ("r", 107), ("r", 130)]
    events = [Event(n, BASE_US + n, BASE_US + t, 1, False, source, None) for n, (source, t) in enumerate(times)]
    keys = {"timestamp_by": "e", "over": ("case",), "unit": "microsecond", "out_of_order": "keep"}
    sides = {"left": {"source": "s"}, "right": {"source": "r"}, "on": ["case"]}
    time = TimeSpec.model_validate(keys)
    join = JoinSpec.model_validate(
        {"name": "j", "kind": "as_of", **sides, "within": "20 us", "allowed_lateness": "4 us"}
    )
    logs = [Log("c", tuple(events), (5,))]
    found = run(spark, logs, time, join, parts=(0, 1))
    assert_equal(logs, found, time, join)
    made = sorted((answer.revision, answer.right_seq) for answer in found["c"].answers)
    assert made == [(0, 0), (1, 3), (2, 4), (3, 4)]
