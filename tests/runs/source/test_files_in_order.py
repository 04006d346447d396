"""Parquet files and JSON lines that lie in the order of the log get the numbers that sorting would have made."""

import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tidemark.pipelines.cli import main

SPEC = """
name: rows
sources:
  - {{name: a, kind: files, path: a/*.parquet, format: parquet, schema: "at TIMESTAMP, n BIGINT", arrival_time: at,
     settle: 0 s, order: {order}}}
  - {{name: b, kind: files, path: b/*.json, format: json, schema: "at TIMESTAMP, n BIGINT", arrival_time: at,
     settle: 0 s, order: {order}}}
  - {{name: c, kind: files, path: c/*.json, format: json, schema: "n BIGINT, at TIMESTAMP", arrival_time: at,
     settle: 0 s, order: {order}}}
time: {{timestamp_by: at{start}}}
"""
START = datetime(2026, 1, 1, tzinfo=UTC)


def land(folder: Path, name: str, seconds: list[int]) -> list[tuple[datetime, str, str, int]]:
    """Writes a file; its records as the log orders them: arrival, file, source, place."""
    at = [START + timedelta(seconds=one) for one in seconds]
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".json"):
        lines = [json.dumps({"at": one.isoformat(), "n": n}) for one, n in zip(at, seconds, strict=True)]
        (folder / name).write_text("\n".join(lines))
    else:
        columns = {"at": pa.array(at, pa.timestamp("us", "UTC")), "n": seconds}
        pq.write_table(pa.table(columns), folder / name, row_group_size=7)
    source, _, file = name.partition("/")
    return [(one, file, source, place) for place, one in enumerate(at, start=1)]


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("order", "start_s", "falls"),
    [
        ("arrival_time", 0, True),
        pytest.param("position", 0, False, marks=pytest.mark.long),
        pytest.param("arrival_time", 0, False, marks=pytest.mark.long),
        pytest.param("arrival_time", 30, False, marks=pytest.mark.long),
    ],
)
def test_records_are_numbered_as_if_sorted(tmp_path: Path, order: str, start_s: int, *, falls: bool) -> None:
    drawn, second = random.Random(5), 0
    start = START + timedelta(seconds=start_s)
    start_at = f", start_at: {start.isoformat()}" if start_s else ""
    (tmp_path / "rows.yaml").write_text(SPEC.format(order=order, start=start_at))
    landed: list[tuple[datetime, str, str, int]] = []
    for name in ("a/1.parquet", "b/2.json", "a/3.parquet", "c/4.json"):
        seconds = []
        for _ in range(20):
            second += drawn.choice([0, 1, 2])
            seconds.append(second)
        if falls and name == "b/2.json":
            seconds[4], seconds[12] = seconds[12], seconds[4]
        landed += land(tmp_path, name, seconds)
    expected = sorted(
        [one for one in landed if one[0] >= start], key=lambda one: one if order == "arrival_time" else one[1:]
    )
    ran = CliRunner().invoke(main, ["run", str(tmp_path / "rows.yaml"), "--warehouse", str(tmp_path / "lake")])
    assert ran.exit_code == 0, ran.output
    rows = DeltaTable(str(tmp_path / "lake/rows/raw_events")).to_pyarrow_table().sort_by("_arrival_seq").to_pylist()
    assert [row["_arrival_seq"] for row in rows] == list(range(len(expected)))
    found = [(row["_arrival_time"], Path(row["_file"]).name, row["_source"], row["_position"]) for row in rows]
    assert found == expected
    clock = [max(one[0] for one in expected[: number + 1]) for number in range(len(expected))]
    assert [row["_clock"] for row in rows] == clock


@pytest.mark.long
def test_a_clock_that_came_further_before_stays(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "rows.yaml").write_text(SPEC.format(order="arrival_time", start=""))
    for number, seconds in enumerate([[50, 60], [10, 70]]):
        land(tmp_path, f"a/{number}.parquet", seconds)
        for folder in ("b", "c"):
            (tmp_path / folder).mkdir(exist_ok=True)
        ran = CliRunner().invoke(main, ["run", str(tmp_path / "rows.yaml"), "--warehouse", str(tmp_path / "lake")])
        assert ran.exit_code == 0, ran.output
    rows = DeltaTable(str(tmp_path / "lake/rows/raw_events")).to_pyarrow_table().sort_by("_arrival_seq")
    assert [(one - START).seconds for one in rows["_clock"].to_pylist()] == [50, 60, 60, 70]
