"""The preparations that a client of Spark Connect needs before it sends long queries.

Here: ways around limits and faults of its libraries. Not here: choosing a server and connecting
(resources/spark/choice.py).
"""

import atexit
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from threading import Thread

_PATIENCE_S = 1.0  # for objects that are freed when the process ends


def allow_deep_plans() -> None:
    """Allow queries of more than fifty steps: by default protobuf's parser ends at a hundred levels, two for a step.

    The parser has no other switch for it. With another implementation long queries still fail.
    """
    with suppress(ImportError, AttributeError):
        from google._upb import _message  # noqa: PLC0415 - only a client needs protobuf

        _message.SetAllowOversizeProtos(True)


@cache
def release_in_a_thread() -> None:
    """Release checkpoints on the server in a thread: where PySpark does it, the process can die.

    PySpark does it in `__del__`, wherever the last reference goes: often deep within plans that are being freed,
    where each frees the next. From a depth of fifty objects on, Python 3.11 only notes the objects to free.
    Protobuf's upb module does not see that. Asked again for a part of a message, it returns the object that is
    already noted, which is then freed twice. A separate thread begins at depth zero.
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
