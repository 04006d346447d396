"""Rows that readers of Delta tables prune wrongly, the ways in which a table gets them, and conditions on them."""

import operator
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, Schema, write_deltalake

from tidemark.resources.delta.files import piece_of
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.upkeep import compact, mend_bounds
from tidemark.resources.delta.versions import NO_ROWS
from tidemark.timeops.values.utc import FIRST_US, LAST_US

T = "windows/by_hour"
NAN, LARGE, LONG = float("nan"), 10**38 - 1, "é" * 40 + "\U0010ffff" * 3
INSTANT = pa.timestamp("us", "UTC")
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    {
        "window_start": INSTANT,
        "window_end": INSTANT,
        "v": pa.float64(),
        "f": pa.float32(),
        "parts": pa.struct({"x": pa.float64()}),
        "name": pa.string(),
        "day": pa.date32(),
        "large": pa.decimal128(38, 0),
        "bytes": pa.binary(),
        "flag": pa.bool_(),
        "payload_at": INSTANT,
        "n": pa.int64(),
        "_batch_id": pa.int64(),
    }
)
Condition = tuple[str, str, Any]
CONDITIONS: list[Condition] = [
    *[(column, symbol, value) for column in ("v", "f") for symbol in ("<", ">", "=", ">=") for value in (1.0, 5.0)],
    *[("v", "=", value) for value in (NAN, 0.0, -0.0)],
    ("parts.x", ">", 5.0),
    ("parts.x", "<", 5.0),
    *[("name", symbol, value) for symbol in ("=", ">") for value in ("a", LONG)],
    *[("day", symbol, date(2026, 6, 1)) for symbol in ("=", "<", ">")],
    *[("large", symbol, Decimal(5)) for symbol in ("=", "<", ">")],
    ("bytes", ">", b"\x80"),
    ("flag", "=", True),
    *[("n", symbol, 2**53 + 1) for symbol in ("=", "<")],
    *[
        (column, symbol, value)
        for column in ("window_start", "window_end", "payload_at")
        for symbol in ("=", "<", ">=")
        for value in (NOON, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC))
    ],
    *[(column, "IS", None) for column in SCHEMA.names],
]


def row(at_us: int, **values: Any) -> dict[str, Any]:
    """Return a row whose instants are the same, in microseconds since the epoch."""
    at = dict.fromkeys(("window_start", "window_end", "payload_at"), at_us)
    own = {"v": 2.0, "f": 2.0, "name": "b", "day": date(2026, 6, 2), "large": Decimal(7), "bytes": b"b", "n": 7}
    return {**at, **own, "flag": False, "parts": {"x": 2.0}, "_batch_id": 1, **values}


NOON_US = int(NOON.timestamp()) * 1_000_000
PLAIN = row(NOON_US, v=1.0, f=1.0, parts={"x": 1.0}, name="a", day=date(2026, 6, 1), large=Decimal(5), flag=True)
NONE = {**dict.fromkeys(SCHEMA.names), "window_start": NOON_US, "window_end": NOON_US, "_batch_id": 1}
HOSTILE: Mapping[str, list[dict[str, Any]]] = {
    "plain": [PLAIN, row(NOON_US + 1)],
    "NaN": [PLAIN, row(NOON_US, v=NAN, f=NAN, parts={"x": NAN})],
    "zeros": [row(NOON_US, v=-0.0, f=-0.0), row(NOON_US, v=0.0)],
    "the first year": [PLAIN, row(FIRST_US)],
    "the last year": [PLAIN, row(LAST_US)],
    "the year 0": [PLAIN, row(FIRST_US - 1)],
    "the year -1": [PLAIN, row(FIRST_US - 366 * 86_400_000_000)],
    "the year 10000": [PLAIN, row(LAST_US + 1), row(NOON_US, payload_at=None)],
    "far years alone": [row(LAST_US + 10**15)],
    "far values": [
        PLAIN,
        row(NOON_US, name=LONG, large=Decimal(LARGE), n=2**53 + 1, bytes=b"\xff" * 99, day=date.max),
    ],
    "far below": [PLAIN, row(NOON_US, name="", large=Decimal(-LARGE), n=-(2**62), bytes=b"", day=date.min)],
    "nulls": [PLAIN, NONE],
    "nulls alone": [NONE],
}
"""The rows of each file."""


def rows_of(file: str) -> pa.Table:
    instants = {name: pa.int64() for name in SCHEMA.names if SCHEMA.field(name).type == INSTANT}
    numbers = pa.schema([field.with_type(instants.get(field.name, field.type)) for field in SCHEMA])
    return pa.Table.from_pylist(HOSTILE[file], schema=numbers).cast(SCHEMA)


def _created(folder: Path) -> Lake:
    lake = Lake(folder)
    lake.create(T, SCHEMA)
    return lake


def _appended(folder: Path) -> Lake:
    lake = _created(folder)
    for version, file in enumerate(HOSTILE):
        lake.append_rows(T, rows_of(file), attempt=version + 1, expect=version)
    return lake


def _in_pieces(folder: Path) -> Lake:
    lake = _created(folder)
    pieces = [partial(lambda rows, _schema: rows.to_batches(), rows_of(file)) for file in HOSTILE]
    lake.replace_pieces(T, pieces, where=NO_ROWS, attempt=1, expect=0)
    return lake


def _replaced(folder: Path) -> Lake:
    lake = _created(folder)
    for version, file in enumerate(HOSTILE):
        lake.replace_pieces(
            T, [piece_of(rows_of(file))], where=[("_batch_id", "=", 99)], attempt=version + 1, expect=version
        )
    return lake


def _joined(folder: Path) -> Lake:
    lake = _appended(folder)
    assert compact(lake, T)
    mend_bounds(lake, T)
    return lake


def _sorted(folder: Path) -> Lake:
    lake = _appended(folder)
    assert compact(lake, T, "window_start")
    mend_bounds(lake, T)
    return lake


def _reshaped(folder: Path) -> Lake:
    lake = _appended(folder)
    lake.reshape(T, {name: pc.field(name) for name in SCHEMA.names})
    return lake


def _taken_over(folder: Path) -> Lake:
    lake, other = _created(folder / "here"), _appended(folder / "there")
    lake.take_over(T, other.opened.version_at(T), attempt=1, expect=0)
    return lake


def _of_an_earlier_version(folder: Path) -> Lake:
    """Return a table as Tidemark 0.2.0 made it, with bounds of all columns, after the next upkeep."""
    schema, path = Schema.from_arrow(SCHEMA), str(folder / T)
    DeltaTable.create(path, schema, configuration={"delta.dataSkippingNumIndexedCols": "-1"})
    for file in HOSTILE:
        write_deltalake(path, rows_of(file), mode="append")
    lake = Lake(folder)
    lake.state_bounds(T)
    mend_bounds(lake, T)
    return lake


FLOATS = ("v", "f", "parts.x")
EARLIER = "of an earlier version"
WAYS: Mapping[str, Callable[[Path], Lake]] = {
    "appended": _appended,
    "in pieces": _in_pieces,
    "replaced": _replaced,
    "joined": _joined,
    "sorted": _sorted,
    "reshaped": _reshaped,
    "taken over": _taken_over,
    EARLIER: _of_an_earlier_version,
}
_PYTHON = {"=": operator.eq, "<": operator.lt, ">": operator.gt, ">=": operator.ge}


def in_sql(condition: Condition) -> str:
    """Return a condition in the SQL that DuckDB, Spark and delta-rs share."""
    column, symbol, value = condition
    if value is None:
        return f"{column} IS NULL"
    if isinstance(value, bytes):
        return f"{column} {symbol} X'{value.hex()}'"
    if isinstance(value, datetime):
        return f"{column} {symbol} TIMESTAMP '{value.replace(tzinfo=None).isoformat()}Z'"
    if isinstance(value, date):
        return f"{column} {symbol} DATE '{value}'"
    if isinstance(value, float):
        return f"{column} {symbol} CAST('{value}' AS DOUBLE)"
    return f"{column} {symbol} '{value}'" if isinstance(value, str) else f"{column} {symbol} {value}"


def in_arrow(condition: Condition) -> pc.Expression:
    column, symbol, value = condition
    field = pc.field(*column.split("."))
    return field.is_null() if value is None else _PYTHON[symbol](field, pa.scalar(value))


def in_polars(condition: Condition) -> pl.Expr:
    column, symbol, value = condition
    name, *part = column.split(".")
    field = pl.col(name).struct.field(part[0]) if part else pl.col(name)
    expression: pl.Expr = field.is_null() if value is None else _PYTHON[symbol](field, pl.lit(value))
    return expression


class ByDuckDB:
    """DuckDB over Arrow's rows."""

    def __init__(self, rows: Any) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.register("t", rows)

    def __call__(self, condition: Condition) -> int:
        text = in_sql(condition).replace("TIMESTAMP '", "TIMESTAMPTZ '")
        if "X'" in text:
            before, _, digits = text.partition("X'")
            text = f"{before}from_hex('{digits})"
        return int(self._connection.sql(f"SELECT count(*) FROM t WHERE {text}").fetchall()[0][0])


def by_delta_sql(table: QueryBuilder, condition: Condition) -> int:
    column, symbol, value = condition
    text = in_sql(condition)
    if isinstance(value, datetime):  # a plain literal has nanoseconds, which reach from 1677 to 2262
        text = f"{column} {symbol} arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    rows = table.execute(f"SELECT count(*) AS n FROM t WHERE {text}").read_all()
    return int(pa.table(rows)["n"][0].as_py())


def by_polars(rows: pl.LazyFrame, condition: Condition) -> int:
    return int(rows.filter(in_polars(condition)).select(pl.len()).collect().item())
