"""The join in DuckDB: each left event with the last right one of its key, at most an hour old, to Parquet.

All events count, as none of them is late. No log, no state, no revisions are kept: what one machine needs at least.
"""

import argparse
import os
from pathlib import Path

import duckdb

QUERY = """
COPY (
    SELECT l.t, l.k, l.v,
        CASE WHEN l.t - r.t <= INTERVAL 1 HOUR THEN r.t END AS right_t,
        CASE WHEN l.t - r.t <= INTERVAL 1 HOUR THEN r.bid END AS bid
    FROM read_parquet('{files}/left/*') AS l
    ASOF LEFT JOIN read_parquet('{files}/right/*') AS r ON l.k = r.k AND l.t >= r.t
) TO '{out}/joined.parquet' (FORMAT parquet)
"""


def main() -> None:
    """Runs the query."""
    parser = argparse.ArgumentParser()
    for name in ("files", "kind", "out"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    Path(asked.out).mkdir(parents=True, exist_ok=True)
    with duckdb.connect(config={"threads": asked.threads}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(QUERY.format(files=asked.files, out=asked.out))


if __name__ == "__main__":
    main()
