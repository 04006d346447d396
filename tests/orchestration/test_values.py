"""Values that a pipeline must not change or take for others: microseconds, minus zero, floats, very large sums."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dagster import DagsterInstance
from pyspark.sql import SparkSession

from pipelines.runner import RunOptions
from pipelines.specfiles import read_spec
from resources.settings import Settings
from resources.workspace import SpecFile
from tests.orchestration.landing import table
from tests.orchestration.test_live_runs import go

FLUSH = RunOptions(end_of_input="flush")


def pipeline(folder: Path, schema: str, rest: str, records: Sequence[str]) -> tuple[SpecFile, Settings]:
    """A pipeline over JSON lines, which keep their order."""
    (folder / "in").mkdir()
    (folder / "in" / "a.jsonl").write_text("\n".join(records) + "\n")
    source = f"kind: files, path: in/*.jsonl, format: json, order: position, settle: 0 s, schema: '{schema}'"
    (folder / "values.yaml").write_text(f"name: values\nsources:\n  - {{name: s, {source}}}\n{rest}")
    return read_spec(folder / "values.yaml"), Settings(folder / "warehouse", folder, folder / "home")


def rows_of(made: tuple[SpecFile, Settings], name: str) -> list[dict[str, Any]]:
    file, settings = made
    return table(settings.warehouse, file.spec, name)


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
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, FLUSH)
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
