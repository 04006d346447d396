"""The rows of a join of either kind in a segment of the log, as frames.

Here: the columns of rows next to what is found on the driver; which kind computes what, and which rows are revisions
of one. Not here: what is found (as_of.py, interval.py), how a batch writes rows (assets/joins.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import Adjusted
from tidemark.timeops.expressions.tokens import literal, literals, quoted
from tidemark.timeops.instants import NONE, nulled
from tidemark.timeops.joins import as_of
from tidemark.timeops.joins.as_of import Answers
from tidemark.timeops.joins.events import Events, Fates, Places, fates, still_needed
from tidemark.timeops.joins.gathering import IS_LEFT, gathered
from tidemark.timeops.joins.interval import ROW_LEFT, ROW_RIGHT, Interval
from tidemark.timeops.materialize import Stored
from tidemark.timeops.narrow import beside
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ, JoinColumns
from tidemark.timeops.windows.segment import WindowSegment

_PARTNER, _REVISION, _IS_FINAL = "__tm_partner", "__tm_revision", "__tm_is_final"
_ADDED = (_REVISION, _IS_FINAL, _PARTNER, c.WATERMARK)
_IS_NEEDED = "__tm_is_needed"
_RIGHT, _OF, _SEQ = "__tm_right", "__tm_right_of", "__tm_right_seq"


@dataclass(frozen=True, eq=False)
class AsOf:
    """An as-of join in a segment of the log.

    Attributes:
        adjusted: The segment.
        join: The join.
        columns: Its payload columns.
        earlier: Returns the events that the join has kept, as they came; None for none.
        flushed: The segment ends with a flush.
        stored: Reads columns of the kept events without Spark, see `gathering.gathered`; None where Spark does.
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
    def answered(self) -> Answers:
        """The answers, as places of events."""
        return as_of.answers(self.events, self.join, self.adjusted.watermarks, flushed=self.flushed)

    @cached_property
    def still_needed(self) -> Places:
        """The events that the join still needs after the segment."""
        return still_needed(self.events, self.join, flushed=self.flushed)

    def fates(self) -> tuple[Fates, Fates]:
        """Count the events of both sides by what becomes of them in the segment."""
        return fates(self.events, self.join, np.full(len(self.events), self.flushed))

    def answers(self) -> DataFrame:
        """Return the answers.

        Returns:
            One row per answer: `columns`, `_timestamp` of the left event, `_left_seq`, `_right_seq` (null without a
            partner), `_watermark` (just after the item at which it was made; null where a flush made it), `_revision`
            INT, `_is_final`, `_timeline`. With `how: inner` answers without a partner are left out.
        """
        join, columns = self.join, self.columns
        lefts = self._of_source(join.left.source)
        keys = [c.TIMELINE, c.SEQ] if join.revises else self._keys  # an event may have several answers
        with_answers = beside(lefts, self._beside_left(self.answered).select([*keys, *_ADDED]), keys)
        rights = self.table if self.table is not None else self._of_source(join.right.name)
        prefix = columns.right_prefix
        event = ", ".join(f"{quoted(prefix + name)} AS {quoted(shown)}" for name, shown in columns.right)
        partners = rights.selectExpr(f"{c.TIMELINE} AS {_OF}", f"{c.SEQ} AS {_SEQ}", f"struct({event}) AS {_RIGHT}")
        same = f"l.{c.TIMELINE} = r.{_OF} AND l.{_PARTNER} = r.{_SEQ}"
        both = with_answers.alias("l").join(partners.alias("r"), F.expr(same), "left")
        partner = "CAST(NULL AS BIGINT)" if columns.right_prefix else _PARTNER
        return both.selectExpr(
            *map(quoted, [*columns.shared, *columns.left]),
            *[f"{_RIGHT}.{quoted(shown)} AS {quoted(shown)}" for _, shown in columns.right],
            f"timestamp_micros({c.T_FINAL}) AS {c.TIMESTAMP}",
            f"{c.SEQ} AS {LEFT_SEQ}",
            f"{partner} AS {RIGHT_SEQ}",
            f"timestamp_micros({c.WATERMARK}) AS {c.WATERMARK}",
            f"CAST({_REVISION} AS INT) AS _revision",
            f"{_IS_FINAL} = 1 AS _is_final",
            c.TIMELINE,
        )

    def needed(self) -> DataFrame:
        """Return the events that the join still needs after the segment, as they came, with IS_LEFT."""
        events, some = self.events, self.still_needed
        both = self._events_as_they_came.where(f"{c.SOURCE} IN ({literals(self.join.sources)})")
        both = both.withColumn(IS_LEFT, F.expr(f"{c.SOURCE} = {literal(self.join.left.source)}"))
        needed = {c.TIMELINE: events.names_of(some).cast(pa.string()), c.SEQ: events.seq[some]}
        needed[_IS_NEEDED] = np.ones(len(some), np.int64)
        keys = self._keys
        return beside(both, pa.table(needed).select([*keys, _IS_NEEDED]), keys).drop(_IS_NEEDED)

    def _of_source(self, source: str) -> DataFrame:
        return self._events_as_they_came.where(f"{c.SOURCE} = {literal(source)}")

    @cached_property
    def _events_as_they_came(self) -> DataFrame:
        return WindowSegment(self.adjusted, earlier=self.earlier()).events_as_they_came

    @property
    def _keys(self) -> list[str]:
        """The columns that name an event: of several logs each may number its events by itself."""
        return [c.SEQ] if len(self.adjusted.watermarks.logs) == 1 else [c.TIMELINE, c.SEQ]

    def _beside_left(self, answered: Answers) -> pa.Table:
        """Return the answers as numbers by left event; null where one has no partner, or a flush made it."""
        events = self.events
        partners = np.append(events.seq, NONE)[answered.right]
        columns = {
            c.TIMELINE: events.names_of(answered.left).cast(pa.string()),
            c.SEQ: pa.array(events.seq[answered.left]),
            _REVISION: pa.array(answered.revision, pa.int64()),
            _IS_FINAL: pa.array(answered.is_final.astype(np.int64)),
            _PARTNER: nulled(partners),
            c.WATERMARK: nulled(answered.watermark),
        }
        return pa.table(columns)


def answers(adjusted: Adjusted, join: JoinSpec, columns: JoinColumns, table: DataFrame | None = None) -> DataFrame:
    """Return the rows of a join in the first segment of a log, `AsOf.answers` or `Interval.answers`."""
    if join.is_interval:
        return Interval(WindowSegment(adjusted), join, columns).answers()
    return AsOf(adjusted, join, columns, lambda: None, table=table).answers()


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
