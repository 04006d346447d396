"""One file against what the lake remembers of the files of a source: new, grown, touched, or changed as none may.

Here: the memory, finding a file in it, and judging a single file. Not here: which files are looked at (discovery.py),
the table that holds the states, records.

A file is its name, that is its path from the folder before the first wildcard, and its content: so it stays itself
when that folder moves. Lakes that were made before files had names remember absolute paths.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from tidemark.resources.places.place import Place, RemotePath, place_of
from tidemark.resources.sources.fitness import check_fits
from tidemark.resources.sources.local_files import Content, check_whole, is_compressed, name_of, read_content
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource

if TYPE_CHECKING:
    from tidemark.resources.places.stores import Stored

NOT_READ_YET = -1
"""As `records` of a file: as many as those that the file with the same bytes is going to have."""


@dataclass(frozen=True)
class FileState:
    """What the lake remembers of a file that was read.

    Attributes:
        name: Its path from the fixed folder of the source; absolute where an older lake says no other.
        size: Bytes consumed.
        modified_us: Modification time, microseconds since the epoch.
        digest: blake2b of the consumed bytes, hexadecimal.
        records: Lines (csv, json) or rows (parquet) consumed, header and blank lines included.
        ends_with_newline: Whether the last consumed line was complete.
        place: Absolute path where it lay; None where it is not known.
        copy_of: Name of the file that had the same bytes and was read instead of this one; None if this was read.
    """

    name: str
    size: int
    modified_us: int
    digest: str
    records: int
    ends_with_newline: bool
    place: str | None = None
    copy_of: str | None = None


@dataclass
class KnownFiles:
    """The states of a source's files, each with what it was before."""

    _by_name: dict[str, FileState] = field(default_factory=dict)
    _by_place: dict[str, FileState] = field(default_factory=dict)
    _by_digest: dict[str, FileState] = field(default_factory=dict)

    @classmethod
    def of(cls, states: Iterable[FileState], fixed: Place) -> "KnownFiles":
        """The memory of states in the order in which they were stored.

        Args:
            states: The states, of one source.
            fixed: Where the source's fixed folder is now: paths below it that an older lake remembers are names.
        """
        known = cls()
        for state in states:
            known.add(_named(state, fixed))
        return known

    def add(self, state: FileState) -> None:
        """Remember a state; the latest of a name is the one in force, bytes stay known."""
        self._by_name[state.name] = state
        if state.place is not None:
            self._by_place[state.place] = state
        if state.size and state.copy_of is None:
            self._by_digest.setdefault(state.digest, state)

    def __bool__(self) -> bool:
        """Whether anything was read."""
        return bool(self._by_name)

    def state_of(self, name: str, place: str) -> FileState | None:
        """The state of the file that lies at a place under a name: the path of a source may call it otherwise now."""
        return self._by_place.get(place) or self._by_name.get(name)

    def same_bytes(self, digest: str, name: str, place: str) -> FileState | None:
        """The state of another file that was read and had these bytes, None for none."""
        state = self._by_digest.get(digest)
        return None if state is None or state.name == name or state.place == place else state


def _named(state: FileState, fixed: Place) -> FileState:
    if not os.path.isabs(state.name) or not isinstance(fixed, Path):
        return state
    name = name_of(state.name, fixed)
    is_below = not name.startswith(os.pardir + os.sep)
    return replace(state, name=name if is_below else state.name, place=state.name)


@dataclass(frozen=True)
class FileRange:
    """What one ingestion will read of a file.

    Attributes:
        path: Absolute path.
        name: The path from the folder before the first wildcard of the source's path: `_file` of its records.
        size: Bytes that belong to this ingestion and the ones before it, from the start of the file.
        modified_us: Modification time, microseconds since the epoch.
        digest: blake2b of those bytes, hexadecimal.
        skip_lines: Lines consumed by earlier ingestions; 0 for a new file.
        ends_with_newline: Whether the last line is complete.
    """

    path: str
    name: str
    size: int
    modified_us: int
    digest: str
    skip_lines: int
    ends_with_newline: bool


def state_of(file: FileRange, records: int, *, copy_of: str | None = None) -> FileState:
    """What to remember of a file that was read, or of one that has the bytes of another.

    Args:
        file: The file.
        records: As of `FileState`.
        copy_of: As of `FileState`.
    """
    return FileState(
        name=file.name,
        size=file.size,
        modified_us=file.modified_us,
        digest=file.digest,
        records=records,
        ends_with_newline=file.ends_with_newline,
        place=file.path,
        copy_of=copy_of,
    )


@dataclass(frozen=True)
class Candidate:
    """A file as it lies there now, with what is remembered of it.

    Attributes:
        path: Absolute path.
        name: As of `FileRange`.
        size: Bytes.
        modified_us: Modification time, microseconds since the epoch.
        changed_ns: When the file system changed it last, nanoseconds since the epoch.
        known: What is remembered; None of a new file.
        may_be_another: The known file lay elsewhere, and is another one if its bytes are others.
    """

    path: str
    name: str
    size: int
    modified_us: int
    changed_ns: int
    known: FileState | None
    may_be_another: bool

    @property
    def new_bytes(self) -> int:
        """Bytes that were not read before."""
        return self.size - (self.known.size if self.known and self.known.size < self.size else 0)


def candidate(
    path: str, name: str, known: FileState | None, *, reread: bool = False, stored: "Stored | None" = None
) -> Candidate | None:
    """Look at a file without opening it; None if it is gone or was read as it is.

    Args:
        path: Absolute path.
        name: As of `FileRange`.
        known: What is remembered of it.
        reread: Read it although its bytes, or other bytes under its name, were read before.
        stored: What a store said of it when it listed its files; None of a file of the file system.

    Raises:
        InputError: Nothing under this name can be read.
    """
    if stored is not None:
        return _candidate(path, name, known, stored, reread=reread)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise _unreadable(path, "the link leads to no file", "mend or remove the link") from None
        return None
    except OSError as error:
        raise _unreadable(path, f"out of reach: {error.strerror}", "give this user access") from error
    if stat.S_ISDIR(found.st_mode):
        raise _unreadable(path, "this is a folder", f"let `path` go into it: {os.path.basename(path)}/*")
    if not stat.S_ISREG(found.st_mode):
        raise _unreadable(path, "this is no regular file", "narrow `path` of the source")
    return _candidate(path, name, known, found, reread=reread)


def _candidate(
    path: str, name: str, known: FileState | None, found: "os.stat_result | Stored", *, reread: bool
) -> Candidate | None:
    last = os.path.basename(path)
    if any(sign == ":" or sign < " " or "\ud800" <= sign <= "\udfff" for sign in last):
        raise _unreadable(path, f"Spark cannot read the name {last!r}", "rename it: UTF-8, no colon, no control sign")
    modified_us = found.st_mtime_ns // 1000
    if reread and known and known.copy_of:
        known = None
    if known and (known.size, known.modified_us) == (found.st_size, modified_us):
        return None
    # A folder of the same names beside the known one holds other files; one that was moved has the same.
    is_elsewhere = known is not None and known.place not in (None, path)
    may_be_another = is_elsewhere and known is not None and (reread or _is_there(str(known.place)))
    changed_ns = found.st_ctime_ns if isinstance(found, os.stat_result) else found.st_mtime_ns
    return Candidate(path, name, found.st_size, modified_us, changed_ns, known, may_be_another)


def _is_there(path: str) -> bool:
    place = place_of(path)
    return place.is_file() if isinstance(place, RemotePath) else os.path.exists(path)


def examine(source: FilesSource, file: Candidate) -> FileRange | FileState | InputError:
    """Read the bytes of a file: a range to ingest, the state of a file that was only touched, or an error."""
    try:
        outcome = _judged(source.format, bool(source.options.get("multiLine", False)), file)
        if isinstance(outcome, FileRange) and file.size:
            check_fits(file.path, source)
        return outcome
    except InputError as error:
        return error
    except OSError as error:
        return _unreadable(
            file.path,
            f"the file cannot be read: {error.strerror or error}",
            "give this user the right to read it",
        )


@lru_cache(maxsize=20_000)  # a run looks at its input before it begins, and then reads it
def _judged(file_format: str, is_multi_line: bool, file: Candidate) -> FileRange | FileState:
    known = file.known if file.known and file.known.size else None  # nothing was read of an empty file
    content = read_content(file.path, file.size, known.size if known else 0)
    if known and known.size == file.size and known.digest == content.digest:
        return replace(known, modified_us=file.modified_us, place=file.path)
    if known and file.may_be_another and (file.size < known.size or content.prefix_digest != known.digest):
        known = None
    if known:
        _check_grown(file_format, is_multi_line, file, known, content)
    if file.size and file_format != "parquet":
        check_whole(file.path)
    return FileRange(
        path=file.path,
        name=file.name,
        size=file.size,
        modified_us=file.modified_us,
        digest=content.digest,
        skip_lines=known.records if known else 0,
        ends_with_newline=content.ends_with_newline,
    )


def _check_grown(file_format: str, is_multi_line: bool, file: Candidate, known: FileState, content: Content) -> None:
    """Refuse every change of a known file but lines added to plain text.

    Raises:
        InputError: The file was rewritten, shrank, was continued inside a record, or cannot be read on.
    """
    remedy = "restore the old content, or land the new content under a new name"
    if known.place not in (None, file.path):
        remedy += f"; if it is another file than {known.place} was, `tidemark run --reread` reads it"
    shrank = file.size < known.size
    if shrank or content.prefix_digest != known.digest:
        change = f"shrank from {known.size} to {file.size} bytes" if shrank else "was rewritten"
        raise InputError(
            f"{file.path}: a file that was already read {change}", expected="the same bytes", remedy=remedy
        )
    kind = _kind_that_cannot_grow(file_format, is_multi_line, file.path)
    if kind:
        raise InputError(
            f"{file.path}: a file that was already read grew, and {kind} files cannot be continued",
            expected="the same bytes; only plain csv and json lines may grow",
            remedy=remedy,
        )
    if not known.ends_with_newline and content.byte_after_prefix not in {b"\n", b"\r"}:
        raise InputError(
            f"{file.path}: line {known.records} was read without a line end, and has been continued since",
            expected="new lines after the old ones",
            remedy=f"{remedy}; a longer `settle` lets a writer finish its line",
        )


def _kind_that_cannot_grow(file_format: str, is_multi_line: bool, path: str) -> str:
    if file_format == "parquet":
        return "parquet"
    if is_compressed(path):
        return "compressed"
    return "multiLine" if is_multi_line else ""


def _unreadable(path: str, what: str, remedy: str) -> InputError:
    return InputError(f"{path}: {what}", expected="a readable file", remedy=remedy)
