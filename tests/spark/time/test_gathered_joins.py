"""The events of a join's sides are gathered alike from the log and from Spark, and keys are equal as groups are."""

import random
import struct
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tests.spark.time.test_stored_times import INSTANT, Shelf, judged, records, rules_of
from tidemark.timeops.joins.events import NOBODY, Events
from tidemark.timeops.joins.gathering import gathered
from tidemark.timeops.spec import JoinSpec

OTHER_NAN = struct.unpack("d", struct.pack("Q", 0xFFF8_0000_0000_0001))[0]
VALUES: dict[str, pa.Array] = {
    "text": pa.array(["a", "A", "", " a", "é", "e\u0301", "null", None]),
    "number": pa.array([0, 1, -1, 2**40, None, 0, 1, 7]),
    "price": pa.array([Decimal("1.00"), Decimal("1.01"), Decimal("-1.00"), None] * 2, pa.decimal128(9, 2)),
    "day": pa.array([date(2026, 1, 1), date(1, 1, 1), None, date(2026, 1, 2)] * 2),
    "instant": pa.array([0, 1, -1, None, 2**50, 0, 1, 2], INSTANT),
    "yes": pa.array([True, False, None, True] * 2),
    "real": pa.array([0.0, -0.0, 1.5, float("nan"), OTHER_NAN, None, float("inf"), 1.5]),
    "both": pa.array([{"x": 0.0, "y": "a"}, {"x": -0.0, "y": "a"}, {"x": 0.0, "y": None}, None] * 2),
    "many": pa.array([[1, 2], [2, 1], [], None, [1, None], [1, 2], [], [None]]),
}
PLAIN = ("text", "number", "price", "day", "instant", "yes")


def join_on(on: Sequence[str]) -> JoinSpec:
    sides = {"left": {"source": "x"}, "right": {"source": "y"}, "on": on, "within": "5 ms"}
    return JoinSpec.model_validate({"name": "j", "kind": "as_of", **sides})


def with_values(rows: pa.Table, on: Sequence[str], rng: random.Random) -> pa.Table:
    for name in on:
        rows = rows.append_column(name, VALUES[name].take(pa.array(rng.choices(range(8), k=len(rows)))))
    return rows


def by_seq(events: Events) -> list[tuple[Any, ...]]:
    """Return all of each event but its key, by number."""
    order = np.argsort(events.seq)
    names = [events.timelines[place].as_py() for place in events.timeline[order]]
    arrays = (events.seq, events.us, events.met_us, events.is_left, events.start_us[events.timeline])
    return [*zip(names, *(array[order].tolist() for array in arrays), strict=True)]


def groups_of(seqs: Sequence[int], keys: Sequence[int]) -> set[frozenset[int]]:
    """Return the numbers of the events that have each key."""
    by_key: dict[int, set[int]] = {}
    for seq, key in zip(seqs, keys, strict=True):
        if key != NOBODY:
            by_key.setdefault(key, set()).add(seq)
    return {frozenset(group) for group in by_key.values()}


@pytest.mark.parametrize("on", [[name] for name in VALUES] + [["text", "real"], [*PLAIN], []])
def test_keys_are_equal_where_a_group_of_spark_takes_the_values_for_one(spark: SparkSession, on: list[str]) -> None:
    rows, join = with_values(records(random.Random(3)), on, random.Random(4)), join_on(on)
    rules = rules_of(("x", "y"), over=("k",), out_of_order="keep")
    by_spark = judged(spark, rows, rules, None)
    asked = gathered(by_spark, join, lambda: None)
    has_key = " AND ".join(f"{name} IS NOT NULL" for name in on) or "true"
    sides = by_spark.accepted.where(f"_source IN ('x', 'y') AND {has_key}")
    groups = sides.groupBy("_timeline", *on).agg(F.collect_list("_arrival_seq"))
    assert groups_of(asked.seq.tolist(), asked.key.tolist()) == {frozenset(row[-1]) for row in groups.collect()}
    shelf = Shelf(rows)
    from_log = gathered(judged(spark, rows, rules, shelf), join, lambda: None)
    assert by_seq(from_log) == by_seq(asked)
    order = np.argsort(from_log.seq)
    assert groups_of(from_log.seq[order].tolist(), from_log.key[order].tolist()) == groups_of(
        asked.seq.tolist(), asked.key.tolist()
    )
