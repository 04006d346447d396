"""The `windows` of a spec: shapes, groups, aggregates, when they have results, and which read others (`from`).

Here: the keys of a window, which of them make a shape of each kind, sizes of the calendar, and the columns of chained
windows that lead back to timelines. Not here: what they ask of `time` (pipeline.py), the windows themselves (grid.py,
windows/).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from tidemark.timeops.durations import format_duration, micros
from tidemark.timeops.expressions.tokens import mentions, normal_form, plain_column, split_alias
from tidemark.timeops.problems import Path, Problem, ProblemsError, did_you_mean, misfit, raise_any
from tidemark.timeops.spec.fields import (
    ALIAS,
    POSITIVE_LENGTH,
    RESERVED_COLUMNS,
    Aggregate,
    Alias,
    Day,
    Duration,
    Expression,
    Flag,
    GroupItem,
    Name,
    PositiveDuration,
    ResultExpression,
    SpecModel,
    TimeZone,
    WholeNumber,
    is_reserved,
    read_positive_duration,
    word_or_keys,
)

MONTH: Literal["1 month"] = "1 month"
DAY = timedelta(days=1)
_WEEK = timedelta(days=7)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_MOST_AT_ONCE = 20_000  # windows that an event may be in: each of them is a row of its own

A_MONTH = r"^ *(?:1 *months?|P1M) *$"
_MONTHS = r"^ *(?:[0-9.]+ *(?:months?|years?|quarters?)|P[0-9.]+[MY].*) *$"


@dataclass(frozen=True)
class _Shape:
    """The keys that a kind needs, each with an example, the keys that it may have, and why it has no others."""

    needs: Mapping[str, str]
    may_have: frozenset[str] = frozenset()
    why: str = ""


_GRID = frozenset({"offset", "closed", "time_zone", "week_start", "origin"})
SHAPES: Mapping[str, _Shape] = {
    "tumbling": _Shape({"size": "1 hour"}, _GRID | {"repeated"}, "whose step is its size"),
    "hopping": _Shape({"size": "1 hour", "hop": "5 minutes"}, _GRID),
    "cumulative": _Shape({"size": "1 day", "step": "1 hour"}, _GRID),
    "session": _Shape(
        {"gap": "30 minutes"}, frozenset({"max_duration"}), "which lasts as long as its events continue"
    ),
    "sliding": _Shape(
        {"size": "10 minutes"}, frozenset(), "which ends wherever its events change, and holds its end"
    ),
    "snapshot": _Shape({}, frozenset(), "which is one instant"),
}
"""The kinds of window; of the keys of a shape, a kind has no more than these."""

OF_ZONE = ("week_start", "origin", "repeated")
"""The keys that say more about a grid on the wall clock."""
SHAPE_KEYS = ("size", "hop", "step", "offset", "closed", "time_zone", *OF_ZONE, "gap", "max_duration")


@dataclass(frozen=True)
class LocalGrid:
    """Starts of windows on the wall clock of a zone, whose times are microseconds as if they were UTC.

    Attributes:
        zone: The time zone.
        step_us: How far one start is from the next; None where they are the first of each month.
        anchor_us: One of the starts.
        splits: A start that comes twice begins a window each time; otherwise only the first time.
    """

    zone: str
    step_us: int | None
    anchor_us: int = 0
    splits: bool = False


def _size(value: object) -> timedelta | Literal["1 month"]:
    if isinstance(value, str) and re.match(A_MONTH, value):
        return MONTH
    if isinstance(value, str) and re.match(_MONTHS, value):
        raise misfit(value, "a duration such as `30 days`, or `1 month` for calendar months")
    return read_positive_duration(value)


WindowSize = Annotated[
    timedelta | Literal["1 month"],
    PlainValidator(_size),
    PlainSerializer(lambda size: size if size == MONTH else format_duration(size), return_type=str, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": A_MONTH}, POSITIVE_LENGTH]}),
]
"""Length of a window: a duration, or a month of the calendar."""


class WindowShape(SpecModel):
    """The part of a window that says which spans of time it is."""

    kind: Literal["tumbling", "hopping", "cumulative", "session", "sliding", "snapshot"] = Field(
        description="tumbling: one window after the other; hopping: a window of `size` every `hop`; cumulative: "
        "windows with one start that grow by `step` up to `size`; session: events of a group that are at most `gap` "
        "apart; sliding: a window of `size` up to every instant at which its events change; snapshot: events of one "
        "instant."
    )
    size: WindowSize | None = Field(
        default=None,
        description="All but session and snapshot: length of a window, such as 1 hour. Tumbling also: 1 month.",
    )
    hop: PositiveDuration | None = Field(
        default=None, description="hopping only: how far one start is from the next; may exceed the size."
    )
    step: PositiveDuration | None = Field(
        default=None, description="cumulative only: by how much a window is longer than the one before."
    )
    offset: Duration = Field(
        default=timedelta(0),
        description="Shift of the grid against 1970-01-01T00:00Z, or with a time_zone against local midnight; less "
        "than one step.",
    )
    time_zone: TimeZone | None = Field(
        default=None,
        description="tumbling, hopping, cumulative: the grid is on the wall clock of this zone, from local midnight.",
    )
    week_start: Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"] = Field(
        default="monday",
        description="With a time_zone, windows of whole weeks only: the day with which they begin.",
        json_schema_extra={"since": "0.2.0"},
    )
    origin: Day | None = Field(
        default=None,
        description="With a time_zone, windows of whole days only: a day with which one of them begins, such as the "
        "first of a fiscal year.",
        json_schema_extra={"since": "0.2.0"},
    )
    repeated: Literal["together", "split"] = Field(
        default="together",
        description="tumbling windows of less than a day with a time_zone only: what becomes of an hour that comes "
        "twice. together: it belongs to one window; split: each start in it begins a window each time.",
        json_schema_extra={"since": "0.2.0"},
    )
    gap: PositiveDuration | None = Field(
        default=None, description="session only: how far apart two events of one session are at most."
    )
    max_duration: PositiveDuration | None = Field(
        default=None,
        description="session only: a session ends no later than this after its first event, and the next event "
        "begins a new one; not with time.out_of_order: keep.",
    )
    closed: Literal["left", "right"] = Field(
        default="left",
        description="tumbling, hopping, cumulative: the end that belongs to the window. left: [start, end); right: "
        "(start, end].",
    )

    @property
    def size_us(self) -> int:
        """Length of a window of a grid in microseconds."""
        return _micros(self.size)

    @property
    def end_step_us(self) -> int:
        """How far one end is from the next one that there may be, in microseconds."""
        return _micros(self.hop or self.step or self.size) if self.closes_on_grid else 1

    @property
    def start_step_us(self) -> int:
        """How far one start on a grid is from the next one, in microseconds."""
        return _micros(self.hop or self.size)

    @property
    def reach_us(self) -> int:
        """How long after an event the windows that it makes last, in microseconds; of windows on no grid."""
        return 0 if self.kind == "snapshot" else _micros(self.gap or self.size)

    @property
    def local_grid(self) -> LocalGrid | None:
        """The starts of windows that follow the clocks of a zone, months of UTC included; None for all others."""
        if self.size == MONTH:
            return LocalGrid(self.time_zone or "UTC", None)
        if self.time_zone is None or not self.closes_on_grid:
            return None
        return LocalGrid(self.time_zone, self.start_step_us, self.offset_us, self.repeated == "split")

    @property
    def is_on_wall_clock(self) -> bool:
        """True if the times of the wall clock name the windows: of several of them the ends may be one instant."""
        return self.time_zone is not None and self.kind in ("hopping", "cumulative")

    @property
    def longest_us(self) -> int:
        """How long a window of a grid is at most, microseconds: a zone has gone back by almost a day."""
        if self.local_grid is None:
            return self.size_us
        return micros((timedelta(days=31) if self.size == MONTH else self.size or DAY) + DAY)

    @property
    def begins_inside(self) -> bool:
        """True if the start belongs to the window."""
        return self.closed == "left" and self.kind != "sliding"

    @property
    def ends_inside(self) -> bool:
        """True if the end belongs to the window."""
        return self.closed == "right" or not self.closes_on_grid

    @property
    def ends_inside_us(self) -> int:
        """1 where the end belongs to the window, which then closes one microsecond after it; else 0."""
        return int(self.ends_inside)

    @property
    def is_linked(self) -> bool:
        """True if other events of its group say in which windows an event is."""
        return self.kind in ("session", "sliding")

    @property
    def closes_on_grid(self) -> bool:
        """True if the times at which windows close are known without any event."""
        return self.kind not in ("session", "sliding", "snapshot")

    @property
    def overlaps(self) -> bool:
        """True if an event may be in several windows."""
        is_wide = self.kind == "hopping" and self.size_us > self.end_step_us
        return is_wide or self.kind in ("cumulative", "sliding", "session")

    @property
    def has_gaps(self) -> bool:
        """True if an event may be in no window: hopping windows that are further apart than they are long (M)."""
        return self.kind == "hopping" and self.end_step_us > self.size_us

    @property
    def offset_us(self) -> int:
        """Shift of the grid against the epoch in microseconds; with a `time_zone` on its wall clock."""
        step = self.hop or self.size
        if self.time_zone is None or not isinstance(step, timedelta) or step % DAY:
            return micros(self.offset)
        if self.origin is None and step % _WEEK:
            return 0
        # The epoch was a Thursday.
        first = self.origin or date(1970, 1, 5 + _WEEKDAYS.index(self.week_start))
        return micros((first - date(1970, 1, 1)) % step)

    @property
    def gap_us(self) -> int:
        """How far apart two events of one session are at most, in microseconds."""
        return _micros(self.gap)

    @property
    def max_duration_us(self) -> int | None:
        """The longest that a session lasts, in microseconds; None for no bound."""
        return None if self.max_duration is None else micros(self.max_duration)

    def shape_problems(self) -> list[Problem]:
        """Return what is wrong between the keys."""
        shape = SHAPES[self.kind]
        problems = [
            Problem(
                f"the key is missing: a {self.kind} window needs a {key}",
                expected=f"a duration such as `{example}`",
                at=(key,),
            )
            for key, example in shape.needs.items()
            if getattr(self, key) is None
        ]
        for key in SHAPE_KEYS:
            if key in self.model_fields_set and key not in shape.needs and key not in shape.may_have:
                why = f", {shape.why}" if shape.why else ""
                kinds = [kind for kind, other in SHAPES.items() if key in other.needs or key in other.may_have]
                remedy = f"leave it out, or write `kind: {' or '.join(kinds)}`"
                problems.append(
                    Problem(f"`{key}` has no effect on a {self.kind} window{why}", remedy=remedy, at=(key,))
                )
        return problems or [*self._calendar_problems(), *self._step_problems()]

    def _calendar_problems(self) -> Iterable[Problem]:
        if self.size == MONTH and self.kind != "tumbling":
            fault = f"found {MONTH}, whose length varies, on a {self.kind} window"
            yield Problem(
                fault, expected="a duration such as `30 days`", remedy="or write `kind: tumbling`", at=("size",)
            )
            return
        step = self.hop or self.size
        if self.time_zone is not None:
            yield from self._length_problems()
        if (self.local_grid is not None) and "offset" in self.model_fields_set and not _divides_day(step):
            fault = "`offset` has no effect on days and months, which begin at local midnight"
            remedy = "leave it out" if step in (MONTH, DAY) else "leave it out, or write `origin: 2026-04-06`"
            yield Problem(fault, remedy=remedy, at=("offset",))
        for key in OF_ZONE:
            if key not in self.model_fields_set or getattr(self, key) is None:
                continue
            if self.time_zone is None:
                remedy = "write `time_zone` too, which may be UTC, or leave it out"
                yield Problem(f"`{key}` has no effect without a `time_zone`", remedy=remedy, at=(key,))
            else:
                yield from self._effect_problems(key, step)

    def _length_problems(self) -> Iterable[Problem]:
        """Find lengths with which windows would not begin at the same time of every day."""
        key = "hop" if self.hop else "size"
        length = self.hop or self.size
        if isinstance(length, timedelta) and DAY % length and length % DAY:
            fault = f"found {format_duration(length)}, with which windows would begin at other times each local day"
            expected = "with a `time_zone`, a length that divides a day, such as `6 hours`, or whole days or weeks"
            yield Problem(fault, expected=expected, remedy="or leave `time_zone` out", at=(key,))

    def _effect_problems(self, key: str, step: timedelta | str | None) -> Iterable[Problem]:
        is_of_weeks = isinstance(step, timedelta) and not step % _WEEK
        is_of_days = isinstance(step, timedelta) and not step % DAY and step > DAY
        is_short = isinstance(step, timedelta) and step < DAY
        if key == "week_start" and self.origin is not None:
            yield Problem("`week_start` has no effect with `origin`, which says it", remedy="leave it out", at=(key,))
        elif key == "week_start" and not is_of_weeks:
            fault = "`week_start` has no effect on windows that do not begin with a week"
            yield Problem(fault, expected="a size, or hop, of whole weeks", remedy="leave it out", at=(key,))
        elif key == "origin" and not is_of_days:
            fault = "`origin` has no effect on windows that begin every day or month, or several times a day"
            yield Problem(fault, expected="a size, or hop, of several whole days", remedy="leave it out", at=(key,))
        elif key == "repeated" and not is_short:
            fault = "`repeated` has no effect on windows of a day or more"
            yield Problem(fault, expected="a size of less than a day", remedy="leave it out", at=(key,))

    def _step_problems(self) -> Iterable[Problem]:
        if not isinstance(self.size, timedelta):
            return
        if self.step is not None and self.size % self.step:
            fault = f"found {format_duration(self.step)}, and {format_duration(self.size)} is not a multiple of it"
            yield Problem(fault, expected="a step that divides the size", at=("step",))
        often = self.hop or self.step
        at_once = -(-self.size // often) if often else 1
        if at_once > _MOST_AT_ONCE:
            key = "hop" if self.hop else "step"
            fault = f"found {format_duration(often or DAY)}, with which an event is in {at_once:,} windows at once"
            least = format_duration(-(-self.size // _MOST_AT_ONCE))
            yield Problem(fault, expected=f"at most {_MOST_AT_ONCE:,} at once: here {least} or more", at=(key,))
        begins_every = self.hop or self.size
        if self.offset >= begins_every:
            step = format_duration(begins_every)
            fault = f"found {format_duration(self.offset)}, which is not below the step of the grid, {step}"
            yield Problem(fault, expected=f"zero or more, less than {step}", at=("offset",))


def _divides_day(length: timedelta | str | None) -> bool:
    return isinstance(length, timedelta) and length < DAY and not DAY % length


def _micros(length: timedelta | str | None) -> int:
    if not isinstance(length, timedelta):
        raise ValueError("a window of this kind has no such length")
    return micros(length)


RESERVED_IN_WINDOWS = RESERVED_COLUMNS | {"window_start", "window_end", "_change_type", "_late_events"}
_OF_CHANGE_FEED = {"_commit_version", "_commit_timestamp"}
ALIAS_SCHEMA: Mapping[str, Any] = {
    "pattern": f"^{ALIAS}$",
    "not": {"enum": sorted(RESERVED_IN_WINDOWS)},
}
"""JSON Schema of the name of an aggregate."""


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
    """One window table: per window and group, one row of aggregates."""

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
        "window_end, and expressions name the columns of that window's table.",
    )
    where: Expression | None = Field(default=None, description="Only events for which this is true.")
    group_by: tuple[GroupItem, ...] = Field(
        default=(), description="One result per value of these: columns, or `expression AS name`."
    )
    aggregates: Annotated[dict[Alias, Aggregate], BeforeValidator(_not_empty)] = Field(
        description="Columns of the result: {name: Spark SQL aggregate}, such as {events: count(*)}. first(x) and "
        "last(x) go by _timestamp, then _arrival_seq."
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
        return ("window_start", "window_end", *self.group_columns)

    @model_validator(mode="after")
    def _together(self) -> "WindowSpec":
        keys = (self.shape_problems(), self.emission_problems(), self._name_problems(), self._input_problems())
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
        for alias, aggregate in self.aggregates.items():
            if mentions(aggregate, "_arrival_seq"):
                fault = (
                    "this goes by `_arrival_seq`, which numbers records, and the events of this window are results"
                )
                remedy = "choose one of several by its columns, such as `max(struct(n, window_start)).window_start`"
                yield Problem(fault, remedy=remedy, at=("aggregates", alias))

    def _name_problems(self) -> Iterable[Problem]:
        seen: set[str] = set()
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
            elif name.lower() in seen:
                fault = f"two columns of this window are called `{name}`"
                yield Problem(fault, expected="distinct names of groups and aggregates", at=at)
            seen.add(name.lower())


def chain_problems(windows: Mapping[int, WindowSpec], joins: Sequence[str] = ()) -> Iterable[Problem]:
    """Find what is wrong between windows, by their position in the file, and the windows whose results they take.

    `joins` are the names of the joins, whose rows no window can take yet.
    """
    for position, window in windows.items():
        if window.input is None:
            continue
        at: Path = ("windows", position, "from")
        inputs = inputs_of(window, windows.values())
        names = [other.name for other in windows.values() if other.name != window.name]
        if not inputs:
            fault, remedy = f"there is no window called `{window.input}`", did_you_mean(window.input, names)
            if window.input in joins:
                fault = f"`{window.input}` is a join: windows over the rows of a join are not there yet"
                remedy = "read its table in another pipeline, as a source of kind delta"
            yield Problem(fault, expected="the name of another window", remedy=remedy, at=at)
        elif inputs[0].input is not None:
            fault = f"`{window.input}` reads the results of this window in turn"
            yield Problem(fault, expected="a chain of windows that begins with one over events", at=at)
        elif inputs[-1].empty:
            fault = f"`{window.input}` has `empty: true`: some of its rows may come after this window has closed"
            yield Problem(fault, expected="a window that writes all its rows when it closes", at=at)
        elif window.allowed_lateness < inputs[-1].allowed_lateness:
            fault = (
                f"found {format_duration(window.allowed_lateness)}, less than that of `{window.input}`, whose "
                "results would come after this window has closed"
            )
            expected = f"at least {format_duration(inputs[-1].allowed_lateness)}"
            yield Problem(fault, expected=expected, at=("windows", position, "allowed_lateness"))


def inputs_of(window: WindowSpec, windows: Iterable[WindowSpec]) -> list[WindowSpec]:
    """Return the windows whose results lead to a window, the one of events first; none for a window of events.

    Where windows lead back to each other, which is an error, the first takes results too.
    """
    by_name = {other.name: other for other in windows}
    inputs: list[WindowSpec] = []
    name = window.input
    while name in by_name and by_name[name] not in inputs:
        inputs.append(by_name[name])
        name = inputs[-1].input
    return inputs[::-1]


def input_of(window: WindowSpec, windows: Iterable[WindowSpec]) -> WindowSpec:
    """Return the window whose results a window takes."""
    return inputs_of(window, windows)[-1]


def inputs_first(windows: Sequence[WindowSpec]) -> tuple[WindowSpec, ...]:
    """Return the windows in an order in which each comes after the windows that it goes over."""
    return tuple(sorted(windows, key=lambda window: len(inputs_of(window, windows))))


def missing_of_over(window: WindowSpec, windows: Iterable[WindowSpec], over: Sequence[str]) -> list[str]:
    """Return what a window has to group by and does not: the expressions of `over`, or the columns that hold them."""
    inputs = inputs_of(window, windows)
    if window.input is not None and (not inputs or inputs[0].input is not None):
        return []  # there is a problem with `from`, and nothing to know of columns
    expressions = over
    for link in inputs:
        expressions = _columns_of(link, expressions)
    grouped = {normal_form(expression) for _, expression in window.group_expressions}
    return [expression for expression in expressions if normal_form(expression) not in grouped]


def timeline_columns(window: WindowSpec, windows: Iterable[WindowSpec], over: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a window's results that hold the values of `over`, as expressions, in its order."""
    columns = tuple(over)
    for link in (*inputs_of(window, windows), window):
        columns = _columns_of(link, columns)
    return columns


def _columns_of(window: WindowSpec, expressions: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of results that hold what is asked for; what a window lacks is an error of its own."""
    names = {normal_form(expression): name for name, expression in window.group_expressions}
    return tuple(_quoted(names.get(normal_form(expression), expression)) for expression in expressions)


def _quoted(name: str) -> str:
    return name if plain_column(name) else f"`{name}`"
