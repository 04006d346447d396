"""The results of a window from a part of the log, piece by piece between its ticks, waits and flushes.

Here: the pieces, and what one hands to the next. Not here: writing results (days.py), a part without any of
these, which is judged as a whole.

What is judged is cut at ticks, where other sources begin to wait, and at flushes that more input followed. Each costs
a piece, as it has cost a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from tidemark.assets.backfill.log_range import LogRange, records_of
from tidemark.assets.batch.batch import LogSegment
from tidemark.assets.batch.clocks import clock_around, clocks_behind
from tidemark.assets.batch.control_items import END_OF_INPUT, TICK, WAIT
from tidemark.assets.batch.pauses import sources_of
from tidemark.assets.batch.segment import records_between
from tidemark.assets.state.checkpoints import first_times_at, state_at, waits_at
from tidemark.assets.state.timelines import kept_to_join
from tidemark.resources.spark.frames import count_splits, empty_frame
from tidemark.resources.workspace import Position, Workspace
from tidemark.timeops.events.adjustment import Adjusted, kept_together, time_adjustment
from tidemark.timeops.events.duplicates import FIRST_TIMES_SCHEMA, first_times
from tidemark.timeops.materialize import computed
from tidemark.timeops.rules import TimeRules, Waits
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window import input_of
from tidemark.timeops.utc import us_of
from tidemark.timeops.windows.drained import staying_closed
from tidemark.timeops.windows.gap_filling import Span
from tidemark.timeops.windows.over_results import as_events, results_still_needed, with_results
from tidemark.timeops.windows.results import (
    all_events,
    events_as_they_came,
    in_open_windows,
    last_revisions,
    passing,
    still_needed,
    window_results,
)
from tidemark.timeops.windows.seen_groups import once, seen_groups


@dataclass(frozen=True)
class _Carried:
    """What a piece hands to the next: the timelines, and by window what is open, seen and closed by flushes.

    `waits` are those of the sources while it was read.
    """

    position: Position
    state: DataFrame
    first_times: DataFrame
    open_events: Mapping[str, DataFrame] = field(default_factory=dict)
    seen: Mapping[str, DataFrame] = field(default_factory=dict)
    stay_closed: Mapping[str, DataFrame] = field(default_factory=dict)
    waits: Waits = field(default_factory=Waits)


def results_by_pieces(
    workspace: Workspace, window: WindowSpec, part: LogRange, cuts: Sequence[Mapping[str, Any]], only: Span
) -> DataFrame:
    """The last revisions of a window that a part of the log gives, from the state before it.

    Args:
        workspace: The pipeline.
        window: The window.
        part: The part; no window that is asked for has an event before it.
        cuts: What `log_range.cuts_of` gives for it.
        only: Of windows with no event, those that are asked for.
    """
    begin, waits = part.begin, waits_at(workspace, part.begin)
    pieces = _pieces(part, cuts, waits.sources)
    times = empty_frame(workspace.spark, FIRST_TIMES_SCHEMA)
    if workspace.spec.time.deduplicate_by:
        times = first_times_at(workspace, begin, records_of(workspace, part))
    carried = _Carried(begin.position, state_at(workspace, begin), times, waits=waits)
    found = []
    for number, piece in enumerate(pieces):
        workspace.tell(f"piece {number + 1} of {len(pieces)}, between ticks, waits and flushes")
        results, carried = _fold(workspace, window, piece, carried, only)
        found.append(results)
    return passing(last_revisions(reduce(DataFrame.unionByName, found), window))


def _pieces(part: LogRange, cuts: Sequence[Mapping[str, Any]], waits: frozenset[str]) -> list[LogSegment]:
    """A part of the log, cut at items of it; flushed at its end if it was. In front of it some sources may wait."""
    pieces, first = [], part.first_seq
    for item in cuts:
        end, kind = int(item["_after_seq"]) + 1, item["kind"]
        tick_us = us_of(item["clock"]) if kind == TICK else None
        piece = LogSegment(first, end, flushes=kind == END_OF_INPUT, tick_us=tick_us, waits=waits)
        if not piece.is_empty:
            pieces.append(piece)
        first, waits = end, sources_of(item) if kind == WAIT else waits
    last = LogSegment(first, part.end_seq, flushes=part.end.position.final, waits=waits)
    return pieces if last.is_empty else [*pieces, last]


def _fold(
    workspace: Workspace, window: WindowSpec, piece: LogSegment, before: _Carried, only: Span
) -> tuple[DataFrame, _Carried]:
    """The results that a window gives in a piece, and what is carried on."""
    adjusted, position = _judged(workspace, piece, before)
    open_events: dict[str, DataFrame] = {}
    seen: dict[str, DataFrame] = {}
    closed: dict[str, DataFrame] = {}
    segment, results = adjusted, adjusted.accepted
    for one in _chain(window, workspace.spec.windows):
        if one.input is not None:
            source = input_of(one, workspace.spec.windows)
            segment = with_results(
                adjusted, as_events(passing(results), source, workspace.spec.windows, workspace.spec.time.over)
            )
        known = before.open_events.get(one.name, segment.accepted.limit(0))
        results = window_results(
            segment,
            known,
            one,
            seen=before.seen.get(one.name),
            only=only if one.name == window.name else None,
            stay_closed=before.stay_closed.get(one.name),
            flushed=piece.flushes,
            keep=computed,
        ).localCheckpoint()
        needed = _open_after(segment, known, one, before.stay_closed)
        if piece.flushes and one.kind != "sliding":  # at later instants of these the events still count
            needed = needed.limit(0)
        open_events[one.name] = needed.localCheckpoint()
        staying = staying_closed(
            segment,
            known,
            one,
            before.stay_closed.get(one.name),
            flushed=piece.flushes,
            seen=before.seen.get(one.name),
        )
        if staying is not None:
            closed[one.name] = staying.localCheckpoint()
        if one.empty:
            fresh = seen_groups(segment.accepted, one)
            earlier = before.seen.get(one.name)
            both = fresh if earlier is None else once(earlier.unionByName(fresh), one)
            seen[one.name] = both.localCheckpoint()
    times = before.first_times
    if workspace.spec.time.deduplicate_by:
        times = times.unionByName(first_times(adjusted.accepted, adjusted.refused)).localCheckpoint()
    waits = _waits_in(piece, before)
    return results, _Carried(position, adjusted.state, times, open_events, seen, closed, waits)


def _waits_in(piece: LogSegment, before: _Carried) -> Waits:
    return before.waits.from_here(before.position.clock_us, piece.waits)


def _judged(workspace: Workspace, piece: LogSegment, before: _Carried) -> tuple[Adjusted, Position]:
    """A piece, judged, with the position behind it."""
    rules = replace(TimeRules.of(workspace.spec), waits=_waits_in(piece, before))
    items = records_between(workspace, piece.first_seq, piece.end_seq)
    position = clocks_behind(workspace, piece, items, before.position, rules)
    lazy = time_adjustment(
        items,
        before.state,
        rules,
        clock_around(workspace, piece, before.position, position),
        splits=count_splits(items, before.state, rules),
        first_times=before.first_times,
        keep=computed,
    )
    adjusted = kept_together(lazy, computed)
    return replace(adjusted, state=kept_to_join(adjusted.state)), position


def _open_after(
    segment: Adjusted, known: DataFrame, window: WindowSpec, stay_closed: Mapping[str, DataFrame]
) -> DataFrame:
    """The events that a window still needs behind a piece."""
    if window.input is not None:
        both = known.unionByName(segment.accepted)
        return results_still_needed(both, segment.state, window, segment.rules.time)
    if window.may_take_back:
        return in_open_windows(events_as_they_came(segment, known), segment.state, (window,), segment.rules.time)
    if window.is_linked and not window.revises:
        return in_open_windows(all_events(segment, known), segment.state, (window,), segment.rules.time, stay_closed)
    both = known.unionByName(segment.accepted, allowMissingColumns=True)
    return still_needed(both, segment.state, (window,))


def _chain(window: WindowSpec, windows: tuple[WindowSpec, ...]) -> Iterator[WindowSpec]:
    """A window behind those that it goes over."""
    if window.input is not None:
        yield from _chain(input_of(window, windows), windows)
    yield window
