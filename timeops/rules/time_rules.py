"""The rules of time that a log is judged by: the spec's `time`, what sources say instead, and the windows.

Here: what the parts of a spec mean for each other, adding up the waits of sources for others (F, alignment). Not
here: reading a spec (timeops/spec/), what the rules do, which sources wait (timeops/watermark/alignment.py), what a
silence is without them (timeops/watermark/clock.py).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from tidemark.timeops.spec import JoinSpec, Source, Spec, TimeSpec, WindowSpec
from tidemark.timeops.spec.join import JoinColumns

Waiter = str | tuple[str, str]
"""A waiter for others: a source as a whole, by its name, or one split of it, as (source, split)."""


def waiters_to_json(waiters: Iterable[Waiter]) -> list[Waiter]:
    """Return the waiters in an order, for a plan or a control item; a split is a list of two there."""
    return sorted(waiters, key=lambda waiter: (waiter,) if isinstance(waiter, str) else waiter)


def waiters_from_json(values: Iterable[Any]) -> frozenset[Waiter]:
    """Return the waiters that `waiters_to_json` wrote."""
    return frozenset(waiter if isinstance(waiter, str) else (waiter[0], waiter[1]) for waiter in values)


@dataclass(frozen=True)
class Waits:
    """The waits of sources in a segment of the log, which has no record of the sources that wait.

    Attributes:
        sources: The waiters throughout the segment. A split does not wait by itself while its source does.
        since_us: The clock of the log at which this began, microseconds; None where none waits.
        waited_us: By source or split how long it had waited before that; a split's wait with its source is not in
            its own.
        any_since_us: The clock from which on some source, whichever, has waited; None where none waits.
        any_waited_us: For how long before that some source waited.
    """

    sources: frozenset[Waiter] = frozenset()
    since_us: int | None = None
    waited_us: Mapping[Waiter, int] = field(default_factory=dict)
    any_since_us: int | None = None
    any_waited_us: int = 0

    def from_here(self, clock_us: int | None, sources: Iterable[Waiter]) -> "Waits":
        """Return the waits from a place of the log on.

        Args:
            clock_us: The clock of the log there, microseconds. Before the first timed record no source has a
                watermark, so none can be ahead of another.
            sources: The waiters from there on.
        """
        waiting = frozenset(sources)
        if clock_us is None or waiting == self.sources:
            return self
        gone_us = 0 if self.since_us is None else clock_us - self.since_us
        waited = dict(self.waited_us) | {name: self.waited_us.get(name, 0) + gone_us for name in self.sources}
        if not waiting:
            any_gone_us = 0 if self.any_since_us is None else clock_us - self.any_since_us
            return Waits(waited_us=waited, any_waited_us=self.any_waited_us + any_gone_us)
        any_since_us = clock_us if self.any_since_us is None else self.any_since_us
        return Waits(waiting, clock_us, waited, any_since_us, self.any_waited_us)


@dataclass(frozen=True)
class SourceTime:
    """The time of one source.

    Attributes:
        name: Its name, as in `_source`.
        timestamp_by: Event time as Spark SQL; None is arrival time.
        time_zone: IANA name of the zone of times written without one.
        out_of_orderness_us: How far its splits hold the watermark below their largest t, microseconds.
        idle_timeout_us: After how long without an event its splits are idle, microseconds; None for never.
        splits: The splits that count before they have an event.
    """

    name: str
    timestamp_by: str | None
    time_zone: str
    out_of_orderness_us: int
    idle_timeout_us: int | None = None
    splits: tuple[str, ...] = ()


@dataclass(frozen=True)
class EventTime:
    """An event time that some sources have in common; without names it is that of all."""

    timestamp_by: str | None
    time_zone: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimeRules:
    """The rules that decide over the time of events, and what is made of accepted ones.

    Attributes:
        time: The spec's `time` section.
        sources: The sources, at least where they have splits or a time of their own; without them `time` holds.
        uses_splits: The watermark of a timeline is the lowest of its splits (F).
        windows: The windows, for whose ends the idle rule `window_close` asks.
        joins: The joins.
        join_columns: The payload columns of each join, by its name.
        waits: Which sources wait in the segment of the log at hand; no silence is counted of them.
        headers: By source what the headers of its csv files may call each column, for the sentences of dead letters.
        apart: The expressions of `time.over` that distinguish several logs, where these are judged at once; windows
            across timelines go across the ones of one log.
    """

    time: TimeSpec
    sources: tuple[SourceTime, ...] = ()
    uses_splits: bool = False
    windows: tuple[WindowSpec, ...] = ()
    joins: tuple[JoinSpec, ...] = ()
    join_columns: Mapping[str, JoinColumns] = field(default_factory=dict)
    waits: Waits = field(default_factory=Waits)
    headers: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    apart: tuple[str, ...] = ()

    @staticmethod
    def of(spec: Spec, splits: Mapping[str, tuple[str, ...]] = MappingProxyType({})) -> "TimeRules":
        """Return the rules of a spec; `splits` has, by source, known ones in addition to the ones that it lists."""
        sources = tuple(_source_time(source, spec.time, splits.get(source.name, ())) for source in spec.sources)
        headers = {source.name: source.header for source in spec.sources if source.header}
        made = (spec.windows, spec.joins, spec.join_columns)
        return TimeRules(spec.time, sources, spec.uses_splits, *made, headers=headers)

    @property
    def event_times(self) -> tuple[EventTime, ...]:
        """The event times that sources have, each once."""
        if not self.sources:
            return (EventTime(self.time.timestamp_by, self.time.time_zone),)
        by_time: dict[tuple[str | None, str], tuple[str, ...]] = {}
        for source in self.sources:
            key = (source.timestamp_by, source.time_zone)
            by_time[key] = (*by_time.get(key, ()), source.name)
        return tuple(EventTime(*key, names) for key, names in by_time.items())

    @property
    def clock_moves(self) -> bool:
        """True if the clock raises watermarks."""
        return self.time.idle is not None

    def of_timelines(self) -> "TimeRules":
        """Return the rules that decide over each timeline alone: no window goes across them."""
        windows = tuple(window.model_copy(update={"across": False}) for window in self.windows)
        return replace(self, windows=windows)

    @property
    def excludes_idle_splits(self) -> bool:
        """True if a split, or across timelines a timeline, that is long without an event leaves the minimum (F)."""
        return self.time.idle_advance == "exclude_split"

    @property
    def closes_windows(self) -> bool:
        """True if the clock closes the windows of a timeline that is long without an event (M)."""
        return self.time.idle_advance == "window_close"

    @property
    def follows_activity(self) -> bool:
        """True if the watermark depends on more of a timeline's events than the largest t."""
        return self.uses_splits or self.closes_windows or (self.has_across and self.excludes_idle_splits)

    @property
    def has_across(self) -> bool:
        """True if some window goes by the lowest watermark of all timelines."""
        return bool(self.time.over) and any(window.across for window in self.windows)

    @property
    def publishes_silences(self) -> bool:
        """True if periods of emission publish how far the clock raised watermarks."""
        return self.clock_moves and self.time.emit_every_us is not None

    @property
    def windows_to_close(self) -> tuple[WindowSpec, ...]:
        """The windows that the clock may close by themselves."""
        return self.windows if self.closes_windows else ()

    @property
    def listed_splits(self) -> tuple[tuple[str, str], ...]:
        """Source and value of the splits that count before they have an event."""
        return tuple((source.name, value) for source in self.sources for value in source.splits)


def _source_time(source: Source, time: TimeSpec, splits: tuple[str, ...]) -> SourceTime:
    return SourceTime(
        name=source.name,
        timestamp_by=source.timestamp_by or time.timestamp_by,
        time_zone=source.time_zone or time.time_zone,
        out_of_orderness_us=(
            time.out_of_orderness_us if source.out_of_orderness_us is None else source.out_of_orderness_us
        ),
        idle_timeout_us=source.idle.timeout_us if source.idle else time.idle_timeout_us,
        splits=(*source.splits, *splits),
    )
