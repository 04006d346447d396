"""Ticks: items of the log that say «every split has been read to its end, and the clock has come so far» (A2).

Here: ticks as items beside the records of a segment. Not here: their clock (tick_clock.py), what the clock does at an
item (idleness.py, timelines.py, revisions.py), when a live run writes one.

Whatever is judged is cut at ticks: a segment of a log has at most one, behind its last record.
"""

from dataclasses import dataclass

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
