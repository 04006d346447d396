"""How much an expression may make of one record: a call that would make more fails before it makes it.

Here: the calls that make a value as large as a number says, each with the condition under which it is too large, and
aggregates whose settings say how much memory they take. Not here: what becomes of a record on which an expression
fails (try_expression.py). A value that grows step by step, such as a text that a lambda doubles, ends in a query that
runs out of memory and fails.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from tidemark.timeops.expressions.map_keys import with_known_keys
from tidemark.timeops.expressions.tokens import calls, is_number, tokenize
from tidemark.timeops.problems import Problem

MOST_ITEMS = 1_000_000
MOST_CHARACTERS = 10_000_000
_MOST_PLACES = 1000  # of a number that is written as text, or of a separator
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")


def unknown_field(_entries: str) -> str | None:
    """Return None: the first field of no array of structs is known."""
    return None


def bounded(expression: str, first_field: Callable[[str], str | None] = unknown_field) -> str:
    """Return an expression that fails where one of its calls would make a value that is too large, or a bad map.

    What fails is the argument that says how large: Spark would compute a call of constants before there is a row,
    also in the branch of a condition that is not taken.

    Args:
        expression: Spark SQL.
        first_field: See `with_known_keys`.
    """
    tokens = tokenize(expression)
    for call in calls(tokens):
        given = [expression[one[0].start : one[-1].end] for one in call.arguments if one]
        arguments = [f"({bounded(one, first_field)}\n)" for one in given]
        behind = expression[tokens[call.end - 1].end :]
        as_map = with_known_keys(call.name, arguments, first_field)
        if as_map is not None:
            return f"{expression[: tokens[call.position].start]}{as_map}{bounded(behind, first_field)}"
        guarded, too_large = _TOO_LARGE.get(call.name, (0, None))
        condition = too_large(arguments) if too_large else None
        if condition is None:
            continue
        why = f"raise_error('{call.name}() would make more than {MOST_ITEMS} items or {MOST_CHARACTERS} characters')"
        arguments[guarded] = f"if({condition}, {why}, {arguments[guarded]})"
        name = expression[: tokens[call.position].end]
        return f"{name}({', '.join(arguments)}){bounded(behind, first_field)}"
    return expression


def size_problems(expression: str) -> list[Problem]:
    """Find aggregates that are asked to be so precise that they fill the memory before they see a record."""
    problems = []
    for call in calls(tokenize(expression)):
        position, least = _LEAST_ERRORS.get(call.name, (0, 0.0))
        if not position or len(call.arguments) <= position:
            continue
        tokens = call.arguments[position]
        text = expression[tokens[0].start : tokens[-1].end] if tokens else ""
        number = _NUMBER.match(text) if is_number(text) else None
        if number is None or float(number[0]) < least:
            found = f"`{call.name}()` with an error of `{text}` takes memory for each digit of it"
            problems.append(Problem(found, f"a number of at least {least}", f"write {least}, or count exactly"))
    return problems


Sizes = Callable[[Sequence[str]], str | None]
"""SQL of a BOOLEAN over the arguments of a call: it would make too much; null or None where that is not known."""


def _double(value: str) -> str:
    return f"try_cast(CAST({value} AS STRING) AS DOUBLE)"  # null for what is not a number, of any type


def _number(position: int, most: int) -> Sizes:
    """Return the check of a call whose argument says how long the value is."""

    def is_too_large(arguments: Sequence[str]) -> str | None:
        return f"abs({_double(arguments[position])}) > {most}" if len(arguments) > position else None

    return is_too_large


def _repeated(arguments: Sequence[str]) -> str | None:
    if len(arguments) != 2:
        return None
    value, times = arguments
    length = f"greatest(length(CAST({value} AS STRING)), 1)"
    return f"CAST({length} AS DOUBLE) * {_double(times)} > {MOST_CHARACTERS}"


def _repeated_items(arguments: Sequence[str]) -> str | None:
    characters = _repeated(arguments)
    return characters and f"({_double(arguments[1])} > {MOST_ITEMS} OR {characters})"


def _replaced(arguments: Sequence[str]) -> str | None:
    """Check `replace` and `regexp_replace`: each part, each character at most, becomes another text."""
    if len(arguments) < 3 or _is_short(arguments[2]):
        return None
    text, _, other = arguments[:3]
    return f"(length({text}) + 1D) * length({other}) > {MOST_CHARACTERS}"


def _joined(arguments: Sequence[str]) -> str | None:
    if len(arguments) < 2 or _is_short(arguments[1]):
        return None
    return f"CAST(size({arguments[0]}) AS DOUBLE) * length({arguments[1]}) > {MOST_CHARACTERS}"


def _separated(arguments: Sequence[str]) -> str | None:
    """Check `concat_ws`, whose items may be those of arrays."""
    return f"length({arguments[0]}) > {_MOST_PLACES}" if len(arguments) > 1 and not _is_short(arguments[0]) else None


def _is_short(argument: str) -> bool:
    """Return whether an argument is a text that is written in the expression."""
    return re.fullmatch(r"\(\s*'[^']{0,1000}'\s*\)", argument) is not None


def _sequence(arguments: Sequence[str]) -> str | None:
    """Check `sequence`: of numbers, or of any type by the value that the step reaches at last."""
    if len(arguments) == 2:
        first, last = arguments
        return f"abs({_double(last)} - {_double(first)}) > {MOST_ITEMS}"
    if len(arguments) != 3:
        return None
    first, last, step = arguments
    reached = f"try_add(coalesce({first}, {last}), try_multiply({step}, {MOST_ITEMS}L))"
    return f"(({first} < {reached} AND {reached} < {last}) OR ({first} > {reached} AND {reached} > {last}))"


def _formatted(arguments: Sequence[str]) -> str | None:
    """Check formats: one may hold a width such as `%99999d`."""
    return f"CAST({arguments[0]} AS STRING) RLIKE '%[^a-zA-Z%]*[0-9]{{5}}'" if arguments else None


_TOO_LARGE: Mapping[str, tuple[int, Sizes]] = {
    "sequence": (1, _sequence),
    "repeat": (1, _repeated),
    **dict.fromkeys(("replace", "regexp_replace"), (2, _replaced)),
    "array_join": (1, _joined),
    "concat_ws": (0, _separated),
    "space": (0, _number(0, MOST_CHARACTERS)),
    **dict.fromkeys(("lpad", "rpad"), (1, _number(1, MOST_CHARACTERS))),
    "array_repeat": (1, _repeated_items),
    "array_insert": (1, _number(1, MOST_ITEMS)),
    "format_number": (1, _number(1, _MOST_PLACES)),
    **dict.fromkeys(("format_string", "printf"), (0, _formatted)),
}
"""By function: the argument that says how large the value is, and when it is too large."""

_LEAST_ERRORS = {"approx_count_distinct": (1, 0.005), "count_min_sketch": (1, 0.00001)}
"""By aggregate: which argument is the error, and how small it may be."""
