"""Files by their paths or URLs: the files that a glob matches, their bytes, and whether a file is whole.

Here: names, bytes, compression, and folders below `**`, each entered once, so that links that lead back end. Not
here: the meaning of a change of a file (resources/sources/known_files.py), its records, the operations of a store
(resources/places).
"""

import bz2
import glob
import gzip
import hashlib
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import unquote

from tidemark.resources.places.checks import ensure_answers
from tidemark.resources.places.place import (
    Place,
    RemotePath,
    is_url,
    place_of,
    relative,
    spark_url,
    without_wildcards,
)
from tidemark.timeops.errors import InputError
from tidemark.timeops.values.locations import odd_part, parts_of_url

if TYPE_CHECKING:
    from tidemark.resources.places.stores import StoredFile

_CHUNK_BYTES = 1 << 20
LONGEST_LINE = 16 << 20
"""Bytes of a line that may be a record. A longer one would be several times in the memory of its parser."""
_TAIL_BYTES = 1 << 20
_LINE_ENDS = b"\r\n"
_EMPTY_OR_END = (b"", b"\r", b"\n")
_COMPRESSED_ENDINGS = (".gz", ".bz2")
# Spark picks the codec by the exact ending; files with these endings it would read as text, or with native libraries.
_UNREADABLE_ENDINGS = (*_COMPRESSED_ENDINGS, ".zip", ".7z", ".xz", ".zst", ".lz4", ".snappy", ".deflate")
_UNFINISHED_ENDINGS = (".tmp", "._COPYING_")
_ANY_DEPTH = "**"
_HIDDEN = (".", "_")


@dataclass(frozen=True)
class Content:
    r"""The content of a file up to a size: its bytes, and its text, which differs only for a compressed file.

    Attributes:
        digest: blake2b of all bytes.
        text_digest: blake2b of the text.
        text_size: Bytes of the text.
        digests: blake2b of the first bytes of the text, by their number, where wanted.
        after: The byte of the text that follows the known ones, empty if none.
        lines_end: The beginning of a last line without a line end; the end of the text if its last byte is \n or \r.
        lines_digest: blake2b of the text before that.
        last_line: The text after that; only the beginning of a long line.
        long_lines: Begin and end of lines that are longer than a record may be.
    """

    digest: str
    text_digest: str
    text_size: int
    digests: Mapping[int, str]
    after: bytes
    lines_end: int
    lines_digest: str
    last_line: bytes
    long_lines: tuple[tuple[int, int], ...]

    @property
    def ends_with_newline(self) -> bool:
        """Return whether the last line is complete; an empty file ends with a complete line."""
        return not self.last_line


def matching_files(pattern: str, base: Path) -> "Mapping[str, StoredFile | None]":
    """Return the files that a glob matches, by absolute path or URL, without hidden and unfinished ones.

    If several paths lead to a file by symbolic links, it is returned once: by the path without a link if there is
    one, else by the first.

    Args:
        pattern: Glob, `**` for any depth, relative to `base` or absolute.
        base: The folder of the spec file.

    Returns:
        In path order, each with its entry in the listing of a store; None for a file of the file system.

    Raises:
        InputError: The folder before the first wildcard cannot be listed, or the path names a hidden file.
        StoreFailureError: The store cannot be used.
    """
    fixed = fixed_folder(pattern, base)
    if isinstance(fixed, RemotePath):
        return _in_store(pattern, fixed)
    return dict.fromkeys(_on_disk(pattern, base, fixed))


def _in_store(pattern: str, fixed: RemotePath) -> "dict[str, StoredFile]":
    ensure_answers(fixed)
    start = len(fixed.key) + 1 if fixed.key else 0
    listed = fixed.listed("/".join(place_of(pattern).parts[len(fixed.parts) :]))
    return {
        str(place): stored
        for stored, place in sorted(listed, key=lambda entry: str(entry[1]))
        if not place.name.endswith(_UNFINISHED_ENDINGS)
        and not any(part.startswith(_HIDDEN) and part not in {".", ".."} for part in place.key[start:].split("/"))
    }


def check_key(path: str) -> None:
    """Refuse the URL of an object whose key has a part that is impossible in a file system.

    Raises:
        InputError: The key has such a part.
    """
    parts = parts_of_url(path)
    part = odd_part(parts[2]) if parts is not None else None
    if part is not None:
        raise InputError(
            f"{path!r}: the key of this object has {f'the part {part!r}' if part else 'an empty part'}, which Spark "
            "cannot read",
            expected="a key whose parts are names, without `.`, `..` and control characters",
            remedy="copy the object to a key without it, and delete this one",
        )


def _on_disk(pattern: str, base: Path, fixed: Path) -> tuple[str, ...]:
    pattern = str(place_of(pattern))
    if fixed.is_dir() and not os.access(fixed, os.R_OK | os.X_OK):
        raise InputError(
            f"The folder {fixed} cannot be listed: permission denied",
            expected="a folder that this user can read",
            remedy="grant this user permission to read and enter it",
        )
    absolute = os.path.join(glob.escape(os.path.abspath(base)), pattern)
    paths = {os.path.abspath(path) for path in expanded(absolute)}
    if not has_wildcard(pattern) and any(_is_hidden(path, fixed) for path in paths):
        raise InputError(
            f"The path {pattern!r} names a hidden file",
            expected="a file whose name does not begin with '.' or '_'; Spark skips such files",
            remedy="rename the file",
        )
    any_name = os.path.basename(pattern) in {"*", "**"}
    visible = [
        path
        for path in paths
        if not _is_hidden(path, fixed)
        and not path.endswith(_UNFINISHED_ENDINGS)
        and not (any_name and os.path.isdir(path))
    ]
    return _each_file_once(visible, fixed)


def has_wildcard(text: str) -> bool:
    """Return whether a path is a glob."""
    return any(sign in text for sign in "*?[")


def fixed_folder(pattern: str, base: Path) -> Place:
    """Return the folder before the first wildcard of a glob."""
    place = place_of(pattern)
    if isinstance(place, RemotePath):
        return RemotePath(place.root, "/".join(_before_wildcard(place.parts[1:], 0)))
    parts = (Path(os.path.abspath(base)) / place).parts
    start = len(parts) - len(place.parts)  # a wildcard in the name of `base` does not count
    return Path(os.path.normpath(Path(*_before_wildcard(parts, start))))


def _before_wildcard(parts: Sequence[str], start: int) -> Sequence[str]:
    """Return the parts before the first wildcard from a start on; without a wildcard all parts but the last."""
    wild = (i for i, part in enumerate(parts) if i >= start and has_wildcard(part))
    return parts[: next(wild, len(parts) - 1)]


def name_of(path: str, fixed: Place) -> str:
    """Return the name of a file in the log: its path from the fixed folder, whatever leads to that folder."""
    if isinstance(fixed, RemotePath):
        return relative(place_of(path), fixed)
    return os.path.relpath(path, fixed)


def is_compressed(path: str) -> bool:
    """Return whether Spark decompresses the file while it reads lines."""
    return path.endswith(_COMPRESSED_ENDINGS)


def open_bytes(path: str) -> IO[bytes]:
    """Open a file for reading, decompressed as Spark would."""
    open_it = gzip.open if path.endswith(".gz") else bz2.open if path.endswith(".bz2") else None
    if open_it is None:
        return place_of(path).open("rb")
    return cast(IO[bytes], open_it(place_of(path).open("rb") if is_url(path) else path, "rb"))


def read_content(
    path: str, size_bytes: int, known_bytes: int = 0, borders: Sequence[int] = (), *, as_text: bool = True
) -> Content:
    """Read the first `size_bytes` of a file once, and hash them; of compressed text read all.

    Args:
        path: The file.
        size_bytes: Number of bytes that count.
        as_text: Whether its format is text, so that it may be compressed.
        known_bytes: The digest of this number of first bytes is wanted.
        borders: The digests of these numbers of first bytes are wanted too, in order, if a line ends there.

    Raises:
        InputError: The file is shorter, or a damaged archive.
        OSError: The file cannot be read.
    """
    reading = _Reading(known_bytes, borders)
    if not (as_text and is_compressed(path)):
        for chunk in _chunks(path, size_bytes):
            reading.take(chunk)
        return reading.content()
    stored = hashlib.blake2b()
    for chunk in _chunks(path, size_bytes):
        stored.update(chunk)
    for chunk in text_in(path, size_bytes):
        reading.take(chunk)
    return replace(reading.content(), digest=stored.hexdigest())


def _chunks(path: str, size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    with place_of(path).open("rb") as file:
        while left:
            chunk = file.read(min(_CHUNK_BYTES, left))
            if not chunk:
                raise still_being_written(path)
            left -= len(chunk)
            yield chunk


def text_in(path: str, size_bytes: int) -> Iterator[bytes]:
    """Yield the text of a file of lines: of its first `size_bytes`, of a compressed one all.

    Raises:
        InputError: The file is shorter, or a damaged archive.
        OSError: The file cannot be read.
    """
    if not is_compressed(path) or not size_bytes:
        yield from _chunks(path, size_bytes)
        return
    try:
        with open_bytes(path) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except PermissionError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: the archive is damaged or truncated: {error}",
            expected="a complete gzip or bzip2 file",
            remedy="land the whole file again, and set a longer `settle` for the source if files grow slowly",
        ) from error


class _Reading:
    """Reads the bytes of a file as they come, a chunk at a time.

    Args:
        known_bytes: As for `read_content`.
        borders: As for `read_content`.
    """

    def __init__(self, known_bytes: int, borders: Sequence[int]) -> None:
        self._known, self._borders = known_bytes, borders
        self._hasher, self._lines, self._after = hashlib.blake2b(), hashlib.blake2b(), b""
        self._digests = {0: self._hasher.hexdigest()}
        self._at, self._lines_end, self._last_line = 0, 0, b""
        self._long_lines: list[tuple[int, int]] = []

    def take(self, chunk: bytes) -> None:
        """Take the next bytes."""
        start, end = self._at, self._at + len(chunk)
        if start <= self._known < end:
            self._after = chunk[self._known - start :][:1]
        wanted = self._wanted(chunk)
        line_end = 1 + max(chunk.rfind(b"\n"), chunk.rfind(b"\r"))
        for at in sorted({*wanted, start + line_end, end}):
            self._hasher.update(chunk[self._at - start : at - start])
            self._at = at
            if at in wanted:
                self._digests[at] = self._hasher.hexdigest()
            if line_end and at == start + line_end:
                self._lines = self._hasher.copy()
        if not line_end:
            self._last_line += chunk[: max(_TAIL_BYTES - len(self._last_line), 0)]
            return
        first = min(place for place in (chunk.find(b"\n"), chunk.find(b"\r")) if place >= 0)
        self._end_line(start + first)
        self._lines_end, self._last_line = start + line_end, chunk[line_end:]

    def _wanted(self, chunk: bytes) -> set[int]:
        """Return the places in a chunk at which a digest is wanted."""
        start, end = self._at, self._at + len(chunk)
        borders = self._borders[bisect_right(self._borders, start) : bisect_right(self._borders, end)]
        wanted = {
            at for at in borders if chunk[at - 1 - start] in _LINE_ENDS or chunk[at - start :][:1] in _EMPTY_OR_END
        }
        return wanted | ({self._known} if start < self._known <= end else set())

    def _end_line(self, at: int) -> None:
        if at - self._lines_end > LONGEST_LINE:
            self._long_lines.append((self._lines_end, at))

    def content(self) -> Content:
        """Return the content that all chunks make."""
        self._end_line(self._at)
        return Content(
            digest=self._hasher.hexdigest(),
            text_digest=self._hasher.hexdigest(),
            text_size=self._at,
            digests=self._digests,
            after=self._after,
            lines_end=self._lines_end,
            lines_digest=self._lines.hexdigest(),
            last_line=self._last_line,
            long_lines=tuple(self._long_lines),
        )


def end_of(path: str, size_bytes: int) -> bytes:
    """Return the last line in the first bytes of a file, of a long line its end.

    Raises:
        OSError: The file cannot be read.
    """
    start = max(size_bytes - _TAIL_BYTES, 0)
    with place_of(path).open("rb") as file:
        file.seek(start)
        tail = file.read(size_bytes - start)
    return tail[1 + max(tail.rfind(b"\n"), tail.rfind(b"\r")) :]


def check_compression(path: str) -> None:
    """Refuse a text file with a compression that Spark does not know.

    Raises:
        InputError: The file has such a compression.
    """
    ending = os.path.splitext(path)[1]
    if ending not in _COMPRESSED_ENDINGS and ending.lower() in _UNREADABLE_ENDINGS:
        raise InputError(
            f"{path}: compression {ending} cannot be read",
            expected="plain text, .gz or .bz2 (in lower case)",
            remedy="land the file under a new name, plain or compressed with gzip or bzip2",
        )


def check_unchanged(path: str, size_bytes: int, modified_us: int) -> None:
    """Check that a file is unchanged since it was seen.

    Raises:
        InputError: The file was changed or removed since.
    """
    try:
        now = place_of(path).stat()
    except OSError as error:
        raise InputError(
            f"{path}: the file disappeared while it was read: {error.strerror}",
            expected="a file that stays until it is ingested; nothing of it was ingested",
            remedy="put it back, or run again without it",
        ) from error
    if (now.st_size, now.st_mtime_ns // 1000) != (size_bytes, modified_us):
        raise still_being_written(path)


def spark_path(path: str) -> str:
    """Return the path or URL for Spark's readers: a URL whatever the default file system is, and not a glob."""
    return without_wildcards(spark_url(place_of(path)))


def path_of_url(url: str) -> str:
    """Return the path or URL that Spark names in `_metadata.file_path`."""
    if not url.startswith("file:"):
        return str(place_of(unquote(url)))
    return "/" + unquote(url).removeprefix("file:").lstrip("/")


def still_being_written(path: str) -> InputError:
    """Return the error for a file that changes while it is read."""
    return InputError(
        f"{path}: the file is still being written",
        expected="a file that no longer changes once it is older than `settle`; nothing of it was ingested",
        remedy="set a longer `settle` for the source, or write to a name in .tmp and rename at the end",
    )


def _each_file_once(paths: Iterable[str], fixed: Path) -> tuple[str, ...]:
    real_fixed = os.path.realpath(fixed)

    @cache
    def seen(folder: str) -> tuple[str, bool]:
        """Return the real path of a folder, and whether no link lies between the fixed folder and it."""
        real = os.path.realpath(folder)
        return real, os.path.normpath(os.path.join(real_fixed, os.path.relpath(folder, fixed))) == real

    chosen: dict[str, str] = {}
    for path in sorted(paths):
        folder, name = os.path.split(path)
        real_folder, has_no_link = seen(folder)
        is_link = os.path.islink(path)
        real = os.path.realpath(path) if is_link else os.path.join(real_folder, name)
        if real not in chosen or (has_no_link and not is_link):
            chosen[real] = path
    return tuple(sorted(chosen.values()))


def _is_hidden(path: str, fixed: Path) -> bool:
    return any(part.startswith(_HIDDEN) for part in Path(os.path.relpath(path, fixed)).parts)


def expanded(pattern: str) -> Iterator[str]:
    """Yield the paths that an absolute glob matches, some of them perhaps twice.

    `**` matches any number of folders, as in `glob` of the standard library. That library follows links that lead
    back, forty levels deep; with two such links it takes for ever. Here a folder is entered once, whatever leads to
    it, so all its files are found. Hidden folders are not entered.
    """
    parts = pattern.split(os.sep)
    if _ANY_DEPTH not in parts:
        yield from glob.iglob(pattern, include_hidden=True)
        return
    at = parts.index(_ANY_DEPTH)
    before, behind = parts[:at], list(dropwhile(lambda part: part == _ANY_DEPTH, parts[at:]))
    for root in glob.iglob(os.sep.join(before) or os.sep, include_hidden=True):
        for folder in _folders_under(root):
            yield from expanded(os.path.join(glob.escape(folder), *(behind or ["*"])))


def _folders_under(root: str) -> Iterator[str]:
    """Yield a folder and all folders below: first the ones without a link, so that they keep their own path."""
    entered: set[str] = set()
    waiting = [root]
    while waiting:
        links: list[str] = []
        for start in waiting:
            for folder, below, _ in os.walk(start):
                real = os.path.realpath(folder)
                if real in entered:
                    below.clear()
                    continue
                entered.add(real)
                yield folder
                below[:] = sorted(name for name in below if not name.startswith(_HIDDEN))
                links += [path for name in below if os.path.islink(path := os.path.join(folder, name))]
        waiting = links
