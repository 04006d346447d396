"""What every stage of a pipeline works with: its spec, its tables, its log of batches, and the state between batches.

Here: opening these for one pipeline. Not here: what was read of them and is kept (memory.py), what a stage does with
them (assets/), the rules (timeops/).
"""

import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import Plan
from tidemark.resources.lake.filters import Filters
from tidemark.resources.lake.lake import Lake
from tidemark.resources.lake.migration import migrate
from tidemark.resources.lake.reading import without_spark
from tidemark.resources.lake.undoing import outputs, prepare, take_back
from tidemark.resources.lake.whole import (
    broken_tables,
    ensure_log_is_not_older,
    ensure_none_is_left,
    ensure_whole,
    half_made,
)
from tidemark.resources.memory import Memory
from tidemark.resources.places.checks import ensure_answers, ensure_folder
from tidemark.resources.places.place import Place
from tidemark.resources.settings import Clock
from tidemark.resources.sources.known_offsets import Positions
from tidemark.timeops.errors import LakeError, SpecError
from tidemark.timeops.problems import Path as KeyPath
from tidemark.timeops.problems import Problem, place_text, spec_error
from tidemark.timeops.rules import TimeRules, Waiter, waiters_from_json
from tidemark.timeops.spec import DeltaSource, FilesSource, KafkaSource, Spec
from tidemark.timeops.spec.yaml_text import read_yaml
from tidemark.timeops.utc import us_of
from tidemark.timeops.watermark.ticks import LastArrival

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


LOG_CLOCK, FIRST_CLOCK = "clock_us", "first_clock_us"
"""Counts of an ingestion: the clock of the log after it, and at its first timed record."""
CLOCKS = "clocks"  # of the input of a rebuild's plan: the same where records are excluded, and LAST_ARRIVAL by source
LAST_ARRIVAL, LAST_SEEN = "last_arrival_us", "last_seen_us"
"""Counts of an ingestion, with the name of a source behind a dot: when its last record arrived, and when it was read
by the wall clock."""

TAKEN = "taken"  # of the counts of an ingestion: records that took the places of others

POSITIONS = "positions"  # of the input of an ingestion's plan: where each source of Kafka stands behind it
LOST = "lost"  # of it too: by source of Kafka the offsets that were gone before they were read
LOST_TABLES = "lost_tables"  # of the input of a rebuild's plan: tables that it makes anew in empty folders
WAITS = "waits"  # of the input of a plan: the sources, and splits, that wait for others of their alignment group


@dataclass(frozen=True)
class SpecFile:
    """A spec and where it was read: relative paths in it start there.

    Attributes:
        spec: The spec.
        path: The file, without links.
        named: The file as the operator named it, maybe over links; None where nobody did.
        text: What the file held when it was read.
        shown: How messages name it: as it was asked for, with the keys that were set beside it.
    """

    spec: Spec
    path: Path
    named: Path | None = None
    text: str = field(default="", repr=False)
    shown: str = ""

    @property
    def name(self) -> str:
        """How messages name the file."""
        return self.shown or self.path.name

    @property
    def in_command(self) -> str:
        """How a command names it: the path as it was given, with the keys that were set beside it."""
        return " --set ".join(map(shlex.quote, self.name.split(" --set ")))

    def error(self, problems: Sequence[Problem]) -> SpecError:
        """The error that lists problems of this file by their lines."""
        return spec_error(self.name, problems, self._lines)

    def place(self, at: KeyPath) -> str:
        """Where a key stands in the file, as `line 3, time.unit: `."""
        return place_text(at, self._lines)

    @property
    def inputs(self) -> list[str]:
        """Paths and URLs that its sources are read from."""
        return [source.path for source in self.spec.sources if isinstance(source, FilesSource | DeltaSource)]

    @property
    def _lines(self) -> Mapping[KeyPath, int]:
        return read_yaml(self.text).lines if self.text else {}

    @property
    def folder(self) -> Path:
        """Folder of the file."""
        return self.path.parent


@dataclass(frozen=True)
class Acceptance:
    """An operator's word that a batch is to be committed whatever its checks say."""

    batch_id: int
    reason: str


def silent(_doing: str) -> None:
    """For work that nobody waits for."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """One pipeline in one warehouse.

    Attributes:
        file: The spec.
        warehouse: Folder of all pipelines' tables.
        session: Gives the Spark session; called only when Spark is needed.
        clock: The wall clock.
        accepted: A batch that an operator takes although a blocking check failed.
        tell: Says what is being done to a person who waits for it.
        memory: What was read of the tables before; those who look at the same pipeline in one run share it.
        log_of: The pipeline whose log it judges, where it makes the tables of that one anew; None where it has a log
            of its own.
        decided: Control items that this log has beyond those of `log_control`.
        clocks: The clocks that it has with them; None where they are as they were stored.
    """

    file: SpecFile
    warehouse: Place
    session: "Callable[[], SparkSession]" = without_spark
    clock: Clock = field(default_factory=Clock)
    accepted: "Acceptance | None" = None
    tell: Callable[[str], None] = silent
    memory: Memory = field(default_factory=Memory, repr=False)
    log_of: "Workspace | None" = field(default=None, repr=False)
    decided: Sequence[Mapping[str, Any]] = ()
    clocks: Mapping[str, Any] | None = None

    @property
    def spec(self) -> Spec:
        """The spec."""
        return self.file.spec

    def under(self, spec: Spec) -> "Workspace":
        """The same tables, and what is known of them, under another spec."""
        return replace(self, file=replace(self.file, spec=spec))

    @property
    def folder(self) -> Place:
        """Folder of the pipeline's tables."""
        return tables.pipeline_folder(self.warehouse, self.spec.name)

    @cached_property
    def lake(self) -> Lake:
        """The pipeline's tables.

        Raises:
            SpecError: A file is where their folder belongs.
            StoreFailureError: They are in a store that cannot be used.
        """
        ensure_folder(
            self.folder,
            f"The tables of {self.spec.name} belong in",
            "name another folder with --warehouse or TIDEMARK_WAREHOUSE",
        )
        ensure_answers(self.warehouse)
        elsewhere = {tables.RAW_EVENTS: self.log_of.lake.path(tables.RAW_EVENTS)} if self.log_of else {}
        return Lake(self.folder, self.session, self.memory.tables(self.folder, elsewhere))

    @cached_property
    def batches(self) -> BatchLog:
        """The log of batches."""
        return BatchLog(self.lake, self.memory.batches)

    @property
    def reading(self) -> BatchLog:
        """The log of batches that tells what was read into the log."""
        return self.log_of.batches if self.log_of else self.batches

    @property
    def spark(self) -> "SparkSession":
        """The Spark session, started now if need be."""
        return self.session()

    @property
    def window_tables(self) -> dict[str, str]:
        """Table of each window, by name."""
        return {window.name: tables.window_table(window.name) for window in self.spec.windows}

    @property
    def keeps_timelines(self) -> bool:
        """Whether the state between batches is more than the watermark of one timeline, so that a table holds it."""
        return self.spec.keeps_timelines

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table of the pipeline but `batches`, which is the log of the others, and those that others write."""
        released = (tables.ORDERED_EVENTS, tables.HELD_EVENTS) if self.spec.outputs.ordered_events else ()
        needed = dict.fromkeys(tables.needed_table(window) for window in self.spec.windows)
        flushed = [tables.flushed_table(window.name) for window in self.spec.windows]
        seen = tuple(tables.seen_groups_table(window.name) for window in self.spec.windows if window.empty)
        timelines = (tables.TIMELINES,) if self.keeps_timelines else ()
        first_times = (tables.FIRST_TIMES,) if self.spec.time.deduplicate_by else ()
        read = () if self.log_of else (tables.RAW_EVENTS, tables.FILES)
        return (
            *(*read, tables.LOG_CONTROL, tables.DEAD_LETTERS, tables.WATERMARKS),
            *released,
            *needed,
            *seen,
            *flushed,
            *timelines,
            *first_times,
            *self.result_tables,
        )

    @property
    def result_tables(self) -> tuple[str, ...]:
        """The tables of results: of each window, and of its history if it keeps one."""
        history = [tables.history_table(window.name) for window in self.spec.windows if window.history]
        return (*self.window_tables.values(), *history)

    @property
    def exists(self) -> bool:
        """Whether the pipeline's tables have been made.

        Raises:
            LakeError: The log of batches is gone, and other tables are not.
        """
        if self.lake.exists(tables.BATCHES):
            return True
        if not self.memory.is_looked_at:
            ensure_none_is_left(self.lake, tables.BATCHES, self.tables)
            self.memory.is_looked_at = True
        return False

    def ensure_whole(self) -> None:
        """Check, once in a run, that all tables are as the last commit left them.

        Raises:
            LakeError: One is gone or older, or a file of it is missing or damaged; or `batches` is older than they.
        """
        if self.memory.is_looked_at or not self.exists:
            return
        last = self.batches.last_commit()
        if lost := self._made_anew():
            raise half_made(self.lake, lost)
        ensure_log_is_not_older(self.lake, self.batches.base_versions(self.tables), self.batches.newest_attempt)
        if last is not None:
            committed = self._committed
            base = {name: self._base_of(name, version) for name, version in committed.items()}
            ensure_whole(self.lake, committed, base | {tables.BATCHES: self.lake.version(tables.BATCHES)})
        self.memory.is_looked_at = True

    @property
    def _committed(self) -> dict[str, int]:
        """Version of each table of the spec that the last commit names."""
        last = self.batches.last_commit()
        versions = last.table_versions if last else {}
        return {name: versions[name] for name in self.tables if name in versions}

    def _made_anew(self) -> tuple[str, ...]:
        """The tables that were lost, and that a rebuild which did not end has begun to make anew."""
        pending = self.batches.pending("rebuild")
        return tuple(pending.input.get(LOST_TABLES, ())) if pending else ()

    def broken_tables(self) -> dict[str, LakeError]:
        """The tables that lack what the last commit says, each with what is wrong with it."""
        found = broken_tables(self.lake, self._committed, self._base_of)
        return found | {name: half_made(self.lake, [name]) for name in self._made_anew()}

    @property
    def is_prepared(self) -> bool:
        """Whether all tables have been made, for this very spec."""
        last = self.batches.last_commit() if self.exists else None
        return last is not None and last.plan.fingerprint == self.spec.fingerprint()

    def base(self) -> Mapping[str, int]:
        """Version of each table that the batch at work starts from, see `base_of`."""
        committed = self.batches.base_versions(self.tables)
        return {table: self._base_of(table, version) for table, version in committed.items()}

    def base_of(self, table: str) -> int:
        """Version of a table that the batch at work starts from: it has the rows of the last commit.

        Where maintenance has come since, that is the newest such version: older ones may have lost their files.
        """
        if self.log_of and table == tables.RAW_EVENTS:
            return self.log_of.base_of(table)
        return self._base_of(table, self.batches.base_versions([table])[table])

    def _base_of(self, table: str, committed: int) -> int:
        try:
            latest = self.lake.version(table, committed)
        except LakeError:  # there is no such table any more; who works on it says so
            return committed
        return self.memory.newest_with_rows_of(self.lake, table, committed, latest)

    def read_base(self, table: str, *, filters: Filters | None = None) -> "DataFrame":
        """A table as of the last commit, or rows of it."""
        return self.lake.read(table, self.base_of(table), filters=filters)

    def base_rows(self, table: str) -> pa.Table:
        """All rows of a small table as of the last commit, read once for each version."""
        return self.memory.rows(self.lake, table, self.base_of(table))

    def prepare(self, plan: Plan, *, but: Collection[str] = ()) -> None:
        """Take back what earlier attempts have written, in all tables; bring these to the present format and spec.

        Args:
            plan: The batch that is to write.
            but: Tables that are left out.

        Raises:
            ForeignChangeError: Somebody else has changed rows since the last commit.
        """
        names = [table for table in self.tables if table not in but]
        prepare(self.lake, self.batches.base_versions(names), plan.attempt)
        migrate(self.lake, names, self.tell)
        for window in self.spec.windows:
            if tables.window_table(window.name) not in but:
                self.lake.set_change_feed(tables.window_table(window.name), on=window.change_feed)

    def ready(self, table: str, plan: Plan) -> int:
        """Version that the batch's write of a table has to expect, with what an earlier attempt wrote undone."""
        return take_back(self.lake, table, self.base_of(table), plan.attempt)

    def ready_for(self, table: str, plan: Plan, rows: "DataFrame") -> int:
        """As `ready`, with the columns that the rows have and the table lacks."""
        return self.lake.grow(table, rows.schema, attempt=plan.attempt, expect=self.ready(table, plan))

    def outputs(self, plan: Plan, *, but: Collection[str] = ()) -> dict[str, int]:
        """Version of each table that a batch is to commit, if it holds what it must and nothing else.

        Args:
            plan: The batch.
            but: Tables that are left out.

        Raises:
            ForeignChangeError: Somebody else has changed rows.
            ConflictError: Another attempt has written.
        """
        names = [table for table in self.tables if table not in but]
        return outputs(self.lake, self.batches.base_versions(names), plan.attempt)

    def positions_of(self, source: KafkaSource) -> Positions | None:
        """Where a source of Kafka stands behind the last ingestion; None before its first one."""
        last = self.reading.last_commit("ingest") if self.exists else None
        noted = last.plan.input.get(POSITIONS, {}).get(source.name) if last else None
        return None if noted is None else Positions.from_json(noted)

    @property
    def rules(self) -> TimeRules:
        """All that decides over the time of events; the partitions of Kafka are known from the first look at them."""
        splits: dict[str, tuple[str, ...]] = {}
        for source in self.spec.sources:
            if isinstance(source, KafkaSource) and source.split is None:
                positions = self.positions_of(source)
                splits[source.name] = positions.first_splits if positions is not None else ()
        return TimeRules.of(self.spec, splits)

    def log_end(self) -> int:
        """Number of records in the log, which is the next `_arrival_seq`."""
        last = self.reading.last_commit("ingest")
        return int(last.plan.end_seq or 0) if last else 0

    def log_clock_us(self) -> int | None:
        """Clock after the last record or tick of the log, microseconds; None before the first timed record."""
        processed = self.batches.last_commit("process")
        clocks = [self._read_clocks.get(LOG_CLOCK), tick_of(processed.plan) if processed else None]
        return max((us for us in clocks if us is not None), default=None)

    def last_arrivals(self) -> dict[str, LastArrival | None]:
        """The last arrival of each source that the log has; None before its first record with one."""
        last = self.reading.last_commit("ingest")
        counts = last.counts if last else {}
        found: dict[str, LastArrival | None] = {}
        for source in self.spec.sources:
            arrival_us, seen_us = (counts.get(f"{key}.{source.name}") for key in (LAST_ARRIVAL, LAST_SEEN))
            arrival_us = self._read_clocks.get(LAST_ARRIVAL, {source.name: arrival_us}).get(source.name)
            found[source.name] = None
            if arrival_us is not None and seen_us is not None:
                found[source.name] = LastArrival(arrival_us, seen_us)
        return found

    def first_clock_us(self) -> int | None:
        """Clock at the first timed record of the log, microseconds; None before it."""
        return self._read_clocks.get(FIRST_CLOCK) if self.exists else None

    @property
    def _read_clocks(self) -> Mapping[str, Any]:
        """The clocks of what was read, by their names in the counts of an ingestion.

        Without records that were excluded since the last one, they are others.
        """
        last, rebuilt = self.reading.last_commit("ingest"), self.reading.last_rebuild()
        if self.clocks is not None:
            return self.clocks
        if rebuilt is not None and CLOCKS in rebuilt.input and (last is None or last.batch_id < rebuilt.batch_id):
            known: Mapping[str, Any] = rebuilt.input[CLOCKS]
            return known
        return last.counts if last else {}

    def processed_end(self) -> int:
        """The first `_arrival_seq` that no committed batch has processed."""
        last = self.batches.last_commit("process")
        return int(last.plan.end_seq or 0) if last else 0

    def position(self) -> "Position":
        """The state after the last processed batch."""
        last = self.batches.last_commit("process")
        return self.position_after(last.batch_id) if last else Position()

    def position_after(self, batch_id: int) -> "Position":
        """The state that the time stage of a batch wrote."""
        return Position.of(self._pipeline_row(batch_id))

    def counts_of(self, batch_id: int) -> dict[str, int]:
        """The counts that the time stage of a batch wrote."""
        return dict(self._pipeline_row(batch_id)["counts"])

    def _pipeline_row(self, batch_id: int) -> Mapping[str, Any]:
        """The row of `watermarks` that a batch wrote for the whole pipeline: a committed one, or the one at work."""
        last = self.batches.last_commit()
        is_committed = last is not None and batch_id <= last.batch_id
        version = self.base_of(tables.WATERMARKS) if is_committed else self.lake.version(tables.WATERMARKS)
        return self.memory.pipeline_row(self.lake, batch_id, version)


def without_tables(file: SpecFile, session: "Callable[[], SparkSession]") -> Workspace:
    """Return a pipeline that has no tables, for work on its spec alone."""
    return Workspace(file, file.folder / ".no_warehouse", session)


@dataclass(frozen=True)
class Position:
    """Where a pipeline stands between two batches; microseconds since the epoch.

    Attributes:
        watermark_us: The watermark, with `over` the largest of all timelines; None before the first event. With
            `final` as it was before the flush, which is where a reopened pipeline goes on.
        max_t_us: Largest event time that moved it.
        set_by: `_arrival_seq` after which it had this value first; None where there are several timelines.
        clock_us: Clock after the last processed record.
        clock_before_period_us: Clock of the last record before the period of emission in which this clock lies; None
            where no rule asks for it.
        released: How many events have a `_release_seq`.
        final: The end of input was flushed: everything is released and closed.
    """

    watermark_us: int | None = None
    max_t_us: int | None = None
    set_by: int | None = None
    clock_us: int | None = None
    clock_before_period_us: int | None = None
    released: int = 0
    final: bool = False

    @classmethod
    def of(cls, row: Mapping[str, object]) -> "Position":
        """The position that a pipeline row of `watermarks` tells of."""
        return cls(
            watermark_us=_us(row["watermark_before_flush" if row["final"] else "watermark"]),
            max_t_us=_us(row["max_timestamp"]),
            set_by=_integer(row["watermark_set_by"]),
            clock_us=_us(row["clock"]),
            clock_before_period_us=_us(row["clock_before_period"]),
            released=_integer(row["released"]) or 0,
            final=bool(row["final"]),
        )


def _us(value: object) -> int | None:
    return us_of(value) if isinstance(value, datetime) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) else None


def plan_end(plan: Plan) -> int:
    """End of a processing plan's range of the log, which such a plan always knows."""
    return int(plan.end_seq or 0)


def tick_of(plan: Plan) -> int | None:
    """Clock of the tick behind a processing plan's range, microseconds; None for no tick."""
    return _integer(plan.input.get("tick_us"))


def waits_in(plan: Plan) -> frozenset[Waiter]:
    """Who was left waiting for others by an ingestion, or waits while a batch's range is judged."""
    return waiters_from_json(plan.input.get(WAITS, []))


def records_in(plan: Plan) -> int:
    """Number of records in a processing plan's range of the log."""
    return plan_end(plan) - plan.first_seq
