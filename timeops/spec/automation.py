"""The keys for Dagster: what it does with a pipeline by itself, and what it shows of it.

Here: the keys, and cron texts as cron and Dagster read them alike. None of them changes a result or holds a batch
back. Not here: who acts on them (pipelines/code_location/launching.py, assets/alarms/alerts.py,
assets/catalog/days/partitions.py).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal, TypeVar

from cronsim import CronSim, CronSimError
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)

from tidemark.timeops.errors.problems import Problem, ProblemsError, misfit, raise_any
from tidemark.timeops.spec.fields import VARIABLE, Frozen, PositiveDuration, SpecModel, name_like, read_keys
from tidemark.timeops.values.utc import EPOCH

_NICKNAMES = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_EXPECTED = (
    "five fields: minute, hour, day of the month, month, day of the week, such as `*/5 * * * *` (every five minutes) "
    f"or `30 2 * * mon-fri`; or {', '.join(_NICKNAMES)}"
)
CRON_PATTERN = rf"^ *(?:{'|'.join(_NICKNAMES)}|[^ @]+(?: +[^ @]+){{4}}) *$"
"""The form of a cron expression, as a regular expression that JSON Schema (ECMA 262) and Python read alike."""
_CRON_PART = r"(?:\*|[0-9]+|[a-z]{3})(?:-(?:[0-9]+|[a-z]{3}))?(?:/[0-9]+)?"
"""The parts that cron and Dagster read alike: not `L`, `LW` and `5L` for last days, nor `mon#2`: each knows some."""
_SHORTEST_LOOK = timedelta(seconds=5)  # Dagster looks at its sensors every five seconds
_PERCENT = r"^ *([0-9]+(?:\.[0-9]+)?) *% *$"
_SHORTEST_AGE = timedelta(minutes=1)  # Dagster looks at the age of assets no more often
_OWNER = r"team:\S(?:.*\S)?|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}"
_PART = r"[A-Za-z0-9_.-]{1,63}"
Level = TypeVar("Level", float, timedelta)
_TAG = rf"(?!dagster/)(?:{_PART}/)?{_PART}"  # Dagster's own name space holds the kinds of assets


@dataclass(frozen=True)
class _Field:
    """One of the five fields, for messages: its name, its values, and a word for the first of them."""

    name: str
    lowest: int
    highest: int
    word: str = ""


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, "jan"),
    _Field("day of the week", 0, 7, "sun"),  # Sunday is 0 and 7
)


def check_cron(text: str) -> str:
    """Return a cron expression in one spelling: small letters, one blank between fields.

    Raises:
        ProblemsError: It has other than five fields, one of them cannot be read, or the moment never comes.
    """
    fields = text.lower().split()
    if len(fields) == 1 and fields[0] in _NICKNAMES:
        return fields[0]
    if len(fields) != len(_FIELDS):
        raise ProblemsError([Problem(f"found {text!r}, which has {len(fields)} fields", expected=_EXPECTED)])
    for place, (field, limits) in enumerate(zip(fields, _FIELDS, strict=True)):
        for part in field.split(","):
            if not re.fullmatch(_CRON_PART, part) or not _is_cron(*["*"] * place, part, *["*"] * (4 - place)):
                raise _wrong(part, limits)
    if not _is_cron("*", "*", *fields[2:4], "*"):
        raise ProblemsError([Problem(f"found {text!r}, a day that exists in no year", expected="a day that exists")])
    return " ".join(fields)


def _is_cron(*fields: str) -> bool:
    try:
        CronSim(" ".join(fields), EPOCH)
    except CronSimError:
        return False
    return True


def _wrong(part: str, limits: _Field) -> ProblemsError:
    words = f" or {limits.word} and so on" if limits.word else ""
    expected = f"`*`, or values from {limits.lowest} to {limits.highest}{words}, as in `1`, `1,5`, `1-5` or `*/5`"
    return ProblemsError([Problem(f"found `{part}` as the {limits.name}, which cannot be read", expected=expected)])


def _looks(value: timedelta) -> timedelta:
    if value < _SHORTEST_LOOK or value % timedelta(seconds=1):
        expected = "whole seconds, at least 5: Dagster does not look more often"
        raise ProblemsError([Problem(f"found {value.total_seconds():g} s", expected=expected)])
    return value


class OnNewInput(SpecModel):
    """A run as soon as input is waiting."""

    on_new_input: Annotated[PositiveDuration, AfterValidator(_looks)] = Field(
        description="How often to look for new input, such as 15 seconds."
    )


def _schedule(value: object) -> object:
    if isinstance(value, OnNewInput):
        return value
    if isinstance(value, Mapping):
        return read_keys(value, OnNewInput)
    if not isinstance(value, str):
        raise misfit(value, 'a cron expression such as "*/5 * * * *", or {on_new_input: 15 seconds}')
    return check_cron(value)


Cron = Annotated[str, WithJsonSchema({"type": "string", "pattern": CRON_PATTERN})]
Schedule = Annotated[Cron | OnNewInput, BeforeValidator(_schedule)]


def _share(value: object) -> float:
    match = re.match(_PERCENT, value) if isinstance(value, str) else None
    if match is None or float(match[1]) > 100:
        raise misfit(value, "a share such as `1 %`, at most 100 %")
    return float(match[1]) / 100


Share = Annotated[
    float,
    PlainValidator(_share),
    PlainSerializer(lambda share: f"{share * 100:g} %", return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": _PERCENT}),
]
"""A part of a whole, from 0 to 1; written in percent."""


class ShareLevels(SpecModel):
    """From which share on something is a warning, and from which an error."""

    warn: Share | None = Field(default=None, description="Above this it is a warning, such as 1 %.")
    error: Share | None = Field(default=None, description="Above this it is an error, such as 10 %.")

    @model_validator(mode="after")
    def _together(self) -> "ShareLevels":
        _check_levels(self.warn, self.error)
        return self


class RateLevels(ShareLevels):
    """The same of what comes in a period, where there are enough records for a share to count."""

    period: PositiveDuration = Field(
        default=timedelta(hours=24),
        description="Shares are computed over periods of this length, aligned to the epoch: 24 hours are days in "
        "UTC. A batch is checked with its periods and the one before them, so that a small batch hides nothing.",
    )
    min_records: Annotated[int, Field(ge=1)] = Field(
        default=1,
        description="A period with fewer records than this, such as 100, is not judged.",
        json_schema_extra={"since": "0.2.0"},
    )

    @property
    def lowest(self) -> float:
        """The lowest share that is worth an alert."""
        return min(level for level in (self.warn, self.error) if level is not None)


def _not_too_young(age: timedelta) -> timedelta:
    if age < _SHORTEST_AGE:
        expected = "at least 1 minute: Dagster does not look more often"
        raise ProblemsError([Problem(f"found {age.total_seconds():g} s", expected=expected)])
    return age


Age = Annotated[PositiveDuration, AfterValidator(_not_too_young)]


class AgeLevels(SpecModel):
    """From which age on something is a warning, and from which an error."""

    warn: Age | None = Field(default=None, description="Above this it is a warning, such as 10 min.")
    error: Age | None = Field(default=None, description="Above this it is an error, such as 1 hour.")

    @model_validator(mode="after")
    def _together(self) -> "AgeLevels":
        _check_levels(self.warn, self.error)
        return self


def _check_levels(warn: Level | None, error: Level | None) -> None:
    if warn is None and error is None:
        raise ProblemsError([Problem("neither `warn` nor `error` is set", expected="one of them, or both")])
    if warn is not None and error is not None and warn >= error:
        raise ProblemsError([Problem("`warn` is not below `error`", expected="a level below `error`", at=("warn",))])


def _variable(value: object) -> str:
    """Return the name of the variable in `${NAME}`; anything else is not shown, as it may be a secret."""
    match = VARIABLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        fault = "found no `${NAME}`"
        if isinstance(value, str) and "://" in value:
            fault = "found a URL in the spec file, where everyone who can read the file sees its secrets"
        expected = 'the name of an environment variable that holds the URL, such as "${ALERTS_SLACK}"'
        raise ProblemsError([Problem(fault, expected=expected)])
    return match[1]


_A_CHANNEL = '`{to: "${ALERTS_SLACK}"}`, where that variable holds the URL'


class Channel(SpecModel):
    """A receiver of messages about alerts."""

    to: Annotated[
        str,
        PlainValidator(_variable),
        PlainSerializer(lambda name: f"${{{name}}}", return_type=str, when_used="json"),
        WithJsonSchema({"type": "string", "pattern": r"^ *\$\{[A-Za-z_][A-Za-z0-9_]*\} *$"}),
    ] = Field(
        description="The environment variable that holds the receiver's URL, as Apprise writes it: "
        '"${ALERTS_SLACK}".'
    )
    level: Literal["warn", "error"] = Field(
        default="warn", description="Lowest level that it gets messages for: warn (all), or error."
    )

    @property
    def text(self) -> str:
        """The channel in messages, as the spec names it: never its URL."""
        return f"${{{self.to}}}"


def _channel(value: object) -> object:
    """Refuse what has no keys without repeating it: it may be a URL."""
    if isinstance(value, Mapping | Channel):
        return value
    raise ProblemsError([Problem("found no keys", expected=_A_CHANNEL)])


def _channels(value: object) -> object:
    if isinstance(value, list | tuple):
        return value
    raise ProblemsError([Problem("found no list", expected=f"a list of channels, each of them {_A_CHANNEL}")])


class Alerts(SpecModel):
    """The limits whose crossing is worth an alert, and the receivers of messages."""

    dead_letter_rate: RateLevels = Field(
        default=RateLevels.model_validate({"warn": "5 %", "min_records": 100}),
        description="Records lost in a period: refused by ingestion, by the rules of time or by a window, "
        "duplicates excepted; of all records, and of each source and value of `over`: "
        "{warn: 1 %, error: 10 %}.",
    )
    far_ahead: PositiveDuration = Field(
        default=timedelta(days=1),
        description="How far ahead of the clock of arrivals an event, or the watermark, may be without a warning; "
        "and how far this clock itself may be ahead of the machine's.",
    )
    freshness: AgeLevels | None = Field(
        default=None,
        description="How far the clock may be ahead of the watermark of a batch, and how long ago the last batch may "
        "be: {warn: 15 minutes, error: 1 hour}.",
    )
    notify: Annotated[
        tuple[Annotated[Channel, BeforeValidator(_channel)], ...],
        BeforeValidator(_channels),
    ] = Field(
        default=(),
        description="Who gets a message when a check fails, a batch is not committed or input is held back, and "
        'when all is well again: [{to: "${ALERTS_SLACK}"}, {to: "${ALERTS_PAGER}", level: error}].',
        json_schema_extra={"since": "0.2.0"},
    )

    @model_validator(mode="after")
    def _distinct(self) -> "Alerts":
        names = [channel.to for channel in self.notify]
        twice = [n for n, name in enumerate(names) if name in names[:n]]
        raise_any(Problem(f"`${{{names[n]}}}` occurs twice", at=("notify", n, "to")) for n in twice)
        return self


class Events(SpecModel):
    """How often days are reported to Dagster."""

    every: PositiveDuration = Field(
        description="Days of windows and their checks are reported at most once in this time, such as 1 minute, with "
        "all that was written since.",
        json_schema_extra={"since": "0.2.0"},
    )


Owner = Annotated[
    str,
    name_like(_OWNER, "an e-mail address, or `team:` and a name"),
    WithJsonSchema({"type": "string", "pattern": f"^(?:{_OWNER})$"}),
]
_Key = Annotated[str, name_like(_TAG, "letters, digits, `_`, `.` and `-`, with one `/` at most; not in `dagster/`")]
_Value = Annotated[str, name_like(_PART, "letters, digits, `_`, `.` and `-`, 63 at most")]
Tags = Annotated[
    Mapping[_Key, _Value],
    Frozen,
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^{_TAG}$"},
            "additionalProperties": {"type": "string", "pattern": f"^{_PART}$"},
        }
    ),
]
