"""OpenLineage: where events about batches go. They leave from a thread of their own, so that no batch waits for it.

Here: whether events are sent at all, and sending them with the client of OpenLineage, whose transport is configured
by its own environment variables and files. Not here: what the events say (assets/catalog/run_events.py), which
variables say so (resources/settings.py).

A receiver that is down, slow or broken leaves one sentence in the log. The events that it has not taken are lost:
lineage is a copy of what `batches` says.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tidemark.resources.settings import sends_lineage

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

_LOG = logging.getLogger("tidemark.openlineage")
_AT_EXIT_S = 5.0
"""How long a process that ends waits for events that have not left yet."""
_MOST_WAITING = 1_000  # of a receiver that is slower than the batches


def is_wanted() -> bool:
    """Return whether the client is installed, and the environment says where its events go; it is not imported."""
    return sends_lineage() and find_spec("openlineage") is not None


def send(event: "Callable[[], RunEvent]") -> None:
    """Let an event be made and sent, after the earlier ones; return at once."""
    _sender().put(event)


@contextmanager
def harmless() -> Iterator[None]:
    """Let the block fail without harm to the batch: its findings only go into an event."""
    try:
        yield
    except Exception as error:
        _LOG.debug("OpenLineage", exc_info=True)
        _LOG.error(
            "An event for OpenLineage could not be made (%s). The batch is not affected.", type(error).__name__
        )


@cache
def _sender() -> "_Sender":
    return _Sender()


class _Sender:
    """One thread that sends, and one that lets the end of the process wait for it for a moment."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[Callable[[], RunEvent]] = queue.Queue(_MOST_WAITING)
        self._fails = False
        threading.Thread(target=self._send_all, name="OpenLineage", daemon=True).start()
        # Python waits for threads that are not daemons, also in processes that `multiprocessing` has started, where
        # nothing that was registered with `atexit` runs.
        threading.Thread(target=self._outlast_main_thread, name="end of OpenLineage").start()

    def put(self, event: "Callable[[], RunEvent]") -> None:
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._say(
                f"OpenLineage accepts events more slowly than they arrive: {_MOST_WAITING:,} are waiting, "
                "further ones are lost"
            )

    def _send_all(self) -> None:
        client: Any = None
        while True:
            event = self._waiting.get()
            try:
                if client is None:
                    from openlineage.client import OpenLineageClient  # noqa: PLC0415 - seconds, off the batch's path

                    client = OpenLineageClient()
                client.emit(event())
                self._fails = False
            except Exception as error:
                _LOG.debug("OpenLineage", exc_info=True)
                self._say(f"OpenLineage did not accept an event: {_in_words(error)}")
            finally:
                self._waiting.task_done()

    def _say(self, what: str) -> None:
        """Log a sentence, once until an event is taken again."""
        if not self._fails:
            self._fails = True
            _LOG.error("%s. Batches are not affected; this is reported once until it accepts one again.", what)

    def _outlast_main_thread(self) -> None:
        threading.main_thread().join()
        until = time.monotonic() + _AT_EXIT_S
        while self._waiting.unfinished_tasks and not self._fails and time.monotonic() < until:
            time.sleep(0.02)
        if self._waiting.unfinished_tasks:
            self._say(
                f"OpenLineage did not accept the last events within {_AT_EXIT_S:g} s of the end of this process"
            )


def _in_words(error: Exception) -> str:
    """Return what went wrong; the text of an error may hold the receiver's URL, and that a password."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"the receiver answered with status {status}"
    of_transport = {
        "RetryError": "the receiver answers with errors",
        "ConnectionError": "the receiver cannot be reached, or does not answer in time",
        "ConnectTimeout": "the receiver cannot be reached in time",
        "ReadTimeout": "the receiver does not answer in time",
    }
    return of_transport.get(type(error).__name__, f"its client raised {type(error).__name__}")
