"""The types of the spec's fields: texts, durations, instants, names, expressions, columns and their names in files.

Here: how a value of YAML becomes a value of Python, and what is wrong with it by itself. Not here: rules between
fields (the models), the meaning of an expression (timeops/expressions).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, TypeVar
from zoneinfo import available_timezones

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    StrictBool,
    ValidationError,
    WithJsonSchema,
)

from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import (
    Misread,
    Path,
    Problem,
    ProblemsError,
    as_flag,
    as_number,
    did_you_mean,
    misfit,
    problems_of,
    raise_any,
    show,
)
from tidemark.timeops.expressions.bounds import size_problems
from tidemark.timeops.expressions.determinism import determinism_problems, in_event_order, order_problems
from tidemark.timeops.expressions.tokens import (
    WORKING,
    is_number,
    plain_column,
    split_alias,
    top_level_names,
    top_level_parts,
)
from tidemark.timeops.values.durations import DURATION_PATTERN, format_duration, parse_duration
from tidemark.timeops.values.locations import has_secret, url_problem


class SpecModel(BaseModel):
    """A part of the spec file: unknown keys are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Model = TypeVar("_Model", bound=SpecModel)


def read_keys(value: Mapping[object, object], model: type[_Model]) -> _Model:
    """Read the mapping that a key may have in place of plain words.

    Raises:
        ProblemsError: It does not fit the model.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ProblemsError(problems_of(error, {(): model})) from None


def word_or_keys(model: type[_Model], *words: str, expected: str) -> BeforeValidator:
    """Return the check of a value that is one of some words, or a mapping of the keys of a model."""

    def check(value: object) -> object:
        if isinstance(value, Mapping):
            return read_keys(value, model)
        if value in words or isinstance(value, model):
            return value
        raise misfit(value, expected, did_you_mean(value, [*words, *model.model_fields]))

    return BeforeValidator(check)


def read_text(value: object) -> str:
    """Return a text without the white space around it, or say that it is none."""
    if not isinstance(value, str):
        raise misfit(value, "text", "put the value in quotes" if isinstance(value, int | float | Misread) else "")
    if not value.strip():
        raise ProblemsError([Problem("found an empty text", expected="text")])
    return value.strip()


def name_like(pattern: str, expected: str) -> BeforeValidator:
    """Return the check of a name; `expected` says the pattern in words."""

    def check(value: object) -> str:
        name = read_text(value)
        if not re.fullmatch(pattern, name):
            raise misfit(name, expected)
        return name

    return BeforeValidator(check)


VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""The form of a reference to the value of an environment variable."""


def one_of(*values: str, aliases: Mapping[str, str] = MappingProxyType({})) -> BeforeValidator:
    """Return the check of a choice among more words than the type has, or with other spellings of them."""

    def check(value: object) -> str:
        if isinstance(value, str) and aliases.get(value, value) in values:
            return aliases.get(value, value)
        raise misfit(value, " or ".join(values), did_you_mean(value, [*values, *aliases]))

    return BeforeValidator(check)


def read_duration(value: object) -> timedelta:
    """Return a length of time, zero or more."""
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ProblemsError([Problem(f"found {value!r}, which is negative", expected="zero or more")])
        return value
    value = value.text if isinstance(value, Misread) else value
    try:
        return parse_duration(value)
    except SpecError as error:
        fault = error.found if isinstance(value, str | int | float) else f"found {show(value)}"
        raise ProblemsError([Problem(fault, expected=error.expected, remedy=error.remedy)]) from None


def read_positive_duration(value: object) -> timedelta:
    """Return a length of time longer than zero."""
    value = value.text if isinstance(value, Misread) else value
    is_negative = value < timedelta(0) if isinstance(value, timedelta) else str(value).lstrip().startswith("-")
    length = None if is_negative else read_duration(value)
    if not length:
        fault = f"found {show(value)}, which is negative" if is_negative else "found a length of zero"
        raise ProblemsError([Problem(fault, expected="a duration longer than zero")])
    return length


def read_instant(value: object) -> datetime:
    """Read ISO 8601 text; without an offset it is UTC.

    Raises:
        ProblemsError: It is not an instant.
    """
    try:
        read = datetime.fromisoformat(value if isinstance(value, str) else "")
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except ValueError:
        raise misfit(value, "an instant such as 2026-01-31T12:00:00Z") from None
    except OverflowError:  # its offset leads out of the calendar
        raise misfit(value, "an instant that is in the years 0001 to 9999 in UTC") from None


_BYTE_UNITS = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
    "KB": 1000,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_BYTES_PATTERN = r"^ *([0-9]+(?:\.[0-9]+)?) *(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB) *$"


def _bytes(value: object) -> int:
    value = as_number(value)
    size = value if isinstance(value, int) and not isinstance(value, bool) else None
    match = re.match(_BYTES_PATTERN, value) if isinstance(value, str) else None
    if match:
        size = round(float(match[1]) * _BYTE_UNITS[match[2]])
    if size is None or size < 1:
        raise misfit(value, "a whole number of bytes, at least 1, or a size such as `500 MB` or `1 GiB`")
    return size


_LARGEST = 2**63 - 1  # the largest BIGINT


def _whole_number(value: object) -> int:
    value = as_number(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise misfit(value, "a whole number, at least 1")
    if value > _LARGEST:
        raise misfit(value, f"a whole number, at most {_LARGEST}")
    return value


def _day(value: object) -> date:
    if type(value) is date:
        return value
    try:
        return date.fromisoformat(value if isinstance(value, str) and len(value) == 10 else "")
    except ValueError:
        raise misfit(value, "a day such as 2026-01-31") from None


@cache
def _time_zones() -> frozenset[str]:
    """Return the names of the IANA data base; `localtime` is whatever this machine is set to."""
    return frozenset(available_timezones() - {"localtime"})


def _time_zone(value: object) -> str:
    zone = read_text(value)
    if zone not in _time_zones():
        expected = "a time zone of the IANA database, such as UTC or Europe/Berlin"
        raise misfit(zone, expected, did_you_mean(zone, _time_zones()))
    return zone


def text_schema(**more: object) -> WithJsonSchema:
    """Return the JSON Schema of a text that is not empty."""
    return WithJsonSchema({"type": "string", "pattern": r"\S", **more})


Frozen = AfterValidator(lambda value: MappingProxyType(dict(value)))
"""Makes a mapping read-only."""

POSITIVE_LENGTH: dict[str, Any] = {"type": "string", "pattern": DURATION_PATTERN, "allOf": [{"pattern": "[1-9]"}]}
"""JSON Schema of a length of time that is not zero."""

PIPELINE_NAME = r"[a-z][a-z0-9_]*"
NAME = r"[A-Za-z][A-Za-z0-9_]*"
ALIAS = r"(?!__)[A-Za-z_][A-Za-z0-9_]*"

PipelineName = Annotated[
    str,
    name_like(PIPELINE_NAME, "lower-case letters, digits and _, starting with a letter"),
    WithJsonSchema({"type": "string", "pattern": f"^{PIPELINE_NAME}$"}),
]
Name = Annotated[
    str,
    name_like(NAME, "letters, digits and _, starting with a letter"),
    WithJsonSchema({"type": "string", "pattern": f"^{NAME}$"}),
]
_ASSET_PATH = r"[^/\s]+(?:/[^/\s]+)*"
AssetPath = Annotated[
    str,
    name_like(_ASSET_PATH, "the key of an asset in Dagster, its parts separated by `/`, such as raw/orders"),
    WithJsonSchema({"type": "string", "pattern": f"^{_ASSET_PATH}$"}),
]
Alias = Annotated[str, name_like(ALIAS, "a column name of letters, digits and _, with at most one leading _")]
Text = Annotated[str, BeforeValidator(read_text), text_schema()]
Flag = Annotated[StrictBool, BeforeValidator(as_flag)]
Day = Annotated[
    date,
    BeforeValidator(_day),
    WithJsonSchema({"type": "string", "format": "date", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}),
]
Instant = Annotated[
    datetime,
    BeforeValidator(lambda value: value if isinstance(value, datetime) else read_instant(value)),
    PlainSerializer(lambda instant: instant.isoformat(), return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"}),
]
TimeZone = Annotated[str, BeforeValidator(_time_zone), text_schema()]
WholeNumber = Annotated[
    int, BeforeValidator(_whole_number), WithJsonSchema({"type": "integer", "minimum": 1, "maximum": _LARGEST})
]
ByteSize = Annotated[
    int,
    BeforeValidator(_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": _BYTES_PATTERN}]}),
]
Duration = Annotated[
    timedelta,
    BeforeValidator(read_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
PositiveDuration = Annotated[
    timedelta,
    BeforeValidator(read_positive_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema(POSITIVE_LENGTH),
]


def _known_url(path: str) -> str:
    problem = url_problem(path)
    if problem is not None:
        expected = "a path, or a URL with s3://, gs://, abfss:// or hdfs://, such as s3://bucket/folder"
        if has_secret(path):
            remedy = "leave it out: the environment grants access to stores; change the secret if others have seen it"
            raise ProblemsError([Problem(f"found a URL {problem}", expected=expected, remedy=remedy)])
        raise ProblemsError([Problem(f"found {show(path)}, {problem}", expected=expected, remedy="correct the path")])
    return path


Location = Annotated[Text, AfterValidator(_known_url)]
"""A path, relative to the spec file or absolute, or the URL of a place in a store."""


RESERVED_COLUMNS: frozenset[str] = frozenset(
    """_adjusted_by _arrival_seq _arrival_time _batch_id _clock _event_time _file _is_final _malformed _position
    _release_seq _rescued _revision _source _split _timeline _timestamp _watermark""".split()  # noqa: SIM905
)
"""Columns that the product writes; no payload column, group column or aggregate may have these names."""

ILLEGAL_IN_STRUCTS = frozenset(" ,;{}()\n\t=")
"""Characters that no name in a Delta table may have, inside of structs either."""

ILLEGAL_IN_COLUMNS = ILLEGAL_IN_STRUCTS | frozenset(".`")
"""Characters that no column may have in its name; SQL takes `a.b` for the field of a struct."""
_UNQUOTED = re.compile(r"[^\s,:<>()'\"`]+")
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w.]*")
_NO_TEXT = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))  # what YAML reads as other values


def read_expression(value: object) -> str:
    """Read Spark SQL without an `AS` name; the place that takes one reads it with `_group_item`."""
    text = read_text(value)
    expression, alias = split_alias(text)
    problems = determinism_problems(expression, columns=["user"])  # declared columns: see timeops/spec/pipeline.py
    if alias is not None:
        fault = f"found {show(text)}: the name `{alias}` has no effect here"
        problems.append(Problem(fault, expected="an expression without AS", remedy=f"write `{expression}`"))
    raise_any(problems)
    return text


def _instant(value: object) -> str:
    written = value.text if isinstance(value, Misread) else value
    if (isinstance(written, int | float) and not isinstance(written, bool)) or is_number(str(written)):
        expected = "an expression whose value is a time; the unit of a bare number cannot be known"
        remedy = "name the column and its unit: timestamp_seconds(x), timestamp_millis(x) or timestamp_micros(x)"
        raise ProblemsError([Problem(f"found the bare number {written}", expected=expected, remedy=remedy)])
    return read_expression(value)


def _aggregate(value: object) -> str:
    return _of_results(in_event_order(read_expression(value)))


def _of_results(value: object) -> str:
    text = read_expression(value)
    raise_any([*order_problems(text), *size_problems(text)])
    return text


def _group_item(value: object) -> str:
    text = read_text(value)
    expression, alias = split_alias(text)
    problems = determinism_problems(expression, columns=["user"])
    name = alias if alias is not None else plain_column(expression)
    if name is None:
        suggested = "_".join(re.findall(r"[a-z]\w*", expression.lower())[:3]) or "name"
        fault = f"found {show(text)}, an expression without a name"
        expected = "a column, or `expression AS name`"
        problems.append(Problem(fault, expected=expected, remedy=f"write `{expression} AS {suggested}`"))
    else:
        problems.extend(column_name_problems(name, f"write `{expression} AS another_name`"))
    raise_any(problems)
    return text


def is_reserved(name: str) -> bool:
    """Return whether a name, in any case, is for columns of Tidemark alone, which it writes or works with."""
    return name.lower() in RESERVED_COLUMNS or name.lower().startswith(WORKING)


def column_name_problems(name: str, remedy: str, at: Path = ()) -> list[Problem]:
    """Return why a column of a table may not have this name; at most one problem."""
    if is_reserved(name):
        return [Problem(f"the name `{name}` is reserved for a column of Tidemark", remedy=remedy, at=at)]
    illegal = sorted(ILLEGAL_IN_COLUMNS & set(name))
    if illegal or not name:
        fault = f"the column name {name!r} holds {', '.join(map(repr, illegal)) or 'nothing'}"
        return [Problem(fault, expected="a name without any of ' ,;{}()=.`', tab and new line", remedy=remedy, at=at)]
    return []


Expression = Annotated[str, BeforeValidator(read_expression), text_schema()]
InstantExpression = Annotated[
    str, BeforeValidator(_instant), text_schema(**{"not": {"pattern": r"^\s*[-+]?[0-9.]+\s*$"}})
]
Aggregate = Annotated[str, BeforeValidator(_aggregate), text_schema()]
ResultExpression = Annotated[str, BeforeValidator(_of_results), text_schema()]
GroupItem = Annotated[str, BeforeValidator(_group_item), text_schema()]


def name_in_tables(name: str, rename: Mapping[str, str]) -> str:
    """Return what a column of `schema` is called in the tables; `schema` may call it so already."""
    return rename.get(name, name)


def names_in_files(names: Iterable[str], rename: Mapping[str, str]) -> dict[str, str]:
    """Return what columns are called in the files, by their names in `schema`; of several names the first.

    `schema` names a column as the file does or as the tables do: with `rename: {_id: id}` both `_id` and `id` are the
    column `_id` of the file. A name that is a key of `rename` is that of the file.
    """
    return {name: all_names(name, rename)[0] for name in names}


def all_names(name: str, rename: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that a column of `schema` has had in files over time, in the order of `rename`."""
    final = name_in_tables(name, rename)
    return tuple(old for old, new in rename.items() if new == final) or (name,)


def columns_in_tables(ddl: str, rename: Mapping[str, str]) -> list[str]:
    """Return the names of a source's columns as they are in the tables."""
    return [name_in_tables(name, rename) for name in top_level_names(ddl)]


def schema_problems(ddl: str, rename: Mapping[str, str]) -> list[Problem]:
    """Find what is wrong with the names of columns, and with `rename` next to them.

    Types are judged by Spark; what is wrong with entries of `rename` themselves, `rename_problems` says.
    """
    if bare := _unquoted(ddl):
        return [_without_quotes(ddl, bare, rename)]
    names = top_level_names(ddl)
    finals = [(name, name_in_tables(name, rename)) for name in names]
    problems = [
        Problem(
            f"`{old}` is not a column of `schema`",
            expected=f"`{old}`, as the file has it, or `{new}`, as the tables will have it, in `schema`",
            remedy=did_you_mean(old, names),
            at=("rename", old),
        )
        for old, new in rename.items()
        if old not in names and new not in {final for _, final in finals}
    ]
    wrong = [name for name, final in finals if name not in rename and column_name_problems(final, "")]
    line = f"add `{_rename_line(wrong, names, rename)}` to the source, and use the new names everywhere else"
    for name in wrong:
        problems += column_name_problems(name, line, ("schema",))
    spelled: dict[str, str] = {}
    for _, final in finals:
        if final.lower() in spelled:
            fault = f"columns `{spelled[final.lower()]}` and `{final}` have the same name in the tables"
            remedy = "choose another name for one of them with `rename: {name in the file: name in the tables}`"
            problems.append(
                Problem(fault, expected="names that differ in more than case", remedy=remedy, at=("schema",))
            )
        spelled[final.lower()] = final
    return problems


def rename_problems(rename: Mapping[str, str]) -> list[Problem]:
    """Find what is wrong with entries of `rename`, whatever `schema` says."""
    problems: list[Problem] = []
    names: dict[str, str] = {}
    for old, new in rename.items():
        at = ("rename", old)
        problems += column_name_problems(new, "choose another name", at)
        if old == new and len(all_names(old, rename)) == 1:
            fault = f"`{old}` is renamed to itself, which has no effect"
            problems.append(Problem(fault, remedy="leave it out", at=at))
        if names.setdefault(new.lower(), new) != new:
            problems.append(
                Problem(f"two columns are renamed to `{new}`", expected="names that differ in more than case", at=at)
            )
    return problems


def one_name_problems(rename: Mapping[str, str], why: str) -> list[Problem]:
    """Find entries of `rename` that add a second name to a column where there can be one; `why` says the reason."""
    remedy = "leave out all names of the column but the one that it has now"
    return [
        Problem(f"`{new}` has several names, but {why}", remedy=remedy, at=("rename", old))
        for old, new in rename.items()
        if all_names(new, rename)[0] != old
    ]


def suggested_name(name: str, taken: Iterable[str]) -> str:
    """Return a name that a table can have, near to one that it cannot, and not taken."""
    plain = re.sub(r"\W+", "_", name).strip("_") or "column"
    used = {other.lower() for other in taken}
    tries = (plain if number == 1 else f"{plain}_{number}" for number in range(1, len(used) + 3))
    return next(
        candidate for candidate in tries if candidate.lower() not in used and not column_name_problems(candidate, "")
    )


def _rename_line(names: Sequence[str], taken: Sequence[str], rename: Mapping[str, str]) -> str:
    """Return the line of the spec that renames columns to names that a table can have."""
    renamed = dict(rename)
    for name in names:
        renamed[name] = suggested_name(name, [*taken, *renamed.values()])
    return f"rename: {{{', '.join(f'{_key(old)}: {_key(new)}' for old, new in renamed.items())}}}"


def _key(name: str) -> str:
    """Return a name as YAML has it inside of brackets."""
    is_plain = _PLAIN_KEY.fullmatch(name) and name.lower() not in _NO_TEXT
    return name if is_plain else json.dumps(name, ensure_ascii=False)


def _unquoted(ddl: str) -> list[str]:
    """Find names with signs that need backquotes in DDL and have none, such as `id.orig_h`."""
    names = []
    for part in top_level_parts(ddl):
        match = _UNQUOTED.match(ddl, part[0].start)
        if part[0].kind in ("word", "symbol") and match and match[0] != part[0].text and len(part) > 1:
            names.append(match[0])
    return names


def _without_quotes(ddl: str, bare: Sequence[str], rename: Mapping[str, str]) -> Problem:
    taken = [name for name in top_level_names(ddl) if not any(bare_name.startswith(name) for bare_name in bare)]
    line = _rename_line([name for name in bare if name not in rename], taken, rename)
    return Problem(
        f"{', '.join(f'`{name}`' for name in bare)}: DDL allows such names only in backquotes",
        expected="names of letters, digits and `_`",
        remedy=f"write the new names in `schema`, and `{line}` next to it",
        at=("schema",),
    )
