"""The wish to stop this process, by Ctrl-C or by SIGTERM, and which of the two came.

Here: the handlers, and a note of the signal. Not here: messages and the exit code (pipelines/command_line.py), the
tidying up (pipelines/runner.py).

An exception from a handler is not enough. Dagster and Spark replace our handlers, Dagster tries an interrupted stage
again, and Python drops errors inside a finalizer. So Python also writes the number of each signal into a socket,
whatever handles it.
"""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_noted: list[signal.Signals] = []
_sockets: list[socket.socket] = []


def stop_signal() -> signal.Signals | None:
    """Return the first signal that asked this process to stop; None if none has come, or if nothing listens."""
    for numbers in map(_read, _sockets):
        _noted.extend(signal.Signals(number) for number in numbers if number in _STOPPING)
    return _noted[0] if _noted else None


def ensure_not_stopped() -> None:
    """Check that this process was not asked to stop.

    Raises:
        KeyboardInterrupt: It was asked to stop.
    """
    if stop_signal() is not None:
        raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[None]:
    """Raise KeyboardInterrupt during the block at Ctrl-C and at SIGTERM, and note which one it was.

    Afterwards a process that was asked to stop is ended by the next signal at once. Only the main thread may listen;
    in another one nothing changes.
    """
    if current_thread() is not main_thread():
        yield
        return
    handlers = {one: signal.signal(one, _stop) for one in _STOPPING}
    receives, sends = socket.socketpair()
    for end in (receives, sends):
        end.setblocking(False)
    before = signal.set_wakeup_fd(sends.fileno(), warn_on_full_buffer=False)
    _sockets.append(receives)
    try:
        yield
    finally:
        is_stopped = stop_signal() is not None
        for one, handler in handlers.items():
            signal.signal(one, signal.SIG_DFL if is_stopped or handler is None else handler)
        signal.set_wakeup_fd(before)
        _sockets.remove(receives)
        _noted.clear()
        receives.close()
        sends.close()


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _read(receives: socket.socket) -> bytes:
    try:
        return receives.recv(4096)
    except BlockingIOError:
        return b""
