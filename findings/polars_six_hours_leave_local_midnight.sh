#!/usr/bin/env bash
# Polars: after the clocks are moved, windows of 6 hours of group_by_dynamic begin at 01:00, and their bounds depend on the first row.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 tzdata
"$folder/venv/bin/python" - <<'PYTHON'
from datetime import UTC, datetime, timedelta

import polars as pl

print("polars", pl.__version__)
as_described = True
for zone, change, moved in (
    ("America/New_York", (2026, 3, 8), ["01:00", "07:00", "13:00", "19:00"]),
    ("Europe/Berlin", (2026, 10, 25), ["05:00", "11:00", "17:00", "23:00"]),
):
    first = datetime(*change, 12, tzinfo=UTC) - timedelta(days=1)
    instants = [first + timedelta(minutes=15 * step) for step in range(4 * 96)]
    rows = pl.DataFrame({"at": instants}).with_columns(pl.col("at").dt.convert_time_zone(zone))
    last_day = rows[2 * 96 :]
    starts = {}
    for name, part in (("all rows", rows), ("rows of the last days alone", last_day)):
        windows = part.group_by_dynamic("at", every="6h").agg(pl.len()).filter(pl.col("at") >= last_day["at"][0])
        starts[name] = sorted({start.strftime("%H:%M") for start in windows["at"]})
        print(f"{zone}, group_by_dynamic(every='6h') of {name}: windows of these days begin at {starts[name]}")
    truncated = sorted({start.strftime("%H:%M") for start in rows["at"].dt.truncate("6h")})
    print(f"{zone}, dt.truncate('6h'): windows begin at {truncated}")
    as_described &= starts["all rows"] == moved and starts["rows of the last days alone"] == truncated == ["00:00", "06:00", "12:00", "18:00"]
raise SystemExit(0 if as_described else 1)
PYTHON
