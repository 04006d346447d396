"""Files by their paths or URLs: which a glob means, what a file's bytes are, whether a file is whole.

Here: names, bytes, compression, and folders below `**`, each entered once, so that links that lead back end. Not
here: what a change of a file means (known_files.py), its records, what a store can do (resources/places).
"""

import bz2
import glob
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast
from urllib.parse import unquote

from tidemark.resources.places.checks import ensure_answers
from tidemark.resources.places.place import (
    Place,
    RemotePath,
    files_below,
    is_url,
    place_of,
    relative,
    spark_url,
)
from tidemark.timeops.errors import InputError

if TYPE_CHECKING:
    from tidemark.resources.places.stores import Stored

_CHUNK_BYTES = 1 << 20
_COMPRESSED_ENDINGS = (".gz", ".bz2")
# Spark picks the codec by the exact ending; these it would read as text, or needs native libraries for.
_UNREADABLE_ENDINGS = (*_COMPRESSED_ENDINGS, ".zip", ".7z", ".xz", ".zst", ".lz4", ".snappy", ".deflate")
_UNFINISHED_ENDINGS = (".tmp", "._COPYING_")
_ANY_DEPTH = "**"
_HIDDEN = (".", "_")


@dataclass(frozen=True)
class Content:
    r"""The bytes of a file up to a size.

    Attributes:
        digest: blake2b of all of them.
        prefix_digest: blake2b of the first `prefix` bytes.
        byte_after_prefix: The byte that follows those, empty if none.
        ends_with_newline: Whether the last byte is \n or \r; an empty file ends with one.
    """

    digest: str
    prefix_digest: str
    byte_after_prefix: bytes
    ends_with_newline: bool


def files_in_store(pattern: str) -> "dict[str, Stored]":
    """The files that a glob means which is a URL, by their URLs; hidden and unfinished ones are left out.

    Raises:
        StoreFailureError: The store cannot be used.
    """
    fixed = fixed_folder(pattern, Path())
    ensure_answers(fixed)
    found = files_below(fixed, pattern.removeprefix(str(fixed)).lstrip("/"))
    return {
        str(place): stored
        for place, stored in sorted(found, key=lambda one: str(one[0]))
        if not place.name.endswith(_UNFINISHED_ENDINGS)
        and not any(part.startswith(_HIDDEN) for part in relative(place, fixed).split("/"))
    }


def matching_paths(pattern: str, base: Path) -> tuple[str, ...]:
    """Absolute paths that a glob means, in path order; hidden and unfinished files are left out.

    A file to which several of them lead by symbolic links is there once: by the path without a link if that is one
    of them, else by the first.

    Args:
        pattern: Glob, `**` for any depth, relative to `base` or absolute.
        base: The folder of the spec file.

    Raises:
        InputError: The folder before the first wildcard cannot be listed, or the path names a hidden file.
    """
    fixed = fixed_folder(pattern, base)
    if isinstance(fixed, RemotePath):
        return tuple(files_in_store(pattern))
    if fixed.is_dir() and not os.access(fixed, os.R_OK | os.X_OK):
        raise InputError(
            f"The folder {fixed} cannot be listed: permission denied",
            expected="a folder that this user can read",
            remedy="give this user permission to read and enter it",
        )
    absolute = os.path.join(glob.escape(os.path.abspath(base)), pattern)
    found = {os.path.abspath(path) for path in expanded(absolute)}
    if not has_wildcard(pattern) and any(_is_hidden(path, fixed) for path in found):
        raise InputError(
            f"The path {pattern!r} names a hidden file",
            expected="a file whose name does not begin with '.' or '_'; Spark skips those",
            remedy="rename the file",
        )
    any_name = os.path.basename(pattern) in {"*", "**"}
    kept = [
        path
        for path in found
        if not _is_hidden(path, fixed)
        and not path.endswith(_UNFINISHED_ENDINGS)
        and not (any_name and os.path.isdir(path))
    ]
    return _each_file_once(kept, fixed)


def has_wildcard(text: str) -> bool:
    """Whether a path is a glob."""
    return any(sign in text for sign in "*?[")


def fixed_folder(pattern: str, base: Path) -> Place:
    """The folder that stands before the first wildcard of a glob."""
    place = place_of(pattern)
    if isinstance(place, RemotePath):
        return RemotePath(place.root, "/".join(_before_wildcard(place.parts[1:], 0)))
    parts = (Path(os.path.abspath(base)) / place).parts
    start = len(parts) - len(place.parts)  # a wildcard in the name of `base` is none
    return Path(os.path.normpath(Path(*_before_wildcard(parts, start))))


def _before_wildcard(parts: Sequence[str], start: int) -> Sequence[str]:
    """The parts before the first with a wildcard from a start on; without one those before the last."""
    wild = (i for i, part in enumerate(parts) if i >= start and has_wildcard(part))
    return parts[: next(wild, len(parts) - 1)]


def name_of(path: str, fixed: Place) -> str:
    """What a file is called in the log: its path from the fixed folder, whatever leads to that one."""
    if isinstance(fixed, RemotePath):
        return relative(place_of(path), fixed)
    return os.path.relpath(path, fixed)


def is_compressed(path: str) -> bool:
    """Whether Spark decompresses the file while it reads lines."""
    return path.endswith(_COMPRESSED_ENDINGS)


def open_bytes(path: str) -> IO[bytes]:
    """Open a file for reading, decompressed as Spark would."""
    open_it = gzip.open if path.endswith(".gz") else bz2.open if path.endswith(".bz2") else None
    if open_it is None:
        return open_raw(path)
    return cast(IO[bytes], open_it(open_raw(path) if is_url(path) else path, "rb"))


def open_raw(path: str) -> IO[bytes]:
    """Open a file for reading as it is.

    Raises:
        OSError: It cannot be read.
    """
    place = place_of(path)
    return place.open("rb")


def read_content(path: str, size_bytes: int, prefix_bytes: int) -> Content:
    """Hash the first `size_bytes` of a file, and on the way the first `prefix_bytes`.

    Raises:
        InputError: The file is shorter.
        OSError: The file cannot be read.
    """
    hasher, prefix_digest, after, last, position = hashlib.blake2b(), "", b"", b"\n", 0
    prefix_bytes = min(prefix_bytes, size_bytes)
    with open_raw(path) as file:
        while position < size_bytes:
            stop = prefix_bytes if position < prefix_bytes else size_bytes
            chunk = file.read(min(_CHUNK_BYTES, stop - position))
            if not chunk:
                raise still_being_written(path)
            if position == prefix_bytes:
                prefix_digest, after = hasher.hexdigest(), chunk[:1]
            hasher.update(chunk)
            position, last = position + len(chunk), chunk[-1:]
    return Content(hasher.hexdigest(), prefix_digest or hasher.hexdigest(), after, last in b"\r\n")


def check_whole(path: str) -> None:
    """Refuse a text file that Spark could not decompress to its end.

    Raises:
        InputError: A broken or cut-off archive, or an unknown compression.
        OSError: The file cannot be read.
    """
    ending = os.path.splitext(path)[1]
    if ending in _COMPRESSED_ENDINGS:
        _check_archive(path)
    elif ending.lower() in _UNREADABLE_ENDINGS:
        raise InputError(
            f"{path}: compression {ending} cannot be read",
            expected="plain text, .gz or .bz2 (in small letters)",
            remedy="land the file under a new name, plain or compressed with gzip or bzip2",
        )


def check_unchanged(path: str, size_bytes: int, modified_us: int) -> None:
    """Compare a file with what was seen of it before.

    Raises:
        InputError: It was changed or removed since.
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
    """The path or URL as Spark's readers take it: a URL whatever the default file system is, and no glob."""
    return without_wildcards(spark_url(place_of(path)))


def without_wildcards(url: str) -> str:
    """A URL for Spark's readers, which take others for globs."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", url)


def path_of_url(url: str) -> str:
    """The path or URL that Spark names in `_metadata.file_path`."""
    if not url.startswith("file:"):
        return str(place_of(unquote(url)))
    return "/" + unquote(url).removeprefix("file:").lstrip("/")


def still_being_written(path: str) -> InputError:
    """The error for a file that changes under the reader."""
    return InputError(
        f"{path}: the file is still being written",
        expected="a file that no longer changes once it is older than `settle`; nothing of it was ingested",
        remedy="give the source a longer `settle`, or write to a name in .tmp and rename at the end",
    )


def _each_file_once(paths: Iterable[str], fixed: Path) -> tuple[str, ...]:
    real_fixed = os.path.realpath(fixed)

    @cache
    def seen(folder: str) -> tuple[str, bool]:
        """The real path of a folder, and whether no link lies between the fixed folder and it."""
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


def _check_archive(path: str) -> None:
    try:
        with open_bytes(path) as file:
            while file.read(_CHUNK_BYTES):
                pass
    except PermissionError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"{path}: the archive is damaged or truncated: {error}",
            expected="a complete gzip or bzip2 file",
            remedy="land the whole file again, and give the source a longer `settle` if files grow slowly",
        ) from error


def _is_hidden(path: str, fixed: Path) -> bool:
    return any(part.startswith((".", "_")) for part in Path(os.path.relpath(path, fixed)).parts)


def expanded(pattern: str) -> Iterator[str]:
    """The paths that an absolute glob means, some of them perhaps twice.

    `**` stands for any number of folders, as in `glob` of the standard library, which however follows links that lead
    back, forty levels deep; with two such links that takes for ever. Here a folder is entered once, whatever leads to
    it: what lies in it is found all the same. Hidden folders are not entered.
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
    """A folder and all below it: those that no link leads to first, so that they keep their own path."""
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
