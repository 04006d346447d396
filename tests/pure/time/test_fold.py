"""The loop over the items of a log equals the oracle: thousands of generated logs, whole and cut, without a JVM.

Compared are the records that are behind the watermark, with the watermark that each finds and who set it; the
watermark after every item; and the item that brings a watermark to a value. Rules 0 to 2 are the oracle's here: the
product judges them in SQL, which the tests with Spark compare. The recount, whose loop is another one, finds the same
records.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests import oracle
from tests.oracle.grids import close_of
from tests.oracle.outcome import Counts
from tests.oracle.policies import Timed, TimePolicies, refused_at_ingestion
from tests.properties.logs import (
    BASE_US,
    OWN_GAP,
    Log,
    arrived,
    controlled,
    generate,
    own_gap,
    record_of,
    rules_of,
    shape_of,
    tick_after,
    with_ticks,
)
from tests.pure.time.test_recounted_splits import RULES, SOURCE
from tests.seeds import Dice
from tidemark.assets.recount.records import ends_of_window
from tidemark.resources.recount import loop as recount_loop
from tidemark.resources.recount.ends import EndsOfWindow
from tidemark.resources.recount.rules import rules_after
from tidemark.resources.recount.timelines import walk
from tidemark.timeops.rules.time_rules import SourceTime, TimeRules
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.values.instants import NONE
from tidemark.timeops.watermark import fold
from tidemark.timeops.watermark.fold import ACTIVE, AHEAD, JUDGED, OUTSIDE
from tidemark.timeops.watermark.timelines import CLOCK_US, ROLE, STATE, T_US, LogPlace
from tidemark.timeops.watermark.watermarks import JudgedLog, judge_log

CASES = 20  # logs of a setting
SETTINGS = 10  # settings of a mode
MODES = ("events", "periods", "clock", "splits", "idle_splits", "silence")
WINDOWS: tuple[dict[str, str], ...] = (
    {"kind": "tumbling", "size": "10 us"},
    {"kind": "hopping", "size": "30 us", "hop": "10 us"},
    {"kind": "hopping", "size": "4 us", "hop": "25 us", "closed": "right"},
    {"kind": "cumulative", "size": "9 us", "step": "3 us"},
    {"kind": "tumbling", "size": "1 day", "time_zone": "Europe/Berlin"},
    {"kind": "hopping", "size": "90 minutes", "hop": "30 minutes", "time_zone": "Australia/Lord_Howe"},
    {"kind": "sliding", "size": "10 us"},
    {"kind": "session", "gap": "7 us"},
    {"kind": "session", "gap": OWN_GAP, "max_gap": "20 us"},
    {"kind": "snapshot"},
)


@dataclass(frozen=True)
class Setting:
    """Rules to judge by, and the oracle's words for them."""

    time: TimeSpec
    sources: tuple[SourceTime, ...]
    windows: tuple[WindowSpec, ...]

    @property
    def rules(self) -> TimeRules:
        return TimeRules(self.time, self.sources, uses_splits=bool(self.sources), windows=self.windows)


def setting(mode: str, rng: random.Random) -> Setting:
    def tolerance(*more: str) -> dict[str, str]:
        policy = rng.choice(["adjust", "drop", *more])
        return {"tolerance": rng.choice(["7 us", "0 us", "25 us"]), "policy": policy}

    idle: dict[str, str] | None = {
        "clock": {"advance": "arrival_clock"},
        "idle_splits": {"advance": "exclude_split"},
        "silence": {"advance": "window_close"},
    }.get(mode)
    if idle and mode != "clock":
        idle["timeout"] = rng.choice(["6 us", "25 us", "1 us"])
    periods = [{"every": "30 us"}, {"every": "4 us"}]
    policy = rng.choice(["keep", "drop", "adjust"])
    unit = rng.choice(["microsecond", "microsecond", "millisecond"])
    patience = ["9 us", "0 us", "1 us", "60 us"] if unit == "microsecond" else ["0 ms", "1 ms", "4 ms"]
    time = TimeSpec(
        timestamp_by="e",
        over=("case",),
        unit=unit,
        out_of_orderness=rng.choice(patience),
        out_of_order=policy,
        late=tolerance() if mode == "clock" else rng.choice([None, tolerance()]),
        early=rng.choice([None, tolerance("keep")]),
        emit=rng.choice(periods if mode == "periods" else ["on_event", *periods]),
        idle=idle,
    )
    sources: tuple[SourceTime, ...] = ()
    if "splits" in mode:
        listed = rng.choice([(), ("x",), ("y", "z")])
        first = SourceTime("s", "e", "UTC", time.out_of_orderness_us, time.idle_timeout_us, listed)
        own = (
            SourceTime("r", "e", "UTC", 3 * time.unit_us, 11)
            if rng.random() < 0.5
            else replace(first, name="r", splits=())
        )
        sources = (first, own)
    lateness = rng.choice(["0 us", "12 us"]) if policy == "keep" else "0 us"
    shapes = rng.sample(WINDOWS, rng.choice([1, 2])) if mode == "silence" else []
    windows = tuple(
        WindowSpec(
            name=f"w{number}", group_by=("case",), aggregates={"n": "count(*)"}, allowed_lateness=lateness, **shape
        )
        for number, shape in enumerate(shapes)
    )
    return Setting(time, sources, windows)


def stretched(log: Log, by: int) -> Log:
    """Return the log with more time between its items, but for times that are thousands of years away."""

    def moved(us: int | None) -> int | None:
        return us if us is None or abs(us - BASE_US) > 10**9 else BASE_US + (us - BASE_US) * by

    events = [replace(e, arrival_us=moved(e.arrival_us), event_us=moved(e.event_us)) for e in log.events]
    return replace(log, events=tuple(events), ticks=tuple(moved(us) for us in log.ticks))


def narrow(log: Log, part: int | None, one: Setting, policies: TimePolicies) -> pa.Table:
    """Return the narrow columns of a part of a log, as Spark sends them."""
    rows: list[tuple[Any, ...]] = []
    for event, clock in arrived(log, part):
        record, t, role = record_of(event, log), None, OUTSIDE
        if refused_at_ingestion(record) is None and record.arrival_us is not None:
            verdict = policies.judge(record, record.arrival_us)
            if isinstance(verdict, Timed):
                t, role = verdict.t, JUDGED if verdict.moves else AHEAD
            elif one.rules.follows_activity:
                role = ACTIVE
        closes = [
            None if t is None else close_of(shape_of(w), t, one.time.unit_us, record)
            for w in one.rules.windows_to_close
        ]
        rows.append((event.seq, t, clock, role, log.timeline, event.source, event.split, *closes))
    texts = {"_timeline", "_source", "_split"}
    closing = [f"close{number}" for number in range(len(one.rules.windows_to_close))]
    names = ["_arrival_seq", "t", "clock", "role", "_timeline", "_source", "_split", *closing]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    kinds = [pa.string() if name in texts else pa.int64() for name in names]
    return pa.table({n: pa.array(list(c), k) for n, c, k in zip(names, columns, kinds, strict=True)})


def place_after(place: LogPlace, clocks: Sequence[int], every_us: int | None) -> LogPlace:
    """Where the next part of a log begins, after items with these clocks."""
    came = list(accumulate([us for us in (place.before_us, *clocks) if us is not None], max))
    if not came:
        return place
    before = [us for us in came if every_us and us // every_us < came[-1] // every_us]
    first = came[0] if place.first_us is None else place.first_us
    return LogPlace(first, came[-1], before[-1] if before else place.ended_us)


def assert_equal(log: Log, one: Setting, parts: Sequence[int | None]) -> None:
    rules = rules_of(one.time, one.sources)
    whole = log if parts != (None,) else replace(log, ticks=())
    records = [record_of(event, log) for event in log.events]
    expected = oracle.run(list(controlled(whole, records)), rules, [shape_of(window) for window in one.windows])
    policies, place, state = TimePolicies(rules, Counts()), LogPlace(), STATE.empty_table()
    behind, done = dict[int, tuple[int, int | None]](), 0
    for part in parts:
        tick, events = tick_after(whole, part), list(arrived(log, part))
        judged = judge_log(narrow(log, part, one, policies), state, one.rules, replace(place, tick_us=tick))
        behind |= behind_in(judged)
        assert recounted(log, narrow(log, part, one, policies), state, one, place) == {*behind_in(judged)}
        count = len(events) + (tick is not None)
        assert_watermarks(judged, log.timeline, expected, done, count)
        clocks = [clock for _, clock in events if clock is not None] + ([] if tick is None else [tick])
        place, state, done = place_after(place, clocks, one.time.emit_every_us), judged.state, done + count
    assert_behind(behind, expected)


def recounted(log: Log, items: pa.Table, state: pa.Table, one: Setting, place: LogPlace) -> set[int]:
    """Return the numbers of the items that are behind the watermark by the recount."""
    names = {"_arrival_seq": "seq", "_timeline": "line", "_source": "source", "_split": "part"}
    records = items.rename_columns([names.get(name, name) for name in items.column_names])
    records = records.append_column("active", pc.not_equal(records["role"], OUTSIDE))
    records = records.append_column("moves", pc.not_equal(records["role"], AHEAD))
    values, ends = {event.seq: event.value for event in log.events}, list[EndsOfWindow]()
    for number, window in enumerate(one.rules.windows_to_close):
        of_window = ends_of_window(window, one.time.unit_us)
        if window.gap_by is not None:
            of_window = replace(of_window, own_gap="of each record")
            gaps = [own_gap(values[seq], window.reach_us) for seq in records["seq"].to_pylist()]
            records = records.append_column(f"gap{number}", pa.chunked_array([pa.array(gaps, pa.int64())]))
        ends.append(of_window)
    sources = one.sources or (SourceTime("s", "e", "UTC", one.time.out_of_orderness_us),)
    idle = one.time.idle_advance
    rules = replace(
        RULES,
        sources=tuple(replace(SOURCE, **asdict(source)) for source in sources),
        uses_splits=bool(one.sources),
        over=("case",),
        emit_every_us=one.time.emit_every_us,
        unit_us=one.time.unit_us,
        clock_tolerance_us=one.time.clock_tolerance_us,
        idle=None if idle == "arrival_clock" else idle,
        idle_timeout_us=one.time.idle_timeout_us,
        windows=tuple(ends),
        first_clock_us=pc.min(records["clock"]).as_py() if place.first_us is None else place.first_us,
        start_clock_us=place.before_us,
        start_ended_us=place.ended_us,
    )
    below, _ = walk(records, state, rules)
    cut = len(records) // 2  # an audit judges the log again piece by piece
    first, between = walk(records[:cut], state, rules)
    second, _ = walk(records[cut:], between, rules_after(records[:cut], rules))
    assert [*first, *second] == below.tolist()
    return {*records["seq"].filter(pa.array(below)).to_pylist()}


def behind_in(judged: JudgedLog) -> dict[int, tuple[int, int | None]]:
    """By number the items that are behind the watermark, with it and with what set it."""
    columns = (judged.behind[name].to_pylist() for name in ("_arrival_seq", "watermark", "set_by"))
    return {seq: (watermark, set_by) for seq, watermark, set_by in zip(*columns, strict=True)}


def assert_watermarks(judged: JudgedLog, timeline: str, expected: oracle.Outcome, done: int, count: int) -> None:
    """Assert the watermark of a timeline after each of `count` items of the log that follow `done` ones."""
    after = [known.get(timeline) for known in expected.watermarks[done : done + count]]
    before = expected.watermarks[done - 1].get(timeline) if done else None
    if timeline in judged.names.to_pylist():
        assert_rises(judged, timeline, before, after)


def assert_behind(behind: Mapping[int, tuple[int, int | None]], expected: oracle.Outcome) -> None:
    """Assert which events are refused, moved or kept out of order, each with the watermark that it met."""
    moved = {"out_of_order", "kept_out_of_order"}
    wanted = {e.seq: e.watermark_us for e in (*expected.ordered, *expected.held) if moved & set(e.adjusted_by)}
    letters = [letter for letter in expected.dead_letters if letter.reason == "out_of_order"]
    assert {seq: found[0] for seq, found in behind.items()} == wanted | {one.seq: one.watermark_us for one in letters}
    assert {one.seq: behind[one.seq][1] for one in letters} == {one.seq: one.watermark_set_by for one in letters}


def assert_rises(judged: JudgedLog, timeline: str, before: int | None, after: list[int | None]) -> None:
    """Assert the watermark after each item, and the first item at which it comes to any value in between."""
    if not after:
        return
    index, count = judged.names.to_pylist().index(timeline), len(after)
    found = judged.rises.after(np.full(count, index), np.arange(count)).value
    assert [None if value == NONE else value for value in found.tolist()] == after
    wanted = sorted({us + near for us in after if us is not None for near in (-3, 0, 1)})
    wanted = [us for us in wanted if before is None or us > before]
    reached = judged.rises.reaching(np.full(len(wanted), index), np.array(wanted, np.int64))
    for us, watermark, first in zip(
        wanted, reached.watermark.tolist(), reached.first_watermark.tolist(), strict=True
    ):
        assert (None if watermark == NONE else watermark) == next(
            (w for w in after if w is not None and w >= us), None
        )
        assert watermark == NONE or us <= first <= watermark


@pytest.mark.parametrize("mode", MODES)
def test_the_loop_equals_the_oracle_on_logs_whole_and_cut(mode: str, dice: Dice) -> None:
    for number in range(SETTINGS):
        rng = random.Random(f"{mode} {dice.seed(number)}")
        one = setting(mode, rng)
        logs = with_ticks(generate(rng.getrandbits(32), dice.some(CASES)), rng.getrandbits(32))
        for short in logs:
            log = stretched(short, 1 if one.time.unit_us == 1 else rng.choice([90, 400]))
            assert_equal(log, one, (None,))
            assert_equal(log, one, tuple(range(len(log.cuts) + 1)))


def test_compiled_it_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    for mode in MODES:
        one = setting(mode, rng)
        for log in with_ticks(generate(11, 10), 12):
            parts = tuple(range(len(log.cuts) + 1))
            with monkeypatch.context() as patched:
                patched.setattr(fold, "COMPILED_FROM", 0)
                patched.setattr(recount_loop, "_COMPILED_FROM", 0)
                assert_equal(log, one, parts)


def test_the_arrival_clock_moves_the_watermark_by_a_microsecond() -> None:
    late = {"tolerance": "5 us", "policy": "drop"}
    time = TimeSpec(timestamp_by="e", out_of_orderness="60 us", late=late, idle={"advance": "arrival_clock"})
    # The last event arrived before the clock of the log, so it is not late, and is behind the watermark all the same.
    rows = {"_arrival_seq": [0, 1, 2], T_US: [100, 101, 95], CLOCK_US: [100, 101, 101]}
    items = pa.table(rows | {ROLE: pa.array([JUDGED] * 3, pa.int8())})
    found = judge_log(items, STATE.empty_table(), TimeRules(time, (SourceTime("s", "e", "UTC", 60),)), LogPlace())
    assert found.behind.select(["_arrival_seq", "watermark"]).to_pylist() == [{"_arrival_seq": 2, "watermark": 96}]


def test_a_period_begins_with_what_the_clock_gave_at_the_last_record_before_it_even_one_that_does_not_count() -> None:
    late = {"tolerance": "5 us", "policy": "drop"}
    rules = {"late": late, "idle": {"advance": "arrival_clock"}, "emit": {"every": "100 us"}}
    time = TimeSpec(timestamp_by="e", out_of_orderness="60 us", **rules)
    rows = {"_arrival_seq": [0, 1, 2], T_US: [100, None, 150], CLOCK_US: [100, 190, 205]}
    items = pa.table(rows | {ROLE: pa.array([JUDGED, OUTSIDE, JUDGED], pa.int8())})
    found = judge_log(items, STATE.empty_table(), TimeRules(time, (SourceTime("s", "e", "UTC", 60),)), LogPlace())
    assert found.behind.select(["_arrival_seq", "watermark"]).to_pylist() == [{"_arrival_seq": 2, "watermark": 185}]
