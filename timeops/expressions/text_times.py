"""Texts that an expression reads as times: by the product's rule where it says so, refused where Spark would do it.

Here: conversions written in an expression (`CAST(t AS TIMESTAMP)`, `to_timestamp(t)`), conversions that Spark adds by
itself (`opened > t`), and times of day without a date, which Spark completes with the date of the machine. Not here:
the rule (text_values.py), texts such as 'now' (clock_texts.py).

What Spark adds by itself is in its plan alone. It is asked for the plan over columns that no optimizer can compute.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tidemark.timeops.expressions.clock_texts import MOST_CONSTANTS, constant_parts, constant_text, literal_value
from tidemark.timeops.expressions.tokens import Call, Token, calls, mentions, quoted, tokenize
from tidemark.timeops.problems import Problem

if TYPE_CHECKING:  # reading a spec must not wait for PySpark
    from pyspark.sql import SparkSession

TIME_OF_DAY = r"^\s*([Tt]\s*\d{1,2}|\d{1,2}:)[\d:.,]*\s*([Zz]|[+-][\d:]+|[A-Za-z]+/?[\w/+-]*)?\s*$"
_CASTS = frozenset({"cast", "try_cast"})
_INSTANTS = frozenset({"timestamp", "timestamp_ltz"})
_READERS = frozenset({"timestamp", "to_timestamp", "try_to_timestamp", "to_timestamp_ltz"})
_SECONDS = frozenset({"unix_timestamp", "to_unix_timestamp"})
_PARSERS = frozenset({"from_json", "from_csv", "from_xml", "variant_get", "try_variant_get"})
_IS_TEXT = "RLIKE '^(string|variant)'"
_DATED = ("date_add(", "date_sub(", "last_day(", "next_day(", "make_date(", "trunc(", "add_months(")
_PRINCIPLE = "a result that is a function of the arrival log: the same log leads to the same tables"
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
    tokens = tokenize(expression)
    for call in calls(tokens):
        inner, more = _converted(expression, call)
        if inner is None or not _needs_rule(call, more, time_zone):
            continue
        start, end = tokens[call.position].start, tokens[call.end - 1].end
        value = (
            f"get(transform(array({with_rule(inner, time_zone)}\n), __tm_of -> {_by_rule(call, more, time_zone)}), 0)"
        )
        return f"{expression[:start]}{value}{with_rule(expression[end:], time_zone)}"
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
    rest = [token for argument in call.arguments[1:] for token in argument]
    return expression[first[0].start : first[-1].end], expression[rest[0].start : rest[-1].end] if rest else ""


def _needs_rule(call: Call, form: str, time_zone: str) -> bool:
    if not form and call.name not in _SECONDS:
        return True
    return time_zone != "UTC" and not _names_zone(form)


def _names_zone(form: str) -> bool:
    """Return whether a constant pattern of Spark has the zone or the offset of the time."""
    return bool(re.search("[VzOXxZ]", re.sub(r"'[^']*'", "", form[1:-1])))


def _by_rule(call: Call, form: str, time_zone: str) -> str:
    """Return SQL of what a call makes of `__tm_of`."""
    if call.name in _CASTS:
        spark = f"{call.name}(__tm_of AS TIMESTAMP)"
    else:
        spark = f"{call.name}(__tm_of{', ' if form else ''}{form})"
    text = "CAST(__tm_of AS STRING)"
    if call.name in _SECONDS:
        own = f"unix_seconds(to_utc_timestamp(timestamp_seconds({spark}), '{time_zone}'))"
    elif form:
        own = f"to_utc_timestamp({spark}, '{time_zone}')"
    else:
        from tidemark.timeops.expressions.text_values import instant_sql  # noqa: PLC0415 - it needs PySpark

        own = instant_sql(text, time_zone)
        if not call.name.startswith("try_"):
            fails = "CAST(raise_error('a time of day has no date') AS TIMESTAMP)"
            own = f"IF({text} RLIKE r'{TIME_OF_DAY}', {fails}, {own})"
    return f"IF(typeof(__tm_of) {_IS_TEXT}, {own}, {spark})"


def parsed_time_problems(expression: str, tokens: Sequence[Token]) -> Iterator[Problem]:
    """Find times that are parsed out of JSON, CSV or variants, where the product's rule cannot be put."""
    for call in calls(tokens):
        if call.name in _PARSERS:
            kinds = [token.text for argument in call.arguments[1:] for token in argument if token.kind == "string"]
            if any(re.search(r"\btimestamp(_ltz)?\b", kind, re.IGNORECASE) for kind in kinds):
                text = expression[tokens[call.position].start : tokens[call.end - 1].end]
                yield Problem(
                    f"`{text}` lets Spark guess a time: it completes a time of day from the clock, and takes a "
                    "number for seconds",
                    expected=_PRINCIPLE,
                    remedy="name STRING there, and write `CAST(… AS TIMESTAMP)` around it; for numbers BIGINT and "
                    "`timestamp_millis(…)`",
                )


def local_time_problem(expression: str, time_zone: str, is_text: Callable[[str], bool]) -> Problem | None:
    """Find a conversion that would read local times in UTC, where the pipeline's are those of another zone.

    Args:
        expression: One that is evaluated without `time_zone`.
        time_zone: IANA name of the zone.
        is_text: Whether a part of the expression is a text.
    """
    tokens = tokenize(expression)
    for call in calls(tokens):
        inner, form = _converted(expression, call)
        if time_zone != "UTC" and inner is not None and _needs_rule(call, form, time_zone) and is_text(inner):
            text = expression[tokens[call.position].start : tokens[call.end - 1].end]
            return Problem(
                f"`{text}` reads times without an offset in UTC, and `time_zone` is {time_zone}",
                expected="one zone for all times that are written without one",
                remedy="declare the column TIMESTAMP in `schema`, which is read in `time_zone`, or write "
                f"`to_utc_timestamp(to_timestamp_ntz({', '.join(filter(None, (inner, form)))}), '{time_zone}')`",
            )
    return None


def constant_time_problem(session: "SparkSession", expression: str, columns: Mapping[str, str]) -> Problem | None:
    """Find a constant time of day that Spark takes for a time.

    Args:
        session: Plans the expression, and computes no more than its constants.
        expression: Spark SQL.
        columns: The types of the columns that it may name.
    """
    named = {name: kind for name, kind in columns.items() if mentions(expression, name)}
    probed, constants = _probed(session, expression, named)
    for value in (
        _casts(session, probed, {**named, **dict.fromkeys(constants, "STRING")}, _TIMES) if constants else ()
    ):
        for name, text in constants.items():
            if re.search(rf"\b{name}#", value):
                return Problem(
                    f"'{text}' is a time of day, and is read as a time: Spark takes the machine's date for it",
                    expected=_PRINCIPLE,
                    remedy=f"write the date as well, or compare texts: `date_format(x, 'HH:mm') >= '{text.strip()}'`",
                )
    return None


def hidden_time_problem(session: "SparkSession", expression: str, columns: Mapping[str, str]) -> Problem | None:
    """Find a text of the record that Spark takes for a time without being told to.

    Args:
        session: Plans the expression, and computes nothing.
        expression: Spark SQL.
        columns: The types of the columns that it may name.
    """
    named = {name: kind for name, kind in columns.items() if mentions(expression, name)}
    texts = [name for name, kind in named.items() if re.search("string|variant", kind)]
    if not texts or not _may_compare(expression, named):
        return None
    for value in _casts(session, with_rule(expression, "UTC"), named, r"\btimestamp\b"):
        for name in texts:
            if re.search(rf"(?<!\w){re.escape(name)}#\d", value) and not _is_dated(value):
                return Problem(
                    f"`{expression}` takes the text `{name}` for a time without saying so, and Spark completes a "
                    "time of day from the clock",
                    expected=_PRINCIPLE,
                    remedy=f"write `CAST(… AS TIMESTAMP)` around it, or declare `{name}` TIMESTAMP in `schema`",
                )
    return None


def _probed(session: "SparkSession", expression: str, columns: Collection[str]) -> tuple[str, Mapping[str, str]]:
    """Return the expression with a column for each constant that is a time of day, and those constants."""
    found: dict[str, str] = {}
    text = expression
    for part in islice(constant_parts(expression, {name.lower() for name in columns}), MOST_CONSTANTS):
        value = constant_text(session, part)
        if value is not None and is_time_of_day(value):
            found[f"{_TEXT}{len(found)}"] = value
            text = text.replace(part, f" {_TEXT}{len(found) - 1} ")
    tokens = [token for token in tokenize(text) if token.kind == "string"]
    for end in reversed(range(len(tokens))):
        start = end
        while start and not text[tokens[start - 1].end : tokens[start].start].strip():  # texts side by side are one
            start -= 1
        value = "".join(literal_value(text, token) for token in tokens[start : end + 1])
        if is_time_of_day(value):
            found[f"{_TEXT}{len(found)}"] = value
            text = f"{text[: tokens[start].start]} {_TEXT}{len(found) - 1} {text[tokens[end].end :]}"
    return text, found


def _may_compare(expression: str, named: Mapping[str, str]) -> bool:
    """Return whether an expression may have a time beside a text, or take one for the other."""
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
