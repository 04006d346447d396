"""The tick that a live run may add after the last record of the log.

Here: its clock, and why a pipeline never has one. Not here: what a tick does to watermarks (timeops/watermark/), the
batch that it becomes (../planning.py).
"""

from tidemark.assets.ingestion.waiting_input import waiting_input
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import Spec
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.alignment import estimated_clock


def why_never(spec: Spec) -> str | None:
    """Say why a pipeline never has ticks, whatever comes in; return None if it may have them."""
    if not spec.heeds_ticks:
        return (
            "no rule of the spec depends on the clock alone (`idle`, `emit: {every: …}`, windows that revise results)"
        )
    sources = [source.name for source in spec.sources if not source.follows_wall_clock]
    return f"source `{sources[0]}` has an `arrival_time` without `live: true`" if sources else None


def clock_of_tick(workspace: Workspace) -> int | None:
    """Return the clock of a tick after the last record of the log, microseconds.

    Returns:
        None if no tick is possible now: by the spec, see `why_never`; if a source has no record yet; if input waits
        or is held back; or if the clock of the log is already there.
    """
    if why_never(workspace.spec) is not None:
        return None
    now_us = us_of(workspace.clock.now())  # before the look, so that a file that comes later is after the tick
    waiting = waiting_input(workspace)
    if (
        waiting.is_ready
        or waiting.settling_files
        or waiting.notes
        or waiting.left
        or waiting.errors
        or not workspace.exists
    ):
        return None
    last_arrivals = workspace.progress.last_arrivals().values()
    estimate_us, reached_us = estimated_clock(last_arrivals, now_us), workspace.progress.log_clock_us()
    return estimate_us if estimate_us is not None and estimate_us > (reached_us or 0) else None
