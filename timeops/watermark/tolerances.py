"""Tolerances: for each record of a log the least out-of-orderness with which rule 3 would let it in.

Here: one pass over the log for all tolerances. Arrays in, arrays out. Not here: the loop (timeops/watermark/fold.py),
what is made of the numbers (timeops/figures/advice.py).

The event watermark is a running maximum of minima of `t - out_of_orderness`. So where all splits have the same
out-of-orderness X, it is the one of X = 0 less X, with splits, periods of emission and idle splits too: the run by
which the log is judged says for every other X which records are out of order. What the clock raises (A2, M) does not
depend on X: the watermark is the higher of both. So with such a rule the loop runs twice more, once without the clock
and once with nothing else. Where some sources keep an out-of-orderness of their own, it runs once for each tolerance
of a list instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tidemark.timeops.values.instants import MIN_US, NEVER, NONE, Array
from tidemark.timeops.watermark import fold as f
from tidemark.timeops.watermark.clock import ARRIVAL_CLOCK, NOTHING, WINDOW_CLOSE
from tidemark.timeops.watermark.watermarks import JudgedLog

_INFINITE = 400_000_000_000_000_000
"""More than there is between the years 0001 and 9999: with it no event raises a watermark above any other."""

_OF_WATERMARK = ("watermark", "computed")
"""The fields of fold.TIMELINE, and columns of timelines.STATE, that depend on the out-of-orderness.

All else follows from times and clocks alone, but for what set a watermark, which no one asks here.
"""
_BY_CLOCK = (ARRIVAL_CLOCK, WINDOW_CLOSE)
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

    least_us: Array
    watermark_us: Array
    clock_us: Array


@dataclass
class Tolerances:
    """The pass over the segments of a log, in their order.

    Attributes:
        varied: The sources whose out-of-orderness is varied; None for all of them.
        tried_us: The tolerances to try where not all sources are varied, in order.
    """

    varied: frozenset[str] | None = None
    tried_us: Sequence[int] = ()
    _after: dict[tuple[int, bool], Array] = field(default_factory=dict)

    def needed(self, log: JudgedLog) -> Needed:
        """Return what the items of the next segment need; the loop must have measured how late each is."""
        items, none = log.rises.items, np.full(len(log.names), NONE)
        by_clock = none
        if self.varied is not None:
            least = np.zeros(len(items.seq), np.int64)
            least[:] = NEVER if len(self.tried_us) else 0
            in_order = np.zeros(len(least), bool)
            for tried_us in self.tried_us:
                findings, _ = self._fold(log, tried_us, with_clock=True)
                is_in = np.ones(len(least), bool)
                is_in[findings.out_of_order["item"]] = False
                least[is_in & ~in_order] = tried_us
                in_order |= is_in
            return Needed(least, none, none)
        behind, watermark = self._of_events(log)
        least = np.maximum(behind, 0, out=behind)
        if log.rises.start.rules[0]["idle"] in _BY_CLOCK:
            passed, raised = self._fold(log, _INFINITE, with_clock=True)
            least[passed.out_of_order["item"]] = NEVER
            # With it events alone bring a watermark to the first year, where it holds nothing back.
            by_clock = np.where(raised["watermark"] == MIN_US, NONE, raised["watermark"])
        return Needed(least, watermark, by_clock)

    def _of_events(self, log: JudgedLog) -> tuple[Array, Array]:
        """Return how late each item is with an out-of-orderness of 0, and the watermarks after the segment.

        The clock raises none of these.
        """
        today_us = self._of_today(log)
        if today_us is None:
            findings, timelines = self._fold(log, 0, with_clock=False)
            return findings.below_us, timelines["watermark"]
        timelines = np.zeros(len(log.names), f.TIMELINE)
        for name in _OF_WATERMARK:
            us = np.asarray(log.state[name].fill_null(NONE).to_numpy(), np.int64)
            timelines[name] = np.where(us == NONE, NONE, us + today_us)
        self._after[0, False] = timelines
        return log.rises.findings.below_us + today_us, timelines["watermark"]

    @staticmethod
    def _of_today(log: JudgedLog) -> int | None:
        """Return the out-of-orderness by which all watermarks of the segment are lower than with 0; None for none."""
        start, rises = log.rises.start, log.rises.findings.rises
        tolerances = start.splits["tolerance"] if start.rules[0]["uses_splits"] else start.rules["tolerance"]
        of_start = (start.timelines["computed"], start.timelines["watermark"])
        is_cut = any((us == MIN_US).any() for us in (rises["computed"], *of_start))  # to the first year
        is_one = len(tolerances) > 0 and (tolerances == tolerances[0]).all()
        return None if is_cut or not is_one or start.rules[0]["idle"] in _BY_CLOCK else int(tolerances[0])

    def _fold(self, log: JudgedLog, tolerance_us: int, *, with_clock: bool) -> tuple[f.Findings, Array]:
        """Run the loop with an out-of-orderness; return what it finds, and the timelines after the segment."""
        start, items = log.rises.start, log.rises.items
        rules, timelines, splits = start.rules.copy(), start.timelines.copy(), start.splits.copy()
        if not with_clock and rules[0]["idle"] in _BY_CLOCK:
            rules["idle"] = NOTHING
        rules["tolerance"] = tolerance_us
        splits["tolerance"] = np.where(self._are_varied(log), tolerance_us, splits["tolerance"])
        splits["allows"] = np.where(
            splits["max_t"] == NONE, NONE, np.maximum(splits["max_t"] - splits["tolerance"], MIN_US)
        )
        if (before := self._after.get((tolerance_us, with_clock))) is not None:
            for name in _OF_WATERMARK:  # the first timelines are the former ones
                timelines[name][: len(before)] = before[name]
        state = start._replace(
            timelines=timelines, splits=splits, max_close=start.max_close.copy(), rules=rules, log=start.log.copy()
        )
        findings = f.fold(items, state, measures=not with_clock)
        self._after[tolerance_us, with_clock] = state.timelines
        return findings, state.timelines

    def _are_varied(self, log: JudgedLog) -> Array:
        sources = log.splits["source"].to_pylist()
        return np.array([self.varied is None or source in self.varied for source in sources], bool)
