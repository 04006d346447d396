"""The opening of a pipeline's tables: none is missing or older than its commit, and what a run has read of them.

Here: checks of names, sizes and footers of files, which do not read rows; rows that a run need not read again, as a
version never changes. Not here: opened tables and logs that cannot be read (resources/delta/versions.py), foreign
changes of rows (resources/delta/undoing.py), questions to the tables (resources/workspace.py).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.resources.batches.batch_log import BatchLog, BatchMemory
from tidemark.resources.batches.plans import RebuildInput
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.log import changes_since
from tidemark.resources.delta.undoing import same_rows
from tidemark.resources.delta.versions import Opened
from tidemark.resources.places.place import Place, RemotePath
from tidemark.resources.tables import BATCHES, OF_THE_LOG, WATERMARKS, remedy_of
from tidemark.timeops.errors import LakeError, first_line

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Memory:
    """The knowledge of a run about one pipeline, shared by all that look at the pipeline in the run.

    `is_looked_at` says whether the tables were found whole. `schemas` are their columns, by the fingerprint of a
    spec: to ask Spark for them takes seconds.
    """

    def __init__(self) -> None:
        self.batches = BatchMemory()
        self.is_looked_at = False
        self.schemas: dict[str, Mapping[str, StructType]] = {}
        self._tables: Opened | None = None
        self._rows: dict[str, tuple[int, pa.Table]] = {}
        self._same_rows: dict[tuple[str, int, int], int] = {}
        self._pipeline_rows: dict[tuple[int, int], dict[str, Any]] = {}

    def tables(self, folder: Place, elsewhere: Mapping[str, Place]) -> Opened:
        """Return the opened tables of the pipeline, which are in a folder, some of them elsewhere."""
        self._tables = self._tables or Opened(folder, elsewhere)
        return self._tables

    def rows(self, lake: Lake, table: str, version: int) -> pa.Table:
        """Return all rows of a small table at a version; for each table one version's rows stay in memory."""
        entry = self._rows.get(table)
        if entry is None or entry[0] != version:
            entry = self._rows[table] = (version, lake.rows(table, version))
        return entry[1]

    def newest_with_rows_of(self, lake: Lake, table: str, committed: int, latest: int) -> int:
        """Return the newest version of a table, up to one, that has the rows of a committed version."""
        key = table, committed, latest
        if key not in self._same_rows:
            self._same_rows[key] = same_rows(lake, table, committed, latest)[0]
        return self._same_rows[key]

    def pipeline_row(self, lake: Lake, batch_id: int, version: int) -> dict[str, Any]:
        """Return the row of `watermarks` that a batch wrote for the whole pipeline, which has no timeline."""
        key = batch_id, version
        if key not in self._pipeline_rows:
            of_batch = [("_batch_id", "=", batch_id), ("_timeline", "=", None)]
            self._pipeline_rows[key] = lake.rows(WATERMARKS, version, filters=of_batch).to_pylist()[0]
        return self._pipeline_rows[key]


@dataclass(frozen=True)
class Opening:
    """The tables of a pipeline as a run finds them.

    `base` returns the version of a table whose files are read, for the version that the last commit names: there may
    be later maintenance. `names` has all tables but `batches`.
    """

    lake: Lake
    batches: BatchLog
    names: Sequence[str]
    base: Callable[[str, int], int]

    def ensure_whole(self) -> None:
        """Check that all tables are as the last commit left them.

        Raises:
            LakeError: A table is missing or older, or a file of it is missing or damaged, and the first one is named;
                or `batches` is older than the others.
        """
        last = self.batches.last_commit()
        if lost := self._being_rebuilt:
            raise self._half_made(lost)
        with self.lake.settled():
            self._ensure_log_is_not_older()
            if last is None:
                return
            for table, version in self._committed.items():
                self._ensure_version(table, version)
            stored = _sizes_in(self.lake.root)
            for table, version in self._committed.items():
                self._ensure_files(table, self.base(table, version), stored)
        self._ensure_files(BATCHES, self.lake.version(BATCHES), stored)

    def broken_tables(self) -> dict[str, LakeError]:
        """Return the tables that lack what the last commit says, each with its error."""
        broken, stored = {}, _sizes_in(self.lake.root)
        for table, version in self._committed.items():
            try:
                self._ensure_version(table, version)
                self._ensure_files(table, self.base(table, version), stored)
            except LakeError as error:
                broken[table] = error
        return broken | {name: self._half_made([name]) for name in self._being_rebuilt}

    def ensure_none_is_left(self) -> None:
        """Check that no table has rows, as must be so before the first batch.

        Raises:
            LakeError: One has rows, and it is unknown which rows of the tables belong together.
        """
        lake = self.lake
        left = [table for table in self.names if lake.exists(table) and lake.version(table) > 0]
        if left and not self.batches.exists:  # checked once more: a first run may have begun meanwhile
            fault = f"The table {lake.path(BATCHES)} is gone, but there is still {', '.join(left)}"
            raise self._broken(
                fault, "the log of batches, which says which versions of the other tables belong together"
            )

    @property
    def _committed(self) -> dict[str, int]:
        """Version of each table of the spec that the last commit names."""
        last = self.batches.last_commit()
        versions = last.table_versions if last else {}
        return {name: versions[name] for name in self.names if name in versions}

    @property
    def _being_rebuilt(self) -> tuple[str, ...]:
        """The lost tables that an unfinished rebuild has begun to rebuild."""
        pending = self.batches.pending("rebuild")
        return tuple(RebuildInput.of(pending).lost_tables or ()) if pending else ()

    def _half_made(self, tables: Iterable[str]) -> LakeError:
        """Return the error for lost tables that an unfinished rebuild has begun to rebuild."""
        folders = ", ".join(str(self.lake.path(table)) for table in tables)
        return LakeError(
            f"A rebuild was stopped while it rebuilt lost tables: {folders}.",
            expected="a rebuild that has finished",
            remedy="run `tidemark rebuild SPEC` again: it continues where it was",
        )

    def _ensure_version(self, table: str, version: int) -> None:
        if not self.lake.exists(table):
            raise self._broken(f"The table {self.lake.path(table)} is gone", f"its version {version}", table)
        latest = self.lake.version(table, version)
        if latest < version:
            fault = f"The table {self.lake.path(table)} is at version {latest}"
            raise self._broken(fault, f"version {version} or later", table)

    def _ensure_files(self, table: str, version: int, stored: Mapping[str, int]) -> None:
        for name, size in self.lake.opened.version_at(table, version).sizes.items():
            place = self.lake.path(table) / name
            fault = _fault_of_stored(place, size, stored) if isinstance(place, RemotePath) else _fault(place, size)
            if fault:
                sentence = f"The file {name} of the table {self.lake.path(table)} {fault}"
                raise self._broken(sentence, "the files that the table's log names, as they were written", table)

    def _ensure_log_is_not_older(self) -> None:
        """Check that the log of batches knows all attempts that have written.

        Continuing from an older log would take back everything that was committed since.
        """
        lake, newest = self.lake, self.batches.newest_attempt()
        for table, version in self.batches.base_versions(self.names).items():
            latest = lake.version(table, version) if lake.exists(table) else version
            entries = changes_since(lake.path(table), version, latest).left if latest > version else ()
            attempt = max((entry.attempt for entry in entries), default=0)
            if attempt > newest:  # a run may have begun meanwhile
                lake.newest(BATCHES, 0)
                newest = self.batches.newest_attempt()
            if attempt > newest:
                fault = f"`batches` is older than {lake.path(table)}: it has no attempt {attempt}"
                raise self._broken(f"{fault}, which wrote that table", "a log of batches as new as the other tables")

    def _broken(self, fault: str, expected: str, table: str = BATCHES) -> LakeError:
        of_log = (
            f"restore {self.lake.root} from a backup, with all tables from the same time. To start over instead, "
            "move this folder away: the input that still exists is read again. Nothing was changed"
        )
        remedy = of_log if table in OF_THE_LOG else remedy_of(self.lake.path(table))
        return LakeError(f"{fault}.", expected=expected, remedy=remedy)


def _sizes_in(folder: Place) -> Mapping[str, int]:
    """Return the size of each file below a folder of a store, by key: one request lists a thousand."""
    if not isinstance(folder, RemotePath):
        return {}
    return {file.key: file.st_size for file in folder.store.under(folder.key)}


def _fault_of_stored(place: RemotePath, size: int, stored: Mapping[str, int]) -> str:
    actual = stored.get(place.key)
    return "is missing" if actual is None else _other_size(actual, size)


def _fault(place: Path, size: int) -> str:
    """Return the fault of a file by its size and its footer; empty if there is none."""
    try:
        actual = place.stat().st_size
        if actual == size:
            pq.read_metadata(place)
    except FileNotFoundError:
        return "is missing"
    except (OSError, pa.ArrowException) as error:
        return f"is damaged: {first_line(error)}"
    return _other_size(actual, size)


def _other_size(actual: int, size: int) -> str:
    return "" if actual == size else f"is damaged: it has {actual:,} bytes of {size:,}"
