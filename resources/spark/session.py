"""Spark sessions: the settings that the pipeline's meaning needs, and a local session that starts quietly.

Here: settings, Java, and the folder of a process for the files of its Spark: shuffles, jars, native libraries. Not
here: the choice of Spark (resources/spark/choice.py), access to it over the network (resources/spark/network.py).
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from socketserver import BaseServer
from typing import IO, Any
from weakref import WeakSet

from filelock import FileLock
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.sql import SparkSession

from tidemark.resources.places.credentials import hadoop_settings, spark_defaults, variable_set
from tidemark.resources.scratch import new_scratch, user_lock
from tidemark.resources.spark.class_cache import Java, options_for
from tidemark.resources.spark.delta_jars import (
    EXCLUDED,
    delta_package,
    known_jars,
    on_class_path,
    remember_jars,
    store_packages,
)
from tidemark.resources.spark.network import bound_to_loopback, check_master, check_secret, network_settings
from tidemark.timeops.computing.session import JAVA_MEANING, SESSION_SETTINGS, check_locale, is_local, legacy_settings
from tidemark.timeops.errors import MachineError

_GATEWAY = "PYSPARK_GATEWAY_PORT"  # a variable of processes whose Java was started before them
PACKAGES = "spark.jars.packages"
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_OF_EXECUTORS = "spark.executor.extraJavaOptions"
_LAST_OPTIONS = "_JAVA_OPTIONS"  # the variable whose options Java takes last of all
_DELTA: Mapping[str, str] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_INTERPRETED: Mapping[str, str] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
OLDEST_JAVA = 17
_INSTALL_JAVA = (
    "Install Java 17, 21 or 25, for example `apt install openjdk-17-jre-headless` or `brew install openjdk@17`, "
)
_HEAP = "2g"
# Alone, the first compiler would have a fifth of the room for compiled code, which Spark's planner fills.
_ONE_COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
# Java otherwise keeps a third of a heap for garbage and as much again free, and more for each thread that collects:
# one thread collects sooner, and leaves of the heap little more than what lives in it.
_LITTLE_HEAP = "-Xms176m -Xmn48m -XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=25"
_GIVES_BACK = "-XX:TrimNativeHeapInterval=1000"  # ms; what a compiler or a query has freed outside of the heap
_ON_ONE_MACHINE: Mapping[str, str] = {
    # A task that runs out of memory fails alone: by default it would end the process, and a warm Spark with it.
    "spark.executor.killOnFatalError.depth": "0",
    "spark.databricks.delta.snapshotPartitions": "2",
    # Spark's default of 200 suits a cluster; here each would be an idle task.
    "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 1)),
    "spark.driver.memory": _HEAP,
    # Each sort, join and aggregation of a task takes a page at least; by default one is 32 MB of this heap.
    "spark.buffer.pageSize": "2m",
}
READS_OLD_VERSIONS: Mapping[str, str] = {
    # By default Delta 4.4 refuses a version older than the table's `delta.deletedFileRetentionDuration`, 7 days,
    # unless it is the newest one, whether or not a file of it was deleted. A file that is gone still is an error.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
}
"""The setting with which a session reads versions, change feeds and clones of any age, also of tables of others."""
SERVED_SETTINGS: Mapping[str, str] = {
    **SESSION_SETTINGS,
    **READS_OLD_VERSIONS,
    # A format that delta-rs and DuckDB can read.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.localRelationThreshold": "2m",
    # Else `${env:HOME}` in an expression is a variable of the machine.
    "spark.sql.variable.substitute": "false",
}
"""Settings for every session, also of a foreign server: all of them can be set in a session."""


def session_config(
    master: str | None = None,
    *,
    small: bool = False,
    ui: bool = False,
    stores: Sequence[str] = (),
    readers: Sequence[str] = (),
) -> dict[str, str]:
    """Return the settings of a session of this process: for a builder or one of Dagster's PySpark resources.

    Args:
        master: The cores that compute, as in Spark's `spark.master`; by default all of this machine. For a cluster
            nothing is set that belongs into its `spark-defaults.conf`.
        small: Settings for small data on few cores, as in tests: few partitions, no compiled code.
        ui: Whether Spark's UI is wanted, for a Spark on this machine.
        stores: URLs of the stores that it reads and writes. The session receives their options later, see
            `use_stores`.
        readers: Maven coordinates of readers that it has from the start.
    """
    master = "local[2]" if small else master or "local[*]"
    java = _java_options(master)
    config = {
        "spark.app.name": "tidemark",
        "spark.master": master,
        **network_settings(master, ui=ui),
        PACKAGES: ",".join([delta_package(), *store_packages(stores), *readers]),
        **_DELTA,
        **SERVED_SETTINGS,
        "spark.ui.showConsoleProgress": "false",
        # Otherwise each call of a function on columns sends the JVM the Python line that made it.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # A batch has more compiled pieces than the 100 that Spark keeps by default: each batch compiled all of them
        # again.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # A micro-batch is some eighty queries: the descriptions of a thousand, Spark's default, alone fill the heap.
        "spark.sql.ui.retainedExecutions": "100",
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        JAVA_OPTIONS: java,
    }
    if stores or readers:
        config["spark.jars.excludes"] = ",".join(EXCLUDED)
    if is_local(master):
        config |= _ON_ONE_MACHINE
    else:
        config[_OF_EXECUTORS] = f"{spark_defaults().get(_OF_EXECUTORS, '')} {JAVA_MEANING}".strip()
    if small:
        config |= _settings_for_small_data(java)
    return config


def _java_options(master: str) -> str:
    log4j = Path(__file__).with_name("log4j2.properties").as_uri()
    # Spark's classes alone fill more than Java sets aside for classes at first: each step up is a full collection.
    # Planning makes gigabytes of garbage in every batch. The parallel collector pauses, but leaves more of few cores
    # to the work than G1, whose threads run at the same time.
    java = f"-Dlog4j2.configurationFile={log4j} -XX:MetaspaceSize=256m -XX:+UseParallelGC"
    if is_local(master):  # a heap that starts small is collected whole each time it grows
        java += f" -Xms{_HEAP}"
    return f"{java} {JAVA_MEANING}"


def _settings_for_small_data(java: str) -> dict[str, str]:
    return {
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "1",
        **_INTERPRETED,
        "spark.sql.adaptive.enabled": "false",
        # Java's second compiler takes longer for code that runs for minutes only than it saves.
        JAVA_OPTIONS: f"{java} {_ONE_COMPILER}",
    }


def without_delta(config: Mapping[str, str]) -> dict[str, str]:
    """Return settings for a command that uses no table and ends soon: it starts and plans fast, nothing else.

    They leave out Delta Lake, whose jars need not be there then, and generated code for queries of a few rows.

    The settings of a cluster stay unchanged.
    """
    if not is_local(config.get("spark.master", "")):
        return dict(config)
    settings = {name: value for name, value in with_one_compiler(config).items() if name not in (PACKAGES, *_DELTA)}
    java = _with_one_collector(settings[JAVA_OPTIONS])
    return settings | {JAVA_OPTIONS: java, **_INTERPRETED}


def with_one_compiler(config: Mapping[str, str]) -> dict[str, str]:
    """Return settings for a process that ends soon: without Java's second compiler.

    That one takes longer to compile Spark's planner than such a process runs, and a core from it meanwhile.

    The settings of a cluster stay unchanged.
    """
    if not is_local(config.get("spark.master", "")):
        return dict(config)
    return {**config, JAVA_OPTIONS: f"{config[JAVA_OPTIONS]} {_ONE_COMPILER}"}


def with_little_memory(config: Mapping[str, str]) -> dict[str, str]:
    """Return settings for a process that runs next to others: garbage is collected by one thread, and soon.

    Of its heap it takes what it needs, up to the same as others. The settings of a cluster stay unchanged.
    """
    if not is_local(config.get("spark.master", "")):
        return dict(config)
    java = _with_one_collector(config[JAVA_OPTIONS])
    return {**config, JAVA_OPTIONS: f"{java} {_LITTLE_HEAP} {_GIVES_BACK}"}


def _with_one_collector(java: str) -> str:
    return java.replace("-XX:+UseParallelGC", "-XX:+UseSerialGC")


def use_stores(session: SparkSession, stores: Iterable[str]) -> None:
    """Let a session, also one of a server, read and write stores with the credentials of this process.

    The credentials are settings of the session, not of Spark's start: anyone on the machine can read the ones in the
    list of processes.
    """
    for name, value in hadoop_settings(stores).items():
        session.conf.set(name, value)


@contextmanager
def with_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session during the block, and restore them afterwards."""
    former_values = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in former_values.items():
            if former is None:  # it was not set: some have no value then
                session.conf.unset(name)
            else:
                session.conf.set(name, former)


def restore_settings(session: SparkSession, settings: Mapping[str, str]) -> None:
    """Restore the settings that a session had before, and no other, as far as settings can change."""
    now = session.conf.getAll
    for name in {*now, *settings}:
        if now.get(name) == settings.get(name) or not session.conf.isModifiable(name):
            continue
        if name in settings:
            session.conf.set(name, settings[name])
        else:
            session.conf.unset(name)


def check_java(environment: Mapping[str, str] = os.environ) -> Java:
    """Return the Java that Spark will find, if it can run on it: its launcher looks at JAVA_HOME, then PATH.

    Raises:
        MachineError: There is no Java, or it is too old.
    """
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment.get("PATH"))
    if java is None:
        raise MachineError(
            "There is no Java: JAVA_HOME is not set and no `java` is on the PATH.",
            remedy=f"{_INSTALL_JAVA}and run again.",
        )
    try:
        output = _version_of(java)
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineError(
            f"{java} does not run" + (", and JAVA_HOME points there." if home else "."),
            remedy=f"{_INSTALL_JAVA}and let JAVA_HOME point to it or unset it.",
        ) from error
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    major = int(match[1]) if match else None
    if major is not None and major < OLDEST_JAVA:
        raise MachineError(
            f"{java} is Java {major}.",
            expected=f"Java {OLDEST_JAVA} or newer",
            remedy=f"{_INSTALL_JAVA}and let JAVA_HOME point to it.",
        )
    return Java(java, major, output)


@cache
def _version_of(java: str) -> str:
    """Return the version output of a Java: each start of Spark asks for it twice."""
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=60).stderr


def local_session(config: Mapping[str, str]) -> SparkSession:
    """Return the session of this process; start Spark if there is none yet.

    Dagster's PySpark resources find a session made here, as they ask for the one of the process as well.

    Raises:
        MachineError: There is no suitable Java, or Spark does not start; the error quotes its last words.
        TidemarkError: Others started its Java, or executors, and these have the locale of another language.
    """
    check_secret(config)
    starts = SparkSession.getActiveSession() is None
    package, jars, java_options = config.get(PACKAGES, ""), list[str](), ""
    if starts:
        java = check_java()
        check_master(config.get("spark.master", ""))
        if is_local(config.get("spark.master", "")):
            of_start = package or delta_package()
            jars, java_options = known_jars(of_start), options_for(java, of_start)
    with (
        _one_start_at_a_time() if starts else nullcontext(),
        bound_to_loopback(config),
        on_class_path(jars),
        variable_set(_LAST_OPTIONS, f"{os.environ.get(_LAST_OPTIONS, '')} {JAVA_MEANING}".strip()),
        tempfile.TemporaryFile() as errors,
        _stderr_to(errors),
    ):
        builder = SparkSession.builder
        for key, value in (_of_this_process(config, java_options) if starts else config).items():
            if not (jars and key == PACKAGES):
                builder = builder.config(key, value)
        try:
            session = builder.getOrCreate()
        except Exception as error:
            raise MachineError(
                f"Spark does not start: {error}\n{_last_lines(errors)}",
                remedy="See the last lines above. The first start downloads Delta Lake: it needs the network, or a "
                "Maven mirror named in spark.jars.repositories.",
            ) from error
        if starts and package and not jars:
            remember_jars(package, session.sparkContext.getConf().get("spark.jars") or "")
    if starts and _GATEWAY not in os.environ and is_local(config.get("spark.master", "")):
        _forget_legacy(session)
        with_our_java.add(session)
    elif session not in with_our_java:
        settle(session)
    AccumulatorTCPServer.handle_error = _tell_of_error  # type: ignore[method-assign]
    return session


with_our_java = WeakSet[SparkSession]()
"""The sessions whose Java this process has started, with our options, or `tidemark serve`: asking a new Java for its
locale would take seconds, because it then loads the tables of all languages."""


@cache
def settle(session: SparkSession) -> None:
    """Let a session whose Java others started mean the same by an expression as any other, or refuse it.

    Raises:
        TidemarkError: Its Java has the locale of another language.
    """
    _forget_legacy(session)
    if session not in with_our_java:
        check_locale(session)


def _forget_legacy(session: SparkSession) -> None:
    """Undo what the defaults of a machine or a cluster bring back of older versions of Spark."""
    for name in legacy_settings(session.conf.getAll):
        if session.conf.isModifiable(name):
            session.conf.unset(name)


def _tell_of_error(self: BaseServer, request: Any, client_address: Any) -> None:
    """Print failures in PySpark's server of accumulators, except that the JVM is gone: a query fails of that.

    By default Python's servers print the traceback of each connection that ends too early. `handle_error` is the
    method that `socketserver` documents for changing this in a class of one's own. PySpark makes its server from its
    own class, with no setting that names another, no logger and no hook, so the method is given to that class.
    """
    if not isinstance(sys.exception(), EOFError | ConnectionError):
        BaseServer.handle_error(self, request, client_address)


def _of_this_process(config: Mapping[str, str], java: str) -> dict[str, str]:
    """Return the settings with values that only this process knows: its folder for files, more options of Java."""
    umask = os.umask(0o077)
    os.umask(umask)
    return {
        **config,
        JAVA_OPTIONS: f'{config.get(JAVA_OPTIONS, "")} {java} -Djava.io.tmpdir="{new_scratch()}"'.strip(),
        "spark.hadoop.fs.permissions.umask-mode": f"{umask:03o}",  # Hadoop's own is 022, whatever the process has
    }


def _one_start_at_a_time() -> FileLock:
    """Return a lock that every process of this user takes while it starts Spark.

    The first start downloads packages into a folder of the user, and two that download at once spoil each other's
    files.
    """
    return user_lock("spark-start")


@contextmanager
def _stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Let processes that are started during the block write their errors to a file.

    The JVM inherits it for its life: it and the resolver of packages print a screenful at the start that no setting
    turns off. Later failures reach Python as exceptions.
    """
    stderr = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def _last_lines(file: IO[bytes], count: int = 15) -> str:
    file.seek(0)
    return "\n".join(file.read().decode(errors="replace").rstrip("\n").split("\n")[-count:])
