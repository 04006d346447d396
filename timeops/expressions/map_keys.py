"""Calls that make a map, written so that none fails in the midst of making it.

Here: the calls, and what is computed instead. Not here: what becomes of a record on which an expression fails
(try_expression.py).

Spark fails on a key that comes twice, and on a null key. What it had put into the map until then stays in its hands,
and the next records of the task fail too, or all of the query. So the keys are looked at before Spark gets them.
"""

from collections.abc import Callable, Mapping, Sequence

Arguments = Sequence[str]
Rewrite = Callable[[Arguments], str | None]

_BAD = "raise_error('{name}() has a key twice, or a null key')"


def with_known_keys(name: str, arguments: Arguments, first_field: Callable[[str], str | None]) -> str | None:
    """Return SQL of a call that fails before it makes a map with a bad key; None for other calls.

    Args:
        name: The function, in lower case.
        arguments: Its arguments, as SQL in brackets.
        first_field: Given SQL of an ARRAY of structs, the name of their first field; None where it is not known.
    """
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


def _from_entries(arguments: Arguments, first_field: Callable[[str], str | None]) -> str | None:
    field = first_field(arguments[0]) if len(arguments) == 1 else None
    if field is None:
        return None
    keys = f"transform(filter(__tm_map, __tm_entry -> __tm_entry IS NOT NULL), __tm_entry -> __tm_entry.{field})"
    return f"map_from_entries({_checked('map_from_entries', arguments[0], keys)})"


def _concat(arguments: Arguments) -> str | None:
    if len(arguments) < 2:
        return None
    maps = [f"__tm_map.m{number}" for number in range(len(arguments))]
    given = ", ".join(f"{one} AS m{number}" for number, one in enumerate(arguments))
    keys = f"concat({', '.join(f'map_keys({one})' for one in maps)})"
    first = f"if({_are_bad(keys)}, {_BAD.format(name='map_concat')}, {maps[0]})"
    return _with(f"struct({given})", f"map_concat({', '.join([first, *maps[1:]])})")


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
