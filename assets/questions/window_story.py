"""The answer about a window as a text for a person: a short story with its numbers.

Here: words and layout. Not here: the facts (window.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemark.assets.questions.words import at, block, listed, span, table, value_text, waiting_for, when
from tidemark.resources.tables import window_table
from tidemark.timeops import columns as c

if TYPE_CHECKING:
    from tidemark.assets.questions.window import GroupOfWindow, WindowAnswer

_MOST_SHOWN = 20
_OF_ROW = ("window_start", "window_end", "_is_taken_back", c.WATERMARK, c.BATCH)


def story_of(one: "WindowAnswer") -> str:
    """Return the answer about a window as a text of some lines."""
    name = f"{one.pipeline}, window {one.window.name} from {at(one.start_us)}"
    if one.end_us is not None:
        name = f"{one.pipeline}, window {one.window.name}, {span(one.start_us, one.end_us)}"
    parts = [[f"{name}: {_headline(one)}"]]
    if len(one.groups) == 1:
        parts.append([*_group(one.groups[0], one)])
    elif one.groups:
        parts.append([*_groups(one)])
        waiting = next((group for group in one.groups if not group.is_closed), None)
        if waiting is not None:
            parts.append([*_waits(waiting, one)])
    if one.refused:
        counts = listed([f"{count:,} {reason}" for reason, count in one.refused.items()])
        parts.append([f"Records with a time in it that were refused: {counts}"])
    if one.changed:
        parts.append(
            [f"The spec has changed since: {listed(list(one.changed))}. The numbers are of the spec as it is."]
        )
    return "\n\n".join("\n".join(part) for part in parts if part)


def _headline(one: "WindowAnswer") -> str:
    if one.state == "none":
        return f"there is no such window: {one.why}"
    events = sum(group.events for group in one.groups)
    counted = f"{events:,} event{'s' if events != 1 else ''}"
    if one.in_all > 1:
        counted += f" in {one.in_all:,} groups"
    return f"{one.state}, {counted}"


def _group(group: "GroupOfWindow", one: "WindowAnswer") -> Iterator[str]:
    rows = []
    if group.group:
        rows.append(("group", ", ".join(f"{name} {value_text(value)}" for name, value in group.group.items())))
    if one.end_us is None:
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
    rows.append(("result", _row(group, one)))
    yield from block(rows)
    yield ""
    if group.is_closed:
        yield "Closed"
        by = "the flush at the end of input" if group.by_flush else when(group.closed_by, "")
        rows = [("by", by)]
        if group.closed_by is not None:
            passed = "passed" if one.window.ends_inside else "reached"
            needed = at(group.closes_us - one.window.ends_inside_us)
            rows.append(("watermark", f"{at(group.closed_by.watermark_us)} after it, which {passed} {needed}"))
        yield from block(rows)
    else:
        yield from _waits(group, one)


def _waits(group: "GroupOfWindow", one: "WindowAnswer") -> Iterator[str]:
    window = one.window
    lateness = ", its end and the allowed lateness" if window.allowed_lateness_us else ""
    verb = "passed" if window.ends_inside else "reached"
    needed = group.closes_us - window.ends_inside_us
    yield f"Open until the watermark has {verb} {at(needed)}{lateness}"
    yield from block(
        [*waiting_for(one.rules, group.now, group.splits, group.timeline, needed, inside=window.ends_inside)]
    )


def _row(group: "GroupOfWindow", one: "WindowAnswer") -> str:
    if group.row is None:
        if not group.is_closed:
            return "none yet"
        why = []
        if one.window.having is not None:
            why.append(f"`having` does not let it through: {one.window.having}")
        start = one.rules.time.start_us
        if start is not None and one.start_us < start:
            why.append(f"it begins before start_at {at(start)}")
        return f"no row in {window_table(one.window.name)}" + (f": {listed(why)}" if why else "")
    hidden = (*_OF_ROW, *group.group, *(() if one.window.revises else ("_revision", "_is_final")))
    shown = {name: value for name, value in group.row.items() if name not in hidden}
    return ", ".join(f"{name} {value_text(value)}" for name, value in shown.items() if value is not None)


def _groups(one: "WindowAnswer") -> Iterator[str]:
    names = one.window.group_columns
    rows = [(*names, "end", "events", "first", "last", "state")]
    for group in one.groups[:_MOST_SHOWN]:
        events = f"{group.events:,}" + (f" (+{group.missed:,} too late)" if group.missed else "")
        ends = [at(event.timestamp_us) if event is not None else "" for event in (group.first, group.last)]
        by = "by a flush" if group.by_flush else f"by {when(group.closed_by, '', short=True)}"
        values = [value_text(group.group[name]) for name in names]
        rows.append((*values, at(group.end_us), events, *ends, f"closed {by}" if group.is_closed else "open"))
    yield from table(rows)
    if one.in_all > _MOST_SHOWN:
        yield f"  … and {one.in_all - _MOST_SHOWN:,} more groups; name one in `group`"
