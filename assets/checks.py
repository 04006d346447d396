"""The expectations that a batch has to meet before it is committed, measured on the tables it wrote.

Here: the expectations, and what each counts. Not here: Great Expectations (resources/quality/checks.py), the recount
(assets/recount/records.py).

Each asset's checks share their looks at the tables: a Spark query for a check costs a micro-batch more than the rows
that it reads.
"""

from collections import Counter
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.alarms.alerts import alerts_of, count_alert
from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.batch import Batch
from tidemark.assets.joins import OF_JOINS, count_join
from tidemark.assets.log.exclusions import excluded
from tidemark.assets.recount.records import recount_of_batch, recounted
from tidemark.assets.recount.sequences import RELEASE_COLUMNS, are_in_order
from tidemark.assets.recount.window_checks import (
    DENSE_REVISIONS,
    HAVING,
    ONE_FINAL_ROW,
    SUM_OVERFLOW,
    asked_of,
    count_windows,
    some_rows,
)
from tidemark.assets.schemas import RELEASED
from tidemark.assets.state.timelines import one_timeline
from tidemark.resources import tables
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.delta.queries import SortKey, grouped_rows, pieces, python_rows, select
from tidemark.resources.delta.versions import Filters
from tidemark.resources.quality.checks import (
    SAMPLE_ROWS,
    Checked,
    Counted,
    Expectation,
    Measured,
    SampleRows,
    some_of,
    validated,
)
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import from_driver
from tidemark.timeops.dead_letters import FLUSH_HAD_CLOSED
from tidemark.timeops.rules.reasons import Reason, Stage, in_sql
from tidemark.timeops.spec import Spec

_CHUNK = 65_536  # release numbers are compared in segments of so many, so that no core sorts a whole batch

_NEVER_US = 2**63 - 1  # after every instant
_RELEASED = "released rows"
_OUT_OF_ORDER, _ABOVE_WATERMARK = "are out of order or misnumbered", "are not behind the watermark"

ORDER = Expectation(
    name="release_order",
    holds="_release_seq is dense and follows (_timestamp, _arrival_seq) on every timeline",
    remedy="do not use ordered_events of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
BEHIND_WATERMARK = Expectation(
    name="released_behind_watermark",
    holds="every released event is behind the watermark after its batch",
    remedy="do not use ordered_events of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
RECOUNT = Expectation(
    name="late_drop_recount",
    holds="dead letters by reason equal an independent recount of the batch's range of the log",
    remedy="drops are miscounted, so windows may be too: report the numbers; `tidemark accept` takes it as it is",
    blocking=True,
)
CONSERVATION = Expectation(
    name="conservation",
    holds="records = ordered + held + dead letters; per window accepted = in windows + in gaps + filtered + "
    "dead letters of it",
    remedy="records were lost or doubled: do not use this batch; report the numbers, then `tidemark run` retries it",
    blocking=True,
)
CONSISTENT_DEAD_LETTERS = Expectation(
    name="dead_letter_reasons",
    holds="every dead letter has a known reason, a sentence, and the lateness that its reason asks for",
    remedy="read the rows; the counts by reason may still be right",
)

CHECKS: Mapping[str, tuple[Expectation, ...]] = {
    tables.ORDERED_EVENTS: (ORDER, BEHIND_WATERMARK),
    "window_results": (ONE_FINAL_ROW, DENSE_REVISIONS, SUM_OVERFLOW, HAVING),
    tables.DEAD_LETTERS: (RECOUNT, CONSERVATION, CONSISTENT_DEAD_LETTERS),
}
"""The checks of each asset, in the order in which they run."""

_BY_WATERMARK = f"reason IN {in_sql(reason for reason in Reason if reason.by_watermark)}"
_BY_ARRIVAL = f"reason IN {in_sql([Reason.EARLY, Reason.LATE_ARRIVAL])}"
_CONTRADICTS = f"""detail IS NULL
    OR reason NOT IN {in_sql(Reason)}
    OR ({_BY_ARRIVAL} OR {_BY_WATERMARK} AND {{by_events}}) <> (lateness_us IS NOT NULL)
    OR lateness_us <= 0
    OR ({_BY_WATERMARK}) <> (_watermark IS NOT NULL)"""
_BY_FLUSH = f"(reason = '{Reason.WINDOW_CLOSED}' AND coalesce(detail LIKE '%{FLUSH_HAD_CLOSED}', false))"
# The watermark did not decide it: there may be none, and such a dead letter has no lateness.
_INCONSISTENT = f"CASE WHEN {_BY_FLUSH} THEN lateness_us IS NOT NULL ELSE {_CONTRADICTS} END"


def expectations_by_asset(spec: Spec) -> dict[str, tuple[Expectation, ...]]:
    """Return the checks of each asset of a pipeline: the checks whose tables it has, and its alerts."""
    releases = CHECKS[tables.ORDERED_EVENTS] if spec.outputs.ordered_events else ()
    by_asset = {**CHECKS, tables.ORDERED_EVENTS: releases, "window_results": asked_of(spec), **_of_joins(spec)}
    alerts = alerts_of(spec)
    return {asset: (*always, *alerts.get(asset, ())) for asset, always in by_asset.items()}


def checks_of(spec: Spec) -> dict[str, tuple[Expectation, ...]]:
    """Return the checks of each asset of a pipeline that a batch always has: all but its alerts."""
    return {**CHECKS, **_of_joins(spec)}


def _of_joins(spec: Spec) -> dict[str, tuple[Expectation, ...]]:
    return {tables.join_table(join.name): OF_JOINS for join in spec.joins}


def run_checks(batch: Batch, asset: str, lost: BatchLosses) -> list[Checked]:
    """Run the checks of an asset (a key of `checks_of`) on what a batch wrote; `lost` has its losses."""
    checks, always = expectations_by_asset(batch.workspace.spec)[asset], checks_of(batch.workspace.spec)[asset]
    alerts = [count_alert(lost, check) for check in checks if check not in always]
    return validated([*_count_rows(batch, asset), *alerts])


def check_rows(batch: Batch, asset: str) -> list[Checked]:
    """Do the same as `run_checks`, without the checks that alerts ask for."""
    return validated(_count_rows(batch, asset))


def _count_rows(batch: Batch, asset: str) -> list[Counted]:
    spec = batch.workspace.spec
    if not set(checks_of(spec)[asset]).intersection(expectations_by_asset(spec)[asset]):
        return []
    join = next((join for join in spec.joins if tables.join_table(join.name) == asset), None)
    if join is not None:
        return count_join(batch, join)
    if asset == "window_results":
        return count_windows(batch)
    return _count_releases(batch) if asset == tables.ORDERED_EVENTS else _count_dead_letters(batch)


def _count_releases(batch: Batch) -> list[Counted]:
    if _are_released_in_order(batch):
        return [
            Counted(ORDER, [some_of(0, 0, _RELEASED, are=_OUT_OF_ORDER)]),
            Counted(BEHIND_WATERMARK, [some_of(0, 0, _RELEASED, are=_ABOVE_WATERMARK)]),
        ]
    looked, names = _releases(batch), ("broken", "above_watermark")
    [counts] = looked.agg(F.count("*").alias("all"), *[F.count_if(name).alias(name) for name in names]).collect()

    def rows(name: str) -> SampleRows:
        shown = ("_timeline", c.RELEASE_SEQ, c.TIMESTAMP, c.SEQ)
        return some_rows([looked.where(name).orderBy(c.RELEASE_SEQ).select(*shown)])

    order = some_of(counts["all"], counts["broken"], _RELEASED, are=_OUT_OF_ORDER)
    above = some_of(counts["all"], counts["above_watermark"], _RELEASED, are=_ABOVE_WATERMARK)
    return [
        Counted(ORDER, [order], lambda: rows("broken")),
        Counted(BEHIND_WATERMARK, [above], lambda: rows("above_watermark")),
    ]


def _are_released_in_order(batch: Batch) -> bool:
    """Return whether one pass without Spark shows that all is well; otherwise a query finds what is wrong."""
    lake, plan, ordered = batch.workspace.lake, batch.plan, tables.ORDERED_EVENTS
    position, of_batch = batch.workspace.progress.position_after(plan.batch_id), [(c.BATCH, "=", plan.batch_id)]
    if batch.workspace.spec.keeps_timelines:
        table, columns = tables.TIMELINES, [c.TIMELINE, "watermark"]
        pieces_after = pieces(lake, table, lake.version(table), columns, of_batch)
        moved = pa.Table.from_batches(pieces_after, pa.schema([(columns[0], pa.string()), (columns[1], pa.int64())]))
    else:
        moved = one_timeline(position)
    names, limits = moved[c.TIMELINE], pc.fill_null(moved["watermark"], c.MIN_US).to_pylist()
    limits_us = {
        name: _NEVER_US if position.final else us for name, us in zip(names.to_pylist(), limits, strict=True)
    }
    timelines = batch.timelines.filter(pc.is_in(batch.timelines[c.TIMELINE], value_set=names))
    starts = dict(
        zip(timelines[c.TIMELINE].to_pylist(), pc.fill_null(timelines[RELEASED], 0).to_pylist(), strict=True)
    )
    return are_in_order(pieces(lake, ordered, lake.version(ordered), RELEASE_COLUMNS, of_batch), starts, limits_us)


def _releases(batch: Batch) -> DataFrame:
    """Return the releases of the batch: whether each breaks the order, and whether it is above the watermark."""
    workspace, plan = batch.workspace, batch.plan
    rows = batch.written(tables.ORDERED_EVENTS).where(F.col(c.RELEASE_SEQ).isNotNull())
    position = workspace.progress.position_after(plan.batch_id)
    timelines_before = from_driver(workspace.spark, batch.timelines)
    if workspace.spec.keeps_timelines:
        timelines_after = batch.written(tables.TIMELINES)
    else:
        timelines_after = from_driver(workspace.spark, one_timeline(position))
    behind = "true" if position.final else "coalesce(unix_micros(at) < watermark, false)"
    of_line = "PARTITION BY _timeline " if workspace.spec.time.over else ""
    line = "_timeline, " if workspace.spec.time.over else ""  # a key less to sort by, where there is but one
    return workspace.spark.sql(
        f"""
WITH numbered AS (
  SELECT _timeline, _release_seq AS seq, _timestamp AS at, _arrival_seq AS arrival, _release_seq div {_CHUNK} AS chunk
  FROM {{rows}}
), inside AS (
  SELECT *, lag(struct(seq, at, arrival)) OVER (PARTITION BY {line}chunk ORDER BY seq, at, arrival) AS before
  FROM numbered
), edges AS (
  SELECT {line}chunk, lag(max(struct(seq, at, arrival))) OVER ({of_line}ORDER BY chunk) AS last
  FROM numbered GROUP BY {line}chunk
), joined AS (
  SELECT i.*, coalesce(i.before, e.last) AS previous FROM inside i JOIN edges e USING ({line}chunk)
)
SELECT _timeline, seq AS _release_seq, at AS _timestamp, arrival AS _arrival_seq,
  seq <> coalesce(previous.seq + 1, released, 0)
    OR coalesce(struct(previous.at, previous.arrival) >= struct(at, arrival), false) AS broken,
  NOT {behind} AS above_watermark
FROM joined LEFT JOIN {{before}} USING (_timeline) LEFT JOIN {{after}} USING (_timeline)""",
        rows=rows,
        before=timelines_before.select(c.TIMELINE, RELEASED),
        after=timelines_after.select(c.TIMELINE, "watermark"),
    )


def _count_dead_letters(batch: Batch) -> list[Counted]:
    workspace, lake, letters = batch.workspace, batch.workspace.lake, tables.DEAD_LETTERS
    # No tolerance accepts an event that the clock has passed, so such a dead letter has no lateness.
    clock_moves = workspace.spec.time.idle is not None
    wrong = _INCONSISTENT.format(by_events="watermark_set_by IS NOT NULL" if clock_moves else "true")
    of_batch = f"{c.BATCH} = {batch.plan.batch_id}"
    by = ("stage", "window_name", "reason")
    values = {"is_out": "replayed_at IS NULL", "n": "count(*)", "inconsistent": f"count(*) FILTER ({wrong})"}
    counted = grouped_rows(lake, letters, of_batch, by, values)  # what is not out is accepted
    by_reason, of_windows, refused_in_all = Counter[str](), Counter[str](), 0
    for row in counted:
        if row["stage"] == Stage.WINDOW:
            of_windows[row["window_name"]] += row["n"] if row["is_out"] else 0
        elif row["stage"] != Stage.JOIN:  # an event that a join refuses was accepted
            by_reason[row["reason"]] += row["n"]
            refused_in_all += row["n"] if row["is_out"] else 0
    inconsistent = sum(row["inconsistent"] for row in counted)

    def contradictions() -> SampleRows:
        where, order = f"{of_batch} AND ({wrong})", [SortKey(c.SEQ)]
        rows = select(lake, letters, None, where=where, order=order, most=SAMPLE_ROWS).rows
        return python_rows(rows.select([c.SEQ, "reason", "lateness_us", "detail"]))

    consistent = Counted(
        CONSISTENT_DEAD_LETTERS,
        [some_of(sum(row["n"] for row in counted), inconsistent, "dead letters", are="contradict themselves")],
        contradictions,
    )
    if workspace.windows_alone:  # the records were recounted when the pipeline judged them
        refused = sum(workspace.progress.counts_of(batch.plan.batch_id).refused.values())
        return [Counted(CONSERVATION, _window_accounts(batch, refused, of_windows)), consistent]
    fresh, refused = recount_of_batch(batch), refused_in_all
    in_log, records = fresh["records"], _records_of(batch)
    of_log = f"{in_log:,} records in the log; expected {records:,}, as the batch was planned"
    accounts = [Measured("records of the log", records, in_log, of_log)]
    if workspace.spec.outputs.ordered_events:
        accounts += _released_accounts(batch, refused)
    accounts += _window_accounts(batch, refused, of_windows)
    return [Counted(RECOUNT, recounted(by_reason, fresh)), Counted(CONSERVATION, accounts), consistent]


def _window_accounts(batch: Batch, refused: int, of_windows: Mapping[str, int]) -> list[Measured]:
    workspace, records, accounts = batch.workspace, _records_of(batch), list[Measured]()
    counts = workspace.progress.counts_of(batch.plan.batch_id)
    for window in workspace.spec.event_windows:
        placed = sum(counts[f"{window.name}.{outcome}"] for outcome in ("in_windows", "in_gap", "filtered"))
        accounted, accepted = placed + of_windows.get(window.name, 0), records - refused
        sentence = f"{accounted:,} events in windows of `{window.name}`, in gaps, filtered or refused by it"
        sentence += f"; expected {accepted:,}, all that were accepted"
        accounts.append(Measured(f"accepted for {window.name}", accepted, accounted, sentence))
    return accounts


def _records_of(batch: Batch) -> int:
    """Count the records that the batch has to account for: all in its range, without excluded ones."""
    plan = batch.plan
    return records_in(plan) - len(excluded(batch.workspace).between(plan.first_seq, plan_end(plan)))


def _released_accounts(batch: Batch, refused: int) -> list[Measured]:
    """Count released and held events; Delta knows the number of earlier held ones without reading them."""
    plan, held, lake = batch.plan, tables.HELD_EVENTS, batch.workspace.lake
    of_batch: Filters = [(c.BATCH, "=", plan.batch_id)]
    new = old = new_held = 0
    for piece in pieces(lake, tables.ORDERED_EVENTS, lake.version(tables.ORDERED_EVENTS), [c.SEQ], of_batch):
        fresh = pc.sum(pc.greater_equal(piece[c.SEQ], plan.first_seq)).as_py() or 0
        new, old = new + fresh, old + piece.num_rows - fresh
    for piece in pieces(lake, held, lake.version(held), [c.SEQ], [(c.SEQ, ">=", plan.first_seq)]):
        new_held += piece.num_rows
    held_before, held_now = lake.row_count(held, batch.workspace.base_of(held)), lake.row_count(held)
    records, accounted, stayed = _records_of(batch), new + new_held + refused, old + held_now - new_held
    sentence = f"{accounted:,} records ordered, held or refused; expected {records:,}, all of the batch"
    account = Measured("records ordered, held or refused", records, accounted, sentence)
    sentence = (
        f"{stayed:,} of the events that were held before ordered or held; expected {held_before:,}, all of them"
    )
    return [account, Measured("events held before, now ordered or held", held_before, stayed, sentence)]
