"""As-of joins over a segment of the log: the answers that events of the left side get in it, and their revisions.

Here: which event of the right side is the partner, and the moments at which it has an answer. Not here: the sides
and what is needed of the past (sides.py), storage.

The partner of a left event is the nearest right event of its key in reach; of several at one instant the one that
arrived last. It is a function of the right events that came while the left event was open, so it is the same wherever
a log is cut. Right events that are on time are found in one pass over both sides in the order of time. The others,
which there are under `keep` alone, are few: each is set against the left events in its reach.

An answer is due when the watermark has passed all events that it may come from. Until it is final, each right event
that comes after that, and is a better partner, makes a revision.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops import columns as c
from tidemark.timeops.events.adjustment import with_both_ends
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.joins.moments import CLOSE_W, CLOSES_NOW, DUE, DUE_NOW, DUE_W, EVENT, with_closing, with_moments
from tidemark.timeops.joins.sides import IS_LATE, IS_LEFT, came_too_late, has_key, is_open, with_side
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ, JoinColumns
from tidemark.timeops.windows.membership import FRESH, RANK
from tidemark.timeops.windows.revisions import FINAL, ON_TIME
from tidemark.timeops.windows.segment import AFTER_SEQ, WindowSegment, watermarks_after

_RIGHT = "__tm_right"
"""STRUCT<seq, t, w, fresh, event> of a right event: its place in the log, its time, the watermark that it met if it
was out of order, whether it came in the segment, and its columns."""
_PARTNER, _LATE_PARTNER, _EARLIER, _LATER = "__tm_partner", "__tm_late_partner", "__tm_earlier", "__tm_later"
_CELL = "__tm_cell"  # events of both sides that are in reach of each other meet in segments of one length

# Of a moment of a left event.
_COUNTS, _IS_NOW = "__tm_counts", "__tm_is_now"
_REVISION = "__tm_revision"


def answers(segment: WindowSegment, join: JoinSpec, columns: JoinColumns) -> DataFrame:
    """Return the answers of a join in a segment of the log.

    Args:
        segment: The segment; its earlier events are the ones that the join needs, as they came.
        join: The join.
        columns: Its payload columns.

    Returns:
        One row per answer: `columns`, `_timestamp` of the left event, `_left_seq`, `_right_seq` (null without a
        partner), `_watermark` (just after the item at which it was made; null where a flush made it), `_revision`
        INT, `_is_final`, `_timeline`. With `how: inner` answers without a partner are left out.
    """
    keeps = segment.adjusted.rules.time.out_of_order == "keep"
    rows = _open_rows(segment, join, columns)
    if keeps:
        rows = segment.execution.materialize(rows)
    lefts = _with_partner(rows, join).where(IS_LEFT)
    if join.revises:
        answered = _in_revisions(segment.execution.materialize(lefts), rows, segment, join)
    else:
        pairs = _late_pairs(lefts, rows, join) if keeps else None
        answered = _once(lefts if pairs is None else _with_better(lefts, pairs), segment, join)
    return _shaped(answered if join.how == "left" else answered.where(f"{_PARTNER} IS NOT NULL"), columns)


def _open_rows(segment: WindowSegment, join: JoinSpec, columns: JoinColumns) -> DataFrame:
    """Return the left events that an answer may be due to, and the right events that may be partners."""
    events = with_both_ends(with_side(segment.fresh_and_known, join), segment.adjusted)
    passed_us = join.looks_ahead_us if join.revises else join.closes_after_us
    is_due = "true" if segment.flushed else f"coalesce({c.shifted(c.T_FINAL, passed_us)} < {c.W_END}, false)"
    right = ", ".join(f"{quoted(columns.right_prefix + name)} AS {quoted(shown)}" for name, shown in columns.right)
    event = f"struct({c.SEQ} AS seq, {c.T_FINAL} AS t, {c.W_BEFORE} AS w, {FRESH} AS fresh, struct({right}) AS event)"
    open_events = events.where(
        f"NOT {came_too_late(join)} AND IF({IS_LEFT}, {is_due} AND {is_open(join)}, {has_key(join)})"
    ).withColumn(_RIGHT, F.expr(f"IF({IS_LEFT}, NULL, {event})"))
    payload = dict.fromkeys([*columns.shared, *columns.left, *join.on])
    working = (c.TIMELINE, c.SEQ, c.T_FINAL, c.W_BEFORE, c.W_START, c.W_END, FRESH, IS_LEFT, _RIGHT)
    return open_events.selectExpr(*map(quoted, payload), *working)


def _with_partner(rows: DataFrame, join: JoinSpec) -> DataFrame:
    """Add to left events the partner among the right events that were on time."""
    keys, candidate = ", ".join([c.TIMELINE, *map(quoted, join.on)]), f"IF({IS_LATE}, NULL, {_RIGHT})"

    def with_last(events: DataFrame, order: str, into: str) -> DataFrame:
        so_far = f"ORDER BY {order}, {IS_LEFT}, {c.SEQ} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        with_nearest = events.withColumn(into, F.expr(f"last({candidate}, true) OVER (PARTITION BY {keys} {so_far})"))
        is_near = f"abs({c.T_FINAL} - {into}.t) <= {join.within_us}L"
        return with_nearest.withColumn(into, F.expr(f"IF({is_near}, {into}, NULL)"))

    if join.direction == "backward":
        return with_last(rows, c.T_FINAL, _PARTNER)
    if join.direction == "forward":
        return with_last(rows, f"{c.T_FINAL} DESC", _PARTNER)
    both = with_last(with_last(rows, c.T_FINAL, _EARLIER), f"{c.T_FINAL} DESC", _LATER)
    return both.withColumn(_PARTNER, F.expr(_better(_EARLIER, _LATER))).drop(_EARLIER, _LATER)


def _goodness(right: str) -> str:
    """Return SQL that orders right events as partners of the left event of the row: the best is the largest."""
    return f"struct(-abs({right}.t - {c.T_FINAL}) AS near, {right}.t <= {c.T_FINAL} AS before, {right}.seq AS seq)"


def _better(first: str, second: str) -> str:
    """Return SQL of the better partner of two; one that is null is none."""
    return (
        f"CASE WHEN {first} IS NULL THEN {second} WHEN {second} IS NULL THEN {first} "
        f"WHEN {_goodness(first)} >= {_goodness(second)} THEN {first} ELSE {second} END"
    )


def _late_pairs(lefts: DataFrame, rows: DataFrame, join: JoinSpec) -> DataFrame:
    """Return left events with each right event in reach that was out of order and came while they were open."""
    width_us = max(join.within_us, 1)
    first, last = (c.shifted(c.T_FINAL, by_us) for by_us in (-join.looks_ahead_us, join.looks_back_us))
    cells = f"explode(sequence({c.floor_to(first, width_us)}, {c.floor_to(last, width_us)}, {width_us}L)) AS {_CELL}"
    right_keys = [f"{quoted(name)} AS `__tm_on_{place}`" for place, name in enumerate(join.on)]
    late = rows.where(f"NOT {IS_LEFT} AND {IS_LATE}")
    late = late.selectExpr(f"{c.TIMELINE} AS __tm_of", f"{_RIGHT} AS __tm_late", *right_keys, cells)
    with_cell = lefts.drop(_RIGHT).withColumn(_CELL, F.expr(c.floor_to(c.T_FINAL, width_us)))
    same = [f"{c.TIMELINE} = __tm_of", *[f"{quoted(name)} = `__tm_on_{place}`" for place, name in enumerate(join.on)]]
    distance = f"({c.T_FINAL} - __tm_late.t)"
    reach = f"{distance} BETWEEN {-join.looks_ahead_us}L AND {join.looks_back_us}L"
    came = f"__tm_late.w <= {c.shifted(c.T_FINAL, join.closes_after_us)}"
    met = with_cell.alias("l").join(
        late.alias("r"), F.expr(" AND ".join([f"l.{_CELL} = r.{_CELL}", *same, reach, came]))
    )
    return met.selectExpr(
        *[f"l.{quoted(name)}" for name in lefts.columns if name != _RIGHT], f"__tm_late AS {_RIGHT}"
    )


def _with_better(lefts: DataFrame, pairs: DataFrame) -> DataFrame:
    """Return left events with the best of their partner and the ones of some pairs."""
    best = pairs.groupBy(*EVENT).agg(F.expr(f"max_by({_RIGHT}, {_goodness(_RIGHT)}) AS {_LATE_PARTNER}"))
    both = lefts.join(best, [*EVENT], "left")
    return both.withColumn(_PARTNER, F.expr(_better(_PARTNER, _LATE_PARTNER))).drop(_LATE_PARTNER)


def _once(lefts: DataFrame, segment: WindowSegment, join: JoinSpec) -> DataFrame:
    """Return the only answer of each left event that closes in the segment."""
    return with_closing(lefts, segment, join).withColumn(_REVISION, F.lit(0))


def _in_revisions(lefts: DataFrame, rows: DataFrame, segment: WindowSegment, join: JoinSpec) -> DataFrame:
    """Return the answers of left events at the moments of the segment at which they have one."""
    dated = with_moments(lefts.drop(_RIGHT), segment, join)
    due = f"({_RIGHT}.w <= {c.shifted(c.T_FINAL, join.looks_ahead_us)} OR {_RIGHT}.seq < {c.SEQ})"
    pairs = segment.execution.materialize(
        _late_pairs(dated.drop(_PARTNER), rows, join).withColumn(_COUNTS, F.expr(f"NOT {due}"))
    )
    first = _with_better(dated, pairs.where(f"NOT {_COUNTS}"))
    shared = [quoted(name) for name in first.columns if name != _PARTNER]

    def moment(of: DataFrame, *values: str) -> DataFrame:
        named = dict(zip((RANK, _PARTNER, _COUNTS, _IS_NOW, c.WATERMARK), values, strict=True))
        return of.selectExpr(*shared, *[f"{value} AS {name}" for name, value in named.items()])

    due_moments = moment(first, f"{ON_TIME}L", _PARTNER, f"{DUE} = 1", f"{DUE_NOW} = 1", DUE_W)
    late = pairs.where(_COUNTS).withColumn(AFTER_SEQ, F.expr(f"{_RIGHT}.seq"))
    items = late.where(f"{_RIGHT}.fresh").select(c.TIMELINE, AFTER_SEQ).distinct()
    late = late.join(watermarks_after(items, segment.adjusted), [c.TIMELINE, AFTER_SEQ], "left")
    revisions = moment(late, AFTER_SEQ, _RIGHT, "CAST(NULL AS BOOLEAN)", f"{_RIGHT}.fresh", c.WATERMARK)
    nobody = f"IF(false, {_PARTNER}, NULL)"
    last = moment(first.where(f"{CLOSES_NOW} = 1"), f"{FINAL}L", nobody, "true", "true", CLOSE_W)
    each = due_moments.unionByName(revisions).unionByName(last)
    by_rank = (
        f"OVER (PARTITION BY {', '.join(EVENT)} ORDER BY {RANK} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    )
    best = F.expr(f"max_by({_PARTNER}, {_goodness(_PARTNER)}) {by_rank}")
    so_far = each.withColumn(_LATE_PARTNER, best)
    so_far = so_far.where(f"coalesce({_COUNTS}, {_LATE_PARTNER}.seq = {_PARTNER}.seq)").drop(_PARTNER)
    numbered = so_far.withColumnRenamed(_LATE_PARTNER, _PARTNER).withColumns(
        {_REVISION: F.expr(f"row_number() {by_rank} - 1"), CLOSES_NOW: F.expr(f"{RANK} = {FINAL}L")}
    )
    return numbered.where(_IS_NOW)


def _shaped(answered: DataFrame, columns: JoinColumns) -> DataFrame:
    return answered.selectExpr(
        *map(quoted, [*columns.shared, *columns.left]),
        *[f"{_PARTNER}.event.{quoted(name)} AS {quoted(name)}" for _, name in columns.right],
        f"timestamp_micros({c.T_FINAL}) AS {c.TIMESTAMP}",
        f"{c.SEQ} AS {LEFT_SEQ}",
        f"{f'{_PARTNER}.seq' if not columns.right_prefix else 'CAST(NULL AS BIGINT)'} AS {RIGHT_SEQ}",
        f"timestamp_micros({c.WATERMARK}) AS {c.WATERMARK}",
        f"CAST({_REVISION} AS INT) AS _revision",
        f"{CLOSES_NOW} AS _is_final",
        c.TIMELINE,
    )
