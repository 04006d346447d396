"""The program that fills Java's cache of classes: a Spark session that does a little of everything a batch does.

Not here: where the cache is, and when it is made (resources/spark/class_cache.py).
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tidemark.resources.spark.class_cache import RECORDING, make
from tidemark.resources.spark.delta_jars import delta_package, known_jars
from tidemark.resources.spark.session import JAVA_OPTIONS, PACKAGES, check_java, local_session, session_config


def record(package: str, making: str | None) -> None:
    """Start Spark and do a little of each part of a batch; Java makes the cache when this process ends.

    Without options of Java that make it, Spark only starts, which finds Delta's jars.
    """
    config = session_config() | {PACKAGES: package}
    if making is not None:
        config[JAVA_OPTIONS] += f" {making}"
    spark = local_session(config)
    if making is not None:
        with tempfile.TemporaryDirectory() as folder:
            _work(spark, Path(folder))


def _work(spark: SparkSession, folder: Path) -> None:
    rows = spark.createDataFrame(spark.range(1_000).toArrow())
    at = F.timestamp_millis(F.col("id") * 1_000)
    events = rows.select("id", at.alias("at"), F.concat(F.lit("k"), F.col("id") % 7).alias("k"))
    events.write.json(str(folder / "lines"))
    read = spark.read.schema("id BIGINT, at TIMESTAMP, k STRING").json(str(folder / "lines"))
    read.repartitionByRange("at").sortWithinPartitions("at").write.format("delta").save(str(folder / "table"))
    table = spark.read.format("delta").load(str(folder / "table"))
    for compiled in ("true", "false"):
        spark.conf.set("spark.sql.codegen.wholeStage", compiled)
        few = F.broadcast(rows.where("id < 100"))
        grouped = (
            table.join(few, "id", "left_anti").groupBy("k", F.window("at", "1 minute")).agg(F.sum("id").alias("n"))
        )
        grouped.localCheckpoint().select("k", "n", F.to_json("window")).write.parquet(
            str(folder / f"found_{compiled}")
        )
        table.join(few, "id", "left_semi").unionByName(table).agg(F.count("*"), F.max_by("k", "id")).collect()


def main() -> None:
    """Make the cache now, for the packages that are named, by default for Delta alone."""
    java, package = check_java(), sys.argv[1] if len(sys.argv) > 1 else delta_package()
    if not known_jars(package):
        words = [sys.executable, "-c", f"from {RECORDING} import record; record({package!r}, None)"]
        subprocess.run(words, check=False)
    make(java, package)


if __name__ == "__main__":
    main()
