"""Behaviour that S3 alone has: requests, conditional puts, signatures. Not here: suites/test_every_store.py."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import land
from tests.runs.running import Made, changed, go, pipeline
from tests.runs.store.conftest import forget, said_soon
from tests.s3 import KEY, SECRET, S3Server
from tidemark.resources.places.place import place_of


def in_store(tmp_path: Path, store: str) -> Made:
    made = pipeline(tmp_path, "shop", "drop", sparse=False)
    file, settings = changed(made, "path: in_shop", f"path: {store}/in_shop")
    return file, replace(settings, warehouse=place_of(f"{store}/warehouse"))


SMALL_BATCH = 850
"""Requests that a small batch may make: counted were up to 829; 110 of these read what came earlier on the day."""
WITH_CHECKPOINTS = 1_050
"""The same for one batch in ten, in which the logs of all tables get a checkpoint: counted were 1,010."""


@pytest.mark.long
def test_a_small_batch_makes_a_bounded_number_of_requests_however_many_came_before(
    server: S3Server, spark: SparkSession, tmp_path: Path, store: str
) -> None:
    made = in_store(tmp_path, store)
    counted = []
    with DagsterInstance.ephemeral() as instance:
        for number in range(13):
            start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=5 * number)
            land(tmp_path / "in_shop", 40, seed=number, files=1, prefix=f"n{number}_", start=start)
            [landed] = (tmp_path / "in_shop").glob(f"n{number}_*")
            place_of(f"{store}/in_shop/{landed.name}").write_bytes(landed.read_bytes())
            before = sum(server.requests().values())
            assert go(made, instance).batches == 1
            counted.append(sum(server.requests().values()) - before)
    assert max(counted) < WITH_CHECKPOINTS, counted
    assert sorted(counted)[-2] < SMALL_BATCH, counted
    assert sum(counted[9:13]) < sum(counted[2:6]) * 1.25, counted


def test_a_store_without_conditional_puts_is_refused(server: S3Server, tmp_path: Path, store: str) -> None:
    file, settings = in_store(tmp_path, store)
    land(tmp_path / "in_shop", 3, seed=1)
    server.tell(ignore_conditions=True)
    result = said_soon("run", file.path, settings.warehouse)
    assert result.exit_code == 1
    assert f"{store} has no conditional put" in result.output


def test_a_right_key_with_a_wrong_secret_is_a_sentence(
    server: S3Server, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, settings = in_store(tmp_path, store)
    with server.one_user() as user:
        for name, value in user.items():
            monkeypatch.setenv(name, value)
        assert said_soon("status", file.path, settings.warehouse).exit_code == 0, "the right secret"
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"not-{user['AWS_SECRET_ACCESS_KEY']}")
        for word in ("run", "status", "validate"):
            forget()
            result = said_soon(word, file.path, settings.warehouse)
            assert result.exit_code == 1, word
            assert f"{store} does not accept the credentials (SignatureDoesNotMatch)" in result.output, word
            assert "Traceback" not in result.output
            assert user["AWS_SECRET_ACCESS_KEY"] not in result.output


def test_no_message_plan_or_setting_that_others_read_holds_the_secret(tmp_path: Path, store: str) -> None:
    file, settings = in_store(tmp_path, store)
    assert SECRET not in repr((file, settings, place_of(store)))
    assert KEY not in repr(place_of(store))
