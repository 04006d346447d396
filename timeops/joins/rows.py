"""The rows of a join of either kind in a segment of the log, as frames.

Here: the columns of rows next to what is found on the driver; which kind computes what, and which rows are revisions
of one. Not here: what is found (timeops/joins/as_of.py, timeops/joins/interval.py), how a batch writes rows
(assets/joins.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import Stored, from_driver
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.expressions.tokens import literal, literals, quoted
from tidemark.timeops.joins import as_of
from tidemark.timeops.joins.events import Answers, Events, Fates, Flags, Places, fates, still_needed
from tidemark.timeops.joins.gathering import HAS_PARTNER, IS_LEFT, gathered
from tidemark.timeops.joins.interval import Interval, PairRows
from tidemark.timeops.narrow import beside
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ, JoinColumns
from tidemark.timeops.values.instants import NONE, nulled
from tidemark.timeops.windows.segment import WindowSegment

ROW_LEFT, ROW_RIGHT = "__tm_row_left", "__tm_row_right"
"""BIGINT: `_left_seq` and `_right_seq` of the row that a row revises, or its own."""
_LEFT, _RIGHT = "__tm_left", "__tm_right"


@dataclass(frozen=True, eq=False)
class Joined:
    """A join in a segment of the log.

    Attributes:
        adjusted: The segment.
        join: The join.
        columns: Its payload columns.
        earlier: Returns the events that the join keeps from earlier segments, as they came, of an interval join with
            HAS_PARTNER; None for none.
        flushed: The segment ends with a flush.
        stored: Reads columns of these events without Spark, see `gathering.gathered`; None where Spark does.
        table: The rows of a table on the right side, as events; None for none.
    """

    adjusted: Adjusted
    join: JoinSpec
    columns: JoinColumns
    earlier: Callable[[], DataFrame | None]
    flushed: bool = False
    stored: Stored | None = None
    table: DataFrame | None = None

    @cached_property
    def events(self) -> Events:
        """The events of both sides, with the rows of a table."""
        return gathered(self.adjusted, self.join, self.earlier, self.stored, self.table)

    @cached_property
    def _interval(self) -> Interval:
        return Interval(self.events, self.join, self.adjusted.watermarks, self.flushed)

    @cached_property
    def answered(self) -> Answers:
        """The rows of the join, as places of events."""
        if self.join.is_interval:
            return self._interval.rows
        return as_of.answers(self.events, self.join, self.adjusted.watermarks, flushed=self.flushed)

    @cached_property
    def still_needed(self) -> Places:
        """The events that the join needs after the segment."""
        if self.join.is_interval:
            return self._interval.still_needed
        return still_needed(self.events, self.join, flushed=self.flushed)

    @property
    def has_partner(self) -> Flags:
        """Of an interval join HAS_PARTNER of each event after the segment."""
        return self._interval.has_partner

    def fates(self) -> tuple[Fates, Fates]:
        """Count the events of both sides by what becomes of them in the segment."""
        all_by_flush = np.full(len(self.events), self.flushed)
        return fates(
            self.events, self.join, self._interval.closed_by_flush if self.join.is_interval else all_by_flush
        )

    def answers(self) -> DataFrame:
        """Return the rows of the join.

        Returns:
            One row per answer of an as-of join; per pair, and per event of an outer side without a partner, of an
            interval join: `columns`, `_timestamp` of the left event or else of the right one, `_left_seq`,
            `_right_seq` (null without a partner), `_watermark` (just after the item at which it was made; null where
            a flush made it), `_revision` INT, `_is_final`, `_timeline`. Of an interval join that revises also
            ROW_LEFT and ROW_RIGHT.
        """
        columns, prefix = self.columns, self.columns.right_prefix
        left = [(name, name) for name in (*columns.shared, *columns.left)]
        right = [(name, name) for name in columns.shared] + [(prefix + name, shown) for name, shown in columns.right]
        spark = self.adjusted.accepted.sparkSession
        rows = from_driver(spark, self._narrow).alias("row")
        for side, events, names in (
            (_LEFT, self._of_source(self.join.left.source), left),
            (_RIGHT, self._of_source(self.join.right.name) if self.table is None else self.table, right),
        ):
            payload = ", ".join(f"{quoted(name)} AS {quoted(shown)}" for name, shown in names)
            with_payload = events.selectExpr(
                f"{c.TIMELINE} AS {side}_of", f"{c.SEQ} AS {side}_seq", f"struct({payload}) AS {side}"
            )
            same = f"{c.TIMELINE} = {side}_of AND {side}_number = {side}_seq"
            rows = rows.join(with_payload, F.expr(same), "left")
        return rows.selectExpr(
            *[
                f"coalesce({_LEFT}.{quoted(name)}, {_RIGHT}.{quoted(name)}) AS {quoted(name)}"
                for name in columns.shared
            ],
            *[f"{_LEFT}.{quoted(name)} AS {quoted(name)}" for name in columns.left],
            *[f"{_RIGHT}.{quoted(shown)} AS {quoted(shown)}" for _, shown in columns.right],
            f"timestamp_micros({c.T_FINAL}) AS {c.TIMESTAMP}",
            f"{_LEFT}_number AS {LEFT_SEQ}",
            f"{'CAST(NULL AS BIGINT)' if prefix else f'{_RIGHT}_number'} AS {RIGHT_SEQ}",
            f"timestamp_micros({c.WATERMARK}) AS {c.WATERMARK}",
            *("_revision", "_is_final", c.TIMELINE),
            *([ROW_LEFT, ROW_RIGHT] if self.join.is_interval and self.join.revises else []),
        )

    def needed(self) -> DataFrame:
        """Return the events that the join needs after the segment, as they came, with IS_LEFT.

        The ones of an interval join have HAS_PARTNER.
        """
        some, is_left = self.still_needed, f"{c.SOURCE} = {literal(self.join.left.source)}"
        events = self._events_as_they_came.where(f"{c.SOURCE} IN ({literals(self.join.sources)})")
        events = events.drop(HAS_PARTNER).withColumn(IS_LEFT, F.expr(is_left))
        partner = self.has_partner[some] if self.join.is_interval else np.zeros(len(some), bool)
        needed = self._beside(events, some, HAS_PARTNER, pa.array(partner.astype(np.int64)))
        if not self.join.is_interval:
            return needed.drop(HAS_PARTNER)
        return needed.withColumn(HAS_PARTNER, F.col(HAS_PARTNER) == 1)

    def late(self) -> DataFrame:
        """Return the accepted events of the segment that came when the join could no longer take them.

        Returns:
            The events with `__tm_lateness_us`: the least extra allowed lateness that would have let the event in;
            null where the clock had raised the watermark.
        """
        events, accepted = self.events, self.adjusted.accepted.drop(c.LATENESS)
        some = np.flatnonzero(events.is_fresh & events.came_too_late(self.join))
        lateness_us = events.met_us[some] - events.past_us(self.join)[some]
        late = self._beside(accepted, some, c.LATENESS, pa.array(lateness_us))
        if self.adjusted.rules.clock_moves:  # no lateness lets in what the clock has passed
            lateness = f"IF({c.W_SET_BY} IS NULL, NULL, {c.LATENESS})"
            late = late.withColumn(c.LATENESS, F.expr(lateness))
        return late

    def _beside(self, frame: DataFrame, some: Places, name: str, values: pa.Array) -> DataFrame:
        """Return the rows of some events, with one more column; of several logs each may have its own numbers."""
        keys = [c.SEQ] if len(self.adjusted.watermarks.logs) == 1 else [c.TIMELINE, c.SEQ]
        added = {c.TIMELINE: self.events.names_of(some).cast(pa.string()), c.SEQ: pa.array(self.events.seq[some])}
        return beside(frame, pa.table({**added, name: values}).select([*keys, name]), keys)

    def _of_source(self, source: str) -> DataFrame:
        return self._events_as_they_came.where(f"{c.SOURCE} = {literal(source)}")

    @cached_property
    def _events_as_they_came(self) -> DataFrame:
        return WindowSegment(self.adjusted, earlier=self.earlier()).events_as_they_came

    @property
    def _narrow(self) -> pa.Table:
        """The rows as numbers; null where a row lacks an event, or a flush made it."""
        events, answered = self.events, self.answered
        seqs, timed = np.append(events.seq, NONE), answered.timed
        columns = {
            c.TIMELINE: events.names_of(timed).cast(pa.string()),
            c.T_FINAL: pa.array(events.us[timed]),
            f"{_LEFT}_number": nulled(seqs[answered.left]),
            f"{_RIGHT}_number": nulled(seqs[answered.right]),
            c.WATERMARK: nulled(answered.watermark),
            "_revision": pa.array(answered.revision),
            "_is_final": pa.array(answered.is_final),
        }
        if isinstance(answered, PairRows):
            columns |= {ROW_LEFT: nulled(seqs[answered.row_left]), ROW_RIGHT: nulled(seqs[answered.row_right])}
        return pa.table(columns)


def answers(adjusted: Adjusted, join: JoinSpec, columns: JoinColumns, table: DataFrame | None = None) -> DataFrame:
    """Return the rows of a join in the first segment of a log, `Joined.answers`."""
    return Joined(adjusted, join, columns, lambda: None, table=table).answers()


def shown(rows: DataFrame) -> DataFrame:
    """Return rows of `answers` with the columns of the join's table alone, but its batch."""
    return rows.drop(c.TIMELINE, ROW_LEFT, ROW_RIGHT)


def as_events(rows: DataFrame, columns: JoinColumns) -> DataFrame:
    """Return the final rows of `answers` as accepted events of windows over them.

    Returns:
        `JoinColumns.in_windows`, `_timeline`, `_timestamp`, `__tm_timestamp`, and a null `__tm_w_before`: none is
        late, as such a window closes after all rows that it can hold.
    """
    final = rows.where("_is_final").select(*map(quoted, columns.in_windows), c.TIMESTAMP, c.TIMELINE)
    return c.with_sql(final, {c.T_FINAL: f"unix_micros({c.TIMESTAMP})", c.W_BEFORE: "CAST(NULL AS BIGINT)"})


def row_keys(join: JoinSpec) -> tuple[str, ...]:
    """Return the columns of `answers` that all revisions of one row share."""
    return (ROW_LEFT, ROW_RIGHT) if join.is_interval else (LEFT_SEQ,)
