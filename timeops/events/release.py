"""Release: which accepted events leave in this segment, and in which order (H).

Here: the rule of release. Not here: numbering at scale (resources/spark/frames.py).
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.timeops.columns import ADJUSTED_BY, SEQ, TIMELINE, TIMESTAMP, to_us
from tidemark.timeops.events.adjustment import KEPT

RELEASE_ORDER = (TIMELINE, TIMESTAMP, SEQ)
"""Released events of a timeline form one sequence in this order; ties keep arrival order."""


@dataclass(frozen=True)
class Released:
    """Accepted events split by the watermark at the end of a segment.

    Attributes:
        sequence: Released, to be numbered in RELEASE_ORDER after those released before.
        passed: Behind the watermark when they came and kept (`keep`): released at once, outside the sequence.
        held: Not yet released.
    """

    sequence: DataFrame
    passed: DataFrame
    held: DataFrame


def release(accepted: DataFrame, state: DataFrame, *, flushed: bool = False) -> Released:
    """Splits accepted events, those held before included, by the watermark after the segment.

    An event is held while `_timestamp >= W` and released when `_timestamp < W`; with no watermark yet all are
    held, and the end of input releases everything.

    Args:
        accepted: Held events and newly accepted ones, with `_timestamp`, `_timeline`, `_adjusted_by`.
        state: timelines.STATE_SCHEMA after the segment.
        flushed: The end of input was reached and the spec (or the operator) flushes.
    """
    kept_late = F.array_contains(ADJUSTED_BY, KEPT)
    rest = accepted.where(~kept_late)
    known = rest.join(state.select(TIMELINE, "watermark"), TIMELINE, "left")
    out = F.lit(True) if flushed else F.coalesce(to_us(TIMESTAMP) < F.col("watermark"), F.lit(False))
    return Released(
        sequence=known.where(out).drop("watermark"),
        passed=accepted.where(kept_late),
        held=known.where(~out).drop("watermark"),
    )
