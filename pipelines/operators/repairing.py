"""Repairs of a pipeline: the parts of one in their order.

Here: what needs Dagster's instance. Not here: the plan of a repair (assets/audit/repair.py), the command's words
(pipelines/commands/auditing.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import dagster as dg

from tidemark.assets.audit.findings import Finding
from tidemark.assets.audit.repair import REPAIR_REASON, Repair, lost_ranges, plan_repair
from tidemark.assets.audit.rereading import mend_log
from tidemark.assets.audit.whole import audit
from tidemark.assets.upkeep.foreign_changes import commit_mended, decide_on_changes
from tidemark.pipelines.code_location.rebuilding import RebuildSettings
from tidemark.pipelines.running.execution import rebuild_pipeline
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import choose_spark, open_session
from tidemark.resources.workspace import SpecFile, Workspace

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Repaired:
    """The result of a repair.

    Attributes:
        workspace: The pipeline.
        findings: The findings of an audit before it.
        steps: What was done, or would be done, a sentence each.
        left: What is still wrong after it; of a dry run what it cannot mend.
    """

    workspace: Workspace
    findings: tuple[Finding, ...]
    steps: tuple[str, ...] = ()
    left: tuple[Finding, ...] = ()


def repair_pipeline(
    file: SpecFile, settings: Settings, *, dry_run: bool, instance: dg.DagsterInstance, tell: Tell
) -> Repaired:
    """Audit a pipeline, repair what is wrong, and audit it again.

    Raises:
        TidemarkError: Anything prevents it.
    """
    choice = choose_spark(settings, file.inputs)

    def opened() -> Workspace:
        """Return the pipeline as it is now: what was known of it before is forgotten."""
        return Workspace(file, settings.warehouse, partial(open_session, choice, tell), tell=tell)

    workspace = opened()
    findings = audit(workspace, from_start=True).findings
    if not findings:
        return Repaired(workspace, findings)
    plan = plan_repair(workspace, findings)
    if dry_run:
        stays = [finding for finding in findings if finding.remedy == "reread"] if plan.lost else []
        return Repaired(workspace, findings, tuple(plan.sentences()), (*plan.beyond, *stays))
    steps = plan.sentences()
    if not (plan.changes or plan.readings or plan.unnamed or (plan.scope and plan.may_rebuild)):
        return Repaired(workspace, findings, tuple(steps), findings)
    lost = _mend(opened, plan, findings, instance)
    if plan.readings or plan.unnamed:
        commit_mended(opened(), REPAIR_REASON, str(uuid4()))
    if plan.scope and plan.may_rebuild and not lost:
        rebuild = RebuildSettings(reason=REPAIR_REASON, windows=[*plan.scope.windows], unreadable=[*plan.unreadable])
        rebuild_pipeline(file, settings, rebuild, instance=instance, tell=tell)
    workspace = opened()
    return Repaired(workspace, findings, (*steps, *lost), audit(workspace, from_start=True).findings)


def _mend(
    opened: Callable[[], Workspace], plan: Repair, findings: tuple[Finding, ...], instance: dg.DagsterInstance
) -> list[str]:
    """Take changes back, and read lost records again; return what stays lost, a sentence each."""
    if plan.changes:
        decide_on_changes(opened(), REPAIR_REASON, str(uuid4()), keep=False, instance=instance)
    missing, lost = lost_ranges(findings), list[str]()
    for finding, readings in plan.readings:
        left = mend_log(opened(), finding, readings, missing)
        if left is None and finding.seqs is not None:
            missing.remove(finding.seqs)
        lost += [] if left is None else [str(left)]
    return lost
