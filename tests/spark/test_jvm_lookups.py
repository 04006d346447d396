"""What PySpark asks the JVM for while expressions are built."""

import pytest
from py4j.clientserver import ClientServerConnection
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

_LOOKS_UP = "r\n"  # py4j's command for a class or a member of one


def test_a_function_that_builds_expressions_is_looked_up_in_the_jvm_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> None:
        F.when(F.coalesce("a", F.lit(1)) > 1, F.transform("b", lambda one: one + 1))

    build()
    sent: list[str] = []
    send = ClientServerConnection.send_command

    def listening(connection: ClientServerConnection, command: str) -> str:
        sent.append(command)
        return str(send(connection, command))

    monkeypatch.setattr(ClientServerConnection, "send_command", listening)
    build()
    assert sent, "building expressions asks the JVM for something"
    assert not [command for command in sent if command.startswith(_LOOKS_UP)]
