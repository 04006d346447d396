"""Versions of a pipeline's tables, opened for reading: each of them once.

Here: which are open, and whether the latest is still what it was. Not here: reading rows (lake.py, scan.py), writing.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tidemark.resources.lake.filters import files_of
from tidemark.timeops.errors import LakeError

_KEPT = 100  # versions that are kept open before all of them are let go


@dataclass(frozen=True)
class Version:
    """A table as one version has it.

    Attributes:
        folder: Folder of the table.
        delta: The table, opened at the version.
    """

    folder: Path
    delta: DeltaTable

    @cached_property
    def dataset(self) -> pyarrow.dataset.Dataset:
        """Its files as Arrow reads them, with the statistics by which some are left out."""
        files = files_of(self.folder)
        known = self.delta.to_pyarrow_dataset(filesystem=files)
        unread = _without_bounds(self.delta, known.schema)
        if not unread:
            return known
        fragments = [
            known.format.make_fragment(one.path, filesystem=files) if one.path in unread else one
            for one in known.get_fragments()
        ]
        return pyarrow.dataset.FileSystemDataset(fragments, known.schema, known.format, files)


def _without_bounds(delta: DeltaTable, schema: pa.Schema) -> set[str]:
    """The files with instants of years that delta-rs does not read in statistics, such as 10000.

    It takes the bound for null, so that no condition on the column would find a row of the file.
    """
    actions = pa.table(delta.get_add_actions(flatten=True))
    found: set[str] = set()
    for name in (column.name for column in schema if pa.types.is_timestamp(column.type)):
        if {f"min.{name}", f"max.{name}", f"null_count.{name}"} <= set(actions.column_names):
            has_value = pc.less(actions[f"null_count.{name}"], actions["num_records"])
            lacks_one = pc.or_(pc.is_null(actions[f"min.{name}"]), pc.is_null(actions[f"max.{name}"]))
            found |= set(actions["path"].filter(pc.and_(has_value, lacks_one)).to_pylist())
    return found


@dataclass(frozen=True)
class Versions:
    """The opened versions of the tables of one pipeline.

    Args:
        root: Folder of the pipeline.
    """

    root: Path
    _seen: dict[tuple[str, int | None], Version] = field(default_factory=dict, init=False, repr=False, compare=False)

    def seen(self, table: str, version: int | None = None) -> Version:
        """Return a table for reading only, as it was opened before where that is still what it is.

        A version never changes, and the latest one is known as long as the log has no file of the next: every stage
        asks for the same versions of the same tables, and opening one reads its log.
        """
        known = self._seen.get((table, version))
        if known is None or (version is None and not self._is_latest(known)):
            if len(self._seen) >= _KEPT:
                self._seen.clear()
            known = self._seen[table, version] = Version(self.root / table, self.open(table, version))
        return known

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """Return a table as it is now, or was at a version, for reading and writing.

        Raises:
            LakeError: There is no such table, or its log cannot be read.
        """
        folder = self.root / table
        try:
            delta = DeltaTable(str(folder), version=version)
            entry = folder / "_delta_log" / f"{delta.version():020}.json"
            if entry.exists() and not entry.stat().st_size:  # delta-rs takes it for a commit that did nothing
                raise _unreadable(folder, "its newest entry is empty")
            return delta
        except TableNotFoundError as error:
            raise LakeError(
                f"There is no table {folder}.",
                expected="the tables of a pipeline that has run",
                remedy="Check the warehouse and the pipeline's name, or run the pipeline first.",
            ) from error
        except DeltaError as error:
            raise _unreadable(folder, str(error).splitlines()[0]) from error

    def _is_latest(self, known: Version) -> bool:
        log, version = known.folder / "_delta_log", known.delta.version()
        return (log / f"{version:020}.json").exists() and not (log / f"{version + 1:020}.json").exists()


def _unreadable(folder: Path, why: str) -> LakeError:
    """The error of a table whose log cannot be read, with the entry that is broken where one is."""
    entries = sorted((folder / "_delta_log").glob("*.json"), reverse=True)
    broken = next(filter(_is_broken, entries), None)
    what = f"{broken.name} in it is cut off or spoilt" if broken is not None else why
    for later, entry in pairwise(entries):
        if broken is None and int(later.stem) != int(entry.stem) + 1:
            what = f"the entry before {later.name} is missing"
    return LakeError(
        f"The log of the table {folder} cannot be read: {what}.",
        expected="whole entries in `_delta_log`, one for each version with no gap",
        remedy="bring the folder of the pipeline back from a copy, all tables of one time. An entry that came behind "
        "the last commit in `batches`, when the machine went down, may be moved away instead: the next run writes it "
        "anew. Nothing was changed",
    )


def _is_broken(entry: Path) -> bool:
    lines = entry.read_text(errors="replace").splitlines()
    try:
        return not [json.loads(line) for line in lines]
    except ValueError:
        return True
