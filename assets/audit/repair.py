"""The repair that follows from an audit: what is taken back, read again and computed again, and what stays.

Here: the plan, which only reads. Not here: carrying it out (pipelines/operators/repairing.py), each of its parts
(assets/upkeep/foreign_changes.py, assets/audit/rereading.py, assets/rebuild/).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidemark.assets.audit.findings import Finding
from tidemark.assets.audit.rereading import IngestionToRepeat, LostRecords, readings_for
from tidemark.resources import tables
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec.scope import Scope

REPAIR_REASON = "tidemark repair"
"""Why, as `batches` and `log_control` keep it."""


@dataclass(frozen=True)
class Repair:
    """The plan that mends the findings of an audit.

    Attributes:
        changes: Changes of other programs that are taken back.
        readings: Lost files of the log, each with the ingestions that are read again for it.
        unnamed: Tables whose rows were read again, in a version that no commit names yet.
        scope: What is computed again.
        unreadable: Tables that are replaced without being read.
        lost: Records of the log that no input has any more.
        beyond: Findings that only a backup mends.
    """

    changes: tuple[Finding, ...] = ()
    readings: tuple[tuple[Finding, tuple[IngestionToRepeat, ...]], ...] = ()
    unnamed: tuple[Finding, ...] = ()
    scope: Scope = Scope.NOTHING
    unreadable: tuple[str, ...] = ()
    lost: tuple[LostRecords, ...] = ()
    beyond: tuple[Finding, ...] = ()

    @property
    def may_rebuild(self) -> bool:
        """Return whether the log is whole once it was mended, so that tables may be computed from it."""
        return not self.lost and not self.beyond

    def sentences(self) -> list[str]:
        """Return what it does, step by step, and what it leaves."""
        steps = [f"take back in {change.table}: {change.what}" for change in self.changes]
        for finding, readings in self.readings:
            paths = dict.fromkeys(path for reading in readings for path in reading.paths)
            steps.append(f"{finding.table}: read {finding.file} again from {', '.join(paths)}")
        steps += [f"commit what was read again of {finding.table}" for finding in self.unnamed]
        if self.scope and self.may_rebuild:
            steps.append(f"compute {self.scope} again from the log")
        steps += map(str, self.lost)
        if self.scope and not self.may_rebuild:
            steps.append(f"{self.scope} can only be computed again from a log that is whole")
        return steps


def plan_repair(workspace: Workspace, findings: Sequence[Finding]) -> Repair:
    """Plan what mends the findings of an audit.

    A change of another program in a table that is computed again needs no taking back.
    """
    scope = Scope.together(finding.scope for finding in findings if finding.remedy == "rebuild")
    changes = [finding for finding in findings if finding.remedy == "take_back"]
    unreadable = {finding.table for finding in findings if finding.remedy == "rebuild" and finding.is_unreadable}
    if scope.of_all:
        replaced = [change for change in changes if change.table not in tables.OF_THE_LOG]
        unreadable |= {change.table for change in replaced}
        changes = [change for change in changes if change not in replaced]
    readings, lost = list[tuple[Finding, tuple[IngestionToRepeat, ...]]](), list[LostRecords]()
    for finding in findings:
        if finding.remedy == "reread":
            ingestions = readings_for(workspace, finding)
            if isinstance(ingestions, LostRecords):
                lost.append(ingestions)
            else:
                readings.append((finding, tuple(ingestions)))
    return Repair(
        tuple(changes),
        tuple(readings),
        tuple(finding for finding in findings if finding.remedy == "commit"),
        scope,
        tuple(sorted(unreadable)),
        tuple(lost),
        tuple(finding for finding in findings if finding.remedy == "backup"),
    )


def lost_ranges(findings: Iterable[Finding]) -> list[tuple[int, int]]:
    """Return the records that lost files of the log had, each range with its first and its last."""
    return [finding.seqs for finding in findings if finding.seqs is not None]
