"""Interval joins over a segment of the log: the pairs that events form in it, and events that stay without a partner.

Here: which events meet, at which item, and what a late partner revises. Not here: the sides and the lengths of time
(sides.py), moments on the driver (moments.py), storage.

Both sides are alike. An event is open from its item on, until the watermark is further past it than its last partner
may be and the allowed lateness. An event that comes forms a pair with each open event in reach, and a pair is final.
So the pairs of a segment have an event of it, and what earlier segments leave is the open events, each with whether
it has had a partner: an event of an outer side that has none gets a row when the watermark has passed all partners,
and another when it closes. The first partner that comes in between revises the row.
"""

from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import with_both_ends
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.joins import sides
from tidemark.timeops.joins.events import Fates
from tidemark.timeops.joins.gathering import IS_LEFT
from tidemark.timeops.joins.moments import (
    CAME_W,
    CLOSE_W,
    CLOSES_NOW,
    DUE,
    DUE_NOW,
    DUE_W,
    EVENT,
    with_closing,
    with_coming,
    with_moments,
)
from tidemark.timeops.joins.sides import came_too_late, is_open, with_side
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ, JoinColumns
from tidemark.timeops.windows.membership import FRESH
from tidemark.timeops.windows.segment import AFTER_SEQ, WindowSegment

HAS_PARTNER = "__tm_has_partner"
"""BOOLEAN of an event that is kept between segments: it has had a partner, if its side asks for that. Null of an
event of the segment, and before the log of one that an operator has let in."""
ROW_LEFT, ROW_RIGHT = "__tm_row_left", "__tm_row_right"
"""BIGINT: `_left_seq` and `_right_seq` of the row that a row revises, or its own."""

_LEFT, _RIGHT = "__tm_left", "__tm_right"
"""STRUCT<seq, t, w, fresh, partner, came, event> of an event of a side: its place in the log, its time, the watermark
that it met if it was out of order, whether it came in the segment, HAS_PARTNER, CAME_W, and its columns."""
_CELL = "__tm_cell"  # events of both sides that are in reach of each other meet in segments of one length
_LEFT_IS_LATER = "__tm_left_is_later"
_FIRST_SEQ, _ON_TIME = "__tm_first_pair_seq", "__tm_on_time"
_REVISION, _IS_FINAL = "__tm_revision", "__tm_is_final"
_BEFORE_THE_LOG = -1
"""In AFTER_SEQ of two events that an operator has let in: they meet before the first item."""


@dataclass(frozen=True)
class Interval:
    """An interval join in a segment of the log.

    Attributes:
        segment: The segment; its earlier events are the open ones, as they came, with HAS_PARTNER.
        join: The join.
        columns: Its payload columns.
    """

    segment: WindowSegment
    join: JoinSpec
    columns: JoinColumns

    def answers(self) -> DataFrame:
        """Return the rows of the join in the segment.

        Returns:
            One row per pair, and per event of an outer side without a partner: `columns`, `_timestamp` of the left
            event or else of the right one, `_left_seq`, `_right_seq`, `_watermark` (just after the item at which it
            was made; null where a flush made it), `_revision` INT, `_is_final`, `_timeline`. Of a join that revises
            also ROW_LEFT and ROW_RIGHT.
        """
        rows = self._shaped(self._numbered(self.pairs))
        return rows if self.join.is_inner else rows.unionByName(self._shaped(self._alone()))

    def needed(self) -> DataFrame:
        """Return the events that are open after the segment, as they came, with IS_LEFT and HAS_PARTNER.

        A flush closes the events of an outer side that have no partner: their row says so for good.
        """
        events = sides.not_passed(self.segment, self.join).drop(c.W_END)
        if self.join.is_inner:
            return events.withColumn(HAS_PARTNER, F.lit(False))
        open_events = self._with_partners(events)
        return open_events.where(f"NOT {self._is_alone}") if self.segment.flushed else open_events

    def fates(self) -> tuple[Fates, Fates]:
        """Count the events of both sides by what becomes of them in the segment."""
        events, by_flush = with_side(self.segment.fresh_and_known, self.join), "false"
        if self.segment.flushed and not self.join.is_inner:
            events, by_flush = self._with_partners(events), self._is_alone
        flags = sides.fates(events, self.segment, self.join, by_flush=by_flush)
        [row] = flags.agg(*[F.expr(f"count_if({name}) AS {name}") for name in sides.FATES]).collect()
        counts = [row[name] for name in sides.FATES]
        return Fates(*counts[:3]), Fates(*counts[3:])

    @cached_property
    def events(self) -> DataFrame:
        """The events that are open in the segment, each with _LEFT or _RIGHT, and the columns of `on`."""
        join, both = self.join, with_side(self.segment.fresh_and_known, self.join)
        if HAS_PARTNER not in both.columns:
            both = both.withColumn(HAS_PARTNER, F.expr("CAST(NULL AS BOOLEAN)"))
        events = with_both_ends(both, self.segment.adjusted).where(f"NOT {came_too_late(join)} AND {is_open(join)}")
        working = (c.TIMELINE, c.SEQ, c.T_FINAL, c.W_BEFORE, c.W_START, c.W_END, FRESH, IS_LEFT, HAS_PARTNER, CAME_W)
        of_event = f"{c.SEQ} AS seq, {c.T_FINAL} AS t, {c.W_BEFORE} AS w, {FRESH} AS fresh, {HAS_PARTNER} AS partner"
        shared = [quoted(name) for name in self.columns.shared]
        left = ", ".join([*shared, *map(quoted, self.columns.left)])
        right = ", ".join([*shared, *(f"{quoted(name)} AS {quoted(shown)}" for name, shown in self.columns.right)])
        struct = f"struct({of_event}, {CAME_W} AS came, struct({{}}) AS event)"
        rows = with_coming(events, self.segment).selectExpr(
            *working,
            *[f"{quoted(name)} AS {key}" for name, key in zip(join.on, self._keys, strict=True)],
            f"IF({IS_LEFT}, {struct.format(left)}, NULL) AS {_LEFT}",
            f"IF({IS_LEFT}, NULL, {struct.format(right)}) AS {_RIGHT}",
        )
        return self.segment.execution.materialize(rows)

    @cached_property
    def pairs(self) -> DataFrame:
        """The pairs that form in the segment: `_timeline`, _LEFT, _RIGHT, AFTER_SEQ of the later, _LEFT_IS_LATER."""
        join = self.join
        width_us = max(join.looks_back_us + join.looks_ahead_us, 1)
        first, last = (c.shifted(c.T_FINAL, by_us) for by_us in (-join.looks_back_us, join.looks_ahead_us))
        cells = (
            f"explode(sequence({c.floor_to(first, width_us)}, {c.floor_to(last, width_us)}, {width_us}L)) AS {_CELL}"
        )
        lefts = self.events.where(IS_LEFT).selectExpr(c.TIMELINE, _LEFT, *self._keys, cells)
        cell = f"{c.floor_to(c.T_FINAL, width_us)} AS {_CELL}"
        rights = self.events.where(f"NOT {IS_LEFT}").selectExpr(c.TIMELINE, _RIGHT, *self._keys, cell)
        same = [f"l.{name} = r.{name}" for name in (c.TIMELINE, *self._keys, _CELL)]
        reach = f"{_RIGHT}.t - {_LEFT}.t BETWEEN {-join.looks_back_us}L AND {join.looks_ahead_us}L"
        one_is_new = f"({_LEFT}.fresh OR {_RIGHT}.fresh OR ({_LEFT}.partner IS NULL AND {_RIGHT}.partner IS NULL))"
        later = f"IF({_LEFT}.fresh = {_RIGHT}.fresh, {_LEFT}.seq > {_RIGHT}.seq, {_LEFT}.fresh)"
        left_is_open = f"coalesce({_RIGHT}.w <= {c.shifted(f'{_LEFT}.t', join.closes_after_us)}, true)"
        right_is_open = f"coalesce({_LEFT}.w <= {c.shifted(f'{_RIGHT}.t', join.useful_for_us)}, true)"
        both = lefts.alias("l").join(rights.alias("r"), F.expr(" AND ".join([*same, reach, one_is_new])))
        met = both.selectExpr(f"l.{c.TIMELINE}", _LEFT, _RIGHT, f"{later} AS {_LEFT_IS_LATER}")
        pairs = met.where(f"IF({_LEFT_IS_LATER}, {right_is_open}, {left_is_open})").withColumn(
            AFTER_SEQ,
            F.expr(
                f"CASE WHEN NOT ({_LEFT}.fresh OR {_RIGHT}.fresh) THEN {_BEFORE_THE_LOG}L "
                f"WHEN {_LEFT_IS_LATER} THEN {_LEFT}.seq ELSE {_RIGHT}.seq END"
            ),
        )
        return pairs if join.is_inner else self.segment.execution.materialize(pairs)

    @property
    def _keys(self) -> list[str]:
        return [f"`__tm_on_{place}`" for place, _ in enumerate(self.join.on)]

    @property
    def _is_outer(self) -> str:
        """SQL of a BOOLEAN, never null: an event of this side has a row without a partner."""
        return {"left": IS_LEFT, "right": f"(NOT {IS_LEFT})", "full": "true"}.get(self.join.how, "false")

    @property
    def _is_alone(self) -> str:
        """SQL of a BOOLEAN, never null: the event, of `_with_partners`, is of an outer side and has no partner."""
        return f"({self._is_outer} AND NOT {HAS_PARTNER})"

    def _with_partners(self, events: DataFrame) -> DataFrame:
        """Return events with HAS_PARTNER after the segment, never null."""
        before = f"coalesce({HAS_PARTNER}, false)" if HAS_PARTNER in events.columns else "false"
        met = events.join(self._meetings, [*EVENT], "left")
        return met.withColumn(HAS_PARTNER, F.expr(f"{before} OR {_FIRST_SEQ} IS NOT NULL")).drop(_FIRST_SEQ, _ON_TIME)

    @cached_property
    def _meetings(self) -> DataFrame:
        """The events of outer sides in `pairs`, each once: _FIRST_SEQ; _ON_TIME if one was there when it was due.

        A partner that came before the event itself was there.
        """
        of_sides = (
            (self.join.keeps_left, _LEFT, _RIGHT, f"NOT {_LEFT_IS_LATER}", self.join.looks_ahead_us),
            (self.join.keeps_right, _RIGHT, _LEFT, _LEFT_IS_LATER, self.join.looks_back_us),
        )
        sides_met = [
            self.pairs.selectExpr(
                c.TIMELINE,
                f"{side}.seq AS {c.SEQ}",
                AFTER_SEQ,
                f"NOT ({is_earlier} AND {_came_late(partner, side, waits_us)}) AS {_ON_TIME}",
            )
            for is_kept, side, partner, is_earlier, waits_us in of_sides
            if is_kept
        ]
        each = sides_met[0] if len(sides_met) == 1 else sides_met[0].unionByName(sides_met[1])
        return each.groupBy(*EVENT).agg(
            F.expr(f"min({AFTER_SEQ}) AS {_FIRST_SEQ}"), F.expr(f"bool_or({_ON_TIME}) AS {_ON_TIME}")
        )

    def _numbered(self, pairs: DataFrame) -> DataFrame:
        """Return pairs as rows: the first partner of an event that had a row without one revises it."""
        columns = {
            _REVISION: "0",
            _IS_FINAL: "true",
            c.WATERMARK: f"IF({_LEFT_IS_LATER}, {_LEFT}.came, {_RIGHT}.came)",
        }
        if self.join.revises:
            left_was_alone = (
                f"(NOT {_LEFT_IS_LATER} AND {self._was_alone(_LEFT)})" if self.join.keeps_left else "false"
            )
            right_was_alone = (
                f"({_LEFT_IS_LATER} AND {self._was_alone(_RIGHT)})" if self.join.keeps_right else "false"
            )
            columns |= {
                _REVISION: f"IF({left_was_alone} OR {right_was_alone}, 1, 0)",
                ROW_LEFT: f"IF({right_was_alone}, NULL, {_LEFT}.seq)",
                ROW_RIGHT: f"IF({left_was_alone}, NULL, {_RIGHT}.seq)",
            }
        return c.with_sql(pairs, columns)

    def _was_alone(self, side: str) -> str:
        """Return SQL of a BOOLEAN, never null: when the other event came, the one of a side had a row without it."""
        other, waits_us = (_RIGHT, self.join.looks_ahead_us) if side == _LEFT else (_LEFT, self.join.looks_back_us)
        is_first = f"{AFTER_SEQ} = min({AFTER_SEQ}) OVER (PARTITION BY {c.TIMELINE}, {side}.seq)"
        return f"NOT coalesce({side}.partner, false) AND {_came_late(other, side, waits_us)} AND {is_first}"

    def _alone(self) -> DataFrame:
        """Return the rows of events of outer sides that have no partner, when they are due and when they close."""
        join, segment = self.join, self.segment
        left_us, right_us = join.looks_ahead_us, join.looks_back_us
        if not join.revises:
            left_us, right_us = join.closes_after_us, join.useful_for_us
        passed = f"coalesce({c.T_FINAL} + IF({IS_LEFT}, {left_us}L, {right_us}L) < {c.W_END}, false)"
        is_due = "true" if segment.flushed else passed
        events = self.events.where(f"{self._is_outer} AND NOT coalesce({HAS_PARTNER}, false) AND {is_due}")
        revised_row = {ROW_LEFT: f"{_LEFT}.seq", ROW_RIGHT: f"{_RIGHT}.seq"} if join.revises else {}

        def rows(of: DataFrame, revision: str, watermark: str, *, is_final: str) -> DataFrame:
            columns = {_REVISION: revision, c.WATERMARK: watermark, _IS_FINAL: is_final, **revised_row}
            return c.with_sql(of, columns)

        if not join.revises:
            closing = with_closing(events, segment, join).drop(CLOSES_NOW)
            alone = closing.join(self._meetings, [*EVENT], "left").where(f"{_FIRST_SEQ} IS NULL")
            return rows(alone, "0", c.WATERMARK, is_final="true")
        met = with_moments(events, segment, join).join(self._meetings, [*EVENT], "left")
        due = met.where(f"{DUE_NOW} = 1 AND NOT coalesce({_ON_TIME}, false)")
        last = met.where(f"{CLOSES_NOW} = 1 AND {_FIRST_SEQ} IS NULL")
        return rows(due, "0", DUE_W, is_final="false").unionByName(rows(last, DUE, CLOSE_W, is_final="true"))

    def _shaped(self, rows: DataFrame) -> DataFrame:
        shared = [
            f"coalesce({_LEFT}.event.{quoted(name)}, {_RIGHT}.event.{quoted(name)}) AS {quoted(name)}"
            for name in self.columns.shared
        ]
        return rows.selectExpr(
            *shared,
            *[f"{_LEFT}.event.{quoted(name)} AS {quoted(name)}" for name in self.columns.left],
            *[f"{_RIGHT}.event.{quoted(name)} AS {quoted(name)}" for _, name in self.columns.right],
            f"timestamp_micros(coalesce({_LEFT}.t, {_RIGHT}.t)) AS {c.TIMESTAMP}",
            f"{_LEFT}.seq AS {LEFT_SEQ}",
            f"{_RIGHT}.seq AS {RIGHT_SEQ}",
            f"timestamp_micros({c.WATERMARK}) AS {c.WATERMARK}",
            f"CAST({_REVISION} AS INT) AS _revision",
            f"{_IS_FINAL} AS _is_final",
            c.TIMELINE,
            *([ROW_LEFT, ROW_RIGHT] if self.join.revises else []),
        )


def _came_late(partner: str, side: str, waits_us: int) -> str:
    """Return SQL of a BOOLEAN, never null: when a partner came, the watermark was past all partners of the other."""
    return f"coalesce({partner}.w > {c.shifted(f'{side}.t', waits_us)}, false)"
