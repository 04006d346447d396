"""Tables whose commits are days old: Spark takes that from the modification time of an entry of the log."""

import os
import time
from datetime import timedelta

from tidemark.resources.delta.log import entries_of, entry_path
from tidemark.resources.places.place import Place


def age(folder: Place, by: timedelta) -> None:
    """Make all commits of a table older, in their order."""
    for version in entries_of(folder):
        at = time.time() - by.total_seconds() + version
        os.utime(str(entry_path(folder, version)), (at, at))
