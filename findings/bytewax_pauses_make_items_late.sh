#!/usr/bin/env bash
# bytewax: a pause in the input makes an item late, and late items are refused though their window is open.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet bytewax==0.21.1
"$folder/venv/bin/python" - <<'PYTHON'
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import bytewax.operators as op
import bytewax.operators.windowing as win
from bytewax.dataflow import Dataflow
from bytewax.testing import TestingSink, TestingSource, run_main

print("bytewax", version("bytewax"))
START = datetime(2026, 1, 5, 12, tzinfo=UTC)


def run(seconds: list[float], *, size_s: float, wait_s: float = 0, pause_before: int = -1) -> tuple[list, list]:
    """Count items in tumbling windows; return the counts by second of the window, and the late items."""

    def items() -> Iterator[float]:
        for place, second in enumerate(seconds):
            time.sleep(1.5 * (place == pause_before))
            yield second

    counts, late = [], []
    flow = Dataflow("flow")
    keyed = op.key_on("key", op.input("in", flow, TestingSource(items())), lambda _: "all")
    clock = win.EventClock(lambda s: START + timedelta(seconds=s), wait_for_system_duration=timedelta(seconds=wait_s))
    tumbling = win.TumblingWindower(length=timedelta(seconds=size_s), align_to=START)
    windows = win.fold_window("count", keyed, clock, tumbling, lambda: 0, lambda count, _: count + 1, lambda a, b: a + b)
    op.output("out", windows.down, TestingSink(counts))
    op.output("late", windows.late, TestingSink(late))
    run_main(flow)
    return [(window * size_s, count) for _, (window, count) in counts], [item for _, (_, item) in late]


at_once = run([0, 1, 0.5, 3], size_s=1, wait_s=1)
paused = run([0, 1, 0.5, 3], size_s=1, wait_s=1, pause_before=2)
still_open = run([60, 30, 400], size_s=300)
print("read at once:", at_once)
print("the same with a pause of 1.5 s:", paused)
print("item of second 30 after 60, window of 300 s open:", still_open)
as_described = at_once == ([(0, 2), (1, 1), (3, 1)], []) and paused == ([(0, 1), (1, 1), (3, 1)], [0.5])
raise SystemExit(0 if as_described and still_open == ([(0, 1), (300, 1)], [30]) else 1)
PYTHON
