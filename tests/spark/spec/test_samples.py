"""Made-up records show which expressions fail on every record, and which want values of a special form."""

import pytest
from pyspark.sql import SparkSession

from tidemark.timeops.expressions.refusals import faults_of
from tidemark.timeops.expressions.try_expression import Columns

COLUMNS = (
    "t STRING, n BIGINT, x DOUBLE, at TIMESTAMP, a ARRAY<STRING>, b BINARY, m MAP<STRING, INT>, s STRUCT<k: STRING>"
)
WRONG = [
    "date_format(CAST(t AS TIMESTAMP), 'YYYY-MM-dd')",
    "to_date(s.k, 'yyyy-MM-dd bbb')",
    "format_string('%q', n)",
    "encode(t, 'utf-99')",
    "element_at(a, 0)",
    "from_utc_timestamp(at, 'Nowhere/City')",
    "repeat('a', 2000000000)",
]
RIGHT = [
    "to_timestamp(t, 'dd.MM.yyyy HH:mm')",
    "date_format(at, t)",
    "from_utc_timestamp(at, t)",
    "to_number(t, '$99.99')",
    "variant_get(parse_json(t), '$.temperature', 'double')",
    "hll_sketch_estimate(b)",
    "CAST(aes_decrypt(b, '0123456789abcdef') AS STRING)",
    "timestamp_millis(n)",
    "sequence(1L, n)",
    "t RLIKE t",
    "m[t] + element_at(a, CAST(x AS INT))",
    "from_json(t, 'k INT').k",
]


@pytest.mark.long
def test_only_what_fails_whatever_the_record_holds_is_a_fault(spark: SparkSession) -> None:
    columns = Columns.of(spark.createDataFrame([], COLUMNS))
    assert list(faults_of(columns, [*RIGHT, *WRONG])) == WRONG
