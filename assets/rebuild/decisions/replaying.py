"""Dead letters that an operator lets in, or refuses again: the decision, and what the switch writes.

Here: which letters can be let in, and the rows of tables that it touches. Not here: what it means for a record
(assets/log/admissions.py), which results it changes (assets/rebuild/differences.py), judging the log
(assets/rebuild/shadow.py), the commit (assets/rebuild/switch.py).

Windows are computed again from the log, as in any rebuild of windows. But their tables get only the rows that differ:
a window that no record came into keeps its row, its revision and its batch.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.assets.batch import BatchWriter
from tidemark.assets.log.admissions import NOT_YET, REPLAYED_AT, admitted, events_let_in
from tidemark.assets.log.control import ADMIT, REFUSE, control_item
from tidemark.assets.log.exclusions import Numbers, ranges_of, records_of
from tidemark.assets.log.retention import before_seq_of, ensure_whole_log
from tidemark.assets.log.spec_changes import renamed
from tidemark.assets.rebuild.differences import NEW, OLD, differing
from tidemark.assets.rebuild.plan import RebuildPlan, ensure_can_begin, plan_to_spec
from tidemark.assets.rebuild.shadow import Shadow
from tidemark.assets.rebuild.work import work_of_rebuild
from tidemark.assets.schemas import ordered_columns, payload_of
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.delta.queries import rows_where
from tidemark.resources.delta.versions import Filters, sql_condition
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.computing.materialize import computed
from tidemark.timeops.dead_letters import FLUSH_HAD_CLOSED
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import did_you_mean
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.narrow import to_join
from tidemark.timeops.rules.reasons import UNTIMED, Reason, Stage
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.spec.scope import Scope
from tidemark.timeops.values.utc import instant_of

MOST_DECIDED = 1_000_000
"""Records that one decision may name."""
MOST_FIXES = 1_000
"""Records that one decision may correct: their values are in `log_control`."""
_FEW_STARTS = 500  # of windows, that a condition may name
_OPEN_END = 2**62  # the place of a control item until the switch assigns one: input may come until then
_NO_TIME = {*UNTIMED}


@dataclass(frozen=True)
class ReplayPlan:
    """A decision on dead letters, before it is carried out.

    Attributes:
        rebuild: What is carried out: its items are the decision. Of no scope where there is nothing to do.
        letters: The dead letters that are let in, or refused again, by reason.
        records: The numbers of their records, in order.
        already: How many that match the condition are as it is wanted.
        undo: They are refused again.
    """

    rebuild: RebuildPlan
    letters: Mapping[str, int]
    records: Numbers = field(repr=False)
    already: int
    undo: bool


def plan_replay(
    workspace: Workspace,
    reason: str,
    where: str,
    *,
    undo: bool = False,
    fixes: Sequence[Mapping[str, Any]] = (),
) -> ReplayPlan:
    """Plan to let records in that are dead letters, or to refuse them again.

    Args:
        workspace: The pipeline.
        reason: Why.
        where: A condition in SQL over `dead_letters`.
        undo: Refuse again what was let in.
        fixes: Records as they should have been: `_arrival_seq`, and the values of the payload by column.

    Raises:
        SpecError: No dead letter meets the condition, one of them cannot be let in, the stored results are not
            of this spec, or the log has lost its beginning.
        LakeError: The log or a table is lost or damaged, or nothing of it was processed.
    """
    for error in ensure_can_begin(workspace, Scope.ALL).values():
        raise error
    ensure_whole_log(workspace, "to let records in, or refuse them again,")
    refuse_another_past(workspace, "so that only windows with a record that is let in change")
    letters = _letters_where(workspace, where)
    if not letters.num_rows:
        kept_from = before_seq_of(workspace, tables.DEAD_LETTERS)
        removal = f"; `retention` has removed the ones of records before {kept_from:,}" if kept_from else ""
        raise SpecError(
            f"No dead letter of {workspace.spec.name} meets the condition {where!r}{removal}",
            expected="some that do",
            remedy="look at them with `tidemark show SPEC dead_letters --where …`",
        )
    is_in = pc.is_valid(letters[REPLAYED_AT])
    open_ones = letters.filter(is_in if undo else pc.invert(is_in))
    by_hand = _fixes(workspace, fixes, open_ones, where)
    if not undo:
        fixed = pa.array([*by_hand], pa.int64())
        _refuse_unfit(workspace, open_ones.filter(pc.invert(pc.is_in(open_ones[c.SEQ], fixed))))
    records = np.unique(open_ones[c.SEQ].to_numpy())
    if len(records) > MOST_DECIDED:
        raise SpecError(
            f"{len(records):,} records are too many for one decision", expected=f"at most {MOST_DECIDED:,}"
        )
    scope = _scope_of(workspace, open_ones, undo=undo) if len(records) else Scope.NOTHING
    decided = {"records": ranges_of(records), **({"with": by_hand} if by_hand else {})}
    argument = json.dumps(decided, separators=(",", ":"))
    item = control_item(_OPEN_END, REFUSE if undo else ADMIT, reason, argument=argument)
    _refuse_wrong_fixes(workspace, item, by_hand)
    plan = RebuildPlan(
        scope,
        _tables_of(workspace) if scope else (),
        work_of_rebuild(workspace),
        reason=reason,
        items=(item,) if scope else (),
    )
    by_reason = Counter(open_ones["reason"].to_pylist())
    return ReplayPlan(plan, dict(sorted(by_reason.items())), records, letters.num_rows - open_ones.num_rows, undo)


def refuse_another_past(workspace: Workspace, so_that: str) -> None:
    """Refuse a decision on records where the spec asks for another past than the tables have.

    Raises:
        SpecError: It does.
    """
    if new := {**renamed(workspace), **renamed(workspace, "sources")}:
        raise SpecError(
            f"The spec of {workspace.spec.name} calls {', '.join(new.values())} otherwise now",
            expected="names that the tables have",
            remedy="let a run take the new names first: `tidemark run SPEC`",
        )
    plan = plan_to_spec(workspace)
    if plan.scope:
        raise SpecError(
            f"The spec of {workspace.spec.name} asks for the past of {plan.scope}, which the tables do not have",
            expected=f"tables that the spec has made, {so_that}",
            remedy="make the past as the spec has it first: `tidemark rebuild SPEC`; `tidemark plan SPEC` shows it",
        )


def _letters_where(workspace: Workspace, where: str) -> pa.Table:
    columns = [c.SEQ, "stage", "reason", "window_name", "detail", REPLAYED_AT]
    version = workspace.base_of(tables.DEAD_LETTERS)
    return rows_where(workspace.lake, tables.DEAD_LETTERS, version, where, columns)


def _fixes(
    workspace: Workspace, fixes: Sequence[Mapping[str, Any]], letters: pa.Table, where: str
) -> dict[int, dict[str, Any]]:
    """Return the values of corrected records by their number; refuse what does not name a letter that matches."""
    if len(fixes) > MOST_FIXES:
        raise SpecError(
            f"{len(fixes):,} corrected records are too many for one decision",
            expected=f"at most {MOST_FIXES:,}",
            remedy="land them again, corrected, where the source reads",
        )
    by_seq = dict[int, dict[str, Any]]()
    if not fixes:
        return by_seq  # without Spark, which the columns ask for
    names, seqs = payload_of(workspace).names, {*letters[c.SEQ].to_pylist()}
    for fix in fixes:
        seq, values = fix.get(c.SEQ), {name: value for name, value in fix.items() if name != c.SEQ}
        if not isinstance(seq, int) or isinstance(seq, bool) or seq in by_seq:
            fault = "twice" if seq in by_seq else f"with the `{c.SEQ}` {seq!r}"
            raise SpecError(f"A corrected record is there {fault}", expected=f"each with an `{c.SEQ}` of its own")
        if seq not in seqs:
            raise SpecError(
                f"The corrected record {seq} is not among the dead letters that meet the condition {where!r}",
                expected="a dead letter that matches and was not let in yet",
            )
        if unknown := [name for name in values if name not in names]:
            near = did_you_mean(unknown[0], names)
            raise SpecError(
                f"The corrected record {seq} has `{unknown[0]}`", expected=f"some of {', '.join(names)}", remedy=near
            )
        by_seq[seq] = values
    return by_seq


def _refuse_wrong_fixes(workspace: Workspace, item: Mapping[str, Any], fixes: Mapping[int, Any]) -> None:
    """Refuse corrected records whose values do not fit the schema, or that have no time."""
    if not fixes:
        return
    seqs = np.sort(np.array([*fixes], np.int64))
    events = events_let_in(replace(workspace, decided=(item,)), seqs)
    have_time = set() if events is None else {row[c.SEQ] for row in events.select(c.SEQ).collect()}
    if wrong := [seq for seq in seqs.tolist() if seq not in have_time]:
        raise SpecError(
            f"The corrected record {wrong[0]} does not fit the schema, or has no time: {json.dumps(fixes[wrong[0]])}",
            expected="values of the types of `schema`, with what `timestamp_by` asks for",
        )


def _refuse_unfit(workspace: Workspace, letters: pa.Table) -> None:
    """Refuse to let in what has no time, and what a flush or a failing aggregate keeps out."""
    reasons = Counter(letters["reason"].to_pylist())
    without_time = {reason: n for reason, n in reasons.items() if reason in _NO_TIME}
    if without_time:
        counts = ", ".join(f"{n:,} {reason}" for reason, n in sorted(without_time.items()))
        names = ", ".join(f"'{reason}'" for reason in sorted(without_time))
        raise SpecError(
            f"Among the dead letters that match are records that have no time or cannot be computed: {counts}",
            expected="letters that a rule of time, a closed window or a closed join has refused: early, "
            "late_arrival, out_of_order, duplicate, window_closed, join_closed",
            remedy=f"leave them out: `AND reason NOT IN ({names})`; or correct them: `--with FILE`",
        )
    by_flush = pc.ends_with(pc.fill_null(letters["detail"], ""), FLUSH_HAD_CLOSED)
    closed = letters.filter(pc.and_(pc.equal(letters["reason"], str(Reason.WINDOW_CLOSED)), by_flush))
    if closed.num_rows:
        raise SpecError(
            f"A flush had closed the windows of {closed.num_rows:,} dead letters, first of record {closed[c.SEQ][0]}",
            expected="letters of windows that the watermark has closed: what a flush closes stays closed",
            remedy=f"leave them out: `AND detail NOT LIKE '%{FLUSH_HAD_CLOSED}'`",
        )
    seqs = pc.unique(letters[c.SEQ])
    version = workspace.base_of(tables.DEAD_LETTERS)
    failing = f"stage = '{Stage.WINDOW}' AND reason = '{Reason.BAD_EXPRESSION}' AND {c.SEQ} IS NOT NULL"
    rows = rows_where(workspace.lake, tables.DEAD_LETTERS, version, failing, [c.SEQ, "window_name"])
    both = rows.filter(pc.is_in(rows[c.SEQ], seqs))
    if both.num_rows:
        raise SpecError(
            f"An aggregate of {both['window_name'][0]} fails on record {both[c.SEQ][0]}",
            expected="records that all aggregates take",
            remedy=f"leave it out: `AND {c.SEQ} <> {both[c.SEQ][0]}`",
        )


def _scope_of(workspace: Workspace, letters: pa.Table, *, undo: bool) -> Scope:
    """Return what is computed again: the windows, or all tables where they alone do not show what was before."""
    windows = tuple(window.name for window in workspace.spec.windows)
    had_passed = undo and bool(pc.any(pc.equal(letters["stage"], str(Stage.WINDOW))).as_py())
    judges = workspace.spec.closes_by_silence  # windows say how records are judged
    of_all = judges or had_passed or bool(workspace.spec.joins)  # a join is made again with all tables
    return Scope.ALL if not windows or of_all else Scope(windows)


def _tables_of(workspace: Workspace) -> tuple[str, ...]:
    ordered = [tables.ORDERED_EVENTS] if workspace.spec.outputs.ordered_events else []
    return (*ordered, tables.DEAD_LETTERS, *workspace.result_tables)


def decides_on_letters(plan: RebuildPlan) -> bool:
    """Return whether a rebuild carries out a decision on dead letters."""
    return any(item["kind"] in (ADMIT, REFUSE) for item in plan.items)


@dataclass(frozen=True)
class Revised:
    """The rows that the switch writes to the table of a window, and which rows they replace."""

    rows: DataFrame
    where: Filters


def revised_rows(shadow: Shadow, plan: Plan, window: WindowSpec) -> Revised | None:
    """Return the rows of a window's table that differ from what was made again, as new revisions; None for none.

    The revision of a result that was final and is final again is one more than before. Where revisions follow from
    the log (`history`), they are as the log has them.
    """
    workspace, table = shadow.workspace, tables.window_table(window.name)
    old, new = workspace.read_base(table), shadow.tables.read_base(table)
    changed = computed(differing(old, new, window.key_columns))
    if changed.isEmpty():
        return None
    again = f"{OLD}._is_final AND {NEW}._is_final" if not window.history else "false"
    revision = f"IF({again}, greatest({OLD}._revision + 1, {NEW}._revision), {NEW}._revision)"
    columns = [name for name in new.columns if name not in ("_revision", c.BATCH)]
    fresh = changed.where(f"{NEW} IS NOT NULL").selectExpr(
        *[f"{NEW}.{quoted(name)} AS {quoted(name)}" for name in columns],
        f"CAST({revision} AS INT) AS _revision",
        f"CAST({plan.batch_id} AS BIGINT) AS {c.BATCH}",
    )
    where = _of_starts(changed)
    near = old.where(sql_condition(where)) if where else old
    same = c.same_in("kept", "changed", window.key_columns)
    stays = near.alias("kept").join(changed.alias("changed"), same, "left_anti")
    return Revised(stays.unionByName(fresh, allowMissingColumns=True), where)


def _of_starts(changed: DataFrame) -> Filters:
    """Return filters for the rows of the windows that begin when changed ones do; none where they are too many."""
    at = changed.select(c.to_us("window_start").alias("us")).distinct().limit(_FEW_STARTS + 1).collect()
    starts_us = sorted(row["us"] for row in at)
    if len(starts_us) > _FEW_STARTS or starts_us[0] < c.MIN_US or starts_us[-1] > c.MAX_US:
        return ()
    return [("window_start", "in", [instant_of(us) for us in starts_us])]


def letters_after(shadow: Shadow, now: datetime) -> DataFrame:
    """Return all dead letters after a decision: of windows as they were made again, the others as they were.

    `replayed_at` of a letter whose record was let in by it is the instant of the commit.
    """
    workspace, names = shadow.workspace, [window.name for window in shadow.chosen]
    old = workspace.read_base(tables.DEAD_LETTERS)
    is_made_again = (F.col("stage") == Stage.WINDOW) & F.coalesce(F.col("window_name").isin(names), F.lit(False))
    unmade = _decided(shadow, old.where(~is_made_again), now)
    return unmade.unionByName(dated(shadow.tables.read_base(tables.DEAD_LETTERS), now), allowMissingColumns=True)


def _decided(shadow: Shadow, letters: DataFrame, now: datetime) -> DataFrame:
    for item in shadow.plan.items:
        seqs = records_of(item)
        decided = pa.table({c.SEQ: seqs, "__tm_is_decided": np.ones(len(seqs), bool)})
        joined = letters.join(to_join(shadow.workspace.spark, decided), c.SEQ, "left")
        at = F.lit(now) if item["kind"] == ADMIT else F.lit(None).cast("timestamp")
        letters = joined.withColumn(
            REPLAYED_AT, F.when(F.col("__tm_is_decided"), at).otherwise(F.col(REPLAYED_AT))
        ).drop("__tm_is_decided")
    return letters


def dated(letters: DataFrame, now: datetime) -> DataFrame:
    """Return dead letters with the instant of the commit where a decision had none yet."""
    is_open = F.col(REPLAYED_AT) == F.lit(instant_of(NOT_YET))
    return letters.withColumn(REPLAYED_AT, F.when(is_open, F.lit(now)).otherwise(F.col(REPLAYED_AT)))


def write_events(shadow: Shadow, plan: Plan) -> None:
    """Add the records that are let in to `ordered_events`, outside the sequence, or take them out."""
    workspace, writer = shadow.workspace, BatchWriter(shadow.workspace, plan)
    if not workspace.spec.outputs.ordered_events:
        return
    touched = np.unique(np.concatenate([records_of(item) for item in shadow.plan.items]))
    span: Filters = [(c.SEQ, ">=", int(touched[0])), (c.SEQ, "<=", int(touched[-1]))]
    chosen = to_join(workspace.spark, pa.table({c.SEQ: touched}))
    events = workspace.read_base(tables.ORDERED_EVENTS, filters=span)
    is_there = not events.join(chosen, c.SEQ, "left_semi").isEmpty()
    columns = ordered_columns(payload_of(workspace))
    let_in = events_let_in(shadow.tables) if len(admitted(shadow.tables).seqs) else None
    fresh = None
    if let_in is not None:
        fresh = let_in.join(chosen, c.SEQ, "left_semi")
        fresh = fresh.withColumns(
            {c.RELEASE_SEQ: F.lit(None).cast("bigint"), c.WATERMARK: F.lit(None).cast("timestamp")}
        )
        fresh = fresh.select(*map(quoted, columns))
    if not is_there:
        if fresh is not None:
            writer.append(tables.ORDERED_EVENTS, fresh)
        return
    stays = events.join(chosen, c.SEQ, "left_anti")
    stamped = None if fresh is None else fresh.withColumn(c.BATCH, writer.stamp)
    rows = stays if stamped is None else stays.unionByName(stamped)
    writer.replace(tables.ORDERED_EVENTS, rows, where=span)
