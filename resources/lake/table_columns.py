"""The columns of a Delta table: to create it, to compare it with a wanted schema, to show it.

Here: schemas as Delta's JSON has them. Not here: the choice of columns (tables.py, assets/schemas.py).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import Field, Schema

from tidemark.resources.places.place import Place
from tidemark.timeops.errors import LakeError
from tidemark.timeops.spec.column_types import is_wider

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Columns = dict[str, Any]

_IN_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def delta_columns(schema: "StructType | pa.Schema") -> Columns:
    """Return a schema as Delta's JSON, all columns nullable."""
    delta = Schema.from_arrow(schema) if isinstance(schema, pa.Schema) else Schema.from_json(schema.json())
    columns: Columns = _nullable(json.loads(delta.to_json()))
    return columns


def types_of(schema: Schema) -> dict[str, str]:
    """Return name and type of each column of a table, with types of Delta's JSON."""
    return _types(json.loads(schema.to_json()))


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
    """The table exists with other columns than the wanted ones.

    Attributes:
        table: The table.
        columns: The columns in which it differs.
    """

    def __init__(self, table: str, folder: Place, columns: Sequence[ColumnDifference]) -> None:
        self.table, self.columns = table, tuple(columns)
        super().__init__(
            f"{folder} has other columns: {'; '.join(one.sentence for one in columns)}.",
            expected="the columns of the spec",
            remedy="Take the change of the spec back, or use another pipeline name or warehouse.",
        )


def differences(schema: Schema, wanted: Columns, *, of_both: bool = False) -> list[ColumnDifference]:
    """Return the columns in which a table differs from the wanted ones.

    Args:
        schema: The columns of the table.
        wanted: The wanted columns.
        of_both: Compare only columns that both have.
    """
    there = _sql_types(_nullable(json.loads(schema.to_json())))
    here = _sql_types(wanted)
    return [
        ColumnDifference(name, there.get(name, ""), here.get(name, ""))
        for name in [*here, *(name for name in there if name not in here)]
        if there.get(name) != here.get(name) and (not of_both or (name in there and name in here))
    ]


def misfits(schema: Schema, wanted: Columns) -> list[ColumnDifference]:
    """Return the wanted columns that a table cannot get: no wider type, or a name that differs in case only."""
    lowered = {name.lower(): name for name in _sql_types(json.loads(schema.to_json()))}
    spelled = [(name, kind, lowered.get(name.lower(), name)) for name, kind in _sql_types(wanted).items()]
    others = [ColumnDifference(name, "", kind, known) for name, kind, known in spelled if name != known]
    kinds = [one for one in differences(schema, wanted, of_both=True) if not is_wider(one.there, one.wanted)]
    return [*kinds, *others]


def missing_fields(schema: Schema, wanted: Columns) -> list[Field]:
    """Return the wanted columns that a table does not have."""
    there = types_of(schema)
    return [field for field in Schema.from_json(json.dumps(wanted)).fields if field.name not in there]


def with_columns_of(schema: Schema, rows: pa.Table) -> pa.Table:
    """Return rows with the columns of a table, in its order; columns that the rows lack are null."""
    names = list(types_of(schema))
    if rows.column_names == names:
        return rows
    known = pa.schema(schema.to_arrow())
    given = [
        rows[name] if name in rows.column_names else pa.nulls(rows.num_rows, known.field(name).type) for name in names
    ]
    return pa.table(given, names=names)


def _nullable(schema: Any) -> Any:
    """Return a schema of Delta's JSON with all fields nullable, and without comments."""
    if isinstance(schema, dict):
        fixed = {"nullable": True, "containsNull": True, "valueContainsNull": True, "metadata": {}}
        return {key: fixed.get(key, _nullable(value)) for key, value in schema.items()}
    if isinstance(schema, list):
        return [_nullable(part) for part in schema]
    return schema


def _types(schema: Columns) -> dict[str, str]:
    """Return name and type of each column, with types of Delta's JSON."""
    return {
        field["name"]: field["type"] if isinstance(field["type"], str) else json.dumps(field["type"], sort_keys=True)
        for field in schema["fields"]
    }


def _sql_types(schema: Columns) -> dict[str, str]:
    """Return name and type of each column, with types of Spark SQL."""
    return {field["name"]: _sql_type(field["type"]) for field in schema["fields"]}


def _sql_type(kind: Any) -> str:
    """Return a type of Delta's JSON in Spark SQL, such as `array<string>`."""
    if isinstance(kind, str):
        return _IN_SQL.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_sql_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_sql_type(kind['keyType'])}, {_sql_type(kind['valueType'])}>"
    fields = (f"{field['name']}: {_sql_type(field['type'])}" for field in kind["fields"])
    return f"struct<{', '.join(fields)}>"
