"""Watermark delay of a batch, and the list of what can cause it (A2).

Here: the numbers of this batch beside each cause, as a table. Not here: plotting over runs, which the UI does.
"""

from datetime import timedelta

from tidemark.resources.batches.plans import Plan
from tidemark.resources.workspace import Position, Workspace, plan_end
from tidemark.timeops.durations import format_duration, roughly
from tidemark.timeops.rules import TimeRules


def watermark_delay(workspace: Workspace, after: Position) -> timedelta | None:
    """Wall clock minus the largest watermark (A2); None before the first event."""
    return _since(workspace, after.watermark_us)


def in_words(delay: timedelta) -> str:
    """A delay as a person reads it."""
    return roughly(delay) if delay >= timedelta(0) else f"{roughly(-delay)} ahead of the wall clock"


def causes_of_delay(workspace: Workspace, plan: Plan, after: Position) -> str:
    """What can make the watermark delay large, each with what is known of it here, as Markdown."""
    behind = workspace.log_end() - plan_end(plan)
    rows = [
        ("processing", f"{roughly(workspace.clock.now() - plan.planned_at)} since this batch was planned"),
        *_tolerances(workspace),
        ("clocks that differ, of events and of this machine", _skew(after)),
        ("too little compute", f"{behind:,} records of the log wait for the next batch"),
        (
            "no input, or a source that is throttled",
            f"the last record or tick came {_ago(workspace, after.clock_us)}",
        ),
        ("a sink that is throttled", "compare the durations of this run's steps with those of earlier ones"),
    ]
    lines = [f"| {cause} | {here} |" for cause, here in rows]
    return "\n".join([f"The watermark is {_ago(workspace, after.watermark_us)}.", "", *_HEAD, *lines])


_HEAD = ("| what can cause it | here |", "|---|---|")


def _tolerances(workspace: Workspace) -> list[tuple[str, str]]:
    rules = TimeRules.of(workspace.spec)
    most_us = max(source.out_of_orderness_us for source in rules.sources)
    rows = [("`out_of_orderness`", f"{_length(most_us)} behind the newest event")]
    if rules.uses_splits:
        rows.append(("the slowest split", "the watermark is the lowest of the active ones"))
    if rules.time.late is not None:
        moves = rules.time.clock_tolerance_us is not None
        how = "behind the clock while a timeline is silent" if moves else "does not hold the watermark back"
        rows.append(("`late.tolerance`", f"{_length(rules.time.late.tolerance_us)}: {how}"))
    if rules.time.emit_every_us is not None:
        rows.append(("`emit.every`", f"{_length(rules.time.emit_every_us)}: seen a period later"))
    return rows


def _skew(after: Position) -> str:
    if after.max_t_us is None or after.clock_us is None:
        return "no event yet"
    apart = timedelta(microseconds=abs(after.max_t_us - after.clock_us))
    where = "ahead of" if after.max_t_us > after.clock_us else "behind"
    return f"the newest event is {roughly(apart)} {where} the arrival clock"


def _ago(workspace: Workspace, us: int | None) -> str:
    since = _since(workspace, us)
    if since is None:
        return "not there yet"
    return f"{roughly(since)} ago" if since >= timedelta(0) else in_words(since)


def _since(workspace: Workspace, us: int | None) -> timedelta | None:
    if us is None:
        return None
    # Not as an instant: a watermark may be of the year 0001.
    return timedelta(seconds=workspace.clock.now().timestamp() - us / 1e6)


def _length(us: int) -> str:
    return format_duration(timedelta(microseconds=us))
