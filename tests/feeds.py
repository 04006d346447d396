"""The change feed of a table as its readers see it, summed up to rows."""

import json
from collections import Counter

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.resources.places.place import Place, delta_place

OF_FEED = ("_change_type", "_commit_version", "_commit_timestamp")
SIGN = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
Rows = Counter[str]


def changes(folder: Place, after: int, until: int) -> pa.Table:
    """Return what delta-rs reads of the versions after one, up to another."""
    if after == until:
        return pa.table({})
    return pa.table(DeltaTable(**delta_place(folder)).load_cdf(after + 1, until))


def net(folder: Place, after: int, until: int) -> Rows:
    """Return how often each row came, less how often it went, without rows that came as often as they went."""
    found: Rows = Counter()
    for change in changes(folder, after, until).to_pylist():
        found[text(change)] += SIGN[change["_change_type"]]
    return Counter({row: count for row, count in found.items() if count})


def net_by_spark(spark: SparkSession, folder: Place, after: int, until: int) -> Rows:
    """Return the same by Spark's reader."""
    if after == until:
        return Counter()
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", after + 1)
    rows = feed.option("endingVersion", until).load(str(folder))
    signed = F.when(F.col("_change_type").isin("insert", "update_postimage"), 1).otherwise(-1)
    found: Rows = Counter()
    for change in rows.withColumn("sign", signed).toArrow().to_pylist():
        sign = change.pop("sign")
        found[text(change)] += sign
    return Counter({row: count for row, count in found.items() if count})


def rows_at(folder: Place, version: int) -> Rows:
    """Return the rows of a version."""
    return Counter(map(text, DeltaTable(**delta_place(folder), version=version).to_pyarrow_table().to_pylist()))


def between(folder: Place, after: int, until: int) -> Rows:
    """Return the rows that only the later of two versions has, less the rows that only the earlier has."""
    found = rows_at(folder, until)
    found.subtract(rows_at(folder, after))
    return Counter({row: count for row, count in found.items() if count})


def text(row: dict[str, object]) -> str:
    """Return a row without what the feed says of it; the entries of a map come in any order."""
    values = {
        name: sorted(map(str, value)) if isinstance(value, list) else value
        for name, value in row.items()
        if name not in OF_FEED
    }
    return json.dumps(values, default=str, sort_keys=True)
