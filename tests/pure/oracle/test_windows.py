"""The oracle on windows: on a grid, made by their events, and revised; small cases by hand."""

from collections.abc import Sequence

from tests.oracle import Control, Record, TimeRules, Window, WindowResult, run
from tests.pure.oracle.cases import HOUR, SECOND, contents, log, reasons


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


def test_empty_cumulative_windows_go_by_their_ends_and_gaps_of_hopping_windows_hold_none() -> None:
    cumulative = Window("w", "cumulative", size_us=9, step_us=3, empty=True)
    found = run([*log(4, 16), Control(1, "flush")], TimeRules(), [cumulative]).windows["w"]
    assert contents(found) == {
        (0, 6): (0,),
        (0, 9): (0,),
        (9, 12): (),
        (9, 15): (),
        (9, 18): (1,),
    }
    gapped = Window("w", "hopping", size_us=3, hop_us=5, empty=True)
    found = run(log(1, 12, 14), TimeRules(), [gapped]).windows["w"]
    assert contents(found) == {(0, 3): (0,), (5, 8): (), (10, 13): (1,)}


def test_an_empty_window_waits_for_an_event_in_a_later_window() -> None:
    window = Window("w", "tumbling", size_us=10, empty=True, where=lambda record: record.payload.get("x") is not None)
    items: list[Record | Control] = [
        Record(0, 0, 5, payload={"x": 1}),
        Record(1, 1, 35),
        Record(2, 2, 42, payload={"x": 1}),
        Record(3, 3, 50),
    ]
    found = run(items, TimeRules(), [window]).windows["w"]
    assert [(row.window_start, row.events, row.watermark_us) for row in found] == [
        (0, (0,), 35),
        (10, (), 42),
        (20, (), 42),
        (30, (), 42),
        (40, (2,), 50),
    ]


def test_calendar_days_follow_local_midnight_through_both_dst_changes() -> None:
    window = Window("w", "tumbling", calendar=("day", "Europe/Berlin"))
    spring = 1_774_738_800 * SECOND  # 2026-03-28T23:00Z, local midnight of the 29th
    autumn = 1_792_879_200 * SECOND  # 2026-10-24T22:00Z, local midnight of the 25th
    outcome = run([*log(spring, autumn), Control(1, "flush")], TimeRules(), [window])
    lengths = [(row.window_end - row.window_start) // HOUR for row in outcome.windows["w"]]
    assert [row.window_start for row in outcome.windows["w"]] == [spring, autumn]
    assert lengths == [23, 25]
    month = Window("w", "tumbling", calendar=("month", "Europe/Berlin"))
    march = run([*log(spring), Control(0, "flush")], TimeRules(), [month]).windows["w"][0]
    assert (march.window_end - march.window_start) // HOUR == 31 * 24 - 1


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
    # W = 25: alone 12 would make [12, 22], closed; with the open session [18, 35] it makes [12, 35].
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


def test_early_rows_go_on_behind_the_end_while_late_events_are_taken_and_none_is_for_the_end_itself() -> None:
    window = Window("w", "tumbling", size_us=10, allowed_lateness_us=20, emit=("early", 5))
    items: list[Record | Control] = [
        Record(0, 0, 1),
        Record(1, 1, 12),  # W passes the end
        Record(2, 2, 3),  # late
        Control(2, "tick", 6),
        Record(3, 7, 4),  # late again
        Record(4, 8, 30),  # closes it before the period is over
        Control(4, "tick", 12),
    ]
    outcome = run(items, TimeRules(out_of_order="keep"), [window])
    assert rows(outcome.windows["w"]) == [
        (0, 0, (0, 2), False),
        (10, 0, (1,), False),
        (0, 1, (0, 2, 3), True),
        (30, 0, (4,), False),
    ]


def reopened(items: Sequence[Record | Control], flushed_after: int) -> list[Record | Control]:
    """Return the items with a flush after the first so many, and a reopening."""
    last = flushed_after - 1
    return [*items[:flushed_after], Control(last, "flush"), Control(last, "reopen"), *items[flushed_after:]]


def test_what_a_flush_closed_has_a_lateness_as_soon_as_the_watermark_has_passed_it_too() -> None:
    window = Window("w", "tumbling", size_us=10)
    outcome = run(reopened(log(1, 2, 12, 3), 1), TimeRules(out_of_order="keep"), [window])
    letters = {letter.seq: (letter.watermark_us, letter.lateness_us) for letter in outcome.dead_letters}
    assert letters == {1: (1, None), 3: (12, 3)}


def test_an_event_that_cuts_off_a_session_which_a_flush_has_closed_is_refused() -> None:
    window = Window("w", "session", gap_us=10, max_duration_us=15)
    outcome = run(reopened(log(20, 8, 16, 20, 1), 1), TimeRules(out_of_orderness_us=50), [window])
    assert {letter.seq: letter.missed_windows for letter in outcome.dead_letters} == {4: ((20, 30),)}
    assert outcome.open_windows["w"] == [(8, 23, (), (1, 2, 3))]
