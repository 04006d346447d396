"""Control items of the log: the spec as it is from a place on, ticks, waits, the end of input, reopening after it.

Here: the rows of `log_control`, and the specs that they hold. Not here: which changes of a spec are taken
(spec_changes.py), their effect on event time (timeops/).
"""

import json
from typing import Any

import pyarrow as pa

from tidemark.assets.batch.control_items import END_OF_INPUT, REOPEN, SPEC, TICK, recorded
from tidemark.assets.batch.pauses import wait_items
from tidemark.assets.batch.planning import flushes, reopens
from tidemark.assets.spec_changes import CHANGEABLE_IN_WINDOW, OF_INGESTION, refuse
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.spec_origin import other_file
from tidemark.resources.workspace import Position, Workspace, plan_end, tick_of
from tidemark.timeops.errors import SpecError
from tidemark.timeops.utc import instant_of


def recorded_specs(workspace: Workspace) -> list[dict[str, Any]]:
    """The specs that the log was processed with, in their order."""
    return [json.loads(row["argument"]) for row in recorded(workspace, SPEC)]


def was_reopened(workspace: Workspace, plan: Plan | None = None) -> bool:
    """Whether the log was flushed and reopened, up to the last commit or in front of a batch."""
    if plan is not None and reopens(plan) is not None:
        return True
    return workspace.exists and bool(recorded(workspace, REOPEN))


def last_flush(workspace: Workspace) -> int | None:
    """The batch that flushed last; None before the first."""
    ends = recorded(workspace, END_OF_INPUT)
    return ends[-1]["_batch_id"] if ends else None


def meaning_of_time(spec: dict[str, Any]) -> str:
    """What of a spec says how the records of a given log are judged, as JSON."""
    judging = {name: part for name, part in spec.items() if name not in ("sources", "windows", "partitions")}
    sources = [
        {name: value for name, value in source.items() if name not in OF_INGESTION} for source in spec["sources"]
    ]
    windows = [
        {name: value for name, value in window.items() if name not in CHANGEABLE_IN_WINDOW}
        for window in spec.get("windows", [])
    ]
    return json.dumps(judging | {"sources": sources, "windows": windows}, sort_keys=True)


def check_spec(workspace: Workspace) -> bool:
    """Tells whether the spec differs from the one that the log was last processed with; needs no Spark.

    Raises:
        SpecError: It differs in a way that a pipeline with tables cannot take.
    """
    recorded, now = recorded_specs(workspace), json.loads(workspace.spec.canonical_json())
    if not recorded or recorded[-1] == now:
        return not recorded
    refuse(recorded[-1], workspace.file, workspace.lake.root)
    return True


def check_spec_file(workspace: Workspace) -> None:
    """Checks that the pipeline is run by one spec file: two would take turns, each with its own input and windows.

    Raises:
        SpecError: Another file of its name has read the last input and is still there.
    """
    other = other_file(workspace)
    if other is not None:
        raise SpecError(
            f"{workspace.file.path} and {other} are both called {workspace.spec.name}, and the tables in "
            f"{workspace.lake.root} are those of the second",
            expected="one spec file for the tables of a pipeline",
            remedy="give this one a `name` of its own, or another warehouse; if it replaces the other, move that one "
            "away",
        )


def ensure_taken(workspace: Workspace) -> None:
    """Sees that a pipeline that has tables takes the spec, before there is anything to do for it; needs no Spark.

    Raises:
        SpecError: As of `check_spec_file` and `check_spec`.
    """
    check_spec_file(workspace)
    if workspace.exists and workspace.lake.exists(tables.LOG_CONTROL) and not workspace.is_prepared:
        check_spec(workspace)


def control_rows(workspace: Workspace, plan: Plan, after: Position) -> pa.Table:
    """The control items that stand in a batch's segment of the log."""
    version = workspace.base_of(tables.LOG_CONTROL)
    number = workspace.lake.rows(tables.LOG_CONTROL, version, columns=["_control_seq"]).num_rows
    rows: list[dict[str, Any]] = []
    if (why := reopens(plan)) is not None:
        rows.append({"_after_seq": plan.first_seq - 1, "kind": REOPEN, "reason": why})
    if check_spec(workspace):
        rows.append(
            {
                "_after_seq": plan.first_seq - 1,
                "kind": SPEC,
                "argument": workspace.spec.canonical_json(),
                "reason": "the pipeline's first batch" if plan.first_seq == 0 else "the spec file changed",
            }
        )
    rows.extend(wait_items(workspace, plan))
    tick_us = tick_of(plan)
    if tick_us is not None:
        rows.append(
            {"_after_seq": plan_end(plan) - 1, "kind": TICK, "clock": instant_of(tick_us), "reason": "live run"}
        )
    if flushes(plan):
        rows.append(
            {
                "_after_seq": plan_end(plan) - 1,
                "kind": END_OF_INPUT,
                "clock": after.clock_us,
                "argument": json.dumps("flush"),
                "reason": "end_of_input: flush",
            }
        )
    numbered = [row | {"_control_seq": number + i, "_batch_id": plan.batch_id} for i, row in enumerate(rows)]
    return pa.Table.from_pylist(numbered, schema=tables.LOG_CONTROL_SCHEMA)
