"""Pipelines with joins: equal to the oracle, in batches, flushed, rebuilt; what they count and what they keep."""

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dagster import AssetKey, DagsterInstance
from pyspark.sql import SparkSession

import tidemark as tm
from tests.oracle.interval_joins import paired
from tests.oracle.joins import joined
from tests.oracle.model import Control, Record
from tests.oracle.outcome import Outcome
from tests.properties.logs import interval_join_of, join_of
from tests.runs.batch.test_simulations import made_with
from tests.runs.landing import ASKS_AND_BIDS, START, expected, land, log_items, table, us
from tests.runs.running import FLUSH, Made, asked, command, go, written
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.batches.plans import Counts
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.durations import parse_duration

SPEC = (
    f"name: joining\n{ASKS_AND_BIDS}"
    """\
  out_of_order: keep
joins:
  - {name: priced, kind: as_of, left: {source: asks}, right: {source: bids}, on: [k], within: 1 minute, how: left,
     allowed_lateness: 20 s}
  - {name: nearest, kind: as_of, left: {source: asks}, right: {source: bids}, on: [k, v], within: 2 minutes,
     direction: nearest}
  - {name: near, kind: interval, left: {source: asks}, right: {source: bids}, on: [k], before: 3 s, after: 2 s,
     how: full, allowed_lateness: 20 s}
  - {name: following, kind: as_of, left: {source: asks}, right: {source: bids}, within: 10 s, direction: forward,
     how: left, allowed_lateness: 10 s, emit: on_close}
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, aggregates: {n: count(*)}}
"""
)

DROPS = SPEC[: SPEC.index("  - {name: following")].replace("within: 1 minute", "within: 4 s")
DROPS = DROPS.replace("out_of_orderness: 5 s", "out_of_orderness: 1 s\n  late: {tolerance: 20 s, policy: drop}")
DROPS = DROPS.replace("allowed_lateness: 20 s", "allowed_lateness: 2 s")


@pytest.mark.long
def test_joins_in_batches_give_the_oracles_rows_and_a_rebuild_gives_them_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = written(tmp_path, "joining", SPEC)
    land(tmp_path / "asks", 250, seed=3)
    land(tmp_path / "bids", 250, seed=4)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=180)).batches == 3
        assert_joins_equal_the_oracle(made)
        assert instance.get_latest_materialization_event(AssetKey(["joining", "joins", "priced"])) is not None
        land(tmp_path / "asks", 60, seed=5, prefix="g", start=START.replace(day=2, hour=0, minute=5))
        land(tmp_path / "bids", 60, seed=6, prefix="g", start=START.replace(day=2, hour=0, minute=5))
        go(made, instance)
        assert_joins_equal_the_oracle(made)
        go(made, instance, FLUSH)
    assert_joins_equal_the_oracle(made, flush=True)
    live = {join.name: table(settings.warehouse, file.spec, f"joins/{join.name}") for join in file.spec.joins}
    for word in ("audit", "rebuild", "audit"):
        done = command(tmp_path, "joining", word)
        assert done.exit_code == 0, done.output
    assert_joins_equal_the_oracle(made, flush=True)
    for name, rows in live.items():
        again = table(settings.warehouse, file.spec, f"joins/{name}")
        assert _by_events(again) == _by_events(rows)


STORED = """\
name: {name}
sources:
  - {{name: asks, kind: files, path: asks/*.parquet, format: parquet, arrival_time: got, settle: 0 s,
     schema: "id STRING, at TIMESTAMP, got TIMESTAMP, k STRING, v INT"}}
  - {{name: bids, kind: files, path: bids/*.parquet, format: parquet, arrival_time: got, settle: 0 s,
     schema: "id STRING, at TIMESTAMP, got TIMESTAMP, k STRING, v INT"}}
time: {{timestamp_by: "{by}", unit: millisecond, out_of_orderness: 5 s, out_of_order: {policy}}}
joins:
  - {{name: priced, kind: as_of, left: {{source: asks}}, right: {{source: bids}}, on: [k], within: 1 minute,
     how: left{late}}}
  - {{name: nearest, kind: as_of, left: {{source: asks}}, right: {{source: bids}}, on: [k, v], within: 20 s,
     direction: nearest}}
  - {{name: near, kind: interval, left: {{source: asks}}, right: {{source: bids}}, on: [k], before: 3 s, after: 2 s,
     how: full{late}}}
"""


def land_stored(folder: Path, prefix: str, count: int, seed: int, first_s: int) -> None:
    """Write a parquet file of events that are all well-formed; some come up to half a minute after their time."""
    rng = random.Random(seed)
    got = sorted(first_s * 1_000_000 + rng.randrange(60_000_000) for _ in range(count))
    late_us = [rng.choice([rng.randrange(4_000_000), rng.randrange(30_000_000)]) for _ in range(count)]
    at = [arrived - late for arrived, late in zip(got, late_us, strict=True)]
    instant = pa.timestamp("us", "UTC")
    columns = {
        "id": [f"{prefix}{number}" for number in range(count)],
        "at": pa.array(at, instant),
        "got": pa.array(got, instant),
        "k": [rng.choice(["a", "b", None]) for _ in range(count)],
        "v": pa.array([rng.randint(0, 2) for _ in range(count)], pa.int32()),
    }
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{prefix}.parquet")


@pytest.mark.long
@pytest.mark.parametrize("policy", ["keep", "adjust"])
def test_joins_of_stored_times_have_the_rows_and_the_state_of_times_that_spark_computes(
    tmp_path: Path, policy: str
) -> None:
    late = ", allowed_lateness: 8 s" if policy == "keep" else ""
    both = [
        written(tmp_path, name, STORED.format(name=name, by=by, policy=policy, late=late))
        for name, by in (("stored", "at"), ("computed", "timestamp_micros(unix_micros(at))"))
    ]
    with DagsterInstance.ephemeral() as instance:
        for number in range(4):
            for side in ("asks", "bids"):
                land_stored(tmp_path / side, f"{side}{number}", 60, number * 2 + (side == "bids"), 40 * number)
            for made in both:
                go(made, instance, FLUSH if number == 3 else RunOptions())
            for name in ("priced", "nearest", "near"):
                for folder in ("joins", "_state/joins"):
                    stored, computed = (_in_order(table(w.warehouse, f.spec, f"{folder}/{name}")) for f, w in both)
                    assert stored == computed
                    assert stored or (number < 3) == (folder == "joins"), "rows in the end, state until then"


def _in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: [str(row.get(name)) for name in ("_arrival_seq", "_left_seq", "_right_seq")])


TWICE = """\
name: twice
sources:
  - {name: trades, kind: files, path: "in/*.jsonl", format: json, schema: "at STRING, id INT", arrival_time: at,
     settle: 0 s}
  - {name: earlier, kind: files, path: "in/*.jsonl", format: json, schema: "at STRING, id INT", arrival_time: at,
     settle: 0 s}
time: {timestamp_by: at}
joins:
  - {name: pairs, kind: interval, left: {source: trades}, right: {source: earlier}, before: 10 s}
windows:
  - {name: others, kind: tumbling, size: 1 minute, from: pairs, where: id <> right_id,
     aggregates: {pairs: "array_sort(collect_list(struct(right_id, id)))"}}
"""


@pytest.mark.long
def test_events_of_one_source_meet_each_other_where_a_second_source_reads_the_same_files(tmp_path: Path) -> None:
    made = written(tmp_path, "twice", TWICE)
    lines = [f'{{"at": "2026-01-01T00:00:{at:02}Z", "id": {number}}}' for number, at in enumerate([1, 5, 15, 40])]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "f.jsonl").write_text("\n".join(lines) + "\n")
    go(made, options=FLUSH)
    rows = table(made[1].warehouse, made[0].spec, "joins/pairs")
    own = [(number, number) for number in range(4)]
    assert sorted((row["right_id"], row["id"]) for row in rows) == sorted([*own, (0, 1), (1, 2)])
    [window] = table(made[1].warehouse, made[0].spec, "windows/others")
    assert [(pair["right_id"], pair["id"]) for pair in window["pairs"]] == [(0, 1), (1, 2)]


@pytest.mark.long
def test_what_operators_let_in_and_take_out_is_in_the_joins_once(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "joining", DROPS)
    asks, bids = tmp_path / "asks", tmp_path / "bids"
    land(asks, 120, seed=3)
    land(bids, 120, seed=4)
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        assert_joins_equal_the_oracle(made, least=1)
        letters = [row for row in table(made[1].warehouse, made[0].spec, "dead_letters") if row["_arrival_seq"] < 200]
        chosen = {(row["_source"], row["reason"]) for row in letters}
        assert chosen >= {
            (source, reason) for source in ("asks", "bids") for reason in ("late_arrival", "join_closed")
        }
        assert_explained(made, letters)
        where = "reason IN ('late_arrival', 'join_closed') AND _arrival_seq < 200"
        done = asked(made, "replay", "--where", where, "--reason", "the gateway was offline")
        assert done.exit_code == 0, done.output
        assert_joins_equal_the_oracle(made, least=1)
        later = START.replace(day=2, hour=0, minute=0)
        land(asks, 40, seed=5, prefix="g", start=later)
        land(bids, 40, seed=6, prefix="g", start=later)
        go(made, instance)
        assert_joins_equal_the_oracle(made, least=1)
    before = _by_events(table(made[1].warehouse, made[0].spec, "joins/priced"))
    pair = next((left, right) for left, right in before if left is not None and right is not None)
    seqs = ",".join(map(str, pair))
    done = asked(made, "rejudge", "--exclude", seqs, "--reason", "the clock lied")
    assert done.exit_code == 0, done.output
    assert_joins_equal_the_oracle(made, without=pair, least=1)
    done = asked(made, "rejudge", "--include", seqs, "--reason", "it did not")
    assert done.exit_code == 0, done.output
    assert_joins_equal_the_oracle(made, least=1)
    assert _by_events(table(made[1].warehouse, made[0].spec, "joins/priced")) == before


@pytest.mark.long
def test_the_patience_that_is_named_for_a_record_that_joins_have_refused_is_the_least(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "joining", DROPS)
    land(tmp_path / "asks", 60, seed=3)
    land(tmp_path / "bids", 60, seed=4)

    def refused_by_joins(of: Made) -> set[int]:
        letters = table(of[1].warehouse, of[0].spec, "dead_letters")
        return {row["_arrival_seq"] for row in letters if row["reason"] == "join_closed"}

    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        seq = min(refused_by_joins(made))
        answer = tm.explain(made[0].path, seq=seq, warehouse=str(made[1].warehouse)).to_dict()
        least = parse_duration(answer["admitted_by"]["time.out_of_orderness"])
        for patience, is_refused in ((least, False), (least - timedelta(milliseconds=1), True)):
            setting = f"time.out_of_orderness={patience // timedelta(microseconds=1)} us"
            other = made_with(made, (setting,), f"with_{is_refused}")
            go(other, instance)
            assert (seq in refused_by_joins(other)) == is_refused


def assert_explained(made: Made, letters: list[dict[str, Any]]) -> None:
    """Ask about a letter of each side of `priced`, and an event of each side that it has in a row."""

    def of_priced(seq: int) -> tuple[dict[str, Any], dict[str, Any]]:
        answer = tm.explain(made[0].path, seq=seq, warehouse=str(made[1].warehouse)).to_dict()
        return answer, next(one for one in answer["joins"] if one["name"] == "priced")

    for side, source in (("left", "asks"), ("right", "bids")):
        letter = next(one for one in letters if (one["reason"], one["_source"]) == ("join_closed", source))
        answer, found = of_priced(letter["_arrival_seq"])
        assert (answer["outcome"], answer["reason"]) == ("kept", "join_closed")
        assert (found["side"], found["outcome"]) == (side, "missed")
        lateness = parse_duration(answer["admitted_by"]["joins[0].allowed_lateness"])
        assert lateness == timedelta(seconds=2, microseconds=letter["lateness_us"])
        assert parse_duration(answer["admitted_by"]["time.out_of_orderness"]) > timedelta(seconds=1)
    rows = table(made[1].warehouse, made[0].spec, "joins/priced")
    for row in [next(row for row in rows if row["_is_final"] and row["_right_seq"] is not None), rows[-1]]:
        seq, of = row["_left_seq"], row["_right_seq"]
        outcome = "answered" if row["_is_final"] else "open"
        assert of_priced(seq)[1] == {"name": "priced", "side": "left", "outcome": outcome, "right_seq": of}
        if of is not None:
            assert of_priced(of)[1]["answers"] == sum(row["_right_seq"] == of for row in rows)
    pairs = table(made[1].warehouse, made[0].spec, "joins/near")
    for name in ("_left_seq", "_right_seq"):
        seq = next(row[name] for row in pairs if row["_left_seq"] is not None and row["_right_seq"] is not None)
        joins = tm.explain(made[0].path, seq=seq, warehouse=str(made[1].warehouse)).to_dict()["joins"]
        near = next(one for one in joins if one["name"] == "near")
        paired_with = [row for row in pairs if row[name] == seq]
        assert (near["side"], near["pairs"]) == (name.removeprefix("_").removesuffix("_seq"), len(paired_with))


def assert_joins_equal_the_oracle(
    made: Made, *, flush: bool = False, without: Collection[int] = (), least: int = 6
) -> None:
    """Compare rows, dead letters, what is kept and what was counted; each join has at least some rows."""
    file, settings = made
    warehouse, spec = settings.warehouse, file.spec
    outcome = expected(warehouse, spec, flush=flush, without=without)
    items = log_items(warehouse, spec, flush=flush, without=without)
    counts = Counts.sum(commit.counts for commit in Workspace(file, warehouse).batches.counted())
    closed = [row for row in table(warehouse, spec, "dead_letters") if row["stage"] == "join"]
    letters = [row for row in closed if row["replayed_at"] is None]
    for join in spec.joins:
        wanted = wanted_of(join, outcome, items)
        rows = _by_events(table(warehouse, spec, f"joins/{join.name}"))
        assert len(rows) >= (21 if flush else least)
        shown = ("_revision", "_is_final")
        assert {
            pair: (*(row[name] for name in shown), us(row["_watermark"])) for pair, row in rows.items()
        } == wanted.rows
        assert all(us(row["_timestamp"]) == wanted.times[pair] for pair, row in rows.items())
        of_join = {row["_arrival_seq"]: row["lateness_us"] for row in letters if row["window_name"] == join.name}
        assert of_join == wanted.late
        kept = table(warehouse, spec, f"_state/joins/{join.name}")
        assert_conserved(join, kept, wanted.waiting, counts)
        assert counts[f"{join.name}.join_closed"] == len(of_join)


Pair = tuple[int | None, int | None]


@dataclass(frozen=True)
class Wanted:
    """A join as the oracle has it.

    Attributes:
        rows: By the events of a row its `_revision`, `_is_final` and `_watermark`.
        times: By the same its `_timestamp`.
        late: The events that came too late, with their lateness.
        waiting: The events that are open: of the left side, in an interval join of both.
    """

    rows: dict[Pair, tuple[int, bool, int | None]]
    times: dict[Pair, int]
    late: dict[int, int]
    waiting: list[int]


def wanted_of(join: JoinSpec, outcome: Outcome, items: Sequence[Record | Control]) -> Wanted:
    times = {event.seq: event.timestamp_us for event in [*outcome.ordered, *outcome.held]}
    if join.is_interval:
        pairs = paired(outcome, items, interval_join_of(join))
        rows = {(row.left_seq, row.right_seq): (row.revision, row.is_final, row.watermark_us) for row in pairs.table}
        found = Wanted(rows, {}, pairs.late, pairs.open)
    else:
        answers = joined(outcome, items, join_of(join))
        last = {answer.left_seq: answer for answer in sorted(answers.answers, key=lambda answer: answer.revision)}
        rows = {(seq, one.right_seq): (one.revision, one.is_final, one.watermark_us) for seq, one in last.items()}
        found = Wanted(rows, {}, answers.late, answers.waiting)
    return replace(found, times={pair: times[next(seq for seq in pair if seq is not None)] for pair in rows})


def assert_conserved(join: JoinSpec, kept: list[dict[str, Any]], waiting: list[int], counts: Counts) -> None:
    """Compare what waits with what the oracle says, and both with the counts of all batches."""
    sources = {"left": "asks", "right": "bids"} if join.is_interval else {"left": "asks"}
    waits = {side: [row["_arrival_seq"] for row in kept if row["_source"] == of] for side, of in sources.items()}
    assert sorted(seq for seqs in waits.values() for seq in seqs) == sorted(waiting)
    for side, seqs in waits.items():
        answered = "answered" if side == "left" else "right_answered"
        came, done, closed = (counts[f"{join.name}.{what}"] for what in (side, answered, f"{side}_closed"))
        assert came == done + len(seqs) + closed


def _by_events(rows: list[dict[str, Any]]) -> dict[Pair, dict[str, Any]]:
    """Return the rows, each the only one of its events, without their batch."""
    by_events = {
        (row["_left_seq"], row["_right_seq"]): {name: value for name, value in row.items() if name != "_batch_id"}
        for row in rows
    }
    assert len(by_events) == len(rows)
    return by_events
