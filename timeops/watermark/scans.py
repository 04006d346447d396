"""The exact watermark just before every event that it can matter for, without sorting the log.

Here: the scans, in order, by blocks of the log, by periods of the clock; which one serves which rules; who set a
watermark. Not here: the state that a segment of the log leaves (timelines.py), what is done with an event behind its
watermark (events/adjustment.py).

In order: one window by timeline, with all rows in it.

By blocks, for few timelines: the log is cut into blocks of consecutive `_arrival_seq`. A small aggregation gives the
highest watermark that each block's events propose; the highest of all earlier blocks and of the carried state is the
block's *carry*. A row at or above the carry and everything its own block proposes is on time whatever the order
inside the block. That is nearly every row: it needs no shuffle and no exact watermark. Only the other, *doubtful*
rows, and those that may have set their watermark, go through a window by block. Carries are few beside the log, and
so are the rows that may move a watermark, those above their carry: whoever asks several times materializes both.

By periods there is nothing to order: a period's events all see what the periods before it proposed.
"""

from dataclasses import dataclass, replace
from typing import Literal

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.timeops.asof import with_carried
from tidemark.timeops.columns import (
    BY_CLOCK,
    MAX_US,
    MIN_US,
    PERIOD,
    PROPOSED,
    SEQ,
    SET_BY,
    TIMELINE,
    W_BEFORE,
    W_RANK,
    W_SET_BY,
    T,
    floor_to,
)
from tidemark.timeops.materialize import Materialize, as_it_is
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.periodic_emission import proposals_of, seen_in_periods
from tidemark.timeops.watermark.timelines import STEP, carried, event_of, known_set_by, set_by_rank

_PLACES = 56  # in a block: see `_packed`. Small blocks leave few rows doubtful, those that their own block passes.

ADVANCES = "__tm_advances"  # BOOLEAN: the row may raise the watermark, or the largest t

_BLOCK = "__tm_block"
_CARRY = "__tm_carry"  # STRUCT<__tm_proposed_w, __tm_set_by>: the highest before the block
_TOP = "__tm_top"  # the highest watermark proposed up to the end of the block
_LOWEST = "__tm_lowest_t"
_MAX_T = "__tm_max_t_before"  # the largest t before the block
_ROWS = "__tm_rows"  # of the block
_RISING = "__tm_rising"  # STRUCT<__tm_proposed_w, __tm_set_by> of a row above the carry
_MAY_BE_SEEN = "__tm_may_be_seen"  # BOOLEAN of such a row: a doubtful row of its block may meet what it proposes
_IS_EVENT = "__tm_is_event"  # BOOLEAN: the row is asked about, rather than there for what it proposes

ScanStrategy = Literal["in_order", "by_blocks"]
"""How to find watermarks that are seen at once; the result is the same. In order serves few records, and many
timelines. By blocks there must be few, as the blocks' carries (one per timeline and 28 or 56 rows) are broadcast."""


@dataclass(frozen=True)
class Scanned:
    """Events with their watermarks, and who set these.

    Attributes:
        events: The events with `__tm_w_before`: the watermark just before the event where the event may be behind it,
            null where it is on time whatever the order was; and `__tm_w_rank`, the `__tm_set_by` of that watermark,
            where the scan knows it.
        set_by: `_timeline`, `__tm_proposed_w`, `__tm_set_by`: who first proposed a watermark that a later event may
            find standing; several rows may name the same one. None where the events have `__tm_w_rank`.
        advances: `_timeline`, `_arrival_seq`, `__tm_t`, `__tm_proposed_w`, `__tm_set_by` of the events that may raise
            the watermark or the largest t, where the scan knows them; None where it may be any.
        rows: One row with `rows` BIGINT: how many events were scanned, where that is known without another scan.
    """

    events: DataFrame
    set_by: DataFrame | None
    advances: DataFrame | None = None
    rows: DataFrame | None = None


def scan(
    proposed: DataFrame,
    state: DataFrame,
    rules: TimeRules,
    strategy: ScanStrategy,
    *,
    published: DataFrame | None = None,
    materialize_few: Materialize = as_it_is,
) -> Scanned:
    """Finds the watermark just before each event that may be behind it.

    Args:
        proposed: Events with what `timelines.proposing` or `activity.proposing_by_activity` adds. One without
            `__tm_t` is not judged, it only proposes.
        state: timelines.STATE_SCHEMA before the first of them.
        rules: The rules of time.
        strategy: How to find watermarks that are seen at once.
        published: What `periodic_emission.publications` gives; None where periods publish nothing of silences.
        materialize_few: As for `_by_blocks`.
    """
    every_us = rules.time.emit_every_us
    if published is not None:
        found = _by_publications(proposed, published, state)
    elif every_us is not None:
        found = _by_periods(proposed, state, every_us)
    elif strategy == "by_blocks":
        found = _by_blocks(proposed, state, rules, materialize_few)
    else:
        found = Scanned(in_order(proposed, state).drop(ADVANCES), None)
    if found.set_by is None:
        return found
    return replace(found, set_by=found.set_by.unionByName(known_set_by(state)))


def with_set_by(behind: DataFrame, set_by: DataFrame | None) -> DataFrame:
    """Adds `__tm_w_set_by`: the lowest `_arrival_seq` after which the watermark had the value `__tm_w_before`.

    It is null where no event gave the watermark this value, but the clock or a change of the spec.

    Args:
        behind: Some of the scanned events; few, since each of them is looked up.
        set_by: What `scan` gave.
    """
    if set_by is None:
        return behind.withColumn(W_SET_BY, event_of(F.col(W_RANK)))
    keys = [TIMELINE, W_BEFORE]
    first = set_by.groupBy(TIMELINE, F.col(PROPOSED).alias(W_BEFORE)).agg(F.max(SET_BY).alias(W_SET_BY))
    return behind.join(first, keys, "left").withColumn(W_SET_BY, event_of(F.col(W_SET_BY)))


def in_order(events: DataFrame, state: DataFrame) -> DataFrame:
    """One window by timeline: a shuffle and a sort of all rows.

    Args:
        events: Rows with what `timelines.proposing` adds.
        state: timelines.STATE_SCHEMA before them.

    Returns:
        What `Scanned.events` has, and ADVANCES, which of them `Scanned.advances` would have.
    """
    earlier = Window.partitionBy(TIMELINE).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    marked = events.withColumn(_IS_EVENT, F.lit(True))
    both = marked.unionByName(carried(state).select(*STEP), allowMissingColumns=True)
    proposed = F.when(F.col(PROPOSED).isNotNull(), F.struct(PROPOSED, SET_BY))
    before = {"__tm_seen": F.max(proposed).over(earlier), _MAX_T: F.max(T).over(earlier)}
    seen, highest = both.withColumns(before).where(_IS_EVENT), F.col("__tm_seen")
    found = _seen(seen.withColumn(ADVANCES, _rises(highest[PROPOSED]) | _is_largest()), highest)
    return found.drop(*before, _IS_EVENT)


def _rises(before: Column) -> Column:
    """BOOLEAN, never null: a row proposes more than what was proposed before it."""
    return F.col(PROPOSED).isNotNull() & F.coalesce(F.col(PROPOSED) > before, F.lit(True))


def _is_largest() -> Column:
    """BOOLEAN, never null: the time of a row is the largest so far."""
    return F.coalesce(F.col(T) > F.col(_MAX_T), F.col(T).isNotNull())


def _by_blocks(events: DataFrame, state: DataFrame, rules: TimeRules, materialize_few: Materialize) -> Scanned:
    """The pruned scan: only doubtful rows and those that may have set their watermarks are shuffled.

    Args:
        events: As for `in_order`.
        state: timelines.STATE_SCHEMA before them.
        rules: The rules of time.
        materialize_few: Gives a frame with the same rows, computed once; asked for the carries, and for doubtful and
            moving rows.
    """
    proposals = 2 if rules.clock_moves else 1  # of a row: the clock may set a watermark too
    size = _PLACES // proposals
    in_blocks = events.withColumn(_BLOCK, F.call_function("div", SEQ, F.lit(size)))
    blocks = materialize_few(_blocks(in_blocks, state, size))
    # The number of a block by itself is found fastest: Spark keeps the carries in an array.
    of_block = blocks.drop(_ROWS) if rules.time.over else blocks.drop(_ROWS, TIMELINE)
    rows = in_blocks.join(F.broadcast(of_block), [TIMELINE, _BLOCK] if rules.time.over else [_BLOCK])
    nothing = F.lit(None).cast("bigint")
    doubtful = F.coalesce(F.col(T) < F.col(_TOP), F.lit(False))
    on_time = rows.where(~doubtful).select(*events.columns, nothing.alias(W_BEFORE), nothing.alias(W_RANK))
    rises, is_largest = _rises(F.col(_CARRY)[PROPOSED]), _is_largest()
    # The payload travels only with the rows that are asked about, not with those that set their watermark. Each of
    # its columns by itself: what nobody asks for is not even read.
    always = (TIMELINE, SEQ, T, PROPOSED, SET_BY)
    payload = [F.when(doubtful, F.col(name)).alias(name) for name in events.columns if name not in always]
    few = rows.where(doubtful | rises | is_largest).select(
        *always,
        *payload,
        _BLOCK,
        _CARRY,
        F.when(rises, F.struct(PROPOSED, SET_BY)).alias(_RISING),
        (rises & (F.col(_LOWEST) < F.col(_TOP))).alias(_MAY_BE_SEEN),
        (rises | is_largest).alias(ADVANCES),
        doubtful.alias(_IS_EVENT),
    )
    few = materialize_few(few)
    earlier = Window.partitionBy(TIMELINE, _BLOCK).orderBy(SEQ).rowsBetween(Window.unboundedPreceding, -1)
    asked = few.where(F.col(_IS_EVENT) | F.col(_MAY_BE_SEEN))
    inside = asked.withColumn("__tm_seen", F.max(_RISING).over(earlier)).where(_IS_EVENT)
    resolved = _seen(inside, F.greatest("__tm_seen", _CARRY)).select(*on_time.columns)
    advances = few.where(ADVANCES).select(TIMELINE, SEQ, T, PROPOSED, SET_BY)
    return Scanned(on_time.unionByName(resolved), None, advances, blocks.agg(F.sum(_ROWS).alias("rows")))


def _seen(rows: DataFrame, proposed: Column) -> DataFrame:
    """Adds `__tm_w_before` where the event is behind it, and `__tm_w_rank`, who set that: other events, or the clock.

    Args:
        rows: Events with `__tm_clock_w`.
        proposed: STRUCT<__tm_proposed_w, __tm_set_by>: the highest that earlier events proposed.
    """
    by_event = F.when(F.coalesce(proposed[PROPOSED] >= F.col(BY_CLOCK), F.lit(True)), proposed[SET_BY])
    return _only_behind(rows.withColumns({W_BEFORE: F.greatest(proposed[PROPOSED], BY_CLOCK), W_RANK: by_event}))


def _by_periods(events: DataFrame, state: DataFrame, every_us: int) -> Scanned:
    """Periodic emission (F): the watermark as it stood after the last item of an earlier period of the clock."""
    proposed = events.groupBy(TIMELINE, PERIOD).agg(F.max(F.struct(PROPOSED, SET_BY)).alias("proposed"))
    set_by = proposed.select(TIMELINE, "proposed.*")
    own = proposed.select(TIMELINE, PERIOD, F.col("proposed")[PROPOSED].alias(PROPOSED))
    waiting = state.select(
        TIMELINE, floor_to(F.col("clock"), every_us).alias(PERIOD), F.col("computed").alias(PROPOSED)
    )
    periods = own.unionByName(waiting).groupBy(TIMELINE, PERIOD).agg(F.max(PROPOSED).alias("__tm_highest"))
    known = periods.join(state.select(TIMELINE, "watermark"), TIMELINE, "left")
    highest, before = {W_BEFORE: F.col("__tm_highest")}, {W_BEFORE: F.col("watermark")}
    seen = with_carried(known, highest, before, key=TIMELINE, cell=PERIOD).select(TIMELINE, PERIOD, W_BEFORE)
    return Scanned(_only_behind(events.join(seen, [TIMELINE, PERIOD])), set_by)


def _by_publications(events: DataFrame, published: DataFrame, state: DataFrame) -> Scanned:
    """Periodic emission where the clock raises watermarks too: as `_by_periods`, with what it gave by the period.

    Args:
        events: As for `in_order`.
        published: What `periodic_emission.publications` gives for them.
        state: timelines.STATE_SCHEMA before them.
    """
    seen = events.join(seen_in_periods(published, state), [TIMELINE, PERIOD])
    return Scanned(_only_behind(seen), proposals_of(published).select(TIMELINE, PROPOSED, SET_BY))


def _blocks(in_blocks: DataFrame, state: DataFrame, size: int) -> DataFrame:
    """Per timeline and block: its carry, the highest watermark up to its end (top), times, and how many rows."""
    of_block = in_blocks.groupBy(TIMELINE, _BLOCK)
    packed = of_block.agg(
        F.max(_packed(size)).alias("__tm_packed"),
        F.min(T).alias(_LOWEST),
        F.max(T).alias("__tm_max_t"),
        F.count("*").alias(_ROWS),
    )
    highest = packed.withColumn("__tm_highest", _unpacked(F.col("__tm_packed"), size))
    proposed = F.struct(F.col("computed").alias(PROPOSED), set_by_rank("computed_set_by").alias(SET_BY))
    before = state.select(TIMELINE, F.when(F.col("computed").isNotNull(), proposed).alias("__tm_before"), "max_t")
    known = highest.join(before, TIMELINE, "left")
    values = {_CARRY: F.col("__tm_highest"), _MAX_T: F.col("__tm_max_t")}
    start = {_CARRY: F.col("__tm_before"), _MAX_T: F.col("max_t")}
    blocks = with_carried(known, values, start, key=TIMELINE, cell=_BLOCK)
    top = F.greatest(F.col(_CARRY)[PROPOSED], F.col("__tm_highest")[PROPOSED])
    return blocks.select(TIMELINE, _BLOCK, _CARRY, top.alias(_TOP), _LOWEST, _MAX_T, _ROWS)


_MIDDLE_US = (MIN_US + MAX_US) // 2


def _packed(size: int) -> Column:
    """What a row proposes and its place in the block as one BIGINT, of which the largest is who first proposed most.

    A maximum of two columns would make Spark sort all rows, one of a number is a hash aggregation. The instants of
    the years 0001 to 9999 times the places of a block fit 64 bits up to 58 places.

    Args:
        size: Rows of a block. With half of the places the clock has one of its own before each event.
    """
    in_block = -F.col(SET_BY) - _first_place(size)  # of the clock before an event even, of the event odd
    place = F.shiftright(in_block, 1) if size == _PLACES else in_block
    return (F.col(PROPOSED) - F.lit(_MIDDLE_US)) * F.lit(_PLACES) + (F.lit(_PLACES - 1) - place)


def _unpacked(packed: Column, size: int) -> Column:
    """STRUCT<__tm_proposed_w, __tm_set_by> of what `_packed` gave in the row's block; null of null."""
    rest = F.pmod(packed, F.lit(_PLACES))
    proposed = F.call_function("div", packed - rest, F.lit(_PLACES)) + F.lit(_MIDDLE_US)
    place = F.lit(_PLACES - 1) - rest
    in_block = F.lit(2) * place + F.lit(1) if size == _PLACES else place
    set_by = -(in_block + _first_place(size))
    return F.when(packed.isNotNull(), F.struct(proposed.alias(PROPOSED), set_by.alias(SET_BY)))


def _first_place(size: int) -> Column:
    """The place of a block's first row, of which each has two."""
    return F.lit(2 * size) * F.col(_BLOCK)


def _only_behind(events: DataFrame) -> DataFrame:
    """`__tm_w_before` only where the event is behind it."""
    return events.withColumn(W_BEFORE, F.when(F.col(T) < F.col(W_BEFORE), F.col(W_BEFORE)))
