"""A week of a log of three months computed anew, against all of it: `python -m benchmarks.backfills`."""

import tempfile
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path

import click
from dagster import DagsterInstance
from rich.console import Console

from benchmarks.logs import land_lines
from benchmarks.timing import Figure, Report, seconds
from tidemark.assets.log.exclusions import records_between
from tidemark.assets.rebuild.days import range_of_windows, rebuild_days
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.spark.session import local_session, session_config
from tidemark.resources.workspace import Workspace
from tidemark.timeops.values.utc import us_of

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = """
name: daily
sources:
  - {name: days, kind: files, path: in/*.jsonl, format: json, schema: "at STRING, k STRING, v INT", arrival_time: at,
     settle: 0 s, max_files: 1}
time: {timestamp_by: at, out_of_orderness: 5 s}
windows:
  - {name: hours, kind: tumbling, size: 1 hour, group_by: [k], aggregates: {n: count(*), total: sum(v)}}
"""


def files_read(workspace: Workspace, first: date, last: date) -> int:
    """Return how many files of the log a backfill of some days opens, by Spark's plan of its scan."""
    start, end = (datetime(day.year, day.month, day.day, tzinfo=UTC) for day in (first, last + timedelta(days=1)))
    part = range_of_windows(workspace, workspace.spec.windows[0], us_of(start), us_of(end))
    return len(records_between(workspace, part.first_seq, part.end_seq).inputFiles())


@click.command()
@click.option("--days", default=90, help="How many days the log has, each a batch.")
@click.option("--events", default=5_000, help="Events of each.")
@click.option("--some", default=7, help="How many days, from the middle, are computed anew.")
@click.option("--rounds", default=5, help="How often each backfill is timed.")
def main(days: int, events: int, some: int, rounds: int) -> None:
    """Times both, and prints the ratios of seconds and of files."""
    with tempfile.TemporaryDirectory() as name, DagsterInstance.ephemeral() as instance:
        root = Path(name)
        (root / "daily.yaml").write_text(SPEC)
        for day in range(days):
            start, step = FIRST + timedelta(days=day), timedelta(days=1) / events
            land_lines(root / "in" / f"{day:04}.jsonl", start, step, events)
        file, settings = read_spec(root / "daily.yaml"), Settings(root / "warehouse", root, root / "home")
        run_pipeline(file, settings, RunOptions(), instance=instance)
        workspace = Workspace(file, settings.warehouse, lambda: local_session(session_config()))
        middle = FIRST.date() + timedelta(days=(days - some) // 2)
        spans = {
            f"all {days} days": (FIRST.date(), FIRST.date() + timedelta(days=days - 1)),
            f"{some} of them": (middle, middle + timedelta(days=some - 1)),
        }
        work: dict[str, Callable[[], object]] = {
            what: partial(rebuild_days, workspace, file.spec.windows[0], *span, what) for what, span in spans.items()
        }
        times = seconds(work, rounds=rounds)
        whole, part = spans
        title = f"{days} days of {events:,} events, {days} batches"
        figures = [Figure(whole, times[whole]), Figure(part, times[part], against=whole, aim=0.2)]
        Report(title, figures).save(None)
        files = {what: files_read(workspace, *span) for what, span in spans.items()}
        share = files[part] / files[whole]
        Console().print(f"files of the log: {files[part]} of {files[whole]}, {share:.0%}; at most 15 %")


if __name__ == "__main__":
    main()
