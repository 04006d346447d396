"""Windows that a batch closed, computed once more from the tables of events, by comparing times with starts and ends.

Here: which windows are computed again, chosen without a Spark query; their events; how near two results are. Not
here: which rows break a check (window_checks.py), the rules of windows (timeops/): only the reading of the user's
expressions is shared. The windows that a flush closed are read from the table that keeps them.

Sums of floating point depend on the order of adding up, so aggregates are also computed with one of their sums moved
as far as its largest rounding error. An error is relative to the sum of the absolute values: for debits and credits
that cancel, it may exceed the sum.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.assets.batch import Batch
from tidemark.assets.log_control import last_flush
from tidemark.assets.state.windows import flushed_before
from tidemark.resources import tables
from tidemark.resources.batches.position import Position, records_in
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import pieces
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import KEPT
from tidemark.timeops.expressions.aggregates import (
    MEANS,
    SUMS,
    AggregateCall,
    argument_type,
    calls_of,
    on_rows,
    overflow_in,
    without_overflow,
)
from tidemark.timeops.expressions.tokens import calls, literal, mentions, quoted, tokenize
from tidemark.timeops.expressions.try_expression import any_fails, as_json, guarded_sql
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import Instant
from tidemark.timeops.windows.aggregates import passes_having, with_aggregates
from tidemark.timeops.windows.membership import END, START, group_names

# Their value, or the value of their parts, may depend on the order of rows by an unknown amount.
_UNBOUNDED = re.compile(r"hll_\w+|approx_percentile|percentile_approx|corr|covar_\w+|regr_\w+|skewness|kurtosis")

_RELATIVE = 1e-12  # other rounding of sums, such as of a quotient of two


def _of_deviation(one: AggregateCall) -> str:
    """Return the root mean square, moved: how far a standard deviation may be off."""
    return f"1E-15D * count({one.argument}){one.clauses} * sqrt(avg(pow({_number(one)}, 2)){one.clauses})"


def _number(one: AggregateCall) -> str:
    return f"CAST({one.argument} AS DOUBLE)"


def _of_sum(one: AggregateCall) -> str:
    return f"4.5E-16D * count({one.argument}){one.clauses} * sum(abs({_number(one)})){one.clauses}"


def _of_mean(one: AggregateCall) -> str:
    return f"1E-15D * sum(abs({_number(one)})){one.clauses}"


def _of_variance(one: AggregateCall) -> str:
    moved = _of_deviation(one)
    return f"pow({moved}, 2) + 2 * coalesce(stddev_samp({_number(one)}){one.clauses}, 0D) * {moved}"


_ERRORS: Mapping[str, Callable[[AggregateCall], str]] = {
    **dict.fromkeys(SUMS, _of_sum),
    **dict.fromkeys(MEANS, _of_mean),
    **dict.fromkeys(("std", "stddev", "stddev_pop", "stddev_samp"), _of_deviation),
    **dict.fromkeys(("variance", "var_pop", "var_samp"), _of_variance),
}
"""SQL of the largest error of each aggregate, by its function."""


def moved_sums(aggregate: str, events: DataFrame) -> tuple[str, ...] | None:
    """Return an aggregate with each floating-point sum moved up and down as far as another order may move it.

    Returns:
        Such aggregates: empty if every order returns the same value; None if the distance is not known.
    """
    if any(_UNBOUNDED.fullmatch(call.name) for call in calls(tokenize(aggregate))):
        return None
    found: list[str] = []
    for one in calls_of(aggregate, _ERRORS):
        if _is_exact(one, events):
            continue
        before, itself, behind = aggregate[: one.start], aggregate[one.start : one.stop], aggregate[one.stop :]
        found += [f"{before}({itself} {sign} coalesce({_ERRORS[one.function](one)}, 0D)){behind}" for sign in "+-"]
    return tuple(found)


def with_column(expression: str, name: str, other: str) -> str:
    """Return an expression with one column replaced by another."""
    tokens = tokenize(expression)
    found, behind = "", 0
    for position, token in enumerate(tokens):
        around = [tokens[i].lower if 0 <= i < len(tokens) else "" for i in (position - 1, position + 1)]
        if token.is_name and token.lower == name.lower() and around[0] != "." and around[1] != "(":
            found += f"{expression[behind : token.start]}`{other}`"
            behind = token.end
    return found + expression[behind:]


def _is_exact(one: AggregateCall, events: DataFrame) -> bool:
    """Return whether an expression adds up numbers that have no rounding error: integers, decimals, durations."""
    if one.function not in (*SUMS, *MEANS):
        return False
    exact = (T.DecimalType, T.AnsiIntervalType, *([T.IntegralType] if one.function in SUMS else []))
    return isinstance(argument_type(one, events), exact)


# Comparisons are texts of SQL: as columns of PySpark they were a tenth of the messages of a small batch to the JVM.
Rule = Callable[[Sequence[str], T.DataType], str]
"""A BOOLEAN, never null, of compared values that are not arrays, structs or maps."""


def is_same(old: str, again: str, moved: Sequence[str], kind: T.DataType) -> str:
    """Return SQL that says whether two results are one: BOOLEAN, never null.

    Args:
        old: SQL of the result that was written.
        again: The same, computed once more.
        moved: The result with one of its floating-point sums moved, for each; empty if all orders return the same.
        kind: The type of all of them.
    """
    return _side_by_side([old, again, *moved], kind, _is_same_value, skip=2)


def is_sure(again: str, moved: Sequence[str], kind: T.DataType) -> str:
    """Return SQL that says whether a result is known well enough to compare another with it: BOOLEAN, never null.

    A text or truth value that is made of sums is known if it is the same with each of the moved sums.
    """
    return _side_by_side([again, *moved], kind, _is_sure_value, skip=1 + len(moved)) if moved else "true"


def _is_same_value(values: Sequence[str], kind: T.DataType) -> str:
    old, again, *moved = values
    if not isinstance(kind, T.DoubleType | T.FloatType) or not moved:
        return f"({old} <=> {again})"
    largest = f"greatest(abs(CAST({old} AS DOUBLE)), abs(CAST({again} AS DOUBLE)))"
    near = f"abs(CAST({old} AS DOUBLE) - {again}) <= {_way(again, moved)} + {_RELATIVE}D * {largest}"
    return f"(({old} <=> {again}) OR coalesce({near}, false))"


def _is_sure_value(values: Sequence[str], kind: T.DataType) -> str:
    again, *moved = values
    if isinstance(kind, T.DoubleType | T.FloatType):
        return f"coalesce({_way(again, moved)} < DOUBLE('infinity'), false)"
    return _all(f"({one} <=> {again})" for one in moved)


def _way(again: str, moved: Sequence[str]) -> str:
    """Return SQL of a DOUBLE: how far the sums move a value; null or not finite if that is not known."""
    return " + ".join(f"IF({one} <=> {again}, 0D, abs(CAST({one} AS DOUBLE) - {again}))" for one in moved)


def _side_by_side(values: Sequence[str], kind: T.DataType, rule: Rule, *, skip: int, depth: int = 0) -> str:
    """Apply the rule to every pair of leaves of nested values; false if the first `skip` differ in shape."""
    first, compared = values[0], values[1:skip]
    if isinstance(kind, T.MapType):
        entries = T.ArrayType(T.StructType().add("key", kind.keyType).add("value", kind.valueType))
        sorted_ = [f"sort_array(map_entries({value}))" for value in values]
        return _side_by_side(sorted_, entries, rule, skip=skip, depth=depth)
    if not isinstance(kind, T.ArrayType | T.StructType):
        return rule(values, kind)
    if isinstance(kind, T.ArrayType):
        item, place = f"item{depth}", f"place{depth}"
        items = [item, *[f"get({value}, {place})" for value in values[1:]]]
        like = [f"coalesce(size({value}) = size({first}), false)" for value in compared]
        one = _side_by_side(items, kind.elementType, rule, skip=skip, depth=depth + 1)
        inside = _all([*like, f"forall(transform({first}, ({item}, {place}) -> {one}), one -> one)"])
    else:
        parts = [([f"{value}.{quoted(field.name)}" for value in values], field.dataType) for field in kind]
        fields = [_side_by_side(part, of, rule, skip=skip, depth=depth) for part, of in parts]
        inside = _all([*[f"{value} IS NOT NULL" for value in compared], *fields])
    missing = _all(f"{value} IS NULL" for value in compared)
    return f"IF({first} IS NULL, {missing}, {inside})"


def _all(conditions: Iterable[str]) -> str:
    """Return SQL that is true if all conditions are, as it is without any."""
    return f"({' AND '.join(conditions) or 'true'})"


_COMPARISONS = 2_000_000  # about as many as a second is enough for
_FEWEST, _MOST = 12, 1_000
_MOST_ROWS = 4_000_000  # whose keys are held together: some 100 MB

_LACKS = "lacks"  # BOOLEAN: a sum is null, because it does not fit or because there was nothing to add up

Span = tuple[int, int]
"""Start and end, microseconds."""


@dataclass(frozen=True)
class Look:
    """The results that a batch wrote of a window.

    Attributes:
        first_us: Start of the first of its windows, microseconds.
        spans: Some of the closed windows.
    """

    first_us: int
    spans: tuple[Span, ...] = ()


def most_windows(records: int) -> int:
    """Return how many windows of each definition are computed again: of a small batch all, otherwise a sample.

    Each is compared with every event of their time. They are chosen by a hash, windows without a sum first.
    """
    return max(_FEWEST, min(_MOST, _COMPARISONS // max(records, 1)))


def looks_at(batch: Batch) -> dict[str, Look]:
    """Return what a batch wrote of each window; nothing of a window without a new row."""
    looks = {window.name: _look_at(batch, window) for window in batch.workspace.spec.windows}
    return {name: look for name, look in looks.items() if look is not None}


def _look_at(batch: Batch, window: WindowSpec) -> Look | None:
    lake, table = batch.workspace.lake, tables.window_table(window.name)
    most = most_windows(records_in(batch.plan))
    flushed_us = _flushed_up_to(batch.workspace, window) if batch.was_reopened and window.is_linked else None
    sums = [name for name, text in window.aggregates.items() if calls_of(text, SUMS)]
    chosen = pa.schema([(_START, pa.int64()), (_END, pa.int64()), (_LACKS, pa.bool_())]).empty_table()
    first_us: int | None = None
    columns, of_batch = [_START, _END, "_is_final", *sums], [(c.BATCH, "=", batch.plan.batch_id)]
    for piece in pieces(lake, table, lake.version(table), columns, of_batch):
        if not piece.num_rows:
            continue
        starts, ends = (piece[name].cast(pa.int64()) for name in (_START, _END))
        lowest = pc.min(starts).as_py()
        first_us = lowest if first_us is None else min(first_us, lowest)
        lacks = reduce(pc.or_, [piece[name].is_null() for name in sums], pa.repeat(pa.scalar(False), piece.num_rows))
        is_asked = pc.fill_null(piece["_is_final"], False)
        if flushed_us is not None:
            is_asked = pc.and_(is_asked, pc.greater(starts, flushed_us))
        found = pa.table({_START: starts, _END: ends, _LACKS: lacks}).filter(is_asked)
        chosen = _first_of(pa.concat_tables([chosen, found]), most)
    if first_us is None:
        return None
    return Look(first_us, tuple(zip(chosen[_START].to_pylist(), chosen[_END].to_pylist(), strict=True)))


def _first_of(windows: pa.Table, most: int) -> pa.Table:
    """Choose some of the windows, each once: first those without a sum, then by a hash of their bounds."""
    each = windows.group_by([_START, _END]).aggregate([(_LACKS, "max")]).rename_columns([_START, _END, _LACKS])
    starts, ends = each[_START].to_numpy(), each[_END].to_numpy()
    order = np.lexsort((ends, starts, _hashed(starts, ends), ~each[_LACKS].to_numpy()))
    return each.take(order[:most])


def _hashed(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a number for each window that does not depend on the order of times, always the same: splitmix64."""
    mixed = starts.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + ends.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return found


def _flushed_up_to(workspace: Workspace, window: WindowSpec) -> int | None:
    """Return the instant, microseconds, after which no session or sliding window meets one that a flush has closed.

    For windows before it, the tables of events do not show which events a flush keeps out.
    """
    batch = last_flush(workspace)
    position = Position() if batch is None else workspace.progress.position_after(batch)
    reached = [us for us in (position.max_t_us, position.watermark_us) if us is not None]
    return max(reached) + window.reach_us if reached else None


def stand_once(lake: Lake, window: WindowSpec, look: Look) -> bool:
    """Return whether every window and group is in a table once, from the first one on that a batch wrote.

    Returns:
        True only if it is so. False also if there are too many rows, or keys of types that it cannot compare.
    """
    table, keys = tables.window_table(window.name), list(window.key_columns)
    since = [(_START, ">=", Instant(look.first_us))]
    found: list[pa.RecordBatch] = []
    rows = 0
    for piece in pieces(lake, table, lake.version(table), keys, since):
        rows += piece.num_rows
        if rows > _MOST_ROWS or not all(_is_plain(field.type) for field in piece.schema):
            return False
        found.append(piece)
    if not rows:
        return True
    return bool(pa.Table.from_batches(found).group_by(keys).aggregate([]).num_rows == rows)


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether equal bytes mean equal values of a type: not for floating point, nor for types that hold it."""
    kinds = (pa.types.is_integer, pa.types.is_boolean, pa.types.is_temporal, pa.types.is_string, pa.types.is_decimal)
    return any(is_one(kind) for is_one in kinds)


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


def _too_large(window: WindowSpec, events: DataFrame) -> str:
    """Return SQL of an ARRAY<STRING> aggregate: the aggregates in which a sum or an average does not fit."""
    overflows = {name: overflow_in(text, events) for name, text in window.aggregates.items()}
    which = [f"IF({text}\n, {literal(name)}, NULL)" for name, text in overflows.items() if text is not None]
    return f"array_compact(array({', '.join(which)}))" if which else "CAST(array() AS ARRAY<STRING>)"


def group_values(names: Sequence[str]) -> str:
    """Return SQL of `group_values`: group columns as JSON, so that definitions with other groups have one shape.

    It is for people to read: other values may have the same text.
    """
    return f"{as_json(*map(quoted, names)) if names else literal('{}')} AS group_values"


@dataclass(frozen=True)
class Compared:
    """Final results of a window beside the results that are computed from the events in the tables.

    Attributes:
        window: The window.
        both: The results side by side, `old` and `again`; either may be missing.
        in_both: SQL of a BOOLEAN: both are there, and comparable.
        is_wrong: SQL of a BOOLEAN: they differ.
        is_known: SQL of a BOOLEAN for each aggregate: no order of summation changes it.
    """

    window: WindowSpec
    both: DataFrame
    in_both: str
    is_wrong: str
    is_known: Mapping[str, str]

    def counts(self) -> DataFrame:
        """Return one row: `window_name`, how many were `compared`, how many are `wrong` and `too_large`.

        Its column `left_out` MAP<STRING, BIGINT> has for each aggregate how many results may depend on the order of
        summation.
        """
        known = self.is_known.items()
        left_out = [f"{literal(name)}, count_if({self.in_both} AND NOT {one})" for name, one in known]
        return self.both.selectExpr(
            f"{literal(self.window.name)} AS window_name",
            f"count_if({self.in_both}) AS compared",
            f"count_if({self.is_wrong}) AS wrong",
            f"coalesce(sum(IF({self.in_both}, size({_TOO_LARGE}), NULL)), 0L) AS too_large",
            f"map({', '.join(left_out)}) AS left_out",
        )

    def wrong(self) -> DataFrame:
        """Return the results that differ: `window_name`, start, end, `group_values`."""
        return self.both.where(self.is_wrong).selectExpr(*self._keys).selectExpr(*self._shown)

    def too_large(self) -> DataFrame:
        """Return the same of the results in which a sum or an average does not fit, and the `aggregate`."""
        each = self.both.where(self.in_both).selectExpr(*self._keys, f"explode({_TOO_LARGE}) AS __tm_aggregate")
        return each.selectExpr(*self._shown, "__tm_aggregate AS aggregate")

    @property
    def _keys(self) -> list[str]:
        names = map(quoted, self.window.key_columns)
        return [f"coalesce(old.{name}, again.{name}) AS {name}" for name in names]

    @property
    def _shown(self) -> list[str]:
        return [f"{literal(self.window.name)} AS window_name", _START, _END, group_values(self.window.group_columns)]


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
        again = _not_flushed(again, flushed_before(batch).get(window.name), window)
        rows = rows.where(F.col(c.BATCH) == batch.plan.batch_id)
    own = f"named_struct('0', unix_micros({_START}), '1', unix_micros({_END}))"
    written = rows.where(f"_is_final AND array_contains({_listed(spans)}, {own})")
    old = written.selectExpr(*map(quoted, [*names, *window.aggregates]), f"true AS {_HERE}")
    both = old.alias("old").join(again.alias("again"), c.same_in("old", "again", names), "full")
    is_known, differs = dict[str, str](), list[str]()
    for name in window.aggregates:
        is_known[name], same = _is_known_and_same(name, moved[name], rows)
        differs.append(f"({is_known[name]} AND NOT {same})")
    sure = f"NOT coalesce(again.{_UNSURE}, false)"
    is_old, is_again = f"old.{_HERE} IS NOT NULL", f"again.{_HERE} IS NOT NULL"
    in_both = f"({is_old} AND {is_again} AND {sure})"
    ways = [f"({in_both} AND ({' OR '.join(differs)}))"]
    if not window.empty:
        ways.append(f"({is_old} AND NOT {is_again})")
    if not workspace.spec.time.over and not window.is_linked:  # otherwise a group may close later, or have its own
        ways.append(f"({is_again} AND NOT {is_old} AND NOT again.{_MAY_PASS})")
    return Compared(window, both, in_both, f"(({' OR '.join(ways)}) AND {sure})", is_known)


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
        return results.selectExpr("*", f"{_END} AS __tm_at", "CAST(NULL AS TIMESTAMP) AS __tm_met")
    ordered, held = within(tables.ORDERED_EVENTS, c.TIMESTAMP), within(tables.HELD_EVENTS, c.TIMESTAMP)
    both = ordered.drop(c.RELEASE_SEQ).unionByName(held)
    met = f"IF(array_contains({c.ADJUSTED_BY}, '{KEPT}'), {c.WATERMARK}, NULL)"
    return both.selectExpr("*", f"{c.TIMESTAMP} AS __tm_at", f"{met} AS __tm_met")


def _again(events: DataFrame, spans: Sequence[Span], window: WindowSpec, moved: Mapping[str, Moved]) -> DataFrame:
    """Compute the windows that are asked for from the events in them, also with their sums moved."""
    passing = events
    if len(spans) <= _FEWEST:  # of a large batch: most events are in none of them, and are left out before all else
        near = " OR ".join(f"__tm_at BETWEEN timestamp_micros({a}L) AND timestamp_micros({b}L)" for a, b in spans)
        passing = passing.where(near)
    if window.where is not None:
        passing = passing.where(guarded_sql(events, window.where))
    if (fails := any_fails(events, on_rows(window.aggregates.values()))) is not None:
        passing = passing.where(f"NOT {fails}")
    groups = {f"__tm_of_{name}": guarded_sql(events, text) for name, text in window.group_expressions}
    each = f"inline({_listed(spans)}) AS ({_FROM}, {_TO})"
    beside_each = passing.selectExpr("*", *[f"{value} AS {quoted(name)}" for name, value in groups.items()], each)
    placed = beside_each.withColumns({name: c.to_instant(name) for name in (_FROM, _TO)}).where(_is_in(window))
    both = zip(groups, window.group_columns, strict=True)
    named = [F.expr(f"{quoted(of)} AS {quoted(name)}") for of, name in both]
    texts = dict(window.aggregates)
    texts |= {_moved(name, i): text for name, others in moved.items() for i, text in enumerate(others or ())}
    texts = {name: without_overflow(text, events, in_decimals=True) for name, text in texts.items()}
    more = (f"{_too_large(window, events)} AS {_TOO_LARGE}", f"bool_or({_may_overlap(window)}) AS {_UNSURE}")
    groups_of = placed.groupBy(F.expr(f"{_FROM} AS {_START}"), F.expr(f"{_TO} AS {_END}"), *named)
    found = with_aggregates(groups_of, texts, *map(F.expr, more))
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
    return f"__tm_moved{number}_{name}"


def _may_overlap(window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN, never null: by this event's time a session may overlap another one of its group.

    An event that comes more than the allowed lateness behind the watermark joins the open session within its gap.
    That may extend the session over events of one that had closed before, or over a refused event: by their times
    these are in it as well. A session that had closed by then ends at the earliest a gap after the session's start.
    """
    if window.kind != "session":
        return "false"
    lateness, gap = (f"INTERVAL {us} MICROSECONDS" for us in (window.allowed_lateness_us, window.gap_us))
    return f"coalesce(__tm_met > greatest(__tm_at, {_FROM} + {gap}) + {lateness}, false)"


def _not_flushed(again: DataFrame, flushed: DataFrame | None, window: WindowSpec) -> DataFrame:
    if flushed is None:
        return again
    groups = zip(group_names(window), window.group_columns, strict=True)
    named = [f"{of} AS {quoted(name)}" for of, name in groups]
    instants = [f"timestamp_micros({us}) AS {name}" for us, name in ((START, _START), (END, _END))]
    keys = flushed.selectExpr(*instants, *named)
    same = c.same_in("again", "flushed", window.key_columns)
    return again.alias("again").join(keys.alias("flushed"), same, "left_anti")


def _is_in(window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN: an event is in a window by its time, and came before the window had closed."""
    begins = f"__tm_at {'>=' if window.begins_inside else '>'} {_FROM}"
    ends = f"__tm_at {'<=' if window.ends_inside else '<'} {_TO}"
    lasts = f"{_TO} + INTERVAL {window.allowed_lateness_us} MICROSECONDS"
    had_closed = f"__tm_met {'>' if window.ends_inside else '>='} {lasts}"
    return f"{begins} AND {ends} AND NOT coalesce({had_closed}, false)"


def _is_known_and_same(name: str, moved: Moved, rows: DataFrame) -> tuple[str, str]:
    """Return SQL of two BOOLEAN, never null, about an aggregate.

    Every order of summation has the same, as far as `is_same` asks; it is as it was written.
    """
    if moved is None:
        return "false", "true"
    again, kind = f"again.{quoted(name)}", rows.schema[name].dataType
    others = [f"again.{quoted(_moved(name, i))}" for i in range(len(moved))]
    return is_sure(again, others, kind), is_same(f"old.{quoted(name)}", again, others, kind)
