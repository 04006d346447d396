"""Expressions that fail whatever the record holds, found on made-up records before any real one.

Here: values of every type, and which failures are those of the expression and not of a value. Not here: failures on
real records (try_expression.py).

A failure is the expression's own if no made-up record has a value, and Spark blames what the expression itself says:
a pattern, a format, a regular expression, a zone. It is so too if all records fail by an index or a size. A function
that wants values of a special form, such as `to_number`, may fail on all made-up records and be right.
"""

import re
from collections.abc import Iterable
from contextlib import suppress

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.bounds import bounded
from tidemark.timeops.expressions.refusals import REFUSALS, first_sentence
from tidemark.timeops.expressions.tokens import WORKING
from tidemark.timeops.expressions.try_expression import attempt_sql, cannot_fail

_RECORDS = 500
_ID = f"{WORKING}record"
_TEXTS = (
    "a|B c|ä|1|-2.5|12|2026|00|2026-05-01|2026-05-01T10:00:00Z|2026-05-01 10:00:00|12:15:00|01/05/2026|UTC"
    '|Europe/Berlin|{"a": 1}|[1]|<a>1</a>|https://example.org/a?b=c|YQ==|a,b|a=1|true|DAY|utf-8|192.0.2.1'
)
_NUMBERS = "0|1|2|3|7|12|60|100|2026|86400|1777593600|-1|0.5"
_TIMES = "1970-01-01 00:00:00|2026-05-01 10:00:00|2024-02-29 23:59:59.999999|1999-12-31 12:00:00"
_OF_THE_EXPRESSION = re.compile(
    r"pattern|INVALID_PARAMETER_VALUE\.(?!AES)|IllegalFormat|MissingFormat|UnknownFormat|INVALID_TIMEZONE"
    r"|Unsupported field|UnsupportedTemporal",
    re.IGNORECASE,
)
_OF_A_NUMBER = re.compile(r"INDEX_OF_ZERO|would make more than")
_JAVA = re.compile(r"java\.(?:\w+\.)+(\w+(?:Exception|Error): .*)")


def faults_of(frame: DataFrame, expressions: Iterable[str]) -> dict[str, str]:
    """Return the expressions over the columns of a frame that fail on every record, with what Spark says of them."""
    may_fail = [text for text in dict.fromkeys(expressions) if not cannot_fail(frame, text)]
    if not may_fail:
        return {}
    columns = [_value(field.dataType, number).alias(field.name) for number, field in enumerate(frame.schema)]
    records = frame.sparkSession.range(0, _RECORDS, numPartitions=1).select(F.col("id").alias(_ID), *columns)
    tried: dict[str, Column] = {}
    for text in may_fail:
        with suppress(SpecError):  # a clock, which is refused with words of its own
            tried[text] = F.expr(attempt_sql(records, text))
    if not tried:
        return {}
    failed = [F.min(F.when(F.size(one) == 0, F.col(_ID))) for one in tried.values()]
    given = [F.count(F.get(one, F.lit(0))) for one in tried.values()]
    times = [F.count_if(F.size(one) == 0) for one in tried.values()]
    counts = {"failed": failed, "given": given, "times": times}
    try:
        [row] = records.agg(*[F.array(*each).alias(name) for name, each in counts.items()]).collect()
    except REFUSALS:  # on made-up records alone, for all that is known
        return {}
    found = {}
    for text, first, values, failures in zip(tried, row["failed"], row["given"], row["times"], strict=True):
        record = records.where(F.col(_ID) == first)
        said = "" if first is None or values else _said(record, text, always=failures == _RECORDS)
        if said:
            found[text] = said
    return found


def _said(record: DataFrame, expression: str, *, always: bool) -> str:
    """Return what Spark says of an expression that fails on a record; nothing where it blames the record."""
    try:
        record.select(F.expr(f"({bounded(expression)}\n)")).collect()
    except REFUSALS as error:
        whole = str(error)
        told = whole.partition("\n\tat ")[0]
        if not _OF_THE_EXPRESSION.search(told) and not (always and _OF_A_NUMBER.search(told)):
            return ""
        if "INCONSISTENT_BEHAVIOR_CROSS_VERSION" in whole:
            return "Spark has no such pattern: of years by weeks, such as `YYYY` and `ww`, there is none"
        java = _JAVA.search(whole)
        return first_sentence(error) if isinstance(error, PySparkException) or java is None else java[1]
    return ""


def _value(kind: DataType, salt: int) -> Column:
    """Return a made-up value of a type; which one of several depends on the record and the column."""
    if isinstance(kind, ArrayType):
        return F.array(_value(kind.elementType, salt), _value(kind.elementType, salt + 1000))
    if isinstance(kind, MapType):
        return F.create_map(_value(kind.keyType, salt), _value(kind.valueType, salt))
    if isinstance(kind, StructType):
        return F.struct(*[_value(one.dataType, salt + n).alias(one.name) for n, one in enumerate(kind)])
    texts = _texts(kind)
    if not texts:
        return F.lit(None).cast(kind)
    place = F.pmod(F.xxhash64(_ID, F.lit(salt)), F.lit(len(texts))) + 1
    return F.element_at(F.array(*map(F.lit, texts)), place.cast("int")).cast(kind)


def _texts(kind: DataType) -> list[str]:
    if isinstance(kind, StringType | BinaryType):
        return _TEXTS.split("|")
    if isinstance(kind, NumericType):
        return _NUMBERS.split("|")
    if isinstance(kind, BooleanType):
        return ["true", "false"]
    return _TIMES.split("|") if isinstance(kind, DateType | TimestampType | TimestampNTZType) else []
