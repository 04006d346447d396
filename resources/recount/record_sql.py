"""Records by themselves, in SQL: event time, timeline, key, early, late, duplicate.

Here: one query over a range of the log. Not here: rule 3, which needs the watermark (resources/recount/loop.py).
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, TimestampNTZType, TimestampType

from tidemark.resources.recount.ends import FIRST_US, LAST_US
from tidemark.resources.recount.rules import RECORD_OUTCOMES, RecountRules, SourceRules


def times(log: DataFrame, rules: RecountRules) -> DataFrame:
    """Return what the query reads of the records."""
    return log.select(
        F.col("_arrival_seq").alias("seq"),
        F.unix_micros("_arrival_time").alias("a"),
        F.unix_micros("_clock").alias("clock"),
        F.col("_malformed").isNotNull().alias("malformed"),
        F.col("_source").alias("source"),
        F.col("_split").alias("part"),
        F.expr(_event_us(log, rules.sources)).alias("e"),
        F.expr(_timeline(rules)).alias("line"),
        F.expr(_key_of(rules.deduplicate_by)).alias("key"),
        *[F.expr(sql).alias(name) for name, sql in gaps_of_records(rules).items()],
    )


def gaps_of_records(rules: RecountRules) -> dict[str, str]:
    """Return SQL of the gaps that records say themselves, BIGINT microseconds, by the names of the columns."""
    gaps = dict[str, str]()
    for place, window in enumerate(rules.windows):
        if window.own_gap is not None:
            us = f"unix_micros(TIMESTAMP '1970-01-01 00:00:00' + {window.own_gap})"
            is_gap = f"us > 0L AND us <= {window.after_event_us}L"
            # `transform` names the value, which Spark would otherwise compute at each mention.
            gaps[f"gap{place}"] = f"get(transform(array({us}), us -> IF({is_gap}, us, NULL)), 0)"
    return gaps


def _outcomes(rules: RecountRules) -> dict[str, str]:
    """Return SQL of what a record is, by the names in RECORD_OUTCOMES."""
    return {
        "untimed": "untimed",
        "duplicate": "duplicate <> mistaken",
        "mistaken": "mistaken",
        "early": f"is_early AND {_is(rules.early_policy)}",
        "late_arrival": f"is_late AND {_is(rules.late_policy)}",
    }


def records_sql(rules: RecountRules) -> str:
    """Return SQL of the records: `seq`, `flags` of their outcomes, `t`, which is null unless rule 3 judges it.

    A record that is `active` belongs to a timeline; one that is early and kept has a `t` and no `moves`, as it moves
    no W. What only some rules ask for is there if they do.
    """
    early, late = _beyond("e - a", rules.early_us), _beyond("a - e", rules.late_us)
    # They come as one number: of many rows each column takes seconds.
    sql_of = _outcomes(rules)
    flags = " | ".join(f"IF({sql_of[outcome]}, {1 << place}, 0)" for place, outcome in enumerate(RECORD_OUTCOMES))
    columns = ["seq", f"CAST({flags} AS TINYINT) AS flags", "t"]
    early_t = "e" if rules.early_policy == "keep" else f"a + {rules.early_us or 0}L"
    columns += ["NOT is_early AS moves"] if rules.early_policy == "keep" else []
    columns += ["clock", "active"] if rules.follows_clock else []
    columns += ["source", "part", "clock", "active"] if rules.uses_splits else []
    columns += ["line", "active"] if rules.over else []
    gaps = [*gaps_of_records(rules)]
    columns += gaps
    gap_columns = "".join(f", {name}" for name in gaps)
    return f"""
WITH timed AS (
  SELECT *, malformed OR a IS NULL OR e IS NULL OR e < {FIRST_US} OR e > {LAST_US} AS untimed
  FROM {{log}}
), {_marked(rules.deduplicate_by, rules.within_us)}, judged AS (
  SELECT line, seq, source, part, clock{gap_columns}, untimed, duplicate, mistaken,
    NOT malformed AND a IS NOT NULL AS active,
    NOT untimed AND NOT duplicate AND {early} AS is_early,
    NOT untimed AND NOT duplicate AND NOT ({early}) AND {late} AS is_late,
    CASE WHEN {early} THEN {early_t} WHEN {late} THEN a - {rules.late_us or 0}L ELSE e END AS chosen
  FROM marked
), records AS (
  SELECT *, IF(untimed OR duplicate OR is_early AND {_is(rules.early_policy)}
    OR is_late AND {_is(rules.late_policy)}, NULL, chosen - pmod(chosen, {rules.unit_us}L)) AS t
  FROM judged
)
SELECT {", ".join(dict.fromkeys(columns))} FROM records"""


def _timeline(rules: RecountRules) -> str:
    values = ", ".join(map(_text_of, rules.over))
    return f"to_json(array({values}))" if values else "'[]'"


def _beyond(difference: str, tolerance_us: int | None) -> str:
    return "false" if tolerance_us is None else f"coalesce({difference} > {tolerance_us}L, false)"


def _is(policy: str | None) -> str:
    return "true" if policy == "drop" else "false"


def _by_source(values: Mapping[str, object], source: str = "source") -> str:
    """Return SQL of a text or number that depends on the source."""
    if len(set(values.values())) == 1:
        return _literal(next(iter(values.values())))
    cases = " ".join(f"WHEN '{name}' THEN {_literal(value)}" for name, value in values.items())
    return f"CASE {source} {cases} END"


def _literal(value: object) -> str:
    """Return SQL of a number or null; a text is SQL already."""
    if value is None:
        return "CAST(NULL AS BIGINT)"
    return f"{value}L" if isinstance(value, int) else str(value)


def _event_us(log: DataFrame, sources: tuple[SourceRules, ...]) -> str:
    """Return SQL of the event time in microseconds, null if there is none."""
    return _by_source({s.name: _event_us_of(log, s.timestamp_by, s.time_zone) for s in sources}, "_source")


def _event_us_of(log: DataFrame, timestamp_by: str | None, time_zone: str) -> str:
    if timestamp_by is None:
        return "unix_micros(_arrival_time)"
    by = f"({timestamp_by})"
    kind = log.select(F.expr(by).alias("e")).schema["e"].dataType
    utc = f"unix_micros(to_utc_timestamp(%s, '{time_zone}'))"
    if isinstance(kind, StringType):
        # A written offset comes after the 'T' or blank: a minus sign before it belongs to the date.
        shape = r"'^\\d{4}-\\d\\d-\\d\\d([Tt ]\\d\\d:\\d\\d(:\\d\\d([.,]\\d+)?)?( ?([Zz]|[+-]\\d\\d(:?\\d\\d)?))?)?$'"
        full = "regexp_replace(replace(upper(text), ',', '.'), '^(.{16})( ?[Z+-].*)?$', '$1:00$2')"
        cast = f"try_cast({full} AS TIMESTAMP)"
        offset = "substr(upper(text), 11) rlike '[Z+-]'"
        read = f"CASE WHEN {offset} THEN unix_micros({cast}) ELSE {utc % cast} END"
        return f"get(transform(array({by}), text -> CASE WHEN text rlike {shape} THEN {read} END), 0)"
    tried = f"try_add(CAST({by} AS TIMESTAMP), INTERVAL '0' SECOND)"
    if isinstance(kind, TimestampNTZType | DateType):
        return utc % tried
    if isinstance(kind, TimestampType):
        return f"unix_micros({tried})"
    return "CAST(NULL AS BIGINT)"


def _key_of(expressions: Sequence[str]) -> str:
    """Return SQL of a record's key; null if it has none."""
    if not expressions:
        return "CAST(NULL AS STRING)"
    has_all = " AND ".join(f"({expression}) IS NOT NULL" for expression in expressions)
    values = ", ".join(map(_text_of, expressions))
    return f"CASE WHEN {has_all} THEN to_json(array({values})) END"


def _text_of(expression: str) -> str:
    """Return SQL of a value as text; -0.0 is 0.0, also in arrays and structs that hold no text of their own."""
    text = f"CAST(({expression}) AS STRING)"
    has_floats = f"typeof({expression}) RLIKE 'double|float' AND typeof({expression}) NOT RLIKE 'string'"
    return rf"IF({has_floats}, regexp_replace({text}, r'(?<![^\[{{ ])-0\.0(?![^,\]}}])', '0.0'), {text})"


def _marked(expressions: Sequence[str], within_us: int) -> str:
    """Return SQL of `marked`: records with `duplicate` (refused as one) and `mistaken` (wrongly refused or not).

    It reads `timed`, and the frames `refused` (`_arrival_seq` of refused records) and `first_times` (`key`,
    `event_us` and `_arrival_seq` of earlier records that were not refused).
    """
    if not expressions:
        return "marked AS (SELECT *, false AS duplicate, false AS mistaken FROM timed)"
    # Records without a key are spread by their number: as one partition they would be one task.
    return f"""both AS (
  SELECT timed.*, _arrival_seq IS NOT NULL AS duplicate, IF(untimed, NULL, key) AS own_key, true AS is_own
  FROM timed LEFT JOIN {{refused}} ON seq = _arrival_seq
), near AS (
  SELECT duplicate, is_own, seq, own_key, e FROM both
  UNION ALL SELECT false, false, _arrival_seq, key, event_us FROM {{first_times}}
), found AS (
  SELECT seq AS found_seq, is_own, own_key IS NOT NULL AND coalesce(seq > min(IF(duplicate, NULL, seq)) OVER (
    PARTITION BY own_key, IF(own_key IS NULL, seq, NULL) ORDER BY e
    RANGE BETWEEN {within_us}L PRECEDING AND {within_us}L FOLLOWING), false) AS is_one
  FROM near
), marked AS (
  SELECT both.*, duplicate <> is_one AS mistaken FROM both JOIN found ON seq = found_seq AND found.is_own
)"""
