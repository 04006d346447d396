"""Small Delta tables as other pipelines leave them, the source that reads them, and what was found.

Here: writing with delta-rs, which needs no Spark. Not here: what is expected of it.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.knows import Knows
from tidemark.resources.sources.delta import DeltaReader, VersionsFound
from tidemark.resources.sources.known_files import FileState
from tidemark.timeops.spec import DeltaSource

START = datetime(2026, 1, 1, tzinfo=UTC)


def source(**settings: object) -> DeltaSource:
    """Return the source of table `t`."""
    values = {"name": "s", "kind": "delta", "path": "t", "schema": "id BIGINT"}
    return DeltaSource.model_validate({**values, **settings})


def add(base: Path, *ids: int, **more: Any) -> DeltaTable:
    """Adds a row for each id, in one commit."""
    write_deltalake(str(base / "t"), pa.table({"id": pa.array(ids, pa.int64())}), mode="append", **more)
    return DeltaTable(str(base / "t"))


def look(
    base: Path, given: DeltaSource | None = None, read: VersionsFound | None = None, **more: Any
) -> VersionsFound:
    """Return what is found, after what an earlier look has found was read."""
    return DeltaReader(given or source(), base).look(Knows(states(read), **more))


def states(read: VersionsFound | None) -> Sequence[FileState]:
    """Return what is remembered once what was found was read."""
    return [version.state for version in read.versions] if read is not None else []


def shown(found: VersionsFound) -> list[tuple[int, str, int]]:
    """Number, kind and rows of each version that is to be read."""
    return [(version.version, version.how, version.rows) for version in found.versions]


def only_error(found: VersionsFound) -> str:
    """Return the one thing that is wrong."""
    (error,) = found.errors
    return str(error)


def drop_log(base: Path, *versions: int) -> None:
    """Deletes entries of the log, as their clean-up does."""
    for version in versions:
        (base / "t" / "_delta_log" / f"{version:020}.json").unlink()
