"""Specs that the tests of the spec file change key by key, and what is said of them."""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import FilesSource, Spec, parse_spec, spec_json_schema

EARTHQUAKES = """
name: earthquakes
sources:
  - name: usgs
    kind: files
    path: data/usgs/*.csv
    format: csv
    options: {header: true}
    schema: "time STRING, mag DOUBLE, net STRING, _id STRING, updated STRING, place STRING"
    rename: {_id: id}
    arrival_time: "updated"
    order: arrival_time
time:
  timestamp_by: "time"
  time_zone: UTC
  unit: millisecond
  over: [net]
  out_of_orderness: 2 minutes
  out_of_order: keep
  late: {tolerance: 5 minutes, policy: adjust}
  early: {tolerance: 5 minutes, policy: drop}
  emit: on_event
  end_of_input: hold
outputs: {ordered_events: true}
windows:
  - {name: quakes_1h, kind: tumbling, size: 1 hour, allowed_lateness: 10 minutes,
     where: "mag IS NOT NULL", group_by: [net], aggregates: {events: "count(*)", strongest: "max(mag)"},
     having: "events > 1", emit: on_close}
partitions: {start: 2013-01-01}
"""


SMALL: dict[str, Any] = {
    "name": "small",
    "sources": [{"name": "s", "kind": "files", "path": "*.csv", "format": "csv", "schema": "t STRING, x INT"}],
    "time": {"timestamp_by": "t"},
    "windows": [{"name": "w", "kind": "tumbling", "size": "1 hour", "aggregates": {"n": "count(*)"}}],
}
WINDOW = SMALL["windows"][0]
LIVE = {**SMALL["sources"][0], "arrival_time": "t", "live": True}
TABLE: dict[str, Any] = {"name": "s", "kind": "delta", "path": "../bronze/t", "schema": "t STRING, x INT"}
TOPICS: dict[str, Any] = {
    "name": "s",
    "kind": "kafka",
    "bootstrap_servers": "one:9092, two:9093",
    "topics": ["orders"],
    "format": "json",
    "schema": "t STRING, x INT",
}
LOGIN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "me",
    "sasl.password": "${KAFKA_PASSWORD}",
}


def changed(path: str, value: object, base: dict[str, Any] = SMALL) -> dict[str, Any]:
    """Return the spec with the value set at `a.0.b`, or the key taken out for `...`."""
    spec = copy.deepcopy(base)
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    part: Any = spec
    for step in way:
        part = part.setdefault(step, {}) if isinstance(part, dict) else part[step]
    if isinstance(part, list) and last == len(part):
        part.append(value)
    elif value is ...:
        del part[last]
    else:
        part[last] = value
    return spec


def parse(spec: dict[str, Any]) -> Spec:
    return parse_spec(yaml.safe_dump(spec, sort_keys=False), file="small.yaml")


def message(spec: dict[str, Any]) -> str:
    return parse_message(yaml.safe_dump(spec, sort_keys=False))


def parse_message(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, file="small.yaml")
    return str(caught.value)


def refusals(specs: Mapping[str, dict[str, Any]]) -> dict[str, str | None]:
    """Return what is said of each of some bad specs, by its name; None of one that is accepted."""
    said: dict[str, str | None] = {}
    for name, spec in specs.items():
        try:
            parse_spec(yaml.safe_dump(spec, sort_keys=False), file="small.yaml")
            said[name] = None
        except SpecError as refused:
            said[name] = str(refused)
        except Exception as error:
            error.add_note(f"the spec: {name}")
            raise
    return said


def files_of(spec: Spec) -> FilesSource:
    """Return the first source, which reads files."""
    source = spec.sources[0]
    assert isinstance(source, FilesSource)
    return source


def with_source(source: dict[str, Any] = TOPICS, /, **keys: object) -> dict[str, Any]:
    """Return the spec with this one source and more keys; a key that is None is left out."""
    return {**SMALL, "sources": [{key: value for key, value in {**source, **keys}.items() if value is not None}]}


def cumulative(**keys: str) -> dict[str, Any]:
    return {**WINDOW, "kind": "cumulative", **keys}


def hopping(**keys: str) -> dict[str, Any]:
    return {**WINDOW, "kind": "hopping", **keys}


def session(**keys: object) -> dict[str, Any]:
    return {"name": "w", "kind": "session", "aggregates": {"n": "count(*)"}, **keys}


def two_sources(**keys: object) -> list[dict[str, Any]]:
    """Return the one source, and another like it but for some keys."""
    return [*SMALL["sources"], {**SMALL["sources"][0], "name": "other", **keys}]


def aligned(**keys: object) -> dict[str, Any]:
    """Return an alignment in the group `g`."""
    return {"group": "g", "max_drift": "1 min", **keys}


def two_aligned(**keys: object) -> list[dict[str, Any]]:
    """Two sources of one group, the second with more keys."""
    return [{**source, "alignment": aligned()} | more for source, more in zip(two_sources(), ({}, keys), strict=True)]


def over_w(**keys: object) -> dict[str, Any]:
    """Return a window over the results of `w`; a key that is None is left out."""
    keys = {"name": "hours", "from": "w", "aggregates": {"m": "max(n)"}, "kind": "tumbling", "size": "1 h", **keys}
    return {key: value for key, value in keys.items() if value is not None}


def schema_accepts(spec: dict[str, Any]) -> bool:
    return bool(_validator().is_valid(spec))


@cache
def _validator() -> Any:
    """Return the schema, ready to check specs: to make it takes a tenth of a second."""
    return pytest.importorskip("jsonschema").Draft202012Validator(spec_json_schema())


def with_set(*overrides: str) -> Spec:
    return parse_spec(yaml.safe_dump(SMALL), file="small.yaml", overrides=overrides)
