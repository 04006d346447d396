"""Batches that tests plan and do not run, a small table of a lake, and processes that come in between."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests import ROOT
from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import BatchKind, BatchOwner, Plan, this_process
from tidemark.resources.delta.lake import Lake

START = datetime(2026, 1, 1, tzinfo=UTC)
ME = this_process("run")
T = "events"
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])


def planned(
    log: BatchLog, kind: BatchKind = "process", *, owner: BatchOwner = ME, now: datetime = START, **given: Any
) -> Plan:
    """Plan the next batch; what is not given is that of a batch of the first record."""
    last = log.last_commit()
    rest = {"first_seq": 0, "end_seq": 1, "input": {}, "fingerprint": "f", **given}
    return log.begin(kind, owner, now, last_batch=last.batch_id if last else None, **rest)


def rows(*keys: int) -> pa.Table:
    return pa.table({"k": keys, "v": ["odd" if key % 2 else "even" for key in keys]}, schema=SCHEMA)


def lake_of(folder: Path, *commits: Sequence[int]) -> Lake:
    """Return a lake with the table `T`, which attempt n + 1 took from version n to the next."""
    made = Lake(folder)
    made.create(T, SCHEMA)
    for version, keys in enumerate(commits):
        made.append_rows(T, rows(*keys), attempt=version + 1, expect=version)
    return made


def content(lake: Lake, version: int | None = None) -> list[int]:
    return sorted(lake.rows(T, version)["k"].to_pylist())


@contextmanager
def process_of(script: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Yield a process that has said that it is ready, and waits for a line."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert said_by(process) == "ready"
            yield process
        finally:
            process.kill()


def go(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def said_by(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
