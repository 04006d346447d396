"""Values that a pipeline must not change or take for others: microseconds, minus zero, floats, very large sums."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import table
from tests.runs.running import FLUSH, Made, go, written
from tidemark.assets.recount.windows import wrong_results
from tidemark.pipelines.cli import main
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import python_rows
from tidemark.resources.workspace import Workspace


def pipeline(folder: Path, schema: str, rest: str, records: Sequence[str], keys: str = "") -> Made:
    """Return a pipeline over JSON lines, which keep their order; `keys` are more ones of its source."""
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_text("\n".join(records) + "\n")
    source = f"kind: files, path: in/*.jsonl, format: json, order: position, settle: 0 s, schema: '{schema}'"
    return written(folder, "values", f"name: values\nsources:\n  - {{name: s, {source}{keys}}}\n{rest}")


def rows_of(made: Made, name: str) -> list[dict[str, Any]]:
    file, settings = made
    return table(settings.warehouse, file.spec, name)


@pytest.mark.long
def test_instants_keep_their_microseconds_and_minus_zero_is_zero_in_groups_timelines_and_keys(
    spark: SparkSession, tmp_path: Path
) -> None:
    times = ["00:00:01.000001Z", "00:00:01.000002Z", "00:00:01.000002Z", "00:01:00.123456Z", "00:00:30.123456Z"]
    values = zip(times, ["0.0", "-0.0", "0.0", "0.0", "-0.0"], [1, 2, 2, 3, 4], strict=True)
    made = pipeline(
        tmp_path,
        "at TIMESTAMP, h DOUBLE, id BIGINT",
        """\
time: {timestamp_by: at, over: [h], deduplicate_by: [h, id], within: 1 s}
windows:
  - {name: by_time, kind: tumbling, size: 10 s, group_by: [h, "_timestamp AS ts"], aggregates: {n: "count(*)"}}
  - {name: by_zero, kind: tumbling, size: 10 s, group_by: [h], aggregates: {n: "count(*)"}}
""",
        [f'{{"at": "2026-05-01T{at}", "h": {h}, "id": {number}}}' for at, h, number in values],
    )
    go(made, options=FLUSH)
    assert {row["_timeline"] for row in rows_of(made, "ordered_events")} == {'["0.0"]'}
    groups = sorted((row["ts"].microsecond, row["n"]) for row in rows_of(made, "windows/by_time"))
    assert groups == [(1, 1), (2, 1), (123456, 1)]
    by_zero = sorted((row["window_start"], row["n"]) for row in rows_of(made, "windows/by_zero"))
    assert by_zero == [(datetime(2026, 5, 1, tzinfo=UTC), 2), (datetime(2026, 5, 1, 0, 1, tzinfo=UTC), 1)]
    letters = {row["reason"]: json.loads(row["payload"]) for row in rows_of(made, "dead_letters")}
    assert letters == {
        "duplicate": {"at": "2026-05-01T00:00:01.000002Z", "h": 0.0, "id": 2},
        "out_of_order": {"at": "2026-05-01T00:00:30.123456Z", "h": -0.0, "id": 4},
    }


@pytest.mark.long
def test_windows_around_the_first_and_the_last_instant_that_is_a_time_are_written_revised_checked_and_shown(
    spark: SparkSession, tmp_path: Path
) -> None:
    times = ["0001-01-01T00:30:00Z", "0001-01-01T05:00:00Z", "0001-01-01T00:40:00Z", "9999-12-31T23:59:59Z"]
    revised = "allowed_lateness: 1 day, emit: on_time, revise_every: 0 s, history: true"
    made = pipeline(
        tmp_path,
        "at STRING",
        f"""\
time: {{timestamp_by: at, out_of_order: keep}}
windows:
  - {{name: h, kind: hopping, size: 2 hours, hop: 1 hour, aggregates: {{n: "count(*)"}}}}
  - {{name: r, kind: tumbling, size: 2 hours, offset: 1 hour, {revised}, aggregates: {{n: "count(*)"}}}}
  - {{name: s, kind: session, gap: 1 hour, aggregates: {{n: "count(*)", last: max(_timestamp)}}}}
""",
        [f'{{"at": "{at}"}}' for at in times],
    )
    file, settings = made
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=2))
        go(made, instance, FLUSH)

    def spans(name: str) -> list[tuple[str, str, int]]:
        rows = python_rows(Lake(settings.warehouse / file.spec.name).rows(f"windows/{name}"))
        return sorted((str(row["window_start"])[:-6], str(row["window_end"])[:-6], row["n"]) for row in rows)

    last = [("9999-12-31 22", "+10000-01-01 00", 1), ("9999-12-31 23", "+10000-01-01 01", 1)]
    fourth = [("0001-01-01 04", "0001-01-01 06", 1), ("0001-01-01 05", "0001-01-01 07", 1)]
    assert spans("h") == [
        ("0000-12-31 23", "0001-01-01 01", 1),
        ("0001-01-01 00", "0001-01-01 02", 1),
        *fourth,
        *last,
    ]
    assert spans("r") == [
        ("0000-12-31 23", "0001-01-01 01", 2),
        ("0001-01-01 05", "0001-01-01 07", 1),
        ("9999-12-31 23", "+10000-01-01 01", 1),
    ]
    assert [n for *_, n in spans("s")] == [1, 1, 1]
    page = tmp_path / "page.html"
    where = ["--warehouse", str(settings.warehouse)]
    asked = [["report", str(file.path), *where, "--out", str(page)], ["show", str(file.path), "windows/r", *where]]
    done = [CliRunner().invoke(main, words, catch_exceptions=False) for words in asked]
    assert [one.exit_code for one in done] == [0, 0]
    for shown in (page.read_text(encoding="utf-8"), done[1].stdout):
        assert "+10000-01-01 01:00:00" in shown
        assert "0000-12-31 23:00:00" in shown


@pytest.mark.long
def test_sums_in_any_order_are_those_that_are_recomputed_and_sums_that_do_not_fit_are_null_and_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Events come in the opposite order of their times, so that what is written was added up in another order."""
    largest, rng = 2**63 - 1, Random(7)
    many = [(second, rng.choice([12.9, 0.1, 0.7, -1.3]), 1, "d") for second in range(49, 20, -1)]
    few = [(3, 0.1, largest, "a"), (2, 0.2, 1, "a"), (1, -0.3, None, "a")]
    fits = [(3, 0.0, largest, "b"), (2, 0.0, 1, "b"), (1, 0.0, -5, "b"), (1, 0.0, -largest, "c"), (2, 0.0, -2, "c")]
    of_floats = [
        "total: sum(f), stats: 'struct(avg(f) AS mean, stddev(f) AS sd)', each: 'array(sum(f), max(f))'",
        "by: 'map(1, named_struct(''v'', variance(f)))', ends: 'cast(max(f) AS STRING)'",
        "text: 'cast(sum(f) AS STRING)', users: 'hll_sketch_estimate(hll_sketch_agg(k))'",
    ]
    sums = [
        "total: sum(n), each: sum(n) / count(n), rest: 'coalesce(sum(n), -1)', once: sum(DISTINCT n)",
        "positive: sum(n) FILTER (WHERE n > 0)",
    ]
    made = pipeline(
        tmp_path,
        "s BIGINT, f DOUBLE, n BIGINT, k STRING",
        f"""\
time: {{timestamp_by: timestamp_seconds(s), out_of_orderness: 60 s, out_of_order: keep}}
windows:
  - {{name: floats, kind: tumbling, size: 20 s, aggregates: {{{", ".join(of_floats)}}}}}
  - {{name: balance, kind: tumbling, size: 20 s, aggregates: {{total: sum(f)}}, having: total <> 0}}
  - {{name: whole, kind: tumbling, size: 20 s, group_by: [k], aggregates: {{{", ".join(sums)}}}}}
  - {{name: slices, kind: hopping, size: 20 s, hop: 5 s, group_by: [k], aggregates: {{total: sum(n)}}}}
  - {{name: spells, kind: session, gap: 20 s, group_by: [k], aggregates: {{total: sum(n)}}}}
  - {{name: over, kind: tumbling, size: 20 s, closed: right, from: whole, aggregates: {{total: sum(positive)}}}}
""",
        [f'{{"s": {s}, "f": {f}, "n": {json.dumps(n)}, "k": "{k}"}}' for s, f, n, k in [*many, *few, *fits]],
    )
    with DagsterInstance.ephemeral() as instance:
        report = go(made, instance, FLUSH)
    floats = {row["window_start"].second: row for row in rows_of(made, "windows/floats")}
    assert abs(floats[0]["total"]) < 1e-15
    assert floats[20]["stats"]["mean"] == pytest.approx(fmean(f for s, f, *_ in many if s < 40), rel=1e-12)
    whole = {row["k"]: row for row in rows_of(made, "windows/whole") if row["window_start"].second == 0}
    names = ("total", "each", "rest", "once", "positive")
    assert [whole["a"][name] for name in names] == [None, None, -1, None, None]
    assert [whole["b"][name] for name in names] == [largest - 4, (largest - 4) / 3, largest - 4, largest - 4, None]
    assert [whole["c"][name] for name in names] == [None, None, -1, None, None]
    spans = {(row["k"], row["window_start"].second): row["total"] for row in rows_of(made, "windows/slices")}
    assert [spans[k, 0] for k in "abc"] == [None, largest - 4, None]
    spells = {row["k"]: row["total"] for row in rows_of(made, "windows/spells") if row["window_start"].second < 20}
    assert spells == {"a": None, "b": largest - 4, "c": None}
    [alert] = report.alerts
    assert alert.startswith("check sum_overflow: ")
    assert "window_name=whole" in alert
    assert re.search(r'group_values=\{"k":"[abc]"\}, aggregate=\w+', alert)
    assert "such a sum is null" in alert
    workspace = Workspace(made[0], made[1].warehouse, lambda: spark)
    assert [wrong for window in made[0].spec.windows for wrong in wrong_results(workspace, window)] == []


@pytest.mark.long
@pytest.mark.parametrize("size", [None, 1])
def test_sums_of_decimals_are_one_however_the_log_is_cut_and_those_that_do_not_fit_are_named(
    spark: SparkSession, tmp_path: Path, size: int | None
) -> None:
    top = 9 * 10**37
    amounts = {"a": [top, top, -top], "b": [top, -top, top], "over": [top, top, 1]}
    records = [
        f'{{"s": {number}, "book": "{book}", "amount": {amount}}}'
        for number in range(3)
        for book, amount in ((book, some[number]) for book, some in amounts.items())
    ]
    made = pipeline(
        tmp_path,
        "s BIGINT, book STRING, amount DECIMAL(38, 0)",
        """\
time: {timestamp_by: timestamp_seconds(s), out_of_orderness: 1 hour}
windows:
  - {name: balance, kind: tumbling, size: 1 hour, group_by: [book], aggregates: {total: sum(amount), n: count(*)}}
  - {name: slices, kind: hopping, size: 1 hour, hop: 15 minutes, group_by: [book], aggregates: {total: sum(amount)}}
  - {name: spells, kind: session, gap: 1 hour, group_by: [book], aggregates: {total: sum(amount)}}
""",
        records,
    )
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=size))
        report = go(made, instance, FLUSH)
    found = {row["book"]: (row["total"], row["n"]) for row in rows_of(made, "windows/balance")}
    assert found == {"a": (top, 3), "b": (top, 3), "over": (None, 3)}
    for name in ("windows/slices", "windows/spells"):
        totals = {(row["book"], row["total"]) for row in rows_of(made, name)}
        assert totals == {("a", top), ("b", top), ("over", None)}
    [alert] = report.alerts
    assert alert.startswith("check sum_overflow: ")
    assert 'group_values={"book":"over"}, aggregate=total' in alert


@pytest.mark.long
def test_each_source_reads_local_times_in_its_zone_and_what_does_not_fit_is_a_dead_letter_that_shows_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "0.csv").write_text(
        "at,net\n2026-07-15T12:00:00,0.10\n12:15:00,1\n2026-07-15T12:00:00,0.125\n"
    )
    made = pipeline(
        tmp_path,
        "at TIMESTAMP, net DECIMAL(10, 2)",
        """\
  - {name: c, kind: files, path: csv/*.csv, format: csv, order: position, settle: 0 s, time_zone: Asia/Tokyo,
     options: {header: true}, schema: "at TIMESTAMP, net DECIMAL(10, 2)"}
time: {timestamp_by: at, time_zone: Europe/Rome, out_of_order: keep}
windows:
  - {name: by_hour, kind: tumbling, size: 1 hour, group_by: ["_source AS src"],
     aggregates: {n: count(*), net: sum(net)}}
""",
        ['{"at": "2026-07-15T12:00:00", "net": 1.10}', '{"at": 1784109600000000}', '{"at": "2026-07-15T12:00Z"}'],
    )
    go(made, options=FLUSH)
    hours = sorted(
        (r["window_start"].hour, r["src"], r["n"], str(r["net"])) for r in rows_of(made, "windows/by_hour")
    )
    assert hours == [(3, "c", 1, "0.10"), (10, "s", 1, "1.10"), (12, "s", 1, "None")]
    letters = {row["payload"]: (row["reason"], row["detail"]) for row in rows_of(made, "dead_letters")}
    fits = "does not fit the schema of the source: "
    assert letters == {
        '{"at": 1784109600000000}': ("malformed", f'record 2 of a.jsonl {fits}{{"at": 1784109600000000}}'),
        "12:15:00,1": ("malformed", f"record 3 of 0.csv {fits}12:15:00,1"),
        "2026-07-15T12:00:00,0.125": ("malformed", f"record 4 of 0.csv {fits}2026-07-15T12:00:00,0.125"),
    }


@pytest.mark.long
def test_a_time_of_day_in_a_record_is_no_time_and_a_text_that_timestamp_by_converts_is_local(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pipeline(
        tmp_path,
        "t STRING, got STRING",
        """\
time: {timestamp_by: CAST(t AS TIMESTAMP), time_zone: Europe/Rome, late: {tolerance: 1 hour, policy: drop}}
windows:
  - {name: by_hour, kind: tumbling, size: 1 hour, aggregates: {n: count(*), first: "min(_arrival_time)"}}
""",
        [
            f'{{"t": "{t}", "got": "15.07.2026 12:01"}}'
            for t in ("2026-07-15T12:00:00", "12:00:00", "2026-07-15T10:30")
        ],
        """, arrival_time: "to_timestamp(got, 'dd.MM.yyyy HH:mm')\"""",
    )
    go(made, options=FLUSH)
    ten = datetime(2026, 7, 15, 10, tzinfo=UTC)
    [row] = rows_of(made, "windows/by_hour")
    assert (row["window_start"], row["n"], row["first"]) == (ten, 1, ten.replace(minute=1))
    letters = {row["_position"]: (row["reason"], row["lateness_us"]) for row in rows_of(made, "dead_letters")}
    assert letters == {2: ("bad_expression", None), 3: ("late_arrival", 31 * 60 * 1_000_000)}
