"""The work that a run of a pipeline would find, seen without Spark; and the tick that a live run may add.

Here: the look at sources and at the log of batches; the clock of a tick after the last record of the log, and why a
pipeline never has one. Not here: doing it, and when to look (pipelines/code_location/launching.py), what a tick does
to watermarks (timeops/watermark/), the batch that it becomes (assets/planning.py).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.assets.ingestion.waiting_input import KnownOf, Waiting, waiting_input
from tidemark.assets.log.control import due
from tidemark.assets.log.spec_changes import ensure_taken, renamed
from tidemark.assets.planning import next_segment
from tidemark.resources import tables
from tidemark.resources.sources.kinds import reader_of
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import Spec
from tidemark.timeops.values.utc import us_of
from tidemark.timeops.watermark.alignment import estimated_clock


@dataclass(frozen=True)
class PendingWork:
    """The result of a look.

    Attributes:
        is_there: A run would have something to do, and no run does it now.
        key: Identifies the work: the same files, log and spec have the same key.
        sentence: What was looked at, and what was found.
        may_ripen: It can become work by time alone: files that settle, a process that ends.
        held_back: The input that cannot be taken, a sentence or two for each piece.
    """

    is_there: bool
    key: str
    sentence: str
    may_ripen: bool = False
    held_back: tuple[str, ...] = ()


def look(workspace: Workspace) -> PendingWork:
    """Find the work that a run would do.

    Raises:
        InputError: The path of a source does not exist.
        LakeError: The pipeline was flushed, and more input was read since.
        SpecError: The pipeline's tables cannot continue with the spec.
    """
    with workspace.batches.as_of_now():
        ensure_taken(workspace)
        waiting = waiting_input(workspace)
        if at_work := _at_work(workspace):
            return PendingWork(False, "", at_work, may_ripen=True, held_back=waiting.held_back)
        unprocessed = _unprocessed(workspace)
        last = workspace.batches.last_commit() if workspace.exists else None
        files = [[part.path, part.size, part.modified_us] for part in waiting.parts]
        files += [[file.place, file.size, file.modified_us] for file in waiting.copies]
        key = _digest([workspace.spec.fingerprint(), last.batch_id if last else None, files])
        sentence = "; ".join(filter(None, [_of_files(workspace, waiting), unprocessed]))
        return PendingWork(
            bool(waiting.is_work or unprocessed),
            key,
            sentence,
            may_ripen=waiting.may_ripen,
            held_back=waiting.held_back,
        )


def signature(workspace: Workspace) -> str:
    """Return a cheap text of all that a look depends on: while it is the same, a look finds the same.

    No file is opened, and of the lake only the log of batches.
    """
    version = workspace.lake.version(tables.BATCHES) if workspace.exists else None
    return _digest([input_signature(workspace), version])


def input_signature(workspace: Workspace) -> str:
    """Return a text of the spec and all input that has come, read or not."""
    sources, base = workspace.spec.sources, workspace.file.folder
    inputs = [reader_of(source, base).seen(KnownOf(workspace, source)) for source in sources]
    return _digest([workspace.spec.fingerprint(), inputs])


def all_that_is_reported(workspace: Workspace, held_back: Sequence[str]) -> str:
    """Return a text of all that a look without work reports to Dagster: two with the same text report the same.

    Of the lake it depends on the log of batches alone: each change of days and their rows is a batch.
    """
    version = workspace.lake.version(tables.BATCHES) if workspace.exists else None
    file = workspace.file
    keys = {name: [*key] for name, key in sorted(file.asset_keys.items())}
    return _digest([str(workspace.folder), workspace.spec.fingerprint(), keys, version, list(held_back)])


def has_unprocessed(
    workspace: Workspace, *, flush: bool, tick_us: int | None = None, reopen: str | None = None
) -> bool:
    """Return whether a batch was left uncommitted, or the log has something new: records, an end, a tick.

    Corrected records that batches had processed are new as well.
    """
    with workspace.batches.as_of_now():
        if not workspace.exists:
            return False
        pending = workspace.batches.pending()
        if pending is not None and pending.kind != "rebuild":  # which has changed nothing that a run needs
            return True
        if due(workspace).sentences or renamed(workspace) or renamed(workspace, "sources"):
            return True
        return not next_segment(workspace, None, flush=flush, tick_us=tick_us, reopen=reopen).is_empty


def _at_work(workspace: Workspace) -> str:
    pending = workspace.batches.pending() if workspace.exists else None
    if pending is None or pending.is_left(workspace.clock.now()):
        return ""
    return f"{pending.owner} is at work on batch {pending.batch_id}"


def _unprocessed(workspace: Workspace) -> str:
    if not has_unprocessed(workspace, flush=False):
        return ""
    pending = workspace.batches.pending("process")
    if pending is not None:
        return f"batch {pending.batch_id} was not committed"
    if names := renamed(workspace):
        return f"{' and '.join(names)} is the new name of a window"
    if names := renamed(workspace, "sources"):
        return f"{' and '.join(names)} is the new name of a source"
    if corrected := due(workspace).sentences:
        return f"corrected, and not recomputed: {corrected[0]}"
    records = workspace.progress.log_end() - workspace.progress.processed_end()
    return f"{records:,} records of the log are not processed" if records else ""


def _of_files(workspace: Workspace, waiting: Waiting) -> str:
    counts = {
        "new": waiting.new,
        "of sources that wait for others": waiting.ahead,
        "with the bytes of others": len(waiting.copies),
        "younger than `settle`": len(waiting.settling_files),
        "held back": len(waiting.errors),
    }
    paths = ", ".join(source.place for source in workspace.spec.sources)
    sentence = ", ".join(f"{n:,} {kind}" for kind, n in counts.items() if n or kind == "new")
    first = f" ({waiting.errors[0].found})" if waiting.errors else ""
    return f"{paths}: {sentence}{first}"


def _digest(of: object) -> str:
    return hashlib.sha256(json.dumps(of, ensure_ascii=True).encode()).hexdigest()[:32]


# Ticks.


def why_never(spec: Spec) -> str | None:
    """Say why a pipeline never has ticks, whatever comes in; return None if it may have them."""
    if not spec.heeds_ticks:
        return (
            "no rule of the spec depends on the clock alone (`idle`, `emit: {every: …}`, windows that revise results)"
        )
    sources = [source.name for source in spec.sources if not source.follows_wall_clock]
    return f"source `{sources[0]}` has an `arrival_time` without `live: true`" if sources else None


def clock_of_tick(workspace: Workspace) -> int | None:
    """Return the clock of a tick after the last record of the log, microseconds.

    Returns:
        None if no tick is possible now: by the spec, see `why_never`; if a source has no record yet; if input waits
        or is held back; or if the clock of the log is already there.
    """
    if why_never(workspace.spec) is not None:
        return None
    now_us = us_of(workspace.clock.now())  # before the look, so that a file that comes later is after the tick
    waiting = waiting_input(workspace)
    if (
        waiting.is_ready
        or waiting.settling_files
        or waiting.notes
        or waiting.left
        or waiting.errors
        or not workspace.exists
    ):
        return None
    last_arrivals = workspace.progress.last_arrivals().values()
    estimate_us, reached_us = estimated_clock(last_arrivals, now_us), workspace.progress.log_clock_us()
    return estimate_us if estimate_us is not None and estimate_us > (reached_us or 0) else None
