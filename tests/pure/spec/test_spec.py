"""The spec file: what is read, with which defaults, and what makes two specs one."""

import json
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from pydantic import ValidationError

from tests.pure.spec.specs import (
    EARTHQUAKES,
    LIVE,
    LOGIN,
    SMALL,
    TABLE,
    WINDOW,
    aligned,
    changed,
    files_of,
    hopping,
    over_w,
    parse,
    schema_accepts,
    session,
    two_aligned,
    two_sources,
    with_set,
    with_source,
)
from tidemark.pipelines.cli import main
from tidemark.resources.sources.kafka_connection import Connection
from tidemark.timeops.errors import InputError, SpecError
from tidemark.timeops.expressions.tokens import top_level_names
from tidemark.timeops.spec import (
    RESERVED_COLUMNS,
    DeltaSource,
    EarlyPolicy,
    FilesSource,
    KafkaSource,
    LatePolicy,
    Outputs,
    Partitions,
    Spec,
    TimeSpec,
    WindowSpec,
    parse_spec,
    spec_json_schema,
)
from tidemark.timeops.spec.fields import names_in_files
from tidemark.timeops.spec.text import read_yaml
from tidemark.timeops.spec.window_shape import Months
from tidemark.timeops.values.durations import parse_duration


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
            late=LatePolicy(tolerance=timedelta(minutes=5), policy="adjust"),
            early=EarlyPolicy(tolerance=timedelta(minutes=5), policy="drop"),
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
    assert (source.order, source.settle) == ("arrival_time", timedelta(seconds=5))
    assert (source.max_files, source.max_bytes) == (10_000, 10 * 1024**3)
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


@pytest.mark.parametrize(
    ("text", "count", "written"),
    [
        ("1 month", 1, "1 month"),
        ("P1M", 1, "1 month"),
        ("1 quarter", 3, "3 months"),
        ("18months", 18, "18 months"),
        ("P1Y6M", 18, "18 months"),
        ("12 months", 12, "1 year"),
        ("4 quarters", 12, "1 year"),
        ("P2Y", 24, "2 years"),
    ],
)
def test_months_of_the_calendar_have_one_text_for_equal_lengths(text: str, count: int, written: str) -> None:
    wanted = changed("windows.0.size", text)
    window = parse(wanted).windows[0]
    assert window.size == Months(count)
    assert window.model_dump(mode="json")["size"] == written
    assert parse(changed("windows.0.size", written)).windows[0] == window
    assert schema_accepts(wanted)


def test_the_step_of_a_hopping_window_is_its_hop() -> None:
    window = parse(changed("windows.0", hopping(hop="5 minutes", offset="1 minute"))).windows[0]
    assert (window.hop, window.end_step_us, window.offset_us) == (timedelta(minutes=5), 300_000_000, 60_000_000)


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


@pytest.mark.parametrize(
    ("by", "orders"),
    [
        ("x", [("x", False, True)]),
        ("x DESC, `a b`.c asc", [("x", True, False), ("`a b`.c", False, True)]),
        ("x desc nulls first,\n x + 1 NULLS LAST -- the end", [("x", True, True), ("x + 1", False, False)]),
        ("desc DESC, if(x > 1, 'a, b', t)", [("desc", True, False), ("if(x > 1, 'a, b', t)", False, True)]),
        ("last", [("last", False, True)]),
        ("struct(x, t) DESC", [("struct(x, t)", True, False)]),
    ],
)
def test_an_order_is_cut_at_its_commas_and_nulls_are_where_spark_puts_them(
    by: str, orders: list[tuple[str, bool, bool]]
) -> None:
    window = parse(changed("windows.0.top", {"n": 2, "by": by})).windows[0]
    assert window.top is not None
    assert [(one.expression, one.descends, one.nulls_first) for one in window.top.orders] == orders


def test_rows_of_first_events_show_the_columns_that_no_other_column_of_the_row_has() -> None:
    keys = {"top": {"n": 2, "by": "x"}, "group_by": ["X"], "aggregates": {"n": "count(*)"}}
    window = parse(changed("windows.0", {"name": "w", "kind": "snapshot", **keys})).windows[0]
    of_events = ["t", "x", "_rescued", "n", "_source", "_timestamp", "__tm_end", "window_end"]
    assert window.event_columns(of_events) == ["t", "_rescued", "_timestamp", "_arrival_seq"]
    assert window.event_columns(window.event_columns(of_events)) == window.event_columns(of_events)
    assert window.key_columns == ("window_start", "window_end", "X", "_rank")
    over = {"name": "v", "kind": "snapshot", "from": "w", "top": {"n": 1, "by": "n"}}
    chained = parse(changed("windows.1", over)).windows[1]
    assert chained.event_columns(["window_start", "window_end", "n", "_timestamp"]) == ["n", "_timestamp"]


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


BY_UPPER_T = {**WINDOW, "group_by": ["upper(t) AS big"]}
KEPT = changed("time.out_of_order", "keep")
BY_CLOCK = changed("time.idle", {"advance": "window_close", "timeout": "1 min"})
IDLE_SPLITS = {"advance": "exclude_split", "timeout": "1 min"}
GOOD = {
    "a window over a window": changed("windows", [*SMALL["windows"], over_w(where="n > 1 AND window_end > '2020'")]),
    "a session over a window": changed(
        "windows.1", over_w(kind="session", size=None, gap="1 h", max_duration="1 day", where="n > 1")
    ),
    "a sliding window over a window": changed("windows.1", over_w(kind="sliding")),
    "a window over a window over substreams": changed(
        "windows",
        [over_w(name="days", **{"from": "hours"}, group_by=["b"]), over_w(group_by=["big AS b"]), BY_UPPER_T],
        changed("time.over", ["upper(t)"]),
    ),
    "several sources": changed("sources", two_sources(timestamp_by="t", time_zone="Asia/Tokyo")),
    "only one source has an event time": changed("sources", two_sources(timestamp_by="t"), changed("time", ...)),
    "aligned sources": changed("sources", two_aligned(alignment=aligned(max_drift="0 s", update_interval="1 min"))),
    "idle splits of aligned sources": changed("time.idle", IDLE_SPLITS, changed("sources", two_aligned())),
    "listed splits": changed("sources.0.splits", ["0", "1"], changed("sources.0.split", "x")),
    "idle splits": changed("time.idle", IDLE_SPLITS, changed("sources.0.split", "x")),
    "an idle timeout per source": changed(
        "sources",
        [{**source, "idle": {"timeout": "1 min"}} for source in two_sources()],
        changed("time.idle", {"advance": "exclude_split"}),
    ),
    "windows closed by the clock": BY_CLOCK,
    "the clock's watermarks by periods": changed("time.emit", {"every": "1 s"}, BY_CLOCK),
    "no event time": changed("time", {"unit": "second", "end_of_input": "flush"}),
    "zero tolerance without event time": changed("time", {"out_of_orderness": "0 s"}),
    "ticks by arrival times": changed("sources.0", LIVE, changed("time.emit", {"every": "1 s"})),
    "ticks for revisions": changed("sources.0", LIVE, changed("windows.0.emit", {"early": "1 s"})),
    "processing time in a zone": changed("sources.0.arrival_time", "t", changed("time", {"time_zone": "Asia/Tokyo"})),
    "lateness under keep": changed("windows.0.allowed_lateness", "1 min", KEPT),
    "zero lateness under drop": changed("windows.0.allowed_lateness", "0 s"),
    "no windows": changed("windows", ...),
    "windows only": changed("outputs.ordered_events", False),
    "sessions": changed("windows.0", session(gap="30 min", max_duration="2 h")),
    "sessions whose events say their gap": changed(
        "windows.0", session(gap="if(x > 1, Interval 1 hour, make_dt_interval(0, 0, x))", max_gap="2 h")
    ),
    "gaps by arithmetic": changed("windows.0", session(gap="how_long * 2", max_gap="2 h")),
    "a column of gaps": changed("windows.0", session(gap="how_long", max_gap="2 h", max_duration="1 day")),
    "no duplicates": changed("time", {"deduplicate_by": ["t", "upper(x)"], "within": "1 hour"}),
    "no duplicates at one instant": changed("time", {"deduplicate_by": ["t"], "within": "0 s"}),
    "late sessions": changed("windows.0", session(gap="30 min", allowed_lateness="1 min"), KEPT),
    "rows for empty windows": changed("windows.0.empty_max", 5, changed("windows.0.empty", True)),
    "early results and rows for empty windows, filtered": changed(
        "windows.0", {**WINDOW, "emit": {"early": "1 s"}, "empty": True, "having": "n > 1"}
    ),
    "early results of late events": changed(
        "windows.0", {**WINDOW, "emit": {"early": "1 s"}, "allowed_lateness": "1 min"}, KEPT
    ),
    "early results of sessions": changed("windows.0", session(gap="30 min", emit={"early": "1 s"})),
    "sessions that late events revise": changed(
        "windows.0",
        session(gap="30 min", allowed_lateness="1 min", emit="on_time", revise_every="0 s", history=True),
        KEPT,
    ),
    "hop longer than size": changed("windows.0", hopping(hop="2 hours", offset="90 minutes")),
    "shifts of a zone": changed(
        "windows.0", {**WINDOW, "size": "8 hours", "offset": "6 hours", "time_zone": "Asia/Tokyo", "empty": True}
    ),
    "fiscal weeks": changed(
        "windows.0", hopping(size="8 weeks", hop="4 weeks", time_zone="America/New_York", origin="2026-02-01")
    ),
    "hours that come twice": changed(
        "windows.0", {**WINDOW, "size": "30 minutes", "time_zone": "Europe/Berlin", "repeated": "split"}
    ),
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
        "alerts", {"dead_letter_rate": {"warn": "0.5 %", "error": "10%"}, "freshness": {"error": "1 hour"}}
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


def test_days_and_times_need_no_quotes() -> None:
    text = yaml.safe_dump(SMALL) + "partitions: {start: 2013-01-01}\n"
    assert parse_spec(text, file="small.yaml").partitions.start == date(2013, 1, 1)


def test_equal_meaning_has_one_fingerprint() -> None:
    one = changed("time.out_of_orderness", "60 s", changed("windows.1", {**WINDOW, "name": "a"}))
    one["sources"][0]["options"] = {"sep": ";"}
    spelled_out = {**WINDOW, "name": "a", "closed": "left", "emit": "on_close", "group_by": []}
    other = changed("time.out_of_orderness", "1 minute", changed("windows", [spelled_out, WINDOW]))
    other["sources"][0] |= {"schema": "t STRING,\nx INT", "options": {"delimiter": ";"}, "rename": {}}
    other["sources"][0] |= {"settle": "PT5S", "max_bytes": "10 GiB", "order": "arrival_time"}
    other["outputs"] = {"ordered_events": True}
    assert parse(one).canonical_json() == parse(other).canonical_json()
    assert parse(one).fingerprint() == parse(other).fingerprint()
    assert len(parse(one).fingerprint()) == 64


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


def test_alerts_events_a_schedule_owners_and_tags_change_no_result_and_so_no_fingerprint() -> None:
    alerts = {
        "dead_letter_rate": {"warn": "2.5 %"},
        "freshness": {"error": "90 min"},
        "notify": [{"to": "${ALERTS_HOOK}"}],
    }
    about = {"owners": ["team:data"], "tags": {"domain": "quakes"}, "events": {"every": "1 min"}}
    spec = parse({**SMALL, "alerts": alerts, "schedule": "0  3 * * Sun", **about})
    assert spec.alerts.dead_letter_rate is not None
    assert (spec.alerts.dead_letter_rate.warn, spec.alerts.dead_letter_rate.error) == (0.025, None)
    assert spec.alerts.freshness is not None
    assert spec.alerts.freshness.error == timedelta(minutes=90)
    assert (spec.schedule, spec.owners, dict(spec.tags)) == ("0 3 * * sun", ("team:data",), {"domain": "quakes"})
    assert spec.events is not None
    assert spec.events.every == timedelta(minutes=1)
    assert spec.fingerprint() == parse(SMALL).fingerprint()


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
    assert set(models) == {
        *["Spec", "DeltaSource", "FilesSource", "KafkaSource", "SourceIdle", "Alignment", "Catalog", "Outputs"],
        *[
            "TimeSpec",
            "Periodic",
            "Idle",
            "LatePolicy",
            "EarlyPolicy",
            "JoinSpec",
            "RightSide",
            "JoinSide",
            "WindowSpec",
            "Early",
            "Top",
            "Partitions",
            "OnNewInput",
        ],
        *["Alerts", "RateLevels", "AgeLevels", "Channel", "Events", "Retention"],
    }
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
    given = FilesSource(name="s", kind="files", path="*", format="csv", schema=schema, rename=rename)
    assert list(names_in_files(top_level_names(schema), given.rename).values()) == in_files
    assert given.columns_in_tables == in_tables


def test_the_reserved_columns_are_those_of_the_tables() -> None:
    assert {"_file", "_malformed", "_rescued", "_arrival_seq", "_watermark"} < RESERVED_COLUMNS
    assert all(name.startswith("_") for name in RESERVED_COLUMNS)
    assert len(RESERVED_COLUMNS) == 18


def test_keys_can_be_set_beside_the_file() -> None:
    spec = with_set("time.out_of_orderness=30s", "time.late={tolerance: 1 m, policy: adjust}", "windows[0].size=2 h")
    assert spec.time.out_of_orderness == timedelta(seconds=30)
    assert spec.time.late is not None
    assert spec.time.late.tolerance == timedelta(minutes=1)
    assert spec.windows[0].size == timedelta(hours=2)
    assert with_set("windows[0].where=v = 1").windows[0].where == "v = 1"
    assert with_set("time.unit=second", "time.unit=millisecond").time.unit == "millisecond"
    assert SMALL["windows"][0]["size"] == "1 hour", "the file's own mapping is left as it is"


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line_of_yaml(sign: str) -> None:
    document = read_yaml(
        f'# a note{sign}name: other\nname: p\nsources: ["two{sign}lines", plain{sign}text, \ue000]\n'
    )
    assert document.data == {"name": "p", "sources": [f"two{sign}lines", f"plain{sign}text", "\ue000"]}
    assert document.lines["sources",] == 3


@pytest.mark.parametrize(
    "source",
    [
        with_source(TABLE, changes="rows", start_version=0, max_versions=5),
        with_source(),
        with_source(topics=None, topic_pattern="orders[.].*", start="latest", order="position"),
        with_source(format="avro", avro_schema="order.avsc", skip_bytes=5, keep_unknown=True),
        with_source(format="raw", schema="t STRING", start={"orders": {"0": 5}}, on_data_loss="note"),
        with_source(metadata={"key": "k", "timestamp": "at"}, start="2026-01-01T01:00:00+01:00", options=LOGIN),
        with_source(alignment={"group": "g", "max_drift": "1 minute"}),  # its partitions wait for each other
    ],
)
def test_a_table_and_topics_are_read_and_written_as_they_are(source: dict[str, Any]) -> None:
    spec = parse(source)
    assert parse(json.loads(spec.canonical_json())) == spec
    assert schema_accepts(source)
    assert schema_accepts(json.loads(spec.canonical_json()))
    assert spec.uses_splits == (spec.sources[0].kind == "kafka")
    assert not spec.reads_files_only


def test_a_delta_table_is_a_source_with_keys_of_its_own() -> None:
    (source,) = parse(with_source(TABLE, changes="rows", start_version=0, max_versions=5)).sources
    assert isinstance(source, DeltaSource)
    assert (source.changes, source.start_version, source.max_versions) == ("rows", 0, 5)
    assert source.columns_in_tables == ["t", "x", "_change_type"]


def topics_of(spec: dict[str, Any]) -> KafkaSource:
    (source,) = parse(spec).sources
    assert isinstance(source, KafkaSource)
    return source


def test_what_kafka_says_of_a_record_follows_the_columns() -> None:
    source = topics_of(with_source(metadata={"headers": "h", "offset": "o"}, start="2026-01-01T01:00:00+01:00"))
    assert source.columns_in_tables == ["t", "x", "h", "o"]
    assert source.bootstrap_servers == "one:9092,two:9093"
    assert source.start == datetime(2026, 1, 1, tzinfo=UTC)


def test_options_of_kafka_are_settings_of_its_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / f"{name}.pem").write_text(f"the {name}")
    monkeypatch.setenv("KAFKA_PASSWORD", 'a"b\\c')
    files = {f"ssl.{name}.location": f"{name}.pem" for name in ("ca", "certificate", "key")}
    more = {"ssl.endpoint.identification.algorithm": "none", "isolation.level": "read_uncommitted"}
    made = Connection.of(topics_of(with_source(options={**LOGIN, **files, **more})), tmp_path)
    settings = made.settings
    assert settings["sasl.password"] == 'a"b\\c'
    assert settings["ssl.key.pem"] == "the key"
    assert settings["ssl.ca.pem"] == "the ca"
    assert settings["ssl.endpoint.identification.algorithm"] == "none"
    assert made.isolation == "read_uncommitted"
    assert "isolation.level" not in settings  # questions have no such setting
    assert 'a"b' not in repr(made)


def test_only_variables_for_kafka_are_sent_to_the_brokers_that_a_spec_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands refuse the spec, and nothing connects for a source that came another way."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of this machine")
    given = with_source(options={**LOGIN, "sasl.password": "${AWS_SECRET_ACCESS_KEY}"})
    with pytest.raises(InputError, match="the variable AWS_SECRET_ACCESS_KEY may not be sent to brokers"):
        Connection.of(topics_of(given), tmp_path)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    done = CliRunner().invoke(main, ["validate", str(tmp_path / "small.yaml")])
    assert done.exit_code == 2
    assert 'sources[0].options["sasl.password"]: the variable AWS_SECRET_ACCESS_KEY may not be sent' in done.output
    assert "of this machine" not in done.output
    monkeypatch.setenv("TIDEMARK_KAFKA_VARIABLES", "OTHER, AWS_SECRET_ACCESS_KEY")
    assert Connection.of(topics_of(given), tmp_path).options["sasl.password"] == "of this machine"
