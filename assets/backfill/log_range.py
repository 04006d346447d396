"""The part of the log from which the windows of some days are made.

Here: choosing it by the positions that batches left. Not here: what was stored at its ends (../state/checkpoints.py),
judging it (days.py).

Every event that is judged counts into the largest event time. An event that is moved goes to the watermark or to its
arrival before it counts. So if both are before the first day at a checkpoint, no event before it is in a window of
the days. After a checkpoint at which all these windows are closed on every timeline, no event comes into them, and
they have no further results. The batch after the first checkpoint also needs what was stored there: timelines, first
times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import functions as F

from tidemark.assets.state.checkpoints import START, Checkpoint, checkpoints_of, has_state
from tidemark.resources import tables
from tidemark.resources.batches.position import Position
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.grid import closed_from
from tidemark.timeops.spec import WindowSpec


@dataclass(frozen=True)
class LogRange:
    """A part of the log, between two checkpoints."""

    begin: Checkpoint
    end: Checkpoint

    @property
    def first_seq(self) -> int:
        """First `_arrival_seq`."""
        return self.begin.end_seq

    @property
    def end_seq(self) -> int:
        """End of the part, not in it."""
        return self.end.end_seq

    @property
    def records(self) -> int:
        """Number of records."""
        return self.end_seq - self.first_seq


def range_of_windows(workspace: Workspace, window: WindowSpec, from_us: int, to_us: int) -> LogRange:
    """Return the processed part of the log that holds all the input of the windows that start in a span of time.

    It begins where the log does if the files of the state at a later checkpoint are gone, as VACUUM may have deleted
    them.

    Args:
        workspace: The pipeline.
        window: The window.
        from_us: The windows start at this instant or after it, microseconds.
        to_us: The windows start before this instant.
    """
    checkpoints = checkpoints_of(workspace)
    whole = LogRange(START, checkpoints[-1])
    if not is_made_of_a_part(window):
        return whole
    part = part_of_log(checkpoints, window, from_us, to_us)
    if workspace.spec.time.over:
        part = replace(part, end=_closed_on_all_timelines(workspace, checkpoints, closed_from(to_us, window)))
    begin = part.begin if has_state(workspace, part.begin) else whole.begin
    return LogRange(begin, part.end if has_state(workspace, part.end) else whole.end)


def is_made_of_a_part(window: WindowSpec) -> bool:
    """Return whether a few batches may be enough for a few windows.

    Each event has to be in windows by its own time alone. Rows without an event are due to groups that were seen at
    any earlier time.
    """
    return window.input is None and not window.is_linked and not window.empty


def part_of_log(checkpoints: Sequence[Checkpoint], window: WindowSpec, from_us: int, to_us: int) -> LogRange:
    """Return the shortest part between two checkpoints that holds all the input of some windows.

    Args:
        checkpoints: The ends of all processed batches, in the order of the log; at least one.
        window: The window; as for the instants, see `range_of_windows`.
        from_us: The windows start at this instant or after it.
        to_us: The windows start before this instant.
    """
    closed_us = closed_from(to_us, window)
    before = [checkpoint for checkpoint in checkpoints if _all_before(checkpoint.position, from_us)]
    closed = [checkpoint for checkpoint in checkpoints if _has_reached(checkpoint.position, closed_us)]
    return LogRange(before[-1] if before else START, closed[0] if closed else checkpoints[-1])


def _all_before(position: Position, instant_us: int) -> bool:
    """Return whether at a checkpoint all accepted events are before an instant, and no window after it has closed.

    A flush closes all windows, whatever they hold.
    """
    reached = (position.max_t_us, position.watermark_us)
    return not position.final and all(us is None or us < instant_us for us in reached)


def _has_reached(position: Position, watermark_us: int) -> bool:
    return position.watermark_us is not None and position.watermark_us >= watermark_us


def _closed_on_all_timelines(
    workspace: Workspace, checkpoints: Sequence[Checkpoint], watermark_us: int
) -> Checkpoint:
    """Return the first checkpoint at which every timeline has reached a watermark; otherwise the last one.

    `watermarks` has a row of each batch whose events moved a timeline: a rise by the clock alone is visible only in
    the next of them. So the checkpoint may be later than necessary, never earlier.
    """
    rows = workspace.read_base(tables.WATERMARKS).where(F.col(c.TIMELINE).isNotNull())
    has_reached = F.col("watermark") >= c.to_instant(F.lit(watermark_us))
    first = rows.groupBy(c.TIMELINE).agg(F.min(F.when(has_reached, F.col(c.BATCH))).alias("batch_id"))
    found = first.agg(F.max("batch_id").alias("batch_id"), F.count_if(F.col("batch_id").isNull()).alias("behind"))
    all_of_them = found.collect()[0]
    if all_of_them["behind"]:
        return checkpoints[-1]
    return next(
        (checkpoint for checkpoint in checkpoints if checkpoint.batch_id == all_of_them["batch_id"]), checkpoints[-1]
    )
