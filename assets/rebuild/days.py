"""Day partitions of a window table: the rows of chosen days, recomputed from the arrival log.

Here: the part of the log that they are made of, judging it whole or in pieces, and replacing days in one commit. Not
here: what was stored at the ends of a part (assets/state/checkpoints.py), live batches.

Every event that is judged counts into the largest event time. An event that is moved goes to the watermark or to its
arrival before it counts. So if both are before the first day at a checkpoint, no event before it is in a window of
the days. After a checkpoint at which all these windows are closed on every timeline, no event comes into them, and
they have no further results. The batch after the first checkpoint also needs what was stored there: timelines, first
times.

A part is cut at ticks, where other sources begin to wait, and at flushes that more input followed. Each cut costs a
piece, as it has cost a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import BatchWriter
from tidemark.assets.judging.replay import REPLAYED_KINDS, judge_segments, pieces_left, with_let_in
from tidemark.assets.log.admissions import admitted
from tidemark.assets.log.control import recorded, waits_up_to
from tidemark.assets.log.exclusions import records_between
from tidemark.assets.log.retention import ensure_in_log, gone_of
from tidemark.assets.log.spec_changes import refuse_two_meanings_of_time
from tidemark.assets.planning import LogSegment, at_work, begin, zone_data
from tidemark.assets.rebuild.switch import take_new_names
from tidemark.assets.schemas import create_tables, fit_tables
from tidemark.assets.state.checkpoints import START, Checkpoint, checkpoints_of, first_times_at, has_state, state_at
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit
from tidemark.resources.batches.position import Position
from tidemark.resources.catalog import keep_names
from tidemark.resources.delta.versions import Filters, sql_condition
from tidemark.resources.workspace import Workspace, silent
from tidemark.timeops import columns as c
from tidemark.timeops.calendar.grid import closed_from
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.engine import State, read_by
from tidemark.timeops.errors import LakeError, SpecError
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.window import inputs_of
from tidemark.timeops.values.utc import begin_of, us_of
from tidemark.timeops.windows.gap_filling import Span
from tidemark.timeops.windows.results import last_revisions, passing


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

    They start at `from_us` or after it, and before `to_us`, microseconds. The part begins where the log does if the
    files of the state at a later checkpoint are gone, as VACUUM may have deleted them.
    """
    checkpoints = checkpoints_of(workspace)
    if not is_made_of_a_part(window):
        return LogRange(START, checkpoints[-1])
    part = part_of_log(checkpoints, window, from_us, to_us)
    if workspace.spec.time.over:
        part = replace(part, end=_closed_on_all_timelines(workspace, checkpoints, closed_from(to_us, window)))
    return part if has_state(workspace, part.begin) else replace(part, begin=START)


def is_made_of_a_part(window: WindowSpec) -> bool:
    """Return whether a few batches may be enough for a few windows.

    Each event has to be in windows by its own time alone. Rows without an event are due to groups that were seen at
    any earlier time.
    """
    return window.input is None and not window.is_linked and not window.empty


def part_of_log(checkpoints: Sequence[Checkpoint], window: WindowSpec, from_us: int, to_us: int) -> LogRange:
    """Return the shortest part between two checkpoints that holds all the input of some windows.

    The checkpoints are the ends of all processed batches, at least one, in the order of the log; as for the instants,
    see `range_of_windows`.
    """
    closed_us = closed_from(to_us, window)
    earlier_checkpoints = [checkpoint for checkpoint in checkpoints if _all_before(checkpoint.position, from_us)]
    watermarks = [(checkpoint, checkpoint.position.watermark_us) for checkpoint in checkpoints]
    closed = [checkpoint for checkpoint, us in watermarks if us is not None and us >= closed_us]
    return LogRange(
        earlier_checkpoints[-1] if earlier_checkpoints else START, closed[0] if closed else checkpoints[-1]
    )


def _all_before(position: Position, instant_us: int) -> bool:
    """Return whether at a checkpoint all accepted events are before an instant, and no window after it has closed.

    A flush closes all windows, whatever they hold.
    """
    return not position.final and (position.reached_us is None or position.reached_us < instant_us)


def _closed_on_all_timelines(
    workspace: Workspace, checkpoints: Sequence[Checkpoint], watermark_us: int
) -> Checkpoint:
    """Return the first checkpoint at which every timeline has reached a watermark; otherwise the last one.

    `watermarks` has a row of each batch whose events moved a timeline: a rise by the clock alone is visible only in
    the next of them. So the checkpoint may be later than necessary, never earlier.
    """
    rows = workspace.read_base(tables.WATERMARKS).where(F.col(c.TIMELINE).isNotNull())
    has_reached = F.col("watermark") >= c.to_instant(f"{watermark_us}L")
    first = rows.groupBy(c.TIMELINE).agg(F.min(F.when(has_reached, F.col(c.BATCH))).alias("batch_id"))
    slowest = first.agg(F.max("batch_id").alias("batch_id"), F.count_if(F.col("batch_id").isNull()).alias("behind"))
    [all_of_them] = slowest.collect()
    at = [checkpoint for checkpoint in checkpoints if checkpoint.batch_id == all_of_them["batch_id"]]
    return at[0] if at and not all_of_them["behind"] else checkpoints[-1]


def rebuild_days(workspace: Workspace, window: WindowSpec, first: date, last: date, run_id: str) -> Commit:
    """Recompute the results of the windows that start on the days from `first` to `last` from the log.

    Returns:
        The commit; it counts the rows written as `<window>.rows`.

    Raises:
        LakeError: Nothing has been processed yet.
        SpecError: The spec judges the log in another way than it was judged, an expression of it is wrong, or
            `retention` has removed records that the days need.
        BusyError: Another run is at work.
    """
    if workspace.batches.last_commit() is None or workspace.progress.processed_end() == 0:
        raise LakeError(
            f"Pipeline {workspace.spec.name} has processed nothing, so there is nothing to compute its days from.",
            expected="a live run before",
            remedy="materialize the live assets first (raw_events to batches), or `tidemark run`",
        )
    refuse_two_meanings_of_time(workspace)
    keep_names(workspace)  # a process that died may have left its views at an earlier commit
    create_tables(workspace)  # this is where an aggregate that is new and wrong shows
    take_new_names(workspace, run_id)
    last_commit = workspace.batches.last_commit()
    assert last_commit is not None  # looked at above
    days = between_days(first, last, workspace.spec.partitions.time_zone)
    _refuse_gone(workspace, window, first)
    start, end = (us_of(instant) for _, _, instant in days)
    part = range_of_windows(workspace, window, start, end)
    # The events of a part begin with what was let in: each was judged before the log.
    ensure_in_log(workspace, min([part.first_seq, *admitted(workspace).seqs[:1].tolist()]), part.end_seq)
    batch_input = {"window": window.name, "days": [first.isoformat(), last.isoformat()], **zone_data(workspace)}
    plan = begin(workspace, run_id, "backfill", batch_input, after=last_commit, seqs=(part.first_seq, part.end_seq))
    table = tables.window_table(window.name)
    workspace.tell(f"batch {plan.batch_id}: computing {table} from {first} to {last}, of {part.records:,} records")
    with at_work(workspace, plan):
        workspace.prepare(plan)
        fit_tables(workspace)
        rows = results_of_log(workspace, window, part, only=(start, end)).where(sql_condition(days))
        written = BatchWriter(workspace, plan).replace(table, rows, where=days, grows=True)
        versions = workspace.outputs(plan)
        counts = {f"{window.name}.rows": written.rows}
        committed = workspace.batches.commit(plan, counts, versions, workspace.clock.now())
    keep_names(workspace)
    return committed


def _refuse_gone(workspace: Workspace, window: WindowSpec, first: date) -> None:
    """Refuse days whose results `retention` has removed: some windows of a day would come back, and others not.

    Raises:
        SpecError: The first day is one of them.
    """
    removal = gone_of(workspace).get(tables.window_table(window.name))
    if removal is not None and us_of(begin_of(first, workspace.spec.partitions.time_zone)) < removal.until_us:
        raise SpecError(
            f"Results of {window.name} from before {removal.first_day} were removed, as `retention` says: {first} is "
            "one of these days",
            expected=f"days from {removal.first_day} on",
            remedy=f"to have them again, let `retention.windows` be longer or leave it out, then `tidemark rebuild "
            f"SPEC --window {window.name}`: all days are computed from the log",
        )


def between_days(first: date, last: date, zone: str) -> Filters:
    """Return the condition that a window starts on the days from `first` to `last` of a time zone."""
    start, end = begin_of(first, zone), begin_of(last + timedelta(days=1), zone)
    return [("window_start", ">=", start), ("window_start", "<", end)]


def results_of_log(workspace: Workspace, window: WindowSpec, part: LogRange, *, only: Span) -> DataFrame:
    """Compute the results of a window from a part of the log and the state before it.

    Windows beyond `only` are among the results too, and may lack events. Windows without an event are computed only
    if they are asked for: any time may have many of them.
    """
    chain = (*inputs_of(window, workspace.spec.windows), window)
    waits = waits_up_to(workspace, part.begin.batch_id)
    begin_batch, end_batch = part.begin.batch_id, part.end.batch_id
    items = [item for item in recorded(workspace, *REPLAYED_KINDS) if begin_batch < item["_batch_id"] <= end_batch]
    pieces = pieces_left(items, part.first_seq, 0, part.end_seq, part.records, waits=waits.sources)
    # Days on which nothing came have a part without a record.
    segments = [piece.segment for piece in pieces] or [LogSegment(part.first_seq, part.end_seq, flushes=False)]
    times = None
    if workspace.spec.time.deduplicate_by:
        times = first_times_at(workspace, part.begin, records_between(workspace, part.first_seq, part.end_seq))
    is_cut, results = len(segments) > 1, []
    for outcome in judge_segments(
        workspace,
        segments,
        lambda segment: records_between(workspace, segment.first_seq, segment.end_seq),
        state=with_let_in(
            workspace,
            State(state_at(workspace, part.begin), first_times=times),
            chain,
            read_by(chain, workspace.spec.joins),
        ),
        position=part.begin.position,
        waits=waits,
        windows=chain,
        tell=workspace.tell if is_cut else silent,
    ):
        rows = outcome.results(window, only=only)
        results.append(computed(rows) if is_cut else rows)  # else Spark computes only the rows of the days
    return passing(last_revisions(reduce(DataFrame.unionByName, results), window))


def days_of_zone(first: date, last: date, zone: str) -> tuple[date, date]:
    """Return the first and the last day of a range that a time zone had: Pacific/Apia had no 30 December 2011.

    For such a day Dagster names the next one, whose rows are not of that day.

    Raises:
        SpecError: It had none of them.
    """
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    had = [day for day in days if begin_of(day, zone) < begin_of(day + timedelta(days=1), zone)]
    if not had:
        raise SpecError(
            f"{zone} had no {first}: the clocks went past it, so no window starts on it",
            expected="a day that there was",
            remedy="name the day before or after it",
        )
    return had[0], had[-1]
