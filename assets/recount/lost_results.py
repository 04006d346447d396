"""Accepted events that no final result holds though no window needs them any longer: a result of theirs is lost.

Here: windows whose starts and ends do not follow from the spec alone, such as sessions. Not here: values of results,
and windows on a plain grid, whose lost results are found by their place on it (assets/recount/windows.py).
"""

from tidemark.assets.log.retention import gone_of
from tidemark.assets.recount.windows import (
    WINDOW_END,
    WINDOW_START,
    WindowStretch,
    closes_by_arithmetic,
    flushed_up_to,
    grouped_events,
)
from tidemark.assets.state.windows import needed_rows
from tidemark.resources import tables
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.utc import Instant

_MOST_NAMED = 1_000
_FIRST, _SECOND, _THIRD = range(3)


def shows_lost_results(workspace: Workspace, window: WindowSpec) -> bool:
    """Return whether each event of a window must be in a result, and the tables have all that says so."""
    has_gaps = window.kind == "hopping" and window.start_step_us > window.size_us
    is_asked = window.input is None and window.having is None and not has_gaps
    takes = {tables.window_table(window.name), tables.ORDERED_EVENTS, tables.HELD_EVENTS, tables.DEAD_LETTERS}
    return is_asked and not closes_by_arithmetic(workspace, window) and not takes.intersection(gone_of(workspace))


def events_without_result(workspace: Workspace, window: WindowSpec, part: WindowStretch) -> list[int]:
    """Return the numbers of events of a stretch that are in no final result of a window, at most a thousand.

    Left out are the ones that the window has refused, or still needs. In one pass over results and events of a group
    in the order of time, the latest end so far says whether a result holds an event. A sliding window has a result
    that ends with each event.

    Args:
        workspace: The pipeline.
        window: One of its windows, see `shows_lost_results`.
        part: The times of the events.
    """
    times: Filters = [(c.TIMESTAMP, ">=", Instant(part.first_us)), (c.TIMESTAMP, "<", Instant(part.end_us))]
    events = grouped_events(workspace, window, times, workspace.base_of)
    refused = workspace.read_base(tables.DEAD_LETTERS).where(f"window_name = {literal(window.name)}")
    for seqs in (refused.where(f"{c.SEQ} IS NOT NULL"), needed_rows(workspace, tables.needed_table(window))):
        events = events.join(seqs.select(c.SEQ), c.SEQ, "left_anti")
    if window.kind == "sliding":
        events = events.where("__tm_met IS NULL")  # a late one may have missed the window that ends with it
    if (flushed_us := flushed_up_to(workspace, window)) is not None:  # no table says which events the flush kept out
        events = events.where(f"unix_micros(__tm_at) > {flushed_us}")
    near: Filters = [(WINDOW_END, ">=", Instant(part.first_us)), (WINDOW_START, "<=", Instant(part.end_us))]
    results = workspace.read_base(tables.window_table(window.name), filters=near).where("_is_final")
    groups = [quoted(f"__tm_of_{name}") for name in window.group_columns]
    of_results = [f"{quoted(name)} AS {group}" for name, group in zip(window.group_columns, groups, strict=True)]
    begin = WINDOW_END if window.kind == "sliding" else WINDOW_START
    # At one instant a window begins before its events if its begin is inside, else after them.
    place = _FIRST if window.begins_inside or window.kind == "sliding" else _THIRD
    both = events.selectExpr(
        c.SEQ, "__tm_at", f"{_SECOND} AS place", f"CAST(NULL AS TIMESTAMP) AS {WINDOW_END}", *groups
    )
    both = both.unionByName(
        results.selectExpr(
            f"CAST(NULL AS BIGINT) AS {c.SEQ}", f"{begin} AS __tm_at", f"{place} AS place", WINDOW_END, *of_results
        )
    )
    same = f"PARTITION BY {', '.join(groups)}" if groups else ""
    latest_end = f"max({WINDOW_END}) OVER ({same} ORDER BY __tm_at, place ROWS UNBOUNDED PRECEDING)"
    holds = f"latest_end {'>=' if window.ends_inside else '>'} __tm_at"
    lost = both.selectExpr("*", f"{latest_end} AS latest_end").where(
        f"{c.SEQ} IS NOT NULL AND NOT coalesce({holds}, false)"
    )
    return sorted(row[c.SEQ] for row in lost.select(c.SEQ).limit(_MOST_NAMED).collect())
