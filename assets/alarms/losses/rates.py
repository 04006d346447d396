"""The shares of the records that were lost: of all, of each source, of each value of `over`, by day.

A record is of the day on which it arrived by the clock of the log; a refused event is also of the day of its event
time, where its time is why it was refused. Both are functions of the log, however it is cut into batches.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.alarms.losses.log_tables import LogTables
from tidemark.assets.log.retention import before_seq_of
from tidemark.resources import tables
from tidemark.resources.delta.versions import Filters, Version, arrow_condition
from tidemark.timeops import columns as c
from tidemark.timeops.figures.losses import (
    ARRIVAL,
    EVENT,
    LETTERS,
    LOSSES,
    OF_TIME,
    Integers,
    Loss,
    Refused,
    refused_by,
)
from tidemark.timeops.spec.automation import RateLevels
from tidemark.timeops.values.durations import format_duration, micros
from tidemark.timeops.values.utc import Instant, us_of

_MOST_RECORDS = 5_000_000
"""Only so many of the newest records are looked at."""
_MOST_DAYS = 10
"""On so many days of event time, the ones with most letters, the events are counted."""

_DAY_US = 86_400_000_000


@dataclass(frozen=True)
class Losses:
    """The losses of a stretch of the log.

    Attributes:
        rates: The shares that all records, each source and each value of `over` lost, by day: the largest first, the
            shares of all before the others.
        newest: The loss of the records of the newest day with losses; None where nothing was lost.
        letters: timeops.losses.LETTERS: the letters, without duplicates.
        newest_letters: The ones of `newest`.
        records: The processed records of the stretch.
    """

    rates: tuple[Loss, ...]
    newest: Loss | None
    letters: pa.Table
    newest_letters: pa.Table
    records: int


def losses_since(log: LogTables, first_seq: int, levels: RateLevels) -> Losses:
    """Return what was lost from the day before a record to the end, by days; no rates where nothing was."""
    kept_from = (before_seq_of(log.workspace, table) for table in tables.BY_RECORD)
    floor_seq = max(log.end_seq - _MOST_RECORDS, *kept_from, 0)
    days = _days_from(log, max(first_seq, floor_seq), floor_seq, micros(levels.period))
    letters = _letters(log, days.first_seq)
    if not len(letters):
        return Losses((), None, letters, letters, log.end_seq - first_seq)
    by_arrival = [*_by_arrival(log, letters, days, levels)]
    rates = [*by_arrival, *_by_event_time(log, letters, days, levels)]
    ranked = sorted(rates, key=lambda loss: (bool(loss.column), -loss.percent, -loss.lost, loss.value))
    newest = next((loss for loss in reversed(by_arrival) if not loss.column), None)
    dated = letters.filter(pc.is_valid(letters[ARRIVAL]))
    day = days.of(dated[c.SEQ])
    of_newest = dated.filter(pa.array(day == day.max())) if len(dated) else letters
    return Losses(tuple(ranked), newest, letters, of_newest, log.end_seq - days.first_seq)


@dataclass(frozen=True)
class _Days:
    """The days of the clock in a stretch of the log.

    Attributes:
        starts: The first record of each, in order.
        numbers: The number of each: its start divided by its length.
        end_seq: The end of the last.
        period_us: The length of a day, or of another period.
    """

    starts: Integers
    numbers: Integers
    end_seq: int
    period_us: int

    @property
    def first_seq(self) -> int:
        """The first record of the first day."""
        return int(self.starts[0])

    def of(self, seqs: pa.ChunkedArray) -> Integers:
        """Return the number of the day of each record."""
        place = np.searchsorted(self.starts, np.asarray(seqs.to_numpy(), np.int64), "right") - 1
        return np.asarray(self.numbers[place], np.int64)

    @property
    def records(self) -> dict[int, int]:
        """How many records each has."""
        return dict(zip(self.numbers.tolist(), np.diff([*self.starts, self.end_seq]).tolist(), strict=True))

    def in_words(self, number: int) -> str:
        """Say when a day was, or another period."""
        start = Instant(number * self.period_us)
        if self.period_us == _DAY_US:
            return f"on {str(start)[:-9]}"
        return f"in the {format_duration(timedelta(microseconds=self.period_us))} from {start} UTC"


def _days_from(log: LogTables, first_seq: int, floor_seq: int, period_us: int) -> _Days:
    """Return the days from the one before a record's to the end; the clock never falls, so a day is one stretch."""
    none = _Days(np.array([first_seq]), np.array([0]), log.end_seq, period_us)
    first = [
        row
        for piece in log.pieces(tables.RAW_EVENTS, [c.CLOCK], [(c.SEQ, "=", first_seq)])
        for row in piece.to_pylist()
    ]
    clock = first[0][c.CLOCK] if first else None
    since: Filters = [] if clock is None else [(c.CLOCK, ">=", _day_before(clock, period_us))]
    which: Filters = [*since, (c.SEQ, ">=", floor_seq), (c.SEQ, "<", log.end_seq)]
    starts, numbers = list[int](), list[int]()
    for seqs, days in _day_starts(log.seen(tables.RAW_EVENTS), which, period_us):  # files may come in any order
        starts += seqs
        numbers += days
    if not starts:
        return none
    order = np.argsort(starts, kind="stable")
    sorted_numbers = np.array(numbers, np.int64)[order]
    fresh = np.append(True, np.diff(sorted_numbers) != 0)
    return _Days(np.array(starts, np.int64)[order][fresh], sorted_numbers[fresh], log.end_seq, period_us)


def _day_starts(raw: Version, which: Filters, period_us: int) -> Iterator[tuple[list[int], list[int]]]:
    """Return the first record of each day and the number of the day, by file of the log.

    Each batch asks this, so a file is only opened if its bounds do not say that all of it is of one day.
    """
    files_inside = {*raw.files_within(which)}
    seqs, clocks = raw.bounds_by_file(c.SEQ), raw.bounds_by_file(c.CLOCK)
    for file in raw.files_with(which):
        days = {clock_us // period_us for clock_us in clocks.get(file, ())}
        if len(days) == 1 and file in seqs and file in files_inside:
            yield [seqs[file][0]], [*days]
            continue
        rows = raw.rows_of([file], [c.SEQ, c.CLOCK]).filter(arrow_condition(which)).drop_null()
        numbers, place = np.unique(rows[c.CLOCK].cast(pa.int64()).to_numpy() // period_us, return_index=True)
        yield rows[c.SEQ].to_numpy()[place].tolist(), numbers.tolist()


def _day_before(clock: datetime, period_us: int) -> Instant:
    return Instant((us_of(clock) // period_us - 1) * period_us)


def _letters(log: LogTables, first_seq: int) -> pa.Table:
    """Return the letters from a record on, without duplicates, as LETTERS."""
    names = [c.SEQ, c.SOURCE, c.TIMELINE, "stage", "reason", "window_name", c.EVENT_TIME, c.ARRIVAL, c.WATERMARK]
    names += ["lateness_us", "watermark_set_by"]
    which: Filters = [(c.SEQ, ">=", first_seq), (c.SEQ, "<", log.end_seq), ("reason", "in", [*map(str, LOSSES)])]
    which = [*which, ("replayed_at", "=", None)]  # what was let in is not lost
    rows = [pa.table(piece.columns, names=LETTERS.names).cast(LETTERS) for piece in _renamed(log, names, which)]
    letters = pa.concat_tables([LETTERS.empty_table(), *rows])
    formers = log.workspace.source_names
    if not formers:
        return letters
    names_now = [formers.get(name, name) for name in letters["_source"].to_pylist()]
    return letters.set_column(1, "_source", pa.array(names_now, pa.string()))


def _renamed(log: LogTables, names: Sequence[str], which: Filters) -> Iterator[pa.RecordBatch]:
    for piece in log.pieces(tables.DEAD_LETTERS, names, which):
        columns = [
            piece[name].cast(pa.int64()) if pa.types.is_timestamp(piece[name].type) else piece[name] for name in names
        ]
        yield pa.RecordBatch.from_arrays(columns, names=LETTERS.names)


def _by_arrival(log: LogTables, letters: pa.Table, days: _Days, levels: RateLevels) -> Iterator[Loss]:
    """Return what was lost of the records that arrived on a day: of all, of each source, of each value of `over`."""
    spec = log.workspace.spec
    undated = letters.filter(pc.is_null(letters[ARRIVAL]))
    if len(undated):  # in the log they follow all that was read with them, on a day that is not theirs
        refused = refused_by(undated, None, np.zeros(len(undated), np.int64))["", 0]
        yield Loss(
            "",
            "",
            True,
            f"since {Instant(int(days.numbers[0]) * days.period_us)} UTC",
            log.end_seq - days.first_seq,
            refused,
        )
    letters = letters.filter(pc.is_valid(letters[ARRIVAL]))
    day = days.of(letters[c.SEQ])
    words = {number: days.in_words(number) for number in days.records}
    for (_, number), refused in sorted(refused_by(letters, None, day).items()):
        yield Loss("", "", True, words[number], days.records[number], refused)
    of_log: Filters = [(c.SEQ, ">=", days.first_seq), (c.SEQ, "<", log.end_seq)]
    by_source = refused_by(letters, c.SOURCE, day) if len(spec.sources) > 1 else {}
    if _may_be_much(by_source, levels):
        records = _counts_by_day(log, tables.RAW_EVENTS, c.SOURCE, of_log, days)
        for (name, number), refused in by_source.items():
            yield Loss(c.SOURCE, name, True, words[number], records[name, number], refused)
    by_value = refused_by(letters, c.TIMELINE, day) if spec.time.over and spec.outputs.ordered_events else {}
    if _may_be_much(by_value, levels):
        accepted = _counts_by_day(log, tables.ORDERED_EVENTS, c.TIMELINE, of_log, days) + _counts_by_day(
            log, tables.HELD_EVENTS, c.TIMELINE, of_log, days
        )
        for (value, number), refused in by_value.items():
            yield Loss(
                c.TIMELINE, value, True, words[number], accepted[value, number] + _before_windows(refused), refused
            )


def _by_event_time(log: LogTables, letters: pa.Table, days: _Days, levels: RateLevels) -> Iterator[Loss]:
    """Return what was lost of the events with a time on a day, because of their time."""
    spec = log.workspace.spec
    of_time = pc.is_in(letters["reason"], pa.array([*map(str, OF_TIME)]))
    timed = letters.filter(pc.and_(of_time, pc.is_valid(letters[EVENT])))
    if not spec.outputs.ordered_events or not len(timed):
        return
    day = np.asarray(timed[EVENT].to_numpy(), np.int64) // days.period_us
    in_all, by_value = refused_by(timed, None, day), refused_by(timed, c.TIMELINE, day) if spec.time.over else {}
    worst = sorted(in_all.items(), key=lambda day: -sum(day[1].values()))[:_MOST_DAYS]
    for (_, number), refused in worst:
        if not _may_be_much({("", number): refused}, levels):
            continue
        words = days.in_words(number)
        first, end = (Instant(n * days.period_us) for n in (number, number + 1))
        of_day: Filters = [(c.TIMESTAMP, ">=", first), (c.TIMESTAMP, "<", end), (c.SEQ, "<", log.end_seq)]
        if not by_value:  # each batch asks this, and to read the rows would take most of its time
            accepted_in_all = log.count(tables.ORDERED_EVENTS, of_day) + log.count(tables.HELD_EVENTS, of_day)
            yield Loss("", "", False, words, accepted_in_all + _before_windows(refused), refused)
            continue
        accepted = _counts_by_day(log, tables.ORDERED_EVENTS, c.TIMELINE, of_day) + _counts_by_day(
            log, tables.HELD_EVENTS, c.TIMELINE, of_day
        )
        yield Loss("", "", False, words, accepted.total() + _before_windows(refused), refused)
        for (value, of), of_value in by_value.items():
            if of == number:
                yield Loss(c.TIMELINE, value, False, words, accepted[value, 0] + _before_windows(of_value), of_value)


def _may_be_much(refused: Mapping[tuple[str, int], Refused], levels: RateLevels) -> bool:
    """Return whether some of the numbers can be beyond a limit: if so, it is worth counting the others."""
    return any(sum(counts.values()) > levels.lowest * levels.min_records for counts in refused.values())


def _before_windows(refused: Refused) -> int:
    return sum(n for (window, _), n in refused.items() if not window)


def _counts_by_day(
    log: LogTables, table: str, by: str, which: Filters, days: _Days | None = None
) -> Counter[tuple[str, int]]:
    """Count rows by a column and by the day of arrival; without days as of day 0."""
    counts: Counter[tuple[str, int]] = Counter()
    names = log.workspace.source_names if by == c.SOURCE else {}
    for piece in log.pieces(table, [by, c.SEQ], which):
        day = days.of(piece[c.SEQ]) if days is not None else np.zeros(len(piece), np.int64)
        rows = pa.table({"by": piece[by], "day": day}).group_by(["by", "day"]).aggregate([([], "count_all")])
        for row in rows.to_pylist():
            if row["by"] is not None:
                counts[names.get(row["by"], row["by"]), row["day"]] += row["count_all"]
    return counts
