"""Decisions on records: a dry run or the run of the job, and its result in plain values and in words.

Here: what `tm.replay`, `tm.rejudge` and the commands of these names share. Not here: the decisions (assets/rebuild/),
which results they change (assets/rebuild/differences.py), the jobs (pipelines/code_location/rebuilding.py), the
commands (pipelines/commands/deciding.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dagster import DagsterInstance

from tidemark.assets.rebuild.differences import Changed, WindowDifference, window_differences
from tidemark.assets.rebuild.plan import RebuildPlan
from tidemark.pipelines.code_location.rebuilding import RejudgeSettings, ReplaySettings
from tidemark.pipelines.command_line import pipeline_of
from tidemark.pipelines.running.execution import rebuild_pipeline
from tidemark.pipelines.views.terminal import in_a_line, plain
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace, silent
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.printable import plural

_MOST_TOLD = 10  # results of a window in words
_MOST_DAYS = 5


@dataclass(frozen=True, kw_only=True)
class Decided(ABC):
    """The result of a decision on records, or of a look at what it would change.

    Attributes:
        pipeline: Its name.
        dry_run: Nothing was written.
        records: How many records it is about; 0 where there was nothing to do.
        batch: The batch that committed it; None where nothing was.
        committed_at: The instant of that commit.
        windows: What is, or would be, different in the tables of windows.
    """

    pipeline: str
    dry_run: bool
    records: int
    batch: int | None = None
    committed_at: datetime | None = None
    windows: tuple[WindowDifference, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain values, as `--json` shows it."""
        return {
            "pipeline": self.pipeline,
            "dry_run": self.dry_run,
            "records": self.records,
            "batch": self.batch,
            "committed_at": plain(self.committed_at),
            "windows": [difference_in_plain(window) for window in self.windows],
        }

    def __str__(self) -> str:
        """Return it in words."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        would = " would be" if self.dry_run else ""
        at = "" if self.batch is None else f", as batch {self.batch}"
        yield f"{self.pipeline}: {plural(self.records, 'record')}{would} {self._decision_in_words()}{at}"
        yield from self._notes()
        for window in self.windows:
            yield from difference_in_words(window, would=self.dry_run)
        if self.dry_run:
            yield "Nothing was written: this was a dry run."

    @abstractmethod
    def _decision_in_words(self) -> str:
        """Say what was done with the records, or would be."""

    def _notes(self) -> Iterator[str]:
        yield from ()


@dataclass(frozen=True, kw_only=True)
class Rejudged(Decided):
    """The result of taking records out of the log, or back into it.

    Attributes:
        include: They are taken back.
    """

    include: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain values, as `--json` shows it."""
        return {**super().to_dict(), "include": self.include}

    def _decision_in_words(self) -> str:
        change = "taken back" if self.include else "taken out"
        return change if self.batch is None else f"{change}, all tables rebuilt"


@dataclass(frozen=True, kw_only=True)
class Replayed(Decided):
    """The result of letting dead letters in again, or of refusing them again.

    Attributes:
        undo: They are refused again.
        letters: The dead letters, by reason; a record may have one of several windows.
        already: Dead letters that match and are as it was wanted.
    """

    undo: bool
    letters: Mapping[str, int] = field(default_factory=dict)
    already: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain values, as `--json` shows it."""
        return {**super().to_dict(), "undo": self.undo, "letters": dict(self.letters), "already": self.already}

    def _lines(self) -> Iterator[str]:
        if self.records:
            yield from super()._lines()
        else:
            yield f"{self.pipeline}: nothing to do: {self._as_wanted()}"

    def _decision_in_words(self) -> str:
        return f"{self._verb} ({', '.join(f'{n:,} {reason}' for reason, n in self.letters.items())})"

    def _notes(self) -> Iterator[str]:
        if self.already:
            yield f"  {self._as_wanted()}"

    @property
    def _verb(self) -> str:
        return "refused again" if self.undo else "let in"

    def _as_wanted(self) -> str:
        match = "matches was" if self.already == 1 else "match were"
        return f"{plural(self.already, 'dead letter')} that {match} {self._verb} already"


def difference_in_plain(window: WindowDifference) -> dict[str, Any]:
    """Return what differs of a window in plain values."""
    rows = [{"key": plain(row.key), "before": plain(row.before), "after": plain(row.after)} for row in window.rows]
    return {"window": window.window, **window.counts, "days": list(window.days), "rows": rows}


def difference_in_words(window: WindowDifference, *, would: bool) -> Iterator[str]:
    """Return what differs of a window, or would, in lines: how many results, their days, and the first of them."""
    counts = ", ".join(f"{n:,} {kind}" for kind, n in window.counts.items() if n)
    if not counts:
        yield f"  windows/{window.window}: no result {'would differ' if would else 'differs'}"
        return
    days = ", ".join(window.days[:_MOST_DAYS]) + (" …" if len(window.days) > _MOST_DAYS else "")
    count = sum(window.counts.values())
    yield f"  windows/{window.window}: {plural(count, 'result')}, {counts}; of {days}"
    for row in window.rows[:_MOST_TOLD]:
        yield f"    {_in_words(row)}"
    if left := count - len(window.rows[:_MOST_TOLD]):
        yield f"    and {left:,} more"


def _in_words(row: Changed) -> str:
    start, end, *groups = row.key.items()
    key = " ".join([f"{start[1]} to {end[1]}", *(f"{name}={in_a_line(value)}" for name, value in groups)])
    before, after = row.before or {}, row.after or {}
    values = [
        f"{name} {_value_in_words(row.before, name)} → {_value_in_words(row.after, name)}"
        for name in dict.fromkeys([*before, *after])
        if row.before is None or row.after is None or before.get(name) != after.get(name)
    ]
    return f"{key}: {', '.join(values)}"


def _value_in_words(values: Mapping[str, Any] | None, name: str) -> str:
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


def decide(
    file: SpecFile,
    settings: Settings,
    request: ReplaySettings | RejudgeSettings,
    *,
    instance: Callable[[], DagsterInstance],
    tell: Callable[[str], None] = silent,
) -> Replayed | Rejudged:
    """Carry out a decision on records; or say what would be different, where a dry run is asked for.

    Args:
        file: The spec.
        settings: Where the tables are.
        request: Which records, and why.
        instance: Returns the instance of Dagster that shows the run; called if there is one.
        tell: Reports the current work.

    Raises:
        TidemarkError: Anything prevents it, see `plan_replay`, `plan_rejudging` and `assets.rebuild.switch.rebuild`.
    """
    workspace = pipeline_of(file, settings, tell)
    decided, plan = _decision_on(workspace, request)
    if not plan.scope:
        return decided
    if request.dry_run:
        return replace(decided, windows=window_differences(workspace, plan.items))
    rebuilt = rebuild_pipeline(file, settings, request, instance=instance(), tell=tell)
    if rebuilt is None:  # another one has done it meanwhile
        return _decision_on(pipeline_of(file, settings, tell), request)[0]
    commit = rebuilt.commit
    return replace(decided, batch=commit.batch_id, committed_at=commit.committed_at, windows=rebuilt.differs)


def _decision_on(
    workspace: Workspace, request: ReplaySettings | RejudgeSettings
) -> tuple[Replayed | Rejudged, RebuildPlan]:
    """Return which records a decision is about, and the work."""
    name = workspace.spec.name
    if isinstance(request, RejudgeSettings):
        plan = request.plan(workspace)
        return Rejudged(
            pipeline=name, dry_run=request.dry_run, records=plan.records, include=bool(request.include)
        ), plan
    letters = request.replay_plan(workspace)
    replayed = Replayed(
        pipeline=name,
        dry_run=request.dry_run,
        records=len(letters.records),
        undo=request.undo,
        letters=letters.letters,
        already=letters.already,
    )
    return replayed, letters.rebuild
