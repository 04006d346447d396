"""Metrics of pipelines for Prometheus: what `tidemark status` knows in numbers, without Spark and without Dagster.

Here: names, labels and values; the text; the endpoint of `tidemark serve`. Not here: the facts
(pipelines/views/status.py), the board and the alerts (docs/grafana.json, docs/prometheus-alerts.yaml).

What only grows is a counter: the records of the log, and how many of them were judged. All else is a gauge, also the
dead letters and the rows of tables: a rebuild, a backfill or a correction may make them fewer.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from prometheus_client import CollectorRegistry, Metric, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from tidemark.pipelines.spec_files import pipeline_in, read_spec
from tidemark.pipelines.views.status import Status, status_of
from tidemark.resources.batches.plans import Commit, Counts
from tidemark.resources.batches.position import records_in
from tidemark.resources.delta.versions import Version
from tidemark.resources.places.place import Place
from tidemark.resources.sources.reader import Found
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import SpecError, TidemarkError
from tidemark.timeops.rules.reasons import OF_ACCEPTED
from tidemark.timeops.values.utc import us_of

ADDRESS = "127.0.0.1"
"""The only address of the endpoint, which has no login."""
_FRESH_S = 5.0
_UNITS = ("seconds", "bytes")
Value = tuple[Sequence[str], float]
"""The labels of a sample after the name of the pipeline, and its number."""


@dataclass(frozen=True)
class Measure:
    """A metric.

    Attributes:
        name: Its name after `tidemark_`; the unit is at its end, if it has one.
        about: A sentence for the board.
        of: Returns its values for a pipeline.
        labels: Names of the labels after `pipeline`.
        grows: Whether it never gets smaller while the tables of the pipeline are there.
    """

    name: str
    about: str
    of: Callable[[Status, Workspace], Iterable[Value]]
    labels: Sequence[str] = ()
    grows: bool = False

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """Return it without values."""
        unit = next((unit for unit in _UNITS if self.name.endswith(f"_{unit}")), "")
        kind = CounterMetricFamily if self.grows else GaugeMetricFamily
        return kind(f"tidemark_{self.name}", self.about, labels=("pipeline", *self.labels), unit=unit)


def _one(value: float | None) -> list[Value]:
    return [] if value is None else [((), value)]


def _dead_letters(_status: Status, workspace: Workspace) -> Iterator[Value]:
    counts = Counts.sum(commit.counts for commit in workspace.batches.counted()) if workspace.exists else Counts()
    for reason, n in counts.refused.items():
        yield (reason, ""), n
    for reason in OF_ACCEPTED:
        for window, n in counts.of_windows(reason, counts.windows).items():
            yield (reason, window), n


def _sizes(of: Callable[[Version], float]) -> Callable[[Status, Workspace], Iterator[Value]]:
    def values(_status: Status, workspace: Workspace) -> Iterator[Value]:
        last = workspace.batches.last_commit() if workspace.exists else None
        for table, version in sorted(last.table_versions.items()) if last else ():
            if workspace.lake.exists(table):
                yield (table,), of(workspace.lake.opened.version_at(table, version))

    return values


def _by_source(of: Callable[[Found], int]) -> Callable[[Status, Workspace], Iterable[Value]]:
    return lambda status, _: [((source,), of(inputs)) for source, inputs in status.waiting.by_source.items()]


def _commit(of: Callable[[Commit], float]) -> Callable[[Status, Workspace], list[Value]]:
    return lambda status, _: [] if status.last is None else [((), of(status.last))]


def _watermark(status: Status, _: Workspace) -> list[Value]:
    us = None if status.is_flushed else status.position.watermark_us
    return _one(None if us is None else us / 1e6)


MEASURES = (
    Measure("records", "Records in the log", lambda state, _: _one(state.records), grows=True),
    Measure(
        "processed_records", "Records of the log that were judged", lambda state, _: _one(state.processed), grows=True
    ),
    Measure("held_events", "Accepted events that the watermark has not passed", lambda state, _: _one(state.held)),
    Measure("dead_letters", "Records that were refused, by reason", _dead_letters, ("reason", "window")),
    Measure("watermark_timestamp_seconds", "The watermark, since the epoch; none after a flush", _watermark),
    Measure(
        "watermark_delay_seconds",
        "The clock minus the watermark, when it was looked at",
        lambda state, _: _one(None if state.delay is None else state.delay.total_seconds()),
    ),
    Measure(
        "last_commit_timestamp_seconds",
        "When the last batch with results was committed",
        _commit(lambda commit: commit.committed_at.timestamp()),
    ),
    Measure(
        "last_commit_age_seconds",
        "The clock minus that, when it was looked at",
        lambda state, looked: _one(
            None if state.last is None else looked.clock.since(us_of(state.last.committed_at)).total_seconds()
        ),
    ),
    Measure("last_batch_seconds", "How long that batch took", _commit(lambda commit: commit.took.total_seconds())),
    Measure("last_batch_records", "Records that it judged", _commit(lambda commit: records_in(commit.plan))),
    Measure(
        "at_work", "1 while a process works on a batch, else 0", lambda state, _: _one(int(state.at_work is not None))
    ),
    Measure(
        "inputs_waiting", "Files, versions and offsets to be read", _by_source(lambda inputs: inputs.new), ("source",)
    ),
    Measure(
        "inputs_unsettled", "Files younger than `settle`", _by_source(lambda inputs: len(inputs.waiting)), ("source",)
    ),
    Measure(
        "inputs_held_back", "Inputs that cannot be read", _by_source(lambda inputs: len(inputs.errors)), ("source",)
    ),
    Measure(
        "problems",
        "How many things need the operator, see `tidemark status`",
        lambda state, _: _one(len(state.wrong)),
    ),
    Measure(
        "table_rows", "Rows of a table as of the last commit", _sizes(lambda table: table.row_count()), ("table",)
    ),
    Measure("table_files", "Its files", _sizes(lambda table: len(table.sizes)), ("table",)),
    Measure("table_bytes", "Bytes of these files", _sizes(lambda table: sum(table.sizes.values())), ("table",)),
)
"""The metrics of a pipeline that could be looked at."""
_UP = Measure("up", "1 if the last look at the pipeline succeeded, else 0", lambda _, __: ())
_LOOK = Measure("look_seconds", "How long the last look at the pipeline took", lambda _, __: ())


@dataclass(frozen=True)
class Look:
    """A look at a pipeline.

    Attributes:
        pipeline: Its name, as far as it is known.
        seconds: How long the look took.
        values: The values of each metric, by its name; none if the look failed.
        error: Why it failed.
    """

    pipeline: str
    seconds: float
    values: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    error: Exception | None = None


_NAMESAKES = SpecError("Two specs have the same name", expected="one spec per name")


def look(spec: Path, warehouse: Place) -> Look:
    """Look at a pipeline. What is wrong with it is not raised: a broken pipeline hides no other."""
    begun, name = time.monotonic(), None
    try:
        workspace = Workspace(read_spec(spec), warehouse)
        name = workspace.spec.name
        status = status_of(workspace)
        values = {measure.name: [*measure.of(status, workspace)] for measure in MEASURES}
    except Exception as error:
        return Look(name or pipeline_in(spec), time.monotonic() - begun, error=error)
    return Look(name, time.monotonic() - begun, values)


def families(looks: Sequence[Look]) -> Iterator[Metric]:
    """Return the metrics of pipelines; of two with one name none is up."""
    by_name: dict[str, Look] = {}
    for result in looks:
        is_second = result.pipeline in by_name
        by_name[result.pipeline] = Look(result.pipeline, result.seconds, error=_NAMESAKES) if is_second else result
    up, seconds = _UP.family(), _LOOK.family()
    for result in by_name.values():
        up.add_metric([result.pipeline], int(result.error is None))
        seconds.add_metric([result.pipeline], result.seconds)
    yield from (up, seconds)
    for measure in MEASURES:
        family = measure.family()
        for result in by_name.values():
            for labels, value in result.values.get(measure.name, ()):
                family.add_metric([result.pipeline, *labels], value)
        yield family


class Looks(Collector):
    """Metrics for a registry: of one look at all pipelines for all that ask within some seconds.

    Others that ask meanwhile wait for it, so that there is one look at a time.
    """

    def __init__(self, look_at_all: Callable[[], Sequence[Look]], fresh_s: float = _FRESH_S) -> None:
        self._look, self._fresh_s, self._lock = look_at_all, fresh_s, Lock()
        self._looks: Sequence[Look] = ()
        self._ended = -math.inf

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        with self._lock:
            if time.monotonic() - self._ended >= self._fresh_s:
                self._looks = self._look()
                self._ended = time.monotonic()
            looks = self._looks
        yield from families(looks)


def text_of(looks: Sequence[Look], *, for_collector: bool = False) -> str:
    """Return metrics as text of OpenMetrics 1.0, or for node_exporter in the older format of Prometheus."""
    registry = _registry(Looks(lambda: looks))
    if for_collector:
        return generate_latest(registry).decode()
    text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.decode()


def _registry(looks: Looks) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(looks)
    return registry


@contextmanager
def endpoint(port: int, look_at_all: Callable[[], Sequence[Look]]) -> Iterator[None]:
    """Answer on a port of this machine at `/metrics`; nothing is looked at before it is asked for.

    Raises:
        TidemarkError: The port is taken.
    """
    try:
        server, thread = start_http_server(port, ADDRESS, _registry(Looks(look_at_all)))
    except OSError as error:
        raise TidemarkError(
            f"Port {port} cannot be used for metrics: {error.strerror}.",
            expected="a free port",
            remedy="name another one with --metrics-port.",
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
