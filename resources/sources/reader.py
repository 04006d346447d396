"""A source as the stages of a pipeline see it, whatever its kind: the questions to its reader, and the answers.

Here: what every reader answers, and the memory of input that could not be read. Not here: the readers of each kind,
the choice of one (resources/sources/kinds.py).
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from tidemark.resources.places.place import Place
from tidemark.resources.sources.columns import Columns
from tidemark.resources.sources.known_files import FileRange, FileState
from tidemark.timeops.errors import InputError
from tidemark.timeops.errors.problems import Problem
from tidemark.timeops.spec import Source

if TYPE_CHECKING:  # a look must not wait for PySpark
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.resources.sources.file_records import PlainFile
    from tidemark.resources.sources.table_versions import TableVersion


class InputPart(Protocol):
    """A file, a version of a table, or a range of offsets of a partition."""

    @property
    def path(self) -> str:
        """Its path, or its name in plans and errors."""

    @property
    def size(self) -> int:
        """Bytes, of offsets an estimate."""

    @property
    def modified_us(self) -> int:
        """When it was changed, microseconds since the epoch; 0 for offsets."""


@dataclass(frozen=True)
class HeldBack:
    """A file, or a version of a table, that was found unreadable: it is not tried again before something changes.

    The error stays the same as long as the file and the way of reading it do.

    Attributes:
        modified_us: Modification time, microseconds since the epoch.
        reading: Identifies the way in which the source reads its files.
    """

    path: str
    size: int
    modified_us: int
    reading: str
    found: str
    expected: str
    remedy: str

    @classmethod
    def of(cls, part: InputPart, source: Source, error: InputError) -> "HeldBack":
        """Return the memory of a part that was refused."""
        message = (error.found, error.expected, error.remedy)
        return cls(part.path, part.size, part.modified_us, reading_of(source), *message)

    @classmethod
    def from_json(cls, values: Mapping[str, str | int]) -> "HeldBack":
        """Return the value that `to_json` wrote."""
        return cls(**values)  # type: ignore[arg-type]  # values of its own fields

    def is_as_it_was(self, part: InputPart) -> bool:
        """Return whether a part is unchanged since it could not be read, as far as is known without opening it."""
        return (self.size, self.modified_us) == (part.size, part.modified_us)

    def to_json(self) -> dict[str, str | int]:
        """Return the value as JSON for the plan of a batch."""
        return asdict(self)

    @property
    def error(self) -> InputError:
        """The error for it."""
        return InputError(self.found, expected=self.expected, remedy=self.remedy)


def reading_of(source: Source) -> str:
    """Return a name for all settings of a source that decide whether a file or a version can be read."""
    keys = {"format", "options", "columns", "rename", "keep_unknown", "changes", "missing"}
    values = source.model_dump(mode="json", include=keys)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def still_held(files: Iterable[HeldBack], source: Source) -> dict[str, HeldBack]:
    """Return the files, by path, that are held back until they change: all that failed with this way of reading."""
    return {file.path: file for file in files if file.reading == reading_of(source)}


class Known(Protocol):
    """The knowledge that a look at one source needs in addition to the spec; each part is found when it is needed."""

    @property
    def now(self) -> datetime:
        """The present instant, aware."""

    @property
    def reread(self) -> bool:
        """True if files with the bytes of others are read too."""

    @property
    def is_at_end(self) -> bool:
        """True if the input is at its end: a last line without a line end is finished."""

    @property
    def states(self) -> Sequence[FileState]:
        """The remembered states of the source's files or versions, in the order in which they were stored."""

    @property
    def held(self) -> Mapping[str, HeldBack]:
        """By path the files or versions that could not be read; they are not tried again until they change."""

    @property
    def own_folder(self) -> Place:
        """The folder of the pipeline's own tables."""

    def note_of_last_ingestion(self, key: str) -> Any:
        """Return what the plan of the last ingestion notes of the source under a key; None if it notes nothing."""

    def committed(self, folder: Place) -> Sequence[int] | None:
        """Return the versions that batches committed, if the table in a folder is of a pipeline; else None."""


@dataclass(frozen=True)
class Found:
    """The findings of a look at one source. The reader of each kind adds its own.

    Attributes:
        left: Number of files, versions or offsets beyond the limit of one ingestion, or of `alignment`; a later
            ingestion reads them.
        ahead: How many of `left` wait because the source, or their partition, is ahead of others that it is aligned
            with.
        errors: Errors that each hold back only the part that they name.
        held: Parts of `errors` that failed when they were read, to be remembered further.
        waiting: Files that are younger than `settle`.
        notes: Sentences for the operator on files that are read in part, or not yet.
        warnings: Sentences for the operator on obstacles to results where `time` has no `idle`, repeated until they
            are gone.
    """

    PART: ClassVar[str]
    """The word for one part."""

    left: int = 0
    ahead: int = 0
    errors: tuple[InputError, ...] = ()
    held: tuple[HeldBack, ...] = ()
    waiting: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def parts(self) -> Sequence[InputPart]:
        """The files, versions or ranges of offsets that have something to read now, in order."""
        raise NotImplementedError

    def all_left(self) -> "Found":
        """Return the findings if nothing is read now, as the source is ahead of others."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """Number of files, versions or offsets to read now."""
        return len(self.parts)

    @property
    def new(self) -> int:
        """Number of files, versions and offsets that this ingestion and later ones read."""
        return self.count + self.left

    @property
    def is_ready(self) -> bool:
        """Return whether there is something to read now."""
        return bool(self.parts)

    @property
    def is_work(self) -> bool:
        """Return whether a run would have something to do."""
        return self.is_ready

    @property
    def has_news(self) -> bool:
        """Return whether there is something to read or to remember."""
        return self.is_ready

    @property
    def files(self) -> Sequence[FileRange]:
        """The parts, if they are files."""
        return ()

    @property
    def copies(self) -> Sequence[FileState]:
        """States to remember of files with the same bytes as another one, which are not read."""
        return ()

    @property
    def tables(self) -> Sequence[str]:
        """The folders of tables to read: if Spark fails at one of their files, the version is not known."""
        return ()

    @property
    def needs_place(self) -> bool:
        """Return whether reading needs a folder for files of our own."""
        return bool(self.tables)

    @property
    def columns(self) -> Columns:
        """Columns of the input, at least all that the source does not name."""
        return ()

    @property
    def passed_over(self) -> tuple[str, ...]:
        """One sentence for all that is not read as it is there."""
        return (*self.notes, *self.warnings)

    @property
    def ends(self) -> Sequence[tuple[str, int]]:
        """The offset after the last record of each partition."""
        return ()

    @property
    def splits(self) -> Sequence[str]:
        """The splits that have something to read, if the source is read split by split."""
        return ()

    @property
    def splits_ahead(self) -> Sequence[str]:
        """The splits with something to read that are ahead of others, if the source is read split by split."""
        return ()

    def came_after(self, ends: Mapping[str, int]) -> bool:  # noqa: ARG002 - of Kafka alone
        """Return whether all that is waiting came to partitions after the ends that they had."""
        return not self.has_news

    def without(self, held: Sequence[HeldBack]) -> "Found":
        """Return the findings without parts that could not be read."""
        errors = (*self.errors, *(part.error for part in held))
        return replace(self, errors=errors, held=(*self.held, *held))

    def ensure_unchanged(self) -> None:
        """Check that the input is still as it was found; called after it was read, before anything is stored.

        Raises:
            InputError: A file, or the log of a table, was changed or removed since.
        """


@dataclass(frozen=True)
class SourceRead:
    """The records that one ingestion reads of a source.

    Attributes:
        records: One row per record that Spark reads, not computed yet: the payload columns; with `keep_unknown`
            `_rescued` STRING; `_malformed` STRING (the text of a record that could not be parsed, else null);
            `_file` STRING (the path from the source's fixed folder); `_position` BIGINT (1-based line, row for
            parquet, record with multiLine); `_modified` TIMESTAMP.
        states: The states of the files to remember once the records are stored.
        untimed: The first parts of `_file` whose `_modified` only orders them: they have no time of their own.
        corrects: The version of a table whose rows correct the log, with its rows as they were before it.
        count: Number of records that Spark reads, where it is known before.
        plain: The files that Arrow reads.
        by_spark: Returns the records of such files as Spark reads them.
    """

    records: "DataFrame"
    states: tuple[FileState, ...] = ()
    untimed: tuple[str, ...] = ()
    corrects: "tuple[TableVersion, DataFrame] | None" = None
    count: int | None = None
    plain: "tuple[PlainFile, ...]" = ()
    by_spark: "Callable[[Sequence[FileRange]], DataFrame] | None" = None

    def leaving(self, files: "Sequence[PlainFile]") -> "SourceRead":
        """Return the same with some of the plain files left to Spark."""
        left = [file.read_from for file in self.plain if file in files]
        if not left or self.by_spark is None:
            return self
        records = self.by_spark(left)
        records = records if self.count == 0 else self.records.unionByName(records)
        return replace(self, records=records, count=None, plain=tuple(f for f in self.plain if f not in files))


@dataclass(frozen=True)
class Needs:
    """The demands of a source on the machine.

    Attributes:
        packages: Maven coordinates of readers that Spark lacks.
        problems: Keys of the source that do not fit the machine.
    """

    packages: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


F = TypeVar("F", bound=Found)


class SourceReader(Protocol[F]):
    """Looks at one source and reads it. The values that it finds go back to itself, through the stages."""

    def needs(self) -> Needs:
        """Return what the source needs of the machine: nothing, unless its reader says otherwise.

        Asked before Spark starts, and when a spec is read.
        """
        return Needs()

    def seen(self, memory: Known) -> list[object]:
        """Return a cheap text of all that a look depends on, as JSON: while it is the same, a look finds the same.

        Raises:
            InputError: The source cannot be listed.
        """

    def look(self, memory: Known) -> F:
        """Find the input that the log lacks, as far as one ingestion reads it; without Spark.

        What stops only a part of the source is among the errors of the findings.

        Raises:
            InputError: There is no such source.
        """

    def until_judged(self, findings: F, ahead: Collection[str]) -> F:  # noqa: ARG002
        """Return the part that an aligned source reads until it is judged again: all, where a look stops in time.

        Called after the look, if the source as a whole is not ahead of others.

        Args:
            findings: The findings.
            ahead: Splits that are not read, as they are ahead of others.
        """
        return findings

    def remember(self, findings: F) -> Mapping[str, Any]:
        """Return what the plan of an ingestion notes of the source, as JSON by key of the plan's input.

        Called before the input is read. The last committed plan says with it where the next look continues.
        """

    def read(self, spark: "SparkSession", findings: F, place: Place, time_zone: str) -> SourceRead:
        """Read the records, and return with them the states to remember once they are stored.

        The input may change after this has returned and before the records are stored: see `Found.ensure_unchanged`.

        Args:
            spark: The session.
            findings: The findings; there need not be a part to read.
            place: A folder for files of our own, see `Found.needs_place`.
            time_zone: Zone for times without one, unless the source has its own.

        Raises:
            SpecError: `schema`, `rename` or an option of the source is wrong.
            InputError: A part does not fit the spec, cannot be read, or changed since the look.
        """

    def to_blame(self, spark: "SparkSession", findings: F) -> Mapping[str, InputError]:  # noqa: ARG002
        """Return an error for each part at which a common read failed, by path; none if that is unknown."""
        return {}
