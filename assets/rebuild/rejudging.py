"""Records that are taken out of the log, or back into it: the decision as a control item, and what its clock is then.

Here: the item, and the clocks. Not here: the log without these records (../exclusions.py), the rebuild (switch.py).
"""

import json
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from tidemark.assets.exclusions import Excluded, Numbers, excluded, moved_clock, ranges_of
from tidemark.assets.log_control import EXCLUDE, INCLUDE, control_item
from tidemark.assets.rebuild.report import Telling
from tidemark.assets.rebuild.shadow import ensure_can_begin
from tidemark.assets.rebuild.switch import OPEN_END, rebuild
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit
from tidemark.resources.delta.queries import numbers_where
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors import SpecError

_MOST = 1_000_000
"""Records that one decision may name."""


@dataclass(frozen=True)
class Decision:
    """The records that an operator takes out of the log, or back into it.

    Attributes:
        reason: Why.
        exclude: Numbers of records to take out.
        where: Take out the records that meet this condition in SQL.
        include: Numbers of records to take back.
    """

    reason: str
    exclude: Collection[int] = ()
    where: str | None = None
    include: Collection[int] = ()


def rejudge(workspace: Workspace, run_id: str, decision: Decision, *, telling: Telling) -> tuple[Commit, int]:
    """Judge the log anew without some records, or with them again; return the commit and the number of records.

    Raises:
        SpecError: There are no such records, or it is decided already.
        TidemarkError: Anything prevents it, see `switch.rebuild`.
    """
    ensure_can_begin(workspace)
    kind, numbers = _asked(workspace, decision)
    said = {"records": ranges_of(numbers), "moved_clock": moved_clock(workspace, numbers)}
    argument = json.dumps(said, separators=(",", ":"))
    item = control_item(OPEN_END, kind, decision.reason, argument=argument)
    return rebuild(workspace, run_id, decision.reason, items=[item], telling=telling), len(numbers)


def _asked(workspace: Workspace, decision: Decision) -> tuple[str, Numbers]:
    out, end = excluded(workspace), workspace.progress.log_end()
    if decision.where is not None:
        numbers = numbers_where(
            workspace.lake, tables.RAW_EVENTS, workspace.base_of(tables.RAW_EVENTS), decision.where, c.SEQ
        )
        numbers = np.setdiff1d(out.places_of(numbers), out.by_hand)
    else:
        numbers = np.unique(np.array([*decision.exclude, *decision.include], np.int64))
    kind = INCLUDE if decision.include else EXCLUDE
    _refuse_unfit(workspace, numbers, end)
    _refuse_corrected(out, numbers)
    known = np.isin(numbers, out.by_hand)
    if kind == EXCLUDE and known.any():
        raise SpecError(f"Record {numbers[known][0]} is excluded already", expected="records that are in the log")
    if kind == INCLUDE and not known.all():
        raise SpecError(f"Record {numbers[~known][0]} is not excluded", expected="records that are excluded")
    return kind, numbers


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
    if len(numbers) > _MOST:
        raise SpecError(
            f"{len(numbers):,} records are too many for one decision",
            expected=f"at most {_MOST:,}",
            remedy="leave them out by a `where` of the windows, or read the input anew without them",
        )


def _refuse_corrected(out: Excluded, numbers: Numbers) -> None:
    gone = numbers[np.isin(numbers, out.corrected)]
    if not len(gone):
        return
    place = out.places[out.records == gone[0]]
    raise SpecError(
        f"Record {gone[0]} " + (f"is in the place of record {place[0]}" if len(place) else "was corrected upstream"),
        expected="the number that derived tables have" if len(place) else "records that are in the log",
    )
