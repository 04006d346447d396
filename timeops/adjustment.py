"""Time adjustment: which events are accepted, with which timestamp, and which are refused and why.

Here: rules 1 to 3 in their order over a stretch of the log and the state before it. Not here: the release order
(ordering.py), windows, and anything about batches: a stretch may be one event or the whole log.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timeops.columns import (
    ADJUSTED_BY,
    ASKED,
    LATENESS,
    PERIOD,
    REASON,
    SEQ,
    SETTER,
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
from timeops.timelines import clock_steps, state_after, steps_of
from timeops.watermarks import Scanned, Way, scan, with_setter

KEPT = "kept_out_of_order"


@dataclass(frozen=True)
class JudgedRows:
    """The judged rows of a stretch of the log.

    Attributes:
        accepted: The events that go on: `_timestamp`, `_event_time`, `_timeline`, `_adjusted_by`, `__timestamp` and
            `__w_before` (microseconds; the latter null where the event is on time for certain), and under `keep`
            `__w_set_by`.
        refused: Records that do not: `__reason`, `__lateness_us`, `__w_before` and `__w_set_by`.
        moves: Events that may move the watermark: `_timeline`, `_arrival_seq`, `__t`, and what `timelines.asking`
            adds.
    """

    accepted: DataFrame
    refused: DataFrame
    moves: DataFrame


@dataclass(frozen=True)
class LogClock:
    """The clock of the log around a stretch.

    Attributes:
        after: The clock behind the stretch, microseconds: a literal, or an expression over `_timeline` where a frame
            holds several logs, each with timelines of its own.
        log: Which log a timeline is of, an expression over `_timeline`; there is one in a pipeline.
    """

    after: Column
    log: Column = field(default_factory=lambda: F.lit(0))


@dataclass(frozen=True)
class Adjusted(JudgedRows):
    """What a stretch of the log becomes.

    Attributes:
        before: timelines.STATE_SCHEMA before the stretch.
        state: The same after it.
        steps: The steps in which the watermark is seen to rise, timelines.steps_of.
        clock_steps: The same for what the clock alone gives all timelines of a log, timelines.clock_steps; None where
            it gives nothing.
        clock: The clock of the log.
    """

    before: DataFrame
    state: DataFrame
    steps: DataFrame
    clock_steps: DataFrame | None
    clock: LogClock


def time_adjustment(
    items: DataFrame,
    state: DataFrame,
    time: TimeSpec,
    clock: LogClock,
    *,
    way: Way | None = None,
    keep: Callable[[DataFrame], DataFrame] = lambda frame: frame,
) -> Adjusted:
    """Judges every record of a stretch of the log.

    Args:
        items: Records of the arrival log, any cut of it.
        state: timelines.STATE_SCHEMA as it was before the first of them.
        time: The spec's `time` section.
        clock: The clock of the log.
        way: See `watermarks.Way`; by default by blocks, with `over` in order.
        keep: Gives a frame with the same rows, computed once: the extracted records are read several times.

    Returns:
        Accepted and refused records and the state after the stretch.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    judged = keep(judge_arrival(extract(items, time), time))
    moving = judged.where(F.col(REASON).isNull())
    scanned = scan(moving, state, time, way or ("in_order" if time.over else "by_blocks"))
    nothing = F.lit(None).cast("bigint")
    refused = judged.where(F.col(REASON).isNotNull()).withColumns({W_BEFORE: nothing, W_SET_BY: nothing})
    if time.out_of_order == "drop":
        refused = refused.unionByName(_dropped(scanned, time), allowMissingColumns=True)
    periods = [PERIOD] if time.emit_every_us is not None else []
    moves = scanned.events.select(TIMELINE, SEQ, T, ASKED, SETTER, *periods)
    return adjusted_from(JudgedRows(_accepted(scanned, time), refused, moves), items, state, time, clock)


def adjusted_from(rows: JudgedRows, items: DataFrame, before: DataFrame, time: TimeSpec, clock: LogClock) -> Adjusted:
    """What a stretch becomes, from its judged rows, wherever these are kept; other arguments as `time_adjustment`."""
    steps = steps_of(rows.moves, before, time, clock.after)
    return Adjusted(
        accepted=rows.accepted,
        refused=rows.refused,
        moves=rows.moves,
        before=before,
        state=state_after(rows.moves, steps, before, time, clock.after),
        steps=steps,
        clock_steps=clock_steps(items, time, clock.log),
        clock=clock,
    )


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


def _dropped(scanned: Scanned, time: TimeSpec) -> DataFrame:
    behind = with_setter(scanned.events.where(F.col(W_BEFORE).isNotNull()), scanned.setters)
    late = F.col(W_BEFORE) - F.col(T)
    if time.clock_tolerance_us is not None:  # no tolerance lets in what the clock has passed
        late = F.when(F.col(W_SET_BY).isNotNull(), late)
    return behind.withColumns({REASON: F.lit("out_of_order"), LATENESS: late})
