"""Pipelines whose spec is changed in the middle and that are made anew: they equal a new pipeline, on random logs.

The change, its place, the cuts of both and the log are drawn.
"""

from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, START, land
from tests.runs.running import assert_as_new, assert_same, go, rebuild, written
from tests.seeds import Dice
from tidemark.assets.judging import replay
from tidemark.pipelines.running.runner import RunOptions

CASES = 1
SOURCES = (f"{LINES}    order: position\n", f"{LINES}    order: position\n    split: k\n")
TIMES = (
    "{timestamp_by: at, out_of_orderness: 10 s}",
    "{timestamp_by: at, out_of_orderness: 1 s, unit: second, out_of_order: adjust}",
    "{timestamp_by: at, out_of_orderness: 3 s, late: {tolerance: 20 s, policy: drop}}",
    "{timestamp_by: at, out_of_orderness: 3 s, deduplicate_by: [k, v], within: 20 s}",
    "{timestamp_by: at, out_of_orderness: 2 s, over: [k]}",
    "{timestamp_by: at, out_of_orderness: 2 s, emit: {every: 7 s}}",
    "{timestamp_by: at, out_of_orderness: 2 s, idle: {advance: window_close, timeout: 20 s}}",
    "{timestamp_by: at, out_of_orderness: 2 s, over: [k], early: {tolerance: 1 s, policy: adjust}}",
)
KEPT = (
    "{timestamp_by: at, out_of_orderness: 2 s, out_of_order: keep}",
    "{timestamp_by: at, out_of_orderness: 5 s, out_of_order: keep, over: [k]}",
)
WINDOWS = (
    "kind: tumbling, size: 1 minute",
    "kind: hopping, size: 30 s, hop: 10 s, where: v > 2",
    "kind: session, gap: 8 s",
    "kind: sliding, size: 10 s, having: n > 1",
    "kind: tumbling, size: 10 s, empty: true",
    "kind: snapshot",
    "kind: hopping, size: 40 s, hop: 20 s, top: {n: 2, by: v DESC}",
)
LATE = (
    "kind: tumbling, size: 20 s, allowed_lateness: 10 s, emit: on_time, revise_every: 5 s, history: true",
    "kind: session, gap: 8 s, allowed_lateness: 5 s, emit: {early: 5 s}, history: true",
    "kind: tumbling, size: 20 s, allowed_lateness: 10 s, emit: on_time, history: true, top: {n: 3, by: id DESC}",
)
OVER = "{name: over, kind: tumbling, size: 2 minutes, from: w, group_by: [k], aggregates: {n: sum(n)}}"


def spec_of(dice: Dice, source: str, turn: int) -> str:
    """Return a spec with one window, and maybe one over it."""
    keeps = dice.choice((False, False, True))
    times, kinds = (KEPT, LATE) if keeps else (TIMES, WINDOWS)
    window = dice.turn(kinds, turn)
    chained = dice.choice((False, True)) and not keeps and "empty" not in window
    counts = "group_by: [k], aggregates: {n: count(*), s: sum(v), f: first(v), l: last(v)}"
    windows = f"  - {{name: w, {window}, {counts}}}\n" + (f"  - {OVER}\n" if chained else "")
    outputs = dice.choice(("", "", "outputs: {ordered_events: false}\n"))
    return f"name: drawn\n{source}time: {dice.choice(times)}\n{outputs}windows:\n{windows}"


@pytest.mark.long
def test_after_any_change_a_rebuild_gives_what_a_new_pipeline_gives(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dice: Dice
) -> None:
    source = dice.choice(SOURCES)
    before, now = (spec_of(dice, source, turn) for turn in (0, 1))
    monkeypatch.setattr(replay, "MOST_IN_A_PIECE", dice.choice((40, 17, 1_000)))
    cut = RunOptions(max_events_per_batch=dice.choice((30, 11, None)))
    land(tmp_path / "in", 70, seed=dice.seed(1), start=START, prefix="a")
    with DagsterInstance.ephemeral() as instance:
        go(written(tmp_path, "drawn", before), instance, cut)
        changed = written(tmp_path, "drawn", now)
        done = rebuild(changed)
        assert done.exit_code == 0, (before, now, done.output)
        fresh = assert_as_new(changed, instance, RunOptions(max_events_per_batch=dice.choice((None, 23))))
        land(tmp_path / "in", 40, seed=dice.seed(2), prefix="b")
        end = RunOptions(end_of_input=dice.choice(("hold", "flush")))
        for one in (changed, fresh):
            go(one, instance, end)
    assert_same(changed, fresh)
