"""What a Delta commit says of itself: which attempt made it, how many rows it added, whether it takes others back.

Here: reading and writing these marks. Not here: commits (lake.py), what stands in a log (table_log.py).
"""

from typing import Any, Literal

_COLUMNS = "columns of "

UNDOING = "undoing"
"""Mark of a commit that takes back what an unfinished attempt wrote."""


def mark(attempt: int) -> str:
    """Return what a commit says of the attempt that made it.

    Delta's own mark of a writer (`txnAppId`, `txnVersion`) does the same, at three more Spark jobs for each write: to
    look it up Spark rebuilds the state of the table.
    """
    return f"attempt {attempt}"


def mark_of_columns(attempt: int) -> str:
    """Return what a commit says that gives a table the columns which an attempt is about to write."""
    return f"{_COLUMNS}{mark(attempt)}"


def attempt_of(commit: dict[str, Any], what: Literal["any", "rows"] = "any") -> int:
    """Return the attempt that made a commit, 0 where it says nothing of one.

    Args:
        commit: What the commit says.
        what: Of commits of any kind, or only of those that wrote the attempt's rows.
    """
    said = str(commit.get("userMetadata", ""))
    name, _, number = (said.removeprefix(_COLUMNS) if what == "any" else said).partition(" ")
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


def rows_deleted(commit: dict[str, Any]) -> int | None:
    """Return the rows that a commit deleted, None where its metrics do not tell."""
    metrics = commit.get("operationMetrics", {})
    for name in ("num_deleted_rows", "numDeletedRows"):
        if name in metrics:
            return int(metrics[name])
    return None


def restored_version(commit: dict[str, Any]) -> int | None:
    """Return the version that a commit brought back, None where it is no way back to one by its number."""
    target = str(commit.get("operationParameters", {}).get("version"))
    return int(target) if commit.get("operation") == "RESTORE" and target.isdigit() else None
