"""A place: a folder or a file, named by a path of the file system or by the URL of a store.

Here: the place that a text names, and `RemotePath`, which is for a store what `pathlib.Path` is for the file system.
Not here: the operations of a store (resources/places/stores.py), access to it (resources/places/credentials.py).

A place on the file system is a plain `Path`.
"""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote
from uuid import uuid4

from tidemark.resources.places.credentials import arrow_files, delta_options, store_address, store_at
from tidemark.timeops.errors import SpecError
from tidemark.timeops.values.locations import SCHEMES, has_secret, parts_of_url

if TYPE_CHECKING:  # a process that uses only the file system must not wait for the library of stores
    from tidemark.resources.places.stores import Store, StoredFile


@dataclass(frozen=True, order=True)
class RemotePath:
    """A folder or a file of a store. Its members have the names and meanings of `pathlib.Path`.

    A folder exists as long as it holds a file.

    Attributes:
        root: URL of the bucket, container or name node.
        key: Path below it; empty for the root itself.
    """

    root: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    def __truediv__(self, other: str | PathLike[str]) -> "RemotePath":
        return self.joinpath(other)

    def joinpath(self, *segments: str | PathLike[str]) -> "RemotePath":
        """Return a place below."""
        key = PurePosixPath(self.key, *(os.fspath(segment) for segment in segments))
        return RemotePath(self.root, "" if str(key) == "." else str(key))

    @property
    def name(self) -> str:
        """The last part of the key; for a root the bucket."""
        return PurePosixPath(self.key).name or self.root.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        """The ending of the name, including its dot."""
        return PurePosixPath(self.key).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The root, and the parts of the key."""
        return (self.root, *PurePosixPath(self.key).parts)

    @property
    def parent(self) -> "RemotePath":
        """The folder that holds it; the root is its own parent."""
        return RemotePath(self.root, "/".join(PurePosixPath(self.key).parts[:-1]))

    @property
    def parents(self) -> tuple["RemotePath", ...]:
        """All folders above, the nearest first."""
        parts = PurePosixPath(self.key).parts
        return tuple(RemotePath(self.root, "/".join(parts[:n])) for n in range(len(parts) - 1, -1, -1))

    def with_name(self, name: str) -> "RemotePath":
        """Return a place in the same folder."""
        return self.parent / name

    def relative_to(self, other: "RemotePath") -> PurePosixPath:
        """Return the path from a folder above.

        Raises:
            ValueError: The other place is not above this one.
        """
        if self.root != other.root:
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(self.key).relative_to(other.key)

    def absolute(self) -> "RemotePath":
        """Return itself: a URL is always absolute."""
        return self

    @property
    def store(self) -> "Store":
        """The store that holds it."""
        return store_at(self.root)

    def stat(self) -> "StoredFile":
        """Return size and time of a file.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        stored = self.store.head(self.key)
        if stored is None:
            raise FileNotFoundError(2, "No such file", str(self))
        return stored

    def is_file(self) -> bool:
        """Return whether a file is there."""
        return bool(self.key) and self.store.head(self.key) is not None

    def is_dir(self) -> bool:
        """Return whether it is a folder that holds a file."""
        return next(iter(self.store.under(self.key)), None) is not None

    def exists(self) -> bool:
        """Return whether it exists, as a file or a folder."""
        return self.is_file() or self.is_dir()

    def read_bytes(self) -> bytes:
        """Return the bytes of a file."""
        return self.store.get(self.key)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return a file as text."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes as a whole file."""
        self.store.put(self.key, data)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        """Write text as a whole file."""
        self.write_bytes(text.encode(encoding))

    def open(self, mode: str = "rb") -> IO[bytes]:  # noqa: ARG002 - as Path has it
        """Open a file for reading bytes."""
        from tidemark.resources.places.stores import opened  # noqa: PLC0415 - see above

        return opened(self.store, self.key)

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: ARG002 - a store does not say
        """Delete a file."""
        self.store.delete([self.key])

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """Yield the files below that match a pattern, with `**` for any depth, without folders."""
        for _, place in self.listed(pattern):
            yield place

    def listed(self, pattern: str) -> Iterator[tuple["StoredFile", "RemotePath"]]:
        """Yield the files below that match a pattern, each with its entry in the listing of the store."""
        fixed, wild = _fixed(pattern)
        folder = self.joinpath(fixed)
        is_flat = len(wild) == 1 and wild[0] != "**"
        entries = folder.store.directly_in(folder.key)[1] if is_flat else [*folder.store.under(folder.key)]
        # Some programs mark a folder by an empty object with its name.
        folders = {
            folder.key,
            *(above.key for entry in entries for above in RemotePath(self.root, entry.key).parents),
        }
        start = len(folder.key) + 1 if folder.key else 0
        for entry in entries:
            if _matches(entry.key[start:].split("/"), wild) and (entry.st_size or entry.key not in folders):
                yield entry, RemotePath(self.root, entry.key)


Place = Path | RemotePath


def place_of(named: "str | PathLike[str] | Place") -> Place:
    """Return the place that a path, a URL such as `s3://bucket/folder`, or a place names.

    Raises:
        SpecError: It is the URL of a store that Tidemark does not know.
    """
    if isinstance(named, Path | RemotePath):
        return named
    text = os.fspath(named)
    parts = parts_of_url(text)
    if parts is None:
        return Path(text)
    scheme, host, key = parts
    if scheme == "file" and host in ("", "localhost"):
        return Path(unquote(f"/{key}"))
    if scheme not in SCHEMES or not host or ".." in key.split("/") or has_secret(text):
        raise SpecError(
            "A URL with a user or a secret in it is not a place" if has_secret(text) else f"{text} is not a place",
            expected=f"a path, or a URL with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}, such as "
            "s3://bucket/folder",
            remedy="correct the URL",
        )
    return RemotePath(f"{scheme}://{host}").joinpath(*PurePosixPath(key).parts)


def is_url(text: str) -> bool:
    """Return whether a text is a URL rather than a path of the file system."""
    return parts_of_url(text) is not None


def roots_of(places: "Iterable[str | Place]") -> tuple[str, ...]:
    """Return the stores of places, in order, each once."""
    return tuple(sorted({place.root for place in map(place_of, places) if isinstance(place, RemotePath)}))


def path_in_store(place: RemotePath) -> str:
    """Return the path for libraries that know the store: bucket or container, and key."""
    host = place.root.partition("://")[2].partition("@")[0]
    bucket = "" if place.root.startswith("hdfs://") else host
    return f"{bucket}/{place.key}".rstrip("/")


def delta_place(place: Place) -> dict[str, Any]:
    """Return the location of a table for delta-rs: its URI, and the options of its store."""
    options = delta_options(place.root) if isinstance(place, RemotePath) else None
    return {"table_uri": str(place), "storage_options": options}


def spark_url(place: Place) -> str:
    """Return the URL for Spark, whatever its default file system is; for S3 with the scheme of Hadoop's client."""
    if isinstance(place, Path):
        return f"file://{place.absolute()}"
    if place.root.startswith("s3://"):
        return f"s3a{str(place)[2:]}"
    is_plain = place.root.startswith("abfss://") and store_address(place.root).startswith("http://")
    return f"abfs{str(place)[5:]}" if is_plain else str(place)


def resolved(place: Place) -> Place:
    """Return the one name of a place that paths over links, or relative ones, lead to."""
    return place.resolve() if isinstance(place, Path) else place


def uri_of(place: Place) -> str:
    """Return the URI of a place, such as `file:///srv/warehouse` or `s3://bucket/warehouse`."""
    return place.absolute().as_uri() if isinstance(place, Path) else str(place)


def without_wildcards(url: str) -> str:
    """Return a URL without wildcards for Spark's readers, which treat others as globs."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", url)


def relative(place: Place, folder: Place) -> str:
    """Return the path of a place from a folder above.

    Raises:
        ValueError: The place is not below the folder.
    """
    if isinstance(place, Path) and isinstance(folder, Path):
        return place.relative_to(folder).as_posix()
    if isinstance(place, RemotePath) and isinstance(folder, RemotePath):
        return place.relative_to(folder).as_posix()
    raise ValueError(f"{place} is not below {folder}")


def in_delta(place: Place) -> str:
    """Return the location of a table for Delta in Spark."""
    return str(place) if isinstance(place, Path) else spark_url(place)


def folder_of_glob(text: str, base: Path) -> Place:
    """Return the folder above the first wildcard of a path or URL; the file itself where there is no wildcard.

    A relative path begins at `base`.
    """
    place = place_of(text) if is_url(text) else base / text
    parts = place.parts
    wild = next((n for n, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts))
    for _ in parts[wild:]:
        place = place.parent
    return place


def remove_tree(folder: Place) -> None:
    """Delete a folder and all in it, as far as possible."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    with suppress(OSError):
        folder.store.delete([file.key for file in folder.store.under(folder.key)])


@contextmanager
def temporary_place(places: Place) -> Iterator[Place]:
    """Make a folder below `places` for files of one attempt; it is deleted at the end.

    No other attempt ever has a folder of this name. Spark takes two reads for the same if they name the same path: it
    would return rows that a killed run has persisted of an earlier file there. And a run that was taken for dead and
    resumes writes nothing where another one reads.
    """
    remove_tree(places)  # left by runs that were killed
    place = places / uuid4().hex
    try:
        yield place
    finally:
        remove_tree(place)
        if isinstance(places, Path):
            with suppress(OSError):  # another run, which took this one for dead, is at work
                places.rmdir()


def copy_file(file: Place, target: Place) -> None:
    """Make a second name for a file that never changes: a link if the file system has them, else a copy.

    Both are on the file system, or in the same store.
    """
    if isinstance(file, Path) and isinstance(target, Path):
        try:
            os.link(file, target)
        except OSError:
            shutil.copyfile(file, target)
        return
    if isinstance(file, RemotePath) and isinstance(target, RemotePath) and file.root == target.root:
        _copy_in_store(file, target)
        return
    raise ValueError(f"{target} is not where {file} is")


def _copy_in_store(file: RemotePath, target: RemotePath) -> None:
    files, names = arrow_files(file.root), (path_in_store(file), path_in_store(target))
    if not file.root.startswith("hdfs://"):
        files.copy_file(*names)
        return
    # HDFS has no such command, and that of `hdfs-native` writes below the home of the user, which fails.
    with files.open_input_stream(names[0]) as source, files.open_output_stream(names[1]) as copy:
        shutil.copyfileobj(source, copy)


def files_below(folder: Place, pattern: str) -> Iterator[tuple[Place, Any]]:
    """Yield the files that a glob from a folder matches, each with size and time named as by `os.stat`."""
    if isinstance(folder, Path):
        for path in folder.glob(pattern):
            yield path, path.stat()
        return
    for entry, place in folder.listed(pattern):
        yield place, entry


def names_in(folder: Place) -> list[str]:
    """Return the names of the files in a folder; none if the folder does not exist.

    Raises:
        OSError: The folder cannot be listed.
    """
    if isinstance(folder, RemotePath):
        return [PurePosixPath(file.key).name for file in folder.store.directly_in(folder.key)[1]]
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_whole(file: Place, text: str) -> None:
    """Write a file whole, or not at all: another process may have the old one open."""
    if isinstance(file, RemotePath):
        file.write_text(text)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def _fixed(pattern: str) -> tuple[str, Sequence[str]]:
    """Return the folder of a pattern before its first wildcard, and the parts of the rest."""
    parts = PurePosixPath(pattern).parts
    wild = next((n for n, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts) - 1)
    return "/".join(parts[:wild]), parts[wild:]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        further_parts = pattern[1:] or ["*"]
        return any(_matches(parts[start:], further_parts) for start in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
