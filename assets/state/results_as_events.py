"""Windows over windows: the results of a batch as events, and those that open windows still need.

Here: reading and keeping them. Not here: what a result is as an event (timeops/windows/over_results.py), writing
results (windows.py).
"""

from dataclasses import replace

from tidemark.assets.batch.segment import Judged
from tidemark.assets.state.aligned_events import write_events
from tidemark.assets.state.merging_events import write_linked_events
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.spec import Spec, WindowSpec
from tidemark.timeops.spec.window import input_of
from tidemark.timeops.windows.over_results import as_events, result_columns, with_results


def kept_columns(spec: Spec, window: WindowSpec) -> list[str]:
    """Columns, but its batch, of the table of results that a window over them still needs."""
    return [*result_columns(input_of(window, spec.windows)), c.TIMESTAMP, c.TIMELINE]


def with_fresh_results(workspace: Workspace, judged: Judged, window: WindowSpec) -> Judged:
    """A judged batch with the results that it wrote of a window's input, as the events that came in it."""
    spec, source = workspace.spec, input_of(window, workspace.spec.windows)
    written = workspace.lake.read(
        tables.window_table(source.name), filters=[(c.BATCH, "=", judged.plan.batch_id), ("_is_final", "=", True)]
    )
    events = as_events(written, source, spec.windows, spec.time.over)
    return replace(judged, adjusted=with_results(judged.adjusted, events))


def write_kept_results(workspace: Workspace, judged: Judged, window: WindowSpec) -> None:
    """Writes the results that a window still needs after a batch.

    Args:
        workspace: The pipeline.
        judged: What `with_fresh_results` gave.
        window: The window.
    """
    table, columns = tables.open_results_table(window.name), kept_columns(workspace.spec, window)
    write = write_linked_events if window.is_linked else write_events
    write(workspace, judged, table, (window,), columns)
