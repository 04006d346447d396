"""A Spark and a process that stay warm between runs: started, warmed up by a small pipeline, there until stopped.

Here: their life. Not here: what a person types (pipelines/commands/operating.py), Spark's settings and how runs find
it (resources/spark/server.py), who takes it (resources/spark/choice.py).
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from tidemark.pipelines.spec_files import read_specs, spec_paths
from tidemark.pipelines.warm.asking import warm_process
from tidemark.resources.scratch import scratch_folder
from tidemark.resources.settings import SPARK_VARIABLE, Settings
from tidemark.resources.sources.kinds import reader_of
from tidemark.resources.spark.choice import stores_of
from tidemark.resources.spark.server import (
    ServerNote,
    find_note,
    is_answering,
    is_there,
    leave_note,
    new_token,
    note_of_this_process,
    proving,
    remove_note,
    server_address,
    server_config,
)
from tidemark.resources.spark.session import local_session, session_config
from tidemark.timeops.errors import TidemarkError

_LOOK_EVERY_S = 2.0
_WARM_UP_RUNS = 2
_WARM_UP_SPEC = """\
name: warm_up
sources:
  - {name: lines, kind: files, path: "in/*.jsonl", format: json, schema: "t STRING, k STRING, v DOUBLE", settle: 0 s}
time: {timestamp_by: t, out_of_orderness: 10 s, out_of_order: drop}
windows:
  - {name: by_minute, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: "count(*)", most: "max(v)"}}
  - {name: by_session, kind: session, gap: 30 s, group_by: [k], aggregates: {n: "count(*)"}}
"""


def serve(settings: Settings, port: int, tell: Callable[[str], None], *, metrics_port: int | None = None) -> None:
    """Keep a warm Spark and a warm process for all that have this Dagster home, until it is told to stop.

    They listen on this machine alone. A Spark that the settings name computes. With `metrics_port` it answers there
    with metrics of the pipelines whose specs are in the folder of the settings, also while Spark starts.

    Raises:
        TidemarkError: There is a server already, a port is taken, or Spark does not start or has ended.
        KeyboardInterrupt: It was told to stop.
    """
    _check(settings, port)
    # The warm process imports while Spark starts.
    with warm_process(settings.dagster_home), _metrics(settings, metrics_port, tell):
        _serve(settings, port, tell)


@contextmanager
def _metrics(settings: Settings, port: int | None, tell: Callable[[str], None]) -> Iterator[None]:
    """Answer with metrics at a port during the block, if there is one."""
    if port is None:
        yield
        return
    from tidemark.pipelines.views.metrics import ADDRESS, Look, endpoint, look  # noqa: PLC0415 - only where they are asked for

    def look_at_all() -> list[Look]:
        return [look(path, settings.warehouse) for path in spec_paths([settings.specs])]

    with endpoint(port, look_at_all):
        tell(f"metrics of the specs in {settings.specs} are at http://{ADDRESS}:{port}/metrics")
        yield


def _serve(settings: Settings, port: int, tell: Callable[[str], None]) -> None:
    token = new_token()
    tell("starting Spark")
    files = read_specs([settings.specs]).files if settings.specs.is_dir() else ()
    stores = stores_of(settings, [path for file in files for path in file.inputs])
    readers = [reader_of(source, file.folder) for file in files for source in file.spec.sources]
    packages = list(dict.fromkeys(package for reader in readers for package in reader.needs().packages))
    config = session_config(settings.spark, ui=settings.spark_ui, stores=stores, readers=packages)
    session = local_session(config | server_config(port))
    if page := session.sparkContext.uiWebUrl:
        tell(f"Spark's UI is at {page}")
    try:
        with proving(token, lambda: _lives(session)) as proof:
            note = note_of_this_process(port, token, proof)
            tell("warming up")
            _warm_up(note)
            home = settings.dagster_home
            leave_note(home, note)
            try:
                tell(f"ready at {note.address}: runs with DAGSTER_HOME={home} use it; Ctrl-C stops it")
                while is_answering(note.url):
                    time.sleep(_LOOK_EVERY_S)
            finally:
                remove_note(home, note)
        raise TidemarkError("Spark has ended.", remedy="read the messages above, and start it again.")
    finally:
        with suppress(OSError, Py4JError):  # the signal may have ended the JVM as well
            session.stop()


def _lives(session: SparkSession) -> bool:
    """Return whether the JVM of the session lives: then it holds the port for clients."""
    try:
        return bool(session.sparkContext.version)
    except (OSError, Py4JError):
        return False


def _check(settings: Settings, port: int) -> None:
    if settings.spark is not None and settings.spark.startswith("sc://"):
        raise TidemarkError(
            f"{SPARK_VARIABLE} already names a server, at {server_address(settings.spark)}.",
            expected="nothing, or a master such as local[4] or spark://host:7077",
            remedy=f"unset {SPARK_VARIABLE}: runs use the server that it names and not this one.",
        )
    note = find_note(settings.dagster_home)
    if note is not None and is_there(note):
        raise TidemarkError(
            f"A server is already running at {note.address}: process {note.pid}.",
            expected="one per Dagster home",
            remedy="use it, or stop it before you start another one.",
        )
    if is_answering(f"sc://localhost:{port}"):
        raise TidemarkError(
            f"Port {port} is taken by another program.", expected="a free port", remedy="name one with --port."
        )


def _warm_up(note: ServerNote) -> None:
    """Run a small pipeline, batch after batch: the first queries of a JVM take several times as long as others."""
    with scratch_folder() as folder:
        (folder / "in").mkdir()
        spec = folder / "warm_up.yaml"
        spec.write_text(_WARM_UP_SPEC)
        environment = os.environ | {SPARK_VARIABLE: note.url, "DAGSTER_HOME": str(folder / "home")}
        run_it = [sys.executable, "-P", "-m", "tidemark.pipelines.entrance", "run", str(spec)]
        command = [*run_it, "--warehouse", str(folder / "warehouse")]
        for run in range(_WARM_UP_RUNS):
            (folder / "in" / f"{run}.jsonl").write_text("\n".join(_lines(run)))
            completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if completed.returncode:
                raise TidemarkError(f"The first run on it failed: {completed.stderr.strip()}")


def _lines(run: int) -> Iterator[str]:
    """Return records of some minutes, a few of them late."""
    for n in range(1_000):
        second = run * 600 + n * 0.6 - (60 if n % 100 == 99 else 0)
        minute, seconds = divmod(max(second, 0), 60)
        yield json.dumps({"t": f"2026-01-01T00:{int(minute):02}:{seconds:06.3f}Z", "k": f"k{n % 7}", "v": n * 1.5})
