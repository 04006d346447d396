"""Cases of `tidemark test` as the oracle plays them: the same file, the same comparison, another judge.

Here: what the oracle is told of a case, and the rows of tables that its outcome makes. Expressions are looked up in
EXPRESSIONS, as the oracle knows no SQL.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from tests import oracle
from tests.oracle.across import ACROSS
from tests.oracle.first_rows import times_of
from tests.oracle.interval_joins import Paired, PairRow, paired
from tests.oracle.joins import Answer, Joined, joined
from tests.properties.logs import give_results_over, interval_join_of, join_of, results_of_table, rules_of, shape_of
from tests.runs.landing import EPOCH, us
from tidemark.pipelines.case_tests.differences import Difference, Outcome, Row, differences
from tidemark.timeops.cases import FINAL, NONE, Case, Expected
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import Source, Spec, WindowSpec
from tidemark.timeops.spec.fields import read_instant
from tidemark.timeops.spec.join import JoinColumns
from tidemark.timeops.values.durations import micros

BY_TYPE = "case event_type when 'a' then timestamp_a when 'b' then timestamp_b end"

BY_DEVICE = (
    "case device when 'tv' then interval 2 hours when 'player' then make_dt_interval(0, 0, 0, track_seconds) "
    "else interval 5 minutes end"
)


def seconds(count: int | None) -> timedelta | None:
    return None if count is None else timedelta(seconds=count)


EXPRESSIONS: Mapping[str, Callable[[Any], Any]] = {
    # of a record
    "timestamp_millis(ts)": lambda row: EPOCH + timedelta(milliseconds=row["ts"]),
    BY_TYPE: lambda row: row.get({"A": "timestamp_a", "B": "timestamp_b"}.get(row["event_type"], "")),
    "dep_delay > 0": lambda row: row["dep_delay"] is not None and row["dep_delay"] > 0,
    "v > 9": lambda row: row["v"] is not None and row["v"] > 9,
    BY_DEVICE: lambda row: {"tv": timedelta(hours=2), "player": seconds(row.get("track_seconds"))}.get(
        row["device"], timedelta(minutes=5)
    ),
    # of a result
    "n % 2 = 1": lambda row: row["n"] % 2 == 1,
    "n = 0": lambda row: row["n"] == 0,
    "n > 1": lambda row: row["n"] > 1,
    "_right_seq is null": lambda row: row["_right_seq"] is None,
    # of the rows of a window
    "count(*)": len,
    "count(distinct user_name)": lambda rows: len({row["user_name"] for row in rows}),
    "count(distinct device)": lambda rows: len({row["device"] for row in rows}),
    "sum(watts)": lambda rows: total(row["watts"] for row in rows),
    "sum(n)": lambda rows: total(row["n"] for row in rows),
    "sum(price)": lambda rows: total(row["price"] for row in rows),
    "max(dep_delay)": lambda rows: max(row["dep_delay"] for row in rows),
    "sum(amount)": lambda rows: total(row["amount"] for row in rows),
    "sum(v)": lambda rows: total(row.get("v") for row in rows),
    "max(struct(n, window_start)).window_start": lambda rows: max((row["n"], row["window_start"]) for row in rows)[1],
}
"""In small letters, as the examples write some in both ways."""

INSTANTS = ("window_start", "window_end", "busiest", "_timestamp", "_event_time", "_watermark", "_arrival_time")


def total(values: Iterator[Any]) -> Any:
    """Add up what is not null, as SQL does."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def evaluate(sql: str, of: Any) -> Any:
    """Evaluate an expression of a spec; a name alone is a column."""
    return of.get(sql) if re.fullmatch(r"\w+", sql) else EXPRESSIONS[sql.lower()](of)


def judged_by_the_oracle(spec: Spec, case: Case) -> list[Difference]:
    """Play a case step by step, and find every difference from what it expects."""
    found: list[Difference] = []
    items: list[oracle.Record | oracle.Control] = []
    rows: list[dict[str, Any]] = []
    for number, step in enumerate(case.segments):
        for record in step.records:
            rows.append(logged(spec, record, rows))
            items.append(record_of(spec, rows[-1]))
        if step.tick is not None:
            items.append(oracle.Control(len(rows) - 1, "tick", us(step.tick)))
        flushed = number == len(case.segments) - 1 and spec.time.flushes(step.end_of_input)
        if flushed:
            items.append(oracle.Control(len(rows) - 1, "flush"))
        if step.expect is not None:
            found += differences(readable(step.expect), outcome_of(spec, items, rows, flushed), f"step {number + 1}")
    return found


def logged(spec: Spec, record: Row, before: Sequence[Row]) -> dict[str, Any]:
    """Return a record as it is in the log, with all columns; without an arrival it comes with the one before."""
    source = source_of(spec, record)
    own = {"_arrival_seq": len(before), "_source": source.name}
    row = dict.fromkeys(source.columns_in_tables) | dict(record) | own
    if source.arrival_time is not None:
        row["_arrival_time"] = instant_of(evaluate(source.arrival_time, row), "UTC")
    elif "_arrival_time" in record:
        row["_arrival_time"] = read_instant(record["_arrival_time"])
    else:
        row["_arrival_time"] = before[-1]["_arrival_time"] if before else EPOCH
    row.setdefault("_split", evaluate(source.split, row) if source.split else None)
    return row


def source_of(spec: Spec, record: Row) -> Source:
    return next(source for source in spec.sources if record.get("_source", source.name) == source.name)


def record_of(spec: Spec, row: Row) -> oracle.Record:
    """Return the oracle's words for a row of the log."""
    source, time = source_of(spec, row), spec.time
    by, bad, event = source.timestamp_by or time.timestamp_by, None, None
    try:
        event = None if by is None else instant_of(evaluate(by, row), source.time_zone or time.time_zone)
    except ValueError:
        bad = "bad_timestamp"
    key = tuple(row[name] for name in time.deduplicate_by)
    substream = [None if row[name] is None else str(row[name]) for name in time.over]
    return oracle.Record(
        row["_arrival_seq"],
        us(row["_arrival_time"]),
        us(event),
        bad,
        timeline=json.dumps(substream, separators=(",", ":")),
        source=row["_source"],
        split=row["_split"],
        key=None if None in key else key,
        payload=row,
    )


def outcome_of(
    spec: Spec, items: Sequence[oracle.Record | oracle.Control], rows: Sequence[Row], flushed: bool
) -> Outcome:
    """Return the contents of the tables after some items."""
    rules = TimeRules.of(spec)
    windows = [window_of(window) for window in spec.windows]
    outcome = oracle.run(items, rules_of(spec.time, rules.sources if rules.uses_splits else ()), windows)
    columns = {join: spec.join_columns[join.name] for join in spec.joins}
    give_results_over(outcome, items, spec.windows, columns, partial(takes, spec))
    own = dict((outcome.watermarks or [{}])[-1])
    if spec.time.over:
        own.pop(ACROSS, None)
    marks = {name: mark_of(us, flushed) for name, us in own.items()}
    highest = max((mark for mark in marks.values() if isinstance(mark, datetime)), default=NONE)
    tables = {
        "ordered_events": [event_row(event, rows) for event in outcome.ordered],
        "held_events": [event_row(event, rows) for event in outcome.held],
        "dead_letters": [letter_row(letter, rows) for letter in outcome.dead_letters],
    }
    for window in spec.windows:
        tables[f"windows/{window.name}"] = list(result_rows(outcome, spec, window, rows))
    for join in spec.joins:
        found: Joined | Paired
        joined_rows: Sequence[Answer | PairRow]
        if join.is_interval:
            found = paired(outcome, items, interval_join_of(join))
            joined_rows = found.table
        else:
            found = joined(outcome, items, join_of(join))
            last = {answer.left_seq: answer for answer in sorted(found.answers, key=lambda answer: answer.revision)}
            joined_rows = [*last.values()]
        tables[f"joins/{join.name}"] = [join_row(row, spec.join_columns[join.name], rows) for row in joined_rows]
        late = {seq: dict(rows[seq]) | {"stage": "join", "reason": "join_closed"} for seq in found.late}
        tables["dead_letters"] += [
            row | {"window_name": join.name, "lateness_us": found.late[seq]} for seq, row in late.items()
        ]
    return Outcome(tables, FINAL if flushed else highest, marks)


def window_of(window: WindowSpec) -> oracle.Window:
    """Return the oracle's words for a window; one over others goes by times of events alone."""
    if window.input is not None:
        return shape_of(window)
    where, by = window.where, window.gap_by

    def gap(record: oracle.Record) -> int | None:
        gap_us = None if by is None or (length := evaluate(by, record.payload)) is None else micros(length)
        return gap_us if gap_us is not None and 0 < gap_us <= window.reach_us else None

    return replace(
        shape_of(window),
        gap=None if by is None else gap,
        where=None if where is None else lambda record: evaluate(where, record.payload),
        group=lambda record: tuple(evaluate(sql, record.payload) for _, sql in window.group_expressions),
    )


def event_row(event: oracle.OrderedEvent, rows: Sequence[Row]) -> dict[str, Any]:
    return dict(rows[event.seq]) | {
        "_timestamp": instant(event.timestamp_us),
        "_event_time": instant(event.event_us),
        "_adjusted_by": list(event.adjusted_by),
        "_release_seq": event.release_seq,
        "_timeline": event.timeline,
        "_watermark": instant(event.watermark_us),
    }


def letter_row(letter: oracle.DeadLetter, rows: Sequence[Row]) -> dict[str, Any]:
    return dict(rows[letter.seq]) | {
        "stage": letter.stage,
        "reason": letter.reason,
        "window_name": letter.window_name,
        "missed_windows": [{"start": instant(start), "end": instant(end)} for start, end in letter.missed_windows],
        "_event_time": instant(letter.event_us),
        "_watermark": instant(letter.watermark_us),
        "lateness_us": letter.lateness_us,
        "watermark_set_by": letter.watermark_set_by,
    }


def result_rows(
    outcome: oracle.Outcome, spec: Spec, window: WindowSpec, rows: Sequence[Row]
) -> Iterator[dict[str, Any]]:
    """Return the rows of a window's table, with the values of its aggregates."""
    inputs = [
        row for one in spec.windows if one.name == window.input for row in result_rows(outcome, spec, one, rows)
    ]
    final = [{**row, "_timestamp": row["window_end"]} for row in inputs if row["_is_final"] and row["_events"]]
    if window.input is not None and window.input in spec.join_columns:
        final = [row_of_join(spec, window, row) for row in outcome.windows[window.input] if row.is_final]
    times = times_of(outcome)
    for result in results_of_table(outcome, window):
        if window.input is None:
            inside = [{**rows[seq], "_timestamp": instant(times[seq])} for seq in result.events]
        else:
            inside = [row for row in final if set(row["_events"]) <= set(result.events)]
        group = {
            "window_start": instant(result.window_start),
            "window_end": instant(result.window_end),
            **dict(zip(window.group_columns, result.group, strict=True)),
            **{name: evaluate(sql, inside) for name, sql in window.aggregates.items()},
            "_watermark": instant(result.watermark_us),
            "_revision": result.revision,
            "_is_final": result.is_final,
            "_timeline": result.timeline,
            "_events": result.events,
        }
        for row in [group] if window.top is None else [one | group for one in first_of(inside, window)]:
            if window.having is None or evaluate(window.having, row):
                yield row


def takes(spec: Spec, window: WindowSpec, row: oracle.WindowResult) -> bool:
    """Return whether a row of a join passes the filter of a window over it."""
    return window.where is None or bool(evaluate(window.where, row_of_join(spec, window, row)))


def row_of_join(spec: Spec, window: WindowSpec, row: oracle.WindowResult) -> dict[str, Any]:
    """Return a row of the join that a window goes over, as `give_rows_of_joins` puts it in."""
    assert window.input is not None
    columns = spec.join_columns[window.input].in_windows
    return dict(zip(columns, row.group, strict=True)) | {"_timestamp": instant(row.window_end), "_events": row.events}


def first_of(inside: Sequence[Row], window: WindowSpec) -> Iterator[dict[str, Any]]:
    """Return the first events of a window, or results: sorted by each part of the order, from the last one on."""
    assert window.top is not None
    ties = ("_timestamp", *(("_arrival_seq",) if window.input is None else ("window_start",)))
    ranked = sorted(inside, key=lambda row: [row[name] for name in ties])
    for order in reversed(window.top.orders):
        known = [row for row in ranked if evaluate(order.expression, row) is not None]
        nulls = [row for row in ranked if evaluate(order.expression, row) is None]
        known.sort(key=lambda row: evaluate(order.expression, row), reverse=order.descends)
        ranked = nulls + known if order.nulls_first else known + nulls
    for rank, row in enumerate(ranked[: window.top.n], start=1):
        yield {name: row.get(name) for name in window.event_columns(row)} | {"_rank": rank}


def join_row(row: Answer | PairRow, columns: JoinColumns, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a row of a join's table."""
    left, right = ({} if seq is None else rows[seq] for seq in (row.left_seq, row.right_seq))
    return {
        **{name: left.get(name) for name in columns.left},
        **{shown: right.get(name) for name, shown in columns.right},
        "_left_seq": row.left_seq,
        "_right_seq": row.right_seq,
        "_watermark": instant(row.watermark_us),
        "_revision": row.revision,
        "_is_final": row.is_final,
    }


def readable(expected: Expected) -> Expected:
    """Return what is expected with its instants read, without sentences, which are the product's own."""
    return replace(
        expected,
        tables={
            table: [{name: read(name, value) for name, value in row.items() if name != "detail"} for row in rows]
            for table, rows in expected.tables.items()
        },
    )


def read(column: str, value: Any) -> Any:
    if column == "missed_windows":
        return [{name: read_instant(bound) for name, bound in span.items()} for span in value]
    return read_instant(value) if column in INSTANTS and value is not None else value


def instant_of(value: Any, zone: str) -> datetime | None:
    """Return the instant that a value of a record is; a text without an offset is local to the zone.

    Raises:
        ValueError: The text is no time.
    """
    if value is None or isinstance(value, datetime):
        return value
    found = datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=ZoneInfo(zone))


def instant(at_us: int | None) -> datetime | None:
    return None if at_us is None else EPOCH + timedelta(microseconds=at_us)


def mark_of(at_us: int | None, flushed: bool) -> datetime | str:
    return FINAL if flushed else instant(at_us) or NONE
