"""How late the events of a batch were, and where the watermark stood when they came: bounded numbers, one Spark job.

Here: what is gathered of the judged records. Not here: the numbers themselves (lateness_numbers.py), drawing them
(pictures.py), the rules (timeops/).
"""

import math
from collections import Counter

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tidemark.assets.batch.batch import Batch
from tidemark.assets.display.lateness_numbers import (
    BINS,
    FINEST_US,
    MOVED,
    ON_TIME,
    PER_DECADE,
    REFUSED,
    Bin,
    Lateness,
    carried_on,
    follows_us,
)
from tidemark.resources.workspace import records_in
from tidemark.timeops import columns as c
from tidemark.timeops.events.extraction import REFUSED_AT_INGESTION


def lateness_of(batch: Batch) -> Lateness:
    """Gathers what the records of a batch tell of lateness and of the watermark."""
    records = records_in(batch.plan)
    if not records:
        return Lateness((), {}, None)
    width = math.ceil(records / BINS)
    found = _gathered(batch, width).collect()
    places = sorted((row for row in found if row["bin"] is not None), key=lambda row: int(row["bin"]))
    histogram: Counter[tuple[int, str]] = Counter()
    for row in found:
        if row["bucket"] is not None:
            histogram[row["bucket"], row["outcome"]] += row["n"]
    longest = max((row["longest"] for row in found if row["longest"] is not None), default=None)
    return Lateness(_bins(batch, places, width, records), dict(histogram), longest)


def _gathered(batch: Batch, width: int) -> DataFrame:
    """A row for each piece of the batch, and one for each bucket of lateness and outcome."""
    lateness = F.unix_micros(c.ARRIVAL) - F.unix_micros(c.EVENT_TIME)
    rows = _rows(batch).withColumns(
        {
            "bin": F.floor((F.col(c.SEQ) - batch.plan.first_seq) / width),
            "lateness": F.when(F.col(c.T).isNotNull(), lateness),
            "t": F.unix_micros(c.EVENT_TIME),
        }
    )
    size = F.floor(PER_DECADE * F.log10(F.abs("lateness") / FINEST_US)) + 1
    signed = F.when(F.abs("lateness") < FINEST_US, F.lit(0)).otherwise(F.signum("lateness") * size)
    return batch.outcome.judged.items.sparkSession.sql(
        """
SELECT bin, bucket, outcome, count(*) AS n, max(lateness) AS longest,
  unix_micros(max(_clock)) AS clock, max(moving) AS newest, max(__w_before) AS watermark,
  count_if(outcome = 'refused' AND t IS NOT NULL) AS refused,
  min(t - unix_micros(_clock)) FILTER (WHERE outcome = 'refused') AS lowest,
  max(t - unix_micros(_clock)) FILTER (WHERE outcome = 'refused') AS highest
FROM {rows} GROUP BY GROUPING SETS ((bin), (bucket, outcome))""",
        rows=rows.withColumn("bucket", signed.cast("int")),
    )


def _rows(batch: Batch) -> DataFrame:
    """The batch's records: when they came, when they happened, what became of them."""
    columns = [c.SEQ, c.CLOCK, c.ARRIVAL, c.EVENT_TIME, c.T, c.W_BEFORE]
    outcome = F.when(F.size(c.ADJUSTED_BY) > 0, MOVED).otherwise(ON_TIME)
    accepted = batch.outcome.judged.accepted.select(*columns, outcome.alias("outcome"), F.col(c.T).alias("moving"))
    moves = F.when(F.col(c.REASON) == "out_of_order", F.col(c.T))
    timed = F.when(~F.col(c.REASON).isin(*REFUSED_AT_INGESTION), F.col(c.T)).alias(c.T)
    refused = batch.outcome.judged.refused.select(
        *[timed if name == c.T else F.col(name) for name in columns],
        F.lit(REFUSED).alias("outcome"),
        moves.alias("moving"),
    )
    return accepted.unionByName(refused)


def _bins(batch: Batch, places: list[Row], width: int, records: int) -> tuple[Bin, ...]:
    """The pieces, with the newest event and the watermark carried on from one to the next."""
    pieces = (
        Bin(
            last=min((int(row["bin"]) + 1) * width, records) - 1,
            clock_us=row["clock"],
            newest_us=row["newest"],
            watermark_us=row["watermark"],
            refused=row["refused"],
            refused_behind_us=(row["lowest"], row["highest"]) if row["lowest"] is not None else None,
        )
        for row in places
    )
    return carried_on(pieces, batch.before, follows_us(batch.outcome.judged.rules))
