"""An audit of a whole pipeline as of its last commit: its parts in order, and what could not be audited.

Here: which parts run, on what they may rely. An audit only reads, without a lock: runs may commit meanwhile, and it
continues as of the commit that it began with. Not here: the parts (the other files of this room), the command's words
(pipelines/commands/auditing.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidemark.assets.audit.bookmark import Bookmarks
from tidemark.assets.audit.counts import audit_counts
from tidemark.assets.audit.files import audit_files
from tidemark.assets.audit.findings import Finding
from tidemark.assets.audit.joins import audit_joins
from tidemark.assets.audit.log import audit_log, audit_releases
from tidemark.assets.audit.payload import audit_payload
from tidemark.assets.audit.verdicts import audit_verdicts
from tidemark.assets.audit.windows import audit_windows
from tidemark.assets.log.spec_changes import changes_of_spec, spec_before
from tidemark.assets.rebuild.plan import plan_to_spec
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, RebuildInput
from tidemark.resources.memory import release_memory
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


def audit(workspace: Workspace, *, from_start: bool = False) -> Audit:
    """Audit all that a pipeline has stored; none of its tables is written.

    Every file of the last commit, and of earlier ones that are kept, is there and can be read. No other program has
    changed rows. The log has no hole and no double. The tables hold what the batches counted. Every record is where a
    second opinion on the whole log puts it, and every final result follows from the events in the tables.

    Args:
        workspace: The pipeline.
        from_start: Judge and recompute everything, also what an audit has compared that was stopped.

    Raises:
        LakeError: The pipeline has no tables.
    """
    try:
        exists = workspace.exists
        if exists:
            workspace.batches.every_commit()
    except LakeError as error:  # nothing is known of the other tables
        return Audit(None, 0, (Finding(tables.BATCHES, error.found.rstrip("."), "backup", is_unreadable=True),))
    if not exists:
        raise _no_tables(workspace)
    with workspace.batches.as_of_now():
        return _audit(workspace, from_start=from_start)


def _no_tables(workspace: Workspace) -> LakeError:
    return LakeError(
        f"Pipeline {workspace.spec.name} has no tables, so there is nothing to audit.",
        expected="a run before",
        remedy="Run it: `tidemark run SPEC`.",
    )


def _audit(workspace: Workspace, *, from_start: bool) -> Audit:
    last, findings = workspace.batches.last_commit(), _Findings(workspace, changed=_changed_by_hand(workspace))
    findings.take(audit_files(workspace))  # first: the other parts read only what it has found readable
    if last is None:
        findings.note("nothing is committed yet")
        return findings.audit(last)
    of_the_log = [tables.BATCHES, tables.LOG_CONTROL, tables.WATERMARKS]
    if not all(map(findings.is_readable, of_the_log)):
        findings.note("rows were not looked at: a table that says which of them belong together cannot be read")
        return findings.audit(last)
    under = _as_processed(workspace)
    bookmarks = Bookmarks(under, from_start=from_start)
    if bookmarks.continues:
        findings.note("it continued where the last audit was stopped; `--from-start` begins again")
    if findings.is_readable(tables.RAW_EVENTS):
        findings.take(audit_log(under))
    if under.spec.outputs.ordered_events and findings.is_readable(tables.ORDERED_EVENTS):
        findings.take(audit_releases(under))
    findings.take(audit_counts(under, findings.is_readable))
    if findings.is_readable(tables.RAW_EVENTS):
        findings.take(audit_verdicts(under, bookmarks, findings.is_readable, findings.note))
        if under.spec.outputs.ordered_events:
            findings.take(audit_payload(under, findings.is_readable))
    else:
        findings.note(f"the log was not judged again: `{tables.RAW_EVENTS}` cannot be read, or its rows were changed")
    if _has_one_past(under, findings):
        findings.take(audit_joins(under, bookmarks, findings.is_readable, findings.note))
        findings.take(audit_windows(under, bookmarks, findings.is_readable, findings.note))
    bookmarks.end()
    return findings.audit(last)


def _as_processed(workspace: Workspace) -> Workspace:
    """Return the pipeline with the spec that last processed its log: its tables are by that one."""
    old_spec = spec_before(workspace) if changes_of_spec(workspace) else None
    return workspace if old_spec is None else workspace.under(old_spec)


def _has_one_past(workspace: Workspace, findings: "_Findings") -> bool:
    """Return whether all results are by the same spec."""
    if not (workspace.spec.windows or workspace.spec.joins):
        return False
    try:
        plan = plan_to_spec(workspace)
    except (LakeError, SpecError):  # what is broken was found, and does not say that the spec has changed
        return True
    if plan.changes:  # the plan also has tables that are lost
        findings.note(
            f"results were not recomputed: some of {plan.scope} are by an earlier spec, see `tidemark plan`"
        )
    return not plan.changes


def _changed_by_hand(workspace: Workspace) -> set[str]:
    """Return the tables with changes of other programs that an operator has kept, since they were rebuilt last."""
    changed: set[str] = set()
    for commit in workspace.batches.every_commit():
        decided = commit.plan.input
        if commit.plan.kind == "change" and decided.get("decision") == "kept":
            changed |= {str(change["table"]) for change in decided["changes"]}
        if commit.plan.kind == "rebuild" and RebuildInput.of(commit.plan).numbers:
            changed &= set(tables.OF_THE_LOG)
    return changed


class _Findings:
    """The findings so far."""

    def __init__(self, workspace: Workspace, changed: set[str]) -> None:
        self._workspace, self._changed = workspace, changed
        self._findings: list[Finding] = []
        reason = "it has a change by hand that an operator has kept"
        self._notes = [f"`{table}` is not compared: {reason}" for table in sorted(changed)]

    def take(self, findings: Iterator[Finding]) -> None:
        """Take the findings of a part, each once."""
        self._findings += [finding for finding in findings if finding not in self._findings]
        release_memory()

    def note(self, sentence: str) -> None:
        """Note what could not be audited."""
        self._notes.append(sentence)

    def is_readable(self, table: str) -> bool:
        """Return whether the rows of a table can be read, and are the ones that batches have written."""
        broken = {finding.table for finding in self._findings if finding.is_unreadable}
        return table not in broken and table not in self._changed and self._workspace.lake.exists(table)

    def audit(self, last: Commit | None) -> Audit:
        """Return the result."""
        batch = None if last is None else last.batch_id
        records = self._workspace.progress.processed_end()
        return Audit(batch, records, tuple(self._findings), tuple(self._notes))
