"""Runs the pure stages over generated logs, whole or in segments, and gathers what comes out per case.

The way a pipeline goes on from batch to batch, without a lake: state, held and open events are handed on.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.properties.logs import Log, clocks_after, ended_clocks, first_clocks, items, ticks_of
from tidemark.resources.spark.frames import count_splits, small_frame
from tidemark.timeops.columns import to_us
from tidemark.timeops.counts import accepted_tally
from tidemark.timeops.dead_letters import time_letters, window_letters
from tidemark.timeops.events.adjustment import Adjusted, JudgedRows, adjusted_from, time_adjustment
from tidemark.timeops.events.duplicates import first_times
from tidemark.timeops.events.extraction import timeline
from tidemark.timeops.events.release import release
from tidemark.timeops.rules import SourceTime, TimeRules, Waits
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.spec.window import input_of, inputs_first
from tidemark.timeops.watermark.timelines import STATE_SCHEMA, LogClock
from tidemark.timeops.watermark.watermarks import Way
from tidemark.timeops.windows.changes import PASSES
from tidemark.timeops.windows.drained import staying_closed
from tidemark.timeops.windows.over_results import as_events, results_still_needed, with_results
from tidemark.timeops.windows.results import (
    all_events,
    events_as_they_came,
    in_open_windows,
    late_for_windows,
    passing,
    still_needed,
    window_results,
)
from tidemark.timeops.windows.seen_groups import once, seen_groups

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


@dataclass(frozen=True)
class Carried:
    """What one segment hands to the next; None before the first."""

    state: DataFrame
    held: DataFrame | None = None
    open_events: DataFrame | None = None
    session_events: DataFrame | None = None
    revised_session_events: DataFrame | None = None
    first_times: DataFrame | None = None
    seen: Mapping[str, DataFrame] = field(default_factory=dict)
    stay_closed: Mapping[str, DataFrame] = field(default_factory=dict)
    open_results: Mapping[str, DataFrame] = field(default_factory=dict)

    def of_window(self, window: WindowSpec, nothing: DataFrame) -> DataFrame:
        """The events that a window goes on from."""
        if window.may_take_back:
            return self.revised_session_events or nothing
        if window.is_linked and not window.revises:
            return self.session_events or nothing
        return self.open_events or nothing


def run(
    spark: SparkSession,
    logs: Sequence[Log],
    time: TimeSpec,
    windows: tuple[WindowSpec, ...] = (),
    *,
    sources: tuple[SourceTime, ...] = (),
    parts: Sequence[int | None] = (None,),
    way: Way = "by_blocks",
    flush: bool = False,
    flushed_after: Sequence[int] = (),
    waits: Mapping[int | None, Waits] | None = None,
    aggregates: tuple[str, ...] = ("seqs",),
) -> Gathered:
    """Judges all logs, segment by segment; with `sources` by their splits.

    With `flush` the last segment is flushed; those of `flushed_after` are, and the pipeline is reopened behind them.
    `waits` are those of sources by part, the same in all logs.
    """
    rules = TimeRules(time, sources, uses_splits=bool(sources), windows=windows)
    nothing: dict[str, Rows] = {window.name: defaultdict(list) for window in windows}
    out = Gathered(windows=nothing, hidden=deepcopy(nothing), aggregates=aggregates)
    carried = Carried(small_frame(spark, [], STATE_SCHEMA))
    before = LogClock(F.lit(None).cast("bigint"))
    for part in parts:
        flushed = part in flushed_after or (flush and part == parts[-1])
        rows = items(spark, logs, part).localCheckpoint()
        clock = LogClock(
            clocks_after(logs, part),
            first_clocks(logs),
            log=F.col("_timeline"),
            ended=ended_clocks(logs, part, time.emit_every_us or 1),
            start=before.after,
            start_ended=before.ended,
            ticks=ticks_of(spark, logs, part),
        )
        before = clock
        in_part = replace(rules, waits=(waits or {}).get(part, Waits()))
        carried = _segment(rows, clock, in_part, carried, out, way=way, flushed=flushed)
    assert carried.held is not None
    for row in carried.held.withColumn("ts", to_us("_timestamp")).collect():
        out.held[row["case"]].append((row["_arrival_seq"], row["ts"], tuple(row["_adjusted_by"])))
    out.watermarks = {row["_timeline"]: row["watermark"] for row in carried.state.collect()}
    return out


def _segment(
    rows: DataFrame,
    clock: LogClock,
    rules: TimeRules,
    carried: Carried,
    out: Gathered,
    *,
    way: Way,
    flushed: bool,
) -> Carried:
    before = F.broadcast(carried.state)
    rows = rows.withColumn("_timeline", timeline(rows, rules.time.over))
    splits = count_splits(rows, before, rules)
    lazy = time_adjustment(
        rows,
        before,
        rules,
        clock,
        splits=splits,
        first_times=carried.first_times,
        way=way,
        keep=lambda frame: frame.localCheckpoint(),
    )
    accepted, refused, moves = (frame.localCheckpoint() for frame in (lazy.accepted, lazy.refused, lazy.moves))
    adjusted = adjusted_from(JudgedRows(accepted, refused, moves), rows, before, rules, clock)
    adjusted = replace(adjusted, state=F.broadcast(adjusted.state.localCheckpoint()))
    times = _first_times(carried.first_times, adjusted) if rules.time.deduplicate_by else None
    nothing = adjusted.accepted.limit(0)
    held = _release(carried.held or nothing, adjusted, out, flushed=flushed)
    in_sessions, on_grids = carried.session_events or nothing, carried.open_events or nothing
    time, windows, closed = rules.time, rules.windows, carried.stay_closed
    of_events = tuple(window for window in windows if window.input is None)
    # Under drop and adjust no accepted event is ever late for a window: it would be missing in the results.
    late_for = [w for w in of_events if time.out_of_order == "keep" or w.name in closed]
    late = {
        w.name: late_for_windows(adjusted, carried.of_window(w, nothing), w, closed.get(w.name)).localCheckpoint()
        for w in late_for
    }
    _letters(adjusted, late, out)
    late_for_sessions = {w.name: late[w.name] for w in late_for if w.kind == "session"}
    counted = (
        accepted_tally(adjusted.accepted, of_events, late_for_sessions, stay_closed=closed).collect()[0].asDict()
    )
    for name, count in counted.items():
        out.tally[name] = out.tally.get(name, 0) + count
    if not rules.windows:
        return Carried(adjusted.state, held, first_times=times)
    given: dict[str, DataFrame] = {}
    open_results: dict[str, DataFrame] = {}
    for window in inputs_first(windows):
        segment, known = adjusted, carried.of_window(window, nothing)
        if window.input is not None:
            source = input_of(window, windows)
            segment = with_results(adjusted, as_events(given[source.name], source, windows, time.over))
            known = carried.open_results.get(window.name, segment.accepted.limit(0))
            both = known.unionByName(segment.accepted)
            needed = results_still_needed(both.limit(0) if flushed else both, adjusted.state, window, time)
            open_results[window.name] = needed.localCheckpoint()
        results = window_results(
            segment,
            known,
            window,
            seen=carried.seen.get(window.name),
            stay_closed=closed.get(window.name),
            flushed=flushed,
            keep=lambda frame: frame.localCheckpoint(),
        )
        results = results.localCheckpoint()
        given[window.name] = passing(results)
        _gather_results(results, window, out)
    sessions = tuple(window for window in of_events if window.is_linked and not window.revises)
    revised = tuple(window for window in of_events if window.may_take_back)
    grids = tuple(window for window in of_events if window not in (*sessions, *revised))
    if flushed:  # events of what a flush closed are needed no more, but where later ones make windows that hold them
        some = (sessions, revised, grids)
        sessions, revised, grids = (tuple(w for w in each if w.kind == "sliding") for each in some)
    needed = still_needed(events_as_they_came(adjusted, on_grids), adjusted.state, grids)
    open_now = in_open_windows(all_events(adjusted, in_sessions), adjusted.state, sessions, time, closed)
    kept = [frame.localCheckpoint() for frame in (needed, open_now)]
    if revised:
        came = events_as_they_came(adjusted, carried.revised_session_events or nothing)
        kept.append(in_open_windows(came, adjusted.state, revised, time, closed).localCheckpoint())
    seen = {window.name: _seen(carried, adjusted, window) for window in windows if window.empty}
    after = {
        w.name: frame for w in of_events if (frame := _stay_closed(carried, adjusted, w, flushed=flushed)) is not None
    }
    return Carried(
        adjusted.state, held, kept[0], kept[1], kept[2] if revised else None, times, seen, after, open_results
    )


def _stay_closed(carried: Carried, adjusted: Adjusted, window: WindowSpec, *, flushed: bool) -> DataFrame | None:
    known = carried.of_window(window, adjusted.accepted.limit(0))
    before, seen = carried.stay_closed.get(window.name), carried.seen.get(window.name)
    found = staying_closed(adjusted, known, window, before, flushed=flushed, seen=seen)
    return None if found is None else found.localCheckpoint()


def _seen(carried: Carried, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    fresh = seen_groups(adjusted.accepted, window)
    before = carried.seen.get(window.name)
    return (fresh if before is None else once(before.unionByName(fresh), window)).localCheckpoint()


def _first_times(known: DataFrame | None, adjusted: Adjusted) -> DataFrame:
    fresh = first_times(adjusted.accepted, adjusted.refused)
    return (fresh if known is None else known.unionByName(fresh)).localCheckpoint()


def _release(held: DataFrame, adjusted: Adjusted, out: Gathered, *, flushed: bool) -> DataFrame:
    everything = held.unionByName(adjusted.accepted, allowMissingColumns=True)
    released = release(everything, adjusted.state, flushed=flushed)
    for rows, in_sequence in ((released.sequence, True), (released.passed, False)):
        shown = rows.withColumn("ts", to_us("_timestamp")).orderBy("_timeline", "_timestamp", "_arrival_seq")
        for row in shown.collect():
            w = row["__w_before"] if set(row["_adjusted_by"]) & {"out_of_order", "kept_out_of_order"} else None
            out.ordered[row["case"]].append(
                (row["_arrival_seq"], row["ts"], in_sequence, tuple(row["_adjusted_by"]), w)
            )
    return released.held.localCheckpoint()


def _letters(adjusted: Adjusted, late: Mapping[str, DataFrame], out: Gathered) -> None:
    frames = [time_letters(adjusted.refused, PAYLOAD, adjusted.rules)]
    frames += [window_letters(late[w.name], PAYLOAD, w) for w in adjusted.rules.windows if w.name in late]
    shown = reduce(DataFrame.unionByName, frames).withColumns(
        {
            "w": to_us("_watermark"),
            "event_us": to_us("_event_time"),
            "missed": F.transform(
                "missed_windows",
                lambda span: F.struct(to_us(span["start"]).alias("s"), to_us(span["end"]).alias("e")),
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
    for row in shown.collect():
        group = tuple(row[name] for name in window.group_columns)
        found = (row[name] for name in out.aggregates)
        values = [tuple(value) if isinstance(value, list) else value for value in found]
        into = out.windows if PASSES not in results.columns or row[PASSES] else out.hidden
        into[window.name][row["case"]].append(
            (row["s"], row["e"], group, *values, row["_revision"], row["_is_final"], row["w"])
        )
