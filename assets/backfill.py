"""Day partitions of a window table: the rows of chosen days, computed anew from the arrival log.

Here: reading the whole log up to the last committed batch, and replacing days in one commit. Not here: live batches.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta

from pyspark.sql import DataFrame

from assets.commits import MOST_RECORDS, at_work, batch_column
from assets.control import check_spec, meaning_of_time, recorded_specs, was_reopened
from assets.pieces import pieces_of_log, results_by_pieces
from assets.schemas import judged as judged_from_empty
from assets.stretch import KEPT_RECORDS
from assets.timelines import timelines_before
from resources import tables
from resources.batches import prepare
from resources.filters import Filters, sql_condition
from resources.owner import this_process
from resources.rows import small_frame
from resources.split_count import count_splits
from resources.workspace import Workspace
from timeops import columns as c
from timeops.adjustment import Adjusted, kept_together
from timeops.chained import as_events, with_results
from timeops.epoch import us_of
from timeops.errors import LakeError, SpecError
from timeops.rules import TimeRules
from timeops.spec import Spec, WindowSpec
from timeops.spec_chains import input_of
from timeops.timelines import STATE_SCHEMA
from timeops.watermarks import Way
from timeops.windows import last_revisions, passing, window_results


def rebuild_days(workspace: Workspace, window: WindowSpec, first: date, last: date, run_id: str) -> int:
    """Recomputes the results of the windows that start on the days from `first` to `last` (UTC) from the log.

    Returns:
        Rows written.

    Raises:
        LakeError: Nothing has been processed yet.
        BusyError: Another run is at work.
    """
    done = workspace.batches.last_commit()
    if done is None or workspace.processed_end() == 0:
        raise LakeError(
            f"Pipeline {workspace.spec.name} has processed nothing, so there is nothing to compute its days from.",
            expected="a live run before",
            remedy="materialize the live assets first (raw_events to batches), or `tidemark run`",
        )
    refuse_two_meanings_of_time(workspace)
    refuse_reopened(workspace)
    plan = workspace.batches.begin(
        "backfill",
        this_process(run_id),
        workspace.clock.now(),
        after=done.batch_id,
        first_seq=0,
        end_seq=workspace.processed_end(),
        input={"window": window.name, "days": [first.isoformat(), last.isoformat()]},
        fingerprint=workspace.spec.fingerprint(),
    )
    table = tables.window_table(window.name)
    workspace.tell(f"batch {plan.batch_id}: computing {table} from {first} to {last}")
    with at_work(workspace, plan):
        prepare(workspace.lake, workspace.base())
        days = between_days(first, last)
        rows = results_of_log(workspace, window, first, last).where(sql_condition(days))
        stamped = rows.withColumn(c.BATCH, batch_column(plan))
        expect = workspace.ready_for(table, stamped)
        written = workspace.lake.replace(table, stamped, where=days, attempt=plan.attempt, expect=expect)
        versions = {name: workspace.lake.version(name) for name in workspace.tables}
        counts = {f"{window.name}.rows": written.rows}
        workspace.batches.commit(plan, counts, versions, workspace.clock.now())
    return written.rows


def refuse_two_meanings_of_time(workspace: Workspace) -> None:
    """A log that was judged under more than one meaning of time cannot be recomputed under one.

    What only ingestion goes by, and what windows give of their events, may have changed: the log is as it was read,
    and the past is given what the windows give now.

    Raises:
        SpecError: The spec judges the log in another way than it was judged.
    """
    check_spec(workspace)
    meanings = {meaning_of_time(spec) for spec in recorded_specs(workspace)}
    if meanings - {meaning_of_time(json.loads(workspace.spec.canonical_json()))}:
        raise SpecError(
            f"The spec of {workspace.spec.name} judges events in another way than when its log was processed.",
            expected="the same settings of time for the whole log, so that recomputed days equal those of live runs",
            remedy="take the change back, or process the input under the new spec in another warehouse; recomputing "
            "the past across such a change is not supported yet",
        )


def refuse_reopened(workspace: Workspace) -> None:
    """The days of a log with flushes in it depend on where these stand, which a backfill does not follow.

    Raises:
        LakeError: The log was flushed and reopened.
    """
    if was_reopened(workspace):
        raise LakeError(
            f"The log of {workspace.spec.name} was flushed and reopened, and what a flush closed stays closed.",
            expected="a log without an end of input in its midst",
            remedy="days of a log that was flushed and reopened are not recomputed yet: process the input in another "
            "warehouse",
        )


def between_days(first: date, last: date) -> Filters:
    """Which windows start on the days from `first` to `last` (UTC)."""
    start, end = _midnights(first, last)
    return [("window_start", ">=", start), ("window_start", "<", end)]


def _midnights(first: date, last: date) -> tuple[datetime, datetime]:
    """The instants with which the first day begins and the last one ends."""
    start, end = (datetime.combine(day, time(0), UTC) for day in (first, last + timedelta(days=1)))
    return start, end


def results_of_log(workspace: Workspace, window: WindowSpec, first: date, last: date) -> DataFrame:
    """The results of a window that the processed part of the log gives, from the empty state.

    All of windows that hold events; of those without any, which any time may have many of, the ones of some days.
    """
    start, end = map(us_of, _midnights(first, last))
    pieces = pieces_of_log(workspace)
    if any(piece.tick_us is not None for piece in pieces):
        return results_by_pieces(workspace, window, pieces, (start, end))
    log = workspace.read_base(tables.RAW_EVENTS, filters=[(c.SEQ, "<", workspace.processed_end())])
    position = workspace.position()
    rules = TimeRules.of(workspace.spec)
    splits = count_splits(log, small_frame(workspace.spark, [], STATE_SCHEMA), rules)
    way: Way | None = "in_order" if workspace.processed_end() > MOST_RECORDS else None
    adjusted = judged_from_empty(log, workspace, position, splits=splits, way=way)
    few = workspace.processed_end() <= KEPT_RECORDS
    if few:
        adjusted = kept_together(adjusted, _kept)
    if not position.final:
        adjusted = replace(adjusted, state=timelines_before(workspace, position))
    keep = _kept if few else _as_it_is
    return _results(adjusted, workspace.spec, window, only=(start, end), flushed=position.final, keep=keep)


def _results(
    adjusted: Adjusted,
    spec: Spec,
    window: WindowSpec,
    *,
    only: tuple[int, int] | None,
    flushed: bool,
    keep: Callable[[DataFrame], DataFrame],
) -> DataFrame:
    """Last revisions of a window over a judged log, computed with those of the windows that it goes over."""
    if window.input is not None:
        source = input_of(window, spec.windows)
        results = _results(adjusted, spec, source, only=None, flushed=flushed, keep=keep)
        # Results are few, and what they are made of would be planned again wherever they are read.
        adjusted = with_results(adjusted, as_events(_kept(results), source, spec.windows, spec.time.over))
    nothing = adjusted.accepted.limit(0)
    results = window_results(adjusted, nothing, window, only=only, flushed=flushed, keep=keep)
    return passing(last_revisions(results, window))


def _kept(frame: DataFrame) -> DataFrame:
    return frame.localCheckpoint()


def _as_it_is(frame: DataFrame) -> DataFrame:
    return frame


def days_in(keys: Sequence[str]) -> tuple[date, date]:
    """First and last day of a selection of partitions."""
    days = sorted(date.fromisoformat(key) for key in keys)
    return days[0], days[-1]
