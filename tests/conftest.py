"""Fixtures that the whole suite shares: one small Spark session, as a JVM takes long to start; a working folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tidemark.resources.spark.session import JAVA_OPTIONS, local_session, session_config

pytest_plugins = ["tests.durations", "tests.choice", "tests.kafka", "tests.seeds"]


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder, with an empty folder for input; Dagster's home and the warehouse come next to it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    return tmp_path


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """One local session with Delta for all tests; a test that changes a setting puts it back."""
    tests = (one for one in request.session.items if isinstance(one, pytest.Function))
    needs_google = any("[gs" in one.name and "spark" in one.fixturenames for one in tests)  # its client has 39 MB
    config = session_config(small=True, stores=["s3://any", *(["gs://any"] if needs_google else [])])
    if request.config.option.all:  # in an hour Java's second compiler saves more than it takes
        config[JAVA_OPTIONS] = session_config()[JAVA_OPTIONS]
    session = local_session(config)
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _same_settings(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restore the settings of the tests after a run, which sets its own on the session that it finds."""
    yield
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        for name, value in session_config(small=True).items():
            if name.startswith("spark.sql") and session.conf.isModifiable(name):
                session.conf.set(name, value)
