"""Serves the Data Docs of a warehouse's pipelines to browsers of this machine.

Browsers open no file from a page that came over HTTP, as Dagster's do. Here: which files an address stands for. Not
here: writing them (data_docs.py).
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from tidemark.resources.quality.data_docs import docs_folder
from tidemark.timeops.errors import TidemarkError


@contextmanager
def served(warehouse: Path, address: str) -> Iterator[None]:
    """While inside, the pages of `<pipeline>` stand under `<address>/<pipeline>/`.

    Args:
        warehouse: Folder of all pipelines' tables.
        address: `http://localhost:<port>`.

    Raises:
        TidemarkError: The address is not of this machine, or its port is in use.
    """
    found = urlsplit(address)
    if found.scheme != "http" or found.hostname not in {"localhost", "127.0.0.1"} or found.path.strip("/"):
        raise TidemarkError(
            f"TIDEMARK_DATA_DOCS is {address}.",
            expected="an address of this machine, such as http://localhost:3001",
            remedy="set it so, or to nothing: then checks tell where their pages lie, and link none",
        )
    port = found.port or 80
    try:
        server = _Server(("127.0.0.1", port), partial(_Pages, directory=str(warehouse)))
    except OSError as error:
        raise TidemarkError(
            f"Port {port}, which Data Docs are served at, cannot be used: {error.strerror}.",
            expected="a port that no other program has",
            remedy="end that program, or name another port, such as TIDEMARK_DATA_DOCS=http://localhost:3101",
        ) from error
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """A server that is silent about browsers that went away."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tells of other errors."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Pages(SimpleHTTPRequestHandler):
    """The files of the Data Docs, and nothing else of the warehouse."""

    def translate_path(self, path: str) -> str:
        """The file of an address; its first part is the pipeline."""
        warehouse = Path(self.directory)
        parts = Path(super().translate_path(path)).relative_to(warehouse).parts
        return str(docs_folder(warehouse / parts[0]).joinpath(*parts[1:])) if parts else ""

    def list_directory(self, path: object) -> None:  # noqa: ARG002
        """No folder is listed: pages are reached from the index."""
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Requests are nobody's concern."""
