"""Expressions that cannot be used: Spark refuses them, or they fail whatever a record holds.

Here: Spark's error conditions in words of the spec, made-up records with values of every type, and which failures on
them are the fault of the expression and not of a value. Not here: which expressions are asked about
(timeops/spec_check.py), failures on real records (timeops/expressions/try_expression.py).

A failure is the expression's own if no made-up record has a value, and Spark blames what the expression itself says:
a pattern, a format, a regular expression, a zone. It is so too if all records fail by an index or a size. A function
that wants values of a special form, such as `to_number`, may fail on all made-up records and be right.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.timeops.computing.materialize import from_driver
from tidemark.timeops.errors import SpecError, first_line
from tidemark.timeops.errors.problems import Problem, did_you_mean
from tidemark.timeops.expressions.bounds import bounded
from tidemark.timeops.expressions.tokens import WORKING, literals, quoted
from tidemark.timeops.expressions.try_expression import Columns, Expression

REFUSALS = (PySparkException, Py4JJavaError)
"""The errors of Spark while it reads a query; PySpark has no class of its own for a failure inside of Spark."""

_MOST_NAMES = 40


@dataclass(frozen=True)
class Asked:
    """An expression that Spark refused.

    Args:
        text: The expression.
        columns: The columns that it may name.
        hints: What to do where it names something else, by this name.
        functions: Returns the names of Spark's functions.
    """

    text: str
    columns: Collection[str]
    hints: Mapping[str, str] = field(default_factory=dict)
    functions: Callable[[], Collection[str]] = tuple

    @property
    def named(self) -> str:
        """The columns, for messages."""
        names = [name for name in self.columns if not name.startswith(WORKING)]
        ending = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        return ", ".join(names[:_MOST_NAMES]) + ending


def problem_of(error: Exception, expression: Asked) -> Problem:
    """Translate what Spark says of an expression.

    Raises:
        Exception: The error itself, where it does not judge the expression: a Spark that is gone, say.
    """
    is_inside = isinstance(error, PySparkException) and _condition(error) == "INTERNAL_ERROR"
    if is_inside or isinstance(error, Py4JJavaError):
        return Problem(
            f"Spark cannot compute `{expression.text}`", expected="a Spark SQL expression that has a value"
        )
    if not isinstance(error, AnalysisException):
        raise error
    condition, parameters = _condition(error), error.getMessageParameters() or {}
    for prefix, translate in _IN_WORDS.items():
        if condition == prefix or condition.startswith(f"{prefix}."):
            return translate(expression, parameters)
    return Problem(
        f"`{expression.text}`: {first_sentence(error)}", expected="an expression that Spark SQL can compute"
    )


def functions_of(spark: SparkSession) -> frozenset[str]:
    """Return the names of the functions that Spark has."""
    return frozenset(row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect())


def first_sentence(error: PySparkException) -> str:
    """Return what Spark says, without its condition, its state and its plan."""
    message = error.getMessage() or str(error)
    sentences = re.sub(r"^\s*(\[[A-Z_.]+\] *)+", "", message)
    line = first_line(sentences)
    plain = re.sub(r'^Cannot resolve ".*" due to data type mismatch: ', "", line)
    return re.sub(r";? *SQLSTATE: \w+.*$", "", plain).strip().rstrip(".")


def _condition(error: PySparkException) -> str:
    return error.getCondition() or ""


def _plain(name: str) -> str:
    """Return a name without backquotes or quotes."""
    return name.replace("`", "").strip('"')


def _no_column(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    name = _plain(parameters.get("objectName", ""))
    fault = f"`{expression.text}` names `{name}`, which is not a column here"
    if name == expression.text:
        fault = f"`{name}` is not a column here"
    hint = expression.hints.get(name.lower()) or did_you_mean(name, expression.columns)
    return Problem(fault, expected=f"one of {expression.named}", remedy=hint)


def _no_function(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    name = _plain(parameters.get("routineName", ""))
    fault = f"`{expression.text}` calls `{name}()`, but Spark SQL has no function with this name"
    return Problem(fault, expected="a Spark SQL function", remedy=did_you_mean(name, expression.functions()))


def _no_field(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    name, fields = _plain(parameters.get("fieldName", "")), _plain(parameters.get("fields", ""))
    fault = f"`{expression.text}` names the field `{name}`, which its column does not have"
    return Problem(fault, expected=f"one of {fields}", remedy=did_you_mean(name, fields.split(", ")))


def _no_parts(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    base, kind = _plain(parameters.get("base", "")), _plain(parameters.get("other", ""))
    fault = f"`{expression.text}` accesses a part of `{base}`, which is {kind}"
    return Problem(fault, expected="a STRUCT, an ARRAY or a MAP, which have parts")


def _wrong_count(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    function, actual = _plain(parameters.get("functionName", "")), parameters.get("actualNum", "")
    expected = parameters.get("expectedNum", "").strip("[]").replace(", ", " or ")
    return Problem(
        f"`{expression.text}` calls `{function}()` with {actual} argument(s)", expected=f"{expected} argument(s)"
    )


def _wrong_argument(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    argument, kind = _plain(parameters.get("inputSql", "")), _plain(parameters.get("inputType", ""))
    type_needed = parameters.get("requiredType", "").replace('"', "")
    place = f"the {parameters.get('paramIndex', '')} argument of `{_plain(parameters.get('sqlExpr', ''))}`"
    return Problem(f"`{expression.text}`: `{argument}` is {kind}", expected=f"{type_needed} as {place}")


def _wrong_pair(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    left, right = (_plain(parameters.get(side, "")) for side in ("left", "right"))
    fault = f"`{expression.text}`: `{_plain(parameters.get('sqlExpr', ''))}` combines {left} and {right}"
    return Problem(
        fault,
        expected="two values of compatible types",
        remedy="cast one of them to the type of the other: cast(x AS type)",
    )


def _no_expression(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    at = parameters.get("error", "").strip("'")
    place = "it ends too early" if at == "end of input" else f"it cannot be parsed from `{at}` on"
    return Problem(f"`{expression.text}` is not a valid SQL expression: {place}", expected="one Spark SQL expression")


def _one_record(expression: Asked, _parameters: Mapping[str, str]) -> Problem:
    fault = f"`{expression.text}` is an aggregate, and this expression is computed row by row"
    hint = expression.hints.get("", "move it into the `aggregates` of a window")
    return Problem(fault, expected="an expression without aggregates", remedy=hint)


def _no_aggregate(expression: Asked, parameters: Mapping[str, str]) -> Problem:
    bare = _plain(parameters.get("expression", ""))
    fault = f"`{expression.text}` uses `{bare}` outside an aggregate: a window holds many values of it"
    if bare == expression.text:
        fault = f"`{bare}` is not an aggregate: a window holds many values of it"
    hint = f"say which value you mean, such as `max({bare})` or `count({bare})`"
    return Problem(
        fault, expected="every column inside an aggregate function", remedy=expression.hints.get(bare.lower(), hint)
    )


def _nested(expression: Asked, _parameters: Mapping[str, str]) -> Problem:
    fault = f"`{expression.text}` has an aggregate inside an aggregate"
    remedy = "compute the inner one in a window of its own, and the outer one in a window that reads it with `from`"
    return Problem(fault, expected="one aggregate over columns", remedy=remedy)


def _no_value(expression: Asked, _parameters: Mapping[str, str]) -> Problem:
    return Problem(
        f"`{expression.text}` has a star where a value is expected", expected="the name of a column, or `count(*)`"
    )


_IN_WORDS: Mapping[str, Callable[[Asked, Mapping[str, str]], Problem]] = {
    "UNRESOLVED_COLUMN": _no_column,
    "UNRESOLVED_ROUTINE": _no_function,
    "FIELD_NOT_FOUND": _no_field,
    "INVALID_EXTRACT_BASE_FIELD_TYPE": _no_parts,
    "WRONG_NUM_ARGS": _wrong_count,
    "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE": _wrong_argument,
    "DATATYPE_MISMATCH.BINARY_OP_DIFF_TYPES": _wrong_pair,
    "PARSE_SYNTAX_ERROR": _no_expression,
    "MISSING_GROUP_BY": _one_record,
    "MISSING_AGGREGATION": _no_aggregate,
    "NESTED_AGGREGATE_FUNCTION": _nested,
    "INVALID_USAGE_OF_STAR_OR_REGEX": _no_value,
}


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
_PATTERN = re.compile(r"recognize '(.*)' pattern in|week-based character: (\w)")
_OF_WEEKS = frozenset("YwWuec")
_JAVA = re.compile(r"java\.(?:\w+\.)+(\w+(?:Exception|Error): .*)")


def faults_of(columns: Columns, texts: Iterable[str]) -> dict[str, str]:
    """Return the expressions over some columns that fail on every record, with what Spark says of them."""
    tried: list[Expression] = []
    for text in dict.fromkeys(texts):
        with suppress(SpecError, AnalysisException):  # a clock, or `a, b`, which are refused with words of their own
            tried.append(columns.read(text))
    tried = [expression for expression in tried if expression.can_fail]
    if not tried:
        return {}
    named = {name for expression in tried for name in expression.columns}
    values = [
        f"{_value(kind, number)} AS {quoted(name)}"
        for number, (name, kind) in enumerate(columns.types.items())
        if name in named
    ]
    session = columns.session
    # Of rows that are known beforehand, Spark computes what follows as it plans, without a job.
    records = from_driver(session, pa.table({_ID: range(_RECORDS)})).selectExpr(_ID, *values)
    failed_on = [f"size({attempt.attempt}) = 0 AS failed{number}" for number, attempt in enumerate(tried)]
    given_on = [f"get({attempt.attempt}, 0) IS NOT NULL AS given{number}" for number, attempt in enumerate(tried)]
    try:
        rows = records.selectExpr(_ID, *failed_on, *given_on).collect()
    except REFUSALS:  # on made-up records alone, for all that is known
        return {}
    faults = {}
    for number, expression in enumerate(tried):
        failed = [row[_ID] for row in rows if row[f"failed{number}"]]
        if not failed or any(row[f"given{number}"] for row in rows):
            continue
        # In a job, as only there Spark says which error of Java it met.
        record = session.range(failed[0], failed[0] + 1).selectExpr(f"id AS {_ID}", *values)
        if sentence := _error_text(record, expression.text, always=len(failed) == _RECORDS):
            faults[expression.text] = sentence
    return faults


def _error_text(record: DataFrame, expression: str, *, always: bool) -> str:
    """Return what Spark says of an expression that fails on a record; nothing where it blames the record."""
    try:
        record.select(F.expr(f"({bounded(expression)}\n)")).collect()
    except REFUSALS as error:
        text = str(error)
        message = text.partition("\n\tat ")[0]
        if not _OF_THE_EXPRESSION.search(message) and not (always and _OF_A_NUMBER.search(message)):
            return ""
        if "INCONSISTENT_BEHAVIOR_CROSS_VERSION" in text:
            return _of_pattern(message)
        java = _JAVA.search(text)
        return first_sentence(error) if isinstance(error, PySparkException) or java is None else java[1]
    return ""


def _of_pattern(message: str) -> str:
    """Return what is wrong with a pattern of a time that Spark does not take; it names the pattern, but no reason."""
    match = _PATTERN.search(message)
    letters = re.sub(r"'[^']*'", "", match[1] or match[2]) if match is not None else ""  # without text in quotes
    if set(letters) & _OF_WEEKS:
        return "Spark has no such pattern: week-based years, such as `YYYY` and `ww`, are not supported"
    if re.search(r"(?<!E)E{1,4}(?!E)|F", letters):
        return "Spark cannot parse days of the week, such as `EEE`: it only formats them"
    return "Spark has no such pattern" + (f" as '{match[1]}'" if match is not None else "")


def _value(kind: T.DataType, salt: int) -> str:
    """Return the SQL of a made-up value of a type; which one of several depends on the record and the column."""
    if isinstance(kind, T.ArrayType):
        return f"array({_value(kind.elementType, salt)}, {_value(kind.elementType, salt + 1000)})"
    if isinstance(kind, T.MapType):
        return f"map({_value(kind.keyType, salt)}, {_value(kind.valueType, salt)})"
    if isinstance(kind, T.StructType):
        parts = [f"{_value(member.dataType, salt + n)} AS {quoted(member.name)}" for n, member in enumerate(kind)]
        return f"struct({', '.join(parts)})"
    value = "NULL"
    if texts := _texts(kind):
        place = f"CAST(pmod(xxhash64({_ID}, {salt}), {len(texts)}) + 1 AS INT)"
        value = f"element_at(array({literals(texts)}), {place})"
    return f"CAST({value} AS {kind.simpleString()})"


def _texts(kind: T.DataType) -> list[str]:
    if isinstance(kind, T.StringType | T.BinaryType):
        return _TEXTS.split("|")
    if isinstance(kind, T.NumericType):
        return _NUMBERS.split("|")
    if isinstance(kind, T.BooleanType):
        return ["true", "false"]
    return _TIMES.split("|") if isinstance(kind, T.DateType | T.TimestampType | T.TimestampNTZType) else []
