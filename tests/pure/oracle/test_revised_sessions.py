"""The oracle on sessions that revise their results: small cases by hand."""

from collections.abc import Sequence

from tests.oracle import Control, Outcome, Record, TimeRules, Window, run
from tests.pure.oracle.cases import contents, log

KEEP = TimeRules(out_of_order="keep")
ON_TIME = Window("w", "session", gap_us=10, allowed_lateness_us=20, emit="on_time", revise_every_us=0)

Row = tuple[int, int, int, tuple[int, ...], bool]


def shown(outcome: Outcome) -> list[Row]:
    """Start, end, revision, events, final."""
    return [(r.window_start, r.window_end, r.revision, r.events, r.is_final) for r in outcome.windows["w"]]


def taken(outcome: Outcome) -> list[tuple[int, int, int]]:
    """Start, end and revision of what was taken back."""
    return [(r.window_start, r.window_end, r.revision) for r in outcome.hidden["w"]]


def came(*events: tuple[int, int]) -> list[Record | Control]:
    """Records that arrive at the first number and have the second as their time."""
    return [Record(seq, arrival, t) for seq, (arrival, t) in enumerate(events)]


def test_a_late_event_that_joins_sessions_up_takes_back_what_they_have_given() -> None:
    outcome = run(log(0, 25, 12, 8, 18, 40, 20, 56), KEEP, [ON_TIME])
    assert shown(outcome) == [
        (0, 10, 0, (0,), False),  # W = 25
        (12, 22, 0, (2,), False),  # after its end as it came
        (0, 22, 0, (0, 2, 3), False),
        (0, 35, 0, (0, 1, 2, 3, 4), False),  # W = 40; with 25 in it, it was not at its end before
        (0, 35, 1, (0, 1, 2, 3, 4, 6), False),
        (0, 35, 2, (0, 1, 2, 3, 4, 6), True),  # W = 56
        (40, 50, 0, (5,), False),
    ]
    assert taken(outcome) == [(0, 10, 1), (12, 22, 1), (0, 22, 1)]
    assert [r.watermark_us for r in outcome.hidden["w"]] == [25, 25, 25]


def test_late_events_of_one_period_make_one_revision_of_the_session_that_is_there_when_it_is_over() -> None:
    window = Window("w", "session", gap_us=10, allowed_lateness_us=20, emit="on_time", revise_every_us=10)
    items = came(
        (0, 0),
        (1, 25),
        (2, 5),
        (8, 7),  # changes the bounds again before the period is over
        (12, 30),
        (13, 6),
        (19, 8),
        (25, 31),
        (26, 7),
        (31, 9),  # after the period: the revision comes first, then the change of bounds
    )
    outcome = run(items, KEEP, [window])
    assert shown(outcome) == [
        (0, 10, 0, (0,), False),
        (0, 17, 0, (0, 2, 3), False),
        (0, 18, 0, (0, 2, 3, 5, 6), False),
        (0, 18, 1, (0, 2, 3, 5, 6, 8), False),
    ]
    assert taken(outcome) == [(0, 10, 1), (0, 17, 1), (0, 18, 2)]


def test_early_gives_a_growing_session_at_the_end_of_each_period_until_it_grows_again() -> None:
    window = Window("w", "session", gap_us=10, emit=("early", 10))
    outcome = run(came((0, 0), (3, 4), (12, 8), (13, 6), (21, 30)), KEEP, [window])
    assert shown(outcome) == [
        (0, 14, 0, (0, 1), False),
        (0, 18, 0, (0, 1, 2, 3), False),
        (0, 18, 1, (0, 1, 2, 3), True),
    ]
    assert taken(outcome) == [(0, 14, 1)]


def test_having_keeps_back_results_of_sessions_which_are_taken_back_all_the_same() -> None:
    def is_odd(records: Sequence[Record]) -> bool:
        return len(records) % 2 == 1

    window = Window(
        "w", "session", gap_us=10, allowed_lateness_us=20, emit="on_time", revise_every_us=0, having=is_odd
    )
    outcome = run(log(0, 25, 0, 3), KEEP, [window])
    assert shown(outcome) == [(0, 10, 0, (0,), False), (0, 13, 0, (0, 2, 3), False)]
    assert taken(outcome) == [(0, 10, 1), (0, 10, 2)]


def test_the_final_results_of_sessions_are_those_of_a_window_that_gives_one() -> None:
    items = [*log(0, 25, 12, 8, 18, 40, 20, 56, 30, 47, 80), Control(10, "flush")]
    once = Window("w", "session", gap_us=10, allowed_lateness_us=20)
    last = [r for r in run(items, KEEP, [ON_TIME]).windows["w"] if r.is_final]
    assert contents(last) == contents(run(items, KEEP, [once]).windows["w"])
