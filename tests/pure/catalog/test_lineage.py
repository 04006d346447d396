"""The catalog of Dagster before a run: assets upstream, columns, places, lines of specs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tidemark.assets.catalog.asset_specs import Shown, asset_specs
from tidemark.pipelines.definitions import definitions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.places.place import place_of

FILES = "{kind: files, path: 'in/*.csv', format: csv, schema: 'at STRING, k STRING'}"


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    return tmp_path / "warehouse"


def shown(folder: Path, specs: Mapping[str, str], **given: Any) -> Shown:
    """Return what is shown of pipelines whose sources, or more, these texts are; they have a window `w`."""
    files = []
    for name, sources in specs.items():
        rest = (
            "time: {timestamp_by: at}\nwindows: [{name: w, kind: tumbling, size: 1 day, aggregates: {n: count(*)}}]\n"
        )
        text = sources if "sources:" in sources else f"sources: [{sources.replace('{', '{name: s, ', 1)}]\n{rest}"
        (folder / f"{name}.yaml").write_text(f"name: {name}\n{text}")
        files.append(read_spec(folder / f"{name}.yaml"))
    return asset_specs(files, folder / "warehouse", **given)


def deps_of(found: Shown, pipeline: str) -> list[str]:
    """Return what is upstream of a pipeline's log."""
    [assets] = [assets for file, assets in found.pipelines if file.spec.name == pipeline]
    return [dep.asset_key.to_user_string() for dep in assets["raw_events"].deps]


def table(path: str) -> str:
    return f"{{kind: delta, path: {path}, schema: 'at TIMESTAMP'}}"


def topics(servers: str, more: str) -> str:
    return f"{{kind: kafka, bootstrap_servers: '{servers}', format: json, schema: 'at STRING', {more}}}"


@pytest.mark.parametrize(
    ("source", "assets"),
    [
        (FILES, {"file{here}/in": ("file://{here}/in", {"csv"})}),
        (
            table("../bronze/my orders"),
            {"file{up}/bronze/my_orders_8482a2": ("file://{up}/bronze/my%20orders", {"delta"})},
        ),
        (table("s3a://lake/bronze/t"), {"s3/lake/bronze/t": ("s3://lake/bronze/t", {"delta", "s3"})}),
        (
            topics("two:9092,one:9092", "topics: [a, b]"),
            {
                "kafka/one/9092/a": ("kafka://one:9092/a", {"kafka", "json"}),
                "kafka/one/9092/b": ("kafka://one:9092/b", {"kafka", "json"}),
            },
        ),
        (
            topics("one:9092", "topic_pattern: 'a.*'"),
            {"kafka/one/9092/a.__9919aa": ("kafka://one:9092/a.*", {"kafka", "json"})},
        ),
    ],
)  # fmt: skip
def test_each_place_is_an_asset_with_its_uri_and_kinds(
    tmp_path: Path, source: str, assets: dict[str, tuple[str, set[str]]]
) -> None:
    found = shown(tmp_path, {"p": source})
    here = {"here": str(tmp_path), "up": str(tmp_path.parent)}
    expected = {name.format(**here): (uri.format(**here), kinds) for name, (uri, kinds) in assets.items()}
    seen = {one.key.to_user_string(): (one.metadata["dagster/uri"], one.kinds) for one in found.places}
    assert seen == expected
    assert deps_of(found, "p") == [*expected]
    names = [place.key.to_python_identifier() for place in found.places]
    assert all(re.fullmatch(r"[A-Za-z0-9_]+", name) for name in names), "Dagster names inputs of steps by them"


def test_a_place_that_several_read_over_links_and_in_several_formats_is_one_asset(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "in")
    other = FILES.replace("in/*.csv", "link/x*.json").replace("csv", "json")
    found = shown(tmp_path, {"p": FILES, "q": other, "r": FILES.replace("in/", "./link/../in/")})
    [place] = found.places
    assert place.kinds == {"csv", "json"}
    assert deps_of(found, "p") == deps_of(found, "q") == deps_of(found, "r") == [place.key.to_user_string()]
    twice = f"sources: [{FILES.replace('{', '{name: s, ', 1)}, {FILES.replace('{', '{name: t, ', 1)}]\n"
    found = shown(tmp_path, {"p": f"{twice}time: {{timestamp_by: at}}\n"})
    assert deps_of(found, "p") == [place.key.to_user_string()]
    assert lineage_of(found, "p", "raw_events")["at"] == [f"{place.key.to_user_string()}.at"]


def test_two_calls_whose_pipelines_read_one_place_merge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    shown(tmp_path, {"p": FILES, "q": FILES})
    both = [definitions(tmp_path / f"{name}.yaml", tmp_path / "warehouse") for name in ("p", "q")]
    graph = dg.Definitions.merge(*both).resolve_asset_graph()
    [place] = [asset for asset in graph.get_all_asset_keys() if asset.path[0] == "file"]
    assert graph.get(place).child_keys == {dg.AssetKey(["p", "raw_events"]), dg.AssetKey(["q", "raw_events"])}


@pytest.mark.parametrize(
    ("path", "upstream"),
    [
        ("warehouse/p/windows/w", "p/windows/w"),
        ("warehouse/p/history/w", "p/windows/w"),
        ("warehouse/p/ordered_events", "p/ordered_events"),
        ("warehouse/p/held_events", "p/ordered_events"),
        ("warehouse/p/log_control", "p/raw_events"),
        ("warehouse/p/watermarks", "p/batches"),
        ("link/p/dead_letters", "p/dead_letters"),
        ("warehouse/elsewhere/windows/x", "elsewhere/windows/x"),
        ("warehouse/p/windows/gone", "file{here}/warehouse/p/windows/gone"),
        ("warehouse/p/_state/files", "file{here}/warehouse/p/_state/files"),
        ("warehouses/p/windows/w", "file{here}/warehouses/p/windows/w"),
    ],
)
def test_a_pipeline_that_reads_a_table_of_another_one_is_downstream_of_its_asset(
    tmp_path: Path, warehouse: Path, path: str, upstream: str
) -> None:
    warehouse.mkdir()
    (tmp_path / "link").symlink_to(warehouse)
    found = shown(tmp_path, {"q": table(path), "p": FILES})
    assert deps_of(found, "q") == [upstream.format(here=tmp_path)]
    [(_, assets)] = [one for one in found.pipelines if one[0].spec.name == "q"]
    [dep] = assets["raw_events"].deps
    assert isinstance(dep.partition_mapping, dg.AllPartitionMapping)
    is_place = not upstream.startswith("p/")
    assert (upstream.format(here=tmp_path) in {one.key.to_user_string() for one in found.places}) == is_place


def test_the_assets_that_the_spec_names_are_upstream_instead_of_the_place(tmp_path: Path) -> None:
    named = FILES.replace("{", "{upstream: [raw/orders, p/windows/w], ", 1)
    found = shown(tmp_path, {"q": named})
    assert deps_of(found, "q") == ["raw/orders", "p/windows/w"]
    assert not found.places


def test_pipelines_that_read_each_other_have_the_place_upstream_as_assets_have_no_circles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = {
        "p": table("warehouse/r/windows/w"),
        "q": table("warehouse/p/windows/w"),
        "r": table("warehouse/q/windows/w"),
    }
    found = shown(tmp_path, specs | {"self": table("warehouse/self/windows/w")})
    assert [deps_of(found, name) for name in ("p", "q")] == [["r/windows/w"], ["p/windows/w"]]
    assert deps_of(found, "r") == [f"file{tmp_path}/warehouse/q/windows/w"]
    assert deps_of(found, "self") == [f"file{tmp_path}/warehouse/self/windows/w"]
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    paths = [tmp_path / f"{name}.yaml" for name in (*specs, "self")]
    assert definitions(paths, tmp_path / "warehouse").resolve_asset_graph().toposorted_asset_keys


def test_assets_downstream_go_by_the_keys_that_a_project_gives_also_their_columns(tmp_path: Path) -> None:
    def in_lake(spec: dg.AssetSpec) -> dg.AssetSpec:
        return spec.replace_attributes(key=spec.key.with_prefix("lake"))

    found = shown(tmp_path, {"p": FILES, "q": table("warehouse/p/windows/w")}, translate=in_lake)
    assert deps_of(found, "q") == ["lake/p/windows/w"]
    assert deps_of(found, "p") == [f"file{tmp_path}/in"], "others may know the place by this key"
    assert lineage_of(found, "q", "raw_events") == {"at": ["lake/p/windows/w.at"]}


SPEC = """
sources:
  - name: usgs
    kind: files
    path: s3://lake/usgs/*.csv
    format: csv
    schema: "time STRING, mag DECIMAL(4, 2), _id STRING, net STRING, depth INT, at STRUCT<x: INT, y: DOUBLE>"
    rename: {_id: id}
    arrival_time: "coalesce(time, net)"
    split: net
  - {name: late, kind: delta, path: s3://lake/late, schema: "time STRING, id STRING"}
time: {timestamp_by: time, over: [net]}
catalog: {name: hive, schema: geo}
windows:
  - name: by_hour
    kind: tumbling
    size: 1 hour
    where: depth > 3
    group_by: [net, upper(place) AS big]
    aggregates:
      events: count(*)
      strongest: max(mag) FILTER (WHERE Depth > 5)
      deep: sum(depth)
      mean: avg(at.y)
      ids: "array_sort(collect_set(struct(id, time AS at)))"
      first_id: "min_by(id, struct(_timestamp, _arrival_seq))"
      from_source: "max(_source)"
  - name: by_day
    from: by_hour
    kind: tumbling
    size: 1 day
    group_by: [net]
    aggregates: {best: max(strongest), n: sum(events), last: "max(_timestamp)", share: sum(deep) / sum(events)}
"""


def lineage_of(found: Shown, pipeline: str, name: str) -> dict[str, list[str]]:
    """Return the columns that each column of a table is made of, by its name."""
    [assets] = [assets for file, assets in found.pipelines if file.spec.name == pipeline]
    lineage = assets[name].metadata["dagster/column_lineage"].deps_by_column
    return {
        column: [f"{one.asset_key.to_user_string()}.{one.column_name}" for one in origins]
        for column, origins in lineage.items()
    }


def test_columns_of_windows_lead_to_the_columns_that_their_expressions_name(tmp_path: Path) -> None:
    found = shown(tmp_path, {"quakes": SPEC.replace("upper(place)", "upper(id)")})
    event = "quakes/ordered_events"
    assert lineage_of(found, "quakes", "windows/by_hour") == {
        "window_start": [f"{event}._timestamp"],
        "window_end": [f"{event}._timestamp"],
        "net": [f"{event}.net"],
        "big": [f"{event}.id"],
        "strongest": [f"{event}.depth", f"{event}.mag"],
        "deep": [f"{event}.depth"],
        "mean": [f"{event}.at"],
        "ids": [f"{event}.id", f"{event}.time"],
        "first_id": [f"{event}._arrival_seq", f"{event}._timestamp", f"{event}.id"],
        "from_source": ["quakes/raw_events._source"],
    }
    hour = "quakes/windows/by_hour"
    assert lineage_of(found, "quakes", "windows/by_day") == {
        "window_start": [f"{hour}.window_end"],
        "window_end": [f"{hour}.window_end"],
        "net": [f"{hour}.net"],
        "best": [f"{hour}.strongest"],
        "n": [f"{hour}.events"],
        "last": [f"{hour}.window_end"],
        "share": [f"{hour}.deep", f"{hour}.events"],
    }
    log = lineage_of(found, "quakes", "raw_events")
    usgs, late = "s3/lake/usgs", "s3/lake/late"
    assert log["id"] == [f"{late}.id", f"{usgs}._id"]
    assert log["_arrival_time"] == [f"{usgs}.net", f"{usgs}.time"]
    assert log["_split"] == [f"{usgs}.net"]
    ordered = lineage_of(found, "quakes", "ordered_events")
    assert ordered["_timestamp"] == ["quakes/raw_events.time"]
    assert ordered["_timeline"] == ["quakes/raw_events.net"]


def test_first_events_have_the_columns_of_events_and_windows_over_them_name_these(tmp_path: Path) -> None:
    text = (
        SPEC.partition("windows:")[0]
        + """windows:
  - {name: first, kind: snapshot, group_by: [net], top: {n: 2, by: "mag DESC, depth"}, aggregates: {n: count(*)}}
  - {name: over, kind: snapshot, from: first, group_by: [net], where: _rank = 1,
     aggregates: {last: max(_timestamp), m: max(mag)}}
"""
    )
    found = shown(tmp_path, {"quakes": text})
    event = "quakes/ordered_events"
    lineage = lineage_of(found, "quakes", "windows/first")
    assert lineage["_rank"] == [f"{event}.depth", f"{event}.mag"]
    assert [lineage[name] for name in ("mag", "_arrival_seq")] == [[f"{event}.mag"], [f"{event}._arrival_seq"]]
    [(_, assets)] = found.pipelines
    kinds = {one.name: one.type for one in assets["windows/first"].metadata["dagster/column_schema"].columns}
    assert [*kinds][:5] == ["window_start", "window_end", "net", "_rank", "time"]
    assert [*kinds][-6:] == ["_arrival_seq", "n", "_revision", "_is_final", "_watermark", "_batch_id"]
    assert (kinds["_rank"], kinds["mag"], kinds["_timestamp"]) == ("int", "decimal(4,2)", "timestamp")
    first = "quakes/windows/first"
    over = lineage_of(found, "quakes", "windows/over")
    assert (over["last"], over["m"]) == ([f"{first}.window_end"], [f"{first}.mag"])


def test_without_ordered_events_windows_lead_to_the_log(tmp_path: Path) -> None:
    text = SPEC.replace("upper(place)", "upper(id)") + "outputs: {ordered_events: false}\n"
    found = shown(tmp_path, {"quakes": text})
    columns = lineage_of(found, "quakes", "windows/by_hour")
    assert (columns["net"], columns["window_start"]) == (["quakes/raw_events.net"], ["quakes/raw_events.time"])
    [(_, assets)] = found.pipelines
    assert "dagster/uri" not in assets["ordered_events"].metadata


def test_tables_show_their_columns_names_places_and_the_lines_of_the_spec(tmp_path: Path) -> None:
    found = shown(tmp_path, {"quakes": SPEC.replace("upper(place)", "upper(id)")})
    [(file, assets)] = found.pipelines
    window = assets["windows/by_hour"].metadata
    assert window["dagster/table_name"] == "hive.geo.windows_by_hour"
    assert window["dagster/uri"] == f"file://{tmp_path}/warehouse/quakes/windows/by_hour"
    kinds = {column.name: (column.type, column.description) for column in window["dagster/column_schema"].columns}
    assert kinds["net"] == ("string", None)
    assert kinds["events"] == ("bigint", "`count(*)`")
    assert kinds["strongest"] == ("decimal(4,2)", "`max(mag) FILTER (WHERE Depth > 5)`")
    assert kinds["deep"][0] == "bigint"
    assert [kinds[name][0] for name in ("big", "mean", "ids")] == ["", "", ""], "only Spark can derive"
    assert kinds["window_start"] == ("timestamp", "Start of the window.")
    day = assets["windows/by_day"].metadata["dagster/column_schema"].columns
    assert {column.name: column.type for column in day}["best"] == "decimal(4,2)"
    lines = file.path.read_text().splitlines()
    for name, begins in (
        ("raw_events", ["- name: usgs", "- {name: late"]),
        ("ordered_events", ["time:"]),
        ("windows/by_day", ["- name: by_day"]),
        ("window_results", ["- name: by_hour", "- name: by_day"]),
    ):
        references = assets[name].metadata["dagster/code_references"].code_references
        assert {one.file_path for one in references} == {str(tmp_path / "quakes.yaml")}
        for one, begin in zip(references, begins, strict=True):
            assert lines[one.line_number - 1].lstrip().startswith(begin), name


def test_a_warehouse_in_a_store_is_compared_as_the_place_that_it_is(tmp_path: Path) -> None:
    files = []
    for name, source in (("p", FILES), ("q", table("s3a://lake/wh/p/windows/w"))):
        shown(tmp_path, {name: source})
        files.append(read_spec(tmp_path / f"{name}.yaml"))
    assert deps_of(asset_specs(files, place_of("s3://lake/wh")), "q") == ["p/windows/w"]


def joined(right: str) -> str:
    """Return a pipeline with a join of its source with a table."""
    return (
        f"sources: [{FILES.replace('{', '{name: s, ', 1)}]\ntime: {{timestamp_by: at}}\n"
        "automation_condition: eager\n"
        f"joins: [{{name: j, kind: as_of, left: {{source: s}}, on: [k], right: {right}}}]\n"
    )


@pytest.mark.parametrize(
    ("path", "upstream", "kinds"),
    [
        ("rates.csv", "file{here}/rates.csv", {"csv"}),
        ("rates", "file{here}/rates", {"delta"}),
        ("s3a://lake/rates.parquet", "s3/lake/rates.parquet", {"parquet", "s3"}),
        ("warehouse/p/windows/w", "p/windows/w", None),
        ("warehouse/q/joins/j", "file{here}/warehouse/q/joins/j", {"delta"}),
    ],
)
def test_a_table_on_the_right_side_of_a_join_is_upstream_of_the_join_alone(
    tmp_path: Path, path: str, upstream: str, kinds: set[str] | None
) -> None:
    right = f"{{table: '{path}', valid_from: since, schema: 'k STRING, since TIMESTAMP, n INT'}}"
    found = shown(tmp_path, {"q": joined(right), "p": FILES})
    [(_, assets)] = [one for one in found.pipelines if one[0].spec.name == "q"]
    expected = upstream.format(here=tmp_path)
    assert deps_of(found, "q") == [f"file{tmp_path}/in"]
    of_join = {dep.asset_key.to_user_string(): dep for dep in assets["joins/j"].deps}
    assert [*of_join] == ["q/ordered_events", expected]
    assert isinstance(of_join[expected].partition_mapping, dg.AllPartitionMapping)
    assert lineage_of(found, "q", "joins/j")["n"] == [f"{expected}.n"]
    assert lineage_of(found, "q", "joins/j")["at"] != []
    places = {one.key.to_user_string(): one.kinds for one in found.places}
    assert places.get(expected) == kinds
    on_update = repr(assets["joins/j"].automation_condition)
    assert repr(of_join[expected].asset_key) in on_update, "it is ignored: a new version of the table starts no run"
    assert repr(of_join[expected].asset_key) not in repr(assets["raw_events"].automation_condition)


def test_a_pipeline_that_reads_the_rows_of_a_join_is_downstream_of_it(tmp_path: Path) -> None:
    right = "{table: rates, valid_from: since, schema: 'k STRING, since TIMESTAMP'}"
    found = shown(tmp_path, {"p": table("warehouse/q/joins/j"), "q": joined(right)})
    assert deps_of(found, "p") == ["q/joins/j"]
