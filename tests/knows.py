"""The knowledge that a look at a source goes by, for tests of readers without a pipeline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemark.resources.places.place import Place
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.sources.reader import HeldBack


@dataclass(frozen=True)
class Knows:
    """See `Known`; of notes there are only positions, and `versions` are the committed ones."""

    states: Sequence[FileState] = ()
    now: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)
    reread: bool = False
    is_at_end: bool = False
    held: Mapping[str, HeldBack] = field(default_factory=dict)
    own_folder: Place = Path("/own")
    positions: Mapping[str, Any] | None = None
    versions: Sequence[int] | None = None

    def note_of_last_ingestion(self, key: str) -> Any:
        return self.positions if key == "positions" else None

    def committed(self, folder: Place) -> Sequence[int] | None:  # noqa: ARG002
        return self.versions
