#!/usr/bin/env bash
# Great Expectations on Spark: ExpectColumnValuesToBeIncreasing compares the days of a TIMESTAMP, not its times.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet great-expectations==1.24.1 pyspark==4.2.0
"$folder/venv/bin/python" - <<'PYTHON'
import logging

import great_expectations as gx
import pyspark
from pyspark.sql import SparkSession

logging.disable(logging.WARNING)
print("great_expectations", gx.__version__, "pyspark", pyspark.__version__)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
context = gx.get_context(mode="ephemeral")
context.variables.progress_bars = {"globally": False}
source = context.data_sources.add_spark("spark")
increasing = gx.expectations.ExpectColumnValuesToBeIncreasing(column="x")


def holds(name: str, values: str) -> bool:
    rows = spark.sql(f"SELECT * FROM VALUES {values} AS t(x)").coalesce(1)
    whole = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("whole")
    return bool(whole.get_batch({"dataframe": rows}).validate(increasing).success)


hours = holds("hours", "(TIMESTAMP '2026-01-05 12:00'), (TIMESTAMP '2026-01-05 09:00')")
days = holds("days", "(TIMESTAMP '2026-01-05 12:00'), (TIMESTAMP '2026-01-04 09:00')")
numbers = holds("numbers", "(5L), (3L)")
print("increasing? 12:00, 09:00 of one day:", hours, "- a day back:", days, "- 5, 3:", numbers)
spark.stop()
raise SystemExit(0 if (hours, days, numbers) == (True, False, False) else 1)
PYTHON
