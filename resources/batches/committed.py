"""The versions of tables that commits name: consistent reads, and tables of other pipelines.

Here: finding and reading these versions, the batch of a version, and the spec of a pipeline, also for other programs.
Not here: writing, and the commits themselves (resources/batches/batch_log.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.dataset

from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import Commit
from tidemark.resources.delta.lake import Lake
from tidemark.resources.places.checks import ensure_answers
from tidemark.resources.places.place import Place, in_delta, place_of, relative
from tidemark.resources.tables import BATCHES, LOG_CONTROL, RAW_EVENTS
from tidemark.timeops.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class Published:
    """A table of the pipeline in the folder `root`."""

    root: Place
    table: str

    @cached_property
    def _commits(self) -> list[Commit]:
        return BatchLog(Lake(self.root)).every_commit()

    @property
    def versions(self) -> list[int]:
        """The committed versions, in order.

        The versions between them hold writes that are not committed yet, or that were taken back.

        Raises:
            LakeError: The pipeline's log of batches cannot be read.
        """
        versions = {commit.table_versions.get(self.table) for commit in self._commits}
        return sorted(version for version in versions if version is not None)

    def commit_of(self, version: int) -> Commit | None:
        """Return the first commit that names a version: the batch that made it."""
        commits = (commit for commit in self._commits if commit.table_versions.get(self.table) == version)
        # The last batch of a rebuild names the same versions as the rebuild.
        return next((commit for commit in commits if not commit.plan.is_replayed), None)

    @property
    def spec(self) -> str | None:
        """The spec that the pipeline was last processed with, as JSON; None before the first batch."""
        lake = Lake(self.root)
        if not lake.exists(LOG_CONTROL):
            return None
        version = max((commit.table_versions.get(LOG_CONTROL, 0) for commit in self._commits), default=0)
        items = lake.rows(LOG_CONTROL, version, columns=["_control_seq", "kind", "argument"])
        specs = items.filter(pc.equal(items["kind"], "spec")).sort_by("_control_seq")
        return specs["argument"][-1].as_py() if specs.num_rows else None


def pipeline_of(folder: Place) -> Published | None:
    """Return the table of a pipeline that is in a folder; None if the folder is not such a table."""
    for root in folder.parents[:2]:  # `<pipeline>/<table>` and `<pipeline>/windows/<name>`
        lake = Lake(root)
        if all((lake.path(table) / "_delta_log").is_dir() for table in (BATCHES, RAW_EVENTS)):
            return Published(root, relative(folder, root))
    return None


def consistent(
    warehouse: str | PathLike[str] | Place, pipeline: str, batch_id: int | None = None
) -> Mapping[str, tuple[Place, int]]:
    """Find folder and version of every table as a commit of a pipeline has them, without Spark.

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
    lake = Lake(place / pipeline)
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
            remedy="Run the pipeline, or look at the rows of `batches`.",
        )
    return {table: (lake.path(table), version) for table, version in commit.table_versions.items()}


def read(
    spark: "SparkSession",
    warehouse: str | PathLike[str] | Place,
    pipeline: str,
    table: str,
    batch_id: int | None = None,
) -> "DataFrame":
    """Read a table of a pipeline as of a commit, of any age as long as its files are there.

    For this the session gets the setting `READS_OLD_VERSIONS` and keeps it: with Spark Connect the server checks the
    age of the version again at each request.

    Args:
        spark: A session with Delta Lake.
        warehouse: The folder that holds the folder of the pipeline, or its URL.
        pipeline: Name of the pipeline.
        table: Name of the table, such as `windows/by_hour`.
        batch_id: Number of a committed batch; the last one if None.

    Raises:
        LakeError: There is no such pipeline, commit or table.
    """
    from tidemark.resources.spark.session import READS_OLD_VERSIONS  # noqa: PLC0415 - `consistent` needs no PySpark

    path, version = _place(warehouse, pipeline, table, batch_id)
    for name, value in READS_OLD_VERSIONS.items():
        spark.conf.set(name, value)
    return spark.read.format("delta").option("versionAsOf", version).load(in_delta(path))


def table(
    warehouse: str | PathLike[str] | Place, pipeline: str, name: str, batch_id: int | None = None
) -> pyarrow.dataset.Dataset:
    """Return a table of a pipeline as of a commit, for Arrow, DuckDB and Polars, without Spark.

    Only bounds of our own numbers and instants rule files out, so a condition finds every row that meets it, also in
    a table that an earlier version of Tidemark wrote.

    Args:
        warehouse: The folder that holds the folder of the pipeline, or its URL.
        pipeline: Name of the pipeline.
        name: Name of the table, such as `windows/by_hour`.
        batch_id: Number of a committed batch; the last one if None.

    Raises:
        LakeError: There is no such pipeline, commit or table.
    """
    _, version = _place(warehouse, pipeline, name, batch_id)
    return Lake(place_of(warehouse).absolute() / pipeline).dataset(name, version)


def _place(
    warehouse: str | PathLike[str] | Place, pipeline: str, table: str, batch_id: int | None
) -> tuple[Place, int]:
    tables = consistent(warehouse, pipeline, batch_id)
    if table not in tables:
        raise LakeError(
            f"Pipeline {pipeline} has no table {table} as of that commit.",
            expected=f"one of {', '.join(sorted(tables))}",
            remedy="Check the name.",
        )
    return tables[table]
