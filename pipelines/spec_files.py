"""Spec files on disk: reading one, reading a folder of them, and overrides of single keys.

Here: files and text. Not here: what a spec means (timeops/spec/__init__.py), how Dagster shows a wrong one
(pipelines/definitions.py).
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import overload

from tidemark.resources.settings import noted_keys
from tidemark.resources.sources.kinds import reader_of
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.errors.problems import Problem
from tidemark.timeops.spec import Spec, name_with, parse_spec, readable_rest
from tidemark.timeops.spec.fields import PIPELINE_NAME
from tidemark.timeops.spec.text import read_yaml

CASES = ".cases.yaml"
"""How the name of a file with cases for `tidemark test` ends, which may be next to its spec."""


@dataclass(frozen=True)
class WrongSpec:
    """A file that makes no pipeline, or a folder that holds none.

    Attributes:
        path: The file or folder.
        pipeline: Its pipeline, as far as that is known; letters, digits and _.
        message: What is wrong with it, and what to do.
    """

    path: Path
    pipeline: str
    message: str


@dataclass(frozen=True)
class SpecFolder:
    """Specs of folders, in each folder by name of the file."""

    files: tuple[SpecFile, ...]
    wrong: tuple[WrongSpec, ...]


def read_spec(path: Path, overrides: Sequence[str] = ()) -> SpecFile:
    """Read one spec; overrides are keys set to other values, such as `time.unit=second`.

    Raises:
        SpecError: There is no such file, or it is not a valid spec.
    """
    text = read_text(path, "the spec", remedy="check the path; `tidemark schema` shows what a spec looks like")
    spec = parse_spec(text, file=str(path), overrides=overrides)
    if columns := _columns_of_tables(spec, path):
        spec = spec.with_columns_of_tables(columns)
    file = SpecFile(spec, path.resolve(), path.absolute(), text, name_with(str(path), overrides))
    problems = spec.problems_of_tables() if columns else []
    problems += [
        replace(problem, at=("sources", number, *problem.at))
        for number, source in enumerate(spec.sources)
        for problem in reader_of(source, file.folder).needs().problems
    ]
    if problems:
        raise file.error(problems)
    return file


def _columns_of_tables(spec: Spec, path: Path) -> Mapping[str, str]:
    """Return the columns of tables on the right side of joins where the spec does not name them."""
    if not any(join.right.takes_all_columns for join in spec.joins):
        return {}
    from tidemark.resources.sources.reference import columns_there  # noqa: PLC0415 - PySpark takes a second

    return columns_there(spec, path.resolve().parent)


def as_shown(file: SpecFile, home: Path) -> SpecFile:
    """Return a spec file with the keys under which the code location of a Dagster home shows its tables."""
    return replace(file, asset_keys=noted_keys(home, file.spec.name))


@dataclass(frozen=True)
class RestOfSpec:
    """A wrong spec without what is wrong with it; `places` has the place in the file of each of its windows."""

    file: SpecFile
    places: tuple[int, ...]

    def in_file(self, problem: Problem) -> Problem:
        """Return a problem of the rest at its place in the file."""
        part, *inside = problem.at or ("",)
        if part != "windows" or not inside:
            return problem
        return replace(problem, at=(part, self.places[int(inside[0])], *inside[1:]))


def rest_of(path: Path, overrides: Sequence[str] = ()) -> RestOfSpec | None:
    """Return what can be judged of a wrong spec file; None where too little can be read."""
    with suppress(SpecError):  # a setting that leads nowhere was told
        text = read_text(path, "the spec", remedy="")
        if (readable := readable_rest(text, overrides)) is not None:
            name = name_with(str(path), overrides)
            return RestOfSpec(SpecFile(readable[0], path.resolve(), path.absolute(), text, name), readable[1])
    return None


@overload
def spec(file: str | PathLike[str], *, overrides: Sequence[str] = ()) -> Spec: ...


@overload
def spec(*, text: str, overrides: Sequence[str] = ()) -> Spec: ...


def spec(file: str | PathLike[str] | None = None, *, text: str | None = None, overrides: Sequence[str] = ()) -> Spec:
    """Read a spec as a frozen value: from a file, or from a text.

    Args:
        file: The path of a spec file.
        text: What a spec file would hold, in place of a file.
        overrides: Keys to set to other values, as `--set` of the command line does, such as `time.unit=second`.

    Raises:
        SpecError: There is no such file, or it is not a valid spec: the message lists all that is wrong with it, each
            with line, key, what was found and what was expected.
        TypeError: Neither a file nor a text was given, or both.
    """
    if (file is None) == (text is None):
        raise TypeError("spec() takes either a file or a text")
    if file is not None:
        return read_spec(Path(file), overrides).spec
    return parse_spec(text or "", file="the spec", overrides=overrides)


def read_specs(places: Iterable[Path]) -> SpecFolder:
    """Read spec files, and of folders every `*.yaml` but the cases for `tidemark test`.

    A wrong one keeps none from being read.
    """
    files: dict[Path, SpecFile] = {}
    wrong: list[WrongSpec] = []
    paths: list[Path] = []
    for place in places:
        inside = spec_paths([place])
        paths += inside
        if not inside:
            wrong.append(_without_specs(place))
    for path in paths:
        try:
            file = read_spec(path)
            files[file.path] = file  # two names may lead to one file
        except TidemarkError as error:
            wrong.append(WrongSpec(path, pipeline_in(path), str(error)))
        except Exception as error:  # a fault of Tidemark, in code that every pipeline of the folder runs
            message = f"{path} cannot be read: unexpected {type(error).__name__}: {error}"
            wrong.append(WrongSpec(path, pipeline_in(path), message))
    for name, namesakes in _of_one_name(files.values()).items():
        message = str(_called_the_same(name, namesakes))
        wrong += [WrongSpec(file.path, name, message) for file in namesakes]
    lost = {wrong_spec.path for wrong_spec in wrong}
    return SpecFolder(tuple(file for path, file in files.items() if path not in lost), tuple(wrong))


def spec_paths(places: Iterable[Path]) -> list[Path]:
    """Return spec files, and of folders every `*.yaml` but the cases for `tidemark test`, in each by name."""
    paths: list[Path] = []
    for place in places:
        if place.suffix in {".yaml", ".yml"} and not place.is_dir():
            paths.append(place)
        else:
            paths += sorted(path for path in place.glob("*.yaml") if not path.name.endswith(CASES))
    return paths


def check_names(files: Iterable[SpecFile]) -> None:
    """Check that files that are used together are of different pipelines.

    Raises:
        SpecError: Two files have the same name.
    """
    for name, namesakes in _of_one_name(files).items():
        raise _called_the_same(name, namesakes)


def _of_one_name(files: Iterable[SpecFile]) -> dict[str, list[SpecFile]]:
    """Return the files that share their name with another one, by name."""
    by_name: dict[str, dict[Path, SpecFile]] = defaultdict(dict)
    for file in files:
        by_name[file.spec.name][file.path] = file
    return {name: [*files.values()] for name, files in by_name.items() if len(files) > 1}


def _called_the_same(name: str, files: Sequence[SpecFile]) -> SpecError:
    return SpecError(
        f"{' and '.join(str(file.path) for file in files)} are {'both' if len(files) == 2 else 'all'} called {name}",
        expected="one spec per name, as the name is the folder of its tables",
        remedy="choose a different `name` for each, or remove all but one",
    )


def _without_specs(folder: Path) -> WrongSpec:
    error = SpecError(
        f"{folder} holds no `*.yaml`" if folder.is_dir() else f"{folder}: there is no such folder",
        expected="a folder of specs, one file for each pipeline",
        remedy="set TIDEMARK_SPECS, or `specs` of tm.definitions, to one, or put a spec there; "
        "`tidemark init FOLDER` makes one with an example",
    )
    return WrongSpec(folder, "specs", str(error))


def pipeline_in(path: Path) -> str:
    """Return the name in a wrong spec, if that much can be read; else the name of its file."""
    with suppress(Exception):  # its message says what is wrong with it
        name = read_yaml(path.read_text(encoding="utf-8")).data["name"]
        if re.fullmatch(PIPELINE_NAME, name):
            return str(name)
    return re.sub(r"\W", "_", path.name.removesuffix(path.suffix), flags=re.ASCII)


def read_text(path: Path, noun: str, *, remedy: str) -> str:
    """Read a file of the operator.

    Raises:
        SpecError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        fault = f"{path}: {noun} cannot be read ({error})"
        raise SpecError(fault, expected="a YAML file in UTF-8", remedy=remedy) from None
