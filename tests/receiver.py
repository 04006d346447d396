"""Receivers of what a pipeline sends: a web server that keeps what it gets, and may be slow or answer with errors."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """A server on this machine.

    Attributes:
        url: Its address.
        status: What it answers.
        delay_s: How long it takes to answer.
        got: The bodies of the requests, read as JSON.
    """

    url: str = ""
    status: int = 201
    delay_s: float = 0.0
    got: list[dict[str, Any]] = field(default_factory=list)

    def wait_for(self, count: int, seconds: float = 10.0) -> list[dict[str, Any]]:
        """Return what came, as soon as there are so many; fail if they do not come."""
        until = time.monotonic() + seconds
        while len(self.got) < count and time.monotonic() < until:
            time.sleep(0.01)
        assert len(self.got) >= count, f"{len(self.got)} came of {count}"
        return list(self.got)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver on a free port."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.got.append(json.loads(body))
            time.sleep(receiver.delay_s)
            self.send_response(receiver.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield receiver
        server.shutdown()
