"""Ordinary mistakes in a spec, by the commands that meet them: exit status 2, file, line, key, what was meant."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

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

# The value of `key` of a window of its own, and what is said of it.
IN_WINDOWS: list[tuple[str, Any, str]] = [
    ("where", "nn > 1", "`nn > 1` names `nn`, which is no column here"),
    ("where", "n", "`n` has the type BIGINT, which is neither true nor false"),
    ("where", "k", "compare it, such as `k = 'a'`"),
    ("where", "n > 1, k = 'a'", "put AND or OR between several conditions"),
    ("where", "count(*) > 1", "is an aggregate, and this expression is computed row by row"),
    ("where", "c > 1", "`c` is a result: filter results with `having`"),
    ("where", "n >", "`n >` is no expression: it ends too soon"),
    ("where", "n = = 1", "it cannot be read from `=` on"),
    ("where", "n > 1;", "it cannot be read from `;` on"),
    ("where", "contain(k, 'a')", "did you mean `contains`?"),
    ("where", "contains(k)", "`contains(k)` calls `contains()` with 1 argument(s)"),
    ("where", "tags > 1", "`(tags > 1)` puts ARRAY<STRING> and INT together"),
    ("where", "s.b > 1", "`s.b > 1` names the field `b`, which its column does not have"),
    ("where", "k.b > 1", "`k.b > 1` takes a part of `k`, which is STRING"),
    ("where", "_position > 1", "names `_position`, which is no column here"),
    ("where", "__tm_timestamp > 1", "names `__tm_timestamp`, which is no column here"),
    ("where", "x -> x", "Spark cannot compute `x -> x`"),
    ("group_by", ["kk"], "`kk` is no column here"),
    ("group_by", ["max(n) AS g"], "is an aggregate, and"),
    ("group_by", ["null AS g"], "`null` has the type VOID, which no table can hold"),
    ("aggregates", {"c": "n"}, "`n` is no aggregate: a window holds many values of it"),
    ("aggregates", {"c": "sum(nn)"}, "`sum(nn)` names `nn`, which is no column here"),
    ("aggregates", {"c": "sum n"}, "`sum n` ends in a word that only names it"),
    ("aggregates", {"c": "summ(n)"}, "did you mean `sum`?"),
    ("aggregates", {"c": "sum(tags)"}, "`sum(tags)`: `tags` is ARRAY<STRING>"),
    ("aggregates", {"c": "sum(n, x)"}, "`sum(n, x)` calls `sum()` with 2 argument(s)"),
    ("aggregates", {"c": "sum(count(*))"}, "has an aggregate inside an aggregate"),
    ("aggregates", {"c": "sum(n) + x"}, "takes `x` outside an aggregate"),
    ("aggregates", {"c": "percentile(x, 50)"}, "The percentage must be between"),
    (
        "aggregates",
        {"c": "max(_timestamp) - min(_timestamp)"},
        "has the type INTERVAL DAY TO SECOND, which no table can hold",
    ),
    ("aggregates", {"c": "max(k COLLATE UTF8_LCASE)"}, "of texts that it takes for equal, the order of rows decides"),
    ("aggregates", {"c": "length(mode(collate(k, 'UNICODE_CI'), true))"}, "write `lower(x)`"),
    ("group_by", ["k COLLATE UTF8_BINARY_RTRIM AS g"], "write `lower(x)` or `rtrim(x)`"),
    ("where", "date_format(_timestamp, 'YYYY') = '2026'", "fails on every record: Spark has no such pattern"),
    ("group_by", ["regexp_replace(k, '[', '') AS g"], "fails on every record: The value of parameter(s) `regexp`"),
    ("aggregates", {"c": "1 + max(format_string('%d', k))"}, "IllegalFormatConversionException: d != "),
    ("aggregates", {"c": "date_format(max(_timestamp), 'qqqqqqq')"}, "Unrecognized datetime pattern: qqqqq"),
    ("aggregates", {"c": "max(size(sequence(1L, 2000000000L)))"}, "would make more than 1000000 items"),
    ("having", "element_at(array(c), 0) > 1", "fails on every record: The index 0 is invalid"),
    ("having", "n > 1", "`n` is a column of the events: filter events with `where`"),
    ("having", "totl > 1", "did you mean `total`?"),
    ("having", "c", "compare it, such as `c > 0`"),
    ("having", "count(*) > 1", "write it among `aggregates`, and its name here"),
    ("having", "_revision > 1", "names `_revision`, which is no column here"),
]
# The value of other keys of a spec, and what is said of it.
ELSEWHERE: list[tuple[str, dict[str, Any], str]] = [
    ("sources[0].arrival_time", {"source": {"arrival_time": "gott"}}, "`gott` is no column here"),
    ("sources[0].arrival_time", {"source": {"arrival_time": "min(at)"}}, "is an aggregate, and"),
    ("sources[0].split", {"source": {"split": "max(k)"}}, "is an aggregate, and"),
    ("sources[0].split", {"source": {"split": "k k k"}}, "it cannot be read from `k` on"),
    ("sources[0].schema", {"source": {"schema": "at STRING, n BIGNT"}}, 'Unsupported data type "BIGNT"'),
    ("sources[0].schema", {"source": {"schema": "at STRING, n INTERVAL"}}, "is INTERVAL, which no table can hold"),
    ("time.timestamp_by", {"time": {"timestamp_by": "att"}}, "did you mean `at`?"),
    ("time.timestamp_by", {"time": {"timestamp_by": "n"}}, "timestamp_millis(n)"),
    ("time.timestamp_by", {"time": {"timestamp_by": "max(at)"}}, "is an aggregate, and"),
    ("time.timestamp_by", {"time": {"timestamp_by": "timestamp_millis(k)"}}, "`k` is STRING"),
    (
        "sources[0].schema",
        {"source": {"schema": "at STRING, n STRING COLLATE UTF8_LCASE"}},
        "which no table can hold",
    ),
    ("time.over[0]", {"time": {"timestamp_by": "at", "over": ["k COLLATE UNICODE"]}}, "the order of rows decides"),
    (
        "time.deduplicate_by[0]",
        {"time": {"deduplicate_by": ["k COLLATE UNICODE"], "within": "1 h"}},
        "the order of rows",
    ),
    ("sources[0].arrival_time", {"source": {"arrival_time": "to_timestamp(at, 'YYYY-ww')"}}, "fails on every record"),
    (
        "time.timestamp_by",
        {"time": {"timestamp_by": "timestamp_millis(element_at(array(n), 0))"}},
        "The index 0 is invalid",
    ),
    ("time.over[0]", {"time": {"timestamp_by": "at", "over": ["kk"]}}, "`kk` is no column here"),
    ("time.deduplicate_by[0]", {"time": {"deduplicate_by": ["idd"], "within": "1 h"}}, "`idd` is no column here"),
    ("time.deduplicate_by[0]", {"time": {"deduplicate_by": ["s"], "within": "1 h"}}, "which has no plain text"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    """Return a current directory with input, and a Spark that the commands find."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"at": "2026-01-01T00:00:00Z", "k": "a", "n": 1}\n')
    return tmp_path


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


def write(path: Path, **parts: Any) -> None:
    spec = {"name": path.stem, "sources": [SOURCE], "time": {"timestamp_by": "at"}} | parts
    path.write_text(yaml.safe_dump(spec, sort_keys=False, width=1_000))


def window(number: int, key: str, value: Any) -> dict[str, Any]:
    return {"name": f"w{number}", "kind": "tumbling", "size": "1 hour", "aggregates": COUNT} | {key: value}


@pytest.mark.long
def test_every_wrong_expression_of_a_spec_is_named_with_its_line(folder: Path) -> None:
    over = {"name": "day", "from": "good", "kind": "tumbling", "size": "1 day", "aggregates": {"all": "sum(n)"}}
    windows = [window(number, key, value) for number, (key, value, _) in enumerate(IN_WINDOWS)]
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
    for number, ((key, _, said), block) in enumerate(zip(IN_WINDOWS, blocks, strict=False)):
        assert f"windows[{number}].{key}" in block
        assert said in block
        assert "Expected: " in block
        line = int(block.split()[1].rstrip(","))
        assert key in "".join(lines[line - 2 : line])  # an item of a list is below its key
    assert f"windows[{len(IN_WINDOWS) + 1}].aggregates.all: `sum(n)` names `n`, which is no column here" in blocks[-1]
    assert "Expected: one of window_start, window_end, c, total, ks, _timeline, _timestamp" in blocks[-1]


@pytest.mark.parametrize(("key", "parts", "said"), ELSEWHERE)
def test_a_wrong_expression_outside_windows_is_named_as_well(
    folder: Path, key: str, parts: dict[str, Any], said: str
) -> None:
    rest = {name: part for name, part in parts.items() if name != "source"}
    write(folder / "bad.yaml", sources=[SOURCE | parts.get("source", {})], **rest)
    done = call("validate", "bad.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "bad.yaml, line " in done.stderr
    assert f"{key}: " in done.stderr
    assert said in done.stderr


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
