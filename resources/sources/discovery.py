"""Discovery: which files the next ingestion reads, which wait, and which were changed behind the lake's back.

Here: choosing files, and remembering those that were found unreadable, so that no later run fails at them again. Not
here: one file against what the lake remembers of it (known_files.py), reading them (files.py).
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import MappingProxyType

from tidemark.resources.places.place import RemotePath
from tidemark.resources.sources.footers import ParquetLooks
from tidemark.resources.sources.known_files import (
    NOT_READ_YET,
    Candidate,
    FileRange,
    FileState,
    KnownFiles,
    Looked,
    Outcome,
    Unfinished,
    begins_as,
    candidate,
    judge,
    look_into,
    state_of,
    unchanged,
)
from tidemark.resources.sources.known_offsets import Lost, OffsetRange, Positions, offsets_in
from tidemark.resources.sources.known_versions import TableVersion
from tidemark.resources.sources.local_files import (
    check_key,
    files_in_store,
    fixed_folder,
    has_wildcard,
    matching_paths,
    name_of,
)
from tidemark.timeops.durations import format_duration, micros
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource, Source
from tidemark.timeops.utc import Instant, us_of


@dataclass(frozen=True)
class HeldBack:
    """A file, or a version of a table, that was found unreadable: it is not tried again before something changes.

    As long as it and how it is read stay the same, the same is said of it.

    Attributes:
        path: Absolute path.
        size: Bytes.
        modified_us: Modification time, microseconds since the epoch.
        reading: Names how the source reads its files.
        found: What was found.
        expected: What would have been right.
        remedy: What to do.
    """

    path: str
    size: int
    modified_us: int
    reading: str
    found: str
    expected: str
    remedy: str

    @classmethod
    def of(cls, file: FileRange | TableVersion | OffsetRange, source: Source, error: InputError) -> "HeldBack":
        """What to remember of a file that was refused."""
        said = (error.found, error.expected, error.remedy)
        return cls(file.path, file.size, file.modified_us, reading_of(source), *said)

    @classmethod
    def from_json(cls, values: Mapping[str, str | int]) -> "HeldBack":
        """What `to_json` wrote."""
        return cls(**values)  # type: ignore[arg-type]  # values of its own fields

    def is_as_it_was(self, file: Candidate | TableVersion) -> bool:
        """Whether the file is the one that could not be read, as far as can be told without opening it."""
        return (self.size, self.modified_us) == (file.size, file.modified_us)

    def to_json(self) -> dict[str, str | int]:
        """For the plan of a batch."""
        return asdict(self)

    @property
    def error(self) -> InputError:
        """What is said of it."""
        return InputError(self.found, expected=self.expected, remedy=self.remedy)


def reading_of(source: Source) -> str:
    """Names all of a source that decides whether a file or a version can be read."""
    keys = {"format", "options", "columns", "rename", "keep_unknown", "changes", "missing"}
    values = source.model_dump(mode="json", include=keys)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def still_held(files: Iterable[HeldBack], source: Source) -> dict[str, HeldBack]:
    """By path the files that are held back as long as they do not change: those found with this way of reading."""
    return {file.path: file for file in files if file.reading == reading_of(source)}


@dataclass(frozen=True)
class Discovery:
    """What was found in a source's folder.

    Attributes:
        ready: Files to be read now, in path order.
        waiting: Younger than `settle`.
        left: How many files, versions or offsets are beyond what one ingestion reads, or what `alignment` lets be
            read at once; they come with a later one.
        errors: Each names one file; that file only is held back.
        held: Files among those of `errors` that were found unreadable by reading them, to be remembered on.
        offsets: Of topics of Kafka those to be read now, by partition.
        splits_ahead: The partitions that those which are `ahead` are of, where a source is read partition by
            partition.
        positions: Where a source of Kafka stands before this is read, if that is not what is remembered.
        lost: Offsets of Kafka that are gone and were not read, to be noted.
        ends: The offset behind the last record of each partition.
        versions: Of a Delta table those to be read now, in order and with no gap; some may have nothing to read.
        touched: Known files with a new modification time and the same bytes: states to remember.
        ahead: How many of those left wait because the source, or their partition, is ahead of others that it is
            aligned with.
        copies: Files with the same bytes as another one that was read, or is ready: they are not read, and these
            states are to be remembered.
        notes: Sentences for the operator on files of which a part is read, or none yet.
        warnings: Sentences for the operator on what stands in the way of results, and is said until it is gone.
    """

    ready: tuple[FileRange, ...]
    waiting: tuple[str, ...]
    left: int
    errors: tuple[InputError, ...]
    touched: tuple[FileState, ...] = ()
    ahead: int = 0
    copies: tuple[FileState, ...] = ()
    held: tuple[HeldBack, ...] = ()
    versions: tuple[TableVersion, ...] = ()
    offsets: tuple[OffsetRange, ...] = ()
    positions: tuple[Positions, ...] = ()
    lost: tuple[Lost, ...] = ()
    ends: tuple[tuple[str, int], ...] = ()
    splits_ahead: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def full_versions(self) -> tuple[TableVersion, ...]:
        """The versions that have something to read."""
        return tuple(version for version in self.versions if not version.is_empty)

    @property
    def inputs(self) -> tuple[FileRange | TableVersion | OffsetRange, ...]:
        """The files, versions and ranges of offsets that have something to read."""
        found: list[FileRange | TableVersion | OffsetRange] = [*self.ready, *self.full_versions, *self.offsets]
        return tuple(found)

    @property
    def new(self) -> int:
        """How much this ingestion and later ones read: files, versions and offsets."""
        return len(self.ready) + len(self.full_versions) + offsets_in(self.offsets) + self.left

    @property
    def is_ready(self) -> bool:
        """Whether there is something to read now."""
        return bool(self.inputs)

    def without(self, held: Sequence[HeldBack]) -> "Discovery":
        """The same but for files that were found unreadable by reading them; their copies are looked at later.

        Behind a version that cannot be read none is.
        """
        paths = {file.path for file in held}
        names = {file.name for file in self.ready if file.path in paths}
        return replace(
            self,
            ready=tuple(file for file in self.ready if file.path not in paths),
            copies=tuple(copy for copy in self.copies if copy.copy_of not in names),
            errors=(*self.errors, *(file.error for file in held)),
            held=(*self.held, *held),
            versions=tuple(takewhile(lambda version: version.path not in paths, self.versions)),
        )


def discover(
    source: FilesSource,
    base: Path,
    states: Sequence[FileState],
    now: datetime,
    *,
    reread: bool = False,
    is_at_end: bool = False,
    held: Mapping[str, HeldBack] = MappingProxyType({}),
) -> Discovery:
    """Compare the files of a source with what the lake remembers of them.

    A file with `now - modified < settle` waits; with no `settle` none does. A known file of the same size and
    modification time is done and not opened; one that vanished is nothing.

    Args:
        source: The files source of the spec.
        base: The folder of the spec file.
        states: What is remembered of files of this source, in the order in which it was stored.
        now: The present instant, aware.
        reread: Read copies too, also those that were found before.
        is_at_end: The input is at its end: a last line without a line end is finished.
        held: Files by path that could not be read; they are not opened again until they change.

    Raises:
        InputError: The path of the source leads nowhere.
    """
    folder = fixed_folder(source.path, base)
    stored = files_in_store(source.path) if isinstance(folder, RemotePath) else {}
    paths = tuple(stored) or matching_paths(source.path, base)
    known = KnownFiles.of(states, folder)
    if not paths and not known:
        _check_path(source, base)
    candidates: list[Candidate] = []
    others: list[Candidate] = []
    waiting: list[str] = []
    errors: list[InputError] = []
    still_held: list[HeldBack] = []
    for path in paths:
        try:
            check_key(path)
            name = name_of(path, folder)
            state = known.state_of(name, path)
            file = candidate(path, name, state, reread=reread, stored=stored.get(path))
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
    at = None if is_at_end else now
    examined = _Examination(source, [*candidates, *others], None if reread else known, at).of(candidates)
    found = replace(examined, waiting=tuple(waiting), errors=(*errors, *examined.errors))
    return found.without(still_held)


_NO_SKEW_US = micros(timedelta(days=1))
"""A file is dated further ahead by a wrong clock, not by one that is only not exact: it would wait for too long."""


def _of_the_future(path: str, modified_us: int, settle: timedelta, ahead_us: int) -> InputError:
    return InputError(
        f"{path}: the file is dated {Instant(modified_us)} UTC, {ahead_us // _NO_SKEW_US:,} days ahead of this "
        f"machine: it is not as old as `settle` ({format_duration(settle)}) asks before then",
        expected="a time of modification that has passed",
        remedy="date it anew with `touch`, and set the clock of the machine that writes such files",
    )


def listed(source: FilesSource, base: Path) -> list[tuple[str, int, int]]:
    """Path, size and modification time (microseconds) of a source's files; none is opened.

    Raises:
        InputError: The folder of the source cannot be listed.
    """
    if isinstance(fixed_folder(source.path, base), RemotePath):
        return [(path, one.st_size, one.st_mtime_ns // 1000) for path, one in files_in_store(source.path).items()]
    found = []
    for path in matching_paths(source.path, base):
        try:
            seen = os.stat(path)
        except OSError:
            found.append((path, -1, -1))
        else:
            found.append((path, seen.st_size, seen.st_mtime_ns // 1000))
    return found


def _check_path(source: FilesSource, base: Path) -> None:
    folder = fixed_folder(source.path, base)
    # In a store a folder is there with its first file only.
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
    """Files are opened, and judged by all that is known.

    Args:
        source: Their source.
        files: All files that are there.
        known: What was read; None where the bytes of other names do not count.
        now: The present instant; None where no file is going to change.
    """

    source: FilesSource
    files: Sequence[Candidate]
    known: KnownFiles | None
    now: datetime | None
    ready: list[FileRange] = field(default_factory=list)
    touched: list[FileState] = field(default_factory=list)
    copies: list[FileState] = field(default_factory=list)
    errors: list[InputError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def of(self, candidates: Sequence[Candidate]) -> Discovery:
        """Read files in path order as far as one ingestion goes."""
        queue, room_bytes = list(candidates), self.source.max_bytes
        borders = () if self.known is None else sorted(self.known.sizes)
        with ParquetLooks() as looks, ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            look = partial(look_into, self.source, borders, looks)
            while batch := _fitting(self.source, queue, self.ready, room_bytes):
                queue = queue[len(batch) :]
                for file, looked in zip(batch, pool.map(look, batch), strict=True):
                    outcome = self._judged(looked)
                    room_bytes -= file.new_bytes if isinstance(outcome, FileRange) else 0
                    self._note(file, outcome)
        return Discovery(
            tuple(self.ready),
            (),
            len(queue),
            tuple(self.errors),
            tuple(self.touched),
            copies=tuple(self.copies),
            notes=tuple(self.notes),
        )

    def _judged(self, looked: Looked | InputError) -> Outcome | InputError:
        if isinstance(looked, InputError):
            return looked
        age_us = None if self.now is None else us_of(self.now) - looked.file.modified_us
        is_dated = (
            age_us is not None and age_us > -_NO_SKEW_US
        )  # else it says nothing, and a line would wait for ever
        age = timedelta(microseconds=age_us) if is_dated and age_us is not None else None
        try:
            return judge(self.source, looked, self.known, self, age)
        except InputError as error:
            return error

    def is_in_place(self, read: FileState) -> bool:
        """See `Landed`."""
        own = (file for file in self.files if file.path == read.place or file.name == read.name)
        return read.records == NOT_READ_YET or any(begins_as(self.source, file, read) for file in own)

    def is_elsewhere(self, read: FileState, file: Candidate) -> bool:
        """See `Landed`."""
        others = (other for other in self.files if other.path != file.path and self._may_be(other, read))
        return any(begins_as(self.source, other, read) for other in others)

    def _may_be(self, file: Candidate, read: FileState) -> bool:
        """Whether a file may be another one that was renamed: it was not read itself, and begins alike by chance."""
        own = file.known
        is_new = own is None or not own.size or not begins_as(self.source, file, own)
        return is_new or (own is not None and read.name in (own.copy_of, own.begins_as))

    def _note(self, file: Candidate, outcome: Outcome | InputError) -> None:
        match outcome:
            case InputError():
                self.errors.append(outcome)
            case Unfinished():
                self.notes.append(outcome.note)
            case FileState():
                is_touched = file.known is not None and file.known.digest == outcome.digest
                (self.touched if is_touched else self.copies).append(outcome)
            case FileRange():
                self.ready.append(outcome)
                self.notes += [outcome.note] if outcome.note else []
                if self.known is not None:
                    self.known.add(state_of(outcome, NOT_READ_YET))


def _fitting(
    source: FilesSource, queue: Sequence[Candidate], ready: Sequence[FileRange], room_bytes: int
) -> list[Candidate]:
    """The next files of the queue that may be read together with those that are ready; at least one in all."""
    batch: list[Candidate] = []
    oldest_us = min((file.modified_us for file in ready), default=None)
    newest_us = max((file.modified_us for file in ready), default=None)
    for file in queue[: max(_most_files(source) - len(ready), 0)]:
        oldest_us = min(file.modified_us, file.modified_us if oldest_us is None else oldest_us)
        newest_us = max(file.modified_us, file.modified_us if newest_us is None else newest_us)
        fits = file.new_bytes <= room_bytes and _in_interval(source, newest_us - oldest_us)
        if not fits and (ready or batch):
            break
        batch.append(file)
        room_bytes -= file.new_bytes
    return batch


def _most_files(source: FilesSource) -> int:
    # What arrivals an expression gives is known when a file was read, so that an aligned source stops behind each.
    one_by_one = source.alignment is not None and source.arrival_time is not None
    return 1 if one_by_one else source.max_files


def _in_interval(source: FilesSource, span_us: int) -> bool:
    return source.alignment is None or span_us <= source.alignment.update_interval_us
