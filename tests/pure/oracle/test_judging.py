"""The oracle on single events: watermark, release, the policies, the end of input; small cases by hand."""

import pytest

from tests.oracle import (
    MIN_US,
    Control,
    DeadLetter,
    Record,
    TimeRules,
    Window,
    WindowResult,
    cumulative_windows,
    floor,
    grid_windows,
    run,
)
from tests.pure.oracle.cases import MIDNIGHT, contents, last_watermark, log, order, reasons


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
