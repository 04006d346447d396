"""Clock rules: what the clock alone gives a timeline that is without events.

Here: one object a rule, chosen once by `clock_rule`: the arrival clock (A2), idle splits leave the minimum (F),
windows close (M), or none. Each says the watermark as a function of the clock in such a silence, and the clock at
which it reaches a wanted one. Not here: when a split is idle (splits.py), the watermark of each event (scans.py), the
items of the log (windows/rises.py).

A timeline may have events of any source, so its *idle clock* stands still while any source waits for others: waiting
is not idleness (F). What a segment leaves to the next are idle clocks, so a wait changes no stored row.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import BY_CLOCK, CLOCK, LOG, MIN_US, PROPOSED, SEQ, floor_to, to_us
from tidemark.timeops.grid import end_after, last_end, last_end_of
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.watermark.log_clock import LogClock
from tidemark.timeops.watermark.splits import of_state, splits_watermark

GATHERED = "__tm_gathered"
"""STRUCT<splits, last, closes>: what a timeline's events have left. `splits` as `splits.splits_watermark` takes them,
`last` the clock at the last event, `closes` per window of the spec the latest close time that its events ask for."""


def gathered(splits: Column, last_us: Column, closes: Column) -> Column:
    """A GATHERED of its parts."""
    return F.struct(splits.alias("splits"), last_us.alias("last"), closes.alias("closes"))


def clock_watermark(clock_us: Column, time: TimeSpec) -> Column:
    """The watermark that the arrival clock gives (A2: at most the late tolerance behind it), cut to the unit.

    Null where there is no clock yet, or the clock does not move all watermarks alike.
    """
    if time.clock_tolerance_us is None:
        return F.lit(None).cast("bigint")
    behind = clock_us - F.lit(time.clock_tolerance_us)
    return F.when(clock_us.isNotNull(), floor_to(F.greatest(behind, F.lit(MIN_US)), time.unit_us))


class ClockRule:
    """The clock moves no watermark; the rules by which it does are below.

    Attributes:
        gathered: The column in which a step says what its timeline had gathered: GATHERED where the clock raises
            timelines one by one, none where it raises all of a log alike.
        windows: The windows that the clock closes by themselves.
    """

    gathered: tuple[str, ...] = ()
    windows: tuple[WindowSpec, ...] = ()

    def __init__(self, rules: TimeRules) -> None:
        self._rules = rules

    @property
    def is_by_timeline(self) -> bool:
        """Whether the clock raises timelines one by one, by what each has gathered."""
        return bool(self.gathered)

    @property
    def of_steps(self) -> tuple[str, ...]:
        """What a step of a timeline says more, of the silence before it."""
        return (BY_CLOCK, *self.gathered) if self.gathered else ()

    def gives(self, _known: Column, _clock_us: Column, /) -> Column:
        """The watermark that a silent timeline has at a clock, cut to the unit; null where the clock gives none.

        Args:
            _known: GATHERED of the timeline; the arrival clock does not ask for it.
            _clock_us: The clock, microseconds; before the first it is null and gives nothing.
        """
        return F.lit(None).cast("bigint")

    def first_clock(self, _known: Column, _wanted_us: Column, /) -> Column:
        """The first clock at which a silence raises the watermark to a wanted one; null where it never does."""
        return F.lit(None).cast("bigint")

    def may_have_raised(self, _known: Column, _clock_us: Column, /) -> Column:
        """BOOLEAN: the silence before a record, whose clock this is, may have raised the watermark."""
        return F.lit(False)

    def published(self, known: Column, ended_us: Column, period_us: Column) -> Column:
        """What a period of emission shows of the silence in which it began, microseconds.

        Args:
            known: As for `gives`.
            ended_us: The clock of the last item of the log before the period.
            period_us: The start of the period. What a timeline gathers in it is shown behind it.
        """
        given = self.gives(known, ended_us)
        return F.when(known["last"] < period_us, given) if self.is_by_timeline else given

    def steps(self, _items: DataFrame, _log: Column, /) -> DataFrame | None:
        """What the clock gives all timelines of a log alike at every item of a segment.

        Args:
            _items: Records of the segment, and its tick.
            _log: Which log a row is of.

        Returns:
            `__tm_log`, `_arrival_seq`, `__tm_proposed_w`; None where the clock gives timelines nothing alike, or
            periods publish it.
        """
        return None

    def of_state(self, first_clock_us: Column) -> Column:
        """The GATHERED of a row of timelines.STATE_SCHEMA; the first clock is that of the log."""
        splits = of_state(F.col("splits"), self._rules, first_clock_us)
        return gathered(splits, self.last_event_at(F.col("last_clock")), F.col("max_close"))

    def behind(self, clock: LogClock) -> Column:
        """The clock behind a segment as silences go by it, microseconds."""
        return clock.after

    def silence_clock(self, clock_us: Column) -> Column:
        """The clock of the log as silences of timelines are measured by it."""
        return clock_us

    def read_at(self, clock_us: Column) -> Column:
        """The idle clock of a timeline at an event; the clock itself where no rule asks for silences of timelines."""
        return clock_us

    def last_event_at(self, read_us: Column) -> Column:
        """The clock of the log at a timeline's last event, moved on by the waits since; inverse of `read_at`."""
        return read_us


class ArrivalClock(ClockRule):
    """The watermark of every timeline is at most the late tolerance behind the clock (A2)."""

    def gives(self, _known: Column, clock_us: Column, /) -> Column:
        """As `clock_watermark`."""
        return clock_watermark(clock_us, self._rules.time)

    def first_clock(self, _known: Column, wanted_us: Column, /) -> Column:
        """The late tolerance later."""
        return _up_to_unit(wanted_us, self._rules) + F.lit(self._rules.time.clock_tolerance_us)

    def steps(self, items: DataFrame, log: Column, /) -> DataFrame | None:
        """One for each item that has a clock."""
        if self._rules.time.emit_every_us is not None:
            return None
        given = clock_watermark(to_us(CLOCK), self._rules.time)
        return items.select(log.alias(LOG), SEQ, given.alias(PROPOSED)).where(F.col(PROPOSED).isNotNull())


class IdleSplits(ClockRule):
    """A split that is long without an event leaves the minimum until its next one (F)."""

    gathered = (GATHERED,)

    def gives(self, known: Column, clock_us: Column, /) -> Column:
        """The lowest of the splits that are active at the clock."""
        return F.when(clock_us.isNotNull(), splits_watermark(known["splits"], clock_us, self._rules))

    def first_clock(self, known: Column, wanted_us: Column, /) -> Column:
        """When the last of those splits leaves that allow less."""
        wanted = _up_to_unit(wanted_us, self._rules)
        leaving = F.transform(known["splits"], lambda split: split["idle_at"])
        enough = F.filter(leaving, lambda at: splits_watermark(known["splits"], at, self._rules) >= wanted)
        return F.array_min(enough)

    def may_have_raised(self, known: Column, clock_us: Column, /) -> Column:
        """Some split has left since the timeline's last event."""
        return F.exists(
            known["splits"], lambda split: (split["idle_at"] > known["last"]) & (split["idle_at"] <= clock_us)
        )


class SilentWindows(ClockRule):
    """The clock closes the windows of a timeline that is long without an event (M)."""

    gathered = (GATHERED,)

    def __init__(self, rules: TimeRules) -> None:
        super().__init__(rules)
        self.windows = rules.windows

    def gives(self, known: Column, clock_us: Column, /) -> Column:
        """The latest close time that the clock has passed, of those that the timeline's events ask for."""
        # A record at the very instant of the timeout still beats it.
        reached = self.silence_clock(clock_us) - F.lit(1) - F.lit(self._rules.time.idle_timeout_us)
        found = F.lit(None).cast("bigint")
        for number, window in enumerate(self.windows):
            latest = F.get(known["closes"], F.lit(number))
            if not window.closes_on_grid:  # only the close time itself
                by_window = F.when(latest <= reached, latest)
            else:
                by_window = F.when(latest.isNotNull(), F.least(latest, self._last_close_at(reached, window)))
            found = F.greatest(found, by_window)
        is_silent = clock_us.isNotNull() & (known["last"] <= reached)
        return F.when(is_silent, floor_to(found, self._rules.time.unit_us))

    def first_clock(self, known: Column, wanted_us: Column, /) -> Column:
        """The timeout behind the close time, or behind the timeline's last event."""
        if self._rules.waits.sources:
            return F.lit(None).cast("bigint")
        wanted, found = _up_to_unit(wanted_us, self._rules), F.lit(None).cast("bigint")
        for number, window in enumerate(self.windows):
            latest = F.get(known["closes"], F.lit(number))
            closes_at = self._next_close(wanted, window) if window.closes_on_grid else latest
            found = F.least(found, F.when(latest >= wanted, closes_at))
        begins = F.when(found.isNotNull(), F.greatest(known["last"], found))
        return begins + F.lit(self._rules.time.idle_timeout_us) + F.lit(1)

    def may_have_raised(self, known: Column, clock_us: Column, /) -> Column:
        """The timeout has passed since the timeline's last event."""
        return known["last"] + F.lit(self._rules.time.idle_timeout_us) < self.silence_clock(clock_us)

    def behind(self, clock: LogClock) -> Column:
        """A tick is like an event one microsecond later: an event at the very instant of the timeout beats it."""
        if clock.ticks is None:
            return clock.after
        return clock.after + F.when(clock.ticks.stand, F.lit(1)).otherwise(F.lit(0))

    def silence_clock(self, clock_us: Column) -> Column:
        """It stands still while some source waits."""
        waits = self._rules.waits
        return F.lit(waits.any_since_us).cast("bigint") if waits.sources else clock_us

    def read_at(self, clock_us: Column) -> Column:
        """The clock less the time for which some source has waited."""
        waits = self._rules.waits
        return clock_us if waits.never else self.silence_clock(clock_us) - F.lit(waits.any_waited_us)

    def last_event_at(self, read_us: Column) -> Column:
        """The inverse."""
        waits = self._rules.waits
        return read_us if waits.never else read_us + F.lit(waits.any_waited_us)

    def _last_close_at(self, limit_us: Column, window: WindowSpec) -> Column:
        """The latest close time on the grid that is at most a limit."""
        after = _from_end_to_close(window, self._rules)
        return last_end(limit_us - after, window) + after

    def _next_close(self, limit_us: Column, window: WindowSpec) -> Column:
        """The first close time on the grid that is at least a limit."""
        after = _from_end_to_close(window, self._rules)
        return end_after(limit_us - after - F.lit(1), window) + after


def clock_rule(rules: TimeRules) -> ClockRule:
    """The clock rule of a pipeline."""
    if rules.excludes_idle_splits:
        return IdleSplits(rules)
    if rules.closes_windows:
        return SilentWindows(rules)
    return ArrivalClock(rules) if rules.clock_moves else ClockRule(rules)


def close_asked(t_us: Column, window: WindowSpec, rules: TimeRules) -> Column:
    """The close time that an event asks for: of the last window that holds its t (M); null in a gap of a grid."""
    return last_end_of(t_us, window) + _from_end_to_close(window, rules)


def _from_end_to_close(window: WindowSpec, rules: TimeRules) -> Column:
    """How far behind its end the clock closes a window, microseconds.

    A window whose end is inside closes only behind end and lateness: the next watermark of the clock, which is a
    whole number of units, is one unit later.
    """
    return F.lit(window.allowed_lateness_us + window.ends_inside_us * rules.time.unit_us)


def _up_to_unit(wanted_us: Column, rules: TimeRules) -> Column:
    return wanted_us + F.pmod(-wanted_us, F.lit(rules.time.unit_us))
