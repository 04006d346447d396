"""A full disk, in the words of those who write to it: Python, delta-rs, and Java inside Spark.

Here: telling it from every other failure. Not here: where files are written.
"""

from timeops.errors import MachineError

_SAID = ("No space left on device", "Disk quota exceeded", "File too large")


class FullDiskError(MachineError):
    """There is no room to write; nothing of the batch was committed."""


def full_disk(said: str) -> FullDiskError | None:
    """The error to raise where a failure says that the disk is full; None where it says something else."""
    reason = next((reason for reason in _SAID if reason in said), None)
    if reason is None:
        return None
    return FullDiskError(
        f"The disk is full: {reason}.",
        expected="room for the batch's tables in the warehouse, and for Spark's temporary files",
        remedy="make room and run again. Nothing of the batch was committed and nothing is lost: readers stay at the "
        "last commit",
    )
