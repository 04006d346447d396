"""Dead letters let in again: a dry run or the run of the job, and its result in plain values and in words.

Here: what `tm.replay` and `tidemark replay` share. Not here: the decision and what it changes (assets/rebuild/), the
job (rebuilding.py), the command (commands/replaying.py).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dagster import DagsterInstance

from tidemark.assets.rebuild.replaying import Changed, Difference, differences, differences_since
from tidemark.pipelines.command_line import pipeline_of
from tidemark.pipelines.rebuilding import ReplaySettings
from tidemark.pipelines.runner import rebuild_pipeline
from tidemark.pipelines.terminal import in_a_line, plain, plural
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, silent
from tidemark.timeops.errors import SpecError

_MOST_TOLD = 10  # results of a window in words
_MOST_DAYS = 5


@dataclass(frozen=True)
class Replayed:
    """The result of letting dead letters in again, or of a look at what that would change.

    Attributes:
        pipeline: Its name.
        undo: They are refused again.
        dry_run: Nothing was written.
        letters: The dead letters, by reason; empty where there was nothing to do.
        records: How many records that are: one may have a letter of several windows.
        already: Dead letters that match and are as it was wanted.
        batch: The batch that committed it; None where nothing was.
        committed_at: The instant of that commit, `replayed_at` of the letters.
        windows: What is, or would be, different in the tables of windows.
    """

    pipeline: str
    undo: bool
    dry_run: bool
    letters: Mapping[str, int]
    records: int
    already: int
    batch: int | None = None
    committed_at: datetime | None = None
    windows: tuple[Difference, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain values, as `--json` shows it."""
        return {
            "pipeline": self.pipeline,
            "undo": self.undo,
            "dry_run": self.dry_run,
            "letters": dict(self.letters),
            "records": self.records,
            "already": self.already,
            "batch": self.batch,
            "committed_at": plain(self.committed_at),
            "windows": [_window_in_plain(window) for window in self.windows],
        }

    def __str__(self) -> str:
        """Return it in words."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        done = "refused again" if self.undo else "let in"
        if not self.records:
            yield f"{self.pipeline}: nothing to do: {_are(self.already)} {done} already"
            return
        letters = ", ".join(f"{n:,} {reason}" for reason, n in self.letters.items())
        would = " would be" if self.dry_run else ""
        at = "" if self.batch is None else f", as batch {self.batch}"
        yield f"{self.pipeline}: {plural(self.records, 'record')}{would} {done} ({letters}){at}"
        if self.already:
            yield f"  {_are(self.already)} {done} already"
        for window in self.windows:
            yield from _window_in_words(window, dry_run=self.dry_run)
        if self.dry_run:
            yield "Nothing was written: this was a dry run."


def _are(count: int) -> str:
    return f"{plural(count, 'dead letter')} that {'matches was' if count == 1 else 'match were'}"


def _window_in_plain(window: Difference) -> dict[str, Any]:
    rows = [{"key": plain(row.key), "before": plain(row.before), "after": plain(row.after)} for row in window.rows]
    counts = {"changed": window.changed, "new": window.new, "gone": window.gone}
    return {"window": window.window, **counts, "days": list(window.days), "rows": rows}


def _window_in_words(window: Difference, *, dry_run: bool) -> Iterator[str]:
    counts = {"changed": window.changed, "new": window.new, "gone": window.gone}
    said = ", ".join(f"{n:,} {what}" for what, n in counts.items() if n)
    if not said:
        yield f"  windows/{window.window}: no result {'would differ' if dry_run else 'differs'}"
        return
    days = ", ".join(window.days[:_MOST_DAYS]) + (" …" if len(window.days) > _MOST_DAYS else "")
    yield f"  windows/{window.window}: {plural(sum(counts.values()), 'result')}, {said}; of {days}"
    for row in window.rows[:_MOST_TOLD]:
        yield f"    {_in_words(row)}"
    left = sum(counts.values()) - len(window.rows[:_MOST_TOLD])
    if left:
        yield f"    and {left:,} more"


def _in_words(row: Changed) -> str:
    start, end, *groups = row.key.items()
    key = " ".join([f"{start[1]} to {end[1]}", *(f"{name}={in_a_line(value)}" for name, value in groups)])
    before, after = row.before or {}, row.after or {}
    values = [
        f"{name} {_shown(row.before, name)} → {_shown(row.after, name)}"
        for name in dict.fromkeys([*before, *after])
        if row.before is None or row.after is None or before.get(name) != after.get(name)
    ]
    return f"{key}: {', '.join(values)}"


def _shown(values: Mapping[str, Any] | None, name: str) -> str:
    return "no row" if values is None else in_a_line(values.get(name))


def corrected_lines(path: Path) -> list[str]:
    """Return the lines of a file of corrected records, without empty ones.

    Raises:
        SpecError: It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: {error}", expected="a file of JSON objects, one a line, in UTF-8") from error
    return [line for line in text.split("\n") if line.strip()]


def replay_letters(
    file: SpecFile,
    settings: Settings,
    asked: ReplaySettings,
    *,
    instance: Callable[[], DagsterInstance],
    dry_run: bool,
    tell: Callable[[str], None] = silent,
) -> Replayed:
    """Let dead letters in, or refuse them again; or say what would be different.

    Args:
        file: The spec.
        settings: Where the tables are.
        asked: Which letters, and why.
        instance: Returns the instance of Dagster that shows the run; asked if there is one.
        dry_run: Nothing is written.
        tell: Reports the current work.

    Raises:
        TidemarkError: Anything prevents it, see `plan_replay` and `assets.rebuild.switch.rebuild`.
    """
    workspace = pipeline_of(file, settings, tell)
    plan = asked.replay_plan(workspace)
    found = Replayed(file.spec.name, asked.undo, dry_run, plan.letters, len(plan.records), plan.already)
    if not plan.rebuild.scope:
        return found
    if dry_run:
        return replace(found, windows=differences(workspace, plan.rebuild))
    before = {table: workspace.base_of(table) for table in workspace.window_tables.values()}
    done = rebuild_pipeline(file, settings, asked, instance=instance(), tell=tell)
    if done is None:  # another one has done it meanwhile
        return Replayed(file.spec.name, asked.undo, dry_run, {}, 0, plan.already + sum(plan.letters.values()))
    windows = differences_since(pipeline_of(file, settings, tell), before)
    return replace(found, batch=done.commit.batch_id, committed_at=done.commit.committed_at, windows=windows)
