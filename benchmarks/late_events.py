"""Exact late events of a log against a plain aggregation of it: `python -m benchmarks.late_events`.

Here: the work that is timed. Every piece reads the same Delta table and returns few rows.
"""

from pathlib import Path

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.logs import JITTER_MS, log_of, spark_of_two_cores, stored_log
from benchmarks.timing import BUDGET, INTO, LOGS, Figure, Report, seconds
from tidemark.timeops.computing.materialize import Stored
from tidemark.timeops.events.adjustment import Segment, time_adjustment
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec import TimeSpec
from tidemark.timeops.watermark.timelines import STATE, LogPlace


def by_minute(log: DataFrame) -> object:
    """Return the plain aggregation: events per minute of event time."""
    return (
        log.groupBy(F.date_trunc("minute", "t")).agg(F.count("*").alias("n")).agg(F.sum("n"), F.count("*")).collect()
    )


def late(log: DataFrame, stored: Stored, *, over: tuple[str, ...] = (), setters: bool = False) -> object:
    """Return how many events are out of order, and how late; with `setters` also which records made them so."""
    time = TimeSpec(timestamp_by="t", over=over, out_of_orderness=f"{JITTER_MS} ms", out_of_order="drop")
    segment = Segment(log, LogPlace(), stored=stored)
    adjusted = time_adjustment(segment, STATE.empty_table(), TimeRules(time))
    asked = [F.count("*"), F.sum("__tm_lateness_us"), *([F.sum("__tm_w_set_by")] if setters else [])]
    return adjusted.refused.where("__tm_w_before IS NOT NULL").agg(*asked).collect()


COUNT = "count by minute"
AIMS = {"late events, one timeline": 4.0, "late events, 100,000 timelines": 8.0}


@click.command()
@click.option("--events", default=10_000_000, help="Length of the logs.")
@click.option("--rounds", default=5, help="How often each piece is timed.")
@LOGS
@BUDGET
@INTO
def main(events: int, rounds: int, logs: Path, budget: float, into: Path | None) -> None:
    """Times them, and prints the ratios."""
    spark = spark_of_two_cores()
    folder = logs.absolute()
    thousand = log_of(spark, folder, events, 1_000)
    many = log_of(spark, folder, events, 100_000)
    of_thousand, of_many = stored_log(folder, events, 1_000), stored_log(folder, events, 100_000)
    times = seconds(
        {
            COUNT: lambda: by_minute(thousand),
            "late events, one timeline": lambda: late(thousand, of_thousand),
            "… and who set the watermark": lambda: late(thousand, of_thousand, setters=True),
            "late events, 1,000 timelines": lambda: late(thousand, of_thousand, over=("k",)),
            "late events, 100,000 timelines": lambda: late(many, of_many, over=("k",)),
        },
        rounds=rounds,
        budget_s=budget,
    )
    report = Report(f"exact late events of {events:,}, Delta log, warm", about={"events": events})
    for work, values in times.items():
        report.figures.append(Figure(work, values, against=None if work == COUNT else COUNT, aim=AIMS.get(work)))
    report.save(into)


if __name__ == "__main__":
    main()
