"""The words of a Spark SQL expression, without parsing it.

Here: cutting text into words, strings and symbols; finding calls, names and aliases. Not here: what is allowed
(timeops/expressions/determinism.py).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

WORKING = "__tm_"
"""The prefix of columns that exist only while Spark computes; no column of a user has it."""

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    |(?P<comment>--(?:\\\n|[^\r\n])*)
    |(?P<raw>[rR](?:'[^']*'|"[^"]*"))
    |(?P<string>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<word>\w+)
    |(?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")

Kind = Literal["word", "quoted", "string", "symbol", "unclosed"]


@dataclass(frozen=True)
class Token:
    """One word, backquoted name, string or symbol.

    Args:
        kind: `unclosed` is a quote or comment that is never closed.
        text: The name or string without its quotes, or the symbol.
        start: Where it begins in the expression.
        end: Where it ends.
    """

    kind: Kind
    text: str
    start: int
    end: int

    @property
    def lower(self) -> str:
        """The word or symbol in small letters, as Spark compares names; empty for a string."""
        return "" if self.kind == "string" else self.text.lower()

    @property
    def is_name(self) -> bool:
        """True if it can name a column or a function."""
        return self.kind in ("word", "quoted")


@dataclass(frozen=True)
class Call:
    """A function call.

    Args:
        name: Name of the function in small letters, without qualifiers.
        position: Position of its name among the tokens.
        arguments: The tokens of each argument.
        end: Position just after its closing bracket.
        start: Where its name begins in the expression.
        stop: Where its closing bracket ends.
    """

    name: str
    position: int
    arguments: tuple[tuple[Token, ...], ...]
    end: int
    start: int
    stop: int


@lru_cache(maxsize=5_000)  # the expressions of a spec are read by each of its checks, and again for each batch
def tokenize(expression: str) -> tuple[Token, ...]:
    """Cut an expression into tokens; comments and white space are left out."""
    tokens: list[Token] = []
    at = 0
    while at < len(expression):
        if expression.startswith("/*", at):
            end = _comment_end(expression, at)
            if end is None:
                return (*tokens, Token("unclosed", "/*", at, len(expression)))
            at = end
            continue
        match = _TOKEN.match(expression, at)
        assert match is not None and match.lastgroup is not None  # noqa: PT018  every character is a symbol
        token = _token(match.lastgroup, match.group(), at, match.end())
        if token is not None:
            tokens.append(token)
            if token.kind == "unclosed":
                break
        at = match.end()
    return tuple(tokens)


def _token(group: str, text: str, start: int, end: int) -> Token | None:
    match group:
        case "word":
            return Token("word", text, start, end)
        case "quoted":
            return Token("quoted", text[1:-1].replace("``", "`"), start, end)
        case "string":
            return Token("string", text[1:-1], start, end)
        case "raw":
            return Token("string", text[2:-1], start, end)
        case "symbol":
            return Token("unclosed" if text in "'\"`" else "symbol", text, start, end)
        case _:
            return None


def _comment_end(expression: str, start: int) -> int | None:
    """Return where a bracketed comment ends; as in Spark, comments nest."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(expression, start):
        depth += 1 if edge.group() == "/*" else -1
        if depth == 0:
            return edge.end()
    return None


def calls(tokens: Sequence[Token]) -> list[Call]:
    """Find every name that is followed by an opening bracket, with its arguments."""
    all_calls = []
    for position, token in enumerate(tokens[:-1]):
        if token.is_name and tokens[position + 1].lower == "(":
            arguments, end = _arguments(tokens, position + 2)
            all_calls.append(Call(token.lower, position, arguments, end, token.start, tokens[end - 1].end))
    return all_calls


def part_of(expression: str, tokens: Sequence[Token]) -> str:
    """Return the part of an expression that is some of its tokens; empty for none."""
    return expression[tokens[0].start : tokens[-1].end] if tokens else ""


def _arguments(tokens: Sequence[Token], start: int) -> tuple[tuple[tuple[Token, ...], ...], int]:
    """Cut the tokens from `start` to the closing bracket at the commas of this level."""
    arguments: list[tuple[Token, ...]] = []
    depth = 0
    begin = start
    for position in range(start, len(tokens)):
        symbol = tokens[position].lower if tokens[position].kind == "symbol" else ""
        if (symbol == ")" and depth == 0) or (symbol == "," and depth == 0):
            if position > begin or arguments or symbol == ",":
                arguments.append(tuple(tokens[begin:position]))
            begin = position + 1
            if symbol == ")":
                return tuple(arguments), begin
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(symbol, 0)
    return tuple(arguments), len(tokens)


def listed_parts(expressions: str) -> tuple[tuple[Token, ...], ...]:
    """Cut a list of expressions at its commas; nothing between two of them is a part without tokens."""
    return _arguments(tokenize(f"{expressions}\n)"), 0)[0]


def balance_fault(tokens: Sequence[Token]) -> str:
    """Say which quote, comment or bracket does not match; empty when all do."""
    pairs = {")": "(", "]": "[", "}": "{"}
    opened: list[str] = []
    for token in tokens:
        if token.kind == "unclosed":
            return f"{token.text} is never closed"
        if token.kind != "symbol":
            continue
        if token.text in pairs.values():
            opened.append(token.text)
        elif token.text in pairs and (not opened or opened.pop() != pairs[token.text]):
            return f"{token.text} closes nothing"
    return f"{opened[-1]} is never closed" if opened else ""


def mentions(expression: str, name: str) -> bool:
    """Return whether a column or function of this name occurs in the expression."""
    return any(token.is_name and token.lower == name.lower() for token in tokenize(expression))


def columns_named(expression: str, columns: Iterable[str]) -> list[str]:
    """Return which of some columns an expression names, as they are spelled there, in the order of its words.

    A field of a struct, a function, the parameter of a lambda function and a name that follows `AS` are none.
    """
    tokens, spelled = tokenize(expression), {column.lower(): column for column in columns}
    hidden, named = lambda_names(tokens), dict[str, None]()
    for position, token in enumerate(tokens):
        before = tokens[position - 1].lower if position else ""
        after = tokens[position + 1].lower if position + 1 < len(tokens) else ""
        is_column = token.is_name and before not in (".", "as") and after != "(" and token.lower not in hidden
        if is_column and token.lower in spelled:
            named[spelled[token.lower]] = None
    return list(named)


def lambda_names(tokens: Sequence[Token]) -> set[str]:
    """Return the parameters of lambda functions: the names in front of `->`."""
    names: set[str] = set()
    for position in range(1, len(tokens) - 1):
        if (tokens[position].lower, tokens[position + 1].lower) == ("-", ">"):
            first = position - 1
            while tokens[position - 1].lower == ")" and first > 0 and tokens[first].lower != "(":
                first -= 1
            names |= {token.lower for token in tokens[first:position] if token.is_name}
    return names


def normal_form(expression: str) -> str:
    """Return a text that is equal for expressions that differ in white space, case or backquotes only."""
    return " ".join(f"'{token.text}'" if token.kind == "string" else token.lower for token in tokenize(expression))


def plain_column(expression: str) -> str | None:
    """Return the name when the expression is one column name and nothing else."""
    tokens = tokenize(expression)
    is_one_name = len(tokens) == 1 and tokens[0].is_name
    return tokens[0].text if is_one_name and not tokens[0].text[:1].isdigit() else None


def quoted(name: str) -> str:
    """Return a column name as an identifier, dots and backticks in it meaning nothing."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """Return a text as a literal of SQL, quotes and backslashes in it meaning nothing."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def literals(texts: Iterable[str]) -> str:
    """Return texts as literals of SQL, with commas between them."""
    return ", ".join(map(literal, texts))


def literal_map(texts: Mapping[str, str]) -> str:
    """Return SQL of a MAP<STRING, STRING> of literals, as Spark's parsers and writers take their options."""
    return f"map({literals(part for pair in texts.items() for part in pair)})"


def split_alias(expression: str) -> tuple[str, str | None]:
    """Cut `expression AS name` into its two parts; the name is None when there is none."""
    tokens = tokenize(expression)
    if len(tokens) > 2 and tokens[-1].is_name and tokens[-2].kind == "word" and tokens[-2].lower == "as":
        return expression[: tokens[-2].start].strip(), tokens[-1].text
    return expression.strip(), None


def is_number(expression: str) -> bool:
    """Return whether the expression is a bare number, which says nothing of its unit."""
    return re.fullmatch(r"\s*[-+]?[0-9][0-9_.eE+-]*[LlDdSs]?\s*", expression) is not None


def top_level_parts(ddl: str) -> list[tuple[Token, ...]]:
    """Cut a Spark DDL text into the tokens of each column."""
    parts: list[tuple[Token, ...]] = []
    part: list[Token] = []
    depth = 0
    for token in tokenize(ddl):
        if token.kind == "symbol" and token.text == "," and depth == 0:
            parts.append(tuple(part))
            part = []
            continue
        part.append(token)
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(token.text if token.kind == "symbol" else "", 0)
    return [tokens for tokens in (*parts, tuple(part)) if tokens]


def top_level_names(ddl: str) -> list[str]:
    """Return the column names of a Spark DDL text, read from its words alone."""
    return [part[0].text for part in top_level_parts(ddl) if part[0].is_name]


def let(name: str, value: str, body: str) -> str:
    """Return SQL of `body`, in which a name is a value that is computed once."""
    return f"get(transform(array({value}), {name} -> {body}), 0)"
