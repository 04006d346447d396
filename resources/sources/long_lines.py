"""Lines that are too long for a record: they are cut short, as one of them could end the Spark of all pipelines.

Here: a copy of a file, for Spark, with these lines short and marked. Not here: finding them (local_files.py),
parsing.

All lines stay in their places. The copy stays as long as rows are read: see `reading_place`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from pyspark.sql import Column
from pyspark.sql import functions as F

from tidemark.resources.places.credentials import arrow_files
from tidemark.resources.places.place import Place, path_in_store
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.local_files import text_of

_KEPT_BYTES = 1_000
_MARK = "\x01\x02too long\x03"
"""Begins a cut line of a copy. No record begins so: JSON cannot, and a csv line is checked for it first."""


def with_short_lines(files: Sequence[FileRange], place: Place) -> tuple[FileRange, ...]:
    """Return the files, with a copy in place of each that has lines that are too long.

    Args:
        files: The files that an ingestion reads of a source.
        place: The folder for copies; every Spark that writes the pipeline's tables can read it.

    Raises:
        OSError: A copy cannot be written.
        InputError: A file is shorter than at discovery.
    """
    return tuple(_copied(file, place) if file.long_lines else file for file in files)


def _copied(file: FileRange, place: Place) -> FileRange:
    copy = place / f"{file.digest[:32]}.txt"
    with _new(copy) as target:
        for part in _shortened(text_of(file.path, file.size + file.left_bytes), file.long_lines):
            target.write(part)
    return replace(file, read_at=str(copy))


def _new(copy: Place) -> IO[bytes]:
    if isinstance(copy, Path):
        copy.parent.mkdir(parents=True, exist_ok=True)
        return copy.open("wb")
    opened: IO[bytes] = arrow_files(copy.root).open_output_stream(path_in_store(copy))
    return opened


def _shortened(text: Iterable[bytes], long_lines: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield a text in which some lines are cut to their beginnings and marked, with their lengths."""
    ahead = iter(long_lines)
    line = next(ahead, None)
    at, beginning = 0, b""
    for chunk in text:
        done = 0
        while done < len(chunk):
            if line is None or at + done < line[0]:
                stop = len(chunk) if line is None else min(len(chunk), line[0] - at)
                yield chunk[done:stop]
            else:
                stop = min(len(chunk), line[1] - at)
                beginning += chunk[done:stop][: _KEPT_BYTES - len(beginning)]
                if at + stop == line[1]:
                    yield _marked(beginning, line[1] - line[0])
                    line, beginning = next(ahead, None), b""
            done = stop
        at += len(chunk)


def _marked(beginning: bytes, size_bytes: int) -> bytes:
    kept = beginning.decode("utf-8", errors="ignore")
    return f"{_MARK}{kept}… (the line has {size_bytes:,} bytes)".encode()


def is_too_long(line: Column) -> Column:
    """Return whether a line was too long for a record."""
    return F.startswith(line, F.lit(_MARK))


def beginning_of(line: Column) -> Column:
    """Return the part that is kept of a line that was too long: its beginning, and its length."""
    return F.substring(line, F.lit(len(_MARK) + 1), F.length(line))
