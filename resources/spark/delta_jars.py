"""The jars of Delta Lake: Spark's resolver finds them at the first start, and later ones take them as they lie.

Here: what is remembered from one start to the next, and the class path. Not here: starting Spark (session.py).

The resolver takes a second and a half even where nothing is to be downloaded, and Spark in this process as long again
to copy jars that it was given to itself. What stands on the class path costs neither.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlparse

_CLASS_PATH = "SPARK_DIST_CLASSPATH"  # Spark's launcher puts it behind Spark's own jars


def known_jars(package: str) -> list[str]:
    """The jars that an earlier start found for a package; none where one of them is gone, or nothing is known.

    Args:
        package: A Maven coordinate.
    """
    try:
        jars = [str(jar) for jar in json.loads(_note(package).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
    return jars if all(Path(jar).is_file() for jar in jars) else []


def remember_jars(package: str, listed: str) -> None:
    """Keeps for later starts which jars the resolver found; whoever cannot write a cache asks it each time.

    Args:
        package: The Maven coordinate.
        listed: The jars of the session, as `spark.jars` has them: some may be of the user, in other folders.
    """
    note, artifact = _note(package), package.split(":")[1]
    paths = [urlparse(jar).path for jar in listed.split(",") if urlparse(jar).scheme in ("", "file")]
    folders = {Path(path).parent for path in paths if artifact in Path(path).name}
    jars = [path for path in paths if Path(path).parent in folders]
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        unfinished = note.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(jars), encoding="utf-8")
        unfinished.replace(note)


@contextmanager
def on_class_path(jars: Sequence[str]) -> Iterator[None]:
    """A Spark that starts inside has the jars on its class path, behind its own."""
    before = os.environ.get(_CLASS_PATH)
    if jars:
        os.environ[_CLASS_PATH] = os.pathsep.join([*([before] if before else []), *jars])
    try:
        yield
    finally:
        if before is not None:
            os.environ[_CLASS_PATH] = before
        elif jars:
            del os.environ[_CLASS_PATH]


def _note(package: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "tidemark", f"jars_{package.replace(':', '_')}_{version('pyspark')}.json")
