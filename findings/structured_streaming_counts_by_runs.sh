#!/usr/bin/env bash
# Structured Streaming: the same three files in one availableNow run give another count than in three runs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pyspark==4.2.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

FOLDER = Path(sys.argv[1])
print("pyspark", pyspark.__version__)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.conf.set("spark.sql.shuffle.partitions", "1")
FILES = (["12:01", "12:02"], ["12:20", "12:21"], ["12:03", "12:22"])


def counts(name: str, *, runs: int) -> list[tuple[str, int]]:
    """Count events in hopping 10 minutes, watermark 0, append: three files in so many runs."""
    folder = FOLDER / name
    (folder / "in").mkdir(parents=True)
    for run in range(runs):
        for number, times in enumerate(FILES) if runs == 1 else [(run, FILES[run])]:
            lines = [f'{{"at": "2026-01-05T{time}:00Z"}}' for time in times]
            (folder / "in" / f"{number}.json").write_text("\n".join(lines))
        events = spark.readStream.schema("at TIMESTAMP").json(str(folder / "in"))
        windows = events.withWatermark("at", "0 seconds").groupBy(F.window("at", "10 minutes")).count()
        out = windows.select(F.date_format("window.start", "HH:mm").alias("start"), "count").writeStream.format("json")
        out = out.option("path", str(folder / "out")).option("checkpointLocation", str(folder / "checkpoint"))
        out.trigger(availableNow=True).start().awaitTermination()
    rows = spark.read.schema("start STRING, count BIGINT").json(str(folder / "out")).collect()
    return sorted((row["start"], row["count"]) for row in rows)


spark.conf.set("spark.sql.session.timeZone", "UTC")
once, thrice = counts("once", runs=1), counts("thrice", runs=3)
print("three files in one run:", once)
print("a run for each file:   ", thrice)
spark.stop()
raise SystemExit(0 if once == [("12:00", 3)] and thrice == [("12:00", 2)] else 1)
PYTHON
