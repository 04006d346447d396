"""Types of columns as words: one spelling for each, and which of them hold all values of another."""

import pytest

from tidemark.timeops.spec.changes import is_wider, types_in_tables

WIDER = [
    ("tinyint", "bigint"),
    ("int", "bigint"),
    ("int", "double"),
    ("float", "double"),
    ("int", "decimal(12,2)"),
    ("bigint", "decimal(19,0)"),
    ("decimal(10,2)", "decimal(12,4)"),
    ("date", "timestamp"),
    ("array<int>", "array<bigint>"),
]
NOT_WIDER = [
    ("int", "int"),
    ("bigint", "int"),
    ("bigint", "double"),
    ("int", "decimal(10,2)"),
    ("decimal(10,2)", "decimal(11,4)"),
    ("decimal(10,2)", "bigint"),
    ("decimal(5,0)", "bigint"),
    ("timestamp", "date"),
    ("date", "timestamp_ntz"),
    ("string", "int"),
    ("array<int>", "bigint"),
]


def test_words_of_one_type_are_one_spelling_and_comments_are_no_part_of_it() -> None:
    ddl = "a INTEGER, `b c`: Long COMMENT 'x, y', d DEC(10, 2) NOT NULL, e NUMERIC, f Real, at TIMESTAMP_LTZ"
    assert types_in_tables(ddl, {"a": "A"}) == {
        "A": "int",
        "b c": "bigint",
        "d": "decimal(10,2)",
        "e": "decimal(10,0)",
        "f": "float",
        "at": "timestamp",
    }
    nested = (
        "s STRUCT<Long: Int, b ARRAY<LONG>>, m MAP<STRING, Int>",
        "s struct<Long INT, b: array<bigint>>, m Map<string,INTEGER>",
    )
    assert types_in_tables(nested[0], {}) == types_in_tables(nested[1], {})
    assert types_in_tables(nested[0], {})["s"] == "struct<Long:int,b:array<bigint>>"


@pytest.mark.parametrize(("before", "now"), WIDER)
def test_a_wider_type_holds_every_value(before: str, now: str) -> None:
    assert is_wider(before, now)
    assert not is_wider(now, before)


@pytest.mark.parametrize(("before", "now"), NOT_WIDER)
def test_another_type_is_no_wider_one(before: str, now: str) -> None:
    assert not is_wider(before, now)
