"""The input that the sources have and the log lacks, and what of it the next ingestion reads; found without Spark.

Here: the look at all sources; alignment: which of them, and of Kafka which partitions, one ingestion reads, judged by
what was processed before; columns that input has and no `schema` names. Each is reported once, by the ingestion that
meets it first: most are of no use to the pipeline. Not here: finding the input of one source, its columns, and how
much is one interval (resources/sources/), the rule of alignment (timeops/watermark/alignment.py), reading it
(assets/ingestion/raw_events.py).

All that one ingestion reads enters the log together, so alignment decides the log, once. Everything else is computed
from the log and does not depend on alignment.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.state.files import known_files
from tidemark.resources import tables
from tidemark.resources.batches.committed import pipeline_of
from tidemark.resources.batches.plans import IngestInput, Plan
from tidemark.resources.delta.queries import pieces
from tidemark.resources.places.place import Place
from tidemark.resources.sources.columns import line_to_add, not_to_add, unknown_of
from tidemark.resources.sources.kinds import reader_of
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.sources.reader import Found, HeldBack, InputPart, still_held
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import InputError, TidemarkError
from tidemark.timeops.rules.time_rules import SourceTime, Waiter
from tidemark.timeops.spec import Source, Spec
from tidemark.timeops.watermark.alignment import (
    LargestTimes,
    Progress,
    source_watermark,
    split_watermark,
    those_ahead,
)

T = TypeVar("T")

HELD_BACK = "nothing_held_back"
"""The check that names input which cannot be taken (assets/catalog/held_back.py)."""


@dataclass(frozen=True)
class Waiting:
    """The input of all sources together that the log lacks."""

    by_source: Mapping[str, Found] = field(default_factory=dict)

    def _every(self, of: Callable[[Found], Iterable[T]]) -> tuple[T, ...]:
        return tuple(item for look in self.by_source.values() for item in of(look))

    @property
    def parts(self) -> tuple[InputPart, ...]:
        """The files, versions and ranges of offsets that have something to read now."""
        return self._every(lambda look: look.parts)

    @property
    def size(self) -> int:
        """Bytes of these parts, of offsets an estimate."""
        return sum(part.size for part in self.parts)

    @property
    def counts(self) -> dict[str, int]:
        """Number of files, versions and offsets to read now, by these words."""
        counts = dict.fromkeys(("file", "version", "offset"), 0)
        for look in self.by_source.values():
            counts[look.PART] += look.count
        return counts

    @property
    def new(self) -> int:
        """Number of files, versions and offsets that this ingestion and later ones read."""
        return sum(look.new for look in self.by_source.values())

    @property
    def left(self) -> int:
        """Number of them that a later ingestion reads."""
        return sum(look.left for look in self.by_source.values())

    @property
    def ahead(self) -> int:
        """How many of these wait because the source, or their partition, is ahead of others."""
        return sum(look.ahead for look in self.by_source.values())

    @property
    def settling_files(self) -> tuple[str, ...]:
        """Files that are younger than `settle`."""
        return self._every(lambda look: look.waiting)

    @property
    def errors(self) -> tuple[InputError, ...]:
        """Errors that each hold back only the input that they name."""
        return self._every(lambda look: look.errors)

    @property
    def copies(self) -> tuple[FileState, ...]:
        """Files with the same bytes as another one, which are not read."""
        return self._every(lambda look: look.copies)

    @property
    def tables(self) -> list[str]:
        """The folders of the tables to read."""
        return sorted(set(self._every(lambda look: look.tables)))

    @property
    def ends(self) -> dict[str, int]:
        """The offset after the last record of each partition of Kafka."""
        return dict(self._every(lambda look: look.ends))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the operator on files that are read in part, or not yet."""
        return self._every(lambda look: look.notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences for the operator on obstacles to results."""
        return self._every(lambda look: look.warnings)

    @property
    def read_before(self) -> tuple[str, ...]:
        """One sentence for each copy of another file, which is not read."""
        return tuple(copy.copy_sentence for copy in self.copies)

    @property
    def passed_over(self) -> tuple[str, ...]:
        """One sentence for all that is not read as it is there: changes of versions, lost offsets, parts of files."""
        return self._every(lambda look: look.passed_over)

    @property
    def is_ready(self) -> bool:
        """Return whether there is something to read now."""
        return any(look.is_ready for look in self.by_source.values())

    @property
    def is_work(self) -> bool:
        """Return whether a run would have something to do."""
        return any(look.is_work for look in self.by_source.values())

    @property
    def may_ripen(self) -> bool:
        """Return whether time alone can make more of it ready: files settle, and last lines are finished."""
        return bool(self.settling_files or self.notes)

    @property
    def has_news(self) -> bool:
        """Return whether there is something to read or to remember."""
        return any(look.has_news for look in self.by_source.values())

    def came_after(self, ends: Mapping[str, int]) -> bool:
        """Return whether all that is waiting came to partitions of Kafka after an offset of each."""
        return all(look.came_after(ends) for look in self.by_source.values())

    @property
    def waiters(self) -> list[Waiter]:
        """The sources, or splits of them, that have something to be read and wait for others."""
        names: list[Waiter] = [name for name, look in self.by_source.items() if look.ahead and not look.splits_ahead]
        return [*names, *((name, split) for name, look in self.by_source.items() for split in look.splits_ahead)]

    @property
    def held_back(self) -> tuple[str, ...]:
        """The input that cannot be taken, a sentence or two for each piece."""
        return tuple(str(error) for error in self.errors)

    @property
    def held_by_source(self) -> dict[str, list[dict[str, str | int]]]:
        """The note in the plan of files that could not be read."""
        return {name: [file.to_json() for file in look.held] for name, look in self.by_source.items() if look.held}

    def without_unfit(self, spec: Spec, errors: Mapping[str, InputError]) -> "Waiting":
        """Return the same, with files held back that were found unreadable, by path."""
        left = dict(self.by_source)
        for source in spec.sources:
            look = left[source.name]
            held = [HeldBack.of(part, source, errors[part.path]) for part in look.parts if part.path in errors]
            left[source.name] = look.without(held)
        return Waiting(left)


@dataclass(frozen=True)
class KnownOf:
    """The knowledge of one source of a pipeline; see `Known`."""

    workspace: Workspace
    source: Source
    reread: bool = False
    is_at_end: bool = False

    @property
    def now(self) -> datetime:
        """The present instant."""
        return self.workspace.clock.now()

    @property
    def states(self) -> list[FileState]:
        """The remembered states of its files or versions."""
        return known_files(self.workspace, self.source)

    @property
    def held(self) -> Mapping[str, HeldBack]:
        """The files that an earlier ingestion could not read, as the latest one remembers them."""
        return still_held(map(HeldBack.from_json, self.note_of_last_ingestion("held_back") or ()), self.source)

    @property
    def own_folder(self) -> Place:
        """The folder of the pipeline's tables."""
        return self.workspace.folder

    def note_of_last_ingestion(self, key: str) -> Any:
        """Return what the plan of the last ingestion notes of the source."""
        last = self.workspace.progress.read.last_commit("ingest") if self.workspace.exists else None
        notes = self.workspace.by_source(getattr(IngestInput.of(last.plan), key)) if last else {}
        return notes.get(self.source.name)

    def committed(self, folder: Place) -> Sequence[int] | None:
        """Return the committed versions of a table, in order; None if the table belongs to no pipeline."""
        of = pipeline_of(folder)
        return None if of is None else of.versions


def waiting_input(workspace: Workspace, *, reread: bool = False, end_of_input: str | None = None) -> Waiting:
    """Find the input that the log lacks, as far as the next ingestion reads it; without Spark.

    With `reread` files with the same bytes as others are read too. `end_of_input` replaces that of the spec for this
    run: at a flush a last line is finished.

    Raises:
        InputError: The path of a source does not exist.
    """
    at_end, hides_warnings = workspace.spec.time.flushes(end_of_input), workspace.spec.time.idle is not None
    looks: dict[str, Found] = {}
    with workspace.batches.as_of_now():
        for source in workspace.spec.sources:
            knowledge = KnownOf(workspace, source, reread=reread, is_at_end=at_end)
            source_input = reader_of(source, workspace.file.folder).look(knowledge)
            looks[source.name] = replace(source_input, warnings=()) if hides_warnings else source_input
        return Waiting(_aligned(workspace, looks))


def must_process_first(workspace: Workspace) -> bool:
    """Return whether records of the log must be processed before more is read: alignment judges by processed ones."""
    return workspace.spec.is_aligned and workspace.progress.log_end() > workspace.progress.processed_end()


def _aligned(workspace: Workspace, looks: Mapping[str, Found]) -> Mapping[str, Found]:
    """Return the input to read: nothing from sources and partitions that are too far ahead."""
    aligned = [
        source for source in workspace.spec.sources if source.alignment is not None and looks[source.name].is_ready
    ]
    if not aligned:
        return looks
    largest, times = largest_times(workspace), {time.name: time for time in workspace.rules.sources}
    waiting: dict[Waiter, Progress] = {}
    for source in aligned:
        waiting |= _progress(source, times[source.name], looks[source.name], largest)
    ahead = those_ahead(waiting)
    chosen = {name: look.all_left() if name in ahead else look for name, look in looks.items()}
    for source in aligned:
        if source.name not in ahead:
            splits = [waiter[1] for waiter in ahead if isinstance(waiter, tuple) and waiter[0] == source.name]
            reader = reader_of(source, workspace.file.folder)
            chosen[source.name] = reader.until_judged(looks[source.name], splits)
    return chosen


def _progress(source: Source, time: SourceTime, look: Found, largest: LargestTimes) -> Mapping[Waiter, Progress]:
    """Return how far a source with waiting input has come, or each of its partitions if they are its splits."""
    alignment = source.alignment
    assert alignment is not None
    watermarks: dict[Waiter, int | None] = {source.name: source_watermark(time, largest)}
    if source.is_read_by_split:
        watermarks = {(source.name, split): split_watermark(time, split, largest) for split in look.splits}
    return {who: Progress(alignment.group, alignment.max_drift_us, us) for who, us in watermarks.items()}


def largest_times(workspace: Workspace) -> LargestTimes:
    """Return the largest t of each split in what was processed, over all timelines; found without Spark."""
    if not workspace.exists or not workspace.lake.exists(tables.TIMELINES):
        return {}
    # The state is a base and changes: a timeline may have several rows there, and its largest t only grows.
    largest: dict[tuple[str, str | None], int | None] = {}
    names = workspace.source_names
    for piece in pieces(workspace.lake, tables.TIMELINES, workspace.base_of(tables.TIMELINES), ["splits"]):
        splits = pc.list_flatten(piece["splits"])
        times = pa.table({name: pc.struct_field(splits, name) for name in ("source", "split", "max_t")})
        for row in times.group_by(["source", "split"]).aggregate([("max_t", "max")]).to_pylist():
            split = (names.get(row["source"], row["source"]), row["split"])
            largest[split] = max((t for t in (largest.get(split), row["max_t_max"]) if t is not None), default=None)
    return largest


def held_back_now(workspace: Workspace) -> tuple[str, ...]:
    """Return what a look at the sources finds that cannot be taken; also if the look fails at a source."""
    try:
        return waiting_input(workspace).held_back
    except TidemarkError as error:
        return (str(error),)


# Columns that no `schema` names.


Met = Mapping[str, Mapping[str, str]]


def met_by(workspace: Workspace, waiting: Waiting) -> tuple[Met, Met]:
    """Return by source the columns that no `schema` names: all that were met so far, and the new ones."""
    known_columns, now = known_unknown(workspace), {}
    fresh = {}
    for source in workspace.spec.sources:
        columns = unknown_of(source, waiting.by_source[source.name].columns)
        earlier = dict(unknown_of(source, known_columns.get(source.name, {}).items()))
        first = {name: kind for name, kind in columns if name not in earlier}
        now[source.name], fresh[source.name] = earlier | first, first
    all_met, met_first = ({name: met for name, met in of.items() if met} for of in (now, fresh))
    return all_met, met_first


def known_unknown(workspace: Workspace) -> Met:
    """Return by source the columns that input was found to have, as the latest ingestion remembers them."""
    last = workspace.batches.last_commit("ingest") if workspace.exists else None
    return workspace.by_source(IngestInput.of(last.plan).unknown_columns) if last else {}


def first_met(spec: Spec, plan: Plan) -> list[str]:
    """Return a sentence for each source with columns that an ingestion met first."""
    return list(_sentences(spec.sources, IngestInput.of(plan).first_met))


def never_taken(workspace: Workspace) -> list[str]:
    """Return a sentence for each source with columns that are not taken, whenever they were met."""
    return list(_sentences(workspace.spec.sources, known_unknown(workspace)))


def _sentences(sources: tuple[Source, ...], met: Met) -> Iterator[str]:
    for source in sources:
        columns = unknown_of(source, met.get(source.name, {}).items())
        if not columns:
            continue
        names = ", ".join(f"`{name}`" for name, _ in columns)
        sentences = [f"source {source.name} has {names}, which `schema` does not name."]
        if line := line_to_add(source, columns):
            later = "; until then `_rescued` keeps the values, and a rebuild then fills the past"
            clause = later if source.keep_unknown else ""
            sentences.append(f"To take {'it' if len(columns) == 1 else 'them'} from here on, {line}{clause}.")
        yield " ".join([*sentences, *not_to_add(source, columns)])
