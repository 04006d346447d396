"""The first times of keys between two batches, which is the state of the duplicate rule.

Here: reading the first times that a batch may find duplicates of, and adding the batch's own. Not here: who is a
duplicate (timeops/events/duplicates.py).

Nothing is ever deleted: however late a record comes, it may be a duplicate. A batch does not read all of this
history: it asks only for the spans of event time of its own events, and each file that it adds holds one such span.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import add

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import Batch, TimeSpan
from tidemark.resources import tables
from tidemark.resources.delta.versions import Filters
from tidemark.resources.spark.frames import empty_frame
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.events.duplicates import FIRST_TIMES_SCHEMA, event_times

MOST_SPANS = 8
NEAR_US = 3_600_000_000
"""Spans no further apart are one: to read a little more costs less than another file."""
_DAY_US = 86_400_000_000
_MOST_PIECES = 10_000
_ALL: TimeSpan = (c.MIN_US, c.MAX_US)


def spans_of(workspace: Workspace, items: DataFrame) -> tuple[TimeSpan, ...]:
    """Return the spans of event time in which a batch's events may have duplicates, found by one small job."""
    rules = workspace.rules
    pieces = event_times(items, rules, max(rules.time.within_us, _DAY_US)).limit(_MOST_PIECES + 1).collect()
    if len(pieces) > _MOST_PIECES:
        return (_ALL,)
    within_us = rules.time.within_us
    return joined([(row["first_us"] - within_us, row["last_us"] + within_us) for row in pieces], MOST_SPANS)


def joined(spans: Iterable[TimeSpan], most: int) -> tuple[TimeSpan, ...]:
    """Return spans that are not near each other, in order, at most so many: the nearest ones are joined."""
    apart: list[TimeSpan] = []
    for first, last in sorted(spans):
        if apart and first <= apart[-1][1] + NEAR_US:
            apart[-1] = (apart[-1][0], max(apart[-1][1], last))
        else:
            apart.append((first, last))
    while len(apart) > most:
        nearest = min(range(1, len(apart)), key=lambda i: apart[i][0] - apart[i - 1][1])
        apart[nearest - 1 : nearest + 1] = [(apart[nearest - 1][0], apart[nearest][1])]
    return tuple(apart)


def known_first_times(workspace: Workspace, spans: Sequence[TimeSpan], *, up_to: int | None = None) -> DataFrame:
    """Return first times of earlier batches in some spans of event time, duplicates.FIRST_TIMES_SCHEMA.

    `up_to` is the last of these batches, by default the last one committed. Rows are only ever added, so no older
    version of the table is asked for, whose files may be gone.
    """
    of_batches: Filters = [] if up_to is None else [(c.BATCH, "<=", up_to)]
    frames = []
    for first, last in spans:
        within = [("event_us", ">=", first), ("event_us", "<=", last), *of_batches]
        frames.append(workspace.read_base(tables.FIRST_TIMES, filters=within).drop(c.BATCH))
    return reduce(DataFrame.unionByName, frames or [empty_frame(workspace.spark, FIRST_TIMES_SCHEMA)])


def write_first_times(batch: Batch) -> None:
    """Add the batch's first times, in files of one span of event time each."""
    rows, spans = batch.outcome.fresh_first_times(), batch.spans
    if len(spans) > 1:
        later = [(F.col("event_us") > last).cast("int") for _, last in spans]
        rows = rows.repartitionById(len(spans), reduce(add, later))
    batch.append(tables.FIRST_TIMES, rows, as_cut=len(spans) > 1)
