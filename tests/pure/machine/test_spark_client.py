"""Faults that are mended in the client of Spark Connect, without a server."""

import time
from dataclasses import dataclass, field
from typing import Any, cast

from pyspark.sql.connect.plan import CachedRemoteRelation

from tidemark.resources.spark.client import release_in_a_thread

DEEPEST = 120  # more than twice what Python frees at a stretch


@dataclass
class Client:
    """Where PySpark looks first when it lets a checkpoint go. It is closed, so that nothing is sent."""

    freed_at_once: list[bool] = field(default_factory=list)

    @property
    def is_closed(self) -> bool:
        freed: list[bool] = []

        class Probe:
            def __del__(self) -> None:
                freed.append(True)

        Probe()
        self.freed_at_once.append(bool(freed))
        return True


@dataclass
class Session:
    """Session as a checkpoint knows it."""

    client: Client = field(default_factory=Client)


def test_checkpoints_are_let_go_where_python_frees_at_once_however_deep_they_lie() -> None:
    release_in_a_thread()
    session = Session()
    for depth in range(DEEPEST):
        held: Any = CachedRemoteRelation(str(depth), cast("Any", session))
        for _ in range(depth):
            held = [held]
        del held
    deadline = time.monotonic() + 10
    while len(session.client.freed_at_once) < DEEPEST and time.monotonic() < deadline:
        time.sleep(0.01)
    assert session.client.freed_at_once == [True] * DEEPEST
