"""Rows of a table that a person asks for in SQL, without Spark: by DataFusion, which comes with delta-rs.

Here: one condition, an order and a limit. Not here: how rows are shown (pipelines/commands/show.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from tidemark.resources.lake.lake import Lake
from tidemark.timeops.errors import SpecError

_NAME = "rows_of_table"  # of the table inside the query


@dataclass(frozen=True)
class Order:
    """A column that rows are put in order by."""

    column: str
    descending: bool = False


@dataclass(frozen=True)
class Found:
    """Some rows, and how many there are in all."""

    rows: pa.Table
    in_all: int


def select(
    lake: Lake, table: str, version: int | None, *, where: str | None, order: Sequence[Order], most: int
) -> Found:
    """Returns rows of a table.

    Args:
        lake: The tables.
        table: The table.
        version: Its version; the latest if None.
        where: A condition in SQL; None for all rows.
        order: What they are put in order by.
        most: How many.

    Raises:
        SpecError: The condition cannot be evaluated.
    """
    delta = DeltaTable(str(lake.path(table)), version=version)
    by = ", ".join(f"{_quoted(one.column)} {'DESC' if one.descending else 'ASC'}" for one in order)
    behind = f"{f' ORDER BY {by}' if by else ''} LIMIT {most}"
    if where is None:
        return Found(_asked(delta, f"SELECT * FROM {_NAME}{behind}"), lake.row_count(table, version))
    condition = f"WHERE (\n{where}\n)"  # a comment at its end ends with its line
    try:
        rows = _asked(delta, f"SELECT * FROM {_NAME} {condition}{behind}")
        [counted] = _asked(delta, f"SELECT count(*) AS n FROM {_NAME} {condition}").to_pylist()
    except DeltaError as error:
        raise _not_understood(where, str(error), list(lake.columns(table))) from error
    return Found(rows, counted["n"])


def _asked(delta: DeltaTable, query: str) -> pa.Table:
    return pa.RecordBatchReader.from_stream(QueryBuilder().register(_NAME, delta).execute(query)).read_all()


def _not_understood(where: str, said: str, columns: Sequence[str]) -> SpecError:
    """The error of a condition, with the columns that there are."""
    found = " ".join(said.replace("caused by", "").replace(f"{_NAME}.", "").split())
    return SpecError(
        f"--where {where!r}: {found.partition(' Valid fields are')[0]}",
        expected=f"a condition in SQL over {', '.join(columns)}; texts and instants stand in single quotes",
    )


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
