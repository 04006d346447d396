"""What the lake remembers of the files of a source, and which of these a file is.

Here: the memory, and finding a file in it. Not here: what a change of a file means (changes.py), the table that holds
the states.

A file is its name, that is its path from the folder before the first wildcard, and its content: so it stays itself
when that folder moves. Lakes that were made before files had names remember absolute paths.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tidemark.resources.sources.local_files import name_of

NOT_READ_YET = -1
"""As `records` of a file: as many as those that the file with the same bytes is going to have."""


@dataclass(frozen=True)
class FileState:
    """What the lake remembers of a file that was read.

    Attributes:
        name: Its path from the fixed folder of the source; absolute where an older lake says no other.
        size: Bytes consumed.
        modified_us: Modification time, microseconds since the epoch.
        digest: blake2b of the consumed bytes, hexadecimal.
        records: Lines (csv, json) or rows (parquet) consumed, header and blank lines included.
        ends_with_newline: Whether the last consumed line was complete.
        place: Absolute path where it lay; None where it is not known.
        copy_of: Name of the file that had the same bytes and was read instead of this one; None if this was read.
    """

    name: str
    size: int
    modified_us: int
    digest: str
    records: int
    ends_with_newline: bool
    place: str | None = None
    copy_of: str | None = None


@dataclass
class KnownFiles:
    """The states of a source's files, each with what it was before."""

    _by_name: dict[str, FileState] = field(default_factory=dict)
    _by_place: dict[str, FileState] = field(default_factory=dict)
    _by_digest: dict[str, FileState] = field(default_factory=dict)

    @classmethod
    def of(cls, states: Iterable[FileState], fixed: Path) -> "KnownFiles":
        """The memory of states in the order in which they were stored.

        Args:
            states: The states, of one source.
            fixed: Where the source's fixed folder is now: paths below it that an older lake remembers are names.
        """
        known = cls()
        for state in states:
            known.add(_named(state, fixed))
        return known

    def add(self, state: FileState) -> None:
        """Remember a state; the latest of a name is the one in force, bytes stay known."""
        self._by_name[state.name] = state
        if state.place is not None:
            self._by_place[state.place] = state
        if state.size and state.copy_of is None:
            self._by_digest.setdefault(state.digest, state)

    def __bool__(self) -> bool:
        """Whether anything was read."""
        return bool(self._by_name)

    def state_of(self, name: str, place: str) -> FileState | None:
        """The state of the file that lies at a place under a name: the path of a source may call it otherwise now."""
        return self._by_place.get(place) or self._by_name.get(name)

    def same_bytes(self, digest: str, name: str, place: str) -> FileState | None:
        """The state of another file that was read and had these bytes, None for none."""
        state = self._by_digest.get(digest)
        return None if state is None or state.name == name or state.place == place else state


def _named(state: FileState, fixed: Path) -> FileState:
    if not os.path.isabs(state.name):
        return state
    name = name_of(state.name, fixed)
    is_below = not name.startswith(os.pardir + os.sep)
    return replace(state, name=name if is_below else state.name, place=state.name)
