"""The session of every event of a batch, found once for all stages that ask.

Here: when it is kept, and for whom. Not here: the rule (timeops/sessions.py), what the stages do with it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.commits import has_few_records
from assets.flushed_windows import stay_closed
from assets.kept_events import known_to
from assets.stretch import Judged
from resources.workspace import Workspace
from timeops.keeping import computed
from timeops.sessions import sessions_of
from timeops.spec import WindowSpec
from timeops.windows import all_events

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
