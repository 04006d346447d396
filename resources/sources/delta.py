"""A Delta table as a source: the versions that the next ingestion reads, and the reason why it must stop.

Here: choosing versions, without Spark. Not here: one version, and its rows (resources/sources/table_versions.py),
which versions of another pipeline's table were committed (resources/batches).

Versions are read in order and none is left out, so an error at one stops the source there; earlier versions are read.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from tidemark.resources.delta.log import (
    OpenedTable,
    TableCommit,
    TableLayout,
    check_readable,
    commit_of,
    entries_of,
    entry_path,
    open_table,
)
from tidemark.resources.places.place import Place, is_url, place_of
from tidemark.resources.sources.columns import Columns, columns_of_layout
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.sources.reader import Found, HeldBack, Known, SourceRead, SourceReader
from tidemark.resources.sources.table_versions import (
    ANEW,
    How,
    TableVersion,
    check_files,
    check_fits,
    ensure_same_table,
    judged,
    last_of,
    path_of,
    read_before,
    read_versions,
)
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import DeltaSource
from tidemark.timeops.values.utc import instant_of

_LEAST_STEP_US = 1_000  # Delta, too, puts a commit this far after the one before when clocks disagree


@dataclass(frozen=True)
class VersionsFound(Found):
    """The findings in a table's log: versions in order and without a gap; some may have nothing to read."""

    PART: ClassVar[str] = "version"

    versions: tuple[TableVersion, ...] = ()

    @property
    def parts(self) -> tuple[TableVersion, ...]:
        """The versions that have something to read."""
        return tuple(version for version in self.versions if not version.is_empty)

    @property
    def has_news(self) -> bool:
        """Return whether there are versions to read, or to remember as read."""
        return bool(self.versions)

    @property
    def tables(self) -> tuple[str, ...]:
        """The folder of the table, if there is something to read of it."""
        return tuple({str(version.folder) for version in self.parts})

    @property
    def columns(self) -> Columns:
        """The columns of the last version."""
        return tuple(column for version in self.parts[-1:] for column in columns_of_layout(version.layout.schema))

    @property
    def passed_over(self) -> tuple[str, ...]:
        """One sentence for each version whose changes of rows are not read."""
        return tuple(version.passed_over for version in self.versions if version.passed_over)

    def all_left(self) -> "VersionsFound":
        """Return the findings if no version is read now; one without rows may come between others."""
        return replace(self, versions=(), left=self.new, ahead=self.new)

    def without(self, held: Sequence[HeldBack]) -> "VersionsFound":
        """Return the findings before the first version that could not be read."""
        paths = {version.path for version in held}
        versions = tuple(takewhile(lambda version: version.path not in paths, self.versions))
        errors = (*self.errors, *(version.error for version in held))
        return replace(self, versions=versions, errors=errors, held=(*self.held, *held))

    def ensure_unchanged(self) -> None:
        """Check that the log of the table is unchanged."""
        ensure_same_table(self.versions)


@dataclass(frozen=True)
class DeltaReader(SourceReader[VersionsFound]):
    """Reads a Delta table; see `SourceReader`."""

    source: DeltaSource
    base: Path

    @property
    def _folder(self) -> Place:
        path = self.source.path
        return place_of(path) if is_url(path) else Path(os.path.abspath(self.base / path))

    def seen(self, memory: Known) -> list[object]:
        """Return the newest entry of the log; of a table of another pipeline also what was committed there."""
        folder = self._folder
        seen: list[object] = []
        for newest in entries_of(folder)[-1:]:
            size, modified_ns = _stat_of(folder, newest)
            seen.append((path_of(folder, newest), size, modified_ns // 1000))
        return [*seen, memory.committed(folder)]

    def look(self, memory: Known) -> VersionsFound:
        """Compare the table with the remembered states of its versions.

        Raises:
            InputError: The pipeline would read what it writes, or the table does not exist and was not read before.
        """
        folder = self._folder
        if memory.own_folder.absolute() in (*folder.parents,):
            raise InputError(
                f"Source {self.source.name!r}: {folder} is a table of this pipeline",
                expected="a table that others write",
                remedy="correct `path`, or let a second pipeline read it",
            )
        committed, last, held = memory.committed(folder), last_of(memory.states), memory.held
        versions = entries_of(folder)
        if not versions and last is None:
            open_table(folder)  # says what the folder has instead
        try:
            if not versions:
                raise InputError(
                    f"{folder}: the table that was read before is gone",
                    expected="a folder with the log of that table",
                    remedy="restore it, or correct `path` if it was moved; what was read stays",
                )
            now = _opened(folder, versions[-1], _stat_of(folder, versions[-1]))
            _check_same(folder, now, last)
            return _Walk(self.source, folder, tuple(versions), now, last, held).findings(committed)
        except InputError as error:
            return VersionsFound(errors=(error,))

    def remember(self, findings: VersionsFound) -> Mapping[str, Any]:
        """Return the range of versions: folder, first and last version."""
        if not findings.versions:
            return {}
        first, last = findings.versions[0], findings.versions[-1]
        return {"versions": [str(first.folder), first.version, last.version]}

    def read(self, spark: SparkSession, findings: VersionsFound, place: Place, time_zone: str) -> SourceRead:
        """Read the rows of the versions."""
        versions, corrects = findings.versions, None
        records = read_versions(spark, self.source, versions, place, time_zone)
        for version in versions:
            if version.how == "corrected":  # it is read alone
                corrects = version, read_before(spark, self.source, version, place, time_zone)
        untimed = tuple(f"v{version.version}" for version in versions if not version.is_timed)
        return SourceRead(records, tuple(version.state for version in versions), untimed, corrects)


def _stat_of(folder: Place, version: int) -> tuple[int, int]:
    try:
        seen = entry_path(folder, version).stat()
    except OSError:
        return -1, -1
    return seen.st_size, seen.st_mtime_ns


@lru_cache(maxsize=4)
def _opened(folder: Place, _newest: int, _entry: tuple[int, int]) -> OpenedTable:
    """Return a table as of now, opened once for each newest entry."""
    return open_table(folder)


def _check_same(folder: Place, now: OpenedTable, last: FileState | None) -> None:
    """Check that a table is the one that was read, and was not set back.

    Raises:
        InputError: It is another table, or an older state of it.
    """
    if last is None:
        return
    if now.layout.table_id != last.digest:
        raise _replaced(folder, last.digest, now.layout.table_id)
    if now.version < int(last.name):
        raise InputError(
            f"{folder} is at version {now.version}, and version {last.name} was read before: its log was rolled back",
            expected=f"version {last.name} or a later one",
            remedy=f"restore the entries of its log; {ANEW}",
        )


def _order_of(commit: TableCommit, before_us: int | None) -> int:
    """Return the order time of a commit: after the one before it, and just after that if it has no time itself."""
    if before_us is None:
        return commit.at_us or 0
    return max(before_us + _LEAST_STEP_US, before_us if commit.at_us is None else commit.at_us)


def _replaced(folder: Place, before: str, now: str) -> InputError:
    return InputError(
        f"{folder} was replaced by another table: its id was {before}, and is {now}",
        expected="the table that was read before",
        remedy=f"restore that one; {ANEW}",
    )


@dataclass(frozen=True)
class _Walk:
    """The walk through a table's log, from the version after the last one that was read."""

    source: DeltaSource
    folder: Place
    versions: tuple[int, ...]
    now: OpenedTable
    last: FileState | None
    held: Mapping[str, HeldBack]

    def findings(self, committed: Sequence[int] | None) -> VersionsFound:
        """Return the versions that the next ingestion reads, and the error that stops it."""
        if self.last is None and self.source.start_version is None and self.source.start_us is None:
            at = self.now.version if committed is None else max(committed, default=None)
            return VersionsFound() if at is None else self._bounded(iter([self._whole(at)]), 0)
        first = self._first()
        if committed is None:
            steps = [(version, version) for version in range(first, self.now.version + 1)]
        else:
            ends = [version for version in committed if version >= first]
            steps = list(zip([first, *(end + 1 for end in ends)], ends, strict=False))
        return self._bounded(self._read(steps, is_of_pipeline=committed is not None), len(steps))

    def _first(self) -> int:
        """Return the first version that was not read.

        Raises:
            InputError: The spec names a missing version, or it is unknown which version it means.
        """
        newest = self.now.version
        start = self.source.start_version or 0
        if self.last is not None:
            start = max(int(self.last.name) + 1, start)
        elif self.source.start_us is not None:
            return self._first_since(self.source.start_us)
        if start > newest + 1:
            raise InputError(
                f"{self.folder} has no version {start} yet: it is at version {newest}",
                expected=f"`start_version` of at most {newest + 1}",
                remedy="correct it; until then nothing is read",
            )
        return start

    def _first_since(self, start_us: int) -> int:
        """Return the first version that was committed at or after an instant."""
        first = self.now.version + 1
        for version in reversed(self.versions):
            at_us = commit_of(self.folder, version).at_us
            if at_us is not None and at_us < start_us:
                return first
            first = version
        if first > 0:
            raise InputError(
                f"{self.folder}: the log begins with version {first}, which is later than `start_timestamp`, "
                f"{instant_of(start_us):%Y-%m-%d %H:%M:%S} UTC",
                expected="entries of all versions since then",
                remedy="set a later `start_timestamp`, or leave it out to begin with the whole table as it is",
            )
        return first

    def _whole(self, version: int) -> TableVersion:
        """Return the whole table as one version.

        Raises:
            InputError: The table cannot be read.
        """
        opened = self.now if version == self.now.version else open_table(self.folder, version)
        commit = self._commit(version)
        check_fits(self.source, self.folder, opened.layout, version)
        check_files(self.folder, opened.files, version, "has")
        how: How = "whole" if opened.files else "nothing"
        about = (opened.size, opened.rows, (), opened.layout, commit.entry)
        at_us = _order_of(commit, None)
        return TableVersion(self.folder, version, how, at_us, *about, is_timed=commit.at_us is not None)

    def _read(self, steps: Sequence[tuple[int, int]], *, is_of_pipeline: bool) -> Iterator[TableVersion]:
        """Yield each version to read; several commits of another pipeline's batch are one version.

        Raises:
            InputError: A version cannot be read.
        """
        layout, before_us = None, self.last.modified_us if self.last is not None else None
        for first, version in steps:
            commits = [self._commit(number) for number in range(first, version + 1)]
            layout_before = partial(self._layout_before, commits, layout)
            if layout is None:
                layout = self._layout_at(commits[0])
            for commit in commits:
                layout = self._layout_after(layout, commit)
            before_us = _order_of(commits[-1], before_us)
            yield judged(
                self.source,
                self.folder,
                commits,
                layout,
                before_us,
                layout_before=layout_before,
                is_of_pipeline=is_of_pipeline,
            )

    def _layout_before(self, commits: Sequence[TableCommit], layout: TableLayout | None, version: int) -> TableLayout:
        """Return the layout of the table before some commits: the known one, or that of the version before."""
        if layout is not None:
            return layout
        is_as_after = all(commit.metadata is None and commit.protocol is None for commit in commits)
        return self._layout_at(commits[0]) if is_as_after else open_table(self.folder, version).layout

    def _layout_at(self, commit: TableCommit) -> TableLayout:
        if commit.metadata is not None and commit.protocol is not None:
            return self.now.layout.after_commit(commit)
        is_newest = commit.version == self.now.version
        return (self.now if is_newest else open_table(self.folder, commit.version)).layout

    def _layout_after(self, layout: TableLayout, commit: TableCommit) -> TableLayout:
        after = layout.after_commit(commit)
        table_id = self.last.digest if self.last is not None else layout.table_id
        if after.table_id != table_id:
            raise _replaced(self.folder, table_id, after.table_id)
        check_readable(self.folder, after)
        return after

    def _commit(self, version: int) -> TableCommit:
        """Return an entry of the log.

        Raises:
            InputError: The entry is missing or damaged.
        """
        try:
            return commit_of(self.folder, version)
        except FileNotFoundError:
            raise InputError(
                f"{self.folder}: the log no longer has an entry of version {version}",
                expected="the entries of all versions that have not been read yet",
                remedy="let the table keep entries for longer than this pipeline may lag "
                f"(delta.logRetentionDuration); `start_version: {self._kept_after(version)}` skips what is "
                f"missing, and its rows are then missing here; {ANEW}",
            ) from None

    def _kept_after(self, version: int) -> int:
        return next((later for later in self.versions if later > version), self.now.version + 1)

    def _bounded(self, versions: Iterator[TableVersion], steps: int) -> VersionsFound:
        """Return as many versions as one ingestion reads; at least one that has something to read."""
        ready: list[TableVersion] = []
        while True:
            try:
                version = next(versions, None)
            except InputError as error:
                return VersionsFound(errors=(error,), versions=tuple(ready))
            if version is None:
                return VersionsFound(versions=tuple(ready))
            held = self.held.get(version.path)
            if held is not None and held.is_as_it_was(version):
                return VersionsFound(errors=(held.error,), held=(held,), versions=tuple(ready))
            if not self._fits(version, [earlier for earlier in ready if not earlier.is_empty]):
                return VersionsFound(left=steps - len(ready), versions=tuple(ready))
            ready.append(version)

    def _fits(self, version: TableVersion, ready: Sequence[TableVersion]) -> bool:
        """Return whether a version may be read together with the versions before it."""
        if version.is_empty or not ready:
            return True
        alignment = self.source.alignment
        # The arrivals that an expression returns are known after a version was read: an aligned source stops after
        # each.
        most = 1 if alignment is not None and self.source.arrival_time is not None else self.source.max_versions
        in_interval = alignment is None or version.modified_us - ready[0].modified_us <= alignment.update_interval_us
        room = self.source.max_bytes - sum(earlier.size for earlier in ready)
        # The rows that a correction replaces are looked up in the log, which then holds all that came before it.
        is_alone = "corrected" in (version.how, ready[-1].how)
        return len(ready) < most and version.size <= room and in_interval and not is_alone
