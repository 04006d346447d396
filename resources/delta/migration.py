"""Tables brought up to date: columns that a changed spec adds or widens, and columns that an earlier Tidemark named.

Not here: comparing columns (resources/delta/columns.py), the choice of columns (resources/tables.py,
assets/schemas.py), which changes of a spec are allowed (timeops/spec/changes.py), rows of `_state/files` of format 1,
which are read as they are (resources/sources/known_files.py).

To add, widen or rename columns does not change rows, so it is maintenance like joining small files. Rows with a wider
type are rewritten: Delta's own widening leaves them as they are and marks the table with a feature that few
readers know. Readers stay at the versions that the last commit names; a run that continues from that commit takes the
new version. A run that dies between two tables leaves both kinds, and the next one does the rest.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from tidemark.resources import tables
from tidemark.resources.delta.columns import column_differences, delta_columns, missing_fields
from tidemark.resources.delta.lake import Lake
from tidemark.timeops.spec.changes import is_wider
from tidemark.timeops.values.utc import FIRST_US, LAST_US

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_INSTANT = pa.timestamp("us", "UTC")


def fit(lake: Lake, table: str, schema: "StructType", zone: str) -> bool:
    """Add the new columns of a schema to a table, and widen its types; return whether rows were rewritten.

    Other columns of the table stay. No other run may be at work on it. Dates that become instants begin in `zone`.
    """
    wanted_columns = delta_columns(schema)
    stored_schema = lake.schema(table)
    if fields := missing_fields(stored_schema, wanted_columns):
        lake.add_columns(table, fields)
    wider = {
        difference.name
        for difference in column_differences(stored_schema, wanted_columns, of_both=True)
        if is_wider(difference.stored_type, difference.wanted_type)
    }
    if not wider:
        return False
    new = pa.schema(Schema.from_json(json.dumps(wanted_columns)).to_arrow())
    stored_types = lake.columns(table)
    columns = {
        name: _cast(pc.field(name), kind, new.field(name).type, zone) if name in wider else pc.field(name)
        for name, kind in stored_types.items()
    }
    lake.reshape(table, columns)
    return True


def _cast(value: pc.Expression, stored_type: str, kind: pa.DataType, zone: str) -> pc.Expression:
    """Return a value cast to a wider type; a day becomes the instant at which it begins."""
    if stored_type != "date":
        return value.cast(kind)
    # Where clocks are moved at midnight, it comes twice or not at all.
    midnight = pc.assume_timezone(value.cast(pa.timestamp("us")), zone, ambiguous="earliest", nonexistent="latest")
    instant = midnight.cast(_INSTANT)
    first, last = (pa.scalar(us, pa.int64()).cast(_INSTANT) for us in (FIRST_US, LAST_US))
    is_in_range = (instant >= first) & (instant <= last)
    return pc.if_else(is_in_range, instant, pa.scalar(None, _INSTANT))


_WATERMARK = "_watermark"
_OF_GROUPS = (tables.seen_groups_table(""), tables.flushed_table(""))
_WITH_WINDOWS = (tables.SESSION_EVENTS, tables.REVISED_SESSION_EVENTS)
_WITH_WATERMARK = (tables.REVISED_EVENTS, tables.REVISED_SESSION_EVENTS)


def migrate(lake: Lake, names: Iterable[str], tell: Callable[[str], None]) -> None:
    """Rename the columns of tables of an earlier format, one commit a table; other tables stay as they are.

    No other run may be at work on them. `tell` is called with one line if there is anything to do.
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
    stored_names = list(lake.columns(table))
    if table.startswith(_OF_GROUPS):  # these tables have no payload
        return {
            name: re.sub(r"^__(group(?=\d))?", lambda match: "_group_" if match[1] else "_", name)
            for name in stored_names
            if name.startswith("__")
        }
    new_names = {}  # a payload, which comes first, may have columns of these names
    if table in _WITH_WINDOWS and "__sessions" in stored_names[-2:]:
        new_names["__sessions"] = tables.open_in_column(stored_names)
    if table in _WITH_WATERMARK and _WATERMARK not in stored_names:
        new_names["__w_before"] = _WATERMARK
    return {name: new for name, new in new_names.items() if name in stored_names}


def _value(name: str, new: dict[str, str]) -> pc.Expression:
    """Return the value of a column in the present format: watermarks were microseconds and are instants."""
    value = pc.field(name)
    return value.cast(pa.timestamp("us", "UTC")) if new.get(name) == _WATERMARK else value
