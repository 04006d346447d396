"""Types of columns as trees: whether another type holds all their values, and SQL of a value as that type.

Here: types from DDL and from JSON, types that hold every value of another one, fields that only one of two types has.
Not here: types of a format of files (resources/sources/), which changes of a type a pipeline takes
(timeops/spec/changes.py).

A field of a struct is found by its exact name, whatever its place. No function needs Spark: looks at files use them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.timeops.expressions.tokens import Token, literal, literals, quoted, tokenize

_SPELLINGS: Mapping[str, str] = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    **dict.fromkeys(("dec", "numeric", "decimal"), "decimal(10,0)"),
    "timestamp_ltz": "timestamp",
}
_NESTED: Mapping[str, Sequence[str]] = {"array": ("element",), "map": ("key", "value"), "struct": ()}
VOID = "void"
"""The type of a column that has no value in any row."""


@dataclass(frozen=True)
class Stored:
    """Values that an input stores in a way that Spark does not know.

    Attributes:
        read: The type as which Spark reads what is stored.
        sql: SQL of the value; `@` is what was read.
    """

    read: str
    sql: str


_NANOS = (
    "concat(date_format(timestamp_micros(@ DIV 1000 - IF(@ % 1000 < 0, 1, 0)), 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS'), "
    "lpad(pmod(@, 1000), 3, '0')"
)
_HALF = (
    "get(transform(array(CAST(conv(concat(substr(hex(@), 3, 2), substr(hex(@), 1, 2)), 16, 10) AS INT)), h -> "
    "CAST(IF(h >= 32768, -1, 1) * CASE "
    "WHEN h DIV 1024 % 32 = 31 THEN IF(h % 1024 = 0, DOUBLE('Infinity'), DOUBLE('NaN')) "
    "WHEN h DIV 1024 % 32 = 0 THEN h % 1024 * pow(2D, -24) "
    "ELSE (1024 + h % 1024) * pow(2D, h DIV 1024 % 32 - 25) END AS FLOAT)), 0)"
)
STORED: Mapping[str, Stored] = {
    "time[ms]": Stored("int", "date_format(timestamp_millis(@), 'HH:mm:ss.SSS')"),
    "time[us]": Stored("bigint", "date_format(timestamp_micros(@), 'HH:mm:ss.SSSSSS')"),
    "time[ns]": Stored(
        "bigint", "concat(date_format(timestamp_micros(@ DIV 1000), 'HH:mm:ss.SSSSSS'), lpad(@ % 1000, 3, '0'))"
    ),
    "timestamp[ns]": Stored("bigint", f"{_NANOS})"),
    "timestamp[ns, UTC]": Stored("bigint", f"{_NANOS}, 'Z')"),
    "uuid": Stored("binary", "regexp_replace(lower(hex(@)), '(.{8})(.{4})(.{4})(.{4})(.{12})', '$1-$2-$3-$4-$5')"),
    "float16": Stored("binary", _HALF),
    "null": Stored("int", "@"),
}
"""By the name of what is stored: times and UUIDs become texts, halves FLOAT; what has no values is read as INT."""


@dataclass(frozen=True)
class ColumnType:
    """The type of a column, or of a value within one.

    Attributes:
        word: `struct`, `array` or `map`; any other type as Spark SQL spells it, such as `decimal(10,0)`.
        inside: The types within it: the fields of a struct, `element` of an array, `key` and `value` of a map.
        stored: How the input has such values, if Spark does not read them as what they are. A key of `STORED`, or
            any other name if they cannot be read.
    """

    word: str
    inside: tuple[tuple[str, "ColumnType"], ...] = ()
    stored: str = ""

    @property
    def sql(self) -> str:
        """The type in Spark SQL, such as `struct<a:int,b:array<string>>`."""
        return self._text(":", ",", str)

    @property
    def ddl(self) -> str:
        """The type as people write it in a spec, such as `STRUCT<a: INT, b: ARRAY<STRING>>`."""
        return self._text(": ", ", ", str.upper)

    @property
    def is_readable(self) -> bool:
        """Return whether values can be read, all of them exactly."""
        return (not self.stored or self.stored in STORED) and all(kind.is_readable for _, kind in self.inside)

    @property
    def read_as(self) -> "ColumnType":
        """The type as which Spark reads what is stored."""
        inside = tuple((name, kind.read_as) for name, kind in self.inside)
        return ColumnType(STORED[self.stored].read if self.stored in STORED else self.word, inside)

    def _text(self, colon: str, comma: str, spell: Callable[[str], str]) -> str:
        if self.word not in _NESTED:
            return spell(self.word)
        parts = [kind._text(colon, comma, spell) for _, kind in self.inside]
        if self.word == "struct":
            parts = [f"{_field(name)}{colon}{part}" for (name, _), part in zip(self.inside, parts, strict=True)]
        return f"{spell(self.word)}<{comma.join(parts)}>"


def _field(name: str) -> str:
    return name if name.isidentifier() else quoted(name)


def type_of_ddl(text: str) -> ColumnType:
    """Return the type that words of DDL mean; of a text that is not a type, some type."""
    return type_of_words(tokenize(text))


def type_of_words(tokens: Sequence[Token]) -> ColumnType:
    """Return the type that words of DDL begin with; a comment and other words may follow."""
    return _read(tokens, 0)[0]


def _read(tokens: Sequence[Token], at: int) -> tuple[ColumnType, int]:
    """Return the type at a place, and the place after it."""
    word, following = _word(tokens, at), _word(tokens, at + 1)
    if word in _NESTED and following == "<":
        return _read_nested(tokens, word, at + 2)
    if following != "(":
        return ColumnType(_SPELLINGS.get(word, word)), at + 1
    end = next((n for n in range(at, len(tokens)) if _word(tokens, n) == ")"), len(tokens))
    digits = [_word(tokens, n) for n in range(at + 2, end) if _word(tokens, n) != ","]
    word = _SPELLINGS.get(word, word).partition("(")[0]
    digits += ["0"] if word == "decimal" and len(digits) == 1 else []
    return ColumnType(f"{word}({','.join(digits)})"), end + 1


def _read_nested(tokens: Sequence[Token], word: str, at: int) -> tuple[ColumnType, int]:
    inside: list[tuple[str, ColumnType]] = []
    names = [*_NESTED[word]]
    while at < len(tokens) and _word(tokens, at) != ">":
        if word == "struct":
            name, at = tokens[at].text, at + (2 if _word(tokens, at + 1) == ":" else 1)
        else:
            name = names.pop(0) if names else ""
        kind, at = _read(tokens, at)
        inside.append((name, kind))
        while at < len(tokens) and _word(tokens, at) not in (",", ">"):  # a comment
            at += 1
        at += 1 if _word(tokens, at) == "," else 0
    return ColumnType(word, tuple(inside)), at + 1


def _word(tokens: Sequence[Token], at: int) -> str:
    return tokens[at].lower if at < len(tokens) else ""


def type_of_json(kind: Any) -> ColumnType:
    """Return a type of the JSON in which Spark and Delta write schemas: `jsonValue()` of Spark's own types."""
    if isinstance(kind, str):
        return type_of_ddl(kind) if kind in _SPELLINGS else ColumnType(kind)
    if kind["type"] == "array":
        return ColumnType("array", (("element", type_of_json(kind["elementType"])),))
    if kind["type"] == "map":
        pair = (("key", type_of_json(kind["keyType"])), ("value", type_of_json(kind["valueType"])))
        return ColumnType("map", pair)
    if kind["type"] == "struct":
        return ColumnType("struct", tuple((field["name"], type_of_json(field["type"])) for field in kind["fields"]))
    return ColumnType(str(kind["type"]), stored=str(kind["type"]))


_DIGITS: Mapping[str, int] = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""The digits of the largest number of each type, the narrowest first."""
_EXACT = frozenset((("tinyint", "double"), ("smallint", "double"), ("int", "double"), ("float", "double")))


def digits_of(word: str) -> tuple[int, int] | None:
    """Return the digits of a number before and after its point; None where these are not fixed."""
    if word in _DIGITS:
        return _DIGITS[word], 0
    kind, _, arguments = word.partition("(")
    parts = arguments.rstrip(")").split(",")
    if kind != "decimal" or len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    precision, scale = map(int, parts)
    return precision - scale, scale


def holds_number(word: str, other: str) -> bool:
    """Return whether a type of numbers holds every value of another one."""
    if (other, word) in _EXACT:
        return True
    theirs, digits = digits_of(other), digits_of(word)
    if theirs is None or digits is None or (word in _DIGITS and other not in _DIGITS):
        return False
    return digits[0] >= theirs[0] and digits[1] >= theirs[1]


Holds = Callable[[str, str], bool]
"""Says of two types without types inside, by their words: does the first hold every value of the second?"""


@dataclass(frozen=True)
class Misfit:
    """A place at which values of one type are not values of another one.

    Attributes:
        path: The names from the column to the place.
        found: The type there; None for a field that is missing.
        wanted: The other one.
        names: The fields of the struct that lacks one, or has one more than once in any case.
    """

    path: tuple[str, ...]
    found: ColumnType | None
    wanted: ColumnType
    names: tuple[str, ...] = ()


def misfit(
    actual: ColumnType, wanted: ColumnType, holds: Holds, *, may_lack: bool = False, path: tuple[str, ...] = ()
) -> Misfit | None:
    """Return the first place at which values cannot be had as another type without loss; None for none.

    Fields that only the first type has do not matter. With `may_lack` it may lack some of the others, but not all of
    a struct, and none that it has by a name that differs in case only.
    """
    if actual.word == VOID:
        return None
    if actual.word != wanted.word or actual.word not in _NESTED:
        fits = not actual.stored or actual.stored in STORED
        fits = fits and (actual.word == wanted.word or holds(wanted.word, actual.word))
        return None if fits else Misfit(path, actual, wanted)
    kinds, names = dict(actual.inside), tuple(name for name, _ in actual.inside)
    has_any = any(name in kinds for name, _ in wanted.inside)
    for name, kind in wanted.inside:
        same = [other for other in names if other.lower() == name.lower()]
        if same != [name]:
            if same or not may_lack or not has_any:
                return Misfit((*path, name), None, kind, names)
            continue
        if problem := misfit(kinds[name], kind, holds, may_lack=may_lack, path=(*path, name)):
            return problem
    return None


def unknown_fields(
    actual: ColumnType, wanted: ColumnType, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ColumnType]]:
    """Yield the fields that a type has inside and another one lacks, each with its path; none that is always null."""
    if actual.word != wanted.word:
        return
    fields = dict(wanted.inside)
    for name, kind in actual.inside:
        if name in fields:
            yield from unknown_fields(kind, fields[name], (*path, name))
        elif kind.word != VOID:
            yield (*path, name), kind


def with_field(kind: ColumnType, path: Sequence[str], added: ColumnType) -> ColumnType:
    """Return a type with one field more, at a path inside of it."""
    name, path_inside = path[0], path[1:]
    if not path_inside:
        return ColumnType(kind.word, (*kind.inside, (name, added)))
    inside = tuple(
        (field, with_field(part, path_inside, added) if field == name else part) for field, part in kind.inside
    )
    return ColumnType(kind.word, inside)


def only_fields_of(actual: ColumnType, wanted: ColumnType) -> ColumnType:
    """Return a type without the fields that another one lacks."""
    if actual.word != wanted.word or actual.word not in _NESTED:
        return actual
    fields = dict(wanted.inside)
    inside = ((name, only_fields_of(kind, fields[name])) for name, kind in actual.inside if name in fields)
    return ColumnType(actual.word, tuple(inside))


def as_kept(kind: ColumnType) -> ColumnType:
    """Return the type as which values go into JSON: a FLOAT as a DOUBLE has all its digits, to be read exactly."""
    inside = tuple((name, as_kept(part)) for name, part in kind.inside)
    return ColumnType("double" if kind.word == "float" else kind.word, inside)


def converted(value: str, actual: ColumnType, wanted: ColumnType, time_zone: str = "UTC", depth: int = 0) -> str:
    """Return SQL of a value as another type that holds it; what the type of the value lacks is null.

    Args:
        value: SQL of the value as Spark reads it, see `read_as`. It is named several times, so it has to be cheap.
        actual: Its type.
        wanted: The other one, for which `misfit` has nothing to say.
        time_zone: IANA name of the zone of local times and days that become instants.
        depth: Number of lambda functions around.
    """
    if actual == wanted:
        return value
    if actual.word != wanted.word or actual.word not in _NESTED:
        return _leaf(value, actual, wanted, time_zone)
    kinds, item = dict(actual.inside), f"x{depth}"
    if actual.word == "struct":
        parts = (
            f"{literal(name)}, {converted(f'{value}.{quoted(name)}', kinds[name], kind, time_zone, depth)}"
            if name in kinds
            else f"{literal(name)}, CAST(NULL AS {kind.sql})"
            for name, kind in wanted.inside
        )
        return f"IF({value} IS NULL, NULL, named_struct({', '.join(parts)}))"
    items = {name: converted(item, kinds[name], kind, time_zone, depth + 1) for name, kind in wanted.inside}
    if actual.word == "array":
        return f"transform({value}, {item} -> {items['element']})"
    if items["key"] == item:
        return f"transform_values({value}, (k{depth}, {item}) -> {items['value']})"
    keys, values = (f"transform(map_{name}s({value}), {item} -> {items[name]})" for name in ("key", "value"))
    return f"map_from_arrays({keys}, {values})"


def _leaf(value: str, actual: ColumnType, wanted: ColumnType, time_zone: str) -> str:
    if actual.word == VOID:
        return f"CAST(NULL AS {wanted.sql})"
    if actual.stored:
        value = STORED[actual.stored].sql.replace("@", value)
    if wanted.word == "timestamp" and actual.word in ("timestamp_ntz", "date"):
        local = value if actual.word == "timestamp_ntz" else f"CAST({value} AS TIMESTAMP_NTZ)"
        return f"to_utc_timestamp({local}, {literal(time_zone)})"
    return value if actual.word == wanted.word else f"CAST({value} AS {wanted.word})"


def has_unknown_fields(value: str, actual: ColumnType, wanted: ColumnType, depth: int = 0) -> str | None:
    """Return SQL of a BOOLEAN: the value has a field that another type lacks; None where no value can have one."""
    if actual.word != wanted.word or actual.word not in _NESTED:
        return None
    fields, item, parts = dict(wanted.inside), f"x{depth}", list[str | None]()
    for name, kind in actual.inside:
        if actual.word != "struct":
            inner = has_unknown_fields(item, kind, fields[name], depth + 1)
            values = value if actual.word == "array" else f"map_{name}s({value})"
            parts.append(None if inner is None else f"exists({values}, {item} -> {inner})")
        elif name in fields:
            parts.append(has_unknown_fields(f"{value}.{quoted(name)}", kind, fields[name], depth))
        elif kind.word != VOID:
            parts.append(f"{value}.{quoted(name)} IS NOT NULL")
    return " OR ".join(f"coalesce({part}, false)" for part in parts if part is not None) or None


def variant_has_unknown_fields(value: str, wanted: ColumnType, depth: int = 0) -> str | None:
    """Return SQL of a BOOLEAN: a VARIANT has a field that a type lacks; None where the type has no struct inside."""
    item, inside = f"x{depth}", dict(wanted.inside)
    if wanted.word == "array":
        inner = variant_has_unknown_fields(item, inside["element"], depth + 1)
        return None if inner is None else f"exists(try_cast({value} AS ARRAY<VARIANT>), {item} -> {inner})"
    fields = f"try_cast({value} AS MAP<STRING, VARIANT>)"
    if wanted.word == "map":
        inner = variant_has_unknown_fields(item, inside["value"], depth + 1)
        return None if inner is None else f"exists(map_values({fields}), {item} -> {inner})"
    if wanted.word != "struct":
        return None
    checks = [f"NOT coalesce({item}.key IN ({literals(inside)}), false)"]
    for name, kind in wanted.inside:
        inner = variant_has_unknown_fields(f"{item}.value", kind, depth + 1)
        checks += [] if inner is None else [f"({item}.key = {literal(name)} AND coalesce({inner}, false))"]
    return f"exists(map_entries({fields}), {item} -> {' OR '.join(checks)})"
