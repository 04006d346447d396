"""The meaning of a changed spec for a pipeline, before anything is done: changes, work, and different results.

Here: the facts. Not here: what a change means (timeops/spec/changes.py), what is printed (pipelines/).
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidemark.assets.ingestion.waiting_input import never_taken, waiting_input
from tidemark.assets.log.control import due
from tidemark.assets.log.retention import log_begins_at
from tidemark.assets.log.spec_changes import changes_of_spec, ensure_one_file, way_on
from tidemark.assets.questions.what_if.preview import Preview, TableRows, preview
from tidemark.assets.rebuild.differences import WindowDifference, window_differences
from tidemark.assets.rebuild.plan import RebuildPlan, plan_to_spec
from tidemark.assets.rebuild.work import Work, work_of_rebuild, work_of_run
from tidemark.resources.places.place import Place
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import TidemarkError
from tidemark.timeops.spec.changes import Change, Meaning
from tidemark.timeops.spec.scope import Scope


@dataclass(frozen=True)
class SpecPlan:
    """The meaning of a spec for a pipeline as it is.

    Attributes:
        file: The spec and its file.
        folder: The folder of its tables.
        batch: The last commit; None before the first.
        since: When that was made.
        changes: The differences between the spec and the one that last processed the log.
        run: The work of a run; None if the input cannot be looked at.
        input_fault: Why it cannot; empty if it can.
        past: The work to compute the past again; None if no change requires it.
        rebuild: What `tidemark rebuild --to-spec` carries out, for all changes since all tables were rebuilt last;
            None if nothing was processed, or a change is refused.
        differs: The differences if the whole log had been judged by the spec; None if no change of time or windows
            requires them.
        never_taken: A sentence for each source that has columns which `schema` does not name.
        corrections: A sentence for each correction of records that no table has taken into account yet.
        corrected: The results and days that differ when a run does; empty where the spec asks for the past as well.
    """

    file: SpecFile
    folder: Place
    batch: int | None
    since: datetime | None
    changes: tuple[Change, ...]
    run: Work | None
    input_fault: str
    past: Work | None
    rebuild: RebuildPlan | None
    differs: Preview | None
    never_taken: tuple[str, ...]
    corrections: tuple[str, ...] = ()
    corrected: tuple[WindowDifference, ...] = ()

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self.file.spec.name

    @property
    def needs_decision(self) -> bool:
        """True if a run does not take all changes by itself: one needs the past, or is refused."""
        return any(change.needs_decision for change in self.changes)

    @property
    def meaning(self) -> Meaning:
        """The most that a change of it means."""
        order = list(Meaning)
        return max((change.meaning for change in self.changes), key=order.index, default=Meaning.NOTHING)

    @property
    def earlier(self) -> tuple[Change, ...]:
        """The changes that the rebuild makes up for and that were taken before the last commit."""
        return tuple(change for change in self.rebuild.changes if change not in self.changes) if self.rebuild else ()

    def to_dict(self) -> dict[str, Any]:
        """Return it in values of JSON, as `tidemark plan --json` prints it; instants are ISO 8601 in UTC."""
        return {
            "name": self.name,
            "tables": str(self.folder),
            "batch": self.batch,
            "since": None if self.since is None else self.since.isoformat(),
            "meaning": str(self.meaning),
            "needs_decision": self.needs_decision,
            "to_do": way_on(self.changes, self.file) if self.needs_decision else None,
            "changes": [self._change_as_dict(change) for change in self.changes],
            "run": _work_as_dict(self.run),
            "past": _work_as_dict(self.past),
            "rebuild": _rebuild_as_dict(self.rebuild),
            "would_differ": None if self.differs is None else _preview_as_dict(self.differs),
            "not_taken": list(self.never_taken),
            "corrections": list(self.corrections),
            "corrected": [
                {"window": window.window, **window.counts, "days": list(window.days)} for window in self.corrected
            ],
        }

    def _change_as_dict(self, change: Change) -> dict[str, Any]:
        return {
            "key": change.path,
            "place": self.file.place(change.keys(self.file.spec)).removesuffix(": "),
            "before": change.before,
            "now": change.now,
            "meaning": str(change.meaning),
            "sentence": change.sentence,
            "effect": change.effect,
            "windows": list(change.needed.windows),
        }


def _work_as_dict(work: Work | None) -> dict[str, Any] | None:
    if work is None:
        return None
    seconds = None if work.seconds is None else round(work.seconds, 1)
    return {"records": work.records, "files": work.files, "bytes": work.size, "seconds": seconds}


def _rebuild_as_dict(plan: RebuildPlan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        "all_tables": plan.scope.of_all,
        "windows": list(plan.scope.windows),
        "tables": list(plan.tables),
        "changes": [{"key": change.path, "sentence": change.sentence} for change in plan.changes],
        "work": _work_as_dict(plan.work) if plan.scope else None,
    }


def _preview_as_dict(differs: Preview) -> dict[str, Any]:
    return {
        "dead_letters": {
            reason: {"now": before, "then": after} for reason, (before, after) in differs.letters.items()
        },
        "windows": {window.name: _rows_as_dict(window) for window in differs.windows},
        "joins": {join.name: _rows_as_dict(join) for join in differs.joins},
    }


def _rows_as_dict(rows: TableRows) -> dict[str, Any]:
    return {
        "now": rows.before,
        "then": rows.after,
        "new": rows.new,
        "gone": rows.gone,
        "other": rows.other,
        "reopened": rows.reopened,
        "largest": dict(rows.largest),
    }


def plan_of(workspace: Workspace) -> SpecPlan:
    """Find what the spec means for the existing tables. Nothing is written.

    Spark is needed only where rows have to be computed by the spec.

    Raises:
        SpecError: An expression of the spec does not fit the columns; another file of its name made the tables.
        LakeError: A table is gone, or a file of it is missing or damaged.
    """
    ensure_one_file(workspace)
    workspace.ensure_whole()
    changes = tuple(changes_of_spec(workspace))
    last = workspace.batches.last_commit() if workspace.exists else None
    waiting, fault = None, ""
    try:
        waiting = waiting_input(workspace)
    except TidemarkError as error:
        fault = str(error)
    has_past = last is not None and workspace.progress.processed_end() > 0
    can_judge = has_past and not log_begins_at(workspace)  # without its first record nothing can be compared
    past = Scope.together(change.past for change in changes) if can_judge else Scope.NOTHING
    refused = any(change.meaning is Meaning.REFUSED for change in changes)
    rebuild = plan_to_spec(workspace) if has_past and not refused else None
    corrections = due(workspace).sentences
    return SpecPlan(
        file=workspace.file,
        folder=workspace.folder,
        batch=last.batch_id if last else None,
        since=last.committed_at if last else None,
        changes=changes,
        run=None if waiting is None else work_of_run(workspace, waiting),
        input_fault=fault,
        past=work_of_rebuild(workspace) if past else None,
        rebuild=rebuild,
        differs=preview(workspace, past) if past and not refused else None,
        never_taken=tuple(never_taken(workspace)),
        corrections=corrections,
        corrected=window_differences(workspace) if corrections and can_judge and not past and not refused else (),
    )
