"""Files that cannot be read although they looked well: which of those read together are guilty.

Here: finding them when the joint read has failed. Not here: reading (files.py), looks at one file before it is read
(fitness.py), what is remembered of them (held_back.py).
"""

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidemark.resources.sources.changes import FileRange
from tidemark.resources.sources.files import read_files
from tidemark.timeops.errors import InputError, UnfitFilesError
from tidemark.timeops.spec import FilesSource

SPARK_FAILURES = (PySparkException, Py4JJavaError)
"""What Spark raises; the latter where PySpark knows no class for it."""
_CONDITION = re.compile(r"\[FAILED_READ_FILE\.(\w+)\]")
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)


def is_of_a_file(error: Exception) -> bool:
    """Whether Spark failed at the content of a file, and not for want of memory, disk or the file itself.

    What fails in a task comes as an error of the JVM or of the server, which has no condition of its own; so the
    condition is found in its text.
    """
    conditions = _CONDITION.findall(str(error))
    return bool(conditions) and "FILE_NOT_EXIST" not in conditions


def unreadable(spark: SparkSession, source: FilesSource, files: Sequence[FileRange]) -> dict[str, InputError]:
    """Find the files that Spark cannot read to their end, by halves: with one of n that is log2(n) reads of each.

    Args:
        spark: The session.
        source: The source.
        files: Files that were to be read together.

    Returns:
        An error by path of each.

    Raises:
        InputError: A file changes while it is read.
        PySparkException, Py4JJavaError: Spark failed at something else than a file.
    """
    if not files:
        return {}
    try:
        read_files(spark, source, files).records.write.format("noop").mode("overwrite").save()
    except UnfitFilesError as error:
        rest = [file for file in files if file.path not in error.errors]
        return {**error.errors, **unreadable(spark, source, rest)}
    except SPARK_FAILURES as error:
        if not is_of_a_file(error):
            raise
        if len(files) == 1:
            return {files[0].path: _error(files[0].path, source, error)}
        middle = len(files) // 2
        return {**unreadable(spark, source, files[:middle]), **unreadable(spark, source, files[middle:])}
    return {}


def _error(path: str, source: FilesSource, error: Exception) -> InputError:
    why = _fault_of_parquet(path) if source.format == "parquet" else ""
    said = _CAUSE.search(str(error))
    return InputError(
        f"{path}: the file cannot be read to its end: {why or (said[1] if said else 'Spark does not say why')}",
        expected="a file that is whole and undamaged; nothing of it was ingested",
        remedy="land the whole file again; it is tried again when its size or modification time changes",
    )


def _fault_of_parquet(path: str) -> str:
    """What another reader says of the first damaged part; empty when it finds none."""
    try:
        for _ in pq.ParquetFile(path).iter_batches():
            pass
    except (pa.ArrowException, OSError) as error:
        first = str(error).strip().split("\n", maxsplit=1)[0]
        return "".join(sign for sign in first if sign.isprintable()).rstrip(" :")
    return ""
