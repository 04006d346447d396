"""The kinds of value a spec file may hold: names, durations, sizes, choices; expressions are beside.

Here: reading one value, and its JSON Schema. Not here: keys and the rules between them (source.py,
event_time.py, window.py).
"""

import re
from collections.abc import Collection, Mapping
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
    ValidationError,
    WithJsonSchema,
)

from tidemark.timeops.durations import DURATION_PATTERN, format_duration, parse_duration
from tidemark.timeops.errors import SpecError
from tidemark.timeops.locations import has_secret, url_problem
from tidemark.timeops.problems import Problem, ProblemsError, did_you_mean, problems_of, show


class SpecModel(BaseModel):
    """A part of the spec file: unknown keys are errors, and nothing changes after reading."""

    model_config = ConfigDict(extra="forbid", frozen=True)


_Model = TypeVar("_Model", bound=SpecModel)


def read_keys(value: Mapping[object, object], model: type[_Model]) -> _Model:
    """Read the mapping that a key takes beside plain words.

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
        remedy = did_you_mean(value, [*words, *model.model_fields]) if isinstance(value, str) else ""
        raise ProblemsError([Problem(f"found {show(value)}", expected, remedy)])

    return BeforeValidator(check)


def read_text(value: object) -> str:
    """Return a text without the white space around it, or say that it is none."""
    if not isinstance(value, str):
        is_scalar = isinstance(value, bool | int | float)
        remedy = "put the value in quotes" if is_scalar else ""
        raise ProblemsError([Problem(f"found {show(value)}", expected="text", remedy=remedy)])
    if not value.strip():
        raise ProblemsError([Problem("found an empty text", expected="text")])
    return value.strip()


def name_like(pattern: str, expected: str) -> BeforeValidator:
    """Return the check of a name; `expected` says the pattern in words."""

    def check(value: object) -> str:
        name = read_text(value)
        if not re.fullmatch(pattern, name):
            raise ProblemsError([Problem(f"found {show(name)}", expected=expected)])
        return name

    return BeforeValidator(check)


def one_of(
    *values: str, later: Collection[str] = (), aliases: Mapping[str, str] = MappingProxyType({})
) -> BeforeValidator:
    """Return the check of a choice.

    Args:
        *values: What may be chosen.
        later: Choices that are known and not supported yet, also as the key of a mapping.
        aliases: Other spellings.
    """
    expected = " or ".join(values)

    def check(value: object) -> str:
        words = list(value) if isinstance(value, Mapping) else [value]
        for word in words:
            if word in later:
                found = f"found {show(value)}: `{word}` is not supported yet"
                raise ProblemsError([Problem(found, expected=expected)])
        if isinstance(value, str) and aliases.get(value, value) in values:
            return aliases.get(value, value)
        remedy = did_you_mean(value, [*values, *aliases, *later]) if isinstance(value, str) else ""
        raise ProblemsError([Problem(f"found {show(value)}", expected=expected, remedy=remedy)])

    return BeforeValidator(check)


def read_duration(value: object) -> timedelta:
    """Return a length of time, zero or more."""
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ProblemsError([Problem(f"found {value!r}, which is negative", expected="zero or more")])
        return value
    try:
        return parse_duration(value)
    except SpecError as error:
        found = error.found if isinstance(value, str | int | float) else f"found {show(value)}"
        raise ProblemsError([Problem(found, error.expected, error.remedy)]) from None


def read_positive_duration(value: object) -> timedelta:
    """Return a length of time longer than zero."""
    is_negative = value < timedelta(0) if isinstance(value, timedelta) else str(value).lstrip().startswith("-")
    length = None if is_negative else read_duration(value)
    if not length:
        found = f"found {show(value)}, which is negative" if is_negative else "found a length of zero"
        raise ProblemsError([Problem(found, expected="a duration longer than zero")])
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
        expected = "an instant such as 2026-01-31T12:00:00Z"
        raise ProblemsError([Problem(f"found {show(value)}", expected=expected)]) from None
    except OverflowError:  # its offset leads out of the calendar
        expected = "an instant that is in the years 0001 to 9999 in UTC"
        raise ProblemsError([Problem(f"found {show(value)}", expected=expected)]) from None


_BYTE_UNITS = {
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", start=1)},
    "KB": 1000,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
_BYTES_PATTERN = r"^ *([0-9]+(?:\.[0-9]+)?) *(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB) *$"


def _bytes(value: object) -> int:
    expected = "a whole number of bytes, at least 1, or a size such as `500 MB` or `1 GiB`"
    size = value if isinstance(value, int) and not isinstance(value, bool) else None
    match = re.match(_BYTES_PATTERN, value) if isinstance(value, str) else None
    if match:
        size = round(float(match[1]) * _BYTE_UNITS[match[2]])
    if size is None or size < 1:
        raise ProblemsError([Problem(f"found {show(value)}", expected=expected)])
    return size


_LARGEST = 2**63 - 1  # the largest BIGINT


def _whole_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ProblemsError([Problem(f"found {show(value)}", expected="a whole number, at least 1")])
    if value > _LARGEST:
        raise ProblemsError([Problem(f"found {show(value)}", expected=f"a whole number, at most {_LARGEST}")])
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ProblemsError([Problem(f"found {show(value)}", expected="true or false")])
    return value


def _day(value: object) -> date:
    if type(value) is date:
        return value
    try:
        return date.fromisoformat(value if isinstance(value, str) and len(value) == 10 else "")
    except ValueError:
        raise ProblemsError([Problem(f"found {show(value)}", expected="a day such as 2026-01-31")]) from None


@cache
def _time_zones() -> frozenset[str]:
    """Return the names of the IANA data base; `localtime` is whatever this machine is set to."""
    return frozenset(available_timezones() - {"localtime"})


def _time_zone(value: object) -> str:
    zone = read_text(value)
    if zone not in _time_zones():
        remedy = did_you_mean(zone, _time_zones())
        expected = "a time zone of the IANA data base, such as UTC or Europe/Berlin"
        raise ProblemsError([Problem(f"found {show(zone)}", expected=expected, remedy=remedy)])
    return zone


def _freeze(value: Mapping[str, object]) -> Mapping[str, object]:
    return MappingProxyType(dict(value))


def text_schema(**more: object) -> WithJsonSchema:
    """Return the JSON Schema of a text that is not empty."""
    return WithJsonSchema({"type": "string", "pattern": r"\S", **more})


Frozen = AfterValidator(_freeze)
"""Makes a mapping read-only."""

POSITIVE_LENGTH: dict[str, Any] = {"type": "string", "pattern": DURATION_PATTERN, "allOf": [{"pattern": "[1-9]"}]}
"""JSON Schema of a length of time that is not zero."""

PIPELINE_NAME = r"[a-z][a-z0-9_]*"
NAME = r"[A-Za-z][A-Za-z0-9_]*"
ALIAS = r"(?!__)[A-Za-z_][A-Za-z0-9_]*"

PipelineName = Annotated[
    str,
    name_like(PIPELINE_NAME, "small letters, digits and _, first a letter"),
    WithJsonSchema({"type": "string", "pattern": f"^{PIPELINE_NAME}$"}),
]
Name = Annotated[
    str,
    name_like(NAME, "letters, digits and _, first a letter"),
    WithJsonSchema({"type": "string", "pattern": f"^{NAME}$"}),
]
Alias = Annotated[str, name_like(ALIAS, "a column name of letters, digits and _, with at most one _ in front")]
Text = Annotated[str, BeforeValidator(read_text), text_schema()]
Flag = Annotated[bool, BeforeValidator(_flag)]
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
            remedy = "leave it out: the environment grants access to stores; change the secret if it was seen"
            raise ProblemsError([Problem(f"found a URL {problem}", expected, remedy)])
        raise ProblemsError([Problem(f"found {show(path)}, {problem}", expected, "correct the path")])
    return path


Location = Annotated[Text, AfterValidator(_known_url)]
"""A path, relative to the spec file or absolute, or the URL of a place in a store."""
