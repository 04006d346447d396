"""Control items of the log: the spec as it is from a place on, ticks, waits, the end of input, reopening after it.

Here: which changes of a spec a running pipeline takes, and the rows of `log_control`. Not here: their effect on
event time (timeops/).
"""

import json
from typing import Any
from weakref import WeakKeyDictionary

import pyarrow as pa

from assets.commits import flushes, reopens
from assets.control_items import END_OF_INPUT, REOPEN, SPEC, TICK, recorded
from assets.waits import wait_items
from resources import tables
from resources.plans import Plan
from resources.spec_origin import other_file
from resources.workspace import Position, Workspace, plan_end, tick_of
from timeops.epoch import instant_of
from timeops.errors import SpecError
from timeops.spec import Spec

# Parts of a spec whose change makes sense from the next record on. A change of any other part would make one table
# hold rows of two meanings.
_CHANGEABLE = ("time", "partitions")
_NOT_CHANGEABLE = ("time.over", "time.deduplicate_by", "time.within", "time.start_at")
# These may change the state that is kept between batches: then there is nothing to go on from.
_OF_STATE = ("time.emit", "time.idle")
_OF_INGESTION = ("path", "options", "order", "arrival_time", "live", "settle", "max_files", "max_bytes", "alignment")
_CHANGEABLE_IN_SOURCE = (*_OF_INGESTION, "timestamp_by", "time_zone", "out_of_orderness", "idle", "splits")
# Open windows keep their events, so these apply to all windows that close from now on; a backfill gives them to the
# past as well. What is refused for being too much gives no row at all.
_CHANGEABLE_IN_WINDOW = ("aggregates", "having", "empty_max")


_reopened: WeakKeyDictionary[Workspace, tuple[int, bool]] = WeakKeyDictionary()


def recorded_specs(workspace: Workspace) -> list[dict[str, Any]]:
    """The specs that the log was processed with, in their order."""
    return [json.loads(row["argument"]) for row in recorded(workspace, SPEC)]


def was_reopened(workspace: Workspace, plan: Plan | None = None) -> bool:
    """Whether the log was flushed and reopened, up to the last commit or in front of a batch."""
    if plan is not None and reopens(plan) is not None:
        return True
    if not workspace.exists:
        return False
    # What a version of the table holds never changes, and every stage asks for it.
    version = workspace.base_of(tables.LOG_CONTROL)
    known = _reopened.get(workspace)
    if known is None or known[0] != version:
        known = _reopened[workspace] = version, bool(recorded(workspace, REOPEN))
    return known[1]


def last_flush(workspace: Workspace) -> int | None:
    """The batch that flushed last; None before the first."""
    ends = recorded(workspace, END_OF_INPUT)
    return ends[-1]["_batch_id"] if ends else None


def meaning_of_time(spec: dict[str, Any]) -> str:
    """What of a spec says how the records of a given log are judged, as JSON."""
    judging = {name: part for name, part in spec.items() if name not in ("sources", "windows", "partitions")}
    sources = [
        {name: value for name, value in source.items() if name not in _OF_INGESTION} for source in spec["sources"]
    ]
    windows = [
        {name: value for name, value in window.items() if name not in _CHANGEABLE_IN_WINDOW}
        for window in spec.get("windows", [])
    ]
    return json.dumps(judging | {"sources": sources, "windows": windows}, sort_keys=True)


def check_spec(workspace: Workspace) -> bool:
    """Tells whether the spec differs from the one that the log was last processed with.

    Raises:
        SpecError: It differs in a way that a pipeline with tables cannot take.
    """
    recorded, now = recorded_specs(workspace), json.loads(workspace.spec.canonical_json())
    if not recorded or recorded[-1] == now:
        return not recorded
    before = recorded[-1]
    changed = _differences(before, now)
    refused = [path for path in changed if not _is_changeable(path) or _feeds_another(path, workspace.spec)]
    if Spec.model_validate(before).keeps_timelines != workspace.spec.keeps_timelines:
        refused += [path for path in changed if path.startswith(_OF_STATE) and path not in refused]
    if refused:
        raise SpecError(
            f"{workspace.file.path.name}: {', '.join(refused)} changed since this pipeline's tables were made in "
            f"{workspace.lake.root}",
            expected="changes of time settings, aggregates, file paths and limits only: others would mix rows of two "
            "meanings",
            remedy="take the change back, or give the new spec another name or warehouse (a rebuild of past windows "
            "under such a change is not supported yet)",
        )
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


def control_rows(workspace: Workspace, plan: Plan, after: Position) -> pa.Table:
    """The control items that stand in a batch's stretch of the log."""
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


def _differences(before: Any, now: Any, path: str = "") -> list[str]:
    """Paths of the keys in which two specs differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        names = sorted({*before, *now})
        return [
            deeper
            for name in names
            for deeper in _differences(before.get(name), now.get(name), f"{path}.{name}" if path else name)
        ]
    if path == "sources" and isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        pairs = enumerate(zip(before, now, strict=True))
        return [deeper for i, (one, other) in pairs for deeper in _differences(one, other, f"sources[{i}]")]
    if path == "windows" and isinstance(before, list) and isinstance(now, list):
        old, new = ({window["name"]: window for window in side} for side in (before, now))
        if old.keys() == new.keys():
            return [deeper for name in old for deeper in _differences(old[name], new[name], f"windows[{name}]")]
    return [] if before == now else [path]


def _feeds_another(path: str, spec: Spec) -> bool:
    """Whether a path is of a window that another goes over: that one keeps results as they were given."""
    return any(path.startswith(f"windows[{window.input}].") for window in spec.chained_windows)


def _is_changeable(path: str) -> bool:
    if path in _NOT_CHANGEABLE:
        return False
    first, *rest = path.split(".")
    if first.startswith("sources["):
        return bool(rest) and rest[0] in _CHANGEABLE_IN_SOURCE
    if first.startswith("windows["):
        return bool(rest) and rest[0] in _CHANGEABLE_IN_WINDOW
    return first in _CHANGEABLE
