"""The life of a table's files, from its whole log: which version added a file, which one removed it, and when.

Here: entries of the log that are missing or damaged, files that a version names, files that a VACUUM may have
deleted. Not here: changes since a commit (resources/delta/log.py), whether the files are there
(assets/audit/files.py).
"""

import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidemark.resources.delta.log import LOG_FOLDER, MENDING, actions_in, entries_of, entry_path
from tidemark.resources.places.place import Place, delta_place, names_in

_FOREVER_MS = 2**62
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\b.*\.parquet")


@dataclass(frozen=True)
class Lifetime:
    """A file of a table between two versions.

    Attributes:
        path: Its name in the log.
        size: Bytes.
        rows: Its rows; None where the log does not say.
        added: The version that added it.
        removed: The first version without it; None while the latest one has it.
        removed_ms: When that version was made, milliseconds since the epoch.
        is_mended: Whether the file was lost or damaged, and its rows are in other files now.
    """

    path: str
    size: int
    rows: int | None
    added: int
    removed: int | None = None
    removed_ms: int = _FOREVER_MS
    is_mended: bool = False

    def is_in(self, version: int) -> bool:
        """Return whether a version names the file."""
        return self.added <= version and (self.removed is None or version < self.removed)


@dataclass(frozen=True)
class History:
    """A table's log, from its first entry to its latest. Upkeep may have deleted earlier ones, before a checkpoint.

    Attributes:
        files: The files, by the version that added them; one that was restored is there several times.
        lacking: Versions without an entry, although there are earlier ones, or whose entry cannot be read; in order.
        checkpoints: The versions that have a checkpoint of the log, in order.
        vacuumed_ms: Files that were removed before this instant may have been deleted by a VACUUM.
    """

    files: Sequence[Lifetime]
    lacking: tuple[int, ...] = ()
    checkpoints: tuple[int, ...] = ()
    vacuumed_ms: int = 0

    @property
    def is_whole(self) -> bool:
        """Return whether no entry is missing or damaged."""
        return not self.lacking

    def lacks_for(self, version: int) -> list[int]:
        """Return the missing or damaged entries without which a version, or a later one, cannot be read."""
        begins = max((checkpoint for checkpoint in self.checkpoints if checkpoint <= version), default=0)
        return [entry for entry in self.lacking if entry > begins]

    def named_by(self, versions: Collection[int]) -> list[Lifetime]:
        """Return the files that some versions name, each once, without the ones that may be gone by now."""
        files, in_order = dict[str, Lifetime](), sorted(versions)
        for file in self.files:
            if file.is_mended or file.removed_ms < self.vacuumed_ms:
                continue
            place = bisect_left(in_order, file.added)
            if place < len(in_order) and file.is_in(in_order[place]):
                files[file.path] = file
        return list(files.values())


def history_of(folder: Place, latest: int) -> History:
    """Read the log of a table up to a version.

    Raises:
        InputError: The log cannot be listed.
    """
    versions = [version for version in entries_of(folder) if version <= latest]
    lacking = {*range(versions[0], latest + 1)}.difference(versions) if versions else set()
    read = _Read()
    if versions and versions[0]:  # upkeep has deleted the entries before a checkpoint
        files = _files_at(folder, versions.pop(0))
        read.living = {file.path: file for file in files or ()}
        lacking |= {0} if files is None else set()
    with ThreadPoolExecutor(pa.cpu_count()) as pool:
        entries = pool.map(lambda version: _entry(folder, version), versions)
        for version, actions in zip(versions, entries, strict=True):
            if actions is None:
                lacking.add(version)
            else:
                read.entry(version, actions)
    files = sorted([*read.ended, *read.living.values()], key=lambda file: file.added)
    checkpoints = {int(match[1]) for match in map(_CHECKPOINT.match, names_in(folder / LOG_FOLDER)) if match}
    return History(files, tuple(sorted(lacking)), tuple(sorted(checkpoints)), read.vacuumed_ms)


def _files_at(folder: Place, version: int) -> list[Lifetime] | None:
    """Return the files of a version, as if all had come with it; None if it cannot be opened."""
    try:
        table = DeltaTable(**delta_place(folder), version=version)
    except (DeltaError, OSError):
        return None
    actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [Lifetime(file["path"], file["size_bytes"], file["num_records"], version) for file in actions]


def _entry(folder: Place, version: int) -> list[dict[str, Any]] | None:
    """Return the actions of an entry; None if it is damaged."""
    try:
        return actions_in(entry_path(folder, version).read_text(encoding="utf-8")) or None
    except (OSError, ValueError):
        return None


@dataclass
class _Read:
    """The files as the entries up to one have left them."""

    living: dict[str, Lifetime] = field(default_factory=dict)
    ended: list[Lifetime] = field(default_factory=list)
    vacuumed_ms: int = 0

    def entry(self, version: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """Take one more entry."""
        info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        is_mended = info.get("userMetadata") == MENDING
        for removed in _each(actions, "remove"):
            if (file := self.living.pop(unquote(removed["path"]), None)) is not None:
                at_ms = int(removed.get("deletionTimestamp") or info.get("timestamp") or _FOREVER_MS)
                self.ended.append(_removed(file, version, at_ms, is_mended=is_mended))
        for added in _each(actions, "add"):
            path = unquote(added["path"])
            earlier_file = self.living.pop(path, None)  # named again, with other bounds
            rows = _rows(added.get("stats"))
            since = version if earlier_file is None else earlier_file.added
            self.living[path] = Lifetime(path, int(added["size"]), rows, since)
        if str(info.get("operation", "")).startswith("VACUUM"):
            self.vacuumed_ms = max(self.vacuumed_ms, _limit_ms(info))


def _each(actions: Sequence[Mapping[str, Any]], kind: str) -> Iterator[Mapping[str, Any]]:
    return (action[kind] for action in actions if kind in action)


def _removed(file: Lifetime, version: int, at_ms: int, *, is_mended: bool) -> Lifetime:
    return Lifetime(file.path, file.size, file.rows, file.added, version, at_ms, is_mended)


def _rows(stats: str | None) -> int | None:
    parsed = actions_in(stats or "")
    return parsed[0].get("numRecords") if parsed else None


def _limit_ms(info: Mapping[str, Any]) -> int:
    """Return the instant before which a VACUUM deleted what was removed; 0 for a VACUUM that does not say."""
    parameters = info.get("operationParameters", {})
    retention = parameters.get("specifiedRetentionMillis") or parameters.get("defaultRetentionMillis")
    at = info.get("timestamp")
    return 0 if retention is None or at is None else int(at) - int(retention)
