"""Runs with input and tables in a store of Google: killed and cut, and refused."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.gcs import BUCKET, GcsServer, gcs_server
from tests.processes import process, wait_until
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.places.checks import StoreFailureError, ensure_answers, ensure_put_if_absent
from tidemark.resources.places.credentials import store_at
from tidemark.resources.places.place import place_of

ROOT = f"gs://{BUCKET}"
RESOLVE = """
from tidemark.resources.spark.session import local_session, session_config
local_session(session_config(small=True, stores=["gs://any"])).stop()
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with gcs_server(tmp_path) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


def test_a_store_of_google_decides_who_puts_a_file_and_refuses_a_stranger(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_put_if_absent(place_of(f"{ROOT}/warehouse"))
    with pytest.raises(FileExistsError):
        store_at(ROOT).put("warehouse/_tidemark/put_if_absent", b"", new=True)
    with pytest.raises(StoreFailureError, match="There is no bucket gs://none"):
        ensure_answers(place_of("gs://none/warehouse"))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(server.stranger()))
    with pytest.raises(StoreFailureError, match="does not accept the credentials"):
        ensure_answers(place_of(f"{ROOT}/of-a-stranger"))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(server.folder / "none.json"))
    with pytest.raises(StoreFailureError, match="file of the account for gs://bucket cannot be used"):
        ensure_answers(place_of(f"{ROOT}/of-nobody"))


@pytest.mark.long
def test_runs_in_a_store_of_google_whole_or_cut_and_killed_end_with_the_oracles_tables(
    server: GcsServer, tmp_path: Path
) -> None:
    # The resolver asks Maven, and Java's proxy is Google here: so it is asked before.
    subprocess.run([sys.executable, "-c", RESOLVE], env=_without_proxy(), check=True, capture_output=True)
    file, _ = pipeline(tmp_path, "google", "drop", sparse=False)
    file.path.write_text(file.path.read_text().replace("path: in_google", f"path: {ROOT}/in"))
    file = read_spec(file.path)
    land(tmp_path / "in_google", 200, seed=5)
    landed = sorted((tmp_path / "in_google").iterdir())
    _upload(landed[:2])
    _run(file.path, "cut", tmp_path, killed_at="closing windows")  # the next one ends this batch first
    _upload(landed[2:])
    _run(file.path, "cut", tmp_path, killed_at="committing")
    for warehouse in ("cut", "whole"):
        _run(file.path, warehouse, tmp_path)
        assert_tables_equal_the_oracle(place_of(f"{ROOT}/{warehouse}"), file.spec)


def _without_proxy() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}


def _upload(files: Sequence[Path]) -> None:
    for path in files:
        place_of(f"{ROOT}/in/{path.name}").write_bytes(path.read_bytes())


def _run(spec: Path, warehouse: str, folder: Path, *, killed_at: str | None = None) -> None:
    """Runs the command, to its end or until it says where it is."""
    log = folder / "run.log"
    command = [sys.executable, "-m", "tidemark.pipelines.cli", "run", str(spec)]
    environment = {"DAGSTER_HOME": str(folder)}
    with process([*command, "--warehouse", f"{ROOT}/{warehouse}"], environment, log) as running:
        if killed_at is not None:
            wait_until(lambda: killed_at in log.read_text() or running.poll() is not None, log)
            os.killpg(running.pid, signal.SIGKILL)
        ended = running.wait(300)
    assert ended == (0 if killed_at is None else -signal.SIGKILL), log.read_text()
