#!/usr/bin/env bash
# Spark: rows that were persisted of a file are returned for another file at the same path, to any reader in that Spark.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0 pyarrow==26.0.1
(cd "$folder" && ./venv/bin/python - 2>log.txt) <<'PYTHON'
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("pyspark", spark.version, "- a file of 3 rows is persisted, deleted, and replaced by one of 17")


def read(session: SparkSession, path: str, rows: int) -> DataFrame:
    Path(path).unlink(missing_ok=True)
    pq.write_table(pa.table({"n": pa.array(range(rows), pa.int64())}), path)
    return session.read.schema("n BIGINT").parquet(path)


read(spark, "same.parquet", 3).persist().count()
same = read(spark, "same.parquet", 17).count()
other_session = read(spark.newSession(), "same.parquet", 17).count()
other_path = read(spark, "other.parquet", 17).count()
print(f"rows at the same path: {same}; in a new session: {other_session}; at another path: {other_path}")
sys.exit(0 if (same, other_session, other_path) == (3, 3, 17) else 1)
PYTHON
