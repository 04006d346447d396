"""Audit of joins: all final rows recomputed from the tables of events, in stretches of time.

Here: each join, stretch by stretch. Not here: which stretches (assets/audit/stretches.py), who is whose partner
(assets/recount/joins.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.audit.bookmark import Bookmarks
from tidemark.assets.audit.findings import Finding, wrong_rows
from tidemark.assets.audit.stretches import EVENTS, by_hour, stretches, whole_from
from tidemark.assets.log.control import last_reopened_flush
from tidemark.assets.recount.joins import NOBODY, ROW, TIME_US, JoinStretch, recomputed_rows, written_rows
from tidemark.assets.recount.table_joins import wrong_answers
from tidemark.resources import tables
from tidemark.resources.memory import release_memory
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.utc import Instant


def audit_joins(
    workspace: Workspace, bookmarks: Bookmarks, readable: Callable[[str], bool], note: Callable[[str], None]
) -> Iterator[Finding]:
    """Recompute the final rows of each join; arguments as of `audit_verdicts`."""
    spec = workspace.spec
    if spec.joins and not spec.outputs.ordered_events:
        note("rows of joins were not recomputed: `outputs.ordered_events` is off, so their events are not stored")
        return
    of_events = Counter[int]()  # counted once, when a join asks for it
    for join in spec.joins:
        names = [tables.join_table(join.name), tables.joining_table(join.name), tables.RAW_EVENTS, *EVENTS]
        names += [tables.right_rows_table(join.name)] if join.has_table else []
        if not all(map(readable, names)):
            note(f"rows of {join.name} were not recomputed: a table that this takes cannot be read")
        elif join.right.takes_all_columns and join.right.ddl is None:
            note(f"rows of {join.name} were not recomputed: its right side has no `schema`, and the spec has changed")
        else:
            of_events = of_events or by_hour(workspace, EVENTS, c.TIMESTAMP)
            hours = of_events + by_hour(workspace, [tables.join_table(join.name)], c.TIMESTAMP)
            yield from _audit_join(workspace, bookmarks, join, hours, _whole_from(workspace, join, note))


def _whole_from(workspace: Workspace, join: JoinSpec, note: Callable[[str], None]) -> int:
    """Return the time, microseconds, from which the events that rows come from are there, and say why it is so."""
    first_us, flush = c.MIN_US, last_reopened_flush(workspace)
    gone_us = whole_from(workspace, [tables.join_table(join.name), tables.RAW_EVENTS, *EVENTS])
    if gone_us is not None:
        first_us = gone_us + join.reach_us
        rows = f"rows of {join.name} before {Instant(first_us)}"
        note(f"{rows} were not recomputed: `retention` has removed rows of it, or of what it takes")
    if flush is not None:
        # The tables of events do not show what came after a flush had closed the events of a log that was reopened.
        reached_us = workspace.progress.position_after(flush).reached_us
        first_us = first_us if reached_us is None else max(first_us, reached_us + join.reach_us + 1)
    return first_us


def _audit_join(
    workspace: Workspace, bookmarks: Bookmarks, join: JoinSpec, hours: Counter[int], whole_from_us: int
) -> Iterator[Finding]:
    table, bookmark = tables.join_table(join.name), bookmarks.bookmark
    final_before_us = _final_before_us(workspace, join)
    since_us = max(bookmark.windows.get(join.name, c.MIN_US), whole_from_us)
    parts = [
        JoinStretch(max(first_us, since_us), end_us) for first_us, end_us in stretches(hours) if end_us > since_us
    ]
    wrong = dict[str, tuple[int, str]]()
    for number, stretch in enumerate(parts, start=1):
        workspace.tell(f"recomputing the rows of {join.name}, part {number} of {len(parts)}")
        for fault, rows in _differences(workspace, join, stretch).items():
            n, first = wrong.get(fault, (0, _first_in_words(rows)))
            wrong[fault] = n + len(rows), first
        until = {**bookmarks.bookmark.windows, join.name: min(stretch.end_us, final_before_us)}
        bookmarks.note(windows=until, findings=(*bookmark.findings, *_findings(workspace, table, wrong)))
        release_memory()
    yield from _findings(workspace, table, wrong)


def _final_before_us(workspace: Workspace, join: JoinSpec) -> int:
    """Return a time before which all rows are final: later ones may be so when a stopped audit continues."""
    position = workspace.progress.position()
    if position.final or position.watermark_us is None:
        return c.MAX_US if position.final else c.MIN_US
    return position.watermark_us - join.closes_after_us - join.useful_for_us


def _differences(workspace: Workspace, join: JoinSpec, stretch: JoinStretch) -> dict[str, pa.Table]:
    """Return the rows of a stretch that are not as they follow from the events, by what is wrong with them."""
    if join.has_table:
        differences = wrong_answers(workspace, join, stretch)
        return {fault: rows for fault, rows in differences.items() if len(rows)}
    written, again = written_rows(workspace, join, stretch), recomputed_rows(workspace, join, stretch)
    times = written.group_by(ROW).aggregate([([], "count_all")])
    differences = {
        "there more than once": times.filter(pc.greater(times["count_all"], 1)),
        "lacking": again.join(written, [*ROW, TIME_US], join_type="left anti"),
        "too many": written.join(again, [*ROW, TIME_US], join_type="left anti"),
    }
    return {fault: rows for fault, rows in differences.items() if len(rows)}


def _findings(workspace: Workspace, table: str, wrong: Mapping[str, tuple[int, str]]) -> Iterator[Finding]:
    for fault, (n, first) in wrong.items():
        yield wrong_rows(workspace, table, f"{plural(n, 'final row is', 'final rows are')} {fault}, such as {first}")


def _first_in_words(rows: pa.Table) -> str:
    """Return the first of some rows in words."""
    first = rows.sort_by([(name, "ascending") for name in ROW]).slice(0, 1).to_pylist()[0]
    return " with ".join("no event" if first[name] == NOBODY else f"event {first[name]:,}" for name in ROW)
