"""Records that are taken out of the log, or back into it: the decision as a control item, and what its clock is then.

Here: the item, and the clocks. Not here: the log without these records (assets/log/exclusions.py), the rebuild
(assets/rebuild/switch.py).
"""

import json
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from tidemark.assets.log.control import EXCLUDE, INCLUDE, control_item
from tidemark.assets.log.exclusions import Excluded, Numbers, excluded, moved_clock, ranges_of
from tidemark.assets.rebuild.decisions.replaying import MOST_DECIDED
from tidemark.assets.rebuild.plan import RebuildPlan, plan_rebuild
from tidemark.resources import tables
from tidemark.resources.delta.queries import rows_where
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec.scope import Scope

"""Records that one decision may name."""
_OPEN_END = 2**62
"""The place of a control item until the switch assigns one: input may come until then."""


def plan_rejudging(
    workspace: Workspace,
    reason: str,
    *,
    exclude: Collection[int] = (),
    where: str | None = None,
    include: Collection[int] = (),
) -> RebuildPlan:
    """Plan to judge the log again without some records, or with them again.

    Args:
        workspace: The pipeline.
        reason: Why.
        exclude: Numbers of records to take out.
        where: Take out the records that meet this condition in SQL.
        include: Numbers of records to take back.

    Raises:
        SpecError: There are no such records, or it is decided already.
        LakeError: The log is lost or damaged, or nothing of it was processed.
    """
    plan = plan_rebuild(workspace, Scope.ALL, reason)  # first: it finds a log that is lost or damaged
    out, kind = excluded(workspace), INCLUDE if include else EXCLUDE
    numbers = np.unique(np.array([*exclude, *include], np.int64))
    if where is not None:
        version = workspace.base_of(tables.RAW_EVENTS)
        numbers = rows_where(workspace.lake, tables.RAW_EVENTS, version, where, [c.SEQ])[c.SEQ].to_numpy()
        numbers = np.setdiff1d(out.places_of(numbers), np.union1d(out.by_hand, out.forgotten))
    _refuse_unfit(workspace, numbers, workspace.progress.log_end())
    _refuse_corrected(out, numbers)
    _refuse_forgotten(out, numbers)
    is_excluded = np.isin(numbers, out.by_hand)
    if kind == EXCLUDE and is_excluded.any():
        raise SpecError(
            f"Record {numbers[is_excluded][0]} is excluded already", expected="records that are in the log"
        )
    if kind == INCLUDE and not is_excluded.all():
        raise SpecError(f"Record {numbers[~is_excluded][0]} is not excluded", expected="records that are excluded")
    fields = {"records": ranges_of(numbers), "moved_clock": moved_clock(workspace, numbers)}
    item = control_item(_OPEN_END, kind, reason, argument=json.dumps(fields, separators=(",", ":")))
    return replace(plan, items=(item,))


def _refuse_unfit(workspace: Workspace, numbers: Numbers, end: int) -> None:
    if not len(numbers):
        raise SpecError(f"No record of {workspace.spec.name} meets the condition", expected="some to take out")
    beyond = numbers[(numbers < 0) | (numbers >= end)]
    if len(beyond):
        raise SpecError(
            f"There is no record {beyond[0]} in the log of {workspace.spec.name}",
            expected=f"an `_arrival_seq` from 0 to {end - 1}",
            remedy="look it up with `tidemark show SPEC raw_events --where …`",
        )
    if len(numbers) > MOST_DECIDED:
        raise SpecError(
            f"{len(numbers):,} records are too many for one decision",
            expected=f"at most {MOST_DECIDED:,}",
            remedy="leave them out by a `where` of the windows, or read the input again without them",
        )


def _refuse_forgotten(out: Excluded, numbers: Numbers) -> None:
    forgotten = numbers[np.isin(numbers, out.forgotten)]
    if len(forgotten):
        raise SpecError(
            f"Record {forgotten[0]} is forgotten: its payload is blanked for good",
            expected="records that have a payload",
        )


def _refuse_corrected(out: Excluded, numbers: Numbers) -> None:
    corrected = numbers[np.isin(numbers, out.corrected)]
    if not len(corrected):
        return
    place = out.places[out.records == corrected[0]]
    raise SpecError(
        f"Record {corrected[0]} "
        + (f"is in the place of record {place[0]}" if len(place) else "was corrected upstream"),
        expected="the number that derived tables have" if len(place) else "records that are in the log",
    )
