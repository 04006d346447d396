"""Tolerances: for each record of a log the least out-of-orderness with which rule 3 would let it in.

Here: one pass over the log for all tolerances. Arrays in, arrays out. Not here: the loop (fold.py), what is made of
the numbers (assets/questions/).

The event watermark is a running maximum of minima of `t - out_of_orderness`. So where all splits have the same
out-of-orderness X, it is the one of X = 0 less X, with splits, periods of emission and idle splits too. What the
clock raises (A2, M) does not depend on X: the watermark is the higher of both. So two runs of the loop, one without
the clock and one with nothing else, say for every X which records are out of order. Where some sources keep an
out-of-orderness of their own, the loop runs once for each tolerance of a list instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemark.timeops.watermark import fold as f
from tidemark.timeops.watermark.timelines import JudgedLog

_INFINITE = 400_000_000_000_000_000
"""More than there is between the years 0001 and 9999: with it no event raises a watermark above any other."""

_OF_WATERMARK = ("published", "published_set_by", "watermark", "set_by")
"""The fields of fold.TIMELINE that depend on the out-of-orderness; all else follows from times and clocks alone."""
_BY_CLOCK = (f.ARRIVAL_CLOCK, f.WINDOW_CLOSE)
"""The idle rules that raise a watermark to what the clock says, however far the events are."""


@dataclass(frozen=True)
class Needed:
    """The needs of the items of a segment to be in order.

    Attributes:
        least_us: By item the least out-of-orderness with which it is not behind the watermark: 0 where it never is,
            NEVER where the clock has passed it, or another source, so that none would let it in.
        watermark_us: The watermark of each timeline after the segment, as events see it, with an out-of-orderness of
            0 and without what the clock raises; NONE where there is none, or where sources keep their own.
        clock_us: The watermark that the clock alone has raised each timeline to; NONE for none.
    """

    least_us: f.Array
    watermark_us: f.Array
    clock_us: f.Array


@dataclass
class Tolerances:
    """The pass over the segments of a log, in their order.

    Attributes:
        varied: The sources whose out-of-orderness is varied; None for all of them.
        tried_us: The tolerances to try where not all sources are varied, in order.
    """

    varied: frozenset[str] | None = None
    tried_us: Sequence[int] = ()
    _after: dict[tuple[int, bool], f.Array] = field(default_factory=dict)

    def needed(self, log: JudgedLog) -> Needed:
        """Return what the items of the next segment need."""
        items, idle = log.rises.items, int(log.rises.start.rules[0]["idle"])
        least, none = np.zeros(len(items.seq), np.int64), np.full(len(log.names), f.NONE)
        by_clock = none
        if self.varied is not None:
            least[:] = f.NEVER if len(self.tried_us) else 0
            in_order = np.zeros(len(least), bool)
            for tried_us in self.tried_us:
                behind, _ = self._fold(log, tried_us, with_clock=True)
                is_in = np.ones(len(least), bool)
                is_in[behind["item"]] = False
                least[is_in & ~in_order] = tried_us
                in_order |= is_in
            return Needed(least, none, none)
        behind, after = self._fold(log, 0, with_clock=False)
        least[behind["item"]] = behind["watermark"] - items.t[behind["item"]]
        if idle in _BY_CLOCK:
            passed, raised = self._fold(log, _INFINITE, with_clock=True)
            least[passed["item"]] = f.NEVER
            # With it events alone bring a watermark to the first year, where it holds nothing back.
            by_clock = np.where(raised["published"] == f.MIN_US, f.NONE, raised["published"])
        return Needed(least, after["published"], by_clock)

    def _fold(self, log: JudgedLog, tolerance_us: int, *, with_clock: bool) -> tuple[f.Array, f.Array]:
        """Run the loop with an out-of-orderness; return what is out of order, and the timelines after the segment."""
        start, items = log.rises.start, log.rises.items
        rules, timelines, splits = start.rules.copy(), start.timelines.copy(), start.splits.copy()
        if not with_clock and rules[0]["idle"] in _BY_CLOCK:
            rules["idle"] = f.NOTHING
        rules["tolerance"] = tolerance_us
        splits["tolerance"] = np.where(self._are_varied(log), tolerance_us, splits["tolerance"])
        splits["allows"] = np.where(
            splits["max_t"] == f.NONE, f.NONE, np.maximum(splits["max_t"] - splits["tolerance"], f.MIN_US)
        )
        if (before := self._after.get((tolerance_us, with_clock))) is not None:
            for name in _OF_WATERMARK:  # the first timelines are the former ones
                timelines[name][: len(before)] = before[name]
        state = start._replace(
            timelines=timelines, splits=splits, reached=start.reached.copy(), rules=rules, log=start.log.copy()
        )
        behind = f.fold(items, state).out_of_order
        self._after[tolerance_us, with_clock] = state.timelines
        return behind, state.timelines

    def _are_varied(self, log: JudgedLog) -> f.Array:
        sources = log.splits["source"].to_pylist()
        return np.array([self.varied is None or source in self.varied for source in sources], bool)
