"""`tidemark test`: verdicts, what is shown of a difference, exit codes, and cuts at every record."""

import random
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import SparkSession

from tests import ROOT
from tidemark.pipelines.case_tests.suite import judge, read_cases
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec

SPEC = """
name: shop
sources:
  - {name: tills, kind: files, path: "in/*.json", format: json, schema: "at STRING, amount INT, till STRING"}
time: {timestamp_by: at, out_of_orderness: 10 seconds}
windows:
  - {name: by_minute, kind: tumbling, size: 1 minute, group_by: [till], aggregates: {n: count(*), total: sum(amount)}}
"""
CASES = """
cases:
  - name: a late sale is dropped
    steps:
      - records: [{at: "2026-01-01T12:00:50Z", amount: 5, till: a}, {at: "2026-01-01T12:01:10Z", amount: 7, till: a}]
        expect:
          watermark: 2026-01-01T12:01:00Z
          windows/by_minute: [{window_start: 2026-01-01T12:00:00Z, till: a, n: 1, total: 5}]
      - records: [{at: "2026-01-01T12:00:59Z", amount: 1, till: b}]
        expect: {dead_letters: [{_arrival_seq: 2, reason: out_of_order, lateness_us: 1000000}]}
  - name: wrong throughout
    records: [{at: "2026-01-01T12:00:50Z", amount: 5, till: a}, {at: "2026-01-01T12:01:10Z", amount: 7, till: null}]
    end_of_input: flush
    expect:
      watermark: 2026-01-01T12:01:00Z
      windows/by_minute: [{till: a, n: 1, total: 6}, {till: null}, {till: c}]
      ordered_events: [{amount: 7}, {amount: 5}]
      dead_letters: []
  - {name: known to fail, records: [], expect: {dead_letters: [{reason: early}]}, error: 1 missing}
  - {name: should fail, records: [], expect: {dead_letters: []}, error: 1 missing}
  - {name: fails otherwise, records: [], expect: {watermark: final}, error: 1 missing}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a current directory with a spec."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.yaml").write_text(SPEC)
    return tmp_path


def call(*words: str, cases: str) -> Result:
    Path("cases.yaml").write_text(cases)
    return CliRunner().invoke(main, ["test", "shop.yaml", "cases.yaml", *words], catch_exceptions=False)


def test_cases_that_fail_are_shown_row_by_row_and_exit_with_1(spark: SparkSession, folder: Path) -> None:
    done = call(cases=CASES)
    assert done.exit_code == 1
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip()]
    assert lines[:3] == ["shop: cases.yaml", "ok a late sale is dropped", "FAIL wrong throughout"]
    assert "in the end, watermark: expected 2026-01-01T12:01:00Z, found final" in lines
    told = lines.index("in the end, windows/by_minute: expected 3 rows, found 2: 1 differs, 1 missing")
    assert lines[told + 1] == "till n total"
    assert lines[told + 3 : told + 6] == ["- expected a 1 6", "+ found a 1 ≠ 5", "- expected c"]
    order = "in the end, ordered_events: the rows are as expected, their order is not; found in this order"
    assert lines[lines.index(order) + 3 : lines.index(order) + 5] == ["+ found 5", "+ found 7"]
    assert "ok known to fail, and fails as it must" in lines
    assert "it must fail with «1 missing»; nothing differs" in lines
    assert "it must fail with «1 missing»; what is said is this" in lines
    assert "in the end, watermark: expected final, found none" in lines
    assert lines[-1] == "2 of 5 hold, 3 FAIL"
    assert sorted(path.name for path in folder.iterdir()) == ["cases.yaml", "shop.yaml"], "nothing was written"


@pytest.mark.long
def test_a_record_says_its_file_where_the_time_of_arrival_stands_in_the_name(
    spark: SparkSession, folder: Path
) -> None:
    arrival = "arrival_time: \"concat(regexp_extract(_file, '^([0-9-]+)/', 1), 'T00:00:00Z')\""
    (folder / "shop.yaml").write_text(SPEC.replace("format: json,", f"format: json, {arrival},"))
    cases = """
cases:
  - name: a day in the path
    records: [{_file: 2026-01-02/x.json, at: "2026-01-01T12:00:50Z", amount: 5, till: a}, {_file: x.json, amount: 7}]
    expect: {dead_letters: [{reason: no_arrival_time}]}
"""
    assert call(cases=cases).exit_code == 0
    (folder / "shop.yaml").write_text(SPEC)
    done = call(cases=cases)
    assert done.exit_code == 2
    assert "`_file` has no effect: the source's arrival_time does not name it" in done.stderr


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("records: [{at: x, amount: many}], expect: {watermark: none}", 'records[0].amount: found "many"'),
        ("records: [{at: 12:00}], expect: {watermark: none}", "put the value in quotes"),
        ("records: [{at: x, amount: 010}], expect: {watermark: none}", "records[0].amount: found `010`, which YAML"),
        (
            "records: [{at: x, tags: [1_000, 010]}], expect: {watermark: none}",
            "records[0].tags[1]: found `010`, which",
        ),
        (
            "records: [{at: x, place: {city: no}}], expect: {watermark: none}",
            "records[0].place.city: found `no`, which",
        ),
        ("records: [], expect: {dead_letters: [{reson: early}]}", "did you mean `reason`?"),
        ("records: [], expect: {windows/by_minute: [{n: many}]}", 'expect["windows/by_minute"][0].n: found "many"'),
        ("records: [], expect: {windows/by_hour: []}", "the spec has no `windows/by_hour`"),
    ],
)
def test_a_bad_file_of_cases_is_told_with_its_place_and_exits_with_2(
    spark: SparkSession, case: str, said: str
) -> None:
    Path("shop.yaml").write_text(
        SPEC.replace("till STRING", "till STRING, tags ARRAY<INT>, place STRUCT<city: STRING>")
    )
    done = call(cases=f"cases:\n  - {{name: c, {case}}}\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "cases.yaml, line 2, cases[0]." in done.stderr
    assert said in done.stderr


def test_a_bad_spec_and_a_missing_file_exit_with_2(spark: SparkSession) -> None:
    good = "cases:\n  - {name: c, records: [], expect: {watermark: none}}\n"
    assert call("--set", "time.unit=hour", cases=good).exit_code == 2
    wrong = call("--set", "time.timestamp_by=att", cases=good)
    assert wrong.exit_code == 2
    assert "att" in wrong.stderr
    missing = CliRunner().invoke(main, ["test", "shop.yaml", "none.yaml"])
    assert missing.exit_code == 2
    assert "none.yaml: the file of cases cannot be read" in missing.stderr
    second = CliRunner().invoke(main, ["test", "shop.yaml", "cases.yaml", "none.yaml"])
    assert (second.exit_code, second.stdout) == (2, "")


@pytest.mark.long
def test_a_case_on_which_spark_fails_is_found_among_the_others(spark: SparkSession) -> None:
    """Sketches of different sizes have no union: no single record is at fault."""
    [sizes] = spark.sql("SELECT hex(hll_sketch_agg(1, 8)) AS small, hex(hll_sketch_agg(1, 12)) AS large").collect()
    sketch = f"IF(amount < 0, X'{sizes['small']}', X'{sizes['large']}')"
    aggregate = f"windows[0].aggregates.bad=hll_sketch_estimate(hll_union_agg({sketch}))"
    cases = """
cases:
  - {name: fine, records: [{at: "2026-01-01", amount: 1}], end_of_input: flush, expect: {dead_letters: []}}
  - {name: bad, records: [{at: "2026-01-01", amount: -1}, {at: "2026-01-01", amount: 1}], end_of_input: flush,
     expect: {dead_letters: []}}
"""
    done = call("--set", aggregate, cases=cases)
    assert done.exit_code == 1
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[1:3] == [["ok", "fine"], ["FAIL", "bad"]], done.stderr
    assert "HLL_UNION_DIFFERENT_LG_K" in done.stdout
    assert "1 of 2 hold, 1 FAIL" in done.stdout


@pytest.mark.long
def test_the_cases_of_the_page_hold_for_the_spec_of_the_readme(spark: SparkSession) -> None:
    [spec] = re.findall(r"^```yaml\n(name:.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    page = (ROOT / "docs" / "how-to" / "test-a-spec.md").read_text()
    [cases] = re.findall(r"^```yaml\n(cases:.*?)^```$", page, re.MULTILINE | re.DOTALL)
    Path("shop.yaml").write_text(spec)
    done = call(cases=cases)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "2 of 2 hold")


SETTINGS = {
    "periods": [
        "time.out_of_order=adjust",
        "time.emit={every: 5 s}",
        "windows[0].kind=hopping",
        "windows[0].hop=7 s",
    ],
    "clock": [
        "time.out_of_order=keep",
        "time.late={tolerance: 9 s, policy: adjust}",
        "time.over=[till]",
        "time.idle={advance: arrival_clock}",
        "windows[0].size=10 s",
        "windows[0].allowed_lateness=3 s",
    ],
    "silence": [
        "time.emit={every: 4 s}",
        "time.idle={advance: window_close, timeout: 3 s}",
        "windows[0].size=10 s",
    ],
}


@pytest.mark.long
@pytest.mark.parametrize("mode", SETTINGS)
def test_a_log_that_is_cut_at_every_record_gives_what_the_whole_gives(spark: SparkSession, mode: str) -> None:
    rng = random.Random(7)
    lines, clock = [], 0
    for _ in range(14):
        clock += rng.choice([0, 1, 2, 9])
        at = max(clock + rng.randint(-12, 3), 0)
        lines.append(
            f'      - {{at: "2026-01-01T12:0{at // 60}:{at % 60:02}Z", amount: {rng.randint(0, 9)}, '
            f"till: {rng.choice('ab')}, _arrival_time: 2026-01-01T12:0{clock // 60}:{clock % 60:02}Z}}"
        )
    Path("cases.yaml").write_text(
        "cases:\n"
        + "".join(
            f"  - name: {end}\n    end_of_input: {end}\n    expect: {{watermark: final}}\n    records:\n"
            + "\n".join(lines)
            + "\n"
            for end in ("flush", "hold")
        )
    )
    spec = read_spec(Path("shop.yaml"), SETTINGS[mode])
    flushed, held = judge(spec, read_cases(spec.spec, Path("cases.yaml")), spark)
    assert (flushed.findings, flushed.holds) == ("", True)
    assert (held.cuts, held.holds) == ((), False)


SILENT = """
name: shop
sources:
  - {name: tills, kind: files, path: "in/*.json", format: json, schema: "at STRING"}
time: {timestamp_by: at, idle: {advance: window_close, timeout: 1 minute}}
windows:
  - {name: w, kind: tumbling, size: 5 minutes, aggregates: {n: count(*)}, emit: {early: 2 minutes}}
"""
TICKS = """
cases:
  - name: a tick at the instant of the timeout closes a silent window, and the clock goes on from it
    steps:
      - records:
          - {at: "2026-01-01T12:01:00Z", _arrival_time: 2026-01-01T12:01:00Z}
          - {at: "2026-01-01T12:02:00Z", _arrival_time: 2026-01-01T12:02:00Z}
        expect: {windows/w: [{n: 1, _revision: 0, _is_final: false}]}
      - tick: 2026-01-01T12:05:59Z
        expect: {watermark: 2026-01-01T12:02:00Z, windows/w: [{n: 2, _revision: 1, _is_final: false}]}
      - tick: 2026-01-01T12:06:00Z
        expect:
          watermark: 2026-01-01T12:05:00Z
          windows/w: [{n: 2, _is_final: true, _watermark: 2026-01-01T12:05:00Z}]
      - records: [{at: "2026-01-01T12:03:00Z", _arrival_time: 2026-01-01T12:05:50Z}]
        expect: {dead_letters: [{_arrival_seq: 2, reason: out_of_order, _watermark: 2026-01-01T12:05:00Z}]}
      - tick: 2026-01-01T12:30:00Z
        end_of_input: flush
        expect: {watermark: final}
"""


@pytest.mark.long
def test_ticks_of_a_case_stand_behind_the_records_of_their_steps(spark: SparkSession, folder: Path) -> None:
    (folder / "shop.yaml").write_text(SILENT)
    done = call(cases=TICKS)
    assert done.exit_code == 0, done.output
    (folder / "shop.yaml").write_text(SPEC)
    done = call(cases="cases: [{name: c, steps: [{tick: 2026-01-01T12:00:00Z, expect: {watermark: none}}]}]")
    assert done.exit_code == 2
    assert "`tick` has no effect" in done.stderr


@pytest.mark.long
def test_revisions_of_a_group_that_is_no_number_replace_each_other(spark: SparkSession, folder: Path) -> None:
    spec = SPEC.replace("till STRING", "till DOUBLE").replace(
        "out_of_orderness", "out_of_order: keep, out_of_orderness"
    )
    (folder / "shop.yaml").write_text(spec.replace("kind: tumbling,", "kind: tumbling, emit: {early: 1 s},"))
    done = call(
        cases="""
cases:
  - name: a sum that grows
    records:
      - {at: "2026-01-01T12:00:01Z", amount: 5, till: .nan, _arrival_time: "2026-01-01T12:00:01Z"}
      - {at: "2026-01-01T12:00:05Z", amount: 7, till: .nan, _arrival_time: "2026-01-01T12:00:05Z"}
      - {at: "2026-01-01T12:01:30Z", amount: 1, till: 1.0, _arrival_time: "2026-01-01T12:01:30Z"}
    end_of_input: flush
    expect:
      windows/by_minute: [{till: .nan, n: 2, total: 12, _is_final: true}, {till: 1.0, n: 1, _is_final: true}]
"""
    )
    assert done.exit_code == 0, done.output
