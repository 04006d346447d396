"""The job in Spark Structured Streaming: all files that are there, windows of a minute by key, to a Delta table.

Its watermark moves between micro-batches; an event that finds its window closed is dropped without a trace.
"""

import argparse

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.resources.spark.session import PACKAGES, local_session, session_config


def plain_session() -> SparkSession:
    """Return a session as the guides of Delta Lake write it: no setting but Delta's, and as much memory as ours."""
    ours = session_config()
    of_delta = (PACKAGES, "spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.driver.memory")
    builder = SparkSession.builder.master("local[*]")
    for name in of_delta:
        builder = builder.config(name, ours[name])
    return builder.getOrCreate()


def main() -> None:
    """Runs it to the end of the files."""
    parser = argparse.ArgumentParser()
    for name in ("files", "kind", "out"):
        parser.add_argument(name)
    parser.add_argument("--key-type", default="STRING", help="of the column `k`")
    parser.add_argument("--files-at-once", type=int, help="of a micro-batch; default: all")
    parser.add_argument("--plain", action="store_true", help="with Spark's own settings; default: Tidemark's")
    asked = parser.parse_args()
    spark = plain_session() if asked.plain else local_session(session_config())
    reader = spark.readStream.format(asked.kind).schema(f"t TIMESTAMP, k {asked.key_type}, v DOUBLE, at TIMESTAMP")
    if asked.files_at_once:
        reader = reader.option("maxFilesPerTrigger", asked.files_at_once)
    windows = (
        reader.load(asked.files)
        .withWatermark("t", "5 seconds")
        .groupBy(F.window("t", "1 minute"), "k")
        .agg(
            F.count("*").alias("n"),
            F.sum("v").alias("total"),
            F.min("v").alias("lowest"),
            F.max("v").alias("highest"),
            F.avg("v").alias("mean"),
        )
    )
    query = (
        windows.writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", f"{asked.out}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{asked.out}/windows")
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
