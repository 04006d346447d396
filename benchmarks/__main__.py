"""All pieces that the README's first table shows, one after the other: `python -m benchmarks`.

Here: which pieces, how long each may take, their one table and one JSON. Not here: what a piece measures; each is a
command of its own, in a process of its own.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import described
from benchmarks.timing import LOGS, show

FULL = 10_000_000
RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Piece:
    """A module of this folder with its options.

    Attributes:
        module: Its name.
        options: What it is given besides.
        budget_s: When it begins no further round; None where its options alone say how long it takes.
        keeps_logs: Whether it keeps logs or files from one run to the next.
    """

    module: str
    options: tuple[str, ...] = ()
    budget_s: float | None = None
    keeps_logs: bool = True


def pieces_of(events: int) -> list[Piece]:
    """All of them; their rounds and budgets are such that 10 million events take half an hour on two quiet cores."""
    many, fewer, few = (str(max(events // share, 100_000)) for share in (1, 5, 20))

    def budget(seconds: int) -> float:
        return seconds * min(events / FULL, 1)

    return [
        Piece("end_to_end", ("--events", many), budget_s=budget(720)),
        Piece("end_to_end", ("--events", fewer, "--format", "json", "--rounds", "1")),
        Piece("windows", ("--events", many), budget_s=budget(300)),
        Piece("late_events", ("--events", many, "--rounds", "3"), budget_s=budget(90)),
        Piece("micro_batches", keeps_logs=False),
        Piece("queued", ("--batches", "7"), keeps_logs=False),
        Piece("commands", budget_s=budget(90), keeps_logs=False),
        Piece("right_answers", ("--events", few)),
    ]


@click.command()
@click.option("--events", default=FULL, help="Of the longest logs; other lengths and the budgets follow.")
@click.option("--into", default=RESULTS, type=click.Path(path_type=Path), help="The file for the JSON.")
@LOGS
def main(events: int, into: Path, logs: Path) -> None:
    """Runs each piece, and shows all figures in one table; if a piece fails, the others run all the same."""
    start, about = time.perf_counter(), described() | {"started": datetime.now(UTC).isoformat(timespec="seconds")}
    reports: list[dict[str, Any]] = []
    failed = []
    for piece in pieces_of(events):
        report = _run(piece, logs)
        if report is None:
            failed.append(" ".join([piece.module, *piece.options]))
        else:
            reports.append(report)
    taken = time.perf_counter() - start
    results = {
        **about,
        "seconds": round(taken),
        "failed": failed,
        "reports": reports,
    }
    into.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    show(*reports, title=f"{taken / 60:.0f} minutes in all; single values: {into}")
    if failed:
        raise click.ClickException(f"Failed: {'; '.join(failed)}")


def _run(piece: Piece, logs: Path) -> dict[str, Any] | None:
    """Return what a piece reports; None where it failed, and has said why."""
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{piece.module}", *piece.options]
    if piece.keeps_logs:
        command += ["--logs", str(logs)]
    if piece.budget_s is not None:
        command += ["--budget", str(piece.budget_s)]
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "report.json"
        start = time.perf_counter()
        if subprocess.run([*command, "--json", str(into)], check=False).returncode:
            return None
        report: dict[str, Any] = json.loads(into.read_text(encoding="utf-8"))
    return {"piece": piece.module, "seconds": round(time.perf_counter() - start), **report}


if __name__ == "__main__":
    main()
