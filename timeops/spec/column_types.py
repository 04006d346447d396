"""Types of columns as their words in DDL say them.

Here: one spelling for each type, and which types hold all values of another. Not here: what Spark makes of DDL
(resources/sources/files.py), writing a table with another type (resources/delta/columns.py).
"""

import re
from collections.abc import Mapping, Sequence

from tidemark.timeops.expressions.tokens import Token, top_level_parts
from tidemark.timeops.spec.fields import name_in_tables

_SPELLINGS: Mapping[str, str] = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_INTEGERS: Mapping[str, int] = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""The digits of the largest number of each, the narrowest first."""
_EXACT = frozenset(
    (("tinyint", "double"), ("smallint", "double"), ("int", "double"), ("float", "double"), ("date", "timestamp"))
)
_OTHER_WORDS = ("comment", "not", "null", "generated", "default", "collate")


def types_in_tables(ddl: str, rename: Mapping[str, str]) -> dict[str, str]:
    """Return the type of each column of a source as it is called in the tables, each type in one spelling."""
    parts = [part for part in top_level_parts(ddl) if part[0].is_name]
    return {name_in_tables(part[0].text, rename): _type(part[1:]) for part in parts}


def _type(tokens: Sequence[Token]) -> str:
    """Return the type that words mean, in the spelling of Spark SQL: `decimal(10,0)` for `DEC`."""
    if tokens and tokens[0].text == ":":
        tokens = tokens[1:]
    words: list[str] = []
    depth = 0
    for position, token in enumerate(tokens):
        if token.kind == "word" and token.lower in _OTHER_WORDS and depth == 0:
            break
        if token.text == ":":
            continue
        is_field = depth > 0 and _names_field(tokens, position)
        words.append(f"{token.text}:" if is_field else _SPELLINGS.get(token.lower, token.lower))
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(token.text if token.kind == "symbol" else "", 0)
    text = re.sub(r"\bdecimal\b(?!\()", "decimal(10,0)", "".join(words))
    return re.sub(r"\bdecimal\((\d+)\)", r"decimal(\1,0)", text)


def _names_field(tokens: Sequence[Token], position: int) -> bool:
    """Return whether a word in brackets is the name of a field: a type follows it, or `:`."""
    behind = tokens[position + 1] if position + 1 < len(tokens) else None
    return tokens[position].is_name and behind is not None and (behind.is_name or behind.text == ":")


def is_wider(before: str, now: str) -> bool:
    """Return whether a type holds every value of another one, which it is not."""
    if before == now or (before, now) in _EXACT:
        return before != now
    inside, wanted = _element(before), _element(now)
    if inside is not None and wanted is not None:
        return is_wider(inside, wanted)
    known, digits = _digits(before), _digits(now)
    if known is None or digits is None or (now in _INTEGERS and before not in _INTEGERS):
        return False
    return digits[0] >= known[0] and digits[1] >= known[1]


def may_be_cast(before: str, now: str) -> bool:
    """Return whether values of a type can be those of another one, each of them or not."""
    texts = ("float", "double", "date", "timestamp")
    if before == "string":
        return now in texts or _digits(now) is not None
    if now == "string":
        return before in _INTEGERS
    numbers = ("float", "double")
    return all(kind in numbers or _digits(kind) is not None for kind in (before, now))


def _element(kind: str) -> str | None:
    found = re.fullmatch(r"array<(.+)>", kind)
    return found[1] if found else None


def _digits(kind: str) -> tuple[int, int] | None:
    """Return the digits of a number before and after its point; None where these are not fixed."""
    if kind in _INTEGERS:
        return _INTEGERS[kind], 0
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", kind)
    return (int(found[1]) - int(found[2]), int(found[2])) if found else None
