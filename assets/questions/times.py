"""The times of every processed record of the log, read from the tables: questions about time start from them.

Here: which tables and columns, and what Spark has to compute. Not here: judging them (timeops/figures/log_times.py).

Where the event time is a column of the log, or the arrival, the log has all times. Else event times and timelines are
read as the batches wrote them, into `ordered_events`, `held_events` and `dead_letters`, so no SQL of the spec is
computed again. Spark computes them where there are no such tables, or where the spec now means other event times by
these records.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.log.admissions import events_let_in
from tidemark.assets.log.control import END_OF_INPUT, TICK, WAIT, follows_waits, recorded, waiters_of, waits_up_to
from tidemark.assets.log.exclusions import PRESENT_CLOCK, Excluded, clocks_of, excluded, records_between
from tidemark.assets.log.retention import log_begins_at
from tidemark.assets.log.spec_changes import judged_otherwise, spec_of_batch
from tidemark.assets.schemas import as_declared, payload_of
from tidemark.assets.state.checkpoints import START, Checkpoint, checkpoints_of, state_at
from tidemark.assets.state.timelines import log_place
from tidemark.resources import tables
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.events.duplicates import with_duplicates
from tidemark.timeops.events.event_time import extract, gap_us
from tidemark.timeops.expressions.try_expression import Columns
from tidemark.timeops.figures.log_times import Item, JudgedTimes, LogStart, LogTimes, Stretch
from tidemark.timeops.rules.reasons import CODES, REASONS, Reason
from tidemark.timeops.rules.time_rules import Waiter
from tidemark.timeops.values.instants import NONE, Array, integers
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.timelines import STATE

_OF_EVENT_TIME = ("timestamp_by", "time_zone", "over", "deduplicate_by", "within", "schema", "rename", "split")
"""Keys of a spec, by their last part, that say which event time, timeline or split a record has."""
_UNKNOWN = -1


@dataclass(frozen=True)
class CommittedLog:
    """The log of a pipeline as of the last commit.

    Attributes:
        times: Its times.
        out: The changes that control items make to it.
        changed: The keys in which the spec, as it is now, judges records in another way than when they came.
    """

    times: LogTimes
    out: Excluded
    changed: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class PipelineLog:
    """All that was processed of a pipeline's log, judged by its spec; read when it is asked for first.

    Attributes:
        workspace: The pipeline, whose Spark starts only if SQL of the spec has to be computed.
    """

    workspace: Workspace
    _reached: dict[tuple[str, int], Item | None] = field(default_factory=dict, repr=False)

    @cached_property
    def committed(self) -> CommittedLog:
        """Its times, and the changes that were made to it."""
        return known_log(self.workspace)

    @cached_property
    def judged(self) -> JudgedTimes:
        """The log, judged by the spec as it is now."""
        return self.committed.times.judged(self.workspace.rules)

    @cached_property
    def flushes(self) -> list[int]:
        """The records after which the end of input was flushed."""
        return [int(item["_after_seq"]) for item in recorded(self.workspace, END_OF_INPUT)]

    def passed(self, timeline: str, wanted_us: int, seq: int) -> tuple[Item | None, bool]:
        """Return the item at which a watermark came to a value, or whether a flush went past it from a record on."""
        timeline_us = timeline, wanted_us
        if timeline_us not in self._reached:
            self._reached[timeline_us] = self.judged.reaching(timeline, wanted_us)
        item = self._reached[timeline_us]
        flush = next((flush_seq for flush_seq in self.flushes if flush_seq >= seq), None)
        if flush is not None and (item is None or (item.seq is not None and item.seq > flush)):
            return None, True
        return item, False


def known_log(workspace: Workspace) -> CommittedLog:
    """Read the times of every processed record of the log."""
    out, end_seq = excluded(workspace), workspace.progress.processed_end()
    begin, start = _begin_of(workspace)
    changed, times = judged_otherwise(workspace), None
    means_others = any(path.rpartition(".")[2] in _OF_EVENT_TIME for path in changed)
    if not means_others:  # then the batches wrote the spec's own times, and no SQL has to run
        times = _as_stored(workspace, out, end_seq) or _of_tables(workspace, out, end_seq)
    if times is None:
        times = _computed(workspace, end_seq)
    waits = frozenset[Waiter]() if start is None else start.waits.sources
    stretches = _stretches(workspace, begin, waits, end_seq)
    gaps = _gaps(workspace, begin.end_seq, end_seq, times.seq)
    return CommittedLog(replace(times, stretches=stretches, gaps=gaps, start=start), out, tuple(changed))


def _begin_of(workspace: Workspace) -> tuple[Checkpoint, LogStart | None]:
    """Return the checkpoint with which the log begins, and what the records before it have left; None for nothing."""
    begin_seq = log_begins_at(workspace)
    if not begin_seq:
        return START, None
    commits = {commit.batch_id: commit for commit in workspace.batches.history("process")}
    [*_, checkpoint] = [place for place in checkpoints_of(workspace) if place.end_seq == begin_seq]
    under = workspace.under(spec_of_batch(workspace, commits[checkpoint.batch_id]))
    state, waits = state_at(under, checkpoint).select(STATE.names), waits_up_to(workspace, checkpoint.batch_id)
    return checkpoint, LogStart(state, log_place(under, checkpoint.position), waits, under.rules)


def _gaps(workspace: Workspace, begin_seq: int, end_seq: int, seqs: Array) -> dict[str, Array]:
    """Return how long some records keep their sessions open, by window, where they say so themselves."""
    windows = [window for window in workspace.spec.windows if window.has_gap_of_records]
    if not windows:
        return {}
    count, zone = end_seq - begin_seq, workspace.rules.sources[0].time_zone
    workspace.tell(f"computing the gaps of {count:,} records")
    gaps = {window.name: np.full(count, NONE) for window in windows}
    frames = [as_declared(records_between(workspace, begin_seq, end_seq), payload_of(workspace), zone)]
    if (let_in := events_let_in(workspace)) is not None:  # which have the values of then
        frames.append(let_in)
    for frame in frames:
        columns = Columns.of(frame)
        rows = frame.selectExpr(c.SEQ, *[f"{gap_us(columns, window)} AS g{n}" for n, window in enumerate(windows)])
        computed_rows = rows.toArrow()
        for n, window in enumerate(windows):
            gaps[window.name][computed_rows[c.SEQ].to_numpy() - begin_seq] = integers(computed_rows[f"g{n}"])
    return {name: gap[seqs - begin_seq] for name, gap in gaps.items()}


def _stretches(workspace: Workspace, begin: Checkpoint, waits: frozenset[Waiter], end_seq: int) -> list[Stretch]:
    """Return the stretches of the log: between ticks where the clock moves watermarks, and changes of who waits.

    Args:
        workspace: The pipeline.
        begin: The log begins here.
        waits: The sources and splits that wait there.
        end_seq: The end of the processed records.
    """
    kinds = [*([TICK] if workspace.rules.clock_moves else []), *([WAIT] if follows_waits(workspace.spec) else [])]
    stretches, first = list[Stretch](), begin.end_seq
    for item in recorded(workspace, *kinds) if kinds else []:
        if item["_batch_id"] <= begin.batch_id:  # part of what the records before have left
            continue
        end = int(item["_after_seq"]) + 1
        if item["kind"] == TICK:
            stretches.append(Stretch(first, end, us_of(item["clock"]), waits))
        else:
            stretches.append(Stretch(first, end, None, waits))
            waits = waiters_of(item)
        first = end
    return [*stretches, Stretch(first, max(first, end_seq), None, waits)]


@dataclass
class _Rows:
    """Arrays of the log that are filled in whatever order its rows come, by `_arrival_seq`, from its first one on."""

    begin_seq: int
    end_seq: int

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return self.end_seq - self.begin_seq

    def __post_init__(self) -> None:
        numbers = ("event_us", "arrival_us", "clock_us")
        self.of = {name: np.full(self.count, NONE) for name in numbers}
        self.of["why"] = np.full(self.count, _UNKNOWN, np.int8)
        self.of |= {name: np.zeros(self.count, np.int32) for name in ("timeline", "source", "split")}
        self.names: dict[str, dict[str | None, int]] = {name: {} for name in ("timeline", "source", "split")}

    def put(self, name: str, seq: Array, column: pa.Array) -> None:
        """Put the values of a column: instants as numbers, texts as their place among all."""
        at = seq - self.begin_seq
        if name not in self.names:
            numbers = column.cast(pa.int64())
            self.of[name][at] = np.asarray(pc.fill_null(numbers, NONE))
            return
        coded = column.cast(pa.string()).dictionary_encode(null_encoding="encode")
        place_of = self.names[name]
        places = [place_of.setdefault(value, len(place_of)) for value in coded.dictionary.to_pylist()]
        if places:
            self.of[name][at] = np.array(places, np.int32)[np.asarray(coded.indices)]

    def put_why(self, seq: Array, code: Array | int) -> None:
        """Put what refused records, as CODES; 0 for nothing."""
        self.of["why"][seq - self.begin_seq] = code

    def take_over(self, name: str, places: Array, records: Array) -> None:
        """Set places of the log to what their present records have; a record that takes a place came after it."""
        are_here = places >= self.begin_seq
        places, records = places[are_here], records[are_here]
        self.of[name][places - self.begin_seq] = self.of[name][records - self.begin_seq]

    def times(self, seq: Array) -> LogTimes:
        """Return the rows with some numbers as the times of a log."""
        at = seq - self.begin_seq
        # Where no record is excluded nothing has to be copied.
        arrays = self.of if len(seq) == self.count else {name: values[at] for name, values in self.of.items()}
        timelines, sources, splits = (list(self.names[name]) for name in ("timeline", "source", "split"))
        return LogTimes(
            seq=seq,
            **arrays,
            timelines=[str(timeline) for timeline in timelines] or [c.ONE_TIMELINE],
            sources=[str(source) for source in sources],
            splits=splits or [None],
            stretches=(),
        )


def _of_tables(workspace: Workspace, out: Excluded, end_seq: int) -> LogTimes | None:
    """Return the times as batches wrote them; None where not all records are in the tables."""
    if not workspace.spec.outputs.ordered_events:
        return None
    rows, over = _log_rows(workspace, out, end_seq), workspace.spec.time.over
    columns = [c.SEQ, c.EVENT_TIME, *([c.TIMELINE] if over else [])]
    within = _within(rows)
    for table in (tables.ORDERED_EVENTS, tables.HELD_EVENTS):
        for piece in _pieces(workspace, table, columns, within):
            seq = piece[c.SEQ].to_numpy()
            rows.put("event_us", seq, piece[c.EVENT_TIME])
            rows.put_why(seq, 0)
            if over:
                rows.put("timeline", seq, piece[c.TIMELINE])
    _put_refused(workspace, rows)
    return _complete(rows, out)


def _within(rows: _Rows) -> Filters:
    return [(c.SEQ, ">=", rows.begin_seq), (c.SEQ, "<", rows.end_seq)]


def _complete(rows: _Rows, out: Excluded) -> LogTimes | None:
    """Return the times of the records that are part of the log; None where one did not come, as it was erased."""
    seq = np.arange(rows.begin_seq, rows.end_seq, dtype=np.int64)
    seq = np.setdiff1d(seq, out.seqs, assume_unique=True) if len(out.seqs) else seq
    return None if (rows.of["why"][seq - rows.begin_seq] == _UNKNOWN).any() else rows.times(seq)


def _put_refused(workspace: Workspace, rows: _Rows) -> None:
    """Put what the dead letters of ingestion and time say; rules 1 to 3 are judged again."""
    over, again = workspace.spec.time.over, [Reason.EARLY, Reason.LATE_ARRIVAL, Reason.OUT_OF_ORDER]
    columns = [c.SEQ, c.EVENT_TIME, "reason", *([c.TIMELINE] if over else [])]
    codes: dict[str | None, int] = {str(reason): 0 if reason in again else CODES[reason] for reason in REASONS}
    of_records: Filters = [*_within(rows), ("stage", "in", ["ingest", "time"])]
    for piece in _pieces(workspace, tables.DEAD_LETTERS, columns, of_records):
        seq = piece[c.SEQ].to_numpy()
        rows.put("event_us", seq, piece[c.EVENT_TIME])
        rows.put_why(seq, _coded(piece["reason"], codes))
        if over:
            # A record that ingestion refuses has no timeline yet.
            rows.put("timeline", seq, pc.fill_null(piece[c.TIMELINE].cast(pa.string()), c.ONE_TIMELINE))


def _log_rows(workspace: Workspace, out: Excluded, end_seq: int, *columns: str) -> _Rows:
    """Return what the log says of each record: its arrival, its clock, and with splits its source and split."""
    rows, uses_splits = _Rows(log_begins_at(workspace), end_seq), workspace.rules.uses_splits
    names = workspace.source_names
    log_columns = [c.SEQ, c.ARRIVAL, c.CLOCK, *([c.SOURCE, c.SPLIT] if uses_splits else [])]
    for piece in _pieces(workspace, tables.RAW_EVENTS, [*log_columns, *columns], _within(rows)):
        seq = piece[c.SEQ].to_numpy()
        rows.put("arrival_us", seq, piece[c.ARRIVAL])
        rows.put("clock_us", seq, piece[c.CLOCK])
        if uses_splits:
            sources = piece[c.SOURCE].cast(pa.string())
            # Rows keep the name that their source had then.
            rows.put("source", seq, pa.array([names.get(x, x) for x in sources.to_pylist()]) if names else sources)
            rows.put("split", seq, piece[c.SPLIT])
        if columns:
            rows.put("event_us", seq, piece[columns[0]])
            rows.put_why(seq, 0)
    if len(out.places):  # a record that took a place has the arrival and the clock of the place
        for name in ("source", "split"):
            rows.take_over(name, out.places, out.records)
    if out.clock_until > rows.begin_seq:
        clocks = clocks_of(workspace, rows.begin_seq, min(end_seq, out.clock_until), out)
        rows.put("clock_us", clocks[c.SEQ].to_numpy(), clocks[PRESENT_CLOCK].combine_chunks())
    return rows


def _as_stored(workspace: Workspace, out: Excluded, end_seq: int) -> LogTimes | None:
    """Return the times where the event time is a column of the log, or the arrival; else None."""
    by = {event_time.timestamp_by for event_time in workspace.rules.event_times}
    # The row at a place that was corrected still has the values of the record before.
    if len(by) > 1 or workspace.spec.time.over or len(out.places):
        return None
    [expression] = by
    name = c.ARRIVAL if expression is None else expression.strip("`")
    schema = workspace.lake.dataset(tables.RAW_EVENTS, workspace.base_of(tables.RAW_EVENTS)).schema
    if name not in schema.names or schema.field(name).type != pa.timestamp("us", "UTC"):
        return None
    rows = _log_rows(workspace, out, end_seq, name)
    _put_refused(workspace, rows)
    return _complete(rows, out)


def _computed(workspace: Workspace, end_seq: int) -> LogTimes:
    """Return the times that Spark computes of the log by the spec as it is now."""
    begin_seq = log_begins_at(workspace)
    workspace.tell(f"reading the times of {end_seq - begin_seq:,} records")
    rules, zone = workspace.rules, workspace.rules.sources[0].time_zone
    records = as_declared(records_between(workspace, begin_seq, end_seq), payload_of(workspace), zone)
    timed = extract(records, rules)
    if rules.time.deduplicate_by:
        timed = with_duplicates(timed, None, rules.time)
    columns = [c.SEQ, c.EVENT_TIME, c.ARRIVAL, c.CLOCK, c.REASON, c.TIMELINE, c.SOURCE, c.SPLIT]
    table, rows = timed.select(*columns).toArrow().combine_chunks(), _Rows(begin_seq, end_seq)
    seq = table[c.SEQ].to_numpy()
    instants = {"event_us": c.EVENT_TIME, "arrival_us": c.ARRIVAL, "clock_us": c.CLOCK}
    texts = {"timeline": c.TIMELINE, "source": c.SOURCE, "split": c.SPLIT}
    for name, column in (instants | texts).items():
        rows.put(name, seq, _one_chunk(table[column]))
    codes: dict[str | None, int] = {None: 0} | {str(reason): code for reason, code in CODES.items()}
    rows.put_why(seq, _coded(_one_chunk(table[c.REASON]), codes))
    return rows.times(np.sort(seq))


def _coded(texts: pa.Array, codes: Mapping[str | None, int]) -> Array:
    """Return the numbers that a mapping has for some texts."""
    coded = texts.cast(pa.string()).dictionary_encode(null_encoding="encode")
    numbers = np.array([codes[text] for text in coded.dictionary.to_pylist()], np.int8)
    return numbers[np.asarray(coded.indices)] if len(texts) else np.zeros(0, np.int8)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _pieces(workspace: Workspace, table: str, names: Sequence[str], which: Filters) -> Iterator[pa.RecordBatch]:
    return pieces(workspace.lake, table, workspace.base_of(table), names, which)
