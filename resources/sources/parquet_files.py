"""Parquet: rows of columns found by name, with their place in the file.

Here: reading rows. Not here: which types may be read as which (parquet_types.py), names after `rename`.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from tidemark.resources.sources.changes import FileRange
from tidemark.resources.sources.lines import quoted, to_records
from tidemark.resources.sources.local_files import path_of_url, spark_path
from tidemark.resources.sources.parquet_types import Layout, layout_of
from tidemark.resources.sources.positions import FILE, MODIFIED, POSITION, Numbered
from tidemark.timeops.errors import InputError, UnfitFilesError
from tidemark.timeops.expressions.try_expression import EVERY_MICROSECOND
from tidemark.timeops.spec import FilesSource

_URL = "__url"


def read_parquet(
    spark: SparkSession, source: FilesSource, schema: StructType, ranges: Sequence[FileRange]
) -> Numbered:
    """Read parquet files: the columns of `schema`, and those that every reader adds (see files.py).

    Raises:
        UnfitFilesError: In some files a column is missing, or has a type that cannot be read as the one of the spec
            without loss.
    """
    groups: dict[Layout, list[FileRange]] = defaultdict(list)
    errors: dict[str, InputError] = {}
    for file in ranges:
        try:
            groups[layout_of(file.path, schema, keep_unknown=source.keep_unknown)].append(file)
        except InputError as error:
            errors[file.path] = error
    if errors:
        raise UnfitFilesError("\n".join(map(str, errors.values())), errors=errors)
    rows = [_read_group(spark, source, schema, layout, files) for layout, files in groups.items()]
    counts = {file.path: pq.read_metadata(file.path).num_rows for file in ranges}
    return Numbered(reduce(DataFrame.union, rows), counts)


def _read_group(
    spark: SparkSession, source: FilesSource, schema: StructType, layout: Layout, files: Sequence[FileRange]
) -> DataFrame:
    shape = StructType([field for field in schema if field.name not in layout.empty])
    unknown = StructType([StructField(name, kind) for name, kind in layout.unknown])
    scan = spark.read.schema(StructType([*shape, *unknown])).parquet(*(spark_path(file.path) for file in files))
    place = scan.metadataColumn("_metadata")  # also where a column of the file has this name
    values = {name: f"__value_{number}" for number, name in enumerate(scan.columns)}  # no name is that of a place
    rows = scan.select(
        *(F.col(quoted(name)).alias(value) for name, value in values.items()),
        place["file_path"].alias(_URL),
        (place["row_index"] + 1).alias(POSITION),
    )
    by_path = {file.path: file for file in files}
    places = [
        (url, file.name, file.modified_us)
        for listed in scan.inputFiles()
        for file in [by_path[path_of_url(listed)]]
        for url in {listed, listed.replace("file:///", "file:/", 1)}  # the spelling of `_metadata.file_path`
    ]
    table = spark.createDataFrame(places, f"{_URL} STRING, {FILE} STRING, __modified_us BIGINT")
    placed = rows.join(F.broadcast(table), _URL).withColumn(MODIFIED, F.timestamp_micros("__modified_us"))
    others = [F.col(values[name]).alias(name) for name in unknown.names]
    kept = F.to_json(F.struct(*others), EVERY_MICROSECOND) if others else F.lit(None)
    return to_records(
        placed,
        source,
        columns={
            field.name: F.lit(None).cast(field.dataType) if field.name in layout.empty else F.col(values[field.name])
            for field in schema
        },
        rescued=kept.cast("string"),
        malformed=F.lit(None).cast("string"),
    )
