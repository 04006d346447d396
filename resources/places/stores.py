"""The operations of a store: get, put, list and delete, in one class for object stores and one for HDFS.

Here: the libraries of stores, and their failures as Python's errors for files. Not here: names of places
(resources/places/place.py), credentials (resources/places/credentials.py), messages to the operator
(resources/places/checks.py).
"""

import io
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

BUFFER_BYTES = 4 << 20
"""How much of a file is asked for at once, where less is read."""
_MOST_BYTES = 16 << 20  # a request has a minute for all of its bytes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class StoreError(OSError):
    """A store refused, or did not answer. The text is the library's; `checks.in_words` puts it in plain words."""


class OddKeyError(StoreError):
    """A store has a key that its library refuses, such as one with an empty part."""


@dataclass(frozen=True)
class StoredFile:
    """A file as a store lists it, by its path below the root of the store, with names as of `os.stat`."""

    key: str
    st_size: int
    st_mtime_ns: int

    @property
    def st_mtime(self) -> float:
        """Time of the last write, seconds since the epoch."""
        return self.st_mtime_ns / 1e9


class Store(Protocol):
    """Files by their keys. Failures are `FileNotFoundError`, `FileExistsError`, `PermissionError` or `StoreError`."""

    def get(self, key: str) -> bytes:
        """Return all bytes of a file."""

    def part(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes of a file between two positions."""

    def put(self, key: str, data: bytes, *, new: bool = False) -> None:
        """Write a file whole; with `new` only if there is none, which the store decides."""

    def head(self, key: str) -> StoredFile | None:
        """Return the entry of a file, None if there is none."""

    def under(self, folder: str) -> Iterator[StoredFile]:
        """Yield all files in a folder, at any depth."""

    def directly_in(self, folder: str) -> tuple[list[str], list[StoredFile]]:
        """Return the folders and the files directly in a folder."""

    def names_from(self, folder: str, name: str) -> Iterator[str]:
        """Yield the names of the files in a folder that come after a name, in the order of their characters."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files; a missing file is not an error."""


@contextmanager
def _as_errors_of_files() -> Iterator[None]:
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        if any(code in str(error) for code in ("NoSuchBucket", "ContainerNotFound")):
            raise StoreError(str(error)) from error
        raise FileNotFoundError(2, "No such file") from error
    except (AlreadyExistsError, PreconditionError) as error:
        raise FileExistsError(17, "It is there already") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(13, str(error)) from error
    except InvalidPathError as error:
        raise OddKeyError(str(error)) from error
    except BaseError as error:
        raise StoreError(str(error)) from error


class ObjectStore:
    """An object store: S3, Google's or Azure's.

    `config` has the options of the store as obstore names them, `client` its HTTP client's. A request is tried
    again for as long as `patience`. `files` opens the store by Arrow, which lists every key: it is slower, and used
    only for odd keys.
    """

    def __init__(
        self,
        root: str,
        config: dict[str, Any],
        client: dict[str, Any],
        patience: timedelta,
        files: "Callable[[], FileSystem]",
    ) -> None:
        self._bucket, self._files = urlsplit(root).netloc.partition("@")[0], files
        retries: Any = {"retry_timeout": patience}
        with _as_errors_of_files():  # reads the file of an account
            self._store: Any = from_url(root, config=config, client_options=client, retry_config=retries)  # type: ignore[call-overload]

    def get(self, key: str) -> bytes:
        """See `Store`."""
        with _as_errors_of_files():
            return bytes(obstore.get(self._store, key).bytes())

    def part(self, key: str, start: int, end: int) -> bytes:
        """See `Store`."""
        with _as_errors_of_files():
            return bytes(obstore.get_range(self._store, key, start=start, end=end))

    def put(self, key: str, data: bytes, *, new: bool = False) -> None:
        """See `Store`."""
        with _as_errors_of_files():
            obstore.put(self._store, key, data, mode="create" if new else "overwrite", use_multipart=False)

    def head(self, key: str) -> StoredFile | None:
        """See `Store`."""
        try:
            with _as_errors_of_files():
                return _stored(obstore.head(self._store, key))
        except FileNotFoundError:
            return None

    def under(self, folder: str) -> Iterator[StoredFile]:
        """See `Store`."""
        yielded: set[str] = set()
        try:
            with _as_errors_of_files():
                for some in obstore.list(self._store, prefix=folder or None):
                    for stored in map(_stored, some):
                        yielded.add(stored.key)
                        yield stored
        except OddKeyError:
            _, listed = self._listed_by_arrow(folder, recursive=True)
            yield from (stored for stored in listed if stored.key not in yielded)

    def directly_in(self, folder: str) -> tuple[list[str], list[StoredFile]]:
        """See `Store`."""
        try:
            with _as_errors_of_files():
                listing = obstore.list_with_delimiter(self._store, prefix=folder or None)
        except OddKeyError:
            return self._listed_by_arrow(folder, recursive=False)
        return list(listing["common_prefixes"]), [_stored(entry) for entry in listing["objects"]]

    def _listed_by_arrow(self, folder: str, *, recursive: bool) -> tuple[list[str], list[StoredFile]]:
        """Return the folders and files in a folder, whatever their keys are."""
        import pyarrow.fs as files  # noqa: PLC0415 - only where there are odd keys

        where = files.FileSelector(f"{self._bucket}/{folder}".rstrip("/"), allow_not_found=True, recursive=recursive)
        entries = {
            entry.path.removeprefix(f"{self._bucket}/"): entry
            for entry in self._files().get_file_info(where)
            if entry.path.startswith(f"{self._bucket}/")
        }
        folders = [key for key, entry in entries.items() if entry.type == files.FileType.Directory]
        objects = [
            StoredFile(key, entry.size, entry.mtime_ns // 1_000 * 1_000)
            for key, entry in entries.items()
            if entry.type == files.FileType.File
        ]
        return folders, objects

    def names_from(self, folder: str, name: str) -> Iterator[str]:
        """See `Store`."""
        with _as_errors_of_files():
            for some in obstore.list(self._store, prefix=folder, offset=f"{folder}/{name}"):
                yield from (entry["path"].removeprefix(f"{folder}/") for entry in some)

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store`."""
        with _as_errors_of_files():
            for key in keys:  # not in bulk: some stores like S3 know no other way
                try:
                    obstore.delete(self._store, key)
                except (NotFoundError, FileNotFoundError):
                    continue


def _stored(entry: Any) -> StoredFile:
    since: timedelta = entry["last_modified"] - _EPOCH
    return StoredFile(entry["path"], entry["size"], since // timedelta(microseconds=1) * 1_000)


@contextmanager
def _as_errors_of_hdfs() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # the only class for refusals of the name node, with their stack
        message = str(error).partition("\\n")[0]
        if "AccessControlException" in message:
            raise PermissionError(13, message) from error
        raise StoreError(message) from error


class Hdfs:
    """HDFS, by the client of its protocol in `hdfs-native`.

    It waits some time for a name node; the client knows the nodes of a name service.

    Raises:
        StoreError: The name node does not answer; the client would try for ever.
    """

    def __init__(self, root: str, patience: timedelta) -> None:
        node = urlsplit(root)
        if node.hostname and node.port:
            try:
                socket.create_connection((node.hostname, node.port), patience.total_seconds()).close()
            except OSError as error:
                raise StoreError(f"Connect to {node.netloc}: {error}") from error
        from hdfs_native import Client  # noqa: PLC0415 - an extra

        self._client = Client(root)

    def get(self, key: str) -> bytes:
        """See `Store`."""
        with _as_errors_of_hdfs(), self._client.read(f"/{key}") as file:
            return bytes(file.read())

    def part(self, key: str, start: int, end: int) -> bytes:
        """See `Store`."""
        with _as_errors_of_hdfs(), self._client.read(f"/{key}") as file:
            return bytes(file.read_range(start, end - start))

    def put(self, key: str, data: bytes, *, new: bool = False) -> None:
        """See `Store`."""
        from hdfs_native import WriteOptions  # noqa: PLC0415

        with _as_errors_of_hdfs(), self._client.create(f"/{key}", WriteOptions(overwrite=not new)) as file:
            file.write(data)

    def head(self, key: str) -> StoredFile | None:
        """See `Store`."""
        try:
            with _as_errors_of_hdfs():
                return _of_hdfs(self._client.get_file_info(f"/{key}"))
        except FileNotFoundError:
            return None

    def under(self, folder: str) -> Iterator[StoredFile]:
        """See `Store`."""
        try:
            with _as_errors_of_hdfs():
                for entry in self._client.list_status(f"/{folder}", recursive=True):
                    if not entry.isdir:
                        yield _of_hdfs(entry)
        except FileNotFoundError:
            return

    def directly_in(self, folder: str) -> tuple[list[str], list[StoredFile]]:
        """See `Store`."""
        try:
            with _as_errors_of_hdfs():
                entries = list(self._client.list_status(f"/{folder}"))
        except FileNotFoundError:
            return [], []
        return [entry.path.lstrip("/") for entry in entries if entry.isdir], [
            _of_hdfs(entry) for entry in entries if not entry.isdir
        ]

    def names_from(self, folder: str, name: str) -> Iterator[str]:
        """See `Store`."""
        names = (file.key.rpartition("/")[2] for file in self.directly_in(folder)[1])
        yield from (later for later in names if later > name)

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store`."""
        with _as_errors_of_hdfs():
            for key in keys:
                self._client.delete(f"/{key}")


def _of_hdfs(entry: Any) -> StoredFile:
    return StoredFile(entry.path.lstrip("/"), int(entry.length), int(entry.modification_time) * 1_000_000)


class Reader(io.RawIOBase):
    """A file of a store as a file object of Python."""

    def __init__(self, store: Store, key: str, size: int) -> None:
        self._store, self._key, self._size, self._at = store, key, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Read the following bytes."""
        end = min(self._at + min(len(buffer), _MOST_BYTES), self._size)
        if end <= self._at:
            return 0
        data = self._store.part(self._key, self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def opened(store: Store, key: str) -> IO[bytes]:
    """Open a file for reading.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    stored = store.head(key)
    if stored is None:
        raise FileNotFoundError(2, "No such file")
    return io.BufferedReader(Reader(store, key, stored.st_size), BUFFER_BYTES)
