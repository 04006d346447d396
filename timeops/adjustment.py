"""Time adjustment: which events are accepted, with which timestamp, and which are refused and why.

Here: rules 1 to 3 in their order over a stretch of the log and the state before it. Not here: the release order
(ordering.py), windows, and anything about batches: a stretch may be one event or the whole log.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timeops.columns import (
    ADJUSTED_BY,
    ASKED,
    LATENESS,
    PERIOD,
    REASON,
    SEQ,
    T_FINAL,
    TIMELINE,
    TIMESTAMP,
    W_BEFORE,
    W_SET_BY,
    T,
    to_instant,
)
from timeops.extraction import extract
from timeops.policies import judge_arrival
from timeops.spec import TimeSpec
from timeops.timelines import state_after, steps_of
from timeops.watermarks import Scanned, scan, with_setter

KEPT = "kept_out_of_order"


@dataclass(frozen=True)
class Adjusted:
    """What a stretch of the log becomes.

    Attributes:
        accepted: The events that go on: `_timestamp`, `_event_time`, `_timeline`, `_adjusted_by`, `__timestamp` and
            `__w_before` (microseconds; the latter null where the event is on time for certain), and under `keep`
            `__w_set_by`.
        refused: Records that do not: `__reason`, `__lateness_us`, `__w_before` and `__w_set_by`.
        moves: Events that may move the watermark: `_timeline`, `_arrival_seq`, `__t`, `__asked_w`, with periodic
            emission `__period`.
        steps: The steps in which the watermark is seen to rise, timelines.steps_of.
        before: timelines.STATE_SCHEMA before the stretch.
        state: The same after it.
    """

    accepted: DataFrame
    refused: DataFrame
    moves: DataFrame
    steps: DataFrame
    before: DataFrame
    state: DataFrame


def time_adjustment(
    items: DataFrame,
    state: DataFrame,
    time: TimeSpec,
    clock_after: Column,
    *,
    few_timelines: bool | None = None,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> Adjusted:
    """Judges every record of a stretch of the log.

    Args:
        items: Records of the arrival log, any cut of it.
        state: timelines.STATE_SCHEMA as it was before the first of them.
        time: The spec's `time` section.
        clock_after: The log's clock behind the last of them, microseconds: a literal, or an expression over
            `_timeline` where the frame holds several logs, each with timelines of its own.
        few_timelines: See `watermarks.scan`; by default, true without `over`.
        keep: Gives a frame with the same rows, computed once: the extracted records are read several times.

    Returns:
        Accepted and refused records and the state after the stretch.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    judged = keep(judge_arrival(extract(items, time), time))
    moving = judged.where(F.col(REASON).isNull())
    few = not time.over if few_timelines is None else few_timelines
    scanned = scan(moving, state, time, few_timelines=few)
    nothing = F.lit(None).cast("bigint")
    refused = judged.where(F.col(REASON).isNotNull()).withColumns({W_BEFORE: nothing, W_SET_BY: nothing})
    if time.out_of_order == "drop":
        refused = refused.unionByName(_dropped(scanned), allowMissingColumns=True)
    periods = [PERIOD] if time.emit_every_us is not None else []
    moves = scanned.events.select(TIMELINE, SEQ, T, ASKED, *periods)
    return adjusted_from(_accepted(scanned, time), refused, moves, state, time=time, clock_after=clock_after)


def adjusted_from(
    accepted: DataFrame,
    refused: DataFrame,
    moves: DataFrame,
    before: DataFrame,
    *,
    time: TimeSpec,
    clock_after: Column,
) -> Adjusted:
    """An `Adjusted` from its judged rows, wherever they are kept; steps and state follow from them."""
    steps = steps_of(moves, before, time, clock_after)
    state = state_after(moves, steps, before, time, clock_after)
    return Adjusted(accepted, refused, moves, steps, before, state)


def _accepted(scanned: Scanned, time: TimeSpec) -> DataFrame:
    behind = F.col(W_BEFORE).isNotNull()
    nothing = F.lit(None).cast("bigint")
    if time.out_of_order == "drop":
        on_time = scanned.events.where(~behind)
        return on_time.withColumns({W_SET_BY: nothing, T_FINAL: F.col(T), TIMESTAMP: to_instant(T)})
    adjusts = time.out_of_order == "adjust"
    rule = F.array(F.lit("out_of_order" if adjusts else KEPT))
    final = F.when(behind, F.col(W_BEFORE)).otherwise(F.col(T)) if adjusts else F.col(T)
    on_time = scanned.events.where(~behind).withColumn(W_SET_BY, nothing)
    late = scanned.events.where(behind)
    late = late.withColumn(W_SET_BY, nothing) if adjusts else with_setter(late, scanned.setters)
    return on_time.unionByName(late).withColumns(
        {
            T_FINAL: final,
            TIMESTAMP: to_instant(final),
            ADJUSTED_BY: F.when(behind, F.concat(ADJUSTED_BY, rule)).otherwise(F.col(ADJUSTED_BY)),
        }
    )


def _dropped(scanned: Scanned) -> DataFrame:
    behind = scanned.events.where(F.col(W_BEFORE).isNotNull())
    return with_setter(behind, scanned.setters).withColumns(
        {REASON: F.lit("out_of_order"), LATENESS: F.col(W_BEFORE) - F.col(T)}
    )
