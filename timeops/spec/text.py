"""The text of a spec file: YAML with the line of every key, keys set again (`time.unit=second`), and its JSON Schema.

Here: syntax, keys given twice, keys without a value, overrides, what a schema (draft 2020-12) can say of the rules of
the models. Not here: which keys there are (the models), rules that need reading of expressions.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import Misread, Path, Problem, error_at, show
from tidemark.timeops.spec.pipeline import Spec
from tidemark.timeops.spec.source import FORMAT_ALIASES, READER_OPTIONS, option_schema
from tidemark.timeops.spec.window import ALIAS_SCHEMA
from tidemark.timeops.spec.window_shape import SHAPE_KEYS, SHAPES
from tidemark.timeops.values.durations import DURATION_PATTERN, format_duration, parse_duration

_MOST_KEYS = 10_000  # of one mapping, after merging
_MERGE = "tag:yaml.org,2002:merge"
_NULL = "tag:yaml.org,2002:null"
_SCALARS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:bool")
_STRING = "tag:yaml.org,2002:str"
_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_STEP = re.compile(r"([^.\[\]=]+)|\[(\d+)\]")
_NO_BREAKS = "\x85\u2028\u2029"
_EXPECTED = 'key=value, such as time.out_of_orderness=30s or windows[0].where="v > 1"'


class _Loader(yaml.SafeLoader):
    """Safe YAML in which days and times stay text, so that quotes around them change nothing.

    PyYAML ends lines at U+0085, U+2028 and U+2029, as YAML 1.1 did: it would cut a text there, and a comment would
    become keys. For YAML 1.2, editors and JSON they are signs like others, so others are in their place meanwhile.
    A number, or a word such as `no`, whose value is not what its text says becomes `Misread`.
    """

    def __init__(self, text: str) -> None:
        free = (code for code in range(0xE000, 0xF900) if chr(code) not in text)
        self._stand_ins = dict(zip(map(ord, _NO_BREAKS), free, strict=False))
        super().__init__(text.translate(self._stand_ins))

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node: yaml.ScalarNode = super().compose_scalar_node(anchor)
        node.value = node.value.translate({code: sign for sign, code in self._stand_ins.items()})
        return node

    def as_written(self, node: yaml.ScalarNode) -> Any:
        """Return the value of a number or a flag if its text says it in one way only, else `Misread`."""
        construct = getattr(yaml.SafeLoader, f"construct_yaml_{node.tag.rpartition(':')[2]}")
        value = construct(self, node)
        return value if show(value) == node.value else Misread(node.value, value)


for _tag in _SCALARS:
    _Loader.add_constructor(_tag, _Loader.as_written)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Document:
    """The content of a file.

    Args:
        data: The mapping of the file; empty when there is a problem of syntax.
        lines: Line of each path, from 1.
        problems: What is wrong with the text itself.
        is_readable: Whether `data` is worth judging.
    """

    data: dict[str, Any]
    lines: dict[Path, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    is_readable: bool = True


def read_yaml(
    text: str,
    *,
    expected: str = "a mapping with `name` and `sources`",
    nullable: Callable[[Path], bool] = lambda _path: False,
) -> Document:
    """Read one YAML document that is a mapping; what is wrong is in `problems`, with its line.

    Args:
        text: What the file holds.
        expected: What the mapping should be, for messages.
        nullable: Where a written `null` is a value; a key with nothing after it is wrong everywhere.
    """
    lines: dict[Path, int] = {}
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return _unreadable(Problem("the file is empty", expected=expected))
        if too_large := _too_large(root, {}):
            return _unreadable(*too_large)
        problems = tuple(_Walk(lines, nullable).node(root, ()))
        data = loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f" at column {mark.column + 1}" if mark else ""
        what = " ".join(part for part in (error.context, error.problem) if part)
        lines = {(): mark.line + 1} if mark else {}
        return _unreadable(Problem(f"the YAML cannot be read{place}: {what}"), lines)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        return _unreadable(Problem(f"the YAML cannot be read: {' '.join(str(error).split())}"))
    if not isinstance(data, dict):
        return _unreadable(Problem(f"the file holds {show(data)}", expected=expected))
    return Document({key: value for key, value in data.items() if isinstance(key, str)}, lines, problems)


def _unreadable(problem: Problem, lines: dict[Path, int] | None = None) -> Document:
    return Document({}, lines or {}, (problem,), is_readable=False)


def _too_large(node: yaml.Node, sizes: dict[int, int]) -> tuple[Problem, dict[Path, int]] | None:
    """Return the first mapping that merge keys make larger than a file can mean, and its line.

    Args:
        node: The node to look into.
        sizes: The nodes that were looked into, by identity: keys of a mapping, including the keys of merged ones.
    """
    if id(node) in sizes or not isinstance(node, yaml.CollectionNode):
        return None
    sizes[id(node)] = 0  # a mapping may merge itself: that is another fault, which PyYAML reports
    count = 0
    for item in node.value:
        parts = item if isinstance(item, tuple) else (item,)
        for part in parts:
            if inner := _too_large(part, sizes):
                return inner
        is_merged = isinstance(item, tuple) and item[0].tag == _MERGE
        merged = (item[1].value if isinstance(item[1], yaml.SequenceNode) else [item[1]]) if is_merged else []
        count += sum(sizes.get(id(mapping), 0) for mapping in merged) if is_merged else 1
    sizes[id(node)] = count
    if count <= _MOST_KEYS:
        return None
    fault = f"the merge keys `<<` make a mapping of {count:,} keys"
    problem = Problem(fault, expected=f"at most {_MOST_KEYS:,}", remedy="write out the keys that are meant")
    return problem, {(): node.start_mark.line + 1}


@dataclass(frozen=True)
class _Walk:
    """Notes the line of each path; finds keys given twice, keys that are not text and keys without a value."""

    lines: dict[Path, int]
    nullable: Callable[[Path], bool]
    visited: set[int] = field(default_factory=set)

    def node(self, node: yaml.Node, path: Path) -> Iterator[Problem]:
        self.lines.setdefault(path, node.start_mark.line + 1)
        if id(node) in self.visited:  # an alias; its anchor was walked
            return
        self.visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(node.value):
                yield from self.node(item, (*path, position))
        elif isinstance(node, yaml.MappingNode):
            yield from self._mapping(node, path)
        elif node.tag == _NULL and path and not (node.value and self.nullable(path)):
            fault = f"found `{node.value}`, which YAML reads as nothing" if node.value else "there is no value here"
            remedy = "put it in quotes if it is text; else write a value, or leave the key out"
            yield Problem(fault, remedy=remedy if node.value else "write a value, or leave it out", at=path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> Iterator[Problem]:
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                yield from self.node(value, path)
                continue
            if key.tag != _STRING:
                if not isinstance(key, yaml.ScalarNode):
                    continue  # which PyYAML refuses
                if not (path[:1] == ("joins",) and key.value == "on"):  # for YAML 1.1 this word is true
                    fault = f"found the key `{key.value}` in line {line}, which YAML does not read as text"
                    yield Problem(fault, remedy="put the key in quotes", at=path)
                key.tag = _STRING  # from here on it is what its writer meant, so that this is the only complaint
            at = (*path, key.value)
            if key.value in lines:
                fault = f"the key `{key.value}` occurs twice, in lines {lines[key.value]} and {line}"
                yield Problem(fault, expected="each key once", at=at)
            lines[key.value] = line
            self.lines.setdefault(at, line)
            yield from self.node(value, at)


def with_overrides(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return what a spec file holds, with some keys set to other values.

    Args:
        data: The mapping of the file.
        overrides: `key=value` each; the key is a path (`sources[0].path`), the value is YAML. Keys that are missing
            are added, entries of lists must be there.

    Raises:
        SpecError: A setting cannot be read, or leads nowhere.
    """
    changed = copy.deepcopy(data)
    for override in overrides:
        path, value = _read(override)
        _put(changed, path, value, override)
    return changed


def _read(override: str) -> tuple[list[str | int], Any]:
    key, sign, text = override.partition("=")
    steps = [name.strip() if name else int(index) for name, index in _STEP.findall(key)]
    document = read_yaml(f"value: {text}") if sign and text.strip() else None
    if document is None or not document.is_readable or not steps or isinstance(steps[0], int):
        raise SpecError(f"--set {override}: this cannot be read", expected=_EXPECTED)
    for problem in document.problems:
        raise error_at(problem, f"--set {override}")
    return steps, document.data["value"]


def _put(data: Any, path: Sequence[str | int], value: Any, override: str) -> None:
    *way, last = path
    for step, following in zip(way, path[1:], strict=True):
        if isinstance(step, str) and isinstance(data, dict):
            data = data.setdefault(step, {} if isinstance(following, str) else [])
        else:
            data = _entry(data, step, override)
    if isinstance(last, str) and isinstance(data, dict):
        data[last] = value
    else:
        _entry(data, last, override)
        data[last] = value


def _entry(data: Any, step: str | int, override: str) -> Any:
    if isinstance(step, int) and isinstance(data, list) and step < len(data):
        return data[step]
    place, held = (f"[{step}]", "no list") if isinstance(step, int) else (step, "no mapping")
    if isinstance(data, list):
        held = f"a list of {len(data)}"
    raise SpecError(f"--set {override}: `{place}` names nothing: the file has {held} there", expected=_EXPECTED)


Json = dict[str, Any]


def spec_json_schema() -> Json:
    """Return the JSON Schema of the spec file, for editors: keys, values, and the keys of each format and kind.

    It is made of what checks go by too. Which keys go together otherwise is said by checks alone, in sentences.
    """
    schema = _without_null(Spec.model_json_schema(by_alias=True, mode="validation"))
    parts: Json = schema["$defs"]
    schema["properties"]["sources"] |= {"minItems": 1}
    parts["FilesSource"]["allOf"] = _option_rules()
    for name in ("FilesSource", "DeltaSource", "KafkaSource"):
        parts[name]["properties"]["rename"]["propertyNames"] = {"minLength": 1}
    parts["WindowSpec"] |= {"allOf": _kind_rules(), "anyOf": [{"required": [key]} for key in ("aggregates", "top")]}
    parts["WindowSpec"]["properties"]["aggregates"] |= {
        "minProperties": 1,
        "propertyNames": dict(ALIAS_SCHEMA),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "Tidemark pipeline spec",
    }


def _without_null(value: Any) -> Any:
    """Leave out null, which a spec file never holds, and the titles that pydantic makes up."""
    if isinstance(value, list):
        return [_without_null(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {key: _without_null(item) for key, item in value.items() if not _is_noise(key, item)}
    if "default" in schema and any(
        choice.get("pattern") == DURATION_PATTERN for choice in (schema, *schema.get("anyOf", []))
    ):
        schema["default"] = format_duration(parse_duration(schema["default"]))
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    if choices:
        schema["anyOf"] = choices
    if len(choices) == 1:
        del schema["anyOf"]
        return {**choices[0], **schema}
    return schema | {"anyOf": choices} if choices else schema


def _is_noise(key: str, item: Any) -> bool:
    return (key == "title" and isinstance(item, str)) or (key == "default" and isinstance(item, dict | None))


def _has_value(key: str, *values: str) -> Json:
    """Return the condition that a key is there with one of some values."""
    return {"required": [key], "properties": {key: {"enum": list(values)}}}


def _option_rules() -> list[Json]:
    rules = []
    for name, options in READER_OPTIONS.items():
        spellings = [name, *(alias for alias, meant in FORMAT_ALIASES.items() if meant == name)]
        allowed: Json = {
            "properties": {option: option_schema(option) for option in options},
            "additionalProperties": False,
        }
        if "sep" in options:
            allowed["not"] = {"required": ["sep", "delimiter"]}
        rules.append({"if": _has_value("format", *spellings), "then": {"properties": {"options": allowed}}})
    return rules


def _kind_rules() -> list[Json]:
    return [
        {
            "if": _has_value("kind", kind),
            "then": {
                "required": list(shape.needs),
                "properties": {
                    key: False for key in SHAPE_KEYS if key not in shape.needs and key not in shape.may_have
                },
            },
        }
        for kind, shape in SHAPES.items()
    ]
