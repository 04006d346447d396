"""An independent recount of late drops: plain SQL over the arrival log, without code of the pipeline's rules.

Here: the query of late drops. Not here: its parameters, event times and duplicates (records.py), watermarks that
depend on splits or silences (idleness.py), and any code of `timeops` (an import contract forbids it): its mistakes
must not be repeated here.
"""

from collections.abc import Callable, Mapping

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.resources.recount.idleness import before_and_after, by_clock, period_of, watched_with_watchers
from tidemark.resources.recount.records import (
    FIRST_US,
    RecountRules,
    event_us,
    key_of,
    marked,
    text_of,
    tolerance_of,
)

_BLOCK_ROWS = 64
_EARLIER = "ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_EARLIER_BLOCKS = "ORDER BY block ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_OF_BLOCKS = ("line", "block", "top", "carried")  # all else that is known of a block are counts


def recount(
    log: DataFrame,
    rules: RecountRules,
    timelines: DataFrame,
    *,
    compute: Callable[[DataFrame], DataFrame],
    told: DataFrame | None = None,
    first_times: DataFrame | None = None,
    are_few: bool = False,
) -> dict[str, int]:
    """Count early, late and out-of-order drops of a range of the log, and duplicates.

    Args:
        log: The range of `raw_events`.
        rules: The spec's numbers.
        timelines: `_timeline`, and before the first record of the range `watermark` (as seen last), `computed` (as
            the rules set it) and `clock`, in microseconds; `last_clock`, `max_close` and `splits` if a rule needs
            them.
        compute: Computes a frame that a query reads several times, and returns the same rows.
        told: With `deduplicate_by` the `_arrival_seq` of records that were refused as duplicates.
        first_times: With it `key`, `event_us` and `_arrival_seq` of earlier records that were not refused, as far as
            they are near the records of the range.
        are_few: Whether all records are ordered, rather than only records that may be late; the counts are the same.

    Returns:
        Numbers by name: `records`, `untimed` (no arrival, malformed, no or bad event time), `duplicate`, `mistaken`
        (records that are duplicates and were not refused as such, or the other way round), `early`, `late_arrival`,
        `out_of_order` (dropped), `below` (met by rule 3 under any policy).
    """
    times = log.select(
        F.col("_arrival_seq").alias("seq"),
        F.unix_micros("_arrival_time").alias("a"),
        F.unix_micros("_clock").alias("clock_now"),
        F.col("_malformed").isNotNull().alias("malformed"),
        F.col("_source").alias("source"),
        F.col("_split").alias("part"),
        F.expr(event_us(log, rules.sources)).alias("e"),
        F.expr(_timeline(rules)).alias("line"),
        F.expr(key_of(rules.deduplicate_by)).alias("key"),
    )
    frames = {"log": times, "timelines": timelines}
    if told is not None and first_times is not None:
        frames |= {"told": told, "first_times": first_times}
    follows_clock = rules.emit_every_us is not None or rules.uses_splits or rules.idle is not None
    if follows_clock:
        # Spark plans a named part of a query anew wherever it is used: the records would be, a dozen times.
        records = compute(_query(f"{_watched(rules)} SELECT * FROM {_first(rules)}", frames))
        found = _one_row(
            f"WITH {_first(rules)} AS (SELECT * FROM {{records}}), {_below(rules)}, {_with_outcomes(rules)}",
            {**frames, "records": records},
        )
    elif are_few or rules.over:  # many timelines share the work among the cores
        found = _one_row(f"{_watched(rules)}, {_in_order(rules)}", frames)
    else:
        found = _by_blocks(rules, frames)
    return found | {"out_of_order": found["below"] if rules.out_of_order == "drop" else 0}


def _query(text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    return frames["log"].sparkSession.sql(text, None, **frames)


def _one_row(text: str, frames: Mapping[str, DataFrame]) -> dict[str, int]:
    return _query(text, frames).collect()[0].asDict()


def _first(rules: RecountRules) -> str:
    """Return the name of the records in the text of `_watched`."""
    return "events" if rules.publishes_silences else "watched"


def _watched(rules: RecountRules) -> str:
    """Return SQL that begins a query: `judged` records, and `watched`, in which `t` is null unless it moves W."""
    unit = rules.unit_us
    early, late = _beyond("e - a", rules.early_us), _beyond("a - e", rules.late_us)
    return f"""
WITH timed AS (
  SELECT *, malformed OR a IS NULL OR e IS NULL OR e < {FIRST_US} OR e > 253402300799999999 AS untimed
  FROM {{log}}
), {marked(rules.deduplicate_by, rules.within_us)}, judged AS (
  SELECT line, seq, source, part, clock_now, untimed, duplicate, mistaken,
    NOT malformed AND a IS NOT NULL AS active,
    NOT untimed AND NOT duplicate AND {early} AS is_early,
    NOT untimed AND NOT duplicate AND NOT ({early}) AND {late} AS is_late,
    CASE WHEN {early} THEN a + {rules.early_us or 0}L WHEN {late} THEN a - {rules.late_us or 0}L ELSE e END AS chosen
  FROM marked
), {_first(rules)} AS (
  SELECT *, clock_now AS own_clock, IF(untimed OR duplicate OR is_early AND {_is(rules.early_policy)}
    OR is_late AND {_is(rules.late_policy)}, NULL, chosen - pmod(chosen, {unit}L)) AS t
  FROM judged
)"""


def _outcomes(rules: RecountRules) -> str:
    return f"""count(*) AS records,
    count_if(untimed) AS untimed,
    count_if(duplicate <> mistaken) AS duplicate,
    count_if(mistaken) AS mistaken,
    count_if(is_early AND {_is(rules.early_policy)}) AS early,
    count_if(is_late AND {_is(rules.late_policy)}) AS late_arrival"""


def _with_outcomes(rules: RecountRules) -> str:
    """Return SQL that ends a query with `below`: its number beside those of the outcomes."""
    return f"""outcomes AS (
  SELECT {_outcomes(rules)} FROM {_first(rules)}
)
SELECT outcomes.*, n AS below FROM outcomes CROSS JOIN below"""


def _in_order(rules: RecountRules) -> str:
    """Return SQL that ends a query: outcomes, and `below` by a running maximum over all records of a timeline."""
    return f"""seen AS (
  SELECT *, {tolerance_of(rules)} AS tolerance, max(t) OVER (PARTITION BY line {_EARLIER}) AS largest FROM watched
)
SELECT {_outcomes(rules)}, count_if({_is_below("largest", "computed", rules)}) AS below
FROM seen LEFT JOIN {{timelines}} ON line = _timeline"""


def _by_blocks(rules: RecountRules, frames: Mapping[str, DataFrame]) -> dict[str, int]:
    """Count many records of one timeline in two scans: maxima and outcomes of blocks, then the doubtful events.

    Nearly every event is on time whatever the order in its block was. The others need an order, together with the
    events above all earlier blocks: only these can put an event of their block below the watermark.
    """
    watched = _watched(rules)
    by_block = f"""{watched}
SELECT *, max(top) OVER (PARTITION BY line {_EARLIER_BLOCKS}) AS carried FROM (
  SELECT line, seq div {_BLOCK_ROWS} AS block, max(t) AS top, {_outcomes(rules)} FROM watched GROUP BY line, block
)"""
    blocks = _query(by_block, frames).toArrow()
    found = {name: pc.sum(blocks[name]).as_py() or 0 for name in blocks.column_names if name not in _OF_BLOCKS}
    if not found["records"]:
        return found | {"below": 0}
    told = frames["log"].sparkSession.createDataFrame(blocks.select(["block", "top", "carried"]).combine_chunks())
    doubtful = f"""{watched}, moving AS (
  SELECT *, seq div {_BLOCK_ROWS} AS block, {tolerance_of(rules)} AS tolerance FROM watched WHERE t IS NOT NULL
), compared AS (
  SELECT /*+ BROADCAST(blocks) */ moving.*, computed, carried, coalesce(t > carried, true) AS rises,
    coalesce({_is_below("greatest(carried, top)", "computed", rules)}, false) AS asked
  FROM moving JOIN {{blocks}} AS blocks USING (block) LEFT JOIN {{timelines}} ON line = _timeline
), seen AS (
  SELECT *, greatest(carried, max(IF(rises, t, NULL)) OVER (PARTITION BY block {_EARLIER})) AS largest
  FROM compared WHERE asked OR rises
)
SELECT count_if(asked AND {_is_below("largest", "computed", rules)}) AS below FROM seen"""
    return found | _one_row(doubtful, {**frames, "blocks": told})


def _below(rules: RecountRules) -> str:
    """Return SQL of `below`: the number of events that were below the watermark that they saw."""
    if rules.emit_every_us is not None and rules.publishes_silences:
        watched = watched_with_watchers(rules, rules.emit_every_us)
        return f"{watched}, {before_and_after(rules)}, {_below_asked(rules)}"
    if rules.uses_splits or rules.idle is not None:
        return f"{before_and_after(rules)}, {_below_asked(rules)}"
    assert rules.emit_every_us is not None  # a period sees all earlier ones
    last = period_of("clock", rules.emit_every_us)
    before = f"CASE WHEN block > {last} THEN greatest(watermark, computed) ELSE watermark END"
    return f"""moving AS (
  SELECT *, {period_of("clock_now", rules.emit_every_us)} AS block, {tolerance_of(rules)} AS tolerance
  FROM watched WHERE t IS NOT NULL
), periods AS (
  SELECT line, block, max(max(t)) OVER (PARTITION BY line {_EARLIER_BLOCKS}) AS carried
  FROM moving GROUP BY line, block
), below AS (
  SELECT count_if({_is_below("carried", before, rules)}) AS n
  FROM moving JOIN periods USING (line, block) LEFT JOIN {{timelines}} ON line = _timeline
)"""


def _is_below(largest: str, before: str, rules: RecountRules) -> str:
    """Return SQL: is an event below the watermark, by the largest t that it sees and the one before the range?"""
    by_events = f"greatest({largest} - tolerance, IF({largest} IS NULL, NULL, {FIRST_US}L))"
    return f"t < greatest({before}, {by_events}, {by_clock(rules)})"


def _below_asked(rules: RecountRules) -> str:
    if rules.emit_every_us is None:
        seen = f"greatest(computed, max(greatest(before, after)) OVER (PARTITION BY line {_EARLIER}), before)"
    else:
        own = period_of("clock_now", rules.emit_every_us)
        earlier = f"PARTITION BY line ORDER BY {own} RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
        waiting = f"IF({own} > {period_of('clock', rules.emit_every_us)}, computed, NULL)"
        seen = f"greatest(watermark, {waiting}, max(greatest(before, after)) OVER ({earlier}))"
    return f"""below AS (
  SELECT count_if(t < seen) AS n
  FROM (SELECT t, {seen} AS seen FROM asked LEFT JOIN {{timelines}} ON line = _timeline)
)"""


def _timeline(rules: RecountRules) -> str:
    values = ", ".join(map(text_of, rules.over))
    return f"to_json(array({values}))" if values else "'[]'"


def _beyond(difference: str, tolerance_us: int | None) -> str:
    return "false" if tolerance_us is None else f"coalesce({difference} > {tolerance_us}L, false)"


def _is(policy: str | None) -> str:
    return "true" if policy == "drop" else "false"
