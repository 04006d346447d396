"""The demands of windows and joins on the sources of a spec, on `time` and on one another.

Here: rules between parts that are right by themselves. Not here: rules between sources (timeops/spec/pipeline.py),
between windows and the windows that they read (timeops/spec/window.py).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

from tidemark.timeops.errors.problems import Path, Problem, did_you_mean
from tidemark.timeops.expressions.tokens import mentions, normal_form, plain_column
from tidemark.timeops.spec.event_time import TimeSpec
from tidemark.timeops.spec.join import LEFT_SEQ, OF_TABLE, RIGHT_SEQ, JoinColumns, JoinSpec
from tidemark.timeops.spec.source import Source
from tidemark.timeops.spec.window import WindowSpec, missing_of_over, root_of


def has_event_time(sources: Sequence[Source], time: TimeSpec) -> bool:
    """Return whether some source has an event time other than its arrival time."""
    return time.timestamp_by is not None or any(source.timestamp_by for source in sources)


def columns_of_joins(joins: Iterable[JoinSpec], sources: Iterable[Source]) -> Mapping[str, JoinColumns]:
    """Return the payload columns of each join whose sources are there, by its name."""
    columns = {source.name: tuple(source.columns_in_tables) for source in sources}
    by_join = {}
    for join in joins:
        if join.has_table and join.left.source in columns:
            by_join[join.name] = JoinColumns.of(columns[join.left.source], join.right.column_names, OF_TABLE)
        elif {*join.sources} <= columns.keys():
            by_join[join.name] = JoinColumns.of(columns[join.left.source], columns[join.right.name])
    return by_join


def join_problems(
    joins: Mapping[int, JoinSpec],
    sources: Sequence[Source],
    time: TimeSpec | None,
    windows: Mapping[int, WindowSpec],
) -> Iterable[Problem]:
    """Find what joins ask of sources and of `time` that these do not have."""
    kinds = {window.name.lower(): "window" for window in windows.values()}
    of_sources = {source.name: source.columns_in_tables for source in sources}
    for position, join in joins.items():
        # What a table has may not be known yet: then it has what the join asks for.
        of_right = join.right.column_names if join.right.ddl is not None else join.on
        columns = {**of_sources, **({join.right.name: [*of_right]} if join.has_table else {})}
        at: Path = ("joins", position)
        if (other := kinds.get(join.name.lower())) is not None:
            expected = "names of joins and windows that differ in more than case"
            yield Problem(f"found a {other} called `{join.name}` too", expected=expected, at=(*at, "name"))
        kinds[join.name.lower()] = "join"
        unknown = {
            side: name for side, name in zip(("left", "right"), join.sources, strict=True) if name not in columns
        }
        for side, name in unknown.items() if sources else ():
            fault = f"there is no source called `{name}`"
            yield Problem(fault, remedy=did_you_mean(name, columns), at=(*at, side, "source"))
        if sources and not unknown:
            yield from _column_problems(join, columns, at)
        if time is not None:
            yield from _join_time_problems(join, time, at)


def _column_problems(join: JoinSpec, columns: Mapping[str, Sequence[str]], at: Path) -> Iterable[Problem]:
    for position, name in enumerate(join.on):
        lacking = [source for source in join.sources if name not in columns[source]]
        if lacking:
            of_table = join.has_table and lacking[0] == join.right.name
            fault = f"{'the table' if of_table else f'source `{lacking[0]}`'} has no column `{name}`"
            near = did_you_mean(name, columns[lacking[0]])
            remedy = near or "name a column of one source as the other does: `rename`"
            expected = "a column that both sources have, spelled as in `schema`"
            yield Problem(fault, expected=expected, remedy=remedy, at=(*at, "on", position))
    names: set[str] = set()
    for name in JoinColumns.of(columns[join.left.source], columns[join.right.name]).names:
        if name.lower() in (LEFT_SEQ, RIGHT_SEQ):
            fault = f"a column of this join would be called `{name}`, as the number of an event is"
            yield Problem(fault, remedy="choose another name for it with `rename`", at=at)
        if name.lower() in names:
            fault = f"two columns of this join would be called `{name}`"
            yield Problem(fault, remedy="choose another name for one of them with `rename`", at=(*at, "right"))
        names.add(name.lower())


def _join_time_problems(join: JoinSpec, time: TimeSpec, at: Path) -> Iterable[Problem]:
    if join.allowed_lateness and time.out_of_order != "keep":
        fault = (
            f"found an allowed lateness, but under `out_of_order: {time.out_of_order}` no accepted event is ever late"
        )
        remedy = "set `time.out_of_order: keep`, or leave it out"
        yield Problem(fault, expected="`time.out_of_order: keep`", remedy=remedy, at=(*at, "allowed_lateness"))
    named = {normal_form(column) for column in join.on}
    missing = [text for text in time.over if normal_form(text) not in named]
    if missing:
        shown = ", ".join(f"`{text}`" for text in missing)
        columns = all(plain_column(text) for text in missing)
        expected = "all columns of `time.over`: each of their values has its own watermark"
        remedy = f"add {shown} to `on`" if columns else "let `time.over` name columns"
        yield Problem(f"lacks {shown} of `time.over`", expected=expected, remedy=remedy, at=(*at, "on"))


def lateness_problems(
    sources: Sequence[Source], time: TimeSpec, windows: Mapping[int, WindowSpec], joins: Collection[str]
) -> Iterable[Problem]:
    """Find windows that allow lateness where nothing is late; one over a join waits for rows that are not final."""
    if time.out_of_order == "keep":
        return
    if not has_event_time(sources, time):
        why = "without `timestamp_by` event time is arrival time, so no event is ever late"
        remedy = "set `time.timestamp_by` and `time.out_of_order: keep`, or leave it out"
    else:
        why = f"under `out_of_order: {time.out_of_order}` no accepted event is ever late, so it has no effect"
        remedy = "set `time.out_of_order: keep`, or leave it out"
    for position, window in windows.items():
        if window.allowed_lateness > timedelta(0) and root_of(window, windows.values()) not in joins:
            at = ("windows", position, "allowed_lateness")
            yield Problem(
                f"found an allowed lateness, but {why}", expected="`time.out_of_order: keep`", remedy=remedy, at=at
            )


def duration_problems(time: TimeSpec, windows: Mapping[int, WindowSpec]) -> Iterable[Problem]:
    """Refuse `max_duration` where late events join sessions: the cuts would depend on when they came."""
    for position, window in windows.items():
        if window.max_duration is not None and time.out_of_order == "keep":
            fault = "found `max_duration` with `out_of_order: keep`, where late events may still join a session"
            at = ("windows", position, "max_duration")
            remedy = "set `time.out_of_order` to drop or adjust, or leave it out"
            yield Problem(fault, expected="`time.out_of_order: drop` or `adjust`", remedy=remedy, at=at)


def over_problems(time: TimeSpec, windows: Mapping[int, WindowSpec], joins: Iterable[JoinSpec]) -> Iterable[Problem]:
    """Check that with substreams every window groups by their columns (A1 restriction 4), or goes across them."""
    keeps_right = {join.name: join.keeps_right for join in joins}
    for position, window in windows.items():
        if window.across:
            yield from _across_problems(window, time, ("windows", position))
        if time.over and keeps_right.get(window.input or ""):
            fault = (
                f"`{window.input}` has rows without an event of the left side, which lack columns of `time.over`: "
                "windows over them are not supported yet"
            )
            expected = "a join with `how: inner` or `how: left`"
            yield Problem(fault, expected=expected, at=("windows", position, "from"))
            continue
        missing = missing_of_over(window, windows.values(), time.over, keeps_right)
        if missing:
            items = [item if plain_column(item) else f"{item} AS name" for item in missing]
            yield Problem(
                f"lacks {', '.join(f'`{item}`' for item in missing)} of `time.over`",
                expected="all columns of `time.over`: each of their values has its own watermark",
                remedy=f"add {', '.join(f'`{item}`' for item in items)} to `group_by`, or write `across: true`",
                at=("windows", position, "group_by"),
            )


def _across_problems(window: WindowSpec, time: TimeSpec, at: Path) -> Iterable[Problem]:
    """Find what a window across timelines cannot have."""
    if not time.over:
        fault = "`across` has no effect without `time.over`: all events are of one timeline"
        yield Problem(fault, remedy="set `time.over`, or leave it out", at=(*at, "across"))
    elif window.max_duration is not None:
        fault = "found `max_duration` with `across`: events below the lowest watermark may still join a session"
        remedy = "leave one of them out"
        yield Problem(fault, expected="a session without `max_duration`", remedy=remedy, at=(*at, "max_duration"))
    named: list[tuple[Path, str | None]] = [
        (("where",), window.where),
        (("gap",), window.gap_by),
        *((("group_by", place), text) for place, (_, text) in enumerate(window.group_expressions)),
        *((("aggregates", name), text) for name, text in window.aggregates.items()),
        *((("top", "by"), text) for text in window.order),
    ]
    for inside, text in named:
        if text is not None and mentions(text, "_timeline"):
            fault = "found `_timeline` in a window across timelines, whose events are of one timeline, `[]`"
            expected = f"the expressions of `time.over`: {', '.join(time.over)}" if time.over else ""
            yield Problem(fault, expected=expected, remedy="name these instead", at=(*at, *inside))


def zone_problems(time: TimeSpec, sources: Sequence[Source]) -> Iterable[Problem]:
    """Check that `time_zone` has an effect: that some time is read without an offset."""
    reads_times = time.timestamp_by is not None or any(
        s.arrival_time or s.timestamp_by or mentions(s.columns, "timestamp") for s in sources
    )
    if time.time_zone != "UTC" and sources and not reads_times:
        fault = "`time_zone` has no effect: neither `timestamp_by` nor `arrival_time` nor a TIMESTAMP reads a time"
        yield Problem(fault, remedy="leave it out", at=("time", "time_zone"))
