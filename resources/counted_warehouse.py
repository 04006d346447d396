"""The warehouse of each pipeline whose runs count in a Dagster home: the one of its code location.

Here: the note in the home. Not here: where a run that does not count is kept (pipelines/command_line.py).

All warehouses of a pipeline share the keys of its assets. So a trial run in another one would plot its numbers, and
set its checks, among those of the pipeline.
"""

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tidemark.resources.places.place import Place, write_whole

_NOTE = "tidemark_warehouses.json"
_LOCATION, _RUN = "code location", "run"


def note_code_location(home: Path, pipelines: Iterable[str], warehouse: Place) -> None:
    """Note the warehouse that a code location uses for pipelines, in an existing home."""
    if home.is_dir():
        _note(home, {name: {"warehouse": str(warehouse), "by": _LOCATION} for name in pipelines})


def counted_warehouse(home: Path, pipeline: str, warehouse: Place, usual: Place) -> str:
    """Return the warehouse of a pipeline whose runs count.

    Before a code location was loaded, it is the warehouse of the first run, or of the first run on the usual one.

    Args:
        home: Dagster's home.
        pipeline: Name of the pipeline.
        warehouse: The warehouse of the run that begins.
        usual: The warehouse for runs of this environment that do not name one.
    """
    noted = _read(home).get(pipeline)
    if noted is None or (noted["by"] == _RUN and warehouse == usual):
        noted = {"warehouse": str(warehouse), "by": _RUN}
        _note(home, {pipeline: noted})
    return noted["warehouse"]


def _read(home: Path) -> dict[str, dict[str, str]]:
    try:
        noted: dict[str, dict[str, str]] = json.loads((home / _NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted


def _note(home: Path, news: dict[str, dict[str, str]]) -> None:
    before = _read(home)
    if before | news != before and os.access(home, os.W_OK):
        with suppress(OSError):
            write_whole(home / _NOTE, json.dumps(before | news, indent=2))
