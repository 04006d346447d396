"""Columns of a Delta table as people and Spark SQL write them."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tidemark.resources.delta.columns import sql_types_of


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
