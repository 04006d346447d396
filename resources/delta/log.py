"""The log of a Delta table: its entries, the effect of each on the rows, and the attempt that made it.

Here: reading entries of the log without Spark, of our tables and of foreign ones. Not here: writing tables
(resources/delta/lake.py), the reaction to foreign commits (resources/delta/undoing.py), the choice of versions of a
source and its rows (resources/sources/).
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.resources.places.checks import ensure_answers
from tidemark.resources.places.place import Place, RemotePath, delta_place, is_url, names_in, place_of
from tidemark.resources.tables import remedy_of
from tidemark.timeops.errors import InputError, LakeError, first_line
from tidemark.timeops.values.utc import is_instant

LOG_FOLDER = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")
_ELSEWHERE = ("catalogManaged", "catalogOwned-preview", "coordinatedCommits-preview")
_COLUMNS = "columns of "
UNDOING = "undoing"
"""Mark of a commit that takes back what an unfinished attempt wrote."""
RESHAPING = "renaming columns"
"""Mark of a commit that changes the columns of a table's rows, and is maintenance."""
MENDING = "mending files"
"""Mark of a commit that names new files with the rows of lost or damaged ones, and is maintenance."""
REMOVES_OLD = "tidemark.removesOld"
"""Mark of a commit that removes rows because they have become old: what was computed from them stays right."""
ADDED_ROWS = "tidemark.addedRows"
"""Number of rows that a commit added, if it also rewrote others."""


@dataclass(frozen=True)
class TableLayout:
    """The metadata of a table in its Delta log, as JSON.

    Attributes:
        table_id: The table's id, which stays when it is moved and changes when it is created again.
        schema: The columns.
        partitions: Names of the columns whose values are in the log.
        settings: Its properties.
        protocol: The features that a reader has to know.
    """

    table_id: str
    schema: str
    partitions: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    protocol: str

    @property
    def columns(self) -> list[str]:
        """Names of its columns."""
        return [str(field["name"]) for field in json.loads(self.schema)["fields"]]

    @property
    def has_change_feed(self) -> bool:
        """Return whether the table keeps the changes of its commits."""
        return dict(self.settings).get("delta.enableChangeDataFeed", "").lower() == "true"

    def after_commit(self, commit: "TableCommit") -> "TableLayout":
        """Return the layout after a commit."""
        layout = self
        if commit.metadata is not None:
            layout = replace(_layout(json.loads(commit.metadata)), protocol=layout.protocol)
        return replace(layout, protocol=commit.protocol) if commit.protocol is not None else layout


def _normal(text: str) -> str:
    """Return JSON in one spelling: delta-rs returns the keys in any order."""
    return json.dumps(json.loads(text), sort_keys=True)


def _layout(metadata: Mapping[str, Any]) -> TableLayout:
    return TableLayout(
        table_id=str(metadata["id"]),
        schema=_normal(metadata["schemaString"]),
        partitions=tuple(metadata.get("partitionColumns", ())),
        settings=tuple(sorted((metadata.get("configuration") or {}).items())),
        protocol="",
    )


@dataclass(frozen=True)
class DataFile:
    """A file of a table, as a commit names it.

    Attributes:
        path: Its URL in the log, relative to the folder of the table unless it is absolute.
        size: Bytes.
        rows: Number of rows; 0 if the log does not say.
        partition: Values of the partition columns, as JSON; none for a removed file if the log does not say.
        has_vector: Whether some of its rows are marked as deleted.
    """

    path: str
    size: int
    rows: int
    partition: str
    has_vector: bool


def place_of_file(path: str, folder: Place) -> Place:
    """Return the place of a file that the log of a table names."""
    return place_of(unquote(path)) if is_url(path) or path.startswith("file:") else folder / unquote(path)


@dataclass(frozen=True)
class TableCommit:
    """The effect of one commit. Files that only rewrite old rows are not among the added or removed ones.

    Attributes:
        version: The version that it made.
        at_us: Its time as recorded in it, microseconds since the epoch; None outside the years 0001 to 9999.
        info: Its metadata.
        added: Files with new rows.
        removed: Files whose rows it removed, as far as the entry lists them.
        feed: Files that list the rows that it changed.
        metadata: The new layout as JSON; None if it did not change.
        protocol: The new protocol as JSON; None if it did not change.
        entry: Size and modification time (nanoseconds) of the entry.
    """

    version: int
    at_us: int | None
    info: Mapping[str, Any]
    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    feed: tuple[DataFile, ...]
    metadata: str | None
    protocol: str | None
    entry: tuple[int, int]

    @property
    def operation(self) -> str:
        """The operation, as the writer names it."""
        return str(self.info.get("operation", "a commit that does not say what it did"))

    @property
    def attempt(self) -> int:
        """The attempt of Tidemark that made it, 0 if none did."""
        return _attempt_in(self._said.removeprefix(_COLUMNS))

    @property
    def writes_for(self) -> int:
        """The attempt whose rows it wrote, 0 if it did not write rows of an attempt."""
        return _attempt_in(self._said)

    @property
    def removes_old(self) -> bool:
        """Return whether it removes rows because they have become old."""
        return REMOVES_OLD in self.info

    @property
    def is_undoing(self) -> bool:
        """Return whether it takes back what an unfinished attempt wrote."""
        return self._said == UNDOING

    @property
    def changes(self) -> bool:
        """Return whether it adds or removes rows, or an attempt made it; otherwise it is maintenance."""
        return self.attempt > 0 or (self._said not in (RESHAPING, MENDING) and bool(self.added or self.removed))

    @property
    def rows(self) -> int:
        """Number of rows that it added, from its metrics, which Spark and delta-rs name differently."""
        if ADDED_ROWS in self.info:
            return int(self.info[ADDED_ROWS])
        copied = self._metric("numCopiedRows") or 0
        return self._metric("num_added_rows") or (self._metric("numOutputRows") or 0) - copied

    @property
    def deleted(self) -> int | None:
        """Number of rows that it deleted, None if its metrics do not say."""
        return self._metric("num_deleted_rows", "numDeletedRows")

    @property
    def restores(self) -> int | None:
        """The version that it restored, None if it did not restore one by its number."""
        target = str(self.info.get("operationParameters", {}).get("version"))
        return int(target) if self.info.get("operation") == "RESTORE" and target.isdigit() else None

    @property
    def _said(self) -> str:
        return str(self.info.get("userMetadata", ""))

    def _metric(self, *names: str) -> int | None:
        metrics = self.info.get("operationMetrics", {})
        return next((int(metrics[name]) for name in names if name in metrics), None)


def _attempt_in(text: str) -> int:
    name, _, number = text.partition(" ")
    return int(number) if name == "attempt" and number.isdigit() else 0


def marks(attempt: int, rows: int | None = None) -> dict[str, str]:
    """Return the metadata by which a commit names the attempt whose rows it writes, and their number.

    Delta's own mark of a writer, an application's transaction, would not do: a table has only the last one of each
    application, and keeps it when the rows are taken back. Here each commit since the last one in `batches` is looked
    at, as commits without a mark are another writer's.
    """
    return {"userMetadata": f"attempt {attempt}"} | ({} if rows is None else {ADDED_ROWS: str(rows)})


def marks_of_columns(attempt: int) -> dict[str, str]:
    """Return the metadata of a commit that changes the columns of a table before an attempt writes."""
    return {"userMetadata": f"{_COLUMNS}attempt {attempt}"}


def entries_of(folder: Place) -> list[int]:
    """Return the versions that have an entry in the log, in order; none if there is no log.

    Raises:
        InputError: The log cannot be listed.
    """
    ensure_answers(folder)
    try:
        names = names_in(folder / LOG_FOLDER)
    except OSError as error:
        raise InputError(
            f"{folder / LOG_FOLDER} cannot be listed: {error.strerror}",
            expected="a Delta table that this user can read",
            remedy="grant this user permission to read and enter it",
        ) from error
    return sorted(int(match[1]) for match in map(_ENTRY.fullmatch, names) if match)


def entry_path(folder: Place, version: int) -> Place:
    """Return the place of a version's entry."""
    return folder / LOG_FOLDER / f"{version:020}.json"


def commit_of(folder: Place, version: int) -> TableCommit:
    """Read the entry of a version.

    Raises:
        InputError: The entry is damaged, or cannot be read.
        FileNotFoundError: There is no such entry.
    """
    path = entry_path(folder, version)
    try:
        return _parsed(path, version, _stat(path))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: this entry of the table's log cannot be read: {error}",
            expected="one JSON object a line, as Delta writes it",
            remedy="restore the entry; nothing after it is read before",
        ) from error


def own_commit(folder: Place, version: int) -> TableCommit:
    """Read the entry of a version of a pipeline's own table.

    Raises:
        LakeError: There is no such entry, or it is damaged.
    """
    path = entry_path(folder, version)
    try:  # an entry never changes, and each look at a store is a request
        return _parsed(path, version, (0, 0) if isinstance(path, RemotePath) else _stat(path))
    except FileNotFoundError as error:
        raise LakeError(
            f"The log of {folder} has no entry of version {version}.",
            expected="every entry since the last commit in `batches`",
            remedy="Restore the table's folder from a backup made together with the other tables, and leave "
            "`delta.enableExpiredLogCleanup` off.",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise unreadable_log(folder, f"its entry of version {version} is not JSON") from error


def _stat(path: Place) -> tuple[int, int]:
    file_stat = path.stat()
    return file_stat.st_size, file_stat.st_mtime_ns


def actions_in(entry: str) -> list[dict[str, Any]]:
    """Return the objects of an entry of a Delta log, one from each line.

    Only a line feed ends a line: JSON may hold U+0085, U+2028 and U+2029 as they are, at which `str.splitlines` cuts.

    Raises:
        ValueError: A line is not JSON.
    """
    return [json.loads(line) for line in entry.split("\n") if line.strip()]


@lru_cache(maxsize=2_000)  # a run looks at its input before it begins, and then reads it
def _parsed(path: Place, version: int, entry: tuple[int, int]) -> TableCommit:
    actions: dict[str, list[dict[str, Any]]] = {}
    for line in actions_in(path.read_text(encoding="utf-8")):
        for kind, action in line.items():
            actions.setdefault(kind, []).append(action)
    if not actions:
        raise ValueError("it is empty")
    info = next(iter(actions.get("commitInfo", ())), {})
    at_ms = info.get("inCommitTimestamp") or info.get("timestamp") or entry[1] // 1_000_000
    at_us = int(at_ms) * 1_000
    metadata, protocol = actions.get("metaData", [None])[-1], actions.get("protocol", [None])[-1]
    return TableCommit(
        version=version,
        at_us=at_us if is_instant(at_us) else None,
        info=info,
        added=tuple(_data_file(action) for action in actions.get("add", ()) if action.get("dataChange", True)),
        removed=tuple(_removed(action) for action in actions.get("remove", ()) if action.get("dataChange", True)),
        feed=tuple(map(_data_file, actions.get("cdc", ()))),
        metadata=None if metadata is None else json.dumps(metadata),
        protocol=None if protocol is None else _protocol(protocol),
        entry=entry,
    )


def _protocol(action: Mapping[str, Any]) -> str:
    """Return the features that a reader has to know, in one spelling."""
    versions = {name: action[name] for name in ("minReaderVersion", "minWriterVersion")}
    return json.dumps({**versions, "readerFeatures": sorted(action.get("readerFeatures") or ())})


def _removed(action: Mapping[str, Any]) -> DataFile:
    return _data_file({**action, "size": action.get("size") or 0})  # a writer may leave it out


def _data_file(action: Mapping[str, Any]) -> DataFile:
    stats = json.loads(action.get("stats") or "{}")
    return DataFile(
        path=str(action["path"]),
        size=int(action["size"]),
        rows=int(stats.get("numRecords") or 0),
        partition=json.dumps(action.get("partitionValues") or {}, ensure_ascii=False),
        has_vector=bool(action.get("deletionVector")),
    )


@dataclass(frozen=True)
class OpenedTable:
    """A table at a version: paths of its files as in `DataFile`, their bytes, and rows as far as the log says."""

    version: int
    layout: TableLayout
    files: tuple[str, ...]
    size: int
    rows: int


def open_table(folder: Place, version: int | None = None) -> OpenedTable:
    """Open a table, by default as of now; this reads the log, but no rows.

    Raises:
        InputError: The table cannot be opened, or not at that version.
    """
    try:
        table = DeltaTable(**delta_place(folder), version=version)
        metadata, protocol = table.metadata(), table.protocol()
        actions = pa.table(table.get_add_actions(flatten=True))
        schema = table.schema().to_json()
    except TableNotFoundError as error:
        raise InputError(
            f"{folder} is not a Delta table",
            expected=f"a folder with the log of a Delta table, {LOG_FOLDER}",
            remedy="correct `path` of the source, or create the table",
        ) from error
    except (DeltaError, OSError) as error:
        at = "" if version is None else f" at version {version}"
        raise InputError(
            f"{folder} cannot be opened{at}: {first_line(error)}",
            expected="a Delta table with a whole log",
            remedy="see which of its files are missing or damaged, and restore them",
        ) from error
    features = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
        "readerFeatures": protocol.reader_features,
    }
    layout = TableLayout(
        table_id=str(metadata.id),
        schema=_normal(schema),
        partitions=tuple(metadata.partition_columns),
        settings=tuple(sorted((str(name), str(value)) for name, value in metadata.configuration.items())),
        protocol=_protocol(features),
    )
    check_readable(folder, layout)
    return OpenedTable(
        version=table.version(),
        layout=layout,
        files=tuple(actions["path"].to_pylist()),
        size=int(pc.sum(actions["size_bytes"]).as_py() or 0),
        rows=int(pc.sum(actions["num_records"]).as_py() or 0),
    )


def check_readable(folder: Place, layout: TableLayout) -> None:
    """Refuse a table whose log does not hold all commits.

    Raises:
        InputError: A catalog keeps some of the commits.
    """
    features = json.loads(layout.protocol or "{}").get("readerFeatures") or ()
    for feature in set(_ELSEWHERE).intersection(features):
        raise InputError(
            f"{folder}: a catalog keeps the commits of this table (its feature {feature})",
            expected="a table whose commits are in its own log",
            remedy="read a copy of the table that has its own log",
        )


def unreadable_log(folder: Place, why: str) -> LakeError:
    """Return the error for a table whose log cannot be read, with the entry that is broken if one is."""
    entries: list[Place] = [*(folder / "_delta_log").glob("*.json")]
    entries.sort(key=str, reverse=True)  # a machine that goes down leaves the newest one half written
    broken = next(filter(_is_broken, entries), None)
    what = f"{broken.name} in it is truncated or damaged" if broken is not None else why
    for later, entry in pairwise(entries):
        if broken is None and int(later.stem) != int(entry.stem) + 1:
            what = f"the entry before {later.name} is missing"
    return LakeError(
        f"The log of the table {folder} cannot be read: {what}.",
        expected="whole entries in `_delta_log`, one for each version with no gap",
        remedy="move the entry away if it came after the last commit in `batches`, when the machine went down: the "
        f"next run writes it again. Else {remedy_of(folder)}",
    )


def _is_broken(entry: Place) -> bool:
    try:
        return not actions_in(entry.read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        return True


@dataclass(frozen=True)
class Since:
    """The history of a table since a version, up to its latest one.

    `states` has at each version the changes of rows in force: all made since, except changes that were taken back.
    `lost` are the attempts whose writes another writer has taken back.
    """

    latest: int
    states: Mapping[int, tuple[TableCommit, ...]]
    lost: frozenset[int]

    @property
    def left(self) -> tuple[TableCommit, ...]:
        """The changes in force now."""
        return self.states[self.latest]

    @property
    def foreign(self) -> tuple[TableCommit, ...]:
        """The changes in force that no attempt of Tidemark made."""
        return tuple(commit for commit in self.left if not commit.attempt)

    def versions_with(self, changes: tuple[TableCommit, ...] = ()) -> list[int]:
        """Return the versions at which exactly these changes are in force, the newest first."""
        return sorted((version for version, state in self.states.items() if state == changes), reverse=True)


def changes_since(folder: Place, base: int, latest: int) -> Since:
    """Return the history of a table between two versions, the latest not before the base.

    Raises:
        LakeError: An entry of the log is missing.
    """
    states: dict[int, tuple[TableCommit, ...]] = {base: ()}
    lost: set[int] = set()
    for version in range(base + 1, latest + 1):
        commit, changes_before = own_commit(folder, version), states[version - 1]
        target = commit.restores
        if target is not None and base <= target < version:
            states[version] = states[target]
            if not commit.is_undoing:  # another writer's RESTORE
                lost |= {earlier.attempt for earlier in changes_before if earlier not in states[target]}
        else:
            states[version] = (*changes_before, commit) if commit.changes else changes_before
    return Since(latest, states, frozenset(lost - {0}))


def commits_between(folder: Place, base: int, latest: int) -> list[TableCommit]:
    """Return the commits after a version that are not maintenance, in order."""
    commits = (own_commit(folder, version) for version in range(base + 1, latest + 1))
    return [commit for commit in commits if commit.changes]


def commit_of_attempt(folder: Place, latest: int, attempt: int) -> TableCommit | None:
    """Return the newest commit up to a version that wrote rows for an attempt, None if there is none."""
    return next((commit for commit in _newest_first(folder, latest) if commit.writes_for == attempt), None)


def newest_change(folder: Place, latest: int) -> TableCommit | None:
    """Return the newest commit that is not maintenance, None if there is none."""
    return next((commit for commit in _newest_first(folder, latest) if commit.changes), None)


def _newest_first(folder: Place, latest: int) -> Iterator[TableCommit]:
    """Yield the commits up to a version, back to the first one whose entry upkeep has left."""
    for version in range(latest, 0, -1):
        try:
            commit = own_commit(folder, version)
        except LakeError:
            if version < min(entries_of(folder), default=0):
                return
            raise
        yield commit
