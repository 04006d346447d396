"""The alerts of a spec, as checks of a batch: how much of it was refused, and how old its results are.

Here: what is compared. Not here: the other checks (checks.py), the age of a pipeline that runs no more, which Dagster
sees by a freshness policy (live.py). No alert holds a batch back.
"""

from dataclasses import replace
from datetime import timedelta

from resources import tables
from resources.plans import Plan
from resources.quality import Checked, Expectation, Measured, check
from resources.workspace import Workspace, records_in
from timeops.durations import format_duration
from timeops.epoch import instant_of
from timeops.spec import Spec

DEAD_LETTER_RATE = Expectation(
    name="dead_letter_rate",
    holds="no larger share of the batch was refused than `alerts.dead_letter_rate` says",
    remedy="look at the reasons in `dead_letters`: a source may have changed its format, or a tolerance is too small",
)
FRESHNESS = Expectation(
    name="freshness",
    holds="the watermark is no further behind the clock than `alerts.freshness` says",
    remedy="see what delays it in the metadata of ordered_events: a source that is silent or late, or too few runs",
)


def alerts_of(spec: Spec) -> dict[str, Expectation]:
    """The alerts that a spec asks for, by the asset that they are shown at."""
    asked = {
        tables.ORDERED_EVENTS: FRESHNESS if spec.alerts.freshness else None,
        tables.DEAD_LETTERS: DEAD_LETTER_RATE if spec.alerts.dead_letter_rate else None,
    }
    return {name: one for name, one in asked.items() if one is not None}


def check_alert(workspace: Workspace, plan: Plan, expectation: Expectation) -> Checked:
    """Compares a batch with what an alert allows: first with what is an error, then with what is a warning."""
    measure = {DEAD_LETTER_RATE.name: _refused, FRESHNESS.name: _age}[expectation.name]
    passed = Checked(expectation, ())
    for level in ("error", "warn"):
        measured = measure(workspace, plan, level)
        if measured is None:
            continue
        done = check(expectation, [measured])
        if not done.passed:
            return replace(done, is_error=level == "error")
        passed = done
    return passed


def _refused(workspace: Workspace, plan: Plan, level: str) -> Measured | None:
    rate = workspace.spec.alerts.dead_letter_rate
    share: float | None = getattr(rate, level)
    if share is None:
        return None
    counts, records = workspace.counts_of(plan.batch_id), records_in(plan)
    refused = sum(n for name, n in counts.items() if name.startswith("refused."))
    allowed = int(records * share + 1e-9)  # a share is a decimal fraction, and its product may be a hair below
    subject = f"of {records} records {refused} were refused; beyond the {allowed} that {share * 100:g} % are"
    return Measured(subject, 0, max(refused - allowed, 0))


def _age(workspace: Workspace, plan: Plan, level: str) -> Measured | None:
    levels = workspace.spec.alerts.freshness
    oldest: timedelta | None = getattr(levels, level)
    position = workspace.position_after(plan.batch_id)
    if oldest is None or position.final or position.watermark_us is None:
        return None
    behind = workspace.clock.now() - instant_of(position.watermark_us)
    subject = f"the watermark is {behind // timedelta(seconds=1)} s behind; seconds beyond {format_duration(oldest)}"
    return Measured(subject, 0, max((behind - oldest) // timedelta(seconds=1), 0))
