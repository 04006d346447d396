"""What PySpark asks the JVM for again at every expression, asked for once.

Here: the classes whose functions build expressions. Not here: sessions (session.py). A client of Spark Connect builds
expressions by itself and needs none of this.
"""

from typing import Any

from pyspark.sql import SparkSession

_ALWAYS_ASKED_FOR = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")


class _Kept:
    """A class of the JVM: each of its functions is looked up when it is first called."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._found, name)
        setattr(self, name, function)  # from now on Python finds it without asking here
        return function


def keep_lookups(session: SparkSession) -> None:
    """Let a session of this process remember where in the JVM the functions are that build expressions.

    PySpark names them without their packages, and the JVM then searches every jar: some five thousand times in a
    micro-batch, a tenth of the time that it takes.
    """
    jvm = session.sparkContext._jvm
    for name in _ALWAYS_ASKED_FOR:
        if name not in vars(jvm):
            setattr(jvm, name, _Kept(getattr(jvm, name)))
