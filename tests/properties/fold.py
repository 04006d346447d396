"""Runs the engine over generated logs, whole or in segments, and compares what comes out with the oracle.

The way a pipeline goes on from batch to batch, without a lake: the state after a segment is that before the next.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests import oracle
from tests.properties.logs import Event, Log, items, judged_by_oracle, places_of, segment
from tests.seeds import Dice
from tidemark.timeops.columns import to_us
from tidemark.timeops.computing.materialize import Execution, by_row, computed
from tidemark.timeops.engine import Outcome, State, advance_all
from tidemark.timeops.events.adjustment import Released, Segment, admitted_events
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.figures.counts import counts_by_window
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules, Waits
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.windows.revisions import PASSES

Rows = dict[str, list[tuple[Any, ...]]]
PAYLOAD = ("case", "e", "v")


@dataclass
class Gathered:
    """Per case: rows in the shape in which the tests compare them."""

    ordered: Rows = field(default_factory=lambda: defaultdict(list))
    held: Rows = field(default_factory=lambda: defaultdict(list))
    letters: Rows = field(default_factory=lambda: defaultdict(list))
    windows: dict[str, Rows] = field(default_factory=dict)
    hidden: dict[str, Rows] = field(default_factory=dict)
    watermarks: dict[str, int | None] = field(default_factory=dict)
    tally: dict[str, int] = field(default_factory=dict)
    aggregates: tuple[str, ...] = ("seqs",)


def run(
    spark: SparkSession,
    logs: Sequence[Log],
    time: TimeSpec,
    windows: tuple[WindowSpec, ...] = (),
    *,
    sources: tuple[SourceTime, ...] = (),
    parts: Sequence[int | None] = (None,),
    keeps_records: bool = True,
    flush: bool = False,
    flushed_after: Sequence[int] = (),
    waits: Mapping[int | None, Waits] | None = None,
    aggregates: tuple[str, ...] = ("seqs",),
) -> Gathered:
    """Judges all logs, segment by segment; with `sources` by their splits.

    With `flush` the last segment is flushed; those of `flushed_after` are, and the pipeline is reopened after them.
    `waits` are those of sources by part, the same in all logs.
    """
    rules = TimeRules(time, sources, uses_splits=bool(sources), windows=windows, apart=("case",))
    let_in = np.array([event.seq for log in logs for event in log.events if event.is_let_in], np.int64)
    nothing: dict[str, Rows] = {window.name: defaultdict(list) for window in windows}
    out = Gathered(windows=nothing, hidden=deepcopy(nothing), aggregates=aggregates)

    def of_part(part: int | None) -> list[Event]:
        return [event for log in logs for event in segment(log, part)]

    start, events = State(), None
    if len(let_in):
        chosen = items(spark, logs).where(F.col("_arrival_seq").isin(let_in.tolist()))
        events = computed(admitted_events(chosen, rules))
        start = start.with_events(events, windows, apart=rules.apart).with_timelines_of(events, time)

    def step(part: int | None) -> tuple[Segment, TimeRules]:
        rows = items(spark, logs, part).localCheckpoint()
        rows = rows.withColumn("_timeline", F.expr(timeline(Columns.of(rows), time.over)))
        own = None if events is None else events.where(F.col("_arrival_seq").isin(*[e.seq for e in of_part(part)]))
        flushed = part in flushed_after or (flush and part == parts[-1])
        in_part = replace(rules, waits=(waits or {}).get(part, Waits()))
        # Where records are not kept, the refused ones are read by themselves, and what results ask is joined.
        execution = Execution(computed, computed, by_row) if keeps_records else Execution(computed)
        some = None if keeps_records else lambda seqs: rows.where(F.col("_arrival_seq").isin(seqs.tolist()))
        places = places_of(logs, part, time.emit_every_us or 1, flushed=flushed)
        return Segment(rows, places, execution, own, find_records=some), in_part

    def carry(outcome: Outcome) -> State:
        return outcome.state().materialized(computed)

    for outcome in advance_all(map(step, parts), start, carry):
        _gather(outcome, out)
    state = carry(outcome)
    assert state.held is not None
    for row in state.held.withColumn("ts", to_us("_timestamp")).collect():
        out.held[row["case"]].append((row["_arrival_seq"], row["ts"], tuple(row["_adjusted_by"])))
    out.watermarks = {row["_timeline"]: row["watermark"] for row in state.timelines.to_pylist()}
    return out


def _gather(outcome: Outcome, out: Gathered) -> None:
    _gather_released(outcome.released, out)
    _gather_letters(outcome, out)
    accepted = outcome.judged.all_accepted.count()
    admitted = 0 if outcome.judged.admitted is None else outcome.judged.admitted.count()
    out.tally["accepted"] = out.tally.get("accepted", 0) + accepted
    for name, count in counts_by_window(outcome, accepted, admitted).items():
        out.tally[name] = out.tally.get(name, 0) + count
    for window in outcome.windows:
        _gather_results(outcome.results(window).localCheckpoint(), window, out)


def _gather_released(released: Released, out: Gathered) -> None:
    for rows, in_sequence in ((released.sequence, True), (released.passed, False)):
        shown = rows.withColumn("ts", to_us("_timestamp")).orderBy("_timeline", "_timestamp", "_arrival_seq")
        for row in shown.collect():
            w = row["__tm_w_before"] if set(row["_adjusted_by"]) & {"out_of_order", "kept_out_of_order"} else None
            out.ordered[row["case"]].append(
                (row["_arrival_seq"], row["ts"], in_sequence, tuple(row["_adjusted_by"]), w)
            )


def _gather_letters(outcome: Outcome, out: Gathered) -> None:
    shown = outcome.dead_letters(PAYLOAD).withColumns(
        {
            "w": to_us("_watermark"),
            "event_us": to_us("_event_time"),
            "missed": F.expr(
                "transform(missed_windows, x -> struct(unix_micros(x.start) AS s, unix_micros(x.`end`) AS e))"
            ),
        }
    )
    for row in shown.collect():
        missed = tuple((span["s"], span["e"]) for span in row["missed"] or ())
        out.letters[str(row["_arrival_seq"])].append(
            (
                *(row[name] for name in ("_arrival_seq", "stage", "reason", "window_name")),
                missed,
                *(row[name] for name in ("event_us", "w", "lateness_us", "watermark_set_by")),
            )
        )


def _gather_results(results: DataFrame, window: WindowSpec, out: Gathered) -> None:
    shown = results.withColumns({"s": to_us("window_start"), "e": to_us("window_end"), "w": to_us("_watermark")})
    if window.top is not None:
        shown = shown.withColumn("event_us", to_us("_timestamp"))
    columns = window.group_columns
    for row in shown.collect():
        group = tuple(row[name] for name in columns)
        found = (row[name] for name in out.aggregates)
        values = [tuple(value) if isinstance(value, list) else value for value in found]
        into = out.windows if PASSES not in results.columns or row[PASSES] else out.hidden
        into[window.name][row["case"]].append(
            (row["s"], row["e"], group, *values, row["_revision"], row["_is_final"], row["w"])
        )


def assert_equal_to_oracle(
    logs: Sequence[Log],
    out: Gathered,
    time: TimeSpec,
    windows: tuple[WindowSpec, ...] = (),
    sources: tuple[SourceTime, ...] = (),
    *,
    flush: bool = False,
    flushed_after: Sequence[int] = (),
) -> None:
    """Compare each of the logs, row by row, and count that nothing is lost."""
    assert {window.name for window in windows} == out.windows.keys(), "each window that ran is compared"
    for log in logs:
        expected = judged_by_oracle(log, time, windows, sources=sources, flush=flush, flushed_after=flushed_after)
        _assert_equal(log, out, windows, expected, is_one_timeline=len(time.over) == 1)
    kept = sum(len(rows) for rows in (*out.ordered.values(), *out.held.values()))
    let_in = {row[0] for rows in out.ordered.values() for row in rows if "admitted" in row[3]}
    refused = sum(
        letter[1] != "window" and letter[0] not in let_in for letters in out.letters.values() for letter in letters
    )
    assert sum(len(log.events) for log in logs) == kept + refused
    for name in (window.name for window in windows if window.input is None):
        parts = ("in_windows", "in_gap", "filtered", "bad_expression", "window_closed")
        assert out.tally["accepted"] == sum(out.tally[f"{name}.{part}"] for part in parts)


def _assert_equal(
    log: Log, out: Gathered, windows: Sequence[WindowSpec], expected: oracle.Outcome, *, is_one_timeline: bool
) -> None:
    behind = {"out_of_order", "kept_out_of_order"}
    ordered = [
        (e.seq, e.timestamp_us, e.release_seq is not None, e.adjusted_by)
        + ((e.watermark_us,) if set(e.adjusted_by) & behind else (None,))
        for e in expected.ordered
    ]
    # Events kept out of order pass at once, so only those in the sequence have a place to compare.
    in_sequence = [[e for e in events if e[2]] for events in (out.ordered[log.case], ordered)]
    if not is_one_timeline:  # each of them has a sequence of its own
        in_sequence = [sorted(events) for events in in_sequence]
    assert in_sequence[0] == in_sequence[1], log
    assert sorted(e for e in out.ordered[log.case] if not e[2]) == sorted(e for e in ordered if not e[2]), log
    held = sorted((e.seq, e.timestamp_us, e.adjusted_by) for e in expected.held)
    assert sorted(out.held[log.case]) == held, log
    letters = (letter for event in log.events for letter in out.letters.get(str(event.seq), ()))
    assert sorted(letters, key=str) == sorted(map(astuple, expected.dead_letters), key=str), log
    for window in windows:
        want = sorted(
            (r.window_start, r.window_end, r.group, r.events, r.revision, r.is_final, r.watermark_us)
            for r in expected.windows[window.name]
        )
        if window.revises and any(event.is_let_in for event in log.events):
            # Between two results they are in one from their own time on; only what is final does not depend on it.
            final = sorted((*r[:4], r[6]) for r in out.windows[window.name][log.case] if r[5])
            assert final == sorted((*r[:4], r[6]) for r in want if r[5]), (log, window)
            continue
        # Sorted by what is never null: a flush leaves the watermark so.
        assert sorted(out.windows[window.name][log.case], key=lambda r: r[:6]) == want, (log, window)
        # What a result holds that is not shown does not count.
        hidden = [
            (r.window_start, r.window_end, r.group, r.revision, r.is_final, r.watermark_us)
            for r in expected.hidden[window.name]
            if window.revises
        ]
        taken = [(*r[:3], *r[4:]) for r in out.hidden[window.name][log.case]]
        assert sorted(taken, key=lambda r: r[:5]) == sorted(hidden, key=lambda r: r[:5]), (log, window)


def window(**keys: Any) -> WindowSpec:
    aggregates = {"seqs": "array_sort(collect_set(_arrival_seq))"}
    return WindowSpec(**({"name": "w", "group_by": ("case",), "aggregates": aggregates} | keys))


ON_TIME = window(
    name="on_time", kind="tumbling", size="10 us", allowed_lateness="25 us", emit="on_time", revise_every="10 us"
)
EARLY = window(name="early", kind="hopping", size="30 us", hop="10 us", emit={"early": "10 us"})
SLIDING = window(name="sliding", kind="sliding", size="10 us", emit={"early": "3 us"}, group_by=("case", "v"))
SESSION = window(name="session", kind="session", gap="7 us", group_by=("case", "v"), where="v > 1")
EMPTY = window(name="empty", kind="tumbling", size="10 us", empty=True, group_by=("case", "v"), empty_max=100_000)
CLOSED_RIGHT = window(name="right", kind="cumulative", size="20 us", step="10 us", offset="7 us", closed="right")

IDLE_SPLITS = {"advance": "exclude_split", "timeout": "6 us"}
SILENCE = {"advance": "window_close", "timeout": "6 us"}


def some_of(windows: Sequence[WindowSpec], dice: Dice, turn: int) -> tuple[WindowSpec, ...]:
    """One of the windows of a mode, as each of them takes long; the fixed dice take all."""
    return tuple(windows) if dice.is_fixed else (dice.turn(windows, turn),)
