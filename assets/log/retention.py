"""The limits up to which `retention` has removed rows: every question about the past of tables has to know them.

Here: the limits by table, as `log_control` has them, and errors of who needs records that are gone. Not here:
removing rows (assets/upkeep/removal.py), how many they were, which `batches` counts (resources/batches/plans.py).

A rebuild makes rows again: of all tables, after which older items of the log do not count, or of some windows.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from tidemark.assets.log.control import RETENTION, recorded
from tidemark.resources import tables
from tidemark.resources.batches.plans import RebuildInput
from tidemark.resources.workspace import Workspace
from tidemark.timeops.columns import MIN_US, SEQ, TIMESTAMP
from tidemark.timeops.errors import SpecError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OF_WINDOW = (tables.window_table, tables.history_table)
_NUMBERS = ("before_seq", "until_us", "last_batch", "last_us", "clock_us")


@dataclass(frozen=True)
class Gone:
    """The rows that are gone of a table.

    Attributes:
        first_day: The first day that stays.
        before_seq: Of the log, dead letters and events: rows of records before this one are gone, but for what came
            into the table later. Of the log it is the first record of a batch. 0 of results.
        until_us: Of results: final ones that end at this instant or before it are gone, microseconds.
        last_batch: The newest batch that had written a removed row; -1 for none.
        last_us: Of events: the largest `_timestamp` of a removed one, microseconds. Of the log: an instant after
            which none of its removed records has one.
        clock_us: Of the log: its clock before the first record that stays, microseconds.
    """

    first_day: date
    before_seq: int = 0
    until_us: int = MIN_US
    last_batch: int = -1
    last_us: int = MIN_US
    clock_us: int = MIN_US

    def and_then(self, later: "Gone") -> "Gone":
        """Return what is gone after rows have been removed once more."""
        return Gone(
            max(self.first_day, later.first_day),
            max(self.before_seq, later.before_seq),
            max(self.until_us, later.until_us),
            max(self.last_batch, later.last_batch),
            max(self.last_us, later.last_us),
            max(self.clock_us, later.clock_us),
        )

    def to_json(self) -> dict[str, Any]:
        """Return it for `log_control`, without what says nothing."""
        nothing = Gone(self.first_day)
        numbers = {name: getattr(self, name) for name in _NUMBERS if getattr(self, name) != getattr(nothing, name)}
        return {"first_day": self.first_day.isoformat(), **numbers}

    @classmethod
    def from_json(cls, limits: Mapping[str, Any]) -> "Gone":
        """Return it from `log_control`, whatever else that says."""
        numbers = {name: int(limits[name]) for name in _NUMBERS if name in limits}
        return cls(date.fromisoformat(limits["first_day"]), **numbers)


def gone_of(workspace: Workspace) -> Mapping[str, Gone]:
    """Return what is gone of each table as of the last commit; nothing of tables that have all rows."""
    if not workspace.exists or not workspace.lake.exists(tables.LOG_CONTROL):
        return {}
    items = {item["_batch_id"]: item for item in recorded(workspace, RETENTION)}
    if not items:
        return {}
    gone_by_table: dict[str, Gone] = {}
    rebuilds = {commit.batch_id: RebuildInput.of(commit.plan) for commit in workspace.batches.history("rebuild")}
    for batch_id in sorted({*items, *rebuilds}):
        if batch_id in rebuilds:
            _rebuilt(gone_by_table, rebuilds[batch_id])
        else:
            for table, limits in json.loads(items[batch_id]["argument"])["tables"].items():
                removal, earlier = Gone.from_json(limits), gone_by_table.get(table)
                gone_by_table[table] = removal if earlier is None else earlier.and_then(removal)
    return gone_by_table


def _rebuilt(gone_by_table: dict[str, Gone], rebuild: RebuildInput) -> None:
    """Carry entries over to renamed tables, and drop the ones of windows that were rebuilt in full."""
    for new, old in rebuild.renamed.items():
        for table in _OF_WINDOW:
            if table(old) in gone_by_table:
                gone_by_table[table(new)] = gone_by_table.pop(table(old))
    if not rebuild.renamed:
        for name in rebuild.windows:
            for table in _OF_WINDOW:
                gone_by_table.pop(table(name), None)


def results_gone_until(workspace: Workspace, window: str) -> int:
    """Return the instant up to which final results of a window are gone, microseconds; MIN_US where none is."""
    return _gone_until(workspace, tables.window_table(window))


def _gone_until(workspace: Workspace, table: str) -> int:
    removal = gone_of(workspace).get(table)
    return MIN_US if removal is None else removal.until_us


def kept_results(workspace: Workspace, window: str, rows: "DataFrame") -> "DataFrame":
    """Return rows of results without the ones that end before what stays of a window's table."""
    until_us = results_gone_until(workspace, window)
    return rows if until_us == MIN_US else rows.where(f"unix_micros(window_end) > {until_us}")


def kept_answers(workspace: Workspace, join: str, rows: "DataFrame") -> "DataFrame":
    """Return answers of a join without the ones from before what stays of its table."""
    until_us = _gone_until(workspace, tables.join_table(join))
    return rows if until_us == MIN_US else rows.where(f"unix_micros({TIMESTAMP}) >= {until_us}")


def kept_letters(workspace: Workspace, rows: "DataFrame") -> "DataFrame":
    """Return dead letters without the ones of records before the first one whose letters stay."""
    before_seq = before_seq_of(workspace, tables.DEAD_LETTERS)
    return rows.where(f"coalesce({SEQ} >= {before_seq}, true)") if before_seq else rows


def before_seq_of(workspace: Workspace, table: str) -> int:
    """Return the first record whose dead letters, or whose event, stay."""
    removal = gone_of(workspace).get(table)
    return 0 if removal is None else removal.before_seq


def removed_log(workspace: Workspace) -> Gone | None:
    """Return what is gone of the log that a pipeline judges; None if it has its first record."""
    return gone_of(workspace.log_of or workspace).get(tables.RAW_EVENTS)


def log_begins_at(workspace: Workspace) -> int:
    """Return the first record that is in the log."""
    removal = removed_log(workspace)
    return 0 if removal is None else removal.before_seq


def records_gone_until(workspace: Workspace) -> int:
    """Return the instant up to which records of the log may be gone, microseconds; MIN_US where none is."""
    removal = removed_log(workspace)
    return MIN_US if removal is None else removal.last_us


def ensure_in_log(workspace: Workspace, first_seq: int, end_seq: int) -> None:
    """Check that the log has all records from one on and before another: nothing is computed from a part of them.

    Raises:
        SpecError: `retention` has removed some of them.
    """
    removal = removed_log(workspace)
    if removal is not None and first_seq < min(removal.before_seq, end_seq):
        needed = f"this needs its records from {first_seq:,} on"
        raise _refusal(workspace, removal, needed, f"something from {removal.before_seq:,} on")


def ensure_whole_log(workspace: Workspace, task: str) -> None:
    """Check that the log has its first record: `task` begins with it.

    Raises:
        SpecError: `retention` has removed it.
    """
    removal = removed_log(workspace)
    if removal is not None:
        raise _refusal(workspace, removal, f"{task} begins with the first one", "a log that has its first record")


def _refusal(workspace: Workspace, removal: Gone, needed: str, expected: str) -> SpecError:
    return SpecError(
        f"`retention` has removed the records of {workspace.spec.name} before {removal.before_seq:,}, which arrived "
        f"before {removal.first_day}, and {needed}",
        expected=expected,
        remedy="the tables stay as they are, and runs continue; a pipeline under another name can read the input "
        "again where that is still there",
    )


def first_days(workspace: Workspace) -> dict[str, date]:
    """Return the first day that stays, by the key of `retention` whose rows were removed."""
    days: dict[str, date] = {}
    for table, removal in gone_of(workspace).items():
        key = table if table in tables.BY_RECORD else "windows"
        days[key] = max(days.get(key, removal.first_day), removal.first_day)
    return dict(sorted(days.items()))
