"""Removing old rows, as `retention` of the spec says: which rows have become old, and the batch that removes them.

Here: the days by the log's own clock, the rows of each table, one commit of all of them. Not here: what others have
to know of it afterwards (assets/log/retention.py), the files of a table (resources/delta/lake.py), when it is done
(pipelines/code_location/upkeep.py).

Days go by the clock of the log, never by the machine's: a stopped pipeline loses nothing. What later
batches need is in tables of state, and rows that may change still are not final, so neither is removed here.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.compute as pc

from tidemark.assets.log.control import RETENTION, control_item, write_items
from tidemark.assets.log.exclusions import PRESENT_CLOCK, clocks_of, excluded
from tidemark.assets.log.retention import Gone
from tidemark.assets.planning import at_work, begin
from tidemark.assets.rebuild.shadow import when_free
from tidemark.assets.state.checkpoints import START, checkpoints_of, has_state
from tidemark.resources import tables
from tidemark.resources.batches.plans import (
    REFUSED_PREFIX,
    REMOVED_OF_SOURCE,
    REMOVED_PREFIX,
    REMOVED_RELEASES,
    REPLAYED_PREFIX,
    Plan,
)
from tidemark.resources.batches.position import Position
from tidemark.resources.delta.queries import grouped_rows
from tidemark.resources.delta.versions import Filters, Version, arrow_condition
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.rules.reasons import Stage
from tidemark.timeops.values.durations import format_duration, roughly
from tidemark.timeops.values.utc import Instant, begin_of, instant_of, us_of

_DAY = timedelta(days=1)


@dataclass(frozen=True)
class OldRows:
    """The old rows of a table.

    Attributes:
        table: The table.
        key: The key of `retention` that has it.
        where: Which rows of it these are.
        gone: What is gone of the table once they are removed.
        rows: How many they are.
        counts: The same by what had counted them, by the names in `batches`.
    """

    table: str
    key: str
    where: Filters = field(repr=False)
    gone: Gone
    rows: int
    counts: Mapping[str, int] = field(repr=False)


@dataclass(frozen=True)
class Removal:
    """The result of a look for old rows, or of removing them.

    Attributes:
        old: The rows, by table; without tables that have none.
        waits: Why nothing was removed although rows may be old; empty if that is not so.
        freed: Bytes of the files that the tables no longer name.
    """

    old: tuple[OldRows, ...] = ()
    waits: str = ""
    freed: int = 0

    @property
    def rows(self) -> int:
        """How many rows it is about."""
        return sum(old.rows for old in self.old)


def remove_old(workspace: Workspace, run_id: str) -> Removal:
    """Remove the rows that have become old, in one commit, as soon as no run is at work; without Spark.

    Killed anywhere, it leaves the tables as they were, or can be repeated.

    Raises:
        LakeError: A table is lost, damaged, or was changed by another program.
    """
    if workspace.spec.retention is None or not workspace.exists:
        return Removal()

    def take_on() -> tuple[Removal, Plan | None]:
        removal = old_rows(workspace)
        if not removal.old:
            return removal, None
        last, end = workspace.batches.last_commit(), workspace.progress.processed_end()
        assert last is not None  # it has written the rows
        fingerprint = last.plan.fingerprint  # the next run applies all that the spec has changed
        names = {"tables": [old.table for old in removal.old]}
        return removal, begin(
            workspace, run_id, "retention", names, after=last, seqs=(end, end), fingerprint=fingerprint
        )

    removal, plan = when_free(workspace, take_on)
    if plan is None:
        return removal
    with at_work(workspace, plan):
        for table in workspace.base_of_existing:
            workspace.ready(table, plan)  # an unfinished attempt may have written any of them
        freed = sum(_remove(workspace, plan, old) for old in removal.old)
        write_items(workspace, plan, [_item(workspace, removal)])
        counts = Counter[str]()
        for old in removal.old:
            counts.update({f"{REMOVED_PREFIX}{name}": n for name, n in old.counts.items()})
        missing = [table for table in workspace.tables if not workspace.lake.exists(table)]
        versions = workspace.outputs(plan, but=missing)
        workspace.batches.commit(plan, counts, versions, workspace.clock.now(), reason="retention")
    return replace(removal, freed=freed)


def _remove(workspace: Workspace, plan: Plan, old: OldRows) -> int:
    workspace.tell(f"removing {plural(old.rows, 'row')} of {old.table} from before {old.gone.first_day}")
    lake, expect = workspace.lake, workspace.ready(old.table, plan)
    bytes_before = sum(lake.opened.version_at(old.table, expect).sizes.values())
    written = lake.remove_old(old.table, old.where, attempt=plan.attempt, expect=expect)
    return bytes_before - sum(lake.opened.version_at(old.table, written.version).sizes.values())


def _item(workspace: Workspace, removal: Removal) -> dict[str, Any]:
    """Return the item of the log that says what is gone."""
    by_table = {old.table: {**old.gone.to_json(), "rows": old.rows} for old in removal.old}
    return control_item(
        workspace.progress.processed_end() - 1,
        RETENTION,
        f"{plural(removal.rows, 'row')} had become old",
        clock_us=workspace.progress.position().clock_us,
        argument=json.dumps({"tables": by_table}, separators=(",", ":")),
    )


def old_rows(workspace: Workspace) -> Removal:
    """Return the rows that retention would remove now, without removing them."""
    spec = workspace.spec
    if spec.retention is None or not workspace.exists or workspace.progress.processed_end() == 0:
        return Removal()
    position = workspace.progress.position()
    if why := _why_not(workspace, position):
        return Removal(waits=why)
    of_tables = [*_of_records(workspace, position), *_of_results(workspace, position)]
    return Removal(tuple(old for old in of_tables if old.rows))


def _why_not(workspace: Workspace, position: Position) -> str:
    """Return why nothing may be removed now, in a sentence; empty if it may."""
    pending = workspace.batches.pending("process")
    if pending is not None and pending.is_left(workspace.clock.now()):  # an operator may accept it by its number
        return f"batch {pending.batch_id} is not committed: old rows are removed once it is, see `tidemark status`"
    if position.clock_us is None:
        return ""
    ahead, allowed = instant_of(position.clock_us) - workspace.clock.now(), workspace.spec.alerts.far_ahead
    if ahead > allowed:
        return (
            f"the clock of the log is {roughly(ahead)} ahead of this machine's, and `alerts.far_ahead` allows "
            f"{format_duration(allowed)}: by it, rows would become old too early. `tidemark rejudge` takes a record "
            "out of the log that arrived in the future; or correct the clock of this machine"
        )
    return ""


def _of_records(workspace: Workspace, position: Position) -> Iterator[OldRows]:
    """Yield the old rows of tables with rows of records: a day is that of the clock at the record."""
    retention = workspace.spec.retention
    assert retention is not None  # looked at before
    if position.clock_us is None:
        return
    of_table = dict(zip(tables.BY_RECORD, (_old_records, _old_letters, _old_events), strict=True))
    for table in tables.BY_RECORD:
        length = retention.of[table]
        first = None if length is None else _first_day(position.clock_us, length, "UTC")
        if first is not None and workspace.lake.exists(table):
            yield of_table[table](workspace, first, _first_record_of(workspace, us_of(begin_of(first, "UTC"))))


def _old_records(workspace: Workspace, first: date, before_seq: int) -> OldRows:
    """Return the old records of the log, as far as the state after them is known: others begin with it.

    So whole batches go, and where timelines have a state of their own only batches since the last rebuild, which has
    left the state at its end alone.
    """
    table, names = tables.RAW_EVENTS, workspace.source_names
    [*_, begin] = [START, *(place for place in checkpoints_of(workspace) if place.end_seq <= before_seq)]
    begin = begin if has_state(workspace, begin) else START
    counts, values, of_source = Counter[str](), {"n": "count(*)"}, REMOVED_OF_SOURCE.removeprefix(REMOVED_PREFIX)
    where = f"{c.SEQ} < {begin.end_seq}"
    for row in grouped_rows(workspace.lake, table, where, (c.SOURCE,), values, version=workspace.base_of(table)):
        counts[f"{of_source}{names.get(row[c.SOURCE], row[c.SOURCE])}"] += row["n"]
    rows, position = counts.total(), begin.position
    numbers = {"last_us": position.reached_us, "clock_us": position.clock_us}
    instants = {name: us for name, us in numbers.items() if us is not None}
    limits = Gone(first, before_seq=begin.end_seq, **instants)
    return OldRows(table, table, [(c.SEQ, "<", begin.end_seq)], limits, rows, {table: rows, **counts})


def _old_letters(workspace: Workspace, first: date, before_seq: int) -> OldRows:
    table, by, rows, last = tables.DEAD_LETTERS, ("stage", "window_name", "reason"), 0, -1
    values = {"is_out": "replayed_at IS NULL", "n": "count(*)", "last": f"max({c.BATCH})"}
    version, counts = workspace.base_of(table), Counter[str]()
    for row in grouped_rows(workspace.lake, table, f"{c.SEQ} < {before_seq}", by, values, version=version):
        rows, last = rows + row["n"], max(last, row["last"])
        counts[name_of_letters(row)] += row["n"]
    limits = Gone(first, before_seq=before_seq, last_batch=last)
    return OldRows(table, "dead_letters", [(c.SEQ, "<", before_seq)], limits, rows, counts)


def name_of_letters(row: Mapping[str, Any]) -> str:
    """Return the name of the count of dead letters with a stage, window and reason; `is_out`: not let in since."""
    if not row["is_out"]:
        return f"{REPLAYED_PREFIX}{row['reason']}"
    of_accepted = row["stage"] in (Stage.WINDOW, Stage.JOIN)
    return f"{row['window_name']}.{row['reason']}" if of_accepted else f"{REFUSED_PREFIX}{row['reason']}"


def _old_events(workspace: Workspace, first: date, before_seq: int) -> OldRows:
    table = tables.ORDERED_EVENTS
    values = {
        "n": "count(*)",
        "released": f"count({c.RELEASE_SEQ})",
        "last": f"max({c.BATCH})",
        "us": f"max(epoch_us({c.TIMESTAMP}))",
    }
    [row] = grouped_rows(
        workspace.lake, table, f"{c.SEQ} < {before_seq}", (), values, version=workspace.base_of(table)
    )
    limits = Gone(first, before_seq=before_seq)
    if row["n"]:
        limits = replace(limits, last_batch=row["last"], last_us=row["us"])
    counts = {table: row["n"], REMOVED_RELEASES.removeprefix(REMOVED_PREFIX): row["released"]}
    return OldRows(table, "ordered_events", [(c.SEQ, "<", before_seq)], limits, row["n"], counts)


def _of_results(workspace: Workspace, position: Position) -> Iterator[OldRows]:
    """Yield the old rows of results: a day is that of their end, behind the watermark and the clock.

    A watermark that a wrong time has driven ahead of the clock makes nothing old, and results of a past that arrived
    late stay as long as ones that came at their time.
    """
    retention, zone = workspace.spec.retention, workspace.spec.partitions.time_zone
    assert retention is not None  # looked at before
    clocks = [position.clock_us, position.watermark_us]
    if retention.windows is None or None in clocks:
        return
    first = _first_day(min(us for us in clocks if us is not None), retention.windows, zone)
    if first is None:
        return
    until_us = us_of(begin_of(first, zone))
    for window in workspace.spec.windows:
        table, history = tables.window_table(window.name), tables.history_table(window.name)
        if not workspace.lake.exists(table):
            continue
        final: Filters = [("_is_final", "=", True), ("window_end", "<=", Instant(until_us))]
        yield _old_results(workspace, table, first, until_us, final)
        if window.history and workspace.lake.exists(history):
            closed_us = (position.watermark_us or 0) - window.allowed_lateness_us  # `having` may hide open ones
            of_open_us = min(until_us, closed_us, _first_open_us(workspace, table, until_us))
            closed: Filters = [("window_end", "<=", Instant(of_open_us))]
            yield _old_results(workspace, history, first, of_open_us, closed)
    for table in (tables.join_table(join.name) for join in workspace.spec.joins):
        if workspace.lake.exists(table):
            final = [("_is_final", "=", True), (c.TIMESTAMP, "<", Instant(until_us))]
            yield _old_results(workspace, table, first, until_us, final)


def _first_open_us(workspace: Workspace, table: str, until_us: int) -> int:
    """Return the first start of results that may change still, microseconds: a history keeps all from there on."""
    of_open: Filters = [("_is_final", "=", False), ("window_end", "<=", Instant(until_us))]
    rows = workspace.lake.rows(table, workspace.base_of(table), columns=["window_start"], filters=of_open)
    first: Any = pc.min(rows["window_start"].cast("int64")).as_py()
    return c.MAX_US if first is None else int(first)


def _old_results(workspace: Workspace, table: str, first: date, until_us: int, where: Filters) -> OldRows:
    version = workspace.lake.opened.version_at(table, workspace.base_of(table))
    with version.reading():
        rows = version.dataset.count_rows(filter=arrow_condition(where))
    return OldRows(table, "windows", where, Gone(first, until_us=until_us), rows, {table: rows})


def _first_day(now_us: int, length: timedelta, zone: str) -> date | None:
    """Return the first day that stays: so many whole days before the one of an instant; None for none."""
    today = instant_of(now_us).astimezone(ZoneInfo(zone)).date()
    days = length // _DAY
    return today - length if (today - date.min).days > days + 1 else None


def _first_record_of(workspace: Workspace, limit_us: int) -> int:
    """Return the first record at which the clock of the log has reached an instant, or the end of what was judged.

    The clock never goes back, so the records before it are all that came earlier.
    """
    end, out = workspace.progress.processed_end(), excluded(workspace)
    if out.clock_until:  # records with wrong arrivals were taken out: stored clocks are not the ones of the log
        clocks = clocks_of(workspace, 0, end, out)
        later_seqs = clocks.filter(pc.greater_equal(clocks[PRESENT_CLOCK].cast("int64"), limit_us))[c.SEQ]
        return int(min([end, *later_seqs.to_pylist()[:1]]))
    version = workspace.lake.opened.version_at(tables.RAW_EVENTS, workspace.base_of(tables.RAW_EVENTS))
    return min(end, _first_in(version, [(c.CLOCK, ">=", Instant(limit_us))], end))


def _first_in(version: Version, where: Filters, end: int) -> int:
    """Return the lowest number of a matching record; few files are opened, as they lie in the order of the log."""
    bounds, first = version.bounds_by_file(c.SEQ), end
    for file in sorted(version.files_with(where), key=lambda path: bounds.get(path, (0, 0))[0]):
        if bounds.get(file, (0, 0))[0] >= first:
            break
        rows = version.rows_of([file], [c.SEQ, c.CLOCK]).filter(arrow_condition(where))
        first = min(first, end if not rows.num_rows else pc.min(rows[c.SEQ]).as_py())
    return first
