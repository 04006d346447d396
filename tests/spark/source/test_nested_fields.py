"""Fields inside of structs, arrays and maps: read by name, and kept or named where `schema` lacks them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.knows import Knows
from tests.pure.source.landed import discover, land, read_files
from tests.spark.source.test_files_source import malformed, read, rows, source
from tidemark.resources.sources.columns import unknown_of
from tidemark.resources.sources.delta import DeltaReader
from tidemark.resources.sources.file_records import unreadable
from tidemark.resources.sources.table_versions import read_versions, reading_place
from tidemark.timeops.errors import UnfitFilesError
from tidemark.timeops.spec import DeltaSource

SCHEMA = "id STRING, loc STRUCT<lat: DOUBLE, lon: DOUBLE>, m MAP<STRING, ARRAY<STRUCT<v: BIGINT>>>"
LOC, M = {"lat": 45.5, "lon": 9.5}, {"k": [{"v": 1}, None]}
PLACE = pa.struct({"lat": pa.float64(), "lon": pa.float64()}.items())


def column_of(value: Any, kind: pa.DataType) -> pa.Table:
    return pa.table({"id": ["a"], "loc": pa.array([value], kind), "m": pa.array([[("k", [{"v": 1}, None])]], _MAP)})


_MAP = pa.map_(pa.string(), pa.list_(pa.struct({"v": pa.int32()}.items())))


def struct(**fields: pa.DataType) -> pa.DataType:
    return pa.struct(fields.items())


WITH_ALT = struct(lat=pa.float64(), lon=pa.float64(), alt=pa.float32())
READ: Mapping[str, tuple[Any, Any, Any, Any]] = {
    "as it is": (LOC, PLACE, LOC, None),
    "another order": (LOC, struct(lon=pa.float64(), lat=pa.float64()), LOC, None),
    "floats": (LOC, struct(lat=pa.float32(), lon=pa.float32()), LOC, None),
    "integers": ({"lat": 45, "lon": 9}, struct(lat=pa.int32(), lon=pa.int8()), {"lat": 45, "lon": 9}, None),
    "a field more": (LOC | {"alt": 0.1}, WITH_ALT, LOC, {"alt": 0.10000000149011612}),
    "a field more without a value": (LOC | {"alt": None}, WITH_ALT, LOC, None),
    "structs more": (
        LOC | {"at": [{"t": 1}]},
        pa.struct([*PLACE, ("at", pa.list_(struct(t=pa.time64("us"))))]),
        LOC,
        {"at": [{"t": "00:00:00.000001"}]},
    ),
    "null": (None, PLACE, None, None),
}
HELD: Mapping[str, tuple[Any, str]] = {
    "a field less": (struct(lat=pa.float64()), "`loc.lon` is missing from"),
    "another case": (struct(Lat=pa.float64(), lon=pa.float64()), "did you mean `Lat`?"),
    "twice": (pa.struct([*PLACE, ("LAT", pa.float64())]), "`loc.lat` occurs more than once (in any case) in"),
    "a text": (struct(lat=pa.string(), lon=pa.float64()), "`loc.lat` has the type STRING"),
    "too many digits": (struct(lat=pa.int64(), lon=pa.float64()), "`loc.lat` has the type BIGINT"),
    "no struct": (pa.float64(), "`loc` has the type DOUBLE"),
}


def test_fields_of_parquet_are_read_by_name_and_kept_with_their_column(spark: SparkSession, tmp_path: Path) -> None:
    for number, (value, kind, _, _) in enumerate(READ.values()):
        pq.write_table(column_of(value, kind), land(tmp_path / "in" / f"{number}", ""))
    found = rows(read(spark, source(SCHEMA, format="parquet", keep_unknown=True), tmp_path))
    for row, (_, _, expected, more) in zip(found, READ.values(), strict=True):
        given = row.asDict(recursive=True)
        assert (given["loc"], given["m"]) == (expected, M)
        assert json.loads(given["_rescued"] or "{}") == ({} if more is None else {"loc": LOC | more})


@pytest.mark.long
def test_a_delta_table_whose_structs_grow_is_read_on(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), column_of(LOC, PLACE))
    write_deltalake(str(tmp_path / "t"), column_of(LOC | {"alt": 0.5}, WITH_ALT), mode="append", schema_mode="merge")
    of_table = {"name": "d", "kind": "delta", "path": "t", "schema": SCHEMA, "start_version": 0}
    delta = DeltaSource.model_validate({**of_table, "keep_unknown": True})
    found = DeltaReader(delta, tmp_path).look(Knows())
    assert unknown_of(delta, found.columns) == (("loc.alt", "FLOAT"),)
    with reading_place(tmp_path / "pipeline") as place:
        records = read_versions(spark, delta, found.versions, place).orderBy("_modified").collect()
    assert [row["loc"].asDict() for row in records] == [LOC, LOC]
    assert [row["_rescued"] for row in records] == [None, '{"loc":{"lat":45.5,"lon":9.5,"alt":0.5}}']
    older = DeltaSource.model_validate({**of_table, "schema": SCHEMA.replace("lon:", "alt: FLOAT, lon:")})
    with (
        reading_place(tmp_path / "pipeline") as place,
        pytest.raises(UnfitFilesError, match=r"`loc\.alt` is missing"),
    ):
        read_versions(spark, older, found.versions, place)


def test_a_parquet_file_whose_fields_do_not_fit_is_held_back_alone_and_the_field_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    pq.write_table(column_of(LOC, PLACE), land(tmp_path / "in" / "fits", ""))
    for name, (kind, _) in HELD.items():
        pq.write_table(column_of(None, kind), land(tmp_path / "in" / name, ""))
    for more in ({}, {"missing": "null"}):
        given = source(SCHEMA, format="parquet", **more)
        held = unreadable(spark, given, discover(given, tmp_path).ready)
        expected = {*HELD} - {"a field less"} if more else {*HELD}
        assert {Path(path).name for path in held} == expected
        for path, error in held.items():
            assert HELD[Path(path).name][1] in str(error)
    given = source(SCHEMA, path="in/a field less", format="parquet", missing="null")
    pq.write_table(column_of({"lat": 1.0}, HELD["a field less"][0]), tmp_path / "in" / "a field less")
    [row] = rows(read(spark, given, tmp_path))
    assert row["loc"].asDict() == {"lat": 1.0, "lon": None}


def test_fields_of_json_that_schema_lacks_are_kept_with_their_column_and_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = {
        '{"id":"a","loc":{"lat":45.5,"lon":9.50},"m":{"k":[{"v":1},null]}}': {},
        '{"id":"b","loc":{"lat":45.5,"alt":1.10}}': {"loc": {"lat": 45.5, "alt": 1.10}},
        '{"id":"c","loc":{"Lat":1}}': {"loc": {"Lat": 1}},
        '{"id":"d","m":{"x":[null,{"v":1,"u":null}],"v":[]}}': {"m": {"x": [None, {"v": 1, "u": None}], "v": []}},
        '{"id":"e","m":{},"loc":null,"z":{"v":1.10}}': {"z": {"v": 1.10}},
        '{"id":"f","loc":"none"}': None,
        '{"id":"g","loc":{"lat":1,"alt":1,"alt":2}}': None,
    }
    land(tmp_path / "in" / "x.json", "\n".join(lines) + "\n")
    kept = rows(read(spark, source(SCHEMA, format="json", keep_unknown=True), tmp_path))
    for row, (line, expected) in zip(kept, lines.items(), strict=True):
        assert row["_malformed"] == (line if expected is None else None)
        assert json.loads(row["_rescued"] or "{}") == (expected or {})
    assert '"alt":1.10' in kept[1]["_rescued"]
    assert kept[1]["loc"].asDict() == {"lat": 45.5, "lon": None}
    given = source(SCHEMA, format="json")
    [file] = discover(given, tmp_path).ready
    assert dict(file.unknown) == {
        "loc.alt": "DOUBLE",
        "loc.Lat": "BIGINT",
        "z": "STRING",
    }
    without = read_files(spark, given, [file], tmp_path / "copies")
    assert [*malformed(without).values()] == [line for line, expected in lines.items() if expected is None]
