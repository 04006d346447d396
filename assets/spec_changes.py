"""What of a spec differs from the one that a pipeline's tables were made for, and whether that is taken.

Here: the specs that the log was processed with, the file that they stood in, which keys may change, and the sentence
on those that may not. Not here: what a change does to event time (timeops/).
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.assets.log_control import SPEC, recorded
from tidemark.resources import tables
from tidemark.resources.workspace import SpecFile, Workspace
from tidemark.timeops.errors import SpecError
from tidemark.timeops.expressions.tokens import top_level_names
from tidemark.timeops.problems import Path as KeyPath
from tidemark.timeops.spec import Spec, parse_spec
from tidemark.timeops.spec.expressions import columns_in_tables

# Parts of a spec whose change makes sense from the next record on. A change of any other part would make one table
# hold rows of two meanings.
_CHANGEABLE = ("time", "partitions")
_NOT_CHANGEABLE = ("time.over", "time.deduplicate_by", "time.within", "time.start_at")
# These may change the state that is kept between batches: then there is nothing to go on from.
_OF_STATE = ("time.emit", "time.idle")
_OF_FILES = ("options", "order", "settle", "max_files", "missing", "on_rewrite")
_OF_VERSIONS = ("changes", "start_version", "start_timestamp", "max_versions")
_OF_OFFSETS = ("bootstrap_servers", "topics", "topic_pattern", "start", "max_records", "on_data_loss", "skip_bytes")
_OF_INGESTION = (
    *("path", "arrival_time", "live", "max_bytes", "alignment"),
    *(*_OF_FILES, *_OF_VERSIONS, *_OF_OFFSETS, "avro_schema"),
)
_CHANGEABLE_IN_SOURCE = (*_OF_INGESTION, "timestamp_by", "time_zone", "out_of_orderness", "idle", "splits")
# Open windows keep their events, so these apply to all windows that close from now on; a backfill gives them to the
# past as well. What is refused for being too much gives no row at all.
_CHANGEABLE_IN_WINDOW = ("aggregates", "having", "empty_max", "change_feed")

EXPECTED = (
    "changes of time settings, aggregates, file paths and limits only: others would mix rows of two meanings in one "
    "table"
)
REMEDY = "take the change back, or give the new spec another name or warehouse, where it reads all input anew"
_LONGEST = 160
_NOTE = "spec_file"  # of the input of an ingestion's plan


def ensure_taken(workspace: Workspace) -> None:
    """Checks that a pipeline that has tables takes the spec, before there is anything to do for it; needs no Spark.

    Raises:
        SpecError: It does not, or another file of its name made the tables.
    """
    _check_spec_file(workspace)
    if workspace.exists and workspace.lake.exists(tables.LOG_CONTROL) and not workspace.is_prepared:
        check_spec(workspace)


def _check_spec_file(workspace: Workspace) -> None:
    """Checks that the pipeline is run by one spec file: two would take turns, each with its own input and windows.

    Raises:
        SpecError: Another file of its name has read the last input and is still there.
    """
    other = other_file(workspace)
    if other is not None:
        raise SpecError(
            f"{workspace.file.path} and {other} are both called {workspace.spec.name}, and the tables in "
            f"{workspace.lake.root} are those of the second",
            expected="one spec file for the tables of a pipeline",
            remedy="give this one a `name` of its own, or another warehouse; if it replaces the other, move that one "
            "away",
        )


def note_of(workspace: Workspace) -> dict[str, str]:
    """What the plan of an ingestion says of the spec file.

    The path is as the operator gave it, so that it may lead over a link to the present release, and starts at the
    pipeline's tables, so that a project may be moved or copied with them. From a store no path leads to it.
    """
    file = workspace.file.named or workspace.file.path
    folder = workspace.folder
    return {_NOTE: os.path.relpath(file, folder) if isinstance(folder, Path) else str(file)}


def other_file(workspace: Workspace) -> Path | None:
    """Another spec of this name that read the pipeline's last input and is still there; None if there is none."""
    last = workspace.batches.last_commit("ingest") if workspace.exists else None
    noted = last.plan.input.get(_NOTE) if last else None
    if noted is None:
        return None
    folder = workspace.folder if isinstance(workspace.folder, Path) else Path()
    other = Path(os.path.normpath(folder / noted))
    return other if _is_another(other, workspace) else None


def _is_another(other: Path, workspace: Workspace) -> bool:
    try:
        if os.path.samefile(other, workspace.file.path):
            return False
        return parse_spec(other.read_text(encoding="utf-8"), file=str(other)).name == workspace.spec.name
    except (OSError, UnicodeDecodeError, SpecError):  # nothing that could be run
        return False


def check_spec(workspace: Workspace) -> bool:
    """Tells whether the spec differs from the one that the log was last processed with; needs no Spark.

    Raises:
        SpecError: It differs in a way that a pipeline with tables cannot take.
    """
    before, now = _recorded_specs(workspace), json.loads(workspace.spec.canonical_json())
    if not before or before[-1] == now:
        return not before
    _refuse(before[-1], workspace.file, workspace.lake.root)
    return True


def refuse_two_meanings_of_time(workspace: Workspace) -> None:
    """A log that was judged under more than one meaning of time cannot be recomputed under one.

    What only ingestion goes by, and what windows give of their events, may have changed: the log is as it was read,
    and the past is given what the windows give now.

    Raises:
        SpecError: The spec judges the log in another way than it was judged.
    """
    _check_spec_file(workspace)
    check_spec(workspace)
    meanings = {_meaning_of_time(spec) for spec in _recorded_specs(workspace)}
    if meanings - {_meaning_of_time(json.loads(workspace.spec.canonical_json()))}:
        raise SpecError(
            f"The spec of {workspace.spec.name} judges events in another way than when its log was processed.",
            expected="the same settings of time for the whole log, so that recomputed days equal those of live runs",
            remedy="take the change back, or process the input under the new spec in another warehouse; recomputing "
            "the past across such a change is not supported yet",
        )


def _recorded_specs(workspace: Workspace) -> list[dict[str, Any]]:
    """The specs that the log was processed with, in their order."""
    return [json.loads(row["argument"]) for row in recorded(workspace, SPEC)]


def _meaning_of_time(spec: dict[str, Any]) -> str:
    """What of a spec says how the records of a given log are judged, as JSON."""
    judging = {name: part for name, part in spec.items() if name not in ("sources", "windows", "partitions")}
    sources = [
        {name: value for name, value in source.items() if name not in (*_OF_INGESTION, "rename")}
        for source in spec["sources"]
    ]
    windows = [
        {name: value for name, value in window.items() if name not in _CHANGEABLE_IN_WINDOW}
        for window in spec.get("windows", [])
    ]
    return json.dumps(judging | {"sources": sources, "windows": windows}, sort_keys=True)


@dataclass(frozen=True)
class Change:
    """A key in which two specs differ.

    Attributes:
        path: The key as text, windows by their names.
        before: Its value; None for none.
        now: The other one.
    """

    path: str
    before: Any
    now: Any

    @property
    def sentence(self) -> str:
        """What changed, in words."""
        if self.path in ("windows", "sources"):
            old, new = ([str(one["name"]) for one in side or []] for side in (self.before, self.now))
            return _apart(old, new) or "they stand in another order"
        if self.path.endswith("].schema"):
            old, new = (top_level_names(str(side)) for side in (self.before, self.now))
            if said := _apart(old, new):
                return said
        return f"was {_shown(self.before)}, is {_shown(self.now)}"


def _refuse(before: dict[str, Any], file: SpecFile, where: object) -> None:
    """Checks that tables that were made for one spec can go on with another.

    Raises:
        SpecError: They cannot; it names each key that stands against it, with its line, and how it changed.
    """
    spec = file.spec
    now = json.loads(spec.canonical_json())
    changes = [one for one in _differences(before, now) if not _names_the_same(one.path, before, now)]
    refused = [one for one in changes if not _is_changeable(one.path) or _feeds_another(one.path, spec)]
    if Spec.model_validate(before).keeps_timelines != spec.keeps_timelines:
        refused += [one for one in changes if one.path.startswith(_OF_STATE) and one not in refused]
    if not refused:
        return
    rows = [f"{file.place(_keys(one.path, spec))}{one.sentence}" for one in refused]
    raise SpecError(
        "\n  ".join([f"{file.name} changed since the tables in {where} were made:", *rows]),
        expected=EXPECTED,
        remedy=REMEDY,
    )


def _differences(before: Any, now: Any, path: str = "") -> Iterator[Change]:
    """The keys in which two specs differ."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted({*before, *now}):
            yield from _differences(before.get(name), now.get(name), f"{path}.{name}" if path else name)
        return
    if isinstance(before, list) and isinstance(now, list):
        if path == "sources" and len(before) == len(now):
            for i, (one, other) in enumerate(zip(before, now, strict=True)):
                yield from _differences(one, other, f"sources[{i}]")
            return
        old, new = (
            {window["name"]: window for window in side} if path == "windows" else {} for side in (before, now)
        )
        if path == "windows" and old.keys() == new.keys():
            for name in old:
                yield from _differences(old[name], new[name], f"windows[{name}]")
            return
    if before != now:
        yield Change(path, before, now)


def _feeds_another(path: str, spec: Spec) -> bool:
    """Whether a path is of a window that another goes over: that one keeps results as they were given.

    Which rows changed is told to others, not to windows.
    """
    changed, _, key = path.partition(".")
    return key != "change_feed" and any(changed == f"windows[{window.input}]" for window in spec.chained_windows)


def _names_the_same(path: str, before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a path is of a `rename` that gives the tables the same columns: names in the input may change."""
    found = re.match(r"sources\[(\d+)\]\.rename\b", path)
    if found is None:
        return False
    old, new = (side["sources"][int(found[1])] for side in (before, now))
    columns = [columns_in_tables(side["schema"], side.get("rename", {})) for side in (old, new)]
    return columns[0] == columns[1]


def _is_changeable(path: str) -> bool:
    if path in _NOT_CHANGEABLE:
        return False
    first, *rest = path.split(".")
    if first.startswith("sources["):
        return bool(rest) and rest[0] in _CHANGEABLE_IN_SOURCE
    if first.startswith("windows["):
        return bool(rest) and rest[0] in _CHANGEABLE_IN_WINDOW
    return first in _CHANGEABLE


def _keys(path: str, spec: Spec) -> KeyPath:
    """The keys and positions that a path stands for in the file."""
    positions = {window.name: number for number, window in enumerate(spec.windows)}
    keys: list[str | int] = []
    for step in path.split("."):
        match = re.fullmatch(r"(\w+)\[(\w+)\]", step)
        if match is None:
            keys.append(step)
        else:
            keys += [match[1], positions[match[2]] if match[1] == "windows" else int(match[2])]
    return tuple(keys)


def _apart(old: list[str], new: list[str]) -> str:
    """Which names are gone, and which are new; empty where they are the same."""
    changed = ([name for name in old if name not in new], "gone"), ([name for name in new if name not in old], "new")
    return ", ".join(f"{', '.join(f'`{name}`' for name in names)} {what}" for names, what in changed if names)


def _shown(value: Any) -> str:
    if value is None:
        return "the default"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
