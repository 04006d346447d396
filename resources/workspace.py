"""The parts that every stage of a pipeline works with: its spec, its tables, and the log of its batches.

Here: these parts of one pipeline in one warehouse. Not here: whether its tables are whole (resources/opening.py), its
position (resources/batches/position.py), the work of a stage (assets/), the rules (timeops/).
"""

import json
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.resources import tables
from tidemark.resources.batches.batch_log import BatchLog, unwatched
from tidemark.resources.batches.plans import BatchEvent, Plan
from tidemark.resources.batches.position import LogProgress
from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.migration import migrate
from tidemark.resources.delta.reading import without_spark
from tidemark.resources.delta.undoing import ForeignChange, foreign_changes, outputs, prepare, take_back
from tidemark.resources.delta.upkeep import keep_readable
from tidemark.resources.delta.versions import Filters
from tidemark.resources.opening import Memory, Opening
from tidemark.resources.places.checks import ensure_answers, ensure_folder
from tidemark.resources.places.place import Place
from tidemark.resources.settings import Clock
from tidemark.timeops.errors import LakeError, SpecError
from tidemark.timeops.errors.problems import Path as KeyPath
from tidemark.timeops.errors.problems import Problem, place_text, spec_error
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.rules.time_rules import TimeRules, Waiter
from tidemark.timeops.spec import JoinSpec, Spec
from tidemark.timeops.spec.changes import names_of_sources
from tidemark.timeops.spec.text import read_yaml

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


Noted = TypeVar("Noted")


@dataclass(frozen=True)
class SpecFile:
    """A spec and its file: relative paths in it start at the file's folder.

    Attributes:
        spec: The spec.
        path: The file, without links.
        named: The file as the operator named it, maybe over links; None if it was not named.
        text: The content of the file when it was read.
        shown: Its name in messages: as it was asked for, with the keys that were set on the command line.
        asset_keys: The keys in Dagster of tables that a project shows under others than `<pipeline>/<table>`.
    """

    spec: Spec
    path: Path
    named: Path | None = None
    text: str = field(default="", repr=False)
    shown: str = ""
    asset_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.shown or self.path.name

    @property
    def in_command(self) -> str:
        """Its name in a command: the path as the operator wrote it, with the keys set on the command line."""
        return " --set ".join(map(shlex.quote, self.name.split(" --set ")))

    def error(self, problems: Sequence[Problem]) -> SpecError:
        """Return the error that lists problems of this file by their lines."""
        return spec_error(self.name, problems, self._lines)

    def place(self, at: KeyPath) -> str:
        """Return the place of a key in the file, as `line 3, time.unit: `."""
        return place_text(at, self._lines)

    def line_of(self, at: KeyPath) -> int | None:
        """Return the line of a key in the file; None where it has no text."""
        return self._lines.get(at)

    @property
    def inputs(self) -> list[str]:
        """Paths and URLs from which its sources are read."""
        return [source.folder for source in self.spec.sources if source.folder is not None]

    @cached_property
    def _lines(self) -> Mapping[KeyPath, int]:
        return read_yaml(self.text).lines if self.text else {}

    @property
    def folder(self) -> Path:
        """Folder of the file."""
        return self.path.parent


@dataclass(frozen=True)
class Acceptance:
    """An operator's decision to commit a batch whatever its checks say."""

    batch_id: int
    reason: str


Watch = Callable[["Workspace", BatchEvent], None]
"""Is told when a batch of a pipeline begins, and how it ends."""


def silent(_doing: str) -> None:
    """Do nothing: for work that no operator watches."""


@dataclass(frozen=True, eq=False)
class Workspace:
    """One pipeline in one warehouse.

    Attributes:
        file: The spec.
        warehouse: Folder of all pipelines' tables.
        session: Returns the Spark session; called only when Spark is needed.
        clock: The wall clock.
        process: Returns the number of the process that its batches are owned by: when it ends, others may take over.
        accepted: A batch that an operator accepts although a blocking check failed.
        tell: Reports the current work to an operator who waits for it.
        watch: Is told when its batches begin and end; None for nothing.
        memory: Rows that were read before, shared by all that look at the same pipeline in one run.
        log_of: The pipeline whose log it judges, if it rebuilds that one's tables; None if it has its own log.
        windows_alone: Whether it rebuilds only some windows of that one, whose tables hold what is refused earlier.
        decided: Control items of this log in addition to `log_control`.
        clocks: The clocks of the log with these items; None if they are as stored.
    """

    file: SpecFile
    warehouse: Place
    session: "Callable[[], SparkSession]" = without_spark
    clock: Clock = field(default_factory=Clock)
    process: Callable[[], int] = os.getpid
    accepted: "Acceptance | None" = None
    tell: Callable[[str], None] = silent
    watch: Watch | None = None
    memory: Memory = field(default_factory=Memory, repr=False)
    log_of: "Workspace | None" = field(default=None, repr=False)
    windows_alone: bool = False
    decided: Sequence[Mapping[str, Any]] = ()
    clocks: Mapping[str, Any] | None = None

    @cached_property
    def spec(self) -> Spec:
        """The spec; a join whose `schema` is left out reads what its table had when the first batch had it.

        Raises:
            InputError: Before the first batch: the table cannot be read.
        """
        joins = [join for join in self.file.spec.joins if join.right.takes_all_columns]
        if not joins:
            return self.file.spec
        return self.file.spec.with_columns_of_tables({join.name: self._columns_read(join) for join in joins})

    def _columns_read(self, join: JoinSpec) -> str:
        """Return the columns that are read of the table on the right side of a join, as Spark DDL."""
        table = tables.right_rows_table(join.name)
        for place in (self, self.log_of):
            if place is not None and place.batches.exists and place.batches.base_versions([table])[table]:
                columns = tables.columns_of_right_rows(place.lake.columns(table))
                return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())
        if join.right.ddl is not None:
            return join.right.ddl
        from tidemark.resources.sources.reference import ReferenceTable  # noqa: PLC0415 - PySpark takes a second

        return ReferenceTable(join, self.file.folder).columns()

    def under(self, spec: Spec) -> "Workspace":
        """Return the same tables under another spec, with whatever was read from them before."""
        return replace(self, file=replace(self.file, spec=spec))

    @property
    def folder(self) -> Place:
        """Folder of the pipeline's tables."""
        return self.warehouse / self.file.spec.name

    @cached_property
    def lake(self) -> Lake:
        """The pipeline's tables.

        Raises:
            SpecError: A file is where their folder belongs.
            StoreFailureError: They are in a store that cannot be used.
        """
        ensure_folder(
            self.folder,
            f"The tables of {self.file.spec.name} belong in",
            "name another folder with --warehouse or TIDEMARK_WAREHOUSE",
        )
        ensure_answers(self.warehouse)
        # A rebuild judges the log of the pipeline that it rebuilds, where it is.
        elsewhere = {tables.RAW_EVENTS: self.log_of.lake.path(tables.RAW_EVENTS)} if self.log_of else {}
        return Lake(self.folder, self.session, self.memory.tables(self.folder, elsewhere))

    @cached_property
    def batches(self) -> BatchLog:
        """The log of batches."""
        return BatchLog(self.lake, self.memory.batches, partial(self.watch, self) if self.watch else unwatched)

    @property
    def progress(self) -> LogProgress:
        """The progress of the pipeline along its log."""
        read = self.log_of.batches if self.log_of else self.batches
        names = [source.name for source in self.spec.sources]
        return LogProgress(read, self.batches, names, self.by_source, self._watermarks_of, self.clocks)

    def _watermarks_of(self, batch_id: int) -> Mapping[str, Any]:
        last = self.batches.last_commit()
        is_committed = last is not None and batch_id <= last.batch_id
        version = self.base_of(tables.WATERMARKS) if is_committed else self.lake.version(tables.WATERMARKS)
        return self.memory.pipeline_row(self.lake, batch_id, version)

    @property
    def spark(self) -> "SparkSession":
        """The Spark session, started now if need be."""
        return self.session()

    @property
    def window_tables(self) -> dict[str, str]:
        """Table of each window, by name."""
        return {window.name: tables.window_table(window.name) for window in self.spec.windows}

    @property
    def tables(self) -> tuple[str, ...]:
        """Every table of the pipeline except `batches`, the log of the others, and tables of other pipelines."""
        released = (tables.ORDERED_EVENTS, tables.HELD_EVENTS) if self.spec.outputs.ordered_events else ()
        needed = dict.fromkeys(tables.needed_table(window) for window in self.spec.windows)
        flushed = [tables.flushed_table(window.name) for window in self.spec.windows]
        seen_groups = tuple(tables.seen_groups_table(window.name) for window in self.spec.windows if window.empty)
        timelines = (tables.TIMELINES,) if self.spec.keeps_timelines else ()
        first_times = (tables.FIRST_TIMES,) if self.spec.time.deduplicate_by else ()
        read = () if self.log_of else (tables.RAW_EVENTS, tables.FILES)
        return (
            *(*read, tables.LOG_CONTROL, tables.DEAD_LETTERS, tables.WATERMARKS),
            *released,
            *needed,
            *seen_groups,
            *flushed,
            *(tables.joining_table(join.name) for join in self.spec.joins),
            *(tables.right_rows_table(join.name) for join in self.spec.joins if join.has_table),
            *timelines,
            *first_times,
            *self.result_tables,
        )

    @property
    def result_tables(self) -> tuple[str, ...]:
        """The tables of results: of each window, of its history if it keeps one, and of each join."""
        history = [tables.history_table(window.name) for window in self.spec.windows if window.history]
        return (*self.window_tables.values(), *history, *(tables.join_table(join.name) for join in self.spec.joins))

    @property
    def exists(self) -> bool:
        """Return whether the pipeline's tables have been made.

        Raises:
            LakeError: The log of batches is missing, but other tables are not.
        """
        if self.batches.exists:
            return True
        if not self.memory.is_looked_at:
            self.opening.ensure_none_is_left()
            self.memory.is_looked_at = True
        return False

    @property
    def opening(self) -> Opening:
        """The tables as a run finds them."""
        return Opening(self.lake, self.batches, self.tables, self._base_of)

    def ensure_whole(self) -> None:
        """Check, once in a run, that all tables are as the last commit left them; errors as of `Opening`."""
        if not self.memory.is_looked_at and self.exists:
            self.opening.ensure_whole()
            self.memory.is_looked_at = True

    @property
    def is_prepared(self) -> bool:
        """Return whether all tables have been made, for this very spec."""
        last = self.batches.last_commit() if self.exists else None
        return last is not None and last.plan.fingerprint == self.spec.fingerprint()

    def base(self) -> Mapping[str, int]:
        """Return the version of each table that the batch at work starts from, see `base_of`."""
        committed = self.batches.base_versions(self.tables)
        return {table: self._base_of(table, version) for table, version in committed.items()}

    @property
    def base_of_existing(self) -> dict[str, int]:
        """Return the same of the tables that exist: a window that is new in the spec has none yet."""
        return {table: self.base_of(table) for table in self.tables if self.lake.exists(table)}

    @property
    def changes_by_others(self) -> list[ForeignChange]:
        """Return the changes of rows by other programs since the last commit; none for a pipeline without tables."""
        return foreign_changes(self.lake, self.base_of_existing) if self.exists else []

    def base_of(self, table: str) -> int:
        """Return the version of a table that the batch at work starts from: it has the rows of the last commit.

        After maintenance that is the newest such version: older ones may have lost their files.
        """
        if self.log_of and table == tables.RAW_EVENTS:
            return self.log_of.base_of(table)
        return self._base_of(table, self.batches.base_versions([table])[table])

    def _base_of(self, table: str, committed: int) -> int:
        try:
            latest = self.lake.version(table, committed)
        except LakeError:  # the table no longer exists; its user reports the error
            return committed
        return self.memory.newest_with_rows_of(self.lake, table, committed, latest)

    def read_base(self, table: str, *, filters: Filters | None = None) -> "DataFrame":
        """Return a table as of the last commit, or rows of it."""
        return self.lake.read(table, self.base_of(table), filters=filters)

    def base_rows(self, table: str) -> pa.Table:
        """Return all rows of a small table as of the last commit, read once for each version."""
        return self.memory.rows(self.lake, table, self.base_of(table))

    def prepare(self, plan: Plan, *, but: Collection[str] = ()) -> None:
        """Take back the writes of earlier attempts in all tables; bring these to the present format and spec.

        Raises:
            ForeignChangeError: Another writer has changed rows since the last commit.
        """
        names = [table for table in self.tables if table not in but]
        committed = self.batches.base_versions(names)
        prepare(self.lake, committed, plan.attempt)
        for table, version in committed.items():
            self.lake.state_bounds(table)
            keep_readable(self.lake, table, version)
        migrate(self.lake, names, self.tell)
        for window in self.spec.windows:
            if tables.window_table(window.name) not in but:
                self.lake.set_change_feed(tables.window_table(window.name), on=window.change_feed)

    def ready(self, table: str, plan: Plan) -> int:
        """Return the version of a table before the batch's write, with writes of earlier attempts undone."""
        return take_back(self.lake, table, self.base_of(table), plan.attempt)

    def ready_for(self, table: str, plan: Plan, rows: "DataFrame") -> int:
        """Return the version like `ready`, after adding the columns that the rows have and the table lacks."""
        return self.lake.grow(table, rows.schema, attempt=plan.attempt, expect=self.ready(table, plan))

    def outputs(self, plan: Plan, *, but: Collection[str] = ()) -> dict[str, int]:
        """Return the version of each table that a batch is to commit, if it holds what it must and nothing else.

        Raises:
            ForeignChangeError: Another writer has changed rows.
            ConflictError: Another attempt has written.
        """
        names = [table for table in self.tables if table not in but]
        return outputs(self.lake, self.batches.base_versions(names), plan.attempt)

    @property
    def source_names(self) -> Mapping[str, str]:
        """The present names of sources by their former ones: stored rows may have either.

        Every name that a source takes is committed with a rebuild, or with a batch of that kind.
        """
        log = self.log_of or self
        last = log.batches.last_commit() if log.exists else None
        is_as_before = last is not None and last.plan.fingerprint == self.spec.fingerprint()
        if last is None or (is_as_before and not log.batches.has_any("rebuild")):
            return {}
        return _names_of_sources((*log.spec_items, self.spec.canonical_json()))

    @property
    def spec_items(self) -> tuple[str, ...]:
        """The specs that the log was ever processed with, in order, as canonical JSON."""
        if not self.lake.exists(tables.LOG_CONTROL):
            return ()
        items = self.base_rows(tables.LOG_CONTROL)
        items = items.filter(pc.equal(items["kind"], tables.SPEC_ITEM)).sort_by("_control_seq")
        return tuple(items["argument"].to_pylist())

    def by_source(self, noted: Mapping[str, Noted]) -> dict[str, Noted]:
        """Return notes about sources, by the present names of the sources."""
        names = self.source_names if noted else {}  # which reads the log of batches
        return {names.get(name, name): note for name, note in noted.items()}

    def named_now(self, waiters: Iterable[Waiter]) -> frozenset[Waiter]:
        """Return the waiting sources and splits, by the names that sources have now."""
        names, waiting = self.source_names, list(waiters)
        return frozenset(
            names.get(waiter, waiter) if isinstance(waiter, str) else (names.get(waiter[0], waiter[0]), waiter[1])
            for waiter in waiting
        )

    @property
    def rules(self) -> TimeRules:
        """The rules that decide on the time of events; the partitions of Kafka are known after the first look."""
        splits: dict[str, tuple[str, ...]] = {}
        for source in self.spec.sources:
            if source.is_read_by_split:
                positions = self.progress.positions_of(source)
                splits[source.name] = positions.first_splits if positions is not None else ()
        return TimeRules.of(self.spec, splits)


@lru_cache(maxsize=8)
def _names_of_sources(specs: tuple[str, ...]) -> Mapping[str, str]:
    return MappingProxyType(names_of_sources([json.loads(spec) for spec in specs]))


def without_tables(file: SpecFile, session: "Callable[[], SparkSession]") -> Workspace:
    """Return a pipeline without tables, for work that only needs its spec."""
    return Workspace(file, file.folder / ".no_warehouse", session)
