"""Ordinary mistakes in a spec, by the commands that meet them: exit status 2, file, line, key, what was meant."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession
from syrupy.assertion import SnapshotAssertion

from tidemark.pipelines.cli import main

SOURCE = {
    "name": "tills",
    "kind": "files",
    "path": "in/*.jsonl",
    "format": "json",
    "settle": "0 s",
    "schema": "at STRING, k STRING, n BIGINT, x DOUBLE, flag BOOLEAN, tags ARRAY<STRING>, s STRUCT<a: INT>",
}
COUNT = {"c": "count(*)", "total": "sum(n)"}

# Wrong values of a key, each in a window of its own.
IN_WINDOWS: list[tuple[str, Any]] = [
    ("where", "nn > 1"),
    ("where", "n"),
    ("where", "k"),
    ("where", "n > 1, k = 'a'"),
    ("where", "count(*) > 1"),
    ("where", "c > 1"),
    ("where", "n >"),
    ("where", "n = = 1"),
    ("where", "n > 1;"),
    ("where", "contain(k, 'a')"),
    ("where", "contains(k)"),
    ("where", "tags > 1"),
    ("where", "s.b > 1"),
    ("where", "k.b > 1"),
    ("where", "_position > 1"),
    ("where", "__tm_timestamp > 1"),
    ("where", "x -> x"),
    ("group_by", ["kk"]),
    ("group_by", ["max(n) AS g"]),
    ("group_by", ["null AS g"]),
    ("aggregates", {"c": "n"}),
    ("aggregates", {"c": "sum(nn)"}),
    ("aggregates", {"c": "sum n"}),
    ("aggregates", {"c": "summ(n)"}),
    ("aggregates", {"c": "sum(tags)"}),
    ("aggregates", {"c": "sum(n, x)"}),
    ("aggregates", {"c": "sum(count(*))"}),
    ("aggregates", {"c": "sum(n) + x"}),
    ("aggregates", {"c": "percentile(x, 50)"}),
    ("aggregates", {"c": "max(_timestamp) - min(_timestamp)"}),
    ("aggregates", {"c": "max(k COLLATE UTF8_LCASE)"}),
    ("aggregates", {"c": "length(mode(collate(k, 'UNICODE_CI'), true))"}),
    ("group_by", ["k COLLATE UTF8_BINARY_RTRIM AS g"]),
    ("where", "date_format(_timestamp, 'YYYY') = '2026'"),
    ("group_by", ["regexp_replace(k, '[', '') AS g"]),
    ("aggregates", {"c": "1 + max(format_string('%d', k))"}),
    ("aggregates", {"c": "date_format(max(_timestamp), 'qqqqqqq')"}),
    ("aggregates", {"c": "max(size(sequence(1L, 2000000000L)))"}),
    *(("top", {"by": by, "n": 1}) for by in ("nn DESC", "k, count(*)", "1", "map(k, n)", "c", "to_date(k, 'YYYY')")),
    ("having", "element_at(array(c), 0) > 1"),
    ("having", "n > 1"),
    ("having", "totl > 1"),
    ("having", "c"),
    ("having", "count(*) > 1"),
    ("having", "_revision > 1"),
]
# Wrong values of other keys.
ELSEWHERE: list[dict[str, Any]] = [
    {"source": {"arrival_time": "gott"}},
    {"source": {"arrival_time": "min(at)"}},
    {"source": {"split": "max(k)"}},
    {"source": {"split": "k k k"}},
    {"source": {"schema": "at STRING, n BIGNT"}},
    {"source": {"schema": "at STRING, n INTERVAL"}},
    {"time": {"timestamp_by": "att"}},
    {"time": {"timestamp_by": "n"}},
    {"time": {"timestamp_by": "max(at)"}},
    {"time": {"timestamp_by": "timestamp_millis(k)"}},
    {"source": {"schema": "at STRING, n STRING COLLATE UTF8_LCASE"}},
    {"time": {"timestamp_by": "at", "over": ["k COLLATE UNICODE"]}},
    {"time": {"deduplicate_by": ["k COLLATE UNICODE"], "within": "1 h"}},
    {"source": {"arrival_time": "to_timestamp(at, 'YYYY-ww')"}},
    {"time": {"timestamp_by": "timestamp_millis(element_at(array(n), 0))"}},
    {"time": {"timestamp_by": "at", "over": ["kk"]}},
    {"time": {"deduplicate_by": ["idd"], "within": "1 h"}},
    {"time": {"deduplicate_by": ["s"], "within": "1 h"}},
    {"time": {"timestamp_by": "at", "over": ["tags", "encode(k, 'utf-8')"]}},
    {"source": {"split": "map(k, n)"}},
    {"windows": [{"name": "w", "kind": "snapshot", "group_by": ["map(k, n) AS m"], "top": {"n": 1, "by": "n"}}]},
    {
        "windows": [
            {"name": f"w{number}", "kind": "session", "gap": gap, "max_gap": "1 h", "aggregates": {"c": "count(*)"}}
            for number, gap in enumerate(
                [
                    *("n * 60", "CASE k WHEN 'a' THEN '5 minutes' END", "gapp", "INTERVAL 5 MINUTES"),
                    *("make_ym_interval(n)", "_timestamp - at"),
                ]
            )
        ]
    },
    {"source": {"arrival_time": "to_timestamp(at, 'EEE, d MMM yyyy')"}},
    {"source": {"arrival_time": "to_timestamp(at, 'yyyy MMMMM')"}},
]


@pytest.fixture(autouse=True)
def folder(workplace: Path, spark: SparkSession) -> Path:
    """Return a current directory with input, and a Spark that the commands find."""
    (workplace / "in" / "a.jsonl").write_text('{"at": "2026-01-01T00:00:00Z", "k": "a", "n": 1}\n')
    return workplace


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def write(path: Path, **parts: Any) -> None:
    spec = {"name": path.stem, "sources": [SOURCE], "time": {"timestamp_by": "at"}} | parts
    path.write_text(yaml.safe_dump(spec, sort_keys=False, width=1_000))


def window(number: int, key: str, value: Any) -> dict[str, Any]:
    return {"name": f"w{number}", "kind": "tumbling", "size": "1 hour", "aggregates": COUNT} | {key: value}


@pytest.mark.long
def test_every_wrong_expression_of_a_spec_is_named_with_its_line(folder: Path, snapshot: SnapshotAssertion) -> None:
    over = {"name": "day", "from": "good", "kind": "tumbling", "size": "1 day", "aggregates": {"all": "sum(n)"}}
    windows = [window(number, key, value) for number, (key, value) in enumerate(IN_WINDOWS)]
    counted = "count(DISTINCT k COLLATE UTF8_LCASE)"  # depends on no choice
    good = window(99, "name", "good") | {"aggregates": COUNT | {"ks": counted}}
    good |= {"having": "C > 1 AND window_end > window_start"}
    write(folder / "bad.yaml", windows=[*windows, good, over])
    write(folder / "fine.yaml", windows=[good])
    done = call("validate", "bad.yaml", "fine.yaml")
    assert (done.exit_code, done.stdout) == (2, "fine: ok\n")
    lines = (folder / "bad.yaml").read_text().splitlines()
    blocks = [f"  line {block}" for block in done.stderr.split("\n  line ")[1:]]
    assert len(blocks) == len(IN_WINDOWS) + 1
    for number, ((key, _), block) in enumerate(zip(IN_WINDOWS, blocks, strict=False)):
        assert f"windows[{number}].{key}" in block
        line = int(block.split()[1].rstrip(","))
        assert key in "".join(lines[line - 2 : line])  # an item of a list is below its key
    assert done.stderr == snapshot


def test_wrong_keys_hide_no_wrong_expression(folder: Path) -> None:
    windows = [
        window(0, "sizee", "1 hour") | {"aggregates": {"c": "sum(kwhh)"}},
        window(1, "size", "1 bit"),
        window(2, "aggregates", {"c": "summ(n)", "d": "'x'"}),
        window(3, "from", "w1"),
    ]
    source = SOURCE | {"settle": 5, "split": "kk"}
    time = {"timestamp_by": "att", "out_of_order": "maybe", "late": {"tolerance": "1 s"}}
    write(folder / "bad.yaml", sources=[source], time=time, windows=windows, partitions={"start": 1}, nmae="x")
    write(folder / "none.yaml", sources=[SOURCE | {"schema": 1}], time={"timestamp_by": "att"})
    done = call("validate", "bad.yaml", "none.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    lines = (folder / "bad.yaml").read_text().splitlines()
    for place, said, text in [
        ("windows[0].sizee", "unknown key `sizee`", "sizee"),
        ("windows[0].aggregates.c", "names `kwhh`", "kwhh"),
        ("windows[1].size", "1 bit", "1 bit"),
        ("windows[2].aggregates.c", "summ", "summ"),
        ("windows[2].aggregates.d", "`'x'` has the same value in every result", "'x'"),
        ("sources[0].settle", "bare number 5", "settle"),
        ("sources[0].split", "`kk`", "split"),
        ("time.timestamp_by", "`att`", "att"),
        ("time.out_of_order", "maybe", "maybe"),
        ("nmae", "unknown key", "nmae"),
    ]:
        [told] = [line for line in done.stderr.splitlines() if f", {place}: " in line]
        assert said in told
        assert text in lines[int(told.split()[1].rstrip(",")) - 1]
    assert "none.yaml" in done.stderr
    assert "`att`" not in done.stderr.partition("none.yaml")[2], "its columns are not known"


@pytest.mark.parametrize("parts", ELSEWHERE, ids=json.dumps)
def test_a_wrong_expression_outside_windows_is_named_as_well(
    folder: Path, parts: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    rest = {name: part for name, part in parts.items() if name != "source"}
    write(folder / "bad.yaml", sources=[SOURCE | parts.get("source", {})], **rest)
    done = call("validate", "bad.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == snapshot


def test_a_run_says_the_same_and_goes_on_with_the_next_spec(folder: Path) -> None:
    write(folder / "bad.yaml", windows=[window(0, "having", "n > 1")])
    write(folder / "fine.yaml", sources=[SOURCE | {"path": "in/*.none"}])
    done = call("run", "bad.yaml", "fine.yaml")
    assert (done.exit_code, done.stdout) == (2, "fine: nothing new.\n")
    told = call("validate", "bad.yaml").stderr.split("\n", maxsplit=1)[1]
    line = 1 + (folder / "bad.yaml").read_text().splitlines().index("  having: n > 1")
    assert f"bad.yaml, line {line}, windows[0].having: `n > 1` names `n`" in told
    assert f"bad: {told}" in done.stderr
    assert not (folder / "warehouse" / "bad" / "raw_events").exists()
    assert '"logger"' not in done.stderr  # PySpark's own words on what it raises


def test_a_function_that_no_query_can_compute_is_refused_and_the_next_spec_is_checked(folder: Path) -> None:
    write(folder / "bad.yaml", windows=[window(0, "aggregates", {"c": "measure(n)"})])
    write(folder / "fine.yaml", windows=[window(0, "aggregates", {"c": "sum(n)"})])
    done = call("validate", "bad.yaml", "fine.yaml")
    assert (done.exit_code, done.stdout) == (2, "fine: ok\n")
    assert "`measure()` is a function of metric views, which a pipeline does not read" in done.stderr
    assert "write the aggregate itself, such as `sum(n)`" in done.stderr
