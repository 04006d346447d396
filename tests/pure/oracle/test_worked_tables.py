"""The oracle on the worked tables of the source texts."""

import re

import pytest

from tests.oracle import Control, DeadLetter, Record, TimeRules, Window, grid_windows, run
from tests.pure.oracle.cases import (
    MIDNIGHT,
    SECOND,
    at,
    contents,
    last_watermark,
    length,
    log,
    order,
    reasons,
    span,
    table,
)


def test_h_figures_11_27_to_11_30() -> None:
    case = table("H-11-27..30")
    spread = length(case["time"]["out_of_orderness"])
    rules = TimeRules(unit_us=SECOND, out_of_orderness_us=spread)
    steps = case["steps"]
    whole = log(*[at(step["event"]) for step in steps])
    released: list[int] = []
    for count, step in enumerate(steps, start=1):
        outcome = run(whole[:count], rules)
        assert last_watermark(outcome) == at(step["base"]) - spread
        if "range" in step:
            assert last_watermark(outcome) == at(step["range"][0])
        if step["outcome"] == "held":
            assert {event.seq: event.timestamp_us for event in outcome.held}[count - 1] == at(step["timestamp"])
        else:
            assert reasons(outcome) == {count - 1: step["outcome"]}
        new = [event.timestamp_us for event in outcome.ordered if event.seq not in released]
        released = order(outcome)
        assert new == [at(text) for text in step.get("releases", [])]


def test_h_order_by_unit_and_range() -> None:
    case = table("H-order")
    names = list(case["events"])
    units = {"second": SECOND, "millisecond": 1_000, "microsecond": 1}
    for expected in case["expect"]:
        items = log(*[at(text) for text in case["events"].values()])
        rules = TimeRules(unit_us=units[expected["unit"]], out_of_orderness_us=length(expected["range"]))
        outcome = run([*items, Control(4, "flush")], rules)
        assert [names[seq] for seq in order(outcome)] == expected["order"]
        assert [event.release_seq for event in outcome.ordered] == list(range(len(outcome.ordered)))
        assert [names[seq] for seq in reasons(outcome)] == expected["dropped"]
        stamps = {names[event.seq]: event.timestamp_us for event in outcome.ordered}
        assert stamps == {name: at(text) for name, text in expected["timestamps"].items()}


def test_m_hopping_windows_overlap_or_leave_gaps() -> None:
    for row in table("M-hopping")["expect"]:
        size, hop = length(row["size"]), length(row["hop"])
        expected = [(at(start), at(end)) for start, end in row["windows"]]
        assert grid_windows(at(row["event"]), size, hop) == expected
        window = Window("w", "hopping", size_us=size, hop_us=hop)
        outcome = run([*log(at(row["event"])), Control(0, "flush")], TimeRules(), [window])
        assert list(contents(outcome.windows["w"])) == expected
        assert outcome.counts.in_gap["w"] == (0 if expected else 1)
        assert outcome.dead_letters == []


def test_m_watermark_table_by_event_time_and_by_processing_time() -> None:
    case = table("M-watermark")
    items = [Record(seq, at(row[1]), at(row[0])) for seq, row in enumerate(case["rows"])]
    window = Window("w", "tumbling", size_us=length(case["window"]["size"]))
    keep = TimeRules(out_of_order="keep")
    for rules, column, counts in (
        (TimeRules(processing_time=True), 2, "counts_without_watermark"),
        (keep, 3, "counts_with_watermark"),
    ):
        outcome = run([*items, Control(9, "flush")], rules, [window])
        found = contents(outcome.windows["w"])
        assert {where: len(seqs) for where, seqs in found.items()} == {
            span(text): count for text, count in case["expect"][counts].items()
        }
        for seq, row in enumerate(case["rows"]):
            assert seq in found[span(row[column])]
    first = run(items, keep, [window]).windows["w"][0]
    assert (first.revision, first.is_final, first.watermark_us) == (0, True, at("12:05"))
    closing = at(case["expect"]["first_window_closes_at_processing_time"])
    before = [item for item in items if item.arrival_us is not None and item.arrival_us < closing]
    assert run(before, keep, [window]).windows["w"] == []
    assert len(run(items[: len(before) + 1], keep, [window]).windows["w"]) == 1


def test_m_allowed_lateness_table() -> None:
    case = table("M-allowed-lateness")
    lateness = length(case["window"]["allowed_lateness"])
    window = Window("w", "tumbling", size_us=length(case["window"]["size"]), allowed_lateness_us=lateness)
    rules = TimeRules(out_of_order="keep")
    items = log(*[at(row[0]) for row in case["rows"]])
    for count, (_, watermark, less_lateness, open_windows) in enumerate(case["rows"], start=1):
        outcome = run(items[:count], rules, [window])
        assert last_watermark(outcome) == at(watermark) == at(less_lateness) + lateness
        still_open = [(start, end) for start, end, _, _ in outcome.open_windows["w"]]
        assert still_open == [span(text) for text in open_windows]
    flushed = run([*items, Control(9, "flush")], rules, [window])
    counts = {where: len(seqs) for where, seqs in contents(flushed.windows["w"]).items()}
    assert counts == {span(text): count for text, count in case["expect"]["counts"].items()}
    assert len(flushed.dead_letters) == case["expect"]["dead_letters"]
    one_more = run([*items, Record(10, MIDNIGHT + 10, at("12:04"))], rules, [window])
    assert one_more.dead_letters == [
        DeadLetter(
            seq=10,
            stage="window",
            reason="window_closed",
            window_name="w",
            missed_windows=(span("12:00-12:05"),),
            event_us=at("12:04"),
            watermark_us=at("12:07"),
            lateness_us=1,
            watermark_set_by=9,
        )
    ]
    assert one_more.ordered[-1].seq == 10, "its outcome in time stays: it was accepted"


def test_m_idle_table() -> None:
    case = table("M-idle")
    size, timeout = length(case["window"]["size"]), length(case["time"]["idle"]["timeout"])
    window = Window("w", "tumbling", size_us=size)
    rules = TimeRules(out_of_order="keep", idle=("window_close", timeout))
    items: list[Record | Control] = []
    seq = -1
    for processing, event, watermark, open_window in case["rows"]:
        if event == "idle":
            items.append(Control(seq, "tick", at(processing)))
        else:
            seq += 1
            items.append(Record(seq, at(processing), at(event)))
        outcome = run(items, rules, [window])
        assert last_watermark(outcome) == at(watermark)
        # The text names the window that the watermark is in; it holds events unless the clock opened it.
        still_open = [(start, end) for start, end, _, _ in outcome.open_windows["w"]]
        assert grid_windows(at(watermark), size, size) == [span(open_window)]
        assert still_open == ([] if at(watermark) == at("12:06") else [span(open_window)])
    assert contents(outcome.windows["w"]) == {span("12:00-12:03"): (0, 1), span("12:03-12:06"): (2,)}


@pytest.mark.parametrize("variant", [0, 1, 2])
def test_a2_twelve_events(variant: int) -> None:
    case = table("A2-twelve-events")
    expected = case["expect"][variant]
    time = {**case["time"], **expected["time"]}
    rules = TimeRules(
        out_of_orderness_us=length(time["out_of_orderness"]),
        out_of_order=time["out_of_order"],
        late=(length(time["late"]["tolerance"]), time["late"]["policy"]),
        early=(length(time["early"]["tolerance"]), time["early"]["policy"]) if "early" in time else None,
    )
    items = [
        Record(seq, at(arrival), at(event), timeline=f'["{device}"]' if "over" in time else "[]")
        for seq, (event, arrival, device) in enumerate(case["rows"])
    ]
    outcome = run([*items, Control(11, "flush")], rules)
    stamps = {event.seq: event.timestamp_us for event in outcome.ordered}
    for seq, (stamp, watermark) in enumerate(zip(expected["timestamps"], expected["watermarks"], strict=True)):
        if re.match(r"\d", stamp):
            assert stamps[seq] == at(stamp), f"event {seq + 1}"
        else:
            assert reasons(outcome)[seq] == stamp, f"event {seq + 1}"
        assert outcome.watermarks[seq][items[seq].timeline] == at(watermark), f"event {seq + 1}"
    adjusted = {event.seq + 1: list(event.adjusted_by) for event in outcome.ordered if event.adjusted_by}
    assert adjusted == expected["adjusted_by"]
    counts = outcome.counts
    found = {"early": counts.early, "late": counts.late, "out_of_order": counts.out_of_order}
    assert found == expected["metrics"]
