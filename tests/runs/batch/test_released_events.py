"""Released and held events: the same rows from small pieces as from whole ones, whatever the rules and the order."""

import json
import os
import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.amounts import all_rows_are_many, no_records_are_kept
from tests.runs.running import FLUSH, Made, assert_same, committed, go, workspace_of, written
from tests.seeds import Dice
from tidemark.assets.judging.replay import replay_all
from tidemark.resources.delta import ordering, queries

CASES = 1
SPEC = """\
name: events
sources:
  - {{name: s, kind: files, path: in/*.jsonl, format: json, settle: 0 s, order: position{arrived},
     schema: "at TIMESTAMP, k STRING, v DOUBLE, x STRUCT<a: INT, b: ARRAY<STRING>>"}}
time: {{timestamp_by: {by}, unit: {unit}, out_of_orderness: 10 s{more}}}
windows:
  - {{name: w, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {{n: count(*), total: sum(v)}}}}
"""
BY_VALUE = ', arrival_time: "at - make_dt_interval(0, 0, 0, CASE v WHEN 0.5 THEN 9 WHEN -0.0 THEN -9 ELSE 0 END)"'
OF_ARRIVAL = ", early: {{tolerance: 5 s, policy: {}}}, late: {{tolerance: 5 s, policy: {}}}"
START = datetime(2026, 1, 1, tzinfo=UTC)
Files = list[list[dict[str, object]]]


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
            x = drawn.choice([None, {"a": 1, "b": ["é", None]}])
            k, v = drawn.choice(["a", "é", None]), drawn.choice([0.5, -0.0, None])
            lines.append({"at": text, "k": k, "v": v, "x": x})
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


@pytest.mark.long
@pytest.mark.parametrize(
    ("by", "unit", "late_s", "more"),
    [
        ("at", "microsecond", 12, ""),
        ("at", "second", 12, OF_ARRIVAL.format("keep", "adjust") + ", out_of_order: keep"),
        ("at", "second", 12, OF_ARRIVAL.format("adjust", "drop") + ", out_of_order: adjust"),
        ("at", "second", 100, ""),
        ("at", "second", 12, ", late: {tolerance: 1 s, policy: adjust}"),
        ("at", "second", 12, ", out_of_order: adjust"),
        ("at", "second", 12, ", out_of_order: keep"),
        ("at + INTERVAL 1 SECOND", "second", 12, ""),
        ("at", "second", 12, ", over: [k]"),
        ("at", "second", 12, ", deduplicate_by: [v], within: 2 s"),
    ],
)
def test_events_are_the_same_in_small_pieces_of_large_batches_as_in_one_small_batch(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dice: Dice,
    *,
    by: str,
    unit: str,
    late_s: int,
    more: str,
) -> None:
    arrived = BY_VALUE if "early" in more else ""
    files, spec = events(dice.seed(6), late_s=late_s), SPEC.format(by=by, unit=unit, more=more, arrived=arrived)
    with monkeypatch.context() as patched:
        all_rows_are_many(patched)
        no_records_are_kept(patched)
        patched.setattr(queries, "_PIECE_ROWS", 10)
        for bound, value in {"_GROUP_ROWS": 7, "_LEAST_ROWS": 20, "_WAITING_BYTES": 2_000}.items():
            patched.setattr(ordering, bound, value)
        made = run(tmp_path / "in_pieces", files, spec)
    assert_same(made, run(tmp_path / "whole", files, spec, whole=True))
    assert len(committed(made, "ordered_events")) > 2
    workspace = replace(workspace_of(made), session=lambda: spark)
    judged = [outcome.accepted.toArrow() for outcome in replay_all(workspace)]
    rows = workspace.lake.rows("ordered_events").drop_columns(["_release_seq", "_batch_id"])
    by_spark = pa.concat_tables(judged).select(rows.column_names)
    in_log, expected = (str(table.sort_by("_arrival_seq").to_pylist()) for table in (rows, by_spark))
    assert in_log == expected, "events are as Spark judges them"
    released = {
        one.batch_id: one.counts.ordered for one in workspace.batches.history("process") if one.counts.ordered
    }
    of_rows = workspace.lake.rows("ordered_events", columns=["_batch_id"])["_batch_id"].to_pylist()
    assert Counter(of_rows) == released, "rows have the number of their batch"
