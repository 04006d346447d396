"""Batches that tests plan, and do not run."""

from datetime import UTC, datetime
from typing import Any

from tidemark.resources.batches.batch_log import BatchLog
from tidemark.resources.batches.plans import Kind, Plan, this_process

START = datetime(2026, 1, 1, tzinfo=UTC)


def planned(log: BatchLog, kind: Kind = "process", *, now: datetime = START, **given: Any) -> Plan:
    """Plan the next batch, as this process; what is not given is that of a batch of the first record."""
    last = log.last_commit()
    rest = {"first_seq": 0, "end_seq": 1, "input": {}, "fingerprint": "f", **given}
    return log.begin(kind, this_process("run"), now, after=last.batch_id if last else None, **rest)
