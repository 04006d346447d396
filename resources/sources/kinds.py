"""The kinds of sources: which reader reads a source.

Here: the choice. Not here: the questions to a reader (reader.py), how each kind answers them.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidemark.resources.sources.delta import DeltaReader
from tidemark.resources.sources.files import FilesReader
from tidemark.resources.sources.kafka import KafkaReader
from tidemark.resources.sources.reader import SourceReader
from tidemark.timeops.spec import DeltaSource, FilesSource, KafkaSource, Source

_READERS: Mapping[type[Source], Callable[[Any, Path], SourceReader[Any]]] = {
    FilesSource: FilesReader,
    DeltaSource: DeltaReader,
    KafkaSource: KafkaReader,
}


def reader_of(source: Source, base: Path) -> SourceReader[Any]:
    """Return the reader of a source; `base` is the folder of the spec file."""
    return _READERS[type(source)](source, base)
