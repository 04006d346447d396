"""Numbers that have to be dense: which are missing, which come twice, in whatever order they are read.

Here: numbers of one sequence, or of many by a key, as runs of numbers that follow one another; a log in order is one
run, however long. Releases, whose sequences are the timelines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.timeops import columns as c
from tidemark.timeops.values.instants import NONE, integers

Numbers = NDArray[np.int64]
_MOST_RUNS = 200_000
"""Runs that are kept before they are joined where they touch."""
_MOST_NAMED = 1_000
_FROM_ZERO: Mapping[int, int] = MappingProxyType({})


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
        rows = np.stack([keys, numbers, *ranks])
        if not _are_sorted(keys, numbers):
            rows = rows[:, np.lexsort((numbers, keys))]
        begins = np.flatnonzero(np.concatenate([[True], ~_follows(rows[:, :-1], rows[:, 1:])]))
        ends = np.append(begins[1:], rows.shape[1]) - 1
        self.runs.append(np.concatenate([rows[:, begins], rows[1:, ends]]))
        self._count += len(begins)
        if self._count > _MOST_RUNS:  # rows come file by file: most runs touch others that come later
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

    def faults(self, ends: Mapping[int, int] | None = None, begins: Mapping[int, int] = _FROM_ZERO) -> "Faults":
        """Return what is wrong with the sequences: each has to begin at one number, and grow with its ranks.

        Args:
            ends: By key the number after the last one, where it is known.
            begins: By key the first number; 0 of others.
        """
        faults, runs, expected = Faults(), self._join(), {key: begins.get(key, 0) for key in ends or {}}
        for key, first, _, _, last, _, _ in runs.T.tolist():
            at = expected.setdefault(key, begins.get(key, 0))
            # A gap may be as long as the log.
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


RELEASE_COLUMNS = (c.TIMELINE, c.RELEASE_SEQ, c.TIMESTAMP, c.SEQ)


@dataclass(frozen=True, eq=False)
class Releases:
    """Released events: the key of their timeline, `_release_seq`, `_timestamp` in microseconds, `_arrival_seq`."""

    keys: Numbers
    numbers: Numbers
    us: Numbers
    seqs: Numbers

    @classmethod
    def of(cls, piece: pa.RecordBatch, keys: dict[str, int]) -> "Releases":
        """Return the releases among events that have RELEASE_COLUMNS; a timeline that is new gets the next key."""
        rows = piece.filter(pc.is_valid(piece[c.RELEASE_SEQ]))
        timelines = rows[c.TIMELINE].dictionary_encode()
        of_name = [keys.setdefault(name, len(keys)) for name in timelines.dictionary.to_pylist()]
        of_row = np.array(of_name, np.int64)[timelines.indices.to_numpy()]
        return cls(of_row, *(integers(rows[name]) for name in RELEASE_COLUMNS[1:]))

    def add_to(self, sequences: Sequences) -> None:
        """Add their numbers; along a timeline times have to grow, and arrivals where times are equal."""
        sequences.add(self.keys, self.numbers, (self.us, self.seqs))


def are_in_order(rows: Iterable[pa.RecordBatch], starts: Mapping[str, int], limits_us: Mapping[str, int]) -> bool:
    """Return whether the numbers of released events are dense and follow times, and all times are below a limit.

    Args:
        rows: RELEASE_COLUMNS of events, piece by piece, in any order; only ones with a `_release_seq` count.
        starts: By timeline the expected first number; 0 of others.
        limits_us: By timeline the limit, microseconds; others have no release.
    """
    sequences, keys = Sequences(), {name: key for key, name in enumerate(limits_us)}
    limits = np.array([*limits_us.values()], np.int64)
    for piece in rows:
        releases = Releases.of(piece, keys)
        if len(keys) > len(limits) or (releases.us == NONE).any() or (releases.us >= limits[releases.keys]).any():
            return False
        releases.add_to(sequences)
    faults = sequences.faults(begins={keys[name]: start for name, start in starts.items() if name in keys})
    return not (faults.missing or faults.doubled or faults.misplaced)


def _are_sorted(keys: Numbers, numbers: Numbers) -> bool:
    """Return whether rows lie in the order of their key, and of their number within it."""
    grow, same = np.diff(keys), np.diff(numbers) >= 0
    return bool(((grow > 0) | ((grow == 0) & same)).all())


def _follows(earlier_rows: Numbers, rows: Numbers) -> NDArray[np.bool_]:
    """Return for each row whether it is of the same key, and has the next number and later ranks."""
    is_later = (rows[2] > earlier_rows[2]) | ((rows[2] == earlier_rows[2]) & (rows[3] > earlier_rows[3]))
    return np.asarray((rows[0] == earlier_rows[0]) & (rows[1] == earlier_rows[1] + 1) & is_later)


def _misplaced(runs: Numbers) -> tuple[Numbers, Numbers]:
    """Return key and number of the runs that follow the one before by number, and not by their ranks."""
    last, first = np.concatenate([runs[:1], runs[4:]])[:, :-1], runs[:4, 1:]
    touch = (first[0] == last[0]) & (first[1] == last[1] + 1)
    wrong = np.flatnonzero(touch & ~_follows(last, first))
    return first[0, wrong], first[1, wrong]
