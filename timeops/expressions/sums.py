"""Sums of BIGINT that do not wrap: one that does not fit is null, whatever the order in which it is added up.

Here: the sums in the words of an aggregate, and what stands in their place. Not here: other aggregates, which cannot
overflow: a count is too small, and an average adds up in floating point.

With ANSI mode off Spark's `sum` wraps around. Its `try_sum` gives null as soon as it passes the end on the way, which
depends on the order of the rows. A sum that has wrapped is off by 2^64 or more from the one in floating point, whose
own error is far smaller.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DayTimeIntervalType, LongType, YearMonthIntervalType

from tidemark.timeops.expressions.tokens import Token, calls, plain_column, tokenize
from tidemark.timeops.expressions.try_expression import type_of

SUMS = ("sum", "try_sum")
_APART = "9.2E18D"  # half of 2^64, and less than it


@dataclass(frozen=True)
class Adding:
    """A call of an aggregate of one argument.

    Attributes:
        function: The aggregate.
        argument: What it takes, without DISTINCT.
        is_distinct: Whether DISTINCT stands before it.
        only: `FILTER (WHERE ...)` and a blank before it, or nothing.
        start: Where the call begins in the text.
        stop: Where it ends, with its FILTER.
    """

    function: str
    argument: str
    is_distinct: bool
    only: str
    start: int
    stop: int


def calls_of(aggregate: str, functions: Collection[str]) -> list[Adding]:
    """The calls of some aggregates in an expression, in the order of the text."""
    tokens = tokenize(aggregate)
    found = []
    for call in calls(tokens):
        if call.name not in functions or len(call.arguments) != 1 or not call.arguments[0]:
            continue
        words = call.arguments[0]
        is_distinct = len(words) > 1 and words[0].lower == "distinct"
        words = words[1:] if len(words) > 1 and words[0].lower in ("distinct", "all") else words
        end = _behind_filter(tokens, call.end)
        only = aggregate[tokens[call.end].start : tokens[end - 1].end] if end > call.end else ""
        found.append(
            Adding(
                call.name,
                aggregate[words[0].start : words[-1].end],
                is_distinct,
                f" {only}" if only else "",
                tokens[call.position].start,
                tokens[end - 1].end,
            )
        )
    return found


def argument_type(one: Adding, frame: DataFrame) -> DataType:
    """The type of what a call takes; of a column without asking Spark to look at the whole query once more."""
    name = plain_column(one.argument)
    columns = [field.dataType for field in frame.schema if name is not None and field.name.lower() == name.lower()]
    return columns[0] if len(columns) == 1 else type_of(frame, one.argument)


def without_overflow(aggregate: str, frame: DataFrame, *, in_decimals: bool = False) -> str:
    """An aggregate whose sums of BIGINT are null where they do not fit.

    Args:
        aggregate: Spark SQL.
        frame: What it is computed of.
        in_decimals: Add up decimals, which is another way to the same sums, and slower.
    """
    text, behind = "", 0
    for one in calls_of(aggregate, SUMS):
        kind = argument_type(one, frame)
        if isinstance(kind, LongType):
            whole = _exact_sum(one) if in_decimals else _whole_sum(one)
        elif isinstance(kind, DayTimeIntervalType | YearMonthIntervalType) and one.function == "sum":
            whole = f"try_{aggregate[one.start : one.stop]}"  # an error of Spark in any mode
        else:
            continue
        text += f"{aggregate[behind : one.start]}{whole}"
        behind = one.stop
    return text + aggregate[behind:]


def overflow_in(aggregate: str, frame: DataFrame) -> str | None:
    """SQL of a BOOLEAN aggregate, never null: one of the sums of BIGINT does not fit; None where there are none."""
    sums = _long_sums(aggregate, frame)
    each = [f"({_exact(one)} IS NOT NULL AND {_exact_sum(one)} IS NULL)" for one in sums]
    return " OR ".join(each) if each else None


def wrapped_away(total: str, approximate: str) -> str:
    """SQL of a BIGINT: a sum that may have wrapped, null where it has.

    Args:
        total: SQL of the sum.
        approximate: SQL of the same in floating point.
    """
    return f"CASE WHEN abs({total} - {approximate}) < {_APART} THEN {total} END"


def _long_sums(aggregate: str, frame: DataFrame) -> list[Adding]:
    found = calls_of(aggregate, SUMS)
    return [one for one in found if isinstance(argument_type(one, frame), LongType)]


def _whole_sum(one: Adding) -> str:
    if one.is_distinct:  # numbers that differ may be one in floating point
        return _exact_sum(one)
    return f"({wrapped_away(f'sum({one.argument}){one.only}', _approximate(one))})"


def _exact_sum(one: Adding) -> str:
    return f"try_cast({_exact(one)} AS BIGINT)"


def _approximate(one: Adding) -> str:
    return f"sum(CAST({one.argument} AS DOUBLE)){one.only}"


def _exact(one: Adding) -> str:
    distinct = "DISTINCT " if one.is_distinct else ""
    return f"sum({distinct}CAST({one.argument} AS DECIMAL(20, 0))){one.only}"


def _behind_filter(tokens: Sequence[Token], end: int) -> int:
    """The position behind the FILTER of a call that ends at a position, or this position."""
    if end + 1 >= len(tokens) or tokens[end].lower != "filter" or tokens[end + 1].lower != "(":
        return end
    depth = 0
    for position in range(end + 1, len(tokens)):
        depth += {"(": 1, ")": -1}.get(tokens[position].lower, 0)
        if depth == 0:
            return position + 1
    return end
