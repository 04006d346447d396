"""Audits of a pipeline in Dagster: the job, for a schedule or by hand.

Here: what Dagster runs and shows. Not here: the audit (assets/audit/), the command's words (commands/auditing.py).
"""

from functools import partial

import dagster as dg

from tidemark.assets.audit.whole import audit
from tidemark.assets.runs import job_of
from tidemark.resources.settings import Settings
from tidemark.resources.spark.choice import SparkChoice, open_session
from tidemark.resources.workspace import SpecFile, Workspace

_MOST_SHOWN = 20


def audit_job(file: SpecFile, settings: Settings, choice: SparkChoice) -> dg.JobDefinition:
    """Build the job that audits a pipeline. It is in no pool, as it only reads, and runs continue meanwhile."""
    name = file.spec.name

    @dg.op(name=f"{name}__audit", description="Audits all that the pipeline has stored; fails if something is wrong.")
    def look(context: dg.OpExecutionContext) -> None:
        session = partial(open_session, choice, context.log.info)
        workspace = Workspace(file, settings.warehouse, session, tell=context.log.info)
        done = audit(workspace)
        for note in done.notes:
            context.log.warning(note)
        findings = done.to_list(workspace)
        context.add_output_metadata({"batch": done.batch or 0, "records": done.records, "findings": len(findings)})
        if findings:
            lines = [
                f"{finding['table']}: {finding['what']}. {finding['repair']}" for finding in findings[:_MOST_SHOWN]
            ]
            raise dg.Failure(
                f"{len(findings)} findings: " + "; ".join(lines), {"findings": findings}, allow_retries=False
            )

    about = f"Audits {name}: files, counts, verdicts and results of the whole history. It only reads, alongside runs."
    return job_of(look, f"{name}_audit", about)
