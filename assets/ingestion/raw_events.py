"""Ingestion: new records of the sources get their arrival time, their place in the log and their number, once.

Here: from what a source reads to rows of `raw_events`: the order of the records of one ingestion, by keys that are
narrow columns, and the clock of the log. Not here: which files are read (assets/ingestion/waiting_input.py), how they
are found and parsed (resources/sources), what becomes of a record's event time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cached_property, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.assets.batch import BatchWriter
from tidemark.assets.ingestion.waiting_input import Waiting, first_met, met_by, waiting_input
from tidemark.assets.log.control import FUTURE_ARRIVAL, control_item, write_items
from tidemark.assets.log.corrections import REPLACED_ARRIVAL, REPLACED_SEQ, Correction, correction_of, item_of
from tidemark.assets.log.exclusions import ranges_of
from tidemark.assets.log.spec_changes import note_of
from tidemark.assets.planning import at_work, begin
from tidemark.assets.schemas import fit_tables, payload_of
from tidemark.assets.state.files import write_states
from tidemark.resources import tables
from tidemark.resources.batches.plans import LAST_ARRIVAL, LAST_SEEN, IngestInput, Plan
from tidemark.resources.delta.files import Piece
from tidemark.resources.delta.ordering import Aside, ByRank, Places, Rows, in_order, set_aside
from tidemark.resources.delta.versions import NO_ROWS
from tidemark.resources.places.place import Place
from tidemark.resources.sources.file_records import PlainFile
from tidemark.resources.sources.files import FilesFound
from tidemark.resources.sources.kinds import reader_of
from tidemark.resources.sources.known_files import FileRange, FileState
from tidemark.resources.sources.reader import SourceRead
from tidemark.resources.sources.records import SPARK_FAILURES, cause_of, is_of_a_file, split_of
from tidemark.resources.sources.table_versions import reading_place
from tidemark.resources.spark.amount import Amount
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import InputError, MachineError, UnfitFilesError
from tidemark.timeops.events.event_time import BAD, FAILED, US, with_instant
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.rules.time_rules import waiters_to_json
from tidemark.timeops.spec import Source, Spec
from tidemark.timeops.values.durations import roughly
from tidemark.timeops.values.instants import NONE, Array, integers, no_numbers
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.alignment import LastArrival

ARRIVAL_US = "__tm_arrival_us"
CAME_US = "__tm_came_us"
"""Where tables are read: when a version was committed; null for other records, which come when they arrive."""
KEYS = (ARRIVAL_US, c.SOURCE, c.FILE, c.POSITION)
"""The columns that put records in order; where tables are read, CAME_US and REPLACED_SEQ are two more."""
_TEXTS = (c.SOURCE, c.FILE)

_LAST = np.iinfo(np.int64).max  # of a key without a value, which comes after all others


@dataclass(frozen=True)
class Ingested:
    """The result of one ingestion.

    Attributes:
        input_seen: All that the sources had.
        records: Records added to the log.
        before_start: Records that arrived before what `time.start_at` asks for, and were left out.
        files: Files read.
        versions: Versions of tables that were read.
        offsets: Offsets of Kafka that were read; an offset need not have a record.
        first_met: A sentence for each source with new columns that no `schema` names.
        corrections: A sentence for each version of a table that has corrected records of the log.
    """

    input_seen: Waiting
    records: int = 0
    before_start: int = 0
    files: int = 0
    versions: int = 0
    offsets: int = 0
    first_met: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()

    def then(self, other: "Ingested") -> "Ingested":
        """Return the sum of this ingestion and the next."""
        names = [field.name for field in fields(self) if field.name != "input_seen"]
        both: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in names}
        return Ingested(other.input_seen, **both)


def ingest(workspace: Workspace, run_id: str, *, reread: bool = False, end_of_input: str | None = None) -> Ingested:
    """Read what is waiting into the log, in one batch of its own; files that cannot be read are held back.

    Raises:
        InputError: A source cannot be read as the spec says; nothing was written.
        BusyError: Another run is at work.
    """
    # The batch is based on this view of the sources: if another run has read the same input since, it is refused.
    with workspace.batches.as_of_now():
        waiting, has_unfit_files = waiting_input(workspace, reread=reread, end_of_input=end_of_input), False
        while waiting.has_news or has_unfit_files:
            try:
                return _ingest(workspace, run_id, waiting)
            except UnfitFilesError as error:
                waiting = waiting.without_unfit(workspace.spec, error.errors)
                has_unfit_files = True  # to remember they are bad
                inputs = "files or versions" if workspace.spec.reads_tables else "files"
                workspace.tell(f"{len(error.errors)} of the {inputs} cannot be read: continuing without them")
        return Ingested(waiting)


def _ingest(workspace: Workspace, run_id: str, waiting: Waiting) -> Ingested:
    """Read files into the log in one batch.

    Raises:
        UnfitFilesError: Some of the files, or versions, cannot be read; nothing was written.
    """
    workspace.tell(f"reading {_input_in_words(waiting)}")
    last = workspace.batches.last_commit()
    seqs = (workspace.progress.log_end(), None)
    plan = begin(workspace, run_id, "ingest", _input_of(workspace, waiting).to_json(), after=last, seqs=seqs)
    with at_work(workspace, plan), Amount.of_bytes(waiting.size).tuned(workspace.session):
        workspace.prepare(plan)
        fit_tables(workspace)
        payload = payload_of(workspace)
        needs_place = any(look.needs_place for look in waiting.by_source.values())
        reading = reading_place(workspace.folder) if needs_place else nullcontext(workspace.folder)
        with _naming_bad_files(workspace, waiting), reading as place:
            read = _read_sources(workspace, waiting, payload, place)
            log = _write_log(workspace, plan, waiting, read)
        rows, replacements = len(log), log.replacements()
        before_start, clocks = len(log.records) - rows, _clocks(workspace, plan, log)
        write_states(workspace, plan, read.states)
        items = [
            item_of(workspace, correction, replacements, plan.first_seq + rows) for correction in read.corrections
        ]
        items += _future_arrivals(log)
        if items:
            write_items(workspace, plan, items)
        n = waiting.counts
        inputs = {"versions": n["version"], "offsets": n["offset"], "taken": len(replacements)}
        some = {name: count for name, count in inputs.items() if count}
        counts = {"records": rows, "files": n["file"], **some, "before_start": before_start, **clocks}
        versions = workspace.outputs(plan)
        workspace.batches.commit(plan, counts, versions, workspace.clock.now(), end_seq=plan.first_seq + rows)
    return Ingested(
        waiting,
        rows,
        before_start,
        n["file"],
        n["version"],
        n["offset"],
        tuple(first_met(workspace.spec, plan)),
        tuple(item["reason"] for item in items),
    )


def _input_of(workspace: Workspace, waiting: Waiting) -> IngestInput:
    noted: dict[str, Any] = {"files": {name: [] for name in waiting.by_source}}
    for source in workspace.spec.sources:
        reader, look = reader_of(source, workspace.file.folder), waiting.by_source[source.name]
        for key, value in reader.remember(look).items():
            noted.setdefault(key, {})[source.name] = value
    columns, fresh = met_by(workspace, waiting)
    return IngestInput(
        spec_file=note_of(workspace),
        waits=waiters_to_json(waiting.waiters),
        held_back=waiting.held_by_source,
        unknown_columns=columns,
        first_met=fresh,
        **noted,
    )


def _input_in_words(waiting: Waiting) -> str:
    parts = [f"{n:,} {noun}{'' if n == 1 else 's'}" for noun, n in waiting.counts.items() if n]
    return " and ".join(parts) or "nothing new: only noting what the sources have"


# Reading the sources.


@contextmanager
def _naming_bad_files(workspace: Workspace, waiting: Waiting) -> Iterator[None]:
    """Find the files that are to blame if reading fails at the content of a file.

    Raises:
        UnfitFilesError: Some of the files cannot be read; nothing of any was stored.
    """
    try:
        yield
    except SPARK_FAILURES as error:
        if not is_of_a_file(error):
            raise
        workspace.tell("a file cannot be read: looking which")
        errors: dict[str, InputError] = {}
        for source in workspace.spec.sources:
            reader = reader_of(source, workspace.file.folder)
            errors |= reader.to_blame(workspace.spark, waiting.by_source[source.name])
        if errors:
            raise UnfitFilesError("\n".join(map(str, errors.values())), errors=errors) from error
        if not waiting.tables:
            raise
        raise InputError(
            f"A file of {' or '.join(waiting.tables)} cannot be read: {cause_of(error)}",
            expected="files that are whole and undamaged; nothing was ingested",
            remedy="restore the file, or pass over its version with `start_version`",
        ) from error


@dataclass(frozen=True)
class _Read:
    """The records that an ingestion reads.

    Attributes:
        payload: The payload columns of the log.
        sources: Each source with its local zone, and what was read of it.
        corrections: The corrections that versions of tables make.
    """

    payload: StructType
    sources: Sequence[tuple[Source, str, SourceRead]]
    corrections: Sequence[Correction]

    @property
    def states(self) -> list[tuple[str, FileState]]:
        """The states of files to remember, with the name of the source of each."""
        return [(source.name, state) for source, _, read in self.sources for state in read.states]

    @property
    def plain(self) -> list[PlainFile]:
        """The files that Arrow reads."""
        return [file for *_, read in self.sources for file in read.plain]

    @property
    def count(self) -> int | None:
        """The number of records that Spark reads, where each source knows it before."""
        counts = [read.count for *_, read in self.sources]
        return None if None in counts else sum(count for count in counts if count is not None)

    @property
    def records(self) -> DataFrame:
        """The records that Spark reads, with arrival, source and split."""
        has_tables = any(source.record_order is None for source, *_ in self.sources)
        frames = [
            _of_source(_with_arrival(read, source, zone), source, self.payload, reads_tables=has_tables)
            for source, zone, read in self.sources
            if read.count != 0
        ]
        return reduce(DataFrame.unionByName, frames)

    def leaving(self, files: Sequence[PlainFile]) -> "_Read":
        """Return the same with some of the plain files left to Spark."""
        return replace(self, sources=[(source, zone, read.leaving(files)) for source, zone, read in self.sources])


def _read_sources(workspace: Workspace, waiting: Waiting, payload: StructType, place: Place) -> _Read:
    sources: list[tuple[Source, str, SourceRead]] = []
    corrections: list[Correction] = []
    for source, time in zip(workspace.spec.sources, workspace.rules.sources, strict=True):
        look = waiting.by_source[source.name]
        read = reader_of(source, workspace.file.folder).read(workspace.spark, look, place, time.time_zone)
        if read.corrects is not None:
            version, earlier_records = read.corrects
            workspace.tell(f"comparing {version.path} with the log")
            corrected = correction_of(workspace, source, version, read.records, earlier_records)
            corrections += [] if corrected.is_none else [corrected]
            read = replace(read, records=corrected.of(read.records))
        sources.append((source, time.time_zone, read if look.is_ready else replace(read, count=0)))
    return _Read(payload, sources, corrections)


def _of_source(records: DataFrame, source: Source, payload: StructType, *, reads_tables: bool) -> DataFrame:
    split = split_of(records, source)
    if source.split is not None:
        split = F.when(F.col(c.MALFORMED).isNull(), split)
    missing = {field.name: F.lit(None).cast(field.dataType) for field in payload if field.name not in records.columns}
    place_columns, none = dict[str, Column](), F.lit(None).cast("bigint")
    if reads_tables:
        place_columns[CAME_US] = c.to_us("_modified") if source.record_order is None else none
        place_columns[REPLACED_SEQ] = F.col(REPLACED_SEQ) if REPLACED_SEQ in records.columns else none
    completed = records.withColumns({c.SOURCE: F.lit(source.name), c.SPLIT: split, **missing, **place_columns})
    place = (c.SOURCE, c.SPLIT, c.POSITION, c.FILE, c.MALFORMED)
    return completed.selectExpr(*map(quoted, payload.names), ARRIVAL_US, *place_columns, *place)


# The order of the records, and their numbers.


def no_keys(names: Sequence[str]) -> pa.Table:
    """Return the keys of no record."""
    return pa.schema([(name, pa.string() if name in _TEXTS else pa.int64()) for name in names]).empty_table()


@dataclass(frozen=True, eq=False)
class Records:
    """The records of an ingestion as they lie, and their keys.

    Attributes:
        parts: The records: payload columns, and the columns of the log that say where a record was read.
        by_file: Where they lie, in the order of file, source and position there.
        arrival: Microseconds; NONE for none.
        source: The place of its source in `sources`.
        sources: Names of the sources.
        place: The place that a record takes; NONE for a new one. Empty where no tables are read.
        version_time_us: CAME_US; empty where no tables are read.
        ahead: The records, by where they lie, that arrived too far ahead of the machine's clock, and so arrive now.
        ahead_us: How far ahead each of them was.
    """

    parts: Sequence[Rows]
    by_file: Places
    arrival: Array
    source: NDArray[np.int16]
    sources: Sequence[str]
    place: Array = field(default_factory=no_numbers)
    version_time_us: Array = field(default_factory=no_numbers)
    ahead: Places = field(default_factory=no_numbers)
    ahead_us: Array = field(default_factory=no_numbers)

    @staticmethod
    def of(files: Sequence[PlainFile], parts: Sequence[Rows], keys: pa.Table) -> "Records":
        """Return the records of files, which lie in order there, and after them others with KEYS and more."""
        files = sorted(files, key=lambda file: (file.name.encode(), file.source.encode(), file.before))
        counts = [len(file.arrival) for file in files]
        # Only the first record of a file is sorted among the others: they are all before it or after its last one.
        runs = np.concatenate([counts, np.ones(len(keys), np.int64)]).astype(np.int64)
        sources, source = _ranked_texts(pa.array([file.source for file in files], pa.string()), keys[c.SOURCE])
        _, name = _ranked_texts(pa.array([file.name for file in files], pa.string()), keys[c.FILE])
        position = np.concatenate(
            [np.array([file.before + 1 for file in files], np.int64), integers(keys[c.POSITION])]
        )
        of_tables = {
            key: np.concatenate([np.full(sum(counts), NONE), integers(keys[key])])
            for key in (REPLACED_SEQ, CAME_US)
            if key in keys.column_names
        }
        return Records(
            [*(file.rows for file in files), *parts],
            _lined_up(np.lexsort([position, source, name]), runs),
            np.concatenate([*(file.arrival for file in files), integers(keys[ARRIVAL_US])]),
            np.repeat(source.astype(np.int16), runs),
            sources,
            of_tables.get(REPLACED_SEQ, no_numbers()),
            of_tables.get(CAME_US, no_numbers()),
        )

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.arrival)

    @cached_property
    def are_new(self) -> NDArray[np.bool_]:
        """True of a record that is new, and takes no other one's place."""
        return self.place == NONE if len(self.place) else np.ones(len(self), bool)

    def arrived_by(self, now_us: int, most_us: Mapping[str, int | None]) -> "Records":
        """Return the records as they arrive: one that is too far ahead of the machine's clock arrives now.

        A record that takes a place has its arrival too, whenever that is.

        Args:
            now_us: The machine's clock.
            most_us: By source, how far ahead of it a record may arrive; None for any distance.
        """
        if self.arrival.max(initial=NONE) <= now_us:
            return self
        bounds = np.array([_LAST if (us := most_us[name]) is None else now_us + us for name in self.sources])
        ahead = np.flatnonzero((self.arrival > bounds[self.source]) & self.are_new)
        arrival = self.arrival.copy()
        arrival[ahead] = now_us
        return replace(self, arrival=arrival, ahead=ahead, ahead_us=self.arrival[ahead] - now_us)

    def order_in_log(self, *, by_arrival: bool, from_us: int | None) -> Places:
        """Return the places of the records in the order of the log, without the ones before an instant.

        Where tables are read, the time of the version comes first, then the place that a record takes. Then they are
        in the order of arrival, untimed ones last, if the spec says so, and then by file and place there. Two sources
        may have files of one name.
        """
        keys = [_none_last(self.arrival)] if by_arrival else []
        if len(self.place):
            keys += [
                _none_last(self.place),
                np.where(self.version_time_us == NONE, _none_last(self.arrival), self.version_time_us),
            ]
        order = _sorted(self.by_file, keys)
        if from_us is None:
            return order
        arrival = self.arrival[order]
        return np.asarray(order[(arrival == NONE) | (arrival >= from_us)])


def _lined_up(order: Places, counts: Array) -> Places:
    """Return the places of runs of records, one run after the other, in an order of the runs."""
    small = np.int32 if counts.sum() <= np.iinfo(np.int32).max else np.int64
    begins, counts = (np.cumsum(counts) - counts)[order], counts[order]
    places = np.repeat((begins - (np.cumsum(counts) - counts)).astype(small), counts)
    places += np.arange(len(places), dtype=small)
    return places


def _sorted(places: Places, keys: Sequence[Array]) -> Places:
    """Return the places of records in the order of keys, the last key first; ties stay as they are."""
    in_turn = [key[places] for key in keys]
    are_sorted = not keys or (len(keys) == 1 and bool((in_turn[0][1:] >= in_turn[0][:-1]).all()))
    return places if are_sorted else places[np.lexsort(in_turn)]


def _none_last(key: Array) -> Array:
    return np.where(key == NONE, _LAST, key) if len(key) and key.min() == NONE else key


def _ranked_texts(first: pa.Array, other_texts: pa.ChunkedArray) -> tuple[list[str], NDArray[np.int32]]:
    """Return different texts in the order of their bytes, and the place of each text among them; -1 for null."""
    texts = pa.chunked_array([first.dictionary_encode(), *other_texts.dictionary_encode().chunks])
    chunks = texts.unify_dictionaries().chunks
    names = chunks[0].dictionary.to_pylist()
    ranks = np.empty(len(names) + 1, np.int32)
    order = sorted(range(len(names)), key=lambda number: names[number].encode())
    ranks[order], ranks[-1] = np.arange(len(names)), -1
    indices = [np.asarray(pc.fill_null(chunk.indices, len(names))) for chunk in chunks]
    return [names[number] for number in order], ranks[np.concatenate(indices)]


@dataclass(frozen=True, eq=False)
class NumberedLog:
    """Records in the order of the log; instants are microseconds, NONE for none.

    Attributes:
        records: All that were read.
        order: The places of the ones that enter the log, in its order.
        first_seq: The `_arrival_seq` of the first.
        before_us: The clock of the log before them; None for none.
    """

    records: Records
    order: Places
    first_seq: int
    before_us: int | None

    def __len__(self) -> int:
        """Return how many records enter the log."""
        return len(self.order)

    @cached_property
    def clock(self) -> Array:
        """The clock of the log at each: the latest arrival so far."""
        start = NONE if self.before_us is None else self.before_us
        clock = self.records.arrival[self.order]
        np.maximum.accumulate(clock, out=clock)
        return np.maximum(clock, start, out=clock)

    @property
    def last_clock_us(self) -> int | None:
        """The clock of the log after them."""
        return int(self.clock[-1]) if len(self) and self.clock[-1] != NONE else self.before_us

    @property
    def first_clock_us(self) -> int | None:
        """The first clock of the log at one of them."""
        first = int(np.searchsorted(self.clock, NONE, side="right"))  # NONE is the least number
        return int(self.clock[first]) if first < len(self) else None

    def last_arrivals(self) -> Mapping[str, int]:
        """Return the latest arrival of new records by source, where there is one."""
        is_new = self.records.are_new[self.order]
        source, arrival = self.records.source[self.order][is_new], self.records.arrival[self.order][is_new]
        last = {name: int(arrival[source == s].max(initial=NONE)) for s, name in enumerate(self.records.sources)}
        return {name: us for name, us in last.items() if us != NONE}

    def ahead(self) -> tuple[Places, int]:
        """Return the numbers of the records in `Records.ahead`, in order, and how far ahead the furthest one was."""
        is_ahead = np.isin(self.order, self.records.ahead)
        in_log = np.isin(self.records.ahead, self.order)
        return self.first_seq + np.flatnonzero(is_ahead), int(self.records.ahead_us[in_log].max(initial=0))

    def replacements(self) -> pa.Table:
        """Return the records in the places of others: `_source`, `_arrival_seq`, REPLACED_SEQ."""
        ranks = np.flatnonzero(~self.records.are_new[self.order])
        at = self.order[ranks]
        names = pa.array(self.records.sources, pa.string()).take(pa.array(self.records.source[at]))
        places = self.records.place[at] if len(self.records.place) else np.zeros(0, np.int64)
        return pa.table({c.SOURCE: names, c.SEQ: self.first_seq + ranks, REPLACED_SEQ: places})

    def pieces(self, batch_id: int) -> list[Piece]:
        """Return the rows of `raw_events`."""
        columns: ByRank = {
            c.SEQ: lambda ranks: pa.array(self.first_seq + np.arange(ranks.start, ranks.stop)),
            c.ARRIVAL: lambda ranks: _instants(self.records.arrival[self.order[ranks]]),
            c.CLOCK: lambda ranks: _instants(self.clock[ranks]),
            c.BATCH: lambda ranks: pa.repeat(pa.scalar(batch_id, pa.int64()), ranks.stop - ranks.start),
        }
        return in_order(self.records.parts, self.order, columns)


def _instants(us: Array) -> pa.Array:
    return pa.array(us, mask=us == NONE)


# Writing the log.


def _future_arrivals(log: NumberedLog) -> list[dict[str, Any]]:
    """Return the control item of records that arrived ahead of the machine's clock, and so at their ingestion."""
    seqs, furthest_us = log.ahead()
    if not len(seqs):
        return []
    many = f"{len(seqs):,} record{'' if len(seqs) == 1 else 's'}"
    why = f"{many} arrived up to {roughly(timedelta(microseconds=furthest_us))} ahead of this machine's clock"
    argument = json.dumps({"records": ranges_of(seqs)}, separators=(",", ":"))
    return [control_item(log.first_seq + len(log) - 1, FUTURE_ARRIVAL, why, argument=argument)]


def _write_log(workspace: Workspace, plan: Plan, waiting: Waiting, read: _Read) -> NumberedLog:
    """Write the records, numbered; return them."""
    before_us, writer = workspace.progress.log_clock_us(), BatchWriter(workspace, plan)
    while True:
        try:
            with _numbered(workspace, plan, read, waiting.size, before_us) as (log, by_spark):
                _ensure_unchanged(waiting)  # by now every record has been counted, and none is stored yet
                _ensure_all_rows_read(read, by_spark)
                writer.replace_pieces(tables.RAW_EVENTS, log.pieces(plan.batch_id), where=NO_ROWS)
                _ensure_unchanged(waiting)  # they may have been read once more
            return log
        except (pa.ArrowException, OSError):
            schema = workspace.lake.dataset(tables.RAW_EVENTS, None).schema
            unfit_files = [file for file in read.plain if not file.can_be_read(schema)]
            if not unfit_files:
                raise
            read = read.leaving(unfit_files)  # Spark says what is wrong with a value or a file, or reads it


@contextmanager
def _numbered(
    workspace: Workspace, plan: Plan, read: _Read, size: int, before_us: int | None
) -> Iterator[tuple[NumberedLog, int]]:
    """Yield records in the order of the log, and how many of them Spark has read.

    Args:
        workspace: The pipeline.
        plan: The ingestion.
        read: What it reads.
        size: Bytes of that.
        before_us: The clock of the log before it; None for none.
    """
    spec = workspace.spec
    names = [*KEYS, *([CAME_US, REPLACED_SEQ] if spec.reads_tables else [])]
    most_us = {source.name: source.future_arrival_us for source in spec.sources}
    by_spark = (
        nullcontext(Aside((), no_keys))
        if read.count == 0
        else set_aside(read.records, workspace.folder, Amount.of_bytes(size))
    )
    with by_spark as aside:
        keys = aside.narrow(names)
        arrived = Records.of(read.plain, aside.parts, keys).arrived_by(us_of(plan.planned_at), most_us)
        order = arrived.order_in_log(by_arrival=order_of(spec) == "arrival_time", from_us=spec.time.read_from_us)
        yield NumberedLog(arrived, order, plan.first_seq, before_us), len(keys)


@contextmanager
def read_again(
    workspace: Workspace, plan: Plan, files: Mapping[str, Sequence[FileRange]], before_us: int | None
) -> Iterator[NumberedLog]:
    """Yield the records that an ingestion has read from files, read from them again; nothing is written.

    Args:
        workspace: The pipeline.
        plan: The ingestion, which has read nothing but files.
        files: What it has read, by source.
        before_us: The clock of the log before it; None for none.

    Raises:
        InputError: A file cannot be read.
    """
    sources = tuple(source for source in workspace.spec.sources if source.name in files)
    narrowed = workspace.under(workspace.spec.model_copy(update={"sources": sources}))
    waiting = Waiting({name: FilesFound(ready=tuple(ranges), needs_copies=True) for name, ranges in files.items()})
    with reading_place(workspace.folder) as place:
        read = _read_sources(narrowed, waiting, payload_of(workspace), place)
        schema = workspace.lake.dataset(tables.RAW_EVENTS, workspace.base_of(tables.RAW_EVENTS)).schema
        read = read.leaving([file for file in read.plain if not file.can_be_read(schema)])
        with _numbered(narrowed, plan, read, waiting.size, before_us) as (log, _):
            yield log


def _clocks(workspace: Workspace, plan: Plan, log: NumberedLog) -> dict[str, int]:
    """Return the first and the last clock of the log if there is one, and the last arrivals."""
    first_us = workspace.progress.first_clock_us()
    clocks = {
        "clock_us": log.last_clock_us,
        "first_clock_us": log.first_clock_us if first_us is None else first_us,
    }
    return {name: us for name, us in clocks.items() if us is not None} | _last_arrivals(workspace, plan, log)


def _ensure_unchanged(waiting: Waiting) -> None:
    """Check that the input is still as it was found; it may have been changed or removed since."""
    for look in waiting.by_source.values():
        look.ensure_unchanged()


def _ensure_all_rows_read(read: _Read, rows: int) -> None:
    """Check that Spark has returned each record that was fetched for it, and no other.

    Raises:
        MachineError: It has not; nothing was ingested.
    """
    if read.count not in (None, rows):
        raise MachineError(
            f"{read.count:,} records were fetched and copied to files, and Spark read {rows:,} from them; nothing "
            "was ingested",
            expected="a Spark that reads files as they are, without `spark.sql.files.ignoreMissingFiles` or "
            "`spark.sql.files.ignoreCorruptFiles`",
            remedy="run again: the run reads the same records",
        )


def order_of(spec: Spec) -> str:
    """Return the order of the records of one ingestion; with records of tables it is that of arrival."""
    return spec.sources[0].record_order or "arrival_time"


def _last_arrivals(workspace: Workspace, plan: Plan, log: NumberedLog) -> dict[str, int]:
    """Return the last arrival of each source and when it was seen: in this ingestion, else in an earlier one.

    Only ticks need it, and they do not exist if a source has a time of its own.
    """
    if not all(source.follows_wall_clock for source in workspace.spec.sources):
        return {}
    arrivals, counts = log.last_arrivals(), dict[str, int]()
    for name, earlier in workspace.progress.last_arrivals().items():
        arrival_us = arrivals.get(name)
        last = earlier if arrival_us is None else LastArrival(arrival_us, us_of(plan.planned_at))
        if last is not None:
            counts |= {f"{LAST_ARRIVAL}.{name}": last.arrival_us, f"{LAST_SEEN}.{name}": last.seen_us}
    return counts


def _with_arrival(read: SourceRead, source: Source, time_zone: str) -> DataFrame:
    """Add the arrival time in microseconds; null if it is not in the years 0001 to 9999.

    It is null if the expression returns null or the record is malformed. It is also null if the time of a broker, of
    a table's log or of a file system is not in these years.
    """
    timed = _own_arrival(read, source, time_zone)
    if REPLACED_SEQ not in read.records.columns:
        return timed
    # A record that takes a place takes its arrival too: a correction neither moves the clock nor counts as late.
    arrival = F.when(F.col(REPLACED_SEQ).isNull(), F.col(ARRIVAL_US)).otherwise(F.col(REPLACED_ARRIVAL))
    return timed.withColumn(ARRIVAL_US, arrival)


def _own_arrival(read: SourceRead, source: Source, time_zone: str) -> DataFrame:
    if source.arrival_time is None:
        modified_us = c.to_us("_modified")
        is_in_range = modified_us.between(c.MIN_US, c.MAX_US)
        if read.untimed:
            is_in_range &= ~F.substring_index(c.FILE, "/", 1).isin(*read.untimed)
        return read.records.withColumn(ARRIVAL_US, F.when(is_in_range, modified_us))
    where = f"sources[{source.name}].arrival_time"
    timed = with_instant(read.records, source.arrival_time, time_zone, where=where)
    return timed.withColumn(ARRIVAL_US, F.when(F.col(c.MALFORMED).isNull(), F.col(US))).drop(US, FAILED, BAD)
