"""Consistent reads: every table of a pipeline at the version that one commit names.

Here: finding these versions, also for other programs. Not here: writing.
"""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING

from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.delta.lake import Lake
from tidemark.resources.places.checks import ensure_answers
from tidemark.resources.places.place import Place, in_delta, place_of
from tidemark.resources.tables import BATCHES, pipeline_folder
from tidemark.timeops.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def consistent(
    warehouse: str | PathLike[str] | Place, pipeline: str, batch_id: int | None = None
) -> Mapping[str, tuple[Place, int]]:
    """Find folder and version of every table of a pipeline as of a commit, without Spark.

    Args:
        warehouse: The folder that holds the folder of the pipeline, or its URL.
        pipeline: Name of the pipeline.
        batch_id: Number of a committed batch; the last one if None.

    Returns:
        (folder, version) by name of the table; `str` of a folder in a store is its URL. `batches` is not among them:
        it is the log that names the versions, and rows are only ever added to it.

    Raises:
        LakeError: There is no such pipeline or commit.
    """
    place = place_of(warehouse).absolute()
    ensure_answers(place)
    lake = Lake(pipeline_folder(place, pipeline))
    if not lake.exists(BATCHES):
        raise LakeError(
            f"There is no pipeline {pipeline} in {warehouse}.",
            expected=f"its log of batches in {lake.path(BATCHES)}",
            remedy="Check the names, or run the pipeline first.",
        )
    log = BatchLog(lake)
    commit = log.last_commit() if batch_id is None else log.commit_of(batch_id)
    if commit is None:
        raise LakeError(
            f"Pipeline {pipeline} has no committed batch" + (f" {batch_id}." if batch_id is not None else " yet."),
            expected="a row of `batches` with state committed or accepted",
            remedy="Run the pipeline, or see the rows of `batches` for what there is.",
        )
    return {table: (lake.path(table), version) for table, version in commit.table_versions.items()}


def read(
    spark: "SparkSession",
    warehouse: str | PathLike[str] | Place,
    pipeline: str,
    table: str,
    batch_id: int | None = None,
) -> "DataFrame":
    """Read a table of a pipeline as of a commit.

    Args:
        spark: A session with Delta Lake.
        warehouse: The folder that holds the folder of the pipeline, or its URL.
        pipeline: Name of the pipeline.
        table: Name of the table, such as `windows/by_hour`.
        batch_id: Number of a committed batch; the last one if None.

    Raises:
        LakeError: There is no such pipeline, commit or table.
    """
    tables = consistent(warehouse, pipeline, batch_id)
    if table not in tables:
        raise LakeError(
            f"Pipeline {pipeline} has no table {table} as of that commit.",
            expected=f"one of {', '.join(sorted(tables))}",
            remedy="Check the name.",
        )
    path, version = tables[table]
    return spark.read.format("delta").option("versionAsOf", version).load(in_delta(path))
