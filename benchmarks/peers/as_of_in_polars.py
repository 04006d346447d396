"""The join in Polars: each left event with the last right one of its key, at most an hour old, to Parquet.

All events count, as none of them is late. No log, no state, no revisions are kept: what one machine needs at least.
"""

import argparse
import os
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
    left = pl.scan_parquet(f"{asked.files}/left/*").select("t", "k", "v").sort("t")
    right = pl.scan_parquet(f"{asked.files}/right/*").select("t", "k", "bid", right_t="t").sort("t")
    joined = left.join_asof(right, on="t", by="k", strategy="backward", tolerance="1h")
    joined.collect().write_parquet(out / "joined.parquet")


if __name__ == "__main__":
    main()
