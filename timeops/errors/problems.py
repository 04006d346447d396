"""The problems of a spec file, said so that the reader can put it right.

Here: one problem, several of them, and the one error that lists them. Not here: the rules themselves.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from types import MappingProxyType

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidemark.timeops.errors import SpecError

Path = tuple[str | int, ...]


_SAME_IN_ALL_YAML = re.compile(
    r"[-+]?(?:0|[1-9][0-9_]*|0[xb][0-9a-fA-F_]+|[0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))"
    r"|\.(?:nan|NaN|NAN)"
)


@dataclass(frozen=True)
class Misread:
    """A value that YAML reads as another than its text says, such as `010` (8), `1:30` (90) or `no` (false).

    It is neither a text nor a number, so no key takes it by accident.

    Args:
        text: What is written.
        value: What YAML makes of it.
    """

    text: str
    value: bool | int | float


def as_flag(value: object) -> object:
    """Return the flag that a value means where one is expected: `yes` is `true`; any other value as it is."""
    return value.value if isinstance(value, Misread) and isinstance(value.value, bool) else value


def as_number(value: object) -> object:
    """Return the number that a value means where one is expected, such as `1_000`; any other value as it is.

    A number with two readings stays as it is: `010` is 8 or 10, `1:30` is 90 or an hour and a half.
    """
    if isinstance(value, Misread) and _SAME_IN_ALL_YAML.fullmatch(value.text):
        return value.value
    return value


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Args:
        found: What was found.
        expected: What would have been right.
        remedy: What the reader can do.
        at: Keys and list positions that lead to the place, from where the problem is reported.
    """

    found: str
    _: KW_ONLY
    expected: str = ""
    remedy: str = ""
    at: Path = ()


class ProblemsError(ValueError):
    """Several problems of one value; validators raise it, and pydantic carries it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(_one_line(problem) for problem in self.problems))


def raise_any(problems: Iterable[Problem]) -> None:
    """Raise what was gathered; do nothing when there is none."""
    gathered = tuple(problems)
    if gathered:
        raise ProblemsError(gathered)


def misfit(value: object, expected: str, remedy: str = "") -> ProblemsError:
    """Return the error of a value that is not what was expected."""
    return ProblemsError([Problem(f"found {show(value)}", expected=expected, remedy=remedy)])


def show(value: object) -> str:
    """Write a value of a YAML file as it may be written there, shortened."""
    match value:
        case Misread():
            return f"`{value.text}`, which YAML reads as {show(value.value)}"
        case None | bool():
            return "nothing" if value is None else str(value).lower()
        case str():
            return f'"{value}"' if len(value) <= 80 else f'"{value[:77]}..."'
        case Mapping():
            keys = ", ".join(str(key) for key in list(value)[:5])
            return f"a mapping with the keys {keys}" if value else "an empty mapping"
        case list() | tuple():
            return f"a list of {len(value)}"
        case _:
            return str(value)


def did_you_mean(word: object, words: Iterable[str]) -> str:
    """Return `did you mean `x`?`, or an empty text when nothing is near."""
    near = near_name(word, words) if isinstance(word, str) else None
    return f"did you mean `{near}`?" if near is not None else ""


def near_name(word: str, words: Iterable[str]) -> str | None:
    """Return the known word that is nearest to another one; None where none is near."""
    by_lower = {name.lower(): name for name in words}
    lower = word.lower()
    near = difflib.get_close_matches(lower, by_lower, n=len(by_lower) or 1, cutoff=0.6)
    best = min(
        near,
        key=lambda name: (-_likeness(lower, name), -_likeness(*map(_consonants, (lower, name))), name),
        default=None,
    )
    return by_lower[best] if best is not None else None


def _likeness(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, word).ratio()


def _consonants(word: str) -> str:
    """Return a word without the letters that people confuse: of two names that are as near, `tyme` is `time`."""
    return re.sub("[aeiouy]", "", word)


def path_text(path: Path) -> str:
    """Write a path as `windows[0].size`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"\w+", step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def _one_line(problem: Problem) -> str:
    place = path_text(problem.at)
    fault = f"{place}: {problem.found}" if place else problem.found
    expected = f"expected {problem.expected}" if problem.expected else ""
    return "; ".join(filter(None, (fault, expected, problem.remedy)))


class SpecFileError(SpecError):
    """All that is wrong with a spec file.

    Args:
        problems: The same one by one.
        lines: Line of each path in the file, from 1.
    """

    def __init__(
        self,
        found: str,
        *,
        expected: str = "",
        remedy: str = "",
        problems: Sequence[Problem] = (),
        lines: Mapping[Path, int] = MappingProxyType({}),
    ) -> None:
        self.problems, self.lines = tuple(problems), lines
        super().__init__(found, expected=expected, remedy=remedy)


def spec_error(file: str, problems: Sequence[Problem], lines: Mapping[Path, int]) -> SpecFileError:
    """Return the one error that lists the problems of a file, at least one, in the order of its lines, each once.

    `lines` has the line of each path that is in the file, from 1.
    """
    in_order = sorted(dict.fromkeys(problems), key=lambda problem: _line(problem.at, lines))
    if len(in_order) == 1:
        problem = in_order[0]
        place = place_text(problem.at, lines)
        fault = f"{file}, {place}{problem.found}" if place else f"{file}: {problem.found}"
        return SpecFileError(fault, expected=problem.expected, remedy=problem.remedy, problems=problems, lines=lines)
    rows = []
    for problem in in_order:
        rows.append(f"  {place_text(problem.at, lines)}{problem.found}")
        rows += [f"    Expected: {problem.expected}"] if problem.expected else []
        rows += [f"    To do: {problem.remedy}"] if problem.remedy else []
    fault = "\n".join([f"{file} has {len(in_order)} problems:", *rows])
    return SpecFileError(fault, problems=problems, lines=lines)


def error_at(problem: Problem, where: str) -> SpecError:
    """Return the error of one problem in a place that no file names."""
    return SpecError(f"{where}: {problem.found}", expected=problem.expected, remedy=problem.remedy)


def _line(path: Path, lines: Mapping[Path, int]) -> int:
    """Return the line of the nearest part of the path that is in the file; 0 when none does."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 0)


def place_text(path: Path, lines: Mapping[Path, int]) -> str:
    """Write where a path is, as `line 3, time.unit: `."""
    line = _line(path, lines)
    parts = [f"line {line}"] if line else []
    parts += [path_text(path)] if path else []
    return f"{', '.join(parts)}: " if parts else ""


def problems_of(error: ValidationError, models: Mapping[Path, type[BaseModel]]) -> list[Problem]:
    """Translate what pydantic found; `models` has the model at each path, list positions left out."""
    return [problem for detail in error.errors() for problem in _translate(detail, models)]


def _translate(detail: ErrorDetails, models: Mapping[Path, type[BaseModel]]) -> list[Problem]:
    steps = [step for step in detail["loc"] if step != "[key]"]
    at = tuple(step for i, step in enumerate(steps) if not _is_kind(steps, i))
    if detail["input"] is None and detail["type"] != "extra_forbidden":
        return []  # read_yaml reports every key without a value
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, ProblemsError):
        return [replace(problem, at=at + problem.at) for problem in cause.problems]
    keys = tuple(step for step in steps[:-1] if isinstance(step, str))
    fault = f"found {show(detail['input'])}"
    if detail["type"] == "extra_forbidden":
        return [_unknown_key(at, models[keys])]
    if detail["type"] == "missing":
        fields = {field.alias or name: field for name, field in models[keys].model_fields.items()}
        expected = fields[str(at[-1])].description or ""
        return [Problem("the key is missing", expected=expected, at=at)]
    if detail["type"] == "literal_error":
        words = re.findall("'(.*?)'", detail["ctx"]["expected"])
        return [Problem(fault, expected=" or ".join(words), remedy=did_you_mean(detail["input"], words), at=at)]
    expected = _EXPECTED.get(detail["type"]) or detail["msg"]
    item = detail["input"] if detail["type"] == "tuple_type" and isinstance(detail["input"], str) else ""
    shown = item if re.fullmatch(r"\w+", item) else show(item)
    return [
        Problem(
            fault, expected=expected, remedy=f"write `[{shown}]` for a list with one entry" if item else "", at=at
        )
    ]


def _is_kind(steps: Sequence[str | int], i: int) -> bool:
    """Return whether a step is not a key but says which of several models an item of a list is, as `[files]`."""
    step = steps[i]
    return i > 0 and isinstance(steps[i - 1], int) and isinstance(step, str) and step[:1] + step[-1:] == "[]"


_EXPECTED = {
    "bool_type": "true or false",
    "tuple_type": "a list, such as [a, b]",
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "a mapping of keys to values"),
}


def _unknown_key(at: Path, model: type[BaseModel]) -> Problem:
    key = str(at[-1])
    without_effect: Mapping[str, str] = getattr(model, "WITHOUT_EFFECT", {})
    if key in without_effect:
        return Problem(f"`{key}` has no effect here: {without_effect[key]}", remedy="leave the key out", at=at)
    keys = [field.alias or name for name, field in model.model_fields.items()]
    near = did_you_mean(key, keys)
    return Problem(f"unknown key `{key}`", expected="one of " + ", ".join(keys), remedy=near, at=at)
