"""The session of every event of a batch, found once for all stages that ask.

Here: when it is kept, and for whom. Not here: the rule (timeops/windows/sessions.py), what the stages do with it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import has_few_records
from tidemark.assets.batch.segment import Judged
from tidemark.assets.state.aligned_events import known_to
from tidemark.assets.state.drained_windows import stay_closed
from tidemark.resources.workspace import Workspace
from tidemark.timeops.materialize import computed
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.windows.results import all_events
from tidemark.timeops.windows.sessions import sessions_of

EARLIER = "__earlier"
"""True of events of earlier batches, null of those of this one."""


def placed_in_sessions(workspace: Workspace, judged: Judged, window: WindowSpec) -> DataFrame | None:
    """The events of a batch, and those that were kept, with the session of each.

    Late events, results and the events of open sessions are all read off it, and in a small batch it is most of what
    they take.

    Returns:
        What `sessions.sessions_of` gives of `windows.all_events`, with EARLIER. None where each stage finds its own:
        for other windows than sessions of events that give one result, and in larger batches, whose wide rows cost
        more to keep than their few columns to sort.
    """
    of_events = window.kind == "session" and not window.revises and window.input is None
    if not of_events or not has_few_records(judged.plan):
        return None
    if window.name not in judged.sessions:
        known = known_to(workspace, judged, window).withColumn(EARLIER, F.lit(True))
        events = all_events(judged.adjusted, known)
        closed = stay_closed(workspace, judged.plan, window)
        judged.sessions[window.name] = computed(sessions_of(events, window, workspace.spec.time, closed))
    return judged.sessions[window.name]
