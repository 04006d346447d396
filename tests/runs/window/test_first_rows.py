"""Pipelines whose windows have first events (`top`): equal to the oracle live, by days, rebuilt; and captured."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance
from pyspark.sql import SparkSession

import tidemark as tm
from tests import oracle
from tests.oracle.first_rows import first_events, times_of
from tests.properties.logs import results_of_table
from tests.runs.landing import LINES, expected, land, table, us
from tests.runs.running import (
    FLUSH,
    asked,
    assert_as_new,
    assert_the_report_tells_what_the_tables_hold,
    changed,
    go,
    materialize_days,
    rebuild,
    without_batch,
    written,
)
from tidemark.assets.recount.windows import wrong_results
from tidemark.pipelines.cli import main
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.places.place import Place
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import Spec

SPEC = (
    f"name: tops\n{LINES}"
    """\
time:
  timestamp_by: at
  unit: millisecond
  out_of_orderness: 5 s
  out_of_order: keep
windows:
  - {name: best, kind: tumbling, size: 1 minute, allowed_lateness: 2 minutes, emit: on_time, revise_every: 20 s,
     history: true, change_feed: true, group_by: [k], aggregates: {n: count(*)}, top: {n: 2, by: v DESC}}
  - {name: newest, kind: hopping, size: 1 minute, hop: 20 s, group_by: [k], top: {n: 3, by: _timestamp DESC}}
  - {name: least, kind: sliding, size: 20 s, emit: {early: 15 s}, where: v > 2, top: {n: 1, by: "v, id DESC"}}
  - {name: visits, kind: session, gap: 5 s, allowed_lateness: 1 minute, emit: on_time, revise_every: 5 s,
     history: true, group_by: [k], top: {n: 4, by: v}}
  - {name: counts, kind: tumbling, size: 30 s, group_by: [k, v], aggregates: {n: count(*)}}
  - {name: common, kind: snapshot, from: counts, group_by: [k], top: {n: 2, by: n DESC}}
  - {name: of_best, kind: tumbling, size: 5 minutes, closed: right, from: best, where: _rank = 1, group_by: [k],
     allowed_lateness: 2 minutes, aggregates: {n: count(*), total: sum(v)}}
partitions: {start: 2026-01-01}
"""
)
ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "best": lambda row: -row["v"],
    "newest": lambda row: -row["us"],
    "least": lambda row: (row["v"], [-ord(letter) for letter in row["id"]] + [1]),
    "visits": lambda row: row["v"],
}


def assert_first_rows(warehouse: Place, spec: Spec, *, flush: bool = False) -> None:
    want = expected(warehouse, spec, flush=flush)
    times = times_of(want)
    events = {row["_arrival_seq"]: row for row in table(warehouse, spec, "raw_events")}
    for seq, row in events.items():
        row["us"] = times.get(seq)
    rows = dict[str, list[tuple[Any, ...]]]()
    for window in spec.windows:
        if window.name in ORDERS:
            rows[window.name] = [*_rows_of(want, spec, window.name, times, events)]
            found = table(warehouse, spec, f"windows/{window.name}")
            assert sorted(map(str, rows[window.name])) == sorted(
                str(_shown(row, window.group_columns)) for row in found
            )
            assert rows[window.name], window.name
            assert all(row["id"] == events[row["_arrival_seq"]]["id"] for row in found)
            assert set(found[0]) >= {"id", "at", "got", "k", "v"}
    sizes = [row["n"] for row in table(warehouse, spec, "windows/best")]
    assert max(sizes) > 2, "aggregates are of all events, not of the first ones"
    assert_most_common(warehouse, spec)
    assert_totals_of_best(warehouse, spec)


def _rows_of(want: oracle.Outcome, spec: Spec, name: str, times: Any, events: Any) -> Any:
    window = next(window for window in spec.windows if window.name == name)
    assert window.top is not None
    for result in results_of_table(want, window):
        for rank, seq in first_events(result.events, window.top.n, lambda seq: ORDERS[name](events[seq]), times):
            about = (result.revision, result.is_final, result.watermark_us)
            yield (result.window_start, result.window_end, result.group, rank, seq, times[seq], *about)


def _shown(row: dict[str, Any], groups: tuple[str, ...]) -> tuple[Any, ...]:
    bounds = us(row["window_start"]), us(row["window_end"]), tuple(row[name] for name in groups)
    about = (row["_revision"], row["_is_final"], us(row["_watermark"]))
    return (*bounds, row["_rank"], row["_arrival_seq"], us(row["_timestamp"]), *about)


def assert_most_common(warehouse: Place, spec: Spec) -> None:
    """Compare with the two largest counts of each half minute, of equal ones the lower value."""
    counts = table(warehouse, spec, "windows/counts")
    groups = {(row["window_end"], row["k"]) for row in counts}
    wanted = [
        (end, k, rank, row["v"], row["n"])
        for end, k in groups
        for rank, row in enumerate(
            sorted(
                (row for row in counts if (row["window_end"], row["k"]) == (end, k)),
                key=lambda row: (-row["n"], row["v"]),
            )[:2],
            start=1,
        )
    ]
    found = [
        (row["_timestamp"], row["k"], row["_rank"], row["v"], row["n"])
        for row in table(warehouse, spec, "windows/common")
    ]
    is_closed = {one[:2] for one in found}  # the last snapshot may wait for the watermark
    assert sorted(map(str, found)) == sorted(str(one) for one in wanted if one[:2] in is_closed)
    assert found


def assert_totals_of_best(warehouse: Place, spec: Spec) -> None:
    best = [row for row in table(warehouse, spec, "windows/best") if row["_is_final"] and row["_rank"] == 1]
    found = table(warehouse, spec, "windows/of_best")
    assert found
    for row in found:
        own = [
            one["v"]
            for one in best
            if one["k"] == row["k"] and row["window_start"] < one["window_end"] <= row["window_end"]
        ]
        assert (row["n"], row["total"]) == (len(own), sum(own))


@pytest.mark.long
def test_first_events_are_the_oracles_in_batches_by_days_and_after_a_rebuild(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made = written(tmp_path, "tops", SPEC)
    land(tmp_path / "in", 160, seed=5)
    with DagsterInstance.ephemeral() as instance:
        assert go(made, instance, RunOptions(max_events_per_batch=100)).batches == 2
        assert_first_rows(settings.warehouse, file.spec)
        assert_history_plays_back(settings.warehouse, file.spec, "best")
        assert_history_plays_back(settings.warehouse, file.spec, "visits")
        for name in ("best", "newest", "common"):
            live = table(settings.warehouse, file.spec, f"windows/{name}")
            materialize_days(made, instance, name)
            again = table(settings.warehouse, file.spec, f"windows/{name}")
            stays = {row["_batch_id"] for row in again} == {row["_batch_id"] for row in live}
            assert stays == (name == "best"), "with a change feed a row that comes out the same is not written again"
            assert without_batch(again) == without_batch(live), name
        fewer = changed(made, "n: 3, by: _timestamp DESC", "n: 2, by: _timestamp DESC")
        plan = json.loads(asked(fewer, "plan", "--json").output.splitlines()[-1])
        of_newest = plan["would_differ"]["windows"]["newest"]
        assert (of_newest["new"], of_newest["other"]) == (0, 0)
        assert of_newest["gone"] == sum(
            row["_rank"] == 3 for row in table(settings.warehouse, file.spec, "windows/newest")
        )
        assert rebuild(fewer).exit_code == 0
        assert_first_rows(settings.warehouse, fewer[0].spec)
        assert go(fewer, instance, FLUSH).batches == 1
        assert_first_rows(settings.warehouse, fewer[0].spec, flush=True)
        assert_as_new(fewer, instance, FLUSH)
        workspace = Workspace(fewer[0], settings.warehouse, lambda: spark)
        for window in (one for one in fewer[0].spec.windows if one.name in ("best", "newest", "common", "of_best")):
            assert [*wrong_results(workspace, window)] == [], window.name
    assert_the_report_tells_what_the_tables_hold(settings.warehouse, fewer[0])
    rows = [row for row in table(settings.warehouse, file.spec, "windows/newest") if row["k"] is not None]
    first = min(rows, key=lambda row: row["window_start"])
    start = first["window_start"].isoformat()
    told = asked(fewer, "explain", "--window", "newest", "--start", start, "--group", f"k={first['k']}")
    assert "rank 1" in told.output, told.output
    printed = asked(fewer, "show", "newest", "--limit", "20", "--format", "json").output
    shown = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    ranks = [row["_rank"] for row in shown]
    assert 2 in ranks
    assert all(now == 1 or now == before + 1 for before, now in pairwise(ranks)), ranks


def assert_history_plays_back(warehouse: Place, spec: Spec, name: str) -> None:
    """Play the changes back as a reader of Delta's change data would, rank by rank."""
    keys = ("window_start", "window_end", "k", "_rank")
    stands = dict[tuple[Any, ...], dict[str, Any]]()
    rows = [row for row in table(warehouse, spec, f"history/{name}") if row["_change_type"] != "update_preimage"]
    for row in sorted(rows, key=lambda row: (row["_batch_id"], row["_revision"], row["_change_type"] == "delete")):
        key = tuple(row[name] for name in keys)
        if row["_change_type"] == "delete":
            assert stands.pop(key)["_arrival_seq"] == row["_arrival_seq"]
        else:
            assert (key in stands) == (row["_change_type"] == "update_postimage")
            stands[key] = row
    current = {
        tuple(row[name] for name in keys): row["_arrival_seq"] for row in table(warehouse, spec, f"windows/{name}")
    }
    assert current == {key: row["_arrival_seq"] for key, row in stands.items()}


@pytest.mark.long
def test_an_event_on_which_the_order_fails_is_a_dead_letter_and_new_columns_are_in_rows_from_then_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    by = "timestamp_millis(if(v = 9, 9223372036854775807, v)) DESC"
    text = (
        f"name: fails\n{LINES.replace(', v INT', ', v BIGINT')}"
        "time: {timestamp_by: at}\nwindows:\n"
        f"  - {{name: w, kind: tumbling, size: 1 minute, group_by: [k], top: {{n: 2, by: '{by}'}}}}\n"
    )
    made = written(tmp_path, "fails", text)
    (tmp_path / "in").mkdir()

    def lands(name: str, *rows: tuple[str, str, int]) -> None:
        lines = [
            {"at": f"2026-01-01T00:{at}Z", "got": f"2026-01-01T00:{at}", "k": k, "v": v, "w": v} for at, k, v in rows
        ]
        (tmp_path / "in" / name).write_text("".join(json.dumps(line) + "\n" for line in lines))

    lands("a.jsonl", ("00:01", "a", 1), ("00:02", "a", 9), ("00:03", "a", 5), ("00:04", "a", 5), ("02:00", "b", 1))
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        rows = table(made[1].warehouse, made[0].spec, "windows/w")
        assert [(row["k"], row["_rank"], row["v"], row["_arrival_seq"]) for row in rows] == [
            ("a", 1, 5, 2),
            ("a", 2, 5, 3),
        ]
        [letter] = table(made[1].warehouse, made[0].spec, "dead_letters")
        assert (letter["reason"], letter["window_name"], letter["_arrival_seq"]) == ("bad_expression", "w", 1)
        assert "the order of `top` of w, `timestamp_millis" in letter["detail"]
        wider = changed(made, "v BIGINT", "v BIGINT, w BIGINT")
        lands("b.jsonl", ("02:01", "b", 3), ("04:00", "b", 1))
        go(wider, instance)
        rows = table(made[1].warehouse, wider[0].spec, "windows/w")
        assert [
            (row["k"], row["_rank"], row["v"], row["w"]) for row in sorted(rows, key=lambda row: row["_arrival_seq"])
        ] == [
            *[("a", 1, 5, None), ("a", 2, 5, None), ("b", 2, 1, None)],
            ("b", 1, 3, 3),
        ]
        cases = tmp_path / "w.cases.yaml"
        cases.write_text(tm.capture(wider[0].path, 0, 6, warehouse=str(made[1].warehouse)).text)
        assert '"_rank": 1, "id": null' in cases.read_text()
        done = CliRunner().invoke(main, ["test", str(wider[0].path), str(cases)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
