"""One version of a Delta table as it is read: the effect of its commits, the spec's decision on it, and its rows.

Here: judging commits, the memory of a version, and letting Spark's Delta reader read exactly its rows, whatever
features the table has. Not here: entries of the log (resources/delta/log.py), the choice of versions
(resources/sources/delta.py), the shape of a record (resources/sources/records.py).

A version is remembered as a file is: its number is the name, the id of the table the digest, the time of its commit
the modification time. To read the files of some commits, a log that names only these files is written next to the
pipeline's tables. Delta then applies all features of the table: partitions, column mapping, widened types.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlparse
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from tidemark.resources.delta.log import LOG_FOLDER, DataFile, TableCommit, TableLayout, entry_path, place_of_file
from tidemark.resources.places.place import Place, in_delta, spark_url, temporary_place, write_whole
from tidemark.resources.sources.columns import check_names, names_there, wanted_columns
from tidemark.resources.sources.conversion import fit_error, holds, types_in, values_to_keep
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.sources.records import (
    FILE,
    MODIFIED,
    POSITION,
    no_records,
    schema_in_input,
    to_records,
    unfit,
)
from tidemark.timeops.errors import InputError, UnfitFilesError
from tidemark.timeops.expressions.column_types import converted, misfit, type_of_json
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import EVERY_MICROSECOND
from tidemark.timeops.spec import DeltaSource
from tidemark.timeops.spec.source import CHANGE_TYPE
from tidemark.timeops.values.utc import instant_of

How = Literal["whole", "added", "changed", "corrected", "nothing"]


@dataclass(frozen=True)
class Before:
    """The table before a version that changes rows.

    Attributes:
        version: The version before.
        layout: The table's layout at that version.
        files: The files whose rows the version removed, all or some; None if the whole tables before and after it
            have to be compared, as the log marks single rows of files as deleted.
    """

    version: int
    layout: TableLayout
    files: tuple[DataFile, ...] | None


@dataclass(frozen=True)
class TableVersion:
    """A version of a table as one ingestion reads it.

    Attributes:
        folder: Folder of the table.
        version: Its number.
        how: The whole table, the added rows, the rows of the change feed, the rows that differ from the version
            before, or nothing.
        modified_us: Time of its commit, microseconds since the epoch: later than the version before.
        before: The table before it, with `corrected`.
        is_timed: Whether the time is the commit's own; else that is outside the years 0001 to 9999, and this one only
            orders.
        size: Bytes to read.
        rows: Rows to read, as far as the log of the table says.
        files: The files with rows that were added.
        layout: The table's layout at this version.
        entry: Size and modification time (nanoseconds) of its entry in the log.
        passed_over: A sentence on changes of rows that were not read; empty if there are none.
    """

    folder: Place
    version: int
    how: How
    modified_us: int
    size: int
    rows: int
    files: tuple[DataFile, ...]
    layout: TableLayout
    entry: tuple[int, int]
    passed_over: str = ""
    is_timed: bool = True
    before: Before | None = None

    @property
    def path(self) -> str:
        """Its name in plans and errors."""
        return path_of(self.folder, self.version)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to read of it."""
        return self.how == "nothing"

    @property
    def state(self) -> FileState:
        """The state to remember once it was read."""
        return FileState(
            name=str(self.version),
            size=self.size,
            modified_us=self.modified_us,
            digest=self.layout.table_id,
            records=self.rows,
            ends_with_newline=True,
            place=self.path,
        )


def path_of(folder: Place, version: int) -> str:
    """Return the name of a version in plans and errors."""
    return f"{folder}, version {version}"


def last_of(states: Iterable[FileState]) -> FileState | None:
    """Return the state of the last version that was read; None if there is none."""
    return max(states, key=lambda state: int(state.name), default=None)


def ensure_same_table(versions: Sequence[TableVersion]) -> None:
    """Check that the entries of versions are unchanged since discovery.

    Raises:
        InputError: An entry was changed or removed since.
    """
    for version in versions:
        try:
            seen = entry_path(version.folder, version.version).stat()
        except OSError:
            fault = "is gone"
        else:
            fault = "" if (seen.st_size, seen.st_mtime_ns) == version.entry else "was rewritten"
        if fault:
            raise InputError(
                f"{version.path}: its entry in the table's log {fault} while it was read",
                expected="a table whose log only grows",
                remedy="run again: the run reads the log from the start",
            )


ANEW = "to read the table from the start, choose another name or warehouse for the pipeline"
_FOLLOW = "take them in with `changes: follow`: the log is corrected, and what was computed from it is recomputed"
_BY_FEED = (
    "; in a pipeline of another `name`, `changes: rows` reads what later commits change, as rows with "
    "`_change_type`, where the table keeps a change data feed"
)


def judged(
    source: DeltaSource,
    folder: Place,
    commits: Sequence[TableCommit],
    layout: TableLayout,
    at_us: int,
    *,
    layout_before: Callable[[int], TableLayout],
    is_of_pipeline: bool,
) -> TableVersion:
    """Return the version to read for one commit, or for the commits of one batch of another pipeline.

    `layout` is the table's after them, `at_us` the order time of the last one, microseconds since the epoch.

    Raises:
        InputError: The version cannot be read, or the spec refuses it.
    """
    last = commits[-1]
    added, lost = _net(commits)
    how: How = "added" if added else "nothing"
    sentence, files, size, before = "", tuple(added), 0, None
    is_changed = bool(lost) or any(file.has_vector for file in added)
    if is_changed and source.changes == "follow":
        before = _before(commits[0].version - 1, layout_before, lost, added)
        how, files = "corrected", () if before.files is None else files
        size = sum(file.size for file in (*lost.values(), *(added if before.files is None else ())))
        check_files(folder, [file.path for file in (*added, *lost.values())], last.version, "changed")
    elif is_changed:
        how, files, sentence = _how_changed(source, folder, commits, layout, is_of_pipeline=is_of_pipeline)
        size = sum(file.size for file in (*last.feed, *last.added)) if how == "changed" else 0
    elif added:
        check_files(folder, [file.path for file in added], last.version, "added")
    if how != "nothing":
        check_fits(source, folder, layout, last.version)
    size, rows = size + sum(file.size for file in files), sum(file.rows for file in files)
    is_timed = last.at_us is not None
    about = (at_us, size, rows, files, layout, last.entry, sentence, is_timed)
    return TableVersion(folder, last.version, how, *about, before)


def _before(
    version: int, layout_at: Callable[[int], TableLayout], lost: Mapping[str, DataFile], added: Sequence[DataFile]
) -> Before:
    """Return the table before commits that removed rows."""
    layout = layout_at(version)
    is_untold = bool(layout.partitions) and any(not json.loads(file.partition) for file in lost.values())
    is_untold = is_untold or any(file.has_vector for file in (*lost.values(), *added))
    return Before(version, layout, None if is_untold else tuple(lost.values()))


def _how_changed(
    source: DeltaSource, folder: Place, commits: Sequence[TableCommit], layout: TableLayout, *, is_of_pipeline: bool
) -> tuple[How, tuple[DataFile, ...], str]:
    """Return how a version that changes rows is read, its files, and a sentence if it is not read.

    Raises:
        InputError: The spec refuses the version.
    """
    last = commits[-1]
    at = (
        "at a time that it does not say"
        if last.at_us is None
        else f"at {instant_of(last.at_us):%Y-%m-%d %H:%M:%S} UTC"
    )
    why = ": its pipeline has recomputed results, as a backfill or a revision does" if is_of_pipeline else ""
    what = f"{path_of(folder, last.version)} ({last.operation} {at}) updates or deletes rows{why}"
    if source.changes == "ignore":
        return "nothing", (), f"{what}: skipped entirely, because `changes` is ignore"
    if source.changes == "fail":
        raise InputError(
            what,
            expected="commits that only add rows, because `changes` is fail",
            remedy=f"{_FOLLOW}. To continue without them, set `start_version: {last.version + 1}`: this commit is "
            "skipped, including rows that it adds, and what was computed from the old rows "
            f"stays{'' if is_of_pipeline else _BY_FEED}",
        )
    if len(commits) > 1 and layout.has_change_feed:
        raise InputError(
            f"{what}, and so do other commits of the same batch: of several, the change data feed is not read",
            expected="windows of another pipeline that only ever have final rows",
            remedy="set `changes: follow`, or read `history/<name>`, where its window has `history: true`",
        )
    if not layout.has_change_feed:
        raise InputError(
            f"{what}, and the table kept no change data feed then",
            expected="a table with delta.enableChangeDataFeed = true, because `changes` is rows",
            remedy="set this property before rows are changed, or read `history/<name>` of a Tidemark pipeline; "
            "`changes: ignore` in a pipeline of another name skips such commits",
        )
    needed = [file.path for file in last.feed or (*last.added, *last.removed)]
    check_files(folder, needed, last.version, "changed")
    return "changed", (), ""


def check_fits(source: DeltaSource, folder: Place, layout: TableLayout, version: int) -> None:
    """Check that a table has the columns of the spec; their types are checked when rows are read.

    Raises:
        InputError: A column is missing.
    """
    path = path_of(folder, version)
    there = names_there(path, source, wanted_columns(source), layout.columns, of="table")
    check_names(path, list(there.values()), layout.columns, of="table")


def check_files(folder: Place, paths: Sequence[str], version: int, what: str) -> None:
    """Check that files still exist.

    Raises:
        InputError: A file was deleted.
    """
    for path in paths:
        if not place_of_file(path, folder).exists():
            raise InputError(
                f"{path_of(folder, version)} {what} {path}, and this file is gone",
                expected="all files of versions that have not been read yet",
                remedy="let VACUUM keep files for longer than this pipeline may lag "
                f"(delta.deletedFileRetentionDuration); `start_version: {version + 1}` skips this version, and "
                f"its rows are then missing here; {ANEW}",
            )


def _net(commits: Sequence[TableCommit]) -> tuple[list[DataFile], dict[str, DataFile]]:
    """Return the files that commits added together, and the earlier files that they removed.

    A file that one of them added and a later one removed is in neither: so an undone attempt leaves no trace. Neither
    does a file whose rows have become old in a table of another pipeline: what was read of it stays.
    """
    added: dict[str, DataFile] = {}
    lost: dict[str, DataFile] = {}
    old: set[str] = set()
    for commit in commits:
        gone = {*lost, *old}
        for file in commit.removed:
            if added.pop(file.path, None) is None:
                if commit.removes_old:
                    old.add(file.path)
                else:
                    lost[file.path] = file
        for file in commit.added:
            if file.path in gone and not file.has_vector:
                lost.pop(file.path, None)
                old.discard(file.path)
            else:
                added[file.path] = file
    return list(added.values()), lost


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


def reading_place(folder: Place) -> AbstractContextManager[Place]:
    """Make a temporary folder for files that we write; it is deleted once they have been read.

    Args:
        folder: Folder of the pipeline: every Spark that writes its tables can read it.
    """
    return temporary_place(folder / "_state" / "reading")


def read_versions(
    spark: SparkSession,
    source: DeltaSource,
    versions: Sequence[TableVersion],
    place: Place,
    time_zone: str = "UTC",
) -> DataFrame:
    """Read the rows of versions, as records like the ones of files; nothing is computed yet.

    `_file` is `v12/` and the file as the table's log names it, `_position` the row in the file from 1. Rows of the
    change feed are in no permanent file: `_file` is `v12/_change_data`, and `_position` numbers them by content.
    `place` is a folder from `reading_place`.

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
    for (how, layout), group in groupby(full, key=lambda version: (version.how, version.layout)):
        alike = list(group)
        before = alike[0].before
        if how == "changed":
            rows = [_changed(spark, alike)]
        elif how == "whole" or (before is not None and before.files is None):
            rows = [_whole(spark, version, place) for version in alike]
        else:
            rows = [_added(spark, alike, layout, place)]
        frames += [_records(part, source, schema, zone) for part in rows]
    records = reduce(DataFrame.unionByName, frames) if frames else no_records(spark, source)
    ensure_same_table(versions)
    return records


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
    types, wanted = types_in(there), types_in(schema)
    fits = [
        name
        for name, column in names.items()
        if column in types and misfit(types[column], wanted[name], holds, may_lack=True) is None
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
    names, types = names_there(path, source, schema.names, table.names, of="table"), types_in(table)
    errors = (
        fit_error(path, names[name], types[names[name]], wanted, of="table")
        for name, wanted in types_in(schema).items()
        if names[name] in types
    )
    return next(filter(None, errors), None)


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
    values = {name: f"{_VALUE}{number}" for number, name in enumerate(rows.names)}
    if source.changes == "rows":
        values.setdefault(CHANGE_TYPE, "'insert'")
    kinds = {name: field.dataType for name, field in zip(rows.names, rows.frame.schema, strict=False)}
    kinds.setdefault(CHANGE_TYPE, StringType())
    types = {name: type_of_json(kind.jsonValue()) for name, kind in kinds.items()}
    names = names_there(source.path, source, schema.names, list(values), of="table")
    wanted = {name: kind for name, kind in types_in(schema).items() if fits is None or name in fits}
    columns = {
        field.name: F.expr(
            converted(values[names[field.name]], types[names[field.name]], wanted[field.name], time_zone)
            if field.name in wanted
            else f"CAST(NULL AS {field.dataType.simpleString()})"
        )
        for field in schema
    }
    rescued = values_to_keep(
        [(values[names[name]], names[name], types[names[name]], kind) for name, kind in wanted.items()],
        [(value, name, types[name]) for name, value in values.items() if name not in names.values()],
    )
    malformed = unfit({name: (F.expr(value), kinds[name]) for name, value in values.items()})
    return to_records(rows.frame, source, columns, rescued, malformed=malformed)


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
    return _Rows.of(scan, version.layout.columns, file, at["row_index"] + 1, F.lit(version.modified_us))


def _added(spark: SparkSession, versions: Sequence[TableVersion], layout: TableLayout, place: Place) -> _Rows:
    """Return the rows of the files that versions of one layout added."""
    table = _new_place(place)
    lines = [{"protocol": _protocol(layout)}, {"metaData": _metadata(layout)}]
    lines += [{"add": _file_action(version, file)} for version in versions for file in version.files]
    write_whole(table / LOG_FOLDER / f"{0:020}.json", "\n".join(map(json.dumps, lines)) + "\n")
    scan = spark.read.format("delta").load(in_delta(table))
    position = scan.metadataColumn("_metadata")["row_index"] + 1
    return _Rows.of(scan, layout.columns, F.col(_FILE), position, F.col(_AT))


def _new_place(place: Place) -> Place:
    """Return a folder for a table that is read once: Delta remembers a log by its place, so each has its own name."""
    return place / uuid4().hex


def _protocol(layout: TableLayout) -> Mapping[str, Any]:
    """Return the features that a reader must know; with deletion vectors Delta numbers the rows of files."""
    protocol = json.loads(layout.protocol)
    named = (
        protocol["readerFeatures"]
        if protocol["minReaderVersion"] == _BY_NAME
        else _FEATURES_OF[protocol["minReaderVersion"]]
    )
    features = sorted({*named, "deletionVectors"})
    return {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}


def _metadata(layout: TableLayout) -> Mapping[str, Any]:
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
    marks = {_FILE: f"v{version.version}/{file.path}", _AT: str(version.modified_us)}
    return {
        "path": file.path if is_elsewhere else f"{_quoted_url(version.folder)}/{file.path}",
        "partitionValues": {**json.loads(file.partition), **marks},
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
        F.create_map(*[F.lit(n) for entry in versions for n in (entry.version, entry.modified_us)]), version
    )
    kind = F.array_position(F.array(*map(F.lit, _ORDER_OF_CHANGES)), F.col(CHANGE_TYPE))
    content = F.to_json(F.struct(*(F.col(quoted(name)) for name in names)), EVERY_MICROSECOND)
    place = F.row_number().over(Window.partitionBy(version).orderBy(kind, content)).cast("bigint")
    file = F.concat(F.lit("v"), version.cast("string"), F.lit("/_change_data"))
    return _Rows.of(feed, names, file, place, at_us)
