"""A whole pipeline spec, and the rules between its parts.

Here: the top level of the file, and what one part asks of another. Not here: reading text (__init__.py).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, model_validator

from tidemark.timeops.expressions.tokens import mentions, plain_column
from tidemark.timeops.problems import Problem, ProblemsError, raise_any
from tidemark.timeops.spec.any_source import AnySource
from tidemark.timeops.spec.automation import Alerts, Owner, Schedule, Tags
from tidemark.timeops.spec.consistency import (
    between_sources,
    former_names,
    goes_by_clock,
    has_event_time,
    live_problems,
    source_problems,
    user_problems,
)
from tidemark.timeops.spec.event_time import TimeSpec
from tidemark.timeops.spec.fields import Day, Flag, Name, PipelineName, SpecModel, TimeZone
from tidemark.timeops.spec.kafka_source import KafkaSource
from tidemark.timeops.spec.source import DeltaSource, FilesSource, Source
from tidemark.timeops.spec.window import WindowSpec, chain_problems, inputs_first, missing_of_over


class Outputs(SpecModel):
    """Which tables are written beside windows and dead letters."""

    ordered_events: Flag = Field(default=True, description="Write ordered_events and held_events.")


class Catalog(SpecModel):
    """Where the tables have names that SQL knows."""

    name: Name = Field(
        default="spark_catalog", description="Name of the catalog in Spark; by default the session's own."
    )
    schema_name: Name | None = Field(
        default=None,
        alias="schema",
        description="The schema, which is made if need be; default: the pipeline's name.",
    )


class Partitions(SpecModel):
    """The day partitions of the window tables."""

    start: Day | None = Field(
        default=None, description="First day that is shown as a partition; default: the first one that has results."
    )
    time_zone: TimeZone = Field(default="UTC", description="Zone of the days, such as Europe/Berlin.")


def _some_source(value: object) -> object:
    if isinstance(value, list | tuple) and not value:
        raise ProblemsError([Problem("found 0 sources", expected="a list of one source or more")])
    return value


class Spec(SpecModel):
    """One pipeline: where events come from, what their time is, and the windows over them."""

    WITHOUT_EFFECT: ClassVar[Mapping[str, str]] = {
        "live": "it is a key of sources with an `arrival_time`, and `tidemark run --live` moves the clock"
    }

    name: PipelineName = Field(description="Name of the pipeline; its tables are in a folder of this name.")
    sources: Annotated[tuple[AnySource, ...], BeforeValidator(_some_source)] = Field(
        description="Where records come from; several sources are merged into one log."
    )
    time: TimeSpec = Field(default=TimeSpec(), description="What event time is, and how the watermark follows it.")
    outputs: Outputs = Field(default=Outputs(), description="Which tables are written.")
    windows: tuple[WindowSpec, ...] = Field(default=(), description="Aggregates over windows of event time.")
    partitions: Partitions = Field(
        default=Partitions(), description="How the day partitions of the window tables are shown."
    )
    schedule: Schedule | None = Field(
        default=None,
        description="When Dagster runs the pipeline by itself: a cron text (UTC), or {on_new_input: 15 seconds}; "
        "default: never.",
    )

    catalog: Catalog | None = Field(
        default=None,
        description="Name the tables in a catalog, with views <name>_committed that show the last commit; "
        "default: none.",
    )
    alerts: Alerts = Field(
        default=Alerts(), description="When dead letters, or the age of results, cause a warning or an error."
    )
    owners: tuple[Owner, ...] = Field(
        default=(),
        description="Who is responsible for the pipeline, as Dagster shows it: e-mail addresses, or `team:<name>`.",
    )
    tags: Tags = Field(default={}, description="Words by which Dagster finds the pipeline's assets.")

    @model_validator(mode="after")
    def _together(self) -> "Spec":
        given = self.model_fields_set
        raise_any(
            rules_between_parts(
                sources=self.sources,
                time=self.time,
                windows=dict(enumerate(self.windows)),
                has_windows=bool(self.windows),
                outputs=self.outputs,
                has_partitions="partitions" in given,
                has_schedule="schedule" in given,
            )
        )
        return self

    @property
    def uses_splits(self) -> bool:
        """True if the watermark is the lowest of several splits (F); several sources are several splits."""
        return len(self.sources) > 1 or any(source.has_splits for source in self.sources)

    @property
    def reads_tables(self) -> bool:
        """True if some source is a Delta table."""
        return any(isinstance(source, DeltaSource) for source in self.sources)

    @property
    def reads_kafka(self) -> bool:
        """True if some source is Kafka."""
        return any(isinstance(source, KafkaSource) for source in self.sources)

    @property
    def reads_files_only(self) -> bool:
        """True if all that waits of the sources are files."""
        return all(isinstance(source, FilesSource) for source in self.sources)

    @property
    def is_aligned(self) -> bool:
        """True if sources wait for each other (F)."""
        return any(source.alignment is not None for source in self.sources)

    @property
    def keeps_timelines(self) -> bool:
        """True if the state between batches is more than the watermark of one timeline."""
        time = self.time
        follows = time.idle is not None and time.idle.advance != "arrival_clock"
        return bool(time.over) or time.emit_every_us is not None or self.uses_splits or follows

    @property
    def closes_by_silence(self) -> bool:
        """True if windows say how far a timeline goes that is silent."""
        return self.time.idle is not None and self.time.idle.advance == "window_close"

    @property
    def heeds_ticks(self) -> bool:
        """True if the clock alone can move a watermark or bring a result, so that a tick can have an effect."""
        return goes_by_clock(self.time, self.windows)

    @property
    def event_windows(self) -> tuple[WindowSpec, ...]:
        """The windows of events."""
        return tuple(window for window in self.windows if window.input is None)

    @property
    def chained_windows(self) -> tuple[WindowSpec, ...]:
        """The windows over the results of others, in an order in which each can be computed."""
        return tuple(window for window in inputs_first(self.windows) if window.input is not None)

    @property
    def revised_windows(self) -> tuple[WindowSpec, ...]:
        """The windows that have results before they close."""
        return tuple(window for window in self.windows if window.revises)

    @property
    def revised_sessions(self) -> tuple[WindowSpec, ...]:
        """The session windows that have results before they close."""
        return tuple(window for window in self.revised_windows if window.kind == "session")

    def canonical_json(self) -> str:
        """Return the spec as JSON that is equal for specs of equal meaning.

        Lengths of time and sizes are in one spelling, keys and windows in one order. What has its default
        value is left out, so a key that a later version adds changes nothing for specs without it. So are the
        schedule, the catalog, the alerts, owners and tags: they change no result.
        """
        no_result = {"schedule", "catalog", "alerts", "owners", "tags"}
        data: dict[str, Any] = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=no_result)
        for source in data["sources"]:
            source["schema"] = " ".join(source["schema"].split())
            options = source.get("options", {})
            if "delimiter" in options:
                options["sep"] = options.pop("delimiter")
        data.get("windows", []).sort(key=lambda window: window["name"])
        return canonical(data)

    def fingerprint(self) -> str:
        """Return the SHA-256 of the canonical JSON in hexadecimal."""
        return digest(self.canonical_json())


def canonical(spec: Mapping[str, Any]) -> str:
    """Return the data of a spec as the one text that it has in `log_control`."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(text: str) -> str:
    """Return the SHA-256 of a text in hexadecimal; of a canonical text it is the fingerprint of the spec."""
    return hashlib.sha256(text.encode()).hexdigest()


def rules_between_parts(
    *,
    sources: Sequence[Source],
    time: TimeSpec | None,
    windows: Mapping[int, WindowSpec],
    has_windows: bool,
    outputs: Outputs | None,
    has_partitions: bool,
    has_schedule: bool,
) -> list[Problem]:
    """Return what parts that are right by themselves do wrong together.

    Args:
        sources: The sources that could be read.
        time: The `time` of the spec; None when it could not be read.
        windows: The windows that could be read, by their position.
        has_windows: Whether any window is given, readable or not.
        outputs: The `outputs`; None when they could not be read.
        has_partitions: Whether `partitions` is given.
        has_schedule: Whether `schedule` is given.
    """
    problems = [*_window_names(windows), *chain_problems(windows)]
    problems += [*between_sources(sources), *user_problems(sources, time, windows)]
    if time is not None:
        problems.extend(_lateness_problems(sources, time, windows))
        problems.extend(_duration_problems(time, windows))
        problems.extend(_over_problems(time, windows))
        problems.extend(_zone_problems(time, sources))
        problems.extend(source_problems(sources, time, has_windows=has_windows))
        if windows or not has_windows:
            problems.extend(live_problems(sources, time, windows))
    if outputs is not None and not outputs.ordered_events and not has_windows:
        found = "false with no windows: nothing would be written"
        remedy = "add a window, or leave the key out"
        problems.append(Problem(found, "true", remedy, ("outputs", "ordered_events")))
    if has_partitions and not has_windows:
        found = "`partitions` has no effect without windows"
        problems.append(Problem(found, remedy="leave it out", at=("partitions",)))
    if has_schedule and time is not None and time.flushes():
        found = "a schedule with `time.end_of_input: flush`: a pipeline that was flushed takes no more input"
        problems.append(Problem(found, "`time.end_of_input: hold`", "leave one of them out", ("schedule",)))
    return problems


def _window_names(windows: Mapping[int, WindowSpec]) -> Iterable[Problem]:
    seen: set[str] = set()
    for position, window in windows.items():
        if window.name.lower() in seen:
            found = f"found a second window called `{window.name}`"
            yield Problem(found, "distinct names (in any case)", at=("windows", position, "name"))
        seen.add(window.name.lower())
    yield from former_names("window", {at: (window.name, window.was) for at, window in windows.items()})


def _lateness_problems(
    sources: Sequence[Source], time: TimeSpec, windows: Mapping[int, WindowSpec]
) -> Iterable[Problem]:
    if time.out_of_order == "keep":
        return
    if not has_event_time(sources, time):
        why = "without `timestamp_by` event time is arrival time, so no event is ever late"
        remedy = "set `time.timestamp_by` and `time.out_of_order: keep`, or leave it out"
    else:
        why = f"under `out_of_order: {time.out_of_order}` no accepted event is ever late, so it has no effect"
        remedy = "set `time.out_of_order: keep`, or leave it out"
    for position, window in windows.items():
        if window.allowed_lateness > timedelta(0):
            at = ("windows", position, "allowed_lateness")
            yield Problem(f"found an allowed lateness, but {why}", "`time.out_of_order: keep`", remedy, at)


def _duration_problems(time: TimeSpec, windows: Mapping[int, WindowSpec]) -> Iterable[Problem]:
    """Refuse `max_duration` where late events join sessions: the cuts would depend on when they came."""
    for position, window in windows.items():
        if window.max_duration is not None and time.out_of_order == "keep":
            found = "found `max_duration` with `out_of_order: keep`, where late events may still join a session"
            at = ("windows", position, "max_duration")
            remedy = "set `time.out_of_order` to drop or adjust, or leave it out"
            yield Problem(found, "`time.out_of_order: drop` or `adjust`", remedy, at)


def _over_problems(time: TimeSpec, windows: Mapping[int, WindowSpec]) -> Iterable[Problem]:
    """Check that with substreams every window groups by their columns (A1 restriction 4)."""
    for position, window in windows.items():
        missing = missing_of_over(window, windows.values(), time.over)
        if missing:
            items = [item if plain_column(item) else f"{item} AS name" for item in missing]
            yield Problem(
                f"lacks {', '.join(f'`{item}`' for item in missing)} of `time.over`",
                expected="all columns of `time.over`: each of their values has a watermark of its own",
                remedy=f"add {', '.join(f'`{item}`' for item in items)} to `group_by`",
                at=("windows", position, "group_by"),
            )


def _zone_problems(time: TimeSpec, sources: Sequence[Source]) -> Iterable[Problem]:
    reads_times = time.timestamp_by is not None or any(
        s.arrival_time or s.timestamp_by or mentions(s.columns, "timestamp") for s in sources
    )
    if time.time_zone != "UTC" and sources and not reads_times:
        found = "`time_zone` has no effect: neither `timestamp_by` nor `arrival_time` nor a TIMESTAMP reads a time"
        yield Problem(found, remedy="leave it out", at=("time", "time_zone"))
