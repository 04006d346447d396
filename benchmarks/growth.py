"""Late events of ever longer logs: time per event, and what memory they leave: `python -m benchmarks.growth`.

The work is that of late_events.py.
"""

import re
import resource
import subprocess
from pathlib import Path
from statistics import median

import click
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from benchmarks.late_events import late
from benchmarks.logs import log_of, spark_of_two_cores, stored_log
from benchmarks.machine import family
from benchmarks.timing import LOGS, seconds

LENGTHS = (1_000_000, 3_000_000, 10_000_000, 30_000_000)


def live_heap_mb() -> float:
    """Return what is alive in the heap of the JVM that this process started, after a collection."""
    [pid] = [str(one.pid) for one in family() if one.name() == "java"]
    subprocess.run(["jcmd", pid, "GC.run"], capture_output=True, check=True)
    said = subprocess.run(["jcmd", pid, "GC.heap_info"], capture_output=True, text=True, check=True).stdout
    return (
        sum(int(kilobytes) for kilobytes in re.findall(r"(?:heap|Gen|generation)\s+total \d+K, used (\d+)K", said))
        / 1024
    )


def median_seconds(spark: SparkSession, folder: Path, length: int, rounds: int) -> float:
    """Return how long it takes to find the late events of a log, and who set the watermark."""
    log, stored = log_of(spark, folder, length, 1_000), stored_log(folder, length, 1_000)
    return median(seconds({"late": lambda: late(log, stored, setters=True)}, rounds=rounds)["late"])


@click.command()
@click.option("--rounds", default=3, help="How often each length is timed.")
@LOGS
def main(rounds: int, logs: Path) -> None:
    """Time each length, and print the memory that is in use after it."""
    spark = spark_of_two_cores()
    table = Table("events", "median s", "us per event", "heap after it, MB", "python, MB", title="One timeline")
    for length in LENGTHS:
        taken = median_seconds(spark, logs.absolute(), length, rounds)
        python = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        table.add_row(
            f"{length:,}", f"{taken:.2f}", f"{1e6 * taken / length:.3f}", f"{live_heap_mb():.0f}", f"{python:.0f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
