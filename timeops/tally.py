"""Counts of what became of a stretch of the log, by outcome and window.

Here: sums that conservation and the metrics are made of (A2: early, late and out-of-order input events, dropped and
adjusted alike). Not here: the decisions.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timeops.adjustment import KEPT
from timeops.columns import ADJUSTED_BY, REASON
from timeops.spec import WindowSpec
from timeops.windows import FILTERED, MISSED, STARTS, place


def refused_tally(refused: DataFrame) -> DataFrame:
    """`reason` and `n` of the refused records of a stretch."""
    return refused.groupBy(F.col(REASON).alias("reason")).agg(F.count("*").alias("n"))


def accepted_tally(accepted: DataFrame, windows: tuple[WindowSpec, ...]) -> DataFrame:
    """Where the accepted events of a stretch went: one row.

    Returns:
        `accepted`; by what moved them `early`, `late`, `out_of_order`, `kept_out_of_order`; and per window
        `<window>.in_windows`, `.in_gap`, `.filtered`, `.window_closed` (these four add up to `accepted`) and
        `.missed_some` (in some window, late for another); BIGINT counts of events.
    """
    counts = {name: F.array_contains(ADJUSTED_BY, name) for name in ("early", "late", "out_of_order", KEPT)}
    placed = accepted
    for number, window in enumerate(windows):
        names = {name: f"{name}{number}" for name in (STARTS, MISSED, FILTERED)}
        placed = place(placed, window).withColumnsRenamed(names)
        counts |= {f"{window.name}.{name}": condition for name, condition in _of_window(names).items()}
    return placed.agg(
        F.count("*").alias("accepted"), *[F.count_if(condition).alias(name) for name, condition in counts.items()]
    )


def _of_window(names: dict[str, str]) -> dict[str, Column]:
    inside, missed = F.size(names[STARTS]) > 0, F.size(names[MISSED]) > 0
    filtered = F.col(names[FILTERED])
    return {
        "in_windows": inside,
        "in_gap": ~filtered & ~inside & ~missed,
        "filtered": filtered,
        "window_closed": missed & ~inside,
        "missed_some": missed & inside,
    }
