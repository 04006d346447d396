"""Final results of windows, recomputed from the tables of events by comparing times with starts and ends.

Here: which events are in a window, and the results that differ from what is recomputed. It is for tests and for an
audit of whole tables: batches are checked without (assets/recount/window_checks.py). Not here: the rules of windows
(timeops/); only the reading of the user's expressions is shared.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, GroupedData
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.assets.log.control import last_reopened_flush
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.spark.frames import readable
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import from_driver
from tidemark.timeops.events.adjustment import KEPT
from tidemark.timeops.expressions.aggregate_calls import calls_of
from tidemark.timeops.expressions.aggregates import MEANS, SUMS, without_overflow
from tidemark.timeops.expressions.tokens import calls, mentions, quoted, tokenize
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.spec import WindowSpec, is_reserved
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ
from tidemark.timeops.spec.top import TOP_RANK
from tidemark.timeops.values.utc import Instant
from tidemark.timeops.windows.aggregates import has_order, passes_having, with_aggregates
from tidemark.timeops.windows.segment import on_events

WINDOW_START, WINDOW_END = "window_start", "window_end"
_UNSURE = "__tm_unsure"  # times alone do not show which events a session holds
_RELATIVE = 1e-9
_MOST_SPANS = 200_000
_MOST_DOUBLED = 100

_BY_ORDER = re.compile(r"hll_\w+|approx_percentile|percentile_approx|corr|covar_\w+|regr_\w+|skewness|kurtosis")
"""Functions whose value depends on the order of rows by an unknown amount."""
_ROUNDED = (*SUMS, *MEANS, "std", "stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp")


@dataclass(frozen=True)
class WrongResult:
    """A window and group whose final result differs from what follows from the events in the tables.

    Attributes:
        key: Start, end and group, by the name of their column; instants as text.
        written: The aggregates that the table has; None if it has no such row.
        recomputed: What follows from the events; None if no such result does.
    """

    key: Mapping[str, Any]
    written: Mapping[str, Any] | None
    recomputed: Mapping[str, Any] | None


def can_recompute(window: WindowSpec) -> bool:
    """Return whether the tables of events have all that the window's expressions name."""
    return not any(mentions(text, name) for text in window.event_expressions for name in (c.SOURCE, c.SPLIT))


@dataclass(frozen=True)
class WindowStretch:
    """The windows of a table that start in a stretch of time, microseconds; the table may be large.

    Attributes:
        first_us: The first start.
        end_us: The end of the stretch, which is not in it.
        closed_us: Windows that have closed by this watermark are final, also where the table lacks them; None where
            the rows alone say which windows there are.
    """

    first_us: int
    end_us: int
    closed_us: int | None = None

    @property
    def starts(self) -> Filters:
        """The rows of its windows."""
        return [(WINDOW_START, ">=", Instant(self.first_us)), (WINDOW_START, "<", Instant(self.end_us))]


Versions = Callable[[str], int | None]
"""Returns the version of a table that is read; None for the latest."""


def latest(_table: str) -> None:
    """Ask for the latest version of a table."""


def wrong_results(
    workspace: Workspace, window: WindowSpec, part: WindowStretch | None = None, version: Versions = latest
) -> Iterator[WrongResult]:
    """Recompute the final results of a window, and yield the ones that differ. Each window meets each event.

    Floating-point numbers may differ by 1e-9 of themselves or of their column's largest, as the order of adding
    up changes them. Not compared are aggregates that the order of rows changes by more, texts and truth values that
    are made of sums, windows that begin before all that a flush closed in a log that was reopened, sessions that
    late events may have made to overlap, and windows across timelines that overlap.

    Args:
        workspace: A pipeline that has `ordered_events`.
        window: One of its windows, see `can_recompute`.
        part: Only these results; by default all that the table has.
        version: The versions that are read.
    """
    table = tables.window_table(window.name)
    filters = None if part is None else part.starts
    written = workspace.lake.read(table, version(table), filters=filters).where("_is_final")
    if (flushed_us := flushed_up_to(workspace, window)) is not None:
        written = written.where(f"unix_micros({WINDOW_START}) > {flushed_us}")
    spans = written.select(WINDOW_START, WINDOW_END).distinct()
    if part is not None:
        since_us = part.first_us if flushed_us is None else max(part.first_us, flushed_us + 1)
        closed = _closed_spans(workspace, window, replace(part, first_us=since_us))
        spans = spans if closed is None else spans.union(closed).distinct()
    within = [] if part is None else _times_of(workspace, window, part, version(table))
    again = _recomputed(workspace, spans, window, within, version)
    of_events = window.event_columns(again.columns)
    names = [name for name, text in window.aggregates.items() if _is_comparable(text, written.schema[name].dataType)]
    names += of_events
    kinds = [written.schema[name].dataType for name in names]
    both = written.alias("old").join(again.alias("again"), c.same_in("old", "again", window.key_columns), "full")
    keys = [f"coalesce(old.{quoted(name)}, again.{quoted(name)}) AS {quoted(name)}" for name in window.key_columns]
    values = [f"{of}.{quoted(name)} AS __tm_{of}{n}" for of in ("old", "again") for n, name in enumerate(names)]
    flags = [f"{of}.{WINDOW_START} IS NOT NULL AS __tm_{of}" for of in ("old", "again")]
    sure = both.where(f"NOT coalesce(again.{_UNSURE}, false)").selectExpr(*keys, *values, *flags)
    alike = " AND ".join(["__tm_old", "__tm_again", *(_alike(n, kind) for n, kind in enumerate(kinds))])
    # Python decides on the few rows that SQL does not find alike.
    rows = readable(sure.where(f"NOT ({alike})")).collect()
    largest = [
        max((most, *(abs(x) for row in rows for x in _floats(row[f"__tm_old{n}"]))))
        for n, most in enumerate(_largest(sure, kinds) if rows else [])
    ]
    for row in rows:
        old, new = (
            {name: row[f"__tm_{of}{n}"] for n, name in enumerate(names)} if row[f"__tm_{of}"] else None
            for of in ("old", "again")
        )
        if old is None:
            is_right = _may_lack(workspace, window, written)
        elif new is None:
            is_right = window.empty or _is_rounded(window.having, window, written)
        else:
            is_right = all(_is_same(old[name], new[name], most) for name, most in zip(names, largest, strict=True))
        if not is_right:
            yield WrongResult({name: row[name] for name in window.key_columns}, old, new)


def doubled_results(
    workspace: Workspace, window: WindowSpec, part: WindowStretch, version: Versions = latest
) -> list[dict[str, Any]]:
    """Return some of the windows and groups that a table has more than once."""
    table = tables.window_table(window.name)
    rows = workspace.lake.read(table, version(table), filters=part.starts)
    keys = [F.expr(quoted(name)) for name in window.key_columns]
    doubled = rows.groupBy(*keys).agg(F.count("*").alias("__tm_n")).where("__tm_n > 1").drop("__tm_n")
    return [row.asDict(recursive=True) for row in readable(doubled.limit(_MOST_DOUBLED)).collect()]


def closes_by_arithmetic(workspace: Workspace, window: WindowSpec) -> bool:
    """Return whether the spec and the watermark say which windows have closed, whatever is in them."""
    is_plain = window.closes_on_grid and window.local_grid is None and window.input is None
    return is_plain and not workspace.spec.time.over and workspace.spec.time.start_at is None


def _closed_spans(workspace: Workspace, window: WindowSpec, part: WindowStretch) -> DataFrame | None:
    """Return the windows of a part that have closed, whether they have a row or not; None where that is not known.

    That is plain arithmetic on a grid in UTC. A timeline of its own, and a window over another one, may close later.
    """
    if part.closed_us is None or not closes_by_arithmetic(workspace, window):
        return None
    first_us = part.first_us + (window.offset_us - part.first_us) % window.start_step_us
    starts = range(first_us, part.end_us, window.start_step_us)
    lengths = [window.size_us]
    if window.kind == "cumulative":
        lengths = [*range(window.end_step_us, window.size_us + 1, window.end_step_us)]
    if len(starts) * len(lengths) > _MOST_SPANS:  # then only windows that have a row are compared
        return None
    last_us = part.closed_us - window.closes_after_us
    spans = [(start, start + length) for start in starts for length in lengths if start + length <= last_us]
    rows = pa.table(
        {name: pa.array([span[n] for span in spans], pa.int64()) for n, name in enumerate((WINDOW_START, WINDOW_END))}
    )
    instants = [f"timestamp_micros({name}) AS {name}" for name in (WINDOW_START, WINDOW_END)]
    return from_driver(workspace.spark, rows).selectExpr(*instants)


def _times_of(workspace: Workspace, window: WindowSpec, part: WindowStretch, version: int | None) -> Filters:
    """Return the times of the events of the windows in a part."""
    table, last_us = tables.window_table(window.name), part.end_us + window.longest_us if window.closes_on_grid else 0
    version = workspace.lake.version(table) if version is None else version
    for piece in pieces(workspace.lake, table, version, [WINDOW_END], part.starts):
        last_us = max(last_us, pc.max(piece[WINDOW_END].cast(pa.int64())).as_py() or 0)
    over_results = window.input in {other.name for other in workspace.spec.windows}
    column = WINDOW_END if over_results else c.TIMESTAMP
    return [(column, ">=", Instant(part.first_us)), (column, "<=", Instant(max(last_us, part.first_us)))]


def _alike(n: int, kind: T.DataType) -> str:
    """Return SQL that is true only if the nth values of both sides are alike, whatever else is in their column."""
    old, again = f"__tm_old{n}", f"__tm_again{n}"
    if "map<" in kind.simpleString():  # which Spark does not compare
        return "false"
    same = f"({old} <=> {again})"
    if isinstance(kind, T.FloatType | T.DoubleType):
        return f"({same} OR coalesce(abs({old} - {again}) <= {_RELATIVE}D * abs({again}), false))"
    return same


def _largest(rows: DataFrame, kinds: Sequence[T.DataType]) -> list[float]:
    """Return the largest finite number of each column of floating-point numbers; 0 of others."""
    floats = [n for n, kind in enumerate(kinds) if isinstance(kind, T.FloatType | T.DoubleType)]
    finite = "max(IF(abs({0}) < CAST('Infinity' AS DOUBLE), abs({0}), 0D))"
    largest = dict.fromkeys(range(len(kinds)), 0.0)
    if floats:
        [row] = rows.selectExpr(
            *(f"CAST({finite.format(f'__tm_old{n}')} AS DOUBLE) AS n{n}" for n in floats)
        ).collect()
        largest |= {n: row[f"n{n}"] or 0.0 for n in floats}
    return [largest[n] for n in range(len(kinds))]


def events_in(
    workspace: Workspace, spans: DataFrame, window: WindowSpec, within: Filters = (), version: Versions = latest
) -> DataFrame:
    """Return the events of some windows, once for each that they are in, with its start and end and its group.

    Args:
        workspace: The pipeline.
        spans: `window_start` and `window_end`, each pair once.
        window: The window.
        within: The times of the events that are read; by default all.
        version: The versions that are read.
    """
    bounds = spans.selectExpr(f"{WINDOW_START} AS __tm_from", f"{WINDOW_END} AS __tm_to")
    events = grouped_events(workspace, window, within, version)
    return events.join(F.broadcast(bounds), F.expr(_is_in(window)))  # there are far fewer windows than events


def grouped_events(workspace: Workspace, window: WindowSpec, within: Filters, version: Versions) -> DataFrame:
    """Return the events that a window takes, with their group as `__tm_of_<column>`; arguments of `events_in`."""
    events = _events(workspace, window, within, version)
    columns = Columns.of(events)
    passing = events if window.where is None else events.where(columns.read(window.where).sql)
    if (fails := columns.any_fails(on_events(window))) is not None:
        passing = passing.where(f"NOT {fails}")
    if window.gap_by is not None:
        gap, most = columns.read(window.gap_by).sql, f"INTERVAL {window.reach_us} MICROSECONDS"
        passing = passing.where(f"{gap} > INTERVAL 0 SECONDS AND {gap} <= {most}")
    groups = {f"__tm_of_{name}": columns.read(text).sql for name, text in window.group_expressions}
    return passing.selectExpr("*", *[f"{value} AS {quoted(name)}" for name, value in groups.items()])


def by_window(events: DataFrame, window: WindowSpec) -> GroupedData:
    """Group what `events_in` returns by window and group, under the names that these have in the window's table."""
    groups = zip([f"__tm_of_{name}" for name, _ in window.group_expressions], window.group_columns, strict=True)
    named = [F.expr(f"{quoted(of)} AS {quoted(name)}") for of, name in groups]
    return events.groupBy(F.expr(f"__tm_from AS {WINDOW_START}"), F.expr(f"__tm_to AS {WINDOW_END}"), *named)


def _recomputed(
    workspace: Workspace, spans: DataFrame, window: WindowSpec, within: Filters, version: Versions
) -> DataFrame:
    events = events_in(workspace, spans, window, within, version)
    columns = Columns.of(events)
    # Another way to the same sums.
    texts = {name: without_overflow(text, columns, in_decimals=True) for name, text in window.aggregates.items()}
    results = with_aggregates(
        by_window(events, window), texts, F.expr(f"bool_or({_may_overlap(window)}) AS {_UNSURE}")
    )
    if window.top is not None:
        results = _first_rows(events, results, window)
    return results.where(passes_having(Columns.of(results), window.having) | F.col(_UNSURE))


def _first_rows(events: DataFrame, results: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the first of what `events_in` returned, each next to the result of its window and group.

    An event's place is the number of events up to it, so that all of them are counted.
    """
    assert window.top is not None
    columns, bounds = Columns.of(events), ["__tm_from", "__tm_to"]
    values = [(order, columns.read(order.expression).sql) for order in window.top.orders]
    if window.input is None:
        last = [c.SEQ]
    else:
        last = [name for name in (LEFT_SEQ, RIGHT_SEQ) if name in columns.types]
        last += [quoted(name) for name, kind in columns.types.items() if not is_reserved(name) and has_order(kind)]
    order = ", ".join([*(order.sql(value) for order, value in values), c.TIMESTAMP, *last])
    names = dict(zip(bounds, (WINDOW_START, WINDOW_END), strict=True)) | {
        f"__tm_of_{name}": name for name in window.group_columns
    }
    same = ", ".join(map(quoted, names))
    counted = f"count(*) OVER (PARTITION BY {same} ORDER BY {order} ROWS UNBOUNDED PRECEDING)"
    shown = window.event_columns(events.columns)
    keys = [f"{quoted(of)} AS {quoted(name)}" for of, name in names.items()]
    first = events.selectExpr(*keys, f"CAST({counted} AS INT) AS {TOP_RANK}", *map(quoted, shown)).where(
        f"{TOP_RANK} <= {window.top.n}"
    )
    same_group = c.same_in("row", "result", names.values())
    rows = [f"row.{quoted(name)}" for name in (TOP_RANK, *shown)]
    return first.alias("row").join(results.alias("result"), same_group).selectExpr("result.*", *rows)


def _events(workspace: Workspace, window: WindowSpec, within: Filters, version: Versions) -> DataFrame:
    """Return what a window reads, with `__tm_at`, and with `__tm_met`, the watermark that an event met."""
    if window.input in {join.name for join in workspace.spec.joins}:
        table = tables.join_table(window.input)
        joined = workspace.lake.read(table, version(table), filters=within).where("_is_final")
        return joined.selectExpr("*", f"{c.TIMESTAMP} AS __tm_at", "CAST(NULL AS TIMESTAMP) AS __tm_met")
    if window.input is not None:
        table = tables.window_table(window.input)
        results = workspace.lake.read(table, version(table), filters=within).where("_is_final")
        timed = results.withColumn(c.TIMESTAMP, F.col(WINDOW_END)).drop(c.SEQ)  # first events have times of their own
        return timed.selectExpr("*", f"{WINDOW_END} AS __tm_at", "CAST(NULL AS TIMESTAMP) AS __tm_met")
    ordered, held = (
        workspace.lake.read(table, version(table), filters=within)
        for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS)
    )
    both = ordered.drop(c.RELEASE_SEQ).unionByName(held)
    met = f"IF(array_contains({c.ADJUSTED_BY}, '{KEPT}'), {c.WATERMARK}, NULL)"
    if window.across:  # no table of events has the watermark across timelines, so what came too late says so itself
        letters = workspace.lake.read(tables.DEAD_LETTERS, version(tables.DEAD_LETTERS))
        refused = f"window_name = '{window.name}' AND reason = '{Reason.WINDOW_CLOSED}' AND replayed_at IS NULL"
        both, met = both.join(letters.where(refused).select(c.SEQ), c.SEQ, "left_anti"), "CAST(NULL AS TIMESTAMP)"
    return both.selectExpr("*", f"{c.TIMESTAMP} AS __tm_at", f"{met} AS __tm_met")


def _is_in(window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN: an event is in a window by its time, and came before the window had closed."""
    begins = f"__tm_at {'>=' if window.begins_inside else '>'} __tm_from"
    ends = f"__tm_at {'<=' if window.ends_inside else '<'} __tm_to"
    lasts = f"__tm_to + INTERVAL {window.allowed_lateness_us} MICROSECONDS"
    had_closed = f"__tm_met {'>' if window.ends_inside else '>='} {lasts}"
    return f"{begins} AND {ends} AND NOT coalesce({had_closed}, false)"


def _may_overlap(window: WindowSpec) -> str:
    """Return SQL of a BOOLEAN, never null: by this event's time a session may overlap another one of its group.

    An event that comes more than the allowed lateness behind the watermark joins the open session within its gap.
    That may extend the session over events of one that had closed before, or over a refused event: by their times
    these are in it as well. A session that had closed by then ends at the earliest a gap after the session's start,
    or right there where each event has its own gap. Across timelines no table says which of several windows an event
    has missed.
    """
    if window.across and window.input is None and window.overlaps:
        return "true"
    if window.kind != "session":
        return "false"
    lateness, gap = (f"INTERVAL {us} MICROSECONDS" for us in (window.allowed_lateness_us, window.least_reach_us))
    return f"coalesce(__tm_met > greatest(__tm_at, __tm_from + {gap}) + {lateness}, false)"


def flushed_up_to(workspace: Workspace, window: WindowSpec) -> int | None:
    """Return the start, microseconds, up to which a flush may have closed windows in a log that was reopened.

    For these the tables of events do not show which events the flush kept out.
    """
    flush = last_reopened_flush(workspace)
    if flush is None:
        return None
    reached_us = workspace.progress.position_after(flush).reached_us
    return None if reached_us is None else reached_us + window.reach_us


def _may_lack(workspace: Workspace, window: WindowSpec, written: DataFrame) -> bool:
    """Return whether a group that has events may have no final result in a window that is final for another group."""
    closes_alone = bool(workspace.spec.time.over) or window.is_linked  # then a group may close later
    return closes_alone or _is_rounded(window.having, window, written)


def _is_rounded(having: str | None, window: WindowSpec, written: DataFrame) -> bool:
    """Return whether the order of adding up may decide what passes `having`."""
    unknown = [
        name for name, text in window.aggregates.items() if not _is_comparable(text, written.schema[name].dataType)
    ]
    floats = [name for name in window.aggregates if isinstance(written.schema[name].dataType, T.FractionalType)]
    return having is not None and any(mentions(having, name) for name in (*unknown, *floats))


def _is_comparable(aggregate: str, kind: T.DataType) -> bool:
    if any(_BY_ORDER.fullmatch(call.name) for call in calls(tokenize(aggregate))):
        return False
    return not (isinstance(kind, T.StringType | T.BooleanType) and calls_of(aggregate, _ROUNDED))


def _is_same(written: Any, recomputed: Any, largest: float) -> bool:
    """Return whether two values are one, but for rounding; inside of structs, arrays and maps, too."""
    if isinstance(written, float) and isinstance(recomputed, float):
        is_nan = math.isnan(written) and math.isnan(recomputed)
        return is_nan or math.isclose(written, recomputed, rel_tol=_RELATIVE, abs_tol=_RELATIVE * largest)
    if isinstance(written, dict) and isinstance(recomputed, dict):
        return written.keys() == recomputed.keys() and all(
            _is_same(written[k], recomputed[k], largest) for k in written
        )
    if isinstance(written, list | tuple) and isinstance(recomputed, list | tuple):
        pairs = zip(written, recomputed, strict=False)
        return len(written) == len(recomputed) and all(_is_same(*pair, largest) for pair in pairs)
    return bool(written == recomputed)


def _floats(value: Any) -> Iterator[float]:
    """Yield the finite numbers of floating point in a value."""
    if isinstance(value, float) and math.isfinite(value):
        yield value
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    for part in inside:
        yield from _floats(part)
