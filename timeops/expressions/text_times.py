"""Texts that Spark would read as times in its own way, in an expression: what becomes of each.

Here: conversions that are written (`CAST(t AS TIMESTAMP)`, `to_timestamp(t)`), and the ones that Spark adds itself
(`opened > t`); times of day without a date, and texts such as 'now', which Spark completes from the clock. Not here:
the value that a text has (timeops/expressions/text_values.py), functions that read the clock
(timeops/expressions/determinism.py). Reading a spec must not wait for PySpark.

Spark's own casts complete a time of day with the date of the machine's clock and a year with 1 January, round
decimals, and cut dates off times. What Spark adds by itself is in its plan alone. It is asked for the plan over
columns that no optimizer can compute. Only a text that is the same for every row becomes the clock: `'now'` in a
record is not a time.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import Problem
from tidemark.timeops.expressions.bounds import bounded
from tidemark.timeops.expressions.tokens import Call, Token, calls, lambda_names, mentions, part_of, quoted, tokenize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


PRINCIPLE = "a result that is a function of the arrival log: the same log leads to the same tables"
MOST_CONSTANTS = 200
"""So many parts of an expression that are the same for every row are looked at."""

# Spark reads these strings, with or without a zone, as the clock where it needs a time: even `time < 'now'`.
_CLOCK = re.compile(
    r"\s*(?i:now|today|tomorrow|yesterday|epoch)\s*"
    r"(?:(?:Z|UTC|GMT|UT)?(?:[+-][0-9:]+)?|[A-Z]{3}|\w+/[\w/+-]+)\s*"
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_SPECIAL = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
_NAMING = frozenset({"timestamp", "timestamp_ntz", "timestamp_ltz", "date", "["})
_constants: dict[str, str | None] = {}


def is_clock(text: str) -> bool:
    """Return whether Spark takes a text for an instant that is not written in it."""
    return _CLOCK.fullmatch(text) is not None


def why(text: str) -> str:
    """Say what Spark does with such a text."""
    is_epoch = text.strip().lower().startswith("epoch")
    return f"is read as {'1970-01-01' if is_epoch else 'the clock'} where a time is needed"


def written_texts(expression: str, tokens: Sequence[Token]) -> Iterator[tuple[Token, str]]:
    """Return the constant texts of an expression with the token before each: literals side by side are one text.

    Literals that `||` or `concat` join are one as well. Left out is `epoch`
    after `TIMESTAMP` or `DATE`, which says what it means, and as the key of a map.
    """
    nothing = Token("symbol", "", 0, 0)
    for start, end in _joined(tokens):
        parts = [literal_value(expression, token) for token in tokens[start:end] if token.kind == "string"]
        before = tokens[start - 1] if start else nothing
        if before.lower in _NAMING and parts[0].strip().lower() == "epoch":
            continue
        if before.lower == "|":  # what they are joined to may be a column
            yield from ((before, part) for part in parts)
        else:
            yield before, "".join(parts)


def _joined(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Find where literals are, and calls of `concat` with no other arguments."""
    at = 0
    while at < len(tokens):
        end = at
        while end < len(tokens) and tokens[end].kind == "string":
            end += 1
            joins = [token.lower for token in tokens[end : end + 2]] == ["|", "|"]
            if joins and end + 2 < len(tokens) and tokens[end + 2].kind == "string":
                end += 2
        if end > at:
            yield at, end
        at = max(end, at + 1)
    for call in calls(tokens):
        if call.name == "concat" and all([t.kind for t in part] == ["string"] for part in call.arguments):
            yield call.position, call.end


def literal_value(expression: str, token: Token) -> str:
    """Return a literal without its escapes, as Spark reads it."""
    if expression[token.start] in "rR":
        return token.text
    quote = expression[token.start]
    return _ESCAPE.sub(_unescaped, token.text.replace(quote * 2, quote))


def _unescaped(match: re.Match[str]) -> str:
    code, long_code, octal, letter = match.groups()
    if code or long_code:
        return chr(min(int(code or long_code, 16), 0x10FFFF))
    return chr(int(octal, 8)) if octal else _SPECIAL.get(letter, letter)


def check_built_texts(session: "SparkSession", expression: str, columns: Iterable[str]) -> None:
    """Refuse an expression with a part that is the same for every row and that Spark takes for the clock.

    `determinism_problems` finds nothing in the expression. Spark computes each part once.

    Raises:
        SpecError: There is such a part, or there are too many parts to look at.
    """
    for number, part in enumerate(constant_parts(expression, {name.lower() for name in columns})):
        if number == MOST_CONSTANTS:
            raise SpecError(
                f"`{expression}` computes more than {MOST_CONSTANTS} values that are the same for every record",
                expected="constants that are written out as literals",
            )
        text = constant_text(session, part)
        if text is not None and is_clock(text):
            raise SpecError(
                f"`{expression}`: `{part}` is '{text}', which {why(text)}",
                expected=PRINCIPLE,
                remedy="use `_arrival_time`, the instant at which the record arrived, or write the time itself",
            )


def constant_text(session: "SparkSession", part: str) -> str | None:
    """Return the text of a constant part; None where it has none, or is not an expression by itself."""
    if part not in _constants:
        _constants[part] = _computed(session, part)
    return _constants[part]


def _computed(session: "SparkSession", part: str) -> str | None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the reason is above
    from pyspark.sql.types import StringType  # noqa: PLC0415

    try:
        frame = session.sql(f"SELECT {bounded(part)} AS e")
        return frame.collect()[0]["e"] if isinstance(frame.schema["e"].dataType, StringType) else None
    except PySparkException:
        return None


def constant_parts(expression: str, columns: Collection[str]) -> Iterator[str]:
    """Find segments of an expression that may be a part of it, name no column, and are more than a constant."""
    tokens = tokenize(expression)
    hidden = lambda_names(tokens)
    called = {call.position for call in calls(tokens)}
    is_column = [
        token.is_name and token.lower in columns and token.lower not in hidden and place not in called
        for place, token in enumerate(tokens)
    ]
    parts_seen: set[str] = set()
    for start, first in enumerate(tokens):
        if not (first.kind == "string" or start in called or first.lower == "(" or _is_bytes(tokens, start)):
            continue
        depth, computes = 0, False
        for end in range(start, len(tokens)):
            token = tokens[end]
            is_symbol = token.kind == "symbol"
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(token.text, 0) if is_symbol else 0
            computes = computes or end in called or (is_symbol and token.text in "|[:")
            if is_column[end] or depth < 0 or (depth == 0 and not _may_join(tokens, end, called)):
                break
            is_whole = depth == 0 and computes and end not in called and (not is_symbol or token.text in ")]")
            part = expression[first.start : token.end]
            if not is_whole or part in parts_seen:
                continue
            inside = tokens[start : end + 1]
            if hidden & {token.lower for token in inside if token.is_name} <= lambda_names(inside):
                parts_seen.add(part)
                yield part


def _may_join(tokens: Sequence[Token], place: int, called: Collection[int]) -> bool:
    """Return whether what is in no brackets may be part of one text: literals, calls, `||`, an array's key, `::`."""
    token = tokens[place]
    if token.kind == "symbol":
        return token.text in "()[]|:"
    is_type = place > 0 and tokens[place - 1].lower == ":"
    return token.kind == "string" or place in called or is_type or _is_bytes(tokens, place)


def _is_bytes(tokens: Sequence[Token], place: int) -> bool:
    """Return whether a literal such as X'6E6F77' is there."""
    following = tokens[place + 1 : place + 2]
    return tokens[place].lower == "x" and bool(following) and following[0].kind == "string"


TIME_OF_DAY = r"^\s*([Tt]\s*\d{1,2}|\d{1,2}:)[\d:.,]*\s*([Zz]|[+-][\d:]+|[A-Za-z]+/?[\w/+-]*)?\s*$"
_CASTS = frozenset({"cast", "try_cast"})
_INSTANTS = frozenset({"timestamp", "timestamp_ltz"})
_READERS = frozenset({"timestamp", "to_timestamp", "try_to_timestamp", "to_timestamp_ltz"})
_SECONDS = frozenset({"unix_timestamp", "to_unix_timestamp"})
_PARSERS = frozenset({"from_json", "from_csv", "from_xml", "variant_get", "try_variant_get"})
_IS_TEXT = "RLIKE '^(string|variant)'"
_DATED = ("date_add(", "date_sub(", "last_day(", "next_day(", "make_date(", "trunc(", "add_months(")
_TEXT = "__tm_text_"
_TIMES = r"\b(date|timestamp|timestamp_ntz)\b"
_PLAIN = frozenset(
    """abs any approx_count_distinct array array_agg array_contains array_join array_sort avg bool_and bool_or cast
    ceil coalesce collect_list collect_set concat concat_ws contains count count_if element_at endswith every floor
    get get_json_object greatest if ifnull isnotnull isnull least left length lower lpad ltrim map max max_by mean
    median min min_by named_struct nullif nvl percentile regexp_extract regexp_replace replace reverse right round
    rpad rtrim sha2 size some sort_array split split_part startswith stddev struct substr substring sum to_json trim
    try_cast try_sum upper xxhash64""".split()  # noqa: SIM905
)
"""Functions that take no text for a time."""
_known: dict[tuple[object, ...], Sequence[str]] = {}


def is_time_of_day(text: str) -> bool:
    """Return whether a text is a time without a date, which Spark takes for one of today."""
    return re.match(TIME_OF_DAY, text) is not None


def with_rule(expression: str, time_zone: str) -> str:
    """Return the expression with its conversions of texts into instants by the rule of `timestamp_by`.

    A text without an offset is local time in `time_zone`. One that is a time of day alone fails, unless the
    conversion only tries: it is then null, as for any other text that is not a time. Constants stay as they
    are: `constant_time_problem` judges them.
    """
    for call in calls(tokenize(expression)):
        inner, parameters = _converted(expression, call)
        if inner is None or not _needs_rule(call, parameters, time_zone):
            continue
        of = with_rule(inner, time_zone)
        value = f"get(transform(array({of}\n), __tm_of -> {_by_rule(call, parameters, time_zone)}), 0)"
        return f"{expression[: call.start]}{value}{with_rule(expression[call.stop :], time_zone)}"
    return expression


def _converted(expression: str, call: Call) -> tuple[str | None, str]:
    """Return what a call converts into an instant, and the format that it names; None where it converts nothing."""
    if not call.arguments or not call.arguments[0]:
        return None, ""
    first = call.arguments[0]
    if call.name in _CASTS:
        if len(first) < 3 or first[-1].lower not in _INSTANTS or first[-2].lower != "as":
            return None, ""
        first = first[:-2]
    elif call.name not in _READERS | _SECONDS:
        return None, ""
    if all(token.kind == "string" for token in first):
        return None, ""
    parameters = [token for argument in call.arguments[1:] for token in argument]
    return part_of(expression, first), part_of(expression, parameters)


def _needs_rule(call: Call, form: str, time_zone: str) -> bool:
    if not form and call.name not in _SECONDS:
        return True
    names_zone = re.search("[VzOXxZ]", re.sub(r"'[^']*'", "", form[1:-1]))  # as a constant pattern of Spark
    return time_zone != "UTC" and not names_zone


def _by_rule(call: Call, form: str, time_zone: str) -> str:
    """Return SQL of what a call makes of `__tm_of`."""
    if call.name in _CASTS:
        spark = f"{call.name}(__tm_of AS TIMESTAMP)"
    else:
        spark = f"{call.name}(__tm_of{', ' if form else ''}{form})"
    text = "CAST(__tm_of AS STRING)"
    if call.name in _SECONDS:
        of_text = f"unix_seconds(to_utc_timestamp(timestamp_seconds({spark}), '{time_zone}'))"
    elif form:
        of_text = f"to_utc_timestamp({spark}, '{time_zone}')"
    else:
        from tidemark.timeops.expressions.text_values import instant_sql  # noqa: PLC0415 - it needs PySpark

        of_text = instant_sql(text, time_zone)
        if not call.name.startswith("try_"):
            fails = "CAST(raise_error('a time of day has no date') AS TIMESTAMP)"
            of_text = f"IF({text} RLIKE r'{TIME_OF_DAY}', {fails}, {of_text})"
    return f"IF(typeof(__tm_of) {_IS_TEXT}, {of_text}, {spark})"


def parsed_time_problems(expression: str, tokens: Sequence[Token]) -> Iterator[Problem]:
    """Find times that are parsed out of JSON, CSV or variants, where the product's rule cannot be put."""
    for call in calls(tokens):
        if call.name in _PARSERS:
            kinds = [token.text for argument in call.arguments[1:] for token in argument if token.kind == "string"]
            if any(re.search(r"\btimestamp(_ltz)?\b", kind, re.IGNORECASE) for kind in kinds):
                text = expression[call.start : call.stop]
                yield Problem(
                    f"`{text}` lets Spark guess a time: it completes a time of day from the clock, and reads a "
                    "number as seconds",
                    expected=PRINCIPLE,
                    remedy="name STRING there, and write `CAST(… AS TIMESTAMP)` around it; for numbers BIGINT and "
                    "`timestamp_millis(…)`",
                )


def local_time_problem(expression: str, time_zone: str, is_text: Callable[[str], bool]) -> Problem | None:
    """Find a conversion that would read local times in UTC, where the pipeline's are in another zone.

    The expression is one that is evaluated without `time_zone`; `is_text` says whether a part of it is a text.
    """
    for call in calls(tokenize(expression)):
        inner, form = _converted(expression, call)
        if time_zone != "UTC" and inner is not None and _needs_rule(call, form, time_zone) and is_text(inner):
            text = expression[call.start : call.stop]
            return Problem(
                f"`{text}` reads times without an offset in UTC, and `time_zone` is {time_zone}",
                expected="one zone for all times that are written without an offset",
                remedy="declare the column TIMESTAMP in `schema`, which is read in `time_zone`, or write "
                f"`to_utc_timestamp(to_timestamp_ntz({', '.join(filter(None, (inner, form)))}), '{time_zone}')`",
            )
    return None


def constant_time_problem(session: "SparkSession", expression: str, columns: Mapping[str, str]) -> Problem | None:
    """Find a constant time of day that Spark takes for a time; Spark computes no more than the constants.

    `columns` has the types of the columns that the expression may name.
    """
    named = {name: kind for name, kind in columns.items() if mentions(expression, name)}
    probed, constants = _probed(session, expression, named)
    if not constants:
        return None
    for value in _casts(session, probed, {**named, **dict.fromkeys(constants, "STRING")}, _TIMES):
        for name, text in constants.items():
            if re.search(rf"\b{name}#", value):
                return Problem(
                    f"'{text}' is a time of day where a time is expected: Spark would add the machine's date to it",
                    expected=PRINCIPLE,
                    remedy=f"write the date as well, or compare texts: `date_format(x, 'HH:mm') >= '{text.strip()}'`",
                )
    return None


def hidden_time_problem(session: "SparkSession", expression: str, columns: Mapping[str, str]) -> Problem | None:
    """Find a text of the record that Spark would convert to a time implicitly; no query runs.

    `columns` has the types of the columns that the expression may name.
    """
    named = {name: kind for name, kind in columns.items() if mentions(expression, name)}
    texts = [name for name, kind in named.items() if re.search("string|variant", kind)]
    if not texts or not _may_compare(expression, named):
        return None
    for value in _casts(session, with_rule(expression, "UTC"), named, r"\btimestamp\b"):
        for name in texts:
            if re.search(rf"(?<!\w){re.escape(name)}#\d", value) and not _is_dated(value):
                return Problem(
                    f"`{expression}` implicitly reads the text `{name}` as a time, and Spark completes a "
                    "time of day from the clock",
                    expected=PRINCIPLE,
                    remedy=f"write `CAST(… AS TIMESTAMP)` around it, or declare `{name}` TIMESTAMP in `schema`",
                )
    return None


def _probed(session: "SparkSession", expression: str, columns: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """Return the expression with a column for each constant that is a time of day, and these constants."""
    constants: dict[str, str] = {}
    text = expression
    for part in islice(constant_parts(expression, {name.lower() for name in columns}), MOST_CONSTANTS):
        value = constant_text(session, part)
        if value is not None and is_time_of_day(value):
            constants[f"{_TEXT}{len(constants)}"] = value
            text = text.replace(part, f" {_TEXT}{len(constants) - 1} ")
    tokens = [token for token in tokenize(text) if token.kind == "string"]
    for end in reversed(range(len(tokens))):
        start = end
        while start and not text[tokens[start - 1].end : tokens[start].start].strip():  # texts side by side are one
            start -= 1
        value = "".join(literal_value(text, token) for token in tokens[start : end + 1])
        if is_time_of_day(value):
            constants[f"{_TEXT}{len(constants)}"] = value
            text = f"{text[: tokens[start].start]} {_TEXT}{len(constants) - 1} {text[tokens[end].end :]}"
    return text, constants


def _may_compare(expression: str, named: Mapping[str, str]) -> bool:
    """Return whether an expression may have a time next to a text, or take one for the other."""
    tokens = tokenize(expression)
    has_times = any("timestamp" in kind for kind in named.values()) or bool(
        re.search("timestamp|interval|::|extract", expression, re.IGNORECASE)
    )
    return (has_times and len(tokens) > 1) or any(call.name not in _PLAIN for call in calls(tokens))


def _casts(session: "SparkSession", expression: str, columns: Mapping[str, str], kinds: str) -> Sequence[str]:
    """Return what Spark casts in an expression to types that match a pattern, as its optimized plan has it."""
    cells = [f"get(array(CAST(NULL AS {kind})), CAST(id AS INT)) AS {quoted(name)}" for name, kind in columns.items()]
    rows = f"SELECT /*+ REPARTITION(2) */ {', '.join(cells) or 'id'} FROM range(1)"  # a step that stays a step
    query = f"EXPLAIN EXTENDED SELECT ({expression}\n) FROM ({rows})"
    if (query, kinds) not in _known:
        _known[query, kinds] = tuple(_casts_in(session.sql(query).collect()[0][0], kinds))
    return _known[query, kinds]


def _casts_in(plan: str, kinds: str) -> Iterator[str]:
    optimized = plan.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    for match in re.finditer(r"(?<!\w)cast\(", optimized):
        depth, at = 1, match.end()
        while depth and at < len(optimized):
            depth += {"(": 1, ")": -1}.get(optimized[at], 0)
            at += 1
        value, _, kind = optimized[match.end() : at - 1].rpartition(" as ")
        if re.search(kinds, kind):
            yield value


def _is_dated(value: str) -> bool:
    """Return whether what a plan casts is a DATE or a local time by its outermost function."""
    return value.startswith(_DATED) or bool(re.match(r"(try_)?cast\(.* as (date|timestamp_ntz)\)$", value))
