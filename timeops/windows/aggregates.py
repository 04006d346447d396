"""Results of aggregates that cannot fail a batch, and which of them `having` shows.

Here: aggregates over the rows of groups, and what is made of them. Not here: rows on which an argument fails, which
have no part in a result (membership.py).
"""

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

from tidemark.timeops.expressions.aggregates import cut
from tidemark.timeops.expressions.try_expression import attempt_sql, cannot_fail, null_if_it_fails
from tidemark.timeops.spec import WindowSpec


def with_aggregates(groups: GroupedData, aggregates: Mapping[str, str], *more: Column) -> DataFrame:
    """The aggregates of groups by name, behind the columns of the groups.

    What an aggregate makes of its sums, such as `timestamp_millis` of a sum, is null where that fails.

    Args:
        groups: Rows that none of the aggregates fails on, by their group.
        aggregates: Spark SQL by the name of the result.
        more: Other aggregates, last in the frame.
    """
    cuts = {name: cut(text, f"__sum_{number}_") for number, (name, text) in enumerate(aggregates.items())}
    sums: list[Column] = []
    for name, one in cuts.items():
        if one.result is None:
            sums.append(F.expr(aggregates[name]).alias(name))
        else:
            sums += [F.expr(text).alias(of) for of, text in one.sums.items()]
    found = groups.agg(*sums, *more)
    results = {name: null_if_it_fails(found, one.result) for name, one in cuts.items() if one.result is not None}
    if not results:
        return found
    working = {of for name in results for of in cuts[name].sums}
    others = [name for name in found.columns if name not in working]
    behind = others[len(others) - len(more) :] if more else []
    first = [name for name in others if name not in aggregates and name not in behind]
    own = [results.get(name, F.col(f"`{name}`")).alias(name) for name in aggregates]
    return found.select(*[F.col(f"`{name}`") for name in first], *own, *[F.col(f"`{name}`") for name in behind])


def passes_having(results: DataFrame, having: str | None) -> Column:
    """BOOLEAN, never null: `having` is true of a result, or fails on it; what nobody decided on is shown."""
    if having is None:
        return F.lit(True)
    if cannot_fail(results, having):
        return F.coalesce(F.expr(having), F.lit(False))
    tried = F.expr(attempt_sql(results, having))
    return (F.size(tried) == 0) | F.coalesce(F.get(tried, F.lit(0)), F.lit(False))


def having_fails(results: DataFrame, window: WindowSpec) -> Column | None:
    """BOOLEAN, never null: `having` cannot be computed on a result; None where that cannot be."""
    if window.having is None or cannot_fail(results, window.having):
        return None
    return F.size(F.expr(attempt_sql(results, window.having))) == 0
