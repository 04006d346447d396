"""The Spark Connect server that stays warm between runs: its settings, and how runs on this machine find it.

Here: its note, and its proof that it knows the token, before a run sends the token. Not here: its life
(pipelines/warm/serving.py), the choice of it (resources/spark/choice.py).
"""

import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from urllib.parse import urlparse

from filelock import FileLock

_ANSWER_PATIENCE_S = 5.0
"""A run waits this long for the whole answer, also if it comes bit by bit."""
_BYTES = 32
PORT = 15002
"""Spark Connect's own."""
_NOTE = "spark_server.json"
_STORES = "spark_server_stores.json"
_TOKEN_VARIABLE = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
_PATIENCE_S = 2.0


@contextmanager
def proving(token: str, is_alive: Callable[[], bool]) -> Iterator[int]:
    """Send the proof to each process that asks on this machine, during the block; yield the port.

    No proof is sent if the server is not alive: a client would send the token to another program at its port.
    """

    class Answer(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                question = _receive(self.request)
                if len(question) == _BYTES and is_alive():
                    self.request.sendall(_answer(token, question))

    with ThreadingTCPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def proves(port: int, token: str) -> bool:
    """Return whether the process at a port of this machine knows the token; the token is not sent."""
    question = secrets.token_bytes(_BYTES)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_ANSWER_PATIENCE_S) as connection:
            connection.sendall(question)
            return hmac.compare_digest(_receive(connection), _answer(token, question))
    except OSError:
        return False


def _answer(token: str, question: bytes) -> bytes:
    return hmac.digest(token.encode(), b"tidemark serve" + question, "sha256")


def _receive(connection: socket.socket) -> bytes:
    """Return as many bytes as question and answer have; fewer if the other side stops or waits too long."""
    received, deadline = b"", time.monotonic() + _ANSWER_PATIENCE_S
    while len(received) < _BYTES and (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        part = connection.recv(_BYTES - len(received))
        if not part:
            break
        received += part
    return received


@dataclass(frozen=True)
class ServerNote:
    """The note of a server about itself.

    The URL has the token that admits clients. `proof` is the port at which it proves that it knows the token, see
    `proving`.
    """

    url: str
    pid: int
    proof: int

    @property
    def address(self) -> str:
        """Host and port, without the token: for people."""
        return server_address(self.url)


def server_config(port: int) -> dict[str, str]:
    """Return settings that make a local session a server as well, for clients on this machine alone."""
    return {
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.marshallerRecursionLimit": "8192",  # queries are long: two levels for each step
        # A killed client says no good-bye: its objects are dropped after this much silence.
        "spark.connect.session.manager.defaultSessionTimeout": "15m",
    }


def new_token() -> str:
    """Return a new token, which the server takes from the environment: all may read its command line."""
    os.environ[_TOKEN_VARIABLE] = token = secrets.token_urlsafe(32)
    return token


def note_of_this_process(port: int, token: str, proof: int) -> ServerNote:
    """Return the note for a server of this process."""
    return ServerNote(f"sc://localhost:{port}/;token={token}", os.getpid(), proof)


def leave_note(home: Path, note: ServerNote) -> None:
    """Let runs with this Dagster home find the server; only its owner may read the file."""
    path = home / _NOTE
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(note), file)


def remove_note(home: Path, note: ServerNote) -> None:
    """Take the note away, unless another server has left its own by now."""
    if find_note(home) == note:
        (home / _NOTE).unlink(missing_ok=True)


def find_note(home: Path) -> ServerNote | None:
    """Return the note in a Dagster home; None if there is none that can be read."""
    try:
        note: Mapping[str, object] = json.loads((home / _NOTE).read_text())
        return ServerNote(str(note["url"]), int(str(note["pid"])), int(str(note["proof"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def known_otherwise(home: Path, note: ServerNote, stores: Mapping[str, object]) -> str | None:
    """Return the first of some stores that the server has opened in another way for a run; None if there is none.

    A server keeps a store as it was opened first, and looks it up only by its name. A bucket of the same name at
    another address, or with another account, would still be read at the first. Stores that are not known yet are
    remembered.

    Of the options of each store, by its URL, only a digest is kept, with the server's token as its key.
    """
    token, server = note.url.rpartition("token=")[2], [note.pid, note.proof]
    ways = {
        root: hmac.digest(token.encode(), json.dumps(way, sort_keys=True).encode(), "sha256").hex()
        for root, way in stores.items()
    }
    with FileLock(home / f".{_STORES}.lock"):
        opened = _stores_of(home, server)
        other = next((root for root, way in ways.items() if opened.get(root, way) != way), None)
        if other is None and not ways.items() <= opened.items():
            (home / _STORES).write_text(json.dumps({"server": server, "stores": {**opened, **ways}}))
    return other


def _stores_of(home: Path, server: list[int]) -> Mapping[str, str]:
    try:
        noted = json.loads((home / _STORES).read_text())
        return dict(noted["stores"]) if noted["server"] == server else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def server_address(url: str) -> str:
    """Return host and port of a Spark Connect URL."""
    host, port = _place(url)
    return f"{f'[{host}]' if ':' in host else host}:{port}"


def is_here(url: str) -> bool:
    """Return whether a Spark Connect URL points to this machine."""
    return _place(url)[0] in ("localhost", "127.0.0.1", "::1")


def is_there(note: ServerNote) -> bool:
    """Return whether the server of a note lives and serves; the token is not sent to find out."""
    token = note.url.rpartition("token=")[2]
    return proves(note.proof, token) and is_answering(note.url)


def is_answering(url: str) -> bool:
    """Return whether a process listens at a Spark Connect URL; a client would keep trying for minutes."""
    try:
        with socket.create_connection(_place(url), timeout=_PATIENCE_S):
            return True
    except OSError:
        return False


def _place(url: str) -> tuple[str, int]:
    parts = urlparse(url)
    return parts.hostname or "", parts.port or PORT
