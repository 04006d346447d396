"""Proof of who listens: the server of `tidemark serve` shows that it knows the token, before a run sends it.

Here: the question and the answer. Not here: the note that holds the token (server.py).

A note outlives a server that was killed, and anybody may then listen at its port. So the process that serves answers
at a port of its own: to a number that the run has just made up, with its HMAC under the token. It answers only while
its Spark lives, which holds the port for clients.
"""

import hmac
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread

PATIENCE_S = 5.0
"""So long a run waits for the whole answer, also of somebody who sends it bit by bit."""
_BYTES = 32


@contextmanager
def proving(token: str, is_alive: Callable[[], bool]) -> Iterator[int]:
    """While inside, whoever asks on this machine is given the proof; gives the port.

    Args:
        token: What is to be known.
        is_alive: Whether the server works that clients would send the token to.
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
    """Whether the one who listens at a port of this machine knows the token; the token is not sent."""
    question = secrets.token_bytes(_BYTES)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as asked:
            asked.sendall(question)
            return hmac.compare_digest(_receive(asked), _answer(token, question))
    except OSError:
        return False


def _answer(token: str, question: bytes) -> bytes:
    return hmac.digest(token.encode(), b"tidemark serve" + question, "sha256")


def _receive(connection: socket.socket) -> bytes:
    """As many bytes as question and answer have; fewer when the other one leaves off, or lets wait."""
    received, deadline = b"", time.monotonic() + PATIENCE_S
    while len(received) < _BYTES and (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        part = connection.recv(_BYTES - len(received))
        if not part:
            break
        received += part
    return received
