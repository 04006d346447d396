"""Folders of the files that a run copies for Spark: no run reads what another has copied."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from tidemark.resources.sources.table_versions import reading_place


def persisted(spark: SparkSession, place: Path, rows: int) -> DataFrame:
    """Return rows of a copy, which Spark keeps."""
    copy = place / "orders.parquet"
    copy.parent.mkdir(parents=True)
    pq.write_table(pa.table({"n": pa.array(range(rows), pa.int64())}), copy)
    return spark.read.schema("n BIGINT").parquet(str(copy)).persist(StorageLevel.DISK_ONLY)


def test_rows_that_a_killed_run_has_persisted_are_not_taken_for_those_of_the_next(
    spark: SparkSession, tmp_path: Path
) -> None:
    killed = reading_place(tmp_path)
    left = persisted(spark, Path(str(killed.__enter__())), 3)
    assert left.count() == 3
    with reading_place(tmp_path) as place:
        rows = persisted(spark, Path(str(place)), 17)
        assert rows.count() == 17
        assert [path.name for path in (tmp_path / "_state" / "reading").iterdir()] == [Path(str(place)).name]
        killed.__exit__(None, None, None)  # it was not dead
        assert Path(str(place), "orders.parquet").exists()
    assert not (tmp_path / "_state" / "reading").exists()
    for frame in (left, rows):
        frame.unpersist()
