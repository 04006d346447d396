"""The waits of aligned sources as items of the log, so that their silences can be told from waiting ever after (F).

Here: which sources wait at a batch, what earlier batches recorded of it. Not here: which source waits
(../alignment.py), what a wait means for silences (timeops/watermark/idle_clock.py).
"""

import json
from collections.abc import Mapping
from typing import Any

from tidemark.assets.alignment import is_aligned
from tidemark.assets.batch.control_items import WAIT, recorded
from tidemark.resources.batches.plans import Plan
from tidemark.resources.workspace import Workspace, waits_in
from tidemark.timeops.rules import TimeRules, Waits
from tidemark.timeops.spec import Spec
from tidemark.timeops.utc import instant_of, us_of


def waits_before(workspace: Workspace) -> Waits:
    """The waits of sources as the last batch left them; none where no rule asks for silences of single timelines."""
    last = workspace.batches.last_commit() if _matter(workspace.spec) and workspace.exists else None
    return Waits() if last is None else waits_up_to(workspace, last.batch_id)


def waits_up_to(workspace: Workspace, batch_id: int) -> Waits:
    """The same as a committed batch left them."""
    waits = Waits()
    for item in recorded(workspace, WAIT) if _matter(workspace.spec) else []:
        if item["_batch_id"] <= batch_id:
            waits = waits.from_here(us_of(item["clock"]), sources_of(item))
    return waits


def sources_of(item: Mapping[str, Any]) -> frozenset[str]:
    """The sources that wait from an item of the log on."""
    return frozenset(json.loads(item["argument"]))


def waits_of(workspace: Workspace, plan: Plan) -> Waits:
    """The waits of sources while a batch's segment of the log is judged."""
    if not _matter(workspace.spec):
        return Waits()
    return waits_before(workspace).from_here(workspace.position().clock_us, waits_in(plan))


def wait_items(workspace: Workspace, plan: Plan) -> list[dict[str, Any]]:
    """The item in front of a batch's segment that says who waits; none where that is as it was before."""
    clock_us = workspace.position().clock_us if _matter(workspace.spec) else None
    if clock_us is None or waits_before(workspace).sources == set(waits_in(plan)):
        return []
    item = {
        "_after_seq": plan.first_seq - 1,
        "kind": WAIT,
        "clock": instant_of(clock_us),
        "argument": json.dumps(waits_in(plan)),
        "reason": "alignment of sources",
    }
    return [item]


def _matter(spec: Spec) -> bool:
    return is_aligned(spec) and TimeRules.of(spec).clock_raises_single_timelines
