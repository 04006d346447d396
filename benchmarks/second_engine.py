"""Features that a server of PySail lacks to compute in Spark's place: `python -m benchmarks.second_engine`.

Here: small questions, what Spark answers, and asking them of a server that this starts, or of Spark in this process.
Not here: what the answers mean (second_engine.md).
"""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, DataFrameReader, Observation, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidemark.resources.sources.local_files import spark_path
from tidemark.resources.spark.client import allow_deep_plans, release_in_a_thread
from tidemark.resources.spark.session import local_session, session_config
from tidemark.timeops.computing.session import SESSION_SETTINGS

SERVER = """
import sys
from pysail.spark import SparkConnectServer
server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
print(server.listening_address[1], flush=True)
sys.stdin.read()
"""
PARSING = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "raw"}
RECORD = "a INT, b STRING, raw STRING"
Ask = Callable[[SparkSession, Path], object]


@dataclass(frozen=True)
class Case:
    """A question, by what it is about, and Spark's answer."""

    group: str
    what: str
    expected: object
    ask: Ask


CASES: list[Case] = []


def case(group: str, what: str, expected: object) -> Callable[[Ask], Ask]:
    """Takes a function as a case; its docstring says what the server does instead."""

    def take(ask: Ask) -> Ask:
        CASES.append(Case(group, what, expected, ask))
        return ask

    return take


def rows(frame: DataFrame) -> list[object]:
    """Return the rows as tuples; of a single column its values."""
    return [row[0] if len(row) == 1 else tuple(row) for row in frame.collect()]


def of_one(text: str) -> Ask:
    """Ask for the value of an expression over one row, whose `id` is 0."""
    return lambda spark, _: rows(spark.range(1).select(F.expr(text)))[0]


def text_file(folder: Path, name: str, content: bytes) -> str:
    """Write a file with some bytes, named as Spark's readers name it."""
    (folder / name).write_bytes(content)
    return spark_path(str(folder / name))


def parquet_file(folder: Path) -> str:
    """Write a parquet file of three rows."""
    pq.write_table(pa.table({"a": [10, 20, 30]}), folder / "three.parquet")
    return spark_path(str(folder / "three.parquet"))


def delta_table(folder: Path) -> str:
    """Write a table with delta-rs, in two commits."""
    path = tempfile.mkdtemp(dir=folder)
    write_deltalake(path, pa.table({"k": [1, 2]}))
    write_deltalake(path, pa.table({"k": [3]}), mode="append")
    return path


def _keys(reader: DataFrameReader, folder: Path) -> list[object]:
    return sorted(rows(reader.format("delta").load(delta_table(folder))), key=str)


ID = "monotonically_increasing_id()"
SUM = "SELECT sum(id) FROM {log}"
ENGINE, FILES, TABLES, USERS, LAST = GROUPS = ("engine", "files", "tables", "users' expressions", "long queries")


@case(ENGINE, "max(struct(a, b)) where a is null in a row", [(1, 3), (2, 7)])
def _largest_struct(spark: SparkSession, _: Path) -> object:
    """To Spark null is the smallest value of `a`; the server passes over it, and `b` decides."""
    values = "VALUES (1, NULL, 1), (1, 2, 3), (2, 5, 7), (2, NULL, 9)"
    pairs = spark.sql(f"SELECT * FROM {values} AS t(k, a, b)").groupBy("k").agg(F.max(F.struct("a", "b")).alias("m"))
    return sorted(rows(pairs.select("k", "m.b")), key=str)


@case(ENGINE, "unionByName(allowMissingColumns=True), the left frame lacks a struct", [None, 1])
def _union(spark: SparkSession, _: Path) -> object:
    """Spark uses the type of the right frame's column; with the server it is void and has no field."""
    left, right = spark.sql("SELECT 1 AS k"), spark.sql("SELECT 1 AS k, struct(1 AS x) AS v")
    return sorted(rows(left.unionByName(right, allowMissingColumns=True).select("v.x")), key=str, reverse=True)


@case(ENGINE, "explode(map_from_arrays(…)) of structs, one nullable, one not", [0, None])
def _maps(spark: SparkSession, _: Path) -> object:
    """Spark widens the type of the array; a task of the server panics."""
    ids = F.array(F.struct(F.col("id").alias("x")), F.struct(F.lit(None).cast("bigint").alias("x")))
    sides = F.explode(F.map_from_arrays(F.array(F.lit("before"), F.lit("after")), ids)).alias("side", "place")
    return rows(spark.range(1).select(sides).select("place.x"))


def _condition(spark: SparkSession, query: str) -> object:
    try:
        spark.sql(query).collect()
    except Exception as error:
        return tuple(getattr(error, name, lambda: None)() for name in ("getCondition", "getSqlState"))
    return "no error"


def _steps(spark: SparkSession, count: int) -> object:
    frame = spark.range(1)
    for _ in range(count):
        frame = frame.withColumn("id", F.col("id") + 1)
    return rows(frame)[0]


@case(ENGINE, "localCheckpoint() keeps random numbers", True)
def _checkpoint(spark: SparkSession, _: Path) -> object:
    """SAIL_EXECUTION__CHECKPOINT__PATH has to be set for the server, which this script does."""
    kept = spark.range(3).withColumn("r", F.rand()).localCheckpoint()
    return rows(kept) == rows(kept)


@case(ENGINE, "observe(), which Tidemark does not use", (10, 9))
def _observed(spark: SparkSession, _: Path) -> object:
    """Metrics are collected by it, which the server refuses."""
    seen = Observation()
    spark.range(10).observe(seen, F.count("*").alias("n"), F.max("id").alias("last")).collect()
    return seen.get["n"], seen.get["last"]


@case(FILES, "repartitionById(3, …), then spark_partition_id()", [(0, 0), (1, 1), (2, 2)])
def _by_id(spark: SparkSession, _: Path) -> object:
    """Numbers of ingested records rest on it where several tasks sort them. The server does not know it."""
    placed = spark.range(3).withColumn("p", F.col("id").cast("int")).repartitionById(3, "p")
    return sorted(rows(placed.select("p", F.spark_partition_id())), key=str)


@case(FILES, "read.text of a file named `a[1].jsonl`, its brackets escaped", ["1"])
def _odd_name(spark: SparkSession, folder: Path) -> object:
    """Spark reads it. The server finds no file and returns no rows, without an error."""
    return rows(spark.read.text(text_file(folder, "a[1].jsonl", b"1\n")))


@case(FILES, "read.text of bytes that are no UTF-8, then make_valid_utf8", ["a\ufffdb", "c"])
def _not_utf8(spark: SparkSession, folder: Path) -> object:
    """Spark replaces them. The server fails, and with it the batch."""
    lines = spark.read.text(text_file(folder, "bytes.jsonl", b"a\xffb\nc\n"))
    return rows(lines.select(F.make_valid_utf8("value")))


@case(FILES, "_metadata.file_path and file_block_start of lines", ["lines.txt", 0])
def _block(spark: SparkSession, folder: Path) -> object:
    """Records are numbered by their position in a file, which rests on these. The server has no such column."""
    lines = spark.read.text(text_file(folder, "lines.txt", b"1\n"))
    path, start = lines.select("_metadata.file_path", "_metadata.file_block_start").collect()[0]
    return [Path(path).name, start]


@case(FILES, "_metadata.row_index of a parquet file, by metadataColumn", [(10, 0), (20, 1), (30, 2)])
def _row_index(spark: SparkSession, folder: Path) -> object:
    """Rows are numbered by it; the server refuses to resolve it."""
    scan = spark.read.parquet(parquet_file(folder))
    return rows(scan.select("a", scan.metadataColumn("_metadata")["row_index"]))


@case(FILES, "read.csv with multiLine and columnNameOfCorruptRecord", [(1, "x\ny", None)])
def _multiline(spark: SparkSession, folder: Path) -> object:
    """Malformed records keep their text by it; the server takes the column for one of the file, and fails."""
    reader = spark.read.options(**PARSING, multiLine="true", header="false").schema(RECORD)
    return rows(reader.csv(text_file(folder, "long.csv", b'1,"x\ny"\n')))


def _written(spark: SparkSession, folder: Path, mode: str, **options: str) -> object:
    path = delta_table(folder)
    writer = spark.range(1).select(F.col("id").alias("k")).write.format("delta").mode(mode)
    writer.options(userMetadata="attempt 1", **options).save(path)
    table = DeltaTable(path)
    said = table.history(1)[0]
    return table.version(), said.get("userMetadata"), int(said["operationMetrics"]["numOutputRows"])


UNKNOWN = ("UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703")
RAISED = ("USER_RAISED_EXCEPTION", "P0001")
DONE = (2, "attempt 1", 1)  # version, what the commit says, rows that it added
EXTENSIONS = "spark.sql.extensions"
CASES += [
    # Spark names class and state of an error; the server sends a message alone.
    Case(ENGINE, "error of raise_error", RAISED, lambda spark, _: _condition(spark, "SELECT raise_error('no')")),
    Case(ENGINE, "error of an unknown column", UNKNOWN, lambda spark, _: _condition(spark, "SELECT a FROM range(1)")),
    # What Tidemark looks for before it takes a server; this one writes Delta tables without it.
    Case(TABLES, f"{EXTENSIONS} names Delta", True, lambda spark, _: "Delta" in str(spark.conf.get(EXTENSIONS, ""))),
    Case(TABLES, "append to a Delta table", DONE, lambda spark, at: _written(spark, at, "append")),
    Case(TABLES, "replaceWhere", DONE, lambda spark, at: _written(spark, at, "overwrite", replaceWhere="k < 3")),
    Case(LAST, "a query of 100 steps", 100, lambda spark, _: _steps(spark, 100)),
    # Spark computes it. The server dies of it, with all its sessions.
    Case(LAST, "a query of 400 steps", 400, lambda spark, _: _steps(spark, 400)),
    Case(ENGINE, 'hint("rebalance"), ignored', [0], lambda spark, _: rows(spark.range(1).hint("rebalance"))),
    Case(ENGINE, 'sql("… {log}", log=frame)', [6], lambda spark, _: rows(spark.sql(SUM, log=spark.range(4)))),
    Case(ENGINE, "toArrow()", [{"id": 0}], lambda spark, _: spark.range(1).toArrow().to_pylist()),
    Case(FILES, ID, [0, 1 << 33], lambda spark, _: rows(spark.range(0, 2, 1, 2).selectExpr(ID))),
    Case(FILES, "read.text", ["", "x"], lambda spark, at: rows(spark.read.text(text_file(at, "x", b"\nx\n")))),
    Case(FILES, "read.parquet", [10, 20, 30], lambda spark, at: rows(spark.read.parquet(parquet_file(at)))),
    Case(TABLES, "a table that delta-rs wrote", [1, 2, 3], lambda spark, at: _keys(spark.read, at)),
    Case(TABLES, "… at version 0", [1, 2], lambda spark, at: _keys(spark.read.option("versionAsOf", 0), at)),
]
NO_STRUCTS, ONE_STRUCT = "CAST(array() AS ARRAY<STRUCT<x: BIGINT>>)", "struct(id AS x)"
OF_LINE = f"'{RECORD}', map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', 'raw')"
EXPRESSIONS: Mapping[str, Mapping[str, object]] = {
    ENGINE: {
        # Instead of the map above; equal.
        f"inline(array({ONE_STRUCT}, struct(id + 1 AS x)))": 0,
        # Spark widens the struct, whose field is never null; the server refuses, but for `named_struct` or a cast.
        f"size(array_append({NO_STRUCTS}, {ONE_STRUCT}))": 1,
        f"size(array_append({NO_STRUCTS}, named_struct('x', id)))": 1,
        f"size(concat({NO_STRUCTS}, array({ONE_STRUCT})))": 1,
    },
    FILES: {
        # The text of a record that does not fit: the server returns null, so there is no dead letter.
        f'from_json(\'{{"a":"x"}}\', {OF_LINE}).raw': '{"a":"x"}',
        # The server takes the column of the malformed text for one of the file, and fails.
        f"from_csv('1,x', {OF_LINE}).b": "x",
        # What `keep_unknown` keeps of an object: the server returns nulls for the values.
        """to_json(from_json('{"a":1,"b":[1,2]}', 'map<string, variant>'))""": '{"a":1,"b":[1,2]}',
        # A key that an object has twice makes it malformed; the server drops the call.
        """from_json('{"a":3,"a":4}', 'variant')""": None,
    },
    USERS: {
        "try_cast('x' AS INT)": None,
        "try_add(9223372036854775807L, 1L)": None,
        "try_subtract(-9223372036854775807L, 2L)": None,
        "try_divide(1, 0)": None,
        "try_element_at(array(1), 5)": None,
        "try_to_timestamp('x')": None,
        "CAST(try_to_date('x') AS STRING)": None,
        "CAST(to_utc_timestamp(TIMESTAMP '2026-03-29 02:30:00', 'Europe/Berlin') AS STRING)": "2026-03-29 01:30:00",
        "CAST(to_utc_timestamp(TIMESTAMP '2026-10-25 02:30:00', 'Europe/Berlin') AS STRING)": "2026-10-25 00:30:00",
        "timestampdiff(MICROSECOND, TIMESTAMP '2026-01-01', TIMESTAMP '2026-01-02')": 86_400_000_000,
        "CAST(300 AS TINYINT)": 44,
        "CAST(1e20D AS BIGINT)": 9223372036854775807,
        "element_at(array(1), 5)": None,
        "CAST(1e20D AS STRING)": "1.0E20",
        "to_json(array(1e20D))": "[1.0E20]",
        "to_json(array(CAST(1.10 AS DECIMAL(5, 2))))": "[1.10]",
        "to_json(struct(1 AS a, NULL AS b), map('ignoreNullFields', 'false'))": '{"a":1,"b":null}',
        "to_json(struct(TIMESTAMP '2026-01-01' AS a))": '{"a":"2026-01-01T00:00:00.000Z"}',
        "round(1.005D, 2)": 1.01,
        "CAST(CAST(10 AS DECIMAL(38, 10)) * 3.0000000000 AS STRING)": "30.00000000",
        "CAST(CAST('99999999999999999999999999999999999999' AS DECIMAL(38, 0)) + 1 AS STRING)": None,
        "regexp_replace('aXb', '(?<=a)X', '-')": "a-b",
        "size(zip_with(array(1), array(2), (x, y) -> x + y))": 1,
        "xxhash64('a', 1L)": -1010403264180844141,
    },
}


CASES += [
    Case(group, text, expected, of_one(text)) for group, of in EXPRESSIONS.items() for text, expected in of.items()
]


@contextmanager
def here() -> Iterator[SparkSession]:
    """Spark in this process."""
    session = local_session(session_config(small=True))
    yield session
    session.stop()


@contextmanager
def server(python: str, folder: Path) -> Iterator[SparkSession]:
    """Open a session of a PySail server that another Python runs, for the length of the block."""
    environment = {**os.environ, "SAIL_EXECUTION__CHECKPOINT__PATH": f"file://{folder}"}
    with (
        (folder / "server.log").open("w") as log,
        subprocess.Popen(
            [python, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        ) as process,
    ):
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise click.ClickException(f"the server did not start:\n{(folder / 'server.log').read_text()}")
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - takes a second to import

        allow_deep_plans()
        release_in_a_thread()
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").getOrCreate()
        session.client.set_retry_policies([DefaultPolicy(max_retries=1)])  # what is dropped is to show, not to wait
        for name, value in SESSION_SETTINGS.items():
            session.conf.set(name, value)
        try:
            yield session
        finally:
            with suppress(Exception):
                session.stop()
            process.terminate()


def answer(one: Case, spark: SparkSession, folder: Path) -> object:
    """Return the answer of a session, or its error in one line."""
    try:
        return one.ask(spark, folder)
    except Exception as error:
        said = next((line.strip() for line in str(error).splitlines() if "details" in line), str(error))
        return f"{type(error).__name__}: {' '.join(said.split())[:100]}"


@click.command()
@click.option("--server-python", help="A Python with PySail; without it Spark in this process is asked.")
def main(server_python: str | None) -> None:
    """Asks all questions, and prints the answers beside Spark's."""
    asked = "PySail" if server_python else "Spark here"
    table = Table("", "what", "Spark", asked, "equal")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(server_python, folder) if server_python else here() as spark:
            for one in sorted(CASES, key=lambda one: GROUPS.index(one.group)):
                got = answer(one, spark, folder)
                equal = "yes" if repr(got) == repr(one.expected) else "NO"
                table.add_row(one.group, *(escape(str(text)) for text in (one.what, one.expected, got)), equal)
    Console().print(table)


if __name__ == "__main__":
    main()
