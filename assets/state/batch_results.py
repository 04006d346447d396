"""The results that a window gives in one batch, whichever way they are written.

Here: what of a batch they depend on. Not here: the rules (timeops/windows/results.py), writing (windows.py,
revisions.py).
"""

from collections.abc import Callable

from pyspark.sql import DataFrame

from tidemark.assets.batch.batch import flushes
from tidemark.assets.batch.segment import Judged
from tidemark.assets.state.drained_windows import stay_closed
from tidemark.assets.state.event_sessions import placed_in_sessions
from tidemark.assets.state.seen_groups import seen_before
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.results import window_results


def results_in_batch(
    workspace: Workspace,
    judged: Judged,
    window: WindowSpec,
    known: DataFrame,
    *,
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """What `window_results` gives of a batch; computing it may fail, see `empty_windows.told_in_words`.

    Args:
        workspace: The pipeline.
        judged: The batch; for a window over another one with the results that came in it.
        window: The window.
        known: What earlier batches left for it.
        keep: As for `window_results`.
    """
    return window_results(
        judged.adjusted,
        known,
        window,
        seen=seen_before(workspace, window) if window.empty else None,
        stay_closed=stay_closed(workspace, judged.plan, window),
        placed=placed_in_sessions(workspace, judged, window),
        flushed=flushes(judged.plan),
        keep=keep,
    )
