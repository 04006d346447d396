"""What a Delta commit says of itself: which attempt made it, how many rows it added, whether it was a way back.

Here: reading and writing these marks. Not here: commits (lake.py).
"""

from typing import Any

from deltalake import DeltaTable


def mark(attempt: int) -> str:
    """Return what a commit says of the attempt that made it.

    Delta's own mark of a writer (`txnAppId`, `txnVersion`) does the same, at three more Spark jobs for each write: to
    look it up Spark rebuilds the state of the table.
    """
    return f"attempt {attempt}"


def attempt_of(commit: dict[str, Any]) -> int:
    """Return the attempt that made a commit, 0 where it says nothing of one."""
    name, _, number = str(commit.get("userMetadata", "")).partition(" ")
    return int(number) if name == "attempt" and number.isdigit() else 0


ADDED_ROWS = "tidemark.addedRows"
"""Rows that a commit added, where it wrote others anew as well."""


def rows_written(commit: dict[str, Any]) -> int:
    """Return the rows that a commit added, from its own metrics, which Spark and delta-rs name differently."""
    if ADDED_ROWS in commit:
        return int(commit[ADDED_ROWS])
    metrics = commit.get("operationMetrics", {})
    if "num_added_rows" in metrics:
        return int(metrics["num_added_rows"])
    return int(metrics.get("numOutputRows", 0)) - int(metrics.get("numCopiedRows", 0))


def is_restored(delta: DeltaTable, version: int) -> bool:
    """Return whether the latest commit brought back a version."""
    latest = delta.history(1)[0]
    target = latest.get("operationParameters", {}).get("version")
    return latest["operation"] == "RESTORE" and str(target) == str(version)
