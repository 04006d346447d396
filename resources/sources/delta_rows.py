"""Rows of a Delta table, of the versions that discovery chose, each with its place in the log.

Here: letting Spark's Delta reader read exactly these rows, whatever features the table has. Not here: the choice of
versions (delta_tables.py), the shape of a record (lines.py).

To read the files of some commits, a log that names only these files is written next to the pipeline's tables. Delta
then applies all features of the table: partitions, column mapping, widened types.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlparse
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from tidemark.resources.delta.log import LOG, DataFile, Layout
from tidemark.resources.places.place import Place, in_delta, remove_tree, spark_url, write_whole
from tidemark.resources.sources.delta_tables import VersionsFound, discover_versions, folder_of, listed_versions
from tidemark.resources.sources.files import no_records, schema_in_input
from tidemark.resources.sources.fitness import names_there
from tidemark.resources.sources.known_versions import TableVersion, ensure_same_table
from tidemark.resources.sources.large_values import too_large
from tidemark.resources.sources.lines import FILE, MODIFIED, POSITION, to_records
from tidemark.resources.sources.parquet_files import converted, is_lossless, wrong_type
from tidemark.resources.sources.reader import Known, Needs, SourceRead
from tidemark.timeops.errors import InputError, UnfitFilesError
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import EVERY_MICROSECOND
from tidemark.timeops.spec import DeltaSource
from tidemark.timeops.spec.source import CHANGE_TYPE

_VALUE = "__tm_value_"  # and a number: no column of a table has the name of a place
_FILE, _AT = "__tm_file", "__tm_committed_us"
_OF_FEED = (CHANGE_TYPE, "_commit_version", "_commit_timestamp")
_ORDER_OF_CHANGES = ("delete", "update_preimage", "update_postimage", "insert")
_SETTINGS = (
    "delta.columnMapping.mode",
    "delta.columnMapping.maxColumnId",
    "delta.enableTypeWidening",
)
_BY_NAME = 3
"""First version of the protocol that lists features by name."""
_FEATURES_OF: Mapping[int, Sequence[str]] = {1: (), 2: ("columnMapping",)}
"""The features that older versions imply."""
_ID, _PHYSICAL, _MOST = (
    "delta.columnMapping.id",
    "delta.columnMapping.physicalName",
    "delta.columnMapping.maxColumnId",
)
_KEPT_OF_COLUMNS = ("delta.columnMapping.", "delta.typeChanges", "__CHAR_VARCHAR")


@dataclass(frozen=True)
class DeltaReader:
    """Reads a Delta table; see `SourceReader`.

    Attributes:
        source: The source of the spec.
        base: The folder of the spec file.
    """

    source: DeltaSource
    base: Path

    def needs(self) -> Needs:
        """Return nothing."""
        return Needs()

    def seen(self, known: Known) -> list[object]:
        """Return the newest entry of the log; of a table of another pipeline also what was committed there."""
        folder = folder_of(self.source, self.base)
        return [*listed_versions(self.source, self.base), known.committed(folder)]

    def look(self, known: Known) -> VersionsFound:
        """Compare the table with the remembered states of its versions.

        Raises:
            InputError: The pipeline would read what it writes.
        """
        folder = folder_of(self.source, self.base)
        if known.own_folder.absolute() in (*folder.parents,):
            raise InputError(
                f"Source {self.source.name!r}: {folder} is a table of this pipeline",
                expected="a table that others write",
                remedy="correct `path`, or let a second pipeline read it",
            )
        committed = known.committed(folder)
        return discover_versions(self.source, self.base, known.states, held=known.held, committed=committed)

    def until_judged(self, found: VersionsFound, ahead: Collection[str]) -> VersionsFound:  # noqa: ARG002
        """Return the findings: the look of an aligned source stops between two versions already."""
        return found

    def remember(self, found: VersionsFound) -> Mapping[str, Any]:
        """Return the range of versions: folder, first and last version."""
        if not found.versions:
            return {}
        first, last = found.versions[0], found.versions[-1]
        return {"versions": [str(first.folder), first.version, last.version]}

    def read(self, spark: SparkSession, found: VersionsFound, place: Place, time_zone: str) -> SourceRead:
        """Read the rows of the versions."""
        read = read_versions(spark, self.source, found.versions, place, time_zone)
        for version in found.versions:
            if version.how == "corrected":  # it is read alone
                before = read_before(spark, self.source, version, place, time_zone)
                read = replace(read, corrects=(version, before))
        return read

    def to_blame(self, spark: SparkSession, found: VersionsFound) -> Mapping[str, InputError]:  # noqa: ARG002
        """Return nothing: the version that a file belongs to is not known."""
        return {}


@contextmanager
def reading_place(folder: Place) -> Iterator[Place]:
    """Make a folder for logs of our own, which is removed when the rows were read.

    Args:
        folder: Folder of the pipeline: every Spark that writes its tables can read it.
    """
    place = folder / "_state" / "reading"
    remove_tree(place)  # left by a run that was killed
    try:
        yield place
    finally:
        remove_tree(place)


def read_versions(
    spark: SparkSession,
    source: DeltaSource,
    versions: Sequence[TableVersion],
    place: Place,
    time_zone: str = "UTC",
) -> SourceRead:
    """Read the rows of versions, as records like those of files; nothing is computed yet.

    `_file` is `v12/` and the file as the table's log names it, `_position` the row in the file from 1. Rows of the
    change feed are in no permanent file: `_file` is `v12/_change_data`, and `_position` numbers them by content.

    Args:
        spark: The session.
        source: The source of the spec.
        versions: The `versions` of its discovery.
        place: A folder from `reading_place`.
        time_zone: Zone for times without one, unless the source has its own.

    Raises:
        SpecError: `schema` or `rename` of the source is wrong.
        UnfitFilesError: A column has another type from some version on.
        InputError: The table changed since its discovery.
    """
    schema = schema_in_input(spark, source)
    _check_types(versions, source, schema)
    frames: list[DataFrame] = []
    zone = source.time_zone or time_zone
    full = [version for version in versions if not version.is_empty]
    for (how, layout), group in groupby(full, key=lambda one: (one.how, one.layout)):
        own = list(group)
        if how == "whole":
            frames.extend(_records(_whole(spark, one, place), source, schema, zone) for one in own)
        elif how == "added" or (how == "corrected" and _tells_files(own[0])):
            frames.append(_records(_added(spark, own, layout, place), source, schema, zone))
        elif how == "corrected":
            frames.extend(_records(_whole(spark, one, place), source, schema, zone) for one in own)
        else:
            frames.append(_records(_changed(spark, own), source, schema, zone))
    records = reduce(DataFrame.unionByName, frames) if frames else no_records(spark, source)
    ensure_same_table(versions)
    untimed = tuple(f"v{version.version}" for version in versions if not version.is_timed)
    return SourceRead(records, tuple(version.state for version in versions), untimed)


def _tells_files(version: TableVersion) -> bool:
    return version.before is not None and version.before.files is not None


def read_before(
    spark: SparkSession, source: DeltaSource, version: TableVersion, place: Place, time_zone: str = "UTC"
) -> DataFrame:
    """Read the rows that a version may have changed as they were before it, as records; arguments as `read_versions`.

    A column that the table lacked then, or had with a type that does not fit, is null.
    """
    before, schema = version.before, schema_in_input(spark, source)
    assert before is not None
    old = replace(version, version=before.version, layout=before.layout, files=before.files or ())
    rows = _whole(spark, old, place) if before.files is None else _added(spark, [old], before.layout, place)
    there = StructType.fromJson(json.loads(before.layout.schema))
    names = names_there(version.path, source, schema.names, there.names, of="table")
    fits = [
        field.name
        for field in schema
        if names[field.name] in there.names and is_lossless(there[names[field.name]].dataType, field.dataType)
    ]
    return _records(rows, source, schema, source.time_zone or time_zone, fits)


def _check_types(versions: Sequence[TableVersion], source: DeltaSource, schema: StructType) -> None:
    """Check the types of a table's columns at each version.

    Raises:
        UnfitFilesError: Some cannot be read without loss as the types of the spec.
    """
    judged: dict[str, InputError | None] = {}
    errors: dict[str, InputError] = {}
    for version in versions:
        if version.is_empty:
            continue
        text = version.layout.schema
        if text not in judged:
            judged[text] = _type_error(version.path, source, StructType.fromJson(json.loads(text)), schema)
        if (error := judged[text]) is not None:
            errors[version.path] = error
    if errors:
        raise UnfitFilesError("\n".join(map(str, errors.values())), errors=errors)


def _type_error(path: str, source: DeltaSource, table: StructType, schema: StructType) -> InputError | None:
    names = names_there(path, source, schema.names, table.names, of="table")
    for field in schema:
        own = names[field.name]
        if own in table.names and not is_lossless(table[own].dataType, field.dataType):
            found, wanted = table[own].dataType.simpleString(), field.dataType.simpleString()
            return wrong_type(path, own, found, wanted, of="table")
    return None


@dataclass(frozen=True)
class _Rows:
    """Rows of a table with their place.

    Attributes:
        frame: `__tm_value_0` and so on, `_file`, `_position`, `_modified`.
        names: The table's names of the values.
    """

    frame: DataFrame
    names: Sequence[str]

    @classmethod
    def of(cls, rows: DataFrame, names: Sequence[str], file: Column, position: Column, at_us: Column) -> "_Rows":
        """Return the columns with these names, and the place of each row."""
        values = [F.col(quoted(name)).alias(f"{_VALUE}{number}") for number, name in enumerate(names)]
        place = (file.alias(FILE), position.alias(POSITION), F.timestamp_micros(at_us).alias(MODIFIED))
        return cls(rows.select(*values, *place), names)


def _records(
    rows: _Rows, source: DeltaSource, schema: StructType, time_zone: str, fits: Collection[str] | None = None
) -> DataFrame:
    """Return rows as records, with the columns of `changes: rows`; columns that do not fit are null."""
    values = {name: F.col(f"{_VALUE}{number}") for number, name in enumerate(rows.names)}
    if source.changes == "rows":
        values.setdefault(CHANGE_TYPE, F.lit("insert"))
    found = {name: field.dataType for name, field in zip(rows.names, rows.frame.schema, strict=False)}
    found.setdefault(CHANGE_TYPE, StringType())
    names = names_there(source.path, source, schema.names, list(values), of="table")
    columns = {
        field.name: converted(values[names[field.name]], found[names[field.name]], field.dataType, time_zone)
        if fits is None or field.name in fits
        else F.lit(None).cast(field.dataType)
        for field in schema
    }
    others = [value.alias(name) for name, value in values.items() if name not in names.values()]
    kept = F.to_json(F.struct(*others), EVERY_MICROSECOND) if others else F.lit(None)
    large = too_large({name: (value, found[name]) for name, value in values.items()})
    return to_records(rows.frame, source, columns, rescued=kept.cast("string"), malformed=large)


def _whole(spark: SparkSession, version: TableVersion, place: Place) -> _Rows:
    """Return all rows of a table as of a version.

    They are read from a clone, which has the same files: Delta numbers the rows of files only in tables that may have
    deletion vectors.
    """
    clone = _new_place(place)
    spark.sql(
        f"CREATE TABLE delta.{quoted(in_delta(clone))} SHALLOW CLONE delta.{quoted(in_delta(version.folder))} "
        f"VERSION AS OF {version.version} TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    )
    scan = spark.read.format("delta").load(in_delta(clone))
    at = scan.metadataColumn("_metadata")  # also if a column of the table has this name
    above = len(version.folder.parts) - (1 if isinstance(version.folder, Path) else 0)
    file = F.regexp_replace(at["file_path"], f"^\\w+:/+(?:[^/]+/){{{above}}}", f"v{version.version}/")
    return _Rows.of(scan, version.layout.columns, file, at["row_index"] + 1, F.lit(version.committed_us))


def _added(spark: SparkSession, versions: Sequence[TableVersion], layout: Layout, place: Place) -> _Rows:
    """Return the rows of the files that versions of one layout added."""
    table = _new_place(place)
    lines = [{"protocol": _protocol(layout)}, {"metaData": _metadata(layout)}]
    lines += [{"add": _file_action(version, file)} for version in versions for file in version.files]
    write_whole(table / LOG / f"{0:020}.json", "\n".join(map(json.dumps, lines)) + "\n")
    scan = spark.read.format("delta").load(in_delta(table))
    position = scan.metadataColumn("_metadata")["row_index"] + 1
    return _Rows.of(scan, layout.columns, F.col(_FILE), position, F.col(_AT))


def _new_place(place: Place) -> Place:
    """Return a folder for a table that is read once: Delta remembers a log by its place, so each has its own name."""
    return place / uuid4().hex


def _protocol(layout: Layout) -> Mapping[str, Any]:
    """Return the features that a reader must know; with deletion vectors Delta numbers the rows of files."""
    known = json.loads(layout.protocol)
    named = (
        known["readerFeatures"] if known["minReaderVersion"] == _BY_NAME else _FEATURES_OF[known["minReaderVersion"]]
    )
    features = sorted({*named, "deletionVectors"})
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}


def _metadata(layout: Layout) -> Mapping[str, Any]:
    """Return the layout with two more columns, whose values are in the log: the origin of a row, and its time."""
    settings = {name: value for name, value in layout.settings if name in _SETTINGS}
    fields = [_column(field) for field in json.loads(layout.schema)["fields"]]
    for name, kind in ((_FILE, "string"), (_AT, "long")):
        about: dict[str, Any] = {}
        if _MOST in settings:
            settings[_MOST] = str(int(settings[_MOST]) + 1)
            about = {_ID: int(settings[_MOST]), _PHYSICAL: name}
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": about})
    return {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [*layout.partitions, _FILE, _AT],
        "configuration": settings,
        "createdTime": 0,
    }


def _column(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a column with the metadata that readers need, without metadata only for writers, such as its default."""
    about = {name: value for name, value in field["metadata"].items() if name.startswith(_KEPT_OF_COLUMNS)}
    return {**field, "nullable": True, "metadata": about}


def _file_action(version: TableVersion, file: DataFile) -> Mapping[str, Any]:
    is_elsewhere = bool(urlparse(file.path).scheme)
    own = {_FILE: f"v{version.version}/{file.path}", _AT: str(version.committed_us)}
    return {
        "path": file.path if is_elsewhere else f"{_quoted_url(version.folder)}/{file.path}",
        "partitionValues": {**json.loads(file.partition), **own},
        "size": file.size,
        "modificationTime": 0,
        "dataChange": True,
    }


def _quoted_url(folder: Place) -> str:
    scheme, _, path = spark_url(folder).partition("://")
    return f"{scheme}://{quote(path, safe='/@')}"


def _changed(spark: SparkSession, versions: Sequence[TableVersion]) -> _Rows:
    """Return the rows that versions changed, from the change feed of their table; the versions are consecutive."""
    first, last = versions[0], versions[-1]
    feed = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", first.version)
        .option("endingVersion", last.version)
        .load(in_delta(first.folder))
    )
    names = [name for name in feed.columns if name not in _OF_FEED[1:]]
    version = F.col("_commit_version")
    at_us = F.element_at(
        F.create_map(*[F.lit(n) for one in versions for n in (one.version, one.committed_us)]), version
    )
    kind = F.array_position(F.array(*map(F.lit, _ORDER_OF_CHANGES)), F.col(CHANGE_TYPE))
    content = F.to_json(F.struct(*(F.col(quoted(name)) for name in names)), EVERY_MICROSECOND)
    place = F.row_number().over(Window.partitionBy(version).orderBy(kind, content)).cast("bigint")
    file = F.concat(F.lit("v"), version.cast("string"), F.lit("/_change_data"))
    return _Rows.of(feed, names, file, place, at_us)
