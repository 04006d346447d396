"""Dagster's daemon and a warm Spark, as processes of a test or a benchmark.

Here: starting them over a folder of specs. Not here: what they are to do.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.ports import free_port
from tests.processes import ROOT, process, wait_until
from tidemark.resources.places.place import Place


@contextmanager
def daemon(home: Path, specs: Path, warehouse: Place) -> Iterator[None]:
    """Dagster's daemon over a folder of specs."""
    places = {"DAGSTER_HOME": home, "TIDEMARK_SPECS": specs, "TIDEMARK_WAREHOUSE": warehouse}
    command = [str(Path(sys.executable).parent / "dagster-daemon"), "run", "-w", str(ROOT / "workspace.yaml")]
    with process(command, {name: str(place) for name, place in places.items()}, specs / "daemon.log"):
        yield


@contextmanager
def warm_spark(home: Path, folder: Path) -> Iterator[None]:
    """What `tidemark serve` keeps, ready."""
    command = [sys.executable, "-m", "tidemark.pipelines.cli", "serve", "--port", str(free_port())]
    log = folder / "serve.log"
    with process(command, {"DAGSTER_HOME": str(home)}, log) as server:
        wait_until(lambda: "ready" in log.read_text() or server.poll() is not None, log)
        yield
