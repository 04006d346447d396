"""The engine: segments of the log, each from the state before it to its results and the state after it.

Here: in which order the rules of time and of windows apply. Every run of a pipeline uses it: micro-batches,
backfills, `tidemark test`, the library. Not here: the rules (timeops/events/, windows/), where a state is stored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import TIMELINE, W_BEFORE, WATERMARK, to_instant
from tidemark.timeops.computing.materialize import Execution, Materialize, Stored
from tidemark.timeops.dead_letters import join_letters, time_letters, unfit_letters, unfit_results, window_letters
from tidemark.timeops.events.adjustment import (
    OWN_TIMELINE,
    Adjusted,
    Released,
    Segment,
    across_timelines,
    of_all_timelines,
    release,
    time_adjustment,
)
from tidemark.timeops.events.duplicates import first_times
from tidemark.timeops.joins import rows as joined_rows
from tidemark.timeops.joins.events import Fates
from tidemark.timeops.joins.rows import Joined
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import JoinSpec, TimeSpec, WindowSpec
from tidemark.timeops.spec.window import input_of, inputs_first
from tidemark.timeops.watermark.timelines import STATE, with_timelines
from tidemark.timeops.windows.gap_filling import Span, once, seen_groups
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.results import (
    flushed_after,
    late_for_windows,
    passing,
    seen_after,
    still_needed,
    window_results,
)
from tidemark.timeops.windows.segment import Placed, WindowSegment, as_events, with_results

EARLIER = "__tm_earlier"
"""BOOLEAN of an event that a window needs: true if it came in an earlier segment, null in this one."""


@dataclass(frozen=True)
class State:
    """The state that is carried from one segment of the log to the next.

    A mapping goes by the name of a window, or join, and lacks one that carries nothing. It may load a frame when
    it is asked for it, and only the rows that matter for the segment at hand.

    Attributes:
        timelines: timelines.STATE.
        held: Accepted events that are not released yet; None for none.
        first_times: Records that are not duplicates, duplicates.FIRST_TIMES_SCHEMA; None for none.
        events: The events that a window still needs; of a window over another one the results that it needs.
        seen_groups: Of a window with `empty` the groups that it has seen, see timeops/windows/gap_filling.py.
        flushed_windows: The windows that a flush closed before the watermark had passed them, see
        timeops/windows/segment.py.
        joins: The events that a join still needs, see timeops/joins/events.py.
        stored_joins: Reads columns of the events of a join without Spark, see timeops/joins/gathering.py; lacks a
            join whose events Spark reads.
    """

    timelines: pa.Table = field(default_factory=STATE.empty_table)
    held: DataFrame | None = None
    first_times: DataFrame | None = None
    events: Mapping[str, DataFrame] = field(default_factory=dict)
    seen_groups: Mapping[str, DataFrame] = field(default_factory=dict)
    flushed_windows: Mapping[str, DataFrame] = field(default_factory=dict)
    joins: Mapping[str, DataFrame] = field(default_factory=dict)
    stored_joins: Mapping[str, Stored] = field(default_factory=dict)

    def with_events(
        self,
        events: DataFrame,
        windows: Iterable[WindowSpec],
        joins: Iterable[JoinSpec] = (),
        *,
        apart: tuple[str, ...] = (),
    ) -> "State":
        """Return the state as if earlier segments had also contained these events, in all their windows and joins.

        Args:
            events: Accepted events, `adjustment.admitted_events`.
            windows: The windows that begin with the state.
            joins: The joins that do.
            apart: See `TimeRules.apart`.
        """

        def with_more(earlier: DataFrame | None, more: DataFrame = events) -> DataFrame:
            return more if earlier is None else earlier.unionByName(more, allowMissingColumns=True)

        by_window, groups = dict(self.events), dict(self.seen_groups)
        for window in (window for window in windows if window.input is None):
            of_window = of_all_timelines(events, apart).drop(OWN_TIMELINE) if window.across else events
            by_window[window.name] = with_more(by_window.get(window.name), of_window)
            if window.empty:
                fresh, earlier = seen_groups(of_window, window), groups.get(window.name)
                groups[window.name] = fresh if earlier is None else once(earlier.unionByName(fresh), window)
        by_join = {join.name: with_more(self.joins.get(join.name)) for join in joins}
        stored_joins = {name: read for name, read in self.stored_joins.items() if name not in by_join}
        return replace(
            self, events=by_window, seen_groups=groups, joins={**self.joins, **by_join}, stored_joins=stored_joins
        )

    def with_timelines_of(self, events: DataFrame, time: TimeSpec) -> "State":
        """Return the state with the timelines of events that are let in, where the clock moves silent timelines.

        The arrival clock holds for every timeline from the start (A2), so it closes the windows of these events also
        before any record of their timeline comes.
        """
        if time.clock_tolerance_us is None or not time.over:
            return self
        names = events.select(TIMELINE).distinct().toArrow()[TIMELINE].combine_chunks().sort()
        return replace(self, timelines=with_timelines(self.timelines, names.cast(pa.string())))

    def materialized(self, materialize: Materialize) -> "State":
        """Return the same state, each of its frames computed once."""

        def materialized(frames: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
            shared = {id(frame): frame for frame in frames.values()}  # windows of one kind share a frame
            computed = {key: materialize(frame) for key, frame in shared.items()}
            return {name: computed[id(frame)] for name, frame in frames.items()}

        return State(
            self.timelines,
            None if self.held is None else materialize(self.held),
            None if self.first_times is None else materialize(self.first_times),
            materialized(self.events),
            materialized(self.seen_groups),
            materialized(self.flushed_windows),
            materialized(self.joins),
        )


def read_by(windows: Iterable[WindowSpec], joins: Iterable[JoinSpec]) -> tuple[JoinSpec, ...]:
    """Return the joins whose rows some windows take."""
    inputs = {window.input for window in windows}
    return tuple(join for join in joins if join.name in inputs)


def sharing(windows: Iterable[WindowSpec]) -> list[tuple[WindowSpec, ...]]:
    """Return the windows in groups that need the same kind of rows, so that one frame does for a group.

    Windows whose events are kept with the names of the windows that need them are apart from all others. In both
    groups the windows that revise their results are apart, and the ones across timelines. A window over another one
    is alone: its rows are results.
    """
    groups: dict[object, tuple[WindowSpec, ...]] = {}
    for window in windows:
        shared = (window.revises, kind_of(window).needs_others, window.across)
        rows = window.name if window.input is not None else shared
        groups[rows] = (*groups.get(rows, ()), window)
    return list(groups.values())


@dataclass(frozen=True)
class Outcome:
    """The outcome of a segment of the log. Frames are planned when they are asked for, and not computed here.

    Attributes:
        judged: Its records, accepted and refused, with the timelines after it.
        before: The state that it started from.
        flushed: It ends with a flushing end of input.
        execution: How it is computed.
        tables: The right sides of joins that are tables, as events, by the join.
    """

    judged: Adjusted
    before: State
    flushed: bool
    execution: Execution = field(default_factory=Execution)
    tables: Mapping[str, DataFrame] = field(default_factory=dict)
    _segments: dict[str, Adjusted] = field(default_factory=dict, repr=False, compare=False)
    _results: dict[tuple[str, Span | None], DataFrame] = field(default_factory=dict, repr=False, compare=False)
    _answers: dict[str, DataFrame] = field(default_factory=dict, repr=False, compare=False)
    _placed: dict[str, Placed | None] = field(default_factory=dict, repr=False, compare=False)
    _joined: dict[str, Joined] = field(default_factory=dict, repr=False, compare=False)

    @property
    def timelines(self) -> pa.Table:
        """The timelines after the segment, timelines.STATE."""
        return self.judged.state

    @property
    def windows(self) -> tuple[WindowSpec, ...]:
        """The windows of the spec, inputs of others first."""
        return tuple(inputs_first(self.judged.rules.windows))

    @property
    def time(self) -> TimeSpec:
        """The spec's `time`."""
        return self.judged.rules.time

    @property
    def accepted(self) -> DataFrame:
        """Accepted events of the segment, with the `_watermark` that each met."""
        return self.judged.all_accepted.withColumn(WATERMARK, to_instant(W_BEFORE))

    @cached_property
    def released(self) -> Released:
        """Accepted events, and the ones held before, by what becomes of them, with the `_watermark` that each met."""
        held, events = self.before.held, self.accepted
        both = events if held is None else held.unionByName(events, allowMissingColumns=True)
        return release(both, self.judged, flushed=self.flushed)

    @cached_property
    def _across(self) -> Adjusted:
        return across_timelines(self.judged)

    def segment_of(self, window: WindowSpec) -> Adjusted:
        """Return the segment as a window sees it: one over a window, or a join, has its results for events.

        For a window across timelines there is one timeline, which represents all.
        """
        if window.input is None:
            return self._across if window.across else self.judged
        if window.name not in self._segments:
            join = next((join for join in self.joins if join.name == window.input), None)
            if join is not None:
                events = joined_rows.as_events(self.answers(join), self.judged.rules.join_columns[join.name])
            else:
                source, apart = input_of(window, self.windows), self.judged.rules.apart
                events = as_events(passing(self.results(source)), source, self.windows, self.time.over, apart)
            self._segments[window.name] = with_results(self.judged, events)
        return self._segments[window.name]

    def earlier_events_of(self, window: WindowSpec) -> DataFrame | None:
        """Return the events of earlier segments that a window continues from, marked EARLIER; None for none."""
        events = self.before.events.get(window.name)
        return None if events is None else events.withColumn(EARLIER, F.lit(True))

    def results(self, window: WindowSpec, *, only: Span | None = None) -> DataFrame:
        """Return the `window_results` of the segment, computed once where other windows go over them."""
        key = (window.name, only)
        if key not in self._results:
            segment = replace(
                self._segment(window, is_known=True),
                seen=self.before.seen_groups.get(window.name),
                placed=self._placed_in(window),
                execution=self.execution,
            )
            results = window_results(segment, window, only=only)
            is_input = any(reader.input == window.name for reader in self.windows)
            self._results[key] = self.execution.materialize(results) if is_input else results
        return self._results[key]

    def _placed_in(self, window: WindowSpec) -> Placed | None:
        """Return what the driver finds of the segment's events, for results, late events and open windows."""
        if window.name not in self._placed:
            kind = kind_of(window)
            self._placed[window.name] = kind.placed(self._segment(window, is_known=kind.merges))
        return self._placed[window.name]

    @cached_property
    def may_be_late_for(self) -> tuple[WindowSpec, ...]:
        """The windows of events for which an accepted event may come too late.

        Under drop and adjust no accepted event is behind the watermark of its timeline: only a flush can have closed
        its window, or the watermark across timelines.
        """
        of_events, keeps = [w for w in self.windows if w.input is None], self.time.out_of_order == "keep"
        return tuple(w for w in of_events if keeps or w.across or w.name in self.before.flushed_windows)

    def late_for(self, window: WindowSpec) -> DataFrame:
        """Return the accepted events that come when all their windows have closed, see `late_for_windows`."""
        segment = self._segment(window, is_known=kind_of(window).merges)
        late = late_for_windows(replace(segment, placed=self._placed_in(window)), window)
        return late.drop(TIMELINE).withColumnRenamed(OWN_TIMELINE, TIMELINE) if window.across else late

    def late_for_sessions(self) -> dict[str, int]:
        """Count the events of `late_for` by window, for windows that merge: a loop has placed their events."""
        merging = [window for window in self.may_be_late_for if kind_of(window).merges]
        placed = {window.name: self._placed_in(window) for window in merging}
        return {name: sessions.late for name, sessions in placed.items() if sessions is not None}

    def _segment(self, window: WindowSpec, *, is_known: bool) -> WindowSegment:
        """Return the segment, with the known events only where they are asked for, as they may have to be loaded."""
        return WindowSegment(
            self.segment_of(window),
            earlier=self.earlier_events_of(window) if is_known else None,
            flushed_windows=self.before.flushed_windows.get(window.name),
            flushed=self.flushed,
        )

    @property
    def joins(self) -> tuple[JoinSpec, ...]:
        """The joins of the spec."""
        return self.judged.rules.joins

    def joined(self, join: JoinSpec) -> Joined:
        """Return a join in the segment; what it finds is computed once and shared."""
        if join.name not in self._joined:
            columns, stored = self.judged.rules.join_columns[join.name], self.before.stored_joins.get(join.name)
            table = self.tables[join.name] if join.has_table else None
            earlier = partial(self.before.joins.get, join.name)
            self._joined[join.name] = Joined(self.judged, join, columns, earlier, self.flushed, stored, table)
        return self._joined[join.name]

    def answers(self, join: JoinSpec) -> DataFrame:
        """Return the rows of a join in the segment, `Joined.answers`, computed once where windows go over them."""
        if join.name not in self._answers:
            answers = self.joined(join).answers()
            is_input = any(reader.input == join.name for reader in self.windows)
            self._answers[join.name] = self.execution.materialize(answers) if is_input else answers
        return self._answers[join.name]

    def fates_of(self, join: JoinSpec) -> tuple[Fates, Fates]:
        """Count the events of both sides of a join by what becomes of them in the segment."""
        return self.joined(join).fates()

    def unfit_results(self) -> list[DataFrame]:
        """Return the dead letters of results that a window over them cannot add up."""
        over_results = [window for window in self.windows if window.input is not None]
        frames = [unfit_results(self.segment_of(window).accepted, window) for window in over_results]
        return [frame for frame in frames if frame is not None]

    def dead_letters(self, payload: Sequence[str], *, of_windows_alone: bool = False) -> DataFrame:
        """Return every record that is refused, by a rule of time, by a window or by a join.

        Args:
            payload: The columns of a record that a dead letter holds.
            of_windows_alone: Only the records that windows refuse. At least one window may refuse some.
        """
        frames = [] if of_windows_alone else [time_letters(self.judged.refused, payload, self.judged.rules)]
        frames += [window_letters(self.late_for(window), payload, window) for window in self.may_be_late_for]
        for window in (window for window in self.windows if window.input is None):
            unfit = unfit_letters(self.judged.all_accepted, payload, window)
            frames += [] if unfit is None else [unfit]
        if self.time.out_of_order == "keep" and not of_windows_alone:  # else no accepted event comes late
            frames += [join_letters(self.joined(join).late(), payload, join) for join in self.joins]
        return reduce(DataFrame.unionByName, [*frames, *self.unfit_results()])

    def needed_after(self, windows: Sequence[WindowSpec], earlier: DataFrame | None) -> DataFrame:
        """Return the events that some windows still need after the segment.

        A flush closes all windows; events still count at later instants of a sliding one, if the log is reopened.

        Args:
            windows: Windows that share a frame, see `sharing`.
            earlier: Events of earlier segments that they may need; None for none.
        """
        first = windows[0]
        segment = WindowSegment(self.segment_of(first), earlier=earlier)
        needing = [window for window in windows if not self.flushed or kind_of(window).needs_after_flush]
        segments = []
        for window in needing:
            flushed_windows = self.before.flushed_windows.get(window.name)
            of_window = replace(segment, flushed_windows=flushed_windows, placed=self._placed_in(window))
            segments.append((window, of_window))
        events = segment.events_as_they_came if first.revises else segment.events
        return still_needed(events, segments, named=kind_of(first).needs_others)

    def flushed_after(self, window: WindowSpec) -> DataFrame | None:
        """Return the windows that stay closed after the segment since a flush closed them; None without a flush."""
        segment = self._segment(window, is_known=self.flushed)
        groups, placed = self.before.seen_groups.get(window.name), self._placed_in(window) if self.flushed else None
        return flushed_after(replace(segment, seen=groups, placed=placed), window)

    def seen_after(self, window: WindowSpec) -> DataFrame:
        """Return the groups that a window with `empty` has seen up to the end of the segment."""
        segment = WindowSegment(self.segment_of(window), seen=self.before.seen_groups.get(window.name))
        return seen_after(segment, window)

    def fresh_first_times(self) -> DataFrame:
        """Return the records of the segment that later ones may be duplicates of."""
        by_rules = self.judged.accepted if self.judged.by_rules is None else self.judged.by_rules
        return first_times(by_rules, self.judged.refused)

    def state(self, windows: Sequence[WindowSpec] | None = None, *, all_joins: bool = False) -> State:
        """Return the whole state after the segment.

        Args:
            windows: The windows that are asked for, with the joins whose rows they take, and without the events held
                for release; by default everything.
            all_joins: Whether the other joins are asked for as well.
        """
        held, joins = (self.released.held, self.joins) if windows is None else (None, read_by(windows, self.joins))
        joins = self.joins if all_joins else joins
        windows = self.windows if windows is None else windows
        events: dict[str, DataFrame] = {}
        for group in sharing(windows):
            events |= dict.fromkeys(
                [w.name for w in group], self.needed_after(group, self.earlier_events_of(group[0]))
            )
        flushed_windows = {window.name: self.flushed_after(window) for window in windows}
        times = self.before.first_times
        if self.time.deduplicate_by:
            fresh = self.fresh_first_times()
            times = fresh if times is None else times.unionByName(fresh)
        return State(
            timelines=self.judged.state,
            held=held,
            first_times=times,
            events=events,
            seen_groups={window.name: self.seen_after(window) for window in windows if window.empty},
            flushed_windows={name: frame for name, frame in flushed_windows.items() if frame is not None},
            joins={join.name: self.joined(join).needed() for join in joins},
        )


def advance(segment: Segment, state: State, rules: TimeRules) -> Outcome:
    """Judge a segment of the log, from the state before its first record.

    Raises:
        SpecError: An expression of the spec does not fit the columns.
        InputError: A timeline has too many splits.
    """
    judged = time_adjustment(segment, state.timelines, rules, first_times=state.first_times)
    return Outcome(judged, state, segment.place.flushed, segment.execution, segment.tables)


def advance_all(
    steps: Iterable[tuple[Segment, TimeRules]], state: State, carry: Callable[[Outcome], State]
) -> Iterator[Outcome]:
    """Judge segments of a log in order, each from the state that the one before has left.

    Args:
        steps: The segments, each with its rules: of one spec, with the waits of sources in the segment.
        state: The state before the first of them.
        carry: Returns the state after a segment. It is called when the next segment is asked for.
    """
    outcome: Outcome | None = None
    for segment, rules in steps:
        state = state if outcome is None else carry(outcome)
        outcome = advance(segment, state, rules)
        yield outcome
