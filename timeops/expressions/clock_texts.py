"""Texts that Spark reads as the clock where it needs a time, such as 'now', and how an expression may come to one.

Here: the texts, constants as they are written, constants that Spark has to compute. Not here: functions that read the
clock (determinism.py).

Only a text that is the same for every row becomes the clock: `'now'` in a record is not a time.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.bounds import bounded
from tidemark.timeops.expressions.tokens import Token, calls, lambda_names, tokenize

if TYPE_CHECKING:  # reading a spec must not wait for PySpark
    from pyspark.sql import SparkSession

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
_known: dict[str, str | None] = {}


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

    Args:
        session: Computes these parts, each once.
        expression: Spark SQL in which `determinism_problems` finds nothing.
        columns: The columns that it may name.

    Raises:
        SpecError: There is such a part, or there are too many parts to look at.
    """
    for number, part in enumerate(constant_parts(expression, {name.lower() for name in columns})):
        if number == MOST_CONSTANTS:
            raise SpecError(
                f"`{expression}` computes more than {MOST_CONSTANTS} values that are the same for every record",
                expected="constants that are written out",
            )
        text = constant_text(session, part)
        if text is not None and is_clock(text):
            raise SpecError(
                f"`{expression}`: `{part}` is '{text}', which {why(text)}",
                expected="a result that is a function of the arrival log: the same log leads to the same tables",
                remedy="use `_arrival_time`, the instant at which the record arrived, or write the time itself",
            )


def constant_text(session: "SparkSession", part: str) -> str | None:
    """Return the text of a constant part; None where it has none, or is not an expression by itself."""
    if part not in _known:
        _known[part] = _computed(session, part)
    return _known[part]


def _computed(session: "SparkSession", part: str) -> str | None:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the reason is above
    from pyspark.sql.types import StringType  # noqa: PLC0415

    try:
        found = session.sql(f"SELECT {bounded(part)} AS e")
        return found.collect()[0]["e"] if isinstance(found.schema["e"].dataType, StringType) else None
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
    seen: set[str] = set()
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
            part = expression[first.start : token.end]
            is_whole = depth == 0 and computes and end not in called and (not is_symbol or token.text in ")]")
            if (
                is_whole
                and part not in seen
                and hidden & _names(tokens[start : end + 1]) <= lambda_names(tokens[start : end + 1])
            ):
                seen.add(part)
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
    behind = tokens[place + 1 : place + 2]
    return tokens[place].lower == "x" and bool(behind) and behind[0].kind == "string"


def _names(tokens: Sequence[Token]) -> set[str]:
    return {token.lower for token in tokens if token.is_name}
