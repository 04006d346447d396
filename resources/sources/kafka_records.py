"""Records of Kafka, in the ranges that discovery chose, each with its place in the log.

Here: Spark's reader of Kafka, its jars, and values as JSON, Avro or raw bytes. Not here: the choice of offsets
(kafka.py), how to connect (kafka_connection.py), the shape of a record (records.py).

Kafka is read once, and the records are kept until they are written: a second reading may find fewer, as brokers
compact and delete.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import BinaryType, StringType, StructType

from tidemark.resources.sources.columns import check_names, names_there
from tidemark.resources.sources.conversion import ensure_can_be_kept, fit_error, types_in, values_to_keep
from tidemark.resources.sources.kafka_connection import Broker, Connection
from tidemark.resources.sources.reader import SourceRead
from tidemark.resources.sources.records import (
    FILE,
    LINE,
    MODIFIED,
    POSITION,
    RAW,
    SPARK_FAILURES,
    Reading,
    as_text,
    cause_of,
    no_records,
    not_utf8,
    schema_in_input,
    to_records,
    too_large,
)
from tidemark.resources.sources.text_files import renamed_objects_of
from tidemark.timeops.errors import InputError, MachineError, first_line
from tidemark.timeops.expressions.column_types import ColumnType, converted
from tidemark.timeops.expressions.refusals import first_sentence
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.materialize import computed, from_driver
from tidemark.timeops.spec import KafkaSource
from tidemark.timeops.utc import FIRST_US, LAST_US

if TYPE_CHECKING:
    from confluent_kafka import Message

    from tidemark.resources.sources.kafka import OffsetRange


_KEY, _VALUE, _HEADERS, _KIND = "__tm_key", "__tm_value", "__tm_headers", "__tm_kind"
_LARGE = "__tm_large"
_TOPIC, _PARTITION, _INNER = "__tm_topic", "__tm_partition", "__tm_inner"
_EXCLUDED = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime,org.slf4j:slf4j-api"
"""Packages that Spark has by itself."""
_WAITS: Mapping[str, str] = {
    "kafka.request.timeout.ms": "5000",
    "kafka.default.api.timeout.ms": "5000",
    "kafkaConsumer.pollTimeoutMs": "5000",
    "fetchOffset.numRetries": "1",
}
"""How long Spark waits for brokers that do not answer: for records, and then once more to ask for the offsets."""


def kafka_package() -> str:
    """Return the Maven coordinate of Spark's reader of Kafka for the installed PySpark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version('pyspark')}"


def avro_package() -> str:
    """Return the Maven coordinate of Spark's reader of Avro for the installed PySpark."""
    return f"org.apache.spark:spark-avro_2.13:{version('pyspark')}"


def read_offsets(
    spark: SparkSession, source: KafkaSource, ranges: "Sequence[OffsetRange]", base: Path, time_zone: str = "UTC"
) -> SourceRead:
    """Read the records of ranges, as records like the ones of files; they are fetched now.

    `_file` is the topic-partition, such as `orders-3`, `_position` the offset, `_modified` the timestamp. A record
    without a value, a tombstone, has only the payload columns of `metadata`.

    Raises:
        SpecError: `schema` or `rename` of the source is wrong.
        InputError: The records cannot be fetched, or the Avro schema does not fit.
        MachineError: Spark has no reader of Kafka, and cannot fetch it.
    """
    schema = schema_in_input(spark, source)
    if not ranges:
        return SourceRead(no_records(spark, source))
    _ensure_reader(spark, kafka_package())
    if source.format == "avro":
        _ensure_reader(spark, avro_package())
    fetched = _fetched(spark, source, ranges, Connection.of(source, base))
    wanted = StructType([field for field in schema if field.name not in source.added_columns])
    return SourceRead(_records(fetched, source, wanted, base, source.time_zone or time_zone))


def _ensure_reader(spark: SparkSession, package: str) -> None:
    """Add a reader that Spark lacks to a session: it is fetched from Maven Central the first time.

    Raises:
        MachineError: The reader cannot be fetched.
    """
    name = "kafka" if "kafka" in package else "avro"
    if _has_reader(spark, name):
        return
    try:
        spark.sql(f"ADD JAR ivy://{package}?exclude={_EXCLUDED}").collect()
    except SPARK_FAILURES as error:
        raise _no_reader(package, first_line(error)) from error
    if not _has_reader(spark, name):
        raise _no_reader(package, "its jars were added, and it is not found")


def _has_reader(spark: SparkSession, name: str) -> bool:
    try:
        if name == "avro":
            _ = spark.range(0).select(from_avro(F.lit(b""), '"string"')).schema
        else:
            enough = {"kafka.bootstrap.servers": "127.0.0.1:1", "assign": '{"probe":[0]}'}  # without a connection
            _ = spark.read.format("kafka").options(**enough).load().schema
    except AnalysisException:
        return False
    return True


def _no_reader(package: str, why: str) -> MachineError:
    return MachineError(
        f"Spark has no reader {package}, and could not get it: {why}",
        expected="a network in which Maven Central, or the mirror named in spark.jars.repositories, can be reached",
        remedy=f"start the Spark that computes with `--packages {package}`; `tidemark serve` does so by itself, if "
        "TIDEMARK_SPECS names the folder of the spec when it starts.",
    )


def _fetched(
    spark: SparkSession, source: KafkaSource, ranges: "Sequence[OffsetRange]", connection: Connection
) -> DataFrame:
    """Return the records as Kafka has them, with their place; they are fetched once, now."""
    assigned: dict[str, list[int]] = defaultdict(list)
    firsts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for extent in ranges:
        assigned[extent.topic].append(extent.partition)
        firsts[extent.topic][str(extent.partition)] = extent.first
        ends[extent.topic][str(extent.partition)] = extent.end
    options = {
        **_WAITS,
        **connection.for_spark(),
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(firsts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
        "includeHeaders": "true" if "headers" in source.metadata else "false",
    }
    _hide_secrets(spark)
    try:
        rows = spark.read.format("kafka").options(**options).load()
        return computed(_with_place(rows.withColumn("us", F.unix_micros("timestamp")), source))
    except SPARK_FAILURES as error:
        if not _may_overflow(connection, ranges):
            raise _not_fetched(source, error) from error
        read = Broker(connection).records(
            {(extent.topic, extent.partition): (extent.first, extent.end) for extent in ranges}
        )
        frames = [
            computed(_with_place(_frame(spark, part), source)) for part in iter(lambda: [*islice(read, _AT_ONCE)], [])
        ]
        return reduce(DataFrame.unionByName, frames or [_with_place(_frame(spark, ()), source)])


def _with_place(rows: DataFrame, source: KafkaSource) -> DataFrame:
    """Return records from Kafka, with `us` as their timestamp, with the columns for further work."""
    value = F.col("value")
    if source.skip_bytes is not None:
        value = F.substring(value, source.skip_bytes + 1, _LONGEST)
    metadata = {name: column for name, column in (("key", _KEY), ("headers", _HEADERS)) if name in source.metadata}
    sizes = {name: (F.col(name), rows.schema[name].dataType) for name in metadata}
    large = too_large({"value": (F.col("value").cast("string"), StringType()), **sizes})
    is_told = (F.col("timestampType") != -1) & F.col("us").between(FIRST_US, LAST_US)
    return rows.select(
        F.when(large.isNull(), value).alias(_VALUE),
        large.alias(_LARGE),
        *[F.when(large.isNull(), F.col(name)).alias(column) for name, column in metadata.items()],
        F.col("topic").alias(_TOPIC),
        F.col("partition").alias(_PARTITION),
        F.concat_ws("-", "topic", F.col("partition").cast("string")).alias(FILE),
        F.col("offset").alias(POSITION),
        F.when(is_told, F.timestamp_micros("us")).alias(MODIFIED),
        F.col("timestampType").alias(_KIND),
    )


_AT_ONCE = 50_000  # records that this process holds
_OVERFLOWS_MS = (1 << 63) // 1_000
_SHORT_S = 2.0


def _may_overflow(connection: Connection, ranges: "Sequence[OffsetRange]") -> bool:
    """Return whether a timestamp makes Spark's reader fail: its microseconds do not fit a long.

    Brokers that were silent to Spark are not asked again.
    """
    ends = {(extent.topic, extent.partition): extent.end for extent in ranges}
    try:
        since = Broker(connection, _SHORT_S).since(dict.fromkeys(ends, _OVERFLOWS_MS))
    except InputError:
        return False
    return any(offset is not None and offset < ends[partition] for partition, offset in since.items())


def _frame(spark: SparkSession, records: Iterable["Message"]) -> DataFrame:
    """Return records that this process has read like Spark's reader; `us` is null if it does not fit a long."""
    rows = []
    for record in records:
        kind, ms = record.timestamp()
        pairs = cast("list[tuple[str, bytes]]", record.headers() or [])
        headers = [{"key": key, "value": value} for key, value in pairs]
        us = ms * 1_000 if abs(ms) < _OVERFLOWS_MS else None
        row = {"key": record.key(), "value": record.value(), "headers": headers or None, "timestampType": kind - 1}
        rows.append(
            {**row, "us": us, "topic": record.topic(), "partition": record.partition(), "offset": record.offset()}
        )
    return from_driver(spark, pa.Table.from_pylist(rows, schema=_READ))


_READ = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}.items())),
        "timestampType": pa.int32(),
        "us": pa.int64(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
    }.items()
)


_LONGEST = 2**31 - 1
_REDACTION = "spark.sql.redaction.string.regex"
_SECRETS = (
    r'kafka\.(?:sasl\.jaas\.config|ssl\.keystore\.key|ssl\.key\.password)"\s+value: '
    r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
)
"""The options that hold secrets, in the text of a request to a Connect server."""


def _hide_secrets(spark: SparkSession) -> None:
    """Let the pages of a Connect server, which show each request as text, leave out options with secrets."""
    if is_remote():
        pattern = spark.conf.get(_REDACTION, "") or ""
        if _SECRETS not in pattern:
            spark.conf.set(_REDACTION, f"{pattern}|{_SECRETS}" if pattern else _SECRETS)


_FAILURES: Sequence[tuple[str, str, str, str]] = (
    (
        r"Authorization\w*Exception|Not authorized",
        "this user may not read the topics",
        "a user with the permissions READ and DESCRIBE",
        "ask an administrator of the brokers for them, or correct `options` of the source",
    ),
    (
        r"AuthenticationException|SslHandshake|SSLHandshake",
        "Spark is not let in",
        "a user, a password and certificates that also Java takes; keys as PKCS#8",
        "correct `options` of the source, or the variables that they name",
    ),
    (
        r"Failed to create new \w*Client|Invalid PEM|InvalidConfigurationException",
        "Spark's client does not take the keys or certificates",
        "PEM, the key as PKCS#8 (`BEGIN PRIVATE KEY`), or encrypted in a way that Java's client knows",
        "convert the key, such as with `openssl pkcs8 -topk8 -v1 PBE-SHA1-3DES`, or correct `options` of the source",
    ),
    (
        r"KAFKA_DATA_LOSS|ome data may have been lost|Cannot fetch offset|OffsetOutOfRange|have been aged out",
        "records were deleted while they were read",
        "records that Kafka keeps until they were read",
        "run again: the run finds the missing records, and reports their offsets",
    ),
    (
        r"TimeoutException|DisconnectException|NetworkException|No resolvable bootstrap|Failed to construct kafka",
        "the brokers do not answer Spark while their records are read",
        "brokers that all machines of Spark reach",
        "see whether they run, and run again",
    ),
    (
        # The driver does not know the classes of a reader that was added to a running session.
        r"UnknownReason",
        "the brokers do not answer Spark while their records are read, or refuse them: Spark does not say why",
        "brokers that all machines of Spark reach, and that let it read",
        "see whether they run, and run again: the run reports the fault before Spark reads",
    ),
)


def _not_fetched(source: KafkaSource, error: Exception) -> InputError:
    """Return the error for records that could not be fetched, in words."""
    text = str(error)
    for pattern, fault, expected, remedy in _FAILURES:
        if re.search(pattern, text):
            sentence = f"Source {source.name!r}: {source.place}: {fault}; nothing was ingested"
            return InputError(sentence, expected=expected, remedy=remedy)
    why = first_sentence(error) if isinstance(error, PySparkException) else cause_of(error)
    return InputError(
        f"Source {source.name!r}: {source.place}: the records cannot be read: {why}",
        expected="brokers that answer; nothing was ingested",
        remedy="see the log of the broker, and run again",
    )


def _records(rows: DataFrame, source: KafkaSource, wanted: StructType, base: Path, time_zone: str) -> DataFrame:
    """Return values as records; a tombstone has no value, and is not malformed."""
    value, text = F.col(_VALUE), F.col(_VALUE).cast("string")
    nothing = F.lit(None).cast("string")
    if source.format == "json":
        lines = rows.withColumn(LINE, F.when(F.is_valid_utf8(text), text))
        reading = Reading(time_zone, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": RAW})
        read = renamed_objects_of(lines, wanted, source, reading, keep_unknown=source.keep_unknown)
        frame, columns, rescued = read.frame, read.columns, read.rescued
        malformed = F.when(F.col(LINE).isNull(), as_text(value)).otherwise(read.malformed)
    elif source.format == "avro":
        schema = _avro_schema(source, base)
        names = names_there(f"Source {source.name!r}", source, wanted.names, _fields(schema), of="schema file")
        fields = _check_avro(rows.sparkSession, source, schema, wanted, names)
        frame = rows.withColumn(_INNER, _avro(value, schema)["value"])
        kinds = cast(StructType, frame.schema[_INNER].dataType)
        inner, types = F.col(_INNER), types_in(wanted)
        columns = {
            name: F.expr(converted(f"{_INNER}.{quoted(field)}", fields[field], types[name], time_zone))
            for name, field in names.items()
        }
        rescued = values_to_keep(
            [(f"{_INNER}.{quoted(field)}", field, fields[field], types[name]) for name, field in names.items()],
            [(f"{_INNER}.{quoted(name)}", name, kind) for name, kind in fields.items() if name not in names.values()],
        )
        needed = [*(fields if source.keep_unknown else names.values())]
        of_texts = not_utf8({field: (inner[field], kinds[field].dataType) for field in needed})
        malformed = F.when(inner.isNull(), as_text(value)).otherwise(of_texts)
    else:
        frame, rescued = rows, nothing
        is_binary = isinstance(wanted[0].dataType, BinaryType)
        columns = {wanted[0].name: value if is_binary else text}
        malformed = nothing if is_binary else F.when(~F.is_valid_utf8(text), as_text(value))
    columns = {**columns, **{column: _metadata(name) for name, column in source.metadata.items()}}
    malformed = F.coalesce(_LARGE, F.when(value.isNotNull(), malformed))
    return to_records(frame, source, columns, rescued, malformed)


def _metadata(name: str) -> Column:
    kinds = F.when(F.col(_KIND) == 0, "CreateTime").when(F.col(_KIND) == 1, "LogAppendTime")
    columns = {
        "key": lambda: as_text(F.col(_KEY)),
        "headers": lambda: F.transform(
            _HEADERS, lambda header: F.struct(header["key"].alias("key"), as_text(header["value"]).alias("value"))
        ),
        "topic": lambda: F.col(_TOPIC),
        "partition": lambda: F.col(_PARTITION),
        "offset": lambda: F.col(POSITION),
        "timestamp": lambda: F.col(MODIFIED),
        "timestamp_type": lambda: kinds,
    }
    return columns[name]()


def _avro_schema(source: KafkaSource, base: Path) -> str:
    path = base / str(source.avro_schema)
    try:
        text = path.read_text(encoding="utf-8")
        kind = json.loads(text)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"it is not JSON: {error}"
        raise InputError(
            f"Source {source.name!r}: {path}, the schema of its values, cannot be read: {why}",
            expected="a file with an Avro schema, relative to the spec file",
            remedy="correct `avro_schema`",
        ) from error
    if not isinstance(kind, dict) or kind.get("type") != "record":
        raise InputError(
            f"Source {source.name!r}: {path} is not the schema of a record",
            expected='an Avro schema with "type": "record"',
            remedy="correct `avro_schema`",
        )
    return text


def _fields(schema: str) -> list[str]:
    return [str(field["name"]) for field in json.loads(schema)["fields"]]


def _avro(value: Column, schema: str) -> Column:
    """Return the struct `value` around a record; it is null if the bytes are not a record.

    A record and a struct that holds only this record have the same bytes. For other bytes Spark returns a struct of
    nulls: here that is the outer one.
    """
    outer = {"type": "record", "name": "__tm_outer", "fields": [{"name": "value", "type": json.loads(schema)}]}
    return from_avro(value, json.dumps(outer), {"mode": "PERMISSIVE"})


def _check_avro(
    spark: SparkSession, source: KafkaSource, schema: str, wanted: StructType, names: Mapping[str, str]
) -> dict[str, ColumnType]:
    """Check that the columns of the spec are fields of the Avro schema, with types that fit; return its types.

    Raises:
        InputError: A column is missing or has another type, or two fields differ in case only.
    """
    try:
        shape = spark.range(0).select(_avro(F.lit(b""), schema)["value"].alias("value")).schema["value"].dataType
    except SPARK_FAILURES as error:
        raise InputError(
            f"Source {source.name!r}: Spark takes {source.avro_schema} for no Avro schema: {first_sentence(error)}",
            expected="the schema that the values were written by",
            remedy="correct the file",
        ) from error
    assert isinstance(shape, StructType)
    where = f"Source {source.name!r}: {source.avro_schema}"
    check_names(where, [*(names[field.name] for field in wanted), *shape.names], shape.names, of="schema file")
    types, file = types_in(shape), str(source.avro_schema)
    for name, kind in types_in(wanted).items():
        field = names[name]
        if misfit := fit_error(file, field, types[field], kind, of="schema file"):
            raise misfit
    for name, kind in types.items() if source.keep_unknown else ():
        ensure_can_be_kept(file, name, kind, of="schema file")
    return types
