"""The `windows` of a spec: groups, aggregates, first rows, when they have results, and which read others (`from`).

Here: the keys of a window but for its shape, and the columns of chained windows that lead back to timelines. Not
here: the shape (timeops/spec/window_shape.py), what windows ask of `time` (timeops/spec/between_parts.py), windows
themselves (timeops/calendar/grid.py, windows/).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tidemark.timeops.errors.problems import Path, Problem, ProblemsError, did_you_mean, raise_any
from tidemark.timeops.expressions.tokens import mentions, normal_form, plain_column, split_alias
from tidemark.timeops.spec.fields import (
    ALIAS,
    RESERVED_COLUMNS,
    Aggregate,
    Alias,
    Duration,
    Expression,
    Flag,
    GroupItem,
    Name,
    PositiveDuration,
    ResultExpression,
    SpecModel,
    WholeNumber,
    is_reserved,
    word_or_keys,
)
from tidemark.timeops.spec.top import TOP_RANK, Top
from tidemark.timeops.spec.window_shape import WindowShape
from tidemark.timeops.values.durations import format_duration, micros

RESERVED_IN_WINDOWS = RESERVED_COLUMNS | {"window_start", "window_end", "_change_type", "_late_events"}
_OF_CHANGE_FEED = {"_commit_version", "_commit_timestamp"}
ALIAS_SCHEMA: Mapping[str, Any] = {
    "pattern": f"^{ALIAS}$",
    "not": {"enum": sorted(RESERVED_IN_WINDOWS)},
}
"""JSON Schema of the name of an aggregate."""
_RESCUED = "_rescued"  # of the reserved names the one that a payload may have: see `keep_unknown` of sources


class Early(SpecModel):
    """Results before a window closes, once per period of the clock in which events came."""

    early: PositiveDuration = Field(description="Length of a period, such as 1 minute.")


_EMISSION = word_or_keys(Early, "on_close", "on_time", expected="on_close, on_time, or {early: 1 minute}")


class WindowEmission(WindowShape):
    """The part of a window that says when it has results."""

    allowed_lateness: Duration = Field(
        default=timedelta(0),
        description="How long after its end a window still takes events; needs time.out_of_order: keep.",
    )
    emit: Annotated[Literal["on_close", "on_time"] | Early, _EMISSION] = Field(
        default="on_close",
        description="on_close: one result, when the window is closed; on_time: one when the watermark passes its "
        "end, and revisions for late events until it is closed; {early: 1 minute}: a revision for each period "
        "of the clock in which events came, before the end and, with an allowed lateness, after it.",
    )
    revise_every: Duration = Field(
        default=timedelta(minutes=1),
        description="With emit: on_time: all late events of one period of the clock make one revision; 0 s: "
        "each event makes one.",
    )

    history: Flag = Field(
        default=False,
        description="Write every revision to the table history/<name>, with what it replaced and the late events "
        "that caused it.",
    )
    change_feed: Flag = Field(
        default=False,
        description="Delta's change data feed of windows/<name>: which rows each version inserted and deleted.",
    )
    empty: Flag = Field(
        default=False,
        description="tumbling, hopping, cumulative: also write windows with no event, between a group's first and "
        "the timeline's last window that holds one.",
    )
    empty_max: WholeNumber = Field(
        default=10_000,
        description="With empty: most windows with no event of one group in one batch; a batch with more is refused.",
    )

    @property
    def allowed_lateness_us(self) -> int:
        """How long after its end a window still takes events, in microseconds."""
        return micros(self.allowed_lateness)

    @property
    def closes_after_us(self) -> int:
        """How far the watermark is past the end when the window closes: the allowed lateness (M), in microseconds.

        One more where the end belongs to the window, which closes only when the watermark has passed it.
        """
        return self.allowed_lateness_us + self.ends_inside_us

    def clock_closes_after_us(self, unit_us: int) -> int:
        """Return how far past the end a watermark of the clock closes the window (M), in microseconds.

        Such a watermark is a whole number of units. Where the end belongs to the window, it is one unit later.
        """
        return self.allowed_lateness_us + self.ends_inside_us * unit_us

    @property
    def early_every_us(self) -> int | None:
        """Length of a period of results before the end, in microseconds; None for none."""
        return micros(self.emit.early) if isinstance(self.emit, Early) else None

    @property
    def revise_every_us(self) -> int:
        """Length of a period of revisions for late events, in microseconds; 0 where each event makes one."""
        return micros(self.revise_every)

    @property
    def revises(self) -> bool:
        """True if a window may have more than one result."""
        return self.emit != "on_close"

    @property
    def may_take_back(self) -> bool:
        """True if results may be taken back: of a session that late events made another."""
        return self.revises and self.kind == "session"

    @property
    def follows_clock(self) -> bool:
        """True if the clock of the log alone may bring a revision: where a period ends in which events came."""
        return self.early_every_us is not None or (self.emit == "on_time" and self.revise_every_us > 0)

    def emission_problems(self) -> Iterable[Problem]:
        """Return what is wrong between the keys."""
        if "revise_every" in self.model_fields_set and self.emit != "on_time":
            fault = "`revise_every` has no effect without `emit: on_time`"
            yield Problem(fault, remedy="write that, or leave it out", at=("revise_every",))
        yield from self._empty_problems()
        if not self.revises:
            if self.history:
                fault = "`history` has no effect on a window that has one result"
                yield Problem(
                    fault, remedy="write `emit: on_time` or `emit: {early: …}`, or leave it out", at=("history",)
                )
            return
        if self.kind == "session" and self.max_duration is not None:
            fault = "with `max_duration`, an event may move the ends of all later sessions"
            remedy = "leave `emit` or `max_duration` out"
            yield Problem(fault, expected="on_close for a session with `max_duration`", remedy=remedy, at=("emit",))
        elif self.emit == "on_time" and not self.allowed_lateness:
            fault = "`on_time` has no effect without `allowed_lateness`: a window is then closed when it ends"
            yield Problem(fault, remedy="set `allowed_lateness`, or leave `emit` out", at=("emit",))

    def _empty_problems(self) -> Iterable[Problem]:
        if "empty_max" in self.model_fields_set and not self.empty:
            fault = "`empty_max` has no effect without `empty: true`"
            yield Problem(fault, remedy="write that, or leave it out", at=("empty_max",))
        if self.empty and not self.closes_on_grid:
            fault = f"`empty` has no effect on a {self.kind} window, which has no grid"
            remedy = "leave it out, or write `kind: tumbling or hopping or cumulative`"
            yield Problem(fault, remedy=remedy, at=("empty",))
        elif self.empty and (self.is_on_wall_clock or self.repeated == "split"):
            which = "`repeated: split`" if self.repeated == "split" else f"a `time_zone` on a {self.kind} window"
            remedy = f"leave it or {'`repeated`' if self.repeated == 'split' else '`time_zone`'} out"
            yield Problem(f"`empty` is not supported yet with {which}", remedy=remedy, at=("empty",))


def _not_empty(value: object) -> object:
    if isinstance(value, Mapping) and not value:
        expected = "at least one aggregate, such as {events: count(*)}"
        raise ProblemsError([Problem("found an empty mapping", expected=expected)])
    return value


class WindowSpec(WindowEmission):
    """One window table: per window and group one row of aggregates, or one for each of its first events."""

    name: Name = Field(description="Name of the window; its table is windows/<name>.")
    was: Name | None = Field(
        default=None,
        description="The window's former name: its tables continue under the new one. The key may stay in the spec.",
        json_schema_extra={"since": "0.2.0"},
    )
    input: Name | None = Field(
        default=None,
        alias="from",
        description="Name of another window, whose final results are the events here: their time is their "
        "window_end, and expressions name the columns of that window's table. Or name of a join: its final rows are "
        "the events, with their `_timestamp`.",
    )
    where: Expression | None = Field(default=None, description="Only events for which this is true.")
    group_by: tuple[GroupItem, ...] = Field(
        default=(), description="One result per value of these: columns, or `expression AS name`."
    )
    aggregates: Annotated[dict[Alias, Aggregate], BeforeValidator(_not_empty)] = Field(
        default={},
        description="Columns of the result: {name: Spark SQL aggregate}, such as {events: count(*)}. first(x) and "
        "last(x) go by _timestamp, then _arrival_seq. Required without `top`.",
    )
    across: Flag = Field(
        default=False,
        description="With time.over: the window goes across timelines. It need not group by the columns of `over`, "
        "and closes by the lowest watermark of the timelines that have had an event and are not idle.",
        json_schema_extra={"since": "0.2.0"},
    )
    top: Top | None = Field(
        default=None,
        description="One row for each of the first events of a window and group, with their columns and `_rank` 1, "
        "2, …; `aggregates` next to it are the same on each of them.",
        json_schema_extra={"since": "0.2.0"},
    )
    having: ResultExpression | None = Field(
        default=None, description="Only results for which this is true; over aggregates and group columns."
    )
    automation_condition: Literal["code_version_changed", "on_missing"] | None = Field(
        default=None,
        description="code_version_changed: Dagster's automation computes all days again after a change of the spec "
        "that would change their rows; on_missing: it computes a day that was added in Dagster; default: never.",
        json_schema_extra={"since": "0.2.0"},
    )

    @property
    def group_expressions(self) -> tuple[tuple[str, str], ...]:
        """Name and Spark SQL expression of each group column, in order."""
        pairs = []
        for item in self.group_by:
            expression, alias = split_alias(item)
            pairs.append((alias or plain_column(expression) or expression, expression))
        return tuple(pairs)

    @property
    def group_columns(self) -> tuple[str, ...]:
        """Names of the group columns, in order."""
        return tuple(name for name, _ in self.group_expressions)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Names of the columns that distinguish the results of the table, except for their revision."""
        return ("window_start", "window_end", *self.group_columns, *((TOP_RANK,) if self.top is not None else ()))

    @property
    def order(self) -> tuple[str, ...]:
        """Expressions by which `top` puts events in order; none without it."""
        return () if self.top is None else tuple(order.expression for order in self.top.orders)

    @property
    def event_expressions(self) -> tuple[str, ...]:
        """All expressions over the events of the window."""
        groups = (text for _, text in self.group_expressions)
        conditions = (text for text in (self.where, self.gap_by) if text is not None)
        return (*self.aggregates.values(), *groups, *self.order, *conditions)

    @property
    def has_gap_of_records(self) -> bool:
        """True if each record says how long it keeps its session open; results say it to no one but their window."""
        return self.gap_by is not None and self.input is None

    def event_columns(self, columns: Iterable[str]) -> list[str]:
        """Return the columns of an event that its row has because of `top`; none without it.

        They are the payload but for what the row has under the same name, `_timestamp` and, of a record, its number.
        `columns` are all that the window's events have.
        """
        if self.top is None:
            return []
        taken = {name.lower() for name in (*self.group_columns, *self.aggregates)} | self._own_columns
        payload = [name for name in columns if name == _RESCUED or not is_reserved(name)]
        numbered = ["_timestamp", "_arrival_seq"] if self.input is None else ["_timestamp"]
        return [*(name for name in payload if name.lower() not in taken), *numbered]

    @property
    def _own_columns(self) -> frozenset[str]:
        """Columns that rows of `top` have in addition to others, and that a payload may have too."""
        names = (RESERVED_IN_WINDOWS - RESERVED_COLUMNS) | {TOP_RANK}
        return names | _OF_CHANGE_FEED if self.change_feed else names

    def meeting_problems(self, columns: Iterable[str]) -> Iterable[Problem]:
        """Find columns of the window's events that meet others in the rows of `top`; `columns` are the payload."""
        if self.top is None:
            return
        spelled = {name.lower(): name for name in columns}
        for position, (name, expression) in enumerate(self.group_expressions):
            if name.lower() in spelled and (plain_column(expression) or "").lower() != name.lower():
                yield _meeting("group", name, spelled[name.lower()], ("group_by", position))
        for name in self.aggregates:
            if name.lower() in spelled:
                yield _meeting("aggregate", name, spelled[name.lower()], ("aggregates", name))
        for name in sorted(self._own_columns & {*spelled}):
            if self.input is not None and name != TOP_RANK:
                continue  # the bounds of the lower window: its end is `_timestamp`
            fault = f"each row of `top` has a column `{name}` of its own, and the events have a column of this name"
            remedy = "choose another name for it with `rename` of the source"
            if self.input is not None:
                fault = f"`{self.input}` has a `top` too, and both call the place of a row `{TOP_RANK}`"
                remedy = "leave `top` out of one of them, or choose rows of the lower one with `where: _rank = 1`"
            yield Problem(fault, expected="distinct names", remedy=remedy, at=("top",))

    @model_validator(mode="after")
    def _together(self) -> "WindowSpec":
        keys = (
            *(self.shape_problems(), self.emission_problems(), self._name_problems(), self._input_problems()),
            self._row_problems(),
        )
        raise_any(problem for problems in keys for problem in problems)
        return self

    @property
    def may_lose_rows(self) -> bool:
        """True if a revision may leave a window without a row: it is taken back, or no longer passes `having`."""
        return self.may_take_back or (self.revises and self.having is not None)

    def _input_problems(self) -> Iterable[Problem]:
        if self.input is None:
            return
        if self.revises:
            fault = "a window over results has one result: its input is final and never late"
            yield Problem(fault, expected="on_close", at=("emit",))
        if self.empty and self.closes_on_grid:  # of others it is said already
            fault = "rows without a result, of a window over the results of another, are not supported yet"
            yield Problem(fault, remedy="leave it out", at=("empty",))
        named: list[tuple[Path, str]] = [(("aggregates", alias), text) for alias, text in self.aggregates.items()]
        for at, text in (*named, *((("top", "by"), text) for text in self.order)):
            if mentions(text, "_arrival_seq"):
                fault = (
                    "this goes by `_arrival_seq`, which numbers records, and the events of this window are results"
                )
                remedy = "choose one of several by its columns, such as `max(struct(n, window_start)).window_start`"
                yield Problem(fault, remedy=remedy if at[0] == "aggregates" else "name columns of the results", at=at)

    def _row_problems(self) -> Iterable[Problem]:
        """Find what is wrong about which rows a window has."""
        if self.top is None and not self.aggregates:
            expected = "at least one aggregate, such as {events: count(*)}, or `top`"
            yield Problem("the key is missing", expected=expected, at=("aggregates",))
        elif self.top is not None and self.empty and self.closes_on_grid:
            fault = "`empty` has no effect next to `top`: a window with no event has no first events"
            remedy = "leave it out, or write an entry of `windows` with `aggregates` for these rows"
            yield Problem(fault, remedy=remedy, at=("empty",))

    def _name_problems(self) -> Iterable[Problem]:
        names: set[str] = set()
        named: list[tuple[str, Path]] = [
            *((name, ("group_by", position)) for position, name in enumerate(self.group_columns)),
            *((alias, ("aggregates", alias)) for alias in self.aggregates),
        ]
        for name, at in named:
            if is_reserved(name) or name.lower() in RESERVED_IN_WINDOWS:
                fault = f"the name `{name}` is reserved for a column of Tidemark"
                yield Problem(fault, remedy="choose another name", at=at)
            elif self.change_feed and name.lower() in _OF_CHANGE_FEED:
                fault = f"the name `{name}` is reserved for a column of Delta's change feed"
                yield Problem(fault, remedy="choose another name", at=at)
            elif name.lower() in names:
                fault = f"two columns of this window are called `{name}`"
                yield Problem(fault, expected="distinct names of groups and aggregates", at=at)
            elif self.top is not None and name.lower() == TOP_RANK:
                fault = f"each row of `top` has a column `{TOP_RANK}`, the place of its event"
                yield Problem(fault, remedy="choose another name", at=at)
            names.add(name.lower())


def _meeting(of: str, name: str, column: str, at: Path) -> Problem:
    fault = f"the {of} `{name}` and the column `{column}` of the events meet: rows of `top` have both"
    return Problem(fault, expected="distinct names", remedy=f"choose another name for the {of}", at=at)


def chain_problems(windows: Mapping[int, WindowSpec], joins: Mapping[str, timedelta]) -> Iterable[Problem]:
    """Find what is wrong between windows, by their position in the file, and the windows whose results they take.

    `joins` are the joins, whose rows windows may take too: how far past the time of a row the watermark has to be for
    it to be final.
    """
    for position, window in windows.items():
        if window.input is None:
            continue
        at: Path = ("windows", position, "from")
        inputs = inputs_of(window, windows.values())
        names = [*(other.name for other in windows.values() if other.name != window.name), *joins]
        if window.input in joins:
            yield from _over_join_problems(window, joins[window.input], ("windows", position))
        elif not inputs:
            fault, remedy = f"there is no window or join called `{window.input}`", did_you_mean(window.input, names)
            yield Problem(fault, expected="the name of another window, or of a join", remedy=remedy, at=at)
        elif inputs[0].input is not None and inputs[0].input not in joins:
            fault = f"`{window.input}` reads the results of this window in turn"
            yield Problem(fault, expected="a chain of windows that begins with one over events", at=at)
        elif inputs[-1].empty:
            fault = f"`{window.input}` has `empty: true`: some of its rows may come after this window has closed"
            yield Problem(fault, expected="a window that writes all its rows when it closes", at=at)
        elif window.across != inputs[-1].across:
            yield _across_problem(inputs[-1], position)
        elif window.allowed_lateness < inputs[-1].allowed_lateness:
            fault = (
                f"found {format_duration(window.allowed_lateness)}, less than that of `{window.input}`, whose "
                "results would come after this window has closed"
            )
            expected = f"at least {format_duration(inputs[-1].allowed_lateness)}"
            yield Problem(fault, expected=expected, at=("windows", position, "allowed_lateness"))


def _across_problem(source: WindowSpec, position: int) -> Problem:
    """Return what is wrong where only one of a window and the window that it reads goes across timelines."""
    at: Path = ("windows", position, "across")
    if source.across:
        fault = f"`{source.name}` goes across timelines, so its results have no timeline of their own"
        return Problem(fault, expected="true", remedy="write `across: true` here too", at=at)
    return _late_across(source.name, f"write `across: true` in `{source.name}` too, or leave it out here", at)


def _late_across(source: str, remedy: str, at: Path) -> Problem:
    fault = (
        f"the results of `{source}` come by the watermark of each timeline: some may come after a window across "
        "timelines has closed"
    )
    return Problem(fault, expected="false, or a window of events", remedy=remedy, at=at)


def _over_join_problems(window: WindowSpec, final_after: timedelta, at: Path) -> Iterable[Problem]:
    if window.across:
        yield _late_across(str(window.input), "leave it out", (*at, "across"))
    if window.allowed_lateness < final_after:
        needed = format_duration(final_after)
        fault = (
            f"found {format_duration(window.allowed_lateness)}, but rows of `{window.input}` are final only when the "
            f"watermark is further than {needed} past their time: they would come after this window has closed"
        )
        yield Problem(fault, expected=f"at least {needed}", at=(*at, "allowed_lateness"))


def inputs_of(window: WindowSpec, windows: Iterable[WindowSpec]) -> list[WindowSpec]:
    """Return the windows whose results lead to a window, the one of events first; none for a window of events.

    None also for a window over the rows of a join; of a window over that one the first is the one over the join.
    Where windows lead back to each other, which is an error, the first takes results too.
    """
    by_name = {other.name: other for other in windows}
    inputs: list[WindowSpec] = []
    name = window.input
    while name in by_name and by_name[name] not in inputs:
        inputs.append(by_name[name])
        name = inputs[-1].input
    return inputs[::-1]


def result_columns(window: WindowSpec, columns: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of a window's results that a window over them may name.

    `columns` are the ones that its events have, or its results. The time and the number of an event are not returned:
    for a window over results `_timestamp` is the end of each.
    """
    of_events = [name for name in window.event_columns(columns) if name not in ("_timestamp", "_arrival_seq")]
    return (*window.key_columns, *of_events, *window.aggregates)


def input_of(window: WindowSpec, windows: Iterable[WindowSpec]) -> WindowSpec:
    """Return the window whose results a window takes; it takes results of one, not rows of a join."""
    return inputs_of(window, windows)[-1]


def root_of(window: WindowSpec, windows: Iterable[WindowSpec]) -> str | None:
    """Return the name of the join whose rows a window goes over, itself or by other windows; None of events."""
    inputs = inputs_of(window, windows)
    return inputs[0].input if inputs else window.input


def inputs_first(windows: Sequence[WindowSpec]) -> tuple[WindowSpec, ...]:
    """Return the windows in an order in which each comes after the windows that it goes over."""
    return tuple(sorted(windows, key=lambda window: len(inputs_of(window, windows))))


def missing_of_over(
    window: WindowSpec, windows: Iterable[WindowSpec], over: Sequence[str], joins: Collection[str] = ()
) -> list[str]:
    """Return what a window has to group by and does not: the expressions of `over`, or the columns that hold them.

    `joins` are the names of the joins: their rows have the columns of `over`, as the left source does.
    """
    inputs, root = inputs_of(window, windows), root_of(window, windows)
    if (root is not None and root not in joins) or any(link.across for link in inputs):
        return []  # there is a problem with `from` or `across`, and nothing to know of columns
    expressions = () if window.across else over
    for link in inputs:
        expressions = _columns_of(link, expressions)
    grouped = {normal_form(expression) for _, expression in window.group_expressions}
    return [expression for expression in expressions if normal_form(expression) not in grouped]


def timeline_columns(
    window: WindowSpec, windows: Iterable[WindowSpec], over: Sequence[str], apart: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the columns of a window's results that hold the values of `over`, as expressions, in its order.

    Of a window across timelines only the ones of `apart`, which distinguish several logs.
    """
    columns = tuple(apart if window.across else over)
    for link in (*inputs_of(window, windows), window):
        columns = _columns_of(link, columns)
    return columns


def _columns_of(window: WindowSpec, expressions: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of results that hold what is asked for; what a window lacks is an error of its own."""
    names = {normal_form(expression): name for name, expression in window.group_expressions}
    return tuple(_quoted(names.get(normal_form(expression), expression)) for expression in expressions)


def _quoted(name: str) -> str:
    return name if plain_column(name) else f"`{name}`"
