"""The worked tables of the five source texts through the Spark stages (the oracle runs them in tests of its own)."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.properties.fold import Gathered, run
from tests.properties.logs import Event, Log
from tidemark.timeops.events.instants import BAD, US, with_instant
from tidemark.timeops.grid import ends_of
from tidemark.timeops.spec import TimeSpec, WindowSpec

TABLES: Mapping[str, Any] = {
    table["id"]: table for table in yaml.safe_load((Path(__file__).parent / "worked_tables.yaml").read_text())
}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY = "2026-01-01"


def us(clock: str, day: str = DAY) -> int:
    """Microseconds since the epoch of `hh:mm[:ss[.fraction]]`, the fraction cut to microseconds."""
    whole, _, fraction = clock.partition(".")
    instant = datetime.fromisoformat(f"{day}T{whole}+00:00")
    return (instant - EPOCH) // timedelta(microseconds=1) + int(f"{fraction:0<6}"[:6])


def log_of(events: Sequence[str], arrivals: Sequence[str] | None = None, *, case: str = "c", day: str = DAY) -> Log:
    """One case of events in arrival order."""
    came = arrivals or events
    return Log(
        case,
        tuple(
            Event(seq, us(arrival, day), us(event, day), 1)
            for seq, (event, arrival) in enumerate(zip(events, came, strict=True))
        ),
    )


def time_of(settings: Mapping[str, Any], **more: object) -> TimeSpec:
    return TimeSpec(**{"timestamp_by": "e", "over": ("case",), **settings, **more})


def window_of(settings: Mapping[str, Any]) -> WindowSpec:
    aggregates = {"seqs": "array_sort(collect_set(_arrival_seq))"}
    return WindowSpec(**{"name": "w", "group_by": ("case",), "aggregates": aggregates, **settings})


def counts_of(out: Gathered, case: str = "c") -> dict[str, int]:
    """Events per window, the windows written as in the texts."""
    rows = out.windows["w"][case]
    return {f"{_clock(row[0])}-{_clock(row[1])}": len(row[3]) for row in rows}


def _clock(instant_us: int) -> str:
    return f"{EPOCH + timedelta(microseconds=instant_us):%H:%M}"


def test_h_figures_hold_release_and_drop_by_the_range_behind_the_base_time(spark: SparkSession) -> None:
    table = TABLES["H-11-27..30"]
    steps = table["steps"]
    out = run(spark, [log_of([step["event"] for step in steps])], time_of(table["time"]))
    dropped = [seq for seq, step in enumerate(steps) if step["outcome"] == "out_of_order"]
    assert [letter[0] for letters in out.letters.values() for letter in letters] == dropped
    assert [(row[0], row[1]) for row in out.ordered["c"]] == [(2, us(steps[4]["releases"][0]))]
    held = {seq: us(step["timestamp"]) for seq, step in enumerate(steps) if seq not in (2, *dropped)}
    assert {row[0]: row[1] for row in out.held["c"]} == held


@pytest.mark.parametrize("expected", TABLES["H-order"]["expect"], ids=lambda row: f"{row['unit']}-{row['range']}")
def test_h_order_of_release_depends_on_unit_and_range(spark: SparkSession, expected: Mapping[str, Any]) -> None:
    table = TABLES["H-order"]
    names = list(table["events"])
    log = log_of(list(table["events"].values()), day=str(table["date"]))
    time = time_of({"unit": expected["unit"], "out_of_orderness": expected["range"]})
    out = run(spark, [log], time, flush=True)
    released = out.ordered["c"]
    assert [names[row[0]] for row in released] == expected["order"]
    assert [names[int(seq)] for seq in sorted(out.letters)] == expected["dropped"]
    stamps = {names[row[0]]: row[1] for row in released}
    assert stamps == {name: us(clock, str(table["date"])) for name, clock in expected["timestamps"].items()}


def test_m_hopping_windows_overlap_and_leave_gaps(spark: SparkSession) -> None:
    for row in TABLES["M-hopping"]["expect"]:
        window = window_of({name: row[name] for name in ("kind", "size", "hop")})
        found = spark.range(1).select(ends_of(F.lit(us(row["event"])), window).alias("ends")).collect()[0]
        assert found["ends"] == [us(end) for _, end in row["windows"]]
        assert [end - window.size_us for end in found["ends"]] == [us(start) for start, _ in row["windows"]]


def test_m_watermark_puts_events_where_they_belong(spark: SparkSession) -> None:
    table = TABLES["M-watermark"]
    log = log_of([row[0] for row in table["rows"]], [row[1] for row in table["rows"]])
    out = run(spark, [log], time_of(table["time"]), (window_of(table["window"]),), flush=True)
    assert counts_of(out) == table["expect"]["counts_with_watermark"]
    first = min(out.windows["w"]["c"])
    closing = next(
        row for row in table["rows"] if row[1] == table["expect"]["first_window_closes_at_processing_time"]
    )
    assert first[6] == us(closing[0]), "closed by the first event at that processing time"
    by_arrival = run(spark, [log], TimeSpec(over=("case",)), (window_of(table["window"]),), flush=True)
    assert counts_of(by_arrival) == table["expect"]["counts_without_watermark"]


def test_m_allowed_lateness_keeps_windows_open(spark: SparkSession) -> None:
    table = TABLES["M-allowed-lateness"]
    events = [row[0] for row in table["rows"]]
    logs = [log_of(events), log_of([*events, "12:04"], case="late")]
    logs[1] = Log("late", tuple(Event(e.seq + 100, e.arrival_us, e.event_us, 1) for e in logs[1].events))
    out = run(spark, logs, time_of(table["time"]), (window_of(table["window"]),), flush=True)
    assert counts_of(out) == counts_of(out, "late") == table["expect"]["counts"]
    letters = [letter for letters in out.letters.values() for letter in letters]
    assert [(letter[0], letter[2]) for letter in letters] == [(110, "window_closed")]


def test_m_idle_the_clock_closes_the_windows_of_a_silent_stream(spark: SparkSession) -> None:
    """An idle row is a tick in the text; here a record that belongs to no timeline, just behind that instant."""
    table = TABLES["M-idle"]
    rows = table["rows"]
    logs = [_log_with_idle_rows(f"c{length}", rows[:length]) for length in range(1, len(rows) + 1)]
    out = run(spark, logs, time_of(table["time"]), (window_of(table["window"]),))
    assert [out.watermarks[log.timeline] for log in logs] == [us(watermark) for _, _, watermark, _ in rows]
    assert counts_of(out, f"c{len(rows)}") == {"12:00-12:03": 2, "12:03-12:06": 1}


def _log_with_idle_rows(case: str, rows: Sequence[Sequence[str]]) -> Log:
    first = 100 * len(rows)
    return Log(
        case,
        tuple(
            Event(first + seq, us(clock) + 1, None, 1, malformed=True)
            if event == "idle"
            else Event(first + seq, us(clock), us(event), 1)
            for seq, (clock, event, _, _) in enumerate(rows)
        ),
    )


@pytest.mark.parametrize("expected", TABLES["A2-twelve-events"]["expect"], ids=lambda row: row["name"])
def test_a2_twelve_events_are_adjusted_and_dropped_as_in_its_figures(
    spark: SparkSession, expected: Mapping[str, Any]
) -> None:
    table = TABLES["A2-twelve-events"]
    substreams = "over" in expected["time"]
    settings = {name: value for name, value in expected["time"].items() if name != "over"}
    events = [Event(seq, us(row[1]), us(row[0]), 1) for seq, row in enumerate(table["rows"])]
    cases = sorted({row[2] for row in table["rows"]}) if substreams else ["all"]
    logs = [
        Log(case, tuple(e for e, row in zip(events, table["rows"], strict=True) if not substreams or row[2] == case))
        for case in cases
    ]
    out = run(spark, logs, time_of({**table["time"], **settings}), flush=True)
    stamps = {row[0]: row[1] for case in cases for row in out.ordered[case]}
    for seq, stamp in enumerate(expected["timestamps"]):
        if stamp == "early":
            assert out.letters[str(seq)][0][2] == "early"
        else:
            assert stamps[seq] == us(stamp), f"event {seq + 1}"
    adjusted = {row[0] + 1: list(row[3]) for case in cases for row in out.ordered[case] if row[3]}
    assert adjusted == expected["adjusted_by"]
    last = {
        row[2] if substreams else "all": mark for row, mark in zip(table["rows"], expected["watermarks"], strict=True)
    }
    assert out.watermarks == {log.timeline: us(last[log.case]) for log in logs}


def test_a1_and_f_expressions_give_the_event_times_of_the_texts(spark: SparkSession) -> None:
    for row in [*TABLES["A1-examples"]["expect"], *map(_as_expression, TABLES["F-ddl"]["values"])]:
        columns = [F.lit(value).alias(name) for name, value in row["payload"].items()]
        missing = [
            F.lit(None).cast("string").alias(n) for n in ("timestamp_a", "timestamp_b") if n not in row["payload"]
        ]
        frame = spark.range(1).select(*columns, *missing)
        read = with_instant(frame, row["timestamp_by"], row.get("time_zone", "UTC"), where="time.timestamp_by")
        found = read.select(US, BAD).collect()[0]
        wanted = None
        if "event_time" in row:
            instant = datetime.fromisoformat(str(row["event_time"]).replace("Z", "+00:00"))
            wanted = (instant - EPOCH) // timedelta(microseconds=1)
        assert (found[US], found[BAD]) == (wanted, False), row


def _as_expression(value: Mapping[str, Any]) -> dict[str, Any]:
    if "string" in value:
        payload, by = {"t": value["string"]}, "t"
    else:
        payload, by = {"t": value["epoch_ms"]}, "timestamp_millis(t)"
    return {
        "payload": payload,
        "timestamp_by": by,
        **{k: v for k, v in value.items() if k in ("time_zone", "event_time")},
    }
