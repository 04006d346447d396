"""Simulations: what other settings would make of the log, and which results would differ, the largest first.

Here: which settings the log can answer for, and one answer for each. Nothing is written. Not here: judging the log by
another spec and comparing it with the tables (assets/questions/what_if/preview.py), what is printed
(assets/questions/what_if/simulation_answer.py).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from tidemark.assets.log.retention import first_days
from tidemark.assets.log.spec_changes import changes_of_spec, ensure_one_file
from tidemark.assets.questions.what_if.preview import (
    ComparedStretch,
    TableRows,
    answers_now,
    letters_now,
    preview,
    table_rows_now,
)
from tidemark.assets.questions.what_if.simulation_answer import Simulated, Simulation
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.changes import OF_RECORDS, Change, Meaning, changes_between
from tidemark.timeops.spec.scope import Scope


@dataclass(frozen=True)
class Setting:
    """Keys set to other values, and the spec with them."""

    overrides: tuple[str, ...]
    file: SpecFile


def simulation_of(
    workspace: Workspace, settings: Sequence[Setting], within: ComparedStretch | None = None
) -> Simulation:
    """Judge the whole log by the spec with each of some settings, and compare what comes of it with the tables.

    Each answer is what a run with that setting makes of the same log, from its beginning. Nothing is written.

    Args:
        workspace: The pipeline, by its spec as it is.
        settings: The settings.
        within: The stretch of event time that is counted and compared; by default all.

    Raises:
        SpecError: A setting asks for more than the log can answer, or an expression of it does not fit the columns.
        TidemarkError: Nothing was processed yet.
    """
    ensure_one_file(workspace)
    workspace.ensure_whole()
    if not workspace.exists or not workspace.progress.processed_end():
        raise TidemarkError(
            f"{workspace.spec.name} has no processed records in {workspace.warehouse}.",
            expected="tables of a pipeline that has run: a simulation judges the records of its log",
            remedy="run it first with `tidemark run`, or name another --warehouse",
        )
    for setting in settings:
        _ensure_answerable(workspace, setting)
    stretch = within or ComparedStretch()
    simulated = tuple(_simulated(workspace, setting, stretch) for setting in settings)
    return Simulation(workspace.spec.name, workspace.progress.processed_end(), _today(workspace, stretch), simulated)


def _today(workspace: Workspace, within: ComparedStretch) -> Simulated:
    windows = [_as_it_is(window.name, table_rows_now(workspace, window, within)) for window in workspace.spec.windows]
    joins = [_as_it_is(join.name, answers_now(workspace, join, within)) for join in workspace.spec.joins]
    changes = changes_of_spec(workspace)
    keys = ", ".join(f"`{change.path}`" for change in changes)
    note = f"the tables were made with another spec; changed since: {keys}. Settings are added to the spec as it is"
    days = ", ".join(f"{key} from {day} on" for key, day in first_days(workspace).items())
    note_of_removal = f"what `retention` has removed is not compared: {days}"
    notes = [*([note] if changes else []), *([note_of_removal] if days else [])]
    return Simulated((), letters_now(workspace, within), _by_name(windows), tuple(notes), _by_name(joins))


def _as_it_is(name: str, rows: DataFrame | None) -> TableRows:
    count = 0 if rows is None else rows.count()
    return TableRows(name, count, count, 0, 0, 0, 0, {})


def _by_name(tables: Iterable[TableRows]) -> dict[str, TableRows]:
    return {table.name: table for table in tables}


def _simulated(workspace: Workspace, setting: Setting, within: ComparedStretch) -> Simulated:
    workspace.tell(f"simulating {' '.join(setting.overrides)}")
    differs = preview(replace(workspace, file=setting.file), Scope.ALL, within)
    letters = {reason: after for reason, (_, after) in differs.letters.items() if after}
    notes = tuple(_notes(workspace.spec, setting))
    return Simulated(setting.overrides, letters, _by_name(differs.windows), notes, _by_name(differs.joins))


def _changes(spec: Spec, other: Spec) -> list[Change]:
    return changes_between(*(json.loads(either.canonical_json()) for either in (spec, other)))


def _notes(spec: Spec, setting: Setting) -> list[str]:
    changes = _changes(spec, setting.file.spec)
    if not changes:
        return ["changes nothing: the spec says so already"]
    if not any(change.past for change in changes):
        return ["changes no result: it only says how a run works"]
    return []


def _ensure_answerable(workspace: Workspace, setting: Setting) -> None:
    """Check that the log has what a setting asks for.

    Raises:
        SpecError: It asks for other input, or for another pipeline.
    """
    for change in _changes(workspace.spec, setting.file.spec):
        source, _, key = change.path.partition(".")
        of_input = source.startswith("sources[") and key.partition(".")[0] not in OF_RECORDS
        if of_input or change.path == "name" or change.meaning is Meaning.REFUSED:
            why = (
                "it names another pipeline"
                if change.path == "name"
                else (
                    "it decides what is read, and how, before a record is in the log" if of_input else change.effect
                )
            )
            raise SpecError(
                f"--set {' '.join(setting.overrides)}: the log cannot answer for `{change.path}`: {why}",
                expected="settings of `time`, of windows, of joins, and of sources: "
                + ", ".join(f"`{name}`" for name in OF_RECORDS),
                remedy="run a copy of the spec under another `name`, which reads all input again",
            )
