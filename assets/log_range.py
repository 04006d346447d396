"""Which part of the log the windows of some days are made of, and the state at both of its ends.

Here: choosing it by the positions that batches left, and reading it. Not here: what it is judged to be (backfill.py).

Every event that is judged counts into the largest event time, and one that is moved goes to the watermark or by its
arrival before it counts. So no event before a place at which both are before the first day is in a window of the
days. Behind a place at which all of them are closed no event comes into one, and none gives a result any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from assets.control import recorded_cuts
from assets.stretch import records_between
from resources import tables
from resources.workspace import Position, Workspace, plan_end
from timeops.grid_bounds import closed_from
from timeops.spec import Spec, WindowSpec


@dataclass(frozen=True)
class Place:
    """The end of a batch in the log.

    Attributes:
        end_seq: The first `_arrival_seq` behind it.
        position: The state of the pipeline there.
    """

    end_seq: int
    position: Position


START = Place(0, Position())


@dataclass(frozen=True)
class LogRange:
    """A part of the log.

    Attributes:
        first_seq: First `_arrival_seq`.
        end_seq: End of the range, not in it.
        before: The state of the pipeline before it.
        after: The same behind it.
    """

    first_seq: int
    end_seq: int
    before: Position
    after: Position

    @property
    def records(self) -> int:
        """Number of records."""
        return self.end_seq - self.first_seq


def range_of_windows(workspace: Workspace, window: WindowSpec, from_us: int, to_us: int) -> LogRange:
    """The processed part of the log that holds all that windows are made of which start in a span of time.

    Args:
        workspace: The pipeline.
        window: The window.
        from_us: They start at this instant or behind it, microseconds.
        to_us: They start before this one.
    """
    if not is_made_of_a_part(window, workspace.spec) or recorded_cuts(workspace):
        return LogRange(0, workspace.processed_end(), Position(), workspace.position())
    return part_of_log(_places(workspace), window, from_us, to_us)


def is_made_of_a_part(window: WindowSpec, spec: Spec) -> bool:
    """Whether few batches may be enough for few windows.

    The state between batches has to be one row, and an event to be in windows by its own time alone. Rows without an
    event are owed to groups that were seen at any time before.
    """
    is_one_row = not spec.keeps_timelines and not spec.time.deduplicate_by
    return is_one_row and window.input is None and not window.is_linked and not window.empty


def part_of_log(places: Sequence[Place], window: WindowSpec, from_us: int, to_us: int) -> LogRange:
    """The shortest part between two places that holds all that some windows are made of.

    Args:
        places: The ends of all processed batches, in the order of the log; at least one.
        window: The window; as for the instants, see `range_of_windows`.
        from_us: They start at this instant or behind it.
        to_us: They start before this one.
    """
    closed_us = closed_from(to_us, window)
    before = [place for place in places if _all_before(place.position, from_us)]
    closed = [place for place in places if _has_reached(place.position, closed_us)]
    begin, end = before[-1] if before else START, closed[0] if closed else places[-1]
    return LogRange(begin.end_seq, end.end_seq, begin.position, end.position)


def records_of(workspace: Workspace, part: LogRange) -> DataFrame:
    """The records of a part of the log."""
    return records_between(workspace, part.first_seq, part.end_seq)


def _all_before(position: Position, instant_us: int) -> bool:
    """Whether every accepted event before a place has a `_timestamp` before an instant, and no later window closed.

    A flush closes all windows, whatever they hold.
    """
    reached = (position.max_t_us, position.watermark_us)
    return not position.final and all(us is None or us < instant_us for us in reached)


def _has_reached(position: Position, watermark_us: int) -> bool:
    return position.watermark_us is not None and position.watermark_us >= watermark_us


def _places(workspace: Workspace) -> list[Place]:
    """The ends of all processed batches."""
    version = workspace.base()[tables.WATERMARKS]
    rows = workspace.lake.rows(tables.WATERMARKS, version, filters=[("_timeline", "=", None)]).to_pylist()
    positions = {row["_batch_id"]: Position.of(row) for row in rows}
    done = [commit for commit in workspace.batches.history() if commit.plan.kind == "process"]
    return [Place(plan_end(commit.plan), positions[commit.batch_id]) for commit in done]
