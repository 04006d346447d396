"""Real processes of a test: Dagster's daemon, a warm Spark, a cluster of Spark, HDFS, and the ports that they serve.

Here: starting them with a log, waiting for them, and ending all that they started. Not here: what they are to do.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyspark

from examples.kafka.broker import fetch_jars, java_program
from tests import ROOT
from tidemark.resources.places.place import Place, RemotePath
from tidemark.resources.places.stores import StoreError
from tidemark.resources.spark.session import session_config


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


PATIENCE_S = 300
"""Until a process has done what is waited for, on a machine that is busy with other tests."""


@contextmanager
def process(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process in the checkout; what it says goes to a file.

    Args:
        command: The program and its arguments.
        environment: Variables beside those of this process.
        log: The file.
    """
    with log.open("wb") as said:
        started = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=said, stderr=said, start_new_session=True
        )
    try:
        yield started
    finally:
        started.terminate()
        with suppress(subprocess.TimeoutExpired):
            started.wait(30)
        with suppress(ProcessLookupError):  # what it started may outlive it
            os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def wait_until(holds: Callable[[], bool], log: Path, patience_s: float = PATIENCE_S) -> None:
    """Waits until something holds; without that the test fails, with what the process said."""
    end = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.2)


@contextmanager
def daemon(home: Path, specs: Path, warehouse: Place) -> Iterator[subprocess.Popen[bytes]]:
    """Yield Dagster's daemon over a folder of specs, where it writes `daemon.log`."""
    places = {"DAGSTER_HOME": home, "TIDEMARK_SPECS": specs, "TIDEMARK_WAREHOUSE": warehouse}
    command = [str(Path(sys.executable).parent / "dagster-daemon"), "run", "-w", str(ROOT / "workspace.yaml")]
    with process(command, {name: str(place) for name, place in places.items()}, specs / "daemon.log") as started:
        yield started


@contextmanager
def warm_spark(
    home: Path, folder: Path, *options: str, port: int | None = None, patience_s: float = PATIENCE_S
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield `tidemark serve`, ready; what it says is in `serve.log` in the folder."""
    command = [sys.executable, "-m", "tidemark.pipelines.cli", "serve", "--port", str(port or free_port()), *options]
    log = folder / "serve.log"
    with process(command, {"DAGSTER_HOME": str(home)}, log) as server:
        wait_until(lambda: "ready" in log.read_text() or server.poll() is not None, log, patience_s)
        yield server


MASTER, DRIVER, WORKERS = "127.0.0.1", "127.0.0.2", ("127.0.0.3", "127.0.0.4")
"""Their addresses, as if each were a machine of its own; those of Linux's loopback."""
_SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
_OF_SMALL_DATA = ("spark.sql.shuffle", "spark.sql.codegen", "spark.sql.adaptive")
"""Settings that a pipeline leaves to a cluster, as tests set them for small data."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs.

    Attributes:
        master: As `TIDEMARK_SPARK` names it.
        workers: Its workers. Each leads a group of processes, which its executors are in.
        environment_of_a_driver: What makes a run the driver of an application of this cluster.
        page: The port of the master's page.
    """

    master: str
    workers: Sequence[subprocess.Popen[bytes]]
    environment_of_a_driver: Mapping[str, str]
    page: int

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors at once, as if its machine went away."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)

    def says(self) -> dict[str, Any]:
        """Return what the master says of workers and applications; nothing while it starts."""
        try:
            with urlopen(f"http://{MASTER}:{self.page}/json/") as answer:
                known: dict[str, Any] = json.load(answer)
                return known
        except (OSError, ValueError):  # its page is there before it has something to say
            return {}


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """Yield a master and two workers of one core each, with a secret.

    Args:
        folder: Where they write: logs, and `spark-defaults.conf`, which the driver reads, too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    small = {name: value for name, value in session_config(small=True).items() if name.startswith(_OF_SMALL_DATA)}
    own = {"spark.authenticate": "true", "spark.authenticate.secret": "known to it", "spark.executor.memory": "600m"}
    lines = [f"{name} {value}\n" for name, value in (small | own).items()]
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    port, page, log = free_port(), free_port(), folder / "master.log"
    master = f"spark://{MASTER}:{port}"
    deploy = "org.apache.spark.deploy"

    def at(address: str) -> dict[str, str]:
        return {"SPARK_LOCAL_IP": address, "SPARK_CONF_DIR": str(folder)}

    with ExitStack() as stack:
        command = [_SPARK_CLASS, f"{deploy}.master.Master", "--host", MASTER, "--port", str(port)]
        stack.enter_context(process([*command, "--webui-port", str(page)], at(MASTER), log))
        workers = []
        for number, address in enumerate(WORKERS):
            command = [_SPARK_CLASS, f"{deploy}.worker.Worker", "--host", address, "--cores", "1", "--memory", "1g"]
            command += ["--webui-port", "0", "--work-dir", str(folder / f"worker{number}"), master]
            workers.append(stack.enter_context(process(command, at(address), folder / f"worker{number}.log")))
        cluster = Cluster(master, workers, {"TIDEMARK_SPARK": master, **at(DRIVER)}, page)
        wait_until(lambda: cluster.says().get("aliveworkers") == 2, log)
        yield cluster


VERSION = "3.5.0"
"""Of Hadoop, as that of the client that PySpark brings, which the cluster runs on."""
_ARTIFACT = ("org.apache.hadoop", "hadoop-client-minicluster", VERSION)
_OF_CLIENT = ("hadoop-client-*", "slf4j-*", "jcl-over-slf4j-*", "log4j-*", "commons-cli-*")
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_CLUSTER = ("org.apache.hadoop.mapreduce.MiniHadoopClusterManager", "-nomr", "-format", "-datanodes", "1")


@contextmanager
def hdfs(folder: Path) -> Iterator[RemotePath]:
    """Yield the root of an HDFS that runs inside; its ports are chosen by the system.

    Args:
        folder: Where it writes.
    """
    details, log = folder / "details.json", folder / "hdfs.log"
    own = fetch_jars("hadoop-minicluster", _ARTIFACT, alone=True) / "*"
    client = [jar for name in _OF_CLIENT for jar in (Path(pyspark.__file__).parent / "jars").glob(f"{name}.jar")]
    command = [java_program(), *_JAVA, "-cp", ":".join(map(str, (own, *client))), *_CLUSTER]
    command += ["-writeDetails", str(details), "-D", f"hdfs.minidfs.basedir={folder / 'data'}"]
    with process(command, {}, log) as cluster:
        wait_until(lambda: cluster.poll() is not None or (details.exists() and details.stat().st_size > 0), log)
        assert cluster.poll() is None, log.read_text()
        root = RemotePath(f"hdfs://localhost:{json.loads(details.read_text())['namenode_port']}")
        wait_until(lambda: _takes_files(root), log)
        yield root


def _takes_files(root: RemotePath) -> bool:
    """Return whether its data node has come: without one a file has nowhere to be."""
    try:
        (root / "tried").write_bytes(b"once")
    except StoreError:
        return False
    return True
