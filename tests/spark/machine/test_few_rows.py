"""How a session plans few rows, and what it is like afterwards."""

from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidemark.resources.spark.amount import FEW
from tidemark.resources.spark.session import with_settings
from tidemark.timeops.computing.materialize import from_driver


def test_few_rows_are_read_in_one_piece_and_the_session_stays_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(40).repartition(4).write.parquet(str(tmp_path / "files"))

    def frames() -> list[DataFrame]:
        return [spark.read.parquet(str(tmp_path / "files")), from_driver(spark, pa.table({"n": [*range(40)]}))]

    with with_settings(spark, {"spark.sql.leafNodeDefaultParallelism": "2"}):  # as in a session of two cores
        before = dict(spark.conf.getAll)
        with FEW.tuned(lambda: spark):
            assert [frame.rdd.getNumPartitions() for frame in frames()] == [1, 1]
            assert [frame.count() for frame in frames()] == [40, 40]
        assert dict(spark.conf.getAll) == before
        assert [frame.rdd.getNumPartitions() for frame in frames()] == [2, 2]
