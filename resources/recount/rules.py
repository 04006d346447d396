"""The rules of the recount in numbers, and the clocks of the log that they hold.

Here: only values. Not here: where they come from (assets/recount/records.py), what is made of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.resources.recount.ends import NONE, EndsOfWindow, Numbers


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
    def follows_clock(self) -> bool:
        """Return whether the clock of a record decides what it meets."""
        return any(us is not None for us in (self.idle, self.clock_tolerance_us, self.emit_every_us))


RECORD_OUTCOMES = ("untimed", "duplicate", "mistaken", "early", "late_arrival")
"""The outcomes of a record by itself, or by other records of its key, before rule 3."""


def rules_after(rows: pa.Table, rules: RecountRules) -> RecountRules:
    """Return the rules with the clocks of the log after some records, which periods of emission ask for."""
    if rules.emit_every_us is None or not len(rows) or (clock_us := pc.max(rows["clock"]).as_py()) is None:
        return rules
    period_us = clock_us // rules.emit_every_us * rules.emit_every_us
    clocks = ints(rows["clock"])
    earlier = clocks[(clocks != NONE) & (clocks < period_us)]
    if len(earlier):
        ended_us: int | None = int(earlier.max())
    else:  # the records lie in one period, which may have begun before them
        begins_it = rules.start_clock_us is None or rules.start_clock_us < period_us
        ended_us = rules.start_clock_us if begins_it else rules.start_ended_us
    return replace(rules, start_clock_us=clock_us, start_ended_us=ended_us)


def ints(column: pa.ChunkedArray) -> Numbers:
    """Return a column of numbers, with NONE for null."""
    return np.array(pc.fill_null(column, NONE).to_numpy(), np.int64)
