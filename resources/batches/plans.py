"""A batch as the table `batches` tells of it: what was planned, what was committed, and the rows that say so.

Here: the two values, to rows and back. Not here: who may write which row, and when (batch_log.py).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version as installed_version
from typing import Any, Literal

from tidemark.resources.batches.owner import Owner
from tidemark.resources.tables import FORMAT_VERSION

Kind = Literal["ingest", "process", "backfill", "change"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A batch that a run has taken on.

    Args:
        batch_id: Number of the batch; committed ones are 0, 1, 2, ...
        kind: What the batch does.
        attempt: Number of this plan over the life of the pipeline, from 1; written into every output.
        owner: The process that works on it.
        planned_at: When the plan was made.
        heartbeat_at: When its owner was last heard of.
        first_seq: First `_arrival_seq` of its range of the log.
        end_seq: End of that range, not in it; None while an ingestion does not know it yet.
        input: What else it reads: files and line ranges of an ingestion, days of a backfill.
        fingerprint: Fingerprint of the spec.
        released: Its owner gave it up, so the next run may take it over at once.
    """

    batch_id: int
    kind: Kind
    attempt: int
    owner: Owner
    planned_at: datetime
    heartbeat_at: datetime
    first_seq: int
    end_seq: int | None
    input: Mapping[str, Any]
    fingerprint: str
    released: bool


@dataclass(frozen=True)
class Commit:
    """A batch that is done: what it was, what it counted, and the version of every table as of it.

    Args:
        plan: The plan that was carried out, with the end of its range filled in.
        committed_at: When it was committed.
        counts: Counts of every outcome.
        table_versions: Delta version of every table as of this batch.
        reason: Why an operator accepted it although a blocking check had failed; None otherwise.
    """

    plan: Plan
    committed_at: datetime
    counts: Mapping[str, int]
    table_versions: Mapping[str, int]
    reason: str | None

    @property
    def batch_id(self) -> int:
        """Number of the batch."""
        return self.plan.batch_id


def row_of(plan: Plan, state: str) -> Row:
    """A row of `batches` that says so of a plan."""
    return {
        "_batch_id": plan.batch_id,
        "kind": plan.kind,
        "state": state,
        "attempt": plan.attempt,
        "owner": plan.owner.id,
        "host": plan.owner.host,
        "pid": plan.owner.pid,
        "started": plan.owner.started,
        "heartbeat_at": plan.heartbeat_at,
        "planned_at": plan.planned_at,
        "first_seq": plan.first_seq,
        "end_seq": plan.end_seq,
        "input": json.dumps(plan.input, ensure_ascii=False, separators=(",", ":")),
        "spec_fingerprint": plan.fingerprint,
        "tidemark_version": installed_version("tidemark"),
        "format_version": FORMAT_VERSION,
    }


def plan_of(rows: list[Row]) -> Plan:
    """Return the plan that the rows of one attempt tell of."""
    row = rows[0]
    return Plan(
        batch_id=row["_batch_id"],
        kind=row["kind"],
        attempt=row["attempt"],
        owner=Owner(row["owner"], row["host"], row["pid"], row["started"]),
        planned_at=row["planned_at"],
        heartbeat_at=max(row["heartbeat_at"] for row in rows),
        first_seq=row["first_seq"],
        end_seq=row["end_seq"],
        input=json.loads(row["input"]),
        fingerprint=row["spec_fingerprint"],
        released=any(row["state"] == "released" for row in rows),
    )


def commit_from(row: Row) -> Commit:
    """The commit that a row tells of."""
    return Commit(
        plan=plan_of([row]),
        committed_at=row["committed_at"],
        counts=dict(row["counts"]),
        table_versions=dict(row["table_versions"]),
        reason=row["reason"],
    )
