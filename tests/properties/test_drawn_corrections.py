"""Pipelines over a table that is updated, deleted from and added to at random between their runs: they follow it."""

import random
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.runs.landing import START, assert_tables_equal_the_oracle, corrected_log
from tests.runs.running import VISITS, run
from tests.runs.source.test_delta_sources import add, made, rows
from tests.seeds import Dice

CASES = 1
SOURCE = "changes: follow, start_version: 0"
ARRIVALS = (", arrival_time: got", "")
TIMES = (
    "",
    "emit: {every: 5 s}",
    "late: {tolerance: 20 s, policy: drop}",
    "over: [k]",
    "idle: {advance: window_close, timeout: 20 s}",
)
POLICIES = ("keep", "drop", "adjust")
COLUMNS = ("id", "at", "k", "v")
STEPS = 6


def step(base: Path, rng: random.Random, number: int) -> str:
    """One commit of the table; which one."""
    table = DeltaTable(str(base / "bronze" / "orders"))
    low, key = rng.randint(0, 9), rng.choice("ab")
    what = rng.choice(("update", "move", "delete", "insert", "again", "compact"))
    match what:
        case "update":
            table.update(updates={"v": "v + 10"}, predicate=f"v >= {low} AND k = '{key}'")
        case "move":
            table.update(updates={"k": f"'{key}'"}, predicate=f"v = {low}")
        case "delete":
            table.delete(f"v = {low}")
        case "insert":
            add(base, rows(number, rng.randint(1, 15), START.replace(minute=50 + number)))
        case "again":  # rows that are equal to others
            add(base, rows(1, 40).slice(0, rng.randint(1, 5)))
        case "compact":
            table.optimize.compact()
    return what


@pytest.mark.long
def test_whatever_is_changed_in_a_table_its_reader_has_what_is_there_now(
    spark: SparkSession, tmp_path: Path, dice: Dice
) -> None:
    rng = random.Random(dice.seed(5))
    source, time = SOURCE + dice.choice(ARRIVALS), dice.choice(TIMES)
    file, settings = made(tmp_path, "follows", source, policy=dice.choice(POLICIES), time=time, more=VISITS)
    add(tmp_path, rows(1, 40))
    run(tmp_path, "follows")
    done = []
    for number in range(STEPS):
        done.append(step(tmp_path, rng, number))
        if number == STEPS - 1 or rng.random() < 0.4:
            run(tmp_path, "follows")
            done.append("run")
    there = DeltaTable(str(tmp_path / "bronze" / "orders")).to_pyarrow_table().to_pylist()
    log = corrected_log(settings.warehouse, file.spec)
    shown = [sorted(str([row[name] for name in COLUMNS]) for row in side) for side in (log, there)]
    assert shown[0] == shown[1], done
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
