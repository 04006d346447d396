"""What must hold of a batch before it is committed, as Great Expectations over the tables it wrote.

Here: which rows each check looks at and which break it. Not here: the adapter (resources/quality.py), the recount's
query (resources/recount.py).
"""

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from assets.control import position_under_spec
from assets.stretch import items_of
from resources import tables
from resources.batches import Plan
from resources.quality import Checked, Expectation, check
from resources.recount import RecountRules, recount
from resources.rows import small_frame
from resources.workspace import Workspace, plan_end
from timeops import columns as c
from timeops.spec import TimeSpec

_CHUNK = 65_536  # release numbers are compared in stretches of so many, so that no core sorts a whole batch

ORDER = Expectation(
    name="release_order",
    holds="_release_seq is dense and follows (_timestamp, _arrival_seq) on every timeline",
    unexpected="SELECT * FROM {batch} WHERE broken",
    remedy="do not use ordered_events of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
BEHIND_WATERMARK = Expectation(
    name="released_behind_watermark",
    holds="every released event is behind the watermark after its batch",
    unexpected="SELECT _arrival_seq, _timestamp FROM {batch} WHERE above_watermark",
    remedy="do not use ordered_events of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)
RECOUNT = Expectation(
    name="late_drop_recount",
    holds="dead letters by reason equal an independent recount of the batch's range of the log",
    unexpected="SELECT * FROM {batch} WHERE written <> recounted",
    remedy="drops are miscounted, so windows may be too: report the numbers; `tidemark accept` takes it as it is",
    blocking=True,
)
CONSERVATION = Expectation(
    name="conservation",
    holds="records = ordered + held + dead letters; per window accepted = in windows + in gaps + filtered + late",
    unexpected="SELECT * FROM {batch} WHERE arrived <> accounted",
    remedy="records were lost or doubled: do not use this batch; report the numbers, then `tidemark run` retries it",
    blocking=True,
)
CONSISTENT_LETTERS = Expectation(
    name="dead_letter_reasons",
    holds="every dead letter has a known reason, a sentence, and the lateness that its reason asks for",
    unexpected="""SELECT _arrival_seq, reason, lateness_us FROM {batch}
        WHERE detail IS NULL
           OR reason NOT IN ('malformed', 'no_arrival_time', 'no_timestamp', 'bad_timestamp', 'bad_expression',
                             'early', 'late_arrival', 'out_of_order', 'window_closed')
           OR (reason IN ('early', 'late_arrival', 'out_of_order', 'window_closed')) <> (lateness_us IS NOT NULL)
           OR lateness_us <= 0
           OR (reason IN ('out_of_order', 'window_closed')) <> (_watermark IS NOT NULL)""",
    remedy="read the rows; the counts by reason may still be right",
)
ONE_FINAL_ROW = Expectation(
    name="one_final_row",
    holds="a window and group has one final row",
    unexpected="SELECT * FROM {batch} WHERE n > 1",
    remedy="do not use the window table of this batch; report the rows, then `tidemark run` retries the batch",
    blocking=True,
)

CHECKS: Mapping[str, tuple[Expectation, ...]] = {
    tables.ORDERED_EVENTS: (ORDER, BEHIND_WATERMARK),
    "window_results": (ONE_FINAL_ROW,),
    tables.DEAD_LETTERS: (RECOUNT, CONSERVATION, CONSISTENT_LETTERS),
}
"""The checks of each asset, in the order in which they run."""


def run_checks(workspace: Workspace, plan: Plan, asset: str) -> list[Checked]:
    """Runs the checks of an asset on what a batch wrote."""
    look: Mapping[str, Callable[[Workspace, Plan], DataFrame]] = {
        ORDER.name: _release_order,
        BEHIND_WATERMARK.name: _above_watermark,
        RECOUNT.name: _recounted,
        CONSERVATION.name: _accounts,
        CONSISTENT_LETTERS.name: _letters,
        ONE_FINAL_ROW.name: _final_rows,
    }
    return [
        done
        for expectation in CHECKS[asset]
        for done in check(look[expectation.name](workspace, plan), [expectation])
    ]


def _written(workspace: Workspace, plan: Plan, table: str) -> DataFrame:
    return workspace.lake.read(table, workspace.lake.version(table)).where(F.col(c.BATCH) == plan.batch_id)


def _release_order(workspace: Workspace, plan: Plan) -> DataFrame:
    """Every release of the batch with the one before it, and whether the order or the numbers break there."""
    rows = _written(workspace, plan, tables.ORDERED_EVENTS).where(F.col(c.RELEASE_SEQ).isNotNull())
    start = workspace.position().released
    return workspace.spark.sql(
        f"""
WITH numbered AS (
  SELECT _timeline, _release_seq AS seq, _timestamp AS at, _arrival_seq AS arrival, _release_seq div {_CHUNK} AS chunk
  FROM {{rows}}
), inside AS (
  SELECT *, lag(struct(seq, at, arrival)) OVER (PARTITION BY _timeline, chunk ORDER BY seq, at, arrival) AS before
  FROM numbered
), edges AS (
  SELECT _timeline, chunk, lag(max(struct(seq, at, arrival))) OVER (PARTITION BY _timeline ORDER BY chunk) AS last
  FROM numbered GROUP BY _timeline, chunk
), joined AS (
  SELECT i.*, coalesce(i.before, e.last) AS previous FROM inside i JOIN edges e USING (_timeline, chunk)
)
SELECT _timeline, seq AS _release_seq, at AS _timestamp, arrival AS _arrival_seq,
  seq <> coalesce(previous.seq + 1, {start}L)
    OR coalesce(struct(previous.at, previous.arrival) >= struct(at, arrival), false) AS broken
FROM joined""",
        rows=rows,
    )


def _above_watermark(workspace: Workspace, plan: Plan) -> DataFrame:
    rows = _written(workspace, plan, tables.ORDERED_EVENTS).where(F.col(c.RELEASE_SEQ).isNotNull())
    after = workspace.position_after(plan.batch_id)
    above = F.lit(False)
    if not after.final:
        above = F.coalesce(c.to_us(c.TIMESTAMP) >= F.lit(after.watermark_us), F.lit(True))
    return rows.withColumn("above_watermark", above)


def _recounted(workspace: Workspace, plan: Plan) -> DataFrame:
    """One row per reason of rules 1 to 3: dead letters written, and counted anew from the log."""
    before = position_under_spec(workspace, workspace.position())
    fresh = recount(items_of(workspace, plan), rules_of(workspace.spec.time), before.watermark_us).collect()[0]
    written = {
        row["reason"]: row["n"]
        for row in _written(workspace, plan, tables.DEAD_LETTERS)
        .where("stage <> 'window'")
        .groupBy("reason")
        .agg(F.count("*").alias("n"))
        .collect()
    }
    reasons = ("early", "late_arrival", "out_of_order")
    rows = [(reason, written.get(reason, 0), fresh[reason]) for reason in reasons]
    untimed = sum(n for reason, n in written.items() if reason not in reasons)
    return small_frame(
        workspace.spark,
        [*rows, ("untimed", untimed, fresh["untimed"])],
        "reason STRING, written BIGINT, recounted BIGINT",
    )


def rules_of(time: TimeSpec) -> RecountRules:
    """The numbers of a spec that the recount needs."""
    return RecountRules(
        timestamp_by=time.timestamp_by,
        time_zone=time.time_zone,
        unit_us=time.unit_us,
        out_of_orderness_us=time.out_of_orderness_us,
        out_of_order=time.out_of_order,
        early_us=time.early.tolerance_us if time.early else None,
        early_policy=time.early.policy if time.early else None,
        late_us=time.late.tolerance_us if time.late else None,
        late_policy=time.late.policy if time.late else None,
    )


def _accounts(workspace: Workspace, plan: Plan) -> DataFrame:
    """One row per account: what came in, and what the tables hold of it."""
    records = plan_end(plan) - plan.first_seq
    letters = _written(workspace, plan, tables.DEAD_LETTERS).groupBy("stage", "window_name").count().collect()
    refused = sum(row["count"] for row in letters if row["stage"] != "window")
    late = {row["window_name"]: row["count"] for row in letters if row["stage"] == "window"}
    counts = workspace.counts_of(plan.batch_id)
    accounts = [("log", items_of(workspace, plan).count(), records)]
    if workspace.spec.outputs.ordered_events:
        accounts += _released_accounts(workspace, plan, refused)
    for window in workspace.spec.windows:
        placed = sum(counts[f"{window.name}.{outcome}"] for outcome in ("in_windows", "in_gap", "filtered"))
        accounts.append((f"window {window.name}", records - refused, placed + late.get(window.name, 0)))
    return small_frame(workspace.spark, accounts, "account STRING, arrived BIGINT, accounted BIGINT")


def _released_accounts(workspace: Workspace, plan: Plan, refused: int) -> list[tuple[str, int, int]]:
    is_new = F.col(c.SEQ) >= plan.first_seq
    ordered = _written(workspace, plan, tables.ORDERED_EVENTS)
    held = workspace.lake.read(tables.HELD_EVENTS, workspace.lake.version(tables.HELD_EVENTS))
    both = ordered.select(c.SEQ).unionByName(held.select(c.SEQ))
    found = both.agg(F.count_if(is_new).alias("new"), F.count_if(~is_new).alias("old")).collect()[0]
    held_before = workspace.read_base(tables.HELD_EVENTS).count()
    records = plan_end(plan) - plan.first_seq
    return [
        ("records of the batch", records, found["new"] + refused),
        ("events held before", held_before, found["old"]),
    ]


def _letters(workspace: Workspace, plan: Plan) -> DataFrame:
    return _written(workspace, plan, tables.DEAD_LETTERS)


def _final_rows(workspace: Workspace, plan: Plan) -> DataFrame:
    """Final rows per window and group, among the windows that the batch wrote."""
    spark = workspace.spark
    frames = [_final_rows_of(workspace, plan, window.name, window.group_columns) for window in workspace.spec.windows]
    counted = small_frame(spark, [], "window_name STRING, window_start TIMESTAMP, group_values STRING, n BIGINT")
    for frame in frames:
        counted = counted.unionByName(frame)
    return counted


def _final_rows_of(workspace: Workspace, plan: Plan, name: str, groups: tuple[str, ...]) -> DataFrame:
    table = tables.window_table(name)
    whole = workspace.lake.read(table, workspace.lake.version(table)).where("_is_final")
    first = whole.where(F.col(c.BATCH) == plan.batch_id).agg(F.min("window_start").alias("first"))
    values = F.to_json(F.struct(*[F.col(f"`{group}`") for group in groups])) if groups else F.lit("{}")
    return (
        whole.crossJoin(F.broadcast(first))
        .where("window_start >= first")
        .groupBy("window_start", values.alias("group_values"))
        .agg(F.count("*").alias("n"))
        .select(F.lit(name).alias("window_name"), "window_start", "group_values", "n")
    )
