"""Specs that are refused, and what is said of each: whole messages are in __snapshots__."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from tests.pure.spec.specs import (
    LIVE,
    LOGIN,
    SMALL,
    TABLE,
    TOPICS,
    WINDOW,
    aligned,
    changed,
    cumulative,
    hopping,
    message,
    over_w,
    parse,
    parse_message,
    refusals,
    schema_accepts,
    session,
    two_aligned,
    two_sources,
    with_set,
    with_source,
)
from tidemark.timeops.errors import SpecError
from tidemark.timeops.errors.problems import did_you_mean
from tidemark.timeops.spec import parse_spec, readable_rest


def local(size: str, **keys: object) -> dict[str, Any]:
    return {**WINDOW, "size": size, "time_zone": "Asia/Kathmandu", **keys}


WRONG_VALUES: dict[str, list[object]] = {
    "name": [..., "Small", 7],
    "nmae": ["x"],
    "tyme": [{"timestamp_by": "t"}],
    "live": [True],
    "sources": [..., [], {}],
    "sources.0": ["files"],
    "sources.0.name": ["a-b"],
    "sources.0.kind": ["kinesis", "flies"],
    "sources.0.path": ["", ["a"]],
    "sources.0.format": ["avro", "jsnol"],
    "sources.0.schema": [...],
    "sources.0.columns": ["t STRING"],
    "sources.0.shcema": ["t STRING"],
    "sources.0.options": [[], {"sep": ";", "delimiter": ","}],
    "sources.0.options.header": ["yes"],
    "sources.0.options.sep": [True],
    "sources.0.options.haeder": [True],
    "sources.0.options.mode": ["FAILFAST"],
    "sources.0.options.inferSchema": [True],
    "sources.0.options.enforceSchema": [True],
    "sources.0.options.columnNameOfCorruptRecord": ["c"],
    "sources.0.options.allowComments": [True],
    "sources.0.rename": [{"x": 3}],
    "sources.0.keep_unknown": ["no"],
    "sources.0.arrival_time": [5],
    "sources.0.order": ["time"],
    "sources.0.settle": [5],
    "sources.0.max_files": [0, "7", True, 2**63],
    "sources.0.skip_lines": [0, "1"],
    "sources.0.max_bytes": ["7 apples", 0],
    "sources.0.split": [""],
    "sources.0.splits": ["a"],
    "sources.0.alignment": [
        *["g", {"group": "g"}, {"group": "a-b", "max_drift": "1 s"}, {"group": "g", "max_drift": 60}],
        *[aligned(update_interval="0 s"), aligned(drift="1 s")],
    ],
    "sources.0.unaligned": ["allow"],
    "sources.0.timestamp_by": [1700000000],
    "sources.0.out_of_orderness": [60],
    "sources.0.idle": [{"timeout": "0 s"}, {}, {"timeout": "1 s", "timout": "1 s"}],
    "sources.0.live": ["yes"],
    "alerts": [{"dead_letters": "1 %"}],
    "alerts.dead_letter_rate": ["1 %", {"warn": 1}],
    "alerts.freshness": [{"warn": "0 s"}],
    "schedule": [
        "every minute",
        "* * * * * *",
        5,
        {},
        {"on_new_input": 15},
        {"on_new_input": "15 s", "every": "1 s"},
    ],
    "owners": [["ann"], ["team:"]],
    "tags": [{"dagster/kind": "x"}, {"two words": "x"}, {"a": "two words"}, {"a": 1}],
    "time": ["t", {"deduplicate_by": ["x"], "within": "-1 s"}],
    "time.timestamp_by": [1700000000, "1700000000"],
    "time.unit": ["minute"],
    "time.over": ["x"],
    "time.out_of_orderness": [60, "1 month", "-1 s"],
    "time.out_of_order": ["ignore"],
    "time.late": ["5 minutes", {"tolerance": "5 s"}, {"tolerance": "5 s", "policy": "keep"}],
    "time.early": [{"tolerance": "5 s", "policy": "hold"}, {"tolerance": "5 s", "policy": "drop", "x": 1}],
    "time.emit": [{"every": "0 ms"}, {"every": "1 s", "evry": "1 s"}, {}, "every"],
    "time.idle": [{"advance": "arrival_clok"}, {"advance": "window_close", "timeout": "0 s"}, {}],
    "time.start_at": ["yesterday", 2026],
    "time.deduplicate_by": ["x"],
    "time.end_of_input": ["close"],
    "outputs.ordered_events": ["false"],
    "outputs.windows": [True],
    "partitions.start": [2013],
    "windows.0": [
        *["w", session(), session(gap="0 s"), session(gap="1 s", size="1 h"), session(gap="1 s", hop="1 h")],
        *[session(gap="1 s", offset="0 s"), session(gap="1 s", closed="left")],
        *[session(gap="1 s", max_duration="0 s"), hopping(), hopping(hop="0 s"), session(gap="1 s", time_zone="UTC")],
        *[cumulative(), {**WINDOW, "kind": "sliding", "closed": "right"}, {**WINDOW, "kind": "snapshot"}],
        {**WINDOW, "empty": True, "empty_max": 0},
    ],
    "windows.0.name": ["_w"],
    "windows.0.kind": ["tumblng"],
    "windows.0.size": [60, "0 s", ..., "0 months", "1.5 years", "1 year 6 months", "P1Y2D"],
    "windows.0.hop": ["5 min"],
    "windows.0.closed": ["both"],
    "windows.0.gap": ["1 s"],
    "windows.0.max_duration": ["1 s"],
    "windows.0.step": ["1 s"],
    "windows.0.empty": ["yes"],
    "windows.0.emit": ["on_tim", {"early": "0 s"}, {"early": "1 s", "late": "1 s"}],
    "windows.0.group_by": ["x"],
    "windows.0.aggregates": [{}, ["count(*)"], {"__n": "count(*)"}, ...],
    "windows.0.top": [
        *[{"n": 3}, {"n": 0, "by": "x"}, {"n": 3, "by": "x", "ties": "rank"}, {"n": 3, "by": "x", "last": 1}],
    ],
    "windows.0.aggregates.a b": ["sum(x)"],
    "windows.0.aggregates._watermark": ["sum(x)"],
    "windows.0.aggregates.window_start": ["sum(x)"],
    "windows.0.aggregates.s": [1],
}
"""Wrong values of keys of SMALL, `...` for none: these the schema refuses too."""

TOP = {"n": 3, "by": "x DESC"}
WRONG_VALUES_FOR_THE_PARSER: dict[str, list[object]] = {
    "sources": [
        *[SMALL["sources"] * 2, [LIVE, {**LIVE, "name": "o", "live": False}], two_sources(order="position")],
        two_aligned(alignment=aligned(group="h"))[1:],
        two_aligned(arrival_time="t", alignment=aligned(update_interval="1 s")),
    ],
    "sources.0": [LIVE],
    "sources.0.settle": ["3000000 days"],
    "sources.0.time_zone": ["Europe/Berln"],
    "sources.0.idle": [{"timeout": "1 s"}],
    "sources.0.live": [True],
    "sources.0.split": ["rand()"],
    "sources.0.splits": [["a", "a"], ["a"]],
    "sources.0.alignment": [aligned()],
    "sources.0.arrival_time": ["now()", "_arrival_time"],
    "sources.0.rename": [{"x": "_clock"}, {"x": "a b"}, {"x": "x"}, {"x": "z", "t": "Z"}, {"x": "z", "t": "z"}],
    "sources.0.missing": ["skip", "null", None],
    "sources.0.on_rewrite": ["reread"],
    "time": [
        *[{"deduplicate_by": [column], "within": "1 s"} for column in ("uuid()", "user")],
        *[{"deduplicate_by": ["x", "X"], "within": "1 s"}, {"time_zone": "Asia/Tokyo"}],
        *[{"out_of_order": "drop"}, {"out_of_orderness": "1 s"}, {"deduplicate_by": [], "within": "1 s"}],
        *[{"late": {"tolerance": "1 s", "policy": "drop"}}, {"early": {"tolerance": "1 s", "policy": "drop"}}],
    ],
    "time.start_at": ["9999-12-31T23:59:59-23:00"],
    "time.idle": [
        *[{"advance": "exclude_split", "timeout": "1 s"}, {"advance": "window_close"}, {"advance": "arrival_clock"}],
    ],
    "time.deduplicate_by": [["x"]],
    "time.within": ["1 s"],
    "time.timestamp_by": ["current_timestamp()", "user", "t AS e", "f(t"],
    "time.time_zone": ["Europe/Berln", "+02:00", "localtime"],
    "time.over": [["rand()"], ["f(x)"], ["x", "X"], ["x"]],
    "windows": [[*SMALL["windows"], {**SMALL["windows"][0], "name": "W"}]],
    "windows.0": [
        *[hopping(size="1 day", hop="1 ms"), hopping(hop="5 s", offset="5 s")],
        *[cumulative(size="3652059 days", step="1 us"), cumulative(step="7 min"), cumulative(step="2 h")],
        *[{**WINDOW, "size": "1 day", "time_zone": "Europe/Belin"}, {**WINDOW, "size": "1 month", "offset": "0 s"}],
        *[session(gap="1 s", allowed_lateness="1 s"), hopping(hop="1 h", size="1 month")],
        *[{**session(gap="1 s"), "empty": True}, {**WINDOW, "kind": "sliding", "empty": True}],
        {**session(gap="1 s", max_duration="1 h"), "emit": {"early": "1 s"}},
        *[{**WINDOW, "size": "1 week", "week_start": "sunday"}, {**WINDOW, "repeated": "split"}],
        *[{**WINDOW, "size": "2 weeks", "origin": "2026-04-06"}],
        *[hopping(hop="1 h", time_zone="UTC", repeated="split"), local("7 hours"), local("36 hours")],
        *[local("1 h", kind="hopping", hop="50 min"), local("1 h", offset="1 h")],
        *[local("1 day", offset="6 hours"), local("1 week", offset="6 hours"), local("1 day", week_start="sunday")],
        *[local("1 week", week_start="sunday", origin="2026-04-06"), local("1 month", origin="2026-04-01")],
        *[local("1 year", origin="2024-01-31"), local("1 quarter", week_start="sunday"), local("101 years")],
        *[local("3 months", kind="hopping", hop="1 day"), local("1 year", offset="1 day")],
        *[local("1 year", repeated="split"), {**WINDOW, "size": "1 year", "origin": "2024-04-01"}],
        *[local("1 day", repeated="split"), local("1 h", repeated="split", empty=True)],
        local("1 h", kind="hopping", hop="5 min", empty=True),
        *[{**WINDOW, "top": TOP, "empty": True}, {**WINDOW, "top": TOP, "aggregates": {"X": "max(x)"}}],
        *[
            {**WINDOW, "top": TOP, "group_by": ["upper(t) AS t"]},
            {**WINDOW, "top": TOP, "group_by": ["x + 1 AS _rank"]},
        ],
    ],
    "windows.0.top": [
        {"n": 1, "by": by}
        for by in ("x,", "x DESC, X", "rand()", "f(x", "x AS y", "user", "sum(x) OVER (ORDER BY t)")
    ],
    "windows.0.size": ["-1 h"],
    "windows.0.offset": ["-1 h", "1 hour"],
    "windows.0.empty_max": [5],
    "windows.0.history": [True],
    "windows.0.revise_every": ["1 s"],
    "windows.0.emit": ["on_time"],
    "windows.0.allowed_lateness": ["1 s"],
    "windows.0.where": ["explode(x) = 1", "window(t, '1 h').start > t", "x > rand()", "(SELECT 1) = 1"],
    "windows.0.having": ["first(n) > 1", "user > 1"],
    "windows.0.group_by": [
        *[["upper(t)"], ["a.b"], ["uuid() AS u"], ["`a b`"], ["_source"], ["x AS __tm_t"], ["x AS window_end"]],
        *[["x", "t AS X"], ["x AS N"]],
    ],
    "windows.0.aggregates": [{"_late_events": "count(*)"}],
    "windows.0.aggregates._Batch_Id": ["sum(x)"],
    "windows.0.aggregates.N": ["sum(x)"],
    "windows.0.aggregates.f": ["first(x, n)", "sum(x) OVER (ORDER BY t)"],
    "windows.0.from": ["x", "w"],
    "windows.1": [
        *[over_w(name="hours", **{"from": "W"}), over_w(where="user > 1")],
        over_w(aggregates={"m": "max_by(n, struct(n, _arrival_seq))"}),
        over_w(aggregates=None, top={"n": 1, "by": "_arrival_seq"}),
        *[over_w(emit={"early": "1 s"}), over_w(kind="sliding", emit={"early": "1 s"})],
        over_w(kind="session", size=None, gap="1 s", emit={"early": "1 s"}),
        *[over_w(kind="sliding", empty=True), over_w(empty=True)],
    ],
    "partitions.start": ["2013-02-30"],
    "partitions.time_zone": ["Europe/Berln"],
    "alerts.dead_letter_rate": [{"warn": "101 %"}, {}],
    "alerts.freshness": [{"warn": "1 h", "error": "1 h"}, {"warn": "30 s"}],
    "alerts.notify": [
        *["json://u:s3cret@h", ["json://u:s3cret@h"], [{"to": "json://u:s3cret@h"}]],
        *[[{"to": "A"}], [{"to": "${A}", "level": "info"}], [{"to": "${A}"}, {"to": "${A}", "level": "error"}]],
    ],
    "schedule": ["61 * * * *", {"on_new_input": "2 s"}, {"on_new_input": "5500 ms"}],
}

NO_WINDOWS, ALIGNED = changed("windows", ...), changed("sources", two_aligned())
KEPT, BOUND = changed("time.out_of_order", "keep"), changed("time.out_of_orderness", "1 s")
ALIGNED_AND_PERIODIC = changed("time.emit", {"every": "1 s"}, ALIGNED)
WITHIN = changed("time.over", ["x"], changed("windows.0.group_by", ["x"]))
ACROSS = changed("windows.0.across", True, changed("time.over", ["x"]))
WRONG_TOGETHER = {
    "days of no windows": changed("partitions.start", "2013-01-01", NO_WINDOWS),
    "no events in order and no windows": changed("outputs.ordered_events", False, NO_WINDOWS),
    "longest sessions that late events revise": changed("windows.0", session(gap="1 s", max_duration="1 h"), KEPT),
    "splits that wait, are idle and emit in periods": changed(
        "time.idle", {"advance": "exclude_split", "timeout": "1 min"}, ALIGNED_AND_PERIODIC
    ),
    "splits that wait, windows closed by the clock, emission in periods": changed(
        "time.idle", {"advance": "window_close", "timeout": "1 min"}, ALIGNED_AND_PERIODIC
    ),
    "aligned by arrival": changed("time", ..., ALIGNED),
    "a schedule of a pipeline that is flushed": changed("time.end_of_input", "flush", changed("schedule", "@hourly")),
    "an event time that no source uses": changed("sources.0.timestamp_by", "t", BOUND),
    "a bound that no source uses": changed("sources.0.out_of_orderness", "1 s", BOUND),
    "idle without a timeout": changed("time.idle", {"advance": "exclude_split"}, changed("sources.0.split", "x")),
    "a bound of a source finer than the unit": changed(
        "sources", two_sources(out_of_orderness="1500 us"), changed("time.unit", "millisecond")
    ),
    "a bound finer than the unit": changed("time.unit", "second", changed("time.out_of_orderness", "1500 ms")),
    "no events in order and an empty list of windows": changed(
        "windows", [], changed("outputs.ordered_events", False)
    ),
    "over a window that waits for late events": changed(
        "windows.1", over_w(), changed("windows.0.allowed_lateness", "1 min", KEPT)
    ),
    "first of first events": changed("windows.1", over_w(aggregates=None, top=TOP), changed("windows.0.top", TOP)),
    "an event whose rank is a column": changed(
        "windows.0.top", TOP, changed("sources.0.schema", "t STRING, x INT, _rank INT")
    ),
    "a gap of each event without a longest": changed(
        "windows.0", session(gap="CASE WHEN x > 1 THEN INTERVAL 1 HOUR END")
    ),
    "a longest gap where there is one": changed("windows.0", session(gap="1 hour", max_gap="2 hours")),
    "a gap of each event by chance": changed("windows.0", session(gap="rand() * INTERVAL 1 HOUR", max_gap="1 h")),
    "a longest gap of a window on a grid": changed("windows.0.max_gap", "2 hours"),
    "gaps of events by the timeline across timelines": changed(
        "windows.0", session(gap="IF(_timeline = '[]', INTERVAL 1 HOUR, NULL)", max_gap="1 h", across=True), ACROSS
    ),
    "across timelines where there is one": changed("windows.0.across", True),
    "cut sessions across timelines": changed(
        "windows.0", session(gap="1 s", max_duration="1 h", across=True), changed("time.over", ["x"])
    ),
    "the name of a timeline in a window across them": changed(
        "windows.0.aggregates", {"n": "count(DISTINCT _timeline)"}, ACROSS
    ),
    "a window within timelines over one across them": changed("windows.1", over_w(), ACROSS),
    "a window across timelines over one within them": changed("windows.1", over_w(across=True), WITHIN),
    "idle timelines, and no window across them": changed(
        "time.idle", {"advance": "exclude_split", "timeout": "1 s"}, WITHIN
    ),
    "over a window with empty rows": changed("windows.1", over_w(), changed("windows.0.empty", True)),
    "over a window without its substreams": changed(
        "windows.1", over_w(), changed("time.over", ["upper(t)"], changed("windows.0.group_by", ["upper(t) AS big"]))
    ),
}


def wrong(values: Mapping[str, Sequence[object]]) -> dict[str, dict[str, Any]]:
    """Return a spec for each wrong value of each key, by the key and the value."""
    return {
        f"{path}: {'none' if value is ... else json.dumps(value)}": changed(path, value)
        for path, of_key in values.items()
        for value in of_key
    }


BAD_FOR_SCHEMA_TOO = wrong(WRONG_VALUES)
BAD = BAD_FOR_SCHEMA_TOO | wrong(WRONG_VALUES_FOR_THE_PARSER) | WRONG_TOGETHER


def test_a_bad_spec_is_refused_with_file_key_and_reason(snapshot: SnapshotAssertion) -> None:
    said = refusals(BAD)
    assert [name for name, text in said.items() if text is None] == [], "accepted"
    assert [name for name, text in said.items() if "problems:" in str(text)] == [], "one mistake is one problem"
    assert said == snapshot


def test_the_schema_refuses_what_it_can() -> None:
    assert [name for name, spec in BAD_FOR_SCHEMA_TOO.items() if schema_accepts(spec)] == []


OF_DELTA = [
    ({"changes": "skip"}, ".changes", "fail or follow or ignore or rows"),
    ({"start_version": -1}, ".start_version", "a version of the table, from 0"),
    ({"start_version": 1, "start_timestamp": "2026-01-01"}, ".start_timestamp", "both say where to start"),
    ({"format": "csv"}, ".format", "unknown key `format`"),
    ({"settle": "5 s"}, ".settle", "unknown key `settle`"),
    ({"path": "ftp://lake/t"}, ".path", "which is not the URL of an object store"),
    ({"path": "bronze/*"}, ".path", "the folder of one Delta table"),
    ({"changes": "rows", "schema": "t STRING, _change_type STRING"}, ".schema", "adds"),
    ({"alignment": {"grup": "a"}}, ".alignment.grup", "did you mean `group`?"),
    ({"live": True}, ".live", "times of commits are the machine's already"),
]
OF_KAFKA = [
    ({"bootstrap_servers": "one"}, ".bootstrap_servers", "host:port"),
    ({"bootstrap_servers": "one:0"}, ".bootstrap_servers", "host:port"),
    ({"topics": None}, "", "nothing says what to read"),
    ({"topic_pattern": "o.*"}, ".topic_pattern", "both say what to read"),
    ({"topics": ["orders*"]}, ".topics[0]", "use `topic_pattern`"),
    ({"topics": ["a", "a"]}, ".topics[1]", "occurs twice"),
    ({"topics": None, "topic_pattern": "("}, ".topic_pattern", "not a valid regular expression"),
    ({"format": "csv"}, ".format", "json or avro or raw"),
    ({"format": "avro"}, ".format", "needs `avro_schema`"),
    ({"avro_schema": "a.avsc"}, ".avro_schema", "has no effect with `format: json`"),
    ({"format": "raw"}, ".schema", "a raw value is one column"),
    ({"format": "raw", "schema": "t STRING", "keep_unknown": True}, ".keep_unknown", "no effect"),
    ({"metadata": {"ofset": "o"}}, ".metadata.ofset", "did you mean `offset`?"),
    ({"metadata": {"key": "x"}}, ".metadata.key", "there is a column `x` already"),
    ({"metadata": {"key": "_split"}}, ".metadata.key", "choose another name"),
    ({"start": "soon"}, ".start", "earliest, latest, an instant"),
    ({"start": {"orders": {"0": -1}}}, ".start.orders", "the offset that is read first"),
    ({"start": {"oders": {"0": 1}}}, ".start.oders", "did you mean `orders`?"),
    ({"max_records": 0}, ".max_records", "a whole number, at least 1"),
    ({"on_data_loss": "ignore"}, ".on_data_loss", "fail or note"),
    ({"splits": ["a"]}, ".splits", "the splits are the partitions"),
    ({"path": "in/*"}, ".path", "unknown key `path`"),
    ({"max_bytes": 5}, ".max_bytes", "unknown key `max_bytes`"),
    ({"live": True}, ".live", "timestamps of Kafka are the machine's already"),
    ({"options": {"sasl.pasword": "x"}}, '.options["sasl.pasword"]', "did you mean `sasl.password`?"),
    ({"options": {"security.protocol": "TLS"}}, '.options["security.protocol"]', "one of PLAINTEXT, SSL"),
    ({"options": {"sasl.username": "me"}}, '.options["sasl.username"]', "a protocol with SASL"),
    ({"options": {"security.protocol": "SASL_SSL"}}, '.options["security.protocol"]', "lacks `sasl.mechanism`"),
    (
        {"options": {"security.protocol": "SSL", "ssl.key.location": "k"}},
        '.options["ssl.key.location"]',
        "go together",
    ),
]


@pytest.mark.parametrize(
    ("source", "keys", "place", "words"),
    [*((TABLE, *case) for case in OF_DELTA), *((TOPICS, *case) for case in OF_KAFKA)],
)
def test_what_is_wrong_with_a_table_or_with_topics_is_said_at_its_key(
    source: dict[str, Any], keys: dict[str, Any], place: str, words: str
) -> None:
    said = message(with_source(source, **keys))
    assert f", sources[0]{place}: " in said
    assert words in said


@pytest.mark.parametrize("name", ["sasl.password", "ssl.key.password"])
@pytest.mark.parametrize("value", ["hunter2", "x${PASSWORD}", "hunter2 ${A}"])
def test_a_password_in_the_file_is_refused_and_not_shown(name: str, value: str) -> None:
    said = message(with_source(options={**LOGIN, name: value}))
    assert "found a secret in the spec file" in said
    assert value not in said


@pytest.mark.parametrize("name", ["client.id", "sasl.username", "ssl.ca.location", "ssl.key.location"])
def test_a_variable_stands_for_nothing_but_a_secret(name: str) -> None:
    certificates = {"ssl.certificate.location": "a.pem", "ssl.key.location": "b.pem"}
    said = message(with_source(options={**LOGIN, **certificates, name: "${KAFKA_ID}"}))
    assert f'options["{name}"]: found "${{KAFKA_ID}}": an environment variable in an option' in said


@pytest.mark.parametrize("address", ["me:hunter2@one:9092", "kafka://me:hunter2@one:9092", "two:1,hunter2@one:9092"])
def test_an_address_with_a_secret_is_refused_and_not_repeated(address: str) -> None:
    said = message(with_source(bootstrap_servers=address))
    assert "found an address with a user or a password in it" in said
    assert "hunter2" not in said


def test_files_in_order_of_position_do_not_go_with_a_table() -> None:
    both = [{**SMALL["sources"][0], "order": "position"}, {**TABLE, "name": "other"}]
    assert "position next to a Delta table" in message(changed("sources", both))
    assert len(parse(changed("sources", [SMALL["sources"][0], {**TABLE, "name": "other"}])).sources) == 2


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


def test_rules_between_parts_are_told_beside_mistakes_elsewhere() -> None:
    text = message(changed("time.over", ["x"], changed("nmae", "y")))
    assert text.startswith("small.yaml has 2 problems:")
    assert "windows[0].group_by: lacks `x`" in text
    assert "unknown key `nmae`" in text


@pytest.mark.parametrize(
    ("at", "value", "places"),
    [
        ("name", 7, (0,)),
        ("nmae", "x", (0,)),
        ("time.late", {"tolerance": "1 bit", "policy": "x"}, (0,)),
        ("time", {"timestamp_by": "t", "deduplicate_by": ["x"]}, (0,)),
        ("sources.0.settle", 5, (0,)),
        ("sources.0.schema", 5, None),
        ("sources.0", "files", None),
        ("sources", ..., None),
        ("windows", "w", ()),
        ("windows.0.sizee", "1 h", (0,)),
        ("windows.0.size", "1 bit", ()),
        (
            "windows",
            [WINDOW | {"hop": 1, "size": 2}, WINDOW | {"name": "v"}, WINDOW | {"name": "u", "from": "w"}],
            (1,),
        ),
    ],
)
def test_what_is_left_of_a_wrong_spec_can_be_judged_unless_columns_are_unknown(
    at: str, value: object, places: tuple[int, ...] | None
) -> None:
    rest = readable_rest(yaml.safe_dump(changed(at, value)))
    assert (rest and rest[1]) == places


def test_a_key_that_yaml_reads_as_a_boolean_is_refused() -> None:
    text = yaml.safe_dump(SMALL).replace("n: count(*)", "on: count(*)")
    assert "windows[0].aggregates: found the key `on` in line" in parse_message(text)
    assert "put the key in quotes" in parse_message(text)


def written(at: str, text: str) -> str:
    """Return the text of the small spec with a value written as it is."""
    return yaml.safe_dump(changed(at, "WRITTEN")).replace("WRITTEN", text)


@pytest.mark.parametrize(
    ("at", "text", "told"),
    [
        ("name", "no", "name: found `no`, which YAML reads as false"),
        ("windows.0.size", "1:30", "found '1:30', which is not a duration"),
        ("windows.0.size", "1:30", "To do: write `1 hour 30 minutes` or `1 minute 30 seconds`"),
        ("windows.0.size", "0:01:00", "To do: write `1 minute`"),
        ("windows.0.offset", "0:00", "found '0:00', which is not a duration"),
        ("windows.0.size", "010", "found the bare number 010, which has no unit"),
        ("windows.0.size", "1_000", "found '1_000', which is not a duration"),
        ("windows.0.size", "off", "found 'off', which is not a duration"),
        ("sources.0.settle", "12:30", "To do: write `12 hours 30 minutes` or `12 minutes 30 seconds`"),
        ("sources.0.settle", "-1:30", "found '-1:30', which is negative"),
        ("sources.0.splits", "[1, 01]", "found `01`, which YAML reads as 1"),
        ("sources.0.splits", "[010]", "found `010`, which YAML reads as 8"),
        ("sources.0.splits", "[12:30]", "found `12:30`, which YAML reads as 750"),
        ("sources.0.splits", "[0x10]", "found `0x10`, which YAML reads as 16"),
        ("sources.0.splits", "[1.50]", "found `1.50`, which YAML reads as 1.5"),
        ("sources.0.splits", "[.5]", "found `.5`, which YAML reads as 0.5"),
        ("sources.0.splits", "[1.5e+3]", "found `1.5e+3`, which YAML reads as 1500.0"),
        ("sources.0.splits", "[Yes]", "found `Yes`, which YAML reads as true"),
        ("sources.0.splits", "[~]", "found `~`, which YAML reads as nothing"),
        ("sources.0.rename", "{x: no}", "sources[0].rename.x: found `no`, which YAML reads as false"),
        ("sources.0.rename", "{010: x}", "found the key `010` in line"),
        ("sources.0.options.sep", "010", "found `010`, which YAML reads as 8"),
        ("sources.0.options.header", "010", "found `010`, which YAML reads as 8"),
        ("sources.0.max_files", "010", "found `010`, which YAML reads as 8"),
        ("sources.0.max_files", "1:30", "found `1:30`, which YAML reads as 90"),
        ("sources.0.max_bytes", "010", "found `010`, which YAML reads as 8"),
        ("sources.0.keep_unknown", "010", "found `010`, which YAML reads as 8"),
        ("time.unit", "on", "found `on`, which YAML reads as true"),
        ("time.timestamp_by", "1_700_000_000", "found the bare number 1_700_000_000"),
        ("time.start_at", "1:30", "found `1:30`, which YAML reads as 90"),
        ("schedule", "12:30", "found `12:30`, which YAML reads as 750"),
        ("tags", "{team: no}", "tags.team: found `no`, which YAML reads as false"),
        ("windows.0.where", "on", "found `on`, which YAML reads as true"),
        ("windows.0.where", "~", "found `~`, which YAML reads as nothing"),
        ("time.over", '"f(x, y)"', 'To do: write `["f(x, y)"]` for a list with one entry'),
    ],
)
def test_what_yaml_reads_as_something_else_is_shown_as_it_is_written(at: str, text: str, told: str) -> None:
    assert told in parse_message(written(at, text))
    if not at.startswith("sources.0.splits"):
        key = ".".join(f"[{step}]" if step.isdecimal() else step for step in at.split(".")).replace(".[", "[")
        assert told in refused_override(f"{key}={text}")


def refused_override(override: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse_spec(yaml.safe_dump(SMALL), file="small.yaml", overrides=[override])
    return str(caught.value)


@pytest.mark.parametrize(
    ("at", "text", "value"),
    [
        ("sources.0.keep_unknown", "yes", True),
        ("sources.0.options", "{header: On}", {"header": True}),
        ("sources.0.max_files", "1_000", 1000),
        ("sources.0.max_files", "+7", 7),
        ("sources.0.max_bytes", "0x10", 16),
    ],
)
def test_flags_and_numbers_that_can_be_read_in_one_way_only_are_taken(at: str, text: str, value: object) -> None:
    read = parse_spec(written(at, text), file="small.yaml")
    assert getattr(read.sources[0], at.rpartition(".")[2]) == value


NO_TIME = yaml.safe_dump(changed("time", ...))


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
        (
            f"{NO_TIME}time:\n  unit: second\n  unit: second\n",
            "time.unit: the key `unit` occurs twice, in lines 15 and 16",
        ),
        (f"{yaml.safe_dump(SMALL)}outputs:\n", "small.yaml, line 16, outputs: there is no value here"),
    ],
)
def test_yaml_that_is_no_mapping_of_keys_to_values_is_refused_with_the_line(text: str, fragment: str) -> None:
    assert fragment in parse_message(text)


def test_merge_keys_cannot_grow_without_bound() -> None:
    keys = ", ".join(f"k{number}: {number}" for number in range(10))
    merging = [f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in range(1, 10)]
    text = parse_message("\n".join([f"a0: &a0 {{{keys}}}", *merging]))
    assert text.startswith("small.yaml, line 5: the merge keys `<<` make a mapping of 100,000 keys")
    assert "Expected: at most 10,000" in text


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
        (
            "ts INT, id.orig_h STRING",
            {},
            "DDL allows such names only in backquotes",
            "`rename: {id.orig_h: id_orig_h}`",
        ),
        (
            "@timestamp STRING",
            {},
            "`@timestamp`: DDL allows such names only in backquotes",
            '`rename: {"@timestamp": timestamp}`',
        ),
        ("a INT, A INT", {}, "columns `a` and `A` have the same name", "rename: {name in the file"),
        ("a INT, b INT", {"b": "A"}, "columns `a` and `A` have the same name", "rename: {name in the file"),
        ("magnitude INT", {"magnitud": "m"}, "`magnitud` is not a column of `schema`", "did you mean `magnitude`?"),
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


@pytest.mark.parametrize("known", [("time", "type", "mag"), ("mag", "type", "time"), {"type", "time"}])
def test_of_two_names_that_are_as_near_the_one_with_the_same_consonants_is_meant(known: Collection[str]) -> None:
    assert did_you_mean("tyme", known) == "did you mean `time`?"
    assert did_you_mean("TYPO", known) == "did you mean `type`?"
    assert did_you_mean("xq", known) == ""


def test_the_name_of_an_option_that_is_no_text_is_unknown() -> None:
    assert "unknown option `1`" in message(changed("sources.0.options", {1: 2}))
