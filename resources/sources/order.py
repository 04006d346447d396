"""Files whose records are in the order of the log already, so that they need not be sorted.

Here: recognizing them by the arrivals of each file, without Spark. Not here: numbering other records
(spark/numbering.py), the order of the log (assets/ingestion.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.resources.sources.known_files import FileRange
from tidemark.timeops.spec import FilesSource
from tidemark.timeops.spec.fields import names_in_files
from tidemark.timeops.utc import LAST_US, is_instant

MOST_FILES = 64
"""Of one ingestion: Spark reads small files in any order, so that many would be mixed in the files of the log."""

_FIRST_US = -2_208_988_800_000_000  # 1900: older instants may be of another calendar, which Spark translates
_US = {"us": 1, "ms": 1_000}


@dataclass(frozen=True)
class Stretch:
    """A file whose rows are in the order of their arrival, which each row has.

    Attributes:
        source: Name of its source.
        name: The file, as `_file` of its records has it.
        path: Its path or URL.
        rows: Number of rows, at least one.
        first_us: The first arrival, microseconds.
        last_us: The last one.
    """

    source: str
    name: str
    path: str
    rows: int
    first_us: int
    last_us: int


def stretches_in_order(
    read: Sequence[tuple[FilesSource, Sequence[FileRange]]], *, by_arrival: bool, time_zone: str = "UTC"
) -> list[Stretch] | None:
    """Return the files of an ingestion, one after the other as their records are in the log.

    Only parquet files are looked at: reading one column of them takes a hundredth of the time of sorting their rows.

    Args:
        read: Each source with its files.
        by_arrival: The log has the records by arrival, then by file; else by file and place alone.
        time_zone: Zone for times without one, unless a source has its own.

    Returns:
        None if some records have to be sorted, or if that is unknown. Then the arrivals may also not rise from one
        record to the next, by whichever order.
    """
    if sum(len(files) for _, files in read) > MOST_FILES:
        return None
    found: list[Stretch] = []
    for source, files in read:
        for file in files:
            stretch = _stretch(source, file, source.time_zone or time_zone)
            if stretch is None:
                return None
            found += [stretch] if stretch.rows else []
    found.sort(key=lambda one: (one.first_us if by_arrival else 0, one.name, one.source))
    return found if all(_follows(after, before) for before, after in pairwise(found)) else None


def _follows(after: Stretch, before: Stretch) -> bool:
    """Return whether every record of a file comes after those of another, also if some came at the same moment."""
    same = (after.name, after.source) > (before.name, before.source)
    return after.first_us > before.last_us or (after.first_us == before.last_us and same)


def _stretch(source: FilesSource, file: FileRange, time_zone: str) -> Stretch | None:
    if source.format != "parquet":
        return None
    if source.arrival_time is None:
        if not is_instant(file.modified_us):
            return None
        rows = pq.read_metadata(file.path).num_rows
        return Stretch(source.name, file.name, file.path, rows, file.modified_us, file.modified_us)
    column = source.arrival_time.strip("`")
    arrivals = _arrivals(file.path, names_in_files([column], source.rename)[column], time_zone)
    return None if arrivals is None else Stretch(source.name, file.name, file.path, *arrivals)


def _arrivals(path: str, column: str, time_zone: str) -> tuple[int, int, int] | None:
    """Return rows, first and last value of a column of instants that never fall; None for any other column."""
    try:
        return _range_of(pq.ParquetFile(path), column, time_zone)
    except (pa.ArrowException, OSError):  # the reader of the records reports the fault of the file
        return None


def _range_of(file: pq.ParquetFile, column: str, time_zone: str) -> tuple[int, int, int] | None:
    kind = file.schema_arrow.field(column).type if column in file.schema_arrow.names and "." not in column else None
    if kind is None or not pa.types.is_timestamp(kind) or kind.unit not in _US:
        return None
    if kind.tz is None and time_zone != "UTC":  # local times, which Spark turns into instants
        return None
    first = last = None
    rows = 0
    for batch in file.iter_batches(columns=[column], batch_size=1_000_000):
        values = batch.column(0)
        if values.null_count:
            return None
        us = values.cast(pa.int64())
        falls = pc.any(pc.less(us[1:], us[:-1])).as_py() if len(us) > 1 else False
        if falls or (last is not None and len(us) and us[0].as_py() < last):
            return None
        if len(us):
            first = us[0].as_py() if first is None else first
            last, rows = us[-1].as_py(), rows + len(us)
    if first is None or last is None:
        return 0, 0, 0
    scale = _US[kind.unit]
    return (rows, first * scale, last * scale) if _FIRST_US <= first * scale <= last * scale <= LAST_US else None
