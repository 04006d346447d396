"""Parquet files: their columns and values, as Spark reads them.

Here: which columns of a file fit, the values that Spark reads differently. Not here: the footer in another process
(resources/sources/footers.py), files that need no Spark (resources/sources/file_records.py).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructType

from tidemark.resources.places.place import place_of
from tidemark.resources.sources.columns import columns_in_file
from tidemark.resources.sources.conversion import ensure_can_be_kept, fit_error, types_in, values_to_keep
from tidemark.resources.sources.footers import parquet_looks, types_of
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.local_files import path_of_url, spark_path
from tidemark.resources.sources.records import POSITION, SKIP, URL, Numbered, Part, to_records, unfit, with_files
from tidemark.timeops.errors import InputError, UnfitFilesError, first_line
from tidemark.timeops.expressions.column_types import (
    VOID,
    ColumnType,
    converted,
    only_fields_of,
    unknown_fields,
)
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import FilesSource


def opened_parquet(path: str) -> pq.ParquetFile:
    """Open a file; of a store by its options, which Arrow does not know if it gets the URL."""
    place = place_of(path)
    return pq.ParquetFile(place if isinstance(place, Path) else place.open("rb"))


_ROW = "__tm_row"


@dataclass(frozen=True)
class Layout:
    """The columns of a group of files, as they are read.

    Attributes:
        columns: Wanted columns, each with its name in the file and its type there.
        unknown: Names and types of the other columns to keep.
    """

    columns: tuple[tuple[str, str, ColumnType], ...]
    unknown: tuple[tuple[str, ColumnType], ...]


def layout_of(path: str, file: pq.ParquetFile, schema: T.StructType, source: FilesSource) -> Layout:
    """Check that a file has the wanted columns, with types that can be read without loss.

    A column is left out if the file may lack it, or if it has no type, as all its values are null.

    Raises:
        InputError: A column is missing or ambiguous, has a type that cannot be read as the one of the spec, or should
            be kept and cannot be read.
    """
    fields = types_of(file.schema)
    columns, types = columns_in_file(path, source, schema.names, [name for name, _ in fields]), dict(fields)
    there = {name: column for name, column in columns.items() if column is not None}
    wanted = types_in(schema)
    for name, column in there.items():
        if error := fit_error(path, column, types[column], wanted[name], may_lack=source.missing == "null"):
            raise error
    unknown = [(name, kind) for name, kind in types.items() if name not in there.values() and kind.word != VOID]
    if source.keep_unknown:
        inside = [
            (column, *field)
            for name, column in there.items()
            for field in unknown_fields(types[column], wanted[name])
        ]
        for place, kind in [*unknown, *((".".join((column, *steps)), kind) for column, steps, kind in inside)]:
            ensure_can_be_kept(path, place, kind)
        whole = {column for column, _, _ in inside}
    else:
        unknown, whole = [], set()
    read = {
        name: types[column] if column in whole else only_fields_of(types[column], wanted[name])
        for name, column in there.items()
    }
    names = tuple((name, column, read[name]) for name, column in there.items() if read[name].word != VOID)
    return Layout(names, tuple(unknown))


def fault_of_parquet(path: str) -> str:
    """Return the first damaged part by the report of another reader; empty if it finds none."""
    first = first_line(parquet_looks().fault(path))
    return "".join(sign for sign in first if sign.isprintable()).rstrip(" :")


def read_parquet(
    spark: SparkSession, source: FilesSource, schema: StructType, ranges: Sequence[FileRange], time_zone: str
) -> Numbered:
    """Read parquet files: the columns of `schema`, and what every reader adds: resources/sources/reader.py.

    Raises:
        UnfitFilesError: In some files a column is missing, or has a type that cannot be read as the one of the spec
            without loss.
    """
    groups: dict[Layout, list[Part]] = defaultdict(list)
    errors: dict[str, InputError] = {}
    counts: dict[str, int] = {}
    for file in ranges:
        opened = opened_parquet(file.readable)
        counts[file.path] = file.skip_lines + opened.metadata.num_rows
        try:
            groups[layout_of(file.readable, opened, schema, source)].append(Part(file, skip=file.skip_lines))
        except InputError as error:
            errors[file.path] = error
    if errors:
        raise UnfitFilesError("\n".join(map(str, errors.values())), errors=errors)
    rows = [
        _read_group(spark, source, schema, layout, parts, time_zone=time_zone) for layout, parts in groups.items()
    ]
    return Numbered(reduce(DataFrame.union, rows), counts)


def _read_group(
    spark: SparkSession,
    source: FilesSource,
    schema: StructType,
    layout: Layout,
    parts: Sequence[Part],
    *,
    time_zone: str,
) -> DataFrame:
    columns = {name: (in_file, kind) for name, in_file, kind in layout.columns}
    shape = [*columns.values(), *layout.unknown]
    ddl = ", ".join(f"{quoted(name)} {kind.read_as.sql}" for name, kind in shape)
    scan = spark.read.schema(ddl).parquet(*(spark_path(part.file.readable) for part in parts))
    place = scan.metadataColumn("_metadata")  # also if a column of the file has this name
    values = {name: f"__tm_value_{number}" for number, name in enumerate(scan.columns)}  # no name is that of a place
    rows = scan.select(
        *(F.col(quoted(name)).alias(value) for name, value in values.items()),
        place["file_path"].alias(URL),
        (place["row_index"] + 1).alias(_ROW),
    )
    wanted = types_in(schema)
    by_path = {part.file.readable: part for part in parts}
    by_url = {
        url: by_path[path_of_url(listed)]
        for listed in scan.inputFiles()
        for url in (listed, listed.replace("file:///", "file:/", 1))  # the spelling of `_metadata.file_path`
    }
    placed = with_files(spark, rows, by_url).withColumn(POSITION, F.col(SKIP) + F.col(_ROW))
    return to_records(
        placed,
        source,
        columns={
            field.name: F.expr(
                converted(values[columns[field.name][0]], columns[field.name][1], wanted[field.name], time_zone)
                if field.name in columns
                else f"CAST(NULL AS {wanted[field.name].sql})"
            )
            for field in schema
        },
        rescued=values_to_keep(
            [(values[in_file], in_file, kind, wanted[name]) for name, (in_file, kind) in columns.items()],
            [(values[name], name, kind) for name, kind in layout.unknown],
        ),
        malformed=unfit({name: (F.col(values[name]), scan.schema[name].dataType) for name in values}),
    )
