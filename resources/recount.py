"""An independent recount of late drops: plain SQL over the arrival log, sharing no code with the pipeline's rules.

Here: one query text and its parameters. Not here: anything of `timeops` (an import contract keeps it so): a
mistake there must not be repeated here.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, TimestampNTZType, TimestampType

_BLOCK_ROWS = 4096
_FIRST_US = -62135596800000000  # the year 0001


@dataclass(frozen=True)
class RecountRules:
    """The numbers that decide, all microseconds; policies are 'drop', 'adjust', 'keep' or None."""

    timestamp_by: str | None
    over: tuple[str, ...]
    emit_every_us: int | None
    time_zone: str
    unit_us: int
    out_of_orderness_us: int
    out_of_order: str
    early_us: int | None
    early_policy: str | None
    late_us: int | None
    late_policy: str | None
    clock_tolerance_us: int | None


def recount(log: DataFrame, rules: RecountRules, timelines: DataFrame) -> DataFrame:
    """Counts early, late and out-of-order drops of a range of the log.

    Args:
        log: The range of `raw_events`.
        rules: The spec's numbers.
        timelines: `_timeline`, `watermark` (as seen last), `computed` (as the rules gave it) and `clock`, in
            microseconds, before the first record of the range.

    Returns:
        One row: `records`, `untimed` (no arrival, malformed, no or bad event time), `early`, `late_arrival`,
        `out_of_order` (dropped, BIGINT), `behind` (met by rule 3 under any policy).
    """
    times = log.select(
        F.col("_arrival_seq").alias("seq"),
        F.unix_micros("_arrival_time").alias("a"),
        F.unix_micros("_clock").alias("clock_now"),
        F.col("_malformed").isNotNull().alias("malformed"),
        F.expr(_event_us(log, rules)).alias("e"),
        F.expr(_timeline(rules)).alias("line"),
    )
    return times.sparkSession.sql(_query(rules), log=times, timelines=timelines)


def _query(rules: RecountRules) -> str:
    unit = rules.unit_us
    early, late = _beyond("e - a", rules.early_us), _beyond("a - e", rules.late_us)
    block, own, before = _what_events_see(rules)
    return f"""
WITH timed AS (
  SELECT line, seq, a, e, clock_now,
    malformed OR a IS NULL OR e IS NULL OR e < {_FIRST_US} OR e > 253402300799999999 AS untimed
  FROM {{log}}
), judged AS (
  SELECT line, seq, clock_now, untimed, {block} AS block,
    NOT untimed AND {early} AS is_early,
    NOT untimed AND NOT ({early}) AND {late} AS is_late,
    CASE WHEN {early} THEN a + {rules.early_us or 0}L WHEN {late} THEN a - {rules.late_us or 0}L ELSE e END AS chosen
  FROM timed
), moving AS (
  SELECT *, chosen - pmod(chosen, {unit}L) AS t
  FROM judged
  WHERE NOT untimed AND NOT (is_early AND {_is(rules.early_policy)}) AND NOT (is_late AND {_is(rules.late_policy)})
), blocks AS (
  SELECT line, block,
    max(max(t)) OVER (PARTITION BY line ORDER BY block ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS carried
  FROM moving GROUP BY line, block
), behind AS (
  SELECT count(*) AS n FROM (
    SELECT line, t, clock_now, block, greatest(carried, {own}) AS largest
    FROM moving JOIN blocks USING (line, block)) LEFT JOIN {{timelines}} ON line = _timeline
  WHERE t < greatest({before}, greatest(largest - {rules.out_of_orderness_us}L,
    CASE WHEN largest IS NOT NULL THEN {_FIRST_US}L END), {_by_clock(rules)})
)
SELECT count(*) AS records,
  count_if(untimed) AS untimed,
  count_if(is_early AND {_is(rules.early_policy)}) AS early,
  count_if(is_late AND {_is(rules.late_policy)}) AS late_arrival,
  (SELECT CASE WHEN {_is(rules.out_of_order)} THEN n ELSE 0L END FROM behind) AS out_of_order,
  (SELECT n FROM behind) AS behind
FROM judged
"""


def _what_events_see(rules: RecountRules) -> tuple[str, str, str]:
    """SQL of an event's block, of the largest t in it that the event sees, and of the watermark before the range.

    Every event sees all earlier blocks.
    """
    earlier = "PARTITION BY line, block ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
    if rules.emit_every_us is None:
        # Blocks share the work on few timelines among the cores; many timelines do so themselves.
        block = "0L" if rules.over else f"seq div {_BLOCK_ROWS}"
        return block, f"max(t) OVER ({earlier})", "computed"
    period = f"%s - pmod(%s, {rules.emit_every_us}L)"
    last = period % ("clock", "clock")
    seen = f"CASE WHEN block > {last} THEN greatest(watermark, computed) ELSE watermark END"
    return period % ("clock_now", "clock_now"), "CAST(NULL AS BIGINT)", seen


def _by_clock(rules: RecountRules) -> str:
    """SQL of the watermark that the clock alone gives at an event."""
    if rules.clock_tolerance_us is None:
        return "CAST(NULL AS BIGINT)"
    reached = f"greatest(clock_now - {rules.clock_tolerance_us}L, {_FIRST_US}L)"
    return f"{reached} - pmod({reached}, {rules.unit_us}L)"


def _timeline(rules: RecountRules) -> str:
    """SQL of the name of the event's timeline."""
    values = ", ".join(f"CAST(({expression}) AS STRING)" for expression in rules.over)
    return f"to_json(array({values}))" if values else "'[]'"


def _beyond(difference: str, tolerance_us: int | None) -> str:
    return "false" if tolerance_us is None else f"coalesce({difference} > {tolerance_us}L, false)"


def _is(policy: str | None) -> str:
    return "true" if policy == "drop" else "false"


def _event_us(log: DataFrame, rules: RecountRules) -> str:
    """SQL of the event time in microseconds, null when there is none."""
    if rules.timestamp_by is None:
        return "unix_micros(_arrival_time)"
    by = f"({rules.timestamp_by})"
    kind = log.select(F.expr(by).alias("e")).schema["e"].dataType
    utc = f"unix_micros(to_utc_timestamp(%s, '{rules.time_zone}'))"
    if isinstance(kind, StringType):
        # A written offset stands behind the 'T' or blank: a minus sign before it belongs to the date.
        shape = r"'^\\d{4}-\\d\\d-\\d\\d([Tt ]\\d\\d:\\d\\d(:\\d\\d([.,]\\d+)?)?( ?([Zz]|[+-]\\d\\d(:?\\d\\d)?))?)?$'"
        full = f"regexp_replace(replace(upper({by}), ',', '.'), '^(.{{16}})( ?[Z+-].*)?$', '$1:00$2')"
        cast = f"try_cast({full} AS TIMESTAMP)"
        offset = f"substr(upper({by}), 11) rlike '[Z+-]'"
        return (
            f"CASE WHEN {by} rlike {shape} THEN CASE WHEN {offset} THEN unix_micros({cast}) ELSE {utc % cast} END END"
        )
    tried = f"try_add(CAST({by} AS TIMESTAMP), INTERVAL '0' SECOND)"
    if isinstance(kind, TimestampNTZType | DateType):
        return utc % tried
    if isinstance(kind, TimestampType):
        return f"unix_micros({tried})"
    return "CAST(NULL AS BIGINT)"
