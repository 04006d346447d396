"""The position of a pipeline in its log: what was read, what was judged, and the state after it.

Here: positions after batches, and the clocks of the log, from the rows of `batches` and of `watermarks`. Not here:
these rows themselves (resources/batches/batch_log.py, assets/time_adjustment.py), the state of many timelines
(assets/state/).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import (
    FIRST_CLOCK,
    LAST_ARRIVAL,
    LAST_SEEN,
    LOG_CLOCK,
    BatchInput,
    Counts,
    IngestInput,
    Plan,
    RebuildInput,
)
from tidemark.resources.sources.kafka_offsets import Positions
from tidemark.timeops.rules.time_rules import Waiter, waiters_from_json
from tidemark.timeops.spec import Source
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.alignment import LastArrival

KEPT_UNTIL = "kept_until_us"
"""In the `counts` of a pipeline row of `watermarks`: the latest time of an early event that rule 1 kept as it was."""


@dataclass(frozen=True)
class Position:
    """The position of a pipeline between two batches; microseconds since the epoch.

    Attributes:
        watermark_us: The watermark, with `over` the largest of all timelines; None before the first event. With
            `final` as it was before the flush: a reopened pipeline continues there.
        max_t_us: Largest event time that moved it.
        set_by: `_arrival_seq` after which it had this value first; None if there are several timelines.
        clock_us: Clock after the last processed record.
        clock_before_period_us: Clock of the last record before the period of emission of this clock; None if no rule
            needs it.
        released: Number of events with a `_release_seq`.
        kept_until_us: The latest time of an early event that kept its time, see KEPT_UNTIL; None without any.
        final: The end of input was flushed: everything is released and closed.
    """

    watermark_us: int | None = None
    max_t_us: int | None = None
    set_by: int | None = None
    clock_us: int | None = None
    clock_before_period_us: int | None = None
    released: int = 0
    final: bool = False
    kept_until_us: int | None = None

    @property
    def reached_us(self) -> int | None:
        """The latest instant that an accepted event or the watermark has come to; None before the first event."""
        instants = (self.max_t_us, self.watermark_us, self.kept_until_us)
        return max((us for us in instants if us is not None), default=None)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Position":
        """Return the position that a pipeline row of `watermarks` holds."""
        return cls(
            watermark_us=_us(row["watermark_before_flush" if row["final"] else "watermark"]),
            max_t_us=_us(row["max_timestamp"]),
            set_by=row["watermark_set_by"],
            clock_us=_us(row["clock"]),
            clock_before_period_us=_us(row["clock_before_period"]),
            released=row["released"] or 0,
            final=bool(row["final"]),
            kept_until_us=dict(row["counts"] or ()).get(KEPT_UNTIL),
        )


def _us(value: datetime | None) -> int | None:
    return None if value is None else us_of(value)


@dataclass(frozen=True)
class LogProgress:
    """The progress of a pipeline along its log: what ingestions have read, and what batches have judged.

    Attributes:
        read: The log of batches with the ingestions of the log.
        batches: The log of batches with the batches that judge it.
        sources: Names of its sources.
        by_source: Returns notes about sources, by the present names of the sources.
        watermarks_of: Returns the row of `watermarks` that a batch, committed or at work, wrote for the pipeline.
        clocks: The clocks of the log; None if they are as stored.
    """

    read: BatchLog
    batches: BatchLog
    sources: Sequence[str]
    by_source: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    watermarks_of: Callable[[int], Mapping[str, Any]]
    clocks: Mapping[str, Any] | None = None

    def log_end(self) -> int:
        """Return the number of records in the log, which is the next `_arrival_seq`."""
        last = self.read.last_commit("ingest")
        return plan_end(last.plan) if last else 0

    def processed_end(self) -> int:
        """Return the first `_arrival_seq` that no committed batch has processed."""
        last = self.batches.last_commit("process")
        return plan_end(last.plan) if last else 0

    def log_clock_us(self) -> int | None:
        """Return the clock after the last record or tick of the log, microseconds; None before a timed record."""
        processed = self.batches.last_commit("process")
        # A tick may have moved the clock beyond the last record.
        clocks = [self._read_clocks.get(LOG_CLOCK), BatchInput.of(processed.plan).tick_us if processed else None]
        return max((us for us in clocks if us is not None), default=None)

    def first_clock_us(self) -> int | None:
        """Return the clock at the first timed record of the log, microseconds; None before it."""
        return self._read_clocks.get(FIRST_CLOCK) if self.read.exists else None

    def last_arrivals(self) -> dict[str, LastArrival | None]:
        """Return the last arrival of each source in the log; None before its first record with one."""
        last = self.read.last_commit("ingest")
        counts = last.counts if last else Counts()
        arrivals, read_at = (self.by_source(counts.by_source(name)) for name in (LAST_ARRIVAL, LAST_SEEN))
        if LAST_ARRIVAL in self._read_clocks:
            arrivals = self.by_source(self._read_clocks[LAST_ARRIVAL])
        return {
            name: LastArrival(arrivals[name], read_at[name])
            if arrivals.get(name) is not None and read_at.get(name) is not None
            else None
            for name in self.sources
        }

    def positions_of(self, source: Source) -> Positions | None:
        """Return the position of a source of Kafka after the last ingestion; None before its first one."""
        last = self.read.last_commit("ingest") if self.read.exists else None
        noted = self.by_source(IngestInput.of(last.plan).positions).get(source.name) if last else None
        return None if noted is None else Positions.from_json(noted)

    def position(self) -> Position:
        """Return the state after the last processed batch."""
        last = self.batches.last_commit("process")
        return self.position_after(last.batch_id) if last else Position()

    def position_after(self, batch_id: int) -> Position:
        """Return the state that the time stage of a batch wrote."""
        return Position.of(self.watermarks_of(batch_id))

    def counts_of(self, batch_id: int) -> Counts:
        """Return the counts that the time stage of a batch wrote."""
        counts = dict(self.watermarks_of(batch_id)["counts"])
        return Counts({name: n for name, n in counts.items() if name != KEPT_UNTIL})

    @property
    def _read_clocks(self) -> Mapping[str, Any]:
        """The clocks of the read records, by their names in the counts of an ingestion.

        They change if records were excluded since the last ingestion.
        """
        last, rebuilt = self.read.last_commit("ingest"), self.read.last_rebuild()
        if self.clocks is not None:
            return self.clocks
        if rebuilt is not None and (last is None or last.batch_id < rebuilt.batch_id):
            clocks = RebuildInput.of(rebuilt).clocks
            if clocks is not None:
                return clocks
        return last.counts if last else {}


def plan_end(plan: Plan) -> int:
    """Return the end of a plan's range of the log, which is known once it is committed, or processes records."""
    return int(plan.end_seq or 0)


def waits_in(plan: Plan) -> frozenset[Waiter]:
    """Return the sources and splits that wait for others after an ingestion, or while a range is judged."""
    return waiters_from_json(BatchInput.of(plan).waits)


def records_in(plan: Plan) -> int:
    """Return the number of records in a processing plan's range of the log."""
    return plan_end(plan) - plan.first_seq
