"""Windows that a batch closed, computed once more from the tables of events, by comparing times with starts and ends.

Here: which events are in them, what differs. Not here: which windows (written_windows.py), the rules of windows
(timeops/): only the reading of the user's expressions is shared. The windows that a flush closed are read from the
table that keeps them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import Batch
from tidemark.assets.recount.precision import is_same, is_sure, moved_sums, with_column
from tidemark.assets.recount.written_windows import Look, Span
from tidemark.assets.state.windows import drained_before
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import KEPT
from tidemark.timeops.expressions.aggregates import on_rows, overflow_in, without_overflow
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.expressions.try_expression import any_fails, as_json, null_if_it_fails
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.aggregates import passes_having, with_aggregates
from tidemark.timeops.windows.membership import END, START, group_names

_START, _END = "window_start", "window_end"
_FROM, _TO = "__tm_from", "__tm_to"  # start and end of a window that is computed again
_HERE = "__tm_here"
_UNSURE = "__tm_unsure"  # times alone do not show which events a session holds
_TOO_LARGE = "__tm_too_large"  # aggregates in which a sum or an average does not fit
_MAY_PASS = "__tm_may_pass"  # whether a result passes `having` depends on the order of summation

Moved = tuple[str, ...] | None
"""The result of `moved_sums` for an aggregate."""


def can_recount(window: WindowSpec) -> bool:
    """Return whether the tables of events have all that the window's expressions name."""
    texts = (*window.aggregates.values(), *(text for _, text in window.group_expressions), window.where or "")
    return not any(mentions(text, name) for text in texts for name in (c.SOURCE, c.SPLIT))


def _too_large(window: WindowSpec, events: DataFrame) -> Column:
    """Return an ARRAY<STRING> aggregate: the names of the aggregates in which a sum or an average does not fit."""
    overflows = {name: overflow_in(text, events) for name, text in window.aggregates.items()}
    which = [F.when(F.expr(text), F.lit(name)) for name, text in overflows.items() if text is not None]
    return F.array_compact(F.array(*which)) if which else F.array().cast("array<string>")


def group_values(names: Sequence[str]) -> Column:
    """Return `group_values`: group columns as JSON, so that definitions with other groups have one shape.

    It is for people to read: other values may have the same text.
    """
    values = as_json(*[F.col(f"`{name}`") for name in names])
    return (values if names else F.lit("{}")).alias("group_values")


@dataclass(frozen=True)
class Compared:
    """Final results of a window beside the results that are computed from the events in the tables.

    Attributes:
        counts: One row: `window_name`, how many were `compared`, how many are `wrong` and `too_large`, and `left_out`
            MAP<STRING, BIGINT>: for each aggregate, how many results may depend on the order of summation.
        wrong: The results that differ: `window_name`, start, end, `group_values`.
        too_large: The same of the results in which a sum or an average does not fit, and the `aggregate`.
    """

    counts: DataFrame
    wrong: DataFrame
    too_large: DataFrame


def compared(batch: Batch, window: WindowSpec, look: Look) -> Compared:
    """Compare the final results that were looked at with results from the events in the tables.

    Sessions that late events may have made to overlap are not compared, see `_may_overlap`.

    Where the log was reopened, events that came later are missing from the results of a flush: then only the batch's
    own rows are compared.
    """
    workspace = batch.workspace
    names, spans = window.key_columns, look.spans
    rows = workspace.lake.read(tables.window_table(window.name), filters=[(_START, ">=", Instant(look.first_us))])
    events = _events(workspace, window, spans)
    moved = {name: moved_sums(text, events) for name, text in window.aggregates.items()}
    again = _again(events, spans, window, moved)
    if batch.was_reopened:
        again = _not_flushed(again, drained_before(batch).get(window.name), window)
        rows = rows.where(F.col(c.BATCH) == batch.plan.batch_id)
    own = F.struct(F.unix_micros(_START).alias("0"), F.unix_micros(_END).alias("1"))
    written = rows.where("_is_final").where(F.array_contains(F.expr(_listed(spans)), own))
    old = written.select(*[F.col(f"`{name}`") for name in names], *window.aggregates, F.lit(True).alias(_HERE))
    both = old.alias("old").join(again.alias("again"), c.same_in("old", "again", names), "full")
    is_known = {name: _is_known(name, moved[name], rows) for name in window.aggregates}
    differs = [known & ~_is_same(name, moved[name], rows) for name, known in is_known.items()]
    sure = ~F.coalesce(F.col(f"again.{_UNSURE}"), F.lit(False))
    is_old, is_again = F.col(f"old.{_HERE}").isNotNull(), F.col(f"again.{_HERE}").isNotNull()
    in_both = is_old & is_again & sure
    wrong = in_both & reduce(or_, differs)
    if not window.empty:
        wrong = wrong | (is_old & ~is_again)
    if not workspace.spec.time.over and not window.is_linked:  # otherwise a group may close later, or have its own
        wrong = wrong | (is_again & ~is_old & ~F.col(f"again.{_MAY_PASS}"))
    left_out = [F.count_if(in_both & ~known) for known in is_known.values()]
    named = F.lit(window.name).alias("window_name")
    counts = both.agg(
        F.count_if(in_both).alias("compared"),
        F.count_if(wrong & sure).alias("wrong"),
        F.coalesce(F.sum(F.when(in_both, F.size(_TOO_LARGE))), F.lit(0)).alias("too_large"),
        F.map_from_arrays(F.array(*map(F.lit, is_known)), F.array(*left_out)).alias("left_out"),
    )
    keys = [F.coalesce(f"old.`{name}`", f"again.`{name}`").alias(name) for name in names]
    shown = [named, F.col(_START), F.col(_END), group_values(window.group_columns)]
    too_large = both.where(in_both).select(*keys, F.explode(_TOO_LARGE).alias("__tm_aggregate"))
    return Compared(
        counts.select(named, "*"),
        both.where(wrong & sure).select(*keys).select(*shown),
        too_large.select(*shown, F.col("__tm_aggregate").alias("aggregate")),
    )


def _listed(spans: Sequence[Span]) -> str:
    """Return an ARRAY<STRUCT<BIGINT, BIGINT>> in SQL, starts and ends: a join would take a job to send them out."""
    starts, ends = (", ".join(f"{span[number]}L" for span in spans) for number in (0, 1))
    return f"arrays_zip(array({starts}), array({ends}))"


def _events(workspace: Workspace, window: WindowSpec, spans: Sequence[Span]) -> DataFrame:
    """Return the events of the time of some windows, with `__tm_at`, and with `__tm_met`, the watermark they met."""

    def within(name: str, column: str) -> DataFrame:
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        between = [(column, ">=", Instant(first)), (column, "<=", Instant(last))]
        return workspace.lake.read(name, filters=between)

    if window.input is not None:
        results = within(tables.window_table(window.input), _END).where("_is_final")
        return results.withColumns({"__tm_at": F.col(_END), "__tm_met": F.lit(None).cast("timestamp")})
    ordered, held = within(tables.ORDERED_EVENTS, c.TIMESTAMP), within(tables.HELD_EVENTS, c.TIMESTAMP)
    both = ordered.drop(c.RELEASE_SEQ).unionByName(held)
    met = F.when(F.array_contains(c.ADJUSTED_BY, KEPT), F.col(c.WATERMARK))
    return both.withColumns({"__tm_at": F.col(c.TIMESTAMP), "__tm_met": met})


def _again(events: DataFrame, spans: Sequence[Span], window: WindowSpec, moved: Mapping[str, Moved]) -> DataFrame:
    """Compute the windows that are asked for from the events in them, also with their sums moved."""
    passing = events
    if window.where is not None:
        passing = passing.where(F.coalesce(null_if_it_fails(events, window.where), F.lit(False)))
    if (fails := any_fails(events, on_rows(window.aggregates.values()))) is not None:
        passing = passing.where(~fails)
    groups = {f"__tm_of_{name}": null_if_it_fails(events, text) for name, text in window.group_expressions}
    each = F.expr(f"inline({_listed(spans)})").alias(_FROM, _TO)
    beside_each = passing.select("*", *[value.alias(name) for name, value in groups.items()], each)
    instants = {name: c.to_instant(name) for name in (_FROM, _TO)}
    placed = beside_each.withColumns(instants).where(_is_in(window))
    named = [F.col(f"`{of}`").alias(name) for of, name in zip(groups, window.group_columns, strict=True)]
    texts = dict(window.aggregates)
    texts |= {_moved(name, i): text for name, others in moved.items() for i, text in enumerate(others or ())}
    texts = {name: without_overflow(text, events, in_decimals=True) for name, text in texts.items()}
    more = (_too_large(window, events).alias(_TOO_LARGE), F.bool_or(_may_overlap(window)).alias(_UNSURE))
    groups_of = placed.groupBy(F.col(_FROM).alias(_START), F.col(_TO).alias(_END), *named)
    found = with_aggregates(groups_of, texts, *more)
    passes, may_pass = _passes(found, window, moved)
    shown = found.withColumn(_MAY_PASS, may_pass).where(passes | F.col(_MAY_PASS) | F.col(_UNSURE))
    return shown.withColumn(_HERE, F.lit(True))


def _passes(found: DataFrame, window: WindowSpec, moved: Mapping[str, Moved]) -> tuple[Column, Column]:
    """Return whether a result passes `having`, and whether the order of summation may decide it.

    Both are BOOLEAN, never null.
    """
    if window.having is None:
        return F.lit(True), F.lit(False)
    passes, otherwise = passes_having(found, window.having), F.lit(False)
    for name, texts in moved.items():
        if texts is None and mentions(window.having, name):
            return passes, F.lit(True)
        for i in range(len(texts or ())):
            with_other = passes_having(found, with_column(window.having, name, _moved(name, i)))
            otherwise = otherwise | (with_other != passes)
    return passes, otherwise


def _moved(name: str, number: int) -> str:
    """Name of an aggregate with one of its sums moved."""
    return f"__tm_moved{number}_{name}"


def _may_overlap(window: WindowSpec) -> Column:
    """Return whether with this event in its time a session may overlap another one of its group: BOOLEAN, never null.

    An event that comes more than the allowed lateness behind the watermark joins the open session within its gap.
    That may extend the session over events of one that had closed before, or over a refused event: by their times
    these are in it as well. A session that had closed by then ends at the earliest a gap after the session's start.
    """
    if window.kind != "session":
        return F.lit(False)
    lateness, gap = (F.expr(f"INTERVAL {us} MICROSECONDS") for us in (window.allowed_lateness_us, window.gap_us))
    return F.coalesce(F.col("__tm_met") > F.greatest(F.col("__tm_at"), F.col(_FROM) + gap) + lateness, F.lit(False))


def _not_flushed(again: DataFrame, flushed: DataFrame | None, window: WindowSpec) -> DataFrame:
    if flushed is None:
        return again
    groups = zip(group_names(window), window.group_columns, strict=True)
    named = [F.col(of).alias(name) for of, name in groups]
    keys = flushed.select(c.to_instant(START).alias(_START), c.to_instant(END).alias(_END), *named)
    same = c.same_in("again", "flushed", window.key_columns)
    return again.alias("again").join(keys.alias("flushed"), same, "left_anti")


def _is_in(window: WindowSpec) -> Column:
    """Return a BOOLEAN: an event is in a window by its time, and came before the window had closed."""
    at, start, end = F.col("__tm_at"), F.col(_FROM), F.col(_TO)
    inside = (at >= start if window.begins_inside else at > start) & (at <= end if window.ends_inside else at < end)
    lasts = end + F.expr(f"INTERVAL {window.allowed_lateness_us} MICROSECONDS")
    had_closed = F.col("__tm_met") > lasts if window.ends_inside else F.col("__tm_met") >= lasts
    return inside & ~F.coalesce(had_closed, F.lit(False))


def _is_known(name: str, moved: Moved, rows: DataFrame) -> Column:
    """Return a BOOLEAN, never null: every order of summation has the same aggregate, as far as is_same asks."""
    if moved is None:
        return F.lit(False)
    others = [F.col(f"again.`{_moved(name, i)}`") for i in range(len(moved))]
    return is_sure(F.col(f"again.`{name}`"), others, rows.schema[name].dataType)


def _is_same(name: str, moved: Moved, rows: DataFrame) -> Column:
    """Return a BOOLEAN, never null: the aggregate is as it was written."""
    if moved is None:
        return F.lit(True)
    others = [F.col(f"again.`{_moved(name, i)}`") for i in range(len(moved))]
    return is_same(F.col(f"old.`{name}`"), F.col(f"again.`{name}`"), others, rows.schema[name].dataType)
