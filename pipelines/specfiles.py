"""Spec files on disk: reading one, reading a folder of them, and overrides of single keys.

Here: files and text. Not here: what a spec means (timeops/spec.py).
"""

from collections.abc import Sequence
from pathlib import Path

from resources.workspace import SpecFile
from timeops.errors import SpecError
from timeops.spec import parse_spec


def read_spec(path: Path, overrides: Sequence[str] = ()) -> SpecFile:
    """Reads one spec; overrides are keys set to other values, such as `time.unit=second`.

    Raises:
        SpecError: There is no such file, or it is no valid spec.
    """
    text = read_text(path, "the spec", remedy="check the path; `tidemark schema` shows what a spec looks like")
    return SpecFile(parse_spec(text, file=str(path), overrides=overrides), path.resolve())


def read_folder(folder: Path) -> list[SpecFile]:
    """Reads every `*.yaml` of a folder, by name.

    Raises:
        SpecError: One of them is no valid spec, or two have the same name.
    """
    files = [read_spec(path) for path in sorted(folder.glob("*.yaml"))]
    seen: dict[str, Path] = {}
    for file in files:
        other = seen.setdefault(file.spec.name, file.path)
        if other != file.path:
            raise SpecError(
                f"{file.path} and {other} are both called {file.spec.name}",
                expected="one spec per name, as the name is the folder of its tables",
                remedy="rename one of them",
            )
    return files


def read_text(path: Path, what: str, *, remedy: str) -> str:
    """Reads a file of the operator's.

    Args:
        path: The file.
        what: What it is, for the message.
        remedy: What the reader can do when it is not there.

    Raises:
        SpecError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = f"{path}: {what} cannot be read ({error})"
        raise SpecError(found, expected="a YAML file in UTF-8", remedy=remedy) from None
