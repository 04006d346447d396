"""The input that the sources have and the log lacks, and what of it the next ingestion reads; found without Spark.

Here: the look at all sources, and alignment: which of them, and of Kafka which partitions, one ingestion reads,
judged by what was processed before.
Not here: finding the files of one source, and how many are one interval (resources/sources/discovery.py), the rule of
alignment (timeops/watermark/alignment.py), reading files (ingestion.py).

All that one ingestion reads enters the log together, so alignment decides the log, once. Everything else is computed
from the log and does not depend on alignment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from operator import add
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.state.files import known_files
from tidemark.resources import tables
from tidemark.resources.batches.committed import committed_versions
from tidemark.resources.batches.plans import IngestInput
from tidemark.resources.delta.queries import pieces
from tidemark.resources.places.place import Place
from tidemark.resources.sources.delta_tables import discover_versions, folder_of
from tidemark.resources.sources.discovery import Discovery, HeldBack, discover, still_held
from tidemark.resources.sources.kafka_offsets import before_judged_again, discover_offsets
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import InputError, TidemarkError
from tidemark.timeops.rules import SourceTime, Waiter
from tidemark.timeops.spec import DeltaSource, FilesSource, KafkaSource, Source, Spec
from tidemark.timeops.watermark.alignment import (
    LargestTimes,
    Progress,
    source_watermark,
    split_watermark,
    those_ahead,
)


@dataclass(frozen=True)
class Waiting(Discovery):
    """The input of all sources together that the log lacks.

    Attributes:
        by_source: The input of each.
    """

    by_source: Mapping[str, Discovery] = field(default_factory=dict)

    @classmethod
    def of(cls, by_source: Mapping[str, Discovery]) -> "Waiting":
        """Combine what was found of each source."""
        every = (Discovery((), (), 0, ()), *by_source.values())
        names = [one.name for one in fields(Discovery)]
        together: dict[str, Any] = {name: reduce(add, (getattr(one, name) for one in every)) for name in names}
        return cls(**together, by_source=by_source)

    @property
    def read_before(self) -> tuple[str, ...]:
        """One sentence for each copy of another file, which is not read."""
        return tuple(copy.copy_sentence for copy in self.copies)

    @property
    def passed_over(self) -> tuple[str, ...]:
        """One sentence for all that is not read as it is there: changes of versions, lost offsets, parts of files."""
        changes = [version.passed_over for version in self.versions if version.passed_over]
        return (*changes, *(one.sentence for one in self.lost), *self.notes, *self.warnings)

    def came_after(self, ends: Mapping[str, int]) -> bool:
        """Return whether all that is waiting came to partitions of Kafka after an offset of each."""
        others = replace(self, offsets=(), by_source={})
        return not others.has_news and all(one.first >= ends.get(one.split, 0) for one in self.offsets)

    @property
    def has_news(self) -> bool:
        """Return whether there is something to read or to remember."""
        return bool(
            self.ready or self.touched or self.copies or self.versions or self.offsets or self.positions or self.lost
        )

    @property
    def waiters(self) -> list[Waiter]:
        """The sources, or splits of them, that have something to be read and wait for others."""
        whole: list[Waiter] = [name for name, one in self.by_source.items() if one.ahead and not one.splits_ahead]
        return [*whole, *((name, split) for name, one in self.by_source.items() for split in one.splits_ahead)]

    @property
    def held_back(self) -> tuple[str, ...]:
        """The input that cannot be taken, a sentence or two for each piece."""
        return tuple(str(error) for error in self.errors)

    @property
    def held_by_source(self) -> dict[str, list[dict[str, str | int]]]:
        """The note in the plan of files that could not be read."""
        return {name: [file.to_json() for file in one.held] for name, one in self.by_source.items() if one.held}

    def without_unfit(self, spec: Spec, errors: Mapping[str, InputError]) -> "Waiting":
        """Return the same, with files held back that were found unreadable, by path."""
        left = dict(self.by_source)
        for source in spec.sources:
            own = left[source.name]
            unfit = [one for one in own.inputs if one.path in errors]
            held = [HeldBack.of(one, source, errors[one.path]) for one in unfit]
            left[source.name] = own.without(held)
        return Waiting.of(left)


def waiting_input(workspace: Workspace, *, reread: bool = False, end_of_input: str | None = None) -> Waiting:
    """Find the input that the log lacks, as far as the next ingestion reads it; without Spark.

    Args:
        workspace: The pipeline.
        reread: Files with the same bytes as others are read too.
        end_of_input: Replaces the spec's `end_of_input` for this run: at a flush a last line is finished.

    Raises:
        InputError: The path of a source does not exist.
    """
    at_end = workspace.spec.time.flushes(end_of_input)
    found = {one.name: _found(workspace, one, reread=reread, is_at_end=at_end) for one in workspace.spec.sources}
    return Waiting.of(_aligned(workspace, found))


def _found(
    workspace: Workspace, source: FilesSource | DeltaSource | KafkaSource, *, reread: bool, is_at_end: bool
) -> Discovery:
    """Find the input of a source that the log lacks."""
    folder = workspace.file.folder
    if isinstance(source, KafkaSource):
        looked = discover_offsets(source, folder, workspace.progress.positions_of(source))
        return looked if workspace.spec.time.idle is None else replace(looked, warnings=())
    known, held = known_files(workspace, source), _held_files(workspace, source)
    if isinstance(source, DeltaSource):
        committed = committed_versions(_others_folder(workspace, source))
        return discover_versions(source, folder, known, held=held, committed=committed)
    return discover(source, folder, known, workspace.clock.now(), reread=reread, is_at_end=is_at_end, held=held)


def _others_folder(workspace: Workspace, source: DeltaSource) -> Place:
    """Return the folder of the table that a source reads.

    Raises:
        InputError: The pipeline would read what it writes.
    """
    folder = folder_of(source, workspace.file.folder)
    if workspace.folder.absolute() in (*folder.parents,):
        raise InputError(
            f"Source {source.name!r}: {folder} is a table of this pipeline",
            expected="a table that others write",
            remedy="correct `path`, or let a second pipeline read it",
        )
    return folder


def _held_files(workspace: Workspace, source: Source) -> Mapping[str, HeldBack]:
    """Return by path the files that an earlier ingestion could not read, as the latest one remembers them."""
    last = workspace.batches.last_commit("ingest") if workspace.exists else None
    noted = workspace.by_source(IngestInput.of(last.plan).held_back) if last else {}
    return still_held(map(HeldBack.from_json, noted.get(source.name, [])), source)


def must_process_first(workspace: Workspace) -> bool:
    """Return whether records of the log must be processed before more is read: alignment judges by processed ones."""
    return workspace.spec.is_aligned and workspace.progress.log_end() > workspace.progress.processed_end()


def _aligned(workspace: Workspace, found: Mapping[str, Discovery]) -> Mapping[str, Discovery]:
    """Return the input to read: nothing from sources and partitions that are too far ahead."""
    aligned = [one for one in workspace.spec.sources if one.alignment is not None and found[one.name].is_ready]
    if not aligned:
        return found
    largest, times = largest_times(workspace), {time.name: time for time in workspace.rules.sources}
    waiting: dict[Waiter, Progress] = {}
    for source in aligned:
        waiting |= _progress(source, times[source.name], found[source.name], largest)
    ahead = those_ahead(waiting)
    chosen = {name: _left(one) if name in ahead else one for name, one in found.items()}
    for source in aligned:
        if isinstance(source, KafkaSource) and source.name not in ahead:
            splits = [one[1] for one in ahead if isinstance(one, tuple) and one[0] == source.name]
            own = found[source.name]
            chosen[source.name] = before_judged_again(source, workspace.file.folder, own, splits)
    return chosen


def _progress(source: Source, time: SourceTime, found: Discovery, largest: LargestTimes) -> Mapping[Waiter, Progress]:
    """Return how far a source with waiting input has come, or each of its partitions if they are its splits."""
    alignment = source.alignment
    assert alignment is not None
    watermarks: dict[Waiter, int | None] = {source.name: source_watermark(time, largest)}
    if source.is_read_by_split:
        splits = [one.split for one in found.offsets]
        watermarks = {(source.name, one): split_watermark(time, one, largest) for one in splits}
    return {who: Progress(alignment.group, alignment.max_drift_us, us) for who, us in watermarks.items()}


def _left(found: Discovery) -> Discovery:
    # Copies may be of files that wait, and versions without rows may come between others.
    return replace(found, ready=(), copies=(), versions=(), offsets=(), left=found.new, ahead=found.new)


def largest_times(workspace: Workspace) -> LargestTimes:
    """Return the largest t of each split in what was processed, over all timelines; found without Spark."""
    if not workspace.exists or not workspace.lake.exists(tables.TIMELINES):
        return {}
    # The state is a base and changes: a timeline may have several rows there, and its largest t only grows.
    rows = pieces(workspace.lake, tables.TIMELINES, workspace.base_of(tables.TIMELINES), ["splits"])
    highest = [_highest(pc.list_flatten(piece["splits"])) for piece in rows]
    largest: dict[tuple[str, str | None], int | None] = {}
    names = workspace.source_names
    for row in [row for one in highest for row in one.to_pylist()]:
        split = (names.get(row["source"], row["source"]), row["split"])
        largest[split] = max((t for t in (largest.get(split), row["max_t_max"]) if t is not None), default=None)
    return largest


def _highest(splits: pa.StructArray) -> pa.Table:
    """Return by `source` and `split` the largest `max_t` of a piece of the state."""
    names = ("source", "split", "max_t")
    columns = {name: pc.struct_field(splits, name) for name in names}
    return pa.table(columns).group_by(["source", "split"]).aggregate([("max_t", "max")])


def held_back_now(workspace: Workspace) -> tuple[str, ...]:
    """Return what a look at the sources finds that cannot be taken; also if the look fails at a source."""
    try:
        return waiting_input(workspace).held_back
    except TidemarkError as error:
        return (str(error),)
