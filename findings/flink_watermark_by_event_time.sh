#!/usr/bin/env bash
# Flink SQL over files: a rise of more than 200 ms of event time emits a watermark, whatever the machine's clock says.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet apache-flink==2.3.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

print("apache-flink", version("apache-flink"), "- pipeline.auto-watermark-interval is 200 ms")


def first_minute(*seconds: str) -> int:
    """Return the count of the minute 10:00 of rows that one file brings at once, WATERMARK FOR ts AS ts."""
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    table.get_config().set("parallelism.default", "1")
    source = Path(sys.argv[1]) / "events.csv"
    source.write_text("".join(f"2026-01-05 10:{second}\n" for second in seconds))
    table.execute_sql(
        "CREATE TABLE events (ts TIMESTAMP(3), WATERMARK FOR ts AS ts)"
        f" WITH ('connector' = 'filesystem', 'path' = '{source}', 'format' = 'csv')"
    )
    minutes = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) GROUP BY window_start, window_end"
    with table.execute_sql(f"SELECT window_start, COUNT(*) FROM {minutes}").collect() as rows:
        return {str(row[0]): row[1] for row in rows}["2026-01-05 10:00:00"]


by_minutes = first_minute("00:05.000", "02:00.000", "00:30.000", "01:55.000")
by_200_ms = first_minute("00:59.900", "01:00.100", "00:59.950", "05:00.000")
by_201_ms = first_minute("00:59.900", "01:00.101", "00:59.950", "05:00.000")
print("10:00:05, 10:02:00, then 10:00:30: the minute 10:00 counts", by_minutes)
print("after a rise of 200 ms to 10:01:00.100, then 10:00:59.950: it counts", by_200_ms)
print("after a rise of 201 ms to 10:01:00.101, then 10:00:59.950: it counts", by_201_ms)
raise SystemExit(0 if (by_minutes, by_200_ms, by_201_ms) == (1, 2, 1) else 1)
PYTHON
