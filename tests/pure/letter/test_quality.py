"""Great Expectations: one check after the other, and in a process that Dagster started."""

import subprocess
import sys

import pytest

from tests import ROOT
from tidemark.resources.quality.checks import Expectation, Measured, check

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
    expectation = Expectation("counts", "counts are as expected", "look")
    wrong, right = Measured("rows", 1, 2), Measured("rows", 1, 1)
    found = [check(expectation, [one]) for one in (right, wrong, right)]
    assert [one.broken for one in found] == [(), (wrong,), ()]
