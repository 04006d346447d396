"""The job in Polars: the exact rule over the whole input in one query, windows of a minute by key, to Parquet.

The watermark before an event is the largest time so far, in order of arrival, less 5 seconds; an event below it is
dropped. Windows that the last watermark has not passed are left out. No log, no state, no refusals are kept: what one
machine needs at least.
"""

import argparse
import os
from datetime import timedelta
from pathlib import Path


def main() -> None:
    """Runs the query."""
    parser = argparse.ArgumentParser()
    for name in ("files", "kind", "out"):
        parser.add_argument(name)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    os.environ["POLARS_MAX_THREADS"] = str(asked.threads)  # read when Polars is imported
    import polars as pl  # noqa: PLC0415

    out = Path(asked.out)
    out.mkdir(parents=True, exist_ok=True)
    if asked.kind == "json":
        texts = pl.scan_ndjson(
            f"{asked.files}/*", schema={"t": pl.String, "k": pl.String, "v": pl.Float64, "at": pl.String}
        )
        events = texts.with_columns(pl.col("t", "at").str.to_datetime("%Y-%m-%dT%H:%M:%S%.6fZ", time_unit="us"))
    else:
        events = pl.scan_parquet(f"{asked.files}/*")
    delay, size = timedelta(seconds=5), timedelta(minutes=1)
    watermark = pl.col("t").cum_max() - delay
    start = pl.col("t").dt.truncate("1m").alias("window_start")
    last = watermark.last()
    windows = (
        events.sort("at")
        .with_columns(watermark.shift(1).alias("before"), last.alias("last"))
        .filter(pl.col("before").is_null() | (pl.col("t") >= pl.col("before")))
        .filter(pl.col("t").dt.truncate("1m") + size <= pl.col("last"))
        .group_by(start, "k")
        .agg(
            pl.len().alias("n"),
            pl.col("v").sum().alias("total"),
            pl.col("v").min().alias("lowest"),
            pl.col("v").max().alias("highest"),
            pl.col("v").mean().alias("mean"),
        )
    )
    windows.collect().write_parquet(out / "windows.parquet")


if __name__ == "__main__":
    main()
