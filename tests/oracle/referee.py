"""The run over the log: per item the clock, the idle rules, the judgement, the activity, the move of W.

The order of these steps is the point of this module; timeline and windows hold what they do.
"""

from collections.abc import Sequence
from dataclasses import replace

from tests.oracle.across import ACROSS, Across
from tests.oracle.grids import floor
from tests.oracle.model import Control, Record, TimeRules, Window, check_rules, check_window, refuse
from tests.oracle.outcome import DeadLetter, OrderedEvent, Outcome
from tests.oracle.policies import Timed, TimePolicies, refused_at_ingestion
from tests.oracle.timeline import Timeline
from tests.oracle.waits import Waits
from tests.oracle.windows import WindowKeeper


def run(items: Sequence[Record | Control], rules: TimeRules, windows: Sequence[Window] = ()) -> Outcome:
    """Play the whole log, one item after the other.

    Raises:
        ValueError: A setting is impossible, the items are out of order, or input follows a flush.
    """
    check_rules(rules, windows)
    for window in windows:
        check_window(window, rules)
    names = [window.name for window in windows]
    refuse(len(set(names)) != len(names), "windows", "names are unique")
    check_items(items)
    referee = Referee(items, rules, windows)
    referee.let_in([item for item in items if isinstance(item, Record) and item.is_let_in])
    for item in items:
        referee.play(item)
    return referee.close()


def check_items(items: Sequence[Record | Control]) -> None:
    last = -1
    for item in items:
        if isinstance(item, Record):
            refuse(item.seq <= last, "seq", f"{item.seq} stands behind {last}")
            last = item.seq
            continue
        refuse(item.kind not in ("tick", "flush", "reopen", "wait", "spec"), "kind", f"unknown kind {item.kind}")
        refuse(item.after_seq != last, "after_seq", f"{item.after_seq} stands behind {last}")
        refuse((item.clock_us is None) == (item.kind == "tick"), "clock_us", "a tick has one, others have none")


class Referee:
    """The state of a run."""

    def __init__(self, items: Sequence[Record | Control], rules: TimeRules, windows: Sequence[Window]) -> None:
        self.rules = rules
        self.outcome = Outcome()
        self.clock: int | None = None
        self.flushed = False
        self.waits = Waits()
        self.policies = TimePolicies(rules, self.outcome.counts)
        # All timelines exist from the start, as clock-driven watermarks hold for every one of them.
        self.timelines: dict[str, Timeline] = {}
        for item in items:
            if isinstance(item, Record) and refused_at_ingestion(item) is None:
                self.timelines.setdefault(item.timeline, Timeline(rules, windows, self.waits))
        self.keepers = [WindowKeeper(window) for window in windows]
        self.has_across = any(window.across for window in windows)
        # Without such a window none is asked: under rules that change, timelines may lack what it asks them for.
        self.across = Across(rules, self.timelines if self.has_across else {})
        counts = self.outcome.counts
        for window in windows:
            self.outcome.windows[window.name] = []
            self.outcome.given[window.name] = []
            self.outcome.hidden[window.name] = []
            self.outcome.missed[window.name] = []
            for by_window in (counts.in_gap, counts.filtered, counts.in_windows, counts.missed_some):
                by_window[window.name] = 0

    def let_in(self, records: Sequence[Record]) -> None:
        """Put the records that an operator has let in into their windows, as if they had come before all others."""
        for record in records:
            if (event := self.event_let_in(record)) is not None:
                for keeper in self.keepers:
                    self.place(record, event, self.timelines[record.timeline], keeper)

    def event_let_in(self, record: Record) -> OrderedEvent | None:
        """Return the event of such a record, with its own time; None if it has none."""
        e = record.arrival_us if self.rules.processing_time else record.event_us
        if record.bad is not None or record.arrival_us is None or e is None:
            return None
        return OrderedEvent(record.seq, floor(e, self.rules.unit_us), None, ("admitted",), record.timeline, None, e)

    # ---- one item

    def play(self, item: Record | Control) -> None:
        if isinstance(item, Control) and item.kind == "flush":
            self.flushed = True
            self.settle(everything=True)
        elif isinstance(item, Control) and item.kind == "wait":
            self.waits.waiters = item.waiters
        elif isinstance(item, Control) and item.rules is not None:
            self.go_by(item.rules)
        elif isinstance(item, Control) and item.kind == "reopen":
            refuse(not self.flushed, "reopen", "nothing was flushed")
            self.flushed = False
        else:
            if isinstance(item, Record) and self.flushed:
                raise ValueError(f"record {item.seq} follows a flush: reopen the pipeline first")
            self.advance_clock(item)
            self.settle()
            if isinstance(item, Record):
                self.judge(item)
            self.settle()
        self.finish_item()

    def advance_clock(self, item: Record | Control) -> None:
        """Move the clock to the item's, end the periods this ends, let the idle rules take effect."""
        own = item.arrival_us if isinstance(item, Record) else item.clock_us
        before = self.clock
        if own is not None and (before is None or own > before):
            self.clock = own
            self.waits.pass_time(own if before is None else before, own)
        if self.clock is None:
            return
        for keeper in self.keepers:
            keeper.clock_moved(before, self.clock)
        every = self.rules.emit_every_us
        if every is not None and (before is None or floor(self.clock, every) > floor(before, every)):
            for timeline in self.timelines.values():
                timeline.publish()
            self.across.publish()
        for timeline in self.timelines.values():
            timeline.apply_idle(self.clock, is_tick=isinstance(item, Control))
        self.across.look(self.clock, None)
        self.publish_on_event()

    def go_by(self, rules: TimeRules) -> None:
        """Other rules hold from here on; what they raise is seen at once, or with the next period."""
        check_rules(rules, [keeper.window for keeper in self.keepers])
        self.rules = self.policies.rules = self.across.rules = rules
        for timeline in self.timelines.values():
            timeline.go_by(rules, self.clock)
            if self.clock is not None and rules.idle is not None and rules.idle[0] == "arrival_clock":
                timeline.apply_idle(self.clock, is_tick=False)
        if self.clock is not None:
            self.across.look(self.clock, None)
        self.publish_on_event()
        self.settle()

    def publish_on_event(self) -> None:
        """With emit on_event, W is seen as soon as it moves."""
        if self.rules.emit_every_us is None:
            for timeline in self.timelines.values():
                timeline.publish()
            self.across.publish()

    def settle(self, everything: bool = False) -> None:
        """Release and close what lies behind W, or all."""
        for name, timeline in self.timelines.items():
            self.outcome.ordered += timeline.release(everything)
            for keeper in (keeper for keeper in self.keepers if not keeper.window.across):
                keeper.settle(name, timeline.published, everything)
        for keeper in (keeper for keeper in self.keepers if keeper.window.across):
            keeper.settle(ACROSS, self.across.published, everything)

    def finish_item(self) -> None:
        """Note W after the item, and stamp it on the results that the item made."""
        after = {name: None if self.flushed else timeline.published for name, timeline in self.timelines.items()}
        if self.has_across:
            after[ACROSS] = None if self.flushed else self.across.published
        self.outcome.watermarks.append(after)
        for keeper in self.keepers:
            for result in keeper.made:
                stamped = replace(result, watermark_us=after[result.timeline])
                if not result.is_shown:
                    self.outcome.hidden[keeper.window.name].append(stamped)
                    continue
                self.outcome.windows[keeper.window.name].append(stamped)
                self.outcome.given[keeper.window.name].append(len(self.outcome.watermarks) - 1)
            keeper.made = []

    # ---- judging a record

    def judge(self, record: Record) -> None:
        """Judge a record; then it counts as activity; then it moves W."""
        reason = refused_at_ingestion(record)
        if reason is not None or record.arrival_us is None or self.clock is None:
            self.outcome.dead_letters.append(DeadLetter(record.seq, "ingest", reason or "no_arrival_time"))
            return
        timeline = self.timelines[record.timeline]
        verdict = self.policies.judge(record, record.arrival_us)
        event = self.event_let_in(record) if record.is_let_in else None
        if event is not None:
            self.outcome.ordered.append(event)
        if event is not None and isinstance(verdict, Timed):
            self.note_order(record, verdict, timeline)
        elif isinstance(verdict, Timed):
            self.judge_order(record, verdict, timeline)
        else:
            self.outcome.dead_letters.append(verdict)
        timeline.note_activity(record, self.clock)
        if isinstance(verdict, Timed) and not verdict.moves:
            timeline.has_kept_early = True
        if isinstance(verdict, Timed) and verdict.moves:
            timeline.move(record, verdict.t, self.clock)
            self.across.look(self.clock, record.seq)
        self.publish_on_event()

    def judge_order(self, record: Record, timed: Timed, timeline: Timeline) -> None:
        """Rule 3 against W just before the event; an accepted event is held, or passes if kept."""
        watermark = timeline.published
        event = OrderedEvent(record.seq, timed.t, None, timed.adjusted_by, record.timeline, watermark, timed.event_us)
        if watermark is None or timed.t >= watermark:
            timeline.held.append(event)
        else:
            self.outcome.counts.out_of_order += 1
            if self.rules.out_of_order == "drop":
                self.drop_out_of_order(event, watermark, timeline.published_set_by)
                return
            if self.rules.out_of_order == "adjust":
                moved_by = (*event.adjusted_by, "out_of_order")
                event = replace(event, timestamp_us=watermark, adjusted_by=moved_by)
                timeline.held.append(event)
            else:
                event = replace(event, adjusted_by=(*event.adjusted_by, "kept_out_of_order"))
                self.outcome.ordered.append(event)
        for keeper in self.keepers:
            self.place(record, event, timeline, keeper)

    def note_order(self, record: Record, timed: Timed, timeline: Timeline) -> None:
        """Write down what rule 3 says of a record that an operator has let in."""
        watermark = timeline.published
        if watermark is not None and timed.t < watermark:
            self.outcome.counts.out_of_order += 1
            if self.rules.out_of_order == "drop":
                event = OrderedEvent(record.seq, timed.t, None, (), record.timeline, watermark, timed.event_us)
                self.drop_out_of_order(event, watermark, timeline.published_set_by)

    def drop_out_of_order(self, event: OrderedEvent, watermark: int, set_by: int | None) -> None:
        """Drop an event by rule 3; where the clock alone raised W no tolerance would have let it in."""
        self.outcome.dead_letters.append(
            DeadLetter(
                event.seq,
                "time",
                "out_of_order",
                event_us=event.event_us,
                watermark_us=watermark,
                lateness_us=None if self.is_by_clock(set_by) else watermark - event.timestamp_us,
                watermark_set_by=set_by,
            )
        )

    def is_by_clock(self, set_by: int | None) -> bool:
        """Return whether the clock raised W, so that no tolerance would have let an event in; others may, too."""
        return set_by is None and self.rules.idle is not None

    def place(self, record: Record, event: OrderedEvent, timeline: Timeline, keeper: WindowKeeper) -> None:
        """Offer an accepted event to one window definition and write down what became of it."""
        name = keeper.window.name
        counts = self.outcome.counts
        goes_by = self.across if keeper.window.across else timeline
        of = ACROSS if keeper.window.across else record.timeline
        placing = keeper.offer(record, event.timestamp_us, of, goes_by.published)
        if placing.outcome == "window_closed":
            set_by = goes_by.published_set_by
            self.outcome.dead_letters.append(
                DeadLetter(
                    record.seq,
                    "window",
                    "window_closed",
                    name,
                    placing.missed,
                    event.event_us,
                    goes_by.published,
                    None if self.is_by_clock(set_by) else placing.lateness_us,
                    set_by,
                )
            )
        elif placing.outcome == "bad_expression":
            letter = DeadLetter(record.seq, "window", "bad_expression", name, event_us=event.event_us)
            self.outcome.dead_letters.append(letter)
        elif placing.outcome == "filtered":
            counts.filtered[name] += 1
        elif placing.outcome == "in_gap":
            counts.in_gap[name] += 1
        else:
            counts.in_windows[name] += 1
            if placing.missed:
                counts.missed_some[name] += 1
                self.outcome.missed[name].append((record.seq, placing.missed))

    def close(self) -> Outcome:
        """Return what is still held and open at the end of the log."""
        for timeline in self.timelines.values():
            self.outcome.held += timeline.held
        for keeper in self.keepers:
            self.outcome.open_windows[keeper.window.name] = keeper.still_open()
        return self.outcome
