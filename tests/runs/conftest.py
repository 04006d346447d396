"""The folder in which tests of commands work."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> Path:
    """Return the working folder, with a folder for input; Dagster's home and the warehouse come beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    return tmp_path
