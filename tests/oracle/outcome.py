"""Output of the oracle: released and held events, dead letters, window results, counts.

Plain values only; nothing here decides anything.
"""

from dataclasses import dataclass, field

from tests.oracle.model import Group, Interval


@dataclass(frozen=True)
class OrderedEvent:
    """An accepted event; `watermark_us` is W just before it, `release_seq` is None while held or if kept."""

    seq: int
    timestamp_us: int
    release_seq: int | None
    adjusted_by: tuple[str, ...]
    timeline: str
    watermark_us: int | None
    event_us: int


@dataclass(frozen=True)
class DeadLetter:
    """A refused event; with stage `window` one for each window definition that refused it."""

    seq: int
    stage: str
    reason: str
    window_name: str | None = None
    missed_windows: tuple[Interval, ...] = ()
    event_us: int | None = None
    watermark_us: int | None = None
    lateness_us: int | None = None
    watermark_set_by: int | None = None


@dataclass(frozen=True)
class WindowResult:
    """One row of a window: `events` are ascending seqs, `watermark_us` is W after the item that made it.

    One that is not shown takes away the row of the revision before: `having` keeps it back, or a session is no more.
    """

    window_start: int
    window_end: int
    group: Group
    events: tuple[int, ...]
    revision: int
    is_final: bool
    watermark_us: int | None
    timeline: str
    is_shown: bool = True


@dataclass
class Counts:
    """Events that met rules 1 to 3, whatever became of them, and per window name what became of events."""

    early: int = 0
    late: int = 0
    out_of_order: int = 0
    in_gap: dict[str, int] = field(default_factory=dict)
    filtered: dict[str, int] = field(default_factory=dict)
    in_windows: dict[str, int] = field(default_factory=dict)
    missed_some: dict[str, int] = field(default_factory=dict)


@dataclass
class Outcome:
    """All results of the log.

    `watermarks` has one entry per item: timeline to W after it (None before there is one and while flushed).
    `missed` has, per window name, the (seq, windows) of events that missed some windows and reached others.
    `given` has, per window name, the position of the item that made each of its results.
    `hidden` has, per window name, the results that are not shown.
    `open_windows` has, per window name, (start, end, group, seqs) of what is not closed yet.
    """

    ordered: list[OrderedEvent] = field(default_factory=list)
    held: list[OrderedEvent] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    windows: dict[str, list[WindowResult]] = field(default_factory=dict)
    given: dict[str, list[int]] = field(default_factory=dict)
    hidden: dict[str, list[WindowResult]] = field(default_factory=dict)
    watermarks: list[dict[str, int | None]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    missed: dict[str, list[tuple[int, tuple[Interval, ...]]]] = field(default_factory=dict)
    open_windows: dict[str, list[tuple[int, int, Group, tuple[int, ...]]]] = field(default_factory=dict)
