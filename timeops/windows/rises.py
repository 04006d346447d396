"""How watermarks rise in a segment of the log: which item brings one to a value, and what the clock alone gives.

Here: one object for each way in which they are raised, chosen once by `rise_of`: by events alone, by the clock for
all timelines alike, in silences of single timelines, by periods that publish what the clock gave; the items of the
log by their clock. Not here: what the clock gives (watermark/clock_rules.py), the values that are asked for
(closing.py), where a watermark stands at a place of the log (watermark_at.py).
"""

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.asof import CELL_US, with_largest_at_or_above, with_largest_at_or_below
from tidemark.timeops.columns import (
    BY_CLOCK,
    CLOCK,
    LOG,
    PERIOD,
    PROPOSED,
    PUBLISHED,
    SEQ,
    TIMELINE,
    WATERMARK,
    floor_to,
    to_us,
)
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.watermark.clock_rules import GATHERED, clock_rule
from tidemark.timeops.watermark.log_clock import BEHIND_ALL
from tidemark.timeops.watermark.periodic_emission import ENDED, PREVIOUS, PROPOSED_BEFORE, with_proposed_before

CLOSES_AT = "__tm_closes_at"  # BIGINT: the watermark that is asked for
REACHED = "__tm_reached"  # the watermark that first reached it, at an item that may raise it further
GIVEN = "__tm_given_by_clock"
FIRST = "__tm_first"
"""STRUCT<negative_seq, w, …>: the first of some steps that reaches a watermark, of several the largest struct."""

AT = "__tm_at"  # BIGINT: microseconds of a clock
ITEM = "__tm_item"  # STRUCT<clock, seq>
CLOCK_BEFORE = "__tm_clock_before"  # BIGINT: the clock just before that item

_BEFORE, _BY_EVENTS = "__tm_before", "__tm_by_events"

Find = Callable[[DataFrame, DataFrame, str, tuple[str, ...]], DataFrame]
"""Adds `__tm_first` to rows with `__tm_closes_at`, of some steps (`__tm_proposed_w`, `_arrival_seq`) of the same
timeline, or of the same log, with more of their columns; see closing.py."""


class Rise:
    """By the events of timelines alone; the other ways are below."""

    def __init__(self, segment: Adjusted) -> None:
        self._segment = segment
        self.rule = clock_rule(segment.rules)

    @property
    def steps(self) -> DataFrame:
        """The steps in which the watermarks of timelines rise."""
        return self._segment.steps

    def reaching(self, rows: DataFrame, find: Find) -> DataFrame:
        """Finds the first item of the log at which watermarks reach given values.

        It is a step of the timeline, or of the clock. Of one item the higher counts.

        Args:
            rows: `_timeline`, `__tm_closes_at`, and what `find` asks for.
            find: See `Find`.

        Returns:
            The rows with `_watermark` BIGINT, just after that item, null for no such item; and `__tm_reached`, the
            watermark that reached it, which is lower where the clock comes to an item first and its event proposes
            more.
        """
        w = F.col(FIRST)["w"]
        return find(rows, self.steps, TIMELINE, ()).withColumns({WATERMARK: w, REACHED: w}).drop(FIRST)

    def with_given(self, rows: DataFrame, known: Column) -> DataFrame:
        """Adds `__tm_given_by_clock`: what the clock alone gives a timeline by a place of the log, microseconds.

        Args:
            rows: `_timeline` and `__tm_at`, the clock there.
            known: What the timeline had gathered by then, GATHERED; where the clock raises all alike of no matter.
        """
        return rows.withColumn(GIVEN, self.rule.gives(known, F.col(AT)))


class _RiseByClock(Rise):
    """By events, and by the clock for all timelines of a log alike."""

    def __init__(self, segment: Adjusted, clock_steps: DataFrame) -> None:
        super().__init__(segment)
        self._clock_steps = clock_steps

    def reaching(self, rows: DataFrame, find: Find) -> DataFrame:
        """At the first of both."""
        by_events = find(rows, self.steps, TIMELINE, ()).withColumnRenamed(FIRST, _BY_EVENTS)
        both = find(by_events.withColumn(LOG, self._segment.clock.log), self._clock_steps, LOG, ())
        by_clock, first = F.col(FIRST), F.greatest(_BY_EVENTS, FIRST)
        is_first = by_clock["negative_seq"] == first["negative_seq"]
        reached = F.when(is_first, by_clock["w"]).otherwise(first["w"])
        return both.withColumns({WATERMARK: first["w"], REACHED: reached}).drop(FIRST, _BY_EVENTS, LOG)


class _RiseInSilences(Rise):
    """By events, and by the clock for each timeline that is without them: an item may stand before its next one."""

    @property
    def steps(self) -> DataFrame:
        """Those of events, and what the clock has given every timeline behind its last one.

        The latter is what the segment's tick gives, where no record before it gave as much.
        """
        segment = self._segment
        known = self.rule.of_state(segment.clock.first)
        end = segment.state.select(
            TIMELINE,
            F.lit(BEHIND_ALL).alias(SEQ),
            self.rule.gives(known, self.rule.behind(segment.clock)).alias(BY_CLOCK),
            known.alias(GATHERED),
        )
        return segment.steps.unionByName(end.withColumn(PROPOSED, F.col(BY_CLOCK)), allowMissingColumns=True)

    def reaching(self, rows: DataFrame, find: Find) -> DataFrame:
        """At the first item of the log at which the silence before a step gave so much, or at the step."""
        found, step = find(rows, self.steps, TIMELINE, self.rule.of_steps), F.col(FIRST)
        closes_at, log = F.col(CLOSES_AT), self._segment.clock.log
        in_silence = F.coalesce(step[BY_CLOCK] >= closes_at, F.lit(False))
        at = F.when(in_silence, self.rule.first_clock(step[GATHERED], closes_at))
        dated = _with_item(found.withColumns({LOG: log, AT: at}), clocks_of(self._segment.items, log))
        is_own = F.coalesce(F.col(ITEM)["seq"] == -step["negative_seq"], F.lit(True))
        given = self.rule.gives(step[GATHERED], F.col(ITEM)["clock"])
        values = {
            WATERMARK: F.when(is_own, step["w"]).otherwise(given),
            REACHED: F.when(~is_own, given).otherwise(F.when(in_silence, step[BY_CLOCK]).otherwise(step["w"])),
        }
        return dated.withColumns(values).drop(FIRST, LOG, AT, ITEM)


class _RiseByPeriods(Rise):
    """By periods of emission that publish what the clock gave; a timeline may have no event in them."""

    def __init__(self, segment: Adjusted, ended: DataFrame) -> None:
        super().__init__(segment)
        self._ended = ended
        self._every_us = segment.rules.time.emit_every_us or 1

    @property
    def steps(self) -> DataFrame:
        """The periods of timelines, see `periodic_emission.publications`, and the last one of the segment.

        With what `periodic_emission.with_proposed_before` adds. Each stands for the periods of the log from behind
        the row before up to its own: in these the timeline shows the higher of `__tm_proposed_before` and what the
        clock alone gave by the period. `__tm_published` of the last one is the watermark behind the segment.
        """
        clock = self._segment.clock
        end = self._segment.state.select(
            TIMELINE,
            F.lit(BEHIND_ALL).alias(SEQ),
            floor_to(clock.after, self._every_us).alias(PERIOD),
            F.col("watermark").alias(PUBLISHED),
            *[self.rule.of_state(clock.first).alias(name) for name in self.rule.gathered],
        )
        rows = with_proposed_before(self._segment.steps.unionByName(end, allowMissingColumns=True))
        # Where the timeline has events in the last period, their row says it all.
        return rows.where(F.col(PREVIOUS).isNull() | (F.col(PREVIOUS) < F.col(PERIOD)))

    def reaching(self, rows: DataFrame, find: Find) -> DataFrame:
        """In the first period that shows so much.

        That is the first one behind a clock: behind the period in which the timeline's events proposed so much, or
        behind the clock that gave it.
        """
        more = (PREVIOUS, PROPOSED_BEFORE, *self.rule.gathered)
        shown = self.steps.select(TIMELINE, SEQ, F.greatest(PROPOSED_BEFORE, PUBLISHED).alias(PROPOSED), *more)
        found, step = find(rows, shown, TIMELINE, more), F.col(FIRST)
        known = step[GATHERED] if self.rule.is_by_timeline else F.lit(None)
        by_events = F.coalesce(step[PROPOSED_BEFORE] >= F.col(CLOSES_AT), F.lit(False))
        by_clock = self.rule.first_clock(known, F.col(CLOSES_AT))
        at = F.when(step.isNotNull(), F.when(by_events, step[PREVIOUS]).otherwise(by_clock))
        no_item = F.lit(None).cast("bigint").alias(SEQ)  # the periods of several timelines begin behind such a clock
        clocks = self._ended.where(F.col(ENDED).isNotNull()).select(LOG, F.col(ENDED).alias(AT), no_item)
        dated = _with_item(found.withColumns({LOG: self._segment.clock.log, AT: at}), clocks)
        w = F.greatest(step[PROPOSED_BEFORE], self.rule.gives(known, F.col(ITEM)["clock"]))
        return dated.withColumns({WATERMARK: w, REACHED: w}).drop(FIRST, LOG, AT, ITEM)

    def with_given(self, rows: DataFrame, known: Column) -> DataFrame:
        """What the period of the place published of the silence in which it began."""
        period = floor_to(F.col(AT), self._every_us)
        dated = rows.withColumns({LOG: self._segment.clock.log, PERIOD: period})
        dated = dated.join(self._ended, [LOG, PERIOD], "left")
        given = self.rule.published(known, F.col(ENDED), F.col(PERIOD))
        return dated.withColumn(GIVEN, given).drop(LOG, PERIOD, ENDED)


def rise_of(segment: Adjusted) -> Rise:
    """How watermarks rise in a segment."""
    if segment.ended is not None:
        return _RiseByPeriods(segment, segment.ended)
    if segment.clock_steps is not None:
        return _RiseByClock(segment, segment.clock_steps)
    return _RiseInSilences(segment) if clock_rule(segment.rules).is_by_timeline else Rise(segment)


def clocks_of(items: DataFrame, log: Column) -> DataFrame:
    """`__tm_log`, `__tm_at`, `_arrival_seq`: for each clock of a segment the first item that has it.

    Args:
        items: Records with `_arrival_seq` and `_clock`.
        log: Which log a row is of.
    """
    timed = items.where(F.col(CLOCK).isNotNull()).select(log.alias(LOG), to_us(CLOCK).alias(AT), SEQ)
    return timed.groupBy(LOG, AT).agg(F.min(SEQ).alias(SEQ))


def first_item_at(wanted: DataFrame, clocks: DataFrame) -> DataFrame:
    """The first item of the log whose clock has come to an instant.

    Args:
        wanted: `__tm_log`, `__tm_at`; each pair once.
        clocks: Rows of `clocks_of`.

    Returns:
        `wanted` with `__tm_item`, null where no item of the segment comes so far.
    """
    marks = clocks.withColumn(
        ITEM, F.struct((-F.col(AT)).alias("negative_clock"), (-F.col(SEQ)).alias("negative_seq"))
    )
    found = with_largest_at_or_above(wanted, marks, ITEM, key=LOG, place=AT, width=CELL_US)
    item = F.struct((-F.col(ITEM)["negative_clock"]).alias("clock"), (-F.col(ITEM)["negative_seq"]).alias("seq"))
    return found.withColumn(ITEM, F.when(F.col(ITEM).isNotNull(), item))


def with_clock_before(wanted: DataFrame, clocks: DataFrame) -> DataFrame:
    """Adds `__tm_clock_before`: the latest clock of the segment before an instant, null for none.

    Args:
        wanted: Rows with `__tm_log`, `__tm_at`.
        clocks: Rows of `clocks_of`.
    """
    marks = clocks.select(LOG, F.col(AT).alias(_BEFORE), F.col(AT).alias(CLOCK_BEFORE))
    asked = wanted.withColumn(_BEFORE, F.col(AT) - F.lit(1))
    found = with_largest_at_or_below(asked, marks, CLOCK_BEFORE, key=LOG, place=_BEFORE, width=CELL_US)
    return found.drop(_BEFORE)


def _with_item(rows: DataFrame, clocks: DataFrame) -> DataFrame:
    """Adds `__tm_item` to rows with `__tm_log` and `__tm_at`, null where they ask for none."""
    wanted = rows.where(F.col(AT).isNotNull()).select(LOG, AT).distinct()
    return rows.join(first_item_at(wanted, clocks), [LOG, AT], "left")
