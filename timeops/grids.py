"""Windows on a fixed grid: which of them hold an instant.

Here: tumbling and hopping windows `[offset + k * hop, offset + k * hop + size)` (M, F). Not here: when they close
and what they hold (closing.py, windows.py). All values are BIGINT microseconds; windows are named by their start.
"""

from pyspark.sql import Column
from pyspark.sql import functions as F

from timeops.columns import floor_to
from timeops.spec import WindowSpec


def starts_of(timestamp_us: Column, window: WindowSpec) -> Column:
    """ARRAY<BIGINT>: starts of the windows that hold an instant, earliest first; empty in a gap."""
    last = last_start(timestamp_us, window)
    overlap = -(-window.size_us // window.hop_us)
    if overlap == 1:
        nothing = F.array().cast("array<bigint>")
        return F.when(timestamp_us < last + F.lit(window.size_us), F.array(last)).otherwise(nothing)
    backwards = F.sequence(F.lit(overlap - 1), F.lit(0), F.lit(-1))
    starts = F.transform(backwards, lambda i: last - i.cast("bigint") * F.lit(window.hop_us))
    return F.filter(starts, lambda start: timestamp_us < start + F.lit(window.size_us))


def last_start(timestamp_us: Column, window: WindowSpec) -> Column:
    """Start of the last window of the grid that begins at or before an instant (it may end before it, in a gap)."""
    return floor_to(timestamp_us, window.hop_us, window.offset_us)


def close_time(start_us: Column, window: WindowSpec) -> Column:
    """The watermark from which a window is closed: its end and the allowed lateness (M)."""
    return start_us + F.lit(window.size_us + window.allowed_lateness_us)


def last_closed(watermark_us: Column, window: WindowSpec) -> Column:
    """Start of the last window of the grid that is closed at a watermark."""
    reach = watermark_us - F.lit(window.size_us + window.allowed_lateness_us)
    return floor_to(reach, window.hop_us, window.offset_us)


def last_close_time(timestamp_us: Column, window: WindowSpec) -> Column:
    """Close time of the last window that holds an instant; null in a gap."""
    last = last_start(timestamp_us, window)
    return F.when(timestamp_us < last + F.lit(window.size_us), close_time(last, window))


def last_close_at(limit_us: Column, window: WindowSpec) -> Column:
    """The latest close time on the grid that is at most a limit."""
    return close_time(last_closed(limit_us, window), window)


def next_close(limit_us: Column, window: WindowSpec) -> Column:
    """The first close time on the grid that is at least a limit."""
    return last_close_at(limit_us + F.lit(window.hop_us - 1), window)
