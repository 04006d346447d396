"""Reading a version of a Delta table with Spark as the Parquet files that it consists of.

Here: which files, and their rows as a DataFrame. Not here: writing (lake.py). The tables have no partitions, no
deletion vectors and no renamed columns, so a file holds rows of the table as they are.
"""

import json
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from resources.filters import Filters, arrow_condition, files_of
from resources.sources.local_files import spark_path

_OPERATORS: Mapping[str, Callable[[Column, Any], Column]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": Column.isin,
}


def scan(spark: SparkSession, folder: Path, delta: DeltaTable, filters: Filters) -> DataFrame:
    """Rows of a table at the version it was opened at.

    Args:
        spark: The session.
        folder: Folder of the table.
        delta: The table.
        filters: Which rows. Files that can hold none of them, by their statistics, are not opened.
    """
    schema = StructType.fromJson(json.loads(delta.schema().to_json()))
    files = _files(folder, delta, filters)
    if not files:
        return spark.range(0).select(F.lit(None).cast(schema).alias("row")).select("row.*")
    # The base path keeps Spark from taking folders above, such as `year=2026`, for columns.
    reader = spark.read.schema(schema).option("basePath", f"file://{folder.absolute()}")
    rows = reader.parquet(*(spark_path(str(folder.absolute() / file)) for file in files))
    return rows.where(reduce(operator.and_, map(_condition, filters))) if filters else rows


def _files(folder: Path, delta: DeltaTable, filters: Filters) -> list[str]:
    dataset = delta.to_pyarrow_dataset(filesystem=files_of(folder))
    return sorted(file.path for file in dataset.get_fragments(arrow_condition(filters) if filters else None))


def _condition(condition: tuple[str, str, Any]) -> Column:
    name, symbol, value = condition
    if value is None:
        return F.col(f"`{name}`").isNull()
    return _OPERATORS[symbol](F.col(f"`{name}`"), value)
