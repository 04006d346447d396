"""Meaning of a change of a spec for tables that are there: key by key, without any table."""

import json
from textwrap import dedent

import pytest

from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import parse_spec
from tidemark.timeops.spec.changes import Change, Meaning, changes_between, names_of_sources

SPEC = """
name: shop
sources:
  - name: tills
    kind: files
    path: "in/*.csv"
    format: csv
    options: {header: true}
    schema: "at STRING, k STRING, n INT, day DATE"
time: {timestamp_by: at, deduplicate_by: [k], within: 1 hour}
windows:
  - {name: w, kind: tumbling, size: 1 hour, group_by: [k], aggregates: {c: count(*)}}
  - {name: over_w, kind: tumbling, from: w, size: 1 day, aggregates: {c: sum(c)}}
"""
SECOND = '  - {name: web, kind: files, path: "web/*.csv", format: csv, schema: "at STRING, k STRING"}\n'
QUIET = SPEC.replace("{timestamp_by: at,", "{timestamp_by: at, idle: {timeout: 1 minute, advance: window_close},")
NAMED = (("name: w,", "name: v, was: w,"), ("from: w", "from: v"))
RENAMED = ("name: tills", "name: counters\n    was: tills")
BOTH = SPEC.replace("time:", f"{SECOND}time:")
HERE, PAST, REFUSED = Meaning.FROM_HERE_ON, Meaning.NEEDS_THE_PAST, Meaning.REFUSED


def canonical(text: str) -> dict[str, object]:
    read: dict[str, object] = json.loads(parse_spec(text, file="shop.yaml").canonical_json())
    return read


def changes(*replacements: tuple[str, str], before: str = SPEC) -> list[Change]:
    after = before
    for old, new in replacements:
        assert old in after
        after = after.replace(old, new)
    return changes_between(canonical(before), canonical(after))


@pytest.mark.parametrize(
    ("old", "new", "meaning", "sentence", "effect"),
    [
        ("n INT", "n INT, who STRING", HERE, "`who` STRING new", "null in the records before"),
        (", n INT", "", HERE, "`n` gone", "it stays in the tables, null in the records from here on"),
        ("n INT", "n BIGINT", HERE, "`n` was INT, is BIGINT", "the rows before get the wider type"),
        ("day DATE", "day TIMESTAMP", HERE, "`day` was DATE, is TIMESTAMP", "the rows before get the wider type"),
        ("n INT", "n STRING", PAST, "`n` was INT, is STRING", "a rebuild names the first that does not fit"),
        ("k STRING", "k DECIMAL(9,2)", PAST, "`k` was STRING, is DECIMAL(9,2)", "the values of the log are cast"),
        ("day DATE", "day STRING", REFUSED, "`day` was DATE, is STRING", "choose another name for the new column"),
        ("n INT", "n DATE", REFUSED, "`n` was INT, is DATE", "choose another name for the new column"),
        ("n INT", "N INT", REFUSED, "`N` INT new", "the tables have it as `n`"),
    ],
)
def test_columns_are_told_one_by_one(old: str, new: str, meaning: Meaning, sentence: str, effect: str) -> None:
    (found,) = changes((old, new))
    assert (found.path, found.meaning, found.sentence) == ("sources[tills].schema", meaning, sentence)
    assert effect in found.effect


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("n INT, day DATE", "n  INTEGER COMMENT 'pieces', day DATE"),
        ("k STRING, n INT", "n INT, k STRING"),
        ("within: 1 hour", "within: 60 minutes"),
    ],
)
def test_another_spelling_or_order_is_no_change(old: str, new: str) -> None:
    assert changes((old, new)) == []


def test_a_column_that_another_source_has_is_told_of_its_records_alone() -> None:
    (gone,) = changes(("k STRING, n INT", "n INT"), before=BOTH)
    assert gone.effect == "it stays in the tables, null in the records of `tills` from here on"
    (more,) = changes(('schema: "at STRING, k STRING"', 'schema: "at STRING, k STRING, n INT"'), before=BOTH)
    assert more.effect == "null in the records of `web` before"


def test_days_become_instants_only_where_all_sources_begin_them_alike() -> None:
    both = SPEC.replace("time:", f"{SECOND[:-2]}, time_zone: Asia/Tokyo}}\ntime:")
    (found,) = changes(("day DATE", "day TIMESTAMP"), before=both)
    assert (found.meaning, found.judges) == (REFUSED, False)


@pytest.mark.parametrize(
    ("old", "new", "path", "meaning", "windows", "judges"),
    [
        ("at, dedup", "at, out_of_orderness: 1 s, dedup", "time.out_of_orderness", HERE, (), True),
        ("at, dedup", "at, unit: second, dedup", "time.unit", HERE, (), True),
        ("at, dedup", "at, emit: {every: 1 s}, dedup", "time.emit", HERE, (), True),
        ("within: 1 hour", "within: 2 hours", "time.within", HERE, (), True),
        ("deduplicate_by: [k]", "deduplicate_by: [at]", "time.deduplicate_by", PAST, (), True),
        (", deduplicate_by: [k], within: 1 hour", "", "time.deduplicate_by", HERE, (), True),
        ("at, dedup", 'at, start_at: "2026-01-01T00:00:00Z", dedup', "time.start_at", PAST, (), True),
        ("at, dedup", "at, over: [k], dedup", "time.over", PAST, (), True),
        ("in/*.csv", "there/*.csv", "sources[tills].path", HERE, (), False),
        ("name: tills", "name: counters", "sources[counters]", REFUSED, (), True),
        ("name: tills", "name: counters", "sources[tills]", REFUSED, (), True),
        ("time:", f"{SECOND}time:", "sources[web]", HERE, (), True),
        ("format: csv", "format: csv\n    split: k", "sources[tills].split", REFUSED, (), True),
        ("size: 1 hour", "size: 2 hours", "windows[w].size", PAST, ("w", "over_w"), False),
        ("c: count(*)", "c: count(n)", "windows[w].aggregates.c", PAST, ("w", "over_w"), False),
        ("c: sum(c)", "c: max(c)", "windows[over_w].aggregates.c", HERE, (), False),
        ("name: over_w", "change_feed: true, name: over_w", "windows[over_w].change_feed", HERE, (), False),
    ],
)  # fmt: skip
def test_each_key_has_a_meaning(
    old: str, new: str, path: str, meaning: Meaning, windows: tuple[str, ...], judges: bool
) -> None:
    replaced = [(old, new)] if "over: [k]" not in new else [(old, new), ("sum(c)}", "sum(c)}, group_by: [k]")]
    (found,) = [one for one in changes(*replaced) if one.path == path]
    assert (found.meaning, found.windows, found.judges) == (meaning, windows, judges)


def test_a_window_that_is_new_needs_its_past_and_so_do_those_over_it() -> None:
    text = SPEC.replace("name: w,", "name: other,").replace("from: w", "from: other")
    told_of = {one.path: (one.meaning, one.windows) for one in changes_between(canonical(SPEC), canonical(text))}
    assert told_of["windows[other]"] == (PAST, ("other", "over_w"))
    assert told_of["windows[w]"][0] == HERE


def test_what_the_clock_publishes_in_periods_needs_the_past() -> None:
    assert [one.meaning for one in changes(("at, idle", "at, emit: {every: 1 s}, idle"), before=QUIET)] == [PAST]
    assert [one.meaning for one in changes(("at, idle", "at, unit: second, idle"), before=QUIET)] == [PAST]
    assert [one.meaning for one in changes(("timeout: 1 minute", "timeout: 2 minutes"), before=QUIET)] == [HERE]


def test_results_before_what_was_read_are_not_to_be_had() -> None:
    late = SPEC.replace("{timestamp_by: at,", '{timestamp_by: at, start_at: "2026-01-02T00:00:00Z",')
    assert [one.meaning for one in changes(("01-02", "01-03"), before=late)] == [PAST]
    assert [one.meaning for one in changes(("01-02", "01-01"), before=late)] == [REFUSED]


def test_splits_may_change_where_those_before_can_become_idle() -> None:
    idle = BOTH.replace("timestamp_by: at,", "timestamp_by: at, idle: {timeout: 1 minute, advance: exclude_split},")
    (found,) = changes(("options: {header", "split: k\n    options: {header"), before=idle)
    assert (found.path, found.meaning) == ("sources[tills].split", HERE)


def test_windows_say_how_records_are_judged_only_where_silence_closes_them() -> None:
    assert [one.judges for one in changes(("size: 1 hour", "size: 2 hours"), before=QUIET)] == [True]
    assert [one.judges for one in changes(("c: sum(c)", "c: max(c)"), before=QUIET)] == [False]
    assert [one.judges for one in changes(*NAMED, before=QUIET)] == [False], "nor do names"


def test_a_change_names_its_place_in_the_file() -> None:
    spec = parse_spec(SPEC, file="shop.yaml")
    (found,) = changes(("size: 1 hour", "size: 2 hours"))
    assert found.keys(spec) == ("windows", 0, "size")
    (gone,) = changes(("  - {name: over_w, kind: tumbling, from: w, size: 1 day, aggregates: {c: sum(c)}}\n", ""))
    assert gone.keys(parse_spec(dedent(SPEC).rsplit("  - ", 1)[0], file="shop.yaml")) == ("windows",)


def test_a_window_with_another_name_goes_on_and_what_else_it_changes_is_told_of_the_new_one() -> None:
    [found] = changes(*NAMED)
    assert (found.path, found.meaning, found.sentence) == ("windows[v].was", HERE, "`w` is `v` now")
    assert (found.asks_for_the_past, found.needs_decision) == (False, False)
    told = {one.path: one.meaning for one in changes(*NAMED, ("size: 1 hour", "size: 2 hours"))}
    assert told == {"windows[v].was": HERE, "windows[v].size": PAST}


@pytest.mark.parametrize(
    ("before", "replacements"),
    [
        (SPEC, (("name: w,", "name: w, was: long_ago,"),)),
        (SPEC.replace("name: w,", "name: w, was: long_ago,"), ((", was: long_ago,", ","),)),
    ],
)
def test_a_former_name_that_no_table_has_changes_nothing(
    before: str, replacements: tuple[tuple[str, str], ...]
) -> None:
    [found] = changes(*replacements, before=before)
    assert (found.meaning, found.judges) == (Meaning.NOTHING, False)


def test_a_name_that_one_window_had_may_become_that_of_another() -> None:
    before = SPEC.replace("name: over_w,", "name: over_w, was: free,")
    named = (("name: w,", "name: free, was: w,"), ("from: w", "from: free"), ("over_w, was: free,", "over_w,"))
    assert [(one.path, one.meaning) for one in changes(*named, before=before)] == [("windows[free].was", HERE)]


@pytest.mark.parametrize("former", ["over_w", "W", "w"])
def test_a_former_name_is_of_no_window_that_is_there(former: str) -> None:
    with pytest.raises(SpecError, match=f"`{former}` is the name of a window of this spec"):
        parse_spec(SPEC.replace("name: w,", f"name: w, was: {former},"), file="shop.yaml")


def test_a_former_name_leads_to_one_window() -> None:
    both = SPEC.replace("name: w,", "name: w, was: x,").replace("name: over_w,", "name: over_w, was: x,")
    with pytest.raises(SpecError, match="two windows were `x`"):
        parse_spec(both, file="shop.yaml")


def test_a_source_with_another_name_goes_on_and_what_else_it_changes_is_told_of_the_new_one() -> None:
    [found] = changes(RENAMED)
    assert (found.path, found.meaning, found.sentence) == ("sources[counters].was", HERE, "`tills` is `counters` now")
    assert (found.asks_for_the_past, found.needs_decision, found.judges) == (False, False, False)
    assert found.keys(parse_spec(SPEC.replace(*RENAMED), file="shop.yaml")) == ("sources", 0, "was")
    told = {one.path: one.meaning for one in changes(RENAMED, ("n INT", "n BIGINT"), ("in/*.csv", "there/*.csv"))}
    assert told == {
        "sources[counters].was": HERE,
        "sources[counters].schema": HERE,
        "sources[counters].path": HERE,
    }


def test_a_source_under_another_name_without_its_former_one_is_told_to_say_it() -> None:
    [new, _] = changes(("name: tills", "name: counters"))
    assert (new.meaning, new.effect[-44:]) == (REFUSED, "read: write `was: tills` beside the new name")
    [typo, _] = changes(("name: tills", "name: counters\n    was: till"))
    assert (typo.path, typo.meaning) == ("sources[counters]", REFUSED)


@pytest.mark.parametrize("now", ["name: tills\n    was: long_ago", "name: tills"])
def test_a_former_name_of_a_source_that_nothing_has_changes_nothing(now: str) -> None:
    before = SPEC.replace("name: tills", "name: tills\n    was: before")
    [found] = changes(("name: tills\n    was: before", now), before=before)
    assert (found.meaning, found.judges) == (Meaning.NOTHING, False)


@pytest.mark.parametrize(
    ("old", "new", "windows"),
    [
        ("group_by: [k]", "group_by: [k, _source AS of]", ("w", "over_w")),
        ("c: count(*)", "c: count(DISTINCT _source)", ("w", "over_w")),
        ("name: w,", "name: w, where: \"_source = 'tills'\",", ("w", "over_w")),
        ("deduplicate_by: [k]", "deduplicate_by: [k, _source]", ()),
    ],
)
def test_what_goes_by_the_name_of_a_source_needs_its_past(old: str, new: str, windows: tuple[str, ...]) -> None:
    assert old in SPEC
    [found] = changes(RENAMED, before=SPEC.replace(old, new))
    assert (found.meaning, found.windows) == (PAST, windows)


@pytest.mark.parametrize("was", ["tills", "TILLS"])
def test_two_sources_cannot_swap_their_names(was: str) -> None:
    both = BOTH.replace("name: web", f"name: web, was: {was}")
    with pytest.raises(SpecError, match=f"`{was}` is the name of a source of this spec"):
        parse_spec(both, file="shop.yaml")


def test_a_former_name_of_sources_leads_to_one_source() -> None:
    both = BOTH.replace("name: tills", "name: tills\n    was: x")
    with pytest.raises(SpecError, match="two sources were `x`"):
        parse_spec(both.replace("name: web", "name: web, was: x"), file="shop.yaml")


def test_a_name_that_another_source_had_is_refused_and_the_own_one_is_not() -> None:
    before = canonical(BOTH.replace(*RENAMED))
    taken = BOTH.replace("name: tills", "name: counters").replace("name: web", "name: tills, was: web")
    told = {one.path: one for one in changes_between(before, canonical(taken), {"tills": "counters"})}
    assert told["sources[tills].was"].meaning is REFUSED
    assert "`counters` was called `tills` before" in told["sources[tills].was"].effect
    assert "write `was: counters`" in changes_between(before, canonical(BOTH), {"tills": "counters"})[0].effect
    back = BOTH.replace("name: tills", "name: tills\n    was: counters")
    [found] = changes_between(before, canonical(back), {"tills": "counters"})
    assert (found.path, found.meaning) == ("sources[tills].was", HERE)


def test_names_of_sources_are_followed_from_spec_to_spec() -> None:
    def spec(*sources: tuple[str, str]) -> dict[str, object]:
        return {"sources": [{"name": name} | ({"was": was} if was else {}) for name, was in sources]}

    told = [spec(("a", ""), ("x", ""))]
    assert names_of_sources(told) == {}
    told.append(spec(("b", "a"), ("x", "")))
    assert names_of_sources(told) == {"a": "b"}
    told += [spec(("b", ""), ("y", "x")), spec(("c", "b"), ("y", "x"))]
    assert names_of_sources(told) == {"a": "c", "b": "c", "x": "y"}
    told.append(spec(("a", "c"), ("y", "x")))
    assert names_of_sources(told) == {"b": "a", "c": "a", "x": "y"}
    told.append(spec(("d", "a"), ("y", "")))
    assert names_of_sources(told) == {"a": "d", "b": "d", "c": "d", "x": "y"}


KAFKA = SPEC.replace(
    'kind: files\n    path: "in/*.csv"\n    format: csv\n    options: {header: true}',
    "kind: kafka\n    bootstrap_servers: here:9092\n    topics: [a, b]\n    format: json",
)


@pytest.mark.parametrize(
    ("before", "old", "new", "said"),
    [
        (SPEC, "in/*", "there/*", "files that were read are known where they were moved to, by name and bytes"),
        (KAFKA, "here:9092", "there:9092", "those of another cluster are other topics, see `on_data_loss`"),
        (KAFKA, "[a, b]", "[a, b, c]", "topics that were not read before are read from their beginning"),
        (KAFKA, "[a, b]", "[a, c]", "the partitions of `b` get no more records, and hold the watermark for ever"),
    ],
)
def test_what_a_moved_source_means_is_told_by_its_kind(before: str, old: str, new: str, said: str) -> None:
    [found] = changes((old, new), before=before)
    assert (found.meaning, said in found.effect) == (HERE, True), found.effect
    assert ("partitions of" in found.effect) == ("partitions of" in said)
