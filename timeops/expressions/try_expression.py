"""Expressions of a spec as values, which cannot fail a batch: a row on which one fails gets null, told from a null.

Here: compiling an expression once for the types of the columns that it names, the one way in which it is evaluated on
rows, by the stages, the recounts and the checks, and the text of its value: JSON, names of timelines, keys and
splits. Not here: what its value means (timeops/events/event_time.py, timeops/windows/results.py), which part of an
aggregate is evaluated on rows (timeops/expressions/aggregates.py), values of test cases as Python has them
(timeops/cases.py).

Spark has no "try" for every type. But `try_add` swallows an error of all that is below it, and a hash is there for
every type. So an expression whose hash can be added to has a value, and is then evaluated for it. Both are in lambda
functions, and Spark takes no part out of these. Where two expressions have a part in common, it would otherwise
compute that before both, outside of any "try".
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.timeops.columns import with_sql
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import Problem
from tidemark.timeops.expressions.bounds import bounded
from tidemark.timeops.expressions.text_times import check_built_texts, constant_time_problem, with_rule
from tidemark.timeops.expressions.tokens import Token, literal, literal_map, quoted, tokenize

_TRIED = "__tm_tried"
_END = "\n"  # of an expression, which may end in a comment
_WITHOUT_HASH = (T.MapType, T.VariantType)
_TOTAL_TYPES = (T.NumericType, T.StringType, T.BooleanType)
_WITH_TEXT = (T.StringType, T.BooleanType, T.NumericType, T.DatetimeType, T.AnsiIntervalType)
_STORABLE = (
    *(T.StringType, T.BooleanType, T.NumericType, T.BinaryType),
    *(T.DateType, T.TimestampType, T.TimestampNTZType),
    *(T.ArrayType, T.MapType, T.StructType),
)
_TOTAL_WORDS = frozenset(
    """and as between bigint boolean case cast decimal distinct double else end false float in int integer is long not
    null or smallint string then tinyint true try_cast when""".split()  # noqa: SIM905
)
_TOTAL_CALLS = frozenset(
    "abs coalesce if ifnull isnotnull isnull length lower nullif nvl trim upper".split()  # noqa: SIM905
)
_TOTAL_SYMBOLS = frozenset("+-*/%=<>!(),")
EVERY_MICROSECOND = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of Spark's `to_json`, which cuts instants to milliseconds otherwise."""


@dataclass(frozen=True)
class Expression:
    """An expression over columns of some types: read, typed and guarded.

    Attributes:
        text: Spark SQL, as the user wrote it.
        ruled: SQL of its value by the rules of times, sizes and keys of maps; it may fail on a row.
        type: Its type.
        can_fail: False for a column, and for what does no more with numbers, texts and truth values than arithmetic:
            with ANSI mode off what has no value there is null.
        columns: The columns whose names are among its words, each as the schema spells it.
    """

    text: str
    ruled: str
    type: T.DataType
    can_fail: bool
    columns: tuple[str, ...]

    @property
    def column(self) -> str | None:
        """The column that it is; None where it is more than a name."""
        return _name_in(self.text, self.columns)

    @property
    def attempt(self) -> str:
        """SQL of an ARRAY with its value on a row; empty where it fails."""
        tried = f"filter(array(0), __tm_row -> {_has_value([self])})"
        return f"transform({tried}, __tm_row -> {_on_row(f'({self.ruled}{_END})')})"

    @property
    def sql(self) -> str:
        """SQL of its value on a row, null where it fails."""
        if self.column is not None:
            return f"`{self.column}`"
        return f"get({self.attempt}, 0)" if self.can_fail else f"({self.text}{_END})"

    @property
    def value_text(self) -> str:
        """SQL of a STRING: its value as text, equal for values that a group takes for one.

        Null where it is null, or fails. Bytes that are not UTF-8 are written as in SQL, such as X'00FF'.
        """
        text = f"CAST({without_minus_zero(self.sql, self.type)} AS STRING)"
        return utf8_sql(text) if isinstance(self.type, T.BinaryType) else text


Named = tuple[tuple[str, T.DataType], ...]
"""The columns that an expression names, with their types: all that its meaning depends on."""


@dataclass(frozen=True)
class Columns:
    """Columns that expressions may name, and the Spark that types these.

    Attributes:
        types: The columns, by name.
        session: Computes what is the same for every row, and explains its plans.
        ask: Returns the type of SQL over the columns, or raises what Spark raises.
    """

    types: Mapping[str, T.DataType]
    session: SparkSession
    ask: Callable[[str], T.DataType]

    @classmethod
    def of(cls, frame: DataFrame) -> Self:
        """Return the columns of a frame, for expressions over its rows."""

        def ask(text: str) -> T.DataType:
            return frame.select(F.expr(text).alias("e")).schema["e"].dataType

        return cls({field.name: field.dataType for field in frame.schema}, frame.sparkSession, ask)

    @property
    def sql_types(self) -> Mapping[str, str]:
        """The types as SQL, by the name of the column."""
        return {name: kind.simpleString() for name, kind in self.types.items()}

    def read(self, text: str, time_zone: str = "UTC") -> Expression:
        """Return an expression over the columns; it is compiled once for the types of the ones that it names.

        Texts that it converts into times go by the rule of `timestamp_by`, in `time_zone` where they have no offset.

        Raises:
            SpecError: Spark would take a part of it for the clock, or a map in it has entries of an unknown type.
            AnalysisException: Spark does not take it.
        """
        named = self._named(text)
        expression = _compiled.get((text, named, time_zone))
        if expression is None:
            expression = self._compile(text, named, time_zone)
            if len(_compiled) >= _MOST_COMPILED:
                _compiled.clear()
            _compiled[text, named, time_zone] = expression
        return expression

    def any_fails(self, texts: Iterable[str]) -> str | None:
        """Return SQL of a BOOLEAN, never null: one of some expressions fails on a row; None where none can."""
        risky = [expression for expression in map(self.read, dict.fromkeys(texts)) if expression.can_fail]
        return f"(size(filter(array(0), __tm_row -> {_has_value(risky)})) = 0)" if risky else None

    def _compile(self, text: str, named: Named, time_zone: str) -> Expression:
        column, can_fail = _name_in(text, self.types), not _cannot_fail(text, named)
        if can_fail:
            check_built_texts(self.session, text, self.types)
        kind = self.ask(text) if column is None else self.types[column]
        problem = constant_time_problem(self.session, text, self.sql_types) if can_fail else None
        if problem is not None:
            raise SpecError(f"`{text}`: {problem.found}", expected=problem.expected, remedy=problem.remedy)
        ruled = bounded(with_rule(text, time_zone), self._first_field)
        # Bytes cast to a text may be no UTF-8, which neither Arrow nor readers of the tables take for a text.
        ruled = f"validate_utf8({ruled}{_END})" if isinstance(kind, T.StringType) else ruled
        return Expression(text, ruled, kind, can_fail, tuple(name for name, _ in named))

    def _named(self, text: str) -> Named:
        tokens = tokenize(text)
        words = {token.lower for token in tokens if token.is_name}
        # `struct(*)` names all of them. A name with a dot may be written without quotes where it is all.
        names_all = any(b.lower == "*" and a.lower in ("(", ",", ".") for a, b in pairwise(tokens))
        column = _name_in(text, self.types)
        return tuple(
            (name, kind) for name, kind in self.types.items() if names_all or name == column or name.lower() in words
        )

    def _first_field(self, entries: str) -> str:
        """Return the name of the first field of the structs in an array, in backticks.

        Raises:
            SpecError: They are of a variable, whose type cannot be known.
        """
        try:
            kind = self.ask(entries)
        except PySparkException as error:
            fault = f"`map_from_entries({entries.strip()[1:-1].strip()})` is inside a lambda function"
            raise SpecError(
                fault,
                expected="entries that do not depend on a variable of the lambda",
                remedy="use `map_from_arrays`",
            ) from error
        assert isinstance(kind, T.ArrayType)
        assert isinstance(kind.elementType, T.StructType)  # as the whole has a type
        return quoted(kind.elementType.names[0])


_MOST_COMPILED = 5_000  # of all pipelines of a process
_compiled: dict[tuple[str, Named, str], Expression] = {}


def _name_in(text: str, columns: Container[str]) -> str | None:
    """Return the column that an expression is, which cannot fail; None where it is more than its name."""
    name = text.strip("`")
    return name if name in columns else None


def _cannot_fail(text: str, named: Named) -> bool:
    if _name_in(text, [name for name, _ in named]) is not None:
        return True
    total = {name.lower() for name, kind in named if isinstance(kind, _TOTAL_TYPES)}
    tokens = tokenize(text)
    return all(_is_total(token, tokens[number + 1 :], total) for number, token in enumerate(tokens))


def _is_total(token: Token, following: Sequence[Token], columns: set[str]) -> bool:
    if token.kind == "string":
        return True
    if token.kind == "symbol":
        return token.text in _TOTAL_SYMBOLS or (token.text == "." and bool(following) and _is_number(following[0]))
    if not token.is_name:
        return False
    if token.kind == "word" and token.lower in _TOTAL_WORDS:
        return True
    is_call = bool(following) and following[0].lower == "("
    return token.lower in _TOTAL_CALLS if is_call else token.lower in columns or _is_number(token)


def _is_number(token: Token) -> bool:
    return token.kind == "word" and token.text[0].isdigit()


def with_attempt(frame: DataFrame, expression: Expression, value: str, failed: str) -> DataFrame:
    """Add the value of an expression, null where it fails (`value`), and whether it failed (`failed` BOOLEAN).

    The steps are projections of their own, so that Spark evaluates the expression once.
    """
    tried = frame.withColumn(_TRIED, F.expr(expression.attempt))
    return with_sql(tried, {value: f"get({_TRIED}, 0)", failed: f"size({_TRIED}) = 0"}).drop(_TRIED)


def _has_value(expressions: Iterable[Expression]) -> str:
    """Return SQL of a BOOLEAN, never null, for the body of a lambda of `__tm_row`: all can be computed on the row."""
    values = (
        f"to_json(struct({expression.ruled}{_END}))"
        if holds(expression.type, _WITHOUT_HASH)
        else f"({expression.ruled}{_END})"
        for expression in expressions
    )
    hashed = ", ".join(map(_on_row, values))
    return f"try_add(timestamp_micros(xxhash64({hashed}) & 1), INTERVAL '0' SECOND) IS NOT NULL"


def _on_row(expression: str) -> str:
    """Return SQL of an expression in the body of a lambda function of `__tm_row`.

    The `if` is always true. It keeps Spark from computing a constant before there is a row, when nothing swallows
    its error.
    """
    return f"if(__tm_row = 0, {expression}, NULL)"


def as_json(*fields: str) -> str:
    """Return SQL of a STRING: a JSON object of some columns, nulls and microseconds included.

    Args:
        fields: Columns, or `expression AS name`.
    """
    options = literal_map({**EVERY_MICROSECOND, "ignoreNullFields": "false"})
    return f"to_json(struct({', '.join(fields)}), {options})"


def utf8_sql(text: str) -> str:
    """Return SQL of a STRING: the text, or, where it is not UTF-8, its bytes as a literal of SQL such as X'00FF'."""
    before, after = literal("X'"), literal("'")
    in_hex = f"concat({before}, hex(__tm_v), {after})"
    return f"get(transform(array({text}), __tm_v -> IF(is_valid_utf8(__tm_v), __tm_v, {in_hex})), 0)"


def text_problem(kind: T.DataType, expression: str) -> Problem | None:
    """Return what is wrong with an expression of this type where the text of its value identifies something.

    That is a timeline, a split, or a part of a key. Lists, structs, maps and bytes have texts too, but two values of
    them can have the same one.
    """
    if isinstance(kind, _WITH_TEXT):
        return None
    remedy = f"write `to_json({expression})`"
    if isinstance(kind, T.BinaryType):
        remedy = f"write `hex({expression})`"
    elif isinstance(kind, T.MapType):  # equal maps may have their entries in different orders
        remedy = f"write `to_json(array_sort(map_entries({expression})))`"
    elif isinstance(kind, T.StructType):
        remedy = f"name the fields that identify it, or write `to_json({expression})`"
    return Problem(
        f"`{expression}` has the type {kind.simpleString().upper()}, which has no plain text form",
        expected="text, a number, an instant, a day or a truth value",
        remedy=remedy,
    )


def without_minus_zero(value: str, kind: T.DataType) -> str:
    """Return SQL of a value of a type with 0.0 for -0.0, also within it; keys of maps aside.

    Groups take the two for one.
    """
    if not holds_floats(kind):
        return value
    if isinstance(kind, T.DoubleType | T.FloatType):
        return _zero_sql(f"({value}{_END})", kind)
    return f"get(transform(array({value}{_END}), __tm_v -> {_zero_sql('__tm_v', kind)}), 0)"


def _zero_sql(value: str, kind: T.DataType, depth: int = 0) -> str:
    item = f"__tm_v{depth}"
    if isinstance(kind, T.DoubleType):
        return f"({value} + 0.0D)"
    if isinstance(kind, T.FloatType):
        return f"CAST({value} + 0.0D AS FLOAT)"
    if not holds_floats(kind):
        return value
    if isinstance(kind, T.ArrayType):
        return f"transform({value}, {item} -> {_zero_sql(item, kind.elementType, depth + 1)})"
    if isinstance(kind, T.MapType):
        return f"transform_values({value}, (__tm_k, {item}) -> {_zero_sql(item, kind.valueType, depth + 1)})"
    assert isinstance(kind, T.StructType)
    fields = [
        f"{literal(field.name)}, {_zero_sql(f'{value}.{quoted(field.name)}', field.dataType, depth)}"
        for field in kind
    ]
    return f"if({value} IS NULL, NULL, named_struct({', '.join(fields)}))"


def parts(kind: T.DataType, *, keys: bool = True) -> Iterator[T.DataType]:
    """Return a type and all types within it; without `keys` not the types of the keys of maps."""
    yield kind
    inner: list[T.DataType] = []
    if isinstance(kind, T.ArrayType):
        inner = [kind.elementType]
    elif isinstance(kind, T.MapType):
        inner = [kind.keyType, kind.valueType] if keys else [kind.valueType]
    elif isinstance(kind, T.StructType):
        inner = [field.dataType for field in kind]
    for part in inner:
        yield from parts(part, keys=keys)


def holds(kind: T.DataType, kinds: tuple[type[T.DataType], ...]) -> bool:
    """Return whether a type is one of some types, or holds one; keys of maps aside."""
    return any(isinstance(part, kinds) for part in parts(kind, keys=False))


def holds_floats(kind: T.DataType) -> bool:
    """Return whether a value of a type is a floating-point number, or may hold one; keys of maps aside."""
    return holds(kind, (T.DoubleType, T.FloatType))


def is_storable(kind: T.DataType) -> bool:
    """Return whether a table can have a column of this type."""
    return all(isinstance(part, _STORABLE) for part in parts(kind)) and not is_collated(kind)


def is_collated(kind: T.DataType) -> bool:
    """Return whether values of a type may be equal and yet differ, such as 'a' and 'A', so that chance keeps one."""
    return any(isinstance(part, T.StringType) and not part.isUTF8BinaryCollation() for part in parts(kind))
