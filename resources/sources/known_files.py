"""One file compared with the remembered files of a source: new, grown, touched, or changed against the rules.

Here: the memory, finding a file in it, and judging a single file. Not here: the choice of files
(resources/sources/files.py), the table that holds the states, records.

The digest of the part that was read identifies a file: it stays the same file when it is renamed, grows or is
compressed. Its name is its path from the folder before the first wildcard. Lakes that were made before files had
names remember absolute paths.
"""

import os
import stat
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tidemark.resources.places.place import Place, RemotePath, place_of, without_wildcards
from tidemark.resources.sources.columns import WITH_A_HALF, Columns, patience_with
from tidemark.resources.sources.local_files import (
    Content,
    check_compression,
    check_unchanged,
    end_of,
    is_compressed,
    name_of,
    read_content,
)
from tidemark.timeops.errors import InputError
from tidemark.timeops.errors.printable import printable
from tidemark.timeops.spec import FilesSource

if TYPE_CHECKING:
    from tidemark.resources.places.stores import StoredFile

Check = Callable[[str, FilesSource, int], Columns]
"""Says whether a file fits its source, see `check_json` and others in resources/sources/columns.py."""
NOT_READ_YET = -1
"""Value for `records` of a file: the same number as the file with the same bytes is going to have."""


@dataclass(frozen=True)
class FileState:
    """The remembered state of a file that was read.

    Attributes:
        name: Its path from the fixed folder of the source; absolute if an older lake has only that.
        size: Bytes consumed.
        modified_us: Modification time, microseconds since the epoch.
        digest: blake2b of the consumed bytes, hexadecimal.
        records: Lines (csv, json) or rows (parquet) consumed, header and blank lines included.
        ends_with_newline: Whether the last consumed line was complete.
        place: Absolute path of it; None if it is not known.
        copy_of: Name of the file that had the same bytes and was read instead of this one; None if this one was read.
        text_digest: blake2b of the text of a compressed file; None for others, or if it is not known.
        text_size: Bytes of that text.
        begins_as: Name of the file as which the beginning of this one was read; None if it was read as this one.
    """

    name: str
    size: int
    modified_us: int
    digest: str
    records: int
    ends_with_newline: bool
    place: str | None = None
    copy_of: str | None = None
    text_digest: str | None = None
    text_size: int | None = None
    begins_as: str | None = None

    @property
    def text(self) -> tuple[int, str]:
        """Number of bytes of text that were read, and their digest."""
        return (self.size, self.digest) if self.text_digest is None else (self.text_size or 0, self.text_digest)

    @property
    def copy_sentence(self) -> str:
        """The sentence for a copy of another file, which is not read."""
        return printable(f"{self.name}: the same bytes were read as {self.copy_of}")


def counted(copies: Iterable[FileState], read: Iterable[FileState]) -> list[FileState]:
    """Return copies with the records of the files whose bytes they have, if that was read by now."""
    records = {state.digest: state.records for state in read}
    with_records = [
        replace(copy, records=records.get(copy.digest, NOT_READ_YET)) if copy.records == NOT_READ_YET else copy
        for copy in copies
    ]
    return [copy for copy in with_records if copy.records != NOT_READ_YET]


@dataclass
class KnownFiles:
    """The states of a source's files, each with its earlier states."""

    _by_name: dict[str, FileState] = field(default_factory=dict)
    _by_place: dict[str, FileState] = field(default_factory=dict)
    _by_digest: dict[str, FileState] = field(default_factory=dict)
    _by_text: dict[str, FileState] = field(default_factory=dict)

    @classmethod
    def of(cls, states: Iterable[FileState], fixed: Place) -> "KnownFiles":
        """Return the memory of states in the order in which they were stored.

        Args:
            states: The states, of one source.
            fixed: The source's fixed folder now: paths below it that an older lake remembers become names.
        """
        memory = cls()
        for state in states:
            memory.add(_named(state, fixed))
        return memory

    def add(self, state: FileState) -> None:
        """Remember a state; the latest of a name is in force, and all bytes stay known."""
        self._by_name[state.name] = state
        if state.place is not None:
            self._by_place[state.place] = state
        if state.size and state.copy_of is None:
            self._by_digest.setdefault(state.digest, state)
            self._by_text[state.text[1]] = state

    def __bool__(self) -> bool:
        """Return whether any file was read."""
        return bool(self._by_name)

    def state_of(self, name: str, place: str) -> FileState | None:
        """Return the state of the file at a place under a name: the path of a source may name it differently now."""
        return self._by_place.get(place) or self._by_name.get(name)

    @property
    def sizes(self) -> set[int]:
        """The numbers of bytes that were read of files, so that a digest of as many bytes may find one of them."""
        return {state.text[0] for state in self._by_text.values()}

    def same_bytes(self, content: Content, file: "Candidate") -> FileState | None:
        """Return the state of another file that was read and had these bytes, None if there is none."""
        return _of_another(self._by_digest.get(content.digest), file)

    def same_text(self, content: Content, file: "Candidate") -> FileState | None:
        """Return the same by the text, so that a compressed copy is recognized."""
        return _of_another(self._by_text.get(content.text_digest), file)

    def beginning_of(self, content: Content, file: "Candidate") -> FileState | None:
        """Return the longest read state of another file with which this text begins; None if there is none."""
        digests = (digest for _, digest in sorted(content.digests.items(), reverse=True))
        states = (_of_another(self._by_text.get(digest), file) for digest in digests)
        return next((state for state in states if state is not None), None)


def _of_another(state: FileState | None, file: "Candidate") -> FileState | None:
    is_own = state is not None and (state.name == file.name or state.place == file.path)
    return None if is_own and file.was_read else state


def _named(state: FileState, fixed: Place) -> FileState:
    if not os.path.isabs(state.name) or not isinstance(fixed, Path):
        return state
    name = name_of(state.name, fixed)
    is_below = not name.startswith(os.pardir + os.sep)
    return replace(state, name=name if is_below else state.name, place=state.name)


@dataclass(frozen=True)
class FileRange:
    """The part of a file that one ingestion will read.

    Attributes:
        path: Absolute path.
        name: The path from the folder before the first wildcard of the source's path: `_file` of its records.
        size: Bytes that belong to this ingestion and earlier ones, from the start of the file.
        modified_us: Modification time, microseconds since the epoch.
        digest: blake2b of these bytes, hexadecimal.
        skip_lines: Lines consumed by earlier ingestions; 0 for a new file.
        ends_with_newline: Whether the last line is complete.
        left_bytes: Bytes that follow: a line that is not finished yet.
        long_lines: Begin and end, in bytes of the text, of lines that are too long for a record.
        read_at: Path or URL of a copy that is read in its place; empty if there is none.
        read_as: Format of that copy, which lacks the skipped lines; empty if it is that of the source.
        note: A sentence for the operator on the part that is read, empty if there is none.
        text_digest: As in `FileState`.
        text_size: As in `FileState`.
        begins_as: As in `FileState`.
        unknown: Columns that it has and its source does not name.
    """

    path: str
    name: str
    size: int
    modified_us: int
    digest: str
    skip_lines: int
    ends_with_newline: bool
    left_bytes: int = 0
    long_lines: tuple[tuple[int, int], ...] = ()
    read_at: str = ""
    read_as: str = ""
    note: str = ""
    text_digest: str | None = None
    text_size: int | None = None
    begins_as: str | None = None
    unknown: Columns = ()

    @property
    def readable(self) -> str:
        """The path or URL from which Spark reads it."""
        return self.read_at or self.path


def ensure_unchanged(ranges: Sequence[FileRange]) -> None:
    """Check that files are unchanged since discovery.

    Raises:
        InputError: A file was changed or removed since.
    """
    for file in ranges:
        check_unchanged(file.path, file.size + file.left_bytes, file.modified_us)


def state_of(file: FileRange, records: int, *, copy_of: str | None = None) -> FileState:
    """Return the state to remember of a file that was read, or of one with the bytes of another."""
    return FileState(
        name=file.name,
        size=file.size,
        modified_us=file.modified_us,
        digest=file.digest,
        records=records,
        ends_with_newline=file.ends_with_newline,
        place=file.path,
        copy_of=copy_of,
        text_digest=file.text_digest,
        text_size=file.text_size,
        begins_as=file.begins_as,
    )


@dataclass(frozen=True)
class Candidate:
    """A file as it is now, with its remembered state.

    Attributes:
        name: As in `FileRange`.
        changed_ns: Time of its last change in the file system, nanoseconds since the epoch.
        state: Its remembered state; None for a new file.
        may_be_another: Whether the known file was elsewhere, and so is another one if its bytes differ.
    """

    path: str
    name: str
    size: int
    modified_us: int
    changed_ns: int
    state: FileState | None
    may_be_another: bool

    @property
    def was_read(self) -> bool:
        """Return whether bytes of it were read under its name."""
        return self.state is not None and self.state.size > 0

    @property
    def new_bytes(self) -> int:
        """Number of bytes that were not read before."""
        return self.size - (self.state.size if self.state and self.state.size < self.size else 0)


def candidate(
    path: str, name: str, state: FileState | None, *, reread: bool = False, stored: "StoredFile | None" = None
) -> Candidate | None:
    """Look at a file without opening it; return None if it is gone or was read as it is.

    `stored` is its entry in the listing of a store, None for a file of the file system. With `reread` it is read
    although its bytes, or other bytes under its name, were read before.

    Raises:
        InputError: The file cannot be looked at.
    """
    if stored is not None:
        return _candidate(path, name, state, stored, reread=reread)
    try:
        entry = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise _unreadable(path, "the link leads to no file", "fix or remove the link") from None
        return None
    except OSError as error:
        raise _unreadable(path, f"out of reach: {error.strerror}", "grant this user access") from error
    if stat.S_ISDIR(entry.st_mode):
        raise _unreadable(path, "this is a folder", f"let `path` descend into it: {os.path.basename(path)}/*")
    if not stat.S_ISREG(entry.st_mode):
        raise _unreadable(path, "this is not a regular file", "narrow `path` of the source")
    return _candidate(path, name, state, entry, reread=reread)


def _candidate(
    path: str, name: str, state: FileState | None, entry: "os.stat_result | StoredFile", *, reread: bool
) -> Candidate | None:
    last = os.path.basename(path)
    if any(sign == ":" or sign < " " or "\ud800" <= sign <= "\udfff" for sign in last):
        raise _unreadable(
            path, f"Spark cannot read the name {last!r}", "rename it: UTF-8, without colons or control characters"
        )
    place = path.partition("://")[2] or path
    if ":" in place and place != without_wildcards(place):
        found_there = "Spark cannot read a path that has both a colon and one of []{}*?\\"
        raise _unreadable(path, found_there, "rename the folder with the colon, or whatever has the other character")
    modified_us = entry.st_mtime_ns // 1000
    if reread and state and state.copy_of:
        state = None
    if state and (state.size, state.modified_us) == (entry.st_size, modified_us):
        return None
    # A folder with the same names next to the known one holds other files; a folder that was moved has the same ones.
    is_elsewhere = state is not None and state.place not in (None, path)
    may_be_another = is_elsewhere and state is not None and (reread or _is_there(str(state.place)))
    changed_ns = entry.st_ctime_ns if isinstance(entry, os.stat_result) else entry.st_mtime_ns
    return Candidate(path, name, entry.st_size, modified_us, changed_ns, state, may_be_another)


def unchanged(path: str, name: str, state: FileState) -> Candidate:
    """Return a file that is unchanged since it was read."""
    return Candidate(path, name, state.size, state.modified_us, 0, state, may_be_another=False)


def _is_there(path: str) -> bool:
    place = place_of(path)
    return place.is_file() if isinstance(place, RemotePath) else os.path.exists(path)


@dataclass(frozen=True)
class Looked:
    """A file that was opened.

    Attributes:
        unfit: Why it cannot be read as its source says, None if it can.
        unknown: As in `FileRange`.
    """

    file: Candidate
    content: Content
    unfit: InputError | None
    unknown: Columns = ()

    @property
    def is_as_known(self) -> bool:
        """Return whether its bytes are the bytes that were read."""
        state = self.file.state
        return state is not None and state.digest == self.content.digest and state.size == self.file.size > 0

    @property
    def begins_as_known(self) -> bool:
        """Return whether it begins with the bytes that were read."""
        state = self.file.state
        return state is not None and self.content.digests.get(state.size) == state.digest


def look_into(source: FilesSource, borders: Sequence[int], check: Check, file: Candidate) -> Looked | InputError:
    """Open a file and read it once; `borders` are the numbers of bytes whose digest is wanted, in order."""
    known_bytes = file.state.size if file.state and file.state.size <= file.size else 0
    if not has_lines(source):  # only plain lines begin as another file
        borders = ()
    elif not is_compressed(file.path):
        borders = borders[: bisect_left(borders, file.size)]
    of_now = file.path, file.size, file.modified_us, file.changed_ns
    looked: Looked | None = None
    try:
        looked = Looked(file, _content(*of_now, known_bytes, tuple(borders), source.is_text), None)
        if not file.size or looked.is_as_known:
            return looked
        if source.is_text:
            check_compression(file.path)
        return replace(looked, unknown=check(file.path, source, known_bytes))
    except InputError as error:
        return error if looked is None else replace(looked, unfit=error)
    except OSError as error:
        return _unreadable(
            file.path,
            f"the file cannot be read: {error.strerror or error}",
            "grant this user the right to read it",
        )


@lru_cache(maxsize=20_000)  # a run looks at its input before it begins, and then reads it
def _content(
    path: str,
    size: int,
    _modified_us: int,
    _changed_ns: int,
    known_bytes: int,
    borders: tuple[int, ...],
    is_text: bool,
) -> Content:
    return read_content(path, size, known_bytes, borders, as_text=is_text)


def begins_as(source: FilesSource, file: Candidate, read: FileState) -> bool:
    """Return whether a file begins with the read part of another, or has its text."""
    is_text, state = source.is_text, file.state
    if (
        state is not None
        and (state.size, state.modified_us) == (file.size, file.modified_us)
        and state.digest == read.digest
    ):
        return True
    size, digest = read.text
    if file.size < size and not (is_text and is_compressed(file.path)):
        return False
    try:
        content = _content(file.path, file.size, file.modified_us, file.changed_ns, size, (), is_text)
    except (InputError, OSError):  # its reader reports the fault
        return False
    return content.digests.get(size) == digest or content.digest == read.digest


@dataclass(frozen=True)
class Unfinished:
    """A file that is not read now, as its last line may continue, with a sentence for the operator."""

    note: str


FileOutcome = FileRange | FileState | Unfinished


class Landed(Protocol):
    """All files of the source as they are now."""

    def is_in_place(self, read: FileState) -> bool:
        """Return whether a file that was read is in its place."""

    def is_elsewhere(self, read: FileState, file: Candidate) -> bool:
        """Return whether a file that was read is now in another one."""


def part_to_read(
    source: FilesSource, looked: Looked, memory: KnownFiles | None, landed: Landed, age: timedelta | None
) -> FileOutcome:
    """Decide how much of a file is read, by its bytes and by all bytes that are known; without `memory` by its own.

    `age` is the time since the file changed, None if it is not going to change or if that is unknown.

    Returns:
        The part to read, the state of a file that is not read, or the reason to wait.

    Raises:
        InputError: The file was rewritten or continued inside a line, or cannot be read as its source says.
    """
    file, content = looked.file, looked.content
    if looked.is_as_known:
        assert file.state is not None
        return replace(file.state, modified_us=file.modified_us, place=file.path)
    state = file.state if file.was_read else None
    if state is None and looked.unfit is not None:
        raise looked.unfit
    if memory is not None and (same := memory.same_bytes(content, file)):
        return state_of(_range(source, looked, 0), same.records, copy_of=same.name)
    if state is not None and looked.begins_as_known and has_lines(source) and not is_compressed(file.path):
        return _lines_after(source, looked, state, age)
    if memory is not None and (same := memory.same_text(content, file)) and not landed.is_in_place(same):
        return state_of(_range(source, looked, 0), same.records, copy_of=same.name)
    start = _start_of(source, memory.beginning_of(content, file)) if memory is not None else None
    if start is not None and not landed.is_in_place(start):
        sentence = f"{file.name}: its first {start.records:,} lines were read as {start.name}, and are not read again"
        return _lines_after(source, looked, start, age, sentence)
    note = ""
    if state is not None and not file.may_be_another and not landed.is_elsewhere(state, file):
        if source.on_rewrite == "hold":
            raise _changed(source, file, state)
        note = f"{file.name}: it was rewritten, and is read whole as new records"
    return _lines_after(source, looked, None, age, note)


def _start_of(source: FilesSource, read: FileState | None) -> FileState | None:
    """Return a state unless it is a header alone: that is not a record, and files of one kind share it."""
    is_header = read is not None and read.records == 1 and source.options.get("header", False)
    return None if is_header else read


def _lines_after(
    source: FilesSource, looked: Looked, read: FileState | None, age: timedelta | None, note: str = ""
) -> FileRange | Unfinished:
    """Return the range after the part that was read before: its lines, the last one once it is finished.

    Raises:
        InputError: It was continued inside a line that was read as a record, or cannot be read as its source says.
    """
    file, content = looked.file, looked.content
    if looked.unfit is not None:
        raise looked.unfit
    skip, begins_as = (read.records, read.name) if read is not None else (0, None)
    if read is not None and read is file.state:
        begins_as = read.begins_as or read.copy_of
        if not read.ends_with_newline and content.after not in {b"\n", b"\r"}:
            if patience_with(file.path, source, end_of(file.path, read.size)) < WITH_A_HALF:
                raise _continued(file, read)
            skip -= 1  # half of it became a dead letter
    whole = replace(_range(source, looked, skip), note=note, begins_as=begins_as)
    if content.ends_with_newline or not has_lines(source) or is_compressed(file.path) or age is None:
        return whole
    patience = patience_with(file.path, source, content.last_line)
    if age >= patience:
        return whole
    left = file.size - content.lines_end
    when = "the rest" if patience >= WITH_A_HALF else "a line end, or until the file is a minute old"
    waits = f"{file.name}: the last line is not finished: its {left:,} bytes wait for {when}"
    if content.lines_end <= (read.size if read else 0):
        return Unfinished(waits)
    part = replace(whole, size=content.lines_end, digest=content.lines_digest, ends_with_newline=True)
    return replace(part, left_bytes=left, note="; ".join(filter(None, [note, waits])))


def _range(source: FilesSource, looked: Looked, skip_lines: int) -> FileRange:
    """Return the range of the whole file."""
    file, content = looked.file, looked.content
    is_packed = content.text_digest != content.digest
    return FileRange(
        path=file.path,
        name=file.name,
        size=file.size,
        modified_us=file.modified_us,
        digest=content.digest,
        skip_lines=skip_lines,
        ends_with_newline=content.ends_with_newline,
        long_lines=content.long_lines if has_lines(source) else (),
        text_digest=content.text_digest if is_packed else None,
        text_size=content.text_size if is_packed else None,
        unknown=looked.unknown,
    )


def read_before(source: FilesSource, folder: Place, state: FileState, skip_lines: int) -> FileRange:
    """Return the part of a file that was read once, if its bytes and its time are as they were.

    Args:
        source: The source.
        folder: Its fixed folder now: a project may have been moved since.
        state: The state that was remembered of it.
        skip_lines: The lines that earlier ingestions had read.

    Raises:
        InputError: The file is gone, or other bytes are there; or it has another modification time, and that is when
            its records arrived.
    """
    place = folder / state.name
    place = place if place.is_file() else place_of(state.place or state.name)
    path = str(place)
    try:
        seen = place.stat()
        if seen.st_size < state.size:
            raise _lost(path, f"it has {seen.st_size:,} bytes of {state.size:,}")
        content = read_content(path, state.size, 0, (), as_text=source.is_text)
    except OSError as error:
        raise _lost(path, error.strerror or str(error)) from error
    if content.digest != state.digest:
        raise _lost(path, "its bytes have changed")
    modified_us = int(seen.st_mtime_ns // 1000)
    if source.arrival_time is None and modified_us != state.modified_us:
        raise _lost(path, "its modification time has changed, which is when its records arrived")
    return FileRange(
        path=path,
        name=state.name,
        size=state.size,
        modified_us=modified_us,
        digest=state.digest,
        skip_lines=skip_lines,
        ends_with_newline=state.ends_with_newline,
        left_bytes=seen.st_size - state.size,
        long_lines=content.long_lines if has_lines(source) else (),
        text_digest=state.text_digest,
        text_size=state.text_size,
        begins_as=state.begins_as,
    )


def _lost(path: str, why: str) -> InputError:
    return InputError(f"{path} is not as it was read: {why}", expected="the file as it was when it was read")


def has_lines(source: FilesSource) -> bool:
    """Return whether a record is a line, so that the lines after the read ones are the new records."""
    return source.is_text and not source.options.get("multiLine", False)


def _changed(source: FilesSource, file: Candidate, read: FileState) -> InputError:
    """Return the error for a file that no longer holds what was read of it."""
    remedy = "restore the old content, or land the new content under a new name"
    remedy += "; `on_rewrite: read` in the source reads files that are overwritten, whole and as new records"
    if read.place not in (None, file.path):
        remedy += f"; if it is another file than {read.place} was, `tidemark run --reread` reads it"
    kind = _kind_that_cannot_grow(source, file.path)
    if kind and file.size > read.size:
        return InputError(
            f"{file.path}: a file that was already read grew, and {kind} files cannot be continued",
            expected="the same bytes; only plain csv and json lines may grow",
            remedy=remedy,
        )
    change = f"shrank from {read.size} to {file.size} bytes" if file.size < read.size else "was rewritten"
    return InputError(f"{file.path}: a file that was already read {change}", expected="the same bytes", remedy=remedy)


def _continued(file: Candidate, read: FileState) -> InputError:
    """Return the error for a file whose last record continued after it was read."""
    return InputError(
        f"{file.path}: line {read.records} was read without a line end, and has been continued since",
        expected="new lines after the old ones",
        remedy="restore the old content, or land the new content under a new name; a longer `settle` lets a writer "
        "finish its line",
    )


def _kind_that_cannot_grow(source: FilesSource, path: str) -> str:
    if not source.is_text:
        return source.format
    if is_compressed(path):
        return "compressed"
    return "" if has_lines(source) else "multiLine"


def _unreadable(path: str, what: str, remedy: str) -> InputError:
    return InputError(f"{path}: {what}", expected="a readable file", remedy=remedy)
