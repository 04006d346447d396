"""A whole pipeline spec, and the rules between its parts.

Here: the top level of the file, the choice between the kinds of sources, rules between several sources. Not here:
what windows and joins ask of other parts (timeops/spec/between_parts.py), reading text (timeops/spec/__init__.py).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter, model_validator

from tidemark.timeops.errors.problems import Path, Problem, ProblemsError, raise_any
from tidemark.timeops.expressions.determinism import determinism_problems
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.spec.automation import Alerts, Events, Owner, Schedule, Tags
from tidemark.timeops.spec.between_parts import (
    columns_of_joins,
    duration_problems,
    has_event_time,
    join_problems,
    lateness_problems,
    over_problems,
    zone_problems,
)
from tidemark.timeops.spec.event_time import TimeSpec
from tidemark.timeops.spec.fields import Day, Flag, Name, PipelineName, SpecModel, TimeZone
from tidemark.timeops.spec.join import JoinColumns, JoinSpec
from tidemark.timeops.spec.kafka_source import KafkaSource
from tidemark.timeops.spec.retention import Retention, retention_problems
from tidemark.timeops.spec.source import DeltaSource, FilesSource, Source
from tidemark.timeops.spec.window import (
    WindowSpec,
    chain_problems,
    inputs_first,
    inputs_of,
    result_columns,
    root_of,
)

FILES, DELTA, KAFKA = "[files]", "[delta]", "[kafka]"
"""Steps of pydantic's paths that say which kind of source was read; no message shows them."""

SOURCE_MODELS: Mapping[str, type[FilesSource | DeltaSource | KafkaSource]] = MappingProxyType(
    {FILES: FilesSource, DELTA: DeltaSource, KAFKA: KafkaSource}
)
"""The keys of each kind."""


def _tag_of(value: object) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return {"delta": DELTA, "kafka": KAFKA}.get(str(kind), FILES)


AnySource = Annotated[
    Annotated[FilesSource, Tag(FILES)] | Annotated[DeltaSource, Tag(DELTA)] | Annotated[KafkaSource, Tag(KAFKA)],
    Discriminator(_tag_of),
]
"""A source of a spec: its `kind` says which one. Without a kind it is judged as one of files."""

ANY_SOURCE: TypeAdapter[FilesSource | DeltaSource | KafkaSource] = TypeAdapter(AnySource)


def between_sources(sources: Sequence[Source]) -> Iterable[Problem]:
    """Find what several sources do wrong together."""
    yield from _names("source", dict(enumerate(sources)))
    for position, source in enumerate(sources):
        at: Path = ("sources", position)
        yield from _order_problems(source, sources, at)
        if source.splits and not source.has_splits:
            fault = "`splits` has no effect without `split`"
            remedy = "set `split` to the expression that has these values, or leave `splits` out"
            yield Problem(fault, remedy=remedy, at=(*at, "splits"))


def _names(of: str, parts: Mapping[int, Source | WindowSpec]) -> Iterable[Problem]:
    """Find what is wrong with the names of sources or windows, which `of` says, by their position.

    No two have one name, and `was` must not name an existing part, nor lead one past to two parts.
    """
    names = {part.name.lower() for part in parts.values()}
    lowered: set[str] = set()
    former: set[str] = set()
    for position, part in parts.items():
        at: Path = (f"{of}s", position)
        if part.name.lower() in lowered:
            fault = f"found a second {of} called `{part.name}`"
            yield Problem(fault, expected="names that differ in more than case", at=(*at, "name"))
        lowered.add(part.name.lower())
        if part.was is None:
            continue
        if part.was.lower() in names:
            fault = f"`{part.was}` is the name of a {of} of this spec"
            yield Problem(fault, expected="a name that is not in use", at=(*at, "was"))
        elif part.was.lower() in former:
            expected = "one that takes over " + ("its tables" if of == "window" else "what was read")
            yield Problem(f"two {of}s were `{part.was}`", expected=expected, at=(*at, "was"))
        former.add(part.was.lower())


def _order_problems(source: Source, sources: Sequence[Source], at: Path) -> Iterable[Problem]:
    """Check that one rule orders the records of an ingestion; the time of commits orders the records of tables."""
    if source.record_order is None:
        return
    first = next(other for other in sources if other.record_order is not None)
    if source.record_order != first.record_order:
        fault = f"found {source.record_order}, and {first.record_order} in sources[{sources.index(first)}]"
        yield Problem(
            fault, expected="one order for all sources: their records are ordered together", at=(*at, "order")
        )
    elif source.record_order == "position" and any(other.record_order is None for other in sources):
        fault = "found position next to a Delta table, whose records are ordered by the time of their commits"
        yield Problem(fault, expected="arrival_time", remedy="leave it out", at=(*at, "order"))


def source_problems(
    sources: Sequence[Source], time: TimeSpec, *, has_windows: bool, has_across: bool = False
) -> list[Problem]:
    """Return what is wrong between the sources and `time`; `has_across` says that a window goes across timelines."""
    if not sources:
        return []
    problems = [*_overridden(sources, time), *_idle_problems(sources, time, has_across=has_across)]
    problems += _alignment_problems(sources, time)
    if not has_event_time(sources, time):
        problems.extend(without_event_time(time))
    for position, source in enumerate(sources):
        if source.out_of_orderness is not None:
            at: Path = ("sources", position, "out_of_orderness")
            problems.extend(time.unit_problems(source.out_of_orderness, at))
    if time.idle_advance == "window_close" and not has_windows:
        fault = "window_close has no effect without windows"
        problems.append(Problem(fault, remedy="add a window, or leave `idle` out", at=("time", "idle", "advance")))
    return problems


def _overridden(sources: Sequence[Source], time: TimeSpec) -> Iterable[Problem]:
    """Find settings of `time` that every source overrides."""
    for key in ("timestamp_by", "time_zone", "out_of_orderness"):
        if key in time.model_fields_set and all(getattr(source, key) is not None for source in sources):
            fault = f"`{key}` has no effect here: every source has its own"
            yield Problem(fault, remedy="leave it out here", at=("time", key))
    if time.idle_timeout_us is not None and all(source.idle is not None for source in sources):
        fault = "`timeout` has no effect here: every source has its own"
        yield Problem(fault, remedy="leave it out here", at=("time", "idle", "timeout"))


def _idle_problems(sources: Sequence[Source], time: TimeSpec, *, has_across: bool) -> Iterable[Problem]:
    excludes = time.idle_advance == "exclude_split"
    has_splits = len(sources) > 1 or any(source.has_splits for source in sources) or (has_across and time.over)
    if excludes and not has_splits:
        fault = "exclude_split has no effect on one source without `split`"
        remedy = "set `split` of the source, or use window_close or arrival_clock"
        if time.over:
            remedy += "; it also counts the timelines of a window with `across: true`"
        yield Problem(fault, expected="several splits", remedy=remedy, at=("time", "idle", "advance"))
    for position, source in enumerate(sources):
        at: Path = ("sources", position, "idle")
        if source.idle is not None and not excludes:
            fault = "`idle` of a source has no effect without `time.idle: {advance: exclude_split}`"
            yield Problem(fault, remedy="set that, or leave `idle` out", at=at)
        elif excludes and source.idle is None and time.idle_timeout_us is None:
            fault = f"there is no idle timeout for source `{source.name}`"
            expected = "`timeout` here, or `idle: {timeout: …}` in every source"
            yield Problem(fault, expected=expected, at=("time", "idle", "timeout"))


def _alignment_problems(sources: Sequence[Source], time: TimeSpec) -> Iterable[Problem]:
    """Check that alignment has another source, or partition, to wait for, and event times that drift apart."""
    aligned = [(i, source.alignment) for i, source in enumerate(sources) if source.alignment is not None]
    if not aligned:
        return
    groups = [alignment.group for _, alignment in aligned]
    for position, alignment in aligned:
        if groups.count(alignment.group) == 1 and not sources[position].is_read_by_split:
            fault = f"`{alignment.group}` is the group of this source only, so it waits for nothing"
            remedy = "add `alignment` with this group to another source, or leave it out"
            at: Path = ("sources", position, "alignment", "group")
            yield Problem(fault, expected="a group of several sources", remedy=remedy, at=at)
    if not has_event_time(sources, time):
        fault = "`alignment` compares event times, and without `timestamp_by` event time is arrival time"
        remedy = "set `timestamp_by`, or leave `alignment` out"
        yield Problem(fault, remedy=remedy, at=("sources", aligned[0][0], "alignment"))
    if time.idle_advance in ("exclude_split", "window_close") and time.emit_every_us is not None:
        fault = "`alignment` together with `idle` and periodic emission is not supported"
        why = "a period of emission cannot distinguish idleness from waiting"
        remedy = "set `emit: on_event`, or leave `alignment` out"
        yield Problem(f"{fault}: {why}", expected="at most two of the three", remedy=remedy, at=("time", "emit"))


def goes_by_clock(time: TimeSpec, windows: Iterable[WindowSpec]) -> bool:
    """Return whether the clock alone can move a watermark or bring a result, so that a tick can have an effect."""
    by_clock = time.idle is not None or time.emit_every_us is not None
    return by_clock or any(window.follows_clock for window in windows)


def live_problems(sources: Sequence[Source], time: TimeSpec, windows: Mapping[int, WindowSpec]) -> Iterable[Problem]:
    """Find `live` of a source where it brings no tick, or ticks change nothing."""
    without = [source.name for source in sources if not source.follows_wall_clock]
    for position, source in enumerate(sources):
        at: Path = ("sources", position, "live")
        if source.live and without:
            fault = f"`live` has no effect here: source `{without[0]}` has an `arrival_time` without it"
            yield Problem(
                fault,
                expected="`live: true` in every source with `arrival_time`",
                remedy="set it, or leave it out",
                at=at,
            )
        elif source.live and not goes_by_clock(time, windows.values()):
            fault = "`live` has no effect here: no rule depends on the clock alone"
            expected = "`time.idle`, `time.emit: {every: …}`, or a window that revises its results by periods"
            yield Problem(fault, expected=expected, remedy="set one of them, or leave it out", at=at)


def without_event_time(time: TimeSpec) -> Iterable[Problem]:
    """Find settings without effect: without `timestamp_by` nothing is early, late or out of order."""
    is_set = {
        "out_of_orderness": time.out_of_orderness > timedelta(0),
        "out_of_order": "out_of_order" in time.model_fields_set,
        "late": time.late is not None,
        "early": time.early is not None,
        "idle": time.idle_advance == "arrival_clock",
    }
    for key, present in is_set.items():
        if present:
            yield Problem(
                f"`{key}` has no effect without `timestamp_by`: event time is then arrival time, in order",
                remedy="set `timestamp_by`, or leave the key out",
                at=("time", key),
            )


def user_problems(
    sources: Sequence[Source],
    time: TimeSpec | None,
    windows: Mapping[int, WindowSpec],
    joins: Mapping[str, JoinColumns],
) -> Iterable[Problem]:
    """Find the bare word `user` where no column has this name: Spark takes it for who runs the job."""
    if not sources:
        return
    columns = [name for source in sources for name in source.columns_in_tables]
    places: list[tuple[Path, str | None, list[str]]] = [
        (("sources", position, key), getattr(source, key), columns)
        for position, source in enumerate(sources)
        for key in ("arrival_time", "split", "timestamp_by")
    ]
    if time is not None:
        places.append((("time", "timestamp_by"), time.timestamp_by, columns))
        places += [(("time", "over", i), text, columns) for i, text in enumerate(time.over)]
        places += [(("time", "deduplicate_by", i), text, columns) for i, text in enumerate(time.deduplicate_by)]
    for position, window in windows.items():
        at: Path = ("windows", position)
        names = _columns_of_events(window, columns, windows.values(), joins)
        places += [((*at, "where"), window.where, names), ((*at, "gap"), window.gap_by, names)]
        of_results = [*window.group_columns, *window.event_columns(names), *window.aggregates]
        places.append(((*at, "having"), window.having, of_results))
        places += [((*at, "top", "by"), text, names) for text in window.order]
        places += [((*at, "group_by", i), text, names) for i, (_, text) in enumerate(window.group_expressions)]
        places += [((*at, "aggregates", name), text, names) for name, text in window.aggregates.items()]
    for at, text, allowed in places:
        if text is not None and mentions(text, "user"):
            yield from (replace(problem, at=at) for problem in determinism_problems(text, columns=allowed))


def _columns_of_events(
    window: WindowSpec, payload: Sequence[str], windows: Iterable[WindowSpec], joins: Mapping[str, JoinColumns]
) -> list[str]:
    """Return the columns that a window's events have of their own: of records the payload, of results all."""
    root = root_of(window, windows)
    columns = [*(joins[root].names if root is not None and root in joins else payload)]
    for link in inputs_of(window, windows):
        columns = [*result_columns(link, columns)]
    return columns


def _first_row_problems(
    sources: Sequence[Source], windows: Mapping[int, WindowSpec], joins: Mapping[str, JoinColumns]
) -> Iterable[Problem]:
    """Find columns of events that rows of `top` show, and that have the name of another column of the row."""
    payload = [name for source in sources for name in source.columns_in_tables]
    for position, window in windows.items():
        columns = _columns_of_events(window, payload, windows.values(), joins)
        for problem in window.meeting_problems(columns):
            yield replace(problem, at=("windows", position, *problem.at))


def keys_by_arrival(time: TimeSpec, windows: Iterable[WindowSpec] = (), sources: Sequence[Source] = ()) -> list[str]:
    """Return the keys of the spec whose effect depends on when records arrived, such as `time.late`."""
    keys = [f"sources[{source.name}].timestamp_by" for source in sources if _by_arrival(source.timestamp_by)]
    has_own = bool(sources) and all(source.timestamp_by for source in sources)
    if time.timestamp_by is None and not has_own:
        keys.append("time (without `timestamp_by` event time is arrival time)")
    elif _by_arrival(time.timestamp_by) and not has_own:
        keys.append("time.timestamp_by")
    keys += ["time.deduplicate_by"] * any(mentions(text, "_arrival_time") for text in time.deduplicate_by)
    keys += ["time.over"] * any(mentions(text, "_arrival_time") for text in time.over)
    values = {"late": time.late, "early": time.early, "idle": time.idle, "emit": time.emit_every_us}
    keys += [f"time.{name}" for name, value in values.items() if value is not None]
    for window in windows:
        if any(mentions(text, "_arrival_time") for text in window.event_expressions):
            keys.append(f"windows ({window.name})")
        if window.revises and (window.early_every_us or window.revise_every_us):
            keys.append(f"windows ({window.name}), whose results are revised by the clock")
    return keys


def _by_arrival(timestamp_by: str | None) -> bool:
    return timestamp_by is not None and mentions(timestamp_by, "_arrival_time")


class Outputs(SpecModel):
    """Which tables are written in addition to windows and dead letters."""

    ordered_events: Flag = Field(default=True, description="Write ordered_events and held_events.")


class Catalog(SpecModel):
    """Where the tables have names that SQL knows."""

    name: Name = Field(
        default="spark_catalog", description="Name of the catalog in Spark; by default the session's own."
    )
    schema_name: Name | None = Field(
        default=None,
        alias="schema",
        description="The schema, which is created if needed; default: the pipeline's name.",
    )


class Partitions(SpecModel):
    """The day partitions of the window tables."""

    start: Day | None = Field(
        default=None, description="First day that is shown as a partition; default: the first one that has results."
    )
    time_zone: TimeZone = Field(default="UTC", description="Zone of the days, such as Europe/Berlin.")


_NO_RESULT: Mapping[str, Any] = MappingProxyType(
    {
        **dict.fromkeys(("schedule", "automation_condition", "catalog", "alerts", "events", "owners", "tags"), True),
        "retention": True,
        "sources": {"__all__": {"upstream"}},
        "windows": {"__all__": {"automation_condition"}},
    }
)
"""The keys that change no result, in the form of pydantic's `exclude`."""


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
    joins: tuple[JoinSpec, ...] = Field(
        default=(),
        description="Events of one source with events of another one: as-of and interval joins.",
        json_schema_extra={"since": "0.2.0"},
    )
    windows: tuple[WindowSpec, ...] = Field(
        default=(), description="Aggregates, or first events, of windows of event time."
    )
    partitions: Partitions = Field(
        default=Partitions(), description="How the day partitions of the window tables are shown."
    )
    schedule: Schedule | None = Field(
        default=None,
        description="When Dagster runs the pipeline by itself: a cron expression (UTC), or "
        "{on_new_input: 15 seconds}; default: never.",
    )

    automation_condition: Literal["eager"] | None = Field(
        default=None,
        description="eager: Dagster's automation runs the pipeline when an asset upstream is updated; default: "
        "never.",
        json_schema_extra={"since": "0.2.0"},
    )

    catalog: Catalog | None = Field(
        default=None,
        description="Name the tables in a catalog, with views <name>_committed that show the last commit; "
        "default: none.",
    )
    alerts: Alerts = Field(
        default=Alerts(), description="When dead letters, or the age of results, cause a warning or an error."
    )
    events: Events | None = Field(
        default=None,
        description="How often days of windows are reported to Dagster, such as {every: 1 minute}; default: after "
        "each batch.",
        json_schema_extra={"since": "0.2.0"},
    )
    retention: Retention | None = Field(
        default=None,
        description="How long rows of tables stay, in whole days: {dead_letters: 90 days, windows: 400 days}; older "
        "ones are removed by `tidemark maintain`; default: for ever.",
        json_schema_extra={"since": "0.2.0"},
    )
    owners: tuple[Owner, ...] = Field(
        default=(),
        description="Who is responsible for the pipeline, shown in Dagster: e-mail addresses, or `team:<name>`.",
    )
    tags: Tags = Field(default={}, description="Tags to find the pipeline's assets by in Dagster.")

    @model_validator(mode="after")
    def _together(self) -> "Spec":
        raise_any(self._problems_between_parts())
        return self

    def _problems_between_parts(self) -> list[Problem]:
        keys = self.model_fields_set
        return rules_between_parts(
            sources=self.sources,
            time=self.time,
            windows=dict(enumerate(self.windows)),
            has_windows=bool(self.windows),
            joins=dict(enumerate(self.joins)),
            outputs=self.outputs,
            retention=self.retention,
            alerts=self.alerts,
            has_partitions="partitions" in keys,
            has_schedule="schedule" in keys,
        )

    def with_columns_of_tables(self, columns: Mapping[str, str]) -> "Spec":
        """Return the spec with the columns, as Spark DDL, of tables on the right side of joins, by the join.

        Where `schema` has them these count. What is wrong with the spec then, `problems_of_tables` says.
        """
        joins = [
            join.model_copy(update={"right": join.right.with_columns_there(columns[join.name])})
            if join.right.takes_all_columns and join.name in columns
            else join
            for join in self.joins
        ]
        return self.model_copy(update={"joins": tuple(joins)})

    def problems_of_tables(self) -> list[Problem]:
        """Return what is wrong with the columns that `with_columns_of_tables` has added."""
        of_tables = [
            replace(problem, at=("joins", place, "right", *problem.at))
            for place, join in enumerate(self.joins)
            if join.right.takes_all_columns
            for problem in join.right.column_problems()
        ]
        return of_tables or self._problems_between_parts()

    @property
    def uses_splits(self) -> bool:
        """True if the watermark is the lowest of several splits (F); several sources are several splits."""
        return len(self.sources) > 1 or any(source.has_splits for source in self.sources)

    @property
    def reads_tables(self) -> bool:
        """True if some source is a Delta table."""
        return any(source.record_order is None for source in self.sources)

    @property
    def reads_kafka(self) -> bool:
        """True if some source is Kafka."""
        return any(source.kind == "kafka" for source in self.sources)

    @property
    def reads_files_only(self) -> bool:
        """True if all that waits of the sources are files."""
        return len(self.files) == len(self.sources)

    @property
    def files(self) -> tuple[FilesSource, ...]:
        """The sources of files."""
        return tuple(source for source in self.sources if isinstance(source, FilesSource))

    @property
    def is_aligned(self) -> bool:
        """True if sources wait for each other (F)."""
        return any(source.alignment is not None for source in self.sources)

    @property
    def keeps_timelines(self) -> bool:
        """True if the state between batches is more than the watermark of one timeline."""
        time = self.time
        follows = time.idle_advance in ("exclude_split", "window_close")
        return bool(time.over) or time.emit_every_us is not None or self.uses_splits or follows

    @property
    def closes_by_silence(self) -> bool:
        """True if windows say how far a timeline goes that is silent."""
        return self.time.idle_advance == "window_close"

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
    def result_names(self) -> tuple[str, ...]:
        """The names of all windows and joins."""
        return (*(window.name for window in self.windows), *(join.name for join in self.joins))

    @property
    def join_columns(self) -> Mapping[str, JoinColumns]:
        """The payload columns of each join, by its name."""
        return columns_of_joins(self.joins, self.sources)

    def are_made_with_all(self, windows: Iterable[str]) -> bool:
        """Return whether windows can only be computed again with all tables.

        Silence closes them, so that all say how records are judged, or one goes over the rows of a join.
        """
        over_joins = {window.name for window in self.windows if root_of(window, self.windows) is not None}
        return self.closes_by_silence or not over_joins.isdisjoint(windows)

    def canonical_json(self) -> str:
        """Return the spec as JSON that is equal for specs of equal meaning.

        Lengths of time and sizes are in one spelling, keys and windows in one order. What has its default
        value is left out, so a key that a later version adds changes nothing for specs without it. So are the
        schedule, conditions, the catalog, alerts, events, retention, owners, tags and what is upstream: no result
        depends on them.
        """
        data: dict[str, Any] = self.model_dump(
            mode="json", by_alias=True, exclude_defaults=True, exclude=dict(_NO_RESULT)
        )
        for source in data["sources"]:
            source["schema"] = " ".join(source["schema"].split())
            options = source.get("options", {})
            if "delimiter" in options:
                options["sep"] = options.pop("delimiter")
        for parts in ("windows", "joins"):
            data.get(parts, []).sort(key=lambda part: part["name"])
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
    time: TimeSpec | None,
    windows: Mapping[int, WindowSpec],
    has_windows: bool,
    sources: Sequence[Source] = (),
    joins: Mapping[int, JoinSpec] = MappingProxyType({}),
    outputs: Outputs | None = None,
    retention: Retention | None = None,
    alerts: Alerts | None = None,
    has_partitions: bool = False,
    has_schedule: bool = False,
) -> list[Problem]:
    """Return what parts that are right by themselves do wrong together.

    Parts that could not be read are left out, or None; windows and joins are by their position. The flags say which
    keys are there, readable or not.
    """
    final_after = {join.name: join.final_after for join in joins.values()}
    problems = [*_names("window", windows), *chain_problems(windows, final_after)]
    problems += join_problems(joins, sources, time, windows)
    columns = columns_of_joins(joins.values(), sources)
    problems += [*between_sources(sources), *user_problems(sources, time, windows, columns)]
    problems += _first_row_problems(sources, windows, columns)
    if time is not None:
        problems.extend(lateness_problems(sources, time, windows, [*final_after]))
        problems.extend(duration_problems(time, windows))
        problems.extend(over_problems(time, windows, joins.values()))
        problems.extend(zone_problems(time, sources))
        # A window that could not be read may be one.
        has_across = any(window.across for window in windows.values()) or (has_windows and not windows)
        problems.extend(source_problems(sources, time, has_windows=has_windows, has_across=has_across))
        if windows or not has_windows:
            problems.extend(live_problems(sources, time, windows))
    if outputs is not None and not outputs.ordered_events and not has_windows and not joins:
        fault = "false with no windows: nothing would be written"
        remedy = "add a window, or leave the key out"
        problems.append(Problem(fault, expected="true", remedy=remedy, at=("outputs", "ordered_events")))
    if retention is not None:
        problems += retention_problems(
            retention,
            alerts or Alerts(),
            writes_events=outputs is None or outputs.ordered_events,
            has_results=has_windows or bool(joins),
            corrected=[
                source.name for source in sources if isinstance(source, DeltaSource) and source.changes == "follow"
            ],
        )
    if has_partitions and not has_windows:
        fault = "`partitions` has no effect without windows"
        problems.append(Problem(fault, remedy="leave it out", at=("partitions",)))
    if has_schedule and time is not None and time.flushes():
        fault = "a schedule with `time.end_of_input: flush`: a pipeline that was flushed takes no more input"
        problems.append(
            Problem(fault, expected="`time.end_of_input: hold`", remedy="leave one of them out", at=("schedule",))
        )
    return problems
