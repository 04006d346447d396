"""Every type that a parquet column may have: what a run proposes for it is read exactly, and none disturbs others."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.pure.source.landed import discover, land, read_files
from tests.spark.source.test_files_source import read, rows, source
from tidemark.resources.sources.columns import line_to_add, not_to_add
from tidemark.resources.sources.file_records import unreadable

NS, NOON = pa.timestamp("ns"), datetime(2026, 5, 4, 12, tzinfo=UTC)
LOCAL = NOON.replace(tzinfo=None)
SAME = object()
TYPES: Mapping[str, tuple[pa.Array, str, Any, Any]] = {
    "time_ms": (pa.array([time(1, 2, 3, 4_000)], pa.time32("ms")), "STRING", "01:02:03.004", SAME),
    "time_us": (pa.array([time(23, 59, 59, 999_999)]), "STRING", "23:59:59.999999", SAME),
    "time_ns": (pa.array([5], pa.time64("ns")), "STRING", "00:00:00.000000005", SAME),
    "nanos": (pa.array([-1], NS), "STRING", "1969-12-31T23:59:59.999999999", SAME),
    "nanos_utc": (pa.array([1], pa.timestamp("ns", "UTC")), "STRING", "1970-01-01T00:00:00.000000001Z", SAME),
    "millis": (pa.array([NOON], pa.timestamp("ms", "UTC")), "TIMESTAMP", NOON, "2026-05-04T12:00:00.000000Z"),
    "local": (pa.array([LOCAL], pa.timestamp("us")), "TIMESTAMP_NTZ", LOCAL, "2026-05-04T12:00:00.000000"),
    "uuid": (pa.array([UUID(int=255).bytes], pa.uuid()), "STRING", "00000000-0000-0000-0000-0000000000ff", SAME),
    "half": (pa.array([0.1], pa.float32()).cast(pa.float16()), "FLOAT", 0.0999755859375, SAME),
    "least": (pa.array([-(2.0**-24)], pa.float32()).cast(pa.float16()), "FLOAT", -(2.0**-24), SAME),
    "infinite": (pa.array([float("-inf")], pa.float32()).cast(pa.float16()), "FLOAT", float("-inf"), "-Infinity"),
    "float": (pa.array([0.1], pa.float32()), "FLOAT", 0.10000000149011612, SAME),
    "u8": (pa.array([2**8 - 1], pa.uint8()), "SMALLINT", 2**8 - 1, SAME),
    "u16": (pa.array([2**16 - 1], pa.uint16()), "INT", 2**16 - 1, SAME),
    "u32": (pa.array([2**32 - 1], pa.uint32()), "BIGINT", 2**32 - 1, SAME),
    "u64": (pa.array([2**64 - 1], pa.uint64()), "DECIMAL(20,0)", Decimal(2**64 - 1), 2**64 - 1),
    "decimal": (pa.array([Decimal("1.25")], pa.decimal128(38, 2)), "DECIMAL(38,2)", Decimal("1.25"), 1.25),
    "date": (pa.array([date(2026, 5, 4)], pa.date64()), "DATE", date(2026, 5, 4), "2026-05-04"),
    "duration": (pa.array([7], pa.duration("s")), "BIGINT", 7, SAME),
    "fixed": (pa.array([b"\xff\x00"], pa.binary(2)), "BINARY", b"\xff\x00", "/wA="),
    "bytes_view": (pa.array([b"\xff"], pa.binary_view()), "BINARY", b"\xff", "/w=="),
    "text_view": (pa.array(["x"], pa.string_view()), "STRING", "x", SAME),
    "large_text": (pa.array(["x"], pa.large_string()), "STRING", "x", SAME),
    "json": (pa.array(['{"a":1}'], pa.json_()), "STRING", '{"a":1}', SAME),
    "words": (pa.array(["x"]).dictionary_encode(), "STRING", "x", SAME),
    "view": (pa.array([[1, None]], pa.list_view(pa.int32())), "ARRAY<INT>", [1, None], SAME),
    "pair": (pa.array([[1, 2]], pa.list_(pa.int64(), 2)), "ARRAY<BIGINT>", [1, 2], SAME),
    "lists": (
        pa.array([[[2**64 - 1], []]], pa.large_list(pa.large_list(pa.uint64()))),
        "ARRAY<ARRAY<DECIMAL(20,0)>>",
        [[Decimal(2**64 - 1)], []],
        [[2**64 - 1], []],
    ),
    "by_number": (
        pa.array([[(2**32 - 1, "x")]], pa.map_(pa.uint32(), pa.string())),
        "MAP<BIGINT, STRING>",
        {2**32 - 1: "x"},
        {str(2**32 - 1): "x"},
    ),
    "in_map": (
        pa.array([[("k", {"Day": 1})]], pa.map_(pa.string(), pa.struct({"Day": NS}.items()))),
        "MAP<STRING, STRUCT<Day: STRING>>",
        {"k": {"Day": "1970-01-01T00:00:00.000000001"}},
        SAME,
    ),
}
LEFT_OUT: Mapping[str, tuple[pa.Array, Any]] = {
    "nothing": (pa.nulls(1), None),
    "nothings": (pa.array([[None]], pa.list_(pa.null())), [None]),
    "a_b": (pa.array([{"a b": 1}]), {"a b": 1}),
}
HELD = {
    "wide": pa.array([Decimal(1)], pa.decimal256(60, 2)),
    "deep": pa.array([{"wide": Decimal(1)}], pa.struct({"wide": pa.decimal256(60, 2)}.items())),
}


@pytest.fixture
def landed(tmp_path: Path) -> Path:
    columns = {name: found[0] for name, found in {**TYPES, **LEFT_OUT}.items()} | HELD
    for name, column in columns.items():
        pq.write_table(pa.table({"n": [1], name: column}), land(tmp_path / "in" / name, ""))
    return tmp_path


def test_a_type_that_is_proposed_is_read_exactly_and_others_are_left_out(spark: SparkSession, landed: Path) -> None:
    for name in (*TYPES, *LEFT_OUT, *HELD):
        given = source("n BIGINT", path=f"in/{name}", format="parquet")
        [file] = discover(given, landed).ready
        line, said = line_to_add(given, file.unknown), not_to_add(given, file.unknown)
        if name not in TYPES:
            assert (line, len(said)) == ("", 0 if name == "nothing" else 1)
            continue
        assert (line, said) == (f"add `{name} {TYPES[name][1]}` to `schema`", [])
        proposed = re.findall(r"`(.+?)`", line)[0]
        [row] = rows(read(spark, source(f"n BIGINT, {proposed}", path=f"in/{name}", format="parquet"), landed))
        value = row.asDict(recursive=True)[name]
        is_instant = isinstance(value, datetime) and TYPES[name][1] == "TIMESTAMP"
        assert (value.astimezone(UTC) if is_instant else value) == TYPES[name][2], name


def test_a_column_that_nobody_asks_for_leaves_the_others_as_they_are(spark: SparkSession, landed: Path) -> None:
    found = rows(read(spark, source("n BIGINT", format="parquet"), landed))
    names = sorted([*TYPES, *LEFT_OUT, *HELD])
    assert [(row["_file"], row["n"]) for row in found] == [(name, 1) for name in names]


@pytest.mark.long
def test_a_column_that_nobody_asks_for_is_kept_exactly_or_its_file_is_held_back_alone(
    spark: SparkSession, landed: Path
) -> None:
    given = source("n BIGINT", format="parquet", keep_unknown=True)
    ready = discover(given, landed).ready
    held = unreadable(spark, given, ready)
    assert {Path(path).name for path in held} == {*HELD}
    for path, error in held.items():
        assert f"column `{Path(path).name}` has the type " in str(error)
        assert "leave `keep_unknown` out of the source" in error.remedy
    for row in rows(read_files(spark, given, [file for file in ready if file.path not in held], landed / "copies")):
        name = row["_file"]
        value, kept = TYPES[name][2:] if name in TYPES else (None, LEFT_OUT[name][1])
        assert json.loads(row["_rescued"] or "{}").get(name) == (value if kept is SAME else kept), name


LATIN = pa.array([b"K\xf6ln", b"K\xc3\xb6ln", None]).view(pa.string())  # bytes that no writer of texts would take
"""The first text is not UTF-8."""
SOUND = pa.array(["a", "b", "c"])
EACH = pa.array([0, 1, 2, 3], pa.int32())
NO_TEXTS: Mapping[str, tuple[pa.Array, str, Any]] = {
    "text": (LATIN, "STRING", "X'4BF66C6E'"),
    "large": (pa.array([b"\xff", b"", None], pa.large_binary()).view(pa.large_string()), "STRING", "X'FF'"),
    "words": (pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int8()), LATIN[:2]), "STRING", "X'4BF66C6E'"),
    "list": (pa.ListArray.from_arrays(EACH, LATIN), "ARRAY<STRING>", ["K\ufffdln"]),
    "struct": (pa.StructArray.from_arrays([LATIN], ["s"]), "STRUCT<s: STRING>", {"s": "K\ufffdln"}),
    "value": (pa.MapArray.from_arrays(EACH, SOUND, LATIN), "MAP<STRING, STRING>", {"a": "K\ufffdln"}),
    "key": (
        pa.MapArray.from_arrays(EACH, pa.array([b"\xff", b"b", b"c"]).view(pa.string()), SOUND),
        "MAP<STRING, STRING>",
        {"\ufffd": "a"},
    ),
}


@pytest.mark.parametrize(("column", "wanted", "shown"), NO_TEXTS.values(), ids=NO_TEXTS)
def test_a_text_that_is_not_utf8_makes_its_record_malformed_and_no_other(
    spark: SparkSession, tmp_path: Path, column: pa.Array, wanted: str, shown: Any
) -> None:
    pq.write_table(pa.table({"n": [1, 2, 3], "x": column}), tmp_path / "a.parquet")
    for settings in ({"schema": f"n BIGINT, x {wanted}"}, {"schema": "n BIGINT", "keep_unknown": True}):
        given = source(path="a.parquet", format="parquet", **settings)
        first, *others = read(spark, given, tmp_path).records.orderBy("_position").collect()
        record, _, why = first["_malformed"].rpartition(" (")
        assert (json.loads(record), why) == ({"n": 1, "x": shown}, "the value of `x` is not UTF-8)")
        assert first["n"] is None
        assert [(row["n"], row["_malformed"]) for row in others] == [(2, None), (3, None)]
    other = source(path="a.parquet", format="parquet", schema="n BIGINT")
    assert [row["n"] for row in read(spark, other, tmp_path).records.collect()] == [1, 2, 3], "nobody reads the text"
