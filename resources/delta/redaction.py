"""Values taken out of the log of a table: bounds of columns, and conditions that others deleted by.

Here: its entries and checkpoints, in which nothing else changes. Not here: what is sought (resources/traces.py), data
files (resources/delta/upkeep.py).

Tidemark writes bounds only for numbers and instants. Earlier versions, and other programs, also wrote bounds of
texts, and a DELETE by hand notes its condition. Such an entry is written again without them: no reader needs them.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.log import LOG_FOLDER, actions_in
from tidemark.resources.places.place import Place, files_below, write_whole
from tidemark.resources.traces import Sought, trace_in

_OF_FILES = ("add", "remove", "cdc")


def redact(lake: Lake, table: str, sought: Sought) -> int:
    """Take values out of the log of a table; return how many of its files were written again or deleted."""
    log = lake.path(table) / LOG_FOLDER
    entries = [file for file, _ in files_below(log, "*.json") if sought.in_bytes(file.read_bytes())]
    for entry in entries:
        _write_again(entry, sought)
    parquet = [file for file, _ in files_below(log, "*.checkpoint*.parquet")]
    checkpoints = [file for file in parquet if trace_in(file, sought) is not None]
    if checkpoints:  # the log has all entries, so it can be read without
        for file in (*checkpoints, log / "_last_checkpoint"):
            file.unlink(missing_ok=True)
    if entries or checkpoints:
        lake.opened.forget(table)
    if checkpoints:
        lake.checkpoint(table)
    return len(entries) + len(checkpoints)


def _write_again(entry: Place, sought: Sought) -> None:
    def holds(text: str) -> bool:
        return bool(sought.in_bytes(json.dumps(text).encode()))

    actions = [
        {kind: _redacted(kind, action, holds) for kind, action in line.items()}
        for line in actions_in(entry.read_text(encoding="utf-8"))
    ]
    text = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions) + "\n"
    if not isinstance(entry, Path):
        write_whole(entry, text)
        return
    at = os.stat(entry)
    write_whole(entry, text)
    os.utime(entry, ns=(at.st_atime_ns, at.st_mtime_ns))  # by its time Spark says how old the version is


def _redacted(kind: str, action: Mapping[str, Any], holds: Callable[[str], bool]) -> Any:
    if kind == "commitInfo":
        return _without(action, holds)
    if kind in _OF_FILES and holds(str(action.get("stats") or "")):
        rows = json.loads(action["stats"]).get("numRecords")
        return {**action, "stats": json.dumps({"numRecords": rows})}
    return action


def _without(value: Any, holds: Callable[[str], bool]) -> Any:
    """Return a value of JSON with nothing in place of each text in it that holds what is sought."""
    if isinstance(value, str):
        return "" if holds(value) else value
    if isinstance(value, Mapping):
        return {name: _without(part, holds) for name, part in value.items()}
    if isinstance(value, list):
        return [_without(part, holds) for part in value]
    return value
