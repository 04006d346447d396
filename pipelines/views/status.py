"""The status of a pipeline: what its tables, its sources and its last checks say, without Spark and without Dagster.

Here: the facts, for commands and as `tm.status`. Not here: what is printed (pipelines/commands/looking.py), the page
for the browser (pipelines/views/report/).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any

from tidemark.assets.alarms.alerts import DEAD_LETTER_RATE
from tidemark.assets.alarms.conditions import look_at_pipeline
from tidemark.assets.alarms.losses.of_batch import lost_lately
from tidemark.assets.ingestion.waiting_input import Waiting
from tidemark.assets.log.control import corrections_after
from tidemark.assets.log.exclusions import excluded
from tidemark.assets.log.retention import first_days
from tidemark.assets.rebuild.decisions.erasing import unfinished
from tidemark.assets.rebuild.decisions.forgetting import blanked
from tidemark.assets.rebuild.shadow import begun
from tidemark.pipelines.command_line import SPECS
from tidemark.pipelines.spec_files import read_spec
from tidemark.pipelines.views.terminal import by_hand, changed_by_hand
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, Counts, Plan
from tidemark.resources.batches.position import Position
from tidemark.resources.places.place import Place
from tidemark.resources.settings import from_environment
from tidemark.resources.workspace import Workspace
from tidemark.timeops.values.utc import instant_of


@dataclass(frozen=True)
class Status:
    """A pipeline as of its last commit, and the input that waits.

    Attributes:
        name: Its name.
        folder: The folder of its tables.
        records: How many the log has.
        processed: How many of them committed batches have processed.
        position: The position in its log; `watermark` and `is_flushed` are of it.
        delay: Wall clock minus the watermark; None without a watermark.
        held: Events that the watermark has not passed; None without `ordered_events`.
        dead_letters: Rows of `dead_letters`.
        by_hand: What was erased or added by hand of the tables of events, in words.
        last: The last commit of a batch that wrote results, whatever its kind; else the last one; None before the
            first.
        at_work: The batch that a live process works on.
        waiting: The input that the log lacks.
        ended: Tables of windows and joins that are not in the spec any more.
        excluded: How many records an operator has taken out of the log.
        corrected: The last correction by a table that is read, in a sentence; empty if there was none.
        rebuild_begun: The progress of a rebuild that has begun and not ended, in words; empty for none.
        lost: What was lost of the newest day, and why and what to do, in two lines; empty where nothing was, or where
            `wrong` says so.
        wrong: A sentence or two for each thing that needs the operator.
        reads_files_only: True if all that waits are files.
        forgotten: How many records are forgotten.
        forgetting: `tidemark forget` has not come to its end.
        kept_from: By key of `retention`, the first day whose rows stay; older ones were removed.
    """

    name: str
    folder: Place
    records: int
    processed: int
    position: Position
    delay: timedelta | None
    held: int | None
    dead_letters: int
    by_hand: tuple[str, ...]
    last: Commit | None
    at_work: Plan | None
    waiting: Waiting
    ended: tuple[str, ...]
    excluded: int
    corrected: str
    rebuild_begun: str
    lost: tuple[str, ...]
    wrong: tuple[str, ...]
    reads_files_only: bool
    forgotten: int
    forgetting: bool
    kept_from: Mapping[str, date]

    @property
    def watermark(self) -> datetime | None:
        """The watermark, in UTC; None before the first event and after a flush."""
        watermark_us = None if self.position.final else self.position.watermark_us
        return None if watermark_us is None else instant_of(watermark_us)

    @property
    def is_flushed(self) -> bool:
        """Return whether the end of input was flushed: everything is released and closed."""
        return self.position.final

    def to_json(self) -> dict[str, Any]:
        """Return what `tidemark status --json` prints; instants are ISO 8601 in UTC."""
        last, plan, waiting = self.last, self.at_work, self.waiting
        return {
            "name": self.name,
            "tables": str(self.folder),
            "records": self.records,
            "processed": self.processed,
            "watermark": None if self.watermark is None else self.watermark.isoformat(),
            "flushed": self.is_flushed,
            "watermark_delay_seconds": None if self.delay is None else self.delay.total_seconds(),
            "held": self.held,
            "dead_letters": self.dead_letters,
            "by_hand": list(self.by_hand),
            "excluded": self.excluded,
            "forgotten": self.forgotten,
            "forgetting": self.forgetting,
            "kept_from": {key: day.isoformat() for key, day in self.kept_from.items()},
            "corrected": self.corrected or None,
            "ended": list(self.ended),
            "rebuild_begun": self.rebuild_begun or None,
            "last_batch": last
            and {
                "batch": last.batch_id,
                "kind": last.plan.kind,
                "committed_at": last.committed_at.isoformat(),
                "records": (last.plan.end_seq or 0) - last.plan.first_seq,
                "seconds": last.took.total_seconds(),
                "accepted_because": last.reason,
            },
            "at_work": plan
            and {
                "batch": plan.batch_id,
                "kind": plan.kind,
                "owner": str(plan.owner),
                "since": plan.planned_at.isoformat(),
            },
            "files": {
                "new": waiting.new,
                "young": len(waiting.settling_files),
                "held_back": len(waiting.errors),
                "copies": len(waiting.copies),
            },
            "lost": list(self.lost),
            "wrong": list(self.wrong),
        }


def status(spec: str | PathLike[str], *, warehouse: str | PathLike[str] | Place | None = None) -> Status:
    """Look at a pipeline as of its last commit, and at the input that waits, without Spark; nothing is written.

    Args:
        spec: The path of a spec file.
        warehouse: The folder of all tables, or its URL; by default `TIDEMARK_WAREHOUSE`, else `./warehouse`.

    Raises:
        SpecError: The spec is wrong.
        LakeError: A table is gone, or a file of it is missing or damaged.
    """
    return status_of(Workspace(read_spec(Path(spec)), from_environment(SPECS, warehouse=warehouse).warehouse))


def status_of(workspace: Workspace) -> Status:
    """Look at a pipeline. Nothing is written.

    Raises:
        LakeError: A table is gone, or a file of it is missing or damaged.
    """
    workspace.ensure_whole()
    last = workspace.batches.last_commit() if workspace.exists else None
    look = look_at_pipeline(workspace)
    is_said = any(condition.name == DEAD_LETTER_RATE.name for condition in look.conditions)
    return Status(
        name=workspace.spec.name,
        folder=workspace.lake.root,
        records=workspace.progress.log_end() if last else 0,
        processed=workspace.progress.processed_end() if last else 0,
        position=workspace.progress.position() if last else Position(),
        delay=look.delay,
        held=_rows(workspace, tables.HELD_EVENTS) if workspace.spec.outputs.ordered_events else None,
        dead_letters=_rows(workspace, tables.DEAD_LETTERS) - sum(_counts(workspace).replayed.values()),
        by_hand=tuple(_by_hand(workspace)) if last else (),
        last=_last_of_results(workspace) or last,
        at_work=look.at_work,
        waiting=look.waiting,
        ended=_ended(workspace, last) if last else (),
        excluded=len(excluded(workspace).by_hand),
        corrected=next(reversed(corrections_after(workspace, -1)), "") if last else "",
        rebuild_begun=begun(workspace) if last else "",
        lost=() if is_said else lost_lately(workspace),
        wrong=tuple(condition.sentence for condition in look.conditions),
        reads_files_only=workspace.spec.reads_files_only,
        forgotten=len(blanked(workspace)) if last else 0,
        forgetting=bool(unfinished(workspace)) if last else False,
        kept_from=first_days(workspace) if last else {},
    )


def _last_of_results(workspace: Workspace) -> Commit | None:
    """Return the last commit of a batch that did more than read input; None without one."""
    if not workspace.exists:
        return None
    commits = [
        workspace.batches.last_commit(kind) for kind in ("process", "backfill", "change", "rebuild", "retention")
    ]
    return max(filter(None, commits), key=lambda commit: commit.batch_id, default=None)


def _ended(workspace: Workspace, last: Commit) -> tuple[str, ...]:
    results = [table for table in last.table_versions if table.startswith(("windows/", "history/", "joins/"))]
    return tuple(sorted({*results} - {*workspace.result_tables}))


def _rows(workspace: Workspace, table: str) -> int:
    """Count the rows of a table as of the last commit, by its log alone."""
    if not workspace.exists or not workspace.lake.exists(table):
        return 0
    return workspace.lake.row_count(table, workspace.base_of(table))


def _by_hand(workspace: Workspace) -> list[str]:
    base, in_all = workspace.base(), _counts(workspace)
    return by_hand(changed_by_hand(workspace.lake, base, workspace.spec, in_all, workspace.progress.log_end()))


def _counts(workspace: Workspace) -> Counts:
    return Counts.sum(commit.counts for commit in workspace.batches.counted()) if workspace.exists else Counts()
