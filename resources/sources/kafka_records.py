"""Records of Kafka, in the ranges that discovery chose, each with its place in the log.

Here: a copy of the records that Spark reads, and their values as JSON, Avro or raw bytes. Not here: the choice of
offsets (resources/sources/kafka.py), asking the brokers (resources/sources/kafka_connection.py), the shape of a
record (resources/sources/records.py).

Kafka is read once, and the copy stays until the records are written: a second reading may find fewer, as brokers
compact and delete.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import BinaryType, StringType, StructType

from tidemark.resources.places.place import Place
from tidemark.resources.sources.columns import check_names, names_there
from tidemark.resources.sources.conversion import ensure_can_be_kept, fit_error, types_in, values_to_keep
from tidemark.resources.sources.kafka_connection import Broker, Connection
from tidemark.resources.sources.kafka_offsets import OffsetRange
from tidemark.resources.sources.lines import new_file
from tidemark.resources.sources.local_files import spark_path
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
from tidemark.timeops.spec import KafkaSource
from tidemark.timeops.values.utc import FIRST_US, LAST_US

if TYPE_CHECKING:
    from confluent_kafka import Message


_KEY, _VALUE, _HEADERS, _STAMPED = "__tm_key", "__tm_value", "__tm_headers", "__tm_stamped"
_LARGE = "__tm_large"
_TOPIC, _PARTITION, _INNER = "__tm_topic", "__tm_partition", "__tm_inner"
_EXCLUDED = "org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime,org.slf4j:slf4j-api"
"""Packages that Spark has by itself."""


def avro_package() -> str:
    """Return the Maven coordinate of Spark's reader of Avro for the installed PySpark."""
    return f"org.apache.spark:spark-avro_2.13:{version('pyspark')}"


def read_offsets(
    spark: SparkSession,
    source: KafkaSource,
    ranges: Sequence[OffsetRange],
    base: Path,
    *,
    copy: Place,
    time_zone: str = "UTC",
) -> SourceRead:
    """Read the records of ranges, as records like the ones of files; they are fetched and copied now.

    `_file` is the topic-partition, such as `orders-3`, `_position` the offset, `_modified` the timestamp. A record
    without a value, a tombstone, has only the payload columns of `metadata`.

    Args:
        spark: The session.
        source: The source.
        ranges: The offsets.
        base: The folder of the spec file.
        copy: A file that is not there yet; every Spark that reads the records can read it.
        time_zone: Zone for times without one, unless the source has its own.

    Raises:
        SpecError: `schema` or `rename` of the source is wrong.
        InputError: The records cannot be fetched, or the Avro schema does not fit.
        MachineError: Spark has no reader of Avro, and cannot fetch it, or there is no room for the records.
    """
    schema = schema_in_input(spark, source)
    if not ranges:
        return SourceRead(no_records(spark, source), count=0)
    if source.format == "avro":
        _ensure_avro(spark)
    wanted = StructType([field for field in schema if field.name not in source.added_columns])
    unwanted = [column for name, column in _ON_DEMAND.items() if name not in source.metadata]
    fields = {name: field for name, field in _FIELDS.items() if name not in unwanted}
    count = _copied(source, ranges, fields, base, copy)
    types = ", ".join(f"{name} {ddl}" for name, (_, ddl, _) in fields.items())
    rows = _with_place(spark.read.schema(types).parquet(spark_path(str(copy))), source)
    return SourceRead(_records(rows, source, wanted, base, source.time_zone or time_zone), count=count)


def _ensure_avro(spark: SparkSession) -> None:
    """Add the reader of Avro to a session that lacks it: it is fetched from Maven Central the first time.

    Raises:
        MachineError: It cannot be fetched.
    """
    if _has_avro(spark):
        return
    try:
        spark.sql(f"ADD JAR ivy://{avro_package()}?exclude={_EXCLUDED}").collect()
    except SPARK_FAILURES as error:
        raise _no_avro(first_line(error)) from error
    if not _has_avro(spark):
        raise _no_avro("its jars were added, and it is not found")


def _has_avro(spark: SparkSession) -> bool:
    try:
        _ = spark.range(0).select(from_avro(F.lit(b""), '"string"')).schema
    except AnalysisException:
        return False
    return True


def _no_avro(why: str) -> MachineError:
    package = avro_package()
    return MachineError(
        f"Spark has no reader {package}, and could not get it: {why}",
        expected="a network in which Maven Central, or the mirror named in spark.jars.repositories, can be reached",
        remedy=f"start the Spark that computes with `--packages {package}`; `tidemark serve` does so by itself, if "
        "TIDEMARK_SPECS names the folder of the spec when it starts.",
    )


_FIRST_MS, _LAST_MS = -(FIRST_US // -1_000), LAST_US // 1_000
_PIECE_BYTES, _PIECE_RECORDS = 16 << 20, 50_000
"""How much of the records this process and a task of Spark hold at a time."""
_WRITTEN_AS: Mapping[str, Any] = {
    "compression": "snappy",
    "use_dictionary": [_TOPIC, _PARTITION, _STAMPED],
    "write_statistics": False,
}


def _headers(record: "Message") -> Sequence[tuple[str, bytes | None] | None] | None:
    """Return the headers of a record; with a null one if the client cannot decode them: a name is not UTF-8.

    To be called once for a record: the client fails at such a name, and the next time returns a list with null
    pointers, which end the process. In a plain call, Python would not always see that it failed.
    """
    try:
        return cast("list[tuple[str, bytes | None] | None]", _HEADERS_CHECKED(record)) or None
    except (UnicodeDecodeError, SystemError):
        return [None]


_HEADERS_CHECKED = methodcaller("headers")


def _instant_us(record: "Message") -> int | None:
    """Return the timestamp in microseconds; None if a record has none in the years 0001 to 9999."""
    kind, ms = record.timestamp()
    return ms * 1_000 if kind and _FIRST_MS <= ms <= _LAST_MS else None


def _stamped_by(record: "Message") -> str | None:
    return (None, "CreateTime", "LogAppendTime")[record.timestamp()[0]]


_Field = tuple[pa.DataType, str, Callable[["Message"], object]]
_HEADERS_TYPE = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}.items()))
_FIELDS: Mapping[str, _Field] = {
    _VALUE: (pa.binary(), "BINARY", methodcaller("value")),
    _KEY: (pa.binary(), "BINARY", methodcaller("key")),
    _HEADERS: (_HEADERS_TYPE, "ARRAY<STRUCT<key: STRING, value: BINARY>>", _headers),
    _TOPIC: (pa.string(), "STRING", methodcaller("topic")),
    _PARTITION: (pa.int32(), "INT", methodcaller("partition")),
    POSITION: (pa.int64(), "BIGINT", methodcaller("offset")),
    MODIFIED: (pa.timestamp("us", "UTC"), "TIMESTAMP", _instant_us),
    _STAMPED: (pa.string(), "STRING", _stamped_by),
}
"""Columns of the copy: the type in Arrow and in Spark, and the value of a record."""
_ON_DEMAND: Mapping[str, str] = {"key": _KEY, "headers": _HEADERS, "timestamp_type": _STAMPED}


def _copied(
    source: KafkaSource, ranges: Sequence[OffsetRange], fields: Mapping[str, _Field], base: Path, copy: Place
) -> int:
    """Fetch the records and copy them to a file, once, now; return their number.

    Raises:
        InputError: They cannot be fetched.
    """
    try:
        broker = Broker(Connection.of(source, base))
        records = broker.records({(extent.topic, extent.partition): (extent.first, extent.end) for extent in ranges})
        return _write(records, fields, copy)
    except InputError as error:
        sentence = f"Source {source.name!r}: {error.found}; nothing was ingested"
        raise InputError(sentence, expected=error.expected, remedy=error.remedy) from error


def _write(records: Iterable["Message"], fields: Mapping[str, _Field], copy: Place) -> int:
    """Write records to a parquet file, some at a time: each piece is a row group, which a task of Spark holds."""
    schema, count = pa.schema([(name, kind) for name, (kind, _, _) in fields.items()]), 0
    with new_file(copy) as target, pq.ParquetWriter(target, schema, **_WRITTEN_AS) as writer:
        for rows in _pieces(records, [value for _, _, value in fields.values()]):
            columns = [
                pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), schema.types, strict=True)
            ]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            count += len(rows)
    return count


def _pieces(
    records: Iterable["Message"], values: Sequence[Callable[["Message"], object]]
) -> Iterator[list[tuple[object, ...]]]:
    """Yield the values of records, in pieces of some megabytes, or of one record that is larger."""
    rows: list[tuple[object, ...]] = []
    size = 0
    for record in records:
        row = tuple([value(record) for value in values])
        rows.append(row)
        size += sum(map(_size, row))
        if size >= _PIECE_BYTES or len(rows) == _PIECE_RECORDS:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _size(value: object) -> int:
    """Return the bytes of a key, a value or headers."""
    if isinstance(value, bytes):
        return len(value)
    return sum(len(part or "") for header in value for part in header or ()) if isinstance(value, list) else 0


def _with_place(rows: DataFrame, source: KafkaSource) -> DataFrame:
    """Add the split of a record, and how it begins if it is larger than a record may be; then it has no value."""
    on_demand = [column for column in (_KEY, _HEADERS) if column in rows.columns]
    sizes = {name: (F.col(name), rows.schema[name].dataType) for name in on_demand}
    marked = rows.withColumn(_LARGE, too_large({"value": (F.col(_VALUE).cast("string"), StringType()), **sizes}))
    fits = F.col(_LARGE).isNull()
    value = F.col(_VALUE) if source.skip_bytes is None else F.substring(_VALUE, source.skip_bytes + 1, _LONGEST)
    return marked.withColumns(
        {
            _VALUE: F.when(fits, value),
            **{column: F.when(fits, F.col(column)) for column in on_demand},
            FILE: F.concat_ws("-", _TOPIC, F.col(_PARTITION).cast("string")),
        }
    )


_LONGEST = 2**31 - 1


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
    if "headers" in source.metadata:
        sentence = F.concat(F.coalesce(as_text(value), F.lit("")), F.lit(" (the name of a header is not UTF-8)"))
        is_unnamed = F.col(_HEADERS).isNotNull() & F.get(_HEADERS, F.lit(0)).isNull()
        malformed = F.when(is_unnamed, sentence).otherwise(malformed)
    return to_records(frame, source, columns, rescued, malformed)


def _metadata(name: str) -> Column:
    columns = {
        "key": lambda: as_text(F.col(_KEY)),
        "headers": lambda: F.transform(
            _HEADERS, lambda header: F.struct(header["key"].alias("key"), as_text(header["value"]).alias("value"))
        ),
        "topic": lambda: F.col(_TOPIC),
        "partition": lambda: F.col(_PARTITION),
        "offset": lambda: F.col(POSITION),
        "timestamp": lambda: F.col(MODIFIED),
        "timestamp_type": lambda: F.col(_STAMPED),
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
