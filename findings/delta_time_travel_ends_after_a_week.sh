#!/usr/bin/env bash
# Delta Lake: a version older than a week cannot be read by time travel, though nothing was vacuumed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0 delta-spark==4.4.0 deltalake==1.6.6 pyarrow==26.0.1
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import deltalake
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

TABLE = Path(sys.argv[1]) / "table"
WEEK_MS = 7 * 24 * 3600 * 1000
print(*(f"{name} {version(name)}" for name in ("pyspark", "delta-spark", "deltalake")))
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
builder = builder.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
spark = configure_spark_with_delta_pip(builder).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
for number in range(2):
    spark.range(number, number + 1).write.format("delta").mode("append").save(str(TABLE))
for age, commit in ((9, "00000000000000000000.json"), (8, "00000000000000000001.json")):  # as if made that long ago
    path = TABLE / "_delta_log" / commit
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] -= age * WEEK_MS // 7
    path.write_text("".join(json.dumps(action) + "\n" for action in actions))
    made = actions[0].get("commitInfo", actions[-1].get("commitInfo"))["timestamp"] / 1000
    os.utime(path, (made, made))
    (path.parent / f".{commit}.crc").unlink(missing_ok=True)


def travel() -> str:
    spark.catalog.clearCache()
    try:
        return f"{spark.sql(f'SELECT * FROM delta.`{TABLE}` VERSION AS OF 0').count()} row"
    except Exception as error:
        return f"refused: {str(error).splitlines()[0][:110]}"


first = travel()
by_deltalake = deltalake.DeltaTable(TABLE, version=0).to_pyarrow_table().num_rows
key = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
spark.conf.set(key, "false")
lifted = travel()
print("VERSION AS OF 0, 9 days old:", first)
print("deltalake reads", by_deltalake, "row; with", key, "= false Spark reads", lifted)
spark.stop()
raise SystemExit(0 if first.startswith("refused") and by_deltalake == 1 and lifted == "1 row" else 1)
PYTHON
