"""Windows over the rows of joins equal the oracle on generated logs, whole and cut."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests import oracle
from tests.properties import test_interval_joins, test_joins
from tests.properties.logs import (
    Log,
    controlled,
    cut,
    generate,
    give_results_over,
    items,
    places_of,
    record_of,
    rules_of,
    window_of,
)
from tests.properties.test_joins import COLUMNS, JOIN_MODES, two_sided
from tests.properties.test_oracle_equality import WITH_SPLITS, source_times, time_spec, turned
from tests.seeds import Dice
from tidemark.timeops.columns import to_us
from tidemark.timeops.computing.materialize import Execution, computed
from tidemark.timeops.engine import Outcome, State, advance_all
from tidemark.timeops.events.adjustment import Segment
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules
from tidemark.timeops.spec import JoinSpec, TimeSpec, WindowSpec

CASES = 250
AGGREGATES = {"n": "count(*)", "lefts": "sum(_left_seq)", "rights": "sum(coalesce(_right_seq, -1))"}
Rows = dict[tuple[str, str], list[tuple[object, ...]]]


def windows_over(join: JoinSpec, dice: Dice, turn: int) -> tuple[WindowSpec, ...]:
    """Return a window of events, one over the rows of the join, and one over the results of that one."""
    shapes: list[dict[str, Any]] = [
        {"kind": "tumbling", "size": "9 us"},
        {"kind": "session", "gap": "4 us"},
        {"kind": "hopping", "size": "12 us", "hop": "5 us", "closed": "right"},
        {"kind": "sliding", "size": "7 us"},
    ]
    lateness = f"{join.final_after.microseconds + 1_000_000 * join.final_after.seconds} us"
    over = {"group_by": ("case", "v"), "aggregates": AGGREGATES, "allowed_lateness": lateness}
    sums = {"n": "sum(n)", "lefts": "sum(lefts)", "rights": "sum(rights)"}
    longer = {"group_by": ("case",), "aggregates": sums, "allowed_lateness": lateness}
    made = (
        {"name": "w", "kind": "tumbling", "size": "10 us", "group_by": ("case",), "aggregates": {"n": "count(*)"}},
        {"name": "of_join", "from": "j", **dice.choice(turned(shapes, turn)), **over},
        {"name": "longer", "from": "of_join", "kind": "tumbling", "size": "30 us", "closed": "right", **longer},
    )
    return tuple(WindowSpec.model_validate(keys) for keys in made)


def run(
    spark: SparkSession,
    logs: Sequence[Log],
    time: TimeSpec,
    join: JoinSpec,
    windows: tuple[WindowSpec, ...],
    *,
    sources: tuple[SourceTime, ...],
    parts: Sequence[int | None],
    flush: bool,
) -> Rows:
    """Judge all logs, segment by segment; return the results of the windows over the join by case and window."""
    rules = TimeRules(time, sources, bool(sources), windows=windows, joins=(join,), join_columns={join.name: COLUMNS})
    found: Rows = defaultdict(list)

    def step(part: int | None) -> tuple[Segment, TimeRules]:
        rows = items(spark, logs, part).localCheckpoint()
        rows = rows.withColumn("_timeline", F.expr(timeline(Columns.of(rows), time.over)))
        places = places_of(logs, part, time.emit_every_us or 1, flushed=flush and part == parts[-1])
        return Segment(rows, places, Execution(computed)), rules

    def carry(outcome: Outcome) -> State:
        return outcome.state().materialized(computed)

    for outcome in advance_all(map(step, parts), State(), carry):
        for window in windows[1:]:
            bounds = {name: to_us(name) for name in ("window_start", "window_end", "_watermark")}
            for row in outcome.results(window).withColumns(bounds).collect():
                names = ("window_start", "window_end", *window.group_columns[1:], *AGGREGATES, "_watermark")
                found[row["case"], window.name].append(tuple(row[name] for name in names))
    return found


def judged_by_oracle(
    log: Log,
    time: TimeSpec,
    join: JoinSpec,
    windows: Sequence[WindowSpec],
    sources: tuple[SourceTime, ...],
    *,
    flush: bool,
) -> Mapping[str, list[tuple[object, ...]]]:
    """Return the results of the windows over the join: what each window holds is added up here."""
    log_items = list(controlled(log, [record_of(event, log) for event in log.events], flush=flush))
    outcome = oracle.run(log_items, rules_of(time, sources), [window_of(windows[0])])
    give_results_over(outcome, log_items, windows, {join: COLUMNS})
    seqs = {row.events[0]: row.group[-2:] for row in outcome.windows[join.name]}
    found = {}
    for window in windows[1:]:
        found[window.name] = [
            (
                result.window_start,
                result.window_end,
                *result.group[1:],
                len(result.events),
                sum(int(str(seqs[number][0])) for number in result.events),
                sum(-1 if seqs[number][1] is None else int(str(seqs[number][1])) for number in result.events),
                result.watermark_us,
            )
            for result in outcome.windows[window.name]
        ]
    return found


@pytest.mark.long
@pytest.mark.parametrize("kind", ["as_of", "interval"])
@pytest.mark.parametrize("mode", JOIN_MODES)
def test_windows_over_a_join_whole_or_cut_into_batches_give_the_oracles_rows(
    spark: SparkSession, mode: str, kind: str, dice: Dice
) -> None:
    turn = JOIN_MODES.index(mode)
    time = time_spec(dice, mode, turn)
    of_kind = test_joins if kind == "as_of" else test_interval_joins
    join = of_kind.join_spec(dice, turn, keeps=time.out_of_order == "keep")
    how = {"right": "inner", "full": "left"}.get(join.how, join.how)  # rows need the columns of `over`
    join = join.model_copy(update={"how": how, "emit": "on_time"})
    windows = windows_over(join, dice, turn + (kind == "interval"))
    sources = source_times(dice, time) if mode in WITH_SPLITS else ()
    flush = dice.choice(turned([True, False], turn))
    logs, parts = cut(two_sided(generate(dice.seed(0), dice.some(CASES)), dice.seed(1)), dice)
    ways: Sequence[Sequence[int | None]] = (parts, (None,), parts)
    found = run(spark, logs, time, join, windows, sources=sources, parts=dice.turn(ways, turn), flush=flush)
    for log in logs:
        expected = judged_by_oracle(log, time, join, windows, sources, flush=flush)
        for name, rows in expected.items():
            assert sorted(found[log.case, name], key=str) == sorted(rows, key=str), (log, join, windows)
