"""The tick of a live run: whether one can stand behind the log now, and its clock.

Here: what is looked at. Not here: the estimate of the clock (timeops/watermark/tick_clock.py), the batch that takes
it (batch.py).
"""

from tidemark.assets.ingestion import waiting_input
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import Spec
from tidemark.timeops.utc import us_of
from tidemark.timeops.watermark.tick_clock import estimated_clock


def why_never(spec: Spec) -> str | None:
    """Why a pipeline has no ticks, whatever comes in; None where it may have them."""
    if not spec.heeds_ticks:
        return "no rule of the spec follows the clock alone (`idle`, `emit: {every: …}`, windows that revise results)"
    own = [source.name for source in spec.sources if not source.follows_wall_clock]
    return f"source `{own[0]}` has an `arrival_time` without `live: true`" if own else None


def clock_of_tick(workspace: Workspace) -> int | None:
    """The clock of a tick behind the last record of the log, microseconds.

    Returns:
        None where there can be none now: by the spec, see `why_never`; as a source has no record yet, as input waits
        or is held back, or as the clock of the log has come as far.
    """
    if why_never(workspace.spec) is not None:
        return None
    now_us = us_of(workspace.clock.now())  # before the look, so that a file that comes after it is behind the tick
    found = waiting_input(workspace)
    if found.ready or found.waiting or found.left or found.errors or not workspace.exists:
        return None
    estimate_us, reached_us = estimated_clock(workspace.last_arrivals().values(), now_us), workspace.log_clock_us()
    return estimate_us if estimate_us is not None and estimate_us > (reached_us or 0) else None
