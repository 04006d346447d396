"""The texts of `tidemark explain`, read as a user would: of facts that are written out here."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from syrupy.assertion import SnapshotAssertion

from tidemark.assets.questions.record_answer import RecordAnswer, Setter
from tidemark.assets.questions.record_joins import RecordJoin
from tidemark.assets.questions.record_windows import RecordWindow
from tidemark.assets.questions.window_answer import EventOfWindow, GroupOfWindow, WindowAnswer
from tidemark.timeops.figures.log_times import Item, Met, SplitReach
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import parse_spec
from tidemark.timeops.values.utc import us_of

SPEC = """
name: rooms
sources:
  - {{name: hall, kind: files, path: x/*.csv, format: csv, schema: "at TIMESTAMP, room STRING, v INT", split: room}}
time:
  timestamp_by: at
  out_of_orderness: 10 s
  out_of_order: {policy}
  late: {{tolerance: 5 minutes, policy: {late}}}
  early: {{tolerance: 1 minute, policy: drop}}
  {more}
windows:
  - {{name: minutes, kind: tumbling, size: 1 minute, group_by: [room], aggregates: {{n: count(*)}}}}
  - {{name: visits, kind: session, gap: 5 minutes, group_by: [room], aggregates: {{n: count(*)}}}}
"""
JOINS = """
  - {{name: door, kind: files, path: y/*.csv, format: csv, schema: "at TIMESTAMP, room STRING"}}
time: {{timestamp_by: at, out_of_order: keep}}
joins:
  - {{name: seen, kind: as_of, left: {{source: hall}}, right: {{source: door}}, within: 10 s, allowed_lateness: 5 s}}
  - {{name: next, kind: as_of, left: {{source: hall}}, right: {{source: door}}, within: 1 minute, direction: forward}}
  - {{name: back, kind: as_of, left: {{source: door}}, right: {{source: hall}}, within: 10 s, how: left}}
"""
ROW = {"at": "2026-01-01 12:00:03", "room": "a", "v": 3, "_source": "hall", "_split": "a", "_file": "x/1.csv"}


def us(clock: str) -> int:
    return us_of(datetime.fromisoformat(f"2026-01-01T{clock}").replace(tzinfo=UTC))


def rules(policy: str = "drop", late: str = "drop", more: str = "") -> TimeRules:
    return TimeRules.of(parse_spec(SPEC.format(policy=policy, late=late, more=more), file="rooms.yaml"))


def record(of: TimeRules, outcome: str = "dead_letter", **keys: Any) -> RecordAnswer:
    known = RecordAnswer(
        "rooms",
        1_234,
        outcome,
        ROW | {"_position": 17},
        of,
        event_us=us("12:00:03"),
        arrival_us=us("12:01:30"),
        clock_us=us("12:01:30"),
        timeline="[]",
        t_us=us("12:00:03"),
        met=Met(us("12:01:15"), 1_230),
        setter=Setter(1_230, us("12:01:25"), us("12:01:26"), "hall", "b", 3),
        now=Met(us("12:02:00"), 1_300),
        splits=(
            SplitReach("hall", "b", us("12:02:00"), us("12:02:11"), is_idle=False),
            SplitReach("hall", "a", us("12:02:50"), us("12:03:01"), is_idle=False),
        ),
    )
    return replace(known, **keys)


def test_a_record_that_is_refused(snapshot: SnapshotAssertion) -> None:
    closed = Item(1_229, us("12:01:20"), us("12:01:02"), 1_229)
    windows = (
        RecordWindow("minutes", us("12:00:00"), us("12:01:00"), "missed", us("12:01:00"), True, closed),
        RecordWindow("visits", us("12:00:03"), us("12:05:03"), "missed", us("12:05:03") + 1),
    )
    admitted = {"time.out_of_orderness": 82_000_000}
    answer = record(
        rules(), reason="out_of_order", lateness_us=72_000_000, admitted_by=admitted, windows=windows, unit="second"
    )
    assert answer.text == snapshot
    assert answer.to_dict() == snapshot
    late = record(
        rules(), reason="late_arrival", lateness_us=3, t_us=None, arrival_us=us("12:05:03") + 3,
        admitted_by={"time.late.tolerance": 300_000_003},
    )  # fmt: skip
    assert late.text == snapshot


def test_a_record_that_is_held_and_what_will_release_it(snapshot: SnapshotAssertion) -> None:
    times = ("event_us", "t_us", "timestamp_us")
    on_time = {**dict.fromkeys(times, us("12:03:00")), "arrival_us": us("12:03:10"), "clock_us": us("12:03:10")}
    windows = (RecordWindow("minutes", us("12:03:00"), us("12:04:00"), "open", us("12:04:00")),)
    held = record(rules(), "held", **on_time, windows=windows)
    assert held.text == snapshot
    assert replace(held, splits=held.splits[:1]).text == snapshot


def test_a_record_that_the_clock_made_late_and_one_that_was_moved(snapshot: SnapshotAssertion) -> None:
    by_clock = rules(more="idle: {advance: arrival_clock}")
    clock = record(
        by_clock, reason="out_of_order", met=Met(us("12:01:15"), None), setter=None, splits=(), lateness_us=None
    )
    assert clock.text == snapshot
    released = Item(None, us("12:09:00"), us("12:08:00"), None)
    moved = record(
        rules("adjust", more="emit: {every: 200 ms}"),
        "ordered",
        timestamp_us=us("12:01:15"),
        adjusted_by=("out_of_order",),
        release_seq=12,
        released_by=released,
    )
    assert moved.text == snapshot


def test_a_record_that_a_window_missed_after_a_change_of_the_spec(snapshot: SnapshotAssertion) -> None:
    kept = record(
        rules("keep"),
        "kept",
        timestamp_us=us("12:00:03"),
        adjusted_by=("kept_out_of_order",),
        reason="window_closed",
        lateness_us=15_000_001,
        windows=(RecordWindow("minutes", us("12:00:00"), us("12:01:00"), "missed", us("12:01:00"), True),),
        admitted_by={"windows[0].allowed_lateness": 15_000_001},
        changed=("time.out_of_orderness",),
    )
    assert kept.text == snapshot
    assert record(rules(), "excluded", reason="a test device", event_us=None).text == snapshot


def test_a_record_of_both_sides_of_joins(snapshot: SnapshotAssertion) -> None:
    text = SPEC[: SPEC.index("time:")] + JOINS.removeprefix("\n")
    of = TimeRules.of(parse_spec(text.replace("{{", "{").replace("}}", "}"), file="rooms.yaml"))
    answered = RecordJoin("seen", "left", "answered", 1_200)
    waits = RecordJoin("next", "left", "open", None, closes_us=us("12:01:03"))
    partner = RecordJoin("back", "right", "open", answers=3, closes_us=us("12:00:13"))
    taken = record(of, "kept", timestamp_us=us("12:00:03"), joins=(answered, waits, partner))
    assert taken.text == snapshot
    assert taken.to_dict()["joins"] == snapshot
    others = (
        replace(waits, right_seq=7),
        replace(answered, right_seq=None),
        replace(partner, outcome="closed", answers=1),
    )
    assert replace(taken, joins=others).text == snapshot
    late = replace(
        taken,
        reason="join_closed",
        lateness_us=7,
        joins=(RecordJoin("seen", "left", "missed"), RecordJoin("back", "right", "missed")),
        admitted_by={"joins[0].allowed_lateness": 5_000_007},
    )
    assert late.text == snapshot
    admitted = {"time.out_of_orderness": 82_000_000}
    assert replace(late, outcome="dead_letter", reason="out_of_order", admitted_by=admitted).text == snapshot


def group(room: str, **keys: Any) -> GroupOfWindow:
    known = GroupOfWindow(
        group={"room": room},
        end_us=us("12:01:00"),
        events=3,
        first=EventOfWindow(7, us("12:00:01")),
        last=EventOfWindow(9, us("12:00:55")),
        came_first=7,
        came_last=12,
        missed=0,
        closes_us=us("12:01:00"),
        closed_by=Item(20, us("12:01:30"), us("12:01:02"), 20),
        by_flush=False,
        timeline="[]",
        now=Met(us("12:02:00"), 1_300),
        splits=(),
        rows=({"window_start": None, "window_end": None, "room": room, "n": 3, "_revision": 0, "_is_final": True},),
    )
    return replace(known, **keys)


def window(*groups: GroupOfWindow, state: str = "closed", why: str = "", **keys: Any) -> WindowAnswer:
    known = rules()
    end = us("12:01:00")
    made = WindowAnswer("rooms", known.windows[0], us("12:00:00"), end, state, why, groups, len(groups), {}, known)
    return replace(made, **keys)


def test_a_window_that_is_closed_open_or_none(snapshot: SnapshotAssertion) -> None:
    assert window(group("a", missed=2), refused={"out_of_order": 4}).text == snapshot
    waits = {"closed_by": None, "rows": (), "now": Met(us("12:00:50"), 3)}
    assert window(group("a"), group("b", **waits), state="open").text == snapshot
    assert window(group("b", **waits), state="open").text == snapshot
    assert window(group("b", rows=(), by_flush=True, closed_by=None)).text == snapshot
    first = ({"room": "a", "_rank": rank, "v": value, "_timestamp": None} for rank, value in ((1, 9), (2, None)))
    assert window(group("a", rows=tuple(first))).text == snapshot
    none = window(state="none", why="no event has a time in it")
    assert none.text == snapshot
    assert none.to_dict() == snapshot


def test_a_record_of_both_sides_of_interval_joins_and_of_a_join_with_a_table(snapshot: SnapshotAssertion) -> None:
    joins = """
  - {{name: near, kind: interval, left: {{source: hall}}, right: {{source: door}}, after: 9 s, how: left}}
  - {{name: owned, kind: as_of, left: {{source: hall}}, how: left,
     right: {{table: owners.csv, valid_from: since, schema: "since DATE, owner STRING"}}}}
"""
    text = SPEC[: SPEC.index("time:")] + JOINS[: JOINS.index("  - {{name: seen")].removeprefix("\n") + joins[1:]
    of = TimeRules.of(parse_spec(text.replace("{{", "{").replace("}}", "}"), file="rooms.yaml"))
    pairs = RecordJoin("near", "left", "open", closes_us=us("12:00:13"), pairs=2)
    owner = RecordJoin("owned", "left", "answered")
    taken = record(of, "kept", timestamp_us=us("12:00:03"), joins=(pairs, owner))
    assert taken.text == snapshot
    assert taken.to_dict()["joins"] == snapshot
    alone = replace(pairs, outcome="closed", pairs=0)
    missed = RecordJoin("near", "right", "missed", pairs=0)
    waits = replace(owner, outcome="open", closes_us=us("12:00:03"))
    assert replace(taken, joins=(alone, missed, waits)).text == snapshot
