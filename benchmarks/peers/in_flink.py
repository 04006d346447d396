"""The job in Flink SQL: all files that are there, windows of a minute by key, to Parquet; in streaming mode.

Its watermark is published every 200 ms of processing or event time; an event that finds its window closed is dropped,
and only a metric counts it. Files are read in the order in which Flink hands them out, by several readers at once.
"""

import argparse
import os
import sys
from pathlib import Path

# Parquet files are opened through Hadoop's classes, which Flink does not bring along; read when its JVM starts.
os.environ.setdefault("HADOOP_CLASSPATH", f"{Path(sys.prefix) / 'hadoop'}/*")

from pyflink.table import EnvironmentSettings, TableEnvironment

FORMATS = {
    "parquet": "'format' = 'parquet', 'parquet.utc-timezone' = 'true'",
    "json": "'format' = 'json', 'json.timestamp-format.standard' = 'ISO-8601'",
}
EVENTS = """
CREATE TABLE events (
    `t` TIMESTAMP_LTZ(6), `k` {key_type}, `v` DOUBLE,
    `instant` AS CAST(`t` AS TIMESTAMP_LTZ(3)),
    WATERMARK FOR `instant` AS `instant` - INTERVAL '5' SECOND
) WITH ('connector' = 'filesystem', 'path' = 'file://{files}', {format})
"""
WINDOWS = """
CREATE TABLE windows (
    `window_start` TIMESTAMP(3), `k` {key_type}, `n` BIGINT,
    `total` DOUBLE, `lowest` DOUBLE, `highest` DOUBLE, `mean` DOUBLE
) WITH ('connector' = 'filesystem', 'path' = 'file://{out}', 'format' = 'parquet', 'parquet.utc-timezone' = 'true')
"""
QUERY = """
INSERT INTO windows
SELECT `window_start`, `k`, COUNT(*), SUM(`v`), MIN(`v`), MAX(`v`), AVG(`v`)
FROM TUMBLE(TABLE events, DESCRIPTOR(`instant`), INTERVAL '1' MINUTE)
GROUP BY `window_start`, `window_end`, `k`
"""


def main() -> None:
    """Runs it to the end of the files."""
    parser = argparse.ArgumentParser()
    for name in ("files", "kind", "out"):
        parser.add_argument(name)
    parser.add_argument("--key-type", default="STRING", help="of the column `k`")
    parser.add_argument("--parallelism", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", str(asked.parallelism))
    tables.get_config().set("table.local-time-zone", "UTC")
    tables.execute_sql(EVENTS.format(files=asked.files, format=FORMATS[asked.kind], key_type=asked.key_type))
    tables.execute_sql(WINDOWS.format(out=asked.out, key_type=asked.key_type))
    tables.execute_sql(QUERY).wait()


if __name__ == "__main__":
    main()
