"""The oracle against the worked tables of the source texts and against small cases computed by hand.

No Spark here: if the referee itself is wrong, everything compared with it is too.
"""

import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.oracle import (
    MIN_US,
    Control,
    DeadLetter,
    Outcome,
    Record,
    TimeRules,
    Window,
    WindowResult,
    cumulative_windows,
    floor,
    grid_windows,
    run,
)

TABLES = Path(__file__).parents[1] / "tables" / "worked_tables.yaml"
UNITS = {"us": 1, "ms": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
MIDNIGHT = 20_454 * 24 * UNITS["hour"]  # 2026-01-01
MINUTE = UNITS["minute"]
SECOND = UNITS["second"]


def table(name: str) -> dict[str, Any]:
    for case in yaml.safe_load(TABLES.read_text(encoding="utf-8")):
        if case["id"] == name:
            return dict(case)
    raise AssertionError(f"no worked table {name}")


def at(text: str) -> int:
    """An instant of the day, hh:mm[:ss[.fraction]]; what is finer than a microsecond is cut off."""
    clock, _, fraction = text.partition(".")
    hours, minutes, *seconds = [int(part) for part in clock.split(":")]
    whole = hours * 3600 + minutes * 60 + (seconds[0] if seconds else 0)
    return MIDNIGHT + whole * SECOND + int((fraction + "000000")[:6])


def length(text: str) -> int:
    number, unit = text.split()
    return int(number) * UNITS[unit if unit in UNITS else unit.rstrip("s")]


def span(text: str) -> tuple[int, int]:
    start, end = text.split("-")
    return at(start), at(end)


def log(*times: int, **same: Any) -> list[Record | Control]:
    """Records with these event times, which arrive one microsecond apart."""
    return [Record(seq, MIDNIGHT + seq, e, **same) for seq, e in enumerate(times)]


def last_watermark(outcome: Outcome, timeline: str = "[]") -> int | None:
    return outcome.watermarks[-1][timeline]


def order(outcome: Outcome) -> list[int]:
    return [event.seq for event in outcome.ordered]


def reasons(outcome: Outcome) -> dict[int, str]:
    return {letter.seq: letter.reason for letter in outcome.dead_letters}


def contents(results: Sequence[WindowResult]) -> dict[tuple[int, int], tuple[int, ...]]:
    return {(result.window_start, result.window_end): result.events for result in results}


# ---- the worked tables


def test_h_figures_11_27_to_11_30() -> None:
    case = table("H-11-27..30")
    spread = length(case["time"]["out_of_orderness"])
    rules = TimeRules(unit_us=SECOND, out_of_orderness_us=spread)
    steps = case["steps"]
    whole = log(*[at(step["event"]) for step in steps])
    released: list[int] = []
    for count, step in enumerate(steps, start=1):
        outcome = run(whole[:count], rules)
        assert last_watermark(outcome) == at(step["base"]) - spread
        if "range" in step:
            assert last_watermark(outcome) == at(step["range"][0])
        if step["outcome"] == "held":
            assert {event.seq: event.timestamp_us for event in outcome.held}[count - 1] == at(step["timestamp"])
        else:
            assert reasons(outcome) == {count - 1: step["outcome"]}
        new = [event.timestamp_us for event in outcome.ordered if event.seq not in released]
        released = order(outcome)
        assert new == [at(text) for text in step.get("releases", [])]


def test_h_order_by_unit_and_range() -> None:
    case = table("H-order")
    names = list(case["events"])
    units = {"second": SECOND, "millisecond": 1_000, "microsecond": 1}
    for expected in case["expect"]:
        items = log(*[at(text) for text in case["events"].values()])
        rules = TimeRules(unit_us=units[expected["unit"]], out_of_orderness_us=length(expected["range"]))
        outcome = run([*items, Control(4, "flush")], rules)
        assert [names[seq] for seq in order(outcome)] == expected["order"]
        assert [event.release_seq for event in outcome.ordered] == list(range(len(outcome.ordered)))
        assert [names[seq] for seq in reasons(outcome)] == expected["dropped"]
        stamps = {names[event.seq]: event.timestamp_us for event in outcome.ordered}
        assert stamps == {name: at(text) for name, text in expected["timestamps"].items()}


def test_m_hopping_windows_overlap_or_leave_gaps() -> None:
    for row in table("M-hopping")["expect"]:
        size, hop = length(row["size"]), length(row["hop"])
        expected = [(at(start), at(end)) for start, end in row["windows"]]
        assert grid_windows(at(row["event"]), size, hop) == expected
        window = Window("w", "hopping", size_us=size, hop_us=hop)
        outcome = run([*log(at(row["event"])), Control(0, "flush")], TimeRules(), [window])
        assert list(contents(outcome.windows["w"])) == expected
        assert outcome.counts.in_gap["w"] == (0 if expected else 1)
        assert outcome.dead_letters == []


def test_m_watermark_table_by_event_time_and_by_processing_time() -> None:
    case = table("M-watermark")
    items = [Record(seq, at(row[1]), at(row[0])) for seq, row in enumerate(case["rows"])]
    window = Window("w", "tumbling", size_us=length(case["window"]["size"]))
    keep = TimeRules(out_of_order="keep")
    for rules, column, counts in (
        (TimeRules(processing_time=True), 2, "counts_without_watermark"),
        (keep, 3, "counts_with_watermark"),
    ):
        outcome = run([*items, Control(9, "flush")], rules, [window])
        found = contents(outcome.windows["w"])
        assert {where: len(seqs) for where, seqs in found.items()} == {
            span(text): count for text, count in case["expect"][counts].items()
        }
        for seq, row in enumerate(case["rows"]):
            assert seq in found[span(row[column])]
    first = run(items, keep, [window]).windows["w"][0]
    assert (first.revision, first.is_final, first.watermark_us) == (0, True, at("12:05"))
    closing = at(case["expect"]["first_window_closes_at_processing_time"])
    before = [item for item in items if item.arrival_us is not None and item.arrival_us < closing]
    assert run(before, keep, [window]).windows["w"] == []
    assert len(run(items[: len(before) + 1], keep, [window]).windows["w"]) == 1


def test_m_allowed_lateness_table() -> None:
    case = table("M-allowed-lateness")
    lateness = length(case["window"]["allowed_lateness"])
    window = Window("w", "tumbling", size_us=length(case["window"]["size"]), allowed_lateness_us=lateness)
    rules = TimeRules(out_of_order="keep")
    items = log(*[at(row[0]) for row in case["rows"]])
    for count, (_, watermark, less_lateness, open_windows) in enumerate(case["rows"], start=1):
        outcome = run(items[:count], rules, [window])
        assert last_watermark(outcome) == at(watermark) == at(less_lateness) + lateness
        still_open = [(start, end) for start, end, _, _ in outcome.open_windows["w"]]
        assert still_open == [span(text) for text in open_windows]
    flushed = run([*items, Control(9, "flush")], rules, [window])
    counts = {where: len(seqs) for where, seqs in contents(flushed.windows["w"]).items()}
    assert counts == {span(text): count for text, count in case["expect"]["counts"].items()}
    assert len(flushed.dead_letters) == case["expect"]["dead_letters"]
    one_more = run([*items, Record(10, MIDNIGHT + 10, at("12:04"))], rules, [window])
    assert one_more.dead_letters == [
        DeadLetter(
            seq=10,
            stage="window",
            reason="window_closed",
            window_name="w",
            missed_windows=(span("12:00-12:05"),),
            event_us=at("12:04"),
            watermark_us=at("12:07"),
            lateness_us=1,
            watermark_set_by=9,
        )
    ]
    assert one_more.ordered[-1].seq == 10, "its outcome in time stays: it was accepted"


def test_m_idle_table() -> None:
    case = table("M-idle")
    size, timeout = length(case["window"]["size"]), length(case["time"]["idle"]["timeout"])
    window = Window("w", "tumbling", size_us=size)
    rules = TimeRules(out_of_order="keep", idle=("window_close", timeout))
    items: list[Record | Control] = []
    seq = -1
    for processing, event, watermark, open_window in case["rows"]:
        if event == "idle":
            items.append(Control(seq, "tick", at(processing)))
        else:
            seq += 1
            items.append(Record(seq, at(processing), at(event)))
        outcome = run(items, rules, [window])
        assert last_watermark(outcome) == at(watermark)
        # The text names the window in which the watermark stands; it holds events unless the clock opened it.
        still_open = [(start, end) for start, end, _, _ in outcome.open_windows["w"]]
        assert grid_windows(at(watermark), size, size) == [span(open_window)]
        assert still_open == ([] if at(watermark) == at("12:06") else [span(open_window)])
    assert contents(outcome.windows["w"]) == {span("12:00-12:03"): (0, 1), span("12:03-12:06"): (2,)}


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_a2_twelve_events(variant: int) -> None:
    case = table("A2-twelve-events")
    expected = case["expect"][variant]
    time = {**case["time"], **expected["time"]}
    rules = TimeRules(
        out_of_orderness_us=length(time["out_of_orderness"]),
        out_of_order=time["out_of_order"],
        late=(length(time["late"]["tolerance"]), time["late"]["policy"]),
        early=(length(time["early"]["tolerance"]), time["early"]["policy"]) if "early" in time else None,
    )
    items = [
        Record(seq, at(arrival), at(event), timeline=f'["{device}"]' if "over" in time else "[]")
        for seq, (event, arrival, device) in enumerate(case["rows"])
    ]
    outcome = run([*items, Control(11, "flush")], rules)
    stamps = {event.seq: event.timestamp_us for event in outcome.ordered}
    for seq, (stamp, watermark) in enumerate(zip(expected["timestamps"], expected["watermarks"], strict=True)):
        if re.match(r"\d", stamp):
            assert stamps[seq] == at(stamp), f"event {seq + 1}"
        else:
            assert reasons(outcome)[seq] == stamp, f"event {seq + 1}"
        assert outcome.watermarks[seq][items[seq].timeline] == at(watermark), f"event {seq + 1}"
    adjusted = {event.seq + 1: list(event.adjusted_by) for event in outcome.ordered if event.adjusted_by}
    assert adjusted == expected["adjusted_by"]
    counts = outcome.counts
    found = {"early": counts.early, "late": counts.late, "out_of_order": counts.out_of_order}
    assert found == expected["metrics"]


# ---- arithmetic


def test_floor_goes_towards_minus_infinity() -> None:
    assert [floor(t, 10) for t in (-11, -10, -1, 0, 9, 10)] == [-20, -10, -10, 0, 0, 10]


def test_the_side_that_is_closed_takes_the_boundary() -> None:
    assert grid_windows(10, 10, 10) == [(10, 20)]
    assert grid_windows(10, 10, 10, closed="right") == [(0, 10)]
    assert grid_windows(10, 10, 5, closed="right") == [(0, 10), (5, 15)]
    assert grid_windows(-1, 10, 10, offset=3) == [(-7, 3)]
    assert grid_windows(5, 3, 5, closed="right") == []
    assert grid_windows(8, 3, 5, closed="right") == [(5, 8)]


def test_cumulative_windows_grow_by_steps() -> None:
    assert cumulative_windows(4, 9, 3) == [(0, 6), (0, 9)]
    assert cumulative_windows(3, 9, 3) == [(0, 6), (0, 9)]
    assert cumulative_windows(3, 9, 3, closed="right") == [(0, 3), (0, 6), (0, 9)]


# ---- watermark, release, rule 3


def test_an_event_at_the_watermark_is_on_time_and_held() -> None:
    outcome = run(log(100, 95, 94), TimeRules(out_of_orderness_us=5))
    assert [event.seq for event in outcome.held] == [0, 1]
    assert outcome.ordered == []
    letter = outcome.dead_letters[0]
    assert (letter.seq, letter.stage, letter.reason) == (2, "time", "out_of_order")
    assert (letter.watermark_us, letter.lateness_us, letter.watermark_set_by) == (95, 1, 0)


def test_an_event_is_released_once_it_lies_behind_the_watermark() -> None:
    assert order(run(log(100, 95, 100), TimeRules(out_of_orderness_us=5))) == []
    outcome = run(log(100, 95, 101), TimeRules(out_of_orderness_us=5))
    assert [(event.seq, event.release_seq, event.watermark_us) for event in outcome.ordered] == [(1, 0, 95)]


def test_ties_keep_arrival_order_and_release_numbers_are_dense() -> None:
    items = log(10, 12, 10, 11, 12, 30)
    outcome = run(items, TimeRules(out_of_orderness_us=5))
    assert [(event.timestamp_us, event.seq) for event in outcome.ordered] == [
        (10, 0),
        (10, 2),
        (11, 3),
        (12, 1),
        (12, 4),
    ]
    assert [event.release_seq for event in outcome.ordered] == [0, 1, 2, 3, 4]


def test_the_setter_is_the_first_event_that_gave_the_watermark_its_value() -> None:
    outcome = run(log(50, 100, 100, 90, 95, 40), TimeRules(out_of_orderness_us=5))
    assert [(letter.seq, letter.lateness_us, letter.watermark_set_by) for letter in outcome.dead_letters] == [
        (3, 5, 1),
        (5, 55, 1),
    ]


def test_adjust_moves_an_event_to_the_watermark_and_leaves_its_event_time() -> None:
    outcome = run([*log(100, 80, 97), Control(2, "flush")], TimeRules(out_of_orderness_us=5, out_of_order="adjust"))
    moved = outcome.ordered[0]
    assert (moved.seq, moved.timestamp_us, moved.event_us, moved.watermark_us) == (1, 95, 80, 95)
    assert moved.adjusted_by == ("out_of_order",)
    assert order(outcome) == [1, 2, 0]
    assert outcome.counts.out_of_order == 1


def test_keep_lets_an_event_behind_the_watermark_pass_at_once_and_outside_the_sequence() -> None:
    outcome = run(log(100, 80, 95, 106), TimeRules(out_of_orderness_us=5, out_of_order="keep"))
    assert [(event.seq, event.release_seq, event.timestamp_us) for event in outcome.ordered] == [
        (1, None, 80),
        (2, 0, 95),
        (0, 1, 100),
    ]
    assert outcome.ordered[0].adjusted_by == ("kept_out_of_order",)
    assert outcome.ordered[1].adjusted_by == ()


def test_timelines_have_watermarks_and_release_numbers_of_their_own() -> None:
    items: list[Record | Control] = [
        Record(0, 0, 100, timeline='["a"]'),
        Record(1, 1, 10, timeline='["b"]'),
        Record(2, 2, 50, timeline='["a"]'),
        Record(3, 3, 20, timeline='["b"]'),
    ]
    outcome = run(items, TimeRules())
    assert reasons(outcome) == {2: "out_of_order"}
    assert [(event.seq, event.release_seq) for event in outcome.ordered] == [(1, 0)]
    assert outcome.watermarks[0] == {'["a"]': 100, '["b"]': None}
    assert outcome.watermarks[3] == {'["a"]': 100, '["b"]': 20}


def test_times_are_cut_to_the_unit_before_anything_is_judged() -> None:
    outcome = run(log(1_999, 1_000, 999), TimeRules(unit_us=1_000))
    assert [event.timestamp_us for event in outcome.held] == [1_000, 1_000]
    assert [(letter.seq, letter.lateness_us) for letter in outcome.dead_letters] == [(2, 1_000)]


def test_a_watermark_does_not_fall_below_year_0001() -> None:
    assert last_watermark(run(log(MIN_US + 5), TimeRules(out_of_orderness_us=100))) == MIN_US


# ---- refused before rule 3


def test_records_without_a_time_are_refused_by_stage_and_move_no_watermark() -> None:
    items: list[Record | Control] = [
        Record(0, 10, None, bad="malformed"),
        Record(1, None, 500),
        Record(2, 10, None),
        Record(3, 10, None, bad="bad_timestamp"),
        Record(4, 10, None, bad="bad_expression"),
        Record(5, 10, 7),
    ]
    outcome = run(items, TimeRules())
    assert [(letter.seq, letter.stage, letter.reason) for letter in outcome.dead_letters] == [
        (0, "ingest", "malformed"),
        (1, "ingest", "no_arrival_time"),
        (2, "time", "no_timestamp"),
        (3, "time", "bad_timestamp"),
        (4, "time", "bad_expression"),
    ]
    assert [after["[]"] for after in outcome.watermarks] == [None, None, None, None, None, 7]


@pytest.mark.parametrize(("policy", "stamps"), [("drop", [105]), ("adjust", [105, 105])])
def test_an_early_event_beyond_the_tolerance_is_dropped_or_adjusted(policy: str, stamps: list[int]) -> None:
    items: list[Record | Control] = [Record(0, 100, 105), Record(1, 100, 106)]
    outcome = run(items, TimeRules(early=(5, policy)))
    assert [event.timestamp_us for event in outcome.held] == stamps
    assert outcome.counts.early == 1
    assert last_watermark(outcome) == 105
    letters = [(letter.seq, letter.reason, letter.lateness_us) for letter in outcome.dead_letters]
    assert letters == ([(1, "early", 1)] if policy == "drop" else [])


def test_a_late_event_that_is_adjusted_can_still_be_out_of_order() -> None:
    rules = TimeRules(late=(10, "adjust"), out_of_order="adjust")
    outcome = run([Record(0, 100, 98), Record(1, 101, 91), Record(2, 101, 90)], rules)
    assert [(event.seq, event.timestamp_us, event.adjusted_by) for event in outcome.held] == [
        (0, 98, ()),
        (1, 98, ("out_of_order",)),
        (2, 98, ("late", "out_of_order")),
    ]
    assert (outcome.counts.late, outcome.counts.out_of_order) == (1, 2)


def test_a_late_event_that_is_dropped_carries_its_lateness_and_moves_no_watermark() -> None:
    outcome = run([Record(0, 100, 90), Record(1, 100, 89)], TimeRules(late=(10, "drop")))
    assert outcome.dead_letters == [
        DeadLetter(1, "time", "late_arrival", event_us=89, lateness_us=1),
    ]


def test_tolerances_adjust_to_a_whole_unit() -> None:
    rules = TimeRules(unit_us=1_000, late=(1_500, "adjust"))
    assert run([Record(0, 10_000, 0)], rules).held[0].timestamp_us == 8_000


def test_a_duplicate_lies_within_reach_of_an_earlier_record_that_is_none() -> None:
    items: list[Record | Control] = [
        Record(0, 0, 100, key="k"),
        Record(1, 1, 110, key="k"),  # within 10 of 0
        Record(2, 2, 115, key="k"),  # 5 from a duplicate, but 15 from the first
        Record(3, 3, 125, key="k"),  # within 10 of 2
        Record(4, 4, 125, key="other"),
        Record(5, 5, 125),
        Record(6, 6, 125),
    ]
    outcome = run(items, TimeRules(within_us=10))
    assert reasons(outcome) == {1: "duplicate", 3: "duplicate"}
    assert reasons(run(items, TimeRules())) == {}


def test_a_record_refused_by_a_later_rule_is_still_the_first_of_its_key() -> None:
    items: list[Record | Control] = [
        Record(0, 0, 100, key="k"),
        Record(1, 0, 50, key="l"),
        Record(2, 0, 50, key="l"),
    ]
    assert reasons(run(items, TimeRules(within_us=0))) == {1: "out_of_order", 2: "duplicate"}


def test_a_duplicate_moves_no_watermark() -> None:
    items: list[Record | Control] = [
        Record(0, 0, 100, key="k"),
        Record(1, 0, 105, key="k"),
        Record(2, 0, 103, key="l"),
    ]
    assert reasons(run(items, TimeRules(within_us=10))) == {1: "duplicate"}


# ---- windows on a grid


def test_a_window_closes_when_the_watermark_reaches_its_end_and_lateness() -> None:
    keep = TimeRules(out_of_order="keep")
    window = Window("w", "tumbling", size_us=10, allowed_lateness_us=3)
    assert run(log(1, 12), keep, [window]).windows["w"] == []
    result = run(log(1, 13), keep, [window]).windows["w"]
    assert result == [WindowResult(0, 10, (), (0,), 0, True, 13, "[]")]


def test_a_window_with_its_end_inside_closes_one_later() -> None:
    window = Window("w", "tumbling", size_us=10, closed="right")
    assert run(log(5, 10), TimeRules(), [window]).windows["w"] == []
    assert contents(run(log(5, 10, 11), TimeRules(), [window]).windows["w"]) == {(0, 10): (0, 1)}
    keep = TimeRules(out_of_order="keep")
    late = run(log(5, 12, 10), keep, [window]).dead_letters[0]
    assert (late.missed_windows, late.lateness_us) == (((0, 10),), 2)
    assert run(log(5, 10, 10), keep, [window]).dead_letters == []


def test_an_event_that_misses_some_windows_and_reaches_others_goes_on() -> None:
    window = Window("w", "hopping", size_us=20, hop_us=5)
    outcome = run(log(22, 31, 18, 16), TimeRules(out_of_order="keep"), [window])
    # 18 and 16 lie in [0,20), [5,25), [10,30), [15,35) and W is 31.
    assert outcome.missed["w"] == [(2, ((0, 20), (5, 25), (10, 30))), (3, ((0, 20), (5, 25), (10, 30)))]
    assert outcome.counts.missed_some["w"] == 2
    assert outcome.counts.in_windows["w"] == 4
    assert outcome.dead_letters == []
    still_open = {(start, end): seqs for start, end, _, seqs in outcome.open_windows["w"]}
    assert still_open[15, 35] == (0, 1, 2, 3)
    gone = run(log(22, 35, 18), TimeRules(out_of_order="keep"), [window]).dead_letters[0]
    assert gone.missed_windows == ((0, 20), (5, 25), (10, 30), (15, 35))
    assert gone.lateness_us == 1, "one more microsecond of lateness leaves [15, 35) open at 35"


def test_an_event_in_a_gap_is_no_dead_letter_however_late_it_is() -> None:
    window = Window("w", "hopping", size_us=3, hop_us=5)
    outcome = run(log(100, 4, 3, 2), TimeRules(out_of_order="keep"), [window])
    assert outcome.counts.in_gap["w"] == 2
    assert reasons(outcome) == {3: "window_closed"}


def test_a_filtered_event_moves_time_but_is_in_no_window_and_no_dead_letter() -> None:
    window = Window("w", "tumbling", size_us=10, where=lambda record: record.payload.get("x") is not None)
    items: list[Record | Control] = [
        Record(0, 0, 5, payload={"x": 1}),
        Record(1, 1, 30),
        Record(2, 2, 6),
        Record(3, 3, 6, payload={"x": 1}),
    ]
    outcome = run(items, TimeRules(out_of_order="keep"), [window])
    assert contents(outcome.windows["w"]) == {(0, 10): (0,)}
    assert outcome.counts.filtered["w"] == 2
    assert reasons(outcome) == {3: "window_closed"}


def test_groups_have_results_of_their_own_and_held_events_count() -> None:
    window = Window("w", "tumbling", size_us=10, group=lambda record: (record.payload["g"],))
    items: list[Record | Control] = [
        Record(seq, seq, e, payload={"g": g}) for seq, (e, g) in enumerate([(1, "a"), (2, "b"), (3, "a")])
    ]
    outcome = run(items, TimeRules(out_of_orderness_us=100), [window])
    assert outcome.open_windows["w"] == [(0, 10, ("a",), (0, 2)), (0, 10, ("b",), (1,))]
    assert len(outcome.held) == 3


def test_an_adjusted_event_is_in_the_window_of_its_adjusted_time() -> None:
    window = Window("w", "tumbling", size_us=10)
    outcome = run([*log(20, 5), Control(1, "flush")], TimeRules(out_of_order="adjust"), [window])
    assert contents(outcome.windows["w"]) == {(20, 30): (0, 1)}


def test_a_closed_window_of_one_timeline_is_open_on_another() -> None:
    window = Window("w", "tumbling", size_us=10, group=lambda record: (record.timeline,))
    items: list[Record | Control] = [Record(0, 0, 50, timeline='["a"]'), Record(1, 1, 5, timeline='["b"]')]
    outcome = run(items, TimeRules(), [window])
    assert outcome.open_windows["w"] == [(0, 10, ('["b"]',), (1,)), (50, 60, ('["a"]',), (0,))]


def test_having_filters_results() -> None:
    window = Window("w", "tumbling", size_us=10, having=lambda records: len(records) > 1)
    outcome = run([*log(1, 11, 12), Control(2, "flush")], TimeRules(), [window])
    assert contents(outcome.windows["w"]) == {(10, 20): (1, 2)}


def test_empty_windows_are_given_between_a_groups_first_and_the_timelines_last() -> None:
    window = Window("w", "tumbling", size_us=10, empty=True, group=lambda record: (record.payload["g"],))
    items: list[Record | Control] = [
        Record(seq, seq, e, payload={"g": g}) for seq, (e, g) in enumerate([(1, "a"), (15, "b"), (35, "a")])
    ]
    found = run([*items, Control(2, "flush")], TimeRules(), [window]).windows["w"]
    assert {(row.window_start, row.group[0]): row.events for row in found} == {
        (0, "a"): (0,),
        (10, "a"): (),
        (10, "b"): (1,),
        (20, "a"): (),
        (20, "b"): (),
        (30, "a"): (2,),
        (30, "b"): (),
    }
    assert len(found) == 7
    open_end = run(items, TimeRules(), [window]).windows["w"]
    assert [row.window_start for row in open_end] == [0, 10, 10, 20, 20]


def test_calendar_days_follow_local_midnight_through_both_dst_changes() -> None:
    hour = UNITS["hour"]
    window = Window("w", "tumbling", calendar=("day", "Europe/Berlin"))
    spring = 1_774_738_800 * SECOND  # 2026-03-28T23:00Z, local midnight of the 29th
    autumn = 1_792_879_200 * SECOND  # 2026-10-24T22:00Z, local midnight of the 25th
    outcome = run([*log(spring, autumn), Control(1, "flush")], TimeRules(), [window])
    lengths = [(row.window_end - row.window_start) // hour for row in outcome.windows["w"]]
    assert [row.window_start for row in outcome.windows["w"]] == [spring, autumn]
    assert lengths == [23, 25]
    month = Window("w", "tumbling", calendar=("month", "Europe/Berlin"))
    march = run([*log(spring), Control(0, "flush")], TimeRules(), [month]).windows["w"][0]
    assert (march.window_end - march.window_start) // hour == 31 * 24 - 1


# ---- end of input


def test_a_flush_releases_and_closes_everything_with_no_watermark() -> None:
    window = Window("w", "tumbling", size_us=10)
    outcome = run([*log(25, 21), Control(1, "flush")], TimeRules(out_of_orderness_us=50), [window])
    assert order(outcome) == [1, 0]
    assert outcome.held == []
    assert outcome.windows["w"] == [WindowResult(20, 30, (), (0, 1), 0, True, None, "[]")]
    assert outcome.open_windows["w"] == []
    assert last_watermark(outcome) is None


def test_input_after_a_flush_needs_a_reopening() -> None:
    items = [*log(25), Control(0, "flush"), Record(1, MIDNIGHT + 1, 40)]
    with pytest.raises(ValueError, match="reopen"):
        run(items, TimeRules())


def test_after_a_reopening_the_watermark_is_as_before_and_what_was_closed_stays_closed() -> None:
    window = Window("w", "tumbling", size_us=10)
    items: list[Record | Control] = [
        *log(25, 40),
        Control(1, "flush"),
        Control(1, "reopen"),
        Record(2, MIDNIGHT + 2, 41),  # its window was closed by the flush
        Record(3, MIDNIGHT + 3, 36),  # no event, so nothing to close, in [30, 40)
        Record(4, MIDNIGHT + 4, 34),
        Record(5, MIDNIGHT + 5, 61),
    ]
    outcome = run(items, TimeRules(out_of_orderness_us=5), [window])
    assert outcome.watermarks[3] == {"[]": 35}
    assert [(letter.seq, letter.reason, letter.lateness_us) for letter in outcome.dead_letters] == [
        (2, "window_closed", None),
        (4, "out_of_order", 2),
    ]
    assert contents(outcome.windows["w"]) == {(20, 30): (0,), (40, 50): (1,), (30, 40): (3,)}
    assert [(event.seq, event.release_seq) for event in outcome.ordered] == [(0, 0), (1, 1), (3, 2), (2, 3)]


# ---- periodic emission, splits, idleness


def test_with_periodic_emission_events_see_the_watermark_of_the_period_before() -> None:
    items: list[Record | Control] = [
        Record(0, 0, 100),
        Record(1, 5, 50),  # same period: nothing published yet
        Record(2, 9, 200),
        Record(3, 10, 99),  # W = 200 as the last period left it
        Record(4, 11, 300),
        Record(5, 19, 250),
        Record(6, 20, 250),
    ]
    outcome = run(items, TimeRules(emit_every_us=10))
    assert [after["[]"] for after in outcome.watermarks] == [None, None, None, 200, 200, 200, 300]
    assert [(letter.seq, letter.watermark_us, letter.watermark_set_by) for letter in outcome.dead_letters] == [
        (3, 200, 2),
        (6, 300, 4),
    ]
    assert order(outcome) == [1, 0, 2, 5]


def test_the_watermark_is_the_least_of_the_splits_that_have_an_event() -> None:
    items: list[Record | Control] = [
        Record(0, 0, 100, split="a"),
        Record(1, 1, 50, split="b"),  # too late, yet it joins; W does not go back
        Record(2, 2, 120, split="a"),
        Record(3, 3, 110, split="b"),
        Record(4, 4, 105, split="a"),
    ]
    outcome = run(items, TimeRules(use_splits=True))
    assert [after["[]"] for after in outcome.watermarks] == [100, 100, 100, 110, 110]
    assert [(letter.seq, letter.watermark_set_by) for letter in outcome.dead_letters] == [(1, 0), (4, 3)]


def test_known_splits_are_awaited_and_sources_have_tolerances_of_their_own() -> None:
    rules = TimeRules(use_splits=True, known_splits=(("x", None), ("y", None)), out_of_orderness_us={"x": 10, "y": 0})
    items: list[Record | Control] = [Record(0, 0, 100, source="x"), Record(1, 1, 95, source="y")]
    assert [after["[]"] for after in run(items, rules).watermarks] == [None, 90]


def test_an_idle_split_leaves_the_minimum_until_its_next_event() -> None:
    rules = TimeRules(use_splits=True, idle=("exclude_split", 10))
    items: list[Record | Control] = [
        Record(0, 0, 20, split="a"),
        Record(1, 1, 20, split="b"),
        Record(2, 9, 50, split="a"),  # b is silent for 8
        Record(3, 11, 60, split="a"),  # b is silent for 10: out, W is a's 50 before this event
        Record(4, 12, 40, split="b"),  # judged while still out, so it is late; then b is back
        Record(5, 13, 70, split="a"),  # b's 40 holds W at 60
        Control(5, "tick", 22),
        Control(5, "tick", 23),
    ]
    outcome = run(items, rules)
    assert [after["[]"] for after in outcome.watermarks] == [20, 20, 20, 60, 60, 60, 70, 70]
    letter = outcome.dead_letters[0]
    assert (letter.seq, letter.watermark_us, letter.watermark_set_by) == (4, 60, 3)


def test_where_the_clock_raised_the_watermark_no_event_and_no_lateness_is_named() -> None:
    rules = TimeRules(use_splits=True, idle=("exclude_split", 10))
    items: list[Record | Control] = [
        Record(0, 0, 20, split="b"),
        Record(1, 9, 50, split="a"),
        Control(1, "tick", 10),
        Record(2, 11, 49, split="a"),
    ]
    outcome = run(items, rules)
    assert [after["[]"] for after in outcome.watermarks] == [20, 20, 50, 50]
    letter = outcome.dead_letters[0]
    assert (letter.watermark_us, letter.lateness_us, letter.watermark_set_by) == (50, None, None)


def test_when_all_splits_are_idle_the_highest_counts() -> None:
    rules = TimeRules(use_splits=True, idle=("exclude_split", 10))
    items: list[Record | Control] = [
        Record(0, 0, 90, split="a"),
        Record(1, 1, 20, split="b"),
        Record(2, 2, 95, split="a"),
    ]
    later = [*items, Control(2, "tick", 12)]
    assert last_watermark(run(items, rules)) == 90
    assert last_watermark(run(later, rules)) == 95


def test_a_known_split_that_never_speaks_is_idle_from_the_start_of_the_log_on() -> None:
    rules = TimeRules(use_splits=True, known_splits=(("s", "a"), ("s", "b")), idle=("exclude_split", 10))
    items: list[Record | Control] = [
        Record(0, 5, 90, split="a"),
        Control(0, "tick", 14),
        Record(1, 14, 91, split="a"),
    ]
    assert last_watermark(run(items, rules)) is None
    assert last_watermark(run([*items, Control(1, "tick", 15)], rules)) == 91


def test_the_arrival_clock_holds_for_every_timeline_from_the_start() -> None:
    rules = TimeRules(late=(10, "adjust"), idle=("arrival_clock", None))
    items: list[Record | Control] = [
        Record(0, 100, 95, timeline='["a"]'),
        Record(1, 120, 120, timeline='["b"]'),
        Record(2, None, 0),
        Control(2, "tick", 200),
        Record(3, 150, 160, timeline='["a"]'),
    ]
    outcome = run(items, rules)
    assert outcome.watermarks == [
        {'["a"]': 95, '["b"]': 90},
        {'["a"]': 110, '["b"]': 120},
        {'["a"]': 110, '["b"]': 120},
        {'["a"]': 190, '["b"]': 190},
        {'["a"]': 190, '["b"]': 190},
    ]
    letter = outcome.dead_letters[-1]
    assert (letter.reason, letter.watermark_us, letter.lateness_us) == ("out_of_order", 190, None)


def test_an_event_at_the_very_instant_beats_the_idle_timeout_and_a_tick_does_not() -> None:
    window = Window("w", "tumbling", size_us=10)
    rules = TimeRules(out_of_order="keep", idle=("window_close", 5))
    first = Record(0, 10, 9)
    assert reasons(run([first, Record(1, 15, 8)], rules, [window])) == {}
    assert reasons(run([first, Record(1, 16, 8)], rules, [window])) == {1: "window_closed"}
    assert run([first, Control(0, "tick", 14)], rules, [window]).windows["w"] == []
    assert run([first, Control(0, "tick", 15)], rules, [window]).windows["w"] == [
        WindowResult(0, 10, (), (0,), 0, True, 10, "[]")
    ]


def test_the_idle_clock_closes_no_window_beyond_those_that_hold_events() -> None:
    window = Window("w", "tumbling", size_us=10)
    rules = TimeRules(idle=("window_close", 5))
    assert last_watermark(run([Record(0, 10, 9), Control(0, "tick", 999)], rules, [window])) == 10


def test_the_idle_clock_goes_by_the_last_window_of_an_event_and_the_farthest_definition() -> None:
    rules = TimeRules(out_of_order="keep", idle=("window_close", 5))
    hopping = Window("h", "hopping", size_us=18, hop_us=5, offset_us=1, allowed_lateness_us=3)
    tumbling = Window("t", "tumbling", size_us=10)
    # 22 lies last in [21, 39), which closes at 42; the closing times on that grid are ..., 37, 42, ...
    items: list[Record | Control] = [Record(0, 22, 22), Control(0, "tick", 44), Control(0, "tick", 47)]
    assert [after["[]"] for after in run(items, rules, [hopping, tumbling]).watermarks] == [22, 37, 42]
    assert [after["[]"] for after in run(items, rules, [tumbling]).watermarks] == [22, 30, 30]


# ---- windows that depend on their events


def test_events_exactly_one_gap_apart_are_one_session() -> None:
    window = Window("w", "session", gap_us=10)
    outcome = run([*log(0, 10, 21), Control(2, "flush")], TimeRules(), [window])
    assert contents(outcome.windows["w"]) == {(0, 20): (0, 1), (21, 31): (2,)}


def test_an_event_between_two_sessions_makes_them_one() -> None:
    window = Window("w", "session", gap_us=10)
    outcome = run(log(0, 20, 10), TimeRules(out_of_orderness_us=50), [window])
    assert outcome.open_windows["w"] == [(0, 30, (), (0, 1, 2))]


def test_a_session_closes_behind_its_end_and_a_late_event_may_still_merge_into_an_open_one() -> None:
    window = Window("w", "session", gap_us=10)
    keep = TimeRules(out_of_order="keep")
    assert run(log(0, 10, 20), keep, [window]).windows["w"] == []
    assert contents(run(log(0, 11), keep, [window]).windows["w"]) == {(0, 10): (0,)}
    # W = 25: alone 12 would give [12, 22], closed; with the open session [18, 35] it gives [12, 35].
    assert reasons(run(log(18, 25, 12), keep, [window])) == {}
    refused = run(log(25, 12), keep, [window]).dead_letters[0]
    assert (refused.missed_windows, refused.lateness_us) == (((12, 22),), 3)


def test_a_session_ends_at_its_longest_duration() -> None:
    window = Window("w", "session", gap_us=10, max_duration_us=15)
    outcome = run([*log(0, 8, 15, 16, 20), Control(4, "flush")], TimeRules(), [window])
    assert contents(outcome.windows["w"]) == {(0, 15): (0, 1, 2), (16, 30): (3, 4)}


def test_a_sliding_window_has_a_result_wherever_its_set_changes() -> None:
    window = Window("w", "sliding", size_us=10)
    outcome = run([*log(0, 4, 10), Control(2, "flush")], TimeRules(), [window])
    assert contents(outcome.windows["w"]) == {
        (-10, 0): (0,),
        (-6, 4): (0, 1),
        (0, 10): (1, 2),
        (4, 14): (2,),
    }


def test_a_sliding_window_takes_late_events_into_the_sets_that_are_open() -> None:
    window = Window("w", "sliding", size_us=10)
    items = log(0, 12, 8, 14, 2)
    outcome = run([*items, Control(4, "flush")], TimeRules(out_of_order="keep"), [window])
    assert contents(outcome.windows["w"]) == {
        (-10, 0): (0,),
        (2, 12): (1, 2),
        (4, 14): (1, 2, 3),
        (8, 18): (1, 3),
        (12, 22): (3,),
    }
    assert outcome.missed["w"] == [(2, ((-2, 8), (0, 10)))]
    gone = outcome.dead_letters[0]
    assert (gone.seq, gone.lateness_us) == (4, 3)


def test_a_snapshot_window_holds_equal_timestamps() -> None:
    window = Window("w", "snapshot")
    outcome = run(log(5, 5, 6), TimeRules(), [window])
    assert contents(outcome.windows["w"]) == {(5, 5): (0, 1)}


def test_cumulative_windows_close_one_after_the_other() -> None:
    window = Window("w", "cumulative", size_us=9, step_us=3)
    outcome = run(log(1, 4, 6), TimeRules(), [window])
    assert contents(outcome.windows["w"]) == {(0, 3): (0,), (0, 6): (0, 1)}


# ---- revisions


def rows(results: Sequence[WindowResult]) -> list[tuple[int, int, tuple[int, ...], bool]]:
    return [(row.window_start, row.revision, row.events, row.is_final) for row in results]


def test_on_time_gives_a_row_at_the_end_then_one_per_clock_period_then_the_last() -> None:
    window = Window("w", "tumbling", size_us=10, allowed_lateness_us=20, emit="on_time", revise_every_us=100)
    items: list[Record | Control] = [
        Record(0, 0, 5),
        Record(1, 1, 12),  # W = 12: the on-time row
        Record(2, 50, 6),
        Record(3, 60, 7),
        Record(4, 110, 8),  # a new period: one row for 2 and 3, not for this one
        Record(5, 120, 30),  # closes [0, 10), past [10, 20)
    ]
    outcome = run(items, TimeRules(out_of_order="keep"), [window])
    assert rows(outcome.windows["w"]) == [
        (0, 0, (0,), False),
        (0, 1, (0, 2, 3), False),
        (0, 2, (0, 2, 3, 4), True),
        (10, 0, (1,), False),
    ]
    assert [row.watermark_us for row in outcome.windows["w"]] == [12, 12, 30, 30]


def test_on_time_can_revise_at_each_event() -> None:
    window = Window("w", "tumbling", size_us=10, allowed_lateness_us=20, emit="on_time", revise_every_us=0)
    outcome = run(log(5, 12, 6, 7), TimeRules(out_of_order="keep"), [window])
    assert rows(outcome.windows["w"]) == [
        (0, 0, (0,), False),
        (0, 1, (0, 2), False),
        (0, 2, (0, 2, 3), False),
    ]


def test_early_gives_a_row_per_period_with_a_change_and_one_at_the_close() -> None:
    window = Window("w", "tumbling", size_us=1_000, emit=("early", 10))
    items: list[Record | Control] = [
        Record(0, 0, 1),
        Record(1, 9, 2),
        Record(2, 10, 3),
        Control(2, "tick", 20),
        Control(2, "tick", 30),
        Record(3, 31, 1_000),
    ]
    outcome = run(items, TimeRules(), [window])
    assert rows(outcome.windows["w"]) == [
        (0, 0, (0, 1), False),
        (0, 1, (0, 1, 2), False),
        (0, 2, (0, 1, 2), True),
    ]


def test_an_on_time_row_that_an_idle_split_lets_out_stands_before_the_event_of_that_item() -> None:
    window = Window("w", "tumbling", size_us=10, allowed_lateness_us=50, emit="on_time")
    rules = TimeRules(out_of_order="keep", use_splits=True, idle=("exclude_split", 10))
    items: list[Record | Control] = [
        Record(0, 0, 5, split="b"),
        Record(1, 9, 12, split="a"),
        Record(2, 10, 6, split="b"),  # b is out as of this clock: W is 12 before the event
    ]
    outcome = run(items, rules, [window])
    assert rows(outcome.windows["w"]) == [(0, 0, (0,), False)]
    assert outcome.open_windows["w"][0] == (0, 10, (), (0, 2))


def test_early_rows_stop_at_the_end_and_the_late_events_are_in_the_last_row() -> None:
    window = Window("w", "tumbling", size_us=10, allowed_lateness_us=20, emit=("early", 5))
    items: list[Record | Control] = [
        Record(0, 0, 1),
        Record(1, 1, 12),
        Record(2, 2, 3),
        Control(2, "tick", 50),
        Record(3, 60, 40),
    ]
    outcome = run(items, TimeRules(out_of_order="keep"), [window])
    assert rows(outcome.windows["w"]) == [(10, 0, (1,), False), (0, 0, (0, 2), True), (10, 1, (1,), True)]


# ---- settings


@pytest.mark.parametrize(
    ("rules", "windows", "setting"),
    [
        (TimeRules(unit_us=1_000, out_of_orderness_us=1), [], "out_of_orderness_us"),
        (TimeRules(processing_time=True, late=(1, "drop")), [], "processing_time"),
        (TimeRules(idle=("arrival_clock", None)), [], "idle"),
        (TimeRules(idle=("exclude_split", 5)), [], "idle"),
        (TimeRules(idle=("window_close", 5)), [], "idle"),
        (TimeRules(known_splits=(("s", None),)), [], "known_splits"),
        (TimeRules(), [Window("w", "tumbling", size_us=5, allowed_lateness_us=1)], "allowed_lateness_us"),
        (TimeRules(), [Window("w", "tumbling", size_us=5, emit="on_time")], "emit"),
        (TimeRules(), [Window("w", "tumbling")], "size_us"),
        (TimeRules(), [Window("w", "hopping", size_us=5)], "hop_us"),
        (TimeRules(), [Window("w", "session", gap_us=5, emit=("early", 5))], "emit"),
        (TimeRules(), [Window("w", "cumulative", size_us=5, step_us=2)], "step_us"),
        (TimeRules(), [Window("w", "snapshot", closed="right")], "closed"),
        (
            TimeRules(out_of_order="keep"),
            [Window("w", "session", gap_us=5, max_duration_us=9)],
            "max_duration_us",
        ),
    ],
)
def test_impossible_settings_are_refused_by_name(rules: TimeRules, windows: list[Window], setting: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting}:"):
        run([], rules, windows)


def test_a_log_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^seq:"):
        run([Record(1, 0, 0), Record(1, 0, 0)], TimeRules())
    with pytest.raises(ValueError, match=r"^after_seq:"):
        run([Record(0, 0, 0), Control(1, "flush")], TimeRules())


# ---- laws, on logs made by chance


WINDOWS = [
    Window("tumbling", "tumbling", size_us=10),
    Window("gaps", "hopping", size_us=3, hop_us=5, where=lambda record: record.seq % 4 != 0),
    Window("overlap", "hopping", size_us=20, hop_us=5, closed="right"),
    Window("session", "session", gap_us=4),
    Window("sliding", "sliding", size_us=7),
    Window("snapshot", "snapshot"),
    Window("cumulative", "cumulative", size_us=12, step_us=4),
]
RULES = [
    TimeRules(out_of_orderness_us=5),
    TimeRules(out_of_orderness_us=5, out_of_order="adjust", late=(20, "adjust"), early=(5, "drop")),
    TimeRules(out_of_orderness_us=2, out_of_order="keep", within_us=3),
    TimeRules(out_of_orderness_us=3, use_splits=True, idle=("exclude_split", 12), emit_every_us=7),
    TimeRules(out_of_order="keep", late=(8, "drop"), idle=("arrival_clock", None)),
    TimeRules(out_of_order="keep", idle=("window_close", 6), emit_every_us=9),
]


def random_log(seed: int) -> list[Record | Control]:
    chance = random.Random(seed)
    items: list[Record | Control] = []
    clock = 0
    seq = -1
    for _ in range(60):
        clock += chance.choice([0, 1, 2, 9])
        if chance.random() < 0.1:
            items.append(Control(seq, "tick", clock))
            continue
        seq += 1
        e = None if chance.random() < 0.05 else clock + chance.randint(-25, 8)
        line, split = chance.choice(['["x"]', '["y"]']), chance.choice("ab")
        items.append(Record(seq, clock, e, timeline=line, split=split, key=chance.randint(0, 9)))
    return items


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rules", RULES)
def test_no_record_is_lost_and_results_only_grow(rules: TimeRules, seed: int) -> None:
    items = random_log(seed)
    whole = run(items, rules, WINDOWS)
    records = {item.seq for item in items if isinstance(item, Record)}
    in_time = {letter.seq for letter in whole.dead_letters if letter.stage != "window"}
    accepted = {event.seq for event in whole.ordered + whole.held}
    assert in_time | accepted == records
    assert len(in_time) + len(whole.ordered) + len(whole.held) == len(records)
    counts = whole.counts
    for window in WINDOWS:
        name = window.name
        refused = [letter for letter in whole.dead_letters if letter.window_name == name]
        placed = counts.in_gap[name] + counts.filtered[name] + counts.in_windows[name]
        assert placed + len(refused) == len(accepted)
        keys = [(row.timeline, row.window_start, row.window_end) for row in whole.windows[name]]
        assert len(set(keys)) == len(keys), "one final row per window"
        for letter in refused:
            assert letter.watermark_set_by is None or (letter.lateness_us or 0) > 0
    for line in whole.watermarks[0]:
        numbered = [event for event in whole.ordered if event.timeline == line and event.release_seq is not None]
        assert [event.release_seq for event in numbered] == list(range(len(numbered)))
        stamps = [(event.timestamp_us, event.seq) for event in numbered]
        assert stamps == sorted(stamps)
        marks = [after[line] for after in whole.watermarks if after[line] is not None]
        assert marks == sorted(mark for mark in marks if mark is not None)
    part = run(items[:35], rules, WINDOWS)
    assert whole.ordered[: len(part.ordered)] == part.ordered
    assert whole.dead_letters[: len(part.dead_letters)] == part.dead_letters
    for name, results in part.windows.items():
        assert whole.windows[name][: len(results)] == results
