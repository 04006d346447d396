"""Generated arrival logs, many in one DataFrame, and what the oracle and the product make of them.

Each log is a case with a timeline of its own (`case`), so that one Spark job judges hundreds of logs.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from functools import partial
from itertools import accumulate
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tests import oracle
from tests.oracle.chained import results_over
from tests.oracle.interval_joins import IntervalJoin, PairRow, paired
from tests.oracle.joins import Answer, Join, joined
from tests.seeds import Dice
from tidemark.timeops.events.adjustment import LogPlaces
from tidemark.timeops.rules.time_rules import SourceTime
from tidemark.timeops.spec import JoinSpec, TimeSpec, WindowSpec
from tidemark.timeops.spec.join import JoinColumns
from tidemark.timeops.spec.window import input_of, inputs_first
from tidemark.timeops.spec.window_shape import DAY, Months
from tidemark.timeops.values.durations import micros
from tidemark.timeops.watermark.timelines import LogPlace

BASE_US = 1_700_000_000_000_000
SPLITS = (("s", "x"), ("s", None), ("r", None), ("s", "y"))  # source and split of generated events
NO_KEY = 5  # the value of events that have no key by `KEY`
KEY = ("case", f"nullif(v, {NO_KEY})")
OWN_GAP = "CASE v WHEN 0 THEN NULL WHEN 1 THEN INTERVAL '0.000030' SECOND ELSE v * INTERVAL '0.000003' SECOND END"
"""A gap of each event, by its value: none of 0, and 30 us of 1."""
OWN_GAP_OF_RESULTS = "size(seqs) * INTERVAL '0.000004' SECOND"
RESULTS_OF_FEW = "size(seqs) < 3"
FAR_US = (-60_000_000_000_000_000, 250_000_000_000_000_000)

ITEMS_SCHEMA = (
    "case STRING, e TIMESTAMP, v INT, _arrival_seq BIGINT, _arrival_time TIMESTAMP, _clock TIMESTAMP, "
    "_source STRING, _split STRING, _position BIGINT, _file STRING, _malformed STRING, _batch_id BIGINT"
)
_COLUMNS = [part.strip().split(" ")[0] for part in ITEMS_SCHEMA.split(",")]


@dataclass(frozen=True)
class Event:
    """One record of a generated log; `event_us` None has no time, `malformed` could not be parsed."""

    seq: int
    arrival_us: int | None
    event_us: int | None
    value: int
    malformed: bool = False
    source: str = "s"
    split: str | None = None
    is_let_in: bool = False


@dataclass(frozen=True)
class Log:
    """One case: its events in log order, numbered over all cases.

    By part the clock of the tick after it, if any, and the sources and splits that wait throughout it.
    """

    case: str
    events: tuple[Event, ...]
    cuts: tuple[int, ...] = field(default=())
    ticks: tuple[int | None, ...] = field(default=())
    waits: tuple[frozenset[oracle.Waiter], ...] = field(default=())

    @property
    def timeline(self) -> str:
        """The `_timeline` of `over: [case]`."""
        return json.dumps([self.case], separators=(",", ":"))


def generate(seed: int, cases: int, *, longest: int = 24, spread_us: int = 40) -> list[Log]:
    """Logs with ties, arrivals going backwards, silences, far past and future, empty and one-event logs."""
    rng = random.Random(seed)
    logs, seq = [], 0
    for number in range(cases):
        length = rng.choice([0, 1, 2, rng.randint(3, longest), rng.randint(3, longest)])
        clock = BASE_US + rng.randint(0, 1_000)
        step = rng.choice([1, 3, 10])
        events = []
        for _ in range(length):
            clock += rng.choice([0, 0, rng.randint(0, step), rng.randint(0, step), -rng.randint(0, 5), 50])
            event_us: int | None = clock + rng.randint(-spread_us, spread_us) // rng.choice([1, 2, 8])
            roll = rng.random()
            if roll < 0.02:
                event_us = rng.choice(FAR_US)
            elif roll < 0.04:
                event_us = None
            arrival = None if rng.random() < 0.02 else clock
            value, malformed = rng.randint(0, 5), rng.random() < 0.02
            source, split = rng.choice(SPLITS[: 1 + number % len(SPLITS)])
            events.append(Event(seq, arrival, event_us, value, malformed, source, split))
            seq += 1
        cuts = tuple(sorted(rng.sample(range(length + 1), min(length + 1, 2))))
        logs.append(Log(f"c{number}", tuple(events), cuts))
    return logs


def with_ticks(logs: Sequence[Log], seed: int) -> list[Log]:
    """Return the logs with ticks after most of their parts, at a clock that may not move, or go on for long."""
    rng = random.Random(seed)
    found = []
    for log in logs:
        ticks: list[int | None] = []
        for part in range(len(log.cuts) + 1):
            known = replace(log, ticks=tuple(ticks))
            clock = _latest(_clocks(known, part)) or BASE_US
            step = rng.choice([0, -3, 1, 2, rng.randint(1, 10), rng.randint(1, 40), rng.randint(1, 400)])
            ticks.append(None if rng.random() < 0.2 else clock + step)
        found.append(replace(log, ticks=tuple(ticks)))
    return found


def places_of(logs: Iterable[Log], part: int | None, every_us: int, *, flushed: bool) -> LogPlaces:
    """Where a part of each log is in it."""
    places = {}
    for log in logs:
        before = _clocks(log, part - 1) if part else []
        timed = _timed(before)
        places[log.timeline] = LogPlace(
            first_us=timed[0] if timed else None,
            before_us=_latest(before),
            ended_us=_ended(before, every_us),
            tick_us=tick_after(log, part),
            flushed=flushed,
        )
    return LogPlaces(log_of, places)


def log_of(timeline: str) -> str:
    """Return the log of a timeline, by the timeline of all its events: its name begins with the case."""
    return json.dumps(json.loads(timeline)[:1], separators=(",", ":"))


def items(spark: SparkSession, logs: Iterable[Log], part: int | None = None) -> DataFrame:
    """Return the records of all logs; with `part` only those of that segment between each log's cuts."""
    rows = [
        (log.case, e, event.value, event.seq, a, clock, event.source, event.split, event.seq, "f", m, 0)
        for log in logs
        for event, clock in arrived(log, part)
        for e, a, m in [_columns_of(event)]
    ]
    return frame(spark, rows)


def arrived(log: Log, part: int | None) -> Iterable[tuple[Event, int | None]]:
    """Return the events of a part of a log, each with the clock of the log."""
    clock = _latest(_clocks(log, part - 1)) if part else None
    found = []
    for event in segment(log, part):
        clock = _latest([clock, event.arrival_us])
        found.append((event, clock))
    return found


def _clocks(log: Log, part: int | None) -> list[int | None]:
    """Arrivals of the records and clocks of the ticks of a log up to the end of a part, in their order."""
    clocks: list[int | None] = []
    for one in range(1 + (len(log.cuts) if part is None else part)):
        clocks += [event.arrival_us for event in segment(log, one)]
        clocks.append(tick_after(log, one))
    return clocks


def tick_after(log: Log, part: int | None) -> int | None:
    """Return the clock of the tick after a part of a log; None for none."""
    return log.ticks[part] if part is not None and part < len(log.ticks) else None


def _timed(clocks: Iterable[int | None]) -> list[int]:
    return [clock for clock in clocks if clock is not None]


def _latest(clocks: Iterable[int | None]) -> int | None:
    return max(_timed(clocks), default=None)


def _ended(clocks: Iterable[int | None], every_us: int) -> int | None:
    came = list(accumulate(_timed(clocks), max))
    return max((clock for clock in came if clock // every_us < came[-1] // every_us), default=None)


def segment(log: Log, part: int | None) -> Sequence[Event]:
    """Return the events of a log between two of its cuts; all of them for None."""
    if part is None:
        return log.events
    bounds = (0, *log.cuts, len(log.events))
    return log.events[bounds[part] : bounds[part + 1]] if part + 1 < len(bounds) else ()


def frame(spark: SparkSession, rows: Sequence[tuple[object, ...]]) -> DataFrame:
    """Rows with instants as microseconds, as a frame of ITEMS_SCHEMA."""
    kinds = [part.split()[1] for part in ITEMS_SCHEMA.split(", ")]
    columns = zip(*rows, strict=True) if rows else [() for _ in kinds]
    arrays = [
        pa.array(list(values), pa.string() if kind == "STRING" else pa.int64())
        for values, kind in zip(columns, kinds, strict=True)
    ]
    made = spark.createDataFrame(pa.table(dict(zip(_COLUMNS, arrays, strict=True))))
    return made.selectExpr(
        *[
            f"timestamp_micros({name}) AS {name}" if kind == "TIMESTAMP" else f"CAST({name} AS {kind}) AS {name}"
            for name, kind in zip(_COLUMNS, kinds, strict=True)
        ]
    )


def _columns_of(event: Event) -> tuple[int | None, int | None, str | None]:
    if event.malformed:
        return None, event.arrival_us, "{broken"
    return event.event_us, event.arrival_us, None


def judged_by_oracle(
    log: Log,
    time: TimeSpec,
    windows: Sequence[WindowSpec],
    *,
    sources: Sequence[SourceTime] = (),
    flush: bool = False,
    flushed_after: Sequence[int] = (),
) -> oracle.Outcome:
    """Return the oracle's outcome of one case; it is flushed and reopened after some of its parts."""
    records = [record_of(event, log, time.over) for event in log.events]
    log_items = list(controlled(log, records, flushed_after, flush=flush))
    outcome = oracle.run(log_items, rules_of(time, sources), [window_of(window) for window in windows])
    give_results_over(outcome, log_items, windows)
    return outcome


def controlled(
    log: Log, records: Sequence[oracle.Record], flushed_after: Sequence[int] = (), *, flush: bool = False
) -> Iterator[oracle.Record | oracle.Control]:
    """Yield the records, the control items after each part of them, and the flush at the end."""
    last = -1
    if log.waits:
        yield oracle.Control(last, "wait", waiters=log.waits[0])
    ends = (*log.cuts, len(records), len(records))  # of parts; some logs have a cut less
    for position in range(len(records) + 1):
        for part in (part for part, end in enumerate(ends) if end == position):
            clock = tick_after(log, part)
            if clock is not None:
                yield oracle.Control(last, "tick", clock)
            if part in flushed_after:
                yield oracle.Control(last, "flush")
                yield oracle.Control(last, "reopen")
            if part + 1 < len(log.waits):
                yield oracle.Control(last, "wait", waiters=log.waits[part + 1])
        if position < len(records):
            yield records[position]
            last = records[position].seq
    if flush:
        yield oracle.Control(last, "flush")


def record_of(event: Event, log: Log, over: Sequence[str] = ("case",)) -> oracle.Record:
    """Return the oracle's words for an event; `over` is the case, or the case and the value `v`."""
    return oracle.Record(
        seq=event.seq,
        arrival_us=event.arrival_us,
        event_us=event.event_us,
        bad="malformed" if event.malformed else None,
        timeline=log.timeline if "v" not in over else f'{log.timeline[:-1]},"{event.value}"]',
        source=event.source,
        split=event.split,
        key=(log.case, event.value) if event.value not in (NO_KEY, None) else None,
        payload={"case": log.case, "v": event.value},
        is_let_in=event.is_let_in,
    )


def give_rows_of_joins(
    outcome: oracle.Outcome,
    items: Sequence[oracle.Record | oracle.Control],
    spec_joins: Mapping[JoinSpec, JoinColumns],
) -> None:
    """Put in the rows of joins as results of windows, each at its time; a group is the values of all its columns."""
    accepted = {event.seq: event for event in [*outcome.ordered, *outcome.held]}
    payloads = {item.seq: item.payload for item in items if isinstance(item, oracle.Record)}
    for join, columns in spec_joins.items():
        of_join, given = list[PairRow | Answer](), list[int]()
        if join.is_interval:
            pairs = paired(outcome, items, interval_join_of(join))
            of_join.extend(pairs.rows)
            given = pairs.given
        else:
            answers = joined(outcome, items, join_of(join))
            of_join.extend(answers.answers)
            given = answers.given
        rows: list[oracle.WindowResult] = []
        for number, row in enumerate(of_join):
            left, right = (None if seq is None else accepted[seq] for seq in (row.left_seq, row.right_seq))
            of = left if left is not None else right
            assert of is not None
            values = [None if left is None else payloads[left.seq].get(name) for name in columns.left]
            values += [None if right is None else payloads[right.seq].get(name) for name, _ in columns.right]
            group = (*values, row.left_seq, row.right_seq)
            at = of.timestamp_us
            rows.append(
                oracle.WindowResult(
                    at, at, group, (number,), row.revision, row.is_final, row.watermark_us, of.timeline
                )
            )
        outcome.windows[join.name], outcome.given[join.name] = rows, given


def give_results_over(
    outcome: oracle.Outcome,
    items: Sequence[oracle.Record | oracle.Control],
    windows: Sequence[WindowSpec],
    joins: Mapping[JoinSpec, JoinColumns] = MappingProxyType({}),
    takes: Callable[[WindowSpec, oracle.WindowResult], bool] = lambda _window, _row: True,
) -> None:
    """Put in the results of windows over others, as if they added those up; the oracle saw windows of events.

    The rows of joins are put in first, see `give_rows_of_joins`. `takes` is the filter of a window over them.
    """
    give_rows_of_joins(outcome, items, joins)
    columns_of = {join.name: columns.in_windows for join, columns in joins.items()}
    chained = [window for window in inputs_first(windows) if window.input is not None]
    of_events = {window.name for window in windows} - {window.name for window in chained}
    letters = outcome.dead_letters
    outcome.dead_letters = [letter for letter in letters if letter.window_name in {None, *of_events}]
    for window in chained:
        assert window.input is not None
        known = columns_of.get(window.input) or input_of(window, windows).group_columns
        taken = [known.index(name) for name in window.group_columns]

        def group_of(result: oracle.WindowResult, taken: list[int] = taken) -> tuple[object, ...]:
            return tuple(result.group[place] for place in taken)

        taken_by, gap_of = partial(takes, window) if window.input in columns_of else lambda _: True, None
        if window.gap_by == OWN_GAP_OF_RESULTS:
            gap_of, taken_by = gap_of_result, partial(_says_a_gap, window)
        if window.where == RESULTS_OF_FEW:
            taken_by = _is_of_few
        found = results_over(outcome, items, window.input, shape_of(window), group_of, taken_by, gap_of)
        outcome.windows[window.name], outcome.given[window.name] = found


def gap_of_result(result: oracle.WindowResult) -> int:
    """Return OWN_GAP_OF_RESULTS of a result in microseconds."""
    return 4 * len(result.events)


def _is_of_few(result: oracle.WindowResult) -> bool:
    return len(result.events) < 3


def _says_a_gap(window: WindowSpec, result: oracle.WindowResult) -> bool:
    return gap_of_result(result) <= window.reach_us


def results_of_table(outcome: oracle.Outcome, window: WindowSpec) -> list[oracle.WindowResult]:
    """Return the results in the table of a window: of revisions of one result the last, if it is shown."""
    taken_back = outcome.hidden[window.name] if window.may_take_back else []
    last: dict[tuple[object, ...], oracle.WindowResult] = {}
    for result in sorted([*outcome.windows[window.name], *taken_back], key=lambda one: one.revision):
        own = (result.timeline, result.window_start, result.window_end, result.group)
        last[own if window.revises else (len(last),)] = result
    return [result for result in last.values() if result.is_shown]


def rules_of(time: TimeSpec, sources: Sequence[SourceTime] = ()) -> oracle.TimeRules:
    """Return the oracle's words for the spec's; `sources` where their splits count."""
    return oracle.TimeRules(
        unit_us=time.unit_us,
        out_of_orderness_us={s.name: s.out_of_orderness_us for s in sources} or time.out_of_orderness_us,
        out_of_order=time.out_of_order,
        late=(time.late.tolerance_us, time.late.policy) if time.late else None,
        early=(time.early.tolerance_us, time.early.policy) if time.early else None,
        emit_every_us=time.emit_every_us,
        idle=(time.idle.advance, _timeout(time, sources)) if time.idle else None,
        use_splits=bool(sources),
        known_splits=tuple((s.name, value) for s in sources for value in s.splits) or None,
        within_us=time.within_us if time.deduplicate_by else None,
        processing_time=time.timestamp_by is None,
    )


def _timeout(time: TimeSpec, sources: Sequence[SourceTime]) -> int | Mapping[str, int] | None:
    if time.idle is not None and time.idle.advance == "exclude_split" and sources:
        return {s.name: s.idle_timeout_us or 0 for s in sources}
    return time.idle_timeout_us


def join_of(join: JoinSpec) -> Join:
    """Return the oracle's words for an as-of join."""
    lateness = join.allowed_lateness_us
    return Join(*join.sources, join.on, join.within_us, join.direction, join.how, lateness, join.emit)


def interval_join_of(join: JoinSpec) -> IntervalJoin:
    """Return the oracle's words for an interval join."""
    reach = (micros(join.before or timedelta(0)), micros(join.after or timedelta(0)))
    return IntervalJoin(*join.sources, join.on, *reach, join.how, join.allowed_lateness_us, join.emit)


def shape_of(window: WindowSpec) -> oracle.Window:
    """Return the oracle's words for a window of all events in one group."""
    early_us = window.early_every_us
    of_months = window.size.count if isinstance(window.size, Months) else 0
    bare = oracle.Window(
        window.name,
        window.kind,
        across=window.across,
        allowed_lateness_us=window.allowed_lateness_us,
        emit=window.emit if isinstance(window.emit, str) else ("early", early_us or 0),
        revise_every_us=window.revise_every_us,
        empty=window.empty,
    )
    if window.kind == "session":
        session = replace(bare, gap_us=window.reach_us, max_duration_us=window.max_duration_us)
        if window.gap_by != OWN_GAP:
            return session
        return replace(session, gap=lambda record: own_gap(int(str(record.payload["v"])), window.reach_us))
    if window.kind == "tumbling" and window.local_grid is not None and (of_months or window.size == DAY):
        by, origin = "month" if of_months else "day", window.origin or date(1970, 1, 1)
        local = replace(bare, calendar=(by, window.local_grid.zone), closed=window.closed)
        return replace(local, months=of_months or 1, origin=(origin.year, origin.month, origin.day))
    if window.kind == "snapshot":
        return bare
    grid = replace(bare, size_us=window.size_us, offset_us=window.offset_us, closed=window.closed)
    grid = replace(grid, zone=window.time_zone, split=window.repeated == "split")
    if window.kind == "cumulative":
        return replace(grid, step_us=window.end_step_us)
    return replace(grid, hop_us=window.end_step_us if window.kind == "hopping" else 0)


def window_of(window: WindowSpec) -> oracle.Window:
    """Return the oracle's words for a window with filter `v > 1`, a group `v` or none, that shows no two events."""
    columns = ("case", "v") if "v" in window.group_columns else ("case",)
    return replace(
        shape_of(window),
        having=(lambda records: len(records) != 2) if window.having else None,
        where=(lambda record: int(str(record.payload["v"])) > 1) if window.where else None,
        group=lambda record: tuple(record.payload[name] for name in columns),
    )


def own_gap(value: int, longest_us: int) -> int | None:
    """Return OWN_GAP of an event in microseconds; None where a window of this longest gap refuses it."""
    gap = {0: 0, 1: 30}.get(value, 3 * value)
    return gap if 0 < gap <= longest_us else None


def near(logs: Sequence[Log]) -> list[Log]:
    """Return the logs without times that lie thousands of years apart: every window between them would be a row."""
    return [log for log in logs if not {event.event_us for event in log.events} & set(FAR_US)]


def cut(logs: Sequence[Log], dice: Dice) -> tuple[list[Log], Sequence[int]]:
    """Return the logs in two parts, and these; the fixed dice leave them in three, which take half as long again."""
    if dice.is_fixed:
        return list(logs), (0, 1, 2)
    return [replace(log, cuts=log.cuts[:1]) for log in logs], (0, 1)
