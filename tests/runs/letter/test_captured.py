"""A stretch of a log as a case: `tidemark test` finds that it holds, whatever was replaced in it."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import tidemark as tm
from tests.runs.landing import LINES, land
from tests.runs.letter.test_explained import KEEP
from tests.runs.running import Made, go, written
from tidemark.pipelines.case_tests.capture import Captured
from tidemark.pipelines.cli import main
from tidemark.timeops.cases import parse_cases
from tidemark.timeops.errors import SpecError


def captured(made: Made, first: int, last: int, *redact: str) -> Captured:
    return tm.capture(made[0].path, first, last, redact=redact, warehouse=str(made[1].warehouse))


@pytest.mark.long
def test_a_captured_stretch_holds_at_once_and_says_where_the_pipeline_differed(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, _ = made = written(tmp_path, "shop", f"name: shop\n{LINES}{KEEP}")
    land(tmp_path / "in", 90, seed=7)
    go(made)
    whole, part = captured(made, 0, 89), captured(made, 60, 89, "k")
    assert whole.differing == ()
    assert "record 60" in part.text
    assert len(part.left_out) == 30 - part.records
    names = []
    for number, one in enumerate((whole, part)):
        names.append(tmp_path / f"{number}.cases.yaml")
        names[-1].write_text(one.text)
    done = CliRunner().invoke(main, ["test", str(file.path), *map(str, names)], catch_exceptions=False)
    assert (done.exit_code, done.stdout.count("1 of 1 hold")) == (0, 2), done.output
    [case] = parse_cases(part.text, file.spec, file="part").cases
    groups = [record.get("k") for record in case.records or ()]
    assert {group for group in groups if group} <= {f"k_{number}" for number in range(1, 10)}
    [same] = parse_cases(captured(made, 60, 89).text, file.spec, file="part").cases
    pairs = {(record.get("k"), group) for record, group in zip(same.records or (), groups, strict=True)}
    assert len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs}), "groups stay groups"
    assert "id" not in (case.records or ({},))[0], "no expression names it"


@pytest.mark.long
def test_what_cannot_be_captured_is_said(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "shop", f"name: shop\n{LINES}{KEEP}")
    land(tmp_path / "in", 20, seed=7)
    go(made)
    for first, last, redact, said in (
        (5, 20, (), "has no such stretch"),
        (5, 4, (), "has no such stretch"),
        (0, 3, ("kk",), "did you mean `k`?"),
        (0, 3, ("at",), "times are computed from this column"),
    ):
        with pytest.raises(SpecError, match=said.replace("?", r"\?")):
            captured(made, first, last, *redact)
