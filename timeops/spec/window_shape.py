"""The shape of a window: which keys each kind has, lengths in months, and grids on the wall clock of a zone.

Here: the keys that say which spans of time a window is, and what is wrong between them. Not here: its results
(timeops/spec/window.py), the arithmetic of grids (timeops/calendar/grid.py).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from tidemark.timeops.errors.problems import Problem, misfit
from tidemark.timeops.spec.fields import (
    POSITIVE_LENGTH,
    Day,
    Duration,
    PositiveDuration,
    SpecModel,
    TimeZone,
    read_expression,
    read_positive_duration,
)
from tidemark.timeops.values.durations import format_duration, micros

DAY = timedelta(days=1)
_WEEK = timedelta(days=7)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_EPOCH = date(1970, 1, 1)
_MOST_AT_ONCE = 20_000  # windows that an event may be in: each of them is a row of its own

_IN_MONTHS = {"m": 1, "q": 3, "y": 12}
_COUNT = "[1-9][0-9]*"
_MONTHS = rf"^ *(?:{_COUNT} *(?:months?|quarters?|years?)|P(?:{_COUNT}Y)?{_COUNT}M|P{_COUNT}Y) *$"
_LIKE_MONTHS = r"^ *(?:[0-9.]+ *(?:months?|years?|quarters?)\b|P[0-9.]+[MY])"
_MOST_MONTHS = 12 * 100  # when the clocks were moved in all its years is looked up for each window
_LAST_DAY = 28  # the last one that every month has


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
        {"gap": "30 minutes"}, frozenset({"max_gap", "max_duration"}), "which lasts as long as its events continue"
    ),
    "sliding": _Shape(
        {"size": "10 minutes"}, frozenset(), "which ends wherever its events change, and holds its end"
    ),
    "snapshot": _Shape({}, frozenset(), "which is one instant"),
}
"""The kinds of window; of the keys of a shape, a kind has no more than these."""

OF_ZONE = ("week_start", "origin", "repeated")
"""The keys that say more about a grid on the wall clock."""
SHAPE_KEYS = ("size", "hop", "step", "offset", "closed", "time_zone", *OF_ZONE, "gap", "max_gap", "max_duration")


@dataclass(frozen=True)
class LocalGrid:
    """Starts of windows on the wall clock of a zone, whose times are microseconds as if they were UTC.

    Attributes:
        zone: The time zone.
        step_us: How far one start is from the next; None where that is `months`.
        anchor_us: One of the starts; of months a midnight, and no later in its month than the 28th.
        splits: A start that comes twice begins a window each time; otherwise only the first time.
        months: How many months of the calendar one start is from the next, without a `step_us`.
    """

    zone: str
    step_us: int | None
    anchor_us: int = 0
    splits: bool = False
    months: int = 1

    @property
    def anchor_day(self) -> date:
        """The day of the start that is `anchor_us`."""
        return _EPOCH + timedelta(microseconds=self.anchor_us)


@dataclass(frozen=True)
class Months:
    """A length of whole months of the calendar; `1 quarter` is 3 months, `1 year` is 12."""

    count: int

    def __str__(self) -> str:
        """Return the text that a spec has for it: equal lengths have equal texts."""
        number, unit = (self.count, "month") if self.count % 12 else (self.count // 12, "year")
        return f"{number} {unit}{'s' if number > 1 else ''}"

    @property
    def longest(self) -> timedelta:
        """A length that so many months do not exceed."""
        return timedelta(days=31) * self.count


def _size(value: object) -> timedelta | Months:
    if not isinstance(value, str) or not re.match(_LIKE_MONTHS, value):
        return read_positive_duration(value)
    if not re.match(_MONTHS, value):
        raise misfit(
            value, "a duration such as `30 days`, or months of the calendar such as `1 month`, `1 quarter`, `2 years`"
        )
    terms = re.findall("([0-9]+) *([a-zA-Z])", value)
    count = sum(int(number) * _IN_MONTHS[unit.lower()] for number, unit in terms)
    if count > _MOST_MONTHS:
        raise misfit(value, f"at most {Months(_MOST_MONTHS)}")
    return Months(count)


def said_length(length: timedelta | Months) -> str:
    """Return a length as a spec says it."""
    return str(length) if isinstance(length, Months) else format_duration(length)


WindowSize = Annotated[
    timedelta | Months,
    PlainValidator(_size),
    PlainSerializer(said_length, return_type=str, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": _MONTHS}, POSITIVE_LENGTH]}),
]
"""Length of a window: a duration, or months of the calendar."""


_SPELLINGS = "|".join("".join(f"[{letter}{letter.lower()}]" for letter in word) for word in ("CASE", "INTERVAL"))
_SQL = rf"[(]|\b(?:{_SPELLINGS})\b|^ *(?!P[0-9T])[A-Za-z_`](?:[A-Za-z0-9_`]* *$|.*[-+*/])"
"""The texts that are an expression and not a length: a bracket, CASE or INTERVAL, an operator, or a name alone."""


def _gap(value: object) -> timedelta | str:
    if isinstance(value, str) and re.search(_SQL, value):
        return read_expression(value)
    return read_positive_duration(value)


Gap = Annotated[
    timedelta | str,
    PlainValidator(_gap),
    PlainSerializer(
        lambda gap: gap if isinstance(gap, str) else format_duration(gap), return_type=str, when_used="json"
    ),
    WithJsonSchema({"anyOf": [POSITIVE_LENGTH, {"type": "string", "pattern": _SQL}]}),
]
"""How far apart two events are at most: a duration, or Spark SQL by which each event has its own."""


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
        description="All but session and snapshot: length of a window, such as 1 hour. Tumbling also months of the "
        "calendar: 1 month, 1 quarter, 2 years.",
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
        description="With a time_zone, windows of whole days or months only: a day with which one of them begins, "
        "such as the first of a fiscal year.",
        json_schema_extra={"since": "0.2.0"},
    )
    repeated: Literal["together", "split"] = Field(
        default="together",
        description="tumbling windows of less than a day with a time_zone only: what becomes of an hour that comes "
        "twice. together: it belongs to one window; split: each start in it begins a window each time.",
        json_schema_extra={"since": "0.2.0"},
    )
    gap: Gap | None = Field(
        default=None,
        description="session only: how far apart two events of one session are at most. Or an expression whose value "
        "is an INTERVAL DAY TO SECOND, such as `CASE device WHEN 'tv' THEN INTERVAL 2 HOURS ELSE INTERVAL 5 MINUTES "
        "END`: each event keeps its session open for so long. It may name what `timestamp_by` may, and needs "
        "`max_gap`.",
    )
    max_gap: PositiveDuration | None = Field(
        default=None,
        description="session with a `gap` that is an expression only: the longest gap of an event. An event whose "
        "gap is longer, or is not a length above zero, is a dead letter `bad_expression` of the window.",
        json_schema_extra={"since": "0.2.0"},
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
        """How long after an event the windows that it makes last at most, in microseconds; of windows on no grid."""
        return 0 if self.kind == "snapshot" else _micros(self.max_gap or self.gap or self.size)

    @property
    def least_reach_us(self) -> int:
        """How long after an event the windows that it makes last at least, in microseconds; of windows on no grid."""
        return 0 if self.gap_by is not None else self.reach_us

    @property
    def local_grid(self) -> LocalGrid | None:
        """The starts of windows that follow the clocks of a zone, months of UTC included; None for all others."""
        if isinstance(self.size, Months):
            return LocalGrid(self.time_zone or "UTC", None, self.offset_us, months=self.size.count)
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
        return micros((self.size.longest if isinstance(self.size, Months) else self.size or DAY) + DAY)

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
        if isinstance(step, Months):
            return micros((self.origin or _EPOCH) - _EPOCH)
        if self.time_zone is None or step is None or step % DAY:
            return micros(self.offset)
        if self.origin is None and step % _WEEK:
            return 0
        # The epoch was a Thursday.
        first = self.origin or date(1970, 1, 5 + _WEEKDAYS.index(self.week_start))
        return micros((first - _EPOCH) % step)

    @property
    def gap_by(self) -> str | None:
        """The expression that says how long each event keeps its session open; None where all have one gap."""
        return self.gap if isinstance(self.gap, str) else None

    @property
    def gap_us(self) -> int:
        """How far apart two events of one session are at most, in microseconds, where all events have one gap."""
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
        return problems or [*self._gap_problems(), *self._calendar_problems(), *self._step_problems()]

    def _gap_problems(self) -> Iterable[Problem]:
        if self.gap_by is not None and self.max_gap is None:
            fault = "the key is missing: where each event has its own gap, `max_gap` says how long one may be"
            yield Problem(fault, expected="a duration such as `2 hours`", at=("max_gap",))
        elif self.gap_by is None and self.max_gap is not None:
            fault = "`max_gap` has no effect where all events have one gap"
            yield Problem(fault, remedy="leave it out, or write an expression for `gap`", at=("max_gap",))

    def _calendar_problems(self) -> Iterable[Problem]:
        if isinstance(self.size, Months) and self.kind != "tumbling":
            fault = f"found {self.size}, whose length varies, on a {self.kind} window"
            yield Problem(
                fault, expected="a duration such as `30 days`", remedy="or write `kind: tumbling`", at=("size",)
            )
            return
        step = self.hop or self.size
        if self.time_zone is not None:
            yield from self._length_problems()
        if (self.local_grid is not None) and "offset" in self.model_fields_set and not _divides_day(step):
            fault = "`offset` has no effect on days, weeks, months, quarters and years, which begin at local midnight"
            remedy = "leave it out" if step in (Months(1), DAY) else "leave it out, or write `origin: 2026-04-06`"
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

    def _effect_problems(self, key: str, step: timedelta | Months | None) -> Iterable[Problem]:
        is_of_weeks = isinstance(step, timedelta) and not step % _WEEK
        is_of_days = isinstance(step, timedelta) and not step % DAY and step > DAY
        is_short = isinstance(step, timedelta) and step < DAY
        if key == "week_start" and self.origin is not None:
            yield Problem("`week_start` has no effect with `origin`, which says it", remedy="leave it out", at=(key,))
        elif key == "week_start" and not is_of_weeks:
            fault = "`week_start` has no effect on windows that do not begin with a week"
            yield Problem(fault, expected="a size, or hop, of whole weeks", remedy="leave it out", at=(key,))
        elif key == "origin" and isinstance(step, Months):
            yield from self._origin_problems(step)
        elif key == "origin" and not is_of_days:
            fault = "`origin` has no effect on windows that begin every day, or several times a day"
            yield Problem(fault, expected="a size, or hop, of several whole days", remedy="leave it out", at=(key,))
        elif key == "repeated" and not is_short:
            fault = "`repeated` has no effect on windows of a day or more"
            yield Problem(fault, expected="a size of less than a day", remedy="leave it out", at=(key,))

    def _origin_problems(self, size: Months) -> Iterable[Problem]:
        assert self.origin is not None  # asked only where it is set
        if self.origin.day > _LAST_DAY:
            fault = f"found {self.origin}, and not every month has a day {self.origin.day}"
            yield Problem(fault, expected=f"a day from the 1st to the {_LAST_DAY}th of a month", at=("origin",))
        elif self.origin.day == 1 and size.count == 1:
            fault = "`origin` has no effect on windows of one month that begin on the first"
            remedy = "leave it out, or write another day of the month"
            yield Problem(fault, remedy=remedy, at=("origin",))

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


def _divides_day(length: timedelta | Months | None) -> bool:
    return isinstance(length, timedelta) and length < DAY and not DAY % length


def _micros(length: timedelta | str | Months | None) -> int:
    if not isinstance(length, timedelta):
        raise ValueError("a window of this kind has no such length")
    return micros(length)
