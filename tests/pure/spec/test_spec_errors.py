"""Specs that are refused, and what is said of each: whole messages are in __snapshots__."""

import json
import re
from collections.abc import Collection
from typing import Any

import pytest
import yaml
from syrupy.assertion import SnapshotAssertion

from tests.pure.spec.specs import (
    EARTHQUAKES,
    LIVE,
    SMALL,
    TABLE,
    WINDOW,
    aligned,
    changed,
    cumulative,
    hopping,
    message,
    over_w,
    parse,
    parse_message,
    schema_accepts,
    session,
    two_aligned,
    two_sources,
    with_set,
)
from tidemark.timeops.errors import SpecError
from tidemark.timeops.problems import did_you_mean

Bad = tuple[str, object] | tuple[str, object, dict[str, Any]]
"""A key by its path, such as `sources.0.kind`; a wrong value, or `...` for none; the spec, where it is not SMALL."""
NO_WINDOWS, ALIGNED = changed("windows", ...), changed("sources", two_aligned())

BAD_FOR_SCHEMA_TOO: list[Bad] = [
    ("sources.0.max_files", 2**63),
    ("windows.0.aggregates", {"__n": "count(*)"}),
    ("name", ...),
    ("name", "Small"),
    ("name", 7),
    ("nmae", "x"),
    ("tyme", {"timestamp_by": "t"}),
    ("sources", ...),
    ("sources", []),
    ("sources", {}),
    ("sources.0", "files"),
    ("sources.0.name", "a-b"),
    ("sources.0.kind", "kinesis"),
    ("sources.0.kind", "flies"),
    ("sources.0.path", ""),
    ("sources.0.path", ["a"]),
    ("sources.0.format", "avro"),
    ("sources.0.format", "jsnol"),
    ("sources.0.schema", ...),
    ("sources.0.columns", "t STRING"),
    ("sources.0.shcema", "t STRING"),
    ("sources.0.options", []),
    ("sources.0.options.header", "yes"),
    ("sources.0.options.sep", True),
    ("sources.0.options.haeder", True),
    ("sources.0.options.mode", "FAILFAST"),
    ("sources.0.options.inferSchema", True),
    ("sources.0.options.enforceSchema", True),
    ("sources.0.options.columnNameOfCorruptRecord", "c"),
    ("sources.0.options.allowComments", True),
    ("sources.0.options", {"sep": ";", "delimiter": ","}),
    ("sources.0.rename", {"x": 3}),
    ("sources.0.keep_unknown", "no"),
    ("sources.0.arrival_time", 5),
    ("sources.0.order", "time"),
    ("sources.0.settle", 5),
    ("sources.0.max_files", 0),
    ("sources.0.max_files", "7"),
    ("sources.0.max_files", True),
    ("sources.0.max_bytes", "7 apples"),
    ("sources.0.max_bytes", 0),
    ("sources.0.split", ""),
    ("sources.0.splits", ["a"]),
    ("sources.0.splits", "a"),
    ("sources.0.alignment", "g"),
    ("sources.0.alignment", {"group": "g"}),
    ("sources.0.alignment", {"group": "a-b", "max_drift": "1 s"}),
    ("sources.0.alignment", {"group": "g", "max_drift": 60}),
    ("sources.0.alignment", aligned(update_interval="0 s")),
    ("sources.0.alignment", aligned(drift="1 s")),
    ("sources.0.unaligned", "allow"),
    ("sources", two_aligned(arrival_time="t", alignment=aligned(update_interval="1 s"))),
    ("sources.0.timestamp_by", 1700000000),
    ("sources.0.out_of_orderness", 60),
    ("sources.0.idle", {"timeout": "0 s"}),
    ("sources.0.idle", {}),
    ("sources.0.idle", {"timeout": "1 s", "timout": "1 s"}),
    ("sources.0.live", "yes"),
    ("alerts", {"dead_letters": "1 %"}),
    ("alerts.dead_letter_rate", "1 %"),
    ("alerts.dead_letter_rate", {"warn": 1}),
    ("alerts.freshness", {"warn": "0 s"}),
    ("schedule", "every minute"),
    ("schedule", "* * * * * *"),
    ("owners", ["ann"]),
    ("owners", ["team:"]),
    ("tags", {"dagster/kind": "x"}),
    ("tags", {"two words": "x"}),
    ("tags", {"a": "two words"}),
    ("tags", {"a": 1}),
    ("schedule", 5),
    ("schedule", {"on_new_input": 15}),
    ("schedule", {"on_new_input": "15 s", "every": "1 s"}),
    ("schedule", {}),
    ("live", True),
    ("time", "t"),
    ("time.timestamp_by", 1700000000),
    ("time.timestamp_by", "1700000000"),
    ("time.unit", "minute"),
    ("time.over", "x"),
    ("time.out_of_orderness", 60),
    ("time.out_of_orderness", "1 month"),
    ("time.out_of_orderness", "-1 s"),
    ("time.out_of_order", "ignore"),
    ("time.late", "5 minutes"),
    ("time.late", {"tolerance": "5 s"}),
    ("time.early", {"tolerance": "5 s", "policy": "keep"}),
    ("time.early", {"tolerance": "5 s", "policy": "drop", "x": 1}),
    ("time.emit", {"every": "0 ms"}),
    ("time.emit", {"every": "1 s", "evry": "1 s"}),
    ("time.emit", {}),
    ("time.emit", "every"),
    ("time.idle", {"advance": "arrival_clok"}),
    ("time.idle", {"advance": "window_close"}),
    ("time.idle", {"advance": "window_close", "timeout": "0 s"}),
    ("time.idle", {"advance": "arrival_clock"}),
    ("time.idle", {}),
    ("time.start_at", "yesterday"),
    ("time.start_at", 2026),
    ("time.deduplicate_by", ["x"]),
    ("time.deduplicate_by", "x"),
    ("time.within", "1 s"),
    ("time", {"deduplicate_by": [], "within": "1 s"}),
    ("time", {"deduplicate_by": ["x"], "within": "-1 s"}),
    ("time.end_of_input", "close"),
    ("time", {"out_of_order": "drop"}),
    ("time", {"out_of_orderness": "1 s"}),
    ("time", {"late": {"tolerance": "1 s", "policy": "drop"}}),
    ("time", {"early": {"tolerance": "1 s", "policy": "drop"}}),
    ("outputs.ordered_events", "false"),
    ("outputs.windows", True),
    ("windows.0", "w"),
    ("windows.0.name", "_w"),
    ("windows.0", session()),
    ("windows.0", session(gap="0 s")),
    ("windows.0", session(gap="1 s", size="1 h")),
    ("windows.0", session(gap="1 s", hop="1 h")),
    ("windows.0", session(gap="1 s", offset="0 s")),
    ("windows.0", session(gap="1 s", closed="left")),
    ("windows.0", session(gap="1 s", max_duration="0 s")),
    ("windows.0", session(gap="1 s", allowed_lateness="1 s")),
    ("windows.0.kind", "tumblng"),
    ("windows.0.size", 60),
    ("windows.0.size", "0 s"),
    ("windows.0.size", ...),
    ("windows.0.hop", "5 min"),
    ("windows.0", hopping()),
    ("windows.0", hopping(hop="0 s")),
    ("windows.0.closed", "both"),
    ("windows.0.gap", "1 s"),
    ("windows.0.max_duration", "1 s"),
    ("windows.0.step", "1 s"),
    ("windows.0", cumulative()),
    ("windows.0", hopping(hop="1 h", time_zone="UTC")),
    ("windows.0", hopping(hop="1 h", size="1 month")),
    ("windows.0", {**WINDOW, "kind": "sliding", "closed": "right"}),
    ("windows.0", {**WINDOW, "kind": "snapshot"}),
    ("windows.0", {**WINDOW, "size": "1 month", "offset": "0 s"}),
    ("windows.0.size", "2 months"),
    ("windows.0.size", "P1Y"),
    ("windows.0.empty", "yes"),
    ("windows.0.empty_max", 5),
    ("windows.0", {**WINDOW, "empty": True, "empty_max": 0}),
    ("windows.0", {**session(gap="1 s"), "empty": True}),
    ("windows.0", {**WINDOW, "kind": "sliding", "empty": True}),
    ("windows.0.history", True),
    ("windows.0.revise_every", "1 s"),
    ("windows.1", over_w(emit={"early": "1 s"})),
    ("windows.1", over_w(kind="sliding", emit={"early": "1 s"})),
    ("windows.1", over_w(kind="session", size=None, gap="1 s", emit={"early": "1 s"})),
    ("windows.1", over_w(kind="sliding", empty=True)),
    ("windows.1", over_w(empty=True)),
    ("windows.0.emit", "on_tim"),
    ("windows.0.emit", {"early": "0 s"}),
    ("windows.0.emit", {"early": "1 s", "late": "1 s"}),
    ("windows.0.emit", "on_time"),
    ("windows.0", {**session(gap="1 s", max_duration="1 h"), "emit": {"early": "1 s"}}),
    ("windows.0.allowed_lateness", "1 s"),
    ("windows.0.aggregates", {}),
    ("windows.0.aggregates", ["count(*)"]),
    ("windows.0.aggregates.a b", "sum(x)"),
    ("windows.0.aggregates._watermark", "sum(x)"),
    ("windows.0.aggregates.window_start", "sum(x)"),
    ("windows.0.aggregates.s", 1),
    ("windows.0.group_by", "x"),
    ("partitions.start", 2013),
    ("partitions.start", "2013-01-01", NO_WINDOWS),
    ("outputs.ordered_events", False, NO_WINDOWS),
    ("time.over", ["x"]),
    ("windows.0", session(gap="1 s", max_duration="1 h"), changed("time.out_of_order", "keep")),
    *[
        ("time.idle", {"advance": advance, "timeout": "1 min"}, changed("time.emit", {"every": "1 s"}, ALIGNED))
        for advance in ("exclude_split", "window_close")
    ],
    ("time", ..., ALIGNED),
    ("time.end_of_input", "flush", changed("schedule", "@hourly")),
]

BAD_FOR_PARSER_ONLY: list[Bad] = [
    ("time.start_at", "9999-12-31T23:59:59-23:00"),
    ("sources.0.settle", "3000000 days"),
    ("windows.0", hopping(size="1 day", hop="1 ms")),
    ("windows.0", cumulative(size="3652059 days", step="1 us")),
    ("windows.0.aggregates", {"_late_events": "count(*)"}),
    ("windows.0.where", "explode(x) = 1"),
    ("windows.0.where", "window(t, '1 h').start > t"),
    ("windows.0", cumulative(step="7 min")),
    ("windows.0", cumulative(step="2 h")),
    ("windows.0.time_zone", "UTC"),
    ("windows.0.size", "-1 h"),
    ("windows.0.offset", "-1 h"),
    ("windows.0", {**WINDOW, "size": "1 day", "time_zone": "Europe/Belin"}),
    ("sources", SMALL["sources"] * 2),
    ("sources.0.time_zone", "Europe/Berln"),
    ("sources.0.timestamp_by", "t", changed("time.out_of_orderness", "1 s")),
    ("sources.0.out_of_orderness", "1 s", changed("time.out_of_orderness", "1 s")),
    ("sources.0.idle", {"timeout": "1 s"}),
    ("sources.0.live", True),
    ("sources.0", LIVE),
    ("sources", [LIVE, {**LIVE, "name": "o", "live": False}]),
    ("sources.0.split", "rand()"),
    ("sources.0.splits", ["a", "a"]),
    ("time.idle", {"advance": "exclude_split", "timeout": "1 s"}),
    ("time.idle", {"advance": "exclude_split"}, changed("sources.0.split", "x")),
    ("sources.0.alignment", aligned()),
    ("sources", two_aligned(alignment=aligned(group="h"))[1:]),
    ("sources", two_sources(order="position")),
    ("sources", two_sources(out_of_orderness="1500 us"), changed("time.unit", "millisecond")),
    ("sources.0.arrival_time", "now()"),
    ("time", {"deduplicate_by": ["uuid()"], "within": "1 s"}),
    ("time", {"deduplicate_by": ["x", "X"], "within": "1 s"}),
    ("time", {"deduplicate_by": ["user"], "within": "1 s"}),
    ("sources.0.arrival_time", "_arrival_time"),
    ("sources.0.rename", {"x": "_clock"}),
    ("sources.0.rename", {"x": "a b"}),
    ("sources.0.rename", {"x": "x"}),
    ("sources.0.rename", {"x": "z", "t": "Z"}),
    ("sources.0.rename", {"x": "z", "t": "z"}),
    ("sources.0.missing", "skip"),
    ("sources.0.missing", "null"),
    ("sources.0.missing", None),
    ("sources.0.on_rewrite", "reread"),
    ("time.timestamp_by", "current_timestamp()"),
    ("time.timestamp_by", "user"),
    ("time.timestamp_by", "t AS e"),
    ("time.timestamp_by", "f(t"),
    ("time.time_zone", "Europe/Berln"),
    ("partitions.time_zone", "Europe/Berln"),
    ("time.time_zone", "+02:00"),
    ("time.time_zone", "localtime"),
    ("time", {"time_zone": "Asia/Tokyo"}),
    ("time.unit", "second", changed("time.out_of_orderness", "1500 ms")),
    ("time.over", ["rand()"]),
    ("time.over", ["f(x)"]),
    ("time.over", ["x", "X"]),
    ("windows.0.offset", "1 hour"),
    ("windows.0", hopping(hop="5 s", offset="5 s")),
    ("windows.0.where", "x > rand()"),
    ("windows.0.where", "(SELECT 1) = 1"),
    ("windows.0.having", "first(n) > 1"),
    ("windows.0.having", "user > 1"),
    ("windows.0.group_by", ["upper(t)"]),
    ("windows.0.group_by", ["a.b"]),
    ("windows.0.group_by", ["uuid() AS u"]),
    ("windows.0.group_by", ["`a b`"]),
    ("windows.0.group_by", ["_source"]),
    ("windows.0.group_by", ["x AS __tm_t"]),
    ("windows.0.group_by", ["x AS window_end"]),
    ("windows.0.group_by", ["x", "t AS X"]),
    ("windows.0.group_by", ["x AS N"]),
    ("windows.0.aggregates._Batch_Id", "sum(x)"),
    ("windows.0.aggregates.N", "sum(x)"),
    ("windows.0.aggregates.f", "first(x)"),
    ("windows.0.aggregates.f", "sum(x) OVER (ORDER BY t)"),
    ("windows", [*SMALL["windows"], {**SMALL["windows"][0], "name": "W"}]),
    ("windows", [], changed("outputs.ordered_events", False)),
    ("windows.0.from", "x"),
    ("windows.0.from", "w"),
    ("windows.1", over_w(name="hours", **{"from": "W"})),
    ("windows.1", over_w(aggregates={"m": "max_by(n, struct(n, _arrival_seq))"})),
    ("windows.1", over_w(where="user > 1")),
    ("windows.1", over_w(), changed("windows.0.allowed_lateness", "1 min", changed("time.out_of_order", "keep"))),
    ("windows.1", over_w(), changed("windows.0.empty", True)),
    ("windows.1", over_w(), changed("time.over", ["upper(t)"], changed("windows.0.group_by", ["upper(t) AS big"]))),
    ("partitions.start", "2013-02-30"),
    ("alerts.dead_letter_rate", {"warn": "101 %"}),
    ("alerts.dead_letter_rate", {}),
    ("alerts.freshness", {"warn": "1 h", "error": "1 h"}),
    ("alerts.freshness", {"warn": "30 s"}),
    ("schedule", "61 * * * *"),
    ("schedule", {"on_new_input": "2 s"}),
    ("schedule", {"on_new_input": "5500 ms"}),
]


def named(bad: Bad) -> str:
    """Return the name of a case: the key and its value."""
    path, value, *_ = bad
    return f"{path}: {'none' if value is ... else json.dumps(value)}"


@pytest.mark.parametrize("bad", [*BAD_FOR_SCHEMA_TOO, *BAD_FOR_PARSER_ONLY], ids=named)
def test_a_bad_spec_is_refused_with_file_key_and_reason(bad: Bad, snapshot: SnapshotAssertion) -> None:
    text = message(changed(*bad))
    assert "problems:" not in text, "one mistake is one problem"
    assert text == snapshot


@pytest.mark.parametrize("bad", BAD_FOR_SCHEMA_TOO, ids=named)
def test_the_schema_refuses_what_it_can(bad: Bad) -> None:
    assert not schema_accepts(changed(*bad))


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
