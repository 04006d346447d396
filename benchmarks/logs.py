"""Arrival logs of any length, the same on every machine: a payload of three columns, a few events late.

Here: making them as Delta tables. Not here: what is measured on them.
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

LATE_PER_THOUSAND = 23
JITTER_MS = 5_000  # events come up to so much after their time, as the out-of-orderness allows
STEP_MS = 10  # from one arrival to the next

_START_MS = 1_767_225_600_000  # 2026-01-01


def log_of(spark: SparkSession, folder: Path, events: int, timelines: int) -> DataFrame:
    """A log in a Delta table, made unless it is there.

    Args:
        spark: The session.
        folder: Where logs are kept from one run to the next.
        events: How many.
        timelines: How many values the column `k` has.

    Returns:
        Columns of the arrival log and `t` TIMESTAMP, `k` STRING, `v` DOUBLE.
    """
    path = folder / f"log_{events}_{timelines}"
    if not (path / "_delta_log").exists():
        _make(spark, events, timelines).write.format("delta").save(str(path))
    return spark.read.format("delta").load(str(path))


def _make(spark: SparkSession, events: int, timelines: int) -> DataFrame:
    def chance(salt: int, below: int) -> str:
        return f"pmod(xxhash64(id, {salt}), {below})"

    late = f"IF({chance(1, 1000)} < {LATE_PER_THOUSAND}, 1000 * (10 + {chance(2, 590)}), 0)"
    arrival = f"{_START_MS} + id * {STEP_MS}"
    return spark.range(events).select(
        F.expr(f"timestamp_millis({arrival} - {chance(3, JITTER_MS)} - {late})").alias("t"),
        F.expr(f"concat('k', {chance(4, timelines)})").alias("k"),
        F.expr(f"{chance(5, 100_000)} / 100D").alias("v"),
        F.col("id").alias("_arrival_seq"),
        F.expr(f"timestamp_millis({arrival})").alias("_arrival_time"),
        F.expr(f"timestamp_millis({arrival})").alias("_clock"),
        F.lit("s").alias("_source"),
        F.lit(None).cast("string").alias("_split"),
        F.col("id").alias("_position"),
        F.lit("f").alias("_file"),
        F.lit(None).cast("string").alias("_malformed"),
        F.lit(0).cast("bigint").alias("_batch_id"),
    )
