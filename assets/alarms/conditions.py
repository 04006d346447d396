"""The conditions of a pipeline that need a person: a wrong spec, a batch that is left, failed checks, held input.

Here: the conditions as they are now, read from the tables, the sources and the results of the last checks, without
Spark. Not here: what `tidemark status` shows besides (pipelines/views/status.py), who is notified
(assets/alarms/messages.py).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from tidemark.assets.ingestion.pending_work import has_unprocessed
from tidemark.assets.ingestion.waiting_input import HELD_BACK, Waiting, waiting_input
from tidemark.assets.log.control import due
from tidemark.assets.log.spec_changes import check_spec
from tidemark.resources.batches.plans import Plan, RebuildInput
from tidemark.resources.delta.undoing import foreign_error
from tidemark.resources.quality.failures import failed_results
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import TidemarkError
from tidemark.timeops.values.durations import format_duration, roughly

Severity = Literal["warn", "error"]


OF_NO_BATCH = (HELD_BACK, "sources", "input", "spec", "changes", "corrections", "freshness")
"""Names of conditions that a look finds whatever the batch at work is doing; all others are of a batch."""


@dataclass(frozen=True)
class Condition:
    """A thing that is wrong now.

    Attributes:
        name: The check, or what else it is about; several conditions may have one name.
        level: How bad it is.
        sentence: What was found, what was expected, what to do.
        is_checked: Whether a check of a batch found it, rather than the look itself.
    """

    name: str
    level: Severity
    sentence: str
    is_checked: bool = False


@dataclass(frozen=True)
class PipelineLook:
    """The result of a look at a pipeline.

    Attributes:
        at_work: The batch that a live process works on; None if there is none.
        waiting: The input that the log lacks.
        delay: Wall clock minus the watermark; None without a watermark.
        conditions: What is wrong.
    """

    at_work: Plan | None
    waiting: Waiting
    delay: timedelta | None
    conditions: tuple[Condition, ...]


def look_at_pipeline(workspace: Workspace) -> PipelineLook:
    """Look at a pipeline whose tables are whole; nothing is written."""
    pending = workspace.batches.pending() if workspace.exists else None
    at_work = pending if pending is not None and not pending.is_left(workspace.clock.now()) else None
    waiting, of_input = _of_input(workspace)
    position = workspace.progress.position() if workspace.exists and workspace.batches.last_commit() else None
    delay = None
    if position is not None and position.watermark_us is not None and not position.final:
        delay = workspace.clock.since(position.watermark_us)
    of_batches = _of_batches(workspace, pending if at_work is None else None)
    return PipelineLook(at_work, waiting, delay, (*of_batches, *of_input, *_of_age(workspace, delay)))


def _of_input(workspace: Workspace) -> tuple[Waiting, list[Condition]]:
    """Return what the sources have, and what is wrong with it."""
    try:
        waiting = waiting_input(workspace)
    except TidemarkError as error:
        return Waiting(), [Condition("sources", "error", str(error))]
    held = [Condition(HELD_BACK, "error", str(error)) for error in waiting.errors]
    return waiting, [*held, *(Condition("input", "warn", sentence) for sentence in waiting.warnings)]


def _of_batches(workspace: Workspace, left: Plan | None) -> Iterator[Condition]:
    """Report what is wrong with the spec, with a batch that was left uncommitted, or with the last one."""
    if not workspace.exists:
        return
    try:
        check_spec(workspace)
        has_unprocessed(workspace, flush=False)
    except TidemarkError as error:
        yield Condition("spec", "error", str(error))
    if changes := workspace.changes_by_others:
        yield Condition("changes", "error", str(foreign_error(workspace.lake, changes)))
    for correction in due(workspace).sentences:
        remedy = "the tables are not rebuilt for it yet. To do: `tidemark run` does so. "
        remedy += "`tidemark plan` shows what will differ."
        yield Condition("corrections", "warn", f"{correction}: {remedy}")
    if left is not None:
        yield from _of_left_over(workspace, left)
        return
    last = workspace.batches.last_commit("process")
    if last is not None and last.reason is None:
        for failed in failed_results(workspace.folder, last.batch_id, since=last.plan.planned_at):
            how = "warns" if failed.level == "warn" else "fails"
            sentence = f"batch {last.batch_id} is committed, and a check of it {how}: check {failed.sentence}"
            yield Condition(failed.name, failed.level, sentence, is_checked=True)


def _of_left_over(workspace: Workspace, left: Plan) -> Iterator[Condition]:
    batch = f"batch {left.batch_id} ({left.kind}) is not committed"
    failed = failed_results(workspace.folder, left.batch_id, since=left.planned_at)
    for check in failed:
        yield Condition(check.name, "error", f"{batch}: check {check.sentence}", is_checked=True)
    if failed:
        again = f"`tidemark run` retries batch {left.batch_id}"
        accept = f"`tidemark accept SPEC {left.batch_id} --reason …` takes it as it is."
        yield Condition("batch", "error", f"{again}; {accept}")
        return
    batch_input = RebuildInput.of(left)
    if left.kind == "rebuild" and not batch_input.renamed and not batch_input.renamed_sources:
        why = "it was stopped. The tables are as they were. To do: `tidemark rebuild SPEC` continues it."
        yield Condition("batch", "error", f"{batch}: {why}")
        return
    if left.kind == "retention":
        why = "it was stopped while it removed old rows. To do: `tidemark maintain` continues it, and so does a run."
        yield Condition("batch", "error", f"{batch}: {why}")
        return
    why = "its run failed" if left.released else f"{left.owner} has ended without a message"
    begun = f"It was begun at {_second(left.planned_at)} UTC. To do: `tidemark run` continues it."
    yield Condition("batch", "error", f"{batch}: {why}. {begun}")


def _of_age(workspace: Workspace, delay: timedelta | None) -> Iterator[Condition]:
    """Report what `alerts.freshness` says of a watermark with this delay."""
    allowed = workspace.spec.alerts.freshness
    if allowed is None or delay is None:
        return
    levels: tuple[tuple[Severity, timedelta | None], ...] = (("error", allowed.error), ("warn", allowed.warn))
    for level, oldest in levels:
        if oldest is not None and delay > oldest:
            sentence = f"the watermark is {roughly(delay)} behind the clock, and `alerts.freshness` allows "
            yield Condition("freshness", level, f"{sentence}{format_duration(oldest)}")
            return


def _second(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"
