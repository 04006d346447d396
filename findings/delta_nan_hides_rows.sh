#!/usr/bin/env bash
# deltalake: pyarrow and DuckDB over a table of Spark find no row equal to 1.0 where a file also holds NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0 delta-spark==4.4.0 deltalake==1.6.6 pyarrow==26.0.1 duckdb==2.0.0 polars==2.1.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from importlib.metadata import version

import duckdb
import polars as pl
import pyarrow.compute as pc
from delta import configure_spark_with_delta_pip
from deltalake import DeltaTable
from pyspark.sql import SparkSession

TABLE = f"{sys.argv[1]}/table"
print(*(f"{name} {version(name)}" for name in ("pyspark", "delta-spark", "deltalake", "pyarrow", "duckdb", "polars")))
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
spark = configure_spark_with_delta_pip(builder).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sql("SELECT * FROM VALUES (1.0D), (7.0D), (double('NaN')) AS t(v)").coalesce(1).write.format("delta").save(TABLE)
dataset = DeltaTable(TABLE).to_pyarrow_dataset()
found = {
    "Spark": spark.read.format("delta").load(TABLE).where("v = 1.0").count(),
    "polars": pl.scan_delta(TABLE).filter(pl.col("v") == 1.0).collect().height,
    "to_pyarrow_dataset": dataset.filter(pc.field("v") == 1.0).count_rows(),
    "DuckDB over it": duckdb.sql("SELECT v FROM dataset WHERE v = 1.0").fetchall().__len__(),
}
print("rows with v = 1.0 of one file with 1.0, 7.0 and NaN:", found)
raise SystemExit(0 if found == {"Spark": 1, "polars": 1, "to_pyarrow_dataset": 0, "DuckDB over it": 0} else 1)
PYTHON
