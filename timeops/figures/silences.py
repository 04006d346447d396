"""Silences of a log: which devices, or sources, have sent nothing for longer than they ever did, by its clock.

Here: the rule, on values. Not here: where it is stored who came when, and the sentence (assets/alarms/silences.py).
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

VALUE, CLOCK = "value", "clock_us"
SEEN = pa.schema([(VALUE, pa.string()), (CLOCK, pa.int64())])
"""Who came, and when by the clock of the log, in microseconds: a row for each batch in which a value came."""

LEAST_TIMES = 5
"""A value that came less often has no habit to compare with."""
MORE_THAN = 2
"""A silence counts if it is longer than so many times the longest gap."""


@dataclass(frozen=True)
class Habit:
    """How regularly a value came; lengths and instants in microseconds.

    Attributes:
        value: The value.
        longest_us: The longest gap between two of its batches.
        last_us: The clock when it came last.
    """

    value: str
    longest_us: int
    last_us: int

    def silence_us(self, clock_us: int) -> int:
        """Return for how long it has been silent."""
        return clock_us - self.last_us

    def is_silent(self, clock_us: int) -> bool:
        """Return whether it has been silent for much longer than it ever was."""
        return self.silence_us(clock_us) > MORE_THAN * self.longest_us


def habits_of(arrivals: pa.Table) -> list[Habit]:
    """Return the habits of the values that came at LEAST_TIMES moments or more; the rows are SEEN, in any order."""
    coded = arrivals[VALUE].combine_chunks().dictionary_encode()
    pairs = np.unique(
        np.column_stack([coded.indices.to_numpy(), arrivals[CLOCK].to_numpy()]).astype(np.int64), axis=0
    )
    _, first, times = np.unique(pairs[:, 0], return_index=True, return_counts=True)
    gaps = np.diff(pairs[:, 1], append=0)
    return [
        Habit(
            coded.dictionary[int(pairs[at, 0])].as_py(), int(gaps[at : at + n - 1].max()), int(pairs[at + n - 1, 1])
        )
        for at, n in zip(first.tolist(), times.tolist(), strict=True)
        if n >= LEAST_TIMES
    ]


def silent_of(habits: list[Habit], clock_us: int) -> list[Habit]:
    """Return who is silent, the longest first; no one if more than half are: then it is the input that pauses."""
    silent = sorted(
        (habit for habit in habits if habit.is_silent(clock_us)), key=lambda habit: (habit.last_us, habit.value)
    )
    return [] if 2 * len(silent) > len(habits) else silent
