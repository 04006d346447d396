"""Windows that a batch closed, computed once more from the tables of events, by comparing times with starts and ends.

Here: which windows, which events are in them, what differs. Not here: the rules of windows (timeops/), of which this
shares nothing but the reading of the user's expressions. What a flush closed it is told by the table that keeps that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType, MapType

from assets.control import last_flush, was_reopened
from assets.flushed_windows import stay_closed
from resources import tables
from resources.plans import Plan
from resources.rows import small_frame
from resources.workspace import Position, Workspace, records_in
from timeops import columns as c
from timeops.adjustment import KEPT
from timeops.contents import END, START, group_names
from timeops.epoch import Instant
from timeops.expression_tokens import mentions
from timeops.safely import null_if_it_fails
from timeops.spec import WindowSpec
from timeops.values import as_json

_COMPARISONS = 2_000_000  # about what a second is enough for
_FEWEST, _MOST = 12, 1_000

_START, _END = "window_start", "window_end"
_FROM, _TO = "__from", "__to"  # start and end of a window that is computed again
_HERE = "__here"
_UNSURE = "__unsure"  # which events a session holds, their times do not tell
_RELATIVE = 1e-9  # what floating-point sums may differ by, as their order does

Span = tuple[int, int]
"""Start and end, microseconds."""


@dataclass(frozen=True)
class Look:
    """What a batch wrote of a window.

    Attributes:
        first_us: Start of the first of its windows, microseconds.
        spans: Some of those that are closed.
    """

    first_us: int
    spans: tuple[Span, ...] = ()


def most_windows(records: int) -> int:
    """How many windows of each definition are computed again after a batch: of a small batch all, of others a sample.

    Each is compared with every event of their time. They are chosen by a hash.
    """
    return max(_FEWEST, min(_MOST, _COMPARISONS // max(records, 1)))


def can_recount(window: WindowSpec) -> bool:
    """Whether the tables of events have all that the window's expressions name."""
    texts = (*window.aggregates.values(), *(text for _, text in window.group_expressions), window.where or "")
    return not any(mentions(text, name) for text in texts for name in (c.SOURCE, c.SPLIT))


def looks_at(workspace: Workspace, plan: Plan) -> dict[str, Look]:
    """What a batch wrote of each window, in one job; nothing of those of which it wrote no row."""
    frames, most = [], most_windows(records_in(plan))
    reopened = was_reopened(workspace, plan)
    for window in workspace.spec.windows:
        of_batch = [(c.BATCH, "=", plan.batch_id)]
        rows = workspace.lake.read(tables.window_table(window.name), filters=of_batch)
        final = rows.where("_is_final").select(_START, _END).distinct()
        if reopened and window.is_linked:
            final = final.where(_behind_flush(workspace, window))
        chosen = final.orderBy(F.xxhash64(_START, _END), _START, _END).limit(most)
        first = rows.agg(F.min(_START).alias(_START)).withColumn(_END, F.lit(None).cast("timestamp"))
        frames.append(first.unionByName(chosen).withColumn("name", F.lit(window.name)))
    looks: dict[str, Look] = {}
    both = reduce(DataFrame.unionByName, frames).where(F.col(_START).isNotNull())
    for row in both.select("name", c.to_us(_START).alias("start"), c.to_us(_END).alias("end")).collect():
        look = looks.get(row["name"], Look(row["start"]))
        spans = look.spans if row["end"] is None else (*look.spans, (row["start"], row["end"]))
        looks[row["name"]] = Look(min(look.first_us, row["start"]), spans)
    return looks


def _behind_flush(workspace: Workspace, window: WindowSpec) -> Column:
    """BOOLEAN: a session or sliding window begins behind all that the last flush has closed.

    Of those before, the tables of events do not tell which events a flush keeps out of which.
    """
    batch = last_flush(workspace)
    position = Position() if batch is None else workspace.position_after(batch)
    reached = [us for us in (position.max_t_us, position.watermark_us) if us is not None]
    if not reached:
        return F.lit(True)
    length_us = window.gap_us if window.kind == "session" else window.size_us
    return c.to_us(_START) > F.lit(max(reached) + length_us)


def group_values(names: Sequence[str]) -> Column:
    """`group_values`: the values of group columns as JSON, so that definitions with other groups have one shape.

    It is for people to read: other values may have the same text.
    """
    values = as_json(*[F.col(f"`{name}`") for name in names])
    return (values if names else F.lit("{}")).alias("group_values")


def differing(workspace: Workspace, plan: Plan, window: WindowSpec, look: Look) -> DataFrame:
    """Final results that are not what the events in the tables give: `window_name`, start, end, `group_values`.

    Sessions that late events may have made to overlap are not compared, see `_may_overlap`.

    Where the log was reopened, events that came later miss what a flush gave: then the batch's own rows alone are
    compared.
    """
    names, spans = window.key_columns, look.spans
    rows = workspace.lake.read(tables.window_table(window.name), filters=[(_START, ">=", Instant(look.first_us))])
    asked = small_frame(workspace.spark, spans, f"{_FROM} BIGINT, {_TO} BIGINT")
    asked = F.broadcast(asked.select(c.to_instant(_FROM).alias(_FROM), c.to_instant(_TO).alias(_TO)))
    again = _again(_events(workspace, window, spans), asked, window)
    if was_reopened(workspace, plan):
        again = _not_flushed(again, stay_closed(workspace, plan, window), window)
        rows = rows.where(F.col(c.BATCH) == plan.batch_id)
    written = rows.where("_is_final").join(asked, (F.col(_START) == F.col(_FROM)) & (F.col(_END) == F.col(_TO)))
    old = written.select(*[F.col(f"`{name}`") for name in names], *window.aggregates, F.lit(True).alias(_HERE))
    both = old.alias("old").join(again.alias("again"), c.same_in("old", "again", names), "full")
    differs = [~_same(F.col(f"old.`{name}`"), F.col(f"again.`{name}`"), rows, name) for name in window.aggregates]
    is_old, is_again = F.col(f"old.{_HERE}").isNotNull(), F.col(f"again.{_HERE}").isNotNull()
    wrong = is_old & is_again & reduce(or_, differs)
    if not window.empty:
        wrong = wrong | (is_old & ~is_again)
    if not workspace.spec.time.over and not window.is_linked:  # otherwise a group may close later, or have its own
        wrong = wrong | (is_again & ~is_old)
    keys = [F.coalesce(f"old.`{name}`", f"again.`{name}`").alias(name) for name in names]
    named = F.lit(window.name).alias("window_name")
    sure = ~F.coalesce(F.col(f"again.{_UNSURE}"), F.lit(False))
    return both.where(wrong & sure).select(*keys).select(named, _START, _END, group_values(window.group_columns))


def _events(workspace: Workspace, window: WindowSpec, spans: Sequence[Span]) -> DataFrame:
    """The events of the time of some windows, with `__at` and `__met`, the watermark behind which one came."""

    def within(name: str, column: str) -> DataFrame:
        first, last = min(start for start, _ in spans), max(end for _, end in spans)
        between = [(column, ">=", Instant(first)), (column, "<=", Instant(last))]
        return workspace.lake.read(name, filters=between)

    if window.input is not None:
        results = within(tables.window_table(window.input), _END).where("_is_final")
        return results.withColumns({"__at": F.col(_END), "__met": F.lit(None).cast("timestamp")})
    ordered, held = within(tables.ORDERED_EVENTS, c.TIMESTAMP), within(tables.HELD_EVENTS, c.TIMESTAMP)
    both = ordered.drop(c.RELEASE_SEQ).unionByName(held)
    met = F.when(F.array_contains(c.ADJUSTED_BY, KEPT), F.col(c.WATERMARK))
    return both.withColumns({"__at": F.col(c.TIMESTAMP), "__met": met})


def _again(events: DataFrame, asked: DataFrame, window: WindowSpec) -> DataFrame:
    """What the windows that are asked for give of the events in them."""
    passing = events
    if window.where is not None:
        passing = passing.where(F.coalesce(null_if_it_fails(events, window.where), F.lit(False)))
    groups = {f"__of_{name}": null_if_it_fails(events, text) for name, text in window.group_expressions}
    placed = passing.select("*", *[value.alias(name) for name, value in groups.items()]).join(asked, _is_in(window))
    named = [F.col(f"`{of}`").alias(name) for of, name in zip(groups, window.group_columns, strict=True)]
    aggregates = [F.expr(text).alias(name) for name, text in window.aggregates.items()]
    unsure = F.bool_or(_may_overlap(window)).alias(_UNSURE)
    found = placed.groupBy(F.col(_FROM).alias(_START), F.col(_TO).alias(_END), *named).agg(*aggregates, unsure)
    shown = found if window.having is None else found.where(F.expr(window.having) | F.col(_UNSURE))
    return shown.withColumn(_HERE, F.lit(True))


def _may_overlap(window: WindowSpec) -> Column:
    """BOOLEAN, never null: with this event in its time, a session may lie over another one of its group.

    An event that comes more than the allowed lateness behind the watermark joins the open session within its gap.
    That may draw the session out over events of one that had closed before, or over one that was refused: by their
    times these are in it as well. What had closed by then ends a gap behind the session's start at the earliest.
    """
    if window.kind != "session":
        return F.lit(False)
    lateness, gap = (F.expr(f"INTERVAL {us} MICROSECONDS") for us in (window.allowed_lateness_us, window.gap_us))
    return F.coalesce(F.col("__met") > F.greatest(F.col("__at"), F.col(_FROM) + gap) + lateness, F.lit(False))


def _not_flushed(again: DataFrame, flushed: DataFrame | None, window: WindowSpec) -> DataFrame:
    if flushed is None:
        return again
    groups = zip(group_names(window), window.group_columns, strict=True)
    named = [F.col(of).alias(name) for of, name in groups]
    keys = flushed.select(c.to_instant(START).alias(_START), c.to_instant(END).alias(_END), *named)
    same = c.same_in("again", "flushed", window.key_columns)
    return again.alias("again").join(keys.alias("flushed"), same, "left_anti")


def _is_in(window: WindowSpec) -> Column:
    """BOOLEAN: an event is in a window by its time, and did not come when that one had closed."""
    at, start, end = F.col("__at"), F.col(_FROM), F.col(_TO)
    begins_inside = window.kind in ("session", "snapshot") or (window.closed == "left" and not window.is_linked)
    ends_inside = window.kind in ("session", "sliding", "snapshot") or window.closed == "right"
    inside = (at >= start if begins_inside else at > start) & (at <= end if ends_inside else at < end)
    lasts = end + F.expr(f"INTERVAL {window.allowed_lateness_us} MICROSECONDS")
    had_closed = F.col("__met") > lasts if ends_inside else F.col("__met") >= lasts
    return inside & ~F.coalesce(had_closed, F.lit(False))


def _same(old: Column, again: Column, rows: DataFrame, name: str) -> Column:
    """BOOLEAN, never null: equal, or of floating-point numbers nearly so."""
    kind = rows.schema[name].dataType
    if isinstance(kind, MapType):
        old, again = F.sort_array(F.map_entries(old)), F.sort_array(F.map_entries(again))
    if not isinstance(kind, DoubleType | FloatType):
        return old.eqNullSafe(again)
    near = F.abs(old - again) <= F.lit(_RELATIVE) * F.greatest(F.abs(old), F.abs(again))
    return old.eqNullSafe(again) | F.coalesce(near, F.lit(False))
