"""Tables that are not streams, which joins have on their right side: Delta tables, csv and parquet files.

Here: which version one has now, its columns and its rows as they are. Not here: which version a batch has, and the
rows that are kept of it (assets/state/right_tables.py).

A look without work asks for versions alone, so PySpark is imported where columns or rows are asked for.
"""
# ruff: noqa: PLC0415 - the reason is above

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.resources.delta.log import open_table
from tidemark.resources.places.place import Place, is_url, place_of, spark_url
from tidemark.resources.sources.local_files import spark_path
from tidemark.timeops.errors import InputError, first_line
from tidemark.timeops.expressions.column_types import type_of_json
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import JoinSpec, Spec
from tidemark.timeops.spec.fields import is_reserved

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_DIGITS = 16


@dataclass(frozen=True)
class ReferenceTable:
    """The table on the right side of a join.

    Attributes:
        join: The join.
        base: The folder of the spec file.
    """

    join: JoinSpec
    base: Path

    @property
    def place(self) -> Place:
        """Where it is."""
        path = self.join.right.table or ""
        return place_of(path) if is_url(path) else Path(os.path.abspath(self.base / path))

    @property
    def form(self) -> str:
        """Its format: csv, parquet or delta."""
        return self.join.right.table_format

    def version(self) -> str:
        """Return the version that it has now: of a Delta table its number, of a file a digest of its bytes.

        Raises:
            InputError: There is no such table.
        """
        if self.form == "delta":
            try:
                return str(open_table(self.place).version)
            except InputError as error:
                raise self._gone(str(error)) from error
        digest = hashlib.sha256()
        try:
            with self.place.open("rb") as file:
                while piece := file.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise self._gone(f"{self.place}: {error.strerror or first_line(error)}") from error
        return digest.hexdigest()[:_DIGITS]

    def columns(self) -> str:
        """Return the columns that it has now as Spark DDL, but the ones that only Tidemark writes.

        Raises:
            InputError: There is no such table, or Spark has no type for a column.
        """
        from pyspark.errors import PySparkException
        from pyspark.sql.pandas.types import from_arrow_schema
        from pyspark.sql.types import StructType

        if self.form == "delta":
            try:
                return ddl_of(StructType.fromJson(json.loads(open_table(self.place).layout.schema)))
            except InputError as error:
                raise self._gone(str(error)) from error
        try:
            with self.place.open("rb") as file:
                return ddl_of(from_arrow_schema(pq.read_schema(file), prefer_timestamp_ntz=True))
        except (OSError, pa.ArrowException, PySparkException) as error:
            raise self._gone(f"{self.place}: {first_line(error)}") from error

    def rows(self, spark: "SparkSession", version: str) -> "DataFrame":
        """Return the columns that the join reads, with the types that they have there; of csv all are texts.

        Raises:
            InputError: The table is gone, is another one by now, or lacks a column.
        """
        from pyspark.errors import PySparkException

        if self.form == "delta":
            reader = spark.read.format("delta").option("versionAsOf", version)
            path = spark_url(self.place)
        else:
            self.ensure_is(version)
            reader = spark.read.format(self.form)
            path = spark_path(str(self.place))
            if self.form == "csv":
                reader = reader.options(header=True, enforceSchema=False, multiLine=True, escape='"')
        try:
            table = reader.load(path)
            there = table.columns
        except PySparkException as error:
            raise self._gone(first_line(error)) from error
        lacking = [name for name in self.join.right.column_names if name not in there]
        if lacking:
            raise InputError(
                f"Join {self.join.name}: {self.place} has no column `{lacking[0]}`",
                expected=f"{self._wanted}; it has {', '.join(f'`{name}`' for name in there)}",
                remedy="add the column to the table, or name the columns that the join reads in `schema`",
            )
        return table.select(*map(quoted, self.join.right.column_names))

    def ensure_is(self, version: str) -> None:
        """Check that a file is the version that a batch has; of a Delta table all versions stay readable.

        Raises:
            InputError: It is another one.
        """
        if self.form != "delta" and self.version() != version:
            raise InputError(
                f"Join {self.join.name}: {self.place} was written again, and the rows of the batch are not kept",
                expected="a file that stays as it is while a batch is at work, and the `right.schema` of before",
                remedy="run the pipeline again. After a change of `schema` use another name for the join: it has "
                "the table as it is",
            )

    @property
    def _wanted(self) -> str:
        """The columns that the table must have, in words."""
        of_first = "the columns that the table had when the first batch had it"
        return of_first if self.join.right.takes_all_columns else "the columns of `right.schema`"

    def _gone(self, fault: str) -> InputError:
        return InputError(
            f"Join {self.join.name}: the table on its right side cannot be read: {fault}",
            expected="a Delta table, or a csv or parquet file, at `right.table`",
            remedy="restore the table, or correct the path",
        )


def ddl_of(schema: "StructType") -> str:
    """Return columns as Spark DDL, but the ones that only Tidemark writes, such as `_batch_id`."""
    fields = [field for field in schema if not is_reserved(field.name)]
    kinds = {field.name: type_of_json(field.dataType.jsonValue()).sql for field in fields}
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in kinds.items())


def columns_there(spec: Spec, base: Path) -> Mapping[str, str]:
    """Return the columns of tables that `right.schema` does not name, as Spark DDL, by the join.

    A table that cannot be read is left out: it may be there when a batch is planned.

    Args:
        spec: The spec.
        base: The folder of the spec file.
    """
    columns = {}
    for join in spec.joins:
        if join.right.takes_all_columns:
            with suppress(InputError):
                columns[join.name] = ReferenceTable(join, base).columns()
    return columns
