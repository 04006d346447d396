"""Records that are forgotten: the decision, and the log without their payload.

Here: which rows of the log it is about, the control item, blanking them in the batch that switches the tables. Not
here: the log without these records (assets/log/exclusions.py), the tables that are made again
(assets/rebuild/shadow.py), old files and the proof that nothing is left (assets/rebuild/decisions/erasing.py).

A forgotten record is no longer part of the log, like one that `tidemark rejudge` takes out, but it cannot be taken
back: its number, its arrival and its place in the source stay, its payload is null. Its arrival was right, so the
clock of the log stays as it was.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.assets.log.control import ADMIT, CORRECTION, FORGET, control_item, recorded
from tidemark.assets.log.exclusions import (
    Numbers,
    excluded,
    items_of,
    numbers_in,
    pairs_in,
    ranges_of,
)
from tidemark.assets.rebuild.decisions.replaying import MOST_DECIDED, refuse_another_past
from tidemark.assets.rebuild.plan import RebuildPlan, plan_rebuild
from tidemark.resources import tables
from tidemark.resources.batches.plans import Plan
from tidemark.resources.delta.queries import rows_where
from tidemark.resources.sources.records import FILE
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec.scope import Scope
from tidemark.timeops.values.instants import no_numbers

STAYS = (c.SEQ, c.ARRIVAL, c.CLOCK, c.SOURCE, c.POSITION, FILE, c.BATCH)
"""The columns of the log that a forgotten record keeps."""
ROWS_KEY = "rows"
_OPEN_END = 2**62  # the place of a control item until the switch assigns one: input may come until then


def rows_to_forget(workspace: Workspace, where: str) -> Numbers:
    """Return the rows of the log to blank for a condition in SQL, in order; none where all that match are blank.

    A record that was corrected has several rows: the place where it was read first, and what took the place since. If
    the present one matches, all of them are its rows; an earlier one that matches alone is blanked alone.

    Raises:
        SpecError: The condition cannot be used.
    """
    version = workspace.base_of(tables.RAW_EVENTS)
    matching: Numbers = rows_where(workspace.lake, tables.RAW_EVENTS, version, where, [c.SEQ])[c.SEQ].to_numpy()
    places, records = _ever_at_places(workspace)
    judged = excluded(workspace).places_of(matching)
    rows = np.union1d(np.union1d(matching, judged), records[np.isin(places, judged)])
    return np.setdiff1d(rows, blanked(workspace))


def _ever_at_places(workspace: Workspace) -> tuple[Numbers, Numbers]:
    """Return all places that corrections gave to records, and these records."""
    pairs = [pairs_in(json.loads(item["argument"])["replaced"]) for item in items_of(workspace, CORRECTION)]
    places, records = ([pair[side] for pair in pairs] for side in (0, 1))
    return np.concatenate([no_numbers(), *places]), np.concatenate([no_numbers(), *records])


def blanked(workspace: Workspace) -> Numbers:
    """Return the rows of the log that have lost their payload, in order."""
    items = recorded(workspace, FORGET)
    return np.unique(np.concatenate([no_numbers(), *map(rows_of_item, items)]))


def rows_of_item(item: Mapping[str, Any]) -> Numbers:
    """Return the rows of the log that an item blanks, in order."""
    return numbers_in(json.loads(item["argument"])[ROWS_KEY])


def plan_forgetting(workspace: Workspace, reason: str, rows: Numbers) -> RebuildPlan:
    """Plan to judge the log again without some records, and to blank their rows.

    Args:
        workspace: The pipeline.
        reason: Why; it must not hold what is forgotten.
        rows: Numbers of rows of the log, as `rows_to_forget` returns them.

    Raises:
        SpecError: There are no such rows, too many, or the past is not as the spec has it.
        LakeError: The log is lost or damaged, or nothing of it was processed.
    """
    plan = plan_rebuild(workspace, Scope.ALL, reason)  # first: it finds a log that is lost or damaged
    refuse_another_past(workspace, "as all of them are made again without the records")
    _refuse_unfit(workspace, rows)
    judged_seqs = np.asarray(excluded(workspace).places_of(rows), np.int64)
    argument = {"records": ranges_of(judged_seqs), ROWS_KEY: ranges_of(rows)}
    item = control_item(_OPEN_END, FORGET, reason, argument=json.dumps(argument, separators=(",", ":")))
    return replace(plan, items=(item,))


def _refuse_unfit(workspace: Workspace, rows: Numbers) -> None:
    name, end = workspace.spec.name, workspace.progress.log_end()
    if not len(rows):
        raise SpecError(
            f"No record of {name} that has a payload meets the condition",
            expected="some to forget",
            remedy="look with `tidemark show SPEC raw_events --where …`",
        )
    if rows[0] < 0 or rows[-1] >= end:
        raise SpecError(f"The log of {name} has {end:,} records", expected=f"numbers from 0 to {end - 1}")
    if len(rows) > MOST_DECIDED:
        raise SpecError(
            f"{len(rows):,} records are too many for one decision",
            expected=f"at most {MOST_DECIDED:,}",
            remedy="forget them in parts: `AND _arrival_seq < …`",
        )


def forgets(plan: RebuildPlan) -> bool:
    """Return whether a rebuild carries out a decision to forget records."""
    return any(item["kind"] == FORGET for item in plan.items)


def blank_rows(workspace: Workspace, plan: Plan, rows: Numbers) -> None:
    """Blank rows of the log, in one commit of the batch that switches the tables."""
    lake, table = workspace.lake, tables.RAW_EVENTS
    expect = workspace.ready(table, plan)
    bounds = lake.opened.version_at(table, expect).bounds_by_file(c.SEQ)
    files = [file for file in lake.opened.version_at(table, expect).sizes if _may_hold(rows, bounds.get(file))]
    workspace.tell(f"blanking {len(rows):,} rows of {table}")
    lake.rewrite(table, files, blanking(rows), attempt=plan.attempt, expect=expect)


def _may_hold(rows: Numbers, bounds: tuple[int, int] | None) -> bool:
    if bounds is None:
        return True
    first, end = np.searchsorted(rows, [bounds[0], bounds[1] + 1])
    return bool(first < end)


def blanking(rows: Numbers) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that returns rows of the log with null in all columns of the ones to blank but STAYS."""

    def blank(batch: pa.RecordBatch) -> pa.RecordBatch:
        is_blank = np.isin(np.asarray(batch[c.SEQ]), rows)
        if not is_blank.any():
            return batch
        # Rows are taken by their places: the place of nothing is null, in a column of any type.
        places = pa.array(np.arange(len(is_blank)), mask=is_blank)
        columns = [
            column if name in STAYS else column.take(places)
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    return blank


def without_values(rows: Numbers) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return a function that returns a control item without the values that an operator wrote for some records."""
    numbers = {str(row) for row in rows.tolist()}

    def strip(item: Mapping[str, Any]) -> Mapping[str, Any]:
        if item["kind"] != ADMIT:
            return item
        argument = json.loads(item["argument"])
        values = argument.pop("with", {})
        stays = {seq: of_record for seq, of_record in values.items() if seq not in numbers}
        if len(stays) == len(values):
            return item
        left = argument | ({"with": stays} if stays else {})
        return {**item, "argument": json.dumps(left, separators=(",", ":"))}

    return strip


def all_rows(items: Sequence[Mapping[str, Any]]) -> Numbers:
    """Return the rows of the log that some items blank, in order."""
    return np.unique(
        np.concatenate([no_numbers(), *(rows_of_item(item) for item in items if item["kind"] == FORGET)])
    )
