"""Files of a known age, the source that reads them, and what a look finds and a reader then remembers."""

import io
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from tests.knows import Knows
from tidemark.resources.sources.files import FilesFound, FilesReader
from tidemark.resources.sources.known_files import FileRange, FileState, state_of
from tidemark.resources.sources.reader import SourceRead
from tidemark.timeops.spec import FilesSource

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
AN_HOUR_AGO = NOW - timedelta(hours=1)


def source(path: str = "in/*.csv", **settings: object) -> FilesSource:
    values = {"name": "s", "kind": "files", "format": "csv", "schema": "a INT", "settle": "5 s"}
    return FilesSource.model_validate({**values, "path": path, **settings})


def land(path: Path, content: bytes | str | None = None, modified: datetime = AN_HOUR_AGO) -> Path:
    """Return a file; by default of a line that no file of another name has."""
    content = f"{path.name}\n" if content is None else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, (modified.timestamp(), modified.timestamp()))
    return path


def parquet_of(rows: pa.Table) -> bytes:
    content = io.BytesIO()
    pq.write_table(rows, content)
    return content.getvalue()


def discover(
    given: FilesSource, base: Path, states: Sequence[FileState] = (), now: datetime = NOW, **more: Any
) -> FilesFound:
    """Return what a look at files finds; `more` is named as in `Known`."""
    return FilesReader(given, base).look(Knows(states, now, **more))


def read(found: FilesFound, records: int = 1) -> list[FileState]:
    """Return what is remembered once the files that were found were read, each of so many records in all."""
    return [state_of(file, records) for file in found.ready]


def read_files(
    spark: SparkSession, given: FilesSource, ranges: Sequence[FileRange], place: Path, time_zone: str = "UTC"
) -> SourceRead:
    """Return what an ingestion reads of files; copies go to a place."""
    return FilesReader(given, place.parent).read(spark, FilesFound(ready=tuple(ranges)), place, time_zone)


def names(found: FilesFound) -> list[str]:
    return [os.path.basename(file.path) for file in found.ready]


def only_error(found: FilesFound) -> str:
    """Return the one thing that is wrong, where nothing can be read."""
    assert found.ready == ()
    (error,) = found.errors
    return str(error)
