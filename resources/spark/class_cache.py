"""Java's cache of loaded classes, with which Spark starts a third faster.

Here: where the cache is, the options of Java that use it, and making it. Not here: starting Spark
(resources/spark/session.py), the program whose classes are recorded (resources/spark/class_recording.py).

Java 25 has an AOT cache (JEP 483, 514, 515): loaded and linked classes, and profiles of their methods. Before it Java
has an archive of loaded classes (JEP 350). It makes either at the end of a process that recorded its classes. That
takes half a minute and 200 MB on disk, so a separate process does it, once for each Java and each set of jars. If no
cache can be made, nothing changes.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tidemark.resources.settings import cache_folder
from tidemark.resources.spark.delta_jars import known_jars, spark_jars

FIRST_WITH_AOT = 25
_UNUSED_DAYS = 60
# By default Java puts a cache at another address each time, and so writes to most of its pages: a quarter of a second
# at a start, and 0.1 GB that only this process has. In its place most of it is only read, and processes share it.
_IN_PLACE = "-XX:+UnlockDiagnosticVMOptions -XX:ArchiveRelocationMode=0"
RECORDING = "tidemark.resources.spark.class_recording"
"""The program whose classes are recorded."""


@dataclass(frozen=True)
class Java:
    """The Java that Spark will find.

    `major` is its version, such as 17, None if it does not print one; `output` is that of `java -version`.
    """

    path: str
    major: int | None
    output: str

    def making(self, cache: Path) -> str:
        """Return the options that let this Java make a cache at its end."""
        return f'-XX:{"AOTCacheOutput" if self._has_aot else "ArchiveClassesAtExit"}="{cache}" {self._silent}'

    def using(self, cache: Path) -> str:
        """Return the options that let this Java take its classes from a cache; one that does not fit is ignored."""
        return f'-XX:{"AOTCache" if self._has_aot else "SharedArchiveFile"}="{cache}" {_IN_PLACE} {self._silent}'

    @property
    def _has_aot(self) -> bool:
        return self.major is not None and self.major >= FIRST_WITH_AOT

    @property
    def _silent(self) -> str:
        return "-Xlog:aot=off -Xlog:cds=off" if self._has_aot else "-Xlog:cds=off -Xlog:cds+dynamic=off"


def cache_of(java: Java, package: str) -> Path | None:
    """Return the path of the cache for a Java and the jars of a start; None if its version or they are not known.

    The package is the Maven coordinates of the jars in addition to Spark's own, with commas between them.
    """
    jars = known_jars(package)
    if java.major is None or not jars:
        return None
    about = "\n".join([java.path, java.output, *map(_seen, spark_jars()), *map(_seen, map(Path, jars))])
    return cache_folder() / f"java_{hashlib.sha256(about.encode()).hexdigest()[:16]}.cache"


def _seen(jar: Path) -> str:
    about = jar.stat()
    return f"{jar} {about.st_size} {about.st_mtime_ns}"


def options_for(java: Java, package: str) -> str:
    """Return the options by which a Java takes its classes from the cache, if there is one; see `cache_of`."""
    cache = cache_of(java, package)
    if cache is None or not _is_whole(cache):
        return ""
    with suppress(OSError):
        os.utime(cache)  # it is in use, see `_forget_unused`
    return java.using(cache)


def make_in_background(java: Java, package: str) -> None:
    """Begin to make the cache if it is missing, in a process that outlives this one and yields to all others."""
    cache = cache_of(java, package)
    if cache is None or cache.exists() or _failed(cache).exists():
        return
    null, words = subprocess.DEVNULL, ["nice", "-n", "19", sys.executable, "-m", RECORDING, package]
    with suppress(OSError):
        subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)


def make(java: Java, package: str) -> bool:
    """Make the cache if it is missing, and return whether it is there now; another process may be making it."""
    cache = cache_of(java, package)
    if cache is None or cache.exists():
        return cache is not None
    cache.parent.mkdir(parents=True, exist_ok=True)
    with (
        suppress(Timeout),
        FileLock(cache.with_suffix(".lock"), blocking=False),
        tempfile.TemporaryDirectory(dir=cache.parent) as folder,
    ):
        output = Path(folder, "new.cache")
        words = [
            sys.executable,
            "-c",
            f"from {RECORDING} import record; record({package!r}, {java.making(output)!r})",
        ]
        # The JVM outlives the process that started it, and its output ends when the cache is made.
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd=folder)
        if output.is_file():
            _size_note(cache).write_text(str(output.stat().st_size))
            output.replace(cache)
            _forget_unused(cache.parent)
        else:
            _failed(cache).touch()
    return cache.exists()


def _is_whole(cache: Path) -> bool:
    """Return whether a cache has the size that it was made with: Java 17 does not start with one that was cut off."""
    try:
        return _size_note(cache).read_text() == str(cache.stat().st_size)
    except OSError:
        return False


def _size_note(cache: Path) -> Path:
    return cache.with_suffix(".size")


def _failed(cache: Path) -> Path:
    """Return the path of the note that the cache could not be made, so that not every start tries again."""
    return cache.with_suffix(".failed")


def _forget_unused(folder: Path) -> None:
    """Delete caches of a Java or of jars that no process has used for long, and notes that one could not be made."""
    for cache in folder.glob("java_*"):
        with suppress(OSError):
            if time.time() - cache.stat().st_mtime > _UNUSED_DAYS * 86_400:
                cache.unlink()
