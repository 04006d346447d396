"""The verdict on a pipeline: an audit finds nothing, and its rows are those of an undisturbed one.

Here: the comparisons. Not here: what disturbs the pipelines (acts.py), what readers see meanwhile (readers.py).
"""

import json
import shutil
from collections.abc import Mapping

from tests.chaos.commands import Command, Home
from tests.chaos.pipelines import Pipeline
from tests.runs.running import rows_by_table
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.workspace import Workspace

_OF_BATCHES = ("watermarks", "log_control", "batches")
_MOST_SHOWN = 3


class FaultError(AssertionError):
    """Something that must never happen."""


def done(command: Command) -> str:
    """Wait for a command that nothing disturbs; return what it printed.

    Raises:
        FaultError: It fails.
    """
    code = command.ended()
    if code != 0:
        raise FaultError(f"`{command.text}`, which nothing disturbed, ended with {code}:\n{command.output}")
    return command.output


def findings(home: Home, pipeline: Pipeline, *, is_damaged: bool = False) -> list[dict[str, str]]:
    """Return what an audit finds; of a pipeline that is damaged it may leave something out.

    Raises:
        FaultError: The audit fails.
    """
    command = Command(home, ["audit", str(pipeline.spec), "--json"])
    code, output = command.ended(), command.output
    found = next((json.loads(line) for line in output.splitlines() if line.startswith("[")), None)
    if found is None or code != bool(found):
        raise FaultError(f"`{command.text}` ended with {code}:\n{output}")
    if "were not recomputed" in output and not is_damaged:
        raise FaultError(f"`{command.text}` did not recompute all results:\n{output}")
    typed: list[dict[str, str]] = found
    return typed


def assert_sound(home: Home, pipeline: Pipeline) -> None:
    """Audit a pipeline.

    Raises:
        FaultError: Something is wrong with it.
    """
    if found := findings(home, pipeline):
        raise FaultError(f"an audit of {pipeline.name} finds {json.dumps(found, indent=2)}")


def assert_as_undisturbed(home: Home, pipeline: Pipeline) -> int:
    """Compare a pipeline with one that has read the same input in a warehouse of its own, undisturbed.

    Returns:
        How many rows were compared.

    Raises:
        FaultError: A row differs.
    """
    file = read_spec(pipeline.spec)
    found, wanted = (rows(Workspace(file, warehouse)) for warehouse in (home.warehouse, home.twins))
    if pipeline.name == "joined" and found["raw_events"] != wanted["raw_events"]:
        return assert_as_judged_again(home, pipeline)  # it has looked at two folders while files came: another log
    return compared(pipeline.name, found, wanted, "an undisturbed run of the same input")


def assert_as_judged_again(home: Home, pipeline: Pipeline) -> int:
    """Compare a pipeline with a copy of it, whose log is judged again from its beginning.

    Returns:
        How many rows were compared.

    Raises:
        FaultError: A row differs.
    """
    copies = home.disk / "copies"
    done(Command(home, ["backup", str(pipeline.spec), "--to", str(copies)]))
    done(Command(home, ["rebuild", str(pipeline.spec)], warehouse=copies))
    file = read_spec(pipeline.spec)
    # A decision on dead letters makes revisions that the log does not show.
    found, wanted = (rows(Workspace(file, place), "_revision") for place in (home.warehouse, copies))
    n = compared(pipeline.name, found, wanted, "a copy whose log is judged again")
    shutil.rmtree(copies)
    return n


def rows(workspace: Workspace, *without: str) -> Mapping[str, list[str]]:
    """Return the rows of all tables that readers know, as sorted texts, without the batches that wrote them."""
    names = [name for name in workspace.tables if name not in _OF_BATCHES and not name.startswith("_state/")]
    return rows_by_table(workspace, names, without=["_batch_id", *without])


def compared(name: str, found: Mapping[str, list[str]], wanted: Mapping[str, list[str]], what: str) -> int:
    """Compare rows by table, and return how many there are.

    Raises:
        FaultError: A row differs.
    """
    for table, right in wanted.items():
        here, there = set(found[table]), set(right)
        if found[table] != right:
            only = {"only here": sorted(here - there), "only there": sorted(there - here)}
            shown = "\n".join(f"  {label}: {row}" for label, rows in only.items() for row in rows[:_MOST_SHOWN])
            counts = f"{len(found[table])} rows, {len(right)} there"
            raise FaultError(f"{name}: {table} is not that of {what} ({counts}):\n{shown}")
    return sum(map(len, wanted.values()))
