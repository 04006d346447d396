"""A place: a folder or a file, named by a path of the file system or by the URL of a store.

Here: what a text names, and `RemotePath`, which answers for a store what `pathlib.Path` answers for the file system.
Not here: what a store can do (stores.py), how it is reached (credentials.py).

Of a place on the file system nothing of this is in the way: it is a `Path`.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, TypeGuard
from urllib.parse import unquote

from tidemark.resources.places.credentials import address_of, arrow_files, delta_options, store_at
from tidemark.timeops.errors import SpecError
from tidemark.timeops.locations import SCHEMES, has_secret, parts_of_url

if TYPE_CHECKING:  # who has all on the file system must not wait for the library of stores
    from tidemark.resources.places.stores import Store, Stored


@dataclass(frozen=True, order=True)
class RemotePath:
    """A folder or a file of a store. Names are as those of `pathlib.Path`, and mean the same.

    A folder is there as long as a file lies in it.

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

    def joinpath(self, *others: str | PathLike[str]) -> "RemotePath":
        """Return a place below."""
        key = PurePosixPath(self.key, *(os.fspath(other) for other in others))
        return RemotePath(self.root, "" if str(key) == "." else str(key))

    @property
    def name(self) -> str:
        """The last part of the key; of a root that of the bucket."""
        return PurePosixPath(self.key).name or self.root.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its ending."""
        return PurePosixPath(self.key).stem

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return PurePosixPath(self.key).suffix

    @property
    def parts(self) -> tuple[str, ...]:
        """The root, and the parts of the key."""
        return (self.root, *PurePosixPath(self.key).parts)

    @property
    def parent(self) -> "RemotePath":
        """The folder that it lies in; the root is its own."""
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
            ValueError: It is none.
        """
        if self.root != other.root:
            raise ValueError(f"{self} is not below {other}")
        return PurePosixPath(self.key).relative_to(other.key)

    def is_relative_to(self, other: object) -> bool:
        """Tell whether a place is this one or above it."""
        return isinstance(other, RemotePath) and other in (self, *self.parents)

    def absolute(self) -> "RemotePath":
        """Return itself: a URL says all."""
        return self

    def as_posix(self) -> str:
        """Return the URL."""
        return str(self)

    @property
    def store(self) -> "Store":
        """The store."""
        return store_at(self.root)

    def stat(self) -> "Stored":
        """Return size and time of a file.

        Raises:
            FileNotFoundError: There is none.
        """
        found = self.store.head(self.key)
        if found is None:
            raise FileNotFoundError(2, "No such file", str(self))
        return found

    def is_file(self) -> bool:
        """Tell whether a file is there."""
        return bool(self.key) and self.store.head(self.key) is not None

    def is_dir(self) -> bool:
        """Tell whether it is a folder with a file in it."""
        return next(iter(self.store.under(self.key)), None) is not None

    def exists(self) -> bool:
        """Tell whether it is there, as a file or a folder."""
        return self.is_file() or self.is_dir()

    def read_bytes(self) -> bytes:
        """Return the bytes of a file."""
        return self.store.get(self.key)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return a file as text."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, data: bytes) -> None:
        """Write a file whole."""
        self.store.put(self.key, data)

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        """Write a file whole."""
        self.write_bytes(text.encode(encoding))

    def open(self, mode: str = "rb") -> IO[bytes]:  # noqa: ARG002 - as Path has it
        """Open a file for reading bytes."""
        from tidemark.resources.places.stores import opened  # noqa: PLC0415 - see above

        return opened(self.store, self.key)

    def unlink(self, missing_ok: bool = False) -> None:  # noqa: ARG002 - a store does not say
        """Delete a file."""
        self.store.delete([self.key])

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """Give the files below that a pattern means, with `**` for any depth; folders are not among them."""
        for _, place in self.listed(pattern):
            yield place

    def listed(self, pattern: str) -> Iterator[tuple["Stored", "RemotePath"]]:
        """Give the same with what the store says of each."""
        fixed, wild = _fixed(pattern)
        folder = self.joinpath(fixed)
        is_flat = len(wild) == 1 and wild[0] != "**"
        found = folder.store.directly_in(folder.key)[1] if is_flat else [*folder.store.under(folder.key)]
        # Some programs mark a folder by an empty object with its name.
        folders = {folder.key, *(above.key for one in found for above in RemotePath(self.root, one.key).parents)}
        start = len(folder.key) + 1 if folder.key else 0
        for one in found:
            if _matches(one.key[start:].split("/"), wild) and (one.st_size or one.key not in folders):
                yield one, RemotePath(self.root, one.key)


Place = Path | RemotePath


def place_of(named: "str | PathLike[str] | Place") -> Place:
    """Return the place that a text names.

    Args:
        named: A path, a URL such as `s3://bucket/folder`, or a place.

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
            "A URL with a user or a secret in it names no place" if has_secret(text) else f"{text} names no place",
            expected=f"a path, or a URL with one of {', '.join(f'{one}://' for one in SCHEMES)}, such as "
            "s3://bucket/folder",
            remedy="correct the URL",
        )
    return RemotePath(f"{scheme}://{host}").joinpath(*PurePosixPath(key).parts)


def is_url(text: str) -> bool:
    """Tell whether a text is a URL, and no path of the file system."""
    return parts_of_url(text) is not None


def roots_of(places: "Iterable[str | Place]") -> tuple[str, ...]:
    """Return the stores among places, in order, each once."""
    found = (place_of(one) for one in places if not isinstance(one, str) or is_url(one))
    return tuple(sorted({place.root for place in found if isinstance(place, RemotePath)}))


def is_remote(place: Place) -> TypeGuard[RemotePath]:
    """Tell whether a place is in a store."""
    return isinstance(place, RemotePath)


def path_in_store(place: RemotePath) -> str:
    """Return the path as libraries take it that know the store: bucket or container, and key."""
    host = place.root.partition("://")[2].partition("@")[0]
    bucket = "" if place.root.startswith("hdfs://") else host
    return f"{bucket}/{place.key}".rstrip("/")


def delta_place(place: Place) -> dict[str, Any]:
    """Return where a table is as the functions of delta-rs take it: its URI, and how its store is reached."""
    options = delta_options(place.root) if isinstance(place, RemotePath) else None
    return {"table_uri": str(place), "storage_options": options}


def spark_url(place: Place) -> str:
    """Return the URL as Spark takes it, whatever its default file system is; of S3 that of Hadoop's client."""
    if isinstance(place, Path):
        return f"file://{place.absolute()}"
    if place.root.startswith("s3://"):
        return f"s3a{str(place)[2:]}"
    is_plain = place.root.startswith("abfss://") and address_of(place.root).startswith("http://")
    return f"abfs{str(place)[5:]}" if is_plain else str(place)


def relative(place: Place, folder: Place) -> str:
    """Return the path of a place from a folder above.

    Raises:
        ValueError: It is not below.
    """
    if isinstance(place, Path) and isinstance(folder, Path):
        return place.relative_to(folder).as_posix()
    if isinstance(place, RemotePath) and isinstance(folder, RemotePath):
        return place.relative_to(folder).as_posix()
    raise ValueError(f"{place} is not below {folder}")


def in_delta(place: Place) -> str:
    """Return where a table is as Delta in Spark takes it."""
    return str(place) if isinstance(place, Path) else spark_url(place)


def resolved(place: Place) -> Place:
    """Return a place by its full name, without links."""
    return place.resolve() if isinstance(place, Path) else place


def remove_tree(folder: Place) -> None:
    """Delete a folder and all in it, as far as that goes."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        folder.store.delete([one.key for one in folder.store.under(folder.key)])
    except OSError:
        return


def copy_file(file: Place, target: Place) -> None:
    """Give a file that never changes a second name: a link where the file system has them, else a copy.

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
    from pyarrow import ArrowNotImplementedError  # noqa: PLC0415 - see above

    files, names = arrow_files(file.root), (path_in_store(file), path_in_store(target))
    try:
        files.copy_file(*names)
    except ArrowNotImplementedError:  # HDFS has no such command
        with files.open_input_stream(names[0]) as source, files.open_output_stream(names[1]) as copy:
            shutil.copyfileobj(source, copy)


def files_below(folder: Place, pattern: str) -> Iterator[tuple[Place, Any]]:
    """Give files that a glob from a folder means, each with size and time as `os.stat` names them."""
    if isinstance(folder, Path):
        for path in folder.glob(pattern):
            yield path, path.stat()
        return
    for seen, place in folder.listed(pattern):
        yield place, seen


def names_in(folder: Place) -> list[str]:
    """Return the names of the files in a folder; none where there is no folder.

    Raises:
        OSError: It cannot be listed.
    """
    if isinstance(folder, RemotePath):
        return [PurePosixPath(one.key).name for one in folder.store.directly_in(folder.key)[1]]
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_whole(file: Place, text: str) -> None:
    """Write a file whole, or not at all: somebody may have the last one open."""
    if isinstance(file, RemotePath):
        file.write_text(text)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_name(f".{file.name}.{os.getpid()}")
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def _fixed(pattern: str) -> tuple[str, Sequence[str]]:
    """The folder of a pattern before its first wildcard, and the parts of the rest."""
    parts = PurePosixPath(pattern).parts
    wild = next((n for n, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts) - 1)
    return "/".join(parts[:wild]), parts[wild:]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path match those of a glob."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        behind = pattern[1:] or ["*"]
        return any(_matches(parts[start:], behind) for start in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
