"""Values as people read them: numbers, shares, instants, durations, any value of an aggregate.

Here: one value to one text, for a page, a terminal or another program. Not here: which values are shown.
"""

import json
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from tidemark.timeops.printable import printable
from tidemark.timeops.utc import Instant, instant_of

_UNITS = (("d", 86_400_000_000), ("h", 3_600_000_000), ("min", 60_000_000), ("s", 1_000_000), ("ms", 1_000))
_LONGEST = 2_000  # letters of a value on a page
_LONGEST_LINE = 400  # letters of a value in a table on a terminal


def number(count: int | None) -> str:
    """Return a count with commas; empty for None."""
    return "" if count is None else f"{count:,}"


def share(part: int, whole: int) -> str:
    """Return a part in percent, never rounded to nothing or to all if it is not."""
    if not whole:
        return ""
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %"


def instant(at: datetime | None) -> str:
    """Return an instant as UTC without its zone, and with no more of a fraction than it has."""
    if at is None:
        return ""
    text = at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ")
    return text.rstrip("0") if at.microsecond else text


def second(at: datetime) -> str:
    """Return the same as `instant`, cut off to the second."""
    return instant(at.replace(microsecond=0))


def instant_us(us: int | None) -> str:
    """Return the same as `instant`, of microseconds since the epoch."""
    return "" if us is None else instant(instant_of(us))


def length(us: int | None) -> str:
    """Return a duration by its two largest units, cut off; empty for None."""
    return "" if us is None else _in_units(us, 2)


def no_more_than(us: int) -> str:
    """Return a duration that is a bound, by its three largest units: rounded up, so that it stays a bound."""
    for unit in range(len(_UNITS)):
        size = _UNITS[unit][1]
        if abs(us) >= size:
            finest = _UNITS[min(unit + 2, len(_UNITS) - 1)][1]
            return _in_units(-(us // -finest) * finest, 3)
    return _in_units(us, 3)


def _in_units(us: int, most: int) -> str:
    rest, sign = abs(us), "-" if us < 0 else ""
    parts: list[str] = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == most:
            break
    return sign + " ".join(part for part in parts if part) if parts else f"{us} µs"


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def is_number(value: object) -> bool:
    """Return whether a value is a number, which `bool` is not here."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def any_value(value: Any) -> str:
    """Return a value of any type that a table may hold, in one line; a long one is cut."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | Decimal):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, list | dict | tuple):
        return shortened(json.dumps(value, default=_inside, ensure_ascii=False))
    return shortened(value if isinstance(value, str) else str(_inside(value)))


def shortened(text: str, most: int = _LONGEST) -> str:
    """Return a text, cut if it is longer than a page shows."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text):,} letters in all)"


def _inside(value: object) -> object:
    """Return a value inside a list, struct or map, as JSON has it."""
    if isinstance(value, Instant):
        return str(value)
    if isinstance(value, datetime):
        return instant(value) if value.tzinfo else value.isoformat(sep=" ")
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, date | timedelta | Decimal):
        return str(value)
    return repr(value)


def in_a_line(value: Any) -> str:
    """Return a value in one line that no terminal takes for a command; a long one is cut."""
    if value is None:
        return "null"
    said = plain(value)
    if isinstance(value, datetime | Instant):
        said = said.replace("T", " ").removesuffix("Z")
    elif not isinstance(said, str):
        said = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    shown = printable(said)
    return shown if len(shown) <= _LONGEST_LINE else f"{shown[:_LONGEST_LINE]}…"


def plain(value: Any) -> Any:
    """Return a value of any type that a table may hold, as JSON has it; instants are ISO 8601 with a Z."""
    if isinstance(value, Instant):
        return f"{value}Z".replace(" ", "T")
    if isinstance(value, datetime):
        zone = "" if value.tzinfo is None else "Z"
        return (value if not zone else value.astimezone(UTC).replace(tzinfo=None)).isoformat() + zone
    if isinstance(value, Mapping):
        return {str(name): plain(inside) for name, inside in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inside) for inside in value]
    if isinstance(value, bytes):
        return value.hex()
    is_known = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_known else str(value)  # dates, decimals, numbers that JSON has no text for
