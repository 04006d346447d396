"""Columns that the input has and `schema` does not name: their names, and types for them.

Here: the columns of a header, a footer, the first lines of JSON and the layout of a table. Not here: keeping them
(`keep_unknown`, in the readers), their report (assets/unknown_columns.py).
"""

import json
from collections.abc import Iterable, Mapping

from tidemark.timeops.expressions.tokens import top_level_names
from tidemark.timeops.spec import Source
from tidemark.timeops.spec.fields import all_names, column_name_problems, name_in_tables, suggested_name

Columns = tuple[tuple[str, str], ...]
"""Names in the input, each with a type in DDL."""

_OF_JSON: Mapping[type, str] = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}
_MOST_LINES = 100


def unknown_of(source: Source, found: Iterable[tuple[str, str]]) -> Columns:
    """Return the columns of an input that its source does not name, in any case."""
    names = top_level_names(source.columns)
    known = {one.lower() for name in names for one in (*all_names(name, source.rename), name)}
    known |= {name_in_tables(name, source.rename).lower() for name in names}
    return tuple((name, kind) for name, kind in found if name and name.lower() not in known)


def columns_of_json(text: bytes) -> Columns:
    """Return the keys of the first objects of JSON lines, each with a type that holds its values."""
    found: dict[str, str] = {}
    for line in text.split(b"\n")[:_MOST_LINES]:
        try:
            keys = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for name, value in keys.items() if isinstance(keys, dict) else ():
            if value is not None:
                kind = _OF_JSON.get(type(value), "STRING")
                found[name] = _wider(found.get(name, kind), kind)
    return tuple(found.items())


def columns_of_layout(schema: str) -> Columns:
    """Return the columns of a Delta table, from the schema in its log."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - looking at files must not wait for PySpark

    fields = StructType.fromJson(json.loads(schema))
    return tuple((field.name, field.dataType.simpleString().upper()) for field in fields)


def _wider(one: str, other: str) -> str:
    if one == other:
        return one
    return "DOUBLE" if {one, other} == {"BIGINT", "DOUBLE"} else "STRING"


def line_to_add(source: Source, columns: Iterable[tuple[str, str]]) -> str:
    """Return the remedy that adds columns to the source: to `schema`, and to `rename` if a name needs it."""
    taken = [name_in_tables(name, source.rename) for name in top_level_names(source.columns)]
    fields, renamed = [], {}
    for name, kind in columns:
        own = name
        if column_name_problems(name, "") or not name.isidentifier():
            own = renamed[name] = suggested_name(name, taken)
        taken.append(own)
        fields.append(f"{own} {kind}")
    entries = ", ".join(f"{json.dumps(old, ensure_ascii=False)}: {new}" for old, new in renamed.items())
    return f"add `{', '.join(fields)}` to `schema`" + (f" and `{entries}` to `rename`" if renamed else "")
