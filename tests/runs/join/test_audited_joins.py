"""Audits of joins: their rows follow from the events, and a planted fault in them is named."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.runs.batch.test_audits import (
    Damage,
    audited,
    changed,
    numbers_from,
    with_a_row_twice,
    with_column,
    without_row,
)
from tests.runs.join.test_joins import SPEC
from tests.runs.landing import land
from tests.runs.running import FLUSH, go, written
from tidemark.pipelines.runner import RunOptions

DAMAGES: Mapping[str, tuple[Damage, str, str]] = {
    "partners are others": (
        changed("joins/priced", with_column("_right_seq", numbers_from(1))),
        "joins/priced",
        "final rows are lacking, such as event",
    ),
    "an answer is lost": (changed("joins/following", without_row), "joins/following", "1 final row is lacking"),
    "an answer is doubled": (
        changed("joins/nearest", with_a_row_twice),
        "joins/nearest",
        "1 final row is there more than once",
    ),
    "a pair is lost": (changed("joins/near", without_row), "joins/near", "1 final row is lacking"),
    "a pair is another": (
        changed("joins/near", with_column("_left_seq", numbers_from(1))),
        "joins/near",
        "final rows are too many, such as event",
    ),
}


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a pipeline with joins of each kind, after three batches and a flush."""
    base = tmp_path_factory.mktemp("joined")
    made = written(base, "meter", SPEC.replace("name: joining", "name: meter"))
    land(base / "asks", 250, seed=3)
    land(base / "bids", 250, seed=4)
    go(made, options=RunOptions(max_events_per_batch=180))
    go(made, options=FLUSH)
    return base


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "partners are others" else pytest.mark.long) for name in DAMAGES]
)
def test_an_audit_names_rows_of_a_join_that_do_not_follow_from_the_events(
    kept: Path, tmp_path: Path, name: str
) -> None:
    base, (damage, table, words) = tmp_path / "copy", DAMAGES[name]
    shutil.copytree(kept, base)
    assert audited(base) == []
    damage(base)
    found = audited(base)
    assert {finding["table"] for finding in found} == {table}, found
    assert any(words in finding["what"] for finding in found), found
    assert {finding["repair"] for finding in found} == {f"tidemark rebuild {base / 'meter.yaml'}"}
