"""The kinds of sources: which reader reads a source.

Here: the choice. Not here: the questions to a reader (resources/sources/reader.py), how each kind answers them.

A look without work is mostly imports, so it imports the readers of its own kinds alone.
"""
# ruff: noqa: PLC0415 - the reason is above

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemark.timeops.spec import DeltaSource, FilesSource, KafkaSource, Source

if TYPE_CHECKING:
    from tidemark.resources.sources.reader import SourceReader


def reader_of(source: Source, base: Path) -> "SourceReader[Any]":
    """Return the reader of a source; `base` is the folder of the spec file."""
    if isinstance(source, KafkaSource):
        from tidemark.resources.sources.kafka import KafkaReader

        return KafkaReader(source, base)
    if isinstance(source, DeltaSource):
        from tidemark.resources.sources.delta import DeltaReader

        return DeltaReader(source, base)
    from tidemark.resources.sources.files import FilesReader

    assert isinstance(source, FilesSource)
    return FilesReader(source, base)
