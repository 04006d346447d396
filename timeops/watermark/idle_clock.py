"""Silences without the time in which alignment kept a source from being read: waiting is not idleness (F).

Here: between the clock of the log and the *reading clock*, which is less by the time that a source has waited and
stands still while it does. What a segment leaves to the next are reading clocks, so a wait changes no stored row. Not
here: what a silence gives (splits.py, idleness.py), adding up waits (../rules.py).

A timeline may have events of any source, so its reading clock stands still while any source waits.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.timeops.columns import MAX_US
from tidemark.timeops.rules import TimeRules


def split_read_at(clock_us: Column, rules: TimeRules) -> Column:
    """The reading clock of the row's source, which has a record at this clock and so does not wait."""
    return clock_us if _never_waited(rules) else clock_us - rules.waited_us()


def idle_at(read_us: Column, rules: TimeRules, source: Column | None = None) -> Column:
    """The clock of the log from which on a split is idle (F), microseconds.

    Args:
        read_us: The reading clock at its last event.
        rules: The rules.
        source: Its source; by default the row's.
    """
    left = read_us + rules.timeout_us(source)
    if _never_waited(rules):
        return left
    at = left + rules.waited_us(source)
    if not rules.waits.sources:
        return at
    # A split that was idle before its source had to wait stays so.
    never = rules.waits_now(source) & (at > F.lit(rules.waits.since_us))
    return F.when(never, F.lit(MAX_US)).otherwise(at)


def silence_clock(clock_us: Column, rules: TimeRules) -> Column:
    """The clock of the log as silences of timelines are measured by it: it stands still while some source waits."""
    return F.lit(rules.waits.any_since_us).cast("bigint") if rules.waits.sources else clock_us


def timeline_read_at(clock_us: Column, rules: TimeRules) -> Column:
    """The reading clock of timelines at an event; the clock itself where no rule asks for their silences."""
    if not rules.closes_windows or _never_waited(rules):
        return clock_us
    return silence_clock(clock_us, rules) - F.lit(rules.waits.any_waited_us)


def last_event_at(read_us: Column, rules: TimeRules) -> Column:
    """The clock of the log at a timeline's last event, moved on by the waits since; inverse of `timeline_read_at`."""
    if not rules.closes_windows or _never_waited(rules):
        return read_us
    return read_us + F.lit(rules.waits.any_waited_us)


def _never_waited(rules: TimeRules) -> bool:
    return not rules.waits.sources and not rules.waits.any_waited_us
