"""The clock of the log: around a segment, at its items, and at ticks.

Here: ticks, items of the log that say «every split has been read to its end, and the clock has come so far» (A2), as
items beside the records of a segment; the estimate that is their clock. Not here: what the clock does at an item
(clock_rules.py, windows/revisions.py), when a live run writes a tick, reading the wall clock.

Whatever is judged is cut at ticks: a segment of a log has at most one, behind its last record.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import CLOCK, SEQ, TIMELINE

BEHIND_ALL = 2**62  # stands behind every _arrival_seq


@dataclass(frozen=True)
class Ticks:
    """The ticks with which a segment ends, at most one of each log.

    Attributes:
        items: `_timeline` (any of the log that has the tick) and `_clock` (the clock of the log at the tick).
        stand: BOOLEAN of a row with `_timeline`: its log has one.
    """

    items: DataFrame
    stand: Column


def _unknown() -> Column:
    return F.lit(None).cast("bigint")


@dataclass(frozen=True)
class LogClock:
    """The clock of the log around a segment.

    Attributes:
        after: The clock behind the segment and its tick, microseconds: a literal, or an expression over `_timeline`
            where a frame holds several logs, each with timelines of its own.
        first: The first clock of the log, of the same kind; null before the first timed record. Only listed splits
            ask for it.
        log: Which log a timeline is of, an expression over `_timeline`; there is one in a pipeline.
        ended: The clock of the last record before the period of emission in which `after` lies; null for none. This
            and the next two are of the same kind, and only asked for where periods publish what the clock gave.
        start: The clock before the segment.
        start_ended: To it what `ended` is to `after`.
        ticks: The ticks with which the segment ends; None for none.
    """

    after: Column
    first: Column = field(default_factory=_unknown)
    log: Column = field(default_factory=lambda: F.lit(0))
    ended: Column = field(default_factory=_unknown)
    start: Column = field(default_factory=_unknown)
    start_ended: Column = field(default_factory=_unknown)
    ticks: Ticks | None = None


def with_ticks(items: DataFrame, ticks: Ticks | None) -> DataFrame:
    """The items of a segment by their clocks: its records and the ticks behind them.

    Args:
        items: The records; with `_timeline` where that says which log a row is of.
        ticks: The ticks; None for none.

    Returns:
        `_arrival_seq`, BEHIND_ALL of a tick, `_clock`, and `_timeline` where records have it.
    """
    if ticks is None:
        return items
    names = [TIMELINE] if TIMELINE in items.columns else []
    behind = ticks.items.select(*names, CLOCK, F.lit(BEHIND_ALL).alias(SEQ))
    return items.select(*names, CLOCK, SEQ).unionByName(behind)


@dataclass(frozen=True)
class LastArrival:
    """When the last record of a source arrived, and when it was seen by the wall clock; microseconds."""

    arrival_us: int
    seen_us: int


def estimated_clock(sources: Iterable[LastArrival | None], now_us: int) -> int | None:
    """The clock of a tick: the estimated arrival time of what comes next (A2), microseconds.

    Of each source it is the last arrival and the wall time since that record was seen; of several sources the
    earliest counts.

    Args:
        sources: Of each source its last arrival; None before its first record that has one.
        now_us: The wall clock.

    Returns:
        None where a source has had no record: it holds the clock.
    """
    estimates = []
    for last in sources:
        if last is None:
            return None
        estimates.append(last.arrival_us + max(now_us - last.seen_us, 0))
    return min(estimates, default=None)
