"""An independent recount of late drops, from the arrival log alone: a range of it judged again, piece after piece.

Here: the result for a range, in numbers or record by record. Not here: rules (resources/recount/rules.py), what a
record says by itself (resources/recount/record_sql.py), the watermark of each timeline
(resources/recount/timelines.py, resources/recount/loop.py), when windows close (resources/recount/ends.py).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from tidemark.resources.recount.ends import Numbers
from tidemark.resources.recount.record_sql import records_sql, times
from tidemark.resources.recount.rules import RECORD_OUTCOMES, RecountRules, ints, rules_after
from tidemark.resources.recount.timelines import walk

_PIECE = 2_000_000  # records that Spark is asked for at once: the process has the rest of a batch in memory too


@dataclass(frozen=True)
class Recounted:
    """Some records that follow one another in the log, judged again.

    Attributes:
        seqs: Their `_arrival_seq`, in order.
        flags: Which of RECORD_OUTCOMES each is, bit by bit, the first one the lowest.
        t: The time that rule 3 judges, microseconds; NONE of a record that it does not judge.
        below: Whether it is below the watermark that it meets.
        timelines: The timelines after the records, see `judge_again`.
    """

    seqs: Numbers
    flags: NDArray[np.int8]
    t: Numbers
    below: NDArray[np.bool_]
    timelines: pa.Table

    def are(self, outcome: str) -> NDArray[np.bool_]:
        """Return whether each is one of RECORD_OUTCOMES."""
        return np.asarray(self.flags & (1 << RECORD_OUTCOMES.index(outcome)) != 0)


def counts_of(parts: Iterable[Recounted], rules: RecountRules) -> dict[str, int]:
    """Count early, late and out-of-order drops of what `judge_again` yields by some rules, and duplicates.

    Returns:
        Numbers by name: `records`, `untimed` (no arrival, malformed, no or bad event time), `duplicate`, `mistaken`
        (records that are duplicates and were not refused as such, or the other way round), `early`, `late_arrival`,
        `out_of_order` (dropped), `below` (met by rule 3 under any policy).
    """
    counts = dict.fromkeys(["records", *RECORD_OUTCOMES, "below"], 0)
    for part in parts:
        counts["records"] += len(part.seqs)
        counts["below"] += int(np.count_nonzero(part.below))
        for outcome in RECORD_OUTCOMES:
            counts[outcome] += int(np.count_nonzero(part.are(outcome)))
    return counts | {"out_of_order": counts["below"] if rules.out_of_order == "drop" else 0}


def judge_again(
    log: DataFrame,
    seqs: range,
    rules: RecountRules,
    timelines: pa.Table,
    *,
    compute: Callable[[DataFrame], DataFrame],
    refused: DataFrame | None = None,
    first_times: DataFrame | None = None,
    most: int = _PIECE,
) -> Iterator[Recounted]:
    """Judge a range of the log again, piece after piece.

    Args:
        log: The range of `raw_events`.
        seqs: The numbers of its records.
        rules: The spec's numbers.
        timelines: `_timeline`, and before the first record of the range `watermark` (as seen last), `computed` (as
            the rules set it) and `clock`, in microseconds; `last_clock`, `max_close` and `splits` if a rule needs
            them.
        compute: Computes a frame that several queries read, and returns the same rows.
        refused: With `deduplicate_by` the `_arrival_seq` of records that were refused as duplicates.
        first_times: With it `key`, `event_us` and `_arrival_seq` of earlier records that were not refused, as far as
            they are near the records of the range.
        most: The most records that are asked for at once.
    """
    frames = {"log": times(log, rules)}
    if refused is not None and first_times is not None:
        frames |= {"refused": refused, "first_times": first_times}
    records = log.sparkSession.sql(records_sql(rules), None, **frames)
    bounds: list[int | None] = [None, *seqs[most::most], None]
    if rules.deduplicate_by and len(bounds) > 2:
        records = compute(records)  # else each piece would look for duplicates among all
    for first, end in pairwise(bounds):
        low, high = ("true" if first is None else f"seq >= {first}"), ("true" if end is None else f"seq < {end}")
        rows = _in_order(records.where(f"{low} AND {high}").toArrow())
        below, timelines = walk(rows, timelines, rules)
        yield Recounted(rows["seq"].to_numpy(), rows["flags"].to_numpy(), ints(rows["t"]), below, timelines)
        rules = rules_after(rows, rules)


def _in_order(rows: pa.Table) -> pa.Table:
    return rows.sort_by("seq") if (np.diff(rows["seq"].to_numpy()) < 0).any() else rows
