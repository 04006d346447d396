"""The choice of Spark: this process, a cluster, a Spark Connect server, or the server of `tidemark serve`.

Here: choosing, and connecting to a server. Not here: sessions of this process and the settings of all
(resources/spark/session.py).
"""

import atexit
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from threading import Timer

from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession, is_remote

from tidemark.resources.places.credentials import hadoop_settings, named_roots
from tidemark.resources.places.place import Place, roots_of
from tidemark.resources.settings import SPARK_VARIABLE, Settings
from tidemark.resources.spark.class_cache import make_in_background
from tidemark.resources.spark.client import allow_deep_plans, release_in_a_thread
from tidemark.resources.spark.delta_jars import delta_package, store_packages
from tidemark.resources.spark.server import (
    ServerNote,
    find_note,
    is_answering,
    is_here,
    is_there,
    known_otherwise,
    server_address,
)
from tidemark.resources.spark.session import (
    PACKAGES,
    SERVED_SETTINGS,
    check_java,
    local_session,
    restore_settings,
    session_config,
    settle,
    use_stores,
    with_little_memory,
    with_one_compiler,
    with_our_java,
    without_delta,
)
from tidemark.timeops.computing.session import is_local
from tidemark.timeops.errors import MachineError, SpecError

_REMOTE, _MASTER = "spark.remote", "spark.master"
_MASTERS = re.compile(r"local(-cluster)?(\[.*\])?|yarn|[a-z]\S*://\S+")
_PATIENCE_S = 30.0
_PATIENCE_FOR_CORES_S = 15.0
_LOGGERS = ("pyspark.sql.connect.logging", "SQLQueryContextLogger", "DataFrameQueryContextLogger")
_RETRIES_HERE = 5  # after 50 ms, then four times as long each: 17 seconds in all
_DELTA = "io.delta.sql.DeltaSparkSessionExtension"


@dataclass(frozen=True)
class SparkChoice:
    """The Spark that computes for a process.

    Attributes:
        config: Settings of its session, by full name; for a session of a server, `spark.remote` names the server.
        sentence: The choice in words.
        stores: URLs of the stores that it reads and writes.
        note: The note of `tidemark serve` if its server was chosen, whose Java has our options; otherwise None.
    """

    config: Mapping[str, str]
    sentence: str
    stores: tuple[str, ...] = ()
    note: ServerNote | None = None

    @property
    def is_remote(self) -> bool:
        """Return whether a server computes."""
        return _REMOTE in self.config

    def for_short_run(self) -> "SparkChoice":
        """Return the same choice for a process that ends soon: a Spark in it warms up in less time."""
        return replace(self, config=with_one_compiler(self.config))

    def with_little_memory(self) -> "SparkChoice":
        """Return the same choice for a process that runs next to others: a Spark in it takes less memory."""
        return replace(self, config=with_little_memory(self.config))


def choose_spark(settings: Settings, inputs: Iterable[str | Place] = (), *, tables: bool = True) -> SparkChoice:
    """Return the Spark of the settings; without one a server of `tidemark serve` that answers, else this process.

    If Spark's UI is wanted, the Spark is in this process.

    The inputs are paths and URLs that sources are read from. Without tables a Spark of this process starts without
    Delta Lake, see `without_delta`.

    Raises:
        SpecError: The UI is wanted, but the Spark is not in this process.
    """
    choice = _choice(settings, stores_of(settings, inputs) if tables else ())
    return choice if tables or choice.is_remote else replace(choice, config=without_delta(choice.config))


def _choice(settings: Settings, stores: tuple[str, ...]) -> SparkChoice:
    named = settings.spark
    if settings.spark_ui:
        return _with_ui(named, stores)
    if named is not None:
        if named.startswith("sc://"):
            return _remote(named, f"Spark Connect at {server_address(named)}", stores)
        if not _MASTERS.fullmatch(named):
            raise SpecError(
                f"{SPARK_VARIABLE} is {named!r}",
                expected="sc://host:15002, local[4], spark://host:7077, yarn or another master of Spark",
                remedy=f"correct it, or unset {SPARK_VARIABLE} to compute in this process",
            )
        return SparkChoice(session_config(named, stores=stores), f"Spark on {named}", stores)
    note = find_note(settings.dagster_home)
    here = "Spark in this process"
    if note is not None and is_there(note):
        other = known_otherwise(settings.dagster_home, note, {root: hadoop_settings([root]) for root in stores})
        if other is None:
            ours = _remote(note.url, f"the warm Spark of `tidemark serve` at {note.address}", stores)
            return replace(ours, note=note)
        here = f"{here}, as that of `tidemark serve` has opened {other} at another address or for another account"
    elif note is not None:
        here = f"{here}, as that of `tidemark serve` at {note.address} does not answer"
    return SparkChoice(session_config(stores=stores), here, stores)


def stores_of(settings: Settings, inputs: Iterable[str | Place] = ()) -> tuple[str, ...]:
    """Return the URLs of the stores of a process: of the warehouse, its input and the file of options."""
    return roots_of([settings.warehouse, *inputs, *named_roots()])


def open_session(choice: SparkChoice, tell: Callable[[str], None] = lambda _doing: None) -> SparkSession:
    """Return the session of this process; start or connect it if there is none yet.

    Dagster's PySpark resources find a session made here, as they ask for the one of the process as well.

    Raises:
        MachineError: No Spark can be reached, or it cannot write Delta tables.
        TidemarkError: Others started its Java, and that has the locale of another language.
    """
    for name in _LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)  # a failure comes as an exception
    active = SparkSession.getActiveSession()
    if active is None:
        tell(f"computing with {choice.sentence}" if choice.is_remote else f"starting {choice.sentence}")
    if not choice.is_remote:
        starts_on_cluster = active is None and not is_local(choice.config.get(_MASTER, "local"))
        with _told_while_waiting(choice.sentence, tell) if starts_on_cluster else nullcontext():
            session = local_session(choice.config)
        use_stores(session, choice.stores)
        if active is None and is_local(choice.config.get(_MASTER, "local")):
            make_in_background(check_java(), choice.config.get(PACKAGES, delta_package()))
        if active is None and (page := session.sparkContext.uiWebUrl):
            tell(f"Spark's UI is at {page} as long as it computes")
        return session
    session = active if active is not None and is_remote() else _connected(choice)
    settle(session)
    use_stores(session, choice.stores)
    return session


@contextmanager
def spark_as_found() -> Iterator[None]:
    """Leave the Spark of this process as it is: stop one that the block starts, restore the settings of another."""
    session_before = session_of_process()
    settings = dict(session_before.conf.getAll) if session_before is not None else {}
    try:
        yield
    finally:
        session = session_of_process()
        with suppress(OSError, Py4JError):  # its Java may have ended
            if session is not None and session_before is None:
                session.stop()
            elif session is not None:
                restore_settings(session, settings)


def session_of_process() -> SparkSession | None:
    """Return the session of this process, also of another thread of it; None if there is none that answers."""
    try:
        return SparkSession.active()
    except (PySparkRuntimeError, OSError, Py4JError):
        return None


@contextmanager
def _told_while_waiting(cluster: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Report, once, that a cluster is awaited: Spark itself says nothing, and waits for its cores without an end."""
    sentence = f"{cluster} has not assigned a core yet: all may be in use, or its secret is another one"
    late = Timer(_PATIENCE_FOR_CORES_S, tell, [sentence])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _connected(choice: SparkChoice) -> SparkSession:
    """Return a session of the server that was chosen; the server forgets it when this process ends."""
    url = choice.config[_REMOTE]
    is_ours = choice.note is not None and is_there(choice.note)
    if not is_ours and not is_answering(url):
        raise MachineError(
            f"No Spark Connect server listens at {server_address(url)}.",
            expected=f"the server that {SPARK_VARIABLE} names",
            remedy=f"start it, or unset {SPARK_VARIABLE} to compute in this process.",
        )
    if not is_ours:
        _check_protocol(url)
    allow_deep_plans()
    release_in_a_thread()
    builder = SparkSession.builder
    for key, value in choice.config.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
        extensions = session.conf.get("spark.sql.extensions", "") or ""
    except Exception as error:
        raise MachineError(
            f"The Spark Connect server at {server_address(url)} refuses: {error}",
            expected="a server of this version of Spark, and its token if it asks for one",
            remedy="see the server's log.",
        ) from error
    if _DELTA not in extensions:
        packages = ",".join([delta_package(), *store_packages(choice.stores)])
        raise MachineError(
            f"The Spark Connect server at {server_address(url)} has no Delta Lake.",
            expected=f"{_DELTA} in spark.sql.extensions; found {extensions!r}",
            remedy=f"start it with `--packages {packages} --conf spark.sql.extensions={_DELTA} --conf "
            "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog`.",
        )
    if is_here(url):  # a server of this machine that is gone does not come back within a query
        from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - takes a second to import

        session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES_HERE)])
    if is_ours:
        with_our_java.add(session)
    atexit.register(_leave, session)
    return session


def _check_protocol(url: str) -> None:
    """Check within seconds that a server answers at an address: a client of another program waits for ever.

    No token is sent in this check.

    Raises:
        MachineError: A process listens, but is silent or uses another protocol.
    """
    import grpc  # noqa: PLC0415 - only a client needs it, and it takes a moment
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    channel = DefaultChannelBuilder(url).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=_PATIENCE_S)
    except grpc.FutureTimeoutError as error:
        raise MachineError(
            f"What listens at {server_address(url)} is not a Spark Connect server, or too busy to say so in "
            f"{_PATIENCE_S:g} s.",
            expected=f"the server that {SPARK_VARIABLE} names",
            remedy=f"correct the address, start the server, or unset {SPARK_VARIABLE} to compute in this process.",
        ) from error
    finally:
        channel.close()


def _leave(session: SparkSession) -> None:
    """Let the server forget everything that this process kept there, if it is still running."""
    with suppress(Exception):
        session.stop()


def _remote(url: str, sentence: str, stores: tuple[str, ...]) -> SparkChoice:
    return SparkChoice({_REMOTE: url, **SERVED_SETTINGS}, sentence, stores)


def _with_ui(named: str | None, stores: tuple[str, ...]) -> SparkChoice:
    """Return this process as the choice, with Spark's UI."""
    if named is not None and not is_local(named):
        raise SpecError(
            f"--spark-ui shows a Spark of this machine, and {SPARK_VARIABLE} names "
            f"{server_address(named) if named.startswith('sc://') else named}.",
            expected="nothing, or a master such as local[4]",
            remedy="leave it out; for a cluster write `spark.ui.enabled true` in spark-defaults.conf, with a login",
        )
    return SparkChoice(session_config(named, ui=True, stores=stores), "Spark in this process", stores)
