"""An object store for the tests, what this process is to forget of it, and commands that say soon what is wrong."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.s3 import SECRET, S3Server, s3_server
from tidemark.pipelines.cli import main
from tidemark.resources.places import checks
from tidemark.resources.places.place import Place

PATIENCE_S = 60
"""Four times what a person may have to wait, as other tests run beside these."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def store(
    server: S3Server, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """URL of a new bucket, which this process reaches; what it knows of stores is forgotten."""
    for name, value in {**server.environment, "DAGSTER_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, value)
    forget()
    yield server.make_bucket(f"b{abs(hash(request.node.nodeid))}")
    server.tell(ignore_conditions=None, deny_writes=None)
    forget()


def forget() -> None:
    checks.ensure_answers.cache_clear()
    checks.ensure_put_if_absent.cache_clear()


def said_soon(word: str, spec: Path, warehouse: Place | str, *more: str, secret: str = SECRET) -> Result:
    """Return a command; it ends soon, and says nothing secret."""
    start = time.monotonic()
    result = CliRunner().invoke(main, [word, str(spec), "--warehouse", str(warehouse), *more])
    assert time.monotonic() - start < PATIENCE_S
    assert secret not in result.output
    return result
