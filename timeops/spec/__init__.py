"""The pipeline spec: the YAML file as frozen models.

Here: reading a spec file, and the names that other modules use. Not here: file access, and the keys themselves
(pipeline.py, source.py, event_time.py, window.py).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tidemark.timeops.problems import Path, Problem, problems_of, spec_error
from tidemark.timeops.spec.automation import AgeLevels, Alerts, RateLevels
from tidemark.timeops.spec.event_time import Idle, TimeSpec, TolerancePolicy
from tidemark.timeops.spec.fields import RESERVED_COLUMNS, is_reserved
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
from tidemark.timeops.spec.source import Alignment, DeltaSource, FilesSource, Source, SourceIdle
from tidemark.timeops.spec.text import read_yaml, spec_json_schema, with_overrides
from tidemark.timeops.spec.window import RESERVED_IN_WINDOWS, WindowSpec

__all__ = [
    "RESERVED_COLUMNS",
    "RESERVED_IN_WINDOWS",
    "Catalog",
    "DeltaSource",
    "FilesSource",
    "KafkaSource",
    "Outputs",
    "Partitions",
    "Source",
    "Spec",
    "TimeSpec",
    "TolerancePolicy",
    "WindowSpec",
    "is_reserved",
    "name_with",
    "parse_spec",
    "read_part",
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
    ("time", "late"): TolerancePolicy,
    ("time", "early"): TolerancePolicy,
    ("time", "idle"): Idle,
    ("catalog",): Catalog,
    ("outputs",): Outputs,
    ("windows",): WindowSpec,
    ("partitions",): Partitions,
    ("alerts",): Alerts,
    ("alerts", "dead_letter_rate"): RateLevels,
    ("alerts", "freshness"): AgeLevels,
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


def name_with(file: str, overrides: Sequence[str]) -> str:
    """Return the name of a spec file, for messages, with the keys that were set beside it."""
    return " ".join([file, *(f"--set {override}" for override in overrides)])


def read_part(key: str, model: type[Model], data: Mapping[str, Any]) -> Model:
    """Read the keys of one part of a spec by itself: its `time`, or one of its `windows`.

    Raises:
        SpecError: All that is wrong with it, as in a spec file.
    """
    models = {path[1:]: one for path, one in _MODELS.items() if path[:1] == (key,)}
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
    read_sources = [_read(ANY_SOURCE.validate_python, source) for source in sources]
    return rules_between_parts(
        sources=[s for s in read_sources if s is not None] if None not in read_sources else [],
        time=_read(TimeSpec.model_validate, data.get("time", {})),
        windows={position: window for position, window in read.items() if window is not None},
        has_windows=data.get("windows", []) != [],
        outputs=_read(Outputs.model_validate, data.get("outputs", {})),
        has_partitions="partitions" in data,
        has_schedule="schedule" in data,
    )


def _read(read: Callable[[object], Part], data: object) -> Part | None:
    try:
        return read(data)
    except ValidationError:
        return None
