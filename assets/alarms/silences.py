"""Silences of a pipeline: read from its tables, and said in words.

Here: which rows say when a device or a source came. Not here: the rule (timeops/figures/silences.py), the alert
(assets/alarms/alerts.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow as pa

from tidemark.assets.alarms.losses.log_tables import LogTables
from tidemark.resources import tables
from tidemark.resources.batches.plans import LAST_ARRIVAL
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.figures.silences import CLOCK, SEEN, VALUE, Habit, habits_of, silent_of
from tidemark.timeops.spec import Spec
from tidemark.timeops.values.durations import roughly
from tidemark.timeops.values.utc import Instant, us_of

_BATCHES = 200
"""Only so many of the newest batches are looked at: each is a file to open."""
_MOST_RECORDS = 1_000_000
"""Only among so many of the newest records is the last one of a silent device looked up."""
_MOST_NAMED = 5


@dataclass(frozen=True)
class Silent:
    """A value that is silent; lengths and instants in microseconds.

    Attributes:
        who: Whose value it is, and the value, in words.
        silence_us: For how long it has been silent.
        longest_us: For how long it was silent before, at most.
        last_us: When its last record arrived.
        seq: That record; None where it is not known.
    """

    who: str
    silence_us: int
    longest_us: int
    last_us: int
    seq: int | None = None

    @property
    def in_words(self) -> str:
        """Who is silent, for how long, and since when."""
        record = "record" if self.seq is None else f"record {self.seq}"
        return (
            f"{self.who} has sent nothing for {_length(self.silence_us)} by the clock of the log; it was never "
            f"silent for longer than {_length(self.longest_us)} before; last {record} at {Instant(self.last_us)} UTC"
        )


def may_be_silent(spec: Spec) -> bool:
    """Return whether there are several devices or sources, so that one can be silent while others are not."""
    return bool(spec.time.over) or len(spec.sources) > 1


def silences_after(log: LogTables, batch_id: int, clock_us: int | None) -> tuple[list[Silent], int]:
    """Return who is silent after a batch with that clock, sources first, and among how many it was looked for."""
    if clock_us is None or not may_be_silent(log.workspace.spec):
        return [], 0
    sources = habits_of(_sources_seen(log.workspace, batch_id, clock_us))
    silences = [
        Silent(f"the source `{habit.value}`", habit.silence_us(clock_us), habit.longest_us, habit.last_us)
        for habit in silent_of(sources, clock_us)
    ]
    devices = habits_of(_timelines_seen(log, batch_id)) if log.workspace.spec.time.over else []
    return [*silences, *_confirmed(log, devices, clock_us)], len(sources) + len(devices)


def silences_in_words(silences: Sequence[Silent]) -> str:
    """Say who is silent."""
    ending = [f"and {len(silences) - _MOST_NAMED:,} more"] if len(silences) > _MOST_NAMED else []
    return "; ".join([*(silence.in_words for silence in silences[:_MOST_NAMED]), *ending])


def _length(us: int) -> str:
    return roughly(timedelta(microseconds=us))


def _sources_seen(workspace: Workspace, batch_id: int, clock_us: int) -> pa.Table:
    """Return when each of several sources had arrivals, as SEEN; noted where no source has a time of its own."""
    names = {source.name for source in workspace.spec.sources}
    if len(names) == 1:
        return SEEN.empty_table()
    rows: list[dict[str, object]] = []
    for commit in workspace.progress.read.history("ingest", after_batch=batch_id - _BATCHES):
        for name, us in workspace.by_source(commit.counts.by_source(LAST_ARRIVAL)).items():
            if name in names:
                rows.append({VALUE: name, CLOCK: min(us, clock_us)})  # records may wait to be judged
    return pa.Table.from_pylist(rows, schema=SEEN)


def _timelines_seen(log: LogTables, batch_id: int) -> pa.Table:
    """Return after which batches each value of `over` had newer events, as SEEN."""
    newest: Filters = [(c.BATCH, ">", batch_id - _BATCHES), (c.BATCH, "<=", batch_id)]
    rows = [
        pa.table([piece[c.TIMELINE], piece["clock"].cast(pa.int64())], schema=SEEN)
        for piece in log.pieces(tables.WATERMARKS, [c.TIMELINE, "clock"], newest)
    ]
    return pa.concat_tables([SEEN.empty_table(), *rows]).drop_null()  # the row of the pipeline has no value


def _confirmed(log: LogTables, habits: list[Habit], clock_us: int) -> Iterator[Silent]:
    """Yield the silent values of `over`, with their last records: what came late has moved no watermark."""
    suspects = silent_of(habits, clock_us)
    last = _last_records(log, suspects) if suspects else {}
    for habit in suspects:
        seq, last_us = last.get(habit.value, (None, habit.last_us))
        if replace(habit, last_us=max(habit.last_us, last_us)).is_silent(clock_us):
            yield Silent(f"`{habit.value}`", clock_us - last_us, habit.longest_us, last_us, seq)


def _last_records(log: LogTables, suspects: Sequence[Habit]) -> dict[str, tuple[int, int]]:
    """Return the last record of each value and its arrival, where it is among the newest records."""
    which: Filters = [
        (c.TIMELINE, "in", [habit.value for habit in suspects]),
        (c.SEQ, ">=", log.end_seq - _MOST_RECORDS),
        (c.SEQ, "<", log.end_seq),
        # Files with earlier arrivals alone are not opened.
        (c.ARRIVAL, ">=", Instant(min(habit.last_us - habit.longest_us for habit in suspects))),
    ]
    newest: dict[str, tuple[int, int]] = {}
    events = (tables.ORDERED_EVENTS, tables.HELD_EVENTS) if log.workspace.spec.outputs.ordered_events else ()
    for table in (*events, tables.DEAD_LETTERS):
        for piece in log.pieces(table, [c.TIMELINE, c.SEQ, c.ARRIVAL], which):
            for row in piece.to_pylist():
                last = row[c.SEQ], us_of(row[c.ARRIVAL])
                newest[row[c.TIMELINE]] = max(newest.get(row[c.TIMELINE], last), last)
    return newest
