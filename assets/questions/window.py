"""Why is a window as it is: its events, what closed it or what it waits for, or why there is no such window.

Here: what the tables of the last commit and the times of the log say about one window, by group. Not here: the answer
as values and a text (assets/questions/window_answer.py), the events (assets/questions/contents.py), one record
(assets/questions/record.py).
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tidemark.assets.log.retention import before_seq_of, records_gone_until, results_gone_until
from tidemark.assets.questions.contents import Contents, Group, WindowEvents, found_sessions, group_text
from tidemark.assets.questions.times import PipelineLog
from tidemark.assets.questions.window_answer import EventOfWindow, GroupOfWindow, WindowAnswer
from tidemark.resources import tables
from tidemark.resources.delta.queries import Row, python_rows
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import spans_at
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import did_you_mean
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.top import TOP_RANK
from tidemark.timeops.spec.window import timeline_columns
from tidemark.timeops.values.instants import NONE, Array
from tidemark.timeops.values.utc import Instant

_MOST_GROUPS = 1_000


@dataclass(frozen=True, eq=False)
class WindowQuestion:
    """A question about a window of a pipeline.

    Attributes:
        log: The log of the pipeline.
        name: The window of the spec.
        start_us: The start of the window, microseconds.
        group: Texts of values of its group; columns that are not named may have any value.
    """

    log: PipelineLog
    name: str
    start_us: int
    group: Mapping[str, str | None] = field(default_factory=dict)

    @cached_property
    def window(self) -> WindowSpec:
        """The window of the spec.

        Raises:
            SpecError: The spec has no such window, or the window no such column of groups.
        """
        spec = self.workspace.spec
        names = [window.name for window in spec.windows]
        if self.name not in names:
            raise SpecError(
                f"{spec.name} has no window {self.name!r}.",
                expected=f"one of {', '.join(names)}" if names else "a spec with windows",
                remedy=did_you_mean(self.name, names),
            )
        window = spec.windows[names.index(self.name)]
        for column in self.group:
            if column not in window.group_columns:
                columns = ", ".join(window.group_columns)
                raise SpecError(
                    f"{self.name} does not group by `{column}`.",
                    expected=f"one of {columns}" if columns else "no `group`: the window has none",
                    remedy=did_you_mean(column, window.group_columns),
                )
        return window

    @property
    def workspace(self) -> Workspace:
        """The pipeline."""
        return self.log.workspace

    @cached_property
    def _contents(self) -> Contents:
        return Contents(self.log)

    def answer(self) -> WindowAnswer:
        """Explain the window.

        Raises:
            SpecError: It may hold records that are no longer in the log.
        """
        window = self.window
        self._ensure_whole()
        ends, why = self._ends()
        groups = [] if why else [group for end in ends for group in self._groups(end)]
        groups.sort(key=lambda group: (group.end_us, -group.events, str(group.group)))
        if not why and not groups:
            why = self._why_no_group()
        state = "none" if why else "closed" if all(group.is_closed for group in groups) else "open"
        end_us = ends[-1] if len(ends) == 1 else None
        if window.kind == "session" and groups:
            # Only events say where a session ends, so groups may differ.
            end_us = groups[0].end_us if len({group.end_us for group in groups}) == 1 else None
        return WindowAnswer(
            pipeline=self.workspace.spec.name,
            window=window,
            start_us=self.start_us,
            end_us=end_us,
            state=state,
            why=why,
            groups=tuple(groups[:_MOST_GROUPS]),
            in_all=len(groups),
            refused=self._refused(max(ends, default=self.start_us)),
            rules=self.workspace.rules,
            changed=self.log.committed.changed,
            gone_until_us=results_gone_until(self.workspace, window.name),
            letters_from=before_seq_of(self.workspace, tables.DEAD_LETTERS),
        )

    def _ensure_whole(self) -> None:
        linked_us = self.window.reach_us if self.window.is_linked else 0
        gone_us = records_gone_until(self.workspace)
        if self.start_us - linked_us <= gone_us:
            raise SpecError(
                f"{self.name} from {Instant(self.start_us)} may hold records that `retention` has removed from the "
                f"log: they have times up to {Instant(gone_us)}.",
                expected=f"a window that starts after {Instant(gone_us + linked_us)}",
                remedy=f"its result, if there is one, is in {tables.window_table(self.name)}",
            )

    def _ends(self) -> tuple[list[int], str]:
        """Return the ends of the windows with this start, or why there are none."""
        window, start = self.window, self.start_us
        if window.kind == "snapshot":
            return [start], ""
        if window.kind == "sliding":
            return [start + window.size_us], ""
        if window.kind == "session":
            return [start + window.reach_us], ""
        inside = start + (0 if window.begins_inside else 1)  # a start may belong to the window before
        spans = spans_at(inside, window)
        ends = [end for begin, end in spans if begin == start]
        if ends:
            return ends, ""
        if not spans:
            return [], "it is in a gap between two windows"
        near = ", ".join(dict.fromkeys(str(Instant(begin)) for begin, _ in spans[-3:]))
        return [], f"none starts then; the ones around it start at {near}"

    # Groups.

    def _groups(self, end_us: int) -> list[GroupOfWindow]:
        window = self.window
        rows = self._rows(end_us)
        groups: dict[tuple[Group, int], GroupOfWindow] = {}
        if window.kind == "session" and window.input is None:
            for group, events in self._by_group(self._contents.events(window)):
                session, start, end = found_sessions(self._contents, window, events)
                for name in np.unique(session[(session >= 0) & (start == self.start_us)]):
                    at = session == name
                    of_session = WindowEvents(events.seq[at], events.t[at], ())
                    groups[group, int(end[name])] = self._group_of_window(group, int(end[name]), of_session, rows)
            return list(groups.values())
        for group, events in self._by_group(self._events(end_us)):
            groups[group, end_us] = self._group_of_window(group, end_us, events, rows)
        for row in rows:  # such as rows of windows with no event
            group = tuple(group_text(row[name]) for name in window.group_columns)
            if (group, end_us) not in groups and self._is_asked(group):
                nothing = WindowEvents(np.zeros(0, np.int64), np.zeros(0, np.int64), ())
                groups[group, end_us] = self._group_of_window(group, end_us, nothing, rows)
        return list(groups.values())

    def _events(self, end_us: int) -> WindowEvents:
        """Return the events with a time in the window; of a window over another one its results."""
        window = self.window
        first = self.start_us + (0 if window.begins_inside else 1)
        last = end_us - (0 if window.ends_inside else 1)
        if window.input is None:
            return self._contents.events(window, first, last)
        table = tables.result_table(window.input, self.workspace.spec)
        time = "window_end" if table == tables.window_table(window.input) else c.TIMESTAMP
        return self._contents.results(window, table, time, Instant(first), Instant(last))

    def _by_group(self, events: WindowEvents) -> list[tuple[Group, WindowEvents]]:
        if not self.window.group_columns:
            return [((), events)] if len(events.seq) else []
        every = list(dict.fromkeys(zip(*events.groups, strict=True)))
        places: dict[Group, list[int]] = {group: [] for group in every}
        for at, group in enumerate(zip(*events.groups, strict=True)):
            places[group].append(at)
        groups = [group for group in every if self._is_asked(group)]
        return [(group, WindowEvents(events.seq[places[group]], events.t[places[group]], ())) for group in groups]

    def _is_asked(self, group: Group) -> bool:
        values = dict(zip(self.window.group_columns, group, strict=True))
        return all(values[name] == value for name, value in self.group.items())

    def _group_of_window(self, group: Group, end_us: int, events: WindowEvents, rows: Sequence[Row]) -> GroupOfWindow:
        window, judged = self.window, self.log.judged
        timeline = self._timeline(group, events)
        closes = end_us + window.closes_after_us
        taken, missed = self._taken_events(events, closes)
        order = np.lexsort((taken.seq, taken.t))
        is_numbered = bool(len(taken.seq)) and int(taken.seq[0]) != NONE
        shown = [
            EventOfWindow(int(taken.seq[at]) if is_numbered else None, int(taken.t[at]))
            for at in (order[[0, -1]] if len(order) else ())
        ]
        item, by_flush = self.log.passed(timeline, closes, int(taken.seq.min()) if is_numbered else 0)
        names = window.group_columns
        same_end = (row for row in rows if _us(row["window_end"]) == end_us)
        of_group = [row for row in same_end if tuple(group_text(row[name]) for name in names) == group]
        return GroupOfWindow(
            group=dict(zip(names, group, strict=True)),
            end_us=end_us,
            events=len(taken.seq),
            first=shown[0] if shown else None,
            last=shown[1] if shown else None,
            came_first=int(taken.seq.min()) if is_numbered else None,
            came_last=int(taken.seq.max()) if is_numbered else None,
            missed=missed,
            closes_us=closes,
            closed_by=item,
            by_flush=by_flush,
            timeline=timeline,
            now=judged.last(timeline),
            splits=tuple(judged.timelines() if window.across else judged.splits(timeline)),
            rows=tuple(sorted(of_group, key=lambda row: row.get(TOP_RANK) or 0)),
        )

    def _taken_events(self, events: WindowEvents, closes_us: int) -> tuple[WindowEvents, int]:
        """Return the events that came before the window had closed, and how many came later."""
        # Dropped or moved, no event is below its own watermark. The one across timelines does not wait for idle ones.
        may_be_late = self.workspace.spec.time.out_of_order == "keep" or self.window.across
        if self.window.input is not None or self.window.kind == "session" or not may_be_late or not len(events.seq):
            return events, 0
        met = self._contents.met(events.seq, self.window)
        late: Array = met >= closes_us
        return WindowEvents(events.seq[~late], events.t[~late], ()), int(late.sum())

    def _timeline(self, group: Group, events: WindowEvents) -> str:
        """Return the timeline of a group: of a window over another one by the columns that lead back to it."""
        spec, window = self.workspace.spec, self.window
        if window.input is None and len(events.seq) and not window.across:
            return self.log.judged.timeline_of(int(events.seq[0]))
        values = dict(zip(window.group_columns, group, strict=True))
        columns = timeline_columns(window, spec.windows, spec.time.over)
        return json.dumps([values[name.strip("`")] for name in columns], separators=(",", ":"), ensure_ascii=False)

    def _rows(self, end_us: int) -> list[Row]:
        """Return the rows of the table with this start, of this end unless only events say it."""
        table = tables.window_table(self.name)
        if not self.workspace.lake.exists(table):
            return []
        start: Filters = [("window_start", "=", Instant(self.start_us))]
        end: Filters = [] if self.window.kind == "session" else [("window_end", "=", Instant(end_us))]
        rows = self.workspace.lake.rows(table, self.workspace.base_of(table), filters=[*start, *end])
        # Such a row only says that an earlier one no longer holds.
        return [row for row in python_rows(rows, maps="lossy") if not row.get("_is_taken_back")]

    # What is not there.

    def _refused(self, end_us: int) -> dict[str, int]:
        of: Filters = [
            (c.EVENT_TIME, ">=", Instant(self.start_us)),
            (c.EVENT_TIME, "<", Instant(end_us)),
            ("stage", "=", "time"),
        ]
        table = tables.DEAD_LETTERS
        # What windows refused is counted by group, as missed.
        rows = self.workspace.lake.rows(table, self.workspace.base_of(table), columns=["reason"], filters=of)
        return dict(Counter(rows["reason"].to_pylist()).most_common())

    def _why_no_group(self) -> str:
        window = self.window
        if window.kind == "session":
            return f"no session of {window.name} starts at {Instant(self.start_us)}"
        which = " that `where` lets through" if window.where is not None else ""
        if not self.group:
            return f"no event{which} has a time in it"
        group_in_words = ", ".join(f"{name} {value}" for name, value in self.group.items())
        end = self._ends()[0][-1]
        groups = list(dict.fromkeys(zip(*self._events(end).groups, strict=True)))
        if not groups:
            return f"no event{which} has a time in it, of {group_in_words} or any other group"
        shown = [", ".join(str(value) for value in group) for group in groups]
        near = did_you_mean(", ".join(str(value) for value in self.group.values()), shown)
        more_groups = f" and {len(shown) - 10:,} more" if len(shown) > 10 else ""
        listed = f"{', '.join(shown[:10])}{more_groups}"
        near = f": {near}" if near else ""
        return f"no event{which} of {group_in_words} has a time in it; it has {listed}{near}"


def _us(value: Any) -> int | None:
    return value.us if isinstance(value, Instant) else value
