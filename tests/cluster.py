"""A standalone cluster of Spark on this machine: a master and two workers, each a process of its own.

Here: its life, the settings of a small one, what it says of itself. Not here: what a run does there.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyspark

from tests.ports import free_port
from tests.processes import process, wait_until
from tidemark.resources.spark.session import session_config

MASTER, DRIVER, WORKERS = "127.0.0.1", "127.0.0.2", ("127.0.0.3", "127.0.0.4")
"""Their addresses, as if each were a machine of its own; those of Linux's loopback."""
_SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
_OF_SMALL_DATA = ("spark.sql.shuffle", "spark.sql.codegen", "spark.sql.adaptive")
"""What a pipeline leaves to the settings of a cluster, and tests set for small data."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs.

    Attributes:
        master: As `TIDEMARK_SPARK` names it.
        workers: Its workers. Each leads a group of processes, which its executors are in.
        environment_of_a_driver: What makes a run the driver of an application of this cluster.
        page: The port at which the master tells of itself.
    """

    master: str
    workers: Sequence[subprocess.Popen[bytes]]
    environment_of_a_driver: Mapping[str, str]
    page: int

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors at once, as if its machine went away."""
        os.killpg(self.workers[number].pid, signal.SIGKILL)

    def says(self) -> dict[str, Any]:
        """What the master says of workers and applications; nothing while it starts."""
        try:
            with urlopen(f"http://{MASTER}:{self.page}/json/") as answer:
                known: dict[str, Any] = json.load(answer)
                return known
        except (OSError, ValueError):  # its page is there before it has something to say
            return {}


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[Cluster]:
    """A master and two workers of one core each, with a secret.

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
