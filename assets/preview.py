"""How the tables would differ if the whole log were judged by the spec as it is now.

Here: the comparison with what comes of the log in memory. Nothing is written. Not here: what changed in the spec
(spec_changes.py), how large a rebuild is (work.py), the rebuild itself (rebuild/).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.admissions import REPLAYED_AT, with_instants
from tidemark.assets.differences import OF_REVISION, is_alike
from tidemark.assets.replay import replay_all
from tidemark.assets.schemas import payload_of, table_schemas
from tidemark.assets.spec_changes import renamed
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.engine import Outcome
from tidemark.timeops.events.adjustment import with_end
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.grid import open_to
from tidemark.timeops.materialize import computed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.scope import Scope
from tidemark.timeops.spec.window import timeline_columns
from tidemark.timeops.windows.results import last_revisions, passing

_MOST_SHOWN = 10
_IS_OPEN = "__tm_is_open"


@dataclass(frozen=True)
class WindowRows:
    """How the rows of a window's table would differ.

    Attributes:
        name: The window.
        before: Rows that the table has.
        after: Rows that it would have.
        new: Windows and groups that would get a row.
        gone: Windows and groups whose row would go.
        other: Windows and groups whose row would have other values, whatever its revision.
        reopened: Rows that were published, and would go until their windows close, or be final no longer.
        largest: Starts of windows with the most rows that are new, gone or other, and how many.
    """

    name: str
    before: int
    after: int
    new: int
    gone: int
    other: int
    reopened: int
    largest: Mapping[str, int]

    @property
    def changed(self) -> int:
        """Rows that would be new, gone or other."""
        return self.new + self.gone + self.other


@dataclass(frozen=True)
class Preview:
    """The differences from the tables.

    Attributes:
        letters: The present and the future number of dead letters, by reason; also where the two are equal.
        windows: The windows that were compared, those with the most changed rows first.
    """

    letters: Mapping[str, tuple[int, int]]
    windows: tuple[WindowRows, ...]


def preview(workspace: Workspace, scope: Scope) -> Preview:
    """Judge the whole log by the spec, and compare what comes of it with the tables as of the last commit.

    A batch has to be committed before. Dead letters are compared, too: all of them, or those of some windows.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    table_schemas(workspace)  # says what is wrong with an expression
    payload = payload_of(workspace)
    windows = [window for window in workspace.spec.windows if scope.of_all or window.name in scope.windows]
    results: dict[str, list[DataFrame]] = {window.name: [] for window in windows}
    reasons: Counter[str] = Counter()
    for outcome in replay_all(workspace):
        for window in windows:
            results[window.name].append(computed(outcome.results(window)))
        letters = with_instants(workspace, outcome.dead_letters(payload.names))
        reasons.update(_by_reason(letters, None if scope.of_all else results))
    compared = [_compared(workspace, window, results[window.name], outcome) for window in windows]
    former = [renamed(workspace).get(window.name, window.name) for window in windows]
    before = _by_reason(workspace.read_base(tables.DEAD_LETTERS), None if scope.of_all else former)
    return Preview(
        {reason: (before.get(reason, 0), reasons[reason]) for reason in sorted({*before, *reasons})},
        tuple(sorted(compared, key=lambda one: (-one.changed, one.name))),
    )


def _by_reason(letters: DataFrame, windows: Iterable[str] | None) -> dict[str, int]:
    """Count dead letters by reason, without the ones that were let in: all of them, or the ones of some windows."""
    letters = letters.where(F.col(REPLAYED_AT).isNull())
    of_these = letters if windows is None else letters.where(F.col("window_name").isin(*windows))
    return {row["reason"]: row["count"] for row in of_these.groupBy("reason").count().collect()}


def _compared(workspace: Workspace, window: WindowSpec, pieces: Sequence[DataFrame], last: Outcome) -> WindowRows:
    after = passing(last_revisions(reduce(DataFrame.unionByName, pieces), window))
    table = tables.window_table(renamed(workspace).get(window.name, window.name))
    before = workspace.read_base(table).drop(c.BATCH) if workspace.lake.exists(table) else after.limit(0)
    if set(window.key_columns) - {*before.columns}:  # it has other groups: no row can be in the table already
        before = before.select("window_start", "window_end")
        same = F.lit(False)
    else:
        same = c.same_in("b", "a", window.key_columns)
    before_here, after_here = (
        frame.withColumn("here", F.lit(1)) for frame in (_opened(workspace, window, before, last), after)
    )
    both = before_here.alias("b").join(after_here.alias("a"), same, "full_outer")
    there, would = F.col("b.here").isNotNull(), F.col("a.here").isNotNull()
    no_values = (*window.key_columns, *OF_REVISION)
    values = [name for name in dict.fromkeys([*before.columns, *after.columns]) if name not in no_values]
    alike = reduce(and_, [is_alike(before, after, name) for name in values], F.lit(True))
    told = both.select(
        F.coalesce("b.window_start", "a.window_start").alias("start"),
        there.alias("there"),
        would.alias("would"),
        (there & would & ~alike).alias("other"),
        (F.col(f"b.{_IS_OPEN}") & (~would | (F.col("b._is_final") & ~F.col("a._is_final")))).alias("reopened"),
    )
    differs = F.col("there") != F.col("would")
    counts = {
        "before": F.col("there"),
        "after": F.col("would"),
        "new": differs & F.col("would"),
        "gone": differs & F.col("there"),
        "other": F.col("other"),
        "reopened": F.col("reopened"),
    }
    counted = told.groupBy("start").agg(*[F.count_if(which).alias(name) for name, which in counts.items()])
    counted = computed(counted)
    [sums] = counted.agg(*[F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in counts]).collect()
    changed = (F.col("new") + F.col("gone") + F.col("other")).alias("changed")
    top = counted.select("start", changed).where("changed > 0").orderBy(F.desc("changed"), "start")
    shown = top.select(F.date_format("start", "yyyy-MM-dd HH:mm:ss").alias("start"), "changed").limit(_MOST_SHOWN)
    largest = {row["start"]: row["changed"] for row in shown.collect()}
    return WindowRows(window.name, **sums.asDict(), largest=largest)


def _opened(workspace: Workspace, window: WindowSpec, rows: DataFrame, last: Outcome) -> DataFrame:
    """Add `_IS_OPEN` to rows of the table: by the spec as it is now, their window would not be closed yet."""
    over = timeline_columns(window, workspace.spec.windows, workspace.spec.time.over)
    if last.flushed or not {*window.key_columns, "_is_final"} <= {*rows.columns}:
        return rows.withColumns({_IS_OPEN: F.lit(False), "_is_final": F.lit(True)})
    dated = with_end(rows.withColumn(c.TIMELINE, timeline(rows, over)), last.judged)
    is_open = open_to("unix_micros(window_end)", c.W_END, window)
    return dated.withColumn(_IS_OPEN, F.expr(is_open)).drop(c.TIMELINE, c.W_END)
