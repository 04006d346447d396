"""The columns of a Delta table: to create it, to compare it with a wanted schema, to show it, to bring it up to date.

Here: schemas as Delta's JSON has them; columns that a changed spec adds or widens, and columns of `_state/` that an
earlier Tidemark wrote under other names. Not here: the choice of columns (tables.py, assets/schemas.py), which
changes of a spec are allowed (timeops/spec/changes.py), rows of `_state/files` of format 1, which are read as they
are (sources/known_files.py).

To add, widen or rename columns does not change rows, so it is maintenance like joining small files. Rows with a wider
type are rewritten: Delta's own widening leaves them as they are and marks the table with a feature that few
readers know. Readers stay at the versions that the last commit names; a run that continues from that commit takes the
new version. A run that dies between two tables leaves both kinds, and the next one does the rest.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Field, Schema

from tidemark.resources import tables
from tidemark.resources.places.place import Place
from tidemark.timeops.errors import LakeError
from tidemark.timeops.expressions.column_types import type_of_json
from tidemark.timeops.spec.changes import is_wider
from tidemark.timeops.utc import FIRST_US, LAST_US

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tidemark.resources.delta.lake import Lake


Columns = dict[str, Any]


def delta_columns(schema: "StructType | pa.Schema") -> Columns:
    """Return a schema as Delta's JSON, all columns nullable."""
    delta = Schema.from_arrow(schema) if isinstance(schema, pa.Schema) else Schema.from_json(schema.json())
    columns: Columns = _nullable(json.loads(delta.to_json()))
    return columns


def sql_types_of(schema: Schema) -> dict[str, str]:
    """Return name and type of each column of a table, with types of Spark SQL."""
    return _sql_types(json.loads(schema.to_json()))


@dataclass(frozen=True)
class ColumnDifference:
    """A column in which a table differs from the wanted schema.

    Attributes:
        name: The column.
        there: Its type in the table, in Spark SQL; empty if the table lacks it.
        wanted: The wanted type; empty if the column is not wanted.
        spelled: The name of the column in the table if it differs in case only; else empty.
    """

    name: str
    there: str
    wanted: str
    spelled: str = ""

    @property
    def sentence(self) -> str:
        """The difference in words."""
        if self.spelled:
            return f"{self.name} is called {self.spelled}"
        return f"{self.name} is {self.there or 'missing'}, expected {self.wanted or 'none'}"


class OtherColumnsError(LakeError):
    """The table exists with other columns than the wanted ones; `columns` are the ones that differ."""

    def __init__(self, table: str, folder: Place, columns: Sequence[ColumnDifference]) -> None:
        self.table, self.columns = table, tuple(columns)
        super().__init__(
            f"{folder} has other columns: {'; '.join(column.sentence for column in columns)}.",
            expected="the columns of the spec",
            remedy="Take the change of the spec back, or use another pipeline name or warehouse.",
        )


def differences(schema: Schema, wanted: Columns, *, of_both: bool = False) -> list[ColumnDifference]:
    """Return the columns in which a table differs from the wanted ones; `of_both`: only columns that both have."""
    there, here = sql_types_of(schema), _sql_types(wanted)
    return [
        ColumnDifference(name, there.get(name, ""), here.get(name, ""))
        for name in [*here, *(name for name in there if name not in here)]
        if there.get(name) != here.get(name) and (not of_both or (name in there and name in here))
    ]


def misfits(schema: Schema, wanted: Columns) -> list[ColumnDifference]:
    """Return the wanted columns that a table cannot get: no wider type, or a name that differs in case only."""
    lowered = {field.name.lower(): field.name for field in schema.fields}
    spelled = [(name, kind, lowered.get(name.lower(), name)) for name, kind in _sql_types(wanted).items()]
    others = [ColumnDifference(name, "", kind, stored) for name, kind, stored in spelled if name != stored]
    kinds = [
        difference
        for difference in differences(schema, wanted, of_both=True)
        if not is_wider(difference.there, difference.wanted)
    ]
    return [*kinds, *others]


def missing_fields(schema: Schema, wanted: Columns) -> list[Field]:
    """Return the wanted columns that a table does not have."""
    there = {field.name for field in schema.fields}
    return [field for field in Schema.from_json(json.dumps(wanted)).fields if field.name not in there]


def with_columns_of(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """Return rows with the columns of a table, in its order and of its types; what rows lack is null.

    Structs may lack fields as well: a run under the spec before writes them to a table that a rebuild has changed.
    """
    names = {*rows.column_names}
    columns = [
        rows[field.name].cast(field.type) if field.name in names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _nullable(schema: Any) -> Any:
    """Return a schema of Delta's JSON with all fields nullable, and without comments."""
    if isinstance(schema, dict):
        fixed = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
        return {key: fixed.get(key, _nullable(value)) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_nullable(part) for part in schema]
    return schema


def _sql_types(schema: Columns) -> dict[str, str]:
    return {field["name"]: type_of_json(field["type"]).sql for field in schema["fields"]}


_INSTANT = pa.timestamp("us", "UTC")


def fit(lake: "Lake", table: str, schema: "StructType", zone: str) -> bool:
    """Add the new columns of a schema to a table, and widen its types; return whether rows were rewritten.

    Other columns of the table stay. No other run may be at work on it. Dates that become instants begin in `zone`.
    """
    wanted = delta_columns(schema)
    there = lake.schema(table)
    if fields := missing_fields(there, wanted):
        lake.add_columns(table, fields)
    wider = {
        difference.name
        for difference in differences(there, wanted, of_both=True)
        if is_wider(difference.there, difference.wanted)
    }
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


_WATERMARK = "_watermark"
_OF_GROUPS = (tables.seen_groups_table(""), tables.flushed_table(""))
_WITH_WINDOWS = (tables.SESSION_EVENTS, tables.REVISED_SESSION_EVENTS)
_WITH_WATERMARK = (tables.REVISED_EVENTS, tables.REVISED_SESSION_EVENTS)


def migrate(lake: "Lake", names: Iterable[str], tell: Callable[[str], None]) -> None:
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


def old_columns(lake: "Lake", table: str) -> dict[str, str]:
    """Return the renamed columns of a table with their new names; none for a table of the present format."""
    if not table.startswith(_OF_GROUPS) and table not in (*_WITH_WINDOWS, *_WITH_WATERMARK):
        return {}
    there = list(lake.columns(table))
    if table.startswith(_OF_GROUPS):  # these tables have no payload
        return {
            name: re.sub(r"^__(group(?=\d))?", lambda match: "_group_" if match[1] else "_", name)
            for name in there
            if name.startswith("__")
        }
    new_names = {}  # a payload, which comes first, may have columns of these names
    if table in _WITH_WINDOWS and "__sessions" in there[-2:]:
        new_names["__sessions"] = tables.open_in_column(there)
    if table in _WITH_WATERMARK and _WATERMARK not in there:
        new_names["__w_before"] = _WATERMARK
    return {name: new for name, new in new_names.items() if name in there}


def _value(name: str, new: dict[str, str]) -> pc.Expression:
    """Return the value of a column in the present format: watermarks were microseconds and are instants."""
    value = pc.field(name)
    return value.cast(pa.timestamp("us", "UTC")) if new.get(name) == _WATERMARK else value
