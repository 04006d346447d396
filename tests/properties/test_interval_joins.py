"""Interval joins equal the oracle on generated logs, whole and cut, row by row."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests import oracle
from tests.oracle.interval_joins import Paired, PairRow, paired
from tests.properties.logs import (
    Log,
    controlled,
    cut,
    generate,
    interval_join_of,
    items,
    places_of,
    record_of,
    rules_of,
    segment,
)
from tests.properties.test_admitted import let_in as some_let_in
from tests.properties.test_admitted import some_are_let_in
from tests.properties.test_joins import COLUMNS, JOIN_MODES, PAYLOAD, two_sided
from tests.properties.test_oracle_equality import WITH_SPLITS, source_times, time_spec, turned
from tests.seeds import Dice
from tidemark.timeops.columns import to_us
from tidemark.timeops.computing.materialize import Execution, computed
from tidemark.timeops.engine import Outcome, State, advance_all
from tidemark.timeops.events.adjustment import Segment, admitted_events
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.figures.counts import counts_by_join
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules
from tidemark.timeops.spec import JoinSpec, TimeSpec

CASES = 350


def join_spec(dice: Dice, turn: int, *, keeps: bool) -> JoinSpec:
    keys: dict[str, Any] = {
        "name": "j",
        "kind": "interval",
        "left": {"source": "s"},
        "right": {"source": "r"},
        "on": dice.choice(turned([("case", "v"), ("case",)], turn)),
        "how": dice.choice(turned(["full", "left", "right", "inner"], turn)),
        "before": dice.choice(turned(["15 us", "0 us", "3 us", "200 us"], turn)),
        "after": dice.choice(turned(["6 us", "20 us", "0 us", "1 us"], turn)),
    }
    if keeps:
        keys["allowed_lateness"] = dice.choice(turned(["12 us", "1000 us", "0 us", "1 us"], turn))
        if keys["allowed_lateness"] != "0 us" and keys["how"] != "inner":
            keys["emit"] = dice.choice(turned(["on_time", "on_time", "on_close"], turn))
    return JoinSpec.model_validate(keys)


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
) -> Mapping[str, Paired]:
    """Join all logs, segment by segment; return what each case has."""
    rules = TimeRules(time, sources, bool(sources), joins=(join,), join_columns={join.name: COLUMNS})
    found, counts = defaultdict[str, Paired](Paired), Counter[str]()
    case_of = {event.seq: log.case for log in logs for event in log.events}
    chosen = [event.seq for log in logs for event in log.events if event.is_let_in]
    start, let_in = State(), None
    if chosen:
        let_in = computed(admitted_events(items(spark, logs).where(F.col("_arrival_seq").isin(chosen)), rules))
        start = start.with_events(let_in, (), (join,)).with_timelines_of(let_in, time)

    def step(part: int | None) -> tuple[Segment, TimeRules]:
        rows = items(spark, logs, part).localCheckpoint()
        rows = rows.withColumn("_timeline", F.expr(timeline(Columns.of(rows), time.over)))
        flushed = part in flushed_after or (flush and part == parts[-1])
        of_part = [event.seq for log in logs for event in segment(log, part)]
        own = None if let_in is None else let_in.where(F.col("_arrival_seq").isin(of_part))
        places = places_of(logs, part, time.emit_every_us or 1, flushed=flushed)
        return Segment(rows, places, Execution(computed), own), rules

    def carry(outcome: Outcome) -> State:
        return outcome.state().materialized(computed)

    for outcome in advance_all(map(step, parts), start, carry):
        counts.update(counts_by_join(outcome, let_in))
        let_in = None
        for row in outcome.answers(join).withColumn("w", to_us("_watermark")).collect():
            pair = PairRow(*(row[name] for name in ("_left_seq", "_right_seq", "_revision", "_is_final", "w")))
            assert row["case"] == (None if pair.left_seq is None else case_of[pair.left_seq])
            assert row["right_case"] == (None if pair.right_seq is None else case_of[pair.right_seq])
            found[row["case"] or row["right_case"]].rows.append(pair)
        for row in outcome.dead_letters(PAYLOAD).where("stage = 'join'").collect():
            found[case_of[row["_arrival_seq"]]].late[row["_arrival_seq"]] = row["lateness_us"]
    for row in carry(outcome).joins[join.name].collect():
        found[row["case"]].open.append(row["_arrival_seq"])
    assert_conserved(logs, found, counts)
    return found


def assert_conserved(logs: Sequence[Log], found: Mapping[str, Paired], counts: Mapping[str, int]) -> None:
    """Compare what was counted of both sides with what waits, and what came too late."""
    source_of = {event.seq: event.source for log in logs for event in log.events}
    for side, source in (("left", "s"), ("right", "r")):
        answered = counts["j.answered" if side == "left" else "j.right_answered"]
        late = sum(source_of[seq] == source for one in found.values() for seq in one.late)
        opens = sum(source_of[seq] == source for one in found.values() for seq in one.open)
        assert counts[f"j.{side}_closed"] == late
        assert counts[f"j.{side}"] == answered + late + opens


def judged_by_oracle(
    log: Log,
    time: TimeSpec,
    join: JoinSpec,
    sources: tuple[SourceTime, ...],
    *,
    flush: bool,
    flushed_after: Sequence[int] = (),
) -> Paired:
    log_items = list(controlled(log, [record_of(event, log) for event in log.events], flushed_after, flush=flush))
    return paired(oracle.run(log_items, rules_of(time, sources)), log_items, interval_join_of(join))


def assert_equal(
    logs: Sequence[Log],
    found: Mapping[str, Paired],
    time: TimeSpec,
    join: JoinSpec,
    sources: tuple[SourceTime, ...] = (),
    *,
    flush: bool = False,
    flushed_after: Sequence[int] = (),
) -> None:
    for log in logs:
        expected = judged_by_oracle(log, time, join, sources, flush=flush, flushed_after=flushed_after)
        here = found[log.case] if log.case in found else Paired()
        order = lambda row: (row.left_seq or -1, row.right_seq or -1, row.revision)  # noqa: E731
        assert sorted(here.rows, key=order) == sorted(expected.rows, key=order), (log, join)
        assert sorted(here.open) == sorted(expected.open), (log, join)
        assert here.late.keys() == expected.late.keys(), (log, join)
        if time.idle is None:  # what the clock has passed no lateness lets in
            assert here.late == expected.late, (log, join)


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=[] if mode == "events" else [pytest.mark.long]) for mode in JOIN_MODES]
)
def test_pairs_of_a_log_whole_or_cut_into_batches_are_the_oracles(spark: SparkSession, mode: str, dice: Dice) -> None:
    turn = JOIN_MODES.index(mode)
    time = time_spec(dice, mode, turn)
    join = join_spec(dice, turn, keeps=time.out_of_order == "keep")
    sources = source_times(dice, time) if mode in WITH_SPLITS else ()
    flush = dice.choice(turned([False, True], turn))
    logs, parts = cut(two_sided(generate(dice.seed(0), dice.some(CASES)), dice.seed(1)), dice)
    ways: Sequence[Sequence[int | None]] = (parts, (None,), parts)
    found = run(spark, logs, time, join, sources=sources, parts=dice.turn(ways, turn), flush=flush)
    assert_equal(logs, found, time, join, sources, flush=flush)


@pytest.mark.long
@pytest.mark.parametrize("turn", range(4))
def test_a_flush_closes_what_has_no_partner_and_the_rest_meets_later_events(
    spark: SparkSession, turn: int, dice: Dice
) -> None:
    time = time_spec(dice, "events", turn)
    join = join_spec(dice, turn, keeps=time.out_of_order == "keep")
    logs, parts = cut(two_sided(generate(dice.seed(0), dice.some(CASES)), dice.seed(1)), dice)
    flushed_after = (parts[0],) if len(parts) > 1 and parts[0] is not None else ()
    found = run(spark, logs, time, join, parts=parts, flush=True, flushed_after=flushed_after)
    assert_equal(logs, found, time, join, flush=True, flushed_after=flushed_after)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["events", "periods", "clock"])
def test_records_that_are_let_in_meet_their_partners_as_if_they_had_come_first(
    spark: SparkSession, mode: str, dice: Dice
) -> None:
    turn = JOIN_MODES.index(mode)
    for draw in range(10):  # there are rules that refuse no record of the logs
        time = time_spec(dice, mode, turn + draw)
        join = join_spec(dice, turn + draw, keeps=time.out_of_order == "keep")
        logs, parts = cut(two_sided(generate(dice.seed(10 * draw), CASES), dice.seed(10 * draw + 1)), dice)
        logs = some_let_in(logs, time, (), dice)
        if some_are_let_in(logs):
            break
    assert some_are_let_in(logs)
    found = run(spark, logs, time, join, parts=parts)
    assert_equal(logs, found, time, join)
