"""Texts and names with the signs at which `str.splitlines` cuts and JSON does not, through the command."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.runs.running import command, log_of, over_source, rows_of, run

SIGNS = "\u2028\u2029\x85"
COLUMNS = 'schema: "id STRING, at STRING, k STRING, v INT"'
LINES = f'{{name: lines, kind: files, path: "in/*", format: json, settle: 0 s, {COLUMNS}}}'
SCHEMA = pa.schema({"id": pa.string(), "at": pa.string(), "k": pa.string(), "v": pa.int32()}.items())
TABLE = f"{{name: rows, kind: delta, path: t, start_version: 0, {COLUMNS}}}"


@pytest.mark.long
def test_texts_and_names_with_any_separator_stop_no_run(spark: SparkSession, tmp_path: Path) -> None:
    """They are in the statistics of the tables, so the next batch meets them in logs, its own and its source's."""
    over_source(tmp_path, "signs", f"{LINES}\n  - {TABLE}")
    (tmp_path / "in").mkdir()
    rows: list[dict[str, Any]] = [
        {"id": sign, "at": "2026-01-01T00:00:01Z", "k": f"two{sign}lines", "v": 1} for sign in SIGNS
    ]
    for turn in range(2):
        write_deltalake(tmp_path / "t", pa.Table.from_pylist(rows, schema=SCHEMA), mode="append")
        for sign, row in zip(SIGNS, rows, strict=True):
            lines = f'{json.dumps(row, ensure_ascii=False)}\n{{"k": "half{sign}{turn}\n'
            (tmp_path / "in" / f"{turn}{sign}.jsonl").write_text(lines, encoding="utf-8")
        run(tmp_path, "signs")
    told = command(tmp_path, "signs", "status")
    assert told.exit_code == 0, told.output
    log = log_of(tmp_path, "signs")
    assert sorted(row["k"] for row in log if row["k"]) == sorted(4 * [row["k"] for row in rows])
    assert {row["_file"] for row in log if row["_source"] == "lines"} == {
        f"{n}{s}.jsonl" for n in (0, 1) for s in SIGNS
    }
    letters = rows_of(tmp_path, "signs", "dead_letters")
    assert sorted(row["payload"] for row in letters) == sorted(f'{{"k": "half{s}{n}' for n in (0, 1) for s in SIGNS)
