"""The assets whose code version a change of the spec changes: the ones whose rows it would change."""

import pytest

from tidemark.timeops.spec import parse_spec
from tidemark.timeops.spec.versions import code_versions

SPEC = """
name: shop
sources:
  - {name: tills, kind: files, path: in/*.csv, format: csv, schema: "at STRING, k STRING, v INT, w INT", settle: 0 s}
  - {name: web, kind: files, path: web/*.csv, format: csv, schema: "at STRING, k STRING, v INT"}
time: {timestamp_by: at, out_of_orderness: 1 hour, out_of_order: keep}
windows:
  - {name: hourly, kind: tumbling, size: 1 hour, group_by: [k], aggregates: {n: count(*), total: sum(v)}}
  - {name: daily, from: hourly, kind: tumbling, size: 1 day, aggregates: {n: sum(n)}}
  - {name: other, kind: tumbling, size: 1 hour, where: "w > 1", aggregates: {n: count(*)}}
"""
ALL = "log events hourly daily other"
DERIVED = "events hourly daily other"
WINDOWS = "hourly daily other"


def versions(text: str) -> dict[str, str]:
    found = code_versions(parse_spec(text, file="shop.yaml"))
    return {"log": found.log, "events": found.events, **found.windows}


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        ("total: sum(v)", "total: max(v)", "hourly daily"),
        ("{n: sum(n)}", "{n: max(n)}", "daily"),
        ("w > 1", "w > 2", "other"),
        ("n: count(*), total: sum(v)}", "n: count(*), total: sum(v)}, top: {n: 1, by: at}", "hourly daily"),
        ("size: 1 day", "size: 2 days", "daily"),
        ("{n: sum(n)}", "{n: sum(n)}, having: n > 1", "daily"),
        ("group_by: [k]", "group_by: [k AS j]", "hourly daily"),
        ("out_of_orderness: 1 hour", "out_of_orderness: 2 hours", DERIVED),
        ("out_of_order: keep", "out_of_order: keep, late: {tolerance: 1 day, policy: drop}", DERIVED),
        ("timestamp_by: at", "timestamp_by: at || 'Z'", DERIVED),
        ("time: {", "time: {time_zone: Europe/Berlin, ", ALL),
        ("time: {", "time: {start_at: 2026-01-01, ", ALL),
        ("settle: 0 s}", "settle: 0 s, split: k}", ALL),
        ("settle: 0 s}", "settle: 0 s, out_of_orderness: 3 hours}", DERIVED),
        ("time: {", "partitions: {time_zone: Europe/Berlin}\ntime: {", WINDOWS),
        ("v INT, w INT", "v INT, w BIGINT", "log events other"),
        ("v INT, w INT", "v INT, w INT, x INT", "log events"),
        ("path: in/*.csv", "path: new/*.csv", "log"),
        ("settle: 0 s}", "settle: 0 s, arrival_time: at}", "log"),
        ("name: web,", "name: net, was: web,", ""),
        ("name: hourly", "was: hour, name: hourly", ""),
        ("settle: 0 s}", "settle: 5 s, max_files: 3, upstream: [raw/tills]}", ""),
        ("n: count(*), total: sum(v)", 'total: "sum( v )", n: "count(*) -- all"', ""),
        ("1 hour, group_by", "60 minutes, change_feed: true, group_by", ""),
        ('"at STRING, k STRING, v INT"', '"at STRING,  k string, v INTEGER"', ""),
        ("name: shop", "name: shop\nowners: [ann@example.com]\ntags: {a: b}\ncatalog: {schema: s}", ""),
        ("name: shop", 'name: shop\nschedule: "@daily"\nalerts: {far_ahead: 3 days}', ""),
        ("name: shop", "name: shop\npartitions: {start: 2026-01-01}\n# a comment", ""),
    ],
)
def test_a_change_gives_another_version_to_the_assets_whose_rows_it_would_change(
    before: str, now: str, changed: str
) -> None:
    assert SPEC.count(before) == 1 or before == "name: shop"
    one, other = versions(SPEC), versions(SPEC.replace(before, now, 1))
    assert {name for name in one if one[name] != other.get(name)} == {*changed.split()}


def test_the_order_of_sources_and_windows_means_nothing() -> None:
    lines = SPEC.splitlines()
    lines[3], lines[4], lines[7], lines[9] = lines[4], lines[3], lines[9], lines[7]
    assert versions("\n".join(lines)) == versions(SPEC)


def test_windows_that_say_how_silence_closes_them_have_a_part_in_the_versions_of_all() -> None:
    silent = SPEC.replace("out_of_order: keep", "idle: {timeout: 1 minute, advance: window_close}")
    one, other = versions(silent), versions(silent.replace("w > 1", "w > 2"))
    assert {name for name in one if one[name] != other[name]} == {*DERIVED.split()}


def test_the_rows_of_first_events_have_all_columns_and_their_order_in_one_spelling() -> None:
    first = SPEC.replace('where: "w > 1", aggregates: {n: count(*)}', "top: {n: 2, by: w}")
    one = versions(first)
    for before, now, changed in [
        ("v INT, w INT", "v INT, w INT, x INT", "log events other"),
        ("{n: 2, by: w}", "{n: 3, by: w}", "other"),
        ("{n: 2, by: w}", "{n: 2, by: w DESC}", "other"),
        ("{n: 2, by: w}", "{ties: arrival, by: ' w -- ascending', n: 2}", ""),
    ]:
        other = versions(first.replace(before, now, 1))
        assert {name for name in one if one[name] != other[name]} == {*changed.split()}, now


def test_a_new_name_of_a_source_changes_the_windows_that_go_by_it() -> None:
    by_source = SPEC.replace("group_by: [k]", "group_by: [_source AS shop]")
    one, other = versions(by_source), versions(by_source.replace("name: web,", "name: net, was: web,"))
    assert {name for name in one if one[name] != other[name]} == {"hourly", "daily"}
