"""The tables that a batch writes, by its plan: for programs that are told about batches.

Here: which tables these are for each kind of batch, and their columns. Not here: what is sent about them
(assets/catalog/run_events.py). Tables of state are for no other reader, so they are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan, RebuildInput
from tidemark.resources.places.place import Place
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.spec import Spec


@dataclass(frozen=True)
class BatchTables:
    """The tables of a batch as they are known when it begins.

    Attributes:
        file: The spec.
        folder: Folder of the pipeline's tables.
        written: The tables that it writes, each with the SQL type of every column.
        dropped: The tables that it deletes.
    """

    file: SpecFile
    folder: Place
    written: Mapping[str, Mapping[str, str]]
    dropped: Sequence[str] = ()


def tables_of(workspace: Workspace, plan: Plan) -> BatchTables | None:
    """Return the tables of a batch; None of one that only reserves numbers for a rebuild."""
    batch_input = RebuildInput.of(plan)
    if batch_input.reserves:
        return None
    names = [name for name in _written(workspace.spec, plan) if workspace.lake.exists(name)]
    columns = {name: workspace.lake.columns(name) for name in names}
    dropped = [tables.window_table(name) for name in batch_input.dropped]
    file = replace(workspace.file, spec=workspace.spec)  # which knows the columns of tables that joins read
    return BatchTables(file, workspace.folder, columns, dropped)


def _written(spec: Spec, plan: Plan) -> Sequence[str]:
    """Return the tables that a batch of this kind writes, whether or not it finds rows for each of them."""
    match plan.kind:
        case "ingest":
            return [tables.RAW_EVENTS]
        case "backfill":
            return [tables.window_table(plan.input["window"])]
        case "retention":
            return list(plan.input["tables"])
        case "change":
            return list(dict.fromkeys(change["table"] for change in plan.input["changes"]))
        case _:
            batch_input = RebuildInput.of(plan) if plan.kind == "rebuild" else RebuildInput()
            if batch_input.leaves_results:
                return []
            some = set(batch_input.windows)
            windows = [window for window in spec.windows if not some or window.name in some]
            results = [tables.window_table(window.name) for window in windows]
            results += [tables.history_table(window.name) for window in windows if window.history]
            results += [] if some else [tables.join_table(join.name) for join in spec.joins]
            ordered = spec.outputs.ordered_events and not some
            events = [tables.ORDERED_EVENTS, tables.HELD_EVENTS] if ordered else []
            return [*events, tables.DEAD_LETTERS, *results]
