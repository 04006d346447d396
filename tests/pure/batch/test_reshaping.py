"""Columns of tables: their types in words, and what rows have after a changed spec, which is maintenance."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tidemark.resources.delta.columns import fit, sql_types_of
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.undoing import same_rows, take_back

BEFORE = pa.schema(
    {
        "n": pa.int32(),
        "x": pa.float32(),
        "cost": pa.decimal128(5, 2),
        "day": pa.date32(),
        "list": pa.list_(pa.int16()),
        "gone": pa.string(),
    }.items()
)
NOW = pa.schema(
    {
        "n": pa.int64(),
        "x": pa.float64(),
        "cost": pa.decimal128(9, 4),
        "day": pa.timestamp("us", "UTC"),
        "list": pa.list_(pa.int64()),
        "more": pa.string(),
    }.items()
)
ROWS: list[dict[str, Any]] = [
    {"n": 1, "x": 0.1, "cost": Decimal("1.25"), "day": date(2026, 3, 29), "list": [1, None], "gone": "a"},
    {"n": None, "x": None, "cost": None, "day": None, "list": None, "gone": None},
    {"n": 2, "x": 0.5, "cost": Decimal("0"), "day": date(1, 1, 1), "list": [], "gone": "c"},
]


def test_rows_before_get_wider_types_and_nulls_and_the_table_stays_one_that_all_can_read(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "shop")
    lake.create("events", BEFORE)
    written = lake.append_rows("events", pa.Table.from_pylist(ROWS, schema=BEFORE), expect=0, attempt=1)
    assert fit(lake, "events", NOW, "Europe/Berlin")
    first = {
        "n": 1,
        "x": 0.10000000149011612,
        "cost": Decimal("1.2500"),
        "day": datetime(2026, 3, 28, 23, tzinfo=UTC),
        "list": [1, None],
        "gone": "a",
        "more": None,
    }
    # In Berlin the year 1 began before that of UTC, which no instant may.
    last = {"n": 2, "x": 0.5, "cost": Decimal("0"), "day": None, "list": [], "gone": "c", "more": None}
    assert lake.rows("events").to_pylist() == [first, dict.fromkeys(first), last]
    assert lake.columns("events")["day"] == "timestamp"
    protocol = lake.open("events").protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
    version = lake.version("events")
    assert not fit(lake, "events", NOW, "Europe/Berlin")
    assert lake.version("events") == version, "there is nothing more to do"
    assert same_rows(lake, "events", written.version)[0] == version, "it counts as maintenance"


def test_what_an_unfinished_batch_wrote_is_taken_back_and_the_columns_stay(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "shop")
    lake.create("events", BEFORE)
    written = lake.append_rows("events", pa.Table.from_pylist(ROWS, schema=BEFORE), expect=0, attempt=1)
    fit(lake, "events", NOW, "UTC")
    fitted = lake.version("events")
    fresh = pa.Table.from_pylist([{"n": 3_000_000_000, "more": "m"}], schema=NOW)
    lake.append_rows("events", fresh, expect=fitted, attempt=2)
    assert lake.rows("events").num_rows == 4
    take_back(lake, "events", written.version, 3)
    assert [row["n"] for row in lake.rows("events").to_pylist()] == [1, None, 2]
    assert "more" in lake.columns("events")


def test_types_are_written_as_in_spark_sql(tmp_path: Path) -> None:
    spans = pa.list_(pa.struct([("start", pa.timestamp("us", "UTC")), ("n", pa.int64())]))
    kinds = {"a": pa.int32(), "b": pa.decimal128(9, 2), "c": spans, "d": pa.map_(pa.string(), pa.int8())}
    write_deltalake(tmp_path, pa.table({name: pa.array([], kind) for name, kind in kinds.items()}))
    assert sql_types_of(DeltaTable(tmp_path).schema()) == {
        "a": "int",
        "b": "decimal(9,2)",
        "c": "array<struct<start: timestamp, n: bigint>>",
        "d": "map<string, tinyint>",
    }
