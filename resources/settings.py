"""The environment of a process, and its wall clock. Only the age of files on disk goes by another one.

Here: the places of the warehouse, specs and Dagster's home, and the Spark that computes; in that home the note of
each pipeline's warehouse and of the keys under which its code location shows it; the present instant, as a value
that is passed in. Not here: specs, time of events, watermarks, ticks (timeops/), where a run that does not count is
kept (pipelines/command_line.py).
"""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any

from tidemark.resources.places.checks import ensure_folder
from tidemark.resources.places.place import Place, place_of, write_whole
from tidemark.timeops.errors import MachineError

SPARK_VARIABLE = "TIDEMARK_SPARK"

_INSTANCE = """\
telemetry: {enabled: false}
nux: {enabled: false}

# The assets of a pipeline share a pool. A pool has one run at a time, so runs of a pipeline wait for each other.
concurrency:
  pools: {granularity: run, default_limit: 1}
run_queue: {dequeue_interval_seconds: 1}

# Runs begin in a process that `tidemark serve` and `make ui` keep, with all imported; without it as Dagster's own do.
run_launcher: {module: tidemark.pipelines.warm_runs, class: WarmRunLauncher}

# `alerts.freshness` of a spec: the daemon looks at the age of the last batch.
freshness: {enabled: true}
"""


KAFKA_PREFIX = "KAFKA_"
"""Prefix of the names of variables that a spec may send to brokers."""


def cache_folder() -> Path:
    """Return the user's folder for things that later starts need not find, fetch or make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tidemark")


@dataclass(frozen=True)
class Settings:
    """The places and the Spark of this process.

    Attributes:
        warehouse: Folder of the Delta tables, one folder per pipeline in it (`TIDEMARK_WAREHOUSE`); on a file system
            or in a store.
        specs: Folder whose `*.yaml` become asset groups (`TIDEMARK_SPECS`).
        dagster_home: Folder of Dagster's runs and events (`DAGSTER_HOME`).
        spark: The Spark that computes (`TIDEMARK_SPARK`): the URL of a Spark Connect server, `sc://…`, or what Spark
            calls a master; None if it is not set.
        spark_ui: Whether the operator asked for Spark's UI.
    """

    warehouse: Place
    specs: Path
    dagster_home: Path
    spark: str | None = None
    spark_ui: bool = False


def from_environment(
    default_specs: Path,
    *,
    warehouse: str | PathLike[str] | Place | None = None,
    spark: str | None = None,
    spark_ui: bool = False,
) -> Settings:
    """Return the settings of this process.

    A warehouse overrides `TIDEMARK_WAREHOUSE`; without either it is `./warehouse`. A Spark overrides
    `TIDEMARK_SPARK`. Without `TIDEMARK_SPECS` the specs are in the default folder.
    """
    place = place_of(warehouse or os.environ.get("TIDEMARK_WAREHOUSE") or "warehouse")
    return Settings(
        warehouse=place.resolve() if isinstance(place, Path) else place,
        specs=Path(os.environ.get("TIDEMARK_SPECS") or default_specs).absolute(),
        dagster_home=Path(os.environ.get("DAGSTER_HOME") or ".dagster").resolve(),
        spark=spark or os.environ.get(SPARK_VARIABLE) or None,
        spark_ui=spark_ui,
    )


def sends_lineage() -> bool:
    """Return whether OpenLineage's own variables and files say where its events go."""
    if os.environ.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get("OPENLINEAGE_URL") or any(name.startswith("OPENLINEAGE__TRANSPORT") for name in os.environ):
        return True
    named, usual = os.environ.get("OPENLINEAGE_CONFIG"), "openlineage.yml"
    files = (*([named] if named else []), usual, os.path.expanduser(f"~/.openlineage/{usual}"))
    return any(map(os.path.isfile, files))


def lineage_namespace() -> str:
    """Return the namespace of OpenLineage's jobs, as its other integrations read it."""
    return os.environ.get("OPENLINEAGE_NAMESPACE") or "default"


def variable(name: str) -> str | None:
    """Return the value of an environment variable that a spec file names; None if it is not set."""
    return os.environ.get(name)


def may_be_sent_to_kafka(name: str) -> bool:
    """Return whether a spec may send the value of a variable to the brokers that it names.

    The author of a spec chooses the host: otherwise a spec could send any secret of this machine there.
    """
    listed = os.environ.get("TIDEMARK_KAFKA_VARIABLES", "").split(",")
    return name.startswith(KAFKA_PREFIX) or name in (entry.strip() for entry in listed)


def use_dagster_home(home: Path) -> None:
    """Make `home` an existing Dagster home, and point this process at it; errors as of `ensure_dagster_home`."""
    ensure_dagster_home(home)
    os.environ["DAGSTER_HOME"] = str(home)


def ensure_dagster_home(home: Path) -> None:
    """Make `home` an existing Dagster home.

    Raises:
        SpecError: A file is in its place.
        MachineError: The home cannot be made.
    """
    remedy = "name another folder with DAGSTER_HOME"
    ensure_folder(home, "DAGSTER_HOME is", remedy)
    try:
        make_dagster_home(home)
    except OSError as error:
        fault = f"DAGSTER_HOME is {home}, and that folder cannot be created: {error.strerror}"
        raise MachineError(fault, expected="a writable folder", remedy=remedy) from error


def make_dagster_home(home: Path) -> list[Path]:
    """Make `home` an existing Dagster home; return the file that was written, if one was.

    If it has no `dagster.yaml`, one is written: without telemetry and Dagster's welcome, and with a queue in which
    runs of one pipeline wait for each other.
    """
    instance = home / "dagster.yaml"
    if instance.exists():
        return []
    write_whole(instance, _INSTANCE)  # also for a process that starts at the same moment
    return [instance]


class Clock:
    """The wall clock of this machine."""

    def now(self) -> datetime:
        """Return the present instant, aware and in UTC."""
        return datetime.now(UTC)

    def since(self, us: int) -> timedelta:
        """Return how long ago an instant was, microseconds since the epoch; a watermark may be of the year 0001."""
        return timedelta(seconds=self.now().timestamp() - us / 1e6)


_NOTE = "tidemark_warehouses.json"
_LOCATION, _RUN = "code location", "run"
_KEYS = "asset_keys"


def note_code_location(home: Path, asset_keys: Mapping[str, Mapping[str, Sequence[str]]], warehouse: Place) -> None:
    """Note the warehouse that a code location uses for pipelines, and keys of its own, in an existing home.

    `asset_keys` has for each pipeline the keys of tables that are shown under others than the default ones.
    """
    if home.is_dir():
        noted = {"warehouse": str(warehouse), "by": _LOCATION}
        _note(home, {name: noted | ({_KEYS: keys} if keys else {}) for name, keys in asset_keys.items()})


def noted_keys(home: Path, pipeline: str) -> Mapping[str, tuple[str, ...]]:
    """Return the keys of tables that the code location of a home shows under others than the default ones."""
    return {table: tuple(key) for table, key in _read(home).get(pipeline, {}).get(_KEYS, {}).items()}


def counted_warehouse(home: Path, pipeline: str, warehouse: Place, usual: Place) -> str:
    """Return the warehouse of a pipeline whose runs count.

    All its warehouses share the keys of its assets. So a trial run in another one would plot its numbers, and set its
    checks, among the pipeline's.

    Before a code location was loaded, it is the warehouse of the first run, or of the first run on the usual one.

    `usual` is the warehouse of runs in this environment that name none.
    """
    noted = _read(home).get(pipeline)
    if noted is None or (noted["by"] == _RUN and warehouse == usual):
        noted = {"warehouse": str(warehouse), "by": _RUN}
        _note(home, {pipeline: noted})
    return str(noted["warehouse"])


def _read(home: Path) -> dict[str, dict[str, Any]]:
    try:
        noted: dict[str, dict[str, Any]] = json.loads((home / _NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return noted


def _note(home: Path, news: dict[str, dict[str, Any]]) -> None:
    noted = _read(home)
    if noted | news != noted and os.access(home, os.W_OK):  # a home that can only be read is used all the same
        with suppress(OSError):
            write_whole(home / _NOTE, json.dumps(noted | news, indent=2))
