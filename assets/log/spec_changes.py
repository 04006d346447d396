"""The differences between a spec and the one that a pipeline's tables were made for, and whether they are taken.

Here: the specs that the log was processed with, the file that held them, and the error of changes that the tables
cannot continue with. Not here: what a change of a key means (timeops/spec/changes.py).
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidemark.assets.log.control import SPEC, recorded
from tidemark.resources import tables
from tidemark.resources.batches.plans import Commit, IngestInput
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import Spec, parse_spec
from tidemark.timeops.spec.changes import (
    Change,
    Meaning,
    changes_between,
    names_of_sources,
    renamed_parts,
    with_new_names,
)
from tidemark.timeops.spec.scope import Scope

_HELD = (
    "changes that hold from here on, such as of columns, time settings, aggregates and file paths: others would mix "
    "rows of two meanings in one table"
)
_OTHER_NAME = (
    "revert the change, or choose another name or warehouse for the new spec, where it reads all input again"
)


def ensure_taken(workspace: Workspace) -> None:
    """Check that a pipeline with tables takes the spec, before there is anything to do for it; needs no Spark.

    Raises:
        SpecError: It does not, or another file of its name made the tables.
    """
    ensure_one_file(workspace)
    if workspace.exists and workspace.lake.exists(tables.LOG_CONTROL) and not workspace.is_prepared:
        check_spec(workspace)
        _ensure_all_are_there(workspace)


def _ensure_all_are_there(workspace: Workspace) -> None:
    """Check that the spec has each source with records in the log, also where no batch has processed any of them."""
    last = workspace.batches.last_commit("ingest")
    read = workspace.by_source(IngestInput.of(last.plan).files) if last else {}
    lacks = [name for name in read if name not in [source.name for source in workspace.spec.sources]]
    if lacks:
        raise SpecError(
            f"{workspace.file.name} has no source `{lacks[0]}` any more, and what was read of it is not processed",
            expected="the sources of the last run",
            remedy="run it once with that source under that name; then `was` may change it",
        )


def ensure_one_file(workspace: Workspace) -> None:
    """Check that one spec file runs the pipeline: two would take turns, each with its own input and windows.

    Raises:
        SpecError: Another file of its name has read the last input and is still there.
    """
    if other := other_file(workspace):
        raise SpecError(
            f"{workspace.file.path} and {other} are both called {workspace.spec.name}, and the tables in "
            f"{workspace.lake.root} are the second one's",
            expected="one spec file for the tables of a pipeline",
            remedy="choose another `name` or warehouse for this one; if it replaces the other, move that one away",
        )


def note_of(workspace: Workspace) -> str:
    """Return the spec file as the plan of an ingestion stores it.

    The path is as the operator wrote it, so that it may lead over a link to the present release. It starts at the
    pipeline's tables, so that a project may be moved or copied with them. A pipeline in a store has no such path.
    """
    file = workspace.file.named or workspace.file.path
    folder = workspace.folder
    return os.path.relpath(file, folder) if isinstance(folder, Path) else str(file)


def other_file(workspace: Workspace) -> Path | None:
    """Return another spec of this name that read the pipeline's last input and still exists; None without one."""
    last = workspace.batches.last_commit("ingest") if workspace.exists else None
    noted = IngestInput.of(last.plan).spec_file if last else None
    if noted is None:
        return None
    folder = workspace.folder if isinstance(workspace.folder, Path) else Path()
    other = Path(os.path.normpath(folder / noted))
    return other if _is_another(other, workspace) else None


def _is_another(other: Path, workspace: Workspace) -> bool:
    try:
        if os.path.samefile(other, workspace.file.path):
            return False
        return parse_spec(other.read_text(encoding="utf-8"), file=str(other)).name == workspace.spec.name
    except (OSError, UnicodeDecodeError, SpecError):  # not a spec that could be run
        return False


def changes_of_spec(workspace: Workspace) -> list[Change]:
    """Return the differences between the spec and the one that last processed the log; needs no Spark."""
    specs = _specs_if_any(workspace)
    return _changes(workspace, specs[-1]) if specs else []


def _changes(workspace: Workspace, old_spec: Mapping[str, Any]) -> list[Change]:
    return changes_between(old_spec, json.loads(workspace.spec.canonical_json()), _former_names(workspace))


def renamed(workspace: Workspace, part: str = "windows") -> dict[str, str]:
    """Return the old names of renamed windows, or sources, by the new ones since the log was last processed."""
    specs = [] if workspace.is_prepared else _specs_if_any(workspace)
    return renamed_parts(part, specs[-1], json.loads(workspace.spec.canonical_json())) if specs else {}


def _specs_if_any(workspace: Workspace) -> list[Mapping[str, Any]]:
    has_items = workspace.exists and workspace.lake.exists(tables.LOG_CONTROL)
    return recorded_specs(workspace) if has_items else []


def spec_before(workspace: Workspace) -> Spec | None:
    """Return the spec that last processed the log; None before the first batch."""
    specs = recorded_specs(workspace)
    return Spec.model_validate(specs[-1]) if specs else None


def spec_of_batch(workspace: Workspace, commit: Commit) -> Spec:
    """Return the spec by which a batch has judged its records."""
    first_seq, batch_id = commit.plan.first_seq, commit.batch_id
    items = [
        item for item in recorded(workspace, SPEC) if item["_after_seq"] < first_seq and item["_batch_id"] <= batch_id
    ]
    text = items[-1]["argument"] if items else workspace.spec.canonical_json()
    return workspace.spec if text == workspace.spec.canonical_json() else Spec.model_validate(json.loads(text))


def check_spec(workspace: Workspace) -> bool:
    """Return whether the spec differs from the one that last processed the log; needs no Spark.

    Raises:
        SpecError: It differs in a way that a pipeline with tables cannot take.
    """
    specs, now = recorded_specs(workspace), json.loads(workspace.spec.canonical_json())
    if not specs or specs[-1] == now:
        return not specs
    changes = _changes(workspace, specs[-1])
    undecided = [change for change in changes if change.needs_decision]
    if undecided:
        raise _changed(undecided, workspace, _HELD, way_on(changes, workspace.file))
    return True


def ensure_rebuildable(workspace: Workspace, scope: Scope) -> None:
    """Check that the log goes with the spec, and that a scope is enough, as all else is as the spec says.

    Raises:
        SpecError: It does not, or it is not.
    """
    undecided = [change for change in changes_of_spec(workspace) if change.needs_decision]
    if scope.of_all:
        if refused := [change for change in undecided if change.meaning is Meaning.REFUSED]:
            raise _changed(refused, workspace, "changes that the log goes with", _OTHER_NAME)
        return
    uncovered = [change for change in undecided if not scope.covers(needed_by([change]))]
    if uncovered:
        expected = f"changes of {', '.join(f'`{name}`' for name in scope.windows)} alone"
        raise _changed(uncovered, workspace, expected, way_on(undecided, workspace.file))
    if workspace.spec.are_made_with_all(scope.windows) and not workspace.spec.closes_by_silence:
        raise SpecError(
            f"{workspace.file.name}: a window goes over the rows of a join, which are computed with all tables",
            expected="windows that can be rebuilt without the others",
            remedy="rebuild all tables with `tidemark rebuild SPEC`",
        )
    if workspace.spec.closes_by_silence:
        raise SpecError(
            f"{workspace.file.name}: silence closes windows (`idle`), so all of them say what a silent timeline is",
            expected="windows that can be rebuilt without the others",
            remedy="rebuild all tables with `tidemark rebuild SPEC`",
        )
    _refuse_two_meanings(workspace)


def refuse_two_meanings_of_time(workspace: Workspace) -> None:
    """Refuse to recompute under one meaning of time a log that was judged under more than one.

    Settings that only ingestion uses, and what windows compute from their events, may have changed: the log is as it
    was read, and the past is computed with the present windows.

    Raises:
        SpecError: The spec judges the log in another way than it was judged.
    """
    ensure_one_file(workspace)
    check_spec(workspace)
    _refuse_two_meanings(workspace)


def _refuse_two_meanings(workspace: Workspace) -> None:
    if judged_otherwise(workspace):
        raise SpecError(
            f"The spec of {workspace.spec.name} judges events in another way than when its log was processed.",
            expected="the same settings of time for the whole log, so that recomputed days equal live ones",
            remedy="rebuild all tables with `tidemark rebuild SPEC`, or revert the change",
        )


def judged_otherwise(workspace: Workspace) -> list[str]:
    """Return the keys in which the spec judges records in another way than a spec that the log was processed with."""
    now = json.loads(workspace.spec.canonical_json())
    changes = (change for spec in recorded_specs(workspace) for change in changes_between(spec, now))
    return list(dict.fromkeys(change.path for change in changes if change.judges))


def recorded_specs(workspace: Workspace) -> list[Mapping[str, Any]]:
    """Return the specs that the log was processed with, in their order; sources have the names of the last one."""
    specs = [json.loads(row["argument"]) for row in recorded(workspace, SPEC)]
    names = _former_names(workspace)
    if not names:
        return specs
    source_names = [[str(source["name"]) for source in spec["sources"]] for spec in specs]
    new_of = [{new: old for old, new in names.items() if old in sources} for sources in source_names]
    return [with_new_names(spec, renames, "sources") for spec, renames in zip(specs, new_of, strict=True)]


def _former_names(workspace: Workspace) -> dict[str, str]:
    """Return the names that sources have now by their former ones, as of all specs, also from before a rebuild."""
    return names_of_sources([json.loads(argument) for argument in workspace.spec_items])


def line_of(change: Change, file: SpecFile) -> str:
    """Return in a line the place of a change in the file, the change, and its meaning."""
    return f"{file.place(change.keys(file.spec))}{change.sentence}: {change.effect}"


def way_on(changes: Sequence[Change], file: SpecFile) -> str:
    """Return the remedy for tables that cannot continue with a changed spec."""
    if any(change.meaning is Meaning.REFUSED for change in changes):
        return _OTHER_NAME
    name, windows = file.in_command, needed_by(changes).windows
    named, options = (
        "these windows" if windows else "the tables",
        "".join(f" --window {window}" for window in windows),
    )
    return (
        f"rebuild {named} from the log with `tidemark rebuild {name}{options}` (in Dagster with the job "
        f"`{file.spec.name}_rebuild`), or revert the change; `tidemark plan {name}` shows which rows would be "
        "others"
    )


def needed_by(changes: Sequence[Change]) -> Scope:
    """Return the tables whose past has to be computed before live runs continue with some changes.

    Some windows are enough only where all records are judged as they were.
    """
    undecided = [change for change in changes if change.needs_decision]
    if not undecided:
        return Scope.NOTHING
    if any(change.judges or change.meaning is Meaning.REFUSED for change in changes):
        return Scope.ALL
    return Scope.together(change.needed for change in undecided)


def _changed(changes: Sequence[Change], workspace: Workspace, expected: str, remedy: str) -> SpecError:
    file = workspace.file
    rows = [line_of(change, file) for change in changes]
    difference = "\n  ".join([f"{file.name} changed since the tables in {workspace.lake.root} were made:", *rows])
    return SpecError(difference, expected=expected, remedy=remedy)
