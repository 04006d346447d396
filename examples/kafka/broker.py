"""A broker of Kafka on this machine, for the tests and the demo: one node that holds its own metadata (KRaft).

Here: fetching it from Maven Central once, starting, stopping. Not here: pipelines, and clients
(resources/sources/kafka_connection.py).

It listens on the loopback address only. Its data is deleted with its folder.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from uuid import uuid4

import pyspark
from filelock import FileLock

from tidemark.resources.settings import cache_folder
from tidemark.timeops.errors import MachineError

VERSION = "4.3.1"
_ARTIFACT = ("org.apache.kafka", "kafka_2.13", VERSION)
_JAVA = ("-Xms128m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_PATIENCE_S = 90.0
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners={listeners}
advertised.listeners={advertised}
listener.security.protocol.map={protocols}
inter.broker.listener.name=PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.retention.ms=-1
"""


@dataclass
class LocalBroker:
    """A node with its folder; a restart keeps its topics and addresses.

    Attributes:
        folder: Its settings and data.
        ports: The port of each listener by the name of its protocol, such as PLAINTEXT.
        settings: Additional properties of the node.
    """

    folder: Path
    ports: Mapping[str, int]
    settings: Mapping[str, str] = field(default_factory=dict)
    _process: "subprocess.Popen[bytes] | None" = None

    @classmethod
    def made(
        cls, folder: Path, *, protocols: tuple[str, ...] = (), settings: Mapping[str, str] = MappingProxyType({})
    ) -> "LocalBroker":
        """Return a node that has not been started.

        Args:
            folder: An empty folder of its own.
            protocols: Listeners in addition to PLAINTEXT, such as SASL_SSL; `settings` says what they need.
            settings: Additional properties of the node.
        """
        names = ("PLAINTEXT", *protocols)
        ports = dict(zip((*names, "CONTROLLER"), _free_ports(len(names) + 1), strict=True))
        broker = cls(folder, ports, settings)
        broker._format()
        return broker

    @property
    def address(self) -> str:
        """Address of the PLAINTEXT listener."""
        return self.address_of("PLAINTEXT")

    def address_of(self, protocol: str) -> str:
        """Return the address of a listener."""
        return f"127.0.0.1:{self.ports[protocol]}"

    def start(self) -> None:
        """Start the node, and return when it answers.

        Raises:
            MachineError: The node does not start.
        """
        with (self.folder / "said.txt").open("ab") as said:
            self._process = subprocess.Popen(
                [*_java(), "kafka.Kafka", str(self.folder / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,  # Ctrl-C is meant for the process that started it, which stops it
            )
        until = time.monotonic() + _PATIENCE_S
        while self._process.poll() is None and time.monotonic() < until:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.ports["PLAINTEXT"]), 1):
                return
            time.sleep(0.1)
        self.kill()
        raise MachineError(
            f"The broker of Kafka does not start:\n{_end_of(self.folder / 'said.txt')}",
            remedy="see the lines above.",
        )

    def kill(self) -> None:
        """End the node at once, as a crash does."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _format(self) -> None:
        protocols = [name for name in self.ports if name != "CONTROLLER"]
        addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()}
        own = _SETTINGS.format(
            controller=self.ports["CONTROLLER"],
            listeners=",".join(addresses.values()),
            advertised=",".join(addresses[name] for name in protocols),
            protocols=",".join(["CONTROLLER:PLAINTEXT", *(f"{name}:{name}" for name in protocols)]),
            folder=self.folder,
        )
        more = "".join(f"{name}={value}\n" for name, value in self.settings.items())
        path = self.folder / "server.properties"
        path.write_text(own + more, encoding="utf-8")
        cluster = urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")
        words = ["kafka.tools.StorageTool", "format", "-t", cluster.replace("-", "A"), "-c", str(path)]
        done = subprocess.run([*_java(), *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise MachineError(
                f"The broker of Kafka cannot make its storage:\n{done.stdout}{done.stderr}".rstrip(),
                remedy="see the lines above.",
            )


@contextmanager
def running(
    folder: Path, *, protocols: tuple[str, ...] = (), settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[LocalBroker]:
    """Run a node during the block; see `LocalBroker.made`."""
    broker = LocalBroker.made(folder, protocols=protocols, settings=settings)
    try:
        broker.start()
        yield broker
    finally:
        broker.kill()


def fetch() -> Path:
    """Return the folder of the node's jars, which are fetched from Maven Central the first time.

    Raises:
        MachineError: They cannot be fetched.
    """
    return fetch_jars("kafka", _ARTIFACT)


def fetch_jars(name: str, artifact: tuple[str, str, str], *, alone: bool = False) -> Path:
    """Return the folder of a program's jars, with its dependencies unless it comes alone.

    Args:
        name: Name of the folder of jars.
        artifact: Group, name and version in Maven Central.
        alone: Whether its dependencies are left out.

    Raises:
        MachineError: They cannot be fetched.
    """
    cache = cache_folder()
    _, module, version = artifact
    jars = cache / f"{name}-{version}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{name}.lock"):
        if jars.is_dir():
            return jars
        unfinished = cache / f"{name}-{version}.{os.getpid()}"
        shutil.rmtree(unfinished, ignore_errors=True)
        command = [*_resolver(unfinished, artifact), *(["-notransitive"] if alone else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not list(unfinished.glob(f"{module}-*.jar")):
            shutil.rmtree(unfinished, ignore_errors=True)
            said = "\n".join(done.stdout.rstrip("\n").split("\n")[-15:])
            raise MachineError(
                f"{module} {version} cannot be fetched from Maven Central:\n{said}",
                remedy="the first start needs the network; see the lines above.",
            )
        shutil.rmtree(unfinished / "cache", ignore_errors=True)
        unfinished.rename(jars)
    return jars


def _resolver(folder: Path, artifact: tuple[str, str, str]) -> list[str]:
    """Return the command that fetches an artifact and its dependencies, by the resolver of PySpark."""
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    cache, pattern = folder / "cache", folder / "[artifact]-[revision](-[classifier]).[ext]"
    words = ["-confs", "default", "-cache", str(cache), "-dependency", *artifact, "-retrieve", str(pattern)]
    return [java_program(), "-jar", str(ivy), *words]


def _java() -> list[str]:
    return [java_program(), *_JAVA, "-cp", str(fetch() / "*")]


def java_program() -> str:
    """Return the Java of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else "java"


def _free_ports(count: int) -> list[int]:
    """Return ports on which no process listens."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _end_of(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")[-lines:])
