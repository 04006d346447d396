"""The code versions of a pipeline's tables: digests of the parts of its spec that their rows depend on.

Here: which part that is, in a form that spelling does not change. A change that asks for the past of a table changes
its version (see timeops/spec/changes.py). Not here: which rows have which version (assets/catalog/days/versions.py).

Names are left out where nothing goes by them: `was` renames, and the version stays.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tidemark.timeops.expressions.tokens import columns_named, mentions, tokenize
from tidemark.timeops.spec.changes import OF_RECORDS, OF_WINDOW_ALONE, types_in_tables
from tidemark.timeops.spec.pipeline import Spec, canonical, digest
from tidemark.timeops.spec.source import Source
from tidemark.timeops.spec.window import inputs_first

_PACE = (
    "settle",
    "max_files",
    "max_bytes",
    "max_versions",
    "max_records",
    "was",
    "start",
    "name",
    "live",
    "alignment",
)
"""The keys of a source that say when and how fast it is read, not what."""


@dataclass(frozen=True)
class CodeVersions:
    """The code versions of one spec.

    Attributes:
        log: Of the arrival log: which records are read, and as which columns.
        time: Of what judges records: every derived table changes with it.
        events: Of the events in order: the same, and their columns.
        windows: Of each window, by its name: with it the windows over it change.
        results: Of all windows and joins together.
        joins: Of each join, by its name.
    """

    log: str
    time: str
    events: str
    windows: Mapping[str, str]
    results: str
    joins: Mapping[str, str]


def code_versions(spec: Spec) -> CodeVersions:
    """Return the code versions of a spec; a version is 16 hexadecimal digits."""
    data = json.loads(spec.canonical_json())
    sources = data["sources"]
    by_name = {window["name"]: window for window in data.get("windows", [])}
    time = _version(
        time={**data.get("time", {}), **_texts(data.get("time", {}), "timestamp_by", "over", "deduplicate_by")},
        sources=_unordered(_judged(spec, source, part) for source, part in zip(spec.sources, sources, strict=True)),
        windows=_unordered(_shape(window) for window in by_name.values()) if spec.closes_by_silence else [],
    )
    columns = _unordered(types_in_tables(source.columns, source.rename) for source in spec.sources)
    columns_of = {source.name: types_in_tables(source.columns, source.rename) for source in spec.sources}
    joins = {
        join["name"]: _version(
            time=time, join=join, columns=[columns_of.get(join[side].get("source"), {}) for side in ("left", "right")]
        )
        for join in data.get("joins", [])
    }
    windows = dict[str, str]()
    for window in inputs_first(spec.windows):
        windows[window.name] = _version(
            time=time,
            window=_shape(by_name[window.name]),
            input=windows.get(window.input or "", joins.get(window.input or "")),
            columns=[] if window.input else columns if window.top else _columns_in(spec, window.event_expressions),
            days=spec.partitions.time_zone,
        )
    read = _unordered(_read(source, part) for source, part in zip(spec.sources, sources, strict=True))
    log = _version(sources=read, zone=spec.time.time_zone, start=data.get("time", {}).get("start_at"))
    events = _version(time=time, columns=columns, outputs=data.get("outputs", {}))
    results = _version(time=time, windows=windows, **({"joins": joins} if joins else {}))
    return CodeVersions(log, time, events, MappingProxyType(windows), results, MappingProxyType(joins))


def _version(**parts: Any) -> str:
    return digest(canonical(parts))[:16]


def _unordered(parts: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(map(canonical, parts))


def _plain(expression: str) -> str:
    """Return an expression in one spelling: white space and comments mean nothing."""
    return " ".join(expression[token.start : token.end] for token in tokenize(expression))


def _texts(part: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the expressions of some keys in one spelling."""
    expressions = {key: part[key] for key in keys if key in part}
    return {
        key: _plain(value) if isinstance(value, str) else [*map(_plain, value)] for key, value in expressions.items()
    }


def _read(source: Source, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what says which records of a source are in the log, and with which columns."""
    keys = {key: value for key, value in part.items() if key not in (*_PACE, *OF_RECORDS)}
    types = types_in_tables(source.columns, source.rename)
    return {**keys, "schema": types, **_texts(part, "arrival_time", "split")}


def _judged(spec: Spec, source: Source, part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what says how the records of a source are judged."""
    keys = {key: part[key] for key in OF_RECORDS if key in part}
    texts = (source.timestamp_by or spec.time.timestamp_by or "", source.split or "")
    time = spec.time
    return {
        **keys,
        **_texts(part, "timestamp_by", "split"),
        "columns": _columns_in(spec, (*texts, *time.over, *time.deduplicate_by), source),
    }


def _shape(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what says which rows a window has, but for its input."""
    keys = {key: value for key, value in part.items() if key not in (*OF_WINDOW_ALONE, "name", "from")}
    aggregates = {name: _plain(text) for name, text in part.get("aggregates", {}).items()}
    top = {"top": {**part["top"], **_texts(part["top"], "by")}} if "top" in part else {}
    return {**keys, **_texts(part, "where", "having", "group_by", "gap"), "aggregates": aggregates, **top}


def _columns_in(spec: Spec, expressions: Iterable[str], only: Source | None = None) -> list[Any]:
    """Return the columns that expressions name, with their types, of each source; with names if one goes by these."""
    texts, columns = [*expressions], list[dict[str, Any]]()
    for source in (only,) if only is not None else spec.sources:
        types = {**types_in_tables(source.columns, source.rename), **source.added_columns}
        named = {name: types[name] for text in texts for name in columns_named(text, types)}
        by_name = {"source": source.name} if any(mentions(text, "_source") for text in texts) else {}
        columns.append({**named, **by_name})
    return [*_unordered(columns)]
