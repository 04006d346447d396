"""Final rows of joins that an audit recomputes from the events equal the oracle's, in whatever stretches."""

from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from tests import oracle
from tests.oracle.interval_joins import paired
from tests.oracle.joins import joined
from tests.oracle.model import Control, Record
from tests.oracle.outcome import OrderedEvent
from tests.properties import test_interval_joins, test_joins
from tests.properties.logs import BASE_US, Log, controlled, generate, interval_join_of, join_of, record_of, rules_of
from tests.properties.test_admitted import let_in
from tests.properties.test_joins import JOIN_MODES, two_sided
from tests.properties.test_oracle_equality import WITH_SPLITS, source_times, time_spec, turned
from tests.seeds import Dice
from tidemark.assets.recount.joins import NOBODY, ROW, JoinEvents, JoinStretch, final_rows
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import KEPT
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import NONE

CASES = 350
Rows = set[tuple[int, int]]


@pytest.mark.parametrize("mode", JOIN_MODES)
@pytest.mark.parametrize("kind", ["as_of", "interval"])
def test_final_rows_are_the_oracles_from_what_tables_have_of_the_events(kind: str, mode: str, dice: Dice) -> None:
    spec_of = test_joins.join_spec if kind == "as_of" else test_interval_joins.join_spec
    for turn in range(JOIN_MODES.index(mode), JOIN_MODES.index(mode) + 4):
        time = time_spec(dice, mode, turn)
        join = spec_of(dice, turn, keeps=time.out_of_order == "keep")
        sources = source_times(dice, time) if mode in WITH_SPLITS else ()
        logs = two_sided(generate(dice.seed(2 * turn), dice.some(CASES)), dice.seed(2 * turn + 1))
        logs = let_in(logs, time, (), dice, sources) if dice.choice([True, False]) else logs
        flush = dice.choice(turned([False, True], turn))
        expected, events = Rows(), list[tuple[int, ...]]()
        for number, log in enumerate(logs):
            log_items = list(controlled(log, [record_of(event, log) for event in log.events], flush=flush))
            outcome = oracle.run(log_items, rules_of(time, sources))
            rows, open_seqs = by_oracle(outcome, log_items, join)
            expected |= rows
            events += in_tables(number, log, [*outcome.ordered, *outcome.held], open_seqs, join)
        for bounds in ([], dice.choice([[40], [3, 11], [200]])):
            assert recomputed(events, join, [BASE_US + bound for bound in bounds]) == expected, (time, join)


def by_oracle(
    outcome: oracle.Outcome, log_items: Sequence[Record | Control], join: JoinSpec
) -> tuple[Rows, Sequence[int]]:
    """Return the final rows of a log, and the events that its join has open."""
    if join.is_interval:
        pairs = paired(outcome, log_items, interval_join_of(join))
        return {row_of(row.left_seq, row.right_seq) for row in pairs.rows if row.is_final}, pairs.open
    answered = joined(outcome, log_items, join_of(join))
    return {row_of(row.left_seq, row.right_seq) for row in answered.answers if row.is_final}, answered.waiting


def row_of(*seqs: int | None) -> tuple[int, int]:
    left, right = (NOBODY if seq is None else seq for seq in seqs)
    return left, right


def in_tables(
    number: int, log: Log, accepted: Iterable[OrderedEvent], open_seqs: Sequence[int], join: JoinSpec
) -> list[tuple[int, ...]]:
    """Return the events of a log as the tables have them: fields of Events."""
    of_seq = {event.seq: event for event in log.events}
    found = list[tuple[int, ...]]()
    for event in accepted:
        raw = of_seq[event.seq]
        met_us = None if raw.is_let_in or KEPT not in event.adjusted_by else event.watermark_us
        has_key = "v" not in join.on or raw.value is not None
        key = 10 * number + (raw.value or 0 if "v" in join.on else 0)
        flags = (has_key, raw.source == "s", event.seq in open_seqs, raw.is_let_in)
        found.append((event.seq, event.timestamp_us, NONE if met_us is None else met_us, key, *flags))
    return found


def recomputed(events: Sequence[tuple[int, ...]], join: JoinSpec, bounds: Sequence[int]) -> Rows:
    """Recompute rows in stretches of time between some bounds."""
    columns = [np.array(values) for values in zip(*events, strict=True)]
    whole = JoinEvents(*columns[:4], *(values.astype(bool) for values in columns[4:]))
    rows = list[tuple[int, int]]()
    for first_us, end_us in zip([c.MIN_US, *bounds], [*bounds, c.MAX_US + 1], strict=True):
        table = final_rows(whole, join, JoinStretch(first_us, end_us))
        rows += zip(*(table[name].to_pylist() for name in ROW), strict=True)
    assert len(rows) == len({*rows})
    return {*rows}
