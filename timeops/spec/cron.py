"""Cron texts: whether one can be read, and whether the moment it names ever comes.

Here: the five fields that cron and Dagster read alike. Not here: who acts on them (pipelines/launching.py).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tidemark.timeops.errors import SpecError

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_LONGEST_MONTHS = dict(zip(range(1, 13), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
_NICKNAMES = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_EXPECTED = (
    "five fields: minute, hour, day of the month, month, day of the week, such as `*/5 * * * *` (every five minutes) "
    f"or `30 2 * * mon-fri`; or {', '.join(_NICKNAMES)}"
)
CRON_PATTERN = rf"^ *(?:{'|'.join(_NICKNAMES)}|[^ @]+(?: +[^ @]+){{4}}) *$"
"""The form of a cron text, as a regular expression that JSON Schema (ECMA 262) and Python read alike."""


@dataclass(frozen=True)
class _Field:
    """One of the five fields: its name, its values, and words that stand for some of them."""

    name: str
    lowest: int
    highest: int
    words: Mapping[str, int] = field(default_factory=dict)


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, {word: i for i, word in enumerate(_MONTHS, start=1)}),
    _Field("day of the week", 0, 7, {word: i for i, word in enumerate(_WEEKDAYS)}),  # Sunday is 0 and 7
)


def check_cron(text: str) -> str:
    """Return a cron text in one spelling: small letters, one blank between fields.

    Raises:
        SpecError: It has other than five fields, one of them cannot be read, or the moment never comes.
    """
    fields = text.lower().split()
    if len(fields) == 1 and fields[0] in _NICKNAMES:
        return fields[0]
    if len(fields) != len(_FIELDS):
        raise SpecError(f"found {text!r}, which has {len(fields)} fields", expected=_EXPECTED)
    values = [
        {value for part in text.split(",") for value in _values(part, known)}
        for text, known in zip(fields, _FIELDS, strict=True)
    ]
    _, _, days, months, _ = values
    if all(day > _LONGEST_MONTHS[month] for day in days for month in months):
        raise SpecError(f"found {text!r}, a day that no year has", expected="a day that comes")
    return " ".join(fields)


def _values(part: str, known: _Field) -> Iterator[int]:
    """Values of one part of a field's list: `*`, `7`, `1-5`, each with `/2` behind it if only some count."""
    match = re.fullmatch(r"(?:(\*)|([a-z0-9]+)(?:-([a-z0-9]+))?)(?:/([0-9]+))?", part)
    if match is None:
        raise _wrong(part, known, "cannot be read")
    star, first, last, step = match.groups()
    low = known.lowest if star else _value(first, part, known)
    high = known.highest if star or (step and not last) else _value(last or first, part, known)
    if low > high:
        raise _wrong(part, known, "ends before it begins")
    if step and int(step) == 0:
        raise _wrong(part, known, "has steps of 0")
    yield from range(low, high + 1, int(step or 1))


def _value(text: str, part: str, known: _Field) -> int:
    value = known.words.get(text, int(text) if text.isdecimal() else None)
    if value is None or not known.lowest <= value <= known.highest:
        raise _wrong(part, known, "is out of range")
    return value


def _wrong(part: str, known: _Field, how: str) -> SpecError:
    words = f" or {min(known.words, key=known.words.__getitem__)} and so on" if known.words else ""
    return SpecError(
        f"found `{part}` as the {known.name}, which {how}",
        expected=f"`*`, or values from {known.lowest} to {known.highest}{words}, as in `1`, `1,5`, `1-5` or `*/5`",
    )
