"""What the clock gives a timeline that is without events: idle splits leave the minimum (F), windows close (M).

Here: the watermark as a function of the clock in such a silence, and the clock at which it reaches a wanted one. Not
here: what moves watermarks of all timelines alike (timelines.py), the items of the log (log_items.py).
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.timeops.columns import floor_to
from tidemark.timeops.grid import end_after, last_end, last_end_of
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.watermark.idle_clock import last_event_at, silence_clock
from tidemark.timeops.watermark.splits import of_state, splits_watermark

GATHERED = "__gathered"
"""STRUCT<splits, last, closes>: what a timeline's events have left. `splits` as `splits.splits_watermark` takes them,
`last` the clock at the last event, `closes` per window of the spec the latest close time that its events ask for."""


def gathered(splits: Column, last_us: Column, closes: Column) -> Column:
    """A GATHERED of its parts."""
    return F.struct(splits.alias("splits"), last_us.alias("last"), closes.alias("closes"))


def gathered_in_state(rules: TimeRules, first_clock_us: Column) -> Column:
    """The GATHERED of a row of timelines.STATE_SCHEMA."""
    splits = of_state(F.col("splits"), rules, first_clock_us)
    return gathered(splits, last_event_at(F.col("last_clock"), rules), F.col("max_close"))


def clock_gives(known: Column, clock_us: Column, rules: TimeRules) -> Column:
    """The watermark of a silent timeline at a clock, cut to the unit; null where the clock gives none.

    Args:
        known: GATHERED.
        clock_us: The clock of a record, microseconds.
        rules: The rules.
    """
    if rules.excludes_idle_splits:
        return splits_watermark(known["splits"], clock_us, rules)
    # A record at the very instant of the timeout still beats it.
    reached = silence_clock(clock_us, rules) - F.lit(1) - F.lit(rules.time.idle_timeout_us)
    found = F.lit(None).cast("bigint")
    for number, window in enumerate(rules.windows):
        latest = F.get(known["closes"], F.lit(number))
        if not window.closes_on_grid:  # only the close time itself
            by_window = F.when(latest <= reached, latest)
        else:
            by_window = F.when(latest.isNotNull(), F.least(latest, _last_close_at(reached, window, rules)))
        found = F.greatest(found, by_window)
    return F.when(known["last"] <= reached, floor_to(found, rules.time.unit_us))


def close_asked(t_us: Column, window: WindowSpec, rules: TimeRules) -> Column:
    """The close time that an event asks for: of the last window that holds its t (M); null in a gap of a grid."""
    return last_end_of(t_us, window) + _from_end_to_close(window, rules)


def _from_end_to_close(window: WindowSpec, rules: TimeRules) -> Column:
    """How far behind its end the clock closes a window, microseconds.

    A window whose end is inside closes only behind end and lateness: the next watermark of the clock, which is a
    whole number of units, is one unit later.
    """
    return F.lit(window.allowed_lateness_us + window.ends_inside_us * rules.time.unit_us)


def _last_close_at(limit_us: Column, window: WindowSpec, rules: TimeRules) -> Column:
    """The latest close time on the grid that is at most a limit."""
    after = _from_end_to_close(window, rules)
    return last_end(limit_us - after, window) + after


def _next_close(limit_us: Column, window: WindowSpec, rules: TimeRules) -> Column:
    """The first close time on the grid that is at least a limit."""
    after = _from_end_to_close(window, rules)
    return end_after(limit_us - after - F.lit(1), window) + after


def clock_that_gives(known: Column, wanted_us: Column, rules: TimeRules) -> Column:
    """The first clock at which a silence raises the watermark to a wanted one; null where it never does."""
    if not rules.clock_raises_single_timelines:  # the arrival clock, at most the late tolerance behind (A2)
        return _up_to_unit(wanted_us, rules) + F.lit(rules.time.clock_tolerance_us)
    wanted = _up_to_unit(wanted_us, rules)
    if rules.excludes_idle_splits:
        leaving = F.transform(known["splits"], lambda split: split["idle_at"])
        enough = F.filter(leaving, lambda at: splits_watermark(known["splits"], at, rules) >= wanted)
        return F.array_min(enough)
    if rules.waits.sources:
        return F.lit(None).cast("bigint")
    timeout = F.lit(rules.time.idle_timeout_us)
    found = F.lit(None).cast("bigint")
    for number, window in enumerate(rules.windows):
        latest = F.get(known["closes"], F.lit(number))
        closes_at = _next_close(wanted, window, rules) if window.closes_on_grid else latest
        found = F.least(found, F.when(latest >= wanted, closes_at))
    return F.greatest(known["last"], found) + timeout + F.lit(1)


def _up_to_unit(wanted_us: Column, rules: TimeRules) -> Column:
    return wanted_us + F.pmod(-wanted_us, F.lit(rules.time.unit_us))


def may_have_raised(known: Column, clock_us: Column, rules: TimeRules) -> Column:
    """BOOLEAN: the silence before a record, whose clock this is, may have raised the watermark."""
    if rules.excludes_idle_splits:
        return F.exists(
            known["splits"], lambda split: (split["idle_at"] > known["last"]) & (split["idle_at"] <= clock_us)
        )
    return known["last"] + F.lit(rules.time.idle_timeout_us) < silence_clock(clock_us, rules)
