"""Pipelines whose tables are made anew, and what they are compared with.

Here: the command, changes of a spec, what comes meanwhile, rows as of the last commit. Not here: what is tried.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidemark.assets.rebuild.shadow import Shadow
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace

Made = tuple[SpecFile, Settings]
_OF_BATCHES = ("raw_events", "_state/files", "log_control", "watermarks")


def changed(made: Made, before: str, now: str) -> Made:
    """The same pipeline after a change of its file."""
    file, settings = made
    text = file.path.read_text()
    assert text.count(before) == 1
    file.path.write_text(text.replace(before, now))
    return read_spec(file.path), settings


def rebuild(made: Made, *words: str) -> Result:
    file, settings = made
    given = ["rebuild", str(file.path), "--warehouse", str(settings.warehouse), *words]
    return CliRunner().invoke(main, given, catch_exceptions=False)


def elsewhere(made: Made) -> Made:
    file, settings = made
    return file, Settings(settings.warehouse.parent / "fresh", settings.specs, settings.dagster_home)


def workspace_of(made: Made) -> Workspace:
    return Workspace(made[0], made[1].warehouse)


def lines(file: Path) -> list[dict[str, Any]]:
    """The records of a file that can be read."""
    found = []
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def committed(made: Made, name: str) -> list[dict[str, Any]]:
    """Rows of a table as of the last commit, without their batches, in an order of their own."""
    workspace = workspace_of(made)
    rows = workspace.lake.rows(name, workspace.base_of(name)).to_pylist()
    bare = [{key: value for key, value in row.items() if key != "_batch_id"} for row in rows]
    return sorted(bare, key=str)


def public_tables(made: Made) -> Sequence[str]:
    return [name for name in workspace_of(made).tables if name not in _OF_BATCHES and not name.startswith("_state/")]


def assert_same(made: Made, fresh: Made) -> None:
    assert committed(made, "raw_events") == committed(fresh, "raw_events"), "two logs cannot be compared"
    for name in public_tables(fresh):
        assert committed(made, name) == committed(fresh, name), name


def at_the_end(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do something once when a rebuild has caught up with live runs, before it switches."""
    catch_up, left = Shadow.catch_up, [act]

    def catching_up(shadow: Shadow, *, is_last: bool = False) -> None:
        catch_up(shadow, is_last=is_last)
        if left and not is_last:
            left.pop()()

    monkeypatch.setattr(Shadow, "catch_up", catching_up)
