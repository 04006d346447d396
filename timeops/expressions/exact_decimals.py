"""Sums and averages of decimals in SQL, exact in any order of rows, or null where the whole does not fit.

Here: the arithmetic on two halves of a decimal. Not here: which calls are rewritten (aggregates.py).

Spark adds up decimals in 38 digits, and a sum that has once passed them stays null: which sums do depends on the
order of rows. So the digits above and below 10^20 units of the last place are added up apart, and put together at the
end. A number of up to 20 digits needs no second half. All is in whole numbers, whose type loses no digits, and a text
with an exponent makes a decimal of them again.
"""

from collections.abc import Callable

from pyspark.sql.types import DecimalType

_HALF = 20  # digits of the lower half
_BASE = f"1{'0' * _HALF}BD"
_MOST = 38  # digits of Spark's decimals
_ROOM = 10  # more digits that Spark's sum has than what it adds up

AddUp = Callable[[Callable[[str], str] | None], str]
"""SQL of the sum over all rows: of the argument itself, or of a whole number that SQL makes of it."""


def sum_may_overflow(kind: DecimalType) -> bool:
    """Return whether a sum of such decimals can pass 38 digits: of others, ten billion rows fit."""
    return kind.precision + _ROOM > _MOST


def exact_sum(add_up: AddUp, kind: DecimalType) -> str:
    """Return SQL of the sum of decimals of a type that has no room for more rows, see `sum_may_overflow`."""
    return _scaled(f"CAST({_total(add_up, kind)} AS STRING)", _MOST, kind.scale)


def exact_mean(add_up: AddUp, count: str, kind: DecimalType) -> str:
    """Return SQL of the average of decimals, rounded half up to the type that Spark's average has.

    Args:
        add_up: See AddUp.
        count: SQL of how many values there are.
        kind: Their type.
    """
    precision, scale = min(_MOST, kind.precision + 4), min(_MOST, kind.scale + 4)
    return _scaled(_mean(_total(add_up, kind), count, 10 ** (scale - kind.scale)), precision, scale)


def whole_mean(total: str, count: str) -> str:
    """Return SQL of the average of whole numbers, rounded half up to a whole number, of their sum and their count."""
    return _scaled(_mean(f"CAST({total} AS DECIMAL(38, 0))", count, 1), _MOST, 0)


def _total(add_up: AddUp, kind: DecimalType) -> str:
    """Return SQL of a DECIMAL(38, 0): the sum in units of the last place, null where it does not fit."""
    places = kind.scale
    unit = "" if places == 0 else f" / 0.{'1'.rjust(places, '0')}BD"
    if kind.precision <= _HALF:
        return f"CAST({add_up(None)}{unit} AS DECIMAL(38, 0))"
    base = f"1{'0' * (_HALF - places)}BD" if places <= _HALF else f"0.{'1'.rjust(places - _HALF, '0')}BD"
    high = add_up(lambda value: f"CAST({value} div {base} AS DECIMAL(20, 0))")
    low = add_up(lambda value: f"CAST({value} % {base}{unit} AS DECIMAL(20, 0))")
    halves = f"named_struct('h', CAST({high} AS DECIMAL(38, 0)), 'l', CAST({low} AS DECIMAL(38, 0)))"
    carried = f"named_struct('h', __tm_d.h + (__tm_d.l div {_BASE}), 'l', __tm_d.l % {_BASE})"
    # Both halves get one sign, so that the first alone shows whether the whole fits.
    borrowed = "CASE WHEN __tm_d.h > 0 AND __tm_d.l < 0 THEN 1 WHEN __tm_d.h < 0 AND __tm_d.l > 0 THEN -1 ELSE 0 END"
    even = _let("__tm_s", borrowed, f"named_struct('h', __tm_d.h - __tm_s, 'l', __tm_d.l + __tm_s * {_BASE})")
    whole = f"CAST(__tm_d.h AS DECIMAL(18, 0)) * {_BASE} + __tm_d.l"
    return _let("__tm_d", halves, _let("__tm_d", carried, _let("__tm_d", even, whole)))


def _mean(total: str, count: str, parts: int) -> str:
    """Return SQL of a STRING: a quotient in so many parts of one, rounded half up, by long division in two steps."""
    # Spark's `abs` and its minus round to 34 digits.
    given = f"named_struct('t', if(__tm_t < 0, 0 - __tm_t, __tm_t), 'n', {count}, 's', if(__tm_t < 0, '-', ''))"
    high, low = f"(__tm_m.t div {_BASE})", f"__tm_m.t % {_BASE}"
    of_high = f"'q', CAST({high} div __tm_m.n AS DECIMAL(20, 0)) * {_BASE}"
    rest = f"'r', CAST({high} % __tm_m.n AS DECIMAL(20, 0)) * {_BASE} + {low}"
    first = f"named_struct({of_high}, {rest}, 'n', __tm_m.n, 's', __tm_m.s)"
    of_low = "'q', __tm_m.q + CAST((__tm_m.r - __tm_m.r % __tm_m.n) / __tm_m.n AS DECIMAL(38, 0))"
    second = f"named_struct({of_low}, 'r', __tm_m.r % __tm_m.n, 'n', __tm_m.n, 's', __tm_m.s)"
    rounded = f"__tm_m.q * {parts}BD + ((__tm_m.r * {2 * parts}BD + __tm_m.n) div (2 * __tm_m.n))"
    digits = f"concat(__tm_m.s, CAST({rounded} AS STRING))"
    return _let("__tm_t", total, _let("__tm_m", given, _let("__tm_m", first, _let("__tm_m", second, digits))))


def _scaled(digits: str, precision: int, scale: int) -> str:
    """Return SQL of a decimal of a text of digits in units of its last place."""
    return f"CAST(concat({digits}, 'E-{scale}') AS DECIMAL({precision}, {scale}))"


def _let(name: str, value: str, body: str) -> str:
    """Return SQL of `body`, in which a name is a value that is computed once."""
    return f"get(transform(array({value}), {name} -> {body}), 0)"
