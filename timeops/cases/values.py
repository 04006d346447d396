"""Values of cases: what a file writes and what a table holds, as Python values of one kind, to be compared.

Here: one value by its Spark type. Not here: rows and tables (pipelines/case_tests/differences.py), keys
(file.py).
"""

import json
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from math import isclose, isnan
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.timeops.problems import Problem, ProblemsError, show
from tidemark.timeops.spec.fields import read_instant
from tidemark.timeops.utc import Instant

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_FLOATS = (FloatType, DoubleType)
_TEXTS = (StringType, DateType, TimestampType, TimestampNTZType)


def read_row(text: str, columns: StructType) -> dict[str, Any]:
    """Return a row that Spark wrote as JSON, see `values.as_json`."""
    found = json.loads(text, parse_float=Decimal)
    return {field.name: read_value(found[field.name], field.dataType) for field in columns}


def read_value(value: object, kind: DataType) -> Any:
    """Return a value of a cases file, or of Spark's JSON, as Python's value of a type.

    Instants are aware UTC. Of types that are not known here the value stays as it is.

    Raises:
        ProblemsError: The value does not fit the type.
    """
    if value is None:
        return None
    if isinstance(kind, ArrayType):
        items = _of(list, value, "a list")
        return [_at(i, item, kind.elementType) for i, item in enumerate(items)]
    if isinstance(kind, StructType):
        known = {field.name: field.dataType for field in kind}
        fields = _of(Mapping, value, f"a mapping of {', '.join(known)}")
        unknown = [name for name in fields if name not in known]
        if unknown:
            raise _misfit(value, f"a mapping of {', '.join(known)}, not {unknown[0]}")
        return {name: _at(name, item, known[name]) for name, item in fields.items()}
    if isinstance(kind, MapType):
        entries = _of(Mapping, value, "a mapping")
        return {str(key): _at(str(key), item, kind.valueType) for key, item in entries.items()}
    return _scalar(value, kind)


def _scalar(value: object, kind: DataType) -> Any:
    for kinds, read in _READERS:
        if isinstance(kind, kinds):
            return read(value)
    return value


def equal(expected: Any, found: Any) -> bool:
    """Return whether two values of one kind are equal: floats to a relative 1e-12, structs as far as written.

    Args:
        expected: What `read_value` returned for the value of a file.
        found: The same for that of a table.
    """
    if isinstance(expected, float) and isinstance(found, float):
        return (isnan(expected) and isnan(found)) or isclose(expected, found, rel_tol=1e-12)
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(equal, expected, found))
    if isinstance(expected, dict) and isinstance(found, dict):
        return all(name in found and equal(item, found[name]) for name, item in expected.items())
    return bool(expected == found)


def text_of(value: Any) -> str:
    """Return a value as a cases file writes it, instants as short as they can be."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, datetime):
        clock = value.isoformat(timespec="microseconds" if value.microsecond else "seconds")
        return clock.replace("+00:00", "Z")
    if isinstance(value, Instant):
        return f"{value}Z".replace(" ", "T")
    if isinstance(value, list):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {text_of(item)}' for name, item in value.items())}}}"
    return str(value)


def is_written_as_text(kind: DataType) -> bool:
    """Return whether a record writes values of a type as text, which YAML would otherwise read as something else."""
    return isinstance(kind, _TEXTS)


def _at(step: str | int, value: object, kind: DataType) -> Any:
    try:
        return read_value(value, kind)
    except ProblemsError as error:
        raise ProblemsError(Problem(p.found, p.expected, p.remedy, (step, *p.at)) for p in error.problems) from None


def _of(wanted: Any, value: object, expected: str, *, remedy: str = "") -> Any:
    if not isinstance(value, wanted):
        raise _misfit(value, expected, remedy)
    return value


def _number(value: object, expected: str, *wanted: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise _misfit(value, expected)
    return value


def _parsed(read: Callable[[str], Any], value: object, expected: str) -> Any:
    try:
        return read(_of(str, value, expected))
    except ValueError:
        raise _misfit(value, expected) from None


def _misfit(value: object, expected: str, remedy: str = "") -> ProblemsError:
    return ProblemsError([Problem(f"found {show(value)}", expected=expected, remedy=remedy)])


def _text(value: object) -> Any:
    return _of(str, value, "text", remedy="put the value in quotes")


def _instant(value: object) -> Any:
    """Return an aware UTC datetime; windows may also begin or end where Python's calendar does not reach."""
    year = re.match(r"([+-]?\d{4,6})(?=-)", value) if isinstance(value, str) else None
    if year is None or 1 <= int(year[1]) <= 9999:
        return read_instant(value)
    return Instant.in_year(int(year[1]), lambda shown: read_instant(f"{shown:04}{str(value)[year.end() :]}"))


def _float(value: object) -> float:
    if value in ("NaN", "Infinity", "-Infinity"):  # so Spark writes them
        return float(str(value))
    return float(_number(value, "a number", int, float, Decimal))


_READERS: tuple[tuple[Any, Callable[[object], Any]], ...] = (
    (StringType, _text),
    (BooleanType, lambda value: _of(bool, value, "true or false")),
    (TimestampType, _instant),
    (TimestampNTZType, lambda v: _parsed(datetime.fromisoformat, v, "a local time such as 2026-01-31T12:00:00")),
    (DateType, lambda value: _parsed(date.fromisoformat, value, "a day such as 2026-01-31")),
    (_WHOLE, lambda value: _number(value, "a whole number", int)),
    (DecimalType, lambda value: Decimal(str(_number(value, "a number", int, float, Decimal)))),
    (_FLOATS, _float),
)
