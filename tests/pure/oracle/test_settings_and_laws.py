"""Settings that the oracle refuses, and laws that it keeps on logs made by chance."""

import random

import pytest

from tests.oracle import Control, Record, TimeRules, Window, run


@pytest.mark.parametrize(
    ("rules", "windows", "setting"),
    [
        (TimeRules(unit_us=1_000, out_of_orderness_us=1), [], "out_of_orderness_us"),
        (TimeRules(processing_time=True, late=(1, "drop")), [], "processing_time"),
        (TimeRules(idle=("arrival_clock", None)), [], "idle"),
        (TimeRules(idle=("exclude_split", 5)), [], "idle"),
        (TimeRules(idle=("window_close", 5)), [], "idle"),
        (TimeRules(known_splits=(("s", None),)), [], "known_splits"),
        (TimeRules(), [Window("w", "tumbling", size_us=5, allowed_lateness_us=1)], "allowed_lateness_us"),
        (TimeRules(), [Window("w", "tumbling", size_us=5, emit="on_time")], "emit"),
        (TimeRules(), [Window("w", "tumbling")], "size_us"),
        (TimeRules(), [Window("w", "hopping", size_us=5)], "hop_us"),
        (TimeRules(), [Window("w", "session", gap_us=5, max_duration_us=9, emit=("early", 5))], "emit"),
        (TimeRules(), [Window("w", "cumulative", size_us=5, step_us=2)], "step_us"),
        (TimeRules(), [Window("w", "snapshot", closed="right")], "closed"),
        (
            TimeRules(out_of_order="keep"),
            [Window("w", "session", gap_us=5, max_duration_us=9)],
            "max_duration_us",
        ),
    ],
)
def test_impossible_settings_are_refused_by_name(rules: TimeRules, windows: list[Window], setting: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting}:"):
        run([], rules, windows)


def test_a_log_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^seq:"):
        run([Record(1, 0, 0), Record(1, 0, 0)], TimeRules())
    with pytest.raises(ValueError, match=r"^after_seq:"):
        run([Record(0, 0, 0), Control(1, "flush")], TimeRules())


WINDOWS = [
    Window("tumbling", "tumbling", size_us=10),
    Window("gaps", "hopping", size_us=3, hop_us=5, where=lambda record: record.seq % 4 != 0),
    Window("overlap", "hopping", size_us=20, hop_us=5, closed="right"),
    Window("session", "session", gap_us=4),
    Window("sliding", "sliding", size_us=7),
    Window("snapshot", "snapshot"),
    Window("cumulative", "cumulative", size_us=12, step_us=4),
]
RULES = [
    TimeRules(out_of_orderness_us=5),
    TimeRules(out_of_orderness_us=5, out_of_order="adjust", late=(20, "adjust"), early=(5, "drop")),
    TimeRules(out_of_orderness_us=2, out_of_order="keep", within_us=3),
    TimeRules(out_of_orderness_us=3, use_splits=True, idle=("exclude_split", 12), emit_every_us=7),
    TimeRules(out_of_order="keep", late=(8, "drop"), idle=("arrival_clock", None)),
    TimeRules(out_of_order="keep", idle=("window_close", 6), emit_every_us=9),
]


def random_log(seed: int) -> list[Record | Control]:
    chance = random.Random(seed)
    items: list[Record | Control] = []
    clock = 0
    seq = -1
    for _ in range(60):
        clock += chance.choice([0, 1, 2, 9])
        if chance.random() < 0.1:
            items.append(Control(seq, "tick", clock))
            continue
        seq += 1
        e = None if chance.random() < 0.05 else clock + chance.randint(-25, 8)
        line, split = chance.choice(['["x"]', '["y"]']), chance.choice("ab")
        items.append(Record(seq, clock, e, timeline=line, split=split, key=chance.randint(0, 9)))
    return items


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("rules", RULES)
def test_no_record_is_lost_and_results_only_grow(rules: TimeRules, seed: int) -> None:
    items = random_log(seed)
    whole = run(items, rules, WINDOWS)
    records = {item.seq for item in items if isinstance(item, Record)}
    in_time = {letter.seq for letter in whole.dead_letters if letter.stage != "window"}
    accepted = {event.seq for event in whole.ordered + whole.held}
    assert in_time | accepted == records
    assert len(in_time) + len(whole.ordered) + len(whole.held) == len(records)
    counts = whole.counts
    for window in WINDOWS:
        name = window.name
        refused = [letter for letter in whole.dead_letters if letter.window_name == name]
        placed = counts.in_gap[name] + counts.filtered[name] + counts.in_windows[name]
        assert placed + len(refused) == len(accepted)
        keys = [(row.timeline, row.window_start, row.window_end) for row in whole.windows[name]]
        assert len(set(keys)) == len(keys), "one final row per window"
        for letter in refused:
            assert letter.watermark_set_by is None or (letter.lateness_us or 0) > 0
    for line in whole.watermarks[0]:
        numbered = [event for event in whole.ordered if event.timeline == line and event.release_seq is not None]
        assert [event.release_seq for event in numbered] == list(range(len(numbered)))
        stamps = [(event.timestamp_us, event.seq) for event in numbered]
        assert stamps == sorted(stamps)
        marks = [after[line] for after in whole.watermarks if after[line] is not None]
        assert marks == sorted(mark for mark in marks if mark is not None)
    part = run(items[:35], rules, WINDOWS)
    assert whole.ordered[: len(part.ordered)] == part.ordered
    assert whole.dead_letters[: len(part.dead_letters)] == part.dead_letters
    for name, results in part.windows.items():
        assert whole.windows[name][: len(results)] == results
