"""Values of an input as the types of the spec, whatever its format: what fits, what is kept, and the errors.

Here: types that convert without loss, columns and fields for `_rescued`, the error for a column that does not fit.
Not here: the walk through types and its SQL (timeops/expressions/column_types.py), which columns an input has
(resources/sources/columns.py).
"""

from collections.abc import Sequence

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.timeops.errors import InputError
from tidemark.timeops.errors.problems import did_you_mean
from tidemark.timeops.expressions.column_types import (
    ColumnType,
    Misfit,
    as_kept,
    converted,
    has_unknown_fields,
    holds_number,
    misfit,
    type_of_json,
)
from tidemark.timeops.expressions.tokens import literal_map, quoted
from tidemark.timeops.expressions.try_expression import EVERY_MICROSECOND

FIRST_READ_ALIKE_US = -2_208_988_800_000_000
"""The year 1900: older instants may be of another calendar, which Spark translates, and Arrow does not."""
_OF_TIMES = {("date", "timestamp_ntz"), ("timestamp_ntz", "timestamp")}  # the latter in the zone of the source


def holds(word: str, other: str) -> bool:
    """Return whether values of a type without types inside are read as another one without loss."""
    return (other, word) in _OF_TIMES or holds_number(word, other)


def types_in(schema: StructType) -> dict[str, ColumnType]:
    """Return the types of columns by name."""
    return {field.name: type_of_json(field.dataType.jsonValue()) for field in schema}


def fit_error(
    path: str, column: str, actual: ColumnType, wanted: ColumnType, *, of: str = "file", may_lack: bool = False
) -> InputError | None:
    """Return the error for a column that cannot be read as the type of the spec without loss; None if it can.

    A field inside has to be there by its name.

    Args:
        path: What has the column, in errors.
        column: Its name there.
        actual: Its type there.
        wanted: Its type in the spec.
        of: The word for what has the column.
        may_lack: Whether fields inside may be missing: they are null then.
    """
    problem = misfit(actual, wanted, holds, may_lack=may_lack)
    if problem is None:
        return None
    place = ".".join((column, *problem.path))
    if problem.found is None:
        return _missing(path, place, problem, of, may_lack=may_lack)
    return _wrong_type(path, place, problem.found, problem.wanted, of)


def _wrong_type(path: str, place: str, actual: ColumnType, wanted: ColumnType, of: str) -> InputError:
    shown = actual.stored or actual.ddl
    nanoseconds = f"; write timestamps in microseconds, or take `{place}` as STRING" if "[ns" in shown else ""
    return InputError(
        f"{path}: column `{place}` has the type {shown}",
        expected=f"{wanted.ddl}, or a type that converts to it without loss",
        remedy=f"correct the type in `schema` or in the {of}{nanoseconds}",
    )


def _missing(path: str, place: str, problem: Misfit, of: str, *, may_lack: bool) -> InputError:
    name = problem.path[-1]
    there = [other for other in problem.names if other.lower() == name.lower()]
    what = "occurs more than once (in any case) in" if name in there else "is missing from"
    remedy = f"correct `schema` or the {of}"
    if there and name not in there:
        remedy = did_you_mean(name, there)
    elif not there and of == "file" and not may_lack:
        remedy += ', or set `missing: "null"` in the source if files may lack it'
    return InputError(
        f"{path}: column `{place}` {what} the {of}, which has: {', '.join(problem.names)}",
        expected="every field of `schema` once, by its exact name",
        remedy=remedy,
    )


def ensure_can_be_kept(path: str, name: str, kind: ColumnType, *, of: str = "file") -> None:
    """Check that the values of a column that `schema` does not name can be read for `_rescued`.

    Raises:
        InputError: They cannot.
    """
    if not kind.is_readable or has_names_twice(kind):
        raise InputError(
            f"{path}: column `{name}` has the type {kind.ddl}, whose values cannot be kept",
            expected="types that Spark reads, and names that differ in more than case, in all columns, as "
            "`keep_unknown` is set",
            remedy=f"leave `keep_unknown` out of the source: then `{name}` does not matter; or write the {of} "
            "without it, or with another type",
        )


def has_names_twice(kind: ColumnType) -> bool:
    """Return whether a struct in a type has two fields that Spark takes for one, as it ignores case."""
    names = [name.lower() for name, _ in kind.inside]
    return len(set(names)) < len(names) or any(has_names_twice(part) for _, part in kind.inside)


def values_to_keep(
    named: Sequence[tuple[str, str, ColumnType, ColumnType]], unknown: Sequence[tuple[str, str, ColumnType]]
) -> Column:
    """Return the values that `schema` does not name as JSON text; null if there are none.

    A column of `schema` with a field that `schema` lacks is kept whole, in the rows in which the field has a value.

    Args:
        named: For each column of `schema` the SQL for its value, its name and type in the input, the wanted type.
        unknown: Of each other column the SQL of its value, its name and its type.
    """
    values = [(converted(value, kind, as_kept(kind)), name) for value, name, kind in unknown]
    for value, name, kind, wanted in named:
        if (has_more := has_unknown_fields(value, kind, wanted)) is not None:
            values.append((f"IF({has_more}, {converted(value, kind, as_kept(kind))}, NULL)", name))
    if not values:
        return F.lit(None).cast("string")
    fields = ", ".join(f"{value} AS {quoted(name)}" for value, name in values)
    return F.expr(f"to_json(struct({fields}), {literal_map(EVERY_MICROSECOND)})")
