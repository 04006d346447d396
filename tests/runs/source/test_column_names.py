"""Columns whose names in the files no table can have, from the command to every reader of the tables."""

import csv
import json
import os
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.runs.landing import table
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec

SPEC = """
name: zeek
sources:
  - {name: lines, kind: files, path: "in/*.json", format: json, keep_unknown: true, settle: 0 s, splits: ["10.0.0.1"],
     schema: "ts STRING, `id.orig_h` STRING, host STRING, source STRING, `user-agent` STRING",
     rename: {id.orig_h: orig, "resp, host (b)": host, _file: source}, split: orig}
  - {name: table, kind: files, path: "in/*.csv", format: csv, options: {header: true}, settle: 0 s, split: orig,
     schema: "ts STRING, orig STRING, `resp, host (b)` STRING, `_file` STRING, `user-agent` STRING",
     rename: {id.orig_h: orig, "resp, host (b)": host, _file: source}}
  - {name: columns, kind: files, path: "in/*.parquet", format: parquet, keep_unknown: true, settle: 0 s, split: orig,
     schema: "ts STRING, orig STRING, host STRING, source STRING, meta STRING, `user-agent` STRING",
     rename: {id.orig_h: orig, "resp, host (b)": host, _file: source, _metadata: meta}}
time: {timestamp_by: ts, over: [orig, "`user-agent`"], deduplicate_by: [host, "`user-agent`", source], within: 1 day,
       out_of_orderness: 1 hour}
windows:
  - {name: w, kind: tumbling, size: 1 minute, group_by: [orig, "`user-agent`"],
     aggregates: {hosts: "array_sort(collect_set(host))", last: "max_by(source, struct(_timestamp, _arrival_seq))"}}
"""
NAMES = ("ts", "id.orig_h", "resp, host (b)", "_file", "user-agent")


def rows(prefix: str) -> list[dict[str, str]]:
    times = [*(f"2026-01-01T00:0{minute}:00Z" for minute in range(3)), "soon"]
    values = [(at, "10.0.0.1", f"{prefix} {number}", "f", "ü") for number, at in enumerate(times)]
    return [dict(zip(NAMES, one, strict=True)) for one in values]


@pytest.mark.long
def test_columns_of_any_name_are_used_by_their_new_names_everywhere(folder: Path) -> None:
    lines = [json.dumps(row | {"a.b": {"c d": 1}}) for row in rows("json")]
    (folder / "in" / "a.json").write_text("\n".join(lines))
    with (folder / "in" / "b.csv").open("w") as file:
        writer = csv.DictWriter(file, [*NAMES, "more"])
        writer.writeheader()
        writer.writerows(rows("csv"))
    columns = {name: [row[name] for row in rows("parquet")] for name in NAMES}
    pq.write_table(pa.table({**columns, "_metadata": ["m"] * 4, "x.y": [1] * 4}), folder / "in" / "c.parquet")
    for number, path in enumerate(sorted((folder / "in").iterdir())):
        os.utime(path, (1_767_300_000 + number, 1_767_300_000 + number))
    (folder / "zeek.yaml").write_text(SPEC)
    done = CliRunner().invoke(main, ["run", "zeek.yaml", "--end-of-input", "flush"], catch_exceptions=False)
    assert done.exit_code == 0, done.output

    spec = read_spec(folder / "zeek.yaml").spec
    log = sorted(table(folder / "warehouse", spec, "raw_events"), key=lambda row: row["_arrival_seq"])
    assert [(row["orig"], row["host"], row["source"], row["user-agent"]) for row in log] == [
        ("10.0.0.1", f"{prefix} {number}", "f", "ü") for prefix in ("json", "csv", "parquet") for number in range(4)
    ]
    assert [Path(row["_file"]).name for row in log[::4]] == ["a.json", "b.csv", "c.parquet"]
    assert [row["_rescued"] for row in log[::4]] == ['{"a.b":{"c d":1}}', None, '{"x.y":1}']
    assert [row["meta"] for row in log[::4]] == [None, None, "m"]
    letters = table(folder / "warehouse", spec, "dead_letters")
    assert {row["reason"] for row in letters} == {"bad_timestamp"}
    assert {json.loads(row["payload"])["host"] for row in letters} == {"json 3", "csv 3", "parquet 3"}
    results = table(folder / "warehouse", spec, "windows/w")
    assert [row["hosts"] for row in sorted(results, key=lambda row: row["window_start"])] == [
        [f"csv {number}", f"json {number}", f"parquet {number}"] for number in range(3)
    ]
    events = pa.Table.from_pylist(table(folder / "warehouse", spec, "ordered_events"))  # DuckDB knows it by its name
    assert events.num_rows == 9
    found = duckdb.query('SELECT DISTINCT orig, "user-agent" FROM events')
    assert found is not None
    assert found.fetchall() == [("10.0.0.1", "ü")]
    reported = CliRunner().invoke(main, ["report", "zeek.yaml"], catch_exceptions=False)
    assert reported.exit_code == 0, reported.output


def test_a_name_that_no_table_can_have_ends_with_exit_2_and_the_line_to_write(folder: Path) -> None:
    (folder / "in" / "a.json").write_text(json.dumps(rows("json")[0]))
    source = 'kind: files, path: "in/*", format: json, schema: "ts STRING, `id.orig_h` STRING, `a b` INT"'
    (folder / "zeek.yaml").write_text(f"name: zeek\nsources: [{{name: s, {source}}}]\ntime: {{timestamp_by: ts}}\n")
    for command in ("validate", "run"):
        done = CliRunner().invoke(main, [command, "zeek.yaml"], catch_exceptions=False)
        assert done.exit_code == 2
        assert 'add `rename: {id.orig_h: id_orig_h, "a b": a_b}` to the source' in done.stderr
