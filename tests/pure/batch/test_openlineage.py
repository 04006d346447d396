"""Events for OpenLineage, from batches on real tables to a real web server, without Spark."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jsonschema
import pyarrow as pa
import pytest

from tests import ROOT
from tests.pure.batch.batches import planned
from tests.receiver import Receiver, receiving
from tidemark.pipelines.code_location.watches import lineage_watch
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import openlineage, tables
from tidemark.resources.batches.plans import BatchKind, BatchOwner, RebuildInput
from tidemark.resources.workspace import Workspace

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RUN = "0b920976-1fe0-4633-a855-0f842e99d8b5"
SPEC = """
name: shop
sources:
  - name: tills
    kind: files
    path: data/tills/*.csv
    format: csv
    schema: "at STRING, item STRING, price STRUCT<amount: DOUBLE, currency: STRING>, till STRING"
    rename: {Item: item}
  - name: web
    kind: kafka
    bootstrap_servers: broker-1:9092,broker-2:9092
    topics: [orders]
    format: json
    schema: "at STRING, item STRING, price STRUCT<amount: DOUBLE, currency: STRING>"
  - {name: old, kind: delta, path: "s3://lake/old/orders", schema: "at STRING, item STRING"}
time: {timestamp_by: "coalesce(at, _arrival_time)", out_of_order: keep}
windows:
  - name: by_hour
    kind: tumbling
    size: 1 hour
    where: till <> 'test'
    group_by: ["lower(item) AS thing", till]
    aggregates: {sold: "sum(price.amount)", n: count(*)}
    having: sold > 10
  - {name: by_day, kind: tumbling, size: 1 day, from: by_hour, group_by: [thing], aggregates: {sold: sum(sold)}}
  - {name: largest, kind: snapshot, group_by: [till], top: {n: 3, by: "price.amount DESC"}, having: "_rank = 1"}
owners: ["team:sales"]
tags: {tier: gold}
"""
_TABLES = (
    "raw_events",
    "ordered_events",
    "held_events",
    "dead_letters",
    "windows/by_hour",
    "windows/by_day",
    "windows/largest",
)
_COLUMNS = pa.schema([("item", pa.string()), ("_timestamp", pa.timestamp("us", "UTC"))])


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Run a receiver that the environment names, in a process that has not sent anything."""
    with receiving() as made:
        monkeypatch.setenv("OPENLINEAGE_URL", made.url)
        openlineage._sender.cache_clear()
        yield made
        openlineage._sender.cache_clear()
        for name in [name for name in os.environ if name.startswith("OPENLINEAGE__")]:  # the client sets them
            del os.environ[name]


@pytest.fixture
def shop(tmp_path: Path, receiver: Receiver) -> Workspace:
    """Make a pipeline with tables, whose batches are watched."""
    (tmp_path / "shop.yaml").write_text(SPEC, encoding="utf-8")
    watch = lineage_watch(lambda: "shop_live")
    assert watch is not None
    made = Workspace(read_spec(tmp_path / "shop.yaml"), tmp_path / "warehouse", watch=watch)
    made.lake.create(tables.BATCHES, tables.BATCHES_SCHEMA)
    for table in _TABLES:
        made.lake.create(table, _COLUMNS)
    return made


def run_batch(
    shop: Workspace,
    kind: BatchKind = "process",
    given: Mapping[str, Any] | None = None,
    counts: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Plan a batch of some kind, write a row into each table, commit it; return the versions."""
    plan = planned(shop.batches, kind, owner=BatchOwner(RUN, "host", 1, 1), end_seq=7, input=given or {})
    row = pa.table({"item": ["tea"], "_timestamp": [NOON]}, schema=_COLUMNS)
    versions = {
        table: shop.lake.append_rows(table, row, attempt=plan.attempt, expect=shop.lake.version(table)).version
        for table in _TABLES
    }
    shop.batches.commit(plan, counts, versions, NOON)
    return versions


def without_origin(facet: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facet.items() if name not in {"_producer", "_schemaURL"}}


def fields_of(output: Mapping[str, Any]) -> dict[str, list[tuple[str, str, str]]]:
    """Return dataset, column and kind of what each column is computed from."""
    return {
        name: [(one["name"].rpartition("/")[2], one["field"], one["transformations"][0]["subtype"]) for one in made]
        for name, field in output["facets"]["columnLineage"]["fields"].items()
        if (made := field["inputFields"])
    }


def test_a_batch_is_a_run_that_starts_and_completes(shop: Workspace, receiver: Receiver) -> None:
    counts = {"records": 7, "accepted": 4, "refused.early": 1, "refused.malformed": 2, "by_hour.window_closed": 3}
    versions = run_batch(shop, counts=counts)
    start, complete = receiver.wait_for(2)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert (complete["job"]["namespace"], complete["job"]["name"]) == ("default", "shop.process")
    facets = complete["run"]["facets"]
    assert facets["parent"]["run"]["runId"] == RUN, "the run of Dagster"
    assert facets["parent"]["job"]["name"] == "shop_live"
    assert facets["processing_engine"]["name"] == "spark"
    assert without_origin(facets["tidemark_refusals"]) == {
        "records": 7,
        "refused": 3,
        "reasons": {"early": 1, "malformed": 2},
        "windows": {"by_hour": {"window_closed": 3}},
    }
    assert without_origin(facets["tidemark_batch"]) == {
        "batch": 0,
        "kind": "process",
        "attempt": 1,
        "first_seq": 0,
        "end_seq": 7,
    }
    of_job = complete["job"]["facets"]
    assert without_origin(of_job["jobType"]) == {
        "processingType": "BATCH",
        "integration": "TIDEMARK",
        "jobType": "PROCESS",
    }
    assert of_job["ownership"]["owners"] == [{"name": "team:sales"}]
    assert of_job["tags"]["tags"] == [{"key": "tier", "value": "gold", "source": "TIDEMARK"}]
    [raw] = complete["inputs"]
    assert (raw["namespace"], raw["name"]) == ("file", str(shop.folder / "raw_events"))
    assert raw["facets"]["version"]["datasetVersion"] == str(versions["raw_events"])
    outputs = {one["name"].removeprefix(f"{shop.folder}/"): one for one in complete["outputs"]}
    assert [*outputs] == [*_TABLES[1:]]
    for table, output in outputs.items():
        assert output["facets"]["version"]["datasetVersion"] == str(versions[table])
        assert without_origin(output["outputFacets"]["outputStatistics"]) | {"size": 0} == {
            "rowCount": 1,
            "fileCount": 1,
            "size": 0,
        }
        columns = {one["name"]: one["type"] for one in output["facets"]["schema"]["fields"]}
        assert columns == {"item": "string", "_timestamp": "timestamp"}


def test_columns_of_windows_lead_back_to_the_columns_that_their_expressions_name(
    shop: Workspace, receiver: Receiver
) -> None:
    run_batch(shop)
    outputs = {one["name"].removeprefix(f"{shop.folder}/"): one for one in receiver.wait_for(2)[1]["outputs"]}
    times = [("raw_events", "at", "TRANSFORMATION"), ("raw_events", "_arrival_time", "TRANSFORMATION")]
    by_hour = outputs["windows/by_hour"]
    assert fields_of(by_hour) == {
        "window_start": times,
        "window_end": times,
        "thing": [("raw_events", "item", "TRANSFORMATION")],
        "till": [("raw_events", "till", "IDENTITY")],
        "sold": [("raw_events", "price", "AGGREGATION")],
    }
    whole = [(one["field"], one["transformations"][0]) for one in by_hour["facets"]["columnLineage"]["dataset"]]
    assert [(field, how["type"], how["subtype"]) for field, how in whole] == [
        ("item", "INDIRECT", "GROUP_BY"),
        ("till", "INDIRECT", "GROUP_BY"),
        ("at", "INDIRECT", "WINDOW"),
        ("_arrival_time", "INDIRECT", "WINDOW"),
        ("till", "INDIRECT", "FILTER"),
        ("price", "INDIRECT", "FILTER"),
    ]
    assert fields_of(outputs["windows/by_day"])["sold"] == [("by_hour", "sold", "AGGREGATION")]
    largest = fields_of(outputs["windows/largest"])
    assert largest["_rank"] == [("raw_events", "price", "TRANSFORMATION")]
    assert largest["item"] == [("raw_events", "item", "IDENTITY")]
    assert (largest["_timestamp"], largest["till"]) == (times, [("raw_events", "till", "IDENTITY")])
    whole = outputs["windows/largest"]["facets"]["columnLineage"]["dataset"]
    assert ("price", "SORT") in [(one["field"], one["transformations"][0]["subtype"]) for one in whole]
    assert fields_of(outputs["ordered_events"])["item"] == [("raw_events", "item", "IDENTITY")]


JOINED = (
    SPEC
    + """\
joins:
  - {name: with_rate, kind: as_of, left: {source: tills}, on: [item],
     right: {table: rates.csv, valid_from: since, schema: "item STRING, since TIMESTAMP, rate DECIMAL(9, 4)"}}
  - {name: with_owner, kind: as_of, left: {source: web}, on: [item],
     right: {table: "s3://lake/owners", valid_from: since, schema: "item STRING, since TIMESTAMP, owner STRING"}}
  - {name: with_web, kind: as_of, left: {source: tills}, right: {source: web}, on: [item], within: 1 hour}
"""
)


def with_joins(shop: Workspace) -> Workspace:
    """Return the pipeline with joins, whose tables are there."""
    path = Path(shop.file.path)
    path.write_text(JOINED, encoding="utf-8")
    joined = replace(shop, file=read_spec(path))
    for join in joined.spec.joins:
        joined.lake.create(tables.join_table(join.name), _COLUMNS)
    return joined


def test_tables_on_the_right_of_joins_are_inputs_in_the_version_that_the_batch_has(
    shop: Workspace, receiver: Receiver
) -> None:
    joined, path = with_joins(shop), Path(shop.file.path)
    run_batch(joined, given={"tables": {"with_rate": "5e1f", "with_owner": "7"}})
    complete = receiver.wait_for(2)[1]
    raw, rates, owners = complete["inputs"]
    assert raw["name"] == str(shop.folder / "raw_events")
    assert (rates["namespace"], rates["name"]) == ("file", str(path.parent / "rates.csv"))
    assert (owners["namespace"], owners["name"]) == ("s3://lake", "owners")
    assert [one["facets"]["version"]["datasetVersion"] for one in (rates, owners)] == ["5e1f", "7"]
    assert ("storage" in rates["facets"], owners["facets"]["storage"]["storageLayer"]) == (False, "delta")
    assert {one["name"]: one["type"] for one in rates["facets"]["schema"]["fields"]} == {
        "item": "string",
        "since": "timestamp",
        "rate": "decimal(9,4)",
    }
    outputs = {one["name"].removeprefix(f"{shop.folder}/"): one for one in complete["outputs"]}
    of_rate = fields_of(outputs["joins/with_rate"])
    assert of_rate["till"] == [("raw_events", "till", "IDENTITY")]
    assert (of_rate["rate"], of_rate["right_item"]) == (
        [("rates.csv", "rate", "IDENTITY")],
        [("rates.csv", "item", "IDENTITY")],
    )
    assert fields_of(outputs["joins/with_owner"])["owner"] == [("owners", "owner", "IDENTITY")]
    assert fields_of(outputs["joins/with_web"])["right_item"] == [("raw_events", "item", "IDENTITY")]


@pytest.mark.parametrize(
    ("kind", "given", "are_read"),
    [
        ("rebuild", RebuildInput(numbers=[[1, 2]]).to_json(), True),
        ("rebuild", RebuildInput(windows=["by_day"]).to_json(), False),
        ("backfill", {"window": "by_day", "days": ["2026-01-01", "2026-01-01"]}, False),
    ],
)
def test_other_batches_have_these_tables_as_inputs_where_they_write_the_joins(
    shop: Workspace, receiver: Receiver, kind: BatchKind, given: Mapping[str, Any], are_read: bool
) -> None:
    run_batch(with_joins(shop), kind, given)
    names = [one["name"].rpartition("/")[2] for one in receiver.wait_for(2)[1]["inputs"]]
    assert names == ["raw_events", *(["rates.csv", "owners"] if are_read else [])]


def test_sources_are_named_as_openlineage_names_datasets(shop: Workspace, receiver: Receiver) -> None:
    given = {
        "files": {"tills": [["/srv/data/tills/a.csv", 0, 100], ["/srv/data/tills/b.csv", 0, 20]]},
        "offsets": {"web": {"orders-0": [10, 14], "orders-1": [0, 1]}},
        "versions": {"old": ["s3://lake/old/orders", 3, 5]},
    }
    run_batch(shop, "ingest", given)
    complete = receiver.wait_for(2)[1]
    assert complete["job"]["name"] == "shop.ingest"
    tills, web, old = complete["inputs"]
    assert (tills["namespace"], tills["name"]) == ("file", str(shop.file.folder / "data/tills"))
    assert without_origin(tills["inputFacets"]["inputStatistics"]) == {"size": 120, "fileCount": 2}
    assert tills["inputFacets"]["subset"]["inputCondition"]["locations"] == [
        "/srv/data/tills/a.csv",
        "/srv/data/tills/b.csv",
    ]
    assert [one["name"] for one in tills["facets"]["schema"]["fields"]] == ["at", "Item", "price", "till"]
    assert (web["namespace"], web["name"]) == ("kafka://broker-1:9092", "orders")
    assert web["inputFacets"]["inputStatistics"]["rowCount"] == 5
    assert (old["namespace"], old["name"]) == ("s3://lake", "old/orders")
    assert old["facets"]["version"]["datasetVersion"] == "5"
    [raw] = complete["outputs"]
    assert fields_of(raw)["item"] == [
        ("tills", "Item", "IDENTITY"),
        ("orders", "item", "IDENTITY"),
        ("orders", "item", "IDENTITY"),
    ]


@pytest.mark.parametrize(
    ("kind", "given", "written"),
    [
        ("backfill", {"window": "by_day", "days": ["2026-01-01", "2026-01-01"]}, ["windows/by_day"]),
        ("change", {"changes": [{"table": "dead_letters"}]}, ["dead_letters"]),
        ("rebuild", RebuildInput(numbers=[[1, 2]]).to_json(), [*_TABLES[1:]]),
        ("rebuild", RebuildInput(windows=["by_day"]).to_json(), ["dead_letters", "windows/by_day"]),
        ("rebuild", RebuildInput(dropped=["gone"]).to_json(), ["windows/gone"]),
    ],
)
def test_batches_of_other_kinds_are_runs_too(
    shop: Workspace, receiver: Receiver, kind: BatchKind, given: Mapping[str, Any], written: list[str]
) -> None:
    run_batch(shop, kind, given)
    complete = receiver.wait_for(2)[1]
    assert complete["job"]["name"] == f"shop.{kind}"
    assert [one["name"].removeprefix(f"{shop.folder}/") for one in complete["outputs"]] == written


def test_each_attempt_is_a_run_and_its_end_says_why(shop: Workspace, receiver: Receiver) -> None:
    first = planned(shop.batches)
    shop.batches.give_up(first, NOON, "the disk is full")
    planned(shop.batches)
    planned(shop.batches)  # takes over the one before, which says nothing
    events = receiver.wait_for(5)
    assert [one["eventType"] for one in events] == ["START", "FAIL", "START", "ABORT", "START"]
    ids = [one["run"]["runId"] for one in events]
    assert ids[0] == ids[1] != ids[2] == ids[3] != ids[4] != ids[0]
    assert events[1]["run"]["facets"]["errorMessage"]["message"] == "the disk is full"
    assert "errorMessage" not in events[3]["run"]["facets"]
    assert "parent" not in events[0]["run"]["facets"], "its owner is not a run of Dagster"


def test_a_rebuild_that_only_reserves_numbers_sends_nothing(shop: Workspace, receiver: Receiver) -> None:
    run_batch(shop, "rebuild", RebuildInput(reserves=8).to_json())
    run_batch(shop)
    assert [one["job"]["name"] for one in receiver.wait_for(2)] == ["shop.process", "shop.process"]


def test_the_namespace_of_jobs_is_that_of_the_environment(
    shop: Workspace, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENLINEAGE_NAMESPACE", "prod")
    run_batch(shop)
    complete = receiver.wait_for(2)[1]
    assert (complete["job"]["namespace"], complete["run"]["facets"]["parent"]["job"]["namespace"]) == ("prod", "prod")


def test_our_own_facets_are_as_the_schema_says_that_they_name(shop: Workspace, receiver: Receiver) -> None:
    run_batch(shop, counts={"records": 1, "refused.early": 1})
    facets = receiver.wait_for(2)[1]["run"]["facets"]
    schema = json.loads((ROOT / "docs/reference/openlineage-facets.json").read_text(encoding="utf-8"))
    for name in ("tidemark_batch", "tidemark_refusals"):
        address, _, pointer = facets[name]["_schemaURL"].partition("#/$defs/")
        assert address == schema["$id"]
        of_facet = schema["$defs"][pointer]
        jsonschema.validate(facets[name], of_facet)
        assert set(facets[name]) == set(of_facet["properties"])


def test_batches_go_on_while_the_receiver_takes_a_minute(shop: Workspace, receiver: Receiver) -> None:
    receiver.delay_s = 60
    for _ in range(3):
        run_batch(shop)
    assert len(receiver.wait_for(1)) == 1, "the first event has no answer yet"
    assert [commit.batch_id for commit in shop.batches.history()] == [0, 1, 2]


@pytest.mark.parametrize(
    ("status", "delay_s", "why"),
    [
        (500, 0.0, "the receiver answers with errors"),
        (404, 0.0, "the receiver answered with status 404"),
        (201, 1.0, "the receiver cannot be reached, or does not answer in time"),
    ],
)
def test_a_receiver_that_fails_leaves_one_sentence(
    shop: Workspace,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    delay_s: float,
    why: str,
) -> None:
    transport = {"type": "http", "url": receiver.url, "timeout": 0.2, "retry": {"total": 1, "backoff_factor": 0}}
    for name, value in transport.items():
        text = value if isinstance(value, str) else json.dumps(value)
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name.upper()}", text)
    receiver.status, receiver.delay_s = status, delay_s
    with caplog.at_level(logging.ERROR, logger="tidemark.openlineage"):
        for _ in range(3):
            run_batch(shop)
        openlineage._sender()._waiting.join()
    assert [commit.batch_id for commit in shop.batches.history()] == [0, 1, 2]
    [record] = caplog.records
    assert record.getMessage().startswith(f"OpenLineage did not accept an event: {why}. Batches are not affected;")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OPENLINEAGE_URL": "http://127.0.0.1:9", "OPENLINEAGE_DISABLED": "True"},
        {"OPENLINEAGE_CONFIG": "/no/file"},
    ],
)
def test_no_batch_is_watched_where_openlineage_is_not_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert lineage_watch(lambda: None) is None


def test_nothing_of_openlineage_is_imported_where_it_is_not_set_up(tmp_path: Path) -> None:
    script = (
        "import sys; from tidemark.pipelines.code_location.watches import lineage_watch;"
        "assert lineage_watch(lambda: None) is None;"
        "assert not [name for name in sys.modules if name.startswith('openlineage')]"
    )
    known = {name: value for name, value in os.environ.items() if not name.startswith("OPENLINEAGE")}
    environment = {**known, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, timeout=120)


def test_a_file_of_openlineage_in_the_working_folder_sets_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert not openlineage.is_wanted()
    (tmp_path / "openlineage.yml").write_text("transport: {type: console}", encoding="utf-8")
    assert openlineage.is_wanted()


def test_a_process_that_ends_sends_what_waits(tmp_path: Path, receiver: Receiver) -> None:
    script = (
        "from openlineage.client.event_v2 import Job, Run, RunEvent, RunState;"
        "from tidemark.resources import openlineage;"
        "made = lambda: RunEvent(eventType=RunState.START, eventTime='2026-01-01T00:00:00Z', run=Run("
        f"'{RUN}'), job=Job('a', 'b'));"
        "[openlineage.send(made) for _ in range(5)]"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], env=environment, cwd=tmp_path, check=True, timeout=60)
    assert len(receiver.got) == 5
