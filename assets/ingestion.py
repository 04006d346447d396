"""Ingestion: new records of the sources get their arrival time, their place in the log and their number, once.

Here: from what a source reads to rows of `raw_events`. Not here: which files are read (waiting_input.py), how they
are found and parsed (resources/sources), what becomes of a record's event time.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial, reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from tidemark.assets.batch import FEW_RECORDS, BatchWriter
from tidemark.assets.corrections import PLACE, PLACE_ARRIVAL, Correction, correction_of, item_of
from tidemark.assets.exclusions import ranges_of
from tidemark.assets.log_control import FUTURE_ARRIVAL, control_item, write_items
from tidemark.assets.planning import at_work, begin
from tidemark.assets.schemas import fit_tables, payload_of
from tidemark.assets.spec_changes import note_of
from tidemark.assets.state.files import write_states
from tidemark.assets.unknown_columns import first_met, met_by
from tidemark.assets.waiting_input import Waiting, waiting_input
from tidemark.resources import tables
from tidemark.resources.batches.plans import LAST_ARRIVAL, LAST_SEEN, IngestInput, Plan
from tidemark.resources.delta.files import Piece
from tidemark.resources.places.place import Place
from tidemark.resources.sources.kinds import reader_of
from tidemark.resources.sources.known_files import FileRange, FileState
from tidemark.resources.sources.parquet_files import Stretch, pieces_of, stretches_in_order
from tidemark.resources.sources.reader import SourceRead
from tidemark.resources.sources.records import SPARK_FAILURES, cause_of, is_of_a_file, schema_in_input, split_of
from tidemark.resources.sources.table_versions import reading_place
from tidemark.resources.spark.frames import small_frame
from tidemark.resources.spark.numbering import PART, Counted, Numbered, numbered, numbered_as_they_lie
from tidemark.resources.spark.session import tuned_for_few_rows
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.durations import roughly
from tidemark.timeops.errors import InputError, MachineError, UnfitFilesError
from tidemark.timeops.events.event_time import BAD, FAILED, US, with_instant
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.rules import waiters_to_json
from tidemark.timeops.session import computes_here
from tidemark.timeops.spec import Source, Spec
from tidemark.timeops.utc import us_of
from tidemark.timeops.watermark.alignment import LastArrival

_A = "__tm_arrival_us"
_AHEAD = "__tm_ahead_us"  # how far ahead of the machine's clock it was; null where the arrival is as it was read
_CAME = "__tm_came_us"  # where tables are read: when a version was committed, of files the arrival of the record
_NOT_ONE = pa.table(
    {c.SOURCE: pa.array([], pa.string()), c.SEQ: pa.array([], pa.int64()), PLACE: pa.array([], pa.int64())}
)
_NOT_AHEAD = pa.table({c.SEQ: pa.array([], pa.int64()), _AHEAD: pa.array([], pa.int64())})
_FEW_BYTES = 4_000_000  # of files: how many records they hold is not known before they are read


@dataclass(frozen=True)
class Ingested:
    """The result of one ingestion.

    Attributes:
        found: All that the sources had.
        records: Records added to the log.
        before_start: Records that arrived before what `time.start_at` asks for, and were left out.
        files: Files read.
        versions: Versions of tables that were read.
        offsets: Offsets of Kafka that were read; an offset need not have a record.
        first_met: A sentence for each source with new columns that no `schema` names.
        corrections: A sentence for each version of a table that has corrected records of the log.
    """

    found: Waiting
    records: int = 0
    before_start: int = 0
    files: int = 0
    versions: int = 0
    offsets: int = 0
    first_met: tuple[str, ...] = ()
    corrections: tuple[str, ...] = ()

    def then(self, more: "Ingested") -> "Ingested":
        """Return what both this one and one after it did."""
        names = [field.name for field in fields(self) if field.name != "found"]
        both: dict[str, Any] = {name: getattr(self, name) + getattr(more, name) for name in names}
        return Ingested(more.found, **both)


def ingest(workspace: Workspace, run_id: str, *, reread: bool = False, end_of_input: str | None = None) -> Ingested:
    """Read what is waiting into the log, in one batch of its own; files that cannot be read are held back.

    Raises:
        InputError: A source cannot be read as the spec says; nothing was written.
        BusyError: Another run is at work.
    """
    # The batch is begun on what the look saw: if another run has read the same input meanwhile, this one is refused.
    with workspace.batches.as_of_now():
        waiting, is_new = waiting_input(workspace, reread=reread, end_of_input=end_of_input), False
        while waiting.has_news or is_new:
            try:
                return _ingest(workspace, run_id, waiting)
            except UnfitFilesError as error:
                waiting = waiting.without_unfit(workspace.spec, error.errors)
                is_new = True  # to remember they are bad
                what = "files or versions" if workspace.spec.reads_tables else "files"
                workspace.tell(f"{len(error.errors)} of the {what} cannot be read: continuing without them")
        return Ingested(waiting)


def _ingest(workspace: Workspace, run_id: str, waiting: Waiting) -> Ingested:
    """Read files into the log in one batch.

    Raises:
        UnfitFilesError: Some of the files, or versions, cannot be read; nothing was written.
    """
    workspace.tell(f"reading {_what(waiting)}")
    last = workspace.batches.last_commit()
    seqs = (workspace.progress.log_end(), None)
    plan = begin(workspace, run_id, "ingest", _input_of(workspace, waiting).to_json(), after=last, seqs=seqs)
    is_small = waiting.size <= _FEW_BYTES
    with at_work(workspace, plan), tuned_for_few_rows(workspace.spark) if is_small else nullcontext():
        workspace.prepare(plan)
        fit_tables(workspace)
        payload = payload_of(workspace)
        needs_place = any(look.needs_place for look in waiting.by_source.values())
        reading = reading_place(workspace.folder) if needs_place else nullcontext(workspace.folder)
        with _naming_bad_files(workspace, waiting), reading as place:
            read = _read_sources(workspace, plan, waiting, payload, place)
            records, before_start = _from_start(read.records, workspace.spec.time.read_from_us)
            count = None if read.count is None else read.count - before_start
            read = replace(read, records=records, count=count)
            rows, clocks, placed = _write_log(workspace, plan, waiting, read, payload)
        write_states(workspace, plan, read.states)
        items = [
            item_of(workspace, correction, placed.taken, plan.first_seq + rows) for correction in read.corrections
        ]
        items += _future_arrivals(placed.ahead, plan.first_seq + rows)
        if items:
            write_items(workspace, plan, items)
        n = waiting.counts
        others = {"versions": n["version"], "offsets": n["offset"], "taken": len(placed.taken)}
        some = {name: count for name, count in others.items() if count}
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


def _what(waiting: Waiting) -> str:
    parts = [f"{n:,} {what}{'' if n == 1 else 's'}" for what, n in waiting.counts.items() if n]
    return " and ".join(parts) or "nothing new: only noting what the sources have"


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
        records: The records of all sources, with arrival, source and split.
        states: What to remember of files, with the name of the source of each.
        corrections: The corrections that versions of tables make.
        corrects: Whether a version may make one: then some records take the places of others.
        files: The files of each source, as they are read.
        count: Number of records, where each source knows it before Spark reads them.
    """

    records: DataFrame
    states: Sequence[tuple[str, FileState]]
    corrections: Sequence[Correction]
    corrects: bool
    files: Mapping[str, Sequence[FileRange]]
    count: int | None


def _read_sources(workspace: Workspace, plan: Plan, waiting: Waiting, payload: StructType, place: Place) -> _Read:
    frames: list[DataFrame] = []
    states: list[tuple[str, FileState]] = []
    corrections: list[Correction] = []
    corrects, files, counts = False, dict[str, Sequence[FileRange]](), list[int | None]()
    for source, time in zip(workspace.spec.sources, workspace.rules.sources, strict=True):
        look = waiting.by_source[source.name]
        read = reader_of(source, workspace.file.folder).read(workspace.spark, look, place, time.time_zone)
        if read.corrects is not None:
            version, before = read.corrects
            workspace.tell(f"comparing {version.path} with the log")
            corrected = correction_of(workspace, source, version, read.records, before)
            corrections += [] if corrected.is_none else [corrected]
            read, corrects = replace(read, records=corrected.of(read.records)), True
        states += [(source.name, state) for state in read.states]
        files[source.name] = read.files
        if look.is_ready or not frames:
            timed = _with_arrival(read, source, time.time_zone, us_of(plan.planned_at))
            frames.append(_of_source(timed, source, payload, reads_tables=workspace.spec.reads_tables))
            counts.append(read.count)
    count = None if None in counts else sum(count for count in counts if count is not None)
    return _Read(reduce(DataFrame.unionByName, frames), states, corrections, corrects, files, count)


def _of_source(records: DataFrame, source: Source, payload: StructType, *, reads_tables: bool) -> DataFrame:
    split = split_of(records, source)
    if source.split is not None:
        split = F.when(F.col(c.MALFORMED).isNull(), split)
    missing = {field.name: F.lit(None).cast(field.dataType) for field in payload if field.name not in records.columns}
    came = {_CAME: c.to_us("_modified") if source.record_order is None else F.col(_A)} if reads_tables else {}
    if reads_tables:
        came[PLACE] = F.col(PLACE) if PLACE in records.columns else F.lit(None).cast("bigint")
    whole = records.withColumns({c.SOURCE: F.lit(source.name), c.SPLIT: split, **missing, **came})
    place = (c.SOURCE, c.SPLIT, c.POSITION, c.FILE, c.MALFORMED)
    return whole.selectExpr(*map(quoted, payload.names), _A, _AHEAD, *came, *place)


def _from_start(records: DataFrame, from_us: int | None) -> tuple[DataFrame, int]:
    """Keep the records that arrived at an instant or later, or have no arrival; count the others."""
    if from_us is None:
        return records, 0
    is_before = F.coalesce(F.col(_A) < F.lit(from_us), F.lit(False))
    return records.where(~is_before), records.where(is_before).count()


@dataclass(frozen=True)
class _Placed:
    """Records of an ingestion that have something particular about their place in the log.

    Attributes:
        taken: The records in places of others: `_source`, `_arrival_seq`, PLACE.
        ahead: The records that arrived ahead of the machine's clock: `_arrival_seq`, _AHEAD.
    """

    taken: pa.Table
    ahead: pa.Table


def _future_arrivals(ahead: pa.Table, end_seq: int) -> list[dict[str, Any]]:
    """Return the control item of records that arrived ahead of the machine's clock, and so at their ingestion."""
    if not len(ahead):
        return []
    seqs, furthest = np.sort(ahead[c.SEQ].to_numpy()), timedelta(microseconds=pc.max(ahead[_AHEAD]).as_py())
    many = f"{len(seqs):,} record{'' if len(seqs) == 1 else 's'}"
    why = f"{many} arrived up to {roughly(furthest)} ahead of this machine's clock"
    argument = json.dumps({"records": ranges_of(seqs)}, separators=(",", ":"))
    return [control_item(end_seq - 1, FUTURE_ARRIVAL, why, argument=argument)]


def _write_log(
    workspace: Workspace, plan: Plan, waiting: Waiting, read: _Read, payload: StructType
) -> tuple[int, dict[str, int], _Placed]:
    """Write the records, numbered.

    Returns:
        Their number, the first and the last clock of the log if there is one, records with a particular place.
    """
    spec = workspace.spec
    before_us, first_us = workspace.progress.log_clock_us(), workspace.progress.first_clock_us()
    now_us = us_of(plan.planned_at)
    stretches = _stretches(workspace, read, now_us)
    by_arrival = stretches is not None or (not spec.reads_tables and order_of(spec) == "arrival_time")
    with _numbered(workspace, plan, read, stretches) as log:
        highest = [us for us in (before_us, *log.highest.values()) if us is not None]
        clock_us = max(highest, default=None)
        _ensure_unchanged(waiting)  # by now every record has been counted, and none is stored yet
        _ensure_whole(read, log.rows)
        if log.rows:
            clock = F.timestamp_micros(_clock(log, before_us, clock_us, by_arrival=by_arrival))
            columns = {c.ARRIVAL: c.to_instant(_A), c.CLOCK: clock, c.BATCH: BatchWriter(workspace, plan).stamp}
            rows = log.frame.withColumns(columns).selectExpr(*map(quoted, payload.names), *c.LOG_COLUMNS)
            if first_us is None:
                lowest = F.min(c.to_us(c.CLOCK)).alias("lowest")
                first_us = log.lowest if by_arrival else rows.agg(lowest).collect()[0]["lowest"]
            expect = workspace.ready(tables.RAW_EVENTS, plan)
            pieces = _pieces(workspace, plan, stretches or (), payload, before_us)
            if not pieces or not _is_copied(workspace, plan, pieces, expect):
                few = log.rows <= FEW_RECORDS
                workspace.lake.append(tables.RAW_EVENTS, rows, attempt=plan.attempt, expect=expect, are_few=few)
            _ensure_unchanged(waiting)  # they were read once more
        new = replace(log, frame=log.frame.where(F.col(PLACE).isNull())) if read.corrects else log
        arrivals = _last_arrivals(workspace, plan, new, stretches, is_whole=not read.corrects)
        placed = _Placed(_NOT_ONE, _NOT_AHEAD)
        if read.corrects and log.rows:
            taken = log.frame.where(F.col(PLACE).isNotNull()).select(c.SOURCE, c.SEQ, PLACE).toArrow()
            placed = replace(placed, taken=taken)
        if any(us is not None and us >= now_us for us in log.highest.values()):
            # Nearly never: it reads all of the input once more.
            placed = replace(placed, ahead=log.frame.where(F.col(_AHEAD).isNotNull()).select(c.SEQ, _AHEAD).toArrow())
    clocks = {"clock_us": clock_us, "first_clock_us": first_us}
    return log.rows, {name: us for name, us in clocks.items() if us is not None} | arrivals, placed


def _pieces(
    workspace: Workspace, plan: Plan, stretches: Sequence[Stretch], payload: StructType, before_us: int | None
) -> list[Piece]:
    """Return what Arrow copies into the log; nothing if Spark has to read the files.

    On a cluster Spark reads them: this process may be far from the files, and has fewer cores.
    """
    spark, spec = workspace.spark, workspace.spec
    if not stretches or not computes_here(spark):
        return []
    sources = {
        source.name: (source, schema_in_input(spark, source), time.time_zone)
        for source, time in zip(spec.files, workspace.rules.sources, strict=True)
    }
    pieces = pieces_of(stretches, sources, payload, plan.first_seq)
    return [partial(piece.batches, before_us=before_us, batch_id=plan.batch_id) for piece in pieces or ()]


def _is_copied(workspace: Workspace, plan: Plan, pieces: Sequence[Piece], expect: int) -> bool:
    """Write the log by Arrow; where a value does not fit, nothing, as Spark says what is wrong, or reads it."""
    try:
        workspace.lake.append_pieces(tables.RAW_EVENTS, pieces, attempt=plan.attempt, expect=expect)
    except pa.ArrowException:
        return False
    return True


def _ensure_unchanged(waiting: Waiting) -> None:
    """Check that the input is still as it was found; it may have been changed or removed since."""
    for look in waiting.by_source.values():
        look.ensure_unchanged()


def _ensure_whole(read: _Read, rows: int) -> None:
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


def _stretches(workspace: Workspace, read: _Read, now_us: int) -> list[Stretch] | None:
    """Return the files one after the other if their records are in the order of the log; otherwise None.

    None too where some arrived too far ahead of the machine's clock.
    """
    spec = workspace.spec
    if not spec.reads_files_only:
        return None
    files = [(source, read.files[source.name]) for source in spec.files]
    by_arrival = order_of(spec) == "arrival_time"
    stretches = stretches_in_order(files, by_arrival=by_arrival, time_zone=spec.time.time_zone)
    from_us = spec.time.read_from_us
    bounds_us = {source.name: source.future_arrival_us for source in spec.sources}
    ahead = [(stretch.last_us - now_us, bounds_us[stretch.source]) for stretch in stretches or ()]
    if any(most_us is not None and us > most_us for us, most_us in ahead):
        return None
    if stretches is None or from_us is None:
        return stretches
    is_whole = all(stretch.first_us >= from_us for stretch in stretches)  # otherwise some records are left out
    return stretches if is_whole else None


def _numbered(
    workspace: Workspace, plan: Plan, read: _Read, stretches: Sequence[Stretch] | None
) -> AbstractContextManager[Numbered]:
    """Number the records in the order of the stretches; without stretches they are sorted.

    Where tables are read, the time of the version comes first, then the place that a record takes. Then they are in
    the order of arrival, untimed ones last, if the spec says so, and then by place in the files.
    """
    if stretches is None:
        spec = workspace.spec
        by_arrival, came = order_of(spec) == "arrival_time", _CAME if spec.reads_tables else _A
        first = [_CAME, PLACE] if spec.reads_tables else []
        first += [_A] if by_arrival else []
        order = [F.col(name).asc_nulls_last() for name in first]
        place = (F.col(c.FILE), F.col(c.SOURCE), F.col(c.POSITION))  # two sources may have files of one name
        texts = [file for source in spec.sources if source.is_text for file in read.files[source.name]]
        return numbered(
            read.records,
            (*order, *place),
            start=plan.first_seq,
            name=c.SEQ,
            instant_us=came if by_arrival else None,
            measure=F.col(_A),
            is_costly=any(file.read_as != "parquet" for file in texts),
        )
    rows = [(stretch.source, stretch.name, number) for number, stretch in enumerate(stretches)]
    table = small_frame(workspace.spark, rows, f"{c.SOURCE} STRING, {c.FILE} STRING, {PART} INT")
    parts = [
        Counted(number, stretch.rows, stretch.last_us, stretch.first_us) for number, stretch in enumerate(stretches)
    ]
    placed, at = read.records.join(F.broadcast(table), [c.SOURCE, c.FILE]), F.col(c.POSITION) - F.lit(1)
    return nullcontext(numbered_as_they_lie(placed, at, parts, start=plan.first_seq, name=c.SEQ))


def _last_arrivals(
    workspace: Workspace, plan: Plan, log: Numbered, stretches: Sequence[Stretch] | None, *, is_whole: bool
) -> dict[str, int]:
    """Return the last arrival of each source and when it was seen: in this ingestion, else in an earlier one.

    Only ticks need it, and they do not exist if a source has a time of its own.
    """
    sources = workspace.spec.sources
    if not all(source.follows_wall_clock for source in sources):
        return {}
    came: dict[str, int | None]
    if stretches is not None:
        came = {stretch.source: stretch.last_us for stretch in sorted(stretches, key=lambda stretch: stretch.last_us)}
    elif len(sources) == 1 and is_whole:
        came = {sources[0].name: max((us for us in log.highest.values() if us is not None), default=None)}
    else:
        by_source = log.frame.groupBy(c.SOURCE).agg(F.max(_A).alias("arrival_us"))
        came = {row[c.SOURCE]: row["arrival_us"] for row in by_source.collect()}
    counts: dict[str, int] = {}
    for name, before in workspace.progress.last_arrivals().items():
        arrival_us = came.get(name)
        last = before if arrival_us is None else LastArrival(arrival_us, us_of(plan.planned_at))
        if last is not None:
            counts |= {f"{LAST_ARRIVAL}.{name}": last.arrival_us, f"{LAST_SEEN}.{name}": last.seen_us}
    return counts


def _with_arrival(read: SourceRead, source: Source, time_zone: str, now_us: int) -> DataFrame:
    """Add the arrival time in microseconds, and _AHEAD; null if it is not in the years 0001 to 9999.

    It is null if the expression returns null or the record is malformed. It is also null if the time of a broker, of
    a table's log or of a file system is not in these years.

    A record that arrived further ahead of the machine's clock than `future_arrival` arrives at `now_us`.
    """
    timed, most_us = _own_arrival(read, source, time_zone), source.future_arrival_us
    ahead = F.lit(None).cast("bigint") if most_us is None else F.col(_A) - F.lit(now_us)
    timed = timed.withColumn(_AHEAD, F.when(ahead > F.lit(most_us or 0), ahead))
    timed = timed.withColumn(_A, F.when(F.col(_AHEAD).isNull(), F.col(_A)).otherwise(F.lit(now_us)))
    if PLACE not in read.records.columns:
        return timed
    # A record that takes a place takes its arrival too: it does not move the clock, nor become late by coming later.
    is_new = F.col(PLACE).isNull()
    timed = timed.withColumn(_AHEAD, F.when(is_new, F.col(_AHEAD)))
    return timed.withColumn(_A, F.when(is_new, F.col(_A)).otherwise(F.col(PLACE_ARRIVAL)))


def _own_arrival(read: SourceRead, source: Source, time_zone: str) -> DataFrame:
    if source.arrival_time is None:
        came = c.to_us("_modified")
        is_told = came.between(c.MIN_US, c.MAX_US)
        if read.untimed:
            is_told &= ~F.substring_index(c.FILE, "/", 1).isin(*read.untimed)
        return read.records.withColumn(_A, F.when(is_told, came))
    where = f"sources[{source.name}].arrival_time"
    timed = with_instant(read.records, source.arrival_time, time_zone, where=where)
    return timed.withColumn(_A, F.when(F.col(c.MALFORMED).isNull(), F.col(US))).drop(US, FAILED, BAD)


def _clock(log: Numbered, before_us: int | None, clock_us: int | None, *, by_arrival: bool) -> Column:
    """Return the running maximum of arrival over the whole log."""
    before = F.lit(before_us).cast("bigint")
    if by_arrival:  # the records are sorted by arrival, so it is their own, or that of the log before them
        return F.greatest(before, F.coalesce(F.col(_A), F.lit(clock_us).cast("bigint")))
    earlier: list[Column] = []
    reached = before_us
    for number, highest in log.highest.items():
        earlier += [F.lit(number), F.lit(reached).cast("bigint")]
        reached = max((us for us in (reached, highest) if us is not None), default=None)
    in_part = Window.partitionBy(PART).orderBy(c.SEQ)
    return F.greatest(F.element_at(F.create_map(*earlier), F.col(PART)), F.max(_A).over(in_part))
