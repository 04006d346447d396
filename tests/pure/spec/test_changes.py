"""A change of a spec: what it means for tables that are there, key by key, and what commands say of it; no Spark."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.pure.batch.batches import START, planned
from tidemark.assets.ingestion.pending_work import look
from tidemark.assets.log.spec_changes import ensure_taken
from tidemark.assets.rebuild.plan import plan_to_spec
from tidemark.pipelines import cli
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.delta.lake import Lake
from tidemark.resources.tables import BATCHES, BATCHES_SCHEMA, FILES, FILES_SCHEMA, LOG_CONTROL, LOG_CONTROL_SCHEMA
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import parse_spec
from tidemark.timeops.spec.changes import (
    Change,
    Meaning,
    changes_between,
    is_wider,
    names_of_sources,
    types_in_tables,
)
from tidemark.timeops.spec.scope import Scope

WIDER = {
    "tinyint": ["bigint"],
    "int": ["bigint", "double", "decimal(12,2)"],
    "bigint": ["decimal(19,0)"],
    "float": ["double"],
    "decimal(10,2)": ["decimal(12,4)"],
    "date": ["timestamp"],
    "array<int>": ["array<bigint>"],
}
NOT_WIDER = {
    "int": ["int", "decimal(10,2)"],
    "bigint": ["int", "double"],
    "decimal(10,2)": ["decimal(11,4)", "bigint"],
    "decimal(5,0)": ["bigint"],
    "timestamp": ["date"],
    "date": ["timestamp_ntz"],
    "string": ["int"],
    "array<int>": ["bigint"],
}


@pytest.mark.parametrize(("before", "now"), [(before, now) for before, others in WIDER.items() for now in others])
def test_a_wider_type_holds_every_value(before: str, now: str) -> None:
    assert is_wider(before, now)
    assert not is_wider(now, before)


@pytest.mark.parametrize(("before", "now"), [(before, now) for before, others in NOT_WIDER.items() for now in others])
def test_another_type_is_no_wider_one(before: str, now: str) -> None:
    assert not is_wider(before, now)


def test_words_of_one_type_are_one_spelling_and_comments_are_no_part_of_it() -> None:
    ddl = "a INTEGER, `b c`: Long COMMENT 'x, y', d DEC(10, 2) NOT NULL, e NUMERIC, f Real, at TIMESTAMP_LTZ"
    assert types_in_tables(ddl, {"a": "A"}) == {
        "A": "int",
        "b c": "bigint",
        "d": "decimal(10,2)",
        "e": "decimal(10,0)",
        "f": "float",
        "at": "timestamp",
    }
    nested = {"s": "struct<Long:int,b:array<bigint>>", "m": "map<string,int>"}
    assert types_in_tables("s STRUCT<Long: Int, b ARRAY<LONG>>, m MAP<STRING, Int>", {}) == nested
    assert types_in_tables("s struct<Long INT, b: array<bigint>>, m Map<string,INTEGER>", {}) == nested


SPEC = """\
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


def edited(*replacements: tuple[str, str], text: str = SPEC) -> str:
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return text


def changes(*replacements: tuple[str, str], before: str = SPEC) -> list[Change]:
    return changes_between(canonical(before), canonical(edited(*replacements, text=before)))


@pytest.mark.parametrize(
    ("old", "new", "meaning", "sentence", "effect"),
    [
        ("n INT", "n INT, who STRING", HERE, "`who` STRING new", "null in the records before"),
        (", n INT", "", HERE, "`n` gone", "it stays in the tables, null in the records from here on"),
        ("n INT", "n BIGINT", HERE, "`n` was INT, is BIGINT", "existing rows get the wider type"),
        ("day DATE", "day TIMESTAMP", HERE, "`day` was DATE, is TIMESTAMP", "existing rows get the wider type"),
        ("n INT", "n STRING", PAST, "`n` was INT, is STRING", "a rebuild names the first that does not fit"),
        ("n INT", "n SMALLINT", PAST, "`n` was INT, is SMALLINT", "the values in the log are cast"),
        ("k STRING", "k DECIMAL(9,2)", PAST, "`k` was STRING, is DECIMAL(9,2)", "the values in the log are cast"),
        ("day DATE", "day STRING", REFUSED, "`day` was DATE, is STRING", "choose another name for the new column"),
        ("n INT", "n DATE", REFUSED, "`n` was INT, is DATE", "choose another name for the new column"),
        ("n INT", "N INT", REFUSED, "`N` INT new", "the tables call it `n`"),
    ],
)
def test_columns_are_told_one_by_one(old: str, new: str, meaning: Meaning, sentence: str, effect: str) -> None:
    (found,) = changes((old, new))
    assert (found.path, found.meaning, found.sentence) == ("sources[tills].schema", meaning, sentence)
    assert effect in found.effect


@pytest.mark.parametrize(
    ("kind", "in_keys", "in_splits"),
    [
        ("BIGINT", HERE, HERE),
        ("DECIMAL(12,0)", HERE, HERE),
        ("DOUBLE", PAST, REFUSED),
        ("DECIMAL(12,2)", PAST, REFUSED),
    ],
)
def test_a_wider_type_whose_values_have_other_texts_makes_other_keys_and_splits(
    kind: str, in_keys: Meaning, in_splits: Meaning
) -> None:
    for before, meaning in (
        (SPEC.replace("deduplicate_by: [k]", "deduplicate_by: [n]"), in_keys),
        (SPEC.replace("    schema:", "    split: n % 4\n    schema:"), in_splits),
    ):
        (found,) = changes(("n INT", f"n {kind}"), before=before)
        assert found.meaning == meaning


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


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("at, dedup", "at, out_of_order: keep, dedup", 'was "drop", is "keep"'),
        ("at, dedup", "at, idle: {advance: window_close, timeout: 1 s}, dedup", "was not set, is {"),
        ("size: 1 hour, group", "size: 1 hour, offset: 1 min, group", 'was "0 seconds", is "1 minute"'),
        ("{header: true}", "{header: true}\n    max_files: 7", "was 10000, is 7"),
        ("{header: true}", "{header: true, quote: q}", 'was not set, is "q"'),
        ("within: 1 hour", "within: 2 hours", 'was "1 hour", is "2 hours"'),
    ],
)
def test_a_value_that_was_the_default_is_said_as_if_it_were_written(old: str, new: str, sentence: str) -> None:
    (there,) = changes((old, new))
    assert there.sentence.startswith(sentence)
    (back,) = changes((new, old), before=edited((old, new)))
    was, now = there.sentence.removeprefix("was ").split(", is ")
    assert back.sentence == f"was {now}, is {was}"


def test_a_new_column_is_told_with_the_windows_that_its_nulls_reach() -> None:
    new = ("n INT", "n INT, site STRING")
    found = changes(new, ("group_by: [k]", "group_by: [k, upper(site) AS site]"))[0]
    assert found.effect == ("null in the records before; `w` groups by it, so these records form its null group")
    found = changes(new, ("c: count(*)}", "c: count(*), sites: count(DISTINCT site)}"))[0]
    assert found.effect == "null in the records before; `w` computes with it"


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
        ("in/*.csv", "there/*.csv", "sources[tills].path", HERE, (), False),
        ("name: tills", "name: counters", "sources[counters]", REFUSED, (), True),
        ("name: tills", "name: counters", "sources[tills]", REFUSED, (), True),
        ("time:", f"{SECOND}time:", "sources[web]", HERE, (), True),
        ("format: csv", "format: csv\n    split: k", "sources[tills].split", REFUSED, (), True),
        ("size: 1 hour", "size: 2 hours", "windows[w].size", PAST, ("w", "over_w"), False),
        ("c: count(*)", "c: count(n)", "windows[w].aggregates.c", PAST, ("w", "over_w"), False),
        ("{c: count(*)}", "{c: count(*)}, top: {n: 1, by: n}", "windows[w].top", PAST, ("w", "over_w"), False),
        ("c: sum(c)", "c: max(c)", "windows[over_w].aggregates.c", HERE, (), False),
        ("name: over_w", "change_feed: true, name: over_w", "windows[over_w].change_feed", HERE, (), False),
    ],
)  # fmt: skip
def test_each_key_has_a_meaning(
    old: str, new: str, path: str, meaning: Meaning, windows: tuple[str, ...], judges: bool
) -> None:
    (found,) = [one for one in changes((old, new)) if one.path == path]
    assert (found.meaning, found.needed.windows, found.judges) == (meaning, windows, judges)


def test_other_substreams_need_the_past() -> None:
    told = {
        one.path: one for one in changes(("at, dedup", "at, over: [k], dedup"), ("sum(c)}", "sum(c)}, group_by: [k]"))
    }
    over = told["time.over"]
    assert (over.meaning, over.past, over.judges) == (PAST, Scope.ALL, True)


def test_a_window_that_is_new_needs_its_past_and_so_do_those_over_it() -> None:
    text = SPEC.replace("name: w,", "name: other,").replace("from: w", "from: other")
    found = changes_between(canonical(SPEC), canonical(text))
    told_of = {change.path: (change.meaning, change.needed.windows) for change in found}
    assert told_of["windows[other]"] == (PAST, ("other", "over_w"))
    assert told_of["windows[w]"][0] == HERE


def test_a_window_that_goes_across_timelines_now_is_rebuilt_with_all_tables_and_one_that_did_before_is_not() -> None:
    within = """\
name: shop
sources: [{name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING, k STRING"}]
time: {timestamp_by: at, over: [k]}
windows: [{name: w, kind: tumbling, size: 1 hour, group_by: [k], aggregates: {c: count(*)}}]
"""
    (found,) = changes(("group_by: [k]", "across: true, group_by: [k]"), before=within)
    assert (found.path, found.meaning, found.past) == ("windows[w].across", PAST, Scope.ALL)
    across = within.replace("group_by: [k]", "across: true, group_by: [k]")
    assert [one.path for one in changes(("over: [k]", "over: [k], end_of_input: flush"), before=across)] == [
        "time.end_of_input"
    ]


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
    assert gone.keys(parse_spec(SPEC.rsplit("  - ", 1)[0], file="shop.yaml")) == ("windows",)


def test_a_window_with_another_name_goes_on_and_what_else_it_changes_is_told_of_the_new_one() -> None:
    [found] = changes(*NAMED)
    assert (found.path, found.meaning, found.sentence) == ("windows[v].was", HERE, "`w` is `v` now")
    assert (found.past, found.needs_decision) == (Scope.NOTHING, False)
    told = {one.path: one.meaning for one in changes(*NAMED, ("size: 1 hour", "size: 2 hours"))}
    assert told == {"windows[v].was": HERE, "windows[v].size": PAST}


@pytest.mark.parametrize(
    ("name", "before", "now"),
    [
        ("name: w,", "name: w,", "name: w, was: long_ago,"),
        ("name: w,", "name: w, was: long_ago,", "name: w,"),
        ("name: tills", "name: tills\n    was: before", "name: tills\n    was: long_ago"),
        ("name: tills", "name: tills\n    was: before", "name: tills"),
    ],
)
def test_a_former_name_of_a_window_or_source_that_no_table_has_changes_nothing(
    name: str, before: str, now: str
) -> None:
    [found] = changes((before, now), before=edited((name, before)))
    assert (found.meaning, found.judges) == (Meaning.NOTHING, False)


def test_a_name_that_one_window_had_may_become_that_of_another() -> None:
    before = SPEC.replace("name: over_w,", "name: over_w, was: free,")
    named = (("name: w,", "name: free, was: w,"), ("from: w", "from: free"), ("over_w, was: free,", "over_w,"))
    assert [(one.path, one.meaning) for one in changes(*named, before=before)] == [("windows[free].was", HERE)]


@pytest.mark.parametrize(
    ("replacements", "said"),
    [
        ([("name: w,", "name: w, was: over_w,")], "`over_w` is the name of a window of this spec"),
        ([("name: w,", "name: w, was: W,")], "`W` is the name of a window of this spec"),
        ([("name: w,", "name: w, was: w,")], "`w` is the name of a window of this spec"),
        ([("name: web", "name: web, was: tills")], "`tills` is the name of a source of this spec"),
        ([("name: web", "name: web, was: TILLS")], "`TILLS` is the name of a source of this spec"),
        ([("name: w,", "name: w, was: x,"), ("name: over_w,", "name: over_w, was: x,")], "two windows were `x`"),
        ([("name: tills", "name: tills\n    was: x"), ("name: web", "name: web, was: x")], "two sources were `x`"),
    ],
)
def test_a_former_name_leads_to_one_window_or_source_and_is_of_none_that_is_there(
    replacements: list[tuple[str, str]], said: str
) -> None:
    with pytest.raises(SpecError, match=said):
        parse_spec(edited(*replacements, text=BOTH), file="shop.yaml")


def test_a_source_with_another_name_goes_on_and_what_else_it_changes_is_told_of_the_new_one() -> None:
    [found] = changes(RENAMED)
    assert (found.path, found.meaning, found.sentence) == ("sources[counters].was", HERE, "`tills` is `counters` now")
    assert (found.past, found.needs_decision, found.judges) == (Scope.NOTHING, False, False)
    assert found.keys(parse_spec(SPEC.replace(*RENAMED), file="shop.yaml")) == ("sources", 0, "was")
    told = {one.path: one.meaning for one in changes(RENAMED, ("n INT", "n BIGINT"), ("in/*.csv", "there/*.csv"))}
    assert told == {f"sources[counters].{key}": HERE for key in ("was", "schema", "path")}


def test_a_source_under_another_name_without_its_former_one_is_told_to_say_it() -> None:
    [new, _] = changes(("name: tills", "name: counters"))
    assert (new.meaning, new.effect[-45:]) == (REFUSED, "read: write `was: tills` next to the new name")
    [typo, _] = changes(("name: tills", "name: counters\n    was: till"))
    assert (typo.path, typo.meaning) == ("sources[counters]", REFUSED)


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
    [found] = changes(RENAMED, before=edited((old, new)))
    assert (found.meaning, found.past) == (PAST, Scope(windows) if windows else Scope.ALL)


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
        (SPEC, "in/*", "there/*", "files that were already read are recognized in their new place by name and bytes"),
        (KAFKA, "here:9092", "there:9092", "topics of another cluster are different topics, see `on_data_loss`"),
        (KAFKA, "[a, b]", "[a, b, c]", "topics that were not read before are read from their beginning"),
        (KAFKA, "[a, b]", "[a, c]", "the partitions of `b` get no more records, and hold the watermark forever"),
    ],
)
def test_what_a_moved_source_means_is_told_by_its_kind(before: str, old: str, new: str, said: str) -> None:
    [found] = changes((old, new), before=before)
    assert (found.meaning, said in found.effect) == (HERE, True), found.effect
    assert ("partitions of" in found.effect) == ("partitions of" in said)


ANEW = "from the log with `tidemark rebuild shop.yaml"
BOTH_W = "--window w --window over_w"
OTHER = "To do: revert the change, or choose another name or warehouse for the new spec"
SNAPSHOT = "  - {name: v, kind: snapshot, aggregates: {c: count(*)}}"


@pytest.fixture
def spec(workplace: Path) -> Path:
    """Return the spec of a pipeline that has processed a batch, and an empty folder of input."""
    path = workplace / "shop.yaml"
    path.write_text(SPEC)
    made = read_spec(path).spec
    lake = Lake(workplace / "warehouse" / "shop")
    lake.create(BATCHES, BATCHES_SCHEMA)
    lake.create(LOG_CONTROL, LOG_CONTROL_SCHEMA)
    lake.create(FILES, FILES_SCHEMA)
    log = BatchLog(lake)
    plan = planned(log, end_seq=0, fingerprint=made.fingerprint())
    item = {"_after_seq": -1, "_control_seq": 0, "kind": "spec", "argument": made.canonical_json(), "_batch_id": 0}
    rows = pa.Table.from_pylist([item], schema=LOG_CONTROL_SCHEMA)
    written = lake.append_rows(LOG_CONTROL, rows, attempt=plan.attempt, expect=0)
    log.commit(plan, {}, {LOG_CONTROL: written.version}, START)
    return path


def call(*words: str) -> Result:
    return CliRunner().invoke(main, list(words), catch_exceptions=False)


@pytest.mark.parametrize(
    ("old", "new", "said", "to_do"),
    [
        ("n INT", "n DATE", "line 8, sources[0].schema: `n` was INT, is DATE: existing values", OTHER),
        ("n INT", "n STRING", "line 8, sources[0].schema: `n` was INT, is STRING: the values in", f"{ANEW}`"),
        ("[k], within", "[n], within", 'line 9, time.deduplicate_by: was ["k"], is ["n"]', f"{ANEW}`"),
        ("size: 1 hour", "size: 2 hours", 'windows[0].size: was "1 hour", is "2 hours": ', f"{ANEW} {BOTH_W}`"),
        (
            "at, dedup",
            "at, start_at: '2026-01-01T00:00:00Z', dedup",
            'time.start_at: was not set, is "2026',
            f"{ANEW}`",
        ),
        ("sum(c)}}", "sum(c)}}\n" + SNAPSHOT, "line 13, windows[2]: `v` new", f"{ANEW} --window v`"),
    ],
)
def test_a_change_that_is_refused_is_told_by_key_and_line(
    spec: Path, old: str, new: str, said: str, to_do: str
) -> None:
    spec.write_text(edited((old, new)))
    done = call("validate", "shop.yaml")
    assert (done.exit_code, done.stdout) == (2, ""), done.stderr
    assert "shop.yaml changed since the tables in " in done.stderr
    assert said in done.stderr
    assert to_do in done.stderr


def test_windows_whose_past_was_judged_by_other_rules_are_made_anew_with_all_tables(spec: Path) -> None:
    spec.write_text(edited(("at, dedup", "at, out_of_orderness: 1 s, dedup"), ("size: 1 hour", "size: 2 hours")))
    said = call("validate", "shop.yaml").stderr
    assert "line 11, windows[0].size: was " in said
    assert f"{ANEW}`" in said


def test_a_run_and_a_sensor_tell_it_when_there_is_nothing_to_do(spec: Path) -> None:
    spec.write_text(edited(("group_by: [k]", "group_by: [k, n]")))
    done = call("run", "shop.yaml")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == call("validate", "shop.yaml").stderr
    with pytest.raises(SpecError, match="changed since the tables"):  # the tick of a sensor fails with these words
        look(Workspace(read_spec(spec), spec.parent / "warehouse"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("timestamp_by: at", "timestamp_by: at, out_of_orderness: 1 minute"),
        ("options: {header: true}", "on_rewrite: read\n    missing: null\n    options: {header: true, sep: ;}"),
        ("format: csv", "format: csv\n    rename: {count: n, n: n, number: n}"),
        ("n INT", "who STRING"),
    ],
)
def test_a_change_that_is_taken_stops_no_run(spec: Path, old: str, new: str) -> None:
    spec.write_text(edited((old, new)))
    ensure_taken(Workspace(read_spec(spec), spec.parent / "warehouse"))


@pytest.mark.parametrize(
    ("old", "new", "code", "meaning"),
    [
        ("n INT", "n INT, who STRING", 0, "from here on"),
        ("timestamp_by: at", "timestamp_by: at, out_of_orderness: 1 minute", 0, "from here on"),
        ("group_by: [k]", "group_by: [k, n]", 3, "needs the past"),
        ("n INT", "N INT", 3, "refused"),
    ],
)
def test_a_plan_says_what_changed_and_its_exit_status_whether_it_needs_a_decision(
    spec: Path, old: str, new: str, code: int, meaning: str
) -> None:
    spec.write_text(edited((old, new)))
    shown, told = call("plan", "shop.yaml"), call("plan", "shop.yaml", "--json")
    assert (shown.exit_code, told.exit_code) == (code, code), shown.output
    found = json.loads(told.stdout)
    assert (found["meaning"], found["needs_decision"], found["run"]["files"]) == (meaning, code == 3, 0)
    assert (found["past"], found["would_differ"]) == (None, None), "nothing was processed"
    (change,) = found["changes"]
    assert (change["meaning"], change["place"].startswith("line ")) == (meaning, True)
    assert "1 change since batch 0" in shown.stdout
    assert change["sentence"] in shown.stdout
    assert ("To do: " in shown.stdout) == (code == 3)
    tables = sorted(path.name for path in (spec.parent / "warehouse" / "shop").iterdir())
    assert tables == ["_state", "batches", "log_control"]


def test_a_plan_of_a_spec_that_did_not_change_says_so_and_there_is_none_of_a_bad_one(spec: Path) -> None:
    shown, told = call("plan", "shop.yaml"), call("plan", "shop.yaml", "--json")
    assert "shop: nothing changed since batch 0, committed 2026-01-01 00:00:00 UTC" in shown.stdout
    found = json.loads(told.stdout)
    assert (shown.exit_code, found["meaning"], found["needs_decision"], found["changes"]) == (0, "nothing", False, [])
    spec.write_text(edited(("size: 1 hour", "size: 1 bit")))
    assert (call("plan", "shop.yaml").exit_code, call("plan", "shop.yaml", "--json").exit_code) == (2, 2)


WAS_MAX = SPEC.replace("c: sum(c)", "c: max(c)")
WAS_PATIENT = SPEC.replace("timestamp_by: at", "timestamp_by: at, out_of_orderness: 1 minute")
HAD_ROWS_OF_W = SPEC.replace("size: 1 hour", "size: 2 hours")
OF_OVER_W = ("windows[over_w].aggregates.c",)


def process(spec: Path, *texts: str, anew: Sequence[str] = ()) -> Workspace:
    """Return the pipeline after it has processed a record under each of some specs, and made some windows anew."""
    lake = Lake(spec.parent / "warehouse" / "shop")
    lake.create("raw_events", FILES_SCHEMA)  # of no record
    log = BatchLog(lake)
    for number, text in enumerate(texts, start=1):
        made = parse_spec(text, file="shop.yaml")
        plan = planned(log, first_seq=number - 1, end_seq=number, fingerprint=made.fingerprint())
        item = {"_after_seq": number - 2, "_control_seq": number, "kind": "spec", "argument": made.canonical_json()}
        rows = pa.Table.from_pylist([item | {"_batch_id": plan.batch_id}], schema=LOG_CONTROL_SCHEMA)
        written = lake.append_rows(LOG_CONTROL, rows, attempt=plan.attempt, expect=lake.version(LOG_CONTROL))
        log.commit(plan, {}, {LOG_CONTROL: written.version, "raw_events": 0}, START)
    if anew:
        end = len(texts)
        plan = planned(log, "rebuild", first_seq=end, end_seq=end, input={"windows": [*anew]}, fingerprint="anew")
        log.commit(plan, {}, {}, START)
    return Workspace(read_spec(spec), spec.parent / "warehouse")


@pytest.mark.parametrize(
    ("texts", "anew", "scope", "keys"),
    [
        ([SPEC], [], Scope.NOTHING, ()),
        ([SPEC, WAS_MAX, SPEC], [], Scope(("over_w",)), OF_OVER_W),
        ([SPEC, WAS_MAX, SPEC, WAS_MAX, SPEC], [], Scope(("over_w",)), OF_OVER_W),
        ([SPEC, WAS_MAX, SPEC], ["over_w"], Scope.NOTHING, ()),
        ([SPEC, WAS_MAX, SPEC], ["w"], Scope(("over_w",)), OF_OVER_W),
        ([SPEC, HAD_ROWS_OF_W, SPEC], [], Scope(("w", "over_w")), ("windows[w].size",)),
        ([SPEC, WAS_PATIENT, WAS_MAX, SPEC], ["over_w"], Scope.ALL, ("time.out_of_orderness",)),
    ],
)
def test_a_rebuild_to_the_spec_makes_up_for_every_spec_since_the_last_one_of_all_tables_and_a_plan_says_so(
    spec: Path, texts: list[str], anew: list[str], scope: Scope, keys: tuple[str, ...]
) -> None:
    plan = plan_to_spec(process(spec, *texts, anew=anew))
    assert (plan.scope, tuple(change.path for change in plan.changes)) == (scope, keys)
    shown, told = call("plan", "shop.yaml"), json.loads(call("plan", "shop.yaml", "--json").stdout)
    assert (told["changes"], told["past"]) == ([], None)
    of_plan = told["rebuild"]
    assert (of_plan["all_tables"], of_plan["windows"]) == (scope.of_all, list(scope.windows))
    assert [change["key"] for change in of_plan["changes"]] == [*keys]
    assert ("dead_letters" in of_plan["tables"], of_plan["work"] is not None) == (bool(keys), bool(keys))
    said = f"{', '.join(keys)}: changed since the past was computed; `tidemark rebuild shop.yaml --to-spec` computes"
    assert (f"{said} {scope}" in " ".join(shown.stdout.split())) == bool(keys), shown.stdout


def test_keys_that_are_set_beside_the_file_are_planned_too(spec: Path) -> None:
    found = json.loads(call("plan", "shop.yaml", "--json", "--set", "time.out_of_orderness=30s").stdout)
    assert [one["key"] for one in found["changes"]] == ["time.out_of_orderness"]


def test_a_pipeline_without_tables_has_nothing_that_could_change(spec: Path) -> None:
    shown = call("plan", "shop.yaml", "--warehouse", "elsewhere")
    assert (shown.exit_code, "no tables in" in shown.stdout) == (0, True), shown.output


def test_validate_says_what_each_change_means(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "_check_expressions", lambda _file: None)  # needs Spark
    spec.write_text(edited(("n INT", "who STRING")))
    done = call("validate", "shop.yaml")
    gone = "`n` gone: it stays in the tables, null in the records from here on"
    assert (done.exit_code, done.stdout.splitlines()) == (
        0,
        [
            "shop: from here on: line 8, sources[0].schema: `who` STRING new: null in the records before",
            f"shop: from here on: line 8, sources[0].schema: {gone}",
            "shop: ok",
        ],
    )
