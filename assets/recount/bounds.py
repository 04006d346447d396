"""How far the order in which numbers are added up can move a result: aggregates with one of their sums moved.

Here: the words of an aggregate, and the largest rounding error of each sum of floating point in it. Not here: what
two results that differ by less mean (values.py). An error is relative to the sum of the absolute values: of
debits and credits that cancel, it may be larger than the sum.
"""

import re
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql.types import AnsiIntervalType, DecimalType, IntegralType

from tidemark.timeops.expressions.sums import SUMS, Adding, argument_type, calls_of
from tidemark.timeops.expressions.tokens import calls, tokenize

# Their value, or that of what they are made of, may depend on the order of rows by more than can be told from it.
_UNBOUNDED = re.compile(
    r"\w*sketch\w*|hll_\w+|kll_\w+|theta_\w+|tuple_\w+|approx_top_k\w*|approx_percentile|percentile_approx"
    r"|histogram_numeric|corr|covar_\w+|regr_\w+|skewness|kurtosis"
)

_MEANS = ("avg", "mean", "try_avg")


def _moved(one: Adding) -> str:
    """The root mean square, moved: by so much a standard deviation may be off."""
    return f"1E-15D * count({one.argument}){one.only} * sqrt(avg(pow({_number(one)}, 2)){one.only})"


def _number(one: Adding) -> str:
    return f"CAST({one.argument} AS DOUBLE)"


def _of_sum(one: Adding) -> str:
    return f"4.5E-16D * count({one.argument}){one.only} * sum(abs({_number(one)})){one.only}"


def _of_mean(one: Adding) -> str:
    return f"1E-15D * sum(abs({_number(one)})){one.only}"


def _of_deviation(one: Adding) -> str:
    return _moved(one)


def _of_variance(one: Adding) -> str:
    return f"pow({_moved(one)}, 2) + 2 * coalesce(stddev_samp({_number(one)}){one.only}, 0D) * {_moved(one)}"


_ERRORS: Mapping[str, Callable[[Adding], str]] = {
    **dict.fromkeys(SUMS, _of_sum),
    **dict.fromkeys(_MEANS, _of_mean),
    **dict.fromkeys(("std", "stddev", "stddev_pop", "stddev_samp"), _of_deviation),
    **dict.fromkeys(("variance", "var_pop", "var_samp"), _of_variance),
}
"""SQL of the largest error of each aggregate, by its function."""


def moved_sums(aggregate: str, events: DataFrame) -> tuple[str, ...] | None:
    """An aggregate with each of its sums of floating point moved as far as another order may move it, up and down.

    Args:
        aggregate: Spark SQL.
        events: What it is computed of.

    Returns:
        Such aggregates: none where every order gives the same value; None where it cannot be told how far it moves.
    """
    if any(_UNBOUNDED.fullmatch(call.name) for call in calls(tokenize(aggregate))):
        return None
    found: list[str] = []
    for one in calls_of(aggregate, _ERRORS):
        if _is_exact(one, events):
            continue
        before, itself, behind = aggregate[: one.start], aggregate[one.start : one.stop], aggregate[one.stop :]
        found += [f"{before}({itself} {sign} coalesce({_ERRORS[one.function](one)}, 0D)){behind}" for sign in "+-"]
    return tuple(found)


def with_column(expression: str, name: str, other: str) -> str:
    """An expression over columns with another column in the place of one."""
    tokens = tokenize(expression)
    found, behind = "", 0
    for position, token in enumerate(tokens):
        around = [tokens[i].lower if 0 <= i < len(tokens) else "" for i in (position - 1, position + 1)]
        if token.is_name and token.lower == name.lower() and around[0] != "." and around[1] != "(":
            found += f"{expression[behind : token.start]}`{other}`"
            behind = token.end
    return found + expression[behind:]


def _is_exact(one: Adding, events: DataFrame) -> bool:
    """Whether it adds up numbers that have no rounding error: whole ones, decimals, lengths of time."""
    if one.function not in (*SUMS, *_MEANS):
        return False
    kind = argument_type(one, events)
    return isinstance(kind, (DecimalType, AnsiIntervalType)) or (
        isinstance(kind, IntegralType) and one.function in SUMS
    )
