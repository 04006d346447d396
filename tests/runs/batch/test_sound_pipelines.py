"""Audits of pipelines with every rule of time, every kind of window, every decision: nothing is wrong with them."""

from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, SHIFTS, START, land
from tests.runs.running import command, rows_of, run, written

WINDOWS = """\
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*), total: sum(v)}}
  - {name: hops, kind: hopping, size: 1 minute, hop: 20 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: gaps, kind: hopping, size: 20 s, hop: 30 s, where: v > 2, aggregates: {n: count(*), mean: avg(v * 0.1)}}
  - {name: grow, kind: cumulative, step: 20 s, size: 1 minute, aggregates: {n: count(*)}}
  - {name: instants, kind: snapshot, aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: at_most, kind: session, gap: 8 s, max_duration: 20 s, aggregates: {n: count(*)}}
  - {name: recent, kind: sliding, size: 10 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: local, kind: hopping, size: 1 hour, hop: 30 minutes, time_zone: Asia/Kolkata, aggregates: {n: count(*)}}
  - {name: right, kind: tumbling, size: 1 minute, closed: right, group_by: [k], aggregates: {n: count(*)}}
"""
OF_TIMELINES = """\
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: recent, kind: sliding, size: 10 s, group_by: [k], aggregates: {n: count(*)}}
"""


def spec(time: str, windows: str = WINDOWS, more: str = "") -> str:
    return f"name: shop\n{LINES}{more}time: {{timestamp_by: at, unit: millisecond, {time}}}\n{windows}"


SPECS = {
    "revised, chained, empty": SHIFTS.replace("name: shifts", "name: shop"),
    "adjusted": spec(
        "out_of_orderness: 2 s, out_of_order: adjust, late: {tolerance: 20 s, policy: adjust}, "
        "early: {tolerance: 1 s, policy: adjust}"
    ),
    "timelines, duplicates": spec(
        "over: [k], out_of_orderness: 2 s, deduplicate_by: [v, k], within: 10 s", OF_TIMELINES
    ),
    "splits": spec("out_of_orderness: 2 s, idle: {timeout: 5 s, advance: exclude_split}", more="    split: k\n"),
    "periods, silences": spec(
        "out_of_orderness: 2 s, emit: {every: 7 s}, idle: {timeout: 9 s, advance: window_close}"
    ),
    "clock": spec("out_of_orderness: 60 s, late: {tolerance: 10 s, policy: drop}, idle: {advance: arrival_clock}"),
    "across timelines": spec(
        "over: [k], out_of_orderness: 2 s, idle: {timeout: 5 s, advance: exclude_split}",
        "windows:\n  - {name: all, kind: tumbling, size: 1 minute, across: true, aggregates: {n: count(*)}}\n"
        "  - {name: visits, kind: session, gap: 8 s, across: true, aggregates: {n: count(*)}}\n",
    ),
    "no events": spec("out_of_orderness: 5 s", more="outputs: {ordered_events: false}\n"),
}


def landed(base: Path, number: int, minutes: int) -> None:
    """Land some more events, which begin so many minutes after the first ones."""
    land(base / "in", 60, seed=number, files=2, start=START + timedelta(minutes=minutes), prefix=f"f{number}_")


def assert_sound(base: Path) -> None:
    done = command(base, "shop", "audit")
    assert done.exit_code == 0, done.output


@pytest.mark.long
@pytest.mark.parametrize("name", SPECS)
def test_an_audit_finds_nothing_whatever_the_rules(spark: SparkSession, tmp_path: Path, name: str) -> None:
    written(tmp_path, "shop", SPECS[name])
    for number in range(3):
        landed(tmp_path, number, 3 * number)
        run(tmp_path, "shop")
    assert_sound(tmp_path)


@pytest.mark.long
def test_an_audit_finds_nothing_after_whatever_an_operator_does(spark: SparkSession, tmp_path: Path) -> None:
    text = spec("out_of_orderness: 5 s")
    written(tmp_path, "shop", text)
    for number in range(2):
        landed(tmp_path, number, 3 * number)
        run(tmp_path, "shop")
    written(tmp_path, "shop", text.replace("5 s", "3 s"))
    landed(tmp_path, 2, 6)
    run(tmp_path, "shop")
    done = command(tmp_path, "shop", "audit")
    assert done.exit_code == 0, done.output
    assert "shop: results were not recomputed: some of all tables are by an earlier spec" in done.stderr
    decisions = (
        ("rebuild",),
        ("rejudge", "--exclude", "5,17", "--reason", "its clock lied"),
        ("replay", "--where", "reason = 'out_of_order'", "--reason", "the gateway was offline"),
        ("forget", "--where", "v = 3", "--reason", "request 17"),
        ("maintain", "--retain", "1h"),
        ("run", "--end-of-input", "flush"),
    )
    for words in decisions:
        run(tmp_path, "shop", *words)
        assert_sound(tmp_path)
    landed(tmp_path, 3, 9)
    run(tmp_path, "shop", "run", "--reopen", "more came")
    assert_sound(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("over", ["", ", over: [k]"], ids=["one timeline", "timelines"])
def test_an_audit_finds_nothing_where_a_reopened_log_has_events_before_what_the_flush_released(
    spark: SparkSession, tmp_path: Path, over: str
) -> None:
    text = "name: shop\nsources:\n  - {name: lines, kind: files, path: in/*.jsonl, format: json, settle: 0 s,\n"
    text += '     schema: "at TIMESTAMP, k STRING"}\n'
    written(tmp_path, "shop", f"{text}time: {{timestamp_by: at, out_of_orderness: 20 s{over}}}\n{OF_TIMELINES}")
    (tmp_path / "in").mkdir()
    for number, (seconds, words) in enumerate(
        [((0, 30, 50), ("--end-of-input", "flush")), ((40, 55), ("--reopen", "more came"))]
    ):
        lines = [f'{{"at": "2026-01-01T00:00:{second:02}Z", "k": "a"}}\n' for second in seconds]
        (tmp_path / "in" / f"{number}.jsonl").write_text("".join(lines))
        run(tmp_path, "shop", "run", *words)
    run(tmp_path, "shop", "run", "--end-of-input", "flush")
    released = sorted(rows_of(tmp_path, "shop", "ordered_events"), key=lambda row: int(row["_release_seq"]))
    assert [row["_timestamp"].second for row in released] == [0, 30, 50, 40, 55]
    assert_sound(tmp_path)
