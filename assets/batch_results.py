"""The results that a window gives in one batch, whichever way they are written.

Here: what of a batch they depend on. Not here: the rules (timeops/windows.py), writing (windows.py, revisions.py).
"""

from collections.abc import Callable

from pyspark.sql import DataFrame

from assets.commits import flushes
from assets.flushed_windows import stay_closed
from assets.seen_groups import seen_before
from assets.session_places import placed_in_sessions
from assets.stretch import Judged
from resources.workspace import Workspace
from timeops.spec import WindowSpec
from timeops.windows import window_results


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
