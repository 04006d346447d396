"""Tables that a changed spec reshapes: new columns are null in the rows that are there, wider types are cast.

Here: finding these columns, and adding or casting them. Not here: which changes of a spec are allowed
(timeops/spec/changes.py), columns that an earlier Tidemark wrote (migration.py).

Neither changes rows, so both are maintenance like joining small files. Rows with a wider type are written anew:
Delta's own widening leaves them as they are and marks the table with a feature that few readers know.
"""

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from tidemark.resources.lake.lake import Lake
from tidemark.resources.lake.table_columns import delta_columns, differences, missing_fields
from tidemark.timeops.spec.column_types import is_wider
from tidemark.timeops.utc import FIRST_US, LAST_US

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_INSTANT = pa.timestamp("us", "UTC")


def fit(lake: Lake, table: str, schema: "StructType", zone: str) -> bool:
    """Add the new columns of a schema to a table, and widen its types; other columns of the table stay.

    Args:
        lake: The tables. No other run may be at work on them.
        table: The table.
        schema: The wanted columns.
        zone: The zone in which days begin if dates become instants.

    Returns:
        Whether rows were written anew.
    """
    wanted = delta_columns(schema)
    there = lake.schema(table)
    if fields := missing_fields(there, wanted):
        lake.add_columns(table, fields)
    wider = {one.name for one in differences(there, wanted, of_both=True) if is_wider(one.there, one.wanted)}
    if not wider:
        return False
    new = pa.schema(Schema.from_json(json.dumps(wanted)).to_arrow())
    before = lake.columns(table)
    columns = {
        name: _cast(pc.field(name), before[name], new.field(name).type, zone) if name in wider else pc.field(name)
        for name in before
    }
    lake.reshape(table, columns)
    return True


def _cast(value: pc.Expression, before: str, kind: pa.DataType, zone: str) -> pc.Expression:
    """Return a value cast to a wider type; a day becomes the instant at which it begins."""
    if before != "date":
        return value.cast(kind)
    midnight = pc.assume_timezone(value.cast(pa.timestamp("us")), zone, ambiguous="earliest", nonexistent="latest")
    instant = midnight.cast(_INSTANT)
    first, last = (pa.scalar(us, pa.int64()).cast(_INSTANT) for us in (FIRST_US, LAST_US))
    is_told = (instant >= first) & (instant <= last)
    return pc.if_else(is_told, instant, pa.scalar(None, _INSTANT))
