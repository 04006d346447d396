"""Files as a source: the files that an ingestion reads, and files that wait.

Here: choosing files, and holding unreadable ones back; no Spark. Not here: their records
(resources/sources/file_records.py), one file and its remembered state (resources/sources/known_files.py), paths and
bytes (resources/sources/local_files.py), whether a file fits (resources/sources/columns.py).
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tidemark.resources.places.place import Place, RemotePath
from tidemark.resources.sources.columns import Columns, check_csv, check_json, check_parquet
from tidemark.resources.sources.known_files import (
    NOT_READ_YET,
    Candidate,
    Check,
    FileOutcome,
    FileRange,
    FileState,
    KnownFiles,
    Looked,
    Unfinished,
    begins_as,
    candidate,
    counted,
    ensure_unchanged,
    has_lines,
    look_into,
    part_to_read,
    state_of,
    unchanged,
)
from tidemark.resources.sources.local_files import check_key, fixed_folder, has_wildcard, matching_files, name_of
from tidemark.resources.sources.reader import Found, HeldBack, Known, SourceRead, SourceReader
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource
from tidemark.timeops.values.durations import format_duration, micros
from tidemark.timeops.values.utc import Instant, us_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class FilesFound(Found):
    """The findings in a source's folder.

    Attributes:
        ready: Files to be read now, in path order.
        touched: Known files with a new modification time and the same bytes: states to remember.
        copies: States to remember of files with the same bytes as another one that was read or is ready; they are not
            read.
        needs_copies: Whether the files have lines, which are read from copies, see resources/sources/lines.py.
    """

    PART: ClassVar[str] = "file"

    ready: tuple[FileRange, ...] = ()
    touched: tuple[FileState, ...] = ()
    copies: tuple[FileState, ...] = ()
    needs_copies: bool = False

    @property
    def parts(self) -> tuple[FileRange, ...]:
        """The files."""
        return self.ready

    @property
    def files(self) -> tuple[FileRange, ...]:
        """The files."""
        return self.ready

    @property
    def is_work(self) -> bool:
        """Return whether there are files to read, or copies to remember."""
        return bool(self.ready or self.copies)

    @property
    def has_news(self) -> bool:
        """Return whether there is something to read or to remember."""
        return bool(self.ready or self.touched or self.copies)

    @property
    def needs_place(self) -> bool:
        """Return whether files are copied."""
        return self.needs_copies

    @property
    def columns(self) -> Columns:
        """The columns of files that the source does not name."""
        return tuple(column for file in self.ready for column in file.unknown)

    def all_left(self) -> "FilesFound":
        """Return the findings if no file is read now; copies may be of files that wait."""
        return replace(self, ready=(), copies=(), left=self.new, ahead=self.new)

    def without(self, held: Sequence[HeldBack]) -> "FilesFound":
        """Return the findings without files that could not be read; their copies are looked at later."""
        paths = {file.path for file in held}
        names = {file.name for file in self.ready if file.path in paths}
        ready = tuple(file for file in self.ready if file.path not in paths)
        copies = tuple(copy for copy in self.copies if copy.copy_of not in names)
        errors = (*self.errors, *(file.error for file in held))
        return replace(self, ready=ready, copies=copies, errors=errors, held=(*self.held, *held))

    def ensure_unchanged(self) -> None:
        """Check that the files are unchanged."""
        ensure_unchanged(self.ready)


_NO_SKEW_US = micros(timedelta(days=1))
"""A file that is dated further ahead comes from a wrong clock, not an inexact one: it would wait for too long."""


def _of_the_future(path: str, modified_us: int, settle: timedelta, ahead_us: int) -> InputError:
    return InputError(
        f"{path}: the modification time of the file is {Instant(modified_us)} UTC, {ahead_us // _NO_SKEW_US:,} days "
        f"ahead of this machine: it is not as old as `settle` ({format_duration(settle)}) asks before then",
        expected="a modification time in the past",
        remedy="set its time with `touch`, and set the clock of the machine that writes such files",
    )


def _check_path(source: FilesSource, base: Path) -> None:
    folder = fixed_folder(source.path, base)
    # In a store a folder exists only from its first file on.
    if has_wildcard(source.path) and (isinstance(folder, RemotePath) or folder.is_dir()):
        return
    missing = f"there is no file {source.path!r}" if folder.is_dir() else f"there is no folder {folder}"
    raise InputError(
        f"Source {source.name!r}: wrong path: {missing}",
        expected=f"files at {source.path!r}, relative to {base}",
        remedy="correct `path` of the source, or create what it names",
    )


@dataclass
class _Examination:
    """Opens files, and judges them by all that is known.

    Args:
        files: All files of the source.
        memory: The states of read files; None if the bytes of other names do not count.
        now: The present instant; None if no file is going to change.
    """

    source: FilesSource
    files: Sequence[Candidate]
    memory: KnownFiles | None
    now: datetime | None
    ready: list[FileRange] = field(default_factory=list)
    touched: list[FileState] = field(default_factory=list)
    copies: list[FileState] = field(default_factory=list)
    errors: list[InputError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of(self, candidates: Sequence[Candidate]) -> FilesFound:
        """Read files in path order, up to the limit of one ingestion."""
        queue, room_bytes = list(candidates), self.source.max_bytes
        borders = () if self.memory is None else sorted(self.memory.sizes)
        look = partial(look_into, self.source, borders, _CHECKS[self.source.format])
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            while batch := _fitting(self.source, queue, self.ready, room_bytes):
                queue = queue[len(batch) :]
                for file, looked in zip(batch, pool.map(look, batch), strict=True):
                    room_bytes -= self._judged_bytes(file, looked)
        return FilesFound(
            ready=tuple(self.ready),
            left=len(queue),
            errors=tuple(self.errors),
            touched=tuple(self.touched),
            copies=tuple(self.copies),
            notes=tuple(self.notes),
            needs_copies=bool(self.ready) and has_lines(self.source),
        )

    def is_in_place(self, read: FileState) -> bool:
        """See `Landed`."""
        candidates = (file for file in self.files if file.path == read.place or file.name == read.name)
        return read.records == NOT_READ_YET or any(begins_as(self.source, file, read) for file in candidates)

    def is_elsewhere(self, read: FileState, file: Candidate) -> bool:
        """See `Landed`."""
        others = (other for other in self.files if other.path != file.path and self._may_be(other, read))
        return any(begins_as(self.source, other, read) for other in others)

    def _may_be(self, file: Candidate, read: FileState) -> bool:
        """Return whether a file may be a renamed one: it was not read itself, and may only begin alike by chance."""
        state = file.state
        is_new = state is None or not state.size or not begins_as(self.source, file, state)
        return is_new or (state is not None and read.name in (state.copy_of, state.begins_as))

    def _judged_bytes(self, file: Candidate, looked: Looked | InputError) -> int:
        """Judge a file that was opened, and note the outcome; return how many of its bytes are read now."""
        age = None
        if self.now is not None:
            age_us = us_of(self.now) - file.modified_us
            # Of a file that is dated far ahead, a line would wait for ever, without a word.
            age = timedelta(microseconds=age_us) if age_us > -_NO_SKEW_US else None
        outcome: FileOutcome | InputError
        try:
            if isinstance(looked, InputError):
                raise looked
            outcome = part_to_read(self.source, looked, self.memory, self, age)
        except InputError as error:
            outcome = error
        match outcome:
            case InputError():
                self.errors.append(outcome)
            case Unfinished():
                self.notes.append(outcome.note)
            case FileState():
                is_touched = file.state is not None and file.state.digest == outcome.digest
                (self.touched if is_touched else self.copies).append(outcome)
            case FileRange():
                self.ready.append(outcome)
                self.notes += [outcome.note] if outcome.note else []
                if self.memory is not None:
                    self.memory.add(state_of(outcome, NOT_READ_YET))
                return file.new_bytes
        return 0


def _fitting(
    source: FilesSource, queue: Sequence[Candidate], ready: Sequence[FileRange], room_bytes: int
) -> list[Candidate]:
    """Return the next files of the queue that may be read together with the ready ones; at least one in all."""
    batch: list[Candidate] = []
    alignment = source.alignment
    # The arrivals that an expression returns are known after a file was read, so an aligned source stops after each.
    most = 1 if alignment is not None and source.arrival_time is not None else source.max_files
    times_us = [*(file.modified_us for file in ready), *(file.modified_us for file in queue[:1])]
    oldest_us, newest_us = min(times_us, default=0), max(times_us, default=0)
    for file in queue[: max(most - len(ready), 0)]:
        oldest_us, newest_us = min(oldest_us, file.modified_us), max(newest_us, file.modified_us)
        in_interval = alignment is None or newest_us - oldest_us <= alignment.update_interval_us
        fits = file.new_bytes <= room_bytes and in_interval
        if not fits and (ready or batch):
            break
        batch.append(file)
        room_bytes -= file.new_bytes
    return batch


_CHECKS: Mapping[str, Check] = {"csv": check_csv, "json": check_json, "parquet": check_parquet}
"""By `format` of a source: refuses a file, not empty, that does not fit it.

Each takes the path, the source, how many of its bytes were read before; returns the columns that it has and the
source does not name, as far as its beginning shows. Needs no Spark. Raises InputError, SpecError for an option of the
source, OSError.
"""


@dataclass(frozen=True)
class FilesReader(SourceReader[FilesFound]):
    """Reads a source of files; see `SourceReader`."""

    source: FilesSource
    base: Path

    def seen(self, memory: Known) -> list[object]:  # noqa: ARG002
        """Return path, size and modification time (microseconds) of the files; none is opened."""
        entries: list[object] = []
        for path, stored in matching_files(self.source.path, self.base).items():
            try:
                seen = os.stat(path) if stored is None else stored
            except OSError:
                entries.append((path, -1, -1))
            else:
                entries.append((path, seen.st_size, seen.st_mtime_ns // 1000))
        return entries

    def look(self, memory: Known) -> FilesFound:
        """Compare the files with their remembered states.

        A file with `now - modified < settle` waits; without `settle` no file does. A known file of the same size and
        modification time is done and not opened; a file that vanished is ignored.

        Raises:
            InputError: The path of the source does not exist.
        """
        source, now, held = self.source, memory.now, memory.held
        folder = fixed_folder(source.path, self.base)
        read = KnownFiles.of(memory.states, folder)
        matching = matching_files(source.path, self.base)
        if not matching and not read:
            _check_path(source, self.base)
        candidates: list[Candidate] = []
        others: list[Candidate] = []
        waiting: list[str] = []
        errors: list[InputError] = []
        still_held: list[HeldBack] = []
        for path, stored in matching.items():
            try:
                check_key(path)
                name = name_of(path, folder)
                state = read.state_of(name, path)
                file = candidate(path, name, state, reread=memory.reread, stored=stored)
            except InputError as error:
                errors.append(error)
                continue
            if file is None:
                others += [unchanged(path, name, state)] if state is not None else []
                continue
            age_us = us_of(now) - file.modified_us
            if path in held and held[path].is_as_it_was(file):
                still_held.append(held[path])
            elif source.settle == timedelta(0) or age_us >= micros(source.settle):
                candidates.append(file)
            else:
                others.append(file)
                if age_us > -_NO_SKEW_US:
                    waiting.append(path)
                else:
                    errors.append(_of_the_future(path, file.modified_us, source.settle, -age_us))
        at = None if memory.is_at_end else now
        examined = _Examination(source, [*candidates, *others], None if memory.reread else read, at).of(candidates)
        findings = replace(examined, waiting=tuple(waiting), errors=(*errors, *examined.errors))
        return findings.without(still_held)

    def remember(self, findings: FilesFound) -> Mapping[str, Any]:
        """Return of each file its path, the lines that were read before, and its bytes."""
        return {"files": [[file.path, file.skip_lines, file.size] for file in findings.ready]}

    def read(self, spark: "SparkSession", findings: FilesFound, place: Place, time_zone: str) -> SourceRead:
        """Read the records of files: files and copies that are plain by Arrow, the others by Spark, both lazily.

        Lines are copied to a place first.

        A file may change after this has returned and before its records are stored: call `ensure_unchanged` then.

        Raises:
            SpecError: `schema`, `rename` or an option of the source is wrong.
            InputError: A file lacks a column, has one of another type, or changed since its discovery.
            OSError: A copy cannot be written.
        """
        from tidemark.resources.sources.file_records import read_files  # noqa: PLC0415 - see resources/sources/reader.py

        read = read_files(spark, self.source, findings.ready, place, time_zone)
        states = (*read.states, *findings.touched, *counted(findings.copies, read.states))
        return SourceRead(read.records, states, count=read.count, plain=read.plain, by_spark=read.by_spark)

    def to_blame(self, spark: "SparkSession", findings: FilesFound) -> Mapping[str, InputError]:
        """Find the files that cannot be read to their end; lines were read before Spark got them."""
        from tidemark.resources.sources.file_records import unreadable  # noqa: PLC0415 - see resources/sources/reader.py

        return {} if has_lines(self.source) else unreadable(spark, self.source, findings.ready)
