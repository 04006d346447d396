"""Delta's commits: the attempt that made one, the rows that it changed, and the commits since a version.

Here: the marks that a commit carries, and reading them. Not here: writing tables (lake.py), the reaction to foreign
commits (undoing.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Literal

from tidemark.resources.lake.opened import entry_path, unreadable_log
from tidemark.resources.places.place import Place, RemotePath
from tidemark.resources.sources.delta_log import actions_in
from tidemark.timeops.errors import LakeError

_COLUMNS = "columns of "

UNDOING = "undoing"
"""Mark of a commit that takes back what an unfinished attempt wrote."""
RESHAPING = "renaming columns"
"""Mark of a commit that changes the columns of a table's rows, and is maintenance."""
ADDED_ROWS = "tidemark.addedRows"
"""Number of rows that a commit added, if it also rewrote others."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def mark(attempt: int) -> str:
    """Return the mark by which a commit names the attempt that made it.

    Delta's own mark of a writer (`txnAppId`, `txnVersion`) does the same, but costs three more Spark jobs a write: to
    look it up Spark rebuilds the state of the table.
    """
    return f"attempt {attempt}"


def mark_of_columns(attempt: int) -> str:
    """Return the mark of a commit that changes the columns of a table before an attempt writes."""
    return f"{_COLUMNS}{mark(attempt)}"


def attempt_of(commit: dict[str, Any], what: Literal["any", "rows"] = "any") -> int:
    """Return the attempt that made a commit, 0 if it names none.

    Args:
        commit: Metadata of the commit.
        what: Consider commits of any kind, or only commits that wrote the attempt's rows.
    """
    said = str(commit.get("userMetadata", ""))
    name, _, number = (said.removeprefix(_COLUMNS) if what == "any" else said).partition(" ")
    return int(number) if name == "attempt" and number.isdigit() else 0


def rows_written(commit: dict[str, Any]) -> int:
    """Return the number of rows that a commit added, from its metrics, which Spark and delta-rs name differently."""
    if ADDED_ROWS in commit:
        return int(commit[ADDED_ROWS])
    metrics = commit.get("operationMetrics", {})
    if "num_added_rows" in metrics:
        return int(metrics["num_added_rows"])
    return int(metrics.get("numOutputRows", 0)) - int(metrics.get("numCopiedRows", 0))


def rows_deleted(commit: dict[str, Any]) -> int | None:
    """Return the number of rows that a commit deleted, None if its metrics do not say."""
    metrics = commit.get("operationMetrics", {})
    for name in ("num_deleted_rows", "numDeletedRows"):
        if name in metrics:
            return int(metrics[name])
    return None


def restored_version(commit: dict[str, Any]) -> int | None:
    """Return the version that a commit restored, None if it did not restore one by its number."""
    target = str(commit.get("operationParameters", {}).get("version"))
    return int(target) if commit.get("operation") == "RESTORE" and target.isdigit() else None


@dataclass(frozen=True)
class Entry:
    """One commit of a table.

    Attributes:
        version: The version that it made.
        info: Its metadata.
        changes: Whether it adds or removes rows, or an attempt of Tidemark made it; otherwise it is maintenance.
        has_vectors: Whether it marks rows of files as deleted instead of writing the files anew.
    """

    version: int
    info: Mapping[str, Any]
    changes: bool
    has_vectors: bool

    @property
    def attempt(self) -> int:
        """The attempt that made it, 0 if none did."""
        return attempt_of(dict(self.info))

    @property
    def writes_for(self) -> int:
        """The attempt whose rows it wrote, 0 if it did not write rows of an attempt."""
        return attempt_of(dict(self.info), "rows")

    @property
    def operation(self) -> str:
        """The operation, as Delta names it."""
        return str(self.info.get("operation", "a commit that does not say what it did"))

    @property
    def at(self) -> datetime:
        """Time of the commit."""
        return _EPOCH + timedelta(milliseconds=int(self.info.get("timestamp", 0)))

    @property
    def deleted(self) -> int | None:
        """Number of rows that it deleted, None if it does not say."""
        return rows_deleted(dict(self.info))


@dataclass(frozen=True)
class Since:
    """The history of a table since a version.

    Attributes:
        latest: Its version now.
        states: At each version, the changes of rows in force: all made since, except changes that were taken back.
        lost: Attempts whose writes another writer has taken back.
    """

    latest: int
    states: Mapping[int, tuple[Entry, ...]]
    lost: frozenset[int]

    @property
    def left(self) -> tuple[Entry, ...]:
        """The changes in force now."""
        return self.states[self.latest]

    @property
    def foreign(self) -> tuple[Entry, ...]:
        """The changes in force that no attempt of Tidemark made."""
        return tuple(entry for entry in self.left if not entry.attempt)

    def versions_with(self, changes: tuple[Entry, ...] = ()) -> list[int]:
        """Return the versions at which exactly these changes are in force, the newest first."""
        return sorted((version for version, state in self.states.items() if state == changes), reverse=True)


def changes_since(folder: Place, base: int, latest: int) -> Since:
    """Return the history of a table between two versions.

    Args:
        folder: Folder of the table.
        base: The earlier version.
        latest: The later one, not before it.

    Raises:
        LakeError: An entry of the log is missing.
    """
    states: dict[int, tuple[Entry, ...]] = {base: ()}
    lost: set[int] = set()
    for version in range(base + 1, latest + 1):
        entry, before = entry_of(folder, version), states[version - 1]
        target = restored_version(dict(entry.info))
        if target is not None and base <= target < version:
            states[version] = states[target]
            if entry.info.get("userMetadata") != UNDOING:
                lost |= {one.attempt for one in before if one not in states[target]}
        else:
            states[version] = (*before, entry) if entry.changes else before
    return Since(latest, states, frozenset(lost - {0}))


def changes_between(folder: Place, after: int, latest: int) -> list[Entry]:
    """Return the commits after a version that are not maintenance, in order."""
    entries = [entry_of(folder, version) for version in range(after + 1, latest + 1)]
    return [entry for entry in entries if entry.changes]


def newest_change(folder: Place, latest: int) -> Entry | None:
    """Return the newest commit that is not maintenance, None if there is none."""
    for version in range(latest, 0, -1):
        entry = entry_of(folder, version)
        if entry.changes:
            return entry
    return None


def entry_of(folder: Place, version: int) -> Entry:
    """Return a commit of a table.

    Raises:
        LakeError: The log has no entry for it.
    """
    path = entry_path(folder, version)
    try:
        return _fetched(path, version) if isinstance(path, RemotePath) else _parsed(path, version)
    except FileNotFoundError as error:
        raise LakeError(
            f"The log of {folder} has no entry of version {version}.",
            expected="every entry since the last commit in `batches`",
            remedy="Restore the table's folder from a backup made together with the other tables, and leave "
            "`delta.enableExpiredLogCleanup` off.",
        ) from error
    except ValueError as error:
        raise unreadable_log(folder, f"its entry of version {version} is not JSON") from error


@lru_cache(maxsize=2_000)  # an entry never changes, and each look is a request
def _fetched(path: RemotePath, version: int) -> Entry:
    return _parsed(path, version)


def _parsed(path: Place, version: int) -> Entry:
    text = path.read_text(encoding="utf-8")
    actions = actions_in(text)
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    files = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
    return Entry(
        version,
        info,
        changes=attempt_of(info) > 0
        or (info.get("userMetadata") != RESHAPING and any(file.get("dataChange", True) for file in files)),
        has_vectors=any("add" in action and action["add"].get("deletionVector") for action in actions),
    )
