"""Late events of ever longer logs: time per event, and what memory they leave: `python -m benchmarks.growth`.

Here: lengths, and how memory is looked at. Not here: the work (late_events.py).
"""

import os
import re
import resource
import subprocess
from functools import partial
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from benchmarks.late_events import late
from benchmarks.logs import log_of
from benchmarks.timing import seconds
from tidemark.resources.spark.session import local_session, session_config

LENGTHS = (1_000_000, 3_000_000, 10_000_000, 30_000_000)


def live_heap_mb() -> float:
    """Return what is alive in the heap of the JVM that this process started, after a collection."""
    known = subprocess.run(["jps", "-q"], capture_output=True, text=True, check=True).stdout.split()
    [pid] = [pid for pid in known if _parent(pid) is not None]
    subprocess.run(["jcmd", pid, "GC.run"], capture_output=True, check=True)
    said = subprocess.run(["jcmd", pid, "GC.heap_info"], capture_output=True, text=True, check=True).stdout
    return (
        sum(int(kilobytes) for kilobytes in re.findall(r"(?:heap|Gen|generation)\s+total \d+K, used (\d+)K", said))
        / 1024
    )


def _parent(pid: str) -> str | None:
    """This process among the ancestors of another; None where it is none."""
    seen = pid
    while seen not in ("0", "1"):
        status = Path(f"/proc/{seen}/status")
        if not status.exists():
            return None
        seen = next(line.split()[1] for line in status.read_text().splitlines() if line.startswith("PPid"))
        if seen == str(os.getpid()):
            return seen
    return None


@click.command()
@click.option("--rounds", default=3, help="How often each length is timed.")
@click.option("--logs", default="benchmarks/.logs", type=click.Path(path_type=Path), help="Where logs are kept.")
def main(rounds: int, logs: Path) -> None:
    """Time each length, and print the memory that is in use after it."""
    spark = local_session(session_config() | {"spark.master": "local[2]", "spark.driver.memory": "4g"})
    table = Table("events", "median s", "us per event", "heap after it, MB", "python, MB", title="One timeline")
    for length in LENGTHS:
        log = log_of(spark, logs.absolute(), length, 1_000)
        taken = median(seconds({"late": partial(late, log, setters=True)}, rounds=rounds)["late"])
        python = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        table.add_row(
            f"{length:,}", f"{taken:.2f}", f"{1e6 * taken / length:.3f}", f"{live_heap_mb():.0f}", f"{python:.0f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
