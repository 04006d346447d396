"""The lake's memory of the files that were read: the table `_state/files`.

Here: its rows, to values and back. Not here: what a state means for a file that lies there now (resources/sources).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import Source

_MOST_FILES = 8  # each batch adds one, and each look at the sources reads them all
_NOT_IN_ROWS = ("source", "path", "_batch_id")


def known_files(workspace: Workspace, source: Source) -> list[FileState]:
    """Return the states of a source's files, in the order in which they were stored."""
    return [state for _, state in _stored(workspace, source)]


def copies_after(workspace: Workspace, batch_id: int) -> list[FileState]:
    """Return the files that were first found to be copies of others after a batch."""
    copies: dict[tuple[str, str, str], tuple[int, FileState]] = {}
    for source in workspace.spec.sources:
        for batch, state in _stored(workspace, source):
            if state.copy_of is not None:
                copies.setdefault((source.name, state.name, state.digest), (batch, state))
    return [state for batch, state in copies.values() if batch > batch_id]


def states_of(workspace: Workspace, batch_id: int) -> list[FileState]:
    """Return the states that an ingestion left of the files that it read, of any source."""
    rows = workspace.base_rows(tables.FILES)
    rows = rows.filter(pc.and_(pc.equal(rows["_batch_id"], batch_id), pc.is_null(rows["copy_of"])))
    return [_state(row) for row in rows.to_pylist()]


def _state(row: Mapping[str, Any]) -> FileState:
    return FileState(name=row["path"], **{name: value for name, value in row.items() if name not in _NOT_IN_ROWS})


def _stored(workspace: Workspace, source: Source) -> list[tuple[int, FileState]]:
    """Return what is stored of a source's files, each with the batch that stored it, in their order."""
    if not workspace.exists:
        return []
    rows = workspace.base_rows(tables.FILES)
    names = [source.name, *(old for old, name in workspace.source_names.items() if name == source.name)]
    rows = rows.filter(pc.is_in(rows["source"], value_set=pa.array(names)))
    return [
        (int(row["_batch_id"]), _state(row))
        for row in sorted(rows.to_pylist(), key=lambda row: int(row["_batch_id"]))
    ]


def write_states(workspace: Workspace, plan: Plan, states: Sequence[tuple[str, FileState]]) -> None:
    """Add the states that a batch leaves, each with the name of its source."""
    rows = []
    for source, state in states:
        values = asdict(state)
        rows.append({"source": source, "path": values.pop("name"), **values, "_batch_id": plan.batch_id})
    table = pa.Table.from_pylist(rows, schema=tables.FILES_SCHEMA)
    before = workspace.ready(tables.FILES, plan)
    expect = workspace.lake.grow(tables.FILES, tables.FILES_SCHEMA, attempt=plan.attempt, expect=before)
    workspace.lake.append_rows(tables.FILES, table, expect=expect, attempt=plan.attempt)
    if workspace.lake.file_count(tables.FILES) > _MOST_FILES:
        workspace.lake.compact(tables.FILES)
