"""A program that runs a pipeline with a Spark of the call: its process is as before, also after a Ctrl-C."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.runs.landing import assert_tables_equal_the_oracle, land
from tests.runs.running import pipeline

_PROGRAM = """
import logging, os, signal, sys, threading
spec, warehouse, more = sys.argv[1:]
before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
import tidemark as tm

class Stop(logging.Handler):
    def emit(self, record):
        if "closing windows" in record.getMessage():
            logging.getLogger("tidemark").removeHandler(self)
            os.kill(os.getpid(), signal.SIGINT)

logging.getLogger("tidemark").setLevel(logging.INFO)
logging.getLogger("tidemark").addHandler(Stop())
try:
    tm.run(spec, warehouse=warehouse)
except KeyboardInterrupt:
    print("stopped")
print(tm.status(spec, warehouse=warehouse).processed)
done = tm.run(spec, warehouse=warehouse)
print(done.batches, done.counts.records)
os.rename(more, os.path.join(os.path.dirname(spec), "in_program", "more.jsonl"))
done = tm.run(spec, warehouse=warehouse)
print(done.batches, done.counts.records, [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before)
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
try:
    SparkSession.active()
except PySparkRuntimeError:
    print("no Spark")
"""


@pytest.mark.long
def test_a_program_runs_a_pipeline_again_and_again_each_time_with_a_spark_of_the_call(tmp_path: Path) -> None:
    file, settings = pipeline(tmp_path, "program", "drop", sparse=False)
    land(tmp_path / "in_program", 40, seed=5)
    land(tmp_path / "later", 10, seed=6, files=1)
    [more] = (tmp_path / "later").iterdir()
    command = [sys.executable, "-c", _PROGRAM, str(file.path), str(settings.warehouse), str(more)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.split("\n")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert lines == ["stopped", "0", "1 40", "1 10 True", "no Spark", ""]
    assert_tables_equal_the_oracle(settings.warehouse, file.spec)
