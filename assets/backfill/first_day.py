"""The first day that the window tables of a pipeline have partitions of.

Here: what the spec says, else what the tables tell without Spark. Not here: the partitions (partitions.py).
"""

import warnings
from collections.abc import Iterable
from datetime import date
from zoneinfo import ZoneInfo

from tidemark.resources.workspace import Workspace
from tidemark.timeops.utc import Instant, begin_of, instant_of, us_of

UNTIL_KNOWN = date(2020, 1, 1)
"""The first day while no window was closed yet."""
EARLIEST = date(1900, 1, 1)
"""The first day at the earliest, unless the spec says another: one wild event must not give a million days."""


def first_day(workspace: Workspace) -> date:
    """The first day of the partitions: `partitions.start`, else the first one on which a window starts.

    Windows that come in later may start on earlier days: Dagster shows those when it loads its definitions anew.
    """
    given = workspace.spec.partitions.start
    if given is not None:
        return given
    try:
        return _first_in_tables(workspace)
    except Exception as error:  # whatever is wrong with the tables, the pipeline has to be shown
        warnings.warn(f"{workspace.spec.name}: its first day cannot be read: {error}", stacklevel=2)
        return UNTIL_KNOWN


def _first_in_tables(workspace: Workspace) -> date:
    earliest = min(_first_starts(workspace), default=None)
    if earliest is None:
        return UNTIL_KNOWN
    zone = workspace.spec.partitions.time_zone
    if earliest.us < us_of(begin_of(EARLIEST, zone)):
        return EARLIEST
    now_us = us_of(workspace.clock.now())  # a window of the year 9999 has no day that every zone could name
    return instant_of(min(earliest.us, now_us)).astimezone(ZoneInfo(zone)).date()


def _first_starts(workspace: Workspace) -> Iterable[Instant]:
    """When the first window of each table starts, as of the last commit; from the statistics of its files."""
    if not workspace.exists:
        return
    base = workspace.base()
    for table in workspace.window_tables.values():
        start = workspace.lake.lowest(table, base[table], "window_start") if base[table] else None
        if start is not None:
            yield start
