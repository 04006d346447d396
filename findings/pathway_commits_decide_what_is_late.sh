#!/usr/bin/env bash
# Pathway: whether a row is late depends on the commit that brings it, and a behavior of a session has no effect.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pathway==0.33.0
"$folder/venv/bin/python" - <<'PYTHON'
import logging
from datetime import timedelta
from importlib.metadata import version

import pathway as pw

logging.disable(logging.INFO)
print("pathway", version("pathway"))
ROWS = ("2026-01-05T12:01:00+00:00", "2026-01-05T12:09:00+00:00", "2026-01-05T12:02:00+00:00")


class Event(pw.Schema):
    at: str


def windows(window: pw.temporal.Window, behavior: object, *, commits: bool) -> list[tuple[str, int]]:
    """Return start and count of the windows of three rows, the last of them late: in a commit each, or in one."""
    rows = [(at, 2 + 2 * place * commits, 1) for place, at in enumerate(ROWS)]
    events = pw.debug.table_from_rows(Event, rows, is_stream=True)
    events = events.select(at=pw.this.at.dt.strptime("%Y-%m-%dT%H:%M:%S%z"))
    grouped = events.windowby(events.at, window=window, behavior=behavior)
    result = grouped.reduce(start=pw.this._pw_window_start, count=pw.reducers.count())
    frame = pw.debug.table_to_pandas(result, include_id=False)
    return sorted((f"{start:%H:%M}", count) for start, count in frame.itertuples(index=False))


minutes, cutoff = timedelta(minutes=5), pw.temporal.common_behavior(cutoff=timedelta(0))
apart = windows(pw.temporal.tumbling(duration=minutes), cutoff, commits=True)
together = windows(pw.temporal.tumbling(duration=minutes), cutoff, commits=False)
with_cutoff = windows(pw.temporal.session(max_gap=minutes), cutoff, commits=True)
without = windows(pw.temporal.session(max_gap=minutes), None, commits=True)
print("tumbling, cutoff 0, a commit for each row:", apart)
print("tumbling, cutoff 0, the same rows in one commit:", together)
print("sessions with cutoff 0:", with_cutoff, "and without a behavior:", without)
as_described = apart == [("12:00", 1), ("12:05", 1)] and together == [("12:00", 2), ("12:05", 1)]
as_described &= with_cutoff == without == [("12:01", 2), ("12:09", 1)]
raise SystemExit(0 if as_described else 1)
PYTHON
