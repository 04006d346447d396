"""Durations as text: `200 ms`, `5 seconds`, `1 hour 30 minutes`, `PT5M`.

Here: reading, writing and counting lengths of time. Not here: instants, time zones, months and years.
"""

import re
from datetime import timedelta
from fractions import Fraction

from tidemark.timeops.errors import SpecError

_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000
_UNITS = (
    (("us", "microsecond", "microseconds"), 1),
    (("ms", "millisecond", "milliseconds"), 1_000),
    (("s", "sec", "second", "seconds"), _SECOND),
    (("m", "min", "minute", "minutes"), 60 * _SECOND),
    (("h", "hour", "hours"), 3_600 * _SECOND),
    (("d", "day", "days"), 86_400 * _SECOND),
    (("week", "weeks"), 7 * 86_400 * _SECOND),
)
_UNIT_US = {name: size for names, size in _UNITS for name in names}
_ISO_US = {"W": _UNIT_US["week"], **{unit.upper(): _UNIT_US[unit] for unit in ("d", "h", "m", "s")}}

_ROUGHLY = (
    (timedelta(days=2), timedelta(hours=1)),
    (timedelta(hours=2), timedelta(minutes=1)),
    (timedelta(seconds=10), timedelta(seconds=1)),
)

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_TERM = rf"{_NUMBER} *(?:{'|'.join(sorted(_UNIT_US, key=len, reverse=True))})"
_WORDS = rf"{_TERM}(?: *{_TERM})*"
_ISO = (
    rf"P(?=[0-9T])(?:{_NUMBER}W)?(?:{_NUMBER}D)?"
    rf"(?:T(?=[0-9])(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?"
)
DURATION_PATTERN = rf"^ *(?:{_WORDS}|{_ISO}) *$"
"""The texts of `parse_duration`, as a regular expression that JSON Schema (ECMA 262) and Python read alike."""

_CALENDAR = re.compile(r"^ *(?:.*[0-9] *(?:months?|mo|years?|y|quarters?)\b|P[0-9.]+[YM])", re.IGNORECASE)
_LONGEST = timedelta(days=3_652_059)  # the years 0001 to 9999, all the time there is
_EXPECTED = (
    "a number with a unit: us, ms, s, min, h, d or their full names, such as `200 ms`, `5 seconds`, "
    "`1 hour 30 minutes`, `1 day`, or ISO 8601 such as `PT5M`"
)


def parse_duration(text: object) -> timedelta:
    """Read a length of time, zero or longer and a whole number of microseconds.

    Args:
        text: Numbers with units (us, ms, s, min, h, d, week and their full names; several are added up), or
            ISO 8601 with weeks, days, hours, minutes and seconds. A day is 24 hours.

    Raises:
        SpecError: It is not a text, has no unit, is negative, a calendar size (months, years), or not a whole
            number of microseconds.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise SpecError(f"found {text!r}, which is not a duration", expected=_EXPECTED)
    if not isinstance(text, str) or re.fullmatch(rf"\s*[-+]?{_NUMBER}\s*", text):
        raise SpecError(
            f"found the bare number {str(text).strip()}, which has no unit",
            expected=_EXPECTED,
            remedy=f"write the unit, such as `{str(text).strip().lstrip('-+')} seconds`",
        )
    if re.match(r"\s*-", text):
        raise SpecError(f"found {text!r}, which is negative", expected="a duration of zero or more")
    if _CALENDAR.match(text):
        raise SpecError(
            f"found {text!r}, which has no fixed length",
            expected=_EXPECTED,
            remedy="write days, such as `30 days`, if a fixed length will do",
        )
    if not re.match(DURATION_PATTERN, text):
        raise SpecError(f"found {text!r}, which is not a duration", expected=_EXPECTED, remedy=_as_on_a_clock(text))
    return _sum(text)


def _as_on_a_clock(text: str) -> str:
    """Return the remedy for a length such as `1:30`, which people write for two lengths; else an empty text."""
    parts = re.fullmatch(r"\s*([0-9]+):([0-9]+)(?::([0-9]+))?\s*", text)
    if parts is None:
        return ""
    readings = (
        (("hours", "minutes"), ("minutes", "seconds")) if parts[3] is None else (("hours", "minutes", "seconds"),)
    )
    counts = [int(part) for part in parts.groups() if part is not None]
    lengths = [
        " ".join(f"{n} {unit[: len(unit) - (n == 1)]}" for n, unit in zip(counts, units, strict=True) if n)
        for units in readings
    ]
    return f"write {' or '.join(f'`{length}`' for length in lengths if length)}" if any(lengths) else ""


def _sum(text: str) -> timedelta:
    """Add up the terms of a text that has the form of a duration, exactly."""
    if "P" in text:
        date_part, _, time_part = text.strip().partition("T")
        terms = _terms(date_part, _ISO_US) + _terms(time_part, _ISO_US)
    else:
        terms = _terms(text, _UNIT_US)
    total = sum((Fraction(number) * size for number, size in terms), Fraction(0))
    if total.denominator != 1:
        raise SpecError(
            f"found {text!r}, which is finer than a microsecond", expected="a whole number of microseconds"
        )
    if total > micros(_LONGEST):
        raise SpecError(f"found {text!r}, which is too long", expected="at most 9999 years, written in days")
    return timedelta(microseconds=int(total))


def _terms(text: str, units: dict[str, int]) -> list[tuple[str, int]]:
    pairs = re.findall(rf"({_NUMBER}) *([A-Za-z]+)", text)
    return [(number, units[unit]) for number, unit in pairs]


def micros(duration: timedelta) -> int:
    """Return the length in microseconds."""
    return duration // _MICROSECOND


def format_duration(duration: timedelta) -> str:
    """Write a length of time so that `parse_duration` reads it back: `1 hour 30 minutes`.

    Equal lengths have equal texts; zero is `0 seconds`.

    Raises:
        ValueError: The length is negative.
    """
    us_left = micros(duration)
    if us_left < 0:
        raise ValueError(f"a duration is zero or more, not {duration!r}")
    parts = []
    for names, size in reversed(_UNITS[:-1]):
        count, us_left = divmod(us_left, size)
        if count:
            parts.append(f"{count} {names[-2] if count == 1 else names[-1]}")
    return " ".join(parts) or "0 seconds"


def roughly(duration: timedelta) -> str:
    """Write a length of time for a person to read: a long one without its seconds.

    Raises:
        ValueError: The length is negative.
    """
    unit = next((unit for least, unit in _ROUGHLY if duration >= least), timedelta(milliseconds=1))
    return format_duration(duration // unit * unit)


_EASY_US = (
    *(n * 1_000 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 20, 30)),
    *(n * _UNIT_US["min"] for n in (1, 2, 5, 10, 15, 20, 30, 45)),
    *(n * _UNIT_US["h"] for n in (1, 2, 3, 4, 6, 8, 12, 18)),
)


def rounded_up(us: int) -> timedelta:
    """Return a length of time that a person would write, at least so many microseconds; from a day on whole days."""
    day = _UNIT_US["d"]
    return timedelta(microseconds=next((easy for easy in _EASY_US if easy >= us), -(-us // day) * day))


def round_lengths(longest_us: int) -> list[int]:
    """Return lengths of time that a person would try, microseconds, up to the first that is at least as long."""
    day, lengths = _UNIT_US["d"], list[int]()
    fine = (n * size for size in (1, 10, 100) for n in (1, 2, 5))
    days = (n * day for n in (1, 2, 3, 5, 7, 10, 14, 21, 30, 45, 60, 90, 180, 365, 730, 1_825, 3_650, 36_500))
    for length_us in (*fine, *_EASY_US, *days):
        lengths.append(length_us)
        if length_us >= longest_us:
            return lengths
    return [*lengths, -(-longest_us // day) * day]


_STEPS_US = (
    *(10**n for n in range(7)),
    *(n * _UNIT_US["min"] for n in (1, 10)),
    *(n * _UNIT_US["h"] for n in (1, 6)),
    _UNIT_US["d"],
)


def a_little_longer(us: int) -> int:
    """Return a length of time that is easier to read, microseconds: at least as long, and at most 2 % longer."""
    step = max((step for step in _STEPS_US if step * 50 <= us), default=1)
    return -(-us // step) * step
