"""The exact watermark just before every event that it can matter for, without sorting the log.

Here: the scans, in order, by blocks of the log, by periods of the clock; which one serves which rules; who set a
watermark. Not here: the state that a segment of the log leaves (timelines.py), what is done with an event behind its
watermark (events/adjustment.py).

In order: one window by timeline, with all rows in it.

By blocks, for few timelines: the log is cut into blocks of consecutive `_arrival_seq`. A small aggregation gives the
highest watermark that each block's events ask for; the highest of all earlier blocks and of the carried state is the
block's *carry*. A row at or above the carry and everything its own block asks for is on time whatever the order
inside the block. That is nearly every row: it needs no shuffle and no exact watermark. Only the other, *doubtful*
rows, and those that may have set their watermark, go through a window by block. Carries are few beside the log, and
so are the rows that may move a watermark, those above their carry: whoever asks several times keeps both.

By periods there is nothing to order: a period's events all see what the periods before it asked for.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.asof import with_carried
from tidemark.timeops.columns import (
    ASKED,
    BY_CLOCK,
    MAX_US,
    MIN_US,
    PERIOD,
    SEQ,
    SETTER,
    TIMELINE,
    W_BEFORE,
    W_RANK,
    W_SET_BY,
    T,
    floor_to,
)
from tidemark.timeops.materialize import Materialize, as_it_is
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.periodic_emission import asks_of, seen_in_periods
from tidemark.timeops.watermark.timelines import STEP, carried, event_of, known_setters, setter_rank

_PLACES = 56  # in a block: see `_packed`. Small blocks leave few rows doubtful, those that their own block passes.

_BLOCK = "__block"
_CARRY = "__carry"  # STRUCT<__asked_w, __setter>: the highest before the block
_TOP = "__top"  # the highest watermark asked for up to the end of the block
_LOWEST = "__lowest_t"
_MAX_T = "__max_t_before"  # the largest t before the block
_IS_EVENT = "__is_event"

ScanStrategy = Literal["in_order", "by_blocks"]
"""How to find watermarks that are seen at once; the result is the same. In order serves few records, and many
timelines. By blocks there must be few, as the blocks' carries (one per timeline and 28 or 56 rows) are broadcast."""


@dataclass(frozen=True)
class Scanned:
    """Events with their watermarks, and who set these.

    Attributes:
        events: The events with `__w_before`: the watermark just before the event where the event may be behind it,
            null where it is on time whatever the order was; and `__w_rank`, the `__setter` of that watermark, where
            the scan knows it.
        setters: `_timeline`, `__asked_w`, `__setter`: who first asked for a watermark that a later event may find
            standing; several rows may name the same one. None where the events have `__w_rank`.
        moves: `_timeline`, `_arrival_seq`, `__t`, `__asked_w`, `__setter` of the events that may raise the watermark
            or the largest t, where the scan knows them; None where it may be any.
    """

    events: DataFrame
    setters: DataFrame | None
    moves: DataFrame | None = None


def scan(
    asked: DataFrame,
    state: DataFrame,
    rules: TimeRules,
    strategy: ScanStrategy,
    *,
    published: DataFrame | None = None,
    materialize_few: Materialize = as_it_is,
) -> Scanned:
    """Finds the watermark just before each event that may be behind it.

    Args:
        asked: Events with what `timelines.asking` or `activity.asking_by_activity` adds. One without `__t` is not
            judged, it only asks.
        state: timelines.STATE_SCHEMA before the first of them.
        rules: The rules of time.
        strategy: How to find watermarks that are seen at once.
        published: What `periodic_emission.publications` gives; None where periods publish nothing of silences.
        materialize_few: As for `_by_blocks`.
    """
    every_us = rules.time.emit_every_us
    if published is not None:
        found = _by_publications(asked, published, state)
    elif every_us is not None:
        found = _by_periods(asked, state, every_us)
    elif strategy == "by_blocks":
        found = _by_blocks(asked, state, clock_moves=rules.clock_moves, materialize_few=materialize_few)
    else:
        found = _in_order(asked, state)
    if found.setters is None:
        return found
    return replace(found, setters=found.setters.unionByName(known_setters(state)))


def with_setter(behind: DataFrame, setters: DataFrame | None) -> DataFrame:
    """Adds `__w_set_by`: the lowest `_arrival_seq` after which the watermark had the value `__w_before`.

    It is null where no event gave the watermark this value, but the clock or a change of the spec.

    Args:
        behind: Some of the scanned events; few, since each of them is looked up.
        setters: What `scan` gave.
    """
    if setters is None:
        return behind.withColumn(W_SET_BY, event_of(F.col(W_RANK)))
    keys = [TIMELINE, W_BEFORE]
    first = setters.groupBy(TIMELINE, F.col(ASKED).alias(W_BEFORE)).agg(F.max(SETTER).alias(W_SET_BY))
    return behind.join(first, keys, "left").withColumn(W_SET_BY, event_of(F.col(W_SET_BY)))


def _in_order(events: DataFrame, state: DataFrame) -> Scanned:
    """One window by timeline: a shuffle and a sort of all rows.

    Args:
        events: Rows with what `timelines.asking` adds.
        state: timelines.STATE_SCHEMA before them.
    """
    earlier = Window.partitionBy(TIMELINE).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    marked = events.withColumn(_IS_EVENT, F.lit(True))
    both = marked.unionByName(carried(state).select(*STEP), allowMissingColumns=True)
    asks = F.when(F.col(ASKED).isNotNull(), F.struct(ASKED, SETTER))
    seen = both.withColumn("__seen", F.max(asks).over(earlier)).where(_IS_EVENT)
    return Scanned(_seen(seen, F.col("__seen")).drop("__seen", _IS_EVENT), None)


def _by_blocks(events: DataFrame, state: DataFrame, *, clock_moves: bool, materialize_few: Materialize) -> Scanned:
    """The pruned scan: only doubtful rows and their possible setters are shuffled.

    Args:
        events: As for `_in_order`.
        state: timelines.STATE_SCHEMA before them.
        clock_moves: The clock may be the setter of a watermark too.
        materialize_few: Gives a frame with the same rows, computed once; asked for the carries and the moves.
    """
    setters = 2 if clock_moves else 1  # of a row
    in_blocks = events.withColumn(_BLOCK, floor_to(F.col(SEQ), _PLACES // setters))
    blocks = materialize_few(_blocks(in_blocks, state, setters))
    rows = in_blocks.join(F.broadcast(blocks), [TIMELINE, _BLOCK])
    nothing = F.lit(None).cast("bigint")
    doubtful = F.coalesce(F.col(T) < F.col(_TOP), F.lit(False))
    on_time = rows.where(~doubtful).select(*events.columns, nothing.alias(W_BEFORE), nothing.alias(W_RANK))
    before_block = F.col(_CARRY)[ASKED]
    rises = F.col(ASKED).isNotNull() & F.coalesce(F.col(ASKED) > before_block, F.lit(True))
    # The payload travels only with the rows that are asked about, not with those that set their watermark. Each of
    # its columns by itself: what nobody asks for is not even read.
    payload = [F.when(doubtful, F.col(name)).alias(name) for name in events.columns if name not in (TIMELINE, SEQ)]
    slim = rows.where(doubtful | (rises & (F.col(_LOWEST) < F.col(_TOP)))).select(
        TIMELINE,
        _BLOCK,
        SEQ,
        _CARRY,
        F.when(rises, F.struct(ASKED, SETTER)).alias("__rising"),
        doubtful.alias(_IS_EVENT),
        *payload,
    )
    earlier = Window.partitionBy(TIMELINE, _BLOCK).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    inside = slim.withColumn("__seen", F.max("__rising").over(earlier)).where(_IS_EVENT)
    resolved = _seen(inside, F.greatest("__seen", _CARRY)).select(*on_time.columns)
    is_largest = F.coalesce(F.col(T) > F.col(_MAX_T), F.col(T).isNotNull())
    moves = materialize_few(rows.where(rises | is_largest).select(TIMELINE, SEQ, T, ASKED, SETTER))
    return Scanned(on_time.unionByName(resolved), None, moves)


def _seen(rows: DataFrame, asked: Column) -> DataFrame:
    """Adds `__w_before` where the event is behind it, and `__w_rank`, who set that: other events, or the clock.

    Args:
        rows: Events with `__clock_w`.
        asked: STRUCT<__asked_w, __setter>: the highest that earlier events asked for.
    """
    by_event = F.when(F.coalesce(asked[ASKED] >= F.col(BY_CLOCK), F.lit(True)), asked[SETTER])
    return _only_behind(rows.withColumns({W_BEFORE: F.greatest(asked[ASKED], BY_CLOCK), W_RANK: by_event}))


def _by_periods(events: DataFrame, state: DataFrame, every_us: int) -> Scanned:
    """Periodic emission (F): the watermark as it stood after the last item of an earlier period of the clock."""
    asked = events.groupBy(TIMELINE, PERIOD).agg(F.max(F.struct(ASKED, SETTER)).alias("asked"))
    setters = asked.select(TIMELINE, "asked.*")
    own = asked.select(TIMELINE, PERIOD, F.col("asked")[ASKED].alias(ASKED))
    waiting = state.select(TIMELINE, floor_to(F.col("clock"), every_us).alias(PERIOD), F.col("computed").alias(ASKED))
    periods = own.unionByName(waiting).groupBy(TIMELINE, PERIOD).agg(F.max(ASKED).alias("__highest"))
    known = periods.join(state.select(TIMELINE, "watermark"), TIMELINE, "left")
    highest, before = {W_BEFORE: F.col("__highest")}, {W_BEFORE: F.col("watermark")}
    seen = with_carried(known, highest, before, key=TIMELINE, cell=PERIOD).select(TIMELINE, PERIOD, W_BEFORE)
    return Scanned(_only_behind(events.join(seen, [TIMELINE, PERIOD])), setters)


def _by_publications(events: DataFrame, published: DataFrame, state: DataFrame) -> Scanned:
    """Periodic emission where the clock raises watermarks too: as `_by_periods`, with what it gave by the period.

    Args:
        events: As for `_in_order`.
        published: What `periodic_emission.publications` gives for them.
        state: timelines.STATE_SCHEMA before them.
    """
    seen = events.join(seen_in_periods(published, state), [TIMELINE, PERIOD])
    return Scanned(_only_behind(seen), asks_of(published).select(TIMELINE, ASKED, SETTER))


def _blocks(in_blocks: DataFrame, state: DataFrame, setters: int) -> DataFrame:
    """Per timeline and block: carry, the highest watermark up to its end (top), its lowest t, the largest before."""
    of_block = in_blocks.groupBy(TIMELINE, _BLOCK)
    packed = of_block.agg(
        F.max(_packed(setters)).alias("__packed"), F.min(T).alias(_LOWEST), F.max(T).alias("__max_t")
    )
    highest = packed.withColumn("__highest", _unpacked(F.col("__packed"), setters))
    asked = F.struct(F.col("computed").alias(ASKED), setter_rank("computed_set_by").alias(SETTER))
    before = state.select(TIMELINE, F.when(F.col("computed").isNotNull(), asked).alias("__before"), "max_t")
    known = highest.join(before, TIMELINE, "left")
    values = {_CARRY: F.col("__highest"), _MAX_T: F.col("__max_t")}
    start = {_CARRY: F.col("__before"), _MAX_T: F.col("max_t")}
    blocks = with_carried(known, values, start, key=TIMELINE, cell=_BLOCK)
    top = F.greatest(F.col(_CARRY)[ASKED], F.col("__highest")[ASKED])
    return blocks.select(TIMELINE, _BLOCK, _CARRY, top.alias(_TOP), _LOWEST, _MAX_T)


_MIDDLE_US = (MIN_US + MAX_US) // 2


def _packed(setters: int) -> Column:
    """What a row asks for and its place in the block as one BIGINT, of which the largest is who first asked most.

    A maximum of two columns would make Spark sort all rows, one of a number is a hash aggregation. The instants of
    the years 0001 to 9999 times the places of a block fit 64 bits up to 58 places.
    """
    in_block = -F.col(SETTER) - F.lit(2) * F.col(_BLOCK)  # of the clock before an event even, of the event odd
    place = in_block if setters == 2 else F.shiftright(in_block, 1)
    return (F.col(ASKED) - F.lit(_MIDDLE_US)) * F.lit(_PLACES) + (F.lit(_PLACES - 1) - place)


def _unpacked(packed: Column, setters: int) -> Column:
    """STRUCT<__asked_w, __setter> of what `_packed` gave in the row's block; null of null."""
    rest = F.pmod(packed, F.lit(_PLACES))
    asked = F.call_function("div", packed - rest, F.lit(_PLACES)) + F.lit(_MIDDLE_US)
    place = F.lit(_PLACES - 1) - rest
    in_block = place if setters == 2 else F.lit(2) * place + F.lit(1)
    setter = -(in_block + F.lit(2) * F.col(_BLOCK))
    return F.when(packed.isNotNull(), F.struct(asked.alias(ASKED), setter.alias(SETTER)))


def _only_behind(events: DataFrame) -> DataFrame:
    """`__w_before` only where the event is behind it."""
    return events.withColumn(W_BEFORE, F.when(F.col(T) < F.col(W_BEFORE), F.col(W_BEFORE)))
