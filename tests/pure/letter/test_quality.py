"""Great Expectations: one check after the other, in a process that Dagster started; what stays of failed checks."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests import ROOT
from tidemark.resources.quality import failures
from tidemark.resources.quality.checks import Counted, Expectation, Measured, validated
from tidemark.resources.quality.failures import (
    FOLDER,
    FailedCheck,
    failed_checks,
    failed_results,
    forget_failures,
    write_failures,
)

EVEN = Expectation("even", holds="every number is even", remedy="add one")
HOSTILE = '<script>alert("$x ${y}")</script>'
START = datetime(2026, 1, 1, tzinfo=UTC)


def write(pipeline: Path, batch: int, *, lost: int = 1, asset: str = "dead_letters", minutes: int = 0) -> None:
    counted = Counted(EVEN, [Measured("odd numbers", 0, lost)], lambda: [{"text": HOSTILE}])
    write_failures(pipeline, asset, batch, validated([counted]), START + timedelta(minutes=minutes))


def batches(pipeline: Path) -> list[str]:
    return sorted(file.stem for file in (pipeline / FOLDER).glob("**/*.json"))


def test_what_failed_of_an_attempt_can_be_read_back(tmp_path: Path) -> None:
    write(tmp_path, 7, lost=3)
    [sentence] = failed_checks(tmp_path, 7, since=START)
    assert sentence.startswith("check even: Expected: every number is even. Found odd numbers: 3; expected none")
    assert HOSTILE in sentence
    assert failed_checks(tmp_path, 7, since=START + timedelta(seconds=1)) == []
    assert failed_checks(tmp_path, 8, since=START) == []


def test_checks_that_pass_leave_no_file(tmp_path: Path) -> None:
    write(tmp_path, 1, lost=0)
    assert not (tmp_path / FOLDER).exists()


def test_what_an_earlier_version_wrote_of_a_batch_is_read(tmp_path: Path) -> None:
    """Great Expectations wrote the result of each check, with more keys."""
    passed = {"success": True, "expectation_config": {"description": "odd: all is well", "meta": {"level": "error"}}}
    failed = {"success": False, "expectation_config": {"description": "even: 3 are odd", "meta": {"level": "warn"}}}
    run = {"run_id": {"run_name": "batch-7", "run_time": START.isoformat()}, "great_expectations_version": "1.24.1"}
    file = tmp_path / FOLDER / "results/shop/dead_letters/batch-7/20260101T000000.000000Z/batch-7.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"meta": run, "results": [passed, failed], "success": False}))
    assert failed_results(tmp_path, 7, since=START) == [FailedCheck("even", "warn", "even: 3 are odd")]


def test_what_a_killed_process_has_left_half_written_spoils_no_other_result(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2, minutes=1)
    [file] = (tmp_path / FOLDER).glob("results/**/batch-1.json")
    file.write_text(file.read_text()[:100])
    write(tmp_path, 3, minutes=2)
    assert [len(failed_checks(tmp_path, batch, since=START)) for batch in (1, 2, 3)] == [0, 1, 1]


def test_the_newest_failures_of_an_asset_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "KEPT_FILES", 2)
    write(tmp_path, 0, asset="ordered_events")
    for batch in range(4):
        write(tmp_path, batch, minutes=batch)
    assert batches(tmp_path) == ["batch-0", "batch-2", "batch-3"]


def test_old_failures_are_forgotten_but_for_the_newest_of_each_asset_and_so_are_pages_of_earlier_versions(
    tmp_path: Path,
) -> None:
    assert forget_failures(tmp_path / "no_such", START) == 0
    write(tmp_path, 0, asset="ordered_events")
    page = tmp_path / FOLDER / "data_docs" / "index.html"
    page.parent.mkdir()
    page.write_text("a page")
    for batch in range(3):
        write(tmp_path, batch, minutes=batch)
    assert forget_failures(tmp_path, START + timedelta(minutes=1)) == 1
    assert batches(tmp_path) == ["batch-0", "batch-1", "batch-2"]
    assert forget_failures(tmp_path, START + timedelta(days=1)) == 1
    assert batches(tmp_path) == ["batch-0", "batch-2"]
    assert not page.parent.exists()


PROGRAM = """
import sys
assert not hasattr(sys.modules["__main__"], "__file__")
from tidemark.resources.quality.checks import Counted, Expectation, Measured, import_ahead, validated
AHEAD
even = Expectation("even", holds="it is even", remedy="add one")
[done] = validated([Counted(even, [Measured("n", 0, 1)])])
assert not hasattr(sys.modules["__main__"], "__file__")
assert validated([Counted(even, [Measured("n", 0, 0)])])[0].passed
assert not {"altair", "scipy.stats"} & set(sys.modules)
from great_expectations.expectations.core import expect_column_kl_divergence_to_be_less_than as of_others
assert of_others.stats.entropy([0.5, 0.5]) > 0
import altair, scipy.stats
assert scipy.stats.entropy is of_others.stats.entropy
assert altair.Chart is of_others.alt.Chart
print(done.message)
"""


@pytest.mark.parametrize("ahead", ["import_ahead()", pytest.param("", marks=pytest.mark.long)], ids=["ahead", "then"])
def test_a_check_runs_where_the_main_module_is_no_file_and_imports_nothing_that_expectations_of_others_need(
    ahead: str,
) -> None:
    """As in the processes that Dagster's code server starts for runs, which import the library beside other work."""
    code = [sys.executable, "-c", PROGRAM.replace("AHEAD", ahead)]
    done = subprocess.run(code, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Expected: it is even")


def test_what_dagster_needs_of_sqlalchemy_is_whole_before_the_import_in_a_thread_begins() -> None:
    """As a run failed with `partially initialized module`: both threads had come to `sqlalchemy.orm` at once."""
    program = """
import sys, threading
from tidemark.resources.quality.checks import import_ahead
assert "sqlalchemy.orm" not in sys.modules
threading.Thread.start = lambda thread: print(thread.name, "sqlalchemy.orm" in sys.modules)
import_ahead()
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stdout == "import of great_expectations True\n", done.stderr


def test_checks_look_at_their_own_counts_alone_one_after_the_other_and_all_at_once() -> None:
    wrong, right = Measured("rows", 1, 2), Measured("rows", 1, 1)
    odd = Expectation("odd", holds="every number is odd", remedy="add one")
    for counts in ((right, wrong), (wrong, right), (right, right), (wrong, wrong)):
        counted = [
            Counted(EVEN, [counts[0]], note="a note"),
            Counted(odd, [counts[1]], lambda: [{"n": 2}]),
            Counted(odd),
        ]
        even, one, empty = validated(counted)
        assert (even.broken, one.broken, empty.broken) == (*[(n,) if n is wrong else () for n in counts], ())
        assert even.note == "a note"
        assert one.sample == (({"n": 2},) if counts[1] is wrong else ())
    assert validated([]) == []
