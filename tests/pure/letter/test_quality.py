"""Great Expectations: one check after the other, in a process that Dagster started, and its pages, the Data Docs."""

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from markupsafe import escape

from tests import ROOT
from tidemark.resources.places.place import relative
from tidemark.resources.quality import data_docs
from tidemark.resources.quality.checks import Checked, Expectation, Measured, check
from tidemark.resources.quality.data_docs import FOLDER, docs_folder, failed_checks, forget_pages, write_page

EVEN = Expectation("even", holds="every number is even", remedy="add one")
HOSTILE = '<script>alert("$x ${y}")</script>'
START = datetime(2026, 1, 1, tzinfo=UTC)


def write(pipeline: Path, batch: int, *, found: int = 0, asset: str = "dead_letters", minutes: int = 0) -> Path:
    done = check(EVEN, [Measured("odd numbers", 0, found)], lambda: [{"text": HOSTILE}])
    page = write_page(pipeline, asset, batch, [done], START + timedelta(minutes=minutes))
    assert isinstance(page, Path)
    return page


def pages(pipeline: Path) -> list[str]:
    return sorted(page.stem for page in docs_folder(pipeline).glob("validations/**/*.html"))


def index(pipeline: Path) -> str:
    return (docs_folder(pipeline) / "index.html").read_text()


def test_a_page_tells_what_was_expected_what_was_found_and_what_to_do(tmp_path: Path) -> None:
    page = write(tmp_path / "shop", 7, found=3).read_text()
    for said in ("Expected: every number is even.", "Found odd numbers: 3; expected none", "To do: add one."):
        assert said in page
    for said in ("shop/dead_letters", "batch-7", "Failed"):
        assert said in page
    assert HOSTILE not in page
    assert escape(HOSTILE) in page
    assert "Succeeded" in write(tmp_path / "shop", 8, minutes=1).read_text()


def test_the_pages_need_no_network(tmp_path: Path) -> None:
    page = write(tmp_path / "shop", 7, found=3)
    for file in (page, docs_folder(tmp_path / "shop") / "index.html"):
        text = file.read_text()
        assert "//" not in text.replace(HOSTILE, "")
        assert "default-src 'none'" in text
    [up] = re.findall('href="([^"]*index.html)"', page.read_text())
    assert (page.parent / up).resolve() == docs_folder(tmp_path / "shop") / "index.html"


def test_what_failed_of_an_attempt_can_be_read_back(tmp_path: Path) -> None:
    write(tmp_path, 7, found=3)
    [said] = failed_checks(tmp_path, 7, since=START)
    assert said.startswith("check even: Expected: every number is even. Found odd numbers: 3; expected none")
    assert HOSTILE in said
    assert failed_checks(tmp_path, 7, since=START + timedelta(seconds=1)) == []
    assert failed_checks(tmp_path, 8, since=START) == []


def test_the_index_leads_to_every_page_and_a_batch_that_is_checked_again_has_two(tmp_path: Path) -> None:
    found = [write(tmp_path, 1, found=1), write(tmp_path, 1, minutes=1), write(tmp_path, 2, asset="ordered_events")]
    assert [page for page in found if relative(page, docs_folder(tmp_path)) not in index(tmp_path)] == []
    assert pages(tmp_path) == ["batch-1", "batch-1", "batch-2"]


def test_what_a_killed_process_has_left_half_written_spoils_no_other_page(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2, minutes=1)
    for file in [*(tmp_path / FOLDER).glob("results/**/batch-1.json"), *docs_folder(tmp_path).glob("**/*.html")]:
        file.write_text(file.read_text()[:100])
    assert "even" in write(tmp_path, 3, minutes=2).read_text()
    assert "batch-2" in index(tmp_path)
    assert "batch-3" in index(tmp_path)


def test_the_newest_pages_of_an_asset_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_docs, "KEPT", 2)
    write(tmp_path, 0, asset="ordered_events")
    for batch in range(4):
        write(tmp_path, batch, minutes=batch)
    assert pages(tmp_path) == ["batch-0", "batch-2", "batch-3"]
    assert len(list((tmp_path / FOLDER / "results").glob("**/*.json"))) == 3
    assert "batch-1" not in index(tmp_path)


def test_old_pages_are_forgotten_but_for_the_newest_of_each_asset(tmp_path: Path) -> None:
    assert forget_pages(tmp_path / "no_such", START) == 0
    write(tmp_path, 0, asset="ordered_events")
    for batch in range(3):
        write(tmp_path, batch, minutes=batch)
    assert forget_pages(tmp_path, START + timedelta(minutes=1)) == 1
    assert pages(tmp_path) == ["batch-0", "batch-1", "batch-2"]
    assert forget_pages(tmp_path, START + timedelta(days=1)) == 1
    assert pages(tmp_path) == ["batch-0", "batch-2"]
    assert "batch-1" not in index(tmp_path)


def test_what_measured_nothing_has_no_page(tmp_path: Path) -> None:
    assert write_page(tmp_path, "dead_letters", 1, [Checked(EVEN, ())], START) is None
    assert not (tmp_path / FOLDER).exists()


PROGRAM = """
import sys
assert not hasattr(sys.modules["__main__"], "__file__")
from tidemark.resources.quality.checks import Expectation, Measured, check, import_ahead
AHEAD
even = Expectation("even", holds="it is even", remedy="add one")
done = check(even, [Measured("n", 0, 1)])
assert not hasattr(sys.modules["__main__"], "__file__")
assert check(even, [Measured("n", 0, 0)]).passed
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


def test_checks_that_follow_one_another_look_at_their_own_counts_alone() -> None:
    wrong, right = Measured("rows", 1, 2), Measured("rows", 1, 1)
    found = [check(EVEN, [one]) for one in (right, wrong, right)]
    assert [one.broken for one in found] == [(), (wrong,), ()]
