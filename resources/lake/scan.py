"""Reading a version of a Delta table with Spark as the Parquet files that it consists of.

Here: which files, and their rows as a DataFrame. Not here: writing (lake.py). The tables have no partitions, no
deletion vectors and no renamed columns, so a file holds rows of the table as they are.
"""

import json

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemark.resources.lake.filters import Filters, arrow_condition, by_statistics, sql_condition
from tidemark.resources.lake.versions import Version
from tidemark.resources.sources.local_files import spark_path
from tidemark.resources.spark.rows import empty_frame


def scan(spark: SparkSession, version: Version, filters: Filters) -> DataFrame:
    """Rows of a table at a version.

    Args:
        spark: The session.
        version: The table.
        filters: Which rows. Files that can hold none of them, by their statistics, are not opened.
    """
    schema = StructType.fromJson(json.loads(version.delta.schema().to_json()))
    files = _files(version, filters)
    if not files:
        return empty_frame(spark, schema)
    folder = version.folder.absolute()
    # The base path keeps Spark from taking folders above, such as `year=2026`, for columns.
    reader = spark.read.schema(schema).option("basePath", f"file://{folder}")
    rows = reader.parquet(*(spark_path(str(folder / file)) for file in files))
    return rows.where(sql_condition(filters)) if filters else rows


def _files(version: Version, filters: Filters) -> list[str]:
    known = by_statistics(filters)
    return sorted(file.path for file in version.dataset.get_fragments(arrow_condition(known) if known else None))
