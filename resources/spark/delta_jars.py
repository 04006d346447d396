"""The jars of Delta Lake and of stores: the resolver finds them at the first start, later starts reuse them.

Here: their coordinates, the memory of them from one start to the next, and the class path. Not here: starting Spark
(resources/spark/session.py).

The resolver takes a second and a half even if there is nothing to download. Spark in this process takes as long again
to copy its jars to itself. Jars on the class path cost neither.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlparse

import pyspark

from tidemark.resources.places.credentials import variable_set
from tidemark.resources.places.place import write_whole
from tidemark.resources.settings import cache_folder
from tidemark.timeops.errors import MachineError

_HADOOP = "hadoop-client-api-"
_CLIENTS = {"s3": "hadoop-aws", "gs": "hadoop-gcp", "abfss": "hadoop-azure"}
_AWS_SDK = {"3.5.0": "2.35.4"}  # of a Hadoop, by its version in its own build
_PARTS_OF_SDK = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
EXCLUDED = (
    *(
        "software.amazon.awssdk:bundle",
        "org.apache.hadoop:hadoop-client-api",
        "org.apache.hadoop:hadoop-client-runtime",
    ),
    *("io.netty:*", "org.slf4j:*", "org.apache.httpcomponents:*", "commons-logging:*", "commons-codec:*"),
)
"""Artifacts that clients of stores need and Spark has in other versions; and the bundle."""
_CLASS_PATH = "SPARK_DIST_CLASSPATH"  # Spark's launcher puts it after Spark's own jars


def delta_package() -> str:
    """Return the Maven coordinate of Delta for the installed PySpark and delta-spark."""
    spark = ".".join(version("pyspark").split(".")[:2])
    return f"io.delta:delta-spark_{spark}_2.13:{version('delta-spark')}"


def store_packages(roots: Iterable[str]) -> list[str]:
    """Return the Maven coordinates of packages that Spark lacks to read and write stores.

    From the AWS SDK these are the parts that Hadoop's client of S3 uses: its bundle of all services has 600 MB.

    Raises:
        MachineError: The SDK for the Hadoop of this Spark is not known.
    """
    schemes, hadoop = {urlparse(root).scheme for root in roots}, _hadoop_version()
    packages = [f"org.apache.hadoop:{_CLIENTS[scheme]}:{hadoop}" for scheme in sorted(schemes & _CLIENTS.keys())]
    if "s3" in schemes:
        if hadoop not in _AWS_SDK:
            raise MachineError(
                f"This Spark has Hadoop {hadoop}, and Tidemark does not know which AWS SDK its client of S3 needs.",
                expected=f"Hadoop {' or '.join(_AWS_SDK)}, as PySpark {version('pyspark')} from PyPI has it",
                remedy="install that PySpark",
            )
        packages += [f"software.amazon.awssdk:{part}:{_AWS_SDK[hadoop]}" for part in _PARTS_OF_SDK]
    return packages


def _hadoop_version() -> str:
    names = [jar.stem.removeprefix(_HADOOP) for jar in spark_jars() if jar.name.startswith(_HADOOP)]
    return names[0] if names else "unknown"


def spark_jars() -> list[Path]:
    """Return the jars of Spark itself, by name."""
    return sorted(Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars").glob("*.jar"))


def known_jars(package: str) -> list[str]:
    """Return the jars that an earlier start found for a package, or several with commas between them.

    There are none if one of them is gone, or none are known.
    """
    try:
        jars = [str(jar) for jar in json.loads(_note(package).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):
        return []
    return jars if all(Path(jar).is_file() for jar in jars) else []


def remember_jars(package: str, listed: str) -> None:
    """Keep the jars that the resolver found for later starts; without a writable cache each start resolves again.

    They are in `spark.jars` of the session; some may be the user's, in other folders.
    """
    note, artifact = _note(package), package.split(":")[1]
    paths = [urlparse(jar).path for jar in listed.split(",") if urlparse(jar).scheme in ("", "file")]
    folders = {Path(path).parent for path in paths if artifact in Path(path).name}
    jars = [path for path in paths if Path(path).parent in folders]
    with suppress(OSError):
        write_whole(note, json.dumps(jars))


def on_class_path(jars: Sequence[str]) -> AbstractContextManager[None]:
    """Put jars on the class path of a Spark that starts during the block, after Spark's own."""
    class_path = os.environ.get(_CLASS_PATH)
    earlier_jars = [class_path] if class_path else []
    return variable_set(_CLASS_PATH, os.pathsep.join([*earlier_jars, *jars]) if jars else None)


def _note(package: str) -> Path:
    first, _, other_packages = package.partition(",")
    suffix = f"_and_{hashlib.sha256(other_packages.encode()).hexdigest()[:8]}" if other_packages else ""
    return cache_folder() / f"jars_{first.replace(':', '_')}{suffix}_{version('pyspark')}.json"
