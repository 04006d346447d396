#!/usr/bin/env bash
# Flink SQL: windows of a TIMESTAMP_LTZ column lose ordered events in a zone whose midnight is off the grid of UTC.
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

print("apache-flink", version("apache-flink"))
QUARTERS = [1767571200000 + 900_000 * quarter for quarter in range(576)]  # from 2026-01-05T00:00Z, in order
SOURCE = Path(sys.argv[1]) / "events.csv"
SOURCE.write_text("".join(f"{ms}\n" for ms in QUARTERS))
WINDOWS = "TABLE(TUMBLE(TABLE events, DESCRIPTOR(ts), INTERVAL '1' DAY)) GROUP BY window_start, window_end"
QUERIES = {"TUMBLE": f"SELECT COUNT(*) FROM {WINDOWS}", "GROUP BY TUMBLE": "SELECT COUNT(*) FROM events GROUP BY TUMBLE(ts, INTERVAL '1' DAY)"}


def counted(zone: str, query: str) -> int:
    table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    for key, value in {"parallelism.default": "1", "table.local-time-zone": zone}.items():
        table.get_config().set(key, value)
    table.execute_sql(
        "CREATE TABLE events (ms BIGINT, ts AS TO_TIMESTAMP_LTZ(ms, 3), WATERMARK FOR ts AS ts)"
        f" WITH ('connector' = 'filesystem', 'path' = '{SOURCE}', 'format' = 'csv')"
    )
    with table.execute_sql(query).collect() as rows:
        return sum(row[0] for row in rows)


found = {
    "UTC": counted("UTC", QUERIES["TUMBLE"]),
    "America/New_York": counted("America/New_York", QUERIES["TUMBLE"]),
    "Asia/Shanghai": counted("Asia/Shanghai", QUERIES["TUMBLE"]),
    "Asia/Shanghai, GROUP BY TUMBLE": counted("Asia/Shanghai", QUERIES["GROUP BY TUMBLE"]),
}
print("of 576 ordered events, counted in days by table.local-time-zone:", found)
lost = found.pop("Asia/Shanghai")
raise SystemExit(0 if lost < 576 and set(found.values()) == {576} else 1)
PYTHON
