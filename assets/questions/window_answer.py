"""The answer about a window: its values, as JSON, and as a short story with its numbers for a person.

Here: what is answered, words and layout. Not here: finding it out (assets/questions/window.py).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemark.assets.questions.words import (
    AnswerInParts,
    at,
    enumerated,
    instant_text,
    labelled_lines,
    span_text,
    table_lines,
    value_text,
    waiting_for,
    when,
)
from tidemark.resources.tables import window_table
from tidemark.timeops import columns as c
from tidemark.timeops.figures.log_times import Item, Met, SplitReach
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.top import TOP_RANK

_MOST_SHOWN = 20
_OF_ROW = ("window_start", "window_end", "_is_taken_back", c.WATERMARK, c.BATCH)


@dataclass(frozen=True)
class EventOfWindow:
    """The first or the last event of a window; without a number it is a result of another window."""

    seq: int | None
    timestamp_us: int

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"_arrival_seq": self.seq, "_timestamp": instant_text(self.timestamp_us)}


@dataclass(frozen=True)
class GroupOfWindow:
    """A group of a window.

    Attributes:
        group: Its columns and the texts of their values.
        end_us: The end of the window.
        events: How many events it holds.
        first: The earliest by time; None for none.
        last: The latest by time.
        came_first: The number of the event that came first; None for none.
        came_last: The number of the one that came last.
        missed: How many events came when it had closed.
        closes_us: The watermark that closes it.
        closed_by: The item that closed it; None while it is open, and where a flush did.
        by_flush: A flush closed it.
        timeline: Its timeline.
        now: The watermark of the timeline now.
        splits: How far each split of the timeline has come, the slowest first; of a window across timelines each
            timeline.
        rows: Its rows in the table: one, with `top` one for each of the first events, or none.
    """

    group: Mapping[str, str | None]
    end_us: int
    events: int
    first: EventOfWindow | None
    last: EventOfWindow | None
    came_first: int | None
    came_last: int | None
    missed: int
    closes_us: int
    closed_by: Item | None
    by_flush: bool
    timeline: str
    now: Met
    splits: tuple[SplitReach, ...]
    rows: tuple[Mapping[str, Any], ...] = field(repr=False)

    @property
    def is_closed(self) -> bool:
        """True if no event can change it now."""
        return self.by_flush or self.closed_by is not None

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        by = self.closed_by
        return {
            "group": dict(self.group),
            "end": instant_text(self.end_us),
            "state": "closed" if self.is_closed else "open",
            "events": self.events,
            "first": None if self.first is None else self.first.to_dict(),
            "last": None if self.last is None else self.last.to_dict(),
            "missed": self.missed,
            "closes_at": instant_text(self.closes_us),
            "closed_by": "flush"
            if self.by_flush
            else None
            if by is None
            else by.seq
            if by.seq is not None
            else "tick",
            "_watermark": instant_text(self.now.us),
            "has_row": bool(self.rows),
        }


@dataclass(frozen=True)
class WindowAnswer(AnswerInParts):
    """The answer about one window.

    Attributes:
        pipeline: The pipeline.
        window: The window of the spec.
        start_us: Its start.
        end_us: Its end; None where it is not on the grid, or has no event to say it.
        state: `closed`, `open`, or `none`: there is no such window.
        why: Why there is none; empty where there is one.
        groups: Its groups, the largest first.
        in_all: How many groups there are.
        refused: How many records with a time in it were refused before windows, by reason.
        filtered: `where` leaves events out, so they are not counted here.
        rules: The rules of time.
        changed: The keys that have changed since some record was judged, and that change how records are judged.
        gone_until_us: Final results that end by this instant were removed, as `retention` says.
        letters_from: Dead letters of records before this one were removed: `refused` is without them.
    """

    pipeline: str
    window: WindowSpec
    start_us: int
    end_us: int | None
    state: str
    why: str
    groups: tuple[GroupOfWindow, ...]
    in_all: int
    refused: Mapping[str, int]
    rules: TimeRules = field(repr=False)
    changed: tuple[str, ...] = ()
    gone_until_us: int = c.MIN_US
    letters_from: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON; instants are ISO 8601 in UTC."""
        return {
            "window": self.window.name,
            "start": instant_text(self.start_us),
            "end": instant_text(self.end_us),
            "state": self.state,
            "why": self.why or None,
            "groups": [group.to_dict() for group in self.groups],
            "groups_in_all": self.in_all,
            "refused": dict(self.refused),
            "changed_since": list(self.changed),
        }

    def parts(self) -> Iterator[Iterable[str]]:
        """Write the story of the window, part by part."""
        name = f"{self.pipeline}, window {self.window.name} from {at(self.start_us)}"
        if self.end_us is not None:
            name = f"{self.pipeline}, window {self.window.name}, {span_text(self.start_us, self.end_us)}"
        yield [f"{name}: {_headline(self)}"]
        if len(self.groups) == 1:
            yield _group(self.groups[0], self)
        elif self.groups:
            yield _groups(self)
            waiting = next((group for group in self.groups if not group.is_closed), None)
            if waiting is not None:
                yield _waits(waiting, self)
        if self.refused:
            counts = enumerated([f"{count:,} {reason}" for reason, count in self.refused.items()])
            yield [f"Records with a time in it that were refused: {counts}"]
        if self.letters_from:
            first = f"{self.letters_from:,}"
            yield [f"`retention` has removed the dead letters of records before {first}: none of them is counted"]
        if self.changed:
            keys = enumerated(list(self.changed))
            yield [f"The spec has changed since: {keys}. The numbers are of the spec as it is."]


def _headline(answer: WindowAnswer) -> str:
    if answer.state == "none":
        return f"there is no such window: {answer.why}"
    events = sum(group.events for group in answer.groups)
    counted = f"{events:,} event{'s' if events != 1 else ''}"
    if answer.in_all > 1:
        counted += f" in {answer.in_all:,} groups"
    return f"{answer.state}, {counted}"


def _group(group: GroupOfWindow, answer: WindowAnswer) -> Iterator[str]:
    rows = []
    if group.group:
        rows.append(("group", ", ".join(f"{name} {value_text(value)}" for name, value in group.group.items())))
    if answer.end_us is None:
        rows.append(("end", at(group.end_us)))
    rows.append(
        ("events", f"{group.events:,}" + (f"; {group.missed:,} more came when it had closed" if group.missed else ""))
    )
    for label, event in (("first", group.first), ("last", group.last)):
        if event is not None:
            record = "" if event.seq is None else f", record {event.seq:,}"
            rows.append((label, f"{at(event.timestamp_us)}{record}"))
    if group.came_first is not None and group.came_last is not None:
        rows.append(("they came", f"from record {group.came_first:,} to record {group.came_last:,}"))
    rows += _results(group, answer)
    yield from labelled_lines(rows)
    yield ""
    if group.is_closed:
        yield "Closed"
        by = "the flush at the end of input" if group.by_flush else when(group.closed_by, "")
        rows = [("by", by)]
        if group.closed_by is not None:
            passed = "passed" if answer.window.ends_inside else "reached"
            needed = at(group.closes_us - answer.window.ends_inside_us)
            rows.append(("watermark", f"{at(group.closed_by.watermark_us)} after it, which {passed} {needed}"))
        yield from labelled_lines(rows)
    else:
        yield from _waits(group, answer)


def _waits(group: GroupOfWindow, answer: WindowAnswer) -> Iterator[str]:
    window = answer.window
    lateness = ", its end and the allowed lateness" if window.allowed_lateness_us else ""
    verb = "passed" if window.ends_inside else "reached"
    needed = group.closes_us - window.ends_inside_us
    yield f"Open until the watermark has {verb} {at(needed)}{lateness}"
    yield from labelled_lines(
        [
            *waiting_for(
                *(answer.rules, group.now, group.splits, group.timeline, needed),
                inside=window.ends_inside,
                parts="timelines" if window.across else "splits",
            )
        ]
    )


def _results(group: GroupOfWindow, answer: WindowAnswer) -> list[tuple[str, str]]:
    """Return the rows that it has, or why it has none."""
    if not group.rows:
        return [("result", _why_none(group, answer))]
    hidden = (*_OF_ROW, TOP_RANK, *group.group, *(() if answer.window.revises else ("_revision", "_is_final")))
    shown = []
    for row in group.rows:
        values = [
            f"{name} {value_text(value)}" for name, value in row.items() if name not in hidden and value is not None
        ]
        shown.append((f"rank {row[TOP_RANK]}" if TOP_RANK in row else "result", ", ".join(values)))
    return shown


def _why_none(group: GroupOfWindow, answer: WindowAnswer) -> str:
    if not group.is_closed:
        return "none yet"
    why = []
    if answer.window.having is not None:
        why.append(f"`having` does not let it through: {answer.window.having}")
    start = answer.rules.time.start_us
    if start is not None and answer.start_us < start:
        why.append(f"it begins before start_at {at(start)}")
    if group.end_us <= answer.gone_until_us:
        why.append(f"`retention` has removed final results that end by {at(answer.gone_until_us)}")
    return f"no row in {window_table(answer.window.name)}" + (f": {enumerated(why)}" if why else "")


def _groups(answer: WindowAnswer) -> Iterator[str]:
    names = answer.window.group_columns
    rows = [(*names, "end", "events", "first", "last", "state")]
    for group in answer.groups[:_MOST_SHOWN]:
        events = f"{group.events:,}" + (f" (+{group.missed:,} too late)" if group.missed else "")
        ends = [at(event.timestamp_us) if event is not None else "" for event in (group.first, group.last)]
        by = "by a flush" if group.by_flush else f"by {when(group.closed_by, '', short=True)}"
        values = [value_text(group.group[name]) for name in names]
        rows.append((*values, at(group.end_us), events, *ends, f"closed {by}" if group.is_closed else "open"))
    yield from table_lines(rows)
    if answer.in_all > _MOST_SHOWN:
        yield f"  … and {answer.in_all - _MOST_SHOWN:,} more groups; name one in `group`"
