"""The examples, which are the worked tables of the source texts as specs and cases.

The product runs them by the command that an example names; the oracle plays the same files.
"""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests import ROOT
from tests.tables.transcripts import judged_by_the_oracle
from tidemark.pipelines.case_tests.suite import Verdict, read_cases
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec

CASES = ".cases.yaml"
COMMAND = re.compile(r"^#   (tidemark test .*(?:(?<=\\)\n#     .*)*)$", re.MULTILINE)


def commands_of(spec: Path) -> list[list[str]]:
    """Return the commands that an example names; of one without it is the spec with the cases beside it."""
    written = [re.sub(r"\\\n#", " ", command) for command in COMMAND.findall(spec.read_text())]
    return [shlex.split(command)[1:] for command in written] or [
        ["test", f"examples/{spec.name}", f"examples/{spec.stem}{CASES}"]
    ]


SPECS = sorted(path for path in (ROOT / "examples").glob("*.yaml") if not path.name.endswith(CASES))
COMMANDS = [words for spec in SPECS for words in commands_of(spec)]


def example(words: list[str]) -> str:
    return Path(words[2]).name.removesuffix(CASES)


@pytest.mark.parametrize("words", COMMANDS, ids=example)
def test_the_oracle_says_of_an_example_what_it_expects(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(ROOT)
    spec = read_spec(Path(words[1]), [words[place + 1] for place, word in enumerate(words) if word == "--set"]).spec
    for case in read_cases(spec, Path(words[2])).cases:
        verdict = Verdict(case, tuple(judged_by_the_oracle(spec, case)))
        assert verdict.holds, f"{case.name}: {verdict.findings}"


SOON = "mongodb_windows"


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=example(words), marks=[] if example(words) == SOON else [pytest.mark.long])
        for words in COMMANDS
    ],
)
def test_an_example_holds(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    monkeypatch.chdir(ROOT)
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.stdout
    assert re.search(r"^(\d+) of \1 hold$", done.stdout, re.MULTILINE)


def test_every_file_of_cases_is_run_by_a_command() -> None:
    assert sorted(words[2] for words in COMMANDS) == sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / "examples").glob(f"*{CASES}")
    )
