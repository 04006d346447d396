"""Audits of joins: their rows follow from the events, and a planted fault in them is named."""

import shutil
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
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
from tests.runs.join import test_tables
from tests.runs.join.test_joins import SPEC
from tests.runs.landing import land
from tests.runs.running import FLUSH, go, written
from tidemark.pipelines.running.runner import RunOptions

pytestmark = pytest.mark.long

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
    "a value of the left side is another": (
        changed("joins/priced", with_column("v", numbers_from(1))),
        "joins/priced",
        "is not the one of the record in `raw_events`",
    ),
    "a value of the right side is another": (
        changed("joins/near", with_column("right_v", numbers_from(1))),
        "joins/near",
        "is not the one of the record in `raw_events`",
    ),
    "a time is another": (
        changed("joins/priced", with_column("_timestamp", lambda times: [min(times) for _ in times])),
        "joins/priced",
        "final rows are too many, such as event",
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


@pytest.mark.parametrize("name", DAMAGES)
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


def with_rate(before: str, now: str) -> Damage:
    """Change answers with a rate."""
    rates = (Decimal(before), Decimal(now))
    column = with_column("rate", lambda values: [rates[1] if value == rates[0] else value for value in values])
    return changed("joins/valued", column)


def without_rate(rate: str) -> Damage:
    """Take the answers with a rate away."""

    def without(rows: pa.Table) -> pa.Table:
        is_another = pc.not_equal(rows["rate"], pa.scalar(Decimal(rate), rows["rate"].type))
        return rows.filter(pc.fill_null(is_another, True))

    return changed("joins/valued", without)


OF_TABLES: Mapping[str, tuple[Damage, str]] = {
    "a rate of an earlier version": (with_rate("3.00", "2.00"), "not what its table says, such as event 3 with"),
    "no rate": (with_rate("1.00", "7.00"), "not what its table says, such as event 0 with"),
    "a lost answer": (without_rate("5.00"), "1 final row is lacking, such as event 4 with no event"),
    "a doubled answer": (changed("joins/valued", with_a_row_twice), "1 final row is there more than once"),
}


@pytest.mark.parametrize("how", ["inner", "left"])
def test_an_audit_names_answers_that_no_version_of_the_table_since_the_event_gives(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    base = tmp_path / "made"
    base.mkdir()
    spec = test_tables.SPEC.format(path="rates.csv").replace("name: valued", "name: meter", 1)
    made = written(base, "meter", spec.replace("how: left", f"how: {how}"))
    landed = [[("09:05", "A"), ("09:12", "A"), ("09:13", "A")], [("09:25", "A"), ("09:30", "B"), ("09:31", "C")]]
    for number, rates in enumerate((test_tables.FIRST, test_tables.SECOND)):
        test_tables.write(base / "rates.csv", rates)
        test_tables.trade(base / "in", f"{number}", *landed[number])
        go(made, options=FLUSH if number else None)
    assert audited(base) == []
    for number, (damage, words) in enumerate(OF_TABLES.values()):
        shutil.copytree(base, tmp_path / f"{number}")
        damage(tmp_path / f"{number}")
        found = audited(tmp_path / f"{number}")  # the window over the join differs from it then
        [what] = [finding["what"] for finding in found if finding["table"] == "joins/valued"]
        assert words in what
