"""Calls that must not fail in the midst of their work: of values that are too large, and of maps.

Here: the calls that make a value as large as a number says, each with the condition under which it is too large,
aggregates whose settings say how much memory they take, and keys of maps. Not here: what becomes of a record on which
an expression fails (timeops/expressions/try_expression.py). A value that grows step by step, such as a text that a
lambda doubles, ends in a query that runs out of memory and fails.

Spark fails on a key that comes twice, and on a null key. What it had put into the map until then stays in its hands,
and the next records of the task fail too, or all of the query. So the keys are looked at before Spark gets them.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from tidemark.timeops.errors.problems import Problem
from tidemark.timeops.expressions.tokens import calls, is_number, part_of, tokenize

Arguments = Sequence[str]
Rewrite = Callable[[Arguments], str | None]
FirstField = Callable[[str], str]
"""Given SQL of an ARRAY of structs, returns the name of their first field."""

_BAD = "raise_error('{name}() has a key twice, or a null key')"


def _with_known_keys(name: str, arguments: Arguments, first_field: FirstField | None) -> str | None:
    """Return SQL of a call that fails before it makes a map with a bad key; None for other calls."""
    if name == "map_from_entries":
        return _from_entries(arguments, first_field)
    rewrite = _REWRITES.get(name)
    return rewrite(arguments) if rewrite is not None else None


def _are_bad(keys: str) -> str:
    return f"(exists({keys}, __tm_key -> __tm_key IS NULL) OR size(array_distinct({keys})) < size({keys}))"


def _with(value: str, of_value: str) -> str:
    """Return SQL in which `__tm_map` is a value, which is computed once."""
    return f"get(transform(array({value}), __tm_map -> {of_value}), 0)"


def _checked(name: str, value: str, keys: str = "__tm_map") -> str:
    """Return a value, if the keys that a call finds in it are all different, and none is null."""
    return _with(value, f"if({_are_bad(keys)}, {_BAD.format(name=name)}, __tm_map)")


def _map(arguments: Arguments) -> str | None:
    """Check `map(key, value, …)`, whose values may fail after its first keys."""
    if not arguments or len(arguments) % 2:
        return None
    keys, values = (f"array({', '.join(arguments[first::2])})" for first in (0, 1))
    return f"map_from_arrays({_checked('map', keys)}, {values})"


def _from_arrays(arguments: Arguments) -> str | None:
    if len(arguments) != 2:
        return None
    return f"map_from_arrays({_checked('map_from_arrays', arguments[0])}, {arguments[1]})"


def _from_entries(arguments: Arguments, first_field: FirstField | None) -> str | None:
    if len(arguments) != 1 or first_field is None:
        return None
    key = f"__tm_entry.{first_field(arguments[0])}"
    keys = f"transform(filter(__tm_map, __tm_entry -> __tm_entry IS NOT NULL), __tm_entry -> {key})"
    return f"map_from_entries({_checked('map_from_entries', arguments[0], keys)})"


def _concat(arguments: Arguments) -> str | None:
    if len(arguments) < 2:
        return None
    maps = [f"__tm_map.m{number}" for number in range(len(arguments))]
    fields = ", ".join(f"{argument} AS m{number}" for number, argument in enumerate(arguments))
    keys = f"concat({', '.join(f'map_keys({field})' for field in maps)})"
    first = f"if({_are_bad(keys)}, {_BAD.format(name='map_concat')}, {maps[0]})"
    return _with(f"struct({fields})", f"map_concat({', '.join([first, *maps[1:]])})")


def _str_to_map(arguments: Arguments) -> str | None:
    if not 1 <= len(arguments) <= 3:
        return None
    text, pairs, values = [*arguments, *("','", "':'")[len(arguments) - 1 :]]
    keys = f"transform(split(__tm_map, {pairs}), __tm_pair -> split(__tm_pair, {values}, 2)[0])"
    return f"str_to_map({', '.join([_checked('str_to_map', text, keys), *arguments[1:]])})"


def _transform_keys(arguments: Arguments) -> str | None:
    if len(arguments) != 2:
        return None
    keys = f"zip_with(map_keys(__tm_from), map_values(__tm_from), {arguments[1].strip()[1:-1]})"
    made = f"map_from_arrays({_checked('transform_keys', keys)}, map_values(__tm_from))"
    return f"get(transform(array({arguments[0]}), __tm_from -> {made}), 0)"


_REWRITES: Mapping[str, Rewrite] = {
    "map": _map,
    "map_from_arrays": _from_arrays,
    "map_concat": _concat,
    "str_to_map": _str_to_map,
    "transform_keys": _transform_keys,
}


_OF_MAPS = {"map_from_entries", *_REWRITES}

MOST_ITEMS = 1_000_000
MOST_CHARACTERS = 10_000_000
_MOST_PLACES = 1000  # of a number that is written as text, or of a separator
_NUMBER = re.compile(r"[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?")


def bounded(expression: str, first_field: FirstField | None = None) -> str:
    """Return an expression that fails where one of its calls would make a value that is too large, or a bad map.

    What fails is the argument that says how large: Spark would compute a call of constants before there is a row,
    also in the branch of a condition that is not taken.

    Args:
        expression: Spark SQL.
        first_field: See FirstField; None where no type is known: `map_from_entries` then stays as it is.
    """
    tokens = tokenize(expression)
    for call in calls(tokens):
        if call.name not in _TOO_LARGE and call.name not in _OF_MAPS:
            continue  # the calls inside of it have their own turn: looking into it here too doubles with each depth
        texts = [part_of(expression, part) for part in call.arguments if part]
        arguments = [f"({bounded(text, first_field)}\n)" for text in texts]
        ending = expression[call.stop :]
        as_map = _with_known_keys(call.name, arguments, first_field)
        if as_map is not None:
            return f"{expression[: call.start]}{as_map}{bounded(ending, first_field)}"
        guarded, too_large = _TOO_LARGE.get(call.name, (0, None))
        condition = too_large(arguments) if too_large else None
        if condition is None:
            continue
        why = f"raise_error('{call.name}() would make more than {MOST_ITEMS} items or {MOST_CHARACTERS} characters')"
        arguments[guarded] = f"if({condition}, {why}, {arguments[guarded]})"
        name = expression[: tokens[call.position].end]
        return f"{name}({', '.join(arguments)}){bounded(ending, first_field)}"
    return expression


def size_problems(expression: str) -> list[Problem]:
    """Find aggregates that are asked to be so precise that they fill the memory before they see a record."""
    problems = []
    for call in calls(tokenize(expression)):
        position, least = _LEAST_ERRORS.get(call.name, (0, 0.0))
        if not position or len(call.arguments) <= position:
            continue
        text = part_of(expression, call.arguments[position])
        number = _NUMBER.match(text) if is_number(text) else None
        if number is None or float(number[0]) < least:
            fault = f"`{call.name}()` with an error of `{text}` takes memory for each digit of it"
            problems.append(
                Problem(fault, expected=f"a number of at least {least}", remedy=f"write {least}, or count exactly")
            )
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
    """Check `concat_ws`, whose items may come from arrays."""
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
    limit = f"try_add(coalesce({first}, {last}), try_multiply({step}, {MOST_ITEMS}L))"
    return f"(({first} < {limit} AND {limit} < {last}) OR ({first} > {limit} AND {limit} > {last}))"


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
