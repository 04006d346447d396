"""Files that were found unreadable by reading them, remembered so that no later run fails at them again.

Here: what is remembered, and how long it holds. Not here: finding such files (unreadable.py), what a look at a file
tells (fitness.py), where it is stored (assets/ingestion.py).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from tidemark.resources.sources.changes import Candidate, FileRange
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource


@dataclass(frozen=True)
class HeldBack:
    """A file that was found unreadable: as long as it and how it is read stay the same, it is not tried again.

    Attributes:
        path: Absolute path.
        size: Bytes.
        modified_us: Modification time, microseconds since the epoch.
        reading: Names how the source reads its files.
        found: What was found.
        expected: What would have been right.
        remedy: What to do.
    """

    path: str
    size: int
    modified_us: int
    reading: str
    found: str
    expected: str
    remedy: str

    @classmethod
    def of(cls, file: FileRange, source: FilesSource, error: InputError) -> "HeldBack":
        """What to remember of a file that was refused."""
        said = (error.found, error.expected, error.remedy)
        return cls(file.path, file.size, file.modified_us, reading_of(source), *said)

    @classmethod
    def from_json(cls, values: Mapping[str, str | int]) -> "HeldBack":
        """What `to_json` wrote."""
        return cls(**values)  # type: ignore[arg-type]  # values of its own fields

    def is_as_it_was(self, file: Candidate) -> bool:
        """Whether the file is the one that could not be read, as far as can be told without opening it."""
        return (self.size, self.modified_us) == (file.size, file.modified_us)

    def to_json(self) -> dict[str, str | int]:
        """For the plan of a batch."""
        return asdict(self)

    @property
    def error(self) -> InputError:
        """What is said of it."""
        return InputError(self.found, expected=self.expected, remedy=self.remedy)


def reading_of(source: FilesSource) -> str:
    """Names all of a source that decides whether a file can be read."""
    keys = {"format", "options", "columns", "rename", "keep_unknown"}
    values = source.model_dump(mode="json", include=keys)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def still_held(files: Iterable[HeldBack], source: FilesSource) -> dict[str, HeldBack]:
    """By path the files that are held back as long as they do not change: those found with this way of reading."""
    return {file.path: file for file in files if file.reading == reading_of(source)}
