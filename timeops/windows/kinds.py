"""The questions of the engine to a kind of window, and which kind a window is.

Here: the questions, in the order in which a segment of the log meets them. The answers are with each kind:
AlignedWindows in timeops/windows/aligned.py, Sessions in timeops/windows/sessions.py, SlidingWindows in
timeops/windows/sliding.py. Not here: how results are given, once or in revisions (timeops/windows/results.py), which
is another choice than the kind.
"""

from typing import Protocol

from pyspark.sql import DataFrame

from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.aligned import AlignedWindows
from tidemark.timeops.windows.segment import BY_BOUNDS, BY_END, Placed, Rank, WindowSegment
from tidemark.timeops.windows.sessions import Sessions
from tidemark.timeops.windows.sliding import SlidingWindows


class WindowKind(Protocol):
    """A kind of window; its instances are windows of a spec. A new kind is a class with these members.

    A segment asks in this order: `placed` if windows merge, `place` for the counts of each event, then the results,
    `late_events`, and at last which events the next segment needs. What returns a frame only describes it: an answer
    is a function of the segment, however often it is asked for.
    """

    @property
    def window(self) -> WindowSpec:
        """The window of the spec."""

    @property
    def merges(self) -> bool:
        """True if an event may change the bounds of windows. Called first.

        Then only the other events of its group say whether it is late, results have `__tm_start`, and bounds that a
        window has had before are results of their own.
        """

    # Which windows there are.

    def start_of(self, end_us: str) -> str:
        """Return SQL of the start of the window with this end.

        Called for the windows that a dead letter missed, and for the start of results unless windows merge.
        """

    def place(self, events: DataFrame) -> DataFrame:
        """Add to accepted events, as far as each alone says, `__tm_filtered`, `__tm_ends` and `__tm_missed`.

        Called once a segment, to count what became of its events. The first says that the window leaves the event
        out. The second are the ends of windows that it is in. The third are the ends of windows that had closed when
        it came, by the watermark or, with `__tm_flushed_windows`, by a flush. No row is added or lost.
        """

    def placed(self, segment: WindowSegment, /) -> Placed | None:
        """Return what the driver finds of the segment's events; None where a kind finds nothing.

        Called at most once a segment, before anything else needs it: it is in `WindowSegment.placed` from then on.
        """

    # The results of a segment.

    def closed_contents(self, segment: WindowSegment) -> DataFrame:
        """Return the events of the windows that close in the segment, by `keys_of` and group: a row per window.

        Called once a segment, of a window with one result, and where a flush closes windows, for what stays closed.
        """

    @property
    def result_keys(self) -> tuple[str, ...]:
        """The columns of `closed_contents` that distinguish the windows of a group.

        With `_watermark`, where that is known by then.
        """

    def dated(self, results: DataFrame, segment: WindowSegment) -> DataFrame:
        """Add to results of closed windows `_watermark` BIGINT: just after the item that closed each.

        It is null where no item did: a flush. Called after `closed_contents`, and for rows of windows without events.
        """

    def contents_so_far(self, segment: WindowSegment, rank: Rank) -> DataFrame:
        """Return the events of the windows that had not closed before the segment, a row per window that holds them.

        Called once a segment, of a window that revises its results.

        Args:
            segment: The segment; the known events have the watermark and the clock that they met.
            rank: The first moment after an event.

        Returns:
            The rows by `keys_of` and group with RANK, the moment from which the window holds the event, FRESH, that
            what makes it so came in the segment, and both watermarks around the segment. Where windows merge also
            CHANGED_BY: each bounds that a window has had are a window.
        """

    def late_events(self, segment: WindowSegment) -> DataFrame:
        """Return accepted events that came when all their windows had closed, each once.

        Called once a segment, where some may be late. They have `__tm_missed` and `__tm_lateness_us`, with flushed
        windows also `__tm_by_flush`: a flush had closed the last one, the watermark had not.
        """

    # What it needs of the past.

    @property
    def needs_others(self) -> bool:
        """True if others of its group say if an event is still needed: it is kept with the names of such windows.

        Called when the tables of a pipeline are made, and when its windows are sorted by the events that they share.
        """

    @property
    def needs_after_flush(self) -> bool:
        """True if events are still needed when a flush has closed all windows, in case the log is reopened."""

    def with_needed(self, events: DataFrame, segment: WindowSegment, into: str) -> DataFrame:
        """Add to all of the events BOOLEAN `into`: a window that is open after the segment may still need it.

        Called last. The next segment does not get an event that no window needs now.
        """

    def needed_from(self, watermark_us: int, /) -> int:
        """Return an instant, microseconds: no event before it is in a window that is open at the watermark.

        Called before stored events are read, so that files without such events stay closed. It never falls while the
        watermark rises.
        """


def keys_of(kind: WindowKind) -> tuple[str, ...]:
    """Return the columns that distinguish the windows of a group."""
    return BY_BOUNDS if kind.merges else BY_END


def kind_of(window: WindowSpec) -> WindowKind:
    """Return the window as its kind."""
    if window.kind == "session":
        return Sessions(window)
    if window.kind == "sliding":
        return SlidingWindows(window)
    return AlignedWindows(window)


def needed_for_certain_from(watermark_us: int, window: WindowSpec) -> int:
    """Return an instant, microseconds: from there on an event of a session or sliding window is in an open one.

    A session of a longest duration may end sooner than a gap after an event, but not before its last one.
    """
    reach_us = window.least_reach_us if window.max_duration is None else 0
    return watermark_us - reach_us - window.allowed_lateness_us
