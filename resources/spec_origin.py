"""The spec file that a pipeline's input is read by, noted with each ingestion: so a second one of its name is found.

Here: the note, and the file that it names. Not here: reading specs (pipelines/spec_files.py), what follows
(assets/spec_changes.py).
"""

import os
from pathlib import Path

from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import parse_spec

_NOTE = "spec_file"


def note_of(workspace: Workspace) -> dict[str, str]:
    """What the plan of an ingestion says of the spec file.

    The path is as the operator gave it, so that it may lead over a link to the present release, and starts at the
    pipeline's tables, so that a project may be moved or copied with them.
    """
    file = workspace.file
    return {_NOTE: os.path.relpath(file.named or file.path, workspace.folder)}


def other_file(workspace: Workspace) -> Path | None:
    """Another spec of this name that read the pipeline's last input and is still there; None if there is none."""
    last = workspace.batches.last_commit("ingest") if workspace.exists else None
    noted = last.plan.input.get(_NOTE) if last else None
    if noted is None:
        return None
    other = Path(os.path.normpath(workspace.folder / noted))
    return other if _is_another(other, workspace) else None


def _is_another(other: Path, workspace: Workspace) -> bool:
    try:
        if os.path.samefile(other, workspace.file.path):
            return False
        return parse_spec(other.read_text(encoding="utf-8"), file=str(other)).name == workspace.spec.name
    except (OSError, UnicodeDecodeError, SpecError):  # nothing that could be run
        return False
