"""Events that have the values of the log: Arrow writes the tables that Spark writes, whatever the order of events."""

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.runs.running import (
    FLUSH,
    Made,
    assert_same,
    committed,
    go,
    workspace_of,
    written,
)
from tests.seeds import Dice
from tidemark.assets import batch as batch_at_work
from tidemark.assets.state import releases, stored_events
from tidemark.resources.delta import queries

CASES = 1
SPEC = """\
name: events
sources:
  - {{name: s, kind: files, path: in/*.jsonl, format: json, settle: 0 s, order: position,
     schema: "at TIMESTAMP, k STRING, v DOUBLE"}}
time: {{timestamp_by: {by}, unit: {unit}, out_of_orderness: 10 s{more}}}
windows:
  - {{name: w, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {{n: count(*), total: sum(v)}}}}
"""
START = datetime(2026, 1, 1, tzinfo=UTC)
Files = list[list[dict[str, object]]]


@pytest.fixture(autouse=True)
def _all_batches_are_large_and_pieces_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("FEW_RECORDS", "MODERATE_RECORDS", "MATERIALIZED_RECORDS"):
        monkeypatch.setattr(batch_at_work, bound, 0)
    monkeypatch.setattr(stored_events, "_GROUP_ROWS", 7)
    monkeypatch.setattr(stored_events, "_LEAST_ROWS", 20)
    monkeypatch.setattr(queries, "_PIECE_ROWS", 10)


def events(seed: int, apart_s: float = 1, late_s: int = 12) -> Files:
    """Return files of events a step apart, each up to so long before its turn; some are far ahead or have no time.

    The events of the first file are all held.
    """
    drawn, step, files = random.Random(seed), 0, Files()
    for count in (3, drawn.choice([60, 150]), 60):
        lines: list[dict[str, object]] = []
        for _ in range(count):
            step += 1
            s = step * apart_s - drawn.choice([0, 0, 0.25, drawn.random() * late_s])
            s += drawn.choice([0] * 30 + [100]) if files else 0
            text = None if drawn.random() < 0.02 else (START + timedelta(seconds=s)).isoformat()
            lines.append({"at": text, "k": drawn.choice(["a", "é", None]), "v": drawn.choice([0.5, -0.0, None])})
        files.append(lines)
    return files


def run(folder: Path, files: Files, spec: str, *, whole: bool = False) -> Made:
    """Return a pipeline that has read the files one after the other, or as one batch, and was flushed."""
    (folder / "in").mkdir(parents=True)
    made = written(folder, "events", spec)
    for number, lines in enumerate(files):
        file = folder / "in" / f"{number}.jsonl"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        os.utime(file, (number, number))  # their arrivals
        if not whole:
            go(made)
    go(made, options=FLUSH)
    return made


def assert_as_by_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: Made, files: Files, spec: str) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(stored_events.StoredEvents, "of", lambda *_: None)
        by_spark = run(tmp_path / "by_spark", files, spec, whole=True)
    assert len(committed(by_spark, "ordered_events")) > 2
    assert_same(made, by_spark)
    workspace = workspace_of(made)
    released = {
        one.batch_id: one.counts.ordered for one in workspace.batches.history("process") if one.counts.ordered
    }
    of_rows = workspace.lake.rows("ordered_events", columns=["_batch_id"])["_batch_id"].to_pylist()
    assert Counter(of_rows) == released, "rows have the number of their batch"


@pytest.mark.usefixtures("spark")
@pytest.mark.long
@pytest.mark.parametrize("unit", ["microsecond", "second"])
def test_arrow_releases_events_in_the_order_of_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dice: Dice, unit: str
) -> None:
    files, spec = events(dice.seed(7)), SPEC.format(by="at", unit=unit, more="")
    with monkeypatch.context() as patched:
        for other_way in ("_write_few", "_write_by_spark"):
            patched.setattr(releases, other_way, None)
        made = run(tmp_path / "by_arrow", files, spec)
    assert_as_by_spark(tmp_path, monkeypatch, made, files, spec)


def _waits_too_long(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(stored_events, "FEW_BYTES", 0)


def _reads_too_often(patched: pytest.MonkeyPatch) -> None:
    patched.setattr(stored_events, "_MOST_READ", 0)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("stopped", [_waits_too_long, _reads_too_often])
def test_spark_puts_events_in_order_that_arrow_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: Callable[[pytest.MonkeyPatch], None]
) -> None:
    files, spec = events(5, late_s=100), SPEC.format(by="at", unit="second", more="")
    with monkeypatch.context() as patched:
        stopped(patched)
        made = run(tmp_path / "stopped", files, spec)
    assert_as_by_spark(tmp_path, monkeypatch, made, files, spec)


@pytest.mark.long
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("by", "more"),
    [
        ("at", ", late: {tolerance: 1 s, policy: adjust}"),
        ("at", ", out_of_order: adjust"),
        ("at", ", out_of_order: keep"),
        ("at + INTERVAL 1 SECOND", ""),
        ("at", ", over: [k]"),
        ("at", ", deduplicate_by: [v], within: 2 s"),
    ],
)
def test_events_of_any_rules_are_written_as_by_spark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, more: str
) -> None:
    files, spec = events(6), SPEC.format(by=by, unit="second", more=more)
    made = run(tmp_path / "as_found", files, spec)
    assert_as_by_spark(tmp_path, monkeypatch, made, files, spec)
