"""The waits of aligned sources as items of the log, so that their silences can be told from waiting ever after (F).

Here: which sources wait at a batch, what earlier batches recorded of it. Not here: which source waits (alignment.py),
what a wait means for silences (timeops/reading_clock.py).
"""

import json
from collections.abc import Mapping
from typing import Any

from resources import tables
from resources.plans import Plan
from resources.workspace import Workspace, waits_in
from timeops.epoch import instant_of, us_of
from timeops.rules import TimeRules
from timeops.spec import Spec
from timeops.waits import Waits

WAIT = "wait"  # kind of an item: from here on the sources in its argument wait, and no others


def waits_before(workspace: Workspace) -> Waits:
    """The waits of sources as the last batch left them; none where no rule asks for silences of single timelines."""
    waits = Waits()
    if not workspace.exists or not _matter(workspace.spec):
        return waits
    version = workspace.base()[tables.LOG_CONTROL]
    items = workspace.lake.rows(tables.LOG_CONTROL, version, filters=[("kind", "=", WAIT)]).to_pylist()
    for item in sorted(items, key=lambda item: int(item["_control_seq"])):
        waits = waits.from_here(us_of(item["clock"]), sources_of(item))
    return waits


def sources_of(item: Mapping[str, Any]) -> frozenset[str]:
    """The sources that wait from an item of the log on."""
    return frozenset(json.loads(item["argument"]))


def waits_of(workspace: Workspace, plan: Plan) -> Waits:
    """The waits of sources while a batch's stretch of the log is judged."""
    before = waits_before(workspace)
    return before.from_here(workspace.position().clock_us, waits_in(plan)) if _matter(workspace.spec) else before


def wait_item(workspace: Workspace, plan: Plan) -> Mapping[str, Any] | None:
    """The item in front of a batch's stretch that says who waits; None where that is as it was before."""
    if not _matter(workspace.spec):
        return None
    before, now = waits_before(workspace), waits_of(workspace, plan)
    clock_us = workspace.position().clock_us
    if clock_us is None or now.sources == before.sources:
        return None
    return {
        "_after_seq": plan.first_seq - 1,
        "kind": WAIT,
        "clock": instant_of(clock_us),
        "argument": json.dumps(sorted(now.sources)),
        "reason": "alignment of sources",
    }


def _matter(spec: Spec) -> bool:
    aligned = any(source.alignment is not None for source in spec.sources)
    return aligned and TimeRules.of(spec).clock_raises_single_timelines
