"""One window definition: which windows an accepted event reaches or misses, and the results that they write.

The keeper is told W and the clock; it moves neither.
"""

from dataclasses import dataclass, field
from operator import itemgetter

from tests.oracle.grids import floor, next_window, windows_of
from tests.oracle.model import Group, Interval, Record, Window
from tests.oracle.outcome import WindowResult

Key = tuple[str, int, int, Group]


@dataclass
class OpenWindow:
    """A window of one timeline and group that is not closed; `past_end` once its end lies behind W."""

    timeline: str
    start: int
    end: int
    group: Group
    seqs: list[int] = field(default_factory=list)
    past_end: bool = False
    next_revision: int = 0
    reported: tuple[int, ...] = ()

    @property
    def key(self) -> Key:
        """Key that makes it one window."""
        return (self.timeline, self.start, self.end, self.group)

    @property
    def events(self) -> tuple[int, ...]:
        """The events in it, ascending."""
        return tuple(sorted(self.seqs))


@dataclass(frozen=True)
class Placing:
    """Outcome of an event: in_windows, in_gap, filtered, bad_expression or window_closed; the windows it missed."""

    outcome: str
    missed: tuple[Interval, ...] = ()
    lateness_us: int | None = None


class WindowKeeper:
    """All windows of one definition."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.open: list[OpenWindow] = []
        self.flushed: set[Key] = set()  # what a flush closed stays closed
        self.records: dict[int, Record] = {}  # every event that reached a window
        self.times: dict[int, int] = {}  # its _timestamp
        self.timelines: dict[int, str] = {}  # the timeline by which its windows close
        self.gaps: dict[int, int] = {}  # how long it keeps its session open, if it says so itself
        self.reached: dict[Key, None] = {}  # every window that ever held an event, in the order of the first
        self.emptied: set[Key] = set()  # empty windows already given
        self.made: list[WindowResult] = []  # by the present item, not yet stamped with W

    # ---- tests against W

    def is_past_end(self, end: int, watermark: int | None) -> bool:
        if watermark is None:
            return False
        return end < watermark if self.window.end_is_inside else end <= watermark

    def is_closed(self, key: Key, watermark: int | None) -> bool:
        return key in self.flushed or self.is_past_end(key[2] + self.window.allowed_lateness_us, watermark)

    def refusal(self, key: Key, missed: list[Interval], watermark: int | None) -> Placing:
        """Return the placing of an event with no open window left; `key` is its last window."""
        lateness: int | None = None
        # What only a flush has closed, no lateness would have held open.
        if watermark is not None and self.is_past_end(key[2] + self.window.allowed_lateness_us, watermark):
            lateness = watermark - key[2] - self.window.allowed_lateness_us + 1
            if self.window.end_is_inside:
                lateness -= 1
        return Placing("window_closed", tuple(missed), lateness)

    # ---- placing an event

    def offer(self, record: Record, t: int, timeline: str, watermark: int | None) -> Placing:
        """Put an accepted event with _timestamp t into its open windows; W is the one just before it."""
        if self.window.where is not None and not self.window.where(record):
            return Placing("filtered")
        if self.window.gap is not None:
            gap = self.window.gap(record)
            if gap is None:
                return Placing("bad_expression")
            self.gaps[record.seq] = gap
        group = self.window.group(record)
        if self.window.kind == "session":
            placing = self.offer_to_sessions(record, t, timeline, group, watermark)
        elif self.window.kind == "sliding":
            placing = self.offer_to_sliding(record, t, timeline, group, watermark)
        else:
            placing = self.offer_to_grid(record, t, timeline, group, watermark)
        if placing.outcome == "in_windows" and self.window.revise_every_us == 0:
            self.report_changes_behind_the_end()
        return placing

    def keep(self, record: Record, t: int, timeline: str) -> None:
        self.records[record.seq] = record
        self.times[record.seq] = t
        self.timelines[record.seq] = timeline

    def offer_to_grid(self, record: Record, t: int, timeline: str, group: Group, watermark: int | None) -> Placing:
        """Windows that depend on t alone."""
        belongs = windows_of(self.window, t)
        if not belongs:
            return Placing("in_gap")
        missed: list[Interval] = []
        open_ones: list[Interval] = []
        for start, end in belongs:
            if self.is_closed((timeline, start, end, group), watermark):
                missed.append((start, end))
            else:
                open_ones.append((start, end))
        if not open_ones:
            return self.refusal((timeline, *belongs[-1], group), missed, watermark)
        self.keep(record, t, timeline)
        for start, end in open_ones:
            self.get_or_open((timeline, start, end, group), watermark).seqs.append(record.seq)
            self.reached[(timeline, start, end, group)] = None
        return Placing("in_windows", tuple(missed))

    def get_or_open(self, key: Key, watermark: int | None) -> OpenWindow:
        """Return the open window of this key, opened if need be."""
        for opened in self.open:
            if opened.key == key:
                return opened
        opened = OpenWindow(*key, past_end=self.is_past_end(key[2], watermark))
        self.open.append(opened)
        return opened

    def offer_to_sessions(
        self, record: Record, t: int, timeline: str, group: Group, watermark: int | None
    ) -> Placing:
        """Return the session that the event makes with the open sessions of its group, merged."""
        others: list[OpenWindow] = []
        before: list[OpenWindow] = []
        for opened in self.open:
            is_own = opened.timeline == timeline and opened.group == group
            (before if is_own else others).append(opened)
        events = [(t, record.seq), *((self.times[seq], seq) for opened in before for seq in opened.seqs)]
        sessions = self.sessions_of(sorted(events), timeline, group)
        own = next(session for session in sessions if record.seq in session.seqs)
        # With a longest duration it may be one that the event cuts off another that a flush had closed before.
        own = next((session for session in sessions if session.key in self.flushed), own)
        if self.is_closed(own.key, watermark):
            return self.refusal(own.key, [(own.start, own.end)], watermark)
        self.keep(record, t, timeline)
        for session in sessions:
            self.go_on(session, before, watermark)
        for opened in before:
            if opened.key not in [session.key for session in sessions]:
                self.take_back(opened)
        self.open = others + sessions
        return Placing("in_windows")

    def go_on(self, session: OpenWindow, before: list[OpenWindow], watermark: int | None) -> None:
        """Keep the results so far of a session whose bounds did not change; any other session has none yet."""
        session.past_end = self.is_past_end(session.end, watermark)
        for opened in before:
            if opened.key == session.key:
                session.past_end = opened.past_end
                session.next_revision = opened.next_revision
                session.reported = opened.reported

    def take_back(self, opened: OpenWindow) -> None:
        """Take away the results so far of a session whose bounds have changed."""
        if opened.next_revision:
            self.give(opened, is_final=False, is_shown=False)

    def sessions_of(self, events: list[tuple[int, int]], timeline: str, group: Group) -> list[OpenWindow]:
        """Cut (time, seq) pairs in order into sessions, which their events keep open; at most max_duration long."""
        longest = self.window.max_duration_us
        sessions: list[OpenWindow] = []
        reached = 0
        for t, seq in events:
            joins = bool(sessions) and t <= reached
            if joins and longest is not None:
                joins = t - sessions[-1].start <= longest
            if not joins:
                sessions.append(OpenWindow(timeline, t, t, group))
                reached = t
            session = sessions[-1]
            session.seqs.append(seq)
            reached = max(reached, t + self.gaps.get(seq, self.window.gap_us))
            session.end = reached
            if longest is not None:
                session.end = min(session.end, session.start + longest)
        return sessions

    def offer_to_sliding(self, record: Record, t: int, timeline: str, group: Group, watermark: int | None) -> Placing:
        """Return instants: the set in (instant - size, instant] changes when an event comes, at t, or goes."""
        size = self.window.size_us
        peers = [
            seq
            for seq, peer in self.records.items()
            if self.timelines[seq] == timeline and self.window.group(peer) == group
        ]
        instants = {t}
        for seq in peers:
            instants.update({self.times[seq], self.times[seq] + size})
        belongs = sorted(instant for instant in instants if t <= instant < t + size)
        own_windows = [(instant - size, instant) for instant in belongs]
        missed = [own for own in own_windows if self.is_closed((timeline, *own, group), watermark)]
        last_end = t + size - 1  # a later event can still ask for the set at any instant before t + size
        last_key = (timeline, last_end - size, last_end, group)
        if self.is_closed(last_key, watermark):
            return self.refusal(last_key, [(t - size, t)], watermark)  # the one that it would have made by itself
        self.keep(record, t, timeline)
        for instant in (*belongs, t + size):
            key = (timeline, instant - size, instant, group)
            if self.is_closed(key, watermark):
                continue
            opened = self.get_or_open(key, watermark)
            opened.seqs = [seq for seq in (*peers, record.seq) if instant - size < self.times[seq] <= instant]
        return Placing("in_windows", tuple(missed))

    # ---- results

    def settle(self, timeline: str, watermark: int | None, everything: bool) -> None:
        """Write on-time and final rows as W allows; a flush closes every window that holds events."""
        for opened in sorted(self.open, key=lambda opened: (opened.end, opened.start)):
            if opened.timeline != timeline:
                continue
            flushes = everything and bool(opened.seqs)
            if flushes or self.is_closed(opened.key, watermark):
                self.open.remove(opened)
                if opened.seqs:
                    self.give(opened, is_final=True)
                if flushes:
                    self.flushed.add(opened.key)
            elif self.is_past_end(opened.end, watermark) and not opened.past_end:
                opened.past_end = True
                if self.window.emit == "on_time" and opened.seqs:
                    self.give(opened, is_final=False)
        if self.window.empty:
            self.settle_empty(timeline, watermark, everything)

    def settle_empty(self, timeline: str, watermark: int | None, everything: bool) -> None:
        """Closed windows without events, from a group's first to the timeline's last that held one, by their ends."""
        reached = [key for key in self.reached if key[0] == timeline]
        for group in dict.fromkeys(key[3] for key in reached):
            current = min(((key[1], key[2]) for key in reached if key[3] == group), key=itemgetter(1))
            last_end = max(key[2] for key in reached)
            while current[1] <= last_end:
                key = (timeline, *current, group)
                closed = everything or self.is_closed(key, watermark)
                if closed and key not in self.reached and key not in self.emptied:
                    self.emptied.add(key)
                    self.give(OpenWindow(*key), is_final=True)
                    if everything:
                        self.flushed.add(key)
                current = next_window(self.window, current)

    def clock_moved(self, before: int | None, now: int) -> None:
        """Write the revisions of the clock periods that have ended."""
        if before is None:
            return
        every = self.window.revise_every_us
        if every > 0 and floor(now, every) > floor(before, every):
            self.report_changes_behind_the_end()
        early = self.window.early_every_us
        if early is not None and floor(now, early) > floor(before, early):
            for opened in sorted(self.open, key=lambda opened: (opened.end, opened.start)):
                if opened.events != opened.reported:
                    self.give(opened, is_final=False)

    def report_changes_behind_the_end(self) -> None:
        """With on_time: one revision for each window that late events changed since its last row."""
        if self.window.emit != "on_time":
            return
        for opened in sorted(self.open, key=lambda opened: (opened.end, opened.start)):
            if opened.past_end and opened.events != opened.reported:
                self.give(opened, is_final=False)

    def give(self, opened: OpenWindow, is_final: bool, is_shown: bool = True) -> None:
        """Make one result row; W is stamped on it when the item is done."""
        events = opened.events
        revision = opened.next_revision
        opened.next_revision += 1
        opened.reported = events
        if self.window.having is not None and not self.window.having([self.records[seq] for seq in events]):
            is_shown = False
        key = (opened.start, opened.end, opened.group)
        self.made.append(WindowResult(*key, events, revision, is_final, None, opened.timeline, is_shown))

    def still_open(self) -> list[tuple[int, int, Group, tuple[int, ...]]]:
        """Return the windows that hold events and are not closed, by (start, end)."""
        holding = [opened for opened in self.open if opened.seqs]
        holding.sort(key=lambda opened: (opened.start, opened.end))
        return [(opened.start, opened.end, opened.group, opened.events) for opened in holding]
