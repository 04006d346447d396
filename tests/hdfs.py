"""A real HDFS of this machine, for tests: one name node and one data node, in a process of their own.

Here: Hadoop's mini cluster, fetched from Maven Central once, and files in it. Not here: pipelines.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from examples.kafka.broker import fetch_jars, java_program
from tests.processes import process, wait_until
from tidemark.resources.places.place import RemotePath
from tidemark.resources.places.stores import StoreError

VERSION = "3.5.0"
"""Of Hadoop, as that of the client that PySpark brings, which the cluster runs on."""
_ARTIFACT = ("org.apache.hadoop", "hadoop-client-minicluster", VERSION)
_OF_CLIENT = ("hadoop-client-*", "slf4j-*", "jcl-over-slf4j-*", "log4j-*", "commons-cli-*")
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_CLUSTER = ("org.apache.hadoop.mapreduce.MiniHadoopClusterManager", "-nomr", "-format", "-datanodes", "1")


@contextmanager
def hdfs(folder: Path) -> Iterator[RemotePath]:
    """The root of an HDFS that runs inside; its ports are chosen by the system.

    Args:
        folder: Where it writes.
    """
    details, log = folder / "details.json", folder / "hdfs.log"
    own = fetch_jars("hadoop-minicluster", _ARTIFACT, alone=True) / "*"
    client = [jar for name in _OF_CLIENT for jar in (Path(pyspark.__file__).parent / "jars").glob(f"{name}.jar")]
    command = [java_program(), *_JAVA, "-cp", ":".join(map(str, (own, *client))), *_CLUSTER]
    command += ["-writeDetails", str(details), "-D", f"hdfs.minidfs.basedir={folder / 'data'}"]
    with process(command, {}, log) as cluster:
        wait_until(lambda: cluster.poll() is not None or (details.exists() and details.stat().st_size > 0), log)
        assert cluster.poll() is None, log.read_text()
        root = RemotePath(f"hdfs://localhost:{json.loads(details.read_text())['namenode_port']}")
        wait_until(lambda: _takes_files(root), log)
        yield root


def _takes_files(root: RemotePath) -> bool:
    """Whether its data node has come: without one a file has nowhere to be."""
    try:
        (root / "tried").write_bytes(b"once")
    except StoreError:
        return False
    return True
