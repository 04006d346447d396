"""How late the events of a batch were, and where the watermark stood when they came: bounded numbers, one Spark job.

Here: what is gathered of the judged records. Not here: drawing it (pictures.py), the rules (timeops/).
"""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from assets.stretch import Judged
from resources.workspace import records_in
from timeops import columns as c
from timeops.extraction import REFUSED_AT_INGESTION

BINS = 200
_PER_DECADE = 40  # buckets of a histogram: a length of time is known to 3 %
_FINEST_US = 1_000

ON_TIME, MOVED, REFUSED = "on time", "moved or kept", "refused"
OUTCOMES = (ON_TIME, MOVED, REFUSED)


@dataclass(frozen=True)
class Bin:
    """Some consecutive records of the log; microseconds since the epoch.

    Attributes:
        last: Number of the last record in the batch.
        clock_us: Clock behind them; None before the first timed record.
        newest_us: Largest event time so far that moved the watermark; None before the first.
        watermark_us: The largest watermark so far, as far as these records tell; None before the first event.
        refused: How many were refused although they have a time.
        refused_behind_us: Of these the smallest and the largest event time minus the clock at which the event came;
            None where there is none.
    """

    last: int
    clock_us: int | None
    newest_us: int | None
    watermark_us: int | None
    refused: int
    refused_behind_us: tuple[int, int] | None


@dataclass(frozen=True)
class Lateness:
    """What a batch's records tell.

    Attributes:
        bins: They, in the order of the log, in at most BINS pieces.
        histogram: Events by bucket of lateness (arrival minus event time, see `bucket_start`) and outcome.
        longest_us: The largest lateness; None where no event has a time.
    """

    bins: tuple[Bin, ...]
    histogram: Mapping[tuple[int, str], int]
    longest_us: int | None

    def quantile_us(self, part: float) -> int | None:
        """The lateness that this part of the events does not exceed, to 3 %; None where no event has a time."""
        if self.longest_us is None:
            return None
        left = math.ceil(part * sum(self.histogram.values()))
        for (bucket, _), n in sorted(self.histogram.items()):
            left -= n
            if left <= 0:
                return min(round((bucket_start(bucket) + bucket_start(bucket + 1)) / 2), self.longest_us)
        return self.longest_us


def bucket_start(bucket: int) -> float:
    """Where a bucket of the histogram starts, microseconds: bucket 0 holds what is less than a millisecond off."""
    if bucket <= 0:
        return -_edge(1 - bucket)
    return _edge(bucket)


def _edge(number: int) -> float:
    return _FINEST_US * 10 ** ((number - 1) / _PER_DECADE)


def lateness_of(judged: Judged) -> Lateness:
    """Gathers what the records of a batch tell of lateness and of the watermark."""
    records = records_in(judged.plan)
    if not records:
        return Lateness((), {}, None)
    width = math.ceil(records / BINS)
    found = _gathered(judged, width).collect()
    places = sorted((row for row in found if row["bin"] is not None), key=lambda row: int(row["bin"]))
    histogram: Counter[tuple[int, str]] = Counter()
    for row in found:
        if row["bucket"] is not None:
            histogram[row["bucket"], row["outcome"]] += row["n"]
    longest = max((row["longest"] for row in found if row["longest"] is not None), default=None)
    return Lateness(_bins(judged, places, width, records), dict(histogram), longest)


def _gathered(judged: Judged, width: int) -> DataFrame:
    """A row for each piece of the batch, and one for each bucket of lateness and outcome."""
    lateness = F.unix_micros(c.ARRIVAL) - F.unix_micros(c.EVENT_TIME)
    rows = _rows(judged).withColumns(
        {
            "bin": F.floor((F.col(c.SEQ) - judged.plan.first_seq) / width),
            "lateness": F.when(F.col(c.T).isNotNull(), lateness),
            "t": F.unix_micros(c.EVENT_TIME),
        }
    )
    size = F.floor(_PER_DECADE * F.log10(F.abs("lateness") / _FINEST_US)) + 1
    signed = F.when(F.abs("lateness") < _FINEST_US, F.lit(0)).otherwise(F.signum("lateness") * size)
    return judged.adjusted.items.sparkSession.sql(
        """
SELECT bin, bucket, outcome, count(*) AS n, max(lateness) AS longest,
  unix_micros(max(_clock)) AS clock, max(moving) AS newest, max(__w_before) AS watermark,
  count_if(outcome = 'refused' AND t IS NOT NULL) AS refused,
  min(t - unix_micros(_clock)) FILTER (WHERE outcome = 'refused') AS lowest,
  max(t - unix_micros(_clock)) FILTER (WHERE outcome = 'refused') AS highest
FROM {rows} GROUP BY GROUPING SETS ((bin), (bucket, outcome))""",
        rows=rows.withColumn("bucket", signed.cast("int")),
    )


def _rows(judged: Judged) -> DataFrame:
    """The batch's records: when they came, when they happened, what became of them."""
    columns = [c.SEQ, c.CLOCK, c.ARRIVAL, c.EVENT_TIME, c.T, c.W_BEFORE]
    outcome = F.when(F.size(c.ADJUSTED_BY) > 0, MOVED).otherwise(ON_TIME)
    accepted = judged.adjusted.accepted.select(*columns, outcome.alias("outcome"), F.col(c.T).alias("moving"))
    moves = F.when(F.col(c.REASON) == "out_of_order", F.col(c.T))
    timed = F.when(~F.col(c.REASON).isin(*REFUSED_AT_INGESTION), F.col(c.T)).alias(c.T)
    refused = judged.adjusted.refused.select(
        *[timed if name == c.T else F.col(name) for name in columns],
        F.lit(REFUSED).alias("outcome"),
        moves.alias("moving"),
    )
    return accepted.unionByName(refused)


def _bins(judged: Judged, places: list[Row], width: int, records: int) -> tuple[Bin, ...]:
    """The pieces, with the newest event and the watermark carried on from one to the next."""
    follows = _follows(judged)
    newest, watermark = judged.before.max_t_us, judged.before.watermark_us
    clock = judged.before.clock_us
    bins = []
    for row in places:
        newest, clock = _largest(newest, row["newest"]), _largest(clock, row["clock"])
        asked = newest - follows if newest is not None and follows is not None else None
        watermark = _largest(watermark, row["watermark"], asked)
        last = min((int(row["bin"]) + 1) * width, records) - 1
        span = (row["lowest"], row["highest"]) if row["lowest"] is not None else None
        bins.append(Bin(last, clock, newest, watermark, row["refused"], span))
    return tuple(bins)


def _follows(judged: Judged) -> int | None:
    """How far the watermark follows the newest event; None where it follows the slowest of several splits."""
    rules = judged.adjusted.rules
    return None if rules.uses_splits else rules.sources[0].out_of_orderness_us


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
