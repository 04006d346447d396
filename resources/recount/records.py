"""Event times and duplicates for the recount of late drops: SQL that shares no code with the pipeline's rules.

Here: the rules in numbers, and the reading of single records. Not here: watermarks (idleness.py, late_drops.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, TimestampNTZType, TimestampType

FIRST_US = -62135596800000000  # the year 0001


@dataclass(frozen=True)
class SourceRules:
    """The time of a source; lengths in microseconds, `splits` are the splits known before they have an event.

    `timestamp_by` is SQL that never fails: null where the spec's expression fails. `waited_us` is how long it had
    waited for others before the range. `waits_since_us` is the clock from which on it waits throughout the range and
    so has no record there; None if it does not wait. `waits_of_splits` holds both for its splits that wait, or have
    waited, alone.
    """

    name: str
    timestamp_by: str | None
    time_zone: str
    out_of_orderness_us: int
    idle_timeout_us: int | None
    splits: tuple[str, ...]
    waited_us: int
    waits_since_us: int | None
    waits_of_splits: Mapping[str, tuple[int, int | None]]


@dataclass(frozen=True)
class EndsOfWindow:
    """The times at which windows close; one of the last three is set.

    Attributes:
        allowed_lateness_us: Time after the ends of windows.
        inside_us: 1 where an event on the end is inside.
        delay_us: How far after its end and lateness the clock closes a window: one unit if the end is inside.
        grid: Offset, size, how far apart starts are and how far apart ends are, microseconds.
        calendar: `day` or `month`, and the time zone.
        after_event_us: Windows end this long after an event, and are not on a grid.
    """

    allowed_lateness_us: int
    inside_us: int = 0
    delay_us: int = 0
    grid: tuple[int, int, int, int] | None = None
    calendar: tuple[str, str] | None = None
    after_event_us: int | None = None


@dataclass(frozen=True)
class RecountRules:
    """The numbers that decide, all in microseconds; policies are 'drop', 'adjust', 'keep' or None.

    `over` and `deduplicate_by` are SQL that never fails: null where the spec's expressions fail. `idle` is
    'exclude_split', 'window_close' or None; `windows` are the windows whose ends window_close uses. The `start_`
    fields are the clock before the range and the clock of the last record before its period of emission. The last two
    describe waits of any source, as SourceRules does for one.
    """

    sources: tuple[SourceRules, ...]
    uses_splits: bool
    over: tuple[str, ...]
    deduplicate_by: tuple[str, ...]
    within_us: int
    emit_every_us: int | None
    unit_us: int
    out_of_order: str
    early_us: int | None
    early_policy: str | None
    late_us: int | None
    late_policy: str | None
    clock_tolerance_us: int | None
    idle: str | None
    idle_timeout_us: int | None
    windows: tuple[EndsOfWindow, ...]
    first_clock_us: int | None
    start_clock_us: int | None
    start_ended_us: int | None
    waits_since_us: int | None
    waited_us: int

    @property
    def publishes_silences(self) -> bool:
        """Return whether periods of emission publish watermarks that the clock sets."""
        moves = self.idle is not None or self.clock_tolerance_us is not None
        return moves and self.emit_every_us is not None


def by_source(values: Mapping[str, object], source: str = "source") -> str:
    """Return SQL of a text or number that depends on the source."""
    if len(set(values.values())) == 1:
        return literal(next(iter(values.values())))
    cases = " ".join(f"WHEN '{name}' THEN {literal(value)}" for name, value in values.items())
    return f"CASE {source} {cases} END"


def literal(value: object) -> str:
    """Return SQL of a number or null; a text is SQL already."""
    if value is None:
        return "CAST(NULL AS BIGINT)"
    return f"{value}L" if isinstance(value, int) else str(value)


def text_literal(text: str) -> str:
    """Return SQL of a text, for a query whose frames are named in braces."""
    for sign, escaped in (("\\", "\\\\"), ("'", "\\'"), ("{", "{{"), ("}", "}}")):
        text = text.replace(sign, escaped)
    return f"'{text}'"


def tolerance_of(rules: RecountRules, source: str = "source") -> str:
    """Return SQL of the out-of-orderness of an event's source."""
    return by_source({one.name: one.out_of_orderness_us for one in rules.sources}, source)


def event_us(log: DataFrame, sources: tuple[SourceRules, ...]) -> str:
    """Return SQL of the event time in microseconds, null if there is none."""
    return by_source({s.name: _event_us(log, s.timestamp_by, s.time_zone) for s in sources}, "_source")


def _event_us(log: DataFrame, timestamp_by: str | None, time_zone: str) -> str:
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


def key_of(expressions: Sequence[str]) -> str:
    """Return SQL of a record's key; null if it has none."""
    if not expressions:
        return "CAST(NULL AS STRING)"
    has_all = " AND ".join(f"({expression}) IS NOT NULL" for expression in expressions)
    values = ", ".join(map(text_of, expressions))
    return f"CASE WHEN {has_all} THEN to_json(array({values})) END"


def text_of(expression: str) -> str:
    """Return SQL of a value as text; -0.0 is 0.0, also in arrays and structs that hold no text of their own."""
    text = f"CAST(({expression}) AS STRING)"
    has_floats = f"typeof({expression}) RLIKE 'double|float' AND typeof({expression}) NOT RLIKE 'string'"
    return rf"IF({has_floats}, regexp_replace({text}, r'(?<![^\[{{ ])-0\.0(?![^,\]}}])', '0.0'), {text})"


def marked(expressions: Sequence[str], within_us: int) -> str:
    """Return SQL of `marked`: records with `duplicate` (refused as one) and `mistaken` (wrongly refused or not).

    It reads `timed`, and the frames `told` (`_arrival_seq` of refused records) and `first_times` (`key`, `event_us`
    and `_arrival_seq` of earlier records that were not refused).
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
