"""Commands that look after what is stored: `tidemark audit`, `tidemark repair`.

Here: what a person types and reads. Not here: the audit (assets/audit/), carrying out a repair
(pipelines/operators/repairing.py).
"""
# ruff: noqa: PLC0415 - Dagster and Spark take seconds to import, so each command imports what it needs

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tidemark.pipelines.command_line import (
    FAILED,
    known_settings,
    pipeline_of,
    put,
    read_specs,
    say,
    says_errors,
    settings_of,
    spec_path,
    warehouse_option,
)
from tidemark.timeops.errors.printable import json_line

if TYPE_CHECKING:
    from tidemark.assets.audit.whole import Audit
    from tidemark.resources.places.place import Place
    from tidemark.resources.workspace import Workspace


@click.command()
@spec_path
@warehouse_option
@click.option("--json", "as_json", is_flag=True, help="A JSON array on its own line.")
@click.option("--from-start", is_flag=True, help="Do not continue an audit that was stopped.")
@says_errors
def audit(*, spec: Path, warehouse: "Place | None", as_json: bool, from_start: bool) -> None:
    """Check all that SPEC's pipeline has stored.

    Every file that a commit names is there and can be read; no other program has changed rows; the log has no hole
    and no double; the tables hold what the batches counted. The whole log is judged again by a second opinion, and
    every final result is recomputed from the events. What is wrong is named with the command that repairs it. It only
    reads, as of the last commit, and runs may continue. One that was stopped continues where it was.

    Exit status: 0 all holds; 1 something is wrong, or a failure; 2 bad spec or usage.
    """
    from tidemark.assets.audit.whole import audit as audit_all
    from tidemark.pipelines.views.terminal import telling

    [file] = read_specs([spec], ())
    with telling(file.spec.name) as tell:
        workspace = pipeline_of(file, known_settings(warehouse), tell, takes_little=True)
        audited = audit_all(workspace, from_start=from_start)
    if as_json:
        click.echo(json_line(audited.to_list(workspace)))
    else:
        _show(workspace, audited)
    for note in audited.notes:
        say(f"{file.spec.name}: {note}")
    if audited.findings:
        sys.exit(FAILED)


def _show(workspace: "Workspace", audited: "Audit") -> None:
    name = workspace.spec.name
    at = "" if audited.batch is None else f" as of batch {audited.batch}"
    if not audited.findings:
        put(f"{name}: all holds{at}, {audited.records:,} records")
        return
    n = len(audited.findings)
    put(f"{name}: {n} finding{'' if n == 1 else 's'}{at}")
    for finding in audited.findings:
        put(f"  {finding.table}: {finding.what}")
        put(f"    {finding.repair(workspace)}")


@click.command()
@spec_path
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@warehouse_option
@says_errors
def repair(*, spec: Path, dry_run: bool, warehouse: "Place | None") -> None:
    """Repair what an audit of SPEC's pipeline finds.

    It audits, takes back what other programs have changed, reads lost records again from the input files that are
    still as they were read, computes damaged tables again from the log, and audits once more. A sound table gets new
    rows only together with others that have to fit it. What cannot be repaired is named.

    Exit status: 0 all holds, now or with --dry-run after what would be done; 1 something cannot be repaired, or a
    failure; 2 bad spec or usage.
    """
    from tidemark.pipelines.operators.repairing import repair_pipeline
    from tidemark.pipelines.running.instance import dagster_instance
    from tidemark.pipelines.views.terminal import telling

    [file] = read_specs([spec], ())
    settings, name = settings_of(warehouse), file.spec.name
    with dagster_instance(settings, name, tell=say) as instance, telling(name) as tell:
        repaired = repair_pipeline(file, settings, dry_run=dry_run, instance=instance, tell=tell)
    if not repaired.findings:
        put(f"{name}: all holds, so nothing was repaired")
    for step in repaired.steps:
        put(f"{name}: {'would be done: ' if dry_run else ''}{step}")
    for finding in repaired.left:
        put(f"  {finding.table}: {finding.what}")
        put(f"    {finding.repair(repaired.workspace)}")
    if repaired.findings and not dry_run and not repaired.left:
        put(f"{name}: all holds now")
    if repaired.left:
        sys.exit(FAILED)


COMMANDS = (audit, repair)
