"""Clock rules: the first clock at which a silence gives a watermark is the one that trying all clocks finds."""

import random
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.seeds import Dice
from tidemark.timeops.rules import SourceTime, TimeRules
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.watermark.clock_rules import (
    ArrivalClock,
    ClockRule,
    IdleSplits,
    SilentWindows,
    clock_rule,
    gathered,
)

CASES = 1
_CLOCKS = 120  # from 0 on
_LATE = {"tolerance": "7 us", "policy": "adjust"}
_SPLIT = "struct<allows: bigint, idle_at: bigint, listed: boolean>"
_STATE = f"wanted BIGINT, splits ARRAY<{_SPLIT}>, last BIGINT, closes ARRAY<BIGINT>"


def rules_of(idle: dict[str, str] | None, **time: Any) -> TimeRules:
    windows = (
        WindowSpec(name="g", kind="tumbling", size="10 us", offset="3 us", aggregates={"n": "count(*)"}),
        WindowSpec(name="s", kind="session", gap="4 us", aggregates={"n": "count(*)"}),
    )
    spec = TimeSpec(timestamp_by="e", unit="microsecond", idle=idle, **time)
    by_splits = idle is not None and idle["advance"] == "exclude_split"
    sources = (SourceTime("s", "e", "UTC", 0, 6),) if by_splits else ()
    return TimeRules(spec, sources, uses_splits=by_splits, windows=windows)


def silences(spark: SparkSession, rng: random.Random) -> DataFrame:
    """What timelines may have gathered, and watermarks that are wanted of them."""
    rows = []
    for _ in range(60):
        splits = [
            (rng.choice([None, *range(10, 60, 7)]), rng.randint(20, 90), rng.choice([True, False]))
            for _ in range(rng.randint(1, 3))
        ]
        closes = [rng.choice([None, 10 * rng.randint(1, 6) + 3]), rng.choice([None, rng.randint(10, 60)])]
        rows.append((rng.randint(5, 70), splits, rng.randint(0, 40), closes))
    return spark.createDataFrame(rows, _STATE)


@pytest.mark.parametrize(
    ("rules", "kind"),
    [
        pytest.param(rules_of({"advance": "arrival_clock"}, late=_LATE), ArrivalClock, id="arrival clock"),
        pytest.param(rules_of({"advance": "exclude_split", "timeout": "6 us"}), IdleSplits, id="idle splits"),
        pytest.param(rules_of({"advance": "window_close", "timeout": "6 us"}), SilentWindows, id="silent windows"),
        pytest.param(rules_of(None), ClockRule, id="none"),
    ],
)
def test_the_first_clock_that_gives_a_watermark_is_the_first_of_all_that_do(
    spark: SparkSession, dice: Dice, rules: TimeRules, kind: type[ClockRule]
) -> None:
    rule = clock_rule(rules)
    assert type(rule) is kind
    known: Column = gathered(F.col("splits"), F.col("last"), F.col("closes"))
    clocks = F.sequence(F.lit(0).cast("bigint"), F.lit(_CLOCKS).cast("bigint"))
    rows = silences(spark, random.Random(dice.seed(3))).select(
        "wanted",
        F.transform(clocks, lambda clock: rule.gives(known, clock)).alias("given"),
        rule.first_clock(known, F.col("wanted")).alias("first"),
    )
    found = rows.collect()
    for row in found:
        enough = [clock for clock, given in enumerate(row["given"]) if given is not None and given >= row["wanted"]]
        reached = [given for given in row["given"] if given is not None]
        assert reached == sorted(reached)
        if enough[:1] != [0]:  # else the timeline had so much before its silence
            assert row["first"] == (enough[0] if enough else None)
    assert any(row["first"] is not None for row in found) == (kind is not ClockRule)
