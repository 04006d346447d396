"""Rows of tables of any size without Spark: piece by piece, only the newest, or all that meet a condition in SQL.

Here: bounded memory by Arrow; SQL by DuckDB. Not here: the reads of a batch (resources/delta/versions.py).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.resources.delta.reading import LakeReader
from tidemark.resources.delta.versions import Filters, arrow_condition, python_values
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import did_you_mean

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


Row = Mapping[str, Any]
"""The values of a row of a table, by column."""
_PIECE_ROWS = 65_536
_NAME = "rows_of_table"  # of the table inside the query
_SHUT: dict[str, Any] = {
    "enable_external_access": "false",  # a condition reads only the table
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
_PREPARED = (
    "SET TimeZone = 'UTC'",
    # The payload of a dead letter is raw text if it could not be read: it has no fields, which is not an error.
    'CREATE TEMP MACRO "->"(text, path) AS CASE WHEN json_valid(text) THEN json_extract(text, path) END',
    'CREATE TEMP MACRO "->>"(text, path) AS CASE WHEN json_valid(text) THEN json_extract_string(text, path) END',
    "CREATE TEMP MACRO get_json_object(text, path) AS text ->> path",  # as in Spark SQL, and so in specs
    "SET lock_configuration = true",
)
_OF_ARROW = f"registered as '{_NAME}' failed"  # how DuckDB reports files that Arrow fails to read


def pieces(
    lake: LakeReader, table: str, version: int, columns: Sequence[str], filters: Filters | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in pieces; files that the filters rule out are not opened.

    Raises:
        LakeError: A file of the table cannot be read.
    """
    opened_table = lake.opened.version_at(table, version)
    with opened_table.reading():
        yield from opened_table.dataset.to_batches(
            columns=list(columns),
            filter=arrow_condition(filters) if filters else None,
            batch_size=_PIECE_ROWS,
            batch_readahead=2,  # Arrow's own 16 and 4 would hold that many pieces in memory
            fragment_readahead=1,
        )


def newest_rows(
    lake: LakeReader,
    table: str,
    version: int,
    columns: Sequence[str],
    *,
    by: str,
    most: int,
    filters: Filters = (),
) -> pa.Table:
    """Return the rows with the largest values of a column, at most `most` of them, the largest first.

    The column `by` has numbers or instants, is never null, and is among `columns`. The filters are as for `pieces`.
    """
    schema = lake.dataset(table, version).schema
    floor = None if filters else _floor(lake.opened.version_at(table, version).lowest_by_file(by), most)
    if floor is None:  # this column alone shows how much of the others is needed
        alone = _top(pieces(lake, table, version, [by], filters), pa.schema([schema.field(by)]), by, most)
        if not alone.num_rows:
            return pa.schema([schema.field(name) for name in columns]).empty_table()
        floor = python_values(alone[by][-1:])[0]
    newest_pieces = pieces(lake, table, version, columns, [*filters, (by, ">=", floor)])
    return _top(newest_pieces, pa.schema([schema.field(name) for name in columns]), by, most)


def python_rows(rows: pa.Table, *, maps: Literal["lossy"] | None = None) -> list[dict[str, Any]]:
    """Return rows of Arrow as Python's, with values as from `versions.python_values`."""
    columns = {name: python_values(rows[name], maps=maps) for name in rows.column_names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _top(batches: Iterable[pa.RecordBatch], schema: pa.Schema, by: str, most: int) -> pa.Table:
    top = schema.empty_table()
    for piece in batches:
        both = pa.concat_tables([top, pa.Table.from_batches([piece]).cast(schema)])
        newest = pc.sort_indices(both, sort_keys=[(by, "descending")])
        top = both.take(newest[:most])  # a copy, so that the pieces that the rows came from can be freed
    return top


def _floor(files: Sequence[tuple[Any, int]], most: int) -> object | None:
    """Return a value that at least `most` rows reach by the statistics of the files; None if these do not say."""
    rows = 0
    for lowest, n in sorted(files, key=lambda file: file[0], reverse=True):
        rows += n
        if rows >= most:
            return cast("object", lowest)
    return None


@dataclass(frozen=True)
class SortKey:
    """A column by which rows are ordered."""

    column: str
    descending: bool = False


@dataclass(frozen=True)
class SelectedRows:
    """Some rows, and the number of rows in all."""

    rows: pa.Table
    in_all: int


def select(
    lake: LakeReader, table: str, version: int | None, *, where: str | None, order: Sequence[SortKey], most: int
) -> SelectedRows:
    """Return at most `most` rows of a table, by default of its latest version, that meet a condition in SQL.

    Rows without a value in a column of `order` come last.

    Raises:
        SpecError: The condition cannot be evaluated.
        LakeError: A file of the table cannot be read.
    """
    by = ", ".join(f"{_quoted(key.column)} {'DESC' if key.descending else 'ASC'} NULLS LAST" for key in order)
    condition = f" WHERE (\n{where}\n)" if where is not None else ""  # a comment at its end ends with its line
    with _asking(lake, table, version, where) as connection:
        rows = f"SELECT * FROM {_NAME}{condition}{f' ORDER BY {by}' if by else ''} LIMIT {most}"
        answer: pa.Table = connection.sql(rows).to_arrow_table()
        if where is None:
            return SelectedRows(answer, lake.row_count(table, version))
        counted = connection.sql(f"SELECT count(*) AS n FROM {_NAME}{condition}").to_arrow_table()
    return SelectedRows(answer, counted["n"][0].as_py())


@contextmanager
def _asking(lake: LakeReader, table: str, version: int | None, where: str | None) -> "Iterator[DuckDBPyConnection]":
    """Open a connection that reads one table, as _NAME, and nothing else; raise the errors of `select`."""
    import duckdb  # noqa: PLC0415 - commands without SQL need not wait for it

    with duckdb.connect(config=_SHUT) as connection:
        for statement in _PREPARED:
            connection.execute(statement)
        connection.register(_NAME, lake.dataset(table, version))
        try:
            yield connection
        except duckdb.Error as error:
            if where is None or _OF_ARROW in str(error):
                raise lake.opened.version_at(table, version).unreadable(error) from error
            raise _not_understood(where, str(error), list(lake.columns(table))) from error


def rows_where(lake: LakeReader, table: str, version: int, where: str, columns: Sequence[str]) -> pa.Table:
    """Return columns of the rows that meet a condition in SQL, in the order of the first; errors as for `select`."""
    with _asking(lake, table, version, where) as connection:
        names = ", ".join(map(_quoted, columns))
        return connection.sql(f"SELECT {names} FROM {_NAME} WHERE (\n{where}\n) ORDER BY 1").to_arrow_table()


def grouped_rows(
    lake: LakeReader,
    table: str,
    where: str,
    by: Sequence[str],
    values: Mapping[str, str],
    *,
    version: int | None = None,
    having: str = "true",
) -> list[dict[str, Any]]:
    """Group rows that meet a condition, by columns and what is not an aggregate in `values`.

    Args:
        lake: The pipeline's tables.
        table: The table.
        where: The condition, in SQL.
        by: Columns of the table.
        values: SQL by the name that it gets.
        version: The version of the table; by default the latest.
        having: A condition on the groups, in SQL.

    Raises:
        LakeError: A file of the table cannot be read.
    """
    with _asking(lake, table, version, where) as connection:
        names = ", ".join([*map(_quoted, by), *(f"{sql} AS {_quoted(name)}" for name, sql in values.items())])
        query = f"SELECT {names} FROM {_NAME} WHERE {where} GROUP BY ALL HAVING {having}"
        grouped: pa.Table = connection.sql(query).to_arrow_table()
    rows: list[dict[str, Any]] = grouped.to_pylist()
    return rows


def _not_understood(where: str, message: str, columns: Sequence[str]) -> SpecError:
    fault = " ".join(message.partition("\n\nLINE")[0].partition(" Error: ")[2].split())
    near = ""
    if unknown := re.match(r'Referenced column "(.+?)" not found', fault):
        fault, near = f"No field named {unknown[1]}.", did_you_mean(unknown[1], columns)
    return SpecError(
        f"--where {where!r}: {fault.replace('Could not convert', 'Cannot cast')}",
        expected=f"a condition in SQL over {', '.join(columns)}; texts and instants in single quotes",
        remedy=near,
    )


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
