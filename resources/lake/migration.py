"""Tables that an earlier Tidemark wrote: columns of `_state/` that have other names in the present format.

Here: finding these columns, and renaming them. Not here: rows of `_state/files` of format 1, which are read as they
are (sources/known_files.py).

Renaming does not change rows, so it is maintenance like joining small files. Readers stay at the versions that the
last commit names; a run that continues from that commit takes the renamed version. A run that dies between two tables
leaves both kinds, and the next one renames the rest.
"""

import re
from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.resources import tables
from tidemark.resources.lake.lake import Lake

_WATERMARK = "_watermark"
_OF_GROUPS = (tables.seen_groups_table(""), tables.flushed_table(""))
_WITH_WINDOWS = (tables.SESSION_EVENTS, tables.REVISED_SESSION_EVENTS)
_WITH_WATERMARK = (tables.REVISED_EVENTS, tables.REVISED_SESSION_EVENTS)


def migrate(lake: Lake, names: Iterable[str], tell: Callable[[str], None]) -> None:
    """Rename the columns of tables of an earlier format, one commit a table; other tables stay as they are.

    Args:
        lake: The tables. No other run may be at work on them.
        names: The tables of the pipeline.
        tell: Called with one line if there is anything to do.
    """
    earlier = [table for table in names if old_columns(lake, table)]
    if earlier:
        tell(f"renaming columns in {len(earlier)} tables of `_state` that an earlier Tidemark wrote")
    for table in earlier:
        new = old_columns(lake, table)
        columns = {new.get(name, name): _value(name, new) for name in lake.columns(table)}
        lake.reshape(table, columns)


def old_columns(lake: Lake, table: str) -> dict[str, str]:
    """Return the renamed columns of a table with their new names; none for a table of the present format."""
    if not table.startswith(_OF_GROUPS) and table not in (*_WITH_WINDOWS, *_WITH_WATERMARK):
        return {}
    there = list(lake.columns(table))
    if table.startswith(_OF_GROUPS):  # these tables have no payload
        return {
            name: re.sub(r"^__(group(?=\d))?", lambda found: "_group_" if found[1] else "_", name)
            for name in there
            if name.startswith("__")
        }
    known = {}  # a payload, which comes first, may have columns of these names
    if table in _WITH_WINDOWS and "__sessions" in there[-2:]:
        known["__sessions"] = tables.open_in_column(there)
    if table in _WITH_WATERMARK and _WATERMARK not in there:
        known["__w_before"] = _WATERMARK
    return {name: new for name, new in known.items() if name in there}


def _value(name: str, new: dict[str, str]) -> pc.Expression:
    """Return the value of a column in the present format: watermarks were microseconds and are instants."""
    value = pc.field(name)
    return value.cast(pa.timestamp("us", "UTC")) if new.get(name) == _WATERMARK else value
