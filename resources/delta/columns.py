"""The columns of a Delta table: to create it, to compare it with a wanted schema, to show it.

Here: schemas as Delta's JSON has them. Not here: bringing a table up to date (resources/delta/migration.py), the
choice of columns (resources/tables.py, assets/schemas.py), which changes of a spec are allowed
(timeops/spec/changes.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import Field, Schema

from tidemark.resources.places.place import Place
from tidemark.timeops.errors import LakeError
from tidemark.timeops.expressions.column_types import type_of_json
from tidemark.timeops.spec.changes import is_wider

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


DeltaColumns = dict[str, Any]


def delta_columns(schema: "StructType | pa.Schema") -> DeltaColumns:
    """Return a schema as Delta's JSON, all columns nullable."""
    delta = Schema.from_arrow(schema) if isinstance(schema, pa.Schema) else Schema.from_json(schema.json())
    columns: DeltaColumns = _nullable(json.loads(delta.to_json()))
    return columns


def sql_types_of(schema: Schema) -> dict[str, str]:
    """Return name and type of each column of a table, with types of Spark SQL."""
    return _sql_types(json.loads(schema.to_json()))


@dataclass(frozen=True)
class ColumnDifference:
    """A column in which a table differs from the wanted schema.

    Attributes:
        name: The column.
        stored_type: Its type in the table, in Spark SQL; empty if the table lacks it.
        wanted_type: The wanted type; empty if the column is not wanted.
        spelled: The name of the column in the table if it differs in case only; else empty.
    """

    name: str
    stored_type: str
    wanted_type: str
    spelled: str = ""

    @property
    def sentence(self) -> str:
        """The difference in words."""
        if self.spelled:
            return f"{self.name} is called {self.spelled}"
        return f"{self.name} is {self.stored_type or 'missing'}, expected {self.wanted_type or 'none'}"


class OtherColumnsError(LakeError):
    """The table exists with other columns than the wanted ones; `columns` are the ones that differ."""

    def __init__(self, table: str, folder: Place, columns: Sequence[ColumnDifference]) -> None:
        self.table, self.columns = table, tuple(columns)
        super().__init__(
            f"{folder} has other columns: {'; '.join(column.sentence for column in columns)}.",
            expected="the columns of the spec",
            remedy="Take the change of the spec back, or use another pipeline name or warehouse.",
        )


def column_differences(
    schema: Schema, wanted_columns: DeltaColumns, *, of_both: bool = False
) -> list[ColumnDifference]:
    """Return the columns in which a table differs from the wanted ones; `of_both`: only columns that both have."""
    stored_types, wanted_types = sql_types_of(schema), _sql_types(wanted_columns)
    names = [name for name in wanted_types if name in stored_types] if of_both else {**wanted_types, **stored_types}
    return [
        ColumnDifference(name, stored_types.get(name, ""), wanted_types.get(name, ""))
        for name in names
        if stored_types.get(name) != wanted_types.get(name)
    ]


def misfits(schema: Schema, wanted_columns: DeltaColumns) -> list[ColumnDifference]:
    """Return the wanted columns that a table cannot get: no wider type, or a name that differs in case only."""
    lowered = {field.name.lower(): field.name for field in schema.fields}
    spelled = [(name, kind, lowered.get(name.lower(), name)) for name, kind in _sql_types(wanted_columns).items()]
    other_spellings = [ColumnDifference(name, "", kind, stored) for name, kind, stored in spelled if name != stored]
    kinds = [
        difference
        for difference in column_differences(schema, wanted_columns, of_both=True)
        if not is_wider(difference.stored_type, difference.wanted_type)
    ]
    return [*kinds, *other_spellings]


def missing_fields(schema: Schema, wanted_columns: DeltaColumns) -> list[Field]:
    """Return the wanted columns that a table does not have."""
    stored_names = {field.name for field in schema.fields}
    return [field for field in Schema.from_json(json.dumps(wanted_columns)).fields if field.name not in stored_names]


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


def _sql_types(schema: DeltaColumns) -> dict[str, str]:
    return {field["name"]: type_of_json(field["type"]).sql for field in schema["fields"]}
