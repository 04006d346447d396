"""Rows and seconds in Dagster's storage for many days of many windows: `python -m benchmarks.dagster_events`.

One batch makes the tables, a new instance is told of all their days and checks, and a backfill then computes all days
again, by Spark. With `--postgres URL` of an empty database, which `dagster-postgres` needs, the same for an instance
there.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from pathlib import Path

import click
from dagster import DagsterInstance
from sqlalchemy import create_engine, inspect, text

from benchmarks.machine import described
from tidemark.assets.catalog.days import partitions as day_partitions
from tidemark.assets.catalog.days.partitions import Told, show_days, show_days_first
from tidemark.pipelines.code_location.rebuilding import chosen_windows
from tidemark.pipelines.code_location.upkeep import forget_runs
from tidemark.pipelines.running.execution import backfill_days, chosen_days
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings, use_dagster_home
from tidemark.resources.spark.session import local_session, session_config
from tidemark.resources.workspace import SpecFile, Workspace

SPEC = """
name: many_days
sources:
  - {name: rows, kind: files, path: in/*.csv, format: csv, options: {header: true}, schema: "at STRING, k STRING",
     settle: 0 s, order: position}
time: {timestamp_by: at, out_of_orderness: 1 hour}
events: {every: 1 day}
windows:
"""
WINDOW = "  - {{name: w{n}, kind: tumbling, size: {size} hours, group_by: [k], aggregates: {{n: count(*)}}}}\n"
SIZES = (1, 6, 8, 12, 24)
FIRST = date(2023, 1, 1)
STORAGE = "storage: {{postgres: {{postgres_url: {url}}}}}\ntelemetry: {{enabled: false}}\n"
SHOWN = ("event_logs", "asset_keys", "asset_check_executions", "asset_event_tags", "dynamic_partitions")


@dataclass
class Storage:
    """Dagster's storage of a home; in SQLite each run has a file of its own, and an index has some rows again."""

    home: Path
    postgres: str | None
    before: Counter[str] = field(default_factory=Counter)

    def rows(self) -> Counter[str]:
        """Return the rows of all its tables."""
        files = sorted(path for path in self.home.rglob("*.db") if path.is_file())
        found = Counter[str]()
        for url in [self.postgres] if self.postgres else [f"sqlite:///{path}" for path in files]:
            engine = create_engine(url)
            with engine.connect() as connection:
                for table in inspect(engine).get_table_names():
                    found[table] += connection.execute(text(f'SELECT count(*) FROM "{table}"')).scalar_one()
            engine.dispose()
        return found

    @contextmanager
    def measured(self, what: str) -> Iterator[None]:
        """Print the seconds of a piece of work, those of this process's CPU, and the rows that it added."""
        start, cpu = time.perf_counter(), time.process_time()
        yield
        took, spent, now = time.perf_counter() - start, time.process_time() - cpu, self.rows()
        rows = "  ".join(f"{now[name] - self.before[name]:8,}" for name in SHOWN)
        self.before = now
        click.echo(f"{what:40} {took:8.1f} {spent:8.1f}  {rows}")


def land(folder: Path, days: list[date]) -> None:
    """Write two events of each day."""
    folder.mkdir(exist_ok=True)
    lines = [f"{day}T{hour:02}:00:00Z,k{hour % 2}" for day in days for hour in (3, 16)]
    (folder / "days.csv").write_text("\n".join(["at,k", *lines, ""]))


def tell_all(file: SpecFile, settings: Settings, days: int, postgres: str | None) -> None:
    """Measure an instance that is new."""
    home, workspace = settings.dagster_home, Workspace(file, settings.warehouse)
    home.mkdir(exist_ok=True)
    if postgres:
        (home / "dagster.yaml").write_text(STORAGE.format(url=postgres))
    use_dagster_home(home)
    click.echo(
        f"{'Postgres' if postgres else 'SQLite':40} {'seconds':>8} {'CPU':>8}  {'  '.join(n[-8:] for n in SHOWN)}"
    )
    with DagsterInstance.from_config(str(home)) as instance:
        storage = Storage(home, postgres)
        storage.before = storage.rows()
        with storage.measured(f"report {days:,} days x {len(SIZES)}"):
            while show_days_first(instance, workspace):
                pass
        with storage.measured("look again"):
            show_days_first(instance, workspace)
        with storage.measured("add a day before all others"):
            show_days(instance, file.spec, "w0", [(FIRST - timedelta(days=9)).isoformat()])
        with storage.measured("look for runs that may be deleted"):
            forget_runs(file, instance, ["many_days_live"], workspace.clock.now(), home)
        session = local_session(session_config("local[*]", ui=False))
        chosen = chosen_days(file.spec, FIRST, FIRST + timedelta(days=days - 1), now=workspace.clock.now())
        with storage.measured(f"backfill {days:,} days x {len(SIZES)}, with Spark"):
            backfill_days(file, settings, chosen_windows(file.spec, ()), chosen, instance=instance)
        session.stop()


@click.command()
@click.option("--days", default=1_000, show_default=True, help="Days that hold results.")
@click.option("--postgres", help="URL of an empty database for Dagster's instance.")
def main(days: int, postgres: str | None) -> None:
    """Measure what Dagster's storage takes for many days."""
    click.echo(json.dumps(described()))
    day_partitions._LONGEST_S = 1_000_000
    with tempfile.TemporaryDirectory(prefix="tidemark-events-") as name:
        root = Path(name)
        windows = "".join(WINDOW.format(n=n, size=size) for n, size in enumerate(SIZES))
        (root / "many_days.yaml").write_text(f"{SPEC}{windows}")
        file, settings = read_spec(root / "many_days.yaml"), Settings(root / "warehouse", root, root / "sqlite")
        land(root / "in", [FIRST + timedelta(days=n) for n in range(days + 1)])
        session = local_session(session_config("local[*]", ui=False))
        with DagsterInstance.ephemeral() as instance:  # which is told of nothing
            note = json.dumps(asdict(Told(-1, time.time())))
            instance.daemon_cursor_storage.set_cursor_values({"tidemark/many_days/told": note})
            run_pipeline(file, settings, RunOptions(), instance=instance)
        session.stop()
        tell_all(file, settings, days, None)
        if postgres:
            tell_all(file, Settings(root / "warehouse", root, root / "postgres"), days, postgres)


if __name__ == "__main__":
    main()
