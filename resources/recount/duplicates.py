"""Duplicates for the recount of late drops: SQL of its own.

Here: whether those that were refused as duplicates are the right ones. Not here: the rest of it (late_drops.py).
Where the pipeline finds them one after the other, here they are proven: every refused one has an earlier record of
its key near it that was not refused, and no other record has. By induction over the log only one set of records is
so.
"""

from collections.abc import Sequence


def key_of(expressions: Sequence[str]) -> str:
    """SQL of a record's key; null where it has none."""
    if not expressions:
        return "CAST(NULL AS STRING)"
    has_all = " AND ".join(f"({expression}) IS NOT NULL" for expression in expressions)
    values = ", ".join(map(text_of, expressions))
    return f"CASE WHEN {has_all} THEN to_json(array({values})) END"


def text_of(expression: str) -> str:
    """SQL of a value as text; -0.0 is 0.0, also in arrays and structs that hold no text of their own."""
    text = f"CAST(({expression}) AS STRING)"
    has_floats = f"typeof({expression}) RLIKE 'double|float' AND typeof({expression}) NOT RLIKE 'string'"
    return rf"IF({has_floats}, regexp_replace({text}, r'(?<![^\[{{ ])-0\.0(?![^,\]}}])', '0.0'), {text})"


def marked(expressions: Sequence[str], within_us: int) -> str:
    """SQL of `marked`: the records with `duplicate`, was it refused as one, and `mistaken`, should it be otherwise.

    It reads `timed`, and the frames `told` (`_arrival_seq` of those refused) and `first_times` (`key`, `event_us` and
    `_arrival_seq` of earlier records that were not).
    """
    if not expressions:
        return "marked AS (SELECT *, false AS duplicate, false AS mistaken FROM timed)"
    return f"""both AS (
  SELECT timed.*, _arrival_seq IS NOT NULL AS duplicate, IF(untimed, NULL, key) AS own_key, true AS is_own
  FROM timed LEFT JOIN {{told}} ON seq = _arrival_seq
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
