"""The tables on the right side of joins: the version that each batch has, and the rows of all that one had.

Here: the rows of a version, copied when a batch has it first, so that a rebuild has the rows of each batch whatever
has become of the table. Not here: reading the table itself (resources/sources/reference.py), the join.

A batch has a table as it is when the batch is planned. A control item says from which record on which version holds,
so that the log is cut there when it is judged again.
"""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from tidemark.assets.batch import Batch
from tidemark.assets.planning import segment_of
from tidemark.assets.schemas import columns_of_table, right_schema, value_as
from tidemark.resources import tables
from tidemark.resources.sources.reference import ReferenceTable
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.errors import InputError
from tidemark.timeops.expressions.text_values import instant_sql
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.joins.tables import VALID_FROM, right_events
from tidemark.timeops.spec import JoinSpec


def right_sides(workspace: Workspace, versions: Mapping[str, str]) -> Mapping[str, DataFrame]:
    """Return the tables on the right side of joins as events, each of the version that it has, or else as it is."""
    over = workspace.spec.time.over
    by_join = {}
    for join in workspace.spec.joins:
        if join.has_table:
            version = versions.get(join.name) or _table_of(workspace, join).version()
            by_join[join.name] = right_events(rows_of_version(workspace, join, version), join, over)
    return by_join


def rows_now(workspace: Workspace) -> Mapping[str, DataFrame]:
    """Return the rows that the tables on the right side of joins have now, with VALID_FROM."""
    joins = [join for join in workspace.spec.joins if join.has_table]
    return {join.name: _read_rows(workspace, join, _table_of(workspace, join).version()) for join in joins}


def write_right_rows(batch: Batch, join: JoinSpec) -> None:
    """Copy the rows of the version that a batch has, unless an earlier batch had it."""
    version = segment_of(batch.plan).tables[join.name]
    if _kept_rows(batch.workspace, join, version) is None:
        *_, valid_from, of_version = right_schema(join).names
        rows = rows_of_version(batch.workspace, join, version)
        copy = rows.withColumnsRenamed({VALID_FROM: valid_from}).withColumn(of_version, F.lit(version))
        nothing = batch.workspace.spark.createDataFrame([(version,)], f"{quoted(of_version)} STRING")
        # A row without an instant says that the version is there, if it has no rows.
        batch.append(tables.right_rows_table(join.name), copy.unionByName(nothing, allowMissingColumns=True))


def _table_of(workspace: Workspace, join: JoinSpec) -> ReferenceTable:
    return ReferenceTable(join, workspace.file.folder)


def rows_of_version(workspace: Workspace, join: JoinSpec, version: str) -> DataFrame:
    """Return the rows of a version, with VALID_FROM: as they were kept, or else as the table has them.

    What was kept may be of an earlier `right.schema`.
    """
    kinds = {field.name: field.dataType for field in columns_of_table(join)}
    for place in (workspace, workspace.log_of):
        rows = None if place is None else _kept_rows(place, join, version)
        if rows is not None and kinds.items() <= {field.name: field.dataType for field in rows.schema}.items():
            return rows.select(*map(quoted, kinds), VALID_FROM)
    return _read_rows(workspace, join, version)


def _kept_rows(workspace: Workspace, join: JoinSpec, version: str) -> DataFrame | None:
    """Return the rows of a version that an earlier batch had; None if none had."""
    table, (*_, valid_from, of_version) = tables.right_rows_table(join.name), right_schema(join).names
    if not workspace.lake.exists(table):
        return None
    rows = workspace.read_base(table).where(f"{quoted(of_version)} = {literal(version)}")
    if rows.isEmpty():
        return None
    holding = rows.where(f"{quoted(valid_from)} IS NOT NULL").drop(of_version, c.BATCH)
    return holding.withColumnsRenamed({valid_from: VALID_FROM})


def _read_rows(workspace: Workspace, join: JoinSpec, version: str) -> DataFrame:
    """Return the rows of a table as it is, each value as `right.schema` says.

    Raises:
        InputError: It is gone, lacks a column, or a row has no instant.
    """
    table, right = _table_of(workspace, join), join.right
    values, zone = table.rows(workspace.spark, version), workspace.spec.time.time_zone
    kinds = {field.name: field.dataType for field in values.schema}
    schema = columns_of_table(join)
    typed = values.select(*[value_as(f.name, kinds[f.name], f.dataType, zone).alias(f.name) for f in schema])
    name = right.valid_from or ""
    is_text = isinstance(typed.schema[name].dataType, StringType)
    instant = instant_sql(quoted(name), zone) if is_text else f"CAST({quoted(name)} AS TIMESTAMP)"
    rows = computed(typed.withColumn(VALID_FROM, F.expr(instant)))
    table.ensure_is(version)  # a file that is written now may have been read in part
    lacking = rows.where(f"{VALID_FROM} IS NULL").count()
    if lacking:
        raise InputError(
            f"Join {join.name}: {lacking:,} rows of {table.place} have no time in `{name}`",
            expected="an instant in each row, from which it holds",
            remedy="correct the rows",
        )
    return rows
