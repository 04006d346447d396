"""Upkeep of a pipeline: few files, none that nobody needs, no old pages; beside a running pipeline.

Here: which tables, by what they are read, what has to stay. Not here: a table (resources/lake/upkeep.py), old runs of
Dagster (old_runs.py).
"""

from dataclasses import dataclass
from datetime import timedelta

from tidemark.resources import tables
from tidemark.resources.lake.undoing import same_rows
from tidemark.resources.lake.upkeep import Size, compact, size_of, vacuum
from tidemark.resources.quality.data_docs import forget_pages
from tidemark.resources.workspace import Workspace
from tidemark.timeops.columns import TIMESTAMP
from tidemark.timeops.errors import SpecError

RETAIN = timedelta(days=7)
LEAST = timedelta(hours=1)
"""What a run or a reader has opened must stay until it is done."""

_BY_TIME = (
    tables.HELD_EVENTS,
    tables.OPEN_EVENTS,
    tables.SESSION_EVENTS,
    tables.REVISED_EVENTS,
    tables.REVISED_SESSION_EVENTS,
)


@dataclass(frozen=True)
class Kept:
    """What the upkeep of a table did.

    Attributes:
        table: The table.
        before: Its size.
        after: Its size now.
        freed: Bytes of the files that were deleted.
    """

    table: str
    before: Size
    after: Size
    freed: int


@dataclass(frozen=True)
class Upkeep:
    """What the upkeep of a pipeline did.

    Attributes:
        tables: Of each table.
        pages: How many pages of checks were deleted.
    """

    tables: tuple[Kept, ...]
    pages: int


def keep_up(workspace: Workspace, retain: timedelta = RETAIN) -> Upkeep:
    """Joins small files, deletes those that nobody needs, and pages of checks that are old.

    What stays readable: the last commit, every commit that is younger than `retain`, and the state from which
    backfills begin.

    Args:
        workspace: The pipeline.
        retain: For how long versions of tables, and pages, stay.

    Raises:
        SpecError: `retain` is too short.
    """
    if retain < LEAST:
        raise SpecError(
            f"{workspace.spec.name}: {retain} is too short: a run or a reader would lose files that it has opened",
            expected="an hour or more",
            remedy="wait, or give 1 hour",
        )
    if not workspace.exists:
        return Upkeep((), 0)
    now = workspace.clock.now()
    there = [table for table in (*workspace.tables, tables.BATCHES) if workspace.lake.exists(table)]
    return Upkeep(
        tuple(_keep_up(workspace, table, retain) for table in there), forget_pages(workspace.folder, now - retain)
    )


def _keep_up(workspace: Workspace, table: str, retain: timedelta) -> Kept:
    workspace.tell(f"looking after {table}")
    lake, freed = workspace.lake, 0
    before = size_of(lake, table)
    if table != tables.BATCHES:  # every look opens it, so the runs compact it themselves
        compact(lake, table, read_by(workspace, table))
    if table != tables.TIMELINES:  # backfills begin with any version of it that a commit names
        committed = 0 if table == tables.BATCHES else workspace.batches.base_versions([table])[table]
        kept = same_rows(lake, table, committed) if committed else []
        freed = vacuum(lake, table, retain, kept)
    return Kept(table, before, size_of(lake, table), freed)


def read_by(workspace: Workspace, table: str) -> str | None:
    """The column by which a table is read; None where that is the order in which it was written.

    That is so of the log, of what is released from it, and of all that is numbered by batches.
    """
    if table in _BY_TIME:
        return TIMESTAMP
    if table == tables.FIRST_TIMES:
        return "event_us"
    return "window_start" if table in workspace.result_tables else None
