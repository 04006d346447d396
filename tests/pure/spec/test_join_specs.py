"""The keys of joins: what is refused, with whole messages in __snapshots__, and what they mean."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import write_deltalake
from syrupy.assertion import SnapshotAssertion

from tests.pure.spec.specs import changed, message, parse, schema_accepts, two_sources
from tidemark.pipelines.spec_files import read_spec
from tidemark.timeops.errors import SpecError
from tidemark.timeops.spec import parse_spec
from tidemark.timeops.spec.changes import Meaning, changes_between
from tidemark.timeops.spec.pipeline import keys_by_arrival
from tidemark.timeops.spec.scope import Scope

JOIN: dict[str, Any] = {
    "name": "j",
    "kind": "as_of",
    "left": {"source": "small"},
    "right": {"source": "other"},
    "on": ["x"],
    "within": "5 min",
}


def joined(**keys: object) -> dict[str, Any]:
    """Return a spec of two sources and their join; a key that is None is left out."""
    sources = [{**source, "name": name} for source, name in zip(two_sources(), ("small", "other"), strict=True)]
    for source in sources:
        source["schema"] = "t STRING, x STRING"
    join = {key: value for key, value in {**JOIN, **keys}.items() if value is not None}
    return changed("joins", [join], changed("sources", sources, changed("windows", ...)))


def paired(**keys: object) -> dict[str, Any]:
    """Return the same with an interval join."""
    return joined(**{"kind": "interval", "within": None, "before": "2 min", "after": "1 min", **keys})


def tabled(**keys: object) -> dict[str, Any]:
    """Return the same with a table on the right side; a key of it that is None is left out."""
    table = {"table": "rates.csv", "valid_from": "since", "schema": "x STRING, since TIMESTAMP, rate INT", **keys}
    return joined(within=None, right={key: value for key, value in table.items() if value is not None})


def over_join(spec: dict[str, Any], **keys: object) -> dict[str, Any]:
    """Return a spec with a window over its join."""
    window = {"name": "w", "kind": "snapshot", "from": "j", "aggregates": {"n": "count(*)"}, **keys}
    return changed("windows", [window], spec)


WRONG = {
    "an interval join with the reach of an as-of join": paired(within="1 min"),
    "an interval join with a direction": paired(direction="forward"),
    "an interval join without reach": paired(before=None, after=None),
    "one row where a pair is final anyway": paired(emit="on_close", allowed_lateness="1 min"),
    "an as-of join with the reach of an interval join": joined(after="1 min"),
    "an as-of join with rows of the right side": joined(how="full"),
    "another kind": joined(kind="as-of"),
    "a table without the time of its rows": tabled(valid_from=None),
    "a table without columns": tabled(schema=None),
    "a time that is no column of the table": tabled(valid_from="sinc"),
    "a table and a source": tabled(source="other"),
    "neither a table nor a source": tabled(table=None, valid_from=None, schema=None),
    "a source with the key of a table": joined(right={"source": "other", "valid_from": "t"}),
    "a table on the left": joined(left={"table": "rates"}),
    "a table that looks ahead": {**tabled(), "joins": [{**tabled()["joins"][0], "direction": "nearest"}]},
    "pairs with a table": paired(right={"table": "rates", "valid_from": "since", "schema": "x STRING, since DATE"}),
    "a column that the table lacks": {**tabled(), "joins": [{**tabled()["joins"][0], "on": ["t"]}]},
    "no reach": joined(within=None),
    "a source that is missing": joined(right={"source": "othr"}),
    "one source on both sides": joined(right={"source": "small"}),
    "one source on both sides of an interval": paired(right={"source": "small"}),
    "a column that neither source has": joined(on=["xx"]),
    "a column twice": joined(on=["x", "x"]),
    "an unknown key": joined(withn="1 min"),
    "pairs with lateness where nothing is late": paired(allowed_lateness="1 min"),
    "lateness where nothing is late": joined(allowed_lateness="1 min"),
    "one answer where there is one anyway": joined(emit="on_close"),
    "a direction without reach": joined(within="0 s", direction="nearest"),
    "without its substreams": changed("time.over", ["x", "upper(t)"], joined()),
    "the name of a window": changed(
        "windows", [{"name": "J", "kind": "snapshot", "aggregates": {"n": "count(*)"}}], joined()
    ),
    "a window that closes before rows of its join are final": over_join(paired()),
    "a window over rows that lack the substreams": changed(
        "time.over", ["x"], over_join(paired(how="full"), allowed_lateness="2 min", group_by=["x"])
    ),
    "a window over a join without its substreams": changed("time.over", ["x"], over_join(joined())),
    "a window over a join that is not there": over_join(joined(), **{"from": "jj"}),
    "a column with the name of a number": changed("sources.1.schema", "t STRING, x STRING, _left_seq INT", joined()),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_join_that_cannot_be_is_refused_with_key_and_reason(wrong: str, snapshot: SnapshotAssertion) -> None:
    text = message(WRONG[wrong])
    assert "problems:" not in text, "one mistake is one problem"
    assert text == snapshot


def written(folder: Path, **columns: pa.Array) -> Path:
    """Write a spec whose join reads all columns of `rates.parquet`, and that file."""
    pq.write_table(pa.table(columns), folder / "rates.parquet")
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(tabled(table="rates.parquet", schema=None)))
    return path


SINCE = pa.array([0], pa.timestamp("us", "UTC"))


def test_a_table_without_schema_has_the_columns_that_are_there_and_they_change_no_spec(tmp_path: Path) -> None:
    path = written(tmp_path, since=SINCE, x=["a"], rate=pa.array([1], pa.int32()), _batch_id=[1])
    spec = read_spec(path).spec
    assert spec.joins[0].right.ddl == "`since` timestamp, `x` string, `rate` int"
    assert spec.join_columns["j"].names == ("t", "x", "since", "right_x", "rate")
    before = spec.fingerprint()
    written(tmp_path, since=SINCE, x=["a"])
    smaller = read_spec(path).spec
    assert (smaller.joins[0].right.column_names, smaller.fingerprint()) == (("since", "x"), before)
    write_deltalake(str(tmp_path / "rates"), pa.table({"x": ["a"], "since": SINCE, "n": [[1]]}))
    path.write_text(path.read_text().replace("rates.parquet", "rates"))
    assert read_spec(path).spec.joins[0].right.ddl == "`x` string, `since` timestamp, `n` array<bigint>"


def test_the_columns_of_a_table_without_schema_are_judged_as_far_as_they_are_known(tmp_path: Path) -> None:
    path = written(tmp_path, sinc=SINCE, x=["a"])
    with pytest.raises(SpecError, match="`since` is not a column of the table"):
        read_spec(path)
    written(tmp_path, since=SINCE, y=["a"])
    with pytest.raises(SpecError, match="the table has no column `x`"):
        read_spec(path)
    written(tmp_path, since=SINCE, x=["a"], **{"of day": ["a"]})
    with pytest.raises(SpecError, match="name the columns that the join reads in `schema`"):
        read_spec(path)
    (tmp_path / "rates.parquet").unlink()
    assert read_spec(path).spec.joins[0].right.ddl is None, "the first batch says what is missing"


def test_the_key_on_needs_no_quotes_although_yaml_reads_it_as_true() -> None:
    text = yaml.safe_dump(joined()).replace("'on':", "on:")
    assert "\n  on:" in text
    assert parse_spec(text, file="small.yaml").joins[0].on == ("x",)


def test_a_column_of_the_right_side_has_a_prefix_where_the_left_one_has_the_name() -> None:
    spec = parse(changed("sources.1.schema", "t STRING, x STRING, y INT", joined()))
    assert spec.join_columns["j"].names == ("t", "x", "right_t", "right_x", "y")


@pytest.mark.parametrize(
    ("direction", "waits_us", "useful_us"),
    [("backward", 0, 300_000_000), ("forward", 300_000_000, 300_000_000), ("nearest", 300_000_000, 600_000_000)],
)
def test_an_answer_waits_for_what_is_ahead_and_the_right_side_is_kept_for_both(
    direction: str, waits_us: int, useful_us: int
) -> None:
    [join] = parse(joined(direction=direction)).joins
    assert (join.closes_after_us, join.useful_for_us) == (waits_us, useful_us)


@pytest.mark.parametrize(("before", "after"), [("2 min", "1 min"), ("2 min", None), (None, "1 min")])
def test_both_sides_of_an_interval_join_wait_for_what_is_ahead_of_them(before: str | None, after: str | None) -> None:
    [join] = parse(paired(before=before, after=after)).joins
    back_us, ahead_us = 120_000_000 if before else 0, 60_000_000 if after else 0
    assert (join.looks_back_us, join.looks_ahead_us) == (back_us, ahead_us)
    assert (join.closes_after_us, join.useful_for_us) == (ahead_us, back_us)
    kept = parse(changed("time.out_of_order", "keep", paired(before="2 min", allowed_lateness="5 s", how="right")))
    [join] = kept.joins
    assert (join.closes_after_us, join.useful_for_us, join.revises) == (65_000_000, 125_000_000, True)


def test_a_window_over_a_join_waits_for_its_rows_also_where_nothing_is_late() -> None:
    spec = parse(over_join(paired(how="right"), allowed_lateness="2 min"))
    assert spec.joins[0].final_after == spec.windows[0].allowed_lateness
    assert spec.chained_windows == spec.windows
    assert parse(over_join(joined())).joins[0].final_after == timedelta(0)
    assert spec.are_made_with_all(["w"])


def test_a_change_of_a_window_over_a_join_asks_for_all_tables() -> None:
    specs = [parse(over_join(joined(), aggregates={"n": text})) for text in ("count(*)", "max(_left_seq)")]
    [change] = changes_between(*(yaml.safe_load(spec.canonical_json()) for spec in specs))
    assert change.path == "windows[w].aggregates.n"
    specs = [parse(over_join(joined(), group_by=group_by)) for group_by in ([], ["x"])]
    [change] = changes_between(*(yaml.safe_load(spec.canonical_json()) for spec in specs))
    assert (change.meaning, change.past) == (Meaning.NEEDS_THE_PAST, Scope.ALL)


def test_a_table_has_rows_of_any_age_and_names_of_its_own() -> None:
    spec = parse(tabled())
    assert spec.join_columns["j"].names == ("t", "x", "right_x", "since", "rate")
    assert spec.joins[0].looks_back_us > 9_000 * 365 * 86_400_000_000
    assert schema_accepts(tabled())
    renamed = changed("sources.0.was", "small", changed("sources.0.name", "more", tabled()))
    renamed["joins"][0]["left"] = {"source": "more"}
    [change] = changes_between(*(yaml.safe_load(parse(one).canonical_json()) for one in (tabled(), renamed)))
    assert change.past == Scope.NOTHING


def test_the_schema_knows_joins() -> None:
    assert schema_accepts(joined())
    assert schema_accepts(paired(how="full"))
    assert not schema_accepts(paired(kind="intervals"))
    assert not schema_accepts(joined(direction="sideways"))


def test_a_changed_join_asks_for_the_past_of_all_tables_and_a_renamed_source_does_not() -> None:
    before, after = (parse(joined(within=within)) for within in ("5 min", "6 min"))
    [change] = changes_between(*(yaml.safe_load(spec.canonical_json()) for spec in (before, after)))
    assert (change.path, change.meaning, change.past) == ("joins[j].within", Meaning.NEEDS_THE_PAST, Scope.ALL)
    assert change.keys(after) == ("joins", 0, "within"), "its place in the file"
    [gone] = changes_between(
        yaml.safe_load(before.canonical_json()),
        yaml.safe_load(parse(changed("joins", ..., joined())).canonical_json()),
    )
    assert (gone.path, gone.past) == ("joins[j]", Scope.NOTHING)
    assert gone.keys(parse(changed("joins", ..., joined()))) == ("joins",)
    renamed = changed("sources.1.name", "more", joined(right={"source": "more"}))
    renamed = changed("sources.1.was", "other", renamed)
    [change] = changes_between(*(yaml.safe_load(spec.canonical_json()) for spec in (before, parse(renamed))))
    assert change.past == Scope.NOTHING


def test_where_each_source_has_an_event_time_no_arrival_counts() -> None:
    spec = joined()
    assert spec["time"].pop("timestamp_by")
    for source in spec["sources"]:
        source["timestamp_by"] = "t"
    found = parse(spec)
    assert keys_by_arrival(found.time, (), found.sources) == []
    spec["sources"][1]["timestamp_by"] = "_arrival_time"
    found = parse(spec)
    assert keys_by_arrival(found.time, (), found.sources) == ["sources[other].timestamp_by"]
    del spec["sources"][1]["timestamp_by"]
    found = parse(spec)
    assert keys_by_arrival(found.time, (), found.sources) == [
        "time (without `timestamp_by` event time is arrival time)"
    ]
