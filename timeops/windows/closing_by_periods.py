"""The exact watermark at which windows closed where periods of emission publish what the clock gave.

Here: the steps in which a timeline's published watermark rises, and the period of the log in which it reached a close
time, be it one in which the timeline had no event. Not here: the first step that reaches it (closing.py,
closing_any_time.py), what events find published (periodic_emission.py).
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import ASKED, LOG, PERIOD, PUBLISHED, SEQ, TIMELINE, WATERMARK, floor_to
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.watermark.idleness import GATHERED, clock_that_gives, gathered_in_state
from tidemark.timeops.watermark.periodic_emission import ASKED_BEFORE, ENDED, PREVIOUS, with_asked_before
from tidemark.timeops.watermark.ticks import BEHIND_ALL
from tidemark.timeops.watermark.timelines import clock_alone_gives
from tidemark.timeops.windows.log_items import AT, ITEM, first_item_at


def periods_to_the_end(adjusted: Adjusted) -> DataFrame:
    """The periods of timelines as `publications.publications` gives them, and the last one of the segment.

    Returns:
        The rows with what `publications.with_asked_before` adds. Each stands for the periods of the log from behind
        the row before up to its own: in these the timeline shows the higher of `__asked_before` and what the clock
        alone gave by the period. `__published` of the last one is the watermark behind the segment.
    """
    rules, clock = adjusted.rules, adjusted.clock
    end = adjusted.state.withColumns(
        {
            SEQ: F.lit(BEHIND_ALL),
            PERIOD: floor_to(clock.after, rules.time.emit_every_us or 1),
            PUBLISHED: F.col("watermark"),
        }
    )
    columns = [TIMELINE, SEQ, PERIOD, PUBLISHED]
    if rules.clock_raises_single_timelines:
        end, columns = end.withColumn(GATHERED, gathered_in_state(rules, clock.first)), [*columns, GATHERED]
    rows = with_asked_before(adjusted.steps.unionByName(end.select(*columns), allowMissingColumns=True))
    # Where the timeline has events in the last period, their row says it all.
    return rows.where(F.col(PREVIOUS).isNull() | (F.col(PREVIOUS) < F.col(PERIOD)))


def published_steps(adjusted: Adjusted) -> DataFrame:
    """The same as steps: `__asked_w` is the watermark that is published with the period."""
    published = F.greatest(ASKED_BEFORE, PUBLISHED)
    return periods_to_the_end(adjusted).select(TIMELINE, SEQ, published.alias(ASKED), *of_periods(adjusted))


def of_periods(adjusted: Adjusted) -> tuple[str, ...]:
    """What such a step says more of the periods that it stands for."""
    gathered = (GATHERED,) if adjusted.rules.clock_raises_single_timelines else ()
    return (PREVIOUS, ASKED_BEFORE, *gathered)


def with_published_watermark(
    rows: DataFrame, step: Column, closes_at: Column, adjusted: Adjusted, ended: DataFrame
) -> DataFrame:
    """Adds `_watermark` BIGINT: as published in the first period in which it reaches a close time.

    That is the first period behind a clock: behind the period in which the timeline's events asked for so much, or
    behind the clock that gave it.

    Args:
        rows: Rows with `_timeline`.
        step: The first of `published_steps` that reaches it: a struct with `of_periods`; null for none.
        closes_at: The close time.
        adjusted: The segment.
        ended: Its `ended`.
    """
    rules, log = adjusted.rules, adjusted.clock.log
    known = step[GATHERED] if rules.clock_raises_single_timelines else F.lit(None)
    by_events = F.coalesce(step[ASKED_BEFORE] >= closes_at, F.lit(False))
    by_clock = clock_that_gives(known, closes_at, rules)
    at = F.when(step.isNotNull(), F.when(by_events, step[PREVIOUS]).otherwise(by_clock))
    asked = rows.withColumns({LOG: log, AT: at})
    no_item = F.lit(None).cast("bigint").alias(SEQ)  # the clock before a period is that of several
    clocks = ended.where(F.col(ENDED).isNotNull()).select(LOG, F.col(ENDED).alias(AT), no_item)
    found = first_item_at(asked.where(F.col(AT).isNotNull()).select(LOG, AT).distinct(), clocks)
    dated = asked.join(found, [LOG, AT], "left").withColumn(ENDED, F.col(ITEM)["clock"])
    given = clock_alone_gives(known, F.col(ENDED), rules)
    return dated.withColumn(WATERMARK, F.greatest(step[ASKED_BEFORE], given)).drop(LOG, AT, ITEM, ENDED)
