"""Output of a run when it is done, of tables that are written without Spark.

Here: the numbers and how they add up. Not here: the page of `tidemark report` (report/).
"""

import re
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.pure.report.shop import SPEC, WINDOWS, Shop, letter
from tidemark.pipelines.runner import RunReport
from tidemark.pipelines.terminal import show_report
from tidemark.resources import tables


def test_the_printed_counts_add_up_to_the_records_and_what_a_window_missed_stands_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    made = Shop(tmp_path, SPEC + WINDOWS).create()
    made.ingest(429)
    made.counts |= {"per_minute.in_windows": 366, "per_minute.window_closed": 60}
    made.add(tables.DEAD_LETTERS, [letter(n) | {"stage": "window", "reason": "window_closed"} for n in range(60)])
    made.process(ordered=366, held=60, refused=[{"reason": "early"}, {}, {}])
    show_report(made.workspace, RunReport(batches=1))
    printed = capsys.readouterr().out
    assert printed.replace(str(tmp_path), "FOLDER") == snapshot
    found = re.findall(r"^ +(\S.*?) +(?:[0-9]+ +)?([0-9]+) *$", printed, flags=re.MULTILINE)
    shown = {label: int(in_all) for label, in_all in found}
    assert shown == {
        "records in": 429,
        "ordered": 366,
        "held, the watermark has not passed them": 60,
        "refused, in dead_letters": 3,
        "early": 1,
        "out_of_order": 2,
        "accepted, too late for per_minute": 60,
        "rows of windows/per_minute": 0,
    }


def test_without_ordered_events_the_accepted_ones_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Shop(tmp_path, SPEC + WINDOWS + "outputs: {ordered_events: false}\n").create()
    made.ingest(10)
    made.process(ordered=6, held=3, refused=[{}])
    show_report(made.workspace, RunReport(batches=1))
    printed = " ".join(capsys.readouterr().out.split())
    assert "records in 10 10 accepted 9 9 refused, in dead_letters 1 1" in printed
