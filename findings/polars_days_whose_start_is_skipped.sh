#!/usr/bin/env bash
# Polars: where the clocks skip midnight, the last hour before the change is in no window of a day.
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
for zone, change in (("Africa/Cairo", (2026, 4, 24)), ("Asia/Beirut", (2026, 3, 29)), ("America/Santiago", (2026, 9, 6))):
    first = datetime(*change, tzinfo=UTC) - timedelta(days=1)
    instants = [first + timedelta(minutes=15 * step) for step in range(3 * 96)]
    rows = pl.DataFrame({"at": instants}).with_columns(pl.col("at").dt.convert_time_zone(zone))
    days = rows.group_by_dynamic("at", every="1d").agg(pl.len())
    truncated = rows.group_by(pl.col("at").dt.truncate("1d")).agg(pl.len())
    print(f"{zone}: {rows.height} rows, {days['len'].sum()} in the days of group_by_dynamic,", end=" ")
    print(f"{truncated['len'].sum()} in those of dt.truncate; day begins at {days['at'].dt.to_string('%d %H:%M').to_list()}")
    as_described &= days["len"].sum() == rows.height - 4 and truncated["len"].sum() == rows.height
raise SystemExit(0 if as_described else 1)
PYTHON
