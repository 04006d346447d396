"""Differences in the tables of windows: results, and the days that a consumer has to compute again.

Here: the comparison of rows by window and group, and the differences that a decision on records makes: before it is
carried out, from the log judged in memory, and after it, between two versions of the tables. Not here: the decisions
(assets/rebuild/decisions/, assets/log/corrections.py), what a changed spec would make of the log
(assets/questions/what_if/preview.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.assets.catalog.days.counts import counts_by_day
from tidemark.assets.judging.replay import replay_all
from tidemark.assets.log.exclusions import CHANGES_LOG, items_of, log_clocks
from tidemark.assets.log.retention import kept_results
from tidemark.assets.log.spec_changes import renamed
from tidemark.resources import tables
from tidemark.resources.delta.queries import python_rows
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.instants import integers
from tidemark.timeops.windows.results import last_revisions, passing

MOST_SHOWN = 1_000
"""Results of a window that a difference shows."""
NEARLY = 1e-12
"""Sums of floating point numbers may differ by so much of their size: they are added in any order."""
_COMPARABLE = (BinaryType, BooleanType, DateType, DecimalType, IntegralType, TimestampNTZType, TimestampType)
"""Types whose values Spark compares as they are; a map is compared as JSON, and so is a text that has a collation."""
OF_REVISION = ("_revision", "_is_final", c.WATERMARK, c.BATCH)
"""Columns that say how a result came about; readers of results do not compute with them."""
OLD, NEW, _HERE = "__tm_old", "__tm_new", "__tm_here"


@dataclass(frozen=True)
class Changed:
    """A result that differs: a window and group.

    Attributes:
        key: Start, end and group, by the name of their column.
        before: The values that the table has; None if it has no such row.
        after: The values that it would have; None if it would have no such row.
    """

    key: Mapping[str, Any]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None


@dataclass(frozen=True)
class WindowDifference:
    """The rows of a window's table that differ, or would.

    Attributes:
        window: Its name.
        changed: Rows with other values, or final on one side alone.
        new: Windows and groups that get a row.
        gone: Windows and groups whose row goes: they are open still, or part of another session.
        days: The days of `partitions.time_zone` on which such windows start.
        rows: The rows, in the order of their windows, at most MOST_SHOWN.
    """

    window: str
    changed: int
    new: int
    gone: int
    days: tuple[str, ...]
    rows: tuple[Changed, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows differ, by how they do."""
        return {"changed": self.changed, "new": self.new, "gone": self.gone}


def window_differences(workspace: Workspace, items: Sequence[Mapping[str, Any]] = ()) -> tuple[WindowDifference, ...]:
    """Return what would differ in the tables if decisions on records were carried out; nothing is written.

    The log is judged in memory, and what comes of it is compared with the tables: with records that are let in or
    refused again, taken out of the log or back into it, by control items that are not in `log_control` yet; and with
    the corrections of the log that no table has taken into account yet.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    decided = replace(workspace, decided=tuple(items))
    if items_of(decided, *CHANGES_LOG):
        decided = replace(decided, clocks=log_clocks(decided))
    results: dict[str, list[DataFrame]] = {window.name: [] for window in workspace.spec.windows}
    for outcome in replay_all(decided):
        for window in workspace.spec.windows:
            results[window.name].append(computed(outcome.results(window)))
    by_window, former = [], renamed(workspace)
    for window in workspace.spec.windows:
        after = passing(last_revisions(reduce(DataFrame.unionByName, results[window.name]), window))
        name = former.get(window.name, window.name)
        table = tables.window_table(name)
        before = workspace.read_base(table) if workspace.lake.exists(table) else after.limit(0)
        sides = [kept_results(workspace, name, rows) for rows in (before, after)]
        by_window.append(_difference(workspace, window, *sides))
    return tuple(by_window)


def differences_since(workspace: Workspace, versions: Mapping[str, int]) -> tuple[WindowDifference, ...]:
    """Return what differs in the tables from earlier versions of them; a table without one had no rows."""
    by_window = []
    for window in workspace.spec.windows:
        table = tables.window_table(window.name)
        new = workspace.read_base(table)
        old = workspace.lake.read(table, versions[table]) if table in versions else new.limit(0)
        by_window.append(_difference(workspace, window, old, new))
    return tuple(by_window)


def _difference(workspace: Workspace, window: WindowSpec, before: DataFrame, after: DataFrame) -> WindowDifference:
    changed = computed(differing(before, after, window.key_columns))
    sums = changed.agg(
        F.count_if(F.col(OLD).isNotNull() & F.col(NEW).isNotNull()).alias("changed"),
        F.count_if(F.col(OLD).isNull()).alias("new"),
        F.count_if(F.col(NEW).isNull()).alias("gone"),
    ).collect()[0]
    starts = changed.select(c.to_us("window_start").alias("us")).distinct().toArrow()["us"]
    days = sorted(counts_by_day(integers(starts), workspace.spec.partitions.time_zone))
    keys = [*window.key_columns]
    shown = changed.orderBy(*map(quoted, keys[:2])).limit(MOST_SHOWN).toArrow()
    rows = []
    for row in python_rows(shown, maps="lossy"):
        key = {name: row[name] for name in keys}
        rows.append(Changed(key, *(_values(row[side], keys) for side in (OLD, NEW))))
    return WindowDifference(window.name, sums["changed"], sums["new"], sums["gone"], tuple(days), tuple(rows))


def _values(row: Mapping[str, Any] | None, keys: Sequence[str]) -> dict[str, Any] | None:
    return None if row is None else {n: v for n, v in row.items() if n not in (*keys, *OF_REVISION)}


def differing(before: DataFrame, after: DataFrame, key_columns: Sequence[str]) -> DataFrame:
    """Return the windows and groups whose results differ: the key columns, and each row in OLD and NEW, or null.

    A result that is final on one side alone differs.
    """
    both, has_old, has_new = side_by_side(before, after, key_columns)
    alike = are_alike(before, after, compared_columns(before, after, key_columns))
    same_state = F.col("b._is_final").eqNullSafe(F.col("a._is_final"))
    rows = [
        F.when(is_there, F.struct(*[f"{side}.{quoted(name)}" for name in frame.columns])).alias(into)
        for side, frame, is_there, into in (("b", before, has_old, OLD), ("a", after, has_new, NEW))
    ]
    return both.where(~(has_old & has_new & alike & same_state)).select(
        *coalesced_keys(before, after, key_columns), *rows
    )


def side_by_side(before: DataFrame, after: DataFrame, key_columns: Sequence[str]) -> tuple[DataFrame, Column, Column]:
    """Join the rows aliased `b` and `a` by the columns that name a row, such as window and group.

    Returns:
        All rows, and whether `b` and `a` have one: BOOLEAN, never null. If `before` lacks one of the columns, as it
        has other groups than the window has now, no row has a partner.
    """
    old, new = (rows.withColumn(_HERE, F.lit(1)) for rows in (before, after))
    has_groups = {*key_columns} <= {*before.columns}
    same = c.same_in("b", "a", key_columns) if has_groups else F.lit(False)
    both = old.alias("b").join(new.alias("a"), same, "full_outer")
    return both, F.col(f"b.{_HERE}").isNotNull(), F.col(f"a.{_HERE}").isNotNull()


def coalesced_keys(before: DataFrame, after: DataFrame, key_columns: Sequence[str]) -> list[Column]:
    """Return the columns that name a row of both side by side, from the side that has it."""
    sides = [("b", before), ("a", after)]
    return [
        F.coalesce(*[F.col(f"{side}.{quoted(name)}") for side, frame in sides if name in frame.columns]).alias(name)
        for name in key_columns
    ]


def compared_columns(before: DataFrame, after: DataFrame, key_columns: Sequence[str]) -> list[str]:
    """Return the columns of results that readers compute with: all but the key and how the row came about."""
    key_and_revision = (*key_columns, *OF_REVISION)
    return [name for name in dict.fromkeys([*before.columns, *after.columns]) if name not in key_and_revision]


def are_alike(before: DataFrame, after: DataFrame, values: Sequence[str]) -> Column:
    """Return a BOOLEAN, never null: the rows aliased `b` and `a` have the same in some columns."""
    return reduce(and_, [_is_alike(before, after, name) for name in values], F.lit(True))


def _is_alike(before: DataFrame, after: DataFrame, name: str) -> Column:
    """Return a BOOLEAN, never null: a column has the same value in the row aliased `b` and in the one aliased `a`."""
    if name not in before.columns or name not in after.columns:
        return F.col(f"{'b' if name in before.columns else 'a'}.{quoted(name)}").isNull()
    old, new = F.col(f"b.{quoted(name)}"), F.col(f"a.{quoted(name)}")
    kinds = before.schema[name].dataType, after.schema[name].dataType
    if all(isinstance(kind, DoubleType | FloatType) for kind in kinds):
        largest = F.greatest(F.abs(old), F.abs(new))
        return old.eqNullSafe(new) | F.coalesce(F.abs(old - new) <= largest * F.lit(NEARLY), F.lit(False))
    if kinds[0] != kinds[1]:
        return old.cast("string").eqNullSafe(new.cast("string"))
    if isinstance(kinds[0], _COMPARABLE) or kinds[0] == StringType():
        return old.eqNullSafe(new)
    return F.to_json(F.struct(old.alias("v"))).eqNullSafe(F.to_json(F.struct(new.alias("v"))))
