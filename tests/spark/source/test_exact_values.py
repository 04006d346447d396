"""Texts and numbers of the input that become dates, times and decimals: exactly, in their zone, or not at all."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from tests.knows import Knows
from tests.pure.source.landed import land, read_files
from tests.spark.source.test_files_source import malformed, payload, read, ready, rows, source
from tidemark.resources.sources.delta import DeltaReader
from tidemark.resources.sources.table_versions import read_versions, reading_place
from tidemark.timeops.expressions.text_values import value_sql
from tidemark.timeops.spec import DeltaSource

TEN, NOON = (datetime(2026, 5, 4, hour, tzinfo=UTC) for hour in (10, 12))
NO_TIMES = [
    *("12:15:00", "T12:30", "8:0:0", "08:00 Europe/Berlin", "2026", "2026-05", "2026-5-4", "1770889200", "", "now"),
    *(" 2026-05-04", "2026-02-29", "0000-01-01", "10000-01-01", "0001-01-01T00:00:00+01:00", "2026-05-04T24:00:00"),
]
DECIMALS = {
    "0.125": None,
    "1e-3": None,
    "123456789.00": None,
    "1.234e1": Decimal("12.34"),
    "12345678.9": Decimal("12345678.90"),
    "1.000": Decimal("1.00"),
    "1E2": Decimal(100),
    "-0.10": Decimal("-0.10"),
    "1e400": None,
    "0e400": Decimal(0),
    "1234567890e-4": None,
    "1234567800e-4": Decimal("123456.78"),
    **dict.fromkeys(("1,5", " 1", "0x1", "", "NaN", ".")),
}


def values_of(spark: SparkSession, texts: list[str], kind: str, zone: str = "UTC") -> list[str | None]:
    frame = spark.createDataFrame([(text,) for text in texts], "t STRING")
    value = F.expr(value_sql("t", DataType.fromDDL(kind), zone))
    return [row[0] for row in frame.select(value.cast("string")).collect()]


def test_a_text_is_a_time_of_its_zone_or_none(spark: SparkSession) -> None:
    written = [
        "2026-05-04T12:00:00",
        "2026-05-04",
        "2026-05-04t12:00,5+02",
        "0001-01-01",
        "9999-12-31 23:59:59.9999999",
    ]
    assert values_of(spark, [*written[:2], *NO_TIMES], "TIMESTAMP", "Europe/Rome") == [
        *("2026-05-04 10:00:00", "2026-05-03 22:00:00"),
        *[None] * len(NO_TIMES),
    ]
    twice_and_never = ["2026-10-25T02:30:00", "2026-03-29T02:30:00", "2026-03-29T02:30:00+02:00"]
    assert values_of(spark, twice_and_never, "TIMESTAMP", "Europe/Rome") == [
        *("2026-10-25 00:30:00", "2026-03-29 01:30:00", "2026-03-29 00:30:00"),
    ]
    assert values_of(spark, written, "TIMESTAMP") == [
        *("2026-05-04 12:00:00", "2026-05-04 00:00:00", None, "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"),
    ]
    assert values_of(spark, ["2026-05-04T12:00+02", "0001-01-01"], "TIMESTAMP", "Asia/Tokyo") == [
        *("2026-05-04 10:00:00", None),
    ]
    local = [*written[:2], "2026-05-04T12:00Z", *NO_TIMES]
    assert values_of(spark, local, "TIMESTAMP_NTZ", "Europe/Rome") == [
        *("2026-05-04 12:00:00", "2026-05-04 00:00:00", None),
        *[None] * len(NO_TIMES),
    ]
    assert values_of(spark, [*written[:2], "2024-02-29", *NO_TIMES], "DATE") == [
        *(None, "2026-05-04", "2024-02-29"),
        *[None] * len(NO_TIMES),
    ]


def test_a_text_is_a_decimal_with_all_its_digits_or_none(spark: SparkSession) -> None:
    found = values_of(spark, list(DECIMALS), "DECIMAL(10, 2)")
    assert [one and Decimal(one) for one in found] == list(DECIMALS.values())
    assert values_of(spark, ["9" * 38, "1" + "0" * 38, "1e37", "1e38"], "DECIMAL(38, 0)") == [
        *("9" * 38, None, "1" + "0" * 37, None),
    ]


def test_what_does_not_fit_a_column_of_json_exactly_is_malformed(spark: SparkSession, tmp_path: Path) -> None:
    bad = [f'{{"at": "{text}"}}' for text in ("12:15:00", "T12:30", "2026", "1770889200", "")]
    bad += [f'{{"at": {number}}}' for number in (1770889200, 1770889198301716, 1770889200.5, "true")]
    bad += [
        '{"on": "2026-05-04T00:00:00"}',
        '{"local": "2026-05-04T00:00:00Z"}',
        '{"net": 0.125}',
        '{"net": "0.125"}',
    ]
    bad += ['{"net": 1e-3}', '{"net": 123456789.00}', '{"net": NaN}', '{"deep": [{"m": {"k": 0.125}}]}']
    bad += ['{"net": 0.10000000000000000001}', '{"deep": [null, {"at": 5}]}']
    good = [
        '{"at": "2026-05-04T12:00:00", "on": "2026-05-04", "local": "2026-05-04T12:00:00", "net": 12345678.90}',
        '{"at": "2026-05-04T12:00:00+02:00", "net": 1.000, "deep": [{"at": "2026-05-04", "m": {"k": 1.20}}, null]}',
        '{"net": 1e2, "other": 0.125}',
    ]
    land(tmp_path / "in" / "x.json", "\n".join([*bad, *good]))
    deep = "ARRAY<STRUCT<at: TIMESTAMP, m: MAP<STRING, DECIMAL(3, 1)>>>"
    schema = f"at TIMESTAMP, on DATE, local TIMESTAMP_NTZ, net DECIMAL(10, 2), deep {deep}"
    found = read(spark, source(schema, format="json", time_zone="Europe/Rome"), tmp_path)
    assert malformed(found) == dict(enumerate(bad, start=1))
    midnight = NOON.replace(hour=0) - timedelta(hours=2)
    first, second, last = payload(found).values()
    local = datetime(2026, 5, 4, 12).astimezone(UTC)
    assert first == (TEN, date(2026, 5, 4), local, Decimal("12345678.90"), None)
    [(inner, nothing)] = found.records.where("deep[0].m IS NOT NULL").selectExpr("deep[0]", "deep[1]").collect()
    assert (second[3], inner["at"].astimezone(UTC), inner["m"], nothing) == (1, midnight, {"k": Decimal("1.2")}, None)
    assert last[3] == 100


def test_what_does_not_fit_a_column_of_csv_exactly_is_malformed(spark: SparkSession, tmp_path: Path) -> None:
    bad = ["12:15:00,1", "2026,1", "2026-05-04,0.125", "1770889200,1", '2026-05-04,"1,5"']
    text = "\n".join(["at,net", *bad, "2026-05-04T12:00:00,1.000", ",0.10"])
    for folder, multiline in (("lines", False), ("whole", True)):
        land(tmp_path / folder / "x.csv", text + "\n")
        options = {"header": True, "multiLine": multiline}
        given = source("at TIMESTAMP, net DECIMAL(10, 2)", path=f"{folder}/*.csv", options=options)
        found = read_files(spark, given, ready(given, tmp_path), tmp_path / "copies", "Europe/Rome")
        assert list(malformed(found).values()) == bad
        assert list(payload(found).values()) == [(TEN, Decimal("1.00")), (None, Decimal("0.10"))]


def test_a_format_of_times_is_read_in_the_zone_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv", "04.05.2026 12:00\n2026-05-04T12:00:00\n")
    options = {"timestampFormat": "dd.MM.yyyy HH:mm"}
    given = source("at TIMESTAMP", options=options, time_zone="Europe/Rome")
    found = read_files(spark, given, ready(given, tmp_path), tmp_path / "copies", "Asia/Tokyo")
    assert (payload(found), malformed(found)) == ({1: (TEN,)}, {2: "2026-05-04T12:00:00"})
    land(tmp_path / "json" / "x.json", '{"at": "2026/05/04 12h"}\n{"at": 20260504}\n')
    given = source("at TIMESTAMP", options={"timestampFormat": "yyyy/MM/dd HH'h'"}, format="json", path="json/*")
    found = read_files(spark, given, ready(given, tmp_path), tmp_path / "copies", "Europe/Rome")
    assert (payload(found), malformed(found)) == ({1: (TEN,)}, {2: '{"at": 20260504}'})


def test_texts_and_rescued_keys_have_the_digits_of_the_line(spark: SparkSession, tmp_path: Path) -> None:
    kept = (
        '{"ref":12345678901234567890123456789012345678901,"p":1.10,"z":-0.0,"n":{"a":[1e400,0.1234567890123456789]}}'
    )
    texts = ['"=1"', '"#1"', '"a\\\\\\",\\"#1\\""', '":"', '[":","#1","it\'s 5"]', '{"#5":"=5"}', "true", "null"]
    lines = [f'{{"t": 1.10, {kept[1:]}', '{"t": {"a":[1.50,"#1"]}}', '{"t": "1.10"}', '{"t": 0.30000000000000000001}']
    lines += [f'{{"t": {text}, "other": {text}}}' for text in texts]
    land(tmp_path / "in" / "x.json", "\n".join(lines))
    found = rows(read(spark, source("t STRING", format="json", keep_unknown=True), tmp_path))
    assert [row["t"] for row in found[:4]] == ["1.10", '{"a":[1.50,"#1"]}', "1.10", "0.30000000000000000001"]
    assert [row["_rescued"] for row in found[:2]] == [kept, None]
    assert [json.loads(row["_rescued"])["other"] for row in found[4:]] == [json.loads(text) for text in texts]
    assert [row["t"] for row in found[4:8]] == [json.loads(text) for text in texts[:4]]


def test_half_of_a_character_is_malformed_where_it_is_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    bad = [r'{"t": "\ud83d"}', r'{"t": "\uDE00"}', r'{"t": "a\ud83d"}', r'{"t": "\ud83d\ude00\ud83d"}']
    elsewhere = r'{"t": "x", "other": "\ud83d"}'
    good = {r'{"t": "?"}': "?", r'{"t": "\ud83d\ude00"}': "\U0001f600", r'{"t": "\\ud83d"}': r"\ud83d"}
    good |= {r'{"t": "x\u0000y"}': "x\0y"}
    land(tmp_path / "in" / "x.json", "\n".join([*bad, *good, elsewhere]))
    found = read(spark, source("t STRING", format="json"), tmp_path)
    assert malformed(found) == dict(enumerate(bad, start=1))
    assert [text for (text,) in payload(found).values()] == [*good.values(), "x"]
    kept = read(spark, source("t STRING", format="json", keep_unknown=True), tmp_path)
    assert [row["_malformed"] for row in rows(kept)][-1] == elsewhere


def test_local_times_of_parquet_and_delta_are_read_in_the_zone_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = pa.table({"at": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us"))})
    written = pa.table({"at": pa.array([NOON], pa.timestamp("us", "UTC"))})
    (tmp_path / "in").mkdir()
    pq.write_table(made, tmp_path / "in" / "local.parquet")
    pq.write_table(written, tmp_path / "in" / "utc.parquet")
    given = source("at TIMESTAMP", format="parquet")
    found = read_files(spark, given, ready(given, tmp_path), tmp_path / "copies", "Europe/Rome")
    assert [(row["_file"], row["at"].astimezone(UTC)) for row in rows(found)] == [
        ("local.parquet", TEN),
        ("utc.parquet", NOON),
    ]
    write_deltalake(str(tmp_path / "table"), made)
    of_table = {"name": "d", "kind": "delta", "path": "table", "schema": "at TIMESTAMP", "start_version": 0}
    delta = DeltaSource.model_validate({**of_table, "time_zone": "Europe/Rome"})
    versions = DeltaReader(delta, tmp_path).look(Knows()).versions
    with reading_place(tmp_path / "pipeline") as place:
        records = read_versions(spark, delta, versions, place, "Asia/Tokyo")
        assert [row["at"].astimezone(UTC) for row in records.collect()] == [TEN]
