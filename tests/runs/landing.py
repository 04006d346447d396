"""Generated JSON-lines files with all that can be wrong with a record, and what the oracle makes of their log.

Here: input and expectations of the end-to-end tests. Not here: running a pipeline.
"""

import json
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests import oracle
from tests.properties.logs import give_results_over, results_of_table, rules_of, shape_of
from tidemark.resources.delta.lake import Lake
from tidemark.resources.places.place import Place
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.spec import Spec, TimeSpec

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 1, 23, 50, tzinfo=UTC)  # windows fall on two days

ASKS_AND_BIDS = """\
sources:
  - {name: asks, kind: files, path: asks/*.jsonl, format: json, arrival_time: got, settle: 0 s,
     schema: "id STRING, at STRING, got STRING, k STRING, v INT"}
  - {name: bids, kind: files, path: bids/*.jsonl, format: json, arrival_time: got, settle: 0 s,
     schema: "id STRING, at STRING, got STRING, k STRING, v INT"}
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 5 s
"""
"""Two sources for joins, and the time of both; more keys of `time` may follow."""
LINES = """\
sources:
  - name: lines
    kind: files
    path: in/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING, v INT"
    arrival_time: got
    settle: 0 s
"""
"""The source of a spec that reads what `land` writes."""

OWN_GAP = "IF(v > 7, NULL, make_dt_interval(0, 0, 0, v))"
"""A gap of as many seconds as the record has for `v`: none of 0, 8 and 9."""

SHIFTS = (
    f"name: shifts\n{LINES}"
    """\
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 10 s
  out_of_order: keep
windows:
  - {name: revised, kind: tumbling, size: 1 minute, allowed_lateness: 1 minute, emit: on_time, revise_every: 20 s,
     history: true, group_by: [k], aggregates: {n: count(*)}}
  - {name: five, kind: tumbling, size: 5 minutes, closed: right, from: revised, allowed_lateness: 1 minute,
     group_by: [k], aggregates: {n: sum(n)}}
  - {name: quiet, kind: tumbling, size: 10 s, allowed_lateness: 3 s, empty: true, where: v > 2, group_by: [k],
     aggregates: {n: count(*)}}
  - {name: last_20_s, kind: sliding, size: 20 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, allowed_lateness: 5 s, group_by: [k], aggregates: {n: count(*)}}
"""
)
"""A spec of these lines with a window of each kind of state: revised, chained, with empty rows, sliding, sessions."""


def arrivals(rng: random.Random, count: int, start: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Arrivals one after the other, each with the time of its event, which is up to some seconds earlier."""
    clock = start
    for _ in range(count):
        clock += timedelta(milliseconds=rng.randint(0, 4_000))
        yield clock, clock - timedelta(milliseconds=int(rng.expovariate(1 / 8_000)))


def land(
    folder: Path, records: int, seed: int, *, files: int = 3, start: datetime = START, prefix: str = "f"
) -> None:
    """Writes records, spread over files as several collectors would, so that only arrival orders them."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (clock, event) in enumerate(arrivals(rng, records, start)):
        at: str | None = event.isoformat(timespec="milliseconds").replace("+00:00", rng.choice(["Z", "+00:00"]))
        at = rng.choice([None, "yesterday"]) if rng.random() < 0.02 else at
        arrived = None if rng.random() < 0.01 else clock.isoformat(timespec="milliseconds")
        record = {
            "id": f"e{number}",
            "at": at,
            "got": arrived,
            "k": rng.choice(["a", "b", None]),
            "v": rng.randint(0, 9),
        }
        line = json.dumps(record)
        lines.append(line[:-4] if rng.random() < 0.01 else line)
    for number in range(files):
        (folder / f"{prefix}{number}.jsonl").write_text("\n".join(lines[number::files]) + "\n")


def table(warehouse: Place, spec: Spec, name: str) -> list[dict[str, Any]]:
    """Rows of a table, read without Spark."""
    rows: list[dict[str, Any]] = Lake(warehouse / spec.name).rows(name).to_pylist()
    return rows


def us(instant: datetime | None) -> int | None:
    """Microseconds since the epoch."""
    return None if instant is None else (instant - EPOCH) // timedelta(microseconds=1)


def expected(warehouse: Place, spec: Spec, *, flush: bool, without: Collection[int] = ()) -> oracle.Outcome:
    """Ask the oracle about the log in `raw_events` and its control items; the last one may be a `flush`.

    Some records may be no part of it.
    """
    items = log_items(warehouse, spec, flush=flush, without=without)
    first = _specs(warehouse, spec)[0][1]
    outcome = oracle.run(
        items, _rules(warehouse, first), [_window(spec, number) for number in range(len(spec.windows))]
    )
    give_results_over(outcome, items, spec.windows)
    return outcome


def log_items(
    warehouse: Place, spec: Spec, *, flush: bool, without: Collection[int] = ()
) -> list[oracle.Record | oracle.Control]:
    """Return the items of the log in the oracle's words."""
    log = corrected_log(warehouse, spec)
    end, log = log[-1]["_arrival_seq"] if log else -1, [row for row in log if row["_arrival_seq"] not in without]
    let_in = seqs_let_in(warehouse, spec)
    items: list[oracle.Record | oracle.Control] = [
        replace(_record(row, spec.time), is_let_in=row["_arrival_seq"] in let_in) for row in log
    ]
    controls = _controls(warehouse, spec)
    assert (controls[-1:] == [oracle.Control(end, "flush")]) == flush
    for control in reversed(controls):
        items.insert(sum(row["_arrival_seq"] <= control.after_seq for row in log), control)
    return items


def seqs_let_in(warehouse: Place, spec: Spec) -> set[int]:
    """Return the records that decisions let in."""
    found = set[int]()
    for item in _items(warehouse, spec):
        if item["kind"] in ("admit", "refuse"):
            ranges = json.loads(item["argument"])["records"]
            own = {seq for first, last in ranges for seq in range(first, last + 1)}
            found = found | own if item["kind"] == "admit" else found - own
    return found


def corrected_log(warehouse: Place, spec: Spec) -> list[dict[str, Any]]:
    """Return the log in order, row by row as it is with all corrections."""
    raw = sorted(table(warehouse, spec, "raw_events"), key=lambda row: row["_arrival_seq"])
    assert [row["_arrival_seq"] for row in raw] == list(range(len(raw)))
    log = dict(enumerate(raw))
    for item in _items(warehouse, spec):
        said = json.loads(item["argument"]) if item["kind"] == "correction" else {"replaced": [], "records": []}
        for place, record, count in said["replaced"]:
            for n in range(count):
                of_place = {name: raw[place + n][name] for name in ("_arrival_seq", "_arrival_time", "_clock")}
                log[place + n] = log.pop(record + n) | of_place
        for first, last in said["records"]:
            for seq in range(first, last + 1):
                del log[seq]
    return [log[seq] for seq in sorted(log)]


def _rules(warehouse: Place, spec: Spec) -> oracle.TimeRules:
    # Which partitions of Kafka were there at first is said by the plan of the first ingestion.
    return rules_of(spec.time, Workspace(SpecFile(spec, Path()), warehouse).rules.sources if spec.uses_splits else ())


def _specs(warehouse: Place, spec: Spec) -> list[tuple[int, Spec]]:
    """Return the specs that the log was processed with, each with the record after which it began to hold."""
    found = [row for row in _items(warehouse, spec) if row["kind"] == "spec"]
    return [(row["_after_seq"], Spec.model_validate(json.loads(row["argument"]))) for row in found]


def _items(warehouse: Place, spec: Spec) -> list[dict[str, Any]]:
    """Return the items of the log as it was judged last, in order."""
    rows = sorted(table(warehouse, spec, "log_control"), key=lambda row: row["_control_seq"])
    anew = [number for number, row in enumerate(rows) if row["kind"] == "rebuild"]
    return rows[anew[-1] :] if anew else rows


def _controls(warehouse: Place, spec: Spec) -> list[oracle.Control]:
    kinds = {"tick": "tick", "end_of_input": "flush", "reopen": "reopen", "wait": "wait"}
    rows = _items(warehouse, spec)
    changes = [row["_control_seq"] for row in rows if row["kind"] == "spec"][1:]
    return [
        oracle.Control(
            row["_after_seq"],
            kinds.get(row["kind"], "spec"),
            us(row["clock"]) if row["kind"] == "tick" else None,
            _waiters(json.loads(row["argument"])) if row["kind"] == "wait" else frozenset(),
            _rules(warehouse, Spec.model_validate(json.loads(row["argument"])))
            if row["_control_seq"] in changes
            else None,
        )
        for row in rows
        if row["kind"] in kinds or row["_control_seq"] in changes
    ]


def _waiters(argument: list[Any]) -> frozenset[oracle.Waiter]:
    return frozenset(one if isinstance(one, str) else (one[0], one[1]) for one in argument)


def _record(row: Mapping[str, Any], time: TimeSpec) -> oracle.Record:
    event, bad = None, "malformed" if row["_malformed"] is not None else None
    if bad is None and row.get("ms") is not None:
        event = row["ms"] * 1_000
    elif bad is None and isinstance(row["at"], datetime):
        event = us(row["at"])
    elif bad is None and row["at"] is not None:
        try:
            event = us(datetime.fromisoformat(row["at"].replace("Z", "+00:00")))
        except ValueError:
            bad = "bad_timestamp"
    line = json.dumps([row[name] for name in time.over], separators=(",", ":"))
    key = tuple(row[name] for name in time.deduplicate_by)
    return oracle.Record(
        seq=row["_arrival_seq"],
        arrival_us=us(row["_arrival_time"]),
        event_us=event,
        bad=bad,
        timeline=line,
        source=row["_source"],
        split=row["_split"],
        key=None if None in key else key,
        payload=row,
    )


def _window(spec: Spec, number: int) -> oracle.Window:
    window = spec.windows[number]
    if window.input is not None:  # for `window_close` alone, which goes by the times of events
        return shape_of(window)
    columns = window.group_columns  # each look at them parses SQL
    return replace(
        shape_of(window),
        where=(lambda record: int(str(record.payload["v"])) > 2) if window.where else None,
        group=lambda record: tuple(record.payload[name] for name in columns),
        gap=(lambda record: _own_gap(record, window.reach_us)) if window.gap_by == OWN_GAP else None,
    )


def _own_gap(record: oracle.Record, longest_us: int) -> int | None:
    seconds = int(str(record.payload["v"]))
    return seconds * 1_000_000 if 0 < seconds <= min(7, longest_us // 1_000_000) else None


def assert_tables_equal_the_oracle(
    warehouse: Place, spec: Spec, *, flush: bool = False, without: Collection[int] = (), revisions: bool = True
) -> None:
    """Compares every table, row by row; a window with `having` is one that shows odd counts.

    A decision on dead letters makes revisions that the log does not show: without `revisions` they are not compared,
    and neither are results that are not final.
    """
    want = expected(warehouse, spec, flush=flush, without=without)
    assert sorted((e.seq, e.timestamp_us, e.timeline, e.release_seq, e.adjusted_by) for e in want.ordered) == sorted(
        (
            row["_arrival_seq"],
            us(row["_timestamp"]),
            row["_timeline"],
            row["_release_seq"],
            tuple(row["_adjusted_by"]),
        )
        for row in table(warehouse, spec, "ordered_events")
    )
    assert sorted((e.seq, e.timestamp_us) for e in want.held) == sorted(
        (row["_arrival_seq"], us(row["_timestamp"])) for row in table(warehouse, spec, "held_events")
    )
    refused = table(warehouse, spec, "dead_letters")
    let_in = seqs_let_in(warehouse, spec)
    assert {row["_arrival_seq"] for row in refused if row["replayed_at"]} == let_in
    # The letters of windows that are open to a record now are kept as they were.
    refused = [row for row in refused if row["stage"] != "window" or row["_arrival_seq"] not in let_in]
    assert sorted(map(astuple, want.dead_letters), key=str) == sorted(map(_letter, refused), key=str)
    of_log = table(warehouse, spec, "raw_events")
    lines = {row["_arrival_seq"]: _record(row, spec.time).timeline for row in of_log}
    assert all(
        row["_timeline"] == (None if row["stage"] == "ingest" else lines[row["_arrival_seq"]]) for row in refused
    )
    for window in spec.windows:
        results = [
            (r.window_start, r.window_end, r.group, len(r.events), r.watermark_us, r.revision, r.is_final)
            for r in results_of_table(want, window)
            if r.window_start >= (spec.time.start_us or r.window_start)
            and (window.having is None or len(r.events) % 2 == 1)
        ]
        columns = window.group_columns
        found = [
            (
                us(row["window_start"]),
                us(row["window_end"]),
                tuple(row[name] for name in columns),
                row["n"],
                us(row["_watermark"]),
                row["_revision"],
                row["_is_final"],
            )
            for row in table(warehouse, spec, f"windows/{window.name}")
        ]
        if not revisions:
            results, found = ([(*row[:5], row[6]) for row in rows if row[6]] for rows in (results, found))
        assert sorted(results, key=str) == sorted(found, key=str), window.name


def assert_only_open_sessions_keep_events(warehouse: Place, spec: Spec) -> None:
    """Assert that the state between batches is what open sessions hold, so it does not grow with history."""
    want = expected(warehouse, spec, flush=False)
    kept = _not_taken_back(table(warehouse, spec, "_state/session_events"))
    for window in (window for window in spec.windows if window.kind == "session"):
        held = {seq for *_, seqs in want.open_windows[window.name] for seq in seqs}
        assert held, "an empty state would show nothing"
        assert {seq for seq, windows in kept.items() if window.name in windows} == held
    assert all(kept.values())


def _not_taken_back(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[str]]:
    """Return the windows that each event is kept for, by `_arrival_seq`, without rows that a later batch removed."""
    by: dict[int, int] = {}
    for row in rows:
        if row["_arrival_seq"] < 0:
            seq = -1 - row["_arrival_seq"]
            by[seq] = max(row["_batch_id"], by.get(seq, -1))
    alive = [row for row in rows if row["_arrival_seq"] >= 0]
    kept = [row for row in alive if row["_batch_id"] >= by.get(row["_arrival_seq"], -1)]
    assert len(kept) == len({row["_arrival_seq"] for row in kept}), "an event is kept twice"
    return {row["_arrival_seq"]: row["_open_in"] for row in kept}


def _letter(row: Mapping[str, Any]) -> tuple[object, ...]:
    missed = tuple((us(span["start"]), us(span["end"])) for span in row["missed_windows"] or ())
    found = (row["_arrival_seq"], row["stage"], row["reason"], row["window_name"], missed, us(row["_event_time"]))
    return (*found, us(row["_watermark"]), row["lateness_us"], row["watermark_set_by"])
