"""What a client of Spark Connect needs before long queries go through it.

Here: ways around limits and faults of its libraries. Not here: choosing a server and connecting (choice.py).
"""

import atexit
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from threading import Thread

_PATIENCE_S = 1.0  # for what is being let go when the process ends


def allow_deep_plans() -> None:
    """Let queries be longer than fifty steps: by default protobuf's parser ends at a hundred levels, two for a step.

    The parser has no other switch for it. Where it is another implementation, long queries fail by themselves.
    """
    with suppress(ImportError, AttributeError):
        from google._upb import _message  # noqa: PLC0415 - only a client needs protobuf

        _message.SetAllowOversizeProtos(True)


@cache
def release_in_a_thread() -> None:
    """Let a thread tell the server which checkpoints it can forget: where PySpark does so, the process can die.

    PySpark does it in `__del__`, so wherever the last reference goes: often deep within plans that are being freed,
    each of which frees the next. From a depth on, fifty objects in Python 3.11, Python only notes what is to be
    freed. Protobuf's upb module does not see that. Asked again for a part of a message, it gives the one that is
    noted already, and that is freed twice. A thread of its own begins at depth zero.
    """
    from pyspark.sql.connect.plan import CachedRemoteRelation  # noqa: PLC0415 - takes a second to import

    release = CachedRemoteRelation.__del__
    unused: SimpleQueue[CachedRemoteRelation | None] = SimpleQueue()  # its `put` can be called in `__del__`

    def work() -> None:
        while (checkpoint := unused.get()) is not None:
            release(checkpoint)

    def hand_over(checkpoint: CachedRemoteRelation) -> None:
        unused.put(checkpoint)

    def end() -> None:
        unused.put(None)
        thread.join(_PATIENCE_S)

    CachedRemoteRelation.__del__ = hand_over  # type: ignore[method-assign]
    thread = Thread(target=work, name="release of checkpoints", daemon=True)
    thread.start()
    atexit.register(end)
