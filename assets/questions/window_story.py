"""The answer about a window as a text for a person: a short story with its numbers.

Here: words and layout. Not here: the facts (window.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemark.assets.questions.words import at, block, listed, span, table, value_text, waiting_for, when
from tidemark.resources.tables import window_table
from tidemark.timeops import columns as c
from tidemark.timeops.spec.top import PLACE

if TYPE_CHECKING:
    from tidemark.assets.questions.window import GroupOfWindow, WindowAnswer

_MOST_SHOWN = 20
_OF_ROW = ("window_start", "window_end", "_is_taken_back", c.WATERMARK, c.BATCH)


def story_of(answer: "WindowAnswer") -> str:
    """Return the answer about a window as a text of some lines."""
    name = f"{answer.pipeline}, window {answer.window.name} from {at(answer.start_us)}"
    if answer.end_us is not None:
        name = f"{answer.pipeline}, window {answer.window.name}, {span(answer.start_us, answer.end_us)}"
    parts = [[f"{name}: {_headline(answer)}"]]
    if len(answer.groups) == 1:
        parts.append([*_group(answer.groups[0], answer)])
    elif answer.groups:
        parts.append([*_groups(answer)])
        waiting = next((group for group in answer.groups if not group.is_closed), None)
        if waiting is not None:
            parts.append([*_waits(waiting, answer)])
    if answer.refused:
        counts = listed([f"{count:,} {reason}" for reason, count in answer.refused.items()])
        parts.append([f"Records with a time in it that were refused: {counts}"])
    if answer.letters_from:
        first = f"{answer.letters_from:,}"
        parts.append([f"`retention` has removed the dead letters of records before {first}: none of them is counted"])
    if answer.changed:
        parts.append(
            [f"The spec has changed since: {listed(list(answer.changed))}. The numbers are of the spec as it is."]
        )
    return "\n\n".join("\n".join(part) for part in parts if part)


def _headline(answer: "WindowAnswer") -> str:
    if answer.state == "none":
        return f"there is no such window: {answer.why}"
    events = sum(group.events for group in answer.groups)
    counted = f"{events:,} event{'s' if events != 1 else ''}"
    if answer.in_all > 1:
        counted += f" in {answer.in_all:,} groups"
    return f"{answer.state}, {counted}"


def _group(group: "GroupOfWindow", answer: "WindowAnswer") -> Iterator[str]:
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
    yield from block(rows)
    yield ""
    if group.is_closed:
        yield "Closed"
        by = "the flush at the end of input" if group.by_flush else when(group.closed_by, "")
        rows = [("by", by)]
        if group.closed_by is not None:
            passed = "passed" if answer.window.ends_inside else "reached"
            needed = at(group.closes_us - answer.window.ends_inside_us)
            rows.append(("watermark", f"{at(group.closed_by.watermark_us)} after it, which {passed} {needed}"))
        yield from block(rows)
    else:
        yield from _waits(group, answer)


def _waits(group: "GroupOfWindow", answer: "WindowAnswer") -> Iterator[str]:
    window = answer.window
    lateness = ", its end and the allowed lateness" if window.allowed_lateness_us else ""
    verb = "passed" if window.ends_inside else "reached"
    needed = group.closes_us - window.ends_inside_us
    yield f"Open until the watermark has {verb} {at(needed)}{lateness}"
    yield from block(
        [
            *waiting_for(
                *(answer.rules, group.now, group.splits, group.timeline, needed),
                inside=window.ends_inside,
                parts="timelines" if window.across else "splits",
            )
        ]
    )


def _results(group: "GroupOfWindow", answer: "WindowAnswer") -> list[tuple[str, str]]:
    """Return the rows that it has, or why it has none."""
    if not group.rows:
        return [("result", _why_none(group, answer))]
    hidden = (*_OF_ROW, PLACE, *group.group, *(() if answer.window.revises else ("_revision", "_is_final")))
    shown = []
    for row in group.rows:
        values = [
            f"{name} {value_text(value)}" for name, value in row.items() if name not in hidden and value is not None
        ]
        shown.append((f"rank {row[PLACE]}" if PLACE in row else "result", ", ".join(values)))
    return shown


def _why_none(group: "GroupOfWindow", answer: "WindowAnswer") -> str:
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
    return f"no row in {window_table(answer.window.name)}" + (f": {listed(why)}" if why else "")


def _groups(answer: "WindowAnswer") -> Iterator[str]:
    names = answer.window.group_columns
    rows = [(*names, "end", "events", "first", "last", "state")]
    for group in answer.groups[:_MOST_SHOWN]:
        events = f"{group.events:,}" + (f" (+{group.missed:,} too late)" if group.missed else "")
        ends = [at(event.timestamp_us) if event is not None else "" for event in (group.first, group.last)]
        by = "by a flush" if group.by_flush else f"by {when(group.closed_by, '', short=True)}"
        values = [value_text(group.group[name]) for name in names]
        rows.append((*values, at(group.end_us), events, *ends, f"closed {by}" if group.is_closed else "open"))
    yield from table(rows)
    if answer.in_all > _MOST_SHOWN:
        yield f"  … and {answer.in_all - _MOST_SHOWN:,} more groups; name one in `group`"
