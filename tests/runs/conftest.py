"""The folder in which tests of commands work."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession


@pytest.fixture
def folder(workplace: Path, spark: SparkSession) -> Path:
    """Return the working folder of tests whose commands compute."""
    return workplace
