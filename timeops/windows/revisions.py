"""Results that are given before a window closes, and again when more events have come.

Here: what a window holds at each of its moments, between Spark and what finds these on the driver; the changes that
revisions make, in the shape of Delta's change data. Not here: which moments there are (moments.py), which windows an
event is in (kinds.py), the aggregates (results.py), storage.

The moments of a window follow from its events and the watermark. So the rank of a moment, and with it the number of a
revision, is the same wherever a log is cut.
"""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.columns import SEQ, TIMELINE, W_BEFORE, W_END, W_START, WATERMARK, floor_to, same_in
from tidemark.timeops.narrow import integers, to_join
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark.fold import NONE
from tidemark.timeops.windows.kinds import WindowKind
from tidemark.timeops.windows.membership import CHANGED_BY, END, EVENT, FRESH, RANK, group_names
from tidemark.timeops.windows.moments import FINAL, ON_TIME, TAKEN_BACK, Marks, Open, moments
from tidemark.timeops.windows.segment import WindowSegment

REVISION = "__tm_revision"
IS_FINAL = "__tm_is_final"
IS_TAKEN_BACK = "__tm_is_taken_back"
"""BOOLEAN: not a result, but the end of the results of a session at bounds that an event has changed."""
CAUSE = "__tm_cause"
"""BIGINT: of a late event that is new in a revision its place in the log, or that of the event which takes results
back; null of all others."""

CHANGE = "_change_type"  # STRING: insert, update_preimage, update_postimage or delete
PREIMAGE, DELETE = "update_preimage", "delete"
LATE_EVENTS = "_late_events"
"""ARRAY<BIGINT>: the `_arrival_seq` of the late events that a revision has and the one before had not."""
PASSES = "__tm_passes"
"""BOOLEAN, never null: a revision passes `having`. One that does not takes away the row of an earlier one."""

_CLOCK_START = "__tm_clock_start"
_MARKS = "__tm_marks"
_CHANGED_BY = "__tm_changed_by_seq"
_PREVIOUS = "__tm_previous_rank"  # of the result before; null of the first
_IS_KNOWN, _REPLACED = "__tm_is_known", "__tm_replaced"


def revised_contents(segment: WindowSegment, kind: WindowKind) -> DataFrame:
    """Return the events of the results that windows have in a segment, one row per result that holds them.

    Args:
        segment: The segment; its known events have `__tm_w_before` and `_clock` as they came.
        kind: The window's.

    Returns:
        The rows with `kind.keys`, the group columns of `membership.with_groups`, `__tm_revision`, `__tm_is_final`,
        `__tm_is_taken_back`, `__tm_cause`, and `_watermark` BIGINT, just after the item at which the result was
        made; null where a flush made it.
    """
    rows = segment.materialize(_ranked(segment, kind))
    found = _moments(rows, segment, kind)
    event = rows.drop(W_START, W_END, _CLOCK_START, FRESH, CHANGED_BY, WATERMARK).alias("event")
    moment = to_join(rows.sparkSession, found).alias("moment")
    same = same_in("event", "moment", (*kind.keys, *group_names(kind.window)))
    so_far = F.col(f"event.{RANK}") <= F.col(f"moment.{RANK}")
    more = [f"moment.{name}" for name in (REVISION, IS_FINAL, IS_TAKEN_BACK, WATERMARK)]
    has_ended = _reached(F.col(W_BEFORE), kind.window, F.col(f"event.{END}"))
    is_new = (F.col(f"event.{RANK}") > F.col(_PREVIOUS)) & has_ended
    cause = F.when(F.col(IS_TAKEN_BACK), F.col(_CHANGED_BY)).when(is_new, F.col(SEQ)).alias(CAUSE)
    return event.join(moment, same & so_far).select("event.*", *more, cause)


def _ranked(segment: WindowSegment, kind: WindowKind) -> DataFrame:
    """Return a row per event and window not closed before the segment, with RANK, from which the event is in it.

    Also FRESH, that what makes it so came in the segment, and the watermarks and the clock around the segment.
    """
    rows = kind.contents_so_far(segment, partial(_rank, kind.window))
    if not kind.merges:
        rows = rows.withColumn(CHANGED_BY, F.lit(None).cast(EVENT))
    clocks = segment.adjusted.before.select(TIMELINE, F.col("clock").alias(_CLOCK_START))
    return rows.join(clocks, TIMELINE, "left")


def _rank(window: WindowSpec, clock_us: Column, watermark_us: Column, seq: Column) -> Column:
    """Return the first moment after an event, by the clock, the watermark that it met, and its place in the log."""
    if window.early_every_us is not None:
        return floor_to(clock_us, window.early_every_us) + F.lit(window.early_every_us)
    every_us = window.revise_every_us
    late = floor_to(clock_us, every_us) + F.lit(every_us) if every_us else seq
    return F.when(_reached(watermark_us, window), late).otherwise(F.lit(ON_TIME))


def _reached(watermark_us: Column, window: WindowSpec, end_us: Column | None = None) -> Column:
    """Return BOOLEAN, never null: a watermark has passed the end of the window."""
    end = F.col(END) if end_us is None else end_us
    return F.coalesce(watermark_us >= end + F.lit(window.ends_inside_us), F.lit(False))


def _moments(rows: DataFrame, segment: WindowSegment, kind: WindowKind) -> pa.Table:
    """Return the moments at which windows have a result: keys, `__tm_rank`, and what makes it a row."""
    keys = [*kind.keys, *group_names(kind.window)]
    ends = (W_START, W_END, _CLOCK_START)
    marks = F.collect_set(F.struct(RANK, FRESH)).alias(_MARKS)
    grouped = rows.groupBy(*keys, *ends, CHANGED_BY).agg(marks).select(*keys, *ends, f"{CHANGED_BY}.*", _MARKS)
    own = grouped.toArrow().combine_chunks()
    before, after, clock, changed_by, changed_w, changed_at = (
        integers(own[name]) for name in (*ends, "seq", "w", "clock")
    )
    known = Open(own[TIMELINE], integers(own[END]), before, after, clock, changed_by, changed_w, changed_at)
    each = pc.list_flatten(own[_MARKS]).combine_chunks()
    window, rank = integers(pc.list_parent_indices(own[_MARKS])), integers(each.field(RANK))
    # Of one moment the set may have both: an event that came in the segment and one that did not.
    fresh = np.asarray(each.field(FRESH), bool)
    order = np.lexsort((~fresh, rank, window))
    window, rank, fresh = window[order], rank[order], fresh[order]
    is_first = np.ones(len(window), bool)
    is_first[1:] = (np.diff(window) != 0) | (np.diff(rank) != 0)
    found = moments(
        known,
        Marks(window, rank, fresh).where(is_first),
        kind.window,
        segment.adjusted.watermarks,
        flushed=segment.flushed,
    )
    told = {RANK: found["rank"], _PREVIOUS: found["previous"]}
    told |= {WATERMARK: found["watermark"], _CHANGED_BY: changed_by[found["window"]]}
    columns = {name: pa.array(values, pa.int64(), mask=values == NONE) for name, values in told.items()}
    columns[REVISION] = pa.array(found["revision"], pa.int32())
    columns |= {IS_FINAL: pa.array(found["rank"] == FINAL), IS_TAKEN_BACK: pa.array(found["rank"] == TAKEN_BACK)}
    of_windows = own.select(keys).take(pa.array(found["window"], pa.int64()))
    return pa.table(dict(zip(keys, of_windows.columns, strict=True)) | columns)


def changes(results: DataFrame, known: DataFrame, window: WindowSpec) -> DataFrame:
    """Return the changes that the results of a segment make.

    Args:
        results: What `results.window_results` returned, with `_late_events`.
        known: The last revisions of earlier segments that may be replaced, without `_late_events`, and without
            aggregates that are new in the spec.
        window: The window.

    Returns:
        For each result a row `insert`, where its window and group had none, or `update_postimage`, with its
        `_late_events`; and for the latter one row more, `update_preimage`, which holds what it replaces. A revision
        that no longer passes `having` is a row `delete`, which holds what it takes away, with its `_late_events`.
    """
    keys = window.key_columns
    others = [name for name in results.columns if name not in (*keys, LATE_EVENTS, PASSES)]
    columns = [F.col(f"`{name}`") for name in results.columns if name != PASSES]
    passes = F.col(PASSES) if PASSES in results.columns else F.lit(True)
    both = results.withColumns({PASSES: passes, _IS_KNOWN: F.lit(False)}).unionByName(
        known.withColumns({PASSES: F.lit(True), _IS_KNOWN: F.lit(True)}), allowMissingColumns=True
    )
    by_revision = Window.partitionBy(*[F.col(f"`{key}`") for key in keys]).orderBy("_revision")
    shown = F.when(F.col(PASSES), F.struct(*[F.col(f"`{name}`") for name in others]))
    found = both.withColumn(_REPLACED, F.lag(shown).over(by_revision)).where(~F.col(_IS_KNOWN))
    was_shown = F.col(_REPLACED).isNotNull()
    kind = F.when(was_shown, "update_postimage").otherwise("insert")
    given = found.where(PASSES).select(*columns, kind.alias(CHANGE))
    taken = F.when(F.col(PASSES), PREIMAGE).otherwise(DELETE)
    cause = F.when(~F.col(PASSES), F.col(LATE_EVENTS)).alias(LATE_EVENTS)
    of_keys = [F.col(f"`{key}`") for key in keys]
    old = found.where(was_shown).select(*of_keys, f"{_REPLACED}.*", cause, taken.alias(CHANGE))
    return given.unionByName(old)
