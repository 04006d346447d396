"""The exact watermark just before every event that it can matter for, without sorting the log.

Here: which scan finds it, and who set it. Not here: the scans (scans.py), the state that a segment of the log leaves
(timelines_after.py), what is done with an event behind its watermark (adjustment.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import ASKED, SETTER, TIMELINE, W_BEFORE, W_RANK, W_SET_BY
from tidemark.timeops.materialize import as_it_is
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.watermark.scans import by_blocks, by_periods, by_publications, in_order
from tidemark.timeops.watermark.timelines import event_of, known_setters


@dataclass(frozen=True)
class Scanned:
    """Events with their watermarks, and who set these.

    Attributes:
        events: The events with `__asked_w` and `__w_before`: the watermark just before the event where the event
            may be behind it, null where it is on time whatever the order was; and what `timelines.asking` adds.
        setters: `_timeline`, `__asked_w`, `__setter`: who first asked for a watermark that a later event may find
            standing; several rows may name the same one. None where the events have `__w_rank`.
        moves: As of `scans.Found`.
    """

    events: DataFrame
    setters: DataFrame | None
    moves: DataFrame | None


Way = Literal["in_order", "by_blocks"]
"""How to find watermarks that are seen at once; the result is the same. In order serves few records, and many
timelines. By blocks there must be few, as the blocks' carries (one per timeline and 28 or 56 rows) are broadcast."""


def scan(
    asked: DataFrame,
    state: DataFrame,
    rules: TimeRules,
    way: Way,
    *,
    published: DataFrame | None = None,
    keep_few: Callable[[DataFrame], DataFrame] = as_it_is,
) -> Scanned:
    """Finds the watermark just before each event that may be behind it.

    Args:
        asked: Events with what `timelines.asking` or `activity.asking_by_activity` adds. One without `__t` is not
            judged, it only asks.
        state: timelines.STATE_SCHEMA before the first of them.
        rules: The rules of time.
        way: How to find watermarks that are seen at once.
        published: What `publications.publications` gives; None where periods publish nothing of silences.
        keep_few: As for `scans.by_blocks`.
    """
    every_us = rules.time.emit_every_us
    if published is not None:
        found = by_publications(asked, published, state)
    elif every_us is not None:
        found = by_periods(asked, state, every_us)
    elif way == "by_blocks":
        found = by_blocks(asked, state, clock_moves=rules.clock_moves, keep_few=keep_few)
    else:
        found = in_order(asked, state)
    setters = None if found.setters is None else found.setters.unionByName(known_setters(state))
    return Scanned(events=found.events, setters=setters, moves=found.moves)


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
