"""The differences between the expected and the found outcome of a case: rows of tables and watermarks.

Here: which rows belong together, and what differs. Not here: running a case (pipelines/case_tests/runs.py), layout
(pipelines/case_tests/suite.py).
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.timeops.cases import ORDERED, Expected, equal, text_of

Row = Mapping[str, Any]

_UNSEEN = ("_arrival_time", "_position", "_revision", "_is_final", "_source", "_split", "_event_time")


@dataclass(frozen=True)
class Outcome:
    """The contents of the tables at one place of a log.

    Attributes:
        tables: Rows by table, of `ordered_events` in their order.
        watermark: The pipeline's: an instant, `none` or `final`.
        watermarks: The same by timeline.
    """

    tables: Mapping[str, Sequence[Row]]
    watermark: Any
    watermarks: Mapping[str, Any]


@dataclass(frozen=True)
class CaseOutcomes:
    """The outcomes of a case.

    Attributes:
        steps: The contents of the tables after each step; after the last, when all is done.
        cuts: The final contents, by the number of records before the one that was alone.
    """

    steps: tuple[Outcome, ...]
    cuts: Mapping[int, Outcome]


@dataclass(frozen=True)
class Pair:
    """A row that was expected and the found one that is nearest to it; either may be missing."""

    expected: Row | None
    found: Row | None

    def differs_in(self, column: str) -> bool:
        """Return whether both have this column, with values that are not equal."""
        if self.expected is None or self.found is None or column not in self.expected:
            return False
        return not equal(self.expected[column], self.found.get(column))


@dataclass(frozen=True)
class Difference:
    """How something that was found differs from what was expected.

    Attributes:
        place: Where, such as `after step 2, dead_letters`.
        columns: Columns to be shown.
        pairs: The rows that differ.
    """

    place: str
    sentence: str
    columns: tuple[str, ...] = ()
    pairs: tuple[Pair, ...] = ()

    @property
    def text(self) -> str:
        """All of it as plain text."""
        lines = [f"{self.place}: {self.sentence}"]
        for pair in self.pairs:
            for word, row in (("expected", pair.expected), ("found", pair.found)):
                if row is not None:
                    cells = (f"{name}: {text_of(row[name])}" for name in self.columns if name in row)
                    lines.append(f"{word} {{{', '.join(cells)}}}")
        return "\n".join(lines)


def differences(expected: Expected, actual: Outcome, place: str) -> Iterator[Difference]:
    """Find every difference between an outcome and what is expected of it; columns that `expected` lacks may differ.

    Its rows hold values as `read_value` of timeops/cases.py returns them. The place is for the reader.
    """
    if expected.watermark is not None and expected.watermark != actual.watermark:
        words = f"expected {text_of(expected.watermark)}, found {text_of(actual.watermark)}"
        yield Difference(f"{place}, watermark", words)
    if expected.watermarks is not None:
        yield from _of_watermarks(expected.watermarks, actual.watermarks, place)
    for table, rows in expected.tables.items():
        if (difference := _of_table(table, rows, actual.tables[table], place)) is not None:
            yield difference


def cut_differences(outcomes: CaseOutcomes) -> list[Difference]:
    """Find the differences between a case and itself, cut elsewhere; the first such place is enough."""
    in_one = outcomes.steps[-1]
    expected = Expected(in_one.tables, in_one.watermark, in_one.watermarks)
    for cut, outcome in outcomes.cuts.items():
        place = f"record {cut + 1} in a segment of its own, against all records in one"
        if outcome != in_one and (of_cut := list(differences(expected, outcome, place))):
            return of_cut
    return []


def _of_watermarks(expected: Mapping[str, Any], actual: Mapping[str, Any], place: str) -> Iterator[Difference]:
    by_timeline = {_timeline(key, actual): mark for key, mark in expected.items()}
    for timeline in sorted({*by_timeline, *actual}):
        mark, actual_mark = by_timeline.get(timeline), actual.get(timeline)
        if mark != actual_mark:
            words = f"expected {_mark(mark)}, found {_mark(actual_mark)}"
            yield Difference(f"{place}, watermark of the timeline {timeline}", words)


def _mark(mark: Any) -> str:
    return "no such timeline" if mark is None else text_of(mark)


def _timeline(key: str, timelines: Mapping[str, Any]) -> str:
    """Return a timeline as it is written: `_timeline`, or of one `over` the value alone."""
    if key in timelines or key.startswith("["):
        return key
    return json.dumps([key], separators=(",", ":"), ensure_ascii=False)


def _of_table(table: str, expected: Sequence[Row], actual: Sequence[Row], place: str) -> Difference | None:
    matched = _matching(expected, actual)
    left = [row for i, row in enumerate(expected) if i not in matched]
    over = [row for j, row in enumerate(actual) if j not in set(matched.values())]
    place = f"{place}, {table}"
    written = tuple(dict.fromkeys(name for row in expected for name in row))
    if not left and not over:
        if table == ORDERED and not _in_order(expected, actual):
            words = "the rows are as expected, their order is not; found in this order"
            return Difference(place, words, written, tuple(Pair(None, row) for row in actual))
        return None
    pairs = _nearest(left, over)
    columns = written or tuple(name for name in (actual[0] if actual else {}) if name not in _UNSEEN)
    return Difference(place, _counts(pairs, len(expected), len(actual)), columns, pairs)


def _fits(expected: Row, actual: Row) -> bool:
    return all(name in actual and equal(value, actual[name]) for name, value in expected.items())


def _matching(expected: Sequence[Row], actual: Sequence[Row]) -> dict[int, int]:
    """Match as many expected rows as possible with a found row of their own; return its place by theirs.

    An expected row that writes few columns may fit several found ones. So a row that was matched may be taken back
    for another (augmenting paths).
    """
    fitting = [[j for j, row in enumerate(actual) if _fits(want, row)] for want in expected]
    matches: dict[int, int] = {}
    taken: dict[int, int] = {}
    for i in range(len(expected)):
        _give(i, fitting, matches, taken)
    return matches


def _give(i: int, fitting: Sequence[Sequence[int]], matches: dict[int, int], taken: dict[int, int]) -> None:
    """Match an expected row with a found one, if others can make room for it."""
    wants: dict[int, int] = {}  # the expected row that asked for a found row first
    asking = [i]
    for want in asking:
        for j in fitting[want]:
            if j in wants:
                continue
            wants[j] = want
            if j in taken:
                asking.append(taken[j])
                continue
            free: int | None = j
            while free is not None:  # each row that makes room takes the row it asked for
                taker = wants[free]
                taken[free], matches[taker], free = taker, free, matches.get(taker)
            return


def _in_order(expected: Sequence[Row], actual: Sequence[Row]) -> bool:
    """Return whether expected rows are in the release order of each timeline; rows outside the sequence have none."""
    queues: dict[str, list[Row]] = defaultdict(list)
    for j, row in enumerate(actual):
        queues[row["_timeline"] if row["_release_seq"] is not None else str(j)].append(row)
    for want in expected:
        queue = next((queue for queue in queues.values() if queue and _fits(want, queue[0])), None)
        if queue is None:
            return False
        queue.pop(0)
    return True


def _nearest(expected: list[Row], actual: list[Row]) -> tuple[Pair, ...]:
    """Pair each missing row with the unpaired row that shares the most values with it, until none is left."""
    unpaired = list(actual)
    pairs = []
    for want in expected:
        nearest = max(
            unpaired, key=lambda row: sum(equal(v, row.get(name)) for name, v in want.items()), default=None
        )
        pairs.append(Pair(want, nearest))
        unpaired = [row for row in unpaired if row is not nearest]
    return (*pairs, *(Pair(None, row) for row in unpaired))


def _counts(pairs: Sequence[Pair], expected: int, actual: int) -> str:
    unequal = sum(pair.expected is not None and pair.found is not None for pair in pairs)
    kinds = {
        "differs" if unequal == 1 else "differ": unequal,
        "missing": sum(pair.found is None for pair in pairs),
        "not expected": sum(pair.expected is None for pair in pairs),
    }
    parts = [f"{n} {kind}" for kind, n in kinds.items() if n]
    return f"expected {expected} row{'' if expected == 1 else 's'}, found {actual}: {', '.join(parts)}"
