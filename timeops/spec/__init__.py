"""The pipeline spec: the YAML file as frozen models.

Here: reading a spec file, and the names that other modules use. Not here: file access, and the keys themselves
(timeops/spec/pipeline.py, timeops/spec/source.py, timeops/spec/event_time.py, timeops/spec/window.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tidemark.timeops.errors.problems import Path, Problem, problems_of, spec_error
from tidemark.timeops.spec.automation import AgeLevels, Alerts, Channel, Events, RateLevels
from tidemark.timeops.spec.event_time import EarlyPolicy, Idle, LatePolicy, TimeSpec
from tidemark.timeops.spec.fields import RESERVED_COLUMNS, is_reserved
from tidemark.timeops.spec.join import JoinSide, JoinSpec, RightSide
from tidemark.timeops.spec.kafka_source import KafkaSource
from tidemark.timeops.spec.pipeline import (
    ANY_SOURCE,
    SOURCE_MODELS,
    Catalog,
    Outputs,
    Partitions,
    Spec,
    rules_between_parts,
)
from tidemark.timeops.spec.retention import Retention
from tidemark.timeops.spec.source import Alignment, DeltaSource, FilesSource, Source, SourceIdle
from tidemark.timeops.spec.text import read_yaml, spec_json_schema, with_overrides
from tidemark.timeops.spec.top import Top
from tidemark.timeops.spec.window import RESERVED_IN_WINDOWS, WindowSpec

__all__ = [
    "RESERVED_COLUMNS",
    "RESERVED_IN_WINDOWS",
    "Catalog",
    "DeltaSource",
    "EarlyPolicy",
    "FilesSource",
    "JoinSpec",
    "KafkaSource",
    "LatePolicy",
    "Outputs",
    "Partitions",
    "RightSide",
    "Source",
    "Spec",
    "TimeSpec",
    "WindowSpec",
    "is_reserved",
    "name_with",
    "parse_spec",
    "read_part",
    "readable_rest",
    "spec_json_schema",
]

Part = TypeVar("Part")
Model = TypeVar("Model", bound=BaseModel)

_MODELS: Mapping[Path, type[BaseModel]] = {
    (): Spec,
    **{("sources", kind): model for kind, model in SOURCE_MODELS.items()},
    **{("sources", kind, "idle"): SourceIdle for kind in SOURCE_MODELS},
    **{("sources", kind, "alignment"): Alignment for kind in SOURCE_MODELS},
    ("time",): TimeSpec,
    ("time", "late"): LatePolicy,
    ("time", "early"): EarlyPolicy,
    ("time", "idle"): Idle,
    ("catalog",): Catalog,
    ("outputs",): Outputs,
    ("joins",): JoinSpec,
    ("joins", "left"): JoinSide,
    ("joins", "right"): RightSide,
    ("windows",): WindowSpec,
    ("windows", "top"): Top,
    ("partitions",): Partitions,
    ("retention",): Retention,
    ("alerts",): Alerts,
    ("alerts", "dead_letter_rate"): RateLevels,
    ("alerts", "freshness"): AgeLevels,
    ("events",): Events,
    ("alerts", "notify"): Channel,
}


def parse_spec(text: str, *, file: str, overrides: Sequence[str] = ()) -> Spec:
    """Read a spec file.

    Raises:
        SpecError: All that is wrong with the file, each with line, key path, what was found and expected.
    """
    # `missing` of a source takes `null` as a word
    document = read_yaml(text, nullable=lambda path: path[:1] == ("sources",) and path[2:] == ("missing",))
    problems = list(document.problems)
    if document.is_readable:
        data = with_overrides(document.data, overrides)
        try:
            spec = Spec.model_validate(data)
        except ValidationError as error:
            problems.extend(problems_of(error, _MODELS))
            problems.extend(_rules_between_readable_parts(data))
        else:
            if not problems:
                return spec
    raise spec_error(name_with(file, overrides), problems, document.lines)


_OF_COLUMNS = frozenset(("name", "kind", "format", "schema", "rename", "keep_unknown", "metadata", "changes"))
"""The keys of a source that say which columns expressions may name."""
_ANY_NAME = "spec"
_DEPTHS = {"sources": 3, "windows": 3, "time": 2}
"""How many steps lead to a key of a part, where it is not the part itself that is left out."""


def readable_rest(text: str, overrides: Sequence[str] = ()) -> tuple[Spec, tuple[int, ...]] | None:
    """Return what a wrong spec says without the keys and windows that are wrong, so that more of it can be judged.

    Returns:
        The spec, and the place in the file of each of its windows. None where too little can be read.

    Raises:
        SpecError: A setting cannot be read, or leads nowhere.
    """
    document = read_yaml(text)
    data = with_overrides(document.data, overrides)
    windows = data.get("windows")
    by_place: dict[int, Any] = dict(enumerate(windows)) if isinstance(windows, list) else {}
    while document.is_readable:
        places = tuple(by_place)
        readable = {**data, "windows": list(by_place.values())}
        try:
            return Spec.model_validate(readable), places
        except ValidationError as error:
            paths = [problem.at for problem in problems_of(error, _MODELS)]
            wrong = dict.fromkeys(at[: _DEPTHS.get(str(at[0]), 1) if at else 0] for at in paths)
        if not wrong or not all(_leave_out(data, by_place, places, at) for at in wrong):
            return None
    return None


def _leave_out(data: dict[str, Any], windows: dict[int, Any], places: Sequence[int], at: Path) -> bool:
    """Take a wrong key out of what a spec says, or the window that it is in; return whether enough is left.

    `places` has the place in the file of each window that the key may be in.
    """
    part, *inside = at or ("",)
    if part == "name" and data.get("name") != _ANY_NAME:
        data["name"] = _ANY_NAME  # no expression names it
        return True
    if part == "windows" and inside:
        place = places[int(inside[0])]
        window = windows.get(place)
        if isinstance(window, dict) and len(inside) == 2 and inside[1] not in _KEYS_OF_WINDOWS:
            window.pop(inside[1], None)
        else:
            windows.pop(place, None)  # it may have several problems
        return True
    if part == "sources":
        is_known = len(inside) > 1 and inside[1] not in _OF_COLUMNS and inside[1] in data["sources"][inside[0]]
        return is_known and data["sources"][inside[0]].pop(inside[1]) is not None
    if part == "time" and inside and inside[0] in data["time"]:
        del data["time"][inside[0]]
        return True
    return data.pop(str(part), None) is not None and part != "name"


_KEYS_OF_WINDOWS = {field.alias or name for name, field in WindowSpec.model_fields.items()}


def name_with(file: str, overrides: Sequence[str]) -> str:
    """Return the name of a spec file, for messages, with the keys that were set next to it."""
    return " ".join([file, *(f"--set {override}" for override in overrides)])


def read_part(key: str, model: type[Model], data: Mapping[str, Any]) -> Model:
    """Read the keys of one part of a spec by itself: its `time`, or one of its `windows`.

    Raises:
        SpecError: All that is wrong with it, as in a spec file.
    """
    models = {path[1:]: part for path, part in _MODELS.items() if path[:1] == (key,)}
    try:
        return model.model_validate(dict(data))
    except ValidationError as error:
        nothing = Problem("a key has the value None", remedy="leave it out")  # a file cannot say that
        raise spec_error(key, problems_of(error, models) or [nothing], {}) from None


def _rules_between_readable_parts(data: Mapping[str, Any]) -> list[Problem]:
    """Judge the parts that can be read together, so that one report says as much as can be known."""
    windows = data.get("windows")
    windows = windows if isinstance(windows, list) else []
    sources = data.get("sources")
    read = {position: _read(WindowSpec.model_validate, window) for position, window in enumerate(windows)}
    sources = sources if isinstance(sources, list) else []
    joins = data.get("joins")
    joins = joins if isinstance(joins, list) else []
    read_joins = {position: _read(JoinSpec.model_validate, join) for position, join in enumerate(joins)}
    read_sources = [_read(ANY_SOURCE.validate_python, source) for source in sources]
    return rules_between_parts(
        sources=[s for s in read_sources if s is not None] if None not in read_sources else [],
        time=_read(TimeSpec.model_validate, data.get("time", {})),
        windows={position: window for position, window in read.items() if window is not None},
        has_windows=data.get("windows", []) != [],
        joins={position: join for position, join in read_joins.items() if join is not None},
        outputs=_read(Outputs.model_validate, data.get("outputs", {})),
        retention=_read(Retention.model_validate, data["retention"]) if "retention" in data else None,
        alerts=_read(Alerts.model_validate, data.get("alerts", {})),
        has_partitions="partitions" in data,
        has_schedule="schedule" in data,
    )


def _read(read: Callable[[object], Part], data: object) -> Part | None:
    try:
        return read(data)
    except ValidationError:
        return None
