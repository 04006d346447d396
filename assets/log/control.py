"""The control items of the log, `log_control`: what was committed of them, and the waits of aligned sources.

Here: their kinds, adding some, which batch flushed last, which sources wait at a batch, what corrections did, and
whether tables have to be rebuilt for them. Not here: the items that a batch writes (assets/time_adjustment.py), which
source waits (assets/ingestion/waiting_input.py), what a wait means for idleness (timeops/watermark/clock.py), what a
version of a table corrects, and the item (assets/log/corrections.py).

A wait is an item so that idleness can always be distinguished from waiting (F).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.assets.planning import segment_of
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.delta.files import piece_of
from tidemark.resources.delta.versions import ALL_ROWS
from tidemark.resources.workspace import Workspace
from tidemark.timeops.rules.time_rules import TimeRules, Waiter, Waits, waiters_from_json, waiters_to_json
from tidemark.timeops.spec import Spec
from tidemark.timeops.values.utc import us_of

SPEC, END_OF_INPUT, TICK, REOPEN = tables.SPEC_ITEM, "end_of_input", "tick", "reopen"
DATA_LOSS = "data_loss"  # after this record offsets of Kafka are missing: they were gone before they were read
WAIT = "wait"  # from here on exactly the sources and splits in its argument wait
TABLE = "table"  # from here on the join in its argument has this version of the table on its right side
EXCLUDE, INCLUDE = "exclude", "include"  # the records in its argument leave the log, or are in it again
CORRECTION = "correction"  # the records in its argument take the places of others, or leave the log, as upstream
FORGET = "forget"  # the records in its argument leave the log for good, and their payload is blanked
FUTURE_ARRIVAL = "future_arrival"  # the records in its argument arrived ahead of the clock of the machine
ADMIT, REFUSE = "admit", "refuse"  # the records in its argument are let in, whatever rules say, or no longer
RETENTION = "retention"  # rows that had become old are gone, as its argument says
REBUILD = "rebuild"  # the log was judged again from its beginning: the items after this one are all of it


def recorded(workspace: Workspace, *kinds: str) -> list[dict[str, Any]]:
    """Return the committed items of some kinds, in the order of the log, as it was judged last.

    Waits have the names that sources have now; specs are as they were.
    """
    items = workspace.base_rows(tables.LOG_CONTROL)
    anew = pc.max(items.filter(pc.equal(items["kind"], REBUILD))["_control_seq"]).as_py()
    items = items.filter(pc.is_in(items["kind"], value_set=pa.array(kinds)))
    rows = sorted(items.to_pylist(), key=lambda item: int(item["_control_seq"]))
    rows = rows if anew is None else [item for item in rows if item["_control_seq"] > anew]
    for item in rows:
        if item["kind"] == WAIT:
            item["argument"] = json.dumps(waiters_to_json(workspace.named_now(waiters_of(item))))
    return rows


def control_item(
    after_seq: int, kind: str, reason: str | None, *, clock_us: int | None = None, argument: str | None = None
) -> dict[str, Any]:
    """Return an item of the log, after a record; without its number and its batch."""
    return {"_after_seq": after_seq, "kind": kind, "clock": clock_us, "argument": argument, "reason": reason}


def write_items(workspace: Workspace, plan: Plan, items: Sequence[Mapping[str, Any]]) -> None:
    """Add items after the existing ones; they are of the batch unless they name another."""
    n_items, defaults = workspace.base_rows(tables.LOG_CONTROL).num_rows, {"_batch_id": plan.batch_id}
    numbered = [{**defaults, **item, "_control_seq": n_items + number} for number, item in enumerate(items)]
    rows = pa.Table.from_pylist(numbered, schema=tables.LOG_CONTROL_SCHEMA)
    expect = workspace.ready(tables.LOG_CONTROL, plan)
    workspace.lake.append_rows(tables.LOG_CONTROL, rows, expect=expect, attempt=plan.attempt)


def rewrite_items(
    workspace: Workspace,
    plan: Plan,
    items: Sequence[Mapping[str, Any]],
    change: Callable[[Mapping[str, Any]], Mapping[str, Any]],
) -> None:
    """Add items as `write_items` does, and write all of them changed, the existing ones too, in the same commit."""
    existing = workspace.base_rows(tables.LOG_CONTROL).to_pylist()
    numbered = [
        {"_batch_id": plan.batch_id, **item, "_control_seq": len(existing) + number}
        for number, item in enumerate(items)
    ]
    rows = pa.Table.from_pylist([change(item) for item in (*existing, *numbered)], schema=tables.LOG_CONTROL_SCHEMA)
    expect = workspace.ready(tables.LOG_CONTROL, plan)
    workspace.lake.replace_pieces(
        tables.LOG_CONTROL, [piece_of(rows)], where=ALL_ROWS, attempt=plan.attempt, expect=expect
    )


def tables_at_end(workspace: Workspace) -> Mapping[str, str]:
    """Return the versions that tables on the right side of joins have after the last batch, by the join."""
    return dict(map(table_of, recorded(workspace, TABLE)))


def table_of(item: Mapping[str, Any]) -> tuple[str, str]:
    """Return the join of an item, and the version of its table from there on."""
    argument = json.loads(item["argument"])
    return argument["join"], argument["version"]


def last_reopened_flush(workspace: Workspace) -> int | None:
    """Return the batch of the last flush after which the log was reopened; None if it never was."""
    flushes = [item["_batch_id"] for item in recorded(workspace, END_OF_INPUT)]
    reopened = flushes[:-1] if workspace.progress.position().final else flushes
    return reopened[-1] if reopened else None


def waits_before(workspace: Workspace) -> Waits:
    """Return the waits of sources after the last batch; none unless a rule asks for silences of single timelines."""
    last = workspace.batches.last_commit() if follows_waits(workspace.spec) and workspace.exists else None
    return Waits() if last is None else waits_up_to(workspace, last.batch_id)


def waits_up_to(workspace: Workspace, batch_id: int) -> Waits:
    """Return the waits of sources after a committed batch."""
    waits = Waits()
    for item in recorded(workspace, WAIT) if follows_waits(workspace.spec) else []:
        if item["_batch_id"] <= batch_id:
            waits = waits.from_here(us_of(item["clock"]), waiters_of(item))
    return waits


def waiters_of(item: Mapping[str, Any]) -> frozenset[Waiter]:
    """Return the sources and splits that wait from an item of the log on."""
    return waiters_from_json(json.loads(item["argument"]))


def waits_of(workspace: Workspace, plan: Plan) -> Waits:
    """Return the waits of sources while a batch's segment of the log is judged."""
    if not follows_waits(workspace.spec):
        return Waits()
    return waits_before(workspace).from_here(workspace.progress.position().clock_us, segment_of(plan).waits)


def follows_waits(spec: Spec) -> bool:
    """Return whether waits of the spec's sources have any effect on its watermarks."""
    rules = TimeRules.of(spec)
    return spec.is_aligned and (rules.excludes_idle_splits or rules.closes_windows)


@dataclass(frozen=True)
class Due:
    """Corrections of records that batches had processed, from which nothing has been recomputed yet.

    Attributes:
        sentences: One for each.
        moves_clock: One of them took away a record that had moved the clock of the log.
    """

    sentences: tuple[str, ...] = ()
    moves_clock: bool = False


def due(workspace: Workspace) -> Due:
    """Return the corrections for which tables have to be rebuilt."""
    if not workspace.exists or not workspace.lake.exists(tables.LOG_CONTROL):
        return Due()
    rebuilt = workspace.batches.last_rebuild()
    last_rebuilt = -1 if rebuilt is None else rebuilt.batch_id
    items = [item for item in recorded(workspace, CORRECTION) if item["_batch_id"] > last_rebuilt]
    corrections = [(item["reason"], json.loads(item["argument"])) for item in items]
    left = [(reason, argument) for reason, argument in corrections if argument["judged"]]
    return Due(tuple(reason for reason, _ in left), any(argument["moved_clock"] for _, argument in left))


def corrections_after(workspace: Workspace, batch_id: int) -> list[str]:
    """Return what ingestions after a batch have corrected, a sentence for each correction."""
    if not workspace.lake.exists(tables.LOG_CONTROL):
        return []
    return [item["reason"] for item in recorded(workspace, CORRECTION) if item["_batch_id"] > batch_id]
