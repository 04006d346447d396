#!/usr/bin/env bash
# DuckDB: date_trunc makes one hour of the two that the clocks repeat, time_bucket makes two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet duckdb==2.0.0 pytz
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb

print("duckdb", duckdb.__version__)
duckdb.sql("SET TimeZone = 'Europe/Berlin'")
rows = "(SELECT TIMESTAMPTZ '2026-10-24 23:00:00Z' + quarter * INTERVAL 15 MINUTE AS ts FROM range(16) AS r(quarter))"


def counts(hour: str) -> list[int]:
    return [count for _, count in duckdb.sql(f"SELECT {hour}, count(*) FROM {rows} GROUP BY 1 ORDER BY 1").fetchall()]


truncated, buckets = counts("date_trunc('hour', ts)"), counts("time_bucket(INTERVAL 1 HOUR, ts, 'Europe/Berlin')")
print("four hours of four rows in the night of 2026-10-25, 02:00 comes twice")
print("date_trunc('hour', ts):", truncated)
print("time_bucket(INTERVAL 1 HOUR, ts, 'Europe/Berlin'):", buckets)
raise SystemExit(0 if truncated == [4, 8, 4] and buckets == [4, 4, 4, 4] else 1)
PYTHON
