"""The examples, which are the worked tables of the source texts as specs and cases, by the command they name."""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests import ROOT
from tidemark.pipelines.cli import main

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


def name_of(words: list[str]) -> str:
    return Path(words[2]).name.removesuffix(CASES)


SOON = (
    "azure_tolerances.devices",  # adjusted, with timelines of their own
    "hitachi_order.second",  # dropped
    "mongodb_windows",  # kept
)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, id=name_of(words), marks=[] if name_of(words) in SOON else [pytest.mark.long])
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
