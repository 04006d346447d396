"""Fixtures of the tests with killed processes: an S3 server that this process and its children reach."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3 import S3Server, s3_server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path) as started:
        for name, value in started.environment.items():
            monkeypatch.setenv(name, value)
        yield started
