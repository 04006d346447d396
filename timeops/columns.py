"""Names and bounds that every stage shares: product columns, working columns, the representable time range.

Here: constants and the smallest conversions between instants and microseconds. Not here: any rule of time.

All who know a name import this, also a look without work, which must not wait for PySpark.
"""
# ruff: noqa: PLC0415 - the reason is above

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tidemark.timeops.values.utc import FIRST_US, LAST_US

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns of the arrival log in addition to the payload.
SEQ = "_arrival_seq"
ARRIVAL = "_arrival_time"
CLOCK = "_clock"
SOURCE = "_source"
SPLIT = "_split"
POSITION = "_position"
FILE = "_file"
MALFORMED = "_malformed"
BATCH = "_batch_id"
LOG_COLUMNS = (SEQ, ARRIVAL, CLOCK, SOURCE, SPLIT, POSITION, FILE, MALFORMED, BATCH)

# Columns of an adjusted event.
TIMESTAMP = "_timestamp"
EVENT_TIME = "_event_time"
TIMELINE = "_timeline"
RELEASE_SEQ = "_release_seq"
ADJUSTED_BY = "_adjusted_by"
WATERMARK = "_watermark"

# Working columns of the stages: microseconds since the epoch (BIGINT) unless said otherwise. The names of all begin
# with tokens.WORKING.
T = "__tm_t"  # event time cut to the unit and adjusted by rules 1 and 2; null when the record has none
T_FINAL = "__tm_timestamp"  # what becomes _timestamp
W_BEFORE = "__tm_w_before"  # the watermark just before an event that is out of order; else null
W_START = "__tm_w_start"  # BIGINT: the watermark of the row's timeline before the segment; null before its first
W_END = "__tm_w_end"  # BIGINT: the same after it
W_SET_BY = "__tm_w_set_by"  # lowest _arrival_seq after which the watermark had that value
REASON = "__tm_reason"  # STRING: why rules 0 to 2 or ingestion refused the record
LATENESS = "__tm_lateness_us"
# BOOLEAN: the record arrived ahead of the machine's clock, so its arrival is the moment of its ingestion. A frame has
# the column where this is so of some of its records.
ARRIVED_AHEAD = "__tm_arrived_ahead"

MIN_US, MAX_US = FIRST_US, LAST_US

ONE_TIMELINE = "[]"


def to_us(instant: str) -> "Column":
    """Return the microseconds since the epoch; `instant` is SQL of a TIMESTAMP."""
    from pyspark.sql import functions as F

    return F.expr(f"unix_micros({instant})")


def to_instant(us: str) -> "Column":
    """Return the TIMESTAMP; `us` is SQL of the microseconds since the epoch."""
    from pyspark.sql import functions as F

    return F.expr(f"timestamp_micros({us})")


def with_sql(rows: "DataFrame", columns: Mapping[str, str]) -> "DataFrame":
    """Add columns to rows, or replace them; each name with its SQL."""
    from pyspark.sql import functions as F

    added = {name: F.expr(value) for name, value in columns.items()}
    return rows.withColumns(added) if added else rows  # Spark Connect refuses none


def same_in(left: str, right: str, names: Iterable[str]) -> "Column":
    """Return BOOLEAN, never null: two aliased frames of a join have the same in these columns, or both null."""
    from pyspark.sql import functions as F

    return F.expr(" AND ".join(f"{left}.`{name}` <=> {right}.`{name}`" for name in names) or "true")


def named(name: "Column | str", names: Mapping[str, str]) -> "Column":
    """Return a STRING: a name, or the other one that a mapping has for it."""
    from pyspark.sql import functions as F

    value = F.col(name) if isinstance(name, str) else name
    return F.coalesce(*[F.when(value == old, F.lit(new)) for old, new in names.items()], value)


def floor_to(value: str, step_us: int, offset_us: int = 0) -> str:
    """Return SQL of the largest `offset + k * step` at most `value` (microseconds, floor towards minus infinity)."""
    return value if step_us == 1 else f"({value} - pmod({shifted(value, -offset_us)}, {step_us}L))"


def shifted(instant_us: str, by_us: int) -> str:
    """Return SQL of an instant, moved by some microseconds: later, or earlier where they are below zero."""
    return f"({instant_us} {'-' if by_us < 0 else '+'} {abs(by_us)}L)" if by_us else instant_us
