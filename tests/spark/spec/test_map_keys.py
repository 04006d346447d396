"""Maps with a bad key: the expression fails on that record, and on no other of the same task."""

from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.bounds import bounded
from tidemark.timeops.expressions.try_expression import Columns, with_attempt

GOOD, TWICE, NULL = (["a", "b"], "a:1,b:2", "x"), (["a", "a"], "a:1,a:2", "a"), (["a", None], "a:1,a", None)
RECORDS = [GOOD, TWICE, GOOD, NULL, GOOD, TWICE, TWICE, GOOD]
MAPS = {
    "map_from_arrays(ks, array(1, 2))": {"a": 1, "b": 2},
    "str_to_map(t)": {"a": "1", "b": "2"},
    "str_to_map(t, '[,;]', ':') -- a pattern": {"a": "1", "b": "2"},
    "map(o, 1, 'a', 2)": {"x": 1, "a": 2},
    "map('a', 1, o, n)": {"a": 1, "x": 0},
    "map_concat(map('a', 1), map(o, 2), map('c', 3))": {"a": 1, "x": 2, "c": 3},
    "map_from_entries(array(struct(o AS `the key`, 1), struct('a' AS `the key`, 2)))": {"x": 1, "a": 2},
    "map_from_entries(arrays_zip(ks, array(1, 2)))": {"a": 1, "b": 2},
    "transform_keys(map('a', 1, 'z', 2), (key, v) -> if(key = 'z', o, key))": {"a": 1, "x": 2},
    "aggregate(ks, map('0', 0), (made, k) -> map_concat(made, map(k, 1)))": {"0": 0, "a": 1, "b": 1},
    "map(concat(o, 'y'), map_from_arrays(ks, array(1, 2)))": {"xy": {"a": 1, "b": 2}},
}


@pytest.fixture(scope="module")
def records(spark: SparkSession) -> DataFrame:
    """Records of one task, the bad ones between the others."""
    rows = [(number, *record, number * 0) for number, record in enumerate(RECORDS)]
    return spark.createDataFrame(rows, "id INT, ks ARRAY<STRING>, t STRING, o STRING, n INT").coalesce(1)


def attempts(records: DataFrame, expression: str) -> dict[int, Any]:
    """Return the value of an expression, by record; records on which it fails are left out."""
    read = Columns.of(records).read(expression)
    tried = with_attempt(records, read, "value", "failed").select("id", "value", "failed").collect()
    return {row["id"]: row["value"] for row in tried if not row["failed"]}


@pytest.mark.parametrize("expression", MAPS)
def test_a_key_that_comes_twice_or_is_null_fails_on_its_record_alone(records: DataFrame, expression: str) -> None:
    assert attempts(records, expression) == dict.fromkeys((0, 2, 4, 7), MAPS[expression])


def test_maps_of_null_and_of_nothing_are_what_spark_says(records: DataFrame) -> None:
    for expression, value in {
        "map()": {},
        "map_from_arrays(CAST(NULL AS ARRAY<STRING>), array(n))": None,
        "map_concat(map('a', n), CAST(NULL AS MAP<STRING, INT>))": None,
        "map_from_entries(array(struct('a', n), CAST(NULL AS STRUCT<col1: STRING, n: INT>)))": None,
        "str_to_map(CAST(NULL AS STRING))": None,
        "str_to_map(concat('a', n))": {"a0": None},
    }.items():
        assert attempts(records, expression) == dict.fromkeys(range(len(RECORDS)), value), expression


def test_entries_of_a_variable_are_refused_as_nobody_knows_the_name_of_their_key(records: DataFrame) -> None:
    with pytest.raises(SpecError, match="inside a lambda function") as told:
        Columns.of(records).read("transform(ks, k -> map_from_entries(array(struct(k, 1))))")
    assert "use `map_from_arrays`" in str(told.value)


def test_what_makes_no_map_stays_as_it_is() -> None:
    for text in ("map_keys(m)", "map_filter(m, (k, v) -> v > 0)", "CAST(m AS MAP<STRING, INT>)", "map"):
        assert bounded(text) == text
