"""Numbers that have to be dense: which are missing, which come twice, in whatever order they are read.

Here: numbers of one sequence, or of many sequences by a key, as runs of numbers that follow one another. A log that
lies in order is one run, however long it is.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
_MOST_RUNS = 200_000
"""Runs that are kept before they are joined where they touch."""
_MOST_NAMED = 1_000


@dataclass
class Sequences:
    """Numbers of sequences, as far as they were read.

    Attributes:
        runs: Key, first number and last number of each run, one row each; and of both ends what `add` was given to
            compare, so that the numbers of a sequence can be asked to follow something else.
    """

    runs: list[Numbers] = field(default_factory=list)
    _count: int = 0

    def add(self, keys: Numbers, numbers: Numbers, ranks: tuple[Numbers, Numbers]) -> None:
        """Add numbers of some sequences, in any order.

        Args:
            keys: The sequence of each.
            numbers: The numbers.
            ranks: Two columns that have to grow along a sequence, the second one where the first is equal.
        """
        if not len(numbers):
            return
        order = np.lexsort((numbers, keys))
        rows = np.stack([keys[order], numbers[order], ranks[0][order], ranks[1][order]])
        begins = np.flatnonzero(np.concatenate([[True], ~_follows(rows[:, :-1], rows[:, 1:])]))
        ends = np.append(begins[1:], rows.shape[1]) - 1
        self.runs.append(np.concatenate([rows[:, begins], rows[1:, ends]]))
        self._count += len(begins)
        if self._count > _MOST_RUNS:
            self._join()

    def _join(self) -> Numbers:
        """Join the runs that touch; return them, by key and first number."""
        if not self.runs:
            return np.zeros((7, 0), np.int64)
        runs = np.concatenate(self.runs, axis=1)
        runs = runs[:, np.lexsort((runs[1], runs[0]))]
        last, first = np.concatenate([runs[:1], runs[4:]])[:, :-1], runs[:4, 1:]
        begins = np.flatnonzero(np.concatenate([[True], ~_follows(last, first)]))
        ends = np.append(begins[1:], runs.shape[1]) - 1
        joined = np.concatenate([runs[:4, begins], runs[4:, ends]])
        self.runs, self._count = [joined], joined.shape[1]
        return joined

    def faults(self, ends: dict[int, int] | None = None, begin: int = 0) -> "Faults":
        """Return what is wrong with the sequences: each has to begin at one number, and grow with its ranks.

        Args:
            ends: By key the number after the last one, where it is known.
            begin: The first number.
        """
        faults, runs, expected = Faults(), self._join(), dict.fromkeys(ends or {}, begin)
        for key, first, _, _, last, _, _ in runs.T.tolist():
            at = expected.setdefault(key, begin)
            faults.missing += [(key, number) for number in range(at, min(first, at + _MOST_NAMED))]
            faults.n_missing += max(first - at, 0)
            faults.doubled += [(key, number) for number in range(first, min(at, last + 1, first + _MOST_NAMED))]
            expected[key] = max(at, last + 1)
        for key, end in (ends or {}).items():
            at = expected[key]
            faults.missing += [(key, number) for number in range(at, min(end, at + _MOST_NAMED))]
            faults.n_missing += max(end - at, 0)
            faults.n_beyond += max(at - end, 0)
        keys, numbers = _misplaced(runs)
        faults.misplaced = list(zip(keys.tolist(), numbers.tolist(), strict=True))[:_MOST_NAMED]
        return faults


@dataclass
class Faults:
    """The faults of sequences: pairs of a key and a number, the first ones of many.

    Attributes:
        missing: Numbers that no row has.
        n_missing: How many are missing.
        n_beyond: How many numbers are after the expected end.
        doubled: Numbers that several rows have.
        misplaced: Numbers whose ranks are not after the ones of the number before.
    """

    missing: list[tuple[int, int]] = field(default_factory=list)
    n_missing: int = 0
    n_beyond: int = 0
    doubled: list[tuple[int, int]] = field(default_factory=list)
    misplaced: list[tuple[int, int]] = field(default_factory=list)


def _follows(before: Numbers, row: Numbers) -> NDArray[np.bool_]:
    """Return for each row whether it is of the same key, and has the next number and later ranks."""
    is_later = (row[2] > before[2]) | ((row[2] == before[2]) & (row[3] > before[3]))
    return np.asarray((row[0] == before[0]) & (row[1] == before[1] + 1) & is_later)


def _misplaced(runs: Numbers) -> tuple[Numbers, Numbers]:
    """Return key and number of the runs that follow the one before by number, and not by their ranks."""
    last, first = np.concatenate([runs[:1], runs[4:]])[:, :-1], runs[:4, 1:]
    touch = (first[0] == last[0]) & (first[1] == last[1] + 1)
    wrong = np.flatnonzero(touch & ~_follows(last, first))
    return first[0, wrong], first[1, wrong]
