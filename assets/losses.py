"""Losses of a pipeline: read from its tables, and said in words with the line of the spec to change.

Here: which rows are read, and the sentences. The alerts, `tidemark status` by way of them, and the report show the
same. Not here: the values themselves (timeops/losses.py), whether they are too much (alerts.py).

A record is of the day on which it arrived by the clock of the log; a refused event is also of the day of its event
time, where its time is why it was refused. Both are functions of the log, however it is cut into batches.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.batch import BatchWriter
from tidemark.resources import tables
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters, Version, arrow_condition
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.durations import format_duration, micros, roughly, rounded_up
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.losses import (
    ARRIVAL,
    EVENT,
    LETTERS,
    LIKELY,
    LOSSES,
    OF_TIME,
    Integers,
    Loss,
    Pull,
    Refused,
    Shortfall,
    Trait,
    over_of,
    pull_of,
    pulls_of,
    refused_by,
    shortfalls_of,
)
from tidemark.timeops.reasons import Reason
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.automation import RateLevels
from tidemark.timeops.utc import Instant, us_of

_MOST_RECORDS = 5_000_000
"""Only so many of the newest records are looked at."""
_MOST_DAYS = 10
"""On so many days of event time, the ones with most letters, the events are counted."""
_AROUND = 20_000
"""Of so many records around the newest letters it is looked up who they are."""
_PULLS = 20
"""So many records that set watermarks are looked up wherever they are."""

_DAY_US = 86_400_000_000

_RAW, _ORDERED, _HELD, _LETTERS = tables.RAW_EVENTS, tables.ORDERED_EVENTS, tables.HELD_EVENTS, tables.DEAD_LETTERS


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


@dataclass(frozen=True)
class Beyond:
    """The losses beyond a limit.

    Attributes:
        records: How many more were lost than allowed, where most were.
        sentences: What was lost, and of whom.
        letters: Their letters.
    """

    records: int
    sentences: tuple[str, ...]
    letters: pa.Table


@dataclass(frozen=True)
class LogTables:
    """A pipeline's tables at one moment.

    Attributes:
        workspace: The pipeline.
        version: Returns the version of a table.
        end_seq: The end of the processed records.
    """

    workspace: Workspace
    version: Callable[[str], int]
    end_seq: int

    def pieces(self, table: str, names: Sequence[str], which: Filters) -> Iterator[pa.RecordBatch]:
        """Return rows of a table, some at a time."""
        return pieces(self.workspace.lake, table, self.version(table), names, which)

    def count(self, table: str, which: Filters) -> int:
        """Count rows of a table."""
        return self.seen(table).count(which)

    def seen(self, table: str) -> Version:
        """Return a table with the statistics of its files."""
        return self.workspace.lake.opened.seen(table, self.version(table))


def losses_since(log: LogTables, first_seq: int, levels: RateLevels) -> Losses:
    """Return what was lost from the day before a record to the end, by days; no rates where nothing was."""
    floor_seq = max(log.end_seq - _MOST_RECORDS, 0)
    days = _days_from(log, max(first_seq, floor_seq), floor_seq, micros(levels.period))
    letters = _letters(log, days.first_seq)
    if not len(letters):
        return Losses((), None, letters, letters, log.end_seq - first_seq)
    by_arrival = [*_by_arrival(log, letters, days, levels)]
    rates = [*by_arrival, *_by_event_time(log, letters, days, levels)]
    ranked = sorted(rates, key=lambda one: (bool(one.column), -one.percent, -one.lost, one.value))
    newest = next((one for one in reversed(by_arrival) if not one.column), None)
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
    first = [row for piece in log.pieces(_RAW, [c.CLOCK], [(c.SEQ, "=", first_seq)]) for row in piece.to_pylist()]
    clock = first[0][c.CLOCK] if first else None
    since: Filters = [] if clock is None else [(c.CLOCK, ">=", _day_before(clock, period_us))]
    which: Filters = [*since, (c.SEQ, ">=", floor_seq), (c.SEQ, "<", log.end_seq)]
    starts, numbers = list[int](), list[int]()
    for seqs, days in _day_starts(log.seen(_RAW), which, period_us):  # files may come in any order
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
    whole = {*raw.files_within(which)}
    seqs, clocks = raw.bounds_by_file(c.SEQ), raw.bounds_by_file(c.CLOCK)
    for file in raw.files_with(which):
        days = {clock_us // period_us for clock_us in clocks.get(file, ())}
        if len(days) == 1 and file in seqs and file in whole:
            yield [seqs[file][0]], [*days]
            continue
        rows = raw.rows_of([file], [c.SEQ, c.CLOCK]).filter(arrow_condition(which)).drop_null()
        found, place = np.unique(rows[c.CLOCK].cast(pa.int64()).to_numpy() // period_us, return_index=True)
        yield rows[c.SEQ].to_numpy()[place].tolist(), found.tolist()


def _day_before(clock: datetime, period_us: int) -> Instant:
    return Instant((us_of(clock) // period_us - 1) * period_us)


def _letters(log: LogTables, first_seq: int) -> pa.Table:
    """Return the letters from a record on, without duplicates, as LETTERS."""
    names = [c.SEQ, c.SOURCE, c.TIMELINE, "stage", "reason", "window_name", c.EVENT_TIME, c.ARRIVAL, c.WATERMARK]
    names += ["lateness_us", "watermark_set_by"]
    which: Filters = [(c.SEQ, ">=", first_seq), (c.SEQ, "<", log.end_seq), ("reason", "in", [*map(str, LOSSES)])]
    which = [*which, ("replayed_at", "=", None)]  # what was let in is not lost
    found = [pa.table(piece.columns, names=LETTERS.names) for piece in _renamed(log, names, which)]
    letters = pa.concat_tables([LETTERS.empty_table(), *[piece.cast(LETTERS) for piece in found]])
    formers = log.workspace.source_names
    if not formers:
        return letters
    names_now = [formers.get(name, name) for name in letters["_source"].to_pylist()]
    return letters.set_column(1, "_source", pa.array(names_now, pa.string()))


def _renamed(log: LogTables, names: Sequence[str], which: Filters) -> Iterator[pa.RecordBatch]:
    for piece in log.pieces(_LETTERS, names, which):
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
        records = _counted(log, _RAW, c.SOURCE, of_log, days)
        for (name, number), refused in by_source.items():
            yield Loss(c.SOURCE, name, True, words[number], records[name, number], refused)
    by_value = refused_by(letters, c.TIMELINE, day) if spec.time.over and spec.outputs.ordered_events else {}
    if _may_be_much(by_value, levels):
        accepted = _counted(log, _ORDERED, c.TIMELINE, of_log, days) + _counted(log, _HELD, c.TIMELINE, of_log, days)
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
    worst = sorted(in_all.items(), key=lambda one: -sum(one[1].values()))[:_MOST_DAYS]
    for (_, number), refused in worst:
        if not _may_be_much({("", number): refused}, levels):
            continue
        words = days.in_words(number)
        first, end = (Instant(n * days.period_us) for n in (number, number + 1))
        of_day: Filters = [(c.TIMESTAMP, ">=", first), (c.TIMESTAMP, "<", end), (c.SEQ, "<", log.end_seq)]
        if not by_value:  # each batch asks this, and to read the rows would take most of its time
            accepted_in_all = log.count(_ORDERED, of_day) + log.count(_HELD, of_day)
            yield Loss("", "", False, words, accepted_in_all + _before_windows(refused), refused)
            continue
        accepted = _counted(log, _ORDERED, c.TIMELINE, of_day) + _counted(log, _HELD, c.TIMELINE, of_day)
        yield Loss("", "", False, words, accepted.total() + _before_windows(refused), refused)
        for (value, of), own in by_value.items():
            if of == number:
                yield Loss(c.TIMELINE, value, False, words, accepted[value, 0] + _before_windows(own), own)


def _may_be_much(refused: Mapping[tuple[str, int], Refused], levels: RateLevels) -> bool:
    """Return whether some of the numbers can be beyond a limit: if so, it is worth counting the others."""
    return any(sum(one.values()) > levels.lowest * levels.min_records for one in refused.values())


def _before_windows(refused: Refused) -> int:
    return sum(n for (window, _), n in refused.items() if not window)


def _counted(
    log: LogTables, table: str, by: str, which: Filters, days: _Days | None = None
) -> Counter[tuple[str, int]]:
    """Count rows by a column and by the day of arrival; without days as of day 0."""
    found: Counter[tuple[str, int]] = Counter()
    names = log.workspace.source_names if by == c.SOURCE else {}
    for piece in log.pieces(table, [by, c.SEQ], which):
        day = days.of(piece[c.SEQ]) if days is not None else np.zeros(len(piece), np.int64)
        rows = pa.table({"by": piece[by], "day": day}).group_by(["by", "day"]).aggregate([([], "count_all")])
        for row in rows.to_pylist():
            if row["by"] is not None:
                found[names.get(row["by"], row["by"]), row["day"]] += row["count_all"]
    return found


_WHOSE = {c.SOURCE: "source", c.TIMELINE: "over"}
_MOST_NAMED = 5


def beyond(losses: Losses, limit: float, levels: RateLevels) -> Beyond:
    """Return what is beyond a limit; of each whose records it is the worst day."""
    found: dict[tuple[str, str], list[Loss]] = defaultdict(list)
    for loss in losses.rates:
        if loss.beyond(limit, levels.min_records):
            found[loss.column, loss.value].append(loss)
    sentences = [in_words(losses_of[0]) + _elsewhen(losses_of) for losses_of in found.values()]
    more = [f"and {len(sentences) - _MOST_NAMED} more"] if len(sentences) > _MOST_NAMED else []
    letters = losses.letters
    if found and ("", "") not in found:
        own = [
            pc.is_in(letters[column], pa.array([value for of, value in found if of == column], pa.string()))
            for column in _WHOSE
        ]
        letters = letters.filter(pc.or_(*own))
    records = max((loss.beyond(limit, levels.min_records) for loss in losses.rates), default=0)
    return Beyond(records, (*sentences[:_MOST_NAMED], *more), letters)


def _elsewhen(losses: Sequence[Loss]) -> str:
    """Say in how many other periods the same share is beyond the limit."""
    others = len({one.period for one in losses if one.is_arrived == losses[0].is_arrived}) - 1
    return f", and in {others} other period{'s' if others > 1 else ''}" if others else ""


def in_words(loss: Loss) -> str:
    """Say what was lost, and for which reasons."""
    share = f"{loss.percent:.1f}" if loss.percent >= 1 or not loss.lost else f"{loss.percent:.2g}"
    reasons = sorted(loss.refused.items(), key=lambda one: (-one[1], one[0]))
    of = [f"{n:,} {reason}{f' by `{window}`' if window else ''}" for (window, reason), n in reasons if n]
    whose = f"{_WHOSE[loss.column]} {loss.value}: " if loss.column else ""
    what = f"records that arrived {loss.period}" if loss.is_arrived else f"events with a time {loss.period}"
    return f"{whose}{share} % of the {what} were lost ({loss.lost:,} of {loss.records:,}: {', '.join(of)})"


# Why: who pulled the watermark, or by how much tolerances were missed.


@dataclass(frozen=True)
class Cause:
    """Why records were lost.

    Attributes:
        pull: Who pulled the watermark ahead of most of them; None if no record did.
        over: The column for whose values a watermark each would have let them in; None if there is none.
        shortfalls: By how much they missed tolerances, by reason and window.
    """

    pull: Pull | None
    over: str | None
    shortfalls: tuple[Shortfall, ...]


def cause_of(log: LogTables, letters: pa.Table, around: "Around | None" = None) -> Cause:
    """Return why the records of some letters were lost, which are LETTERS; by default it looks up who is around."""
    behind = letters.filter(pc.is_valid(letters["watermark_set_by"]))
    pulls, pull, over, out_of_orderness_us = pulls_of(behind), None, None, tolerance_us(log.workspace.spec)
    there = around or around_of(log, letters)
    records, columns = there.records, there.columns
    shortfalls = shortfalls_of(letters, records, columns)
    if 2 * len(behind) >= len(letters):
        pull = pull_of(behind, pulls, records, columns, out_of_orderness_us)
        traits = [one.trait for one in (pull, *shortfalls) if one is not None and one.trait is not None]
        likely = dict.fromkeys([*(trait.column for trait in traits), *columns])
        measures = _measures(log.workspace.spec)
        senders = [name for name in likely if name not in (c.SOURCE, c.SPLIT) and not mentions(measures, name)]
        over = over_of(behind, records, senders, out_of_orderness_us)
    if pull is not None and pull.trait is not None:
        pull = replace(pull, letters=_letters_behind(log, pulls, pull.trait))
    return Cause(pull, over, tuple(shortfalls))


def _measures(spec: Spec) -> str:
    """Return SQL of times and aggregates: a watermark for each value of what is in it would let in anything."""
    times = [source.timestamp_by for source in TimeRules.of(spec).sources]
    arrivals = [source.arrival_time for source in spec.sources]
    aggregates = [text for window in spec.event_windows for text in (*window.aggregates.values(), *window.order)]
    return ", ".join(text for text in (*times, *arrivals, *aggregates) if text)


def tolerance_us(spec: Spec) -> int:
    """Return the largest out-of-orderness of a spec's sources."""
    return max(source.out_of_orderness_us for source in TimeRules.of(spec).sources)


@dataclass(frozen=True)
class Around:
    """The newest records up to the last of some letters, and the ones that set most of their watermarks.

    Attributes:
        records: `_arrival_seq`, in order, EVENT and ARRIVAL (null where unknown), and `columns`.
        columns: The columns that may say who they are, the ones of the spec first.
    """

    records: pa.Table
    columns: tuple[str, ...]


def around_of(log: LogTables, letters: pa.Table, events: Callable[[int, int], pa.Table] | None = None) -> Around:
    """Return the records around some letters, which are LETTERS.

    `events` returns `_arrival_seq` and EVENT of the accepted events from one number on and before another; by default
    they are read from their tables.
    """
    columns, pulls = _telling_columns(log), pulls_of(letters)
    end = int(pc.max(letters[c.SEQ]).as_py()) + 1
    first = max(end - _AROUND, 0)
    some: Filters = [(c.SEQ, ">=", first), (c.SEQ, "<", end)]
    earlier = [seq for seq in pulls[c.SEQ][:_PULLS].to_pylist() if seq < first]
    names = [c.SEQ, c.ARRIVAL, *columns]
    rows = [*log.pieces(_RAW, names, some), *(log.pieces(_RAW, names, [(c.SEQ, "in", earlier)]) if earlier else ())]
    times = [letters.select([c.SEQ, EVENT])]
    if events is not None:
        times.append(events(first, end))
    elif log.workspace.spec.outputs.ordered_events:
        for table in (_ORDERED, _HELD):
            for piece in log.pieces(table, [c.SEQ, c.EVENT_TIME], some):
                event = piece[c.EVENT_TIME].cast(pa.int64())
                times.append(pa.table([piece[c.SEQ], event], names=[c.SEQ, EVENT]))
    known = pa.concat_tables(times).group_by(c.SEQ).aggregate([(EVENT, "max")])
    found = pa.Table.from_batches(rows).sort_by(c.SEQ)
    place = pc.index_in(found[c.SEQ], value_set=known[c.SEQ].combine_chunks())
    event = known[f"{EVENT}_max"].combine_chunks().take(place.combine_chunks())
    arrival = found[c.ARRIVAL].cast(pa.int64())
    found = found.drop_columns([c.ARRIVAL]).append_column(ARRIVAL, arrival).append_column(EVENT, event)
    return Around(found, tuple(columns))


def _telling_columns(log: LogTables) -> list[str]:
    """Return the columns of the log that may say who sent a record, first the ones that the spec names."""
    spec, schema = log.workspace.spec, log.workspace.lake.dataset(_RAW, log.version(_RAW)).schema
    named = [*spec.time.over, *(name for window in spec.event_windows for name in window.group_columns)]
    whose = [c.SPLIT] if spec.uses_splits else []
    whose += [c.SOURCE] if len(spec.sources) > 1 else []
    payload = [
        field.name
        for field in schema
        if field.name not in c.LOG_COLUMNS
        and (pa.types.is_string(field.type) or pa.types.is_integer(field.type) or pa.types.is_boolean(field.type))
    ]
    return [
        *dict.fromkeys([name for name in named if name in payload]),
        *whose,
        *(n for n in payload if n not in named),
    ]


def _letters_behind(log: LogTables, pulls: pa.Table, trait: Trait) -> int:
    """Count the letters that came after watermarks that records with a trait set."""
    seqs, found = pulls.sort_by(c.SEQ), 0
    bounds: Filters = [(c.SEQ, ">=", seqs[c.SEQ][0].as_py()), (c.SEQ, "<=", seqs[c.SEQ][-1].as_py())]
    for piece in log.pieces(_RAW, [c.SEQ, trait.column], bounds):
        own = piece[c.SEQ].filter(pc.equal(piece[trait.column], trait.value))
        found += pc.sum(seqs.filter(pc.is_in(seqs[c.SEQ], own))["letters"]).as_py() or 0
    return int(found)


_SHOW = "`tidemark show SPEC dead_letters --where \"reason = '{}'\"` shows them"
_OTHERWISE = {
    Reason.MALFORMED: f"a source may have changed its format: {_SHOW.format(Reason.MALFORMED)}",
    Reason.NO_ARRIVAL_TIME: f"`arrival_time` is null for them: {_SHOW.format(Reason.NO_ARRIVAL_TIME)}",
    **{
        reason: f"`timestamp_by` does not fit them: {_SHOW.format(reason)}"
        for reason in (Reason.NO_TIMESTAMP, Reason.BAD_TIMESTAMP)
    },
    Reason.BAD_EXPRESSION: f"an expression of the spec fails on them: {_SHOW.format(Reason.BAD_EXPRESSION)}",
}
_MOST_SAID = 2


def advice(cause: Cause, spec: Spec) -> str:
    """Say what to do about lost records: who pulled the watermark, and the lines of the spec that would help."""
    letters = sum(one.letters for one in cause.shortfalls)
    if cause.pull is not None and 2 * cause.pull.letters >= letters:
        return _of_pull(cause.pull, cause, spec)
    much = [one for one in cause.shortfalls if 5 * one.letters >= letters][:_MOST_SAID]
    return "; ".join([*(_of_shortfall(one, spec) for one in much), *(f"or {way}" for way in _over(cause, spec))])


def _of_pull(pull: Pull, cause: Cause, spec: Spec) -> str:
    record = f"record {pull.seq} with the event time {Instant(pull.event_us)} UTC"
    if pull.ahead_us is not None and pull.ahead_us > 0 and pull.arrival_us is not None:
        record += f", which arrived at {Instant(pull.arrival_us)} UTC"
        far = f"{_about(pull.ahead_us)} ahead of their arrival: a clock is wrong"
    else:
        far = f"{_about(pull.behind_us)} ahead of half of the records that they shut out"
    who = f"records with {_who(pull.trait)} set the watermark" if pull.trait else "a few records set the watermark"
    is_single = 10 * pull.alone >= 9 * pull.of
    if is_single:
        who = f"record {pull.seq}{f', with {_who(pull.trait)},' if pull.trait else ''} set the watermark"
    share = 100 * pull.letters / pull.of
    found = f"{who} for {pull.letters:,} of {pull.of:,} late ones ({share:.0f} %), {far} (such as {record})"
    ways = [*_over(cause, spec), *_early(pull, spec), *(() if is_single else _wider(cause, spec))]
    if is_single:
        found += f'. The log without it: `tidemark rejudge SPEC --exclude {pull.seq} --reason "…"`'
    return f"{found}. Write {'; or '.join(ways)}" if ways else found


def in_two_lines(loss: Loss, cause: Cause, spec: Spec) -> tuple[str, ...]:
    """Say what was lost, and why and what to do about it."""
    return tuple(line for line in (in_words(loss), advice(cause, spec)) if line)


def lost_lately(workspace: Workspace) -> tuple[str, ...]:
    """Say in two lines what was lost of the newest day, as of the last commit; nothing where nothing was lost.

    It looks at the records since the day before the last batch, at most _MOST_RECORDS of them.
    """
    last = workspace.batches.last_commit("process") if workspace.exists else None
    if last is None:
        return ()
    log = LogTables(workspace, workspace.base_of, workspace.progress.processed_end())
    found = losses_since(log, last.plan.first_seq, workspace.spec.alerts.dead_letter_rate)
    if found.newest is None:
        return ()
    return in_two_lines(found.newest, cause_of(log, found.newest_letters), workspace.spec)


_LOSSES: WeakKeyDictionary[BatchWriter, Losses] = WeakKeyDictionary()


def losses_of(batch: BatchWriter) -> Losses:
    """Return what was lost up to the end of a batch whose tables are written; they are read once."""
    if batch not in _LOSSES:
        levels = batch.workspace.spec.alerts.dead_letter_rate
        _LOSSES[batch] = losses_since(tables_of(batch), batch.plan.first_seq, levels)
    return _LOSSES[batch]


_AROUND_BATCH: WeakKeyDictionary[BatchWriter, "Around"] = WeakKeyDictionary()


def cause_in(batch: BatchWriter, letters: pa.Table) -> Cause:
    """Return why the records of some of a batch's losses were lost; who is around them is read once."""
    log = tables_of(batch)
    if batch not in _AROUND_BATCH:
        _AROUND_BATCH[batch] = around_of(log, losses_of(batch).letters)
    return cause_of(log, letters, _AROUND_BATCH[batch])


def newest_lost(losses: Losses) -> int:
    """Return the `_arrival_seq` of the newest letter that the time of its event decides, else of the newest one."""
    letters = losses.letters
    of_time = letters.filter(pc.is_in(letters["reason"], pa.array([*map(str, OF_TIME)])))
    return int(pc.max((of_time if len(of_time) else letters)[c.SEQ]).as_py())


def tables_of(batch: BatchWriter) -> LogTables:
    """Return the tables as a batch leaves them."""
    return LogTables(batch.workspace, batch.workspace.lake.version, plan_end(batch.plan))


def lost_by(batch: BatchWriter) -> tuple[str, ...]:
    """Say in two lines what a batch lost of its records, whose tables are written; nothing where it lost none."""
    plan, letters = batch.plan, losses_of(batch).letters
    letters = letters.filter(pc.greater_equal(letters[c.SEQ], plan.first_seq))
    if not len(letters):
        return ()
    refused = refused_by(letters, None, np.zeros(len(letters), np.int64))["", 0]
    loss = Loss("", "", True, f"in batch {plan.batch_id}", records_in(plan), refused)
    return in_two_lines(loss, cause_in(batch, letters), batch.workspace.spec)


def _who(trait: Trait) -> str:
    if trait.column in (c.SOURCE, c.SPLIT):
        return f"the {trait.column.strip('_')} `{trait.value}`"
    return f"`{trait.column}` = `{trait.value}`"


def _about(us: int) -> str:
    return roughly(timedelta(microseconds=max(us, 0)))


def _over(cause: Cause, spec: Spec) -> Iterator[str]:
    """Propose a watermark for each value, unless there is one."""
    if cause.over is None or cause.over in spec.time.over or spec.uses_splits:
        return
    over = ", ".join([*spec.time.over, cause.over])
    others = [window.name for window in spec.event_windows if cause.over not in window.group_columns]
    then = f" (`group_by` of {', '.join(f'`{name}`' for name in others)} then needs it too)" if others else ""
    yield f"`time.over: [{over}]`, a watermark for each{then}"


def _early(pull: Pull, spec: Spec) -> Iterator[str]:
    """Propose that what is ahead of its arrival moves no watermark, by a tolerance that leaves out what is not."""
    least = rounded_up(max(tolerance_us(spec), 1_000_000))
    if pull.ahead_us is not None and 2 * micros(least) <= pull.ahead_us and spec.time.early is None:
        policy = f"{{tolerance: {format_duration(least)}, policy: keep}}"
        yield f"`time.early: {policy}`: what is further ahead of its arrival then moves no watermark"


def _wider(cause: Cause, spec: Spec) -> Iterator[str]:
    more = [one.more_us[LIKELY[-1]] for one in cause.shortfalls if one.more_us and one.reason.by_watermark]
    if more:
        yield f"{_key(spec, max(more))}, which lets in 99 % of them"


def _key(spec: Spec, more_us: int) -> str:
    wide = format_duration(rounded_up(tolerance_us(spec) + more_us))
    return f"`time.out_of_orderness: {wide}`"


def _of_shortfall(one: Shortfall, spec: Spec) -> str:
    """Say by how much letters of a reason missed their tolerance, and which would let them in."""
    reason, whose = one.reason, f", most of them with {_who(one.trait)}" if one.trait else ""
    many = f"{one.letters:,} {reason}{whose}"
    if reason in _OTHERWISE:
        return f"{many}: {_OTHERWISE[reason]}"
    if not one.more_us:
        return f"{many}: no tolerance would let them in, as a clock or a flush had closed what they belong to"
    key = {
        Reason.EARLY: ("time.early.tolerance", spec.time.early and spec.time.early.tolerance_us),
        Reason.LATE_ARRIVAL: ("time.late.tolerance", spec.time.late and spec.time.late.tolerance_us),
        Reason.OUT_OF_ORDER: ("time.out_of_orderness", tolerance_us(spec)),
        Reason.WINDOW_CLOSED: (f"allowed_lateness` of `{one.window}", _allowed_us(spec, one.window)),
    }[reason]
    half, most = (format_duration(rounded_up((key[1] or 0) + one.more_us[part])) for part in (LIKELY[0], LIKELY[-1]))
    name, _, of = key[0].partition("`")
    of = f" for{of[3:]}`" if of else ""
    lets = f"`{name}: {most}`{of} would let in 99 % of them" + (f", {half} half" if half != most else "")
    return f"{many}: {lets}"


def _allowed_us(spec: Spec, window: str) -> int:
    return next((one.allowed_lateness_us for one in spec.windows if one.name == window), 0)
