"""Alignment of sources: which of them one ingestion reads, judged by what was processed before it.

Here: the state that the judgement goes by, and what becomes of files that wait. Not here: the rule
(timeops/watermark/alignment.py), how many files are one interval (resources/sources/discovery.py).

The files of one ingestion come to stand in the log together, so this decides what the log is, once. Everything else
is computed from the log and knows nothing of it.
"""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.resources import tables
from tidemark.resources.lake.queries import pieces
from tidemark.resources.sources.discovery import Discovery
from tidemark.resources.workspace import Workspace
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import Spec
from tidemark.timeops.watermark.alignment import LargestTimes, Progress, source_watermark, sources_ahead


def is_aligned(spec: Spec) -> bool:
    """Whether sources wait for each other."""
    return any(source.alignment is not None for source in spec.sources)


def must_process_first(workspace: Workspace) -> bool:
    """Whether the log holds records that sources are not judged by yet, so that nothing more may be read."""
    return is_aligned(workspace.spec) and workspace.log_end() > workspace.processed_end()


def aligned(workspace: Workspace, found: Mapping[str, Discovery]) -> Mapping[str, Discovery]:
    """What is to be read of the sources: of those that are too far ahead nothing.

    Args:
        workspace: The pipeline.
        found: By source what is there to be read.
    """
    spec = workspace.spec
    groups = {source.name: source.alignment for source in spec.sources if source.alignment is not None}
    waiting = {name: group for name, group in groups.items() if found[name].ready}
    if not waiting:
        return found
    largest = largest_times(workspace)
    watermarks = {source.name: source_watermark(source, largest) for source in TimeRules.of(spec).sources}
    ahead = sources_ahead(
        {name: Progress(one.group, one.max_drift_us, watermarks[name]) for name, one in waiting.items()}
    )
    return {name: _left(one) if name in ahead else one for name, one in found.items()}


def _left(found: Discovery) -> Discovery:
    files = len(found.ready) + found.left
    return replace(found, ready=(), copies=(), left=files, ahead=files)  # copies may be of those that wait


def largest_times(workspace: Workspace) -> LargestTimes:
    """The largest t of each split in what was processed, over all timelines; found without Spark."""
    if not workspace.exists or not workspace.lake.exists(tables.TIMELINES):
        return {}
    # The state is a base and changes: of a timeline several rows may stand there, and its largest t only grows.
    rows = pieces(workspace.lake, tables.TIMELINES, workspace.base_of(tables.TIMELINES), ["splits"])
    highest = [_highest(pc.list_flatten(piece["splits"])) for piece in rows]
    largest: dict[tuple[str, str | None], int | None] = {}
    for row in [row for one in highest for row in one.to_pylist()]:
        split = (row["source"], row["split"])
        largest[split] = max((t for t in (largest.get(split), row["max_t_max"]) if t is not None), default=None)
    return largest


def _highest(splits: pa.StructArray) -> pa.Table:
    """By `source` and `split` the largest `max_t` of a piece of the state."""
    names = ("source", "split", "max_t")
    columns = {name: pc.struct_field(splits, name) for name in names}
    return pa.table(columns).group_by(["source", "split"]).aggregate([("max_t", "max")])
