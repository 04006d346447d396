"""The bounds that a session had one after the other while events came, for sessions that revise their results.

Here: a fold over the events of a session in the order in which they came; which of them were in it at which bounds.
Not here: the sessions (sessions.py), the results that each bounds give (revisions.py).

A session grows and merges and never shrinks. So bounds are there from the event that made them until the one that
changed them, or until the session closes, and never again. Nearly all of them are gone before they can give a result;
these are left out in the fold.
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, SEQ, T_FINAL, TIMELINE, W_BEFORE, computed_once, floor_to, same_in, to_us
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.windows.membership import END, START, group_names
from tidemark.timeops.windows.sessions import sessions_of

MADE_BY = "__made_by"
"""STRUCT<seq, t, w, clock, fresh>: the event that made the bounds; null where it was on time and that is enough."""
CHANGED_BY = "__changed_by"
"""The same of the event that changed them, which is one of the segment; null where they last."""

_BOUNDS = "__bounds"
EVENT = "struct<seq: bigint, t: bigint, w: bigint, clock: bigint, fresh: boolean>"
_SPANS = f"array<struct<first: bigint, last: bigint, made_by: {EVENT}, changed_by: {EVENT}>>"


def contents_by_bounds(
    events: DataFrame,
    window: WindowSpec,
    time: TimeSpec,
    fresh: str,
    *,
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Events of sessions that were open before the segment or began in it, once for each bounds at which they are in.

    Args:
        events: Events that earlier segments kept, with `__w_before` and `_clock` as they came, and the accepted ones
            of this.
        window: The window, which revises its results.
        time: The spec's `time` section.
        fresh: A BOOLEAN column of the events: the event is one of the segment.
        keep: As for `windows.window_results`.

    Returns:
        The rows with `__start`, `__end`, the group columns of `contents.with_groups`, `__made_by` and `__changed_by`.
        Bounds that earlier segments changed, and those that no result can be of, are not among them.
    """
    found = keep(sessions_of(events, window, time).where(F.col(START).isNotNull()))
    keys = [TIMELINE, *group_names(window), START, END]
    came = F.struct(
        F.col(SEQ).alias("seq"),
        F.col(T_FINAL).alias("t"),
        F.col(W_BEFORE).alias("w"),
        to_us(CLOCK).alias("clock"),
        F.col(fresh).alias("fresh"),
    )
    spans = _spans(F.sort_array(F.collect_list(came)), window)
    if window.early_every_us is None:  # of events that came in order none finds a session that W has passed
        whole = F.array(F.struct(F.col(START), F.col(END) - F.lit(window.gap_us), F.lit(None), F.lit(None)))
        spans = F.when(F.bool_or(F.col(W_BEFORE).isNotNull()), spans).otherwise(whole.cast(_SPANS))
    bounds = found.groupBy(*keys).agg(spans.alias(_BOUNDS)).select(*keys, F.explode(_BOUNDS).alias(_BOUNDS))
    t, one = F.col(f"event.{T_FINAL}"), F.col(f"bounds.{_BOUNDS}")
    inside = (one["first"] <= t) & (t <= one["last"])
    in_time = F.coalesce(F.col(f"event.{SEQ}") < one["changed_by"]["seq"], F.lit(True))
    held = found.alias("event").join(bounds.alias("bounds"), same_in("event", "bounds", keys) & inside & in_time)
    return held.select(
        *[F.col(f"event.`{name}`") for name in found.columns if name not in (START, END)],
        one["first"].alias(START),
        (one["last"] + F.lit(window.gap_us)).alias(END),
        one["made_by"].alias(MADE_BY),
        one["changed_by"].alias(CHANGED_BY),
    )


def _spans(came: Column, window: WindowSpec) -> Column:
    """The bounds of a session, from its events in order: those that changed and may give a result, and the last."""
    gap = F.lit(window.gap_us)

    def take(known: Column, event: Column) -> Column:
        t = event["t"]

        def is_joined(span: Column) -> Column:
            return (span["first"] - gap <= t) & (t <= span["last"] + gap)

        def merged(joined: Column) -> Column:
            one = F.get(joined, F.lit(0))
            is_inside = (F.size(joined) == 1) & (one["first"] <= t) & (t <= one["last"])
            own = F.struct(
                F.least(t, F.array_min(F.transform(joined, lambda span: span["first"]))).alias("first"),
                F.greatest(t, F.array_max(F.transform(joined, lambda span: span["last"]))).alias("last"),
                event.alias("made_by"),
                F.lit(None).cast(EVENT).alias("changed_by"),
            )
            others = F.filter(known["open"], lambda span: ~is_joined(span))
            matters = F.filter(joined, lambda span: _may_have_given(span, event, window))
            changed = F.transform(matters, lambda span: span.withField("changed_by", event))
            some = F.when(F.size(matters) > 0, F.concat(known["changed"], changed)).otherwise(known["changed"])
            return F.when(is_inside, known).otherwise(
                F.struct(F.array_append(others, own).alias("open"), some.alias("changed"))
            )

        return computed_once(F.filter(known["open"], is_joined), merged)

    nothing = F.array().cast(_SPANS)
    none_yet = F.struct(nothing.alias("open"), nothing.alias("changed"))
    return F.aggregate(came, none_yet, take, lambda known: F.concat(known["changed"], known["open"]))


def _may_have_given(span: Column, event: Column, window: WindowSpec) -> Column:
    """BOOLEAN: bounds may have given a result when an event of the segment came and changed them."""
    every_us = window.early_every_us
    if every_us is None:
        passed = event["w"] > span["last"] + F.lit(window.gap_us)
    else:
        passed = floor_to(span["made_by"]["clock"], every_us) + F.lit(every_us) <= event["clock"]
    return event["fresh"] & F.coalesce(passed, F.lit(False))
