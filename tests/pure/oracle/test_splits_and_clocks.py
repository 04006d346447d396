"""The oracle on periodic emission, splits and idleness; small cases by hand."""

import pytest

from tests.oracle import Control, Record, TimeRules, Window, WindowResult, run
from tests.pure.oracle.cases import last_watermark, order, reasons


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


@pytest.mark.parametrize(
    ("window", "end"),
    [
        (Window("w", "session", gap_us=3), 12),
        (Window("w", "snapshot"), 9),
        (Window("w", "tumbling", size_us=10, closed="right"), 10),
        (Window("w", "cumulative", size_us=8, step_us=8, closed="right"), 16),
    ],
    ids=lambda value: value.kind if isinstance(value, Window) else "",
)
def test_the_idle_clock_closes_a_window_whose_end_is_inside_one_unit_behind_its_end(window: Window, end: int) -> None:
    rules = TimeRules(idle=("window_close", 5))
    items: list[Record | Control] = [Record(0, 9, 9), Control(0, "tick", end + 5), Control(0, "tick", end + 6)]
    outcome = run(items, rules, [window])
    assert [after["[]"] for after in outcome.watermarks][1:] == [9, end + 1]
    assert [(row.window_end, row.watermark_us) for row in outcome.windows["w"]] == [(end, end + 1)]


def test_the_idle_clock_lets_the_last_event_leave_a_sliding_window_one_unit_later() -> None:
    rules = TimeRules(unit_us=1_000, idle=("window_close", 5_000))
    window = Window("w", "sliding", size_us=10_000)
    came = Record(0, 9_000, 9_000)
    assert last_watermark(run([came, Control(0, "tick", 24_999)], rules, [window])) == 9_000
    outcome = run([came, Control(0, "tick", 25_000)], rules, [window])
    assert last_watermark(outcome) == 20_000
    assert [row.window_end for row in outcome.windows["w"]] == [9_000]
