"""The spec file as JSON Schema (draft 2020-12), for editors and other programs.

Here: what a schema can say of the rules of the models. Not here: rules that need reading of expressions.
"""

from typing import Any

from tidemark.timeops.durations import DURATION_PATTERN, format_duration, parse_duration
from tidemark.timeops.spec.pipeline import Spec
from tidemark.timeops.spec.source import FORMAT_ALIASES, READER_OPTIONS, option_schema
from tidemark.timeops.spec.window import A_MONTH, ALIAS_SCHEMA, SHAPE_KEYS, SHAPES

Json = dict[str, Any]

_ZERO = {"pattern": "^[^1-9]*$"}
_NOT_ALIGNED: Json = {"sources": {"items": {"properties": {"alignment": False}}}}


def spec_json_schema() -> Json:
    """Return the JSON Schema of the spec file."""
    schema = _without_null(Spec.model_json_schema(by_alias=True, mode="validation"))
    parts: Json = schema["$defs"]
    schema["properties"]["sources"] |= {"minItems": 1}
    schema["allOf"] = _rules_between_parts()
    parts["FilesSource"]["allOf"] = [*_option_rules(), *_stored_rules()]
    parts["DeltaSource"]["allOf"] = _stored_rules()
    parts["DeltaSource"]["not"] = {"required": ["start_version", "start_timestamp"]}
    parts["KafkaSource"] |= _kafka_rules()
    for name in ("FilesSource", "DeltaSource", "KafkaSource"):
        parts[name]["properties"]["rename"]["propertyNames"] = {"minLength": 1}
    parts["TimeSpec"]["allOf"] = _time_rules()
    parts["Idle"]["allOf"] = _idle_rules()
    parts["WindowSpec"]["allOf"] = [*_kind_rules(), *_emission_rules(), _input_rule()]
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
    kept = {key: _without_null(item) for key, item in value.items() if not _is_noise(key, item)}
    if kept.get("pattern") == DURATION_PATTERN and "default" in kept:
        kept["default"] = format_duration(parse_duration(kept["default"]))
    choices = [choice for choice in kept.get("anyOf", []) if choice != {"type": "null"}]
    if choices:
        kept["anyOf"] = choices
    if len(choices) == 1:
        del kept["anyOf"]
        return {**choices[0], **kept}
    return kept | {"anyOf": choices} if choices else kept


def _is_noise(key: str, item: Any) -> bool:
    return (key == "title" and isinstance(item, str)) or (key == "default" and isinstance(item, dict | None))


def _given(key: str, *values: str) -> Json:
    """Return the condition that a key is there, with one of the values if any are named."""
    condition: Json = {"required": [key]}
    return {**condition, "properties": {key: {"enum": list(values)}}} if values else condition


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
        rules.append({"if": _given("format", *spellings), "then": {"properties": {"options": allowed}}})
    return rules


def _source_rules() -> list[Json]:
    return [{"if": _given("splits"), "then": {"required": ["split"]}}]


def _stored_rules() -> list[Json]:
    one_file: Json = {"properties": {"alignment": {"properties": {"update_interval": False}}}}
    return [*_source_rules(), {"if": _given("arrival_time"), "then": one_file}]


def _kafka_rules() -> Json:
    """Return the rules of Kafka's keys: topics or a pattern; a schema file for Avro and for nothing else."""
    return {
        "oneOf": [{"required": ["topics"]}, {"required": ["topic_pattern"]}],
        "allOf": [
            *_source_rules(),
            {
                "if": _given("format", "avro"),
                "then": {"required": ["avro_schema"]},
                "else": {"properties": {"avro_schema": False}},
            },
            {"if": _given("format", "raw"), "then": {"properties": {"keep_unknown": {"const": False}}}},
        ],
    }


def _time_rules() -> list[Json]:
    by_clock: Json = {"required": ["idle"], "properties": {"idle": _given("advance", "arrival_clock")}}
    has_key: Json = {"required": ["deduplicate_by"], "properties": {"deduplicate_by": {"minItems": 1}}}
    return [
        {"if": by_clock, "then": {"required": ["late"]}},
        {"if": has_key, "then": {"required": ["within"]}},
        {"if": _given("within"), "then": has_key},
    ]


def _idle_rules() -> list[Json]:
    return [
        {"if": _given("advance", "arrival_clock"), "then": {"properties": {"timeout": False}}},
        {"if": _given("advance", "window_close"), "then": {"required": ["timeout"]}},
    ]


def _event_time_rule() -> Json:
    """Return the rule of event time: without one in `time` or a source, nothing is early, late or out of order."""
    in_time: Json = {"required": ["time"], "properties": {"time": _given("timestamp_by")}}
    in_source: Json = {"properties": {"sources": {"contains": _given("timestamp_by")}}}
    by_clock: Json = {"not": {"required": ["advance"], "properties": {"advance": {"const": "arrival_clock"}}}}
    without: Json = {
        "out_of_order": False,
        "late": False,
        "early": False,
        "out_of_orderness": _ZERO,
        "idle": by_clock,
    }
    return {
        "if": {"not": {"anyOf": [in_time, in_source]}},
        "then": {"properties": {"time": {"properties": without}, **_NOT_ALIGNED}},
    }


def _kind_rules() -> list[Json]:
    rules: list[Json] = [
        {
            "if": _given("kind", kind),
            "then": {
                "required": list(shape.needs),
                "properties": {
                    key: False for key in SHAPE_KEYS if key not in shape.needs and key not in shape.may_have
                },
            },
        }
        for kind, shape in SHAPES.items()
    ]
    a_month = {"required": ["size"], "properties": {"size": {"pattern": A_MONTH}}}
    return [*rules, {"if": a_month, "then": {"properties": {"kind": {"const": "tumbling"}, "offset": False}}}]


def _emission_rules() -> list[Json]:
    revised: Json = {"required": ["emit"], "properties": {"emit": {"not": {"const": "on_close"}}}}
    empty: Json = {"required": ["empty"], "properties": {"empty": {"const": True}}}
    on_grid: Json = {"kind": {"not": {"enum": ["session", "sliding", "snapshot"]}}}
    on_time: Json = {"required": ["allowed_lateness"], "properties": {"allowed_lateness": {"pattern": "[1-9]"}}}
    return [
        {"if": _given("history"), "then": {"anyOf": [revised, {"properties": {"history": {"const": False}}}]}},
        {"if": _given("revise_every"), "then": _given("emit", "on_time")},
        {"if": _given("emit", "on_time"), "then": on_time},
        {"if": revised, "then": {"properties": {"max_duration": False}}},
        {"if": empty, "then": {"properties": on_grid}},
        {"if": _given("empty_max"), "then": empty},
    ]


def _input_rule() -> Json:
    over_results: Json = {"emit": {"const": "on_close"}, "empty": {"const": False}}
    return {"if": _given("from"), "then": {"properties": over_results}}


def _rules_between_parts() -> list[Json]:
    has_windows = {"required": ["windows"], "properties": {"windows": {"minItems": 1}}}
    keeps = {"required": ["time"], "properties": {"time": _given("out_of_order", "keep")}}
    writes_no_events = {
        "required": ["outputs"],
        "properties": {
            "outputs": {"required": ["ordered_events"], "properties": {"ordered_events": {"const": False}}}
        },
    }
    by_silence: Json = {"idle": _given("advance", "exclude_split", "window_close"), "emit": {"type": "object"}}
    publishes_silences = {
        "required": ["time"],
        "properties": {"time": {"required": ["idle", "emit"], "properties": by_silence}},
    }
    has_over = {
        "required": ["time"],
        "properties": {"time": {"required": ["over"], "properties": {"over": {"minItems": 1}}}},
    }
    return [
        _event_time_rule(),
        {"if": publishes_silences, "then": {"properties": _NOT_ALIGNED}},
        {"if": writes_no_events, "then": has_windows},
        {"if": _given("partitions"), "then": has_windows},
        {"if": {"not": keeps}, "then": _every_window({"properties": {"allowed_lateness": _ZERO}})},
        {"if": keeps, "then": _every_window({"properties": {"max_duration": False}})},
        {"if": has_over, "then": _every_window({"required": ["group_by"]})},
        {"if": _given("schedule"), "then": {"properties": {"time": {"not": _given("end_of_input", "flush")}}}},
    ]


def _every_window(rule: Json) -> Json:
    return {"properties": {"windows": {"items": rule}}}
