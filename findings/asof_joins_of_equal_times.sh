#!/usr/bin/env bash
# Polars, pandas and DuckDB: an as-of join picks another row of equal times, and another of two that are equally near.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet polars==2.1.0 pandas==3.1.1 duckdb==2.0.0
"$folder/venv/bin/python" - <<'PYTHON'
from datetime import datetime

import duckdb
import pandas as pd
import polars as pl

print("polars", pl.__version__, "pandas", pd.__version__, "duckdb", duckdb.__version__)
left = {"at": [datetime(2026, 1, 5, 12, 10)]}
ties = {"at": [datetime(2026, 1, 5, 12, 8)] * 3, "quote": ["first", "second", "third"]}
near = {"at": [datetime(2026, 1, 5, 12, 8), datetime(2026, 1, 5, 12, 12)], "quote": ["before", "after"]}


def by_polars(right: dict, strategy: str) -> str:
    return pl.DataFrame(left).join_asof(pl.DataFrame(right), on="at", strategy=strategy)["quote"].item()


def by_pandas(right: dict, direction: str) -> str:
    return pd.merge_asof(pd.DataFrame(left), pd.DataFrame(right), on="at", direction=direction)["quote"].item()


events, quotes = pd.DataFrame(left), pd.DataFrame(ties)
[(by_duckdb,)] = duckdb.sql("SELECT quote FROM events ASOF JOIN quotes ON events.at >= quotes.at").fetchall()
equal = (by_polars(ties, "backward"), by_pandas(ties, "backward"), by_duckdb)
nearest = (by_polars(near, "nearest"), by_pandas(near, "nearest"))
print("three rows of one time:", dict(zip(("polars", "pandas", "duckdb"), equal)))
print("nearest, two minutes before or after:", dict(zip(("polars", "pandas"), nearest)))
raise SystemExit(0 if equal == ("third", "third", "first") and nearest == ("after", "before") else 1)
PYTHON
