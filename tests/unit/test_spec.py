"""The spec file: what is read, what is refused, and how it is said."""

import copy
import json
import re
from collections.abc import Collection
from datetime import date, timedelta
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tidemark.timeops.durations import parse_duration
from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.tokens import top_level_names
from tidemark.timeops.problems import did_you_mean
from tidemark.timeops.spec import (
    RESERVED_COLUMNS,
    DeltaSource,
    FilesSource,
    Outputs,
    Partitions,
    Spec,
    TimeSpec,
    TolerancePolicy,
    WindowSpec,
    parse_spec,
    spec_json_schema,
)
from tidemark.timeops.spec.fields import names_in_files
from tidemark.timeops.spec.text import read_yaml

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
    with pytest.raises(SpecError) as caught:
        parse(spec)
    return str(caught.value)


def files_of(spec: Spec) -> FilesSource:
    """Return the first source, which reads files."""
    source = spec.sources[0]
    assert isinstance(source, FilesSource)
    return source


TABLE: dict[str, Any] = {"name": "s", "kind": "delta", "path": "../bronze/t", "schema": "t STRING, x INT"}


def test_a_delta_table_is_a_source_with_keys_of_its_own() -> None:
    given = changed("sources.0", {**TABLE, "changes": "rows", "start_version": 0, "max_versions": 5})
    (source,) = parse(given).sources
    assert isinstance(source, DeltaSource)
    assert (source.changes, source.start_version, source.max_versions) == ("rows", 0, 5)
    assert source.columns_in_tables == ["t", "x", "_change_type"]
    assert parse(json.loads(parse(given).canonical_json())) == parse(given)
    assert schema_accepts(given)


@pytest.mark.parametrize(
    ("keys", "place", "words"),
    [
        ({"changes": "skip"}, "sources[0].changes", "fail or follow or ignore or rows"),
        ({"start_version": -1}, "sources[0].start_version", "a version of the table, from 0"),
        (
            {"start_version": 1, "start_timestamp": "2026-01-01"},
            "sources[0].start_timestamp",
            "both say where to start",
        ),
        ({"format": "csv"}, "sources[0].format", "unknown key `format`"),
        ({"settle": "5 s"}, "sources[0].settle", "unknown key `settle`"),
        ({"path": "ftp://lake/t"}, "sources[0].path", "the URL of no store"),
        ({"path": "bronze/*"}, "sources[0].path", "the folder of one Delta table"),
        ({"changes": "rows", "schema": "t STRING, _change_type STRING"}, "sources[0].schema", "adds"),
        ({"alignment": {"grup": "a"}}, "sources[0].alignment.grup", "did you mean `group`?"),
        ({"live": True}, "sources[0].live", "times of commits are the machine's already"),
    ],
)
def test_what_is_wrong_with_a_delta_source_is_said_at_its_key(keys: dict[str, Any], place: str, words: str) -> None:
    said = message(changed("sources.0", {**TABLE, **keys}))
    assert place in said
    assert words in said


def test_files_in_order_of_position_do_not_go_with_a_table() -> None:
    both = [{**SMALL["sources"][0], "order": "position"}, {**TABLE, "name": "other"}]
    assert "position beside a Delta table" in message(changed("sources", both))
    assert len(parse(changed("sources", [SMALL["sources"][0], {**TABLE, "name": "other"}])).sources) == 2


def test_the_example_is_read_as_frozen_models() -> None:
    spec = parse_spec(EARTHQUAKES, file="earthquakes.yaml")
    assert spec == Spec(
        name="earthquakes",
        sources=(
            FilesSource(
                name="usgs",
                kind="files",
                path="data/usgs/*.csv",
                format="csv",
                options={"header": True},
                schema="time STRING, mag DOUBLE, net STRING, _id STRING, updated STRING, place STRING",
                rename={"_id": "id"},
                arrival_time="updated",
            ),
        ),
        time=TimeSpec(
            timestamp_by="time",
            unit="millisecond",
            over=("net",),
            out_of_orderness=timedelta(minutes=2),
            out_of_order="keep",
            late=TolerancePolicy(tolerance=timedelta(minutes=5), policy="adjust"),
            early=TolerancePolicy(tolerance=timedelta(minutes=5), policy="drop"),
        ),
        windows=(
            WindowSpec(
                name="quakes_1h",
                kind="tumbling",
                size=timedelta(hours=1),
                allowed_lateness=timedelta(minutes=10),
                where="mag IS NOT NULL",
                group_by=("net",),
                aggregates={"events": "count(*)", "strongest": "max(mag)"},
                having="events > 1",
            ),
        ),
        outputs=Outputs(),
        partitions=Partitions(start=date(2013, 1, 1)),
    )


def test_what_is_left_out_has_its_default() -> None:
    spec = parse({"name": "a", "sources": SMALL["sources"]})
    source, time = files_of(spec), spec.time
    assert (source.order, source.settle, source.max_files, source.max_bytes) == (
        "arrival_time",
        timedelta(seconds=5),
        10_000,
        10 * 1024**3,
    )
    assert (dict(source.options), dict(source.rename), source.keep_unknown) == ({}, {}, False)
    assert (time.timestamp_by, time.time_zone, time.unit, time.over) == (None, "UTC", "microsecond", ())
    assert (time.out_of_order, time.late, time.early, time.end_of_input) == ("drop", None, None, "hold")
    assert (spec.outputs.ordered_events, spec.windows, spec.partitions.start) == (True, (), None)


def test_durations_are_given_in_microseconds_too() -> None:
    spec = parse_spec(EARTHQUAKES, file="earthquakes.yaml")
    window, time = spec.windows[0], spec.time
    assert (window.size_us, window.end_step_us, window.offset_us) == (3_600_000_000, 3_600_000_000, 0)
    assert window.allowed_lateness_us == 600_000_000
    assert (time.unit_us, time.out_of_orderness_us) == (1_000, 120_000_000)
    assert time.late is not None
    assert (time.late.tolerance_us, files_of(spec).settle) == (300_000_000, timedelta(seconds=5))


def test_the_step_of_a_hopping_window_is_its_hop() -> None:
    window = parse(changed("windows.0", hopping(hop="5 minutes", offset="1 minute"))).windows[0]
    assert (window.hop, window.end_step_us, window.offset_us) == (timedelta(minutes=5), 300_000_000, 60_000_000)


WINDOW = SMALL["windows"][0]


@pytest.mark.parametrize(
    ("keys", "edges", "reach_us"),
    [
        ({"kind": "tumbling", "size": "1 s"}, (True, False), None),
        ({"kind": "tumbling", "size": "1 s", "closed": "right"}, (False, True), None),
        ({"kind": "session", "gap": "1 s"}, (True, True), 1_000_000),
        ({"kind": "sliding", "size": "2 s"}, (False, True), 2_000_000),
        ({"kind": "snapshot"}, (True, True), 0),
    ],
)
def test_which_edges_belong_to_a_window_and_how_far_an_event_draws_it(
    keys: dict[str, str], edges: tuple[bool, bool], reach_us: int | None
) -> None:
    window = WindowSpec.model_validate({"name": "w", "aggregates": {"n": "count(*)"}, **keys})
    assert (window.begins_inside, window.ends_inside) == edges
    assert window.closes_on_grid is (reach_us is None)
    assert reach_us is None or window.reach_us == reach_us


def cumulative(**keys: str) -> dict[str, Any]:
    return {**WINDOW, "kind": "cumulative", **keys}


def hopping(**keys: str) -> dict[str, Any]:
    return {**SMALL["windows"][0], "kind": "hopping", **keys}


def session(**keys: str) -> dict[str, Any]:
    return {"name": "w", "kind": "session", "aggregates": {"n": "count(*)"}, **keys}


def test_a_session_has_a_gap_and_may_have_a_longest_duration() -> None:
    window = parse(changed("windows.0", session(gap="30 min", max_duration="2 h"))).windows[0]
    assert (window.gap_us, window.max_duration_us) == (1_800_000_000, 7_200_000_000)
    assert parse(changed("windows.0", session(gap="30 min"))).windows[0].max_duration_us is None
    with pytest.raises(ValueError, match="no such length"):
        assert window.size_us


def test_group_columns_have_names_and_expressions() -> None:
    window = parse(changed("windows.0.group_by", ["x", "`t`", "upper(t) AS big"])).windows[0]
    assert window.group_columns == ("x", "t", "big")
    assert window.group_expressions == (("x", "x"), ("t", "`t`"), ("big", "upper(t)"))


@pytest.mark.parametrize("alias", ["json lines", "json_lines", "jsonl", "ndjson", "json"])
def test_json_lines_has_several_names(alias: str) -> None:
    assert files_of(parse(changed("sources.0.format", alias))).format == "json"


@pytest.mark.parametrize(
    ("size", "count"), [(7, 7), ("500 MB", 500_000_000), ("1 GiB", 1024**3), ("1.5kB", 1_500), ("2 B", 2)]
)
def test_a_size_is_bytes_or_text(size: object, count: int) -> None:
    assert files_of(parse(changed("sources.0.max_bytes", size))).max_bytes == count


def test_nothing_changes_after_reading() -> None:
    spec = parse_spec(EARTHQUAKES, file="earthquakes.yaml")
    with pytest.raises(ValidationError, match="frozen"):
        spec.name = "other"  # type: ignore[misc]
    for mapping in (files_of(spec).options, files_of(spec).rename):
        with pytest.raises(TypeError):
            mapping["a"] = "b"  # type: ignore[index]


def grouped(name: str) -> dict[str, Any]:
    """Return a window of hours by upper(t) AS big."""
    return {**SMALL["windows"][0], "name": name, "group_by": ["upper(t) AS big"]}


def two_sources(**keys: object) -> list[dict[str, Any]]:
    """Return the one source, and another like it but for some keys."""
    return [*SMALL["sources"], {**SMALL["sources"][0], "name": "other", **keys}]


def aligned(**keys: object) -> dict[str, Any]:
    """Return an alignment in the group `g`."""
    return {"group": "g", "max_drift": "1 min", **keys}


def two_aligned(**keys: object) -> list[dict[str, Any]]:
    """Two sources of one group, the second with more keys."""
    return [{**source, "alignment": aligned()} | more for source, more in zip(two_sources(), ({}, keys), strict=True)]


LIVE = {**SMALL["sources"][0], "arrival_time": "t", "live": True}


def over_w(**keys: object) -> dict[str, Any]:
    """Return a window over the results of `w`; a key that is None is left out."""
    keys = {"name": "hours", "from": "w", "aggregates": {"m": "max(n)"}, "kind": "tumbling", "size": "1 h", **keys}
    return {key: value for key, value in keys.items() if value is not None}


GOOD = {
    "a window over a window": changed("windows", [*SMALL["windows"], over_w(where="n > 1 AND window_end > '2020'")]),
    "a session over a window": changed(
        "windows.1", over_w(kind="session", size=None, gap="1 h", max_duration="1 day", where="n > 1")
    ),
    "a sliding window over a window": changed("windows.1", over_w(kind="sliding")),
    "a window over a window over substreams": changed(
        "windows",
        [over_w(name="days", **{"from": "hours"}, group_by=["b"]), over_w(group_by=["big AS b"]), grouped("w")],
        changed("time.over", ["upper(t)"]),
    ),
    "several sources": changed("sources", two_sources(timestamp_by="t", time_zone="Asia/Tokyo")),
    "only one source has an event time": changed("sources", two_sources(timestamp_by="t"), changed("time", ...)),
    "aligned sources": changed("sources", two_aligned(alignment=aligned(max_drift="0 s", update_interval="1 min"))),
    "idle splits of aligned sources": changed(
        "time.idle", {"advance": "exclude_split", "timeout": "1 min"}, changed("sources", two_aligned())
    ),
    "listed splits": changed("sources.0.splits", ["0", "1"], changed("sources.0.split", "x")),
    "idle splits": changed(
        "time.idle", {"advance": "exclude_split", "timeout": "1 min"}, changed("sources.0.split", "x")
    ),
    "an idle timeout per source": changed(
        "sources",
        [{**source, "idle": {"timeout": "1 min"}} for source in two_sources()],
        changed("time.idle", {"advance": "exclude_split"}),
    ),
    "windows closed by the clock": changed("time.idle", {"advance": "window_close", "timeout": "1 min"}),
    "the clock's watermarks by periods": changed(
        "time", {**SMALL["time"], "emit": {"every": "1 s"}, "idle": {"advance": "window_close", "timeout": "1 min"}}
    ),
    "no event time": changed("time", {"unit": "second", "end_of_input": "flush"}),
    "zero tolerance without event time": changed("time", {"out_of_orderness": "0 s"}),
    "ticks by arrival times": changed("sources.0", LIVE, changed("time.emit", {"every": "1 s"})),
    "ticks for revisions": changed("sources.0", LIVE, changed("windows.0.emit", {"early": "1 s"})),
    "processing time in a zone": changed("sources.0.arrival_time", "t", changed("time", {"time_zone": "Asia/Tokyo"})),
    "lateness under keep": changed("windows.0.allowed_lateness", "1 min", changed("time.out_of_order", "keep")),
    "zero lateness under drop": changed("windows.0.allowed_lateness", "0 s"),
    "no windows": changed("windows", ...),
    "windows only": changed("outputs.ordered_events", False),
    "sessions": changed("windows.0", session(gap="30 min", max_duration="2 h")),
    "no duplicates": changed("time", {"deduplicate_by": ["t", "upper(x)"], "within": "1 hour"}),
    "no duplicates at one instant": changed("time", {"deduplicate_by": ["t"], "within": "0 s"}),
    "late sessions": changed(
        "windows.0", session(gap="30 min", allowed_lateness="1 min"), changed("time.out_of_order", "keep")
    ),
    "rows for empty windows": changed("windows.0.empty_max", 5, changed("windows.0.empty", True)),
    "early results and rows for empty windows, filtered": changed(
        "windows.0", {**WINDOW, "emit": {"early": "1 s"}, "empty": True, "having": "n > 1"}
    ),
    "early results of late events": changed(
        "windows.0",
        {**WINDOW, "emit": {"early": "1 s"}, "allowed_lateness": "1 min"},
        changed("time.out_of_order", "keep"),
    ),
    "early results of sessions": changed("windows.0", {**session(gap="30 min"), "emit": {"early": "1 s"}}),
    "sessions that late events revise": changed(
        "windows.0",
        {
            **session(gap="30 min", allowed_lateness="1 min"),
            "emit": "on_time",
            "revise_every": "0 s",
            "history": True,
        },
        changed("time.out_of_order", "keep"),
    ),
    "hop longer than size": changed("windows.0", hopping(hop="2 hours", offset="90 minutes")),
    "closed on the left": changed("windows.0.closed", "left"),
    "grouped over": changed("time.over", ["upper(t)"], changed("windows.0.group_by", ["UPPER( t ) AS big"])),
    "parquet": changed("sources.0.format", "parquet"),
    "csv options": changed("sources.0.options", {"header": True, "sep": ";", "nullValue": -999}),
    "json options": changed("sources.0.options", {"primitivesAsString": True}, changed("sources.0.format", "ndjson")),
    "iso duration": changed("windows.0.size", "PT5M"),
    "a column called user": changed(
        "windows.0.where", "user = 'x'", changed("sources.0.schema", "t STRING, user STRING")
    ),
    "a renamed column called user": changed(
        "windows.0.group_by", ["user"], changed("sources.0.rename", {"x": "user"})
    ),
    "an aggregate called user": changed(
        "windows.0.having", "user > 1", changed("windows.0.aggregates", {"user": "count(*)"})
    ),
    "a sorted list": changed("windows.0.aggregates.l", "array_sort(collect_list(x))"),
    "a first day": changed("partitions.start", "2013-01-01"),
    "days of a zone": changed("partitions.time_zone", "Asia/Tokyo"),
    "arrival order of files": changed("sources.0.order", "position"),
    "alerts": changed(
        "alerts",
        {"dead_letter_rate": {"warn": "0.5 %", "error": "10%"}, "freshness": {"error": "1 hour"}},
    ),
    "a cron schedule": changed("schedule", "*/5 * * * MON-FRI"),
    "a schedule by name": changed("schedule", "@hourly"),
    "a run when input comes": changed("schedule", {"on_new_input": "15 seconds"}),
    "owners": changed("owners", ["team:data platform", "ann.b+c@example.com"]),
    "tags": changed("tags", {"domain": "quakes", "company.com/cost-centre": "4711"}),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_good_spec_is_read_and_the_schema_accepts_it(case: str) -> None:
    assert parse(GOOD[case]).name == "small"
    assert schema_accepts(GOOD[case])


def schema_accepts(spec: dict[str, Any]) -> bool:
    jsonschema = pytest.importorskip("jsonschema")
    return bool(jsonschema.Draft202012Validator(spec_json_schema()).is_valid(spec))


# (path, value, key path in the message, fragment of the message)
BAD_FOR_SCHEMA_TOO = [
    ("sources.0.max_files", 2**63, "sources[0].max_files", "at most 9223372036854775807"),
    ("windows.0.aggregates", {"__n": "count(*)"}, "windows[0].aggregates.__n", "at most one _ in front"),
    ("name", ..., "name", "the key is missing"),
    ("name", "Small", "name", "small letters"),
    ("name", 7, "name", "put the value in quotes"),
    ("nmae", "x", "nmae", "did you mean `name`?"),
    ("tyme", {"timestamp_by": "t"}, "tyme", "did you mean `time`?"),
    ("sources", ..., "sources", "the key is missing"),
    ("sources", [], "sources", "found 0 sources"),
    ("sources", {}, "sources", "a list"),
    ("sources.0", "files", "sources[0]", "a mapping of keys to values"),
    ("sources.0.name", "a-b", "sources[0].name", "letters, digits and _"),
    ("sources.0.kind", "kinesis", "sources[0].kind", "files or delta or kafka"),
    ("sources.0.kind", "flies", "sources[0].kind", "did you mean `files`?"),
    ("sources.0.path", "", "sources[0].path", "empty text"),
    ("sources.0.path", ["a"], "sources[0].path", "found a list of 1"),
    ("sources.0.format", "avro", "sources[0].format", "csv or json or parquet"),
    ("sources.0.format", "jsnol", "sources[0].format", "did you mean `jsonl`?"),
    ("sources.0.schema", ..., "sources[0].schema", "the key is missing"),
    ("sources.0.columns", "t STRING", "sources[0].columns", "unknown key `columns`"),
    ("sources.0.shcema", "t STRING", "sources[0].shcema", "did you mean `schema`?"),
    ("sources.0.options", [], "sources[0].options", "a mapping of reader options"),
    ("sources.0.options.header", "yes", "sources[0].options.header", "true or false"),
    ("sources.0.options.sep", True, "sources[0].options.sep", "put the value in quotes"),
    ("sources.0.options.haeder", True, "sources[0].options.haeder", "did you mean `header`?"),
    ("sources.0.options.mode", "FAILFAST", "sources[0].options.mode", "set by Tidemark"),
    ("sources.0.options.inferSchema", True, "sources[0].options.inferSchema", "set by Tidemark"),
    ("sources.0.options.enforceSchema", True, "sources[0].options.enforceSchema", "set by Tidemark"),
    ("sources.0.options.columnNameOfCorruptRecord", "c", "columnNameOfCorruptRecord", "set by Tidemark"),
    ("sources.0.options.allowComments", True, "sources[0].options.allowComments", "for csv one of header"),
    ("sources.0.options", {"sep": ";", "delimiter": ","}, "sources[0].options.delimiter", "the same option"),
    ("sources.0.rename", {"x": 3}, "sources[0].rename.x", "put the value in quotes"),
    ("sources.0.keep_unknown", "no", "sources[0].keep_unknown", "true or false"),
    ("sources.0.arrival_time", 5, "sources[0].arrival_time", "timestamp_millis"),
    ("sources.0.order", "time", "sources[0].order", "arrival_time or position"),
    ("sources.0.settle", 5, "sources[0].settle", "bare number 5"),
    ("sources.0.max_files", 0, "sources[0].max_files", "at least 1"),
    ("sources.0.max_files", "7", "sources[0].max_files", "a whole number"),
    ("sources.0.max_files", True, "sources[0].max_files", "a whole number"),
    ("sources.0.max_bytes", "7 apples", "sources[0].max_bytes", "`500 MB`"),
    ("sources.0.max_bytes", 0, "sources[0].max_bytes", "at least 1"),
    ("sources.0.split", "", "sources[0].split", "empty text"),
    ("sources.0.splits", ["a"], "sources[0].splits", "no effect without `split`"),
    ("sources.0.splits", "a", "sources[0].splits", "a list, such as [a, b]"),
    ("sources.0.alignment", "g", "sources[0].alignment", "a mapping of keys to values"),
    ("sources.0.alignment", {"group": "g"}, "sources[0].alignment.max_drift", "the key is missing"),
    ("sources.0.alignment", {"group": "a-b", "max_drift": "1 s"}, "sources[0].alignment.group", "letters, digits"),
    ("sources.0.alignment", {"group": "g", "max_drift": 60}, "sources[0].alignment.max_drift", "bare number 60"),
    ("sources.0.alignment", aligned(update_interval="0 s"), "alignment.update_interval", "longer than zero"),
    ("sources.0.alignment", aligned(drift="1 s"), "sources[0].alignment.drift", "unknown key `drift`"),
    ("sources.0.unaligned", "allow", "sources[0].unaligned", "can stop between two files"),
    ("sources", two_aligned(arrival_time="t", alignment=aligned(update_interval="1 s")), "interval", "one file"),
    ("sources.0.timestamp_by", 1700000000, "sources[0].timestamp_by", "timestamp_seconds"),
    ("sources.0.out_of_orderness", 60, "sources[0].out_of_orderness", "bare number 60"),
    ("sources.0.idle", {"timeout": "0 s"}, "sources[0].idle.timeout", "longer than zero"),
    ("sources.0.idle", {}, "sources[0].idle.timeout", "the key is missing"),
    ("sources.0.idle", {"timeout": "1 s", "timout": "1 s"}, "sources[0].idle.timout", "did you mean `timeout`?"),
    ("sources.0.live", "yes", "sources[0].live", "true or false"),
    ("alerts", {"dead_letters": "1 %"}, "alerts.dead_letters", "unknown key `dead_letters`"),
    ("alerts.dead_letter_rate", "1 %", "alerts.dead_letter_rate", "a mapping of keys to values"),
    ("alerts.dead_letter_rate", {"warn": 1}, "alerts.dead_letter_rate.warn", "a share such as `1 %`"),
    ("alerts.freshness", {"warn": "0 s"}, "alerts.freshness.warn", "longer than zero"),
    ("schedule", "every minute", "schedule", "which has 2 fields"),
    ("schedule", "* * * * * *", "schedule", "which has 6 fields"),
    ("owners", ["ann"], "owners[0]", "an e-mail address, or `team:` and a name"),
    ("owners", ["team:"], "owners[0]", "an e-mail address, or `team:` and a name"),
    ("tags", {"dagster/kind": "x"}, 'tags["dagster/kind"]', "not of `dagster/`"),
    ("tags", {"two words": "x"}, 'tags["two words"]', "letters, digits"),
    ("tags", {"a": "two words"}, "tags.a", "letters, digits"),
    ("tags", {"a": 1}, "tags.a", "put the value in quotes"),
    ("schedule", 5, "schedule", "or {on_new_input: 15 seconds}"),
    ("schedule", {"on_new_input": 15}, "schedule.on_new_input", "bare number 15"),
    ("schedule", {"on_new_input": "15 s", "every": "1 s"}, "schedule.every", "unknown key `every`"),
    ("schedule", {}, "schedule.on_new_input", "the key is missing"),
    ("live", True, "live", "it is a key of sources with an `arrival_time`"),
    ("time", "t", "time", "a mapping of keys to values"),
    ("time.timestamp_by", 1700000000, "time.timestamp_by", "timestamp_seconds"),
    ("time.timestamp_by", "1700000000", "time.timestamp_by", "timestamp_micros"),
    ("time.unit", "minute", "time.unit", "second or millisecond or microsecond"),
    ("time.over", "x", "time.over", "a list, such as [a, b]"),
    ("time.out_of_orderness", 60, "time.out_of_orderness", "bare number 60"),
    ("time.out_of_orderness", "1 month", "time.out_of_orderness", "whose length differs"),
    ("time.out_of_orderness", "-1 s", "time.out_of_orderness", "negative"),
    ("time.out_of_order", "ignore", "time.out_of_order", "drop or adjust or keep"),
    ("time.late", "5 minutes", "time.late", "a mapping of keys to values"),
    ("time.late", {"tolerance": "5 s"}, "time.late.policy", "the key is missing"),
    ("time.early", {"tolerance": "5 s", "policy": "keep"}, "time.early.policy", "drop or adjust"),
    ("time.early", {"tolerance": "5 s", "policy": "drop", "x": 1}, "time.early.x", "unknown key"),
    ("time.emit", {"every": "0 ms"}, "time.emit.every", "longer than zero"),
    ("time.emit", {"every": "1 s", "evry": "1 s"}, "time.emit.evry", "did you mean `every`?"),
    ("time.emit", {}, "time.emit.every", "the key is missing"),
    ("time.emit", "every", "time.emit", "{every: 200 ms}"),
    ("time.idle", {"advance": "arrival_clok"}, "time.idle.advance", "did you mean `arrival_clock`?"),
    ("time.idle", {"advance": "window_close"}, "time.idle.timeout", "the key is missing"),
    ("time.idle", {"advance": "window_close", "timeout": "0 s"}, "time.idle.timeout", "longer than zero"),
    ("time.idle", {"advance": "arrival_clock"}, "time.idle", "needs `late`"),
    ("time.idle", {}, "time.idle.advance", "the key is missing"),
    ("time.start_at", "yesterday", "time.start_at", "an instant such as 2026-01-31T12:00:00Z"),
    ("time.start_at", 2026, "time.start_at", "an instant such as 2026-01-31T12:00:00Z"),
    ("time.deduplicate_by", ["x"], "time.within", "`deduplicate_by` needs `within`"),
    ("time.deduplicate_by", "x", "time.deduplicate_by", "a list, such as [a, b]"),
    ("time.within", "1 s", "time.within", "no effect without `deduplicate_by`"),
    ("time", {"deduplicate_by": [], "within": "1 s"}, "time.within", "no effect without `deduplicate_by`"),
    ("time", {"deduplicate_by": ["x"], "within": "-1 s"}, "time.within", "negative"),
    ("time.end_of_input", "close", "time.end_of_input", "hold or flush"),
    ("time", {"out_of_order": "drop"}, "time.out_of_order", "no effect without `timestamp_by`"),
    ("time", {"out_of_orderness": "1 s"}, "time.out_of_orderness", "no effect without `timestamp_by`"),
    (
        "time",
        {"late": {"tolerance": "1 s", "policy": "drop"}},
        "time.late",
        "no effect without `timestamp_by`",
    ),
    ("time", {"early": {"tolerance": "1 s", "policy": "drop"}}, "time.early", "no effect without"),
    ("outputs.ordered_events", "false", "outputs.ordered_events", "true or false"),
    ("outputs.windows", True, "outputs.windows", "unknown key"),
    ("windows.0", "w", "windows[0]", "a mapping of keys to values"),
    ("windows.0.name", "_w", "windows[0].name", "first a letter"),
    ("windows.0", session(), "windows[0].gap", "needs a gap"),
    ("windows.0", session(gap="0 s"), "windows[0].gap", "longer than zero"),
    ("windows.0", session(gap="1 s", size="1 h"), "windows[0].size", "no effect on a session window"),
    ("windows.0", session(gap="1 s", hop="1 h"), "windows[0].hop", "no effect on a session window"),
    ("windows.0", session(gap="1 s", offset="0 s"), "windows[0].offset", "no effect on a session window"),
    ("windows.0", session(gap="1 s", closed="left"), "windows[0].closed", "no effect on a session window"),
    ("windows.0", session(gap="1 s", max_duration="0 s"), "windows[0].max_duration", "longer than zero"),
    ("windows.0", session(gap="1 s", allowed_lateness="1 s"), "windows[0].allowed_lateness", "is ever late"),
    ("windows.0.kind", "tumblng", "windows[0].kind", "did you mean `tumbling`?"),
    ("windows.0.size", 60, "windows[0].size", "bare number 60"),
    ("windows.0.size", "0 s", "windows[0].size", "longer than zero"),
    ("windows.0.size", ..., "windows[0].size", "the key is missing"),
    ("windows.0.hop", "5 min", "windows[0].hop", "no effect on a tumbling window"),
    ("windows.0", hopping(), "windows[0].hop", "needs a hop"),
    ("windows.0", hopping(hop="0 s"), "windows[0].hop", "longer than zero"),
    ("windows.0.closed", "both", "windows[0].closed", "left or right"),
    ("windows.0.gap", "1 s", "windows[0].gap", "no effect on a tumbling window"),
    ("windows.0.max_duration", "1 s", "windows[0].max_duration", "no effect on a tumbling window"),
    ("windows.0.step", "1 s", "windows[0].step", "write `kind: cumulative`"),
    ("windows.0", cumulative(), "windows[0].step", "needs a step"),
    ("windows.0", hopping(hop="1 h", time_zone="UTC"), "windows[0].time_zone", "write `kind: tumbling`"),
    ("windows.0", hopping(hop="1 h", size="1 month"), "windows[0].size", "whose length differs"),
    ("windows.0", {**WINDOW, "kind": "sliding", "closed": "right"}, "windows[0].closed", "holds its end"),
    ("windows.0", {**WINDOW, "kind": "snapshot"}, "windows[0].size", "which is one instant"),
    ("windows.0", {**WINDOW, "size": "1 month", "offset": "0 s"}, "windows[0].offset", "begin at local midnight"),
    ("windows.0.size", "2 months", "windows[0].size", "`1 month` for the months of the calendar"),
    ("windows.0.size", "P1Y", "windows[0].size", "`1 month` for the months of the calendar"),
    ("windows.0.empty", "yes", "windows[0].empty", "true or false"),
    ("windows.0.empty_max", 5, "windows[0].empty_max", "no effect without `empty: true`"),
    ("windows.0", {**WINDOW, "empty": True, "empty_max": 0}, "windows[0].empty_max", "a whole number, at least 1"),
    ("windows.0", {**session(gap="1 s"), "empty": True}, "windows[0].empty", "which lies on no grid"),
    ("windows.0", {**WINDOW, "kind": "sliding", "empty": True}, "windows[0].empty", "which lies on no grid"),
    ("windows.0.history", True, "windows[0].history", "no effect on a window that has one result"),
    ("windows.0.revise_every", "1 s", "windows[0].revise_every", "no effect without `emit: on_time`"),
    ("windows.1", over_w(emit={"early": "1 s"}), "windows[1].emit", "its input is final"),
    ("windows.1", over_w(kind="sliding", emit={"early": "1 s"}), "windows[1].emit", "its input is final"),
    (
        "windows.1",
        over_w(kind="session", size=None, gap="1 s", emit={"early": "1 s"}),
        "windows[1].emit",
        "its input is final",
    ),
    ("windows.1", over_w(kind="sliding", empty=True), "windows[1].empty", "which lies on no grid"),
    ("windows.1", over_w(empty=True), "windows[1].empty", "rows without a result"),
    ("windows.0.emit", "on_tim", "windows[0].emit", "did you mean `on_time`?"),
    ("windows.0.emit", {"early": "0 s"}, "windows[0].emit.early", "longer than zero"),
    ("windows.0.emit", {"early": "1 s", "late": "1 s"}, "windows[0].emit.late", "unknown key"),
    ("windows.0.emit", "on_time", "windows[0].emit", "no effect without `allowed_lateness`"),
    (
        "windows.0",
        {**session(gap="1 s", max_duration="1 h"), "emit": {"early": "1 s"}},
        "windows[0].emit",
        "all later sessions",
    ),
    ("windows.0.allowed_lateness", "1 s", "windows[0].allowed_lateness", "no accepted event is ever late"),
    ("windows.0.aggregates", {}, "windows[0].aggregates", "at least one aggregate"),
    ("windows.0.aggregates", ["count(*)"], "windows[0].aggregates", "a mapping of keys to values"),
    ("windows.0.aggregates.a b", "sum(x)", 'windows[0].aggregates["a b"]', "letters, digits and _"),
    ("windows.0.aggregates._watermark", "sum(x)", "windows[0].aggregates._watermark", "reserved"),
    ("windows.0.aggregates.window_start", "sum(x)", "windows[0].aggregates.window_start", "reserved"),
    ("windows.0.aggregates.s", 1, "windows[0].aggregates.s", "put the value in quotes"),
    ("windows.0.group_by", "x", "windows[0].group_by", "a list, such as [a, b]"),
    ("partitions.start", 2013, "partitions.start", "a day such as 2026-01-31"),
]

BAD_FOR_PARSER_ONLY = [
    ("time.start_at", "9999-12-31T23:59:59-23:00", "time.start_at", "in the years 0001 to 9999 in UTC"),
    ("sources.0.settle", "3000000 days", "sources[0].settle", "at most 30 days"),
    ("windows.0", hopping(size="1 day", hop="1 ms"), "windows[0].hop", "in 86,400,000 windows at once"),
    ("windows.0", cumulative(size="3652059 days", step="1 us"), "windows[0].step", "at most 20,000 at once"),
    ("windows.0.aggregates", {"_late_events": "count(*)"}, "windows[0].aggregates._late_events", "is reserved"),
    ("windows.0.where", "explode(x) = 1", "windows[0].where", "makes several rows of one"),
    ("windows.0.where", "window(t, '1 h').start > t", "windows[0].where", "write `kind`, `size` and `hop`"),
    ("windows.0", cumulative(step="7 min"), "windows[0].step", "and 1 hour is not a multiple of it"),
    ("windows.0", cumulative(step="2 h"), "windows[0].step", "and 1 hour is not a multiple of it"),
    ("windows.0.time_zone", "UTC", "windows[0].time_zone", "only windows of a day or a month follow a `time_zone`"),
    ("windows.0.size", "-1 h", "windows[0].size", "which is negative\nExpected: a duration longer than zero"),
    ("windows.0.offset", "-1 h", "windows[0].offset", "which is negative\nExpected: a duration of zero or more"),
    ("windows.0", {**WINDOW, "size": "1 day", "time_zone": "Europe/Belin"}, "windows[0].time_zone", "Europe/Berlin"),
    ("sources", SMALL["sources"] * 2, "sources[1].name", "a second source called `s`"),
    ("sources.0.time_zone", "Europe/Berln", "sources[0].time_zone", "did you mean `Europe/Berlin`?"),
    ("sources.0.timestamp_by", "t", "time.timestamp_by", "every source has its own"),
    ("sources.0.out_of_orderness", "1 s", "time.out_of_orderness", "every source has its own"),
    ("sources.0.idle", {"timeout": "1 s"}, "sources[0].idle", "has no effect without `time.idle"),
    ("sources.0.live", True, "sources[0].live", "no effect without `arrival_time`"),
    ("sources.0", LIVE, "sources[0].live", "no rule follows the clock alone"),
    ("sources", [LIVE, {**LIVE, "name": "o", "live": False}], "sources[0].live", "source `o` has an `arrival_time`"),
    ("sources.0.split", "rand()", "sources[0].split", "is random"),
    ("sources.0.splits", ["a", "a"], "sources[0].splits[1]", "occurs twice"),
    ("time.idle", {"advance": "exclude_split", "timeout": "1 s"}, "time.idle.advance", "several splits"),
    ("time.idle", {"advance": "exclude_split"}, "time.idle.timeout", "no idle timeout for source `s`"),
    ("sources.0.alignment", aligned(), "sources[0].alignment.group", "the group of this source only"),
    ("sources", two_aligned(alignment=aligned(group="h"))[1:], "sources[0].alignment.group", "of this source only"),
    ("sources", two_sources(order="position"), "sources[1].order", "one order for all sources"),
    ("sources", two_sources(out_of_orderness="1500 us"), "sources[1].out_of_orderness", "whole number of millis"),
    ("sources.0.arrival_time", "now()", "sources[0].arrival_time", "reads the clock"),
    ("time", {"deduplicate_by": ["uuid()"], "within": "1 s"}, "time.deduplicate_by[0]", "is random"),
    ("time", {"deduplicate_by": ["x", "X"], "within": "1 s"}, "time.deduplicate_by[1]", "occurs twice"),
    ("time", {"deduplicate_by": ["user"], "within": "1 s"}, "time.deduplicate_by[0]", "`user`"),
    ("sources.0.arrival_time", "_arrival_time", "sources[0].arrival_time", "what this expression defines"),
    ("sources.0.rename", {"x": "_clock"}, "sources[0].rename.x", "reserved"),
    ("sources.0.rename", {"x": "a b"}, "sources[0].rename.x", "holds ' '"),
    ("sources.0.rename", {"x": "x"}, "sources[0].rename.x", "no effect"),
    ("sources.0.rename", {"x": "z", "t": "Z"}, "sources[0].rename.t", "two columns are renamed"),
    ("sources.0.rename", {"x": "z", "t": "z"}, "sources[0].schema", "columns `z` and `z` have the same name"),
    ("sources.0.missing", "skip", "sources[0].missing", "hold or null"),
    ("sources.0.missing", "null", "sources[0].missing", "no effect without `header: true`"),
    ("sources.0.missing", None, "sources[0].missing", "no effect without `header: true`"),
    ("sources.0.on_rewrite", "reread", "sources[0].on_rewrite", "hold or read"),
    ("time.timestamp_by", "current_timestamp()", "time.timestamp_by", "use `_arrival_time`"),
    ("time.timestamp_by", "user", "time.timestamp_by", "who runs the pipeline"),
    ("time.timestamp_by", "t AS e", "time.timestamp_by", "the name `e` has no effect"),
    ("time.timestamp_by", "f(t", "time.timestamp_by", "never closed"),
    ("time.time_zone", "Europe/Berln", "time.time_zone", "did you mean `Europe/Berlin`?"),
    ("partitions.time_zone", "Europe/Berln", "partitions.time_zone", "did you mean `Europe/Berlin`?"),
    ("time.time_zone", "+02:00", "time.time_zone", "IANA"),
    ("time.time_zone", "localtime", "time.time_zone", "IANA"),
    ("time", {"time_zone": "Asia/Tokyo"}, "time.time_zone", "has no effect"),
    ("time.unit", "second", "time.out_of_orderness", "no whole number of seconds"),
    ("time.over", ["rand()"], "time.over[0]", "is random"),
    ("time.over", ["x"], "windows[0].group_by", "add `x` to `group_by`"),
    ("time.over", ["f(x)"], "windows[0].group_by", "add `f(x) AS name`"),
    ("time.over", ["x", "X"], "time.over[1]", "occurs twice"),
    ("windows.0.offset", "1 hour", "windows[0].offset", "less than 1 hour"),
    ("windows.0", hopping(hop="5 s", offset="5 s"), "windows[0].offset", "less than 5 seconds"),
    ("windows.0.where", "x > rand()", "windows[0].where", "is random"),
    ("windows.0.where", "(SELECT 1) = 1", "windows[0].where", "reads other tables"),
    ("windows.0.having", "first(n) > 1", "windows[0].having", "min_by(n, struct(_timestamp, _arrival_seq))"),
    ("windows.0.having", "user > 1", "windows[0].having", "who runs the pipeline"),
    ("windows.0.group_by", ["upper(t)"], "windows[0].group_by[0]", "write `upper(t) AS upper_t`"),
    ("windows.0.group_by", ["a.b"], "windows[0].group_by[0]", "write `a.b AS a_b`"),
    ("windows.0.group_by", ["uuid() AS u"], "windows[0].group_by[0]", "is random"),
    ("windows.0.group_by", ["`a b`"], "windows[0].group_by[0]", "AS another_name"),
    ("windows.0.group_by", ["_source"], "windows[0].group_by[0]", "reserved"),
    ("windows.0.group_by", ["x AS __tm_t"], "windows[0].group_by[0]", "reserved"),
    ("windows.0.group_by", ["x AS window_end"], "windows[0].group_by[0]", "reserved"),
    ("windows.0.group_by", ["x", "t AS X"], "windows[0].group_by[1]", "two columns of this window"),
    ("windows.0.group_by", ["x AS N"], "windows[0].aggregates.n", "two columns of this window"),
    ("windows.0.aggregates._Batch_Id", "sum(x)", "windows[0].aggregates._Batch_Id", "reserved"),
    ("windows.0.aggregates.N", "sum(x)", "windows[0].aggregates.N", "two columns of this window"),
    (
        "windows.0.aggregates.f",
        "first(x)",
        "windows[0].aggregates.f",
        "min_by(x, struct(_timestamp, _arrival_seq))",
    ),
    ("windows.0.aggregates.f", "sum(x) OVER (ORDER BY t)", "windows[0].aggregates.f", "window function"),
    (
        "windows",
        [*SMALL["windows"], {**SMALL["windows"][0], "name": "W"}],
        "windows[1].name",
        "second window",
    ),
    ("windows", [], "outputs.ordered_events", "nothing would be written"),
    ("windows.0.from", "x", "windows[0].from", "there is no window called `x`"),
    ("windows.0.from", "w", "windows[0].from", "reads the results of this window in turn"),
    ("windows.1", over_w(name="hours", **{"from": "W"}), "windows[1].from", "did you mean `w`?"),
    (
        "windows.1",
        over_w(aggregates={"m": "max_by(n, struct(n, _arrival_seq))"}),
        "windows[1].aggregates.m",
        "results",
    ),
    ("windows.1", over_w(where="user > 1"), "windows[1].where", "who runs the pipeline"),
    ("windows.1", over_w(), "windows[1].allowed_lateness", "less than that of `w`"),
    ("windows.1", over_w(), "windows[1].from", "`w` has `empty: true`"),
    ("windows.1", over_w(), "windows[1].group_by", "add `big` to `group_by`"),
    ("partitions.start", "2013-02-30", "partitions.start", "a day such as"),
    ("alerts.dead_letter_rate", {"warn": "101 %"}, "alerts.dead_letter_rate.warn", "at most 100 %"),
    ("alerts.dead_letter_rate", {}, "alerts.dead_letter_rate", "neither `warn` nor `error`"),
    ("alerts.freshness", {"warn": "1 h", "error": "1 h"}, "alerts.freshness.warn", "not below `error`"),
    ("alerts.freshness", {"warn": "30 s"}, "alerts.freshness.warn", "at least 1 minute"),
    ("schedule", "61 * * * *", "schedule", "found `61` as the minute, which cannot be read"),
    ("schedule", {"on_new_input": "2 s"}, "schedule.on_new_input", "whole seconds, at least 5"),
    ("schedule", {"on_new_input": "5500 ms"}, "schedule.on_new_input", "whole seconds, at least 5"),
]

BASES = {
    "`w` has `empty: true`": changed("windows.0.empty", True),
    "less than that of `w`": changed("windows.0.allowed_lateness", "1 min", changed("time.out_of_order", "keep")),
    "add `big` to `group_by`": changed("time.over", ["upper(t)"], changed("windows.0.group_by", ["upper(t) AS big"])),
    "no idle timeout for source `s`": changed("sources.0.split", "x"),
    "whole number of millis": changed("time.unit", "millisecond"),
    "every source has its own": changed("time.out_of_orderness", "1 s"),
    "no whole number of seconds": changed("time.out_of_orderness", "1500 ms"),
    "nothing would be written": changed("outputs.ordered_events", False),
}


@pytest.mark.parametrize(("path", "value", "place", "fragment"), BAD_FOR_SCHEMA_TOO + BAD_FOR_PARSER_ONLY)
def test_a_bad_spec_is_refused_with_file_key_and_reason(path: str, value: object, place: str, fragment: str) -> None:
    text = message(changed(path, value, BASES.get(fragment, SMALL)))
    assert text.startswith("small.yaml")
    assert f"{place}: " in text
    assert fragment in text
    assert "problems:" not in text, "one mistake is one problem"


@pytest.mark.parametrize(("path", "value", "place", "fragment"), BAD_FOR_SCHEMA_TOO)
def test_the_schema_refuses_what_it_can(path: str, value: object, place: str, fragment: str) -> None:
    assert not schema_accepts(changed(path, value))


def test_windows_without_events_and_partitions_without_windows_are_refused_by_the_schema_too() -> None:
    no_windows = changed("windows", ...)
    assert not schema_accepts(changed("outputs.ordered_events", False, no_windows))
    assert not schema_accepts(changed("partitions.start", "2013-01-01", no_windows))
    assert not schema_accepts(changed("time.over", ["x"]))
    assert "`partitions` has no effect" in message(changed("partitions.start", "2013-01-01", no_windows))


def test_a_longest_duration_of_sessions_is_refused_under_keep() -> None:
    keep = changed("time.out_of_order", "keep")
    spec = changed("windows.0", session(gap="1 s", max_duration="1 h"), keep)
    assert "windows[0].max_duration: found `max_duration` with `out_of_order: keep`" in message(spec)
    assert not schema_accepts(spec)


@pytest.mark.parametrize("advance", ["exclude_split", "window_close"])
def test_silences_of_aligned_sources_are_not_published_by_periods(advance: str) -> None:
    idle = {"advance": advance, "timeout": "1 min"}
    spec = changed("time.emit", {"every": "1 s"}, changed("time.idle", idle, changed("sources", two_aligned())))
    assert "time.emit: `alignment` together with `idle` and periodic emission is not supported" in message(spec)
    assert not schema_accepts(spec)


def test_alignment_without_an_event_time_is_refused() -> None:
    spec = changed("time", ..., changed("sources", two_aligned()))
    assert "sources[0].alignment: `alignment` compares event times, and without `timestamp_by`" in message(spec)
    assert not schema_accepts(spec)


def test_a_schedule_for_a_pipeline_that_a_first_run_ends_is_refused() -> None:
    spec = changed("time.end_of_input", "flush", changed("schedule", "@hourly"))
    assert "schedule: a schedule with `time.end_of_input: flush`: a pipeline that was flushed takes" in message(spec)
    assert not schema_accepts(spec)


def test_all_problems_are_told_together_in_the_order_of_the_file() -> None:
    spec = changed("time.over", ["x"], changed("windows.0.sise", "1 s", changed("time.unit", "hour")))
    spec["windows"].append({"name": "v", "kind": "tumbling", "size": 5, "aggregates": {"n": "count(*)"}})
    spec["windows"].append({**SMALL["windows"][0], "name": "u", "allowed_lateness": "1 s"})
    spec["outputs"] = {"ordered_events": 1}
    text = parse_message(yaml.safe_dump(spec, sort_keys=False))
    assert text.startswith("small.yaml has 4 problems:")
    places = ["time.unit:", "windows[0].sise:", "windows[1].size:", "outputs.ordered_events:"]
    positions = [text.index(place) for place in places]
    assert positions == sorted(positions)
    assert "windows[2]" not in text, "`time` cannot be read, so what it asks of windows is unknown"


def parse_message(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, file="small.yaml")
    return str(caught.value)


def test_rules_between_parts_are_told_beside_mistakes_elsewhere() -> None:
    text = message(changed("time.over", ["x"], changed("nmae", "y")))
    assert text.startswith("small.yaml has 2 problems:")
    assert "windows[0].group_by: lacks `x`" in text
    assert "unknown key `nmae`" in text


def test_a_problem_names_its_line() -> None:
    text = EARTHQUAKES.replace("unit: millisecond", "unit: fortnight")
    line = 1 + text[: text.index("unit:")].count("\n")
    assert f"small.yaml, line {line}, time.unit: " in parse_message(text)


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    text = "name: a\ntime:\n  unit: second\n  unit: second\n" + yaml.safe_dump({"sources": SMALL["sources"]})
    assert "time.unit: the key `unit` occurs twice, in lines 3 and 4" in parse_message(text)


def test_a_key_without_a_value_is_refused_once() -> None:
    text = yaml.safe_dump(SMALL) + "outputs:\n"
    assert "outputs: nothing is written here" in parse_message(text)
    assert "problems:" not in parse_message(text)


def test_a_key_that_yaml_reads_as_a_boolean_is_refused() -> None:
    text = yaml.safe_dump(SMALL).replace("n: count(*)", "on: count(*)")
    assert "windows[0].aggregates: found the key on in line" in parse_message(text)
    assert "put the key in quotes" in parse_message(text)


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("name: [a\nsources: 1\n", "line 2: the YAML cannot be read at column"),
        ("a: 1\n\tb: 2\n", "line 2: the YAML cannot be read"),
        ("a: !!python/object:os.system x\n", "line 1: the YAML cannot be read"),
        ("a: \x00", "the YAML cannot be read"),
        ("a: 1\n---\nb: 2\n", "line 2: the YAML cannot be read"),
        ("", "the file is empty"),
        ("- a\n", "the file holds a list of 1"),
        ("a: &x {b: *x}\n", "unknown key `a`"),
    ],
)
def test_what_is_no_yaml_mapping_is_refused(text: str, fragment: str) -> None:
    assert fragment in parse_message(text)


def test_merge_keys_cannot_grow_without_bound() -> None:
    keys = ", ".join(f"k{number}: {number}" for number in range(10))
    merging = [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in range(1, 10)]
    text = parse_message("\n".join([f"a0: &a0 {{{keys}}}", *merging]))
    assert text.startswith("small.yaml, line 5: the merge keys `<<` make a mapping of 100,000 keys")
    assert "Expected: at most 10,000" in text


def test_days_and_times_need_no_quotes() -> None:
    text = yaml.safe_dump(SMALL) + "partitions: {start: 2013-01-01}\n"
    assert parse_spec(text, file="small.yaml").partitions.start == date(2013, 1, 1)


def test_equal_meaning_has_one_fingerprint() -> None:
    one = changed("time.out_of_orderness", "60 s")
    other = changed("time.out_of_orderness", "1 minute")
    other["sources"][0]["schema"] = "t STRING,\n  x INT".replace("\n ", "")
    other["sources"][0] |= {"settle": "PT5S", "max_bytes": "10 GiB", "order": "arrival_time", "options": {}}
    other["outputs"] = {"ordered_events": True}
    other["windows"][0] |= {"closed": "left", "emit": "on_close", "group_by": []}
    assert parse(one).canonical_json() == parse(other).canonical_json()
    assert parse(one).fingerprint() == parse(other).fingerprint()
    assert len(parse(one).fingerprint()) == 64


def test_the_order_of_windows_and_the_spelling_of_options_mean_nothing() -> None:
    second = {**SMALL["windows"][0], "name": "a"}
    one = changed("windows", [*SMALL["windows"], second], changed("sources.0.options", {"sep": ";"}))
    other = changed("windows", [second, *SMALL["windows"]], changed("sources.0.options", {"delimiter": ";"}))
    assert parse(one).fingerprint() == parse(other).fingerprint()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("time.out_of_orderness", "1 us"),
        ("time.out_of_order", "keep"),
        ("windows.0.size", "2 hours"),
        ("windows.0.aggregates.m", "max(x)"),
        ("windows.0.where", "x = 'A'"),
        ("sources.0.schema", "t STRING"),
        ("sources.0.options", {"header": True}),
        ("outputs.ordered_events", False),
    ],
)
def test_another_meaning_has_another_fingerprint(path: str, value: object) -> None:
    assert parse(changed(path, value)).fingerprint() != parse(SMALL).fingerprint()


def test_alerts_are_shares_and_ages_and_change_no_fingerprint() -> None:
    spec = parse(changed("alerts", {"dead_letter_rate": {"warn": "2.5 %"}, "freshness": {"error": "90 min"}}))
    assert spec.alerts.dead_letter_rate is not None
    assert (spec.alerts.dead_letter_rate.warn, spec.alerts.dead_letter_rate.error) == (0.025, None)
    assert spec.alerts.freshness is not None
    assert spec.alerts.freshness.error == timedelta(minutes=90)
    assert spec.fingerprint() == parse(SMALL).fingerprint()


def test_when_a_pipeline_runs_changes_no_result_and_so_no_fingerprint() -> None:
    scheduled = parse(changed("schedule", "0  3 * * Sun"))
    assert scheduled.schedule == "0 3 * * sun"
    assert scheduled.fingerprint() == parse(SMALL).fingerprint()


def test_owners_and_tags_change_no_result_and_so_no_fingerprint() -> None:
    owned = parse(changed("owners", ["team:data"], changed("tags", {"domain": "quakes"})))
    assert (owned.owners, dict(owned.tags)) == (("team:data",), {"domain": "quakes"})
    assert owned.fingerprint() == parse(SMALL).fingerprint()


def test_the_canonical_json_is_itself_a_spec_of_the_same_meaning() -> None:
    spec = parse_spec(EARTHQUAKES, file="earthquakes.yaml")
    again = parse_spec(spec.canonical_json(), file="canonical.json")
    assert again == spec
    assert again.fingerprint() == spec.fingerprint()
    assert schema_accepts(json.loads(spec.canonical_json()))


def test_every_key_of_the_schema_is_described() -> None:
    schema = spec_json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    models = {"Spec": schema, **schema["$defs"]}
    assert {
        "Spec",
        "DeltaSource",
        "FilesSource",
        "KafkaSource",
        "TimeSpec",
        "Periodic",
        "Idle",
        "SourceIdle",
        "Alignment",
        "TolerancePolicy",
        "WindowSpec",
        "Early",
        "Catalog",
        "Outputs",
        "Alerts",
        "RateLevels",
        "AgeLevels",
        "Partitions",
        "OnNewInput",
    } == set(models)
    for name, model in models.items():
        assert model["additionalProperties"] is False, name
        for key, part in model["properties"].items():
            assert part.get("description"), f"{name}.{key}"
    assert models["FilesSource"]["properties"]["settle"]["default"] == "5 seconds"
    missing = models["FilesSource"]["properties"].pop("missing")
    assert missing["enum"] == ["hold", "null"]
    assert "null" not in json.dumps(schema).replace("nullValue", "")


def test_the_schema_is_a_schema_and_accepts_the_example() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(spec_json_schema())
    spec = yaml.safe_load(EARTHQUAKES.replace("start: 2013-01-01", "start: '2013-01-01'"))
    assert schema_accepts(spec)


@pytest.mark.parametrize(
    "text", ["5 s", "1 hour 30 minutes", "PT5M", "P1W", "250 us", "5", "P", "PT", "1 month", "x"]
)
def test_the_schema_and_the_parser_agree_on_durations(text: str) -> None:
    try:
        parse_duration(text)
        is_read = True
    except SpecError:
        is_read = False
    assert schema_accepts(changed("time.out_of_orderness", text)) is is_read


def source(schema: str, **rename: str) -> FilesSource:
    return FilesSource(name="s", kind="files", path="*", format="csv", schema=schema, rename=rename)


@pytest.mark.parametrize(
    ("schema", "rename", "in_files", "in_tables"),
    [
        ("a INT, _id INT", {"_id": "id"}, ["a", "_id"], ["a", "id"]),
        ("a INT, id INT", {"_id": "id"}, ["a", "_id"], ["a", "id"]),
        ("`id.orig_h` INT, b INT", {"id.orig_h": "h"}, ["id.orig_h", "b"], ["h", "b"]),
        ("_timestamp INT, `a b` INT", {"_timestamp": "ts", "a b": "a_b"}, ["_timestamp", "a b"], ["ts", "a_b"]),
        ("a INT, b INT", {"a": "b", "b": "a"}, ["a", "b"], ["b", "a"]),
        ("_Id INT", {"_Id": "_id"}, ["_Id"], ["_id"]),
        ("a INT, m INT", {"magNst": "m", "magnst": "m", "m": "m"}, ["a", "magNst"], ["a", "m"]),
        ("magnst INT", {"magNst": "m", "magnst": "m"}, ["magNst"], ["m"]),
    ],
)
def test_schema_names_a_column_as_the_file_does_or_as_the_tables_do(
    schema: str, rename: dict[str, str], in_files: list[str], in_tables: list[str]
) -> None:
    given = source(schema, **rename)
    assert list(names_in_files(top_level_names(schema), given.rename).values()) == in_files
    assert given.columns_in_tables == in_tables


@pytest.mark.parametrize(
    ("schema", "rename", "found", "remedy"),
    [
        ("_timestamp INT", {}, "`_timestamp` is reserved", "add `rename: {_timestamp: timestamp}`"),
        ("__TM_t INT", {}, "`__TM_t` is reserved", "add `rename: {__TM_t: TM_t}`"),
        ("_TimeStamp INT, timestamp INT", {}, "`_TimeStamp` is", "add `rename: {_TimeStamp: TimeStamp_2}`"),
        ("`a b` INT, `c,d` INT", {}, "'a b' holds ' '", 'add `rename: {"a b": a_b, "c,d": c_d}`'),
        ("`a=b` INT, x INT", {"x": "a_b"}, "holds '='", 'add `rename: {x: a_b, "a=b": a_b_2}`'),
        ("`a``b` INT", {}, "holds '`'", 'add `rename: {"a`b": a_b}`'),
        ("ts INT, `id.orig_h` STRING", {}, "'id.orig_h' holds '.'", "add `rename: {id.orig_h: id_orig_h}`"),
        ("ts INT, id.orig_h STRING", {}, "no such name without backquotes", "`rename: {id.orig_h: id_orig_h}`"),
        ("@timestamp STRING", {}, "`@timestamp`: DDL has no", '`rename: {"@timestamp": timestamp}`'),
        ("a INT, A INT", {}, "columns `a` and `A` have the same name", "rename: {name in the file"),
        ("a INT, b INT", {"b": "A"}, "columns `a` and `A` have the same name", "rename: {name in the file"),
        ("magnitude INT", {"magnitud": "m"}, "`magnitud` is no column of `schema`", "did you mean `magnitude`?"),
    ],
)
def test_a_name_that_no_table_can_have_is_refused_with_the_line_that_renames_it(
    schema: str, rename: dict[str, str], found: str, remedy: str
) -> None:
    spec = changed("sources.0.rename", rename, changed("sources.0.schema", schema))
    text = message(spec)
    assert found in text
    assert remedy in text
    assert re.search(r"line [79], sources\[0\]\.(schema|rename)", text)


def test_the_renaming_that_is_proposed_makes_the_spec_right() -> None:
    spec = changed("sources.0.schema", "t STRING, `id.orig_h` STRING, `a b` INT, _file STRING, `a_b` INT")
    line = re.search(r"add `rename: (\{.*\})` to", message(spec))
    assert line is not None
    read = parse(changed("sources.0.rename", yaml.safe_load(line[1]), spec))
    assert read.sources[0].columns_in_tables == ["t", "id_orig_h", "a_b_2", "file", "a_b"]


def test_the_reserved_columns_are_those_of_the_tables() -> None:
    assert {"_file", "_malformed", "_rescued", "_arrival_seq", "_watermark"} < RESERVED_COLUMNS
    assert all(name.startswith("_") for name in RESERVED_COLUMNS)
    assert len(RESERVED_COLUMNS) == 18


def with_set(*overrides: str) -> Spec:
    return parse_spec(yaml.safe_dump(SMALL), file="small.yaml", overrides=overrides)


def test_keys_can_be_set_beside_the_file() -> None:
    spec = with_set("time.out_of_orderness=30s", "time.late={tolerance: 1 m, policy: adjust}", "windows[0].size=2 h")
    assert spec.time.out_of_orderness == timedelta(seconds=30)
    assert spec.time.late is not None
    assert spec.time.late.tolerance == timedelta(minutes=1)
    assert spec.windows[0].size == timedelta(hours=2)
    assert with_set("windows[0].where=v = 1").windows[0].where == "v = 1"
    assert with_set("time.unit=second", "time.unit=millisecond").time.unit == "millisecond"
    assert SMALL["windows"][0]["size"] == "1 hour", "the file's own mapping is left as it is"


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("time.unit", "this cannot be read"),
        ("=second", "this cannot be read"),
        ("time.unit=", "this cannot be read"),
        ("time.unit=[", "this cannot be read"),
        ("[0].unit=second", "this cannot be read"),
        ("windows[3].size=1 h", "`[3]` names nothing: the file has a list of 1 there"),
        ("windows.size=1 h", "`size` names nothing: the file has a list of 1 there"),
        ("name.of=1 h", "`of` names nothing: the file has no mapping there"),
        ("name[0]=x", "`[0]` names nothing: the file has no list there"),
    ],
)
def test_what_cannot_be_set_is_said(override: str, says: str) -> None:
    with pytest.raises(SpecError) as raised:
        with_set(override)
    assert f"--set {override}: " in raised.value.found
    assert says in raised.value.found
    assert "time.out_of_orderness=30s" in raised.value.expected


def test_a_wrong_value_that_was_set_is_told_with_how_it_was_set() -> None:
    with pytest.raises(SpecError, match=r"small.yaml --set time.unit=hour, .*time.unit: found"):
        with_set("time.unit=hour")


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line_of_yaml(sign: str) -> None:
    document = read_yaml(
        f'# a note{sign}name: other\nname: p\nsources: ["two{sign}lines", plain{sign}text, \ue000]\n'
    )
    assert document.data == {"name": "p", "sources": [f"two{sign}lines", f"plain{sign}text", "\ue000"]}
    assert document.lines["sources",] == 3


@pytest.mark.parametrize("known", [("time", "type", "mag"), ("mag", "type", "time"), {"type", "time"}])
def test_of_two_names_that_are_as_near_the_one_with_the_same_consonants_is_meant(known: Collection[str]) -> None:
    assert did_you_mean("tyme", known) == "did you mean `time`?"
    assert did_you_mean("TYPO", known) == "did you mean `type`?"
    assert did_you_mean("xq", known) == ""
