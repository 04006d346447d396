"""The rules between sources, and with the `time` of a spec; what columns and arrivals mean for its settings.

Here: rules between several sources, splits and idle settings, settings that go by arrival. Not here: the keys
(source.py, event_time.py), other rules between parts (pipeline.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from tidemark.timeops.expressions.determinism import determinism_problems
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.problems import Path, Problem
from tidemark.timeops.spec.event_time import TimeSpec
from tidemark.timeops.spec.kafka_source import KafkaSource
from tidemark.timeops.spec.source import DeltaSource, FilesSource, Source
from tidemark.timeops.spec.window import WindowSpec


def has_event_time(sources: Sequence[Source], time: TimeSpec) -> bool:
    """Return whether some source has an event time other than its arrival time."""
    return time.timestamp_by is not None or any(source.timestamp_by for source in sources)


def between_sources(sources: Sequence[Source]) -> Iterable[Problem]:
    """Find what several sources do wrong together."""
    seen: set[str] = set()
    for position, source in enumerate(sources):
        at: Path = ("sources", position)
        if source.name.lower() in seen:
            found = f"found a second source called `{source.name}`"
            yield Problem(found, "distinct names (in any case)", at=(*at, "name"))
        seen.add(source.name.lower())
        yield from _order_problems(source, sources, at)
        if source.splits and not source.has_splits:
            found = "`splits` has no effect without `split`"
            remedy = "set `split` to the expression that has these values, or leave `splits` out"
            yield Problem(found, remedy=remedy, at=(*at, "splits"))
    yield from former_names("source", {at: (source.name, source.was) for at, source in enumerate(sources)})


def former_names(of: str, parts: Mapping[int, tuple[str, str | None]]) -> Iterable[Problem]:
    """Find what is wrong with `was`: it must not name a part that is there, nor lead one past to two parts.

    Args:
        of: What the parts are: source or window.
        parts: The name and the former name of each, by position.
    """
    names = {name.lower() for name, _ in parts.values()}
    seen: set[str] = set()
    for position, (_, was) in parts.items():
        if was is None:
            continue
        at = (f"{of}s", position, "was")
        if was.lower() in names:
            yield Problem(f"`{was}` is the name of a {of} of this spec", "a name that is free now", at=at)
        elif was.lower() in seen:
            expected = "one that goes on with " + ("its tables" if of == "window" else "what was read")
            yield Problem(f"two {of}s were `{was}`", expected, at=at)
        seen.add(was.lower())


def _order_problems(source: Source, sources: Sequence[Source], at: Path) -> Iterable[Problem]:
    """Check that one rule orders the records of an ingestion; the time of commits orders the records of tables."""
    if not isinstance(source, FilesSource | KafkaSource):
        return
    first = next(one for one in sources if isinstance(one, FilesSource | KafkaSource))
    if source.order != first.order:
        found = f"found {source.order}, and {first.order} in sources[{sources.index(first)}]"
        yield Problem(found, "one order for all sources: their records are ordered together", at=(*at, "order"))
    elif source.order == "position" and any(isinstance(one, DeltaSource) for one in sources):
        found = "found position beside a Delta table, whose records are ordered by the time of their commits"
        yield Problem(found, "arrival_time", "leave it out", (*at, "order"))


def source_problems(sources: Sequence[Source], time: TimeSpec, *, has_windows: bool) -> list[Problem]:
    """Return what is wrong between the sources and `time`."""
    if not sources:
        return []
    problems = [*_overridden(sources, time), *_idle_problems(sources, time), *_alignment_problems(sources, time)]
    if not has_event_time(sources, time):
        problems.extend(without_event_time(time))
    for position, source in enumerate(sources):
        if source.out_of_orderness is not None:
            at: Path = ("sources", position, "out_of_orderness")
            problems.extend(time.unit_problems(source.out_of_orderness, at))
    if time.idle is not None and time.idle.advance == "window_close" and not has_windows:
        found = "window_close has no effect without windows"
        problems.append(Problem(found, remedy="add a window, or leave `idle` out", at=("time", "idle", "advance")))
    return problems


def _overridden(sources: Sequence[Source], time: TimeSpec) -> Iterable[Problem]:
    """Find settings of `time` that every source overrides."""
    for key in ("timestamp_by", "time_zone", "out_of_orderness"):
        if key in time.model_fields_set and all(getattr(source, key) is not None for source in sources):
            found = f"`{key}` has no effect here: every source has its own"
            yield Problem(found, remedy="leave it out here", at=("time", key))
    own_timeouts = all(source.idle is not None for source in sources)
    if time.idle is not None and time.idle.timeout is not None and own_timeouts:
        found = "`timeout` has no effect here: every source has its own"
        yield Problem(found, remedy="leave it out here", at=("time", "idle", "timeout"))


def _idle_problems(sources: Sequence[Source], time: TimeSpec) -> Iterable[Problem]:
    excludes = time.idle is not None and time.idle.advance == "exclude_split"
    has_splits = len(sources) > 1 or any(source.has_splits for source in sources)
    if excludes and not has_splits:
        found = "exclude_split has no effect on one source without `split`"
        remedy = "set `split` of the source, or use window_close or arrival_clock"
        yield Problem(found, "several splits", remedy, ("time", "idle", "advance"))
    for position, source in enumerate(sources):
        at: Path = ("sources", position, "idle")
        if source.idle is not None and not excludes:
            found = "`idle` of a source has no effect without `time.idle: {advance: exclude_split}`"
            yield Problem(found, remedy="set that, or leave `idle` out", at=at)
        elif excludes and source.idle is None and time.idle is not None and time.idle.timeout is None:
            found = f"there is no idle timeout for source `{source.name}`"
            expected = "`timeout` here, or `idle: {timeout: …}` in every source"
            yield Problem(found, expected, at=("time", "idle", "timeout"))


def _alignment_problems(sources: Sequence[Source], time: TimeSpec) -> Iterable[Problem]:
    """Check that alignment has another source, or partition, to wait for, and event times that drift apart."""
    aligned = [(i, source.alignment) for i, source in enumerate(sources) if source.alignment is not None]
    if not aligned:
        return
    groups = [alignment.group for _, alignment in aligned]
    for position, alignment in aligned:
        if groups.count(alignment.group) == 1 and not sources[position].is_read_by_split:
            found = f"`{alignment.group}` is the group of this source only, so it waits for nothing"
            remedy = "add `alignment` with this group to another source, or leave it out"
            at: Path = ("sources", position, "alignment", "group")
            yield Problem(found, "a group of several sources", remedy, at)
    if not has_event_time(sources, time):
        found = "`alignment` compares event times, and without `timestamp_by` event time is arrival time"
        remedy = "set `timestamp_by`, or leave `alignment` out"
        yield Problem(found, remedy=remedy, at=("sources", aligned[0][0], "alignment"))
    by_silence = time.idle is not None and time.idle.advance in ("exclude_split", "window_close")
    if by_silence and time.emit_every_us is not None:
        found = "`alignment` together with `idle` and periodic emission is not supported"
        why = "a period of emission cannot distinguish idleness from waiting"
        remedy = "set `emit: on_event`, or leave `alignment` out"
        yield Problem(f"{found}: {why}", "two of the three at most", remedy, ("time", "emit"))


def goes_by_clock(time: TimeSpec, windows: Iterable[WindowSpec]) -> bool:
    """Return whether the clock alone can move a watermark or bring a result, so that a tick can have an effect."""
    by_clock = time.idle is not None or time.emit_every_us is not None
    return by_clock or any(window.follows_clock for window in windows)


def live_problems(sources: Sequence[Source], time: TimeSpec, windows: Mapping[int, WindowSpec]) -> Iterable[Problem]:
    """Find `live` of a source where it brings no tick, or ticks change nothing."""
    others = [source.name for source in sources if not source.follows_wall_clock]
    for position, source in enumerate(sources):
        at: Path = ("sources", position, "live")
        if source.live and others:
            found = f"`live` has no effect here: source `{others[0]}` has an `arrival_time` without it"
            yield Problem(found, "`live: true` in every source with `arrival_time`", "set it, or leave it out", at)
        elif source.live and not goes_by_clock(time, windows.values()):
            found = "`live` has no effect here: no rule follows the clock alone"
            expected = "`time.idle`, `time.emit: {every: …}`, or a window that revises its results by periods"
            yield Problem(found, expected, "set one of them, or leave it out", at)


def without_event_time(time: TimeSpec) -> Iterable[Problem]:
    """Find settings without effect: without `timestamp_by` nothing is early, late or out of order."""
    is_set = {
        "out_of_orderness": time.out_of_orderness > timedelta(0),
        "out_of_order": "out_of_order" in time.model_fields_set,
        "late": time.late is not None,
        "early": time.early is not None,
        "idle": time.idle is not None and time.idle.advance == "arrival_clock",
    }
    for key, given in is_set.items():
        if given:
            yield Problem(
                f"`{key}` has no effect without `timestamp_by`: event time is then arrival time, in order",
                remedy="set `timestamp_by`, or leave the key out",
                at=("time", key),
            )


def user_problems(
    sources: Sequence[Source], time: TimeSpec | None, windows: Mapping[int, WindowSpec]
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
        places.extend((("time", "over", i), text, columns) for i, text in enumerate(time.over))
        places.extend((("time", "deduplicate_by", i), text, columns) for i, text in enumerate(time.deduplicate_by))
    for position, window in windows.items():
        at: Path = ("windows", position)
        results = [*window.group_columns, *window.aggregates]
        names = columns if window.input is None else _result_names(window.input, windows.values())
        places.append(((*at, "where"), window.where, names))
        places.append(((*at, "having"), window.having, results))
        groups = enumerate(window.group_expressions)
        places.extend(((*at, "group_by", i), text, names) for i, (_, text) in groups)
        places.extend(((*at, "aggregates", name), text, names) for name, text in window.aggregates.items())
    for at, text, known in places:
        if text is not None and mentions(text, "user"):
            for problem in determinism_problems(text, columns=known):
                yield Problem(problem.found, problem.expected, problem.remedy, at)


def _result_names(name: str, windows: Iterable[WindowSpec]) -> list[str]:
    return [column for one in windows if one.name == name for column in (*one.group_columns, *one.aggregates)]


def keys_by_arrival(time: TimeSpec, windows: Iterable[WindowSpec] = ()) -> list[str]:
    """Return the keys of the spec whose effect depends on when records arrived, such as `time.late`."""
    keys = []
    if time.timestamp_by is None:
        keys.append("time (without `timestamp_by` event time is arrival time)")
    elif mentions(time.timestamp_by, "_arrival_time"):
        keys.append("time.timestamp_by")
    keys += ["time.deduplicate_by"] * any(mentions(text, "_arrival_time") for text in time.deduplicate_by)
    keys += ["time.over"] * any(mentions(text, "_arrival_time") for text in time.over)
    given = {"late": time.late, "early": time.early, "idle": time.idle, "emit": time.emit_every_us}
    keys += [f"time.{name}" for name, value in given.items() if value is not None]
    for window in windows:
        texts = [window.where or "", *window.aggregates.values(), *(text for _, text in window.group_expressions)]
        if any(mentions(text, "_arrival_time") for text in texts):
            keys.append(f"windows ({window.name})")
        if window.revises and (window.early_every_us or window.revise_every_us):
            keys.append(f"windows ({window.name}), whose results are revised by the clock")
    return keys
