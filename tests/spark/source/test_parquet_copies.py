"""Parquet files that Arrow copies into the log: its rows equal what Spark reads; other files are left to Spark."""

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.pure.source.landed import read_files
from tests.seeds import Dice
from tidemark.assets.ingestion.raw_events import KEYS, NumberedLog, Records, ingest, no_keys
from tidemark.assets.schemas import create_tables, log_schema
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.delta import ordering
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.versions import NO_ROWS
from tidemark.resources.sources import lines, local_files
from tidemark.resources.sources.file_records import PlainFile, plain_file
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.records import payload_schema, schema_in_input
from tidemark.resources.tables import RAW_EVENTS
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import FilesSource

CASES = 1
START = datetime(2026, 1, 1, tzinfo=UTC)
AT = pa.timestamp("us", "UTC")
SCHEMA = (
    "at TIMESTAMP, yes BOOLEAN, tiny INT, wide BIGINT, unsigned BIGINT, single DOUBLE, exact DECIMAL(12, 3), "
    "text STRING, "
    "raw BINARY, day DATE, noon TIMESTAMP_NTZ, coarse TIMESTAMP, "
    "local TIMESTAMP, never STRING, new STRING"
)
CHOICES: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "yes": (pa.bool_(), [True, False]),
    "tiny": (pa.int8(), [-128, 0, 127]),
    "wide": (pa.int64(), [-(2**63), 2**63 - 1]),
    "unsigned": (pa.uint32(), [0, 2**32 - 1]),
    "single": (pa.float32(), [-0.0, 0.5, float("nan"), float("inf")]),
    "exact": (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.10")]),
    "text": (pa.string(), ["", "é\u2028\x00", "x" * 300]),
    "raw": (pa.binary(), [b"", b"\xff\x00"]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
    "noon": (pa.date32(), [date(1500, 2, 28), date(2026, 1, 1)]),
    "coarse": (pa.timestamp("ms", "Europe/Rome"), [datetime(1, 1, 2, tzinfo=UTC), START]),
    "local": (pa.timestamp("us"), [-(2**51), 2**52]),
    "never": (pa.null(), [None]),
}


def source(schema: str, **more: object) -> FilesSource:
    given = {"name": "s", "kind": "files", "path": "in/*", "format": "parquet", "arrival_time": "at", **more}
    return FilesSource.model_validate({"schema": schema, **given})


def land(folder: Path, name: str, columns: dict[str, pa.Array], **more: Any) -> FileRange:
    path = folder / name
    pq.write_table(pa.table(columns), path, **{"row_group_size": 7, **more})
    size, modified_us = path.stat().st_size, path.stat().st_mtime_ns // 1_000
    return FileRange(str(path), name, size, modified_us, "", 0, ends_with_newline=True)


def seconds(*after: int) -> pa.Array:
    return pa.array([START + timedelta(seconds=one) for one in after], AT)


def copied(
    spark: SparkSession, given: FilesSource, files: Sequence[FileRange], zone: str = "UTC"
) -> list[PlainFile] | None:
    schema = schema_in_input(spark, given)
    plain = [file for each in files if (file := plain_file(given, schema, zone, each)) is not None]
    return plain if len(plain) == len(files) else None


def log_rows(
    spark: SparkSession, given: FilesSource, files: Sequence[PlainFile], before_us: int | None = None
) -> list[pa.Table]:
    """Return the rows of the log, by its files."""
    schema = to_arrow_schema(log_schema(payload_schema(spark, given)), timezone="UTC")
    records = Records.of(files, [], no_keys(KEYS))
    log = NumberedLog(records, records.order_in_log(by_arrival=True, from_us=None), 10, before_us)
    return [pa.Table.from_batches(piece(schema), schema) for piece in log.pieces(3)]


def test_rows_that_arrow_copies_are_those_that_spark_reads(
    spark: SparkSession, tmp_path: Path, dice: Dice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordering, "FILE_ROWS", 20)  # several files of the log from one of the input
    files = []
    for number, (name, rows) in enumerate({"a": 33, "b": 1, "c": 60}.items()):
        columns = {"arrived": seconds(*range(100 * number, 100 * number + rows))}
        for column, (kind, values) in CHOICES.items():
            columns[column] = pa.array([dice.choice([*values, None]) for _ in range(rows)], kind)
        files.append(land(tmp_path, name, columns))
    given = source(SCHEMA.replace("at TIMESTAMP", "arrived TIMESTAMP"), rename={"arrived": "at"}, missing="null")
    found = copied(spark, given, files)
    assert found is not None
    by_file = log_rows(spark, given, found)
    assert [len(own) for own in by_file] == [18, 19, 19, 19, 19]
    by_arrow = pa.concat_tables(by_file)
    payload = payload_schema(spark, given).names
    read = read_files(spark, given, files, tmp_path / "copies")
    assert (read.count, len(read.plain)) == (0, 3)
    by_spark = read.leaving(read.plain).records.orderBy(c.FILE, c.POSITION).toArrow()
    for name in [*payload, c.FILE, c.POSITION, c.MALFORMED]:
        told = by_arrow[name].cast(by_spark[name].type)
        assert str(told.to_pylist()) == str(by_spark[name].to_pylist()), name
    assert by_arrow[c.SEQ].to_pylist() == list(range(10, 10 + by_arrow.num_rows))
    assert by_arrow[c.ARRIVAL] == by_arrow[c.CLOCK] == by_arrow["at"]
    assert set(by_arrow[c.SOURCE].to_pylist()) == {"s"}
    assert set(by_arrow[c.BATCH].to_pylist()) == {3}
    assert by_arrow[c.SPLIT].null_count == by_arrow.num_rows


def test_the_clock_of_copied_rows_begins_with_that_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    given = source("at TIMESTAMP")
    found = copied(spark, given, [land(tmp_path, "a", {"at": seconds(1, 5, 9)})])
    assert found is not None
    before_us = int((START + timedelta(seconds=5)).timestamp()) * 1_000_000
    [rows] = log_rows(spark, given, found, before_us)
    assert rows[c.CLOCK].cast(AT).combine_chunks().equals(seconds(5, 5, 9))


def test_files_whose_wanted_columns_hold_nothing_are_copied_with_their_own_arrival(
    spark: SparkSession, tmp_path: Path
) -> None:
    given = source("new STRING", arrival_time=None)
    file = land(tmp_path, "a", {"new": pa.nulls(2), "other": pa.array([1, 2])})
    found = copied(spark, given, [file])
    assert found is not None
    [rows] = log_rows(spark, given, found)
    assert rows["new"].to_pylist() == [None, None]
    assert rows[c.ARRIVAL].cast(pa.int64()).to_pylist() == [file.modified_us] * 2
    assert rows[c.POSITION].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("column", "wanted", "settings"),
    [
        (pa.array([1]), "n BIGINT", {"split": "n"}),
        (pa.array([1]), "n BIGINT", {"keep_unknown": True}),
        (pa.array([[1]]), "n ARRAY<BIGINT>", {}),
        (pa.array([{"k": 1}]), "n STRUCT<k: BIGINT>", {}),
    ],
    ids=["a split", "unknown columns", "a list", "a struct"],
)
def test_files_that_need_sql_are_left_to_spark(
    spark: SparkSession, tmp_path: Path, column: pa.Array, wanted: str, settings: dict[str, Any]
) -> None:
    file = land(tmp_path, "a", {"at": seconds(1), "n": column})
    assert copied(spark, source(f"at TIMESTAMP, {wanted}", **settings), [file]) is None


def test_instants_that_spark_translates_are_left_to_it(spark: SparkSession, tmp_path: Path) -> None:
    instants = pa.array([2**50], pa.timestamp("us"))
    local = land(tmp_path, "local", {"at": seconds(1), "n": instants})
    given = source("at TIMESTAMP, n TIMESTAMP")
    assert copied(spark, given, [local], "Europe/Rome") is None
    assert copied(spark, given, [local]) is not None
    int96 = land(tmp_path, "int96", {"n": instants}, use_deprecated_int96_timestamps=True)
    assert copied(spark, source("n TIMESTAMP", arrival_time=None), [int96]) is None
    old = pa.table({"at": seconds(1)}).replace_schema_metadata({"org.apache.spark.version": "2.4.8"})
    pq.write_table(old, tmp_path / "old")
    [arrived] = [FileRange(str(tmp_path / "old"), "old", 1, 1, "", 0, ends_with_newline=True)]
    assert copied(spark, source("at TIMESTAMP"), [arrived]) is None


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([pa.array([None, "é" * 2**22]), pa.array(["x", "x" * 2**23 + "y"])], id="too large"),
        pytest.param([pa.array(["x", None]), pa.array([b"x", b"\xff"]).view(pa.string())], id="not UTF-8"),
    ],
)
def test_a_record_that_is_malformed_is_left_to_spark_which_refuses_it(
    spark: SparkSession, tmp_path: Path, texts: list[pa.Array]
) -> None:
    given = source("at TIMESTAMP, a STRING, b STRING")
    found = copied(spark, given, [land(tmp_path, "a", {"at": seconds(1, 2), "a": texts[0], "b": texts[1]})])
    assert found is not None
    with pytest.raises(pa.ArrowInvalid):
        log_rows(spark, given, found)


ALIKE = '{kind: files, settle: 0 s, arrival_time: at, schema: "at TIMESTAMP, k STRING"'
MIXED = f"""
name: mixed
sources:
  - {ALIKE}, name: rows, path: rows/*, format: parquet}}
  - {ALIKE}, name: lines, path: lines/*, format: json}}
time: {{timestamp_by: at}}
"""


def log_of(spark: SparkSession, folder: Path, warehouse: str) -> pa.Table:
    """Return the log after one ingestion."""
    workspace = Workspace(read_spec(folder / "mixed.yaml"), folder / warehouse, lambda: spark)
    create_tables(workspace)
    assert not ingest(workspace, "run").input_seen.errors
    return workspace.lake.rows(RAW_EVENTS).sort_by(c.SEQ)


def test_the_log_is_the_one_that_spark_alone_writes_whichever_files_arrow_reads(
    spark: SparkSession, tmp_path: Path, dice: Dice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some files are plain, some are not, and one seems to be; a file of lines has blocks of both kinds."""
    drawn = random.Random(dice.seed(5))
    monkeypatch.setattr(lines, "_BLOCK_CHUNKS", 1)
    monkeypatch.setattr(local_files, "_CHUNK_BYTES", 300)
    (tmp_path / "rows").mkdir()
    (tmp_path / "lines").mkdir()
    (tmp_path / "mixed.yaml").write_text(MIXED)
    for name in ("b", "é", "a", "Z", "c"):
        columns = {"at": seconds(*(drawn.randrange(99) for _ in range(20))), "k": pa.array([name] * 20)}
        if name == "é":
            columns["k"] = pa.array([b"\xff", *[b"x"] * 19]).view(pa.string())
        land(tmp_path / "rows", name, columns, use_deprecated_int96_timestamps=name in "bc")
    for name in ("b", "x"):
        texts = [f'{{"at": "2026-01-01T00:00:{drawn.randrange(60):02}Z", "k": "{number}"}}' for number in range(60)]
        texts[drawn.randrange(60)] = '{"k": 1}' if name == "b" else "{"
        (tmp_path / "lines" / name).write_text("\n".join(texts) + "\n")
    mixed = log_of(spark, tmp_path, "mixed")
    monkeypatch.setattr("tidemark.resources.sources.file_records.plain_file", lambda *_: None)
    assert mixed.num_rows == 5 * 20 + 2 * 60
    assert mixed.equals(log_of(spark, tmp_path, "by_spark"))


def test_only_files_that_arrow_cannot_read_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    given, text = source("at TIMESTAMP, k STRING"), pa.array([b"x", b"\xff"]).view(pa.string())
    texts = {"a": pa.array(["x", "y"]), "b": pa.array(["x", "y"]), "c": text}
    landed = [
        land(tmp_path, name, {"at": seconds(1, 2), "k": kinds}, use_deprecated_int96_timestamps=name == "b")
        for name, kinds in texts.items()
    ]
    read = read_files(spark, given, landed, tmp_path / "copies")
    assert [file.name for file in read.plain] == ["a", "c"]
    assert [row[c.FILE] for row in read.records.collect()] == ["b", "b"]
    schema = to_arrow_schema(log_schema(payload_schema(spark, given)), timezone="UTC")
    rest = read.leaving([file for file in read.plain if not file.can_be_read(schema)])
    assert [file.name for file in rest.plain] == ["a"]
    malformed = {(row[c.FILE], row[c.POSITION]) for row in rest.records.where("_malformed IS NOT NULL").collect()}
    assert (rest.records.count(), malformed) == (4, {("c", 2)})
    assert rest.states == read.states


def test_pieces_that_cannot_be_read_to_their_end_leave_no_file(spark: SparkSession, tmp_path: Path) -> None:
    def breaks(schema: pa.Schema) -> Any:
        yield pa.RecordBatch.from_pylist([{"n": 1}], schema)
        raise pa.ArrowInvalid("damaged")

    lake = Lake(tmp_path / "lake", lambda: spark)
    lake.create("raw_events", StructType.fromDDL("n BIGINT"))
    with pytest.raises(pa.ArrowInvalid):
        lake.replace_pieces("raw_events", [breaks], where=NO_ROWS, attempt=1, expect=0)
    assert not list((tmp_path / "lake").rglob("*.parquet"))
    assert lake.version("raw_events") == 0
