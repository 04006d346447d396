"""An audit of a whole pipeline as of its last commit: its parts in order, and what could not be audited.

Here: which parts run, on what they may rely. It only reads, without a lock: runs may commit meanwhile, and it goes on as
of the commit that it began with. Not here: the parts (the other files of this room), the command's words
(pipelines/commands/auditing.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemark.assets.audit.counts import audit_counts
from tidemark.assets.audit.files import audit_files
from tidemark.assets.audit.findings import Finding
from tidemark.assets.audit.log import audit_log, audit_releases
from tidemark.assets.audit.verdicts import audit_verdicts
from tidemark.assets.audit.windows import audit_windows
from tidemark.assets.rebuild.plan import plan_to_spec
from tidemark.assets.spec_changes import changes_of_spec, spec_before
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, RebuildInput
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import LakeError, SpecError


@dataclass(frozen=True)
class Audit:
    """The result of an audit.

    Attributes:
        batch: The last batch that was committed when it began; None where nothing was committed, or nothing is known.
        records: How many records of the log were judged up to there.
        findings: What is wrong.
        notes: What could not be audited, and why.
    """

    batch: int | None
    records: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    def to_list(self, workspace: Workspace) -> list[dict[str, Any]]:
        """Return the findings as JSON shows them."""
        return [finding.to_dict(workspace) for finding in self.findings]


def audit(workspace: Workspace) -> Audit:
    """Audit all that a pipeline has stored; nothing is written.

    Every file of the last commit, and of earlier ones that are kept, is there and can be read. Nobody has changed
    rows. The log has no hole and no double. The tables hold what the batches counted. Every record is where a second
    opinion on the whole log puts it, and every final result is what the events in the tables give.

    Raises:
        LakeError: The pipeline has no tables.
    """
    try:
        if not workspace.exists:
            raise _no_tables(workspace)
        with workspace.batches.as_of_now():
            return _audit(workspace)
    except LakeError as error:
        if not workspace.lake.exists(tables.BATCHES) and not workspace.folder.is_dir():
            raise
        return Audit(None, 0, (Finding(tables.BATCHES, error.found.rstrip("."), "backup", is_unreadable=True),))


def _no_tables(workspace: Workspace) -> LakeError:
    return LakeError(
        f"Pipeline {workspace.spec.name} has no tables, so there is nothing to audit.",
        expected="a run before",
        remedy="Run it: `tidemark run SPEC`.",
    )


def _audit(workspace: Workspace) -> Audit:
    last = workspace.batches.last_commit()
    if last is None:
        return Audit(None, 0, (), ("nothing is committed yet",))
    found = _Found(workspace, kept=_kept(workspace))
    found.take(audit_files(workspace))
    of_the_log = [tables.BATCHES, tables.LOG_CONTROL, tables.WATERMARKS]
    if not all(map(found.is_readable, of_the_log)):
        found.note("rows were not looked at: a table that says which of them belong together cannot be read")
        return found.audit(last)
    under = _as_processed(workspace)
    if found.is_readable(tables.RAW_EVENTS):
        found.take(audit_log(under))
    if under.spec.outputs.ordered_events and found.is_readable(tables.ORDERED_EVENTS):
        found.take(audit_releases(under))
    found.take(audit_counts(under, found.is_readable))
    if found.is_readable(tables.RAW_EVENTS):
        found.take(audit_verdicts(under, found.is_readable, found.note))
    else:
        found.note(f"the log was not judged again: `{tables.RAW_EVENTS}` cannot be read, or its rows were changed")
    if _has_one_past(under, found):
        found.take(audit_windows(under, found.is_readable, found.note))
    return found.audit(last)


def _as_processed(workspace: Workspace) -> Workspace:
    """Return the pipeline with the spec that last processed its log: its tables are by that one."""
    before = spec_before(workspace) if changes_of_spec(workspace) else None
    return workspace if before is None else workspace.under(before)


def _has_one_past(workspace: Workspace, found: "_Found") -> bool:
    """Return whether all results are by the same spec."""
    if not workspace.spec.windows:
        return False
    try:
        scope = plan_to_spec(workspace).scope
    except (LakeError, SpecError):  # what is broken was found, and does not say that the spec has changed
        return True
    if scope:
        found.note(f"results were not recomputed: some of {scope} are by an earlier spec, see `tidemark plan`")
    return not scope


def _kept(workspace: Workspace) -> set[str]:
    """Return the tables with changes of other programs that an operator has kept, since they were rebuilt last."""
    kept: set[str] = set()
    for commit in workspace.batches.every_commit():
        given = commit.plan.input
        if commit.plan.kind == "change" and given.get("decision") == "kept":
            kept |= {str(change["table"]) for change in given["changes"]}
        if commit.plan.kind == "rebuild" and RebuildInput.of(commit.plan).numbers:
            kept &= set(tables.OF_THE_LOG)
    return kept


class _Found:
    """The findings so far."""

    def __init__(self, workspace: Workspace, kept: set[str]) -> None:
        self._workspace, self._kept = workspace, kept
        self._findings: list[Finding] = []
        self._notes = [f"`{table}` was changed by hand, and that was kept: it is not compared" for table in sorted(kept)]

    def take(self, findings: Iterator[Finding]) -> None:
        """Take the findings of a part, each once."""
        self._findings += [finding for finding in findings if finding not in self._findings]

    def note(self, sentence: str) -> None:
        """Note what could not be audited."""
        self._notes.append(sentence)

    def is_readable(self, table: str) -> bool:
        """Return whether the rows of a table can be read, and are the ones that batches have written."""
        broken = {finding.table for finding in self._findings if finding.is_unreadable}
        return table not in broken and table not in self._kept and self._workspace.lake.exists(table)

    def audit(self, last: Commit) -> Audit:
        """Return the result."""
        records = self._workspace.progress.processed_end()
        return Audit(last.batch_id, records, tuple(self._findings), tuple(self._notes))
