"""How the tables would differ if the present spec judged the whole log.

Here: the comparison with what comes of the log in memory, for `tidemark plan` and `tidemark simulate`. Nothing is
written. Not here: what changed in the spec (assets/log/spec_changes.py), how large a rebuild is
(assets/rebuild/work.py), the rebuild itself (assets/rebuild/).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, NumericType

from tidemark.assets.judging.replay import replay_all
from tidemark.assets.log.admissions import REPLAYED_AT, with_instants
from tidemark.assets.log.retention import kept_answers, kept_letters, kept_results
from tidemark.assets.log.spec_changes import renamed
from tidemark.assets.rebuild.differences import are_alike, coalesced_keys, compared_columns, side_by_side
from tidemark.assets.schemas import payload_of, table_schemas
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.engine import Outcome
from tidemark.timeops.events.adjustment import with_end
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.joins.rows import row_keys, shown
from tidemark.timeops.spec import JoinSpec, WindowSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ
from tidemark.timeops.spec.scope import Scope
from tidemark.timeops.spec.window import timeline_columns
from tidemark.timeops.windows.results import last_revisions, newest_revisions, passing

_MOST_SHOWN = 10
_IS_OPEN = "__tm_is_open"
_TIME_OF_LETTER = f"coalesce({c.EVENT_TIME}, {c.ARRIVAL})"


@dataclass(frozen=True)
class ComparedStretch:
    """A stretch of event time: only differences inside it are shown, although the whole log is judged.

    Attributes:
        first_us: Its start, microseconds; None for no limit.
        end_us: Its end, which is not in it; None for no limit.
    """

    first_us: int | None = None
    end_us: int | None = None

    def of(self, rows: DataFrame, instant: str) -> DataFrame:
        """Return the rows whose instant, as SQL, is in it."""
        if self.first_us is not None:
            rows = rows.where(f"unix_micros({instant}) >= {self.first_us}")
        return rows if self.end_us is None else rows.where(f"unix_micros({instant}) < {self.end_us}")


@dataclass(frozen=True)
class RowChange:
    """A window and group, or an event or pair of a join, whose row would be new, gone or other.

    Attributes:
        key: The values of the columns that name it.
        before: The values that it has; None where it has no row.
        after: The values that it would have; None where it would have none.
        by: How far the first aggregate that is a number would differ; in a join the first such column of the right
            side.
    """

    key: Mapping[str, Any]
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    by: float


@dataclass(frozen=True)
class TableRows:
    """How the rows of a window's table, or of a join's, would differ.

    Attributes:
        name: The window or join.
        before: Rows that the table has.
        after: Rows that it would have.
        new: Windows and groups, events or pairs, that would get a row.
        gone: The ones whose row would go.
        other: The ones whose row would have other values, whatever its revision.
        reopened: Rows that were published, and would go until their windows or events close, or be final no longer.
        largest: Starts of windows, or of hours of a join, with the most rows that are new, gone or other, and how
            many.
        rows: The rows that would change most, at most one for each start, the largest difference first.
    """

    name: str
    before: int
    after: int
    new: int
    gone: int
    other: int
    reopened: int
    largest: Mapping[str, int]
    rows: tuple[RowChange, ...] = ()

    @property
    def changed(self) -> int:
        """Rows that would be new, gone or other."""
        return self.new + self.gone + self.other


@dataclass(frozen=True)
class Preview:
    """The differences from the tables.

    Attributes:
        letters: The present and the future number of dead letters, by reason; also where the two are equal.
        windows: The windows that were compared, the ones with the most changed rows first.
        joins: The joins that were compared, in the same order: none where only some windows are.
    """

    letters: Mapping[str, tuple[int, int]]
    windows: tuple[TableRows, ...]
    joins: tuple[TableRows, ...] = ()


def preview(workspace: Workspace, scope: Scope, stretch: ComparedStretch | None = None) -> Preview:
    """Judge the whole log by the spec, and compare what comes of it with the tables as of the last commit.

    A batch has to be committed before. Dead letters are compared, too: all of them, or only some windows'; joins
    only with all. A stretch bounds what is compared: windows by their start, rows of joins by `_timestamp`, records
    by their event time, or else by their arrival.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    table_schemas(workspace)  # says what is wrong with an expression
    payload, within = payload_of(workspace), stretch or ComparedStretch()
    windows = [window for window in workspace.spec.windows if scope.of_all or window.name in scope.windows]
    joins = workspace.spec.joins if scope.of_all else ()
    results: dict[str, list[DataFrame]] = {window.name: [] for window in windows}
    answers: dict[str, list[DataFrame]] = {join.name: [] for join in joins}
    reasons: Counter[str] = Counter()
    for outcome in replay_all(workspace, joins=bool(joins)):
        for window in windows:
            # Otherwise each query below would judge all segments again.
            results[window.name].append(computed(outcome.results(window)))
        for join in joins:
            answers[join.name].append(computed(outcome.answers(join)))
        made = kept_letters(workspace, with_instants(workspace, outcome.dead_letters(payload.names)))
        letters = within.of(made, _TIME_OF_LETTER)
        reasons.update(_by_reason(letters, None if scope.of_all else results))
    of_windows = [_of_window(workspace, window, results[window.name], outcome, within) for window in windows]
    of_joins = [_of_join(workspace, join, answers[join.name], outcome, within) for join in joins]
    former = [renamed(workspace).get(window.name, window.name) for window in windows]
    before = letters_now(workspace, within, None if scope.of_all else former)
    return Preview(
        {reason: (before.get(reason, 0), reasons[reason]) for reason in sorted({*before, *reasons})},
        _most_changed(of_windows),
        _most_changed(of_joins),
    )


def _most_changed(compared: Iterable[TableRows]) -> tuple[TableRows, ...]:
    return tuple(sorted(compared, key=lambda table: (-table.changed, table.name)))


def letters_now(
    workspace: Workspace, within: ComparedStretch, windows: Iterable[str] | None = None
) -> dict[str, int]:
    """Count the dead letters in the tables by reason, of all windows or of some."""
    letters = kept_letters(workspace, workspace.read_base(tables.DEAD_LETTERS))
    return _by_reason(within.of(letters, _TIME_OF_LETTER), windows)


def _by_reason(letters: DataFrame, windows: Iterable[str] | None) -> dict[str, int]:
    """Count dead letters by reason, without the ones that were let in: all of them, or the ones of some windows."""
    letters = letters.where(F.col(REPLAYED_AT).isNull())
    of_these = letters if windows is None else letters.where(F.col("window_name").isin(*windows))
    return {row["reason"]: row["count"] for row in of_these.groupBy("reason").count().collect()}


def table_rows_now(workspace: Workspace, window: WindowSpec, within: ComparedStretch) -> DataFrame | None:
    """Return the rows that the table of a window has, in a stretch; None where there is no table."""
    name = renamed(workspace).get(window.name, window.name)
    table = tables.window_table(name)
    if not workspace.lake.exists(table):
        return None
    return within.of(kept_results(workspace, name, workspace.read_base(table)), "window_start").drop(c.BATCH)


def answers_now(workspace: Workspace, join: JoinSpec, within: ComparedStretch) -> DataFrame | None:
    """Return the rows that the table of a join has, in a stretch; None where there is no table."""
    table = tables.join_table(join.name)
    if not workspace.lake.exists(table):
        return None
    return within.of(kept_answers(workspace, join.name, workspace.read_base(table)), c.TIMESTAMP).drop(c.BATCH)


def _of_window(
    workspace: Workspace, window: WindowSpec, pieces: Sequence[DataFrame], last: Outcome, within: ComparedStretch
) -> TableRows:
    made = passing(last_revisions(reduce(DataFrame.unionByName, pieces), window))
    name = renamed(workspace).get(window.name, window.name)
    after = within.of(kept_results(workspace, name, made), "window_start")
    rows = table_rows_now(workspace, window, within)
    before = after.limit(0) if rows is None else rows
    if set(window.key_columns) - {*before.columns}:  # it has other groups: no row can be in the table already
        before = before.select("window_start", "window_end")
    before = _rows_with_state(workspace, window, before, last)
    start = F.coalesce("b.window_start", "a.window_start")
    keys, measures = window.key_columns, [*window.aggregates]
    return _changed_rows(window.name, before, after, key_columns=keys, start=start, measures=measures)


def _of_join(
    workspace: Workspace, join: JoinSpec, pieces: Sequence[DataFrame], last: Outcome, within: ComparedStretch
) -> TableRows:
    answers = reduce(DataFrame.unionByName, pieces)
    newest = newest_revisions(answers, row_keys(join)) if join.revises else answers
    after = within.of(kept_answers(workspace, join.name, shown(newest)), c.TIMESTAMP)
    rows = answers_now(workspace, join, within)
    before = _open_answers(workspace, join, after.limit(0) if rows is None else rows, last)
    hour = F.date_trunc("hour", F.coalesce(f"b.{c.TIMESTAMP}", f"a.{c.TIMESTAMP}"))
    of_right = [name for _, name in workspace.spec.join_columns[join.name].right]
    return _changed_rows(join.name, before, after, key_columns=join.key_columns, start=hour, measures=of_right)


def _changed_rows(
    name: str,
    before: DataFrame,
    after: DataFrame,
    *,
    key_columns: Sequence[str],
    start: Column,
    measures: Sequence[str],
) -> TableRows:
    """Compare the rows of a table with the ones that it would have.

    Args:
        name: The window or join.
        before: The rows of the table, with `_IS_OPEN`.
        after: The rows that it would have.
        key_columns: The columns that name a row.
        start: The instant by which changed rows are counted, of rows aliased `b` and `a`.
        measures: Columns; the first one that is a number says how far a row differs.
    """
    both, has_old, has_new = side_by_side(before, after, key_columns)
    values = [value for value in compared_columns(before, after, key_columns) if value != _IS_OPEN]
    alike = are_alike(before, after, values)
    numbers = [value for value in measures if isinstance(_kind_of(value, before, after), NumericType)]
    is_same = has_old & has_new & alike  # most rows, whose JSON is not needed
    marked = both.select(
        start.alias("start"),
        has_old.alias("there"),
        has_new.alias("would"),
        (has_old & has_new & ~alike).alias("other"),
        (F.col(f"b.{_IS_OPEN}") & (~has_new | (F.col("b._is_final") & ~F.col("a._is_final")))).alias("reopened"),
        _difference(numbers[0] if numbers else None).alias("by"),
        F.when(~is_same, F.to_json(F.struct(coalesced_keys(before, after, key_columns)))).alias("key"),
        F.when(has_old & ~is_same, _as_json("b", before, values)).alias("b"),
        F.when(has_new & ~is_same, _as_json("a", after, values)).alias("a"),
    )
    differs = F.col("there") != F.col("would")
    is_changed = differs | F.col("other")
    counts = {
        "before": F.col("there"),
        "after": F.col("would"),
        "new": differs & F.col("would"),
        "gone": differs & F.col("there"),
        "other": F.col("other"),
        "reopened": F.col("reopened"),
    }
    largest_row = F.max_by(F.struct("key", "b", "a", "by"), F.when(is_changed, F.struct("by", "key")))
    counted = marked.groupBy("start").agg(
        *[F.count_if(which).alias(name) for name, which in counts.items()], largest_row.alias("row")
    )
    counted = computed(counted)  # three queries read it
    [sums] = counted.agg(*[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in counts]).collect()
    changed = (F.col("new") + F.col("gone") + F.col("other")).alias("changed")
    text = F.date_format("start", "yyyy-MM-dd HH:mm:ss").alias("text")
    top = counted.select("start", changed, "row.*", text).where("changed > 0")
    by_count = top.orderBy(F.desc("changed"), "start").limit(_MOST_SHOWN)
    by_value = top.orderBy(F.desc("by"), "start").limit(_MOST_SHOWN)
    largest = {row["text"]: row["changed"] for row in by_count.collect()}
    rows = tuple(_row_change(row) for row in by_value.collect())
    return TableRows(name, **sums.asDict(), largest=largest, rows=rows)


def _row_change(row: Row) -> RowChange:
    before, after = (None if row[side] is None else json.loads(row[side]) for side in ("b", "a"))
    return RowChange(json.loads(row["key"]), before, after, row["by"])


def _kind_of(name: str, *frames: DataFrame) -> DataType | None:
    """Return the type that all of some frames have for a column; None where they differ."""
    kinds = [frame.schema[name].dataType if name in frame.columns else None for frame in frames]
    return kinds[0] if all(kind == kinds[0] for kind in kinds) else None


def _difference(name: str | None) -> Column:
    """Return how far a number would differ, DOUBLE; where there is none, 1 for any other row."""
    if name is None:
        return F.lit(1.0)
    sides = [F.col(f"{side}.{quoted(name)}").cast("double") for side in ("b", "a")]
    b, a = (F.coalesce(F.nanvl(side, F.lit(0.0)), F.lit(0.0)) for side in sides)
    return F.abs(b - a)


def _as_json(side: str, frame: DataFrame, values: Sequence[str]) -> Column:
    """Return the values of a side as JSON."""
    columns = [F.col(f"{side}.{quoted(name)}").alias(name) for name in values if name in frame.columns]
    return F.to_json(F.struct(*columns)) if columns else F.lit("{}")


def _rows_with_state(workspace: Workspace, window: WindowSpec, rows: DataFrame, last: Outcome) -> DataFrame:
    """Add `_IS_OPEN` to rows of the table: by the spec as it is now, their window would not be closed yet."""
    over = timeline_columns(window, workspace.spec.windows, workspace.spec.time.over)
    if last.flushed or not {*window.key_columns, "_is_final"} <= {*rows.columns}:
        return rows.withColumns({_IS_OPEN: F.lit(False), "_is_final": F.lit(True)})
    dated = with_end(rows.withColumn(c.TIMELINE, F.expr(timeline(Columns.of(rows), over))), last.judged)
    is_open = f"coalesce({c.shifted('unix_micros(window_end)', window.closes_after_us)} > {c.W_END}, true)"
    return dated.withColumn(_IS_OPEN, F.expr(is_open)).drop(c.TIMELINE, c.W_END)


def _open_answers(workspace: Workspace, join: JoinSpec, rows: DataFrame, last: Outcome) -> DataFrame:
    """Add `_IS_OPEN` to rows of the table: by the spec as it is now, their event would not be closed yet.

    A pair is final at once. With `time.over` a row without a left event lacks what its timeline is made of.
    """
    over = workspace.spec.time.over
    of_pair = f"{LEFT_SEQ} IS NOT NULL AND {RIGHT_SEQ} IS NOT NULL" if join.is_interval else "false"
    unknown = f"{LEFT_SEQ} IS NULL" if over else "false"
    if last.flushed:
        return rows.withColumn(_IS_OPEN, F.lit(False))
    dated = with_end(rows.withColumn(c.TIMELINE, F.expr(timeline(Columns.of(rows), over))), last.judged)
    waits = f"IF({LEFT_SEQ} IS NULL, {join.useful_for_us}L, {join.closes_after_us}L)"
    is_open = f"coalesce(unix_micros({c.TIMESTAMP}) + {waits} >= {c.W_END}, true)"
    closed = f"({of_pair}) OR {unknown}"
    return dated.withColumn(_IS_OPEN, F.expr(f"NOT ({closed}) AND {is_open}")).drop(c.TIMELINE, c.W_END)
