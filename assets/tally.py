"""One look at the judged records of a batch: what became of them, where in the log, and how late they were.

Here: the query that counts and pictures share, and what its rows say together. Not here: what is counted
(timeops/counts.py), what is shown (display/).
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import Batch
from tidemark.resources.workspace import records_in
from tidemark.timeops import columns as c
from tidemark.timeops.counts import (
    FURTHEST_US,
    MOVED,
    ahead_of_clock,
    late_counts,
    names_of_counts,
    tally,
    without_late,
)
from tidemark.timeops.events.event_time import REFUSED_AT_INGESTION
from tidemark.timeops.spec.consistency import has_event_time
from tidemark.timeops.windows.kinds import kind_of

BINS = 200
"""Into so many pieces a batch is cut."""
PER_DECADE = 40  # buckets of a histogram: a length of time is known to 3 %
FINEST_US = 1_000
ON_TIME, MOVED_OR_KEPT, REFUSED = "on time", "moved or kept", "refused"
OUTCOMES = (ON_TIME, MOVED_OR_KEPT, REFUSED)


@dataclass(frozen=True)
class Tally:
    """What became of the records of a batch.

    Attributes:
        counts: Accepted events by outcome, see `tidemark.timeops.counts.tally`; all of them as `accepted`.
        moved: Of them those that were moved or kept, by source and by what did it.
        refused: Refused records by source and reason.
        ahead_us: How far the accepted event that was furthest ahead of the clock was ahead of it; None without any.
        width: Records of a piece of the batch; the last piece may have fewer.
        groups: A row by `bin` INT (the piece), `bucket` INT (of lateness; null without a time) and `outcome`, with
            `n`, `longest` lateness, `clock`, `newest` event that moved the watermark, `watermark`, `refused` (with
            a time), and of these the `lowest` and `highest` time minus the clock; microseconds. None where
            events have no time of their own.
    """

    counts: Mapping[str, int]
    moved: Mapping[tuple[str, str], int]
    refused: Mapping[tuple[str, str], int]
    ahead_us: int | None
    width: int
    groups: pa.Table | None


def tally_of(batch: Batch) -> Tally:
    """Counts the records of a batch, by one query; where sessions may refuse events that came too late, by two."""
    spec, outcome = batch.workspace.spec, batch.outcome
    width = max(math.ceil(records_in(batch.plan) / BINS), 1)
    shown = has_event_time(spec.sources, spec.time)  # else event time is arrival time
    groups = _groups(batch.plan.first_seq, width) if shown else {}
    also = {FURTHEST_US: F.max(F.when(~_is_refused(), ahead_of_clock())), **(_shown() if shown else {})}
    drained = outcome.before.drained
    found = tally(outcome.judged, spec.time, spec.event_windows, drained, by=groups, also=also).toArrow()
    late = {window.name: outcome.late_for(window) for window in outcome.may_be_late_for if kind_of(window).merges}
    names = names_of_counts(spec.event_windows)
    by_source = _summed(found.filter(pc.is_null(found["reason"])), ["source"], ["n", *names])
    counts: Counter[str] = Counter(dict.fromkeys(("accepted", *names), 0))
    for row in by_source:
        counts.update({"accepted": row["n_sum"], **{name: row[f"{name}_sum"] for name in names}})
    refused = _summed(found.filter(pc.is_valid(found["reason"])), ["source", "reason"], ["n"])
    return Tally(
        counts=without_late(counts, late_counts(late)),
        moved={(row["source"], name): row[f"{name}_sum"] for row in by_source for name in MOVED},
        refused={(row["source"], row["reason"]): row["n_sum"] for row in refused},
        ahead_us=pc.max(found[FURTHEST_US]).as_py(),
        width=width,
        groups=found if shown else None,
    )


def _summed(rows: pa.Table, by: list[str], names: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rows.group_by(by).aggregate([(name, "sum") for name in names]).to_pylist()
    return found


def _groups(first_seq: int, width: int) -> dict[str, Column]:
    """Which piece of the batch a record is in, how late it was, in logarithmic buckets, and what became of it."""
    off = F.abs(_lateness())
    bucket = F.when(off < FINEST_US, F.lit(0)).otherwise(
        F.signum(_lateness()) * (F.floor(PER_DECADE * F.log10(off / FINEST_US)) + 1)
    )
    moved = F.when(F.size(c.ADJUSTED_BY) > 0, MOVED_OR_KEPT).otherwise(ON_TIME)
    return {
        "bin": F.floor((F.col(c.SEQ) - F.lit(first_seq)) / width).cast("int"),
        "bucket": bucket.cast("int"),
        "outcome": F.when(_is_refused(), REFUSED).otherwise(moved),
    }


def _shown() -> dict[str, Column]:
    """What is asked of each group, see `Tally.groups`."""
    behind = F.when(_is_refused(), c.to_us(c.EVENT_TIME) - c.to_us(c.CLOCK))
    moves = ~_is_refused() | (F.col(c.REASON) == "out_of_order")
    return {
        "longest": F.max(_lateness()),
        "clock": c.to_us(F.max(c.CLOCK)),
        "newest": F.max(F.when(moves, F.col(c.T))),
        "watermark": F.max(c.W_BEFORE),
        "refused": F.count_if(_is_refused() & F.col(c.EVENT_TIME).isNotNull()),
        "lowest": F.min(behind),
        "highest": F.max(behind),
    }


def _is_refused() -> Column:
    return F.col(c.REASON).isNotNull()


def _lateness() -> Column:
    """Arrival minus event time of a record that has both."""
    has_time = ~F.coalesce(F.col(c.REASON).isin(*REFUSED_AT_INGESTION), F.lit(False)) & F.col(c.T).isNotNull()
    return F.when(has_time, c.to_us(c.ARRIVAL) - c.to_us(c.EVENT_TIME))
