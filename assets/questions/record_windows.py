"""The windows that hold the time of a record: which count it, which it missed, which are open, what closed them.

Here: of each window of the spec the windows that the record falls into. Not here: the events of a window
(assets/questions/contents.py), the rest of the answer about a record (assets/questions/record.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tidemark.assets.log.retention import records_gone_until
from tidemark.assets.questions.contents import Contents, instants_of, sessions_of
from tidemark.assets.questions.words import instant_text
from tidemark.resources.delta.queries import Row
from tidemark.timeops.calendar.grid import spans_at
from tidemark.timeops.figures.log_times import Item
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window import inputs_first
from tidemark.timeops.values.instants import NONE
from tidemark.timeops.values.utc import Instant, us_of
from tidemark.timeops.watermark.timelines import ACROSS


@dataclass(frozen=True)
class RecordWindow:
    """One window that holds the time of a record.

    Attributes:
        name: The window of the spec.
        start_us: Its start; None in a gap.
        end_us: Its end; None in a gap.
        outcome: `counted` (it is closed), `open`, `missed`, `filtered`, `in_gap`, or `removed`: which window it is
            depends on records that are no longer in the log.
        closes_us: The watermark that closes it; None in a gap.
        was_closed: It had closed when the record came.
        closed_by: The item that closed it; None while it is open, and where a flush did.
        by_flush: A flush closed it.
    """

    name: str
    start_us: int | None
    end_us: int | None
    outcome: str
    closes_us: int | None = None
    was_closed: bool = False
    closed_by: Item | None = None
    by_flush: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "name": self.name,
            "start": instant_text(self.start_us),
            "end": instant_text(self.end_us),
            "outcome": self.outcome,
        }


@dataclass(frozen=True, eq=False)
class WindowsOfRecord:
    """The windows that hold the time of a record.

    Attributes:
        contents: The events of windows.
        seq: The record.
        us: Its timestamp, or its time if it was refused, microseconds.
        timeline: Its timeline.
        is_refused: A rule of time refused it, so no window saw it.
        letters: By window its dead letter of that window.
    """

    contents: Contents
    seq: int
    us: int
    timeline: str
    is_refused: bool
    letters: Mapping[str, Row]

    def all(self) -> tuple[RecordWindow, ...]:
        """Return them, in the order of the spec."""
        windows = self.contents.workspace.spec.windows
        by_name: dict[str, list[RecordWindow]] = {}
        for window in inputs_first(windows):
            if window.input is None:
                by_name[window.name] = self._of(window)
            else:  # of a join it says which rows have the record, and not which windows these rows are in
                by_name[window.name] = self._over(window, by_name.get(window.input, []))
        return tuple(record_window for window in windows for record_window in by_name[window.name])

    def _of(self, window: WindowSpec) -> list[RecordWindow]:
        """Return the windows of events that the record falls into."""
        letter = self.letters.get(window.name)
        is_left_out = window.name in self.contents.filtered_by(self.seq) or (
            letter is not None and letter["reason"] == Reason.BAD_EXPRESSION
        )
        if window.is_linked and self.us - window.reach_us <= records_gone_until(self.contents.workspace):
            return [RecordWindow(window.name, None, None, "removed")]
        windows = [self._window_with(window, span) for span in self._spans(window, letter, is_taken=not is_left_out)]
        if is_left_out:
            windows = [replace(window, outcome="filtered") for window in windows]
            return windows or [RecordWindow(window.name, None, None, "filtered")]
        if letter is not None:
            windows = [replace(window, outcome="missed") for window in windows]
        nowhere = "filtered" if window.has_gap_of_records else "in_gap"  # a record that says no gap is in no session
        return windows or [RecordWindow(window.name, None, None, nowhere)]

    def _spans(self, window: WindowSpec, letter: Row | None, *, is_taken: bool) -> Sequence[tuple[int, int]]:
        is_taken = is_taken and letter is None and not self.is_refused
        if window.is_linked and letter is not None and letter["missed_windows"]:
            return [(_us(span["start"]), _us(span["end"])) for span in letter["missed_windows"]]
        if window.kind == "session" and is_taken:
            return [sessions_of(self.contents, window, self.seq)]
        if window.kind == "sliding" and is_taken:
            return instants_of(self.contents, window, self.seq, self.us)
        if window.has_gap_of_records:
            [gap_us] = self.contents.judged.times.gaps_of(window, np.array([self.seq], np.int64)).tolist()
            return [] if gap_us == NONE else [(self.us, self.us + gap_us)]
        return spans_alone(self.us, window)

    def _window_with(self, window: WindowSpec, span: tuple[int, int]) -> RecordWindow:
        """Return a window that an event is in, or would be, if it had not closed when the event came."""
        start, end = span
        closes, [met] = end + window.closes_after_us, self.contents.met(np.array([self.seq], np.int64), window)
        was_closed = bool(met != NONE and closes <= met)
        timeline = ACROSS if window.across else self.timeline
        # A flush before the record did not close a window that took the record.
        item, by_flush = self.contents.log.passed(timeline, closes, 0 if was_closed else self.seq)
        start_us = self.contents.workspace.spec.time.start_us
        if start_us is not None and start < start_us:  # such windows have no results
            outcome = "filtered"
        elif was_closed or self.is_refused:
            outcome = "missed"
        else:
            outcome = "open" if item is None and not by_flush else "counted"
        return RecordWindow(
            window.name, start, end, outcome, closes, was_closed, item, by_flush=by_flush and not was_closed
        )

    def _over(self, window: WindowSpec, of: Sequence[RecordWindow]) -> list[RecordWindow]:
        """Return the windows over results that hold the record; sessions of results depend on others of them."""
        ends = [inner.end_us for inner in of if inner.end_us is not None and inner.outcome in ("counted", "open")]
        spans = [span for end in ends if not window.is_linked for span in spans_alone(end, window)]
        return [self._window_with(window, span) for span in dict.fromkeys(spans)]


def spans_alone(us: int, window: WindowSpec) -> list[tuple[int, int]]:
    """Return the windows that hold an instant, as far as it decides; of a sliding one the first and the last."""
    if window.kind == "sliding":
        return [(us - window.size_us, us), (us - 1, us + window.size_us - 1)]
    if window.kind == "session":
        return [(us, us + window.gap_us)]
    try:
        return spans_at(us, window)
    except OverflowError:  # a local day at the ends of time
        return []


def _us(value: Any) -> int:
    return value.us if isinstance(value, Instant) else us_of(value)
