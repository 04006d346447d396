"""Events of any number, the same on every machine: a payload of three columns, a few events late.

Here: making them as a Delta log, as files, and as small files; the Spark that makes and reads them. Not
here: what is measured on them.
"""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.resources.spark.session import local_session, session_config
from tidemark.timeops.computing.materialize import Stored

LATE_PER_THOUSAND = 23
JITTER_MS = 5_000  # events come up to so much after their time, as the out-of-orderness allows
STEP_MS = 10  # from one arrival to the next
TIMELINES = 1_000  # values of `k` in the files
FILES = 8
KEYS = {"text": "STRING", "integer": "BIGINT"}
"""Kinds of keys that files may have, and the type of their column `k`."""

_START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000


def spark_of_two_cores(memory: str = "4g") -> SparkSession:
    """Return a session in this process, the same on every machine."""
    return local_session(session_config() | {"spark.master": "local[2]", "spark.driver.memory": memory})


def log_of(spark: SparkSession, folder: Path, events: int, timelines: int) -> DataFrame:
    """Return a log in a Delta table of a folder, made unless it is there; `timelines` is how many values `k` has.

    Returns:
        Columns of the arrival log and `t` TIMESTAMP, `k` STRING, `v` DOUBLE.
    """
    path = folder / log_name(events, timelines)
    if not (path / "_delta_log").exists():
        _make(spark, events, timelines).write.format("delta").save(str(path))
    return spark.read.format("delta").load(str(path))


def stored_log(folder: Path, events: int, timelines: int) -> Stored:
    """Reads columns of such a log without Spark, as a batch does."""
    rows = DeltaTable(folder / log_name(events, timelines)).to_pyarrow_dataset()
    return lambda columns: rows.to_batches(columns=list(columns))


def log_name(events: int, timelines: int) -> str:
    """Return the folder of a log among the others."""
    return f"log_{events}_{timelines}"


def schema_of(keys: str = "text") -> str:
    """Return the columns of files with one of the KEYS; `at` is the arrival."""
    return f"t TIMESTAMP, k {KEYS[keys]}, v DOUBLE, at TIMESTAMP"


def files_of(folder: Path, events: int, kind: str, *, files: int = FILES, keys: str = "text") -> Path:
    """Return the same events in files one after another, as their arrivals are; made unless they are there.

    Names and times of change are in the order of the arrivals, as readers go by one or the other. The kind is
    `parquet` or `json`, which is a JSON object a line; the keys are one of KEYS.

    Returns:
        Their folder, with nothing else in it.
    """
    parts = "" if files == FILES else f"_in_{files}"
    with_keys = "" if keys == "text" else f"_{keys}_keys"
    path = folder / f"files_{events}_{kind}{parts}{with_keys}"
    if not path.exists():
        spark = spark_of_two_cores()
        log = _make(spark, events, TIMELINES)
        key = "k" if keys == "text" else "CAST(substr(k, 2) AS BIGINT) AS k"
        log = log.selectExpr("t", key, "v", "_arrival_time AS at", "_arrival_seq")
        rows = log.repartitionByRange(files, "_arrival_seq").sortWithinPartitions("_arrival_seq").drop("_arrival_seq")
        writer = rows.write.option("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX")
        unfinished = path.with_name(f"{path.name}.unfinished")
        writer.format(kind).mode("overwrite").save(str(unfinished))
        spark.stop()
        for extra in unfinished.glob("[._]*"):
            extra.unlink()
        unfinished.rename(path)
    for number, file in enumerate(sorted(path.iterdir())):
        changed_s = _START_MS // 1_000 + number
        os.utime(file, (changed_s, changed_s))
    return path


def land_lines(file: Path, start: datetime, step: timedelta, events: int) -> None:
    """Write events of fifty keys at equal distances as JSON lines: `at`, `k` and `v`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ({"at": (start + i * step).isoformat(), "k": f"k{i % 50}", "v": i % 7} for i in range(events))
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def land_busy_keys(folder: Path, first: int, events: int, name: str) -> None:
    """Writes events ten milliseconds apart, of a hundred keys, each busy for five seconds; a file appears whole."""
    number = np.arange(first, first + events)
    rows = pa.table(
        {
            "at": pa.array((_START_MS + number * STEP_MS) * 1_000, pa.timestamp("us", "UTC")),
            "k": pa.array(np.char.add("k", (number // 500 % 100).astype(str))),
            "v": pa.array(number % 997),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / f".{name}")
    (folder / f".{name}").rename(folder / name)


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
