"""Day partitions of a window table: the rows of chosen days, computed anew from the arrival log.

Here: judging the part of the log that they are made of, and replacing days in one commit. Not here: which part that
is (log_range.py), live batches.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, timedelta

from pyspark.sql import DataFrame

from tidemark.assets.backfill.log_range import LogRange, cuts_of, range_of_windows, records_of
from tidemark.assets.backfill.pieces import results_by_pieces
from tidemark.assets.batch.batch import KEPT_RECORDS
from tidemark.assets.batch.control import check_spec, check_spec_file, meaning_of_time, recorded_specs
from tidemark.assets.batch.planning import MOST_RECORDS, at_work
from tidemark.assets.batch.writing import BatchWriter
from tidemark.assets.schemas import create_tables
from tidemark.assets.state.checkpoints import first_times_at, state_at, waits_at
from tidemark.assets.state.timelines import log_clock
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, this_process
from tidemark.resources.lake.filters import Filters, sql_condition
from tidemark.resources.spark.frames import count_splits
from tidemark.resources.workspace import Workspace
from tidemark.timeops.engine import State, advance
from tidemark.timeops.errors import LakeError, SpecError
from tidemark.timeops.materialize import as_it_is, computed
from tidemark.timeops.rules import TimeRules
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.utc import begin_of, us_of
from tidemark.timeops.windows.gap_filling import Span
from tidemark.timeops.windows.results import last_revisions, passing


def rebuild_days(workspace: Workspace, window: WindowSpec, first: date, last: date, run_id: str) -> Commit:
    """Recomputes the results of the windows that start on the days from `first` to `last` from the log.

    Returns:
        The commit; it counts the rows written as `<window>.rows`.

    Raises:
        LakeError: Nothing has been processed yet.
        SpecError: The spec judges the log in another way than it was judged, or an expression of it is wrong.
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
    create_tables(workspace)  # none is missing: this is where an aggregate that is new and wrong shows
    days = between_days(first, last, workspace.spec.partitions.time_zone)
    start, end = (us_of(instant) for _, _, instant in days)
    part = range_of_windows(workspace, window, start, end)
    plan = workspace.batches.begin(
        "backfill",
        this_process(run_id),
        workspace.clock.now(),
        after=done.batch_id,
        first_seq=part.first_seq,
        end_seq=part.end_seq,
        input={"window": window.name, "days": [first.isoformat(), last.isoformat()]},
        fingerprint=workspace.spec.fingerprint(),
    )
    table = tables.window_table(window.name)
    workspace.tell(f"batch {plan.batch_id}: computing {table} from {first} to {last}, of {part.records:,} records")
    with at_work(workspace, plan):
        workspace.prepare(plan)
        rows = results_of_log(workspace, window, part, only=(start, end)).where(sql_condition(days))
        written = BatchWriter(workspace, plan).replace(table, rows, where=days, grows=True, are_few=False)
        versions = workspace.outputs(plan)
        counts = {f"{window.name}.rows": written.rows}
        committed = workspace.batches.commit(plan, counts, versions, workspace.clock.now())
    return committed  # noqa: RET504 - inside the block it would be no return for a type checker


def refuse_two_meanings_of_time(workspace: Workspace) -> None:
    """A log that was judged under more than one meaning of time cannot be recomputed under one.

    What only ingestion goes by, and what windows give of their events, may have changed: the log is as it was read,
    and the past is given what the windows give now.

    Raises:
        SpecError: The spec judges the log in another way than it was judged.
    """
    check_spec_file(workspace)
    check_spec(workspace)
    meanings = {meaning_of_time(spec) for spec in recorded_specs(workspace)}
    if meanings - {meaning_of_time(json.loads(workspace.spec.canonical_json()))}:
        raise SpecError(
            f"The spec of {workspace.spec.name} judges events in another way than when its log was processed.",
            expected="the same settings of time for the whole log, so that recomputed days equal those of live runs",
            remedy="take the change back, or process the input under the new spec in another warehouse; recomputing "
            "the past across such a change is not supported yet",
        )


def between_days(first: date, last: date, zone: str) -> Filters:
    """Which windows start on the days from `first` to `last` of a time zone."""
    start, end = begin_of(first, zone), begin_of(last + timedelta(days=1), zone)
    return [("window_start", ">=", start), ("window_start", "<", end)]


def results_of_log(workspace: Workspace, window: WindowSpec, part: LogRange, *, only: Span) -> DataFrame:
    """The results of a window that a part of the log gives, from the state before it.

    Args:
        workspace: The pipeline.
        window: The window.
        part: The part; `log_range.range_of_windows` tells which holds all that some windows are made of.
        only: Which these are. Others are among the results too, and may lack events; but of those that hold no event,
            which any time may have many of, only these.
    """
    if cuts := cuts_of(workspace, part):
        return results_by_pieces(workspace, window, part, cuts, only)
    log, state = records_of(workspace, part), state_at(workspace, part.begin)
    rules = replace(TimeRules.of(workspace.spec), waits=waits_at(workspace, part.begin))
    times = first_times_at(workspace, part.begin, log) if rules.time.deduplicate_by else None
    flushed, few = part.end.position.final, part.records <= KEPT_RECORDS
    outcome = advance(
        log,
        State(state, first_times=times),
        rules,
        log_clock(workspace, part.end.position, part.begin.position),
        flush=flushed,
        splits=count_splits(log, state, rules),
        way="in_order" if part.records > MOST_RECORDS else None,
        materialize=computed,
        is_small=few,
    )
    if not flushed:
        outcome = outcome.with_timelines(state_at(workspace, part.end))
    keep = computed if few or window.revises else as_it_is  # as live runs do: they ask for one frame many times
    return passing(last_revisions(outcome.results(window, only=only, materialize=keep), window))


def days_in(keys: Sequence[str]) -> tuple[date, date]:
    """First and last day of a selection of partitions."""
    days = sorted(date.fromisoformat(key) for key in keys)
    return days[0], days[-1]
