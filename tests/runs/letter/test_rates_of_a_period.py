"""Alerts that a small batch does not heal, and input that a run leaves, as Dagster shows them."""

import json
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetCheckEvaluation, AssetCheckKey, AssetKey, DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.running import go, pipeline
from tidemark.pipelines.spec_files import read_spec

ALERT = "alerts: {dead_letter_rate: {error: 80 %}}\n"


@pytest.mark.long
def test_a_device_that_loses_most_of_its_records_is_named_and_the_next_small_batch_turns_nothing_green(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Of all records four in ten are refused, of device b nine in ten."""
    file, settings = pipeline(tmp_path, "rated", "drop", sparse=False, over="k")
    file.path.write_text(ALERT + file.path.read_text())
    made = read_spec(file.path), settings
    folder = tmp_path / "in_rated"
    folder.mkdir()
    records = [record(f"a{n}", n, n, "a") for n in range(50)]
    records += [record("b0", 0, 60, "b"), record("b1", 1, 61, "b")]
    records += [record(f"b{n}", n, 0, "b") for n in range(2, 20)] + [
        record(f"c{n}", n, 0, "b") for n in range(20, 40)
    ]
    (folder / "a.jsonl").write_text("".join(records))
    (folder / "bad.jsonl").write_bytes("{}\n".encode("utf-16"))
    with DagsterInstance.ephemeral() as instance:
        first = go(made, instance)
        assert len(first.alerts) == 1, "what is held back is told by itself"
        assert not (held := result(instance, "raw_events", "nothing_held_back")).passed
        assert number(held, "held_back") == 1
        (folder / "bad.jsonl").unlink()
        (folder / "b.jsonl").write_text(record("later", 70, 70, "a"))
        second = go(made, instance)
        assert second.batches == 1
        assert result(instance, "raw_events", "nothing_held_back").passed
        rate = result(instance, "dead_letters", "dead_letter_rate")
    assert not rate.passed
    arrived = "of the records that arrived on 2026-01-01 were lost (38 of 40: 38 out_of_order); limit 80 %. To do:"
    assert f'Found over ["b"]: 95.0 % {arrived}' in str(rate.description)
    assert (number(rate, "records"), number(rate, "refused")) == (91, 38)
    assert number(rate, "refused_percent_at_most") == 95
    assert second.alerts == (f"check dead_letter_rate: {rate.description}",)


def record(name: str, came: int, at: int, device: str) -> str:
    times = {key: f"2026-01-01T00:{second // 60:02}:{second % 60:02}Z" for key, second in (("got", came), ("at", at))}
    return json.dumps({"id": name, "k": device, "v": 1, **times}) + "\n"


def result(instance: DagsterInstance, asset: str, check: str) -> AssetCheckEvaluation:
    key = AssetCheckKey(AssetKey(["rated", asset]), check)
    found = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])[key].event
    assert found is not None
    assert found.dagster_event is not None
    return found.dagster_event.asset_check_evaluation_data


def number(found: AssetCheckEvaluation, name: str) -> Any:
    return found.metadata[name].value
