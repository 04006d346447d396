"""Lost records of the log, read again from the input files that are still as they were read.

Here: which ingestion read them from which files, the proof that the same records come again, and their new files. Not
here: reading and numbering records (assets/ingestion/raw_events.py), which files of the log are lost
(assets/audit/files.py).

Records are put in order again with all others of their ingestion, so they get the numbers that they had. What is left
of the ingestion in the log has to come again with the same numbers, and the clock has to end where it ended; else
nothing is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.audit.findings import Finding, some
from tidemark.assets.audit.log import clocks_before
from tidemark.assets.ingestion.raw_events import NumberedLog, read_again
from tidemark.assets.state.files import states_of
from tidemark.resources import tables
from tidemark.resources.batches.plans import LOG_CLOCK, Commit, IngestInput
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.delta.files import Piece
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.resources.sources.known_files import FileRange, read_before
from tidemark.resources.sources.local_files import fixed_folder
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource

_COMPARED = (c.SEQ, c.ARRIVAL, c.CLOCK, c.SOURCE, c.SPLIT, c.POSITION)


@dataclass(frozen=True)
class LostRecords:
    """Records of the log that cannot be read again.

    Attributes:
        seqs: The first and the last.
        why: Why not, with the file or source.
    """

    seqs: tuple[int, int]
    why: str

    def __str__(self) -> str:
        """Return it as a sentence without its full stop."""
        first, last = self.seqs
        return f"records {some(range(first, last + 1))} are lost: {self.why}"


@dataclass(frozen=True)
class IngestionToRepeat:
    """An ingestion whose records, or some of them, are read again.

    Attributes:
        commit: The ingestion.
        files: The files that it had read, by source.
        before_us: The clock of the log before it.
    """

    commit: Commit
    files: Mapping[str, Sequence[FileRange]]
    before_us: int | None

    @property
    def paths(self) -> list[str]:
        """The files."""
        return [file.path for ranges in self.files.values() for file in ranges]


def readings_for(workspace: Workspace, finding: Finding) -> list[IngestionToRepeat] | LostRecords:
    """Return the ingestions that hold the records of a lost file of the log, if their input is still there."""
    assert finding.seqs is not None
    first, last = finding.seqs
    readings, before_us = list[IngestionToRepeat](), clocks_before(workspace)
    for commit in workspace.batches.history("ingest"):
        if commit.plan.first_seq > last or plan_end(commit.plan) <= first:
            continue
        try:
            readings.append(IngestionToRepeat(commit, _files_of(workspace, commit), before_us[commit.batch_id]))
        except InputError as error:
            seqs = max(first, commit.plan.first_seq), min(last, plan_end(commit.plan) - 1)
            return LostRecords(seqs, str(error.found))
    return readings


def _files_of(workspace: Workspace, commit: Commit) -> Mapping[str, Sequence[FileRange]]:
    """Return what an ingestion has read.

    Raises:
        InputError: It has read something else than files, or a file is not as it was.
    """
    ingest, states = IngestInput.of(commit.plan), states_of(workspace, commit.batch_id)
    for name in (*ingest.versions, *ingest.offsets):
        if ingest.versions.get(name) or ingest.offsets.get(name):
            raise InputError(f"source {name} is not read from files, and is not read again")
    ranges: dict[str, list[FileRange]] = {}
    sources = {source.name: source for source in workspace.spec.sources}
    for name, files in workspace.by_source(ingest.files).items():
        source = sources.get(name)
        if files and not isinstance(source, FilesSource):
            raise InputError(f"the spec has no source {name} of files any more")
        for path, skip_lines, size in files:
            assert isinstance(source, FilesSource)  # see above
            state = next((state for state in states if state.place == path and state.size == size), None)
            if state is None:
                raise InputError(f"`{tables.FILES}` does not remember {path}")
            folder = fixed_folder(source.path, workspace.file.folder)
            ranges.setdefault(name, []).append(read_before(source, folder, state, int(skip_lines)))
    return ranges


def mend_log(
    workspace: Workspace,
    finding: Finding,
    readings: Sequence[IngestionToRepeat],
    lost_ranges: Sequence[tuple[int, int]],
) -> LostRecords | None:
    """Read the records of a lost file of the log again, and name a new file with them; return what stays lost.

    Args:
        workspace: The pipeline.
        finding: The file.
        readings: The ingestions that its records are of.
        lost_ranges: The records that the log lacks, of this file and of others.

    Raises:
        InputError: A file cannot be read any more.
        ConflictError: Another program writes the log.
    """
    assert finding.seqs is not None
    first, last = finding.seqs
    with ExitStack() as stack:
        new: list[Piece] = []
        for reading in readings:
            plan = reading.commit.plan
            log = stack.enter_context(read_again(workspace, plan, reading.files, reading.before_us))
            if why := _differs(workspace, reading, log, lost_ranges):
                return LostRecords((max(first, plan.first_seq), min(last, plan_end(plan) - 1)), why)
            new += [partial(_some_rows, piece, first, last) for piece in log.pieces(reading.commit.batch_id)]
        workspace.lake.mend(tables.RAW_EVENTS, new, [finding.file])
    return None


def _some_rows(piece: Piece, first: int, last: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a piece that are in a range of the log."""
    for batch in piece(schema):
        seqs = batch[c.SEQ]
        yield batch.filter(pc.and_(pc.greater_equal(seqs, first), pc.less_equal(seqs, last)))


def _differs(
    workspace: Workspace, reading: IngestionToRepeat, log: NumberedLog, lost_ranges: Sequence[tuple[int, int]]
) -> str:
    """Return how records that were read again differ from what the log has of them; empty if they do not."""
    plan, counts, of_files = reading.commit.plan, reading.commit.counts, ", ".join(reading.paths)
    if len(log) != records_in(plan):
        return f"{len(log):,} records come of {of_files} now, and {records_in(plan):,} did"
    if log.last_clock_us != counts.get(LOG_CLOCK):
        return f"the records of {of_files} arrive at other times now"
    version = workspace.base_of(tables.RAW_EVENTS)
    stored: pa.Schema = workspace.lake.dataset(tables.RAW_EVENTS, version).schema
    schema = pa.schema([stored.field(name) for name in _COMPARED])
    left, again = list[pa.RecordBatch](), list[pa.RecordBatch]()
    for piece in log.pieces(reading.commit.batch_id):
        again += [batch.select(_COMPARED) for batch in piece(stored)]
    rows = pa.Table.from_batches(again, schema)
    for first, last in lost_ranges:
        rows = rows.filter(pc.or_(pc.less(rows[c.SEQ], first), pc.greater(rows[c.SEQ], last)))
    for first, end in _between(plan.first_seq, plan_end(plan), lost_ranges):
        within: Filters = [(c.SEQ, ">=", first), (c.SEQ, "<", end)]
        left += pieces(workspace.lake, tables.RAW_EVENTS, version, _COMPARED, within)
    if not pa.Table.from_batches(left, schema).sort_by(c.SEQ).equals(rows.sort_by(c.SEQ)):
        return f"other records come of {of_files} now than the log still has of them"
    return ""


def _between(first: int, end: int, lost_ranges: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range of the log without some ranges, each with its first number and its end."""
    for lost_first, lost_last in sorted(lost_ranges):
        if first < min(lost_first, end):
            yield first, min(lost_first, end)
        first = max(first, lost_last + 1)
    if first < end:
        yield first, end
