"""Counts of what became of a segment of the log, by outcome and window.

Here: sums that conservation and the metrics are made of (A2: early, late and out-of-order input events, dropped and
adjusted alike). Not here: the decisions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import (
    ADJUSTED_BY,
    ARRIVAL,
    CLOCK,
    EVENT_TIME,
    REASON,
    SEQ,
    SOURCE,
    W_BEFORE,
    T,
)
from tidemark.timeops.events.adjustment import KEPT, Adjusted
from tidemark.timeops.spec import TimeSpec, WindowSpec
from tidemark.timeops.windows.drained import told_of
from tidemark.timeops.windows.kinds import kind_of
from tidemark.timeops.windows.membership import DRAINED, ENDS, FILTERED, MISSED, unfit

MOVED = ("early", "late", "out_of_order", KEPT)
"""What `_adjusted_by` may hold."""

FURTHEST_US, FURTHEST_SEQ, FURTHEST_T_US = "furthest_ahead_us", "furthest_ahead_seq", "furthest_ahead_t_us"
"""How far the accepted event that was furthest ahead of the clock as it came was ahead of it, its `_arrival_seq` and
its time, microseconds."""

REFUSED = "refused."  # how the count of a reason begins
_ASKED_OF = (SEQ, SOURCE, CLOCK, ARRIVAL, EVENT_TIME, ADJUSTED_BY, T, W_BEFORE)
_OUTCOMES = ("in_windows", "in_gap", "filtered", "bad_expression", "window_closed", "missed_some")


def tally(
    judged: Adjusted,
    time: TimeSpec,
    windows: Sequence[WindowSpec],
    drained: Mapping[str, DataFrame] | None = None,
    *,
    by: Mapping[str, Column] | None = None,
    also: Mapping[str, Column] | None = None,
) -> DataFrame:
    """What became of the records of a segment of the log, in groups.

    Args:
        judged: The records.
        time: The spec's `time`.
        windows: The spec's windows of events.
        drained: By window those that an earlier flush closed, see windows/drained.py.
        by: What else tells groups apart, over `_arrival_seq`, `_clock`, `_arrival_time`, `_event_time`,
            `_adjusted_by`, `__tm_t`, `__tm_w_before`, and `__tm_reason`, null of accepted events.
        also: Aggregates over the same.

    Returns:
        `reason` (null of accepted events), `source`, what `by` names, `n`; counts of accepted events by what moved
        them: `early`, `late`, `out_of_order`, `kept_out_of_order`; and per window `<window>.in_windows`, `.in_gap`,
        `.filtered`, `.bad_expression` (an aggregate fails on the event), `.window_closed` (these five are all that
        are accepted) and `.missed_some` (in some window, late for another); BIGINT counts. Where windows merge, only
        beside others an event shows late: there `late_counts` tells how many of `.in_windows` are `.window_closed`.
    """
    placed, counts = _with_places(judged.accepted, time, windows, drained or {})
    flags = {f"__tm_flag{number}": name for number, name in enumerate(counts)}
    if judged.together is not None and placed is judged.accepted:  # one scan of them, not two
        told = [F.when(F.col(REASON).isNull(), counts[name]).alias(flag) for flag, name in flags.items()]
        both = judged.together.select(*_ASKED_OF, REASON, *told)
    else:
        told = [counts[name].alias(flag) for flag, name in flags.items()]
        accepted = placed.select(*_ASKED_OF, F.lit(None).cast("string").alias(REASON), *told)
        both = accepted.unionByName(judged.refused.select(*_ASKED_OF, REASON), allowMissingColumns=True)
    groups = {"reason": F.col(REASON), "source": F.col(SOURCE), **(by or {})}
    return both.groupBy(*[column.alias(name) for name, column in groups.items()]).agg(
        F.count("*").alias("n"),
        *[F.count_if(flag).alias(name) for flag, name in flags.items()],
        *[column.alias(name) for name, column in (also or {}).items()],
    )


def names_of_counts(windows: Sequence[WindowSpec]) -> list[str]:
    """Names of the counts of accepted events that `tally` gives."""
    return [*MOVED, *(f"{window.name}.{outcome}" for window in windows for outcome in _OUTCOMES)]


def _with_places(
    accepted: DataFrame, time: TimeSpec, windows: Sequence[WindowSpec], drained: Mapping[str, DataFrame]
) -> tuple[DataFrame, dict[str, Column]]:
    """The events with what conditions on them need, and these conditions by the name of their count."""
    may_be = _moved_under(time)
    counts = {name: F.array_contains(ADJUSTED_BY, name) if name in may_be else F.lit(False) for name in MOVED}
    placed = accepted
    for number, window in enumerate(windows):
        names = {name: f"{name}{number}" for name in (ENDS, MISSED, FILTERED)}
        kind, fails = kind_of(window), unfit(accepted, window)
        of_window = None if kind.merges else drained.get(window.name)  # else `late_counts` says it
        if of_window is None and fails is None and _holds_all(window, time):
            counts |= {f"{window.name}.{name}": F.lit(name == "in_windows") for name in _OUTCOMES}
            continue
        told = kind.place(told_of(placed, of_window, window))
        placed = told.drop(DRAINED).withColumnsRenamed(names)
        found = _of_window(names)
        found["bad_expression"] = F.lit(False)
        if fails is not None:
            own = f"__tm_unfit{number}"
            placed = placed.withColumn(own, fails)
            found |= {"bad_expression": F.col(own), "filtered": found["filtered"] & ~F.col(own)}
        counts |= {f"{window.name}.{name}": condition for name, condition in found.items()}
    return placed, counts


def late_counts(late: Mapping[str, DataFrame]) -> dict[str, int]:
    """How many events came too late for each window of a kind that merges, by one job if there are such windows.

    Args:
        late: By window the events; under drop and adjust there are some only where a flush had closed windows before.
    """
    if not late:
        return {}
    names = [events.select(F.lit(window).alias("window")) for window, events in late.items()]
    found = reduce(DataFrame.unionByName, names).groupBy("window").agg(F.count("*").alias("n")).collect()
    return dict.fromkeys(late, 0) | {row["window"]: row["n"] for row in found}


def without_late(counts: Mapping[str, int], late: Mapping[str, int]) -> dict[str, int]:
    """Counts of accepted events with those that `late_counts` found moved to where they belong."""
    moved = dict(counts)
    for window, n in late.items():
        moved[f"{window}.in_windows"] -= n
        moved[f"{window}.window_closed"] = n
    return moved


def _moved_under(time: TimeSpec) -> set[str]:
    """What may move an event that is accepted, or keep it: one of MOVED by its name in `_adjusted_by`."""
    found = {"adjust": {"out_of_order"}, "keep": {KEPT}, "drop": set[str]()}[time.out_of_order]
    policies = {"early": time.early, "late": time.late}
    return found | {name for name, policy in policies.items() if policy and policy.policy == "adjust"}


def _holds_all(window: WindowSpec, time: TimeSpec) -> bool:
    """Whether a window of every accepted event holds it, or can tell by others alone that it is late."""
    has_gaps = window.kind == "hopping" and window.end_step_us > window.size_us
    return time.out_of_order != "keep" and window.where is None and not has_gaps


def ahead_of_clock() -> Column:
    """By how much the time of an accepted event was ahead of the clock as it came, microseconds."""
    return F.col(T) - F.unix_micros(CLOCK)


def furthest_ahead(accepted: DataFrame) -> DataFrame:
    """FURTHEST_US, FURTHEST_SEQ and FURTHEST_T_US of accepted events, one row; null without any."""
    first = F.struct(ahead_of_clock(), -F.col(SEQ))  # of several the first that came
    return accepted.agg(
        F.max(ahead_of_clock()).alias(FURTHEST_US),
        F.max_by(SEQ, first).alias(FURTHEST_SEQ),
        F.max_by(T, first).alias(FURTHEST_T_US),
    )


def _of_window(names: dict[str, str]) -> dict[str, Column]:
    inside, missed = F.size(names[ENDS]) > 0, F.size(names[MISSED]) > 0
    filtered = F.col(names[FILTERED])
    return {
        "in_windows": inside,
        "in_gap": ~filtered & ~inside & ~missed,
        "filtered": filtered,
        "window_closed": missed & ~inside,
        "missed_some": missed & inside,
    }


def refused(counts: Mapping[str, int]) -> dict[str, int]:
    """Dead letters of the stages `ingest` and `time`, by reason, as the stored counts of a batch have them."""
    found = {name.removeprefix(REFUSED): n for name, n in counts.items() if name.startswith(REFUSED)}
    return {reason: n for reason, n in found.items() if n}


def of_windows(outcome: str, counts: Mapping[str, int], windows: Iterable[str]) -> dict[str, int]:
    """By window how many events had an outcome, such as `window_closed`; of windows that had some."""
    found = {name: counts.get(f"{name}.{outcome}", 0) for name in windows}
    return {name: n for name, n in found.items() if n}


def dead_letters_by_reason(counts: Mapping[str, int], windows: Iterable[str]) -> Counter[str]:
    """Dead letters of records in all stages, by reason."""
    found = Counter(refused(counts))
    names = tuple(windows)
    for reason in ("window_closed", "bad_expression"):
        found[reason] += sum(of_windows(reason, counts, names).values())
    return +found
