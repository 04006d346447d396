"""The first events of windows (`top`) equal a sorted list of what the oracle has in each, whole and cut."""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.oracle.first_rows import first_events, times_of
from tests.oracle.outcome import WindowResult
from tests.properties import fold
from tests.properties.fold import Gathered, run
from tests.properties.logs import Event, Log, cut, generate, judged_by_oracle
from tests.properties.test_oracle_equality import session_spec, time_spec, turned, window_spec
from tests.seeds import Dice
from tidemark.timeops.spec import TimeSpec, WindowSpec

CASES = 40  # logs of an example
SHORT = timedelta(microseconds=100)  # most logs take longer
ALONE = ("_rank", "_arrival_seq", "event_us")
NEXT_TO = (*ALONE, "seqs")


def nullable(value: int, *, descends: bool = False, first: bool) -> tuple[bool, int]:
    """Return the rank of `nullif(v, 3)`."""
    return ((value != 3) if first else (value == 3), -value if descends else value)


FLOATS = {0: -0.0, 1: 0.0, 2: math.inf, 3: -1.5}
"""Numbers as they are compared: NaN is larger than any other, and -0.0 is 0.0."""
AS_FLOATS = "CASE v WHEN 0 THEN -0.0D WHEN 1 THEN 0.0D WHEN 2 THEN double('NaN') WHEN 3 THEN -1.5D ELSE 2.5D END"

ORDERS: dict[str, Callable[[Event], Any]] = {
    "v DESC": lambda event: -event.value,
    "v % 2 desc, v ASC": lambda event: (-(event.value % 2), event.value),
    "nullif(v, 3)": lambda event: nullable(event.value, first=True),
    "nullif(v, 3) DESC": lambda event: nullable(event.value, descends=True, first=False),
    "nullif(v, 3) NULLS LAST": lambda event: nullable(event.value, first=False),
    "nullif(v, 3) DESC NULLS FIRST": lambda event: nullable(event.value, descends=True, first=True),
    AS_FLOATS: lambda event: FLOATS.get(event.value, 2.5),
    "named_struct('a', v > 2, 'b', array(v)) DESC": lambda event: (event.value <= 2, -event.value),
    "_arrival_seq DESC": lambda event: -event.seq,
}
ANY_SHAPES = (
    {"kind": "tumbling", "size": "30 us"},
    {"kind": "sliding", "size": "20 us"},
    {"kind": "hopping", "size": "30 us", "hop": "7 us", "closed": "right"},
    {"kind": "hopping", "size": "40 us", "hop": "5 us"},
    {"kind": "cumulative", "size": "60 us", "step": "6 us"},
    {"kind": "snapshot"},
    {"kind": "session", "gap": "15 us"},
)


def with_top(window: WindowSpec, n: int, by: str, *, having: str | None = None, alone: bool) -> WindowSpec:
    """Return a window whose rows are its first events, with the numbers of all its events next to them or not."""
    keys = window.model_dump(by_alias=True, exclude_unset=True) | {"top": {"n": n, "by": by}, "having": having}
    if alone:
        del keys["aggregates"]
    return WindowSpec.model_validate(keys)


def assert_first(
    logs: Sequence[Log], out: Gathered, time: TimeSpec, window: WindowSpec, *, alone: bool, flush: bool
) -> int:
    """Compare the rows of a window with the first events of the oracle's results; return how many rows there are."""
    assert window.top is not None
    rows = 0
    for log in logs:
        expected = judged_by_oracle(log, time, (window.model_copy(update={"having": None}),), flush=flush)
        times, by_seq = times_of(expected), {event.seq: event for event in log.events}
        order, n = ORDERS[window.top.by], window.top.n

        def rows_of(result: WindowResult) -> list[tuple[Any, ...]]:
            first = first_events(result.events, n, lambda seq: order(by_seq[seq]), times)  # noqa: B023
            all_of = () if alone else (result.events,)
            about = (result.revision, result.is_final, result.watermark_us)
            key = (result.window_start, result.window_end, result.group)
            return [(*key, rank, seq, times[seq], *all_of, *about) for rank, seq in first]  # noqa: B023

        every = [row for result in expected.windows[window.name] for row in rows_of(result)]
        shown = [row for row in every if window.having is None or row[3] != 2]
        found = out.windows[window.name][log.case]
        assert sorted(found, key=lambda row: row[:5] + row[-3:-1]) == sorted(
            shown, key=lambda row: row[:5] + row[-3:-1]
        ), (log, window)
        if window.revises:  # what takes rows away does so rank by rank
            gone = [row for result in expected.hidden[window.name] for row in rows_of(result)]
            gone += [row for row in every if row not in shown]
            hidden = {(*row[:4], *row[-3:-1]) for row in out.hidden[window.name][log.case]}
            assert hidden == {(*row[:4], *row[-3:-1]) for row in gone}, (log, window)
        rows += len(shown)
    return rows


@pytest.mark.parametrize(
    "turn", [pytest.param(turn, marks=[] if turn == 2 else [pytest.mark.long]) for turn in range(6)]
)
def test_the_first_events_of_windows_are_the_oracles_wherever_a_log_is_cut(
    spark: SparkSession, turn: int, dice: Dice
) -> None:
    time = time_spec(dice, "events", turn)
    of_session = turn % 3 == 2
    drawn = (
        session_spec(dice, turn, time.out_of_order)
        if of_session
        else window_spec(dice, turn, lateness=time.out_of_order == "keep")
    )
    if of_session and time.out_of_order == "keep" and drawn.allowed_lateness:
        drawn = WindowSpec.model_validate(
            drawn.model_dump(by_alias=True, exclude_unset=True) | {"emit": "on_time", "revise_every": "3 us"}
        )
    alone = dice.choice(turned([True, False], turn))
    having = dice.choice(turned([None, "_rank <> 2"], turn))
    by = dice.choice(turned([*ORDERS], turn))
    window = with_top(drawn, dice.choice(turned([3, 1, 2, 1_500], turn)), by, having=having, alone=alone)
    waits = time.out_of_orderness + drawn.allowed_lateness
    flush = dice.choice(turned([False, True], turn)) or waits > SHORT  # else a log may end before any window closes
    logs, parts = cut(generate(dice.seed(turn), CASES), dice)
    ways: Sequence[Sequence[int | None]] = (parts, parts, (None,))
    found = run(
        spark,
        logs,
        time,
        (window,),
        parts=dice.turn(ways, turn),
        flush=flush,
        aggregates=ALONE if alone else NEXT_TO,
    )
    assert assert_first(logs, found, time, window, alone=alone, flush=flush) > 0


@pytest.mark.long
@pytest.mark.parametrize("alone", [True, False])
def test_windows_of_each_kind_have_first_events_in_each_order(spark: SparkSession, *, alone: bool) -> None:
    time = TimeSpec(timestamp_by="e", over=("case",), out_of_order="keep", out_of_orderness="5 us")
    windows = []
    for number, by in enumerate(ORDERS):
        shape = ANY_SHAPES[number % len(ANY_SHAPES)]
        emit = {} if alone else {"emit": {"early": "9 us"}}
        one = fold.window(name=f"w{number}", allowed_lateness="20 us", **emit, **shape)
        windows.append(with_top(one, 1 + number % 3, by, alone=alone))
    logs = generate(5, 60)
    out = run(spark, logs, time, tuple(windows), parts=(0, 1, 2), flush=True, aggregates=ALONE if alone else NEXT_TO)
    for window in windows:
        assert assert_first(logs, out, time, window, alone=alone, flush=True) > 0
