"""The results of a window from a part of the log, piece by piece between its ticks, waits and flushes.

Here: the pieces, and what one hands to the next. Not here: writing results (days.py), a part without any of
these, which is judged as a whole.

What is judged is cut at ticks, where other sources begin to wait, and at flushes that more input followed. Each costs
a piece, as it has cost a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame

from tidemark.assets.backfill.log_range import LogRange, records_of
from tidemark.assets.batch.batch import records_between
from tidemark.assets.batch.clocks import clock_around, clocks_behind
from tidemark.assets.batch.control_items import END_OF_INPUT, TICK, WAIT
from tidemark.assets.batch.pauses import sources_of
from tidemark.assets.batch.planning import LogSegment
from tidemark.assets.state.checkpoints import first_times_at, state_at, waits_at
from tidemark.assets.state.timelines import kept_to_join
from tidemark.resources.spark.frames import count_splits
from tidemark.resources.workspace import Workspace
from tidemark.timeops.engine import State, advance
from tidemark.timeops.materialize import computed
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window import input_of
from tidemark.timeops.utc import us_of
from tidemark.timeops.windows.gap_filling import Span
from tidemark.timeops.windows.results import last_revisions, passing


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
    chain = tuple(_chain(window, workspace.spec.windows))
    pieces = _pieces(part, cuts, waits.sources)
    times = None
    if workspace.spec.time.deduplicate_by:
        times = first_times_at(workspace, begin, records_of(workspace, part))
    state, position = State(state_at(workspace, begin), first_times=times), begin.position
    found = []
    for number, piece in enumerate(pieces):
        workspace.tell(f"piece {number + 1} of {len(pieces)}, between ticks, waits and flushes")
        waits = waits.from_here(position.clock_us, piece.waits)
        rules = replace(TimeRules.of(workspace.spec), waits=waits)
        items = records_between(workspace, piece.first_seq, piece.end_seq)
        behind = clocks_behind(workspace, piece, items, position, rules)
        outcome = advance(
            items,
            state,
            rules,
            clock_around(workspace, piece, position, behind),
            flush=piece.flushes,
            splits=count_splits(items, state.timelines, rules),
            materialize=computed,
        )
        outcome = outcome.with_timelines(kept_to_join(outcome.timelines))
        found.append(computed(outcome.results(window, only=only)))
        state, position = outcome.state(chain).materialized(computed), behind
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


def _chain(window: WindowSpec, windows: tuple[WindowSpec, ...]) -> Iterator[WindowSpec]:
    """A window behind those that it goes over."""
    if window.input is not None:
        yield from _chain(input_of(window, windows), windows)
    yield window
