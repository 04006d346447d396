"""Rules 1 and 2: how far the time of an event may be from its arrival (A2).

Here: each rule once, as SQL for rows of Spark and for arrays. Not here: what becomes of an event (timeops/events/),
of a question about it (timeops/figures/log_times.py). Instants and lengths are BIGINT microseconds.

An event comes before its time or after it, and no tolerance is below zero: at most one of the rules applies to it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tidemark.timeops.columns import ARRIVAL, EVENT_TIME, MIN_US, floor_to, shifted
from tidemark.timeops.rules.reasons import Reason
from tidemark.timeops.spec import TimeSpec

Array = NDArray[Any]

_ARRIVAL_US = f"unix_micros({ARRIVAL})"


@dataclass(frozen=True)
class ArrivalRule:
    """Rule 1 or 2 of a spec.

    Attributes:
        number: 1 or 2.
        name: Its name in `_adjusted_by`.
        reason: Why it refuses.
        side: 1 where it is about times ahead of the arrival, -1 about earlier ones.
        policy: `drop`, `adjust` or `keep`.
        tolerance_us: How far an event may be from its arrival.
        unit_us: The unit of time.
    """

    number: int
    name: str
    reason: Reason
    side: int
    policy: str
    tolerance_us: int
    unit_us: int

    def applies(self, ahead: Array) -> Array:
        """Return to which events it applies; `ahead` is how far each is ahead of its arrival."""
        return np.asarray(self.side * ahead > self.tolerance_us)

    def limit(self, arrival: Array) -> Array:
        """Return the event times to which it moves events."""
        moved = (arrival + self.side * self.tolerance_us) // self.unit_us * self.unit_us
        return np.asarray(np.maximum(moved, MIN_US))

    @property
    def beyond_sql(self) -> str:
        """SQL of how far an event is beyond the tolerance; the rule applies above zero."""
        distance = f"(unix_micros({EVENT_TIME}) - {_ARRIVAL_US})"
        return shifted(distance if self.side > 0 else f"(-{distance})", -self.tolerance_us)

    @property
    def limit_sql(self) -> str:
        """SQL of the event time to which it moves an event."""
        return f"greatest({MIN_US}L, {floor_to(shifted(_ARRIVAL_US, self.side * self.tolerance_us), self.unit_us)})"


def arrival_rules(time: TimeSpec) -> tuple[ArrivalRule, ...]:
    """Return the rules that a spec has, in their order."""
    rules, early, late, unit_us = list[ArrivalRule](), time.early, time.late, time.unit_us
    if early is not None:
        rules.append(ArrivalRule(1, "early", Reason.EARLY, 1, early.policy, early.tolerance_us, unit_us))
    if late is not None:
        rules.append(ArrivalRule(2, "late", Reason.LATE_ARRIVAL, -1, late.policy, late.tolerance_us, unit_us))
    return tuple(rules)


def kept_early(time: TimeSpec) -> ArrivalRule | None:
    """Return rule 1 where an early event keeps its time, and moves no watermark; None elsewhere."""
    return next((rule for rule in arrival_rules(time) if rule.policy == "keep"), None)
