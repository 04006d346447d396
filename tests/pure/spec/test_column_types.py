"""Types of columns as trees, without Spark: which hold all values of others, and fields that only one of them has."""

import pytest

from tidemark.timeops.expressions.column_types import (
    holds_number,
    misfit,
    only_fields_of,
    type_of_ddl,
    unknown_fields,
    with_field,
)

DDL = {
    "a": "A",
    "dec": "DECIMAL(10,0)",
    "Numeric(7)": "DECIMAL(7,0)",
    "struct<Long INT NOT NULL COMMENT 'x, y>', `b c`: array<LONG>>": "STRUCT<Long: INT, `b c`: ARRAY<BIGINT>>",
    "MAP<STRING,STRUCT<z:real>>": "MAP<STRING, STRUCT<z: FLOAT>>",
    "ARRAY<STRUCT<a INT": "ARRAY<STRUCT<a: INT>>",
}
PLACE = "STRUCT<lat: DOUBLE, lon: DOUBLE>"
FITS = [
    (PLACE, PLACE, ""),
    ("STRUCT<lon: FLOAT, alt: DATE, lat: INT>", PLACE, ""),
    ("ARRAY<ARRAY<STRUCT<a: INT, b: DATE>>>", "ARRAY<ARRAY<STRUCT<a: BIGINT>>>", ""),
    ("MAP<INT, STRUCT<a: INT, b: DATE>>", "MAP<BIGINT, STRUCT<a: BIGINT>>", ""),
    ("STRUCT<a: VOID>", "STRUCT<a: MAP<STRING, INT>>", ""),
    ("STRUCT<lat: DOUBLE>", PLACE, "lon"),
    ("STRUCT<Lat: DOUBLE, lon: DOUBLE>", PLACE, "lat"),
    ("STRUCT<lat: DOUBLE, LAT: DOUBLE, lon: DOUBLE>", PLACE, "lat"),
    ("STRUCT<lat: STRING, lon: DOUBLE>", PLACE, "lat"),
    ("STRUCT<lat: DOUBLE, lon: BIGINT>", PLACE, "lon"),
    ("ARRAY<STRUCT<a: STRING>>", "ARRAY<STRUCT<a: INT>>", "element.a"),
    ("MAP<STRING, ARRAY<STRING>>", "MAP<STRING, ARRAY<INT>>", "value.element"),
    ("MAP<STRING, INT>", "MAP<INT, INT>", "key"),
    ("ARRAY<INT>", "INT", ""),
]


@pytest.mark.parametrize(("written", "shown"), DDL.items())
def test_words_of_ddl_are_one_type_in_one_spelling(written: str, shown: str) -> None:
    kind = type_of_ddl(written)
    assert kind.ddl == shown
    assert type_of_ddl(kind.sql) == kind


@pytest.mark.parametrize(("found", "wanted", "place"), FITS)
def test_values_are_had_by_the_names_of_fields_or_the_first_place_is_named(
    found: str, wanted: str, place: str
) -> None:
    problem = misfit(type_of_ddl(found), type_of_ddl(wanted), holds_number)
    assert ".".join(problem.path if problem else ()) == place
    assert (problem is None) == (not place and found != "ARRAY<INT>")


def test_a_struct_may_lack_fields_but_not_all_nor_one_that_it_has_in_another_case() -> None:
    wanted = type_of_ddl(PLACE)
    places = {"lat: INT": None, "y: INT": ("lat",), "lat: INT, Lon: INT": ("lon",)}
    for fields, place in places.items():
        problem = misfit(type_of_ddl(f"STRUCT<{fields}>"), wanted, holds_number, may_lack=True)
        assert (problem and problem.path) == place


def test_fields_that_a_type_lacks_are_named_by_their_paths_and_may_join_it() -> None:
    found = type_of_ddl(
        "STRUCT<n: INT, alt: DOUBLE, q: ARRAY<STRUCT<u: INT, v: MAP<STRING, STRUCT<w: DATE>>, x: VOID>>>"
    )
    wanted = type_of_ddl("STRUCT<q: ARRAY<STRUCT<v: MAP<STRING, STRUCT<z: INT>>>>, n: INT>")
    unknown = {".".join(path): kind.ddl for path, kind in unknown_fields(found, wanted)}
    assert unknown == {"alt": "DOUBLE", "q.element.u": "INT", "q.element.v.value.w": "DATE"}
    for path, kind in unknown_fields(found, wanted):
        wanted = with_field(wanted, path, kind)
    assert wanted.ddl == (
        "STRUCT<q: ARRAY<STRUCT<v: MAP<STRING, STRUCT<z: INT, w: DATE>>, u: INT>>, n: INT, alt: DOUBLE>"
    )
    assert (
        only_fields_of(found, type_of_ddl("STRUCT<q: ARRAY<STRUCT<u: INT>>>")).ddl
        == "STRUCT<q: ARRAY<STRUCT<u: INT>>>"
    )
