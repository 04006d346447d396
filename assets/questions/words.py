"""Words and layout that the answers to questions share: instants, lengths, blocks and tables of text.

Here: texts of values, and how an answer becomes one text. Not here: what is said about a record or a window
(assets/questions/record_answer.py, assets/questions/window_answer.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from tidemark.timeops import columns as c
from tidemark.timeops.errors.printable import printable
from tidemark.timeops.figures.log_times import Item, Met, SplitReach
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.values.durations import format_duration, roughly
from tidemark.timeops.values.utc import Instant

_LONGEST_VALUE = 40


class AnswerInParts(ABC):
    """An answer for a person: its text consists of parts with an empty line between them, and `print` shows it."""

    @abstractmethod
    def parts(self) -> Iterable[Iterable[str]]:
        """Return the lines of each part of the text; a part without lines is left out."""

    @property
    def text(self) -> str:
        """The answer as lines."""
        return "\n\n".join(filter(None, map("\n".join, self.parts())))

    def __str__(self) -> str:
        """Return the text."""
        return self.text


def at(us: int | None) -> str:
    """Return an instant for a person to read, UTC."""
    return "" if us is None else str(Instant(us))


def instant_text(us: int | None) -> str | None:
    """Return an instant as JSON has it."""
    return None if us is None else f"{Instant(us)}Z".replace(" ", "T")


def length_text(us: int) -> str:
    """Return a length of time for a person to read; a short one with all its digits."""
    duration = timedelta(microseconds=us)
    return roughly(duration) if duration >= timedelta(seconds=10) else format_duration(duration)


def span_text(start_us: int, end_us: int) -> str:
    """Return two instants, the day once if it is the same."""
    start, end = at(start_us), at(end_us)
    return f"{start} to {end[11:] if end[:10] == start[:10] else end}"


def when(item: Item | None, otherwise: str, *, short: bool = False) -> str:
    """Return an item of the log and the clock at it, or another text where there is none."""
    if item is None:
        return otherwise
    event = "a tick" if item.seq is None else f"record {item.seq:,}"
    return event if short else f"{event} at {at(item.clock_us)}"


def value_text(value: object, most: int = _LONGEST_VALUE) -> str:
    """Return a value of a table in few letters."""
    if isinstance(value, float):
        return f"{value:.6g}"
    text = printable(str(value))
    return text if len(text) <= most else f"{text[:most]}…"


def enumerated(names: Sequence[str]) -> str:
    """Return some texts with commas, and `and` before the last."""
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else "".join(names)


def labelled_lines(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Lay rows of a label and a text out below each other."""
    width = max((len(label) for label, _ in rows), default=0)
    yield from (f"  {label:<{width}}  {text}".rstrip() for label, text in rows)


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lay rows of some cells out below each other."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "   ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[int] = (0,)) -> list[str]:
    """Return a head and rows as lines, two blanks between columns; nothing without rows.

    Args:
        head: The name of each column.
        rows: The cells.
        texts: The columns that begin at the left; numbers end at the right.
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if place in texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def percent(share: float) -> str:
    """Return a share in percent, so that small ones are not zero."""
    value = 100 * share
    if not value:
        return "0 %"
    return f"{value:.1f} %" if value >= 1 else f"{value:.2g} %"


def split_text(source: str, value: str | None) -> str:
    """Return a split in words."""
    return source if value is None else f"{source}, split {value_text(value)}"


def clock_rule(rules: TimeRules) -> str:
    """Return the idle rule of a spec in words."""
    time = rules.time
    if time.idle_advance == "arrival_clock":
        return f"idle arrival_clock, late tolerance {length_text(time.clock_tolerance_us or 0)}"
    return f"idle {time.idle_advance}, timeout {length_text(time.idle_timeout_us or 0)}"


def waiting_for(
    rules: TimeRules,
    now: Met,
    splits: Sequence[SplitReach],
    timeline: str,
    needed_us: int,
    *,
    inside: bool,
    parts: str = "splits",
) -> Iterator[tuple[str, str]]:
    """Say where a watermark is, what holds it back, and what will bring it to an instant.

    Args:
        rules: The rules of time.
        now: The watermark.
        splits: How far each split has come, the slowest first.
        timeline: The timeline.
        needed_us: The instant, microseconds.
        inside: The watermark has to pass it; else to reach it.
        parts: The plural of what `splits` are.
    """
    if now.us is None:
        yield "watermark", "none yet"
    else:
        yield "watermark", f"{at(now.us)} now, {length_text(max(needed_us - now.us, 0))} before that"
    active = [split for split in splits if not split.is_idle]
    if len(active) > 1:
        held = active[0]
        last = "" if held.last_us is None else f"; its last event came {at(held.last_us)}"
        allows = f"which allows {at(held.allows_us)}" if held.allows_us is not None else "which had no event yet"
        yield "held back by", f"{split_text(held.source, held.value)}, {allows}{last}"
        slow = [split for split in active if split.allows_us is None or split.allows_us < needed_us + inside]
        if len(slow) > 1:
            yield "", f"{len(slow):,} of {len(active):,} {parts} are not so far"
    else:
        tolerances = {source.name: source.out_of_orderness_us for source in rules.sources}
        tolerance = (
            tolerances.get(active[0].source)
            if active
            else next(iter(tolerances.values()))
            if len(tolerances) == 1
            else None
        )
        tolerance = rules.time.out_of_orderness_us if tolerance is None else tolerance
        owner = f" of timeline {timeline}" if timeline != c.ONE_TIMELINE else ""
        bound = f"after {at(needed_us + tolerance)}" if inside else f"from {at(needed_us + tolerance)} on"
        yield "needs", f"an event{owner} with a time {bound}"
    if rules.clock_moves:
        yield "or", f"the clock ({clock_rule(rules)})"
    yield "or", "a flush: `tidemark run SPEC --end-of-input flush`"
