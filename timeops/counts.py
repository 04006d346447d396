"""Counts of what became of a segment of the log, by outcome and window.

Here: sums that conservation and the metrics are made of (A2: early, late and out-of-order input events, dropped and
adjusted alike). Not here: the decisions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import ADJUSTED_BY, CLOCK, REASON, SEQ, SOURCE, T
from tidemark.timeops.events.adjustment import KEPT
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
_LATE = "__tm_late"
_OUTCOMES = ("in_windows", "in_gap", "filtered", "bad_expression", "window_closed", "missed_some")


def refused_tally(refused: DataFrame) -> DataFrame:
    """`reason`, `source` and `n` of the refused records of a segment."""
    return refused.groupBy(F.col(REASON).alias("reason"), F.col(SOURCE).alias("source")).agg(F.count("*").alias("n"))


def accepted_tally(
    accepted: DataFrame,
    time: TimeSpec,
    windows: tuple[WindowSpec, ...],
    late: Mapping[str, DataFrame],
    sources: Sequence[str] = (),
    drained: Mapping[str, DataFrame] | None = None,
    *,
    also: Sequence[Column] = (),
) -> DataFrame:
    """Where the accepted events of a segment went: one row.

    Args:
        accepted: The events.
        time: The spec's `time`.
        windows: The spec's windows.
        late: By window of a kind that merges, those of the events that came too late for it; under drop and adjust
            there are some only where a flush had closed windows before.
        sources: Names of sources to be told apart.
        drained: By window those that an earlier flush closed, see windows/drained.py.
        also: What else is asked of the events.

    Returns:
        `accepted`; by what moved them `early`, `late`, `out_of_order`, `kept_out_of_order`, of a source that is told
        apart `of_source`; and per window
        `<window>.in_windows`, `.in_gap`, `.filtered`, `.bad_expression` (an aggregate fails on the event),
        `.window_closed` (these five add up to `accepted`) and
        `.missed_some` (in some window, late for another); BIGINT counts of events. And what else was asked.
    """
    may_be = _moved_under(time)
    counts = {name: F.array_contains(ADJUSTED_BY, name) if name in may_be else F.lit(False) for name in MOVED}
    counts |= {of_source(name, one): counts[name] & (F.col(SOURCE) == one) for name in MOVED for one in sources}
    placed = accepted
    for number, window in enumerate(windows):
        names = {name: f"{name}{number}" for name in (ENDS, MISSED, FILTERED)}
        kind = kind_of(window)
        of_window = None if kind.merges else (drained or {}).get(window.name)  # else `late` says it
        if of_window is None and unfit(accepted, window) is None and _holds_all(window, time):
            counts |= {f"{window.name}.{name}": F.lit(name == "in_windows") for name in _OUTCOMES}
            continue
        told = kind.place(told_of(placed, of_window, window))
        placed = told.drop(DRAINED).withColumnsRenamed(names)
        found = _of_window(names)
        fails = unfit(accepted, window)
        found["bad_expression"] = F.lit(False)
        if fails is not None:
            own = f"__tm_unfit{number}"
            placed = placed.withColumn(own, fails)
            found |= {"bad_expression": F.col(own), "filtered": found["filtered"] & ~F.col(own)}
        counts |= {f"{window.name}.{name}": condition for name, condition in found.items()}
    tally = placed.agg(
        F.count("*").alias("accepted"),
        *[F.count_if(condition).alias(name) for name, condition in counts.items()],
        *also,
    )
    for name, events in late.items():
        tally = _without_late(tally, name, events)
    return tally


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


def of_source(moved_by: str, source: str) -> str:
    """Name of the count of a source's events that a rule moved."""
    return f"{moved_by} of {source}"


def _without_late(tally: DataFrame, window: str, late: DataFrame) -> DataFrame:
    """Where windows merge, only beside the others an event shows late, so these are counted apart and moved."""
    inside, closed = f"{window}.in_windows", f"{window}.window_closed"
    both = tally.crossJoin(late.agg(F.count("*").alias(_LATE)))
    moved = {inside: F.col(f"`{inside}`") - F.col(_LATE), closed: F.col(_LATE)}
    return both.withColumns(moved).drop(_LATE)


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
