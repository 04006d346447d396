"""A pipeline in memory: segments of logs judged one after the other, each from the state that the last one left.

Here: what one segment writes and hands to the next. Not here: the rules (timeops/), the tables of a warehouse
(assets/). No lake, no checks, no numbering of releases over segments.

A frame may hold many logs, each with timelines of its own: `log` names the one that a row is of, and is the first of
the columns that timelines go over and that windows group by.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.resources.spark.frames import count_splits, empty_frame
from tidemark.timeops import columns as c
from tidemark.timeops.dead_letters import time_letters, unfit_letters, window_letters
from tidemark.timeops.events.adjustment import Adjusted, kept_together, time_adjustment
from tidemark.timeops.events.duplicates import FIRST_TIMES_SCHEMA, first_times
from tidemark.timeops.events.extraction import timeline
from tidemark.timeops.events.release import release
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec, TimeSpec, WindowSpec
from tidemark.timeops.spec.window import input_of, inputs_first
from tidemark.timeops.watermark.ticks import Ticks
from tidemark.timeops.watermark.timelines import LogClock, clock_watermark
from tidemark.timeops.windows.over_results import as_events, results_still_needed, with_results
from tidemark.timeops.windows.results import (
    all_events,
    events_as_they_came,
    in_open_windows,
    late_for_windows,
    passing,
    still_needed,
    window_results,
)
from tidemark.timeops.windows.seen_groups import once, seen_groups

LOG = "__of_log"
IN_SEQUENCE = "__in_sequence"

_LOG_IN_PAYLOAD = rf'^\{{"{LOG}":"[^"]*",?'


@dataclass(frozen=True)
class Rules:
    """What is judged by, for frames of many logs.

    Attributes:
        time: The rules of time: timelines over `log` first, windows grouped by `log` first.
        payload: Names of the payload columns, without `log`.
    """

    time: TimeRules
    payload: tuple[str, ...]


def rules_for_many_logs(spec: Spec, payload: Sequence[str]) -> Rules:
    """The rules of a spec, for frames in which the column `log` tells the logs apart."""
    key = (LOG, *spec.time.deduplicate_by) if spec.time.deduplicate_by else ()
    time = spec.time.model_copy(update={"over": (LOG, *spec.time.over), "deduplicate_by": key})
    windows = tuple(window.model_copy(update={"group_by": (LOG, *window.group_by)}) for window in spec.windows)
    return Rules(replace(TimeRules.of(spec), time=time, windows=windows), tuple(payload))


@dataclass(frozen=True)
class Clocks:
    """The clocks of many logs around a segment: MAP<STRING, BIGINT> by log, microseconds.

    Attributes:
        after: Behind the segment.
        first: At the first timed record of each log.
        ended: Of the last record before the period of emission in which `after` lies; only asked for where periods
            publish what the clock gave.
        before: The same three before the segment; None at the beginning of the logs.
        ticks: The ticks with which the segment ends, `_timeline` one that `log_of_timeline` knows; None for none.
    """

    after: Column
    first: Column
    ended: Column
    before: "Clocks | None" = None
    ticks: Ticks | None = None

    def of(self, log: Column) -> LogClock:
        """The clock of the log that `log` names."""
        clock = LogClock(self.after[log], self.first[log], log, self.ended[log], ticks=self.ticks)
        if self.before is None:
            return clock
        return replace(clock, start=self.before.after[log], start_ended=self.before.ended[log])


@dataclass(frozen=True)
class Carried:
    """What a segment hands to the next one.

    Attributes:
        state: The timelines, timelines.STATE_SCHEMA.
        held: Accepted events that are not released yet.
        open_events: Events that some window on a grid still needs, with the watermark that each met.
        session_events: Events of sessions that are open.
        first_times: Records that are no duplicates, duplicates.FIRST_TIMES_SCHEMA.
        seen: Of each window with `empty` the groups that it has seen.
        open_results: By window over another one the results that it still needs.
        revised_sessions: By session window that revises its results the events of those that are open, with the
            watermark that each met.
    """

    state: DataFrame
    held: DataFrame
    open_events: DataFrame
    session_events: DataFrame
    first_times: DataFrame
    seen: Mapping[str, DataFrame]
    open_results: Mapping[str, DataFrame] = field(default_factory=dict)
    revised_sessions: Mapping[str, DataFrame] = field(default_factory=dict)

    def of(self, logs: Sequence[str]) -> "Carried":
        """The same of some of the logs."""
        return Carried(
            self.state.where(log_of_timeline().isin(*logs)),
            self.held.where(F.col(LOG).isin(*logs)),
            self.open_events.where(F.col(LOG).isin(*logs)),
            self.session_events.where(F.col(LOG).isin(*logs)),
            self.first_times.where(F.get_json_object("key", "$[0]").isin(*logs)),
            {name: frame.where(log_of_timeline().isin(*logs)) for name, frame in self.seen.items()},
            {name: frame.where(log_of_timeline().isin(*logs)) for name, frame in self.open_results.items()},
            {name: frame.where(F.col(LOG).isin(*logs)) for name, frame in self.revised_sessions.items()},
        )

    def of_window(self, window: WindowSpec) -> DataFrame:
        """The events that a window goes on from."""
        if window.may_take_back:
            return self.revised_sessions[window.name]
        return self.session_events if window.is_linked and not window.revises else self.open_events

    def kept(self) -> "Carried":
        """The same, computed now: another segment follows."""
        return Carried(
            self.state,
            _kept(self.held),
            _kept(self.open_events),
            _kept(self.session_events),
            _kept(self.first_times),
            {name: _kept(frame) for name, frame in self.seen.items()},
            {name: _kept(frame) for name, frame in self.open_results.items()},
            {name: _kept(frame) for name, frame in self.revised_sessions.items()},
        )


@dataclass(frozen=True)
class LogSegment:
    """What a segment of the logs becomes.

    Attributes:
        ordered: Released events; `__in_sequence` is false for those that pass outside the sequence.
        letters: Dead letters.
        results: Results by window, also those that are not shown, see `windows.passing`.
        carried: What the next segment starts from.
    """

    ordered: DataFrame
    letters: DataFrame
    results: Mapping[str, DataFrame]
    carried: Carried


def fold_segment(
    items: DataFrame, rules: Rules, clocks: Clocks, before: Carried | DataFrame, *, flushed: bool = False
) -> LogSegment:
    """Judges the next segment of each log.

    Args:
        items: Records of the arrival log, with `log`; of a log there may be none.
        rules: What they are judged by.
        clocks: The logs' clocks.
        before: What the segment before handed on; before the first an empty state, timelines.STATE_SCHEMA.
        flushed: The segment ends with a flushing end of input.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
    """
    clock = clocks.of(log_of_timeline())
    known = before.first_times if isinstance(before, Carried) else None
    adjusted = _judged(items, rules.time, clock, before.state if isinstance(before, Carried) else before, known)
    if not isinstance(before, Carried):
        nothing = adjusted.accepted.limit(0)
        no_times = empty_frame(items.sparkSession, FIRST_TIMES_SCHEMA)
        seen = {w.name: seen_groups(nothing, w) for w in rules.time.windows if w.empty}
        revised = {w.name: nothing for w in rules.time.windows if w.may_take_back}
        before = Carried(adjusted.before, nothing, nothing, nothing, no_times, seen, revised_sessions=revised)
    released = release(before.held.unionByName(adjusted.accepted), adjusted.state, flushed=flushed)
    in_sequence = released.sequence.withColumn(IN_SEQUENCE, F.lit(True))
    results, open_results = _results(adjusted, before, flushed=flushed)
    return LogSegment(
        ordered=in_sequence.unionByName(released.passed.withColumn(IN_SEQUENCE, F.lit(False))),
        letters=_letters(adjusted, rules, before),
        results=results,
        carried=replace(_carried(adjusted, before, released.held, flushed=flushed), open_results=open_results),
    )


def _results(
    adjusted: Adjusted, before: Carried, *, flushed: bool
) -> tuple[dict[str, DataFrame], dict[str, DataFrame]]:
    """Results by window, and by window over another one the results that it still needs."""
    windows, over = adjusted.rules.windows, adjusted.rules.time.over
    results: dict[str, DataFrame] = {}
    needed: dict[str, DataFrame] = {}
    for window in inputs_first(windows):
        segment, known = adjusted, before.of_window(window)
        if window.input is not None:
            source = input_of(window, windows)
            segment = with_results(adjusted, as_events(passing(results[source.name]), source, windows, over))
            known = before.open_results.get(window.name, segment.accepted.limit(0))
            both = known.unionByName(segment.accepted)
            both = both.limit(0) if flushed else both
            needed[window.name] = results_still_needed(both, adjusted.state, window, adjusted.rules.time)
        seen = before.seen.get(window.name)
        found = window_results(segment, known, window, seen=seen, flushed=flushed, keep=_kept)
        fed = any(one.input == window.name for one in windows)
        results[window.name] = _kept(found) if fed else found
    return results, needed


def _carried(adjusted: Adjusted, before: Carried, held: DataFrame, *, flushed: bool) -> Carried:
    state, windows = adjusted.state, adjusted.rules.windows
    of_events = tuple(window for window in windows if window.input is None)
    revised = tuple(window for window in of_events if window.may_take_back)
    sessions = tuple(window for window in of_events if window.is_linked and not window.revises)
    grids = tuple(window for window in of_events if window not in (*sessions, *revised))
    times = before.first_times
    if adjusted.rules.time.deduplicate_by:
        times = times.unionByName(first_times(adjusted.accepted, adjusted.refused))
    if flushed or not windows:
        nothing = adjusted.accepted.limit(0)
        nothings = dict.fromkeys(before.revised_sessions, nothing)
        return Carried(state, held, nothing, nothing, times, before.seen, revised_sessions=nothings)
    return Carried(
        state,
        held,
        still_needed(before.open_events.unionByName(adjusted.accepted), state, grids),
        in_open_windows(all_events(adjusted, before.session_events), state, sessions, adjusted.rules.time),
        times,
        {w.name: _seen_after(before.seen[w.name], adjusted, w) for w in windows if w.empty},
        revised_sessions={w.name: _open_after(before.revised_sessions[w.name], adjusted, w) for w in revised},
    )


def _open_after(before: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    events = events_as_they_came(adjusted, before)
    return in_open_windows(events, adjusted.state, (window,), adjusted.rules.time)


def _seen_after(before: DataFrame, adjusted: Adjusted, window: WindowSpec) -> DataFrame:
    return once(before.unionByName(seen_groups(adjusted.accepted, window)), window)


def log_of_timeline() -> Column:
    """The log that a timeline is of."""
    return F.get_json_object(c.TIMELINE, "$[0]")


def timeline_in_log() -> Column:
    """`_timeline` as it is called where there is one log."""
    parts = F.from_json(c.TIMELINE, "array<string>")
    return F.to_json(F.slice(parts, F.lit(2), F.greatest(F.size(parts) - 1, F.lit(0))))


def log_watermarks(state: DataFrame, clocks: DataFrame, time: TimeSpec) -> DataFrame:
    """The watermark of each log as a whole: of its timelines the highest, or what the clock gives if that is more.

    Args:
        state: The timelines.
        clocks: `log` and `clock_us` of every log: the latest clock that is seen.
        time: The spec's `time` section.

    Returns:
        `log` and `watermark`, microseconds; null where there is none yet.
    """
    highest = state.groupBy(log_of_timeline().alias(LOG)).agg(F.max("watermark").alias("__highest"))
    by_clock = clock_watermark(F.col("clock_us"), time)
    return clocks.join(highest, LOG, "left").select(LOG, F.greatest("__highest", by_clock).alias("watermark"))


def _judged(
    items: DataFrame, rules: TimeRules, clock: LogClock, start: DataFrame, known: DataFrame | None
) -> Adjusted:
    """The segment, judged, cut out of one frame that Spark computes now: what follows is planned from its rows."""
    state = F.broadcast(start)
    items = items.withColumn(c.TIMELINE, timeline(items, rules.time.over))  # which log a record is of, for the clock
    splits = count_splits(items, state, rules)
    lazy = time_adjustment(items, state, rules, clock, splits=splits, first_times=known, way="in_order", keep=_kept)
    adjusted = kept_together(lazy, _kept)
    return replace(adjusted, state=F.broadcast(_kept(adjusted.state)))


def _kept(frame: DataFrame) -> DataFrame:
    """The same rows, computed now, in one part: unions would double the parts with every segment."""
    return frame.coalesce(1).localCheckpoint()


def _letters(adjusted: Adjusted, rules: Rules, before: Carried) -> DataFrame:
    """Dead letters with `log`, which travels in the payload: of the columns of a record they have nothing else."""
    payload = (LOG, *rules.payload)
    frames = [time_letters(adjusted.refused, payload, rules.time)]
    if rules.time.time.out_of_order == "keep":  # otherwise no accepted event is ever late for a window
        for window in (window for window in rules.time.windows if window.input is None):
            late = late_for_windows(adjusted, before.of_window(window), window)
            frames.append(window_letters(late, payload, window))
    for window in (window for window in rules.time.windows if window.input is None):
        unfit = unfit_letters(adjusted.accepted, payload, window)
        frames += [] if unfit is None else [unfit]
    letters = reduce(DataFrame.unionByName, frames)
    return letters.withColumns(
        {
            LOG: F.get_json_object("payload", f"$.{LOG}"),
            "payload": F.regexp_replace("payload", _LOG_IN_PAYLOAD, "{"),
        }
    )
