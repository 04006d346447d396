"""What a process finds around it: the environment and the wall clock, each of which is read here only.

Here: where the warehouse, specs and Dagster's home are, which Spark computes; the present instant, as a value that is
handed in. Not here: anything a spec file says, time of events, watermarks, ticks (timeops/).
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tidemark.resources.places.checks import ensure_folder
from tidemark.resources.places.place import Place, place_of, resolved
from tidemark.timeops.errors import MachineError

SPARK_VARIABLE = "TIDEMARK_SPARK"

_INSTANCE = """\
telemetry: {enabled: false}
nux: {enabled: false}

# The assets of a pipeline share a pool. A pool has one run at a time, so runs of a pipeline wait for each other.
concurrency:
  pools: {granularity: run, default_limit: 1}
run_queue: {dequeue_interval_seconds: 1}

# `alerts.freshness` of a spec: the daemon looks at the age of the last batch.
freshness: {enabled: true}
"""


KAFKA_PREFIX = "KAFKA_"
"""What the names of variables begin with that a spec may have sent to brokers."""


def cache_folder() -> Path:
    """Return the folder of the user for what later starts need not find, fetch or make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tidemark")


@dataclass(frozen=True)
class Settings:
    """Where things are.

    Attributes:
        warehouse: Folder of the Delta tables, one folder per pipeline in it (`TIDEMARK_WAREHOUSE`); on a file system
            or in a store.
        specs: Folder whose `*.yaml` become asset groups (`TIDEMARK_SPECS`).
        dagster_home: Folder of Dagster's runs and events (`DAGSTER_HOME`).
        spark: The Spark that computes (`TIDEMARK_SPARK`): the URL of a Spark Connect server, `sc://…`, or what Spark
            calls a master; None where it is not said.
        data_docs: Address at which the pages of Great Expectations are served, so that they can be linked
            (`TIDEMARK_DATA_DOCS`); empty where nobody serves them.
        spark_ui: Whether a person asked for Spark's UI.
    """

    warehouse: Place
    specs: Path
    dagster_home: Path
    spark: str | None = None
    data_docs: str = ""
    spark_ui: bool = False


def from_environment(
    default_specs: Path,
    *,
    warehouse: Place | None = None,
    spark_ui: bool = False,
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """Settings of this process.

    Args:
        default_specs: The specs folder when `TIDEMARK_SPECS` is not set.
        warehouse: Overrides `TIDEMARK_WAREHOUSE`; without either it is `./warehouse`.
        spark_ui: Whether a person asked for Spark's UI.
        environment: For tests; by default the process's own.
    """
    known = os.environ if environment is None else environment
    return Settings(
        warehouse=resolved(warehouse or place_of(known.get("TIDEMARK_WAREHOUSE") or "warehouse")),
        specs=Path(known.get("TIDEMARK_SPECS") or default_specs).absolute(),
        dagster_home=Path(known.get("DAGSTER_HOME") or ".dagster").resolve(),
        spark=known.get(SPARK_VARIABLE) or None,
        data_docs=known.get("TIDEMARK_DATA_DOCS", "").rstrip("/"),
        spark_ui=spark_ui,
    )


def variable(name: str) -> str | None:
    """The value of an environment variable that a spec file names; None where it is not set."""
    return os.environ.get(name)


def may_be_sent_to_kafka(name: str) -> bool:
    """Whether a spec may have the value of a variable sent to the brokers that it names.

    Whoever writes a spec chooses the host: else it would have any secret of this machine sent there.
    """
    listed = os.environ.get("TIDEMARK_KAFKA_VARIABLES", "").split(",")
    return name.startswith(KAFKA_PREFIX) or name in (one.strip() for one in listed)


def use_dagster_home(home: Path) -> None:
    """Makes `home` an existing Dagster home, and points this process at it.

    Raises:
        SpecError: A file is where it belongs.
        MachineError: It cannot be made.
    """
    remedy = "name another folder with DAGSTER_HOME"
    ensure_folder(home, "DAGSTER_HOME is", remedy)
    try:
        make_dagster_home(home)
    except OSError as error:
        found = f"DAGSTER_HOME is {home}, and that folder cannot be made: {error.strerror}"
        raise MachineError(found, expected="a folder that can be written", remedy=remedy) from error
    os.environ["DAGSTER_HOME"] = str(home)


def make_dagster_home(home: Path) -> list[Path]:
    """Makes `home` an existing Dagster home; the file that was written, if one was.

    Where there is no `dagster.yaml` in it, one is written: without telemetry and Dagster's welcome, and with a queue
    in which runs of one pipeline wait for each other.
    """
    home.mkdir(parents=True, exist_ok=True)
    instance = home / "dagster.yaml"
    if instance.exists():
        return []
    unfinished = home / f".dagster.yaml.{os.getpid()}"
    unfinished.write_text(_INSTANCE)
    unfinished.rename(instance)  # whole, for whoever starts at the same moment
    return [instance]


class Clock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        """Return the present instant, aware and in UTC."""
        return datetime.now(UTC)

    def since(self, us: int) -> timedelta:
        """Return how long ago an instant was, microseconds since the epoch; a watermark may be of the year 0001."""
        return timedelta(seconds=self.now().timestamp() - us / 1e6)


class FixedClock(Clock):
    """A clock that stands still until it is moved: for tests and replays.

    Args:
        instant: The instant it shows, aware.
    """

    def __init__(self, instant: datetime) -> None:
        self._instant = instant.astimezone(UTC)

    def now(self) -> datetime:
        """Return the instant that the clock was set to."""
        return self._instant

    def advance(self, by: timedelta) -> None:
        """Move the clock on by a duration."""
        self._instant += by
