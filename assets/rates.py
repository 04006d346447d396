"""The share of refused records in a period: of all, of each source, of each value of `over`.

Here: what is counted. Not here: what is allowed (alerts.py).

A period is made of whole batches: the one at work, and the batches of the period before it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from tidemark.assets.batch.batch import BatchWriter
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit
from tidemark.resources.batches.position import plan_end, records_in
from tidemark.resources.delta.queries import pieces
from tidemark.resources.delta.versions import Filters
from tidemark.timeops import columns as c
from tidemark.timeops.counts import refused
from tidemark.timeops.reasons import Stage

_MOST_RECORDS = 5_000_000
"""Sources and values of `over` are counted in the tables, in the newest batches that hold at most so many records."""


@dataclass(frozen=True)
class Rate:
    """How many of some records were refused.

    Attributes:
        of: Whose they are, as the words before a rate; empty where it is of all.
        refused: How many were refused.
        records: How many there are.
    """

    of: str
    refused: int
    records: int

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100 * self.refused / self.records if self.records else 0.0

    @property
    def in_words(self) -> str:
        """The share and what it is made of."""
        share = f"{self.percent:.1f}" if self.percent >= 1 or not self.refused else f"{self.percent:.2g}"
        return f"{self.of}{share} % refused ({self.refused:,} of {self.records:,})"

    def beyond(self, share: float) -> int:
        """Return how many more were refused than a share of them."""
        allowed = int(
            self.records * share + 1e-9
        )  # a share is a decimal fraction, and its product may be a hair below
        return max(self.refused - allowed, 0)


def rates_of_period(batch: BatchWriter, period: timedelta) -> list[Rate]:
    """Return the rate of all records of a period, then those of sources and values of `over`, the largest first."""
    workspace, plan = batch.workspace, batch.plan
    since = workspace.clock.now() - period
    done = [one for one in workspace.batches.history("process") if one.batch_id != plan.batch_id]
    done = [one for one in done if one.committed_at > since and not one.plan.is_replayed]
    own = workspace.progress.counts_of(plan.batch_id)
    lost = sum(sum(refused(counts).values()) for counts in (own, *(one.counts for one in done)))
    rates = [Rate("", lost, records_in(plan) + sum(records_in(one.plan) for one in done))]
    if not lost:
        return rates
    spec, first = workspace.spec, _first_counted(batch, done)
    of_log: Filters = [(c.SEQ, ">=", first.first_seq), (c.SEQ, "<", plan_end(plan))]
    parts: list[Rate] = []
    if len(spec.sources) > 1:
        records = _counted(batch, tables.RAW_EVENTS, c.SOURCE, of_log)
        parts += _rates("source ", _lost(batch, c.SOURCE, of_log), records)
    if spec.time.over and spec.outputs.ordered_events:
        gone = _lost(batch, c.TIMELINE, of_log)
        accepted = _counted(batch, tables.HELD_EVENTS, c.TIMELINE, of_log)
        accepted += _counted(batch, tables.ORDERED_EVENTS, c.TIMELINE, [*of_log, (c.BATCH, ">=", first.batch_id)])
        parts += _rates("over ", gone, accepted + gone)
    return rates + sorted(parts, key=lambda one: (-one.percent, -one.refused, one.of))


@dataclass(frozen=True)
class _First:
    batch_id: int
    first_seq: int


def _first_counted(batch: BatchWriter, done: Sequence[Commit]) -> _First:
    """Return the start of the part of the period that is counted in the tables."""
    plan, records = batch.plan, records_in(batch.plan)
    first = _First(plan.batch_id, plan.first_seq)
    for one in reversed(done):
        records += records_in(one.plan)
        if records > _MOST_RECORDS:
            break
        first = _First(one.batch_id, one.plan.first_seq)
    return first


def _lost(batch: BatchWriter, by: str, which: Filters) -> Counter[str]:
    """Count records that ingestion or rules 0 to 3 refused, by source or timeline; ingestion knows no timeline."""
    return _counted(batch, tables.DEAD_LETTERS, by, [*which, ("stage", "in", [Stage.INGEST, Stage.TIME])])


def _counted(batch: BatchWriter, table: str, by: str, which: Filters) -> Counter[str]:
    found: Counter[str] = Counter()
    lake, names = batch.workspace.lake, batch.workspace.source_names if by == c.SOURCE else {}
    for piece in pieces(lake, table, lake.version(table), [by], which):
        for row in piece[by].value_counts().to_pylist():
            if row["values"] is not None:
                found[names.get(row["values"], row["values"])] += row["counts"]
    return found


def _rates(what: str, lost: Mapping[str, int], records: Mapping[str, int]) -> list[Rate]:
    return [Rate(f"{what}{name}: ", n, records[name]) for name, n in lost.items()]
