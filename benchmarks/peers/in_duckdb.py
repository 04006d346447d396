"""The job in DuckDB: the exact rule over the whole input in one query, windows of a minute by key, to Parquet.

The watermark before an event is the largest time so far, in order of arrival, less 5 seconds; an event below it is
dropped. Windows that the last watermark has not passed are left out. No log, no state, no refusals are kept: what one
machine needs at least.
"""

import argparse
import os
from pathlib import Path

import duckdb

JSON_COLUMNS = (
    "columns = {t: 'TIMESTAMPTZ', k: 'VARCHAR', v: 'DOUBLE', \"at\": 'TIMESTAMPTZ'}, format = 'newline_delimited'"
)
QUERY = """
COPY (
    WITH arrived AS (SELECT t, k, v FROM {read} ORDER BY "at"),
    judged AS (
        SELECT *, max(t) OVER (ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) - INTERVAL 5 SECOND AS watermark
        FROM arrived
    ),
    accepted AS (
        SELECT time_bucket(INTERVAL 1 MINUTE, t) AS window_start, k, v FROM judged
        WHERE watermark IS NULL OR t >= watermark
    )
    SELECT window_start, k, count(*) AS n, sum(v) AS total, min(v) AS lowest, max(v) AS highest, avg(v) AS mean
    FROM accepted
    WHERE window_start + INTERVAL 1 MINUTE <= (SELECT max(t) - INTERVAL 5 SECOND FROM {read})
    GROUP BY window_start, k
) TO '{out}/windows.parquet' (FORMAT parquet)
"""


def main() -> None:
    """Runs the query."""
    parser = argparse.ArgumentParser()
    for name in ("files", "kind", "out"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    Path(asked.out).mkdir(parents=True, exist_ok=True)
    options = f", {JSON_COLUMNS}" if asked.kind == "json" else ""
    read = f"read_{asked.kind}('{asked.files}/*'{options})"
    with duckdb.connect(config={"threads": asked.threads}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(QUERY.format(read=read, out=asked.out))


if __name__ == "__main__":
    main()
