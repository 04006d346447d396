"""What a million events cost, CPU seconds by stage and bytes by table: `python -m benchmarks.sizing`.

The figures are those of docs/reference/sizing.md. Here: one command over a small and a large log; what both take is
of a batch, the rest of the events. Not here: the command (cold.py), its events (logs.py).
"""

import json
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import click
import psutil
import pyarrow as pa
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from benchmarks.cold import TIDEMARK, tidemark_run, write_spec
from benchmarks.logs import files_of
from benchmarks.timing import INTO, LOGS

_MILLION = 1_000_000
_LOOK_EVERY_S = 0.2
_START, _END, _BACKFILL = "start of Python and Spark", "end", "a backfill of all days, from cold"
_DAYS = ("--from", "2026-01-01", "--to", "2026-01-31", "--warehouse", "warehouse")
_WAITS = ("out_of_orderness: 5000 ms", "deduplicate_by: [k, t, v], out_of_orderness: 30 days")
_STATE = ("held_events", "_state/open_events", "_state/first_times")
_STAGES = {
    "reading": "ingestion",
    "judging": "judging, release",
    "checking ordered_events": "check of ordered_events",
    "closing": "windows",
    "checking window_results": "check of windows",
    "writing": "dead letters",
    "checking dead_letters": "check of all, pictures",
    "committing": "commit",
    "committed": _END,
}
"""The work that begins with a line of the command, by how the line begins."""

Figures = dict[str, float]


def cpu_of_stages(command: list[str], cwd: Path) -> Figures:
    """CPU seconds of a command with all its processes, by the stage that it says it is in."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    stage, taken, latest = [_START], dict.fromkeys([_START, *_STAGES.values()], 0.0), 0.0

    def listen() -> None:
        for line in process.stderr or ():
            doing = line.split(": ")[-1]
            stage[0] = next((name for begin, name in _STAGES.items() if doing.startswith(begin)), stage[0])

    threading.Thread(target=listen, daemon=True).start()
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):  # one of them ended while they were counted
            top = psutil.Process(process.pid)
            now = sum(one.cpu_times().user + one.cpu_times().system for one in [top, *top.children(recursive=True)])
            if now > latest:
                taken[stage[0]] += now - latest
                latest = now
        time.sleep(_LOOK_EVERY_S)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)} ended with exit code {process.returncode}")
    return taken


def bytes_of_tables(tables: Path) -> Figures:
    """Bytes of each table's latest version, without its log."""
    found = {}
    for log in sorted(tables.rglob("_delta_log")):
        files = pa.table(DeltaTable(str(log.parent)).get_add_actions(flatten=True))
        found[log.parent.relative_to(tables).as_posix()] = float(sum(files["size_bytes"].to_pylist()))
    return found


def measured(folder: Path, events: int) -> tuple[Figures, Figures]:
    """CPU seconds of the stages and bytes of the tables, of so many events in one batch."""
    files = files_of(folder, events, "parquet")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        spec = write_spec(work, files, "parquet", ordered=True)
        taken = cpu_of_stages(tidemark_run(TIDEMARK, spec), work)
        stored = bytes_of_tables(work / "warehouse" / "cold")
        days = cpu_of_stages([str(TIDEMARK), "backfill", spec, *_DAYS], work)
        return {**taken, _BACKFILL: sum(days.values())}, stored


def state_of(folder: Path, events: int) -> Figures:
    """Bytes of each event that waits: held, of an open window, known to have no duplicate yet."""
    files = files_of(folder, events, "parquet")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        spec = work / write_spec(work, files, "parquet", ordered=True)
        spec.write_text(spec.read_text(encoding="utf-8").replace(*_WAITS), encoding="utf-8")
        cpu_of_stages(tidemark_run(TIDEMARK, spec.name), work)
        stored = bytes_of_tables(work / "warehouse" / "cold")
        return {table: stored[table] / events for table in _STATE}


def in_parts(small: Figures, large: Figures, least: int, most: int) -> dict[str, dict[str, float]]:
    """What each takes whatever the events are, and what a million of them add."""
    parts = {}
    for name, of_large in large.items():
        per_event = max(of_large - small.get(name, 0.0), 0.0) / (most - least)
        parts[name] = {
            "of a batch": max(of_large - per_event * most, 0.0),
            "per million": per_event * _MILLION,
        }
    return parts


def show(title: str, parts: dict[str, dict[str, float]], digits: int) -> None:
    """Prints one table, with the sums below."""
    table = Table(title, "of a batch", "per million events", title_justify="left")
    sums = {key: sum(part[key] for part in parts.values()) for key in ("of a batch", "per million")}
    for name, part in {**parts, "together": sums}.items():
        table.add_row(name, f"{part['of a batch']:,.{digits}f}", f"{part['per million']:,.{digits}f}")
    Console(width=100).print(table)


@click.command()
@click.option("--small", default=1_500_000, help="Events of the small log; stages judge anew from a million on.")
@click.option("--large", default=4_000_000, help="Events of the large log.")
@LOGS
@INTO
def main(*, small: int, large: int, logs: Path, into: Path | None) -> None:
    """Runs the job of the cold commands over both logs, and prints what an event costs."""
    of_small, of_large = (measured(logs.absolute(), events) for events in (small, large))
    cpu, stored = (in_parts(less, more, small, large) for less, more in zip(of_small, of_large, strict=True))
    show("CPU seconds", cpu, 1)
    show("bytes stored", stored, 0)
    state = state_of(logs.absolute(), small)
    click.echo("bytes of an event that waits: " + ", ".join(f"{table} {size:.0f}" for table, size in state.items()))
    if into is not None:
        found = {"events": [small, large], "cpu_seconds": cpu, "bytes": stored, "bytes_of_a_waiting_event": state}
        into.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
