"""Dagster's databases in SQLite: connections that a process keeps while it runs or launches something.

Here: the connections. Not here: who keeps them (a command in pipelines/running/instance.py; a run in
pipelines/running/execution.py, pipelines/warm_process.py and assets/live.py; a daemon in pipelines/warm_runs.py), or
other storages of Dagster, which keep theirs by themselves.
"""

import atexit
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from sqlite3 import Connection, Error
from threading import Lock
from typing import Any

from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from sqlalchemy import Engine, QueuePool, create_engine
from sqlalchemy.event import listen

_MOST_KEPT = 6  # two files of all runs, and one of each run
_MODULES: tuple[Any, ...] = (sqlite_event_log, sqlite_run_storage)
"""The modules of Dagster that make an engine."""


@contextmanager
def databases_open() -> Iterator[None]:
    """Keep connections to the files of Dagster's SQLite storage that are used during the block, the last six.

    Dagster (1.13) makes an engine of SQLAlchemy for each event and each question, which compiles the statement, opens
    the file and closes it again. That takes longer than the statement does. The connection that closes a file last
    also makes SQLite copy the file's log back and wait for the disk.
    """
    if any(module.create_engine is not create_engine for module in _MODULES):  # an outer block keeps them
        yield
        return
    engines = _Engines()
    for module in _MODULES:
        module.create_engine = engines.of
    try:
        yield
    finally:
        for module in _MODULES:
            module.create_engine = create_engine
        engines.close()


@cache
def keep_databases_open() -> None:
    """Do the same until this process ends."""
    until_the_end = ExitStack()
    atexit.register(until_the_end.close)
    until_the_end.enter_context(databases_open())


class _Engines:
    """The engines of some files, the one that was used last at the end."""

    def __init__(self) -> None:
        self._kept = OrderedDict[str, Engine]()
        self._lock = Lock()

    def of(self, url: str, **options: Any) -> Engine:
        """Return the engine of a file, as `sqlalchemy.create_engine` does."""
        with self._lock:
            if url not in self._kept:
                self._kept[url] = create_engine(url, **{**options, "poolclass": _Kept, "max_overflow": -1})
                listen(self._kept[url], "connect", _with_log)
            self._kept.move_to_end(url)
            if len(self._kept) > _MOST_KEPT:
                _close(self._kept.popitem(last=False)[1])
            return self._kept[url]

    def close(self) -> None:
        """Close all connections."""
        for engine in self._kept.values():
            _close(engine)


class _Kept(QueuePool):
    """Connections that stay open: Dagster disposes of an engine after each use."""

    def dispose(self) -> None:
        """Keep them."""

    def recreate(self) -> "_Kept":
        """Return this pool: the engine continues with it."""
        return self

    def close(self) -> None:
        """Close the ones that are not in use."""
        super().dispose()


def _close(engine: Engine) -> None:
    if isinstance(engine.pool, _Kept):
        engine.pool.close()


def _with_log(connection: Connection, _: object) -> None:
    """Let a database have a log from the start: Dagster makes all tables of a new run first, with a journal each."""
    with suppress(Error):  # the run itself says what is wrong with a file that it needs
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
