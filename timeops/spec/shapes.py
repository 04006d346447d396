"""Which keys make the shape of a window of each kind, and how they fit together.

Here: the keys that a kind needs or takes, sizes of the calendar, the rules between sizes and steps. Not here: the
other keys of a window (window.py), the windows that come of it (grid.py, windows/sessions.py, windows/sliding.py).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema

from tidemark.timeops.durations import format_duration, micros
from tidemark.timeops.problems import Problem, ProblemsError, show
from tidemark.timeops.spec.fields import (
    POSITIVE_LENGTH,
    Duration,
    PositiveDuration,
    SpecModel,
    TimeZone,
    one_of,
    read_positive_duration,
)

Kind = Literal["tumbling", "hopping", "cumulative", "session", "sliding", "snapshot"]
MONTH: Literal["1 month"] = "1 month"
DAY = timedelta(days=1)

_MOST_AT_ONCE = 20_000  # windows that an event may be in: each of them is a row of its own

A_MONTH = r"^ *(?:1 *months?|P1M) *$"
_MONTHS = r"^ *(?:[0-9.]+ *(?:months?|years?|quarters?)|P[0-9.]+[MY].*) *$"


@dataclass(frozen=True)
class _Shape:
    """The keys that a kind needs, each with an example, the keys that it may have, and why it has no others."""

    needs: Mapping[str, str]
    may_have: frozenset[str] = frozenset()
    why: str = ""


_GRID = frozenset({"offset", "closed"})
SHAPES: Mapping[str, _Shape] = {
    "tumbling": _Shape({"size": "1 hour"}, _GRID | {"time_zone"}, "whose step is its size"),
    "hopping": _Shape({"size": "1 hour", "hop": "5 minutes"}, _GRID),
    "cumulative": _Shape({"size": "1 day", "step": "1 hour"}, _GRID),
    "session": _Shape({"gap": "30 minutes"}, frozenset({"max_duration"}), "which lasts as long as its events go on"),
    "sliding": _Shape(
        {"size": "10 minutes"}, frozenset(), "which ends wherever its events change, and holds its end"
    ),
    "snapshot": _Shape({}, frozenset(), "which is one instant"),
}
"""The kinds of window; of the keys of a shape, a kind has no more than these."""

SHAPE_KEYS = ("size", "hop", "step", "offset", "closed", "time_zone", "gap", "max_duration")


def _size(value: object) -> timedelta | Literal["1 month"]:
    if isinstance(value, str) and re.match(A_MONTH, value):
        return MONTH
    if isinstance(value, str) and re.match(_MONTHS, value):
        expected = "a duration such as `30 days`, or `1 month` for the months of the calendar"
        raise ProblemsError([Problem(f"found {show(value)}", expected=expected)])
    return read_positive_duration(value)


def _size_text(size: timedelta | str) -> str:
    return size if isinstance(size, str) else format_duration(size)


WindowSize = Annotated[
    timedelta | Literal["1 month"],
    PlainValidator(_size),
    PlainSerializer(_size_text, return_type=str, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": A_MONTH}, POSITIVE_LENGTH]}),
]
"""Length of a window: a duration, or a month of the calendar."""


class WindowShape(SpecModel):
    """The part of a window that says which spans of time it is."""

    kind: Annotated[Kind, one_of(*SHAPES)] = Field(
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
        default=timedelta(0), description="Shift of the grid against 1970-01-01T00:00Z, less than one step."
    )
    time_zone: TimeZone | None = Field(
        default=None,
        description="tumbling windows of 1 day or 1 month only: they begin at local midnight of this zone.",
    )
    gap: PositiveDuration | None = Field(
        default=None, description="session only: how far apart two events of one session are at most."
    )
    max_duration: PositiveDuration | None = Field(
        default=None,
        description="session only: a session ends at the latest this long after its first event, and the next event "
        "begins a new one; not with time.out_of_order: keep.",
    )
    closed: Annotated[Literal["left", "right"], one_of("left", "right")] = Field(
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
        """How long after an event the windows that it makes go on, in microseconds; of windows on no grid."""
        return 0 if self.kind == "snapshot" else _micros(self.gap or self.size)

    @property
    def calendar(self) -> tuple[Literal["day", "month"], str] | None:
        """The unit and the zone of windows that follow the calendar; None for all others."""
        if self.size != MONTH and self.time_zone is None:
            return None
        return "month" if self.size == MONTH else "day", self.time_zone or "UTC"

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
    def offset_us(self) -> int:
        """Shift of the grid against the epoch in microseconds."""
        return micros(self.offset)

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
        given = [key for key in SHAPE_KEYS if key in self.model_fields_set]
        problems = [
            Problem(
                f"the key is missing: a {self.kind} window needs a {key}",
                expected=f"a duration such as `{example}`",
                at=(key,),
            )
            for key, example in shape.needs.items()
            if getattr(self, key) is None
        ]
        for key in given:
            if key not in shape.needs and key not in shape.may_have:
                why = f", {shape.why}" if shape.why else ""
                found = f"`{key}` has no effect on a {self.kind} window{why}"
                problems.append(Problem(found, remedy=_instead(key), at=(key,)))
        return problems or [*self._calendar_problems(), *self._step_problems()]

    def _calendar_problems(self) -> Iterable[Problem]:
        if self.size == MONTH and self.kind != "tumbling":
            found = f"found {MONTH}, whose length differs, on a {self.kind} window"
            yield Problem(found, "a duration such as `30 days`", "or write `kind: tumbling`", ("size",))
        elif self.time_zone is not None and self.size not in (MONTH, DAY):
            found = "only windows of a day or a month follow a `time_zone`; others lie on a UTC grid"
            remedy = "leave `time_zone` out, or write one of these sizes"
            yield Problem(found, f"`size: 1 day` or `size: {MONTH}`", remedy, ("time_zone",))
        elif self.calendar is not None and "offset" in self.model_fields_set:
            found = "`offset` has no effect on days and months, which begin at local midnight"
            yield Problem(found, remedy="leave it out", at=("offset",))

    def _step_problems(self) -> Iterable[Problem]:
        if not isinstance(self.size, timedelta):
            return
        if self.step is not None and self.size % self.step:
            found = f"found {format_duration(self.step)}, and {format_duration(self.size)} is not a multiple of it"
            yield Problem(found, "a step that divides the size", at=("step",))
        often = self.hop or self.step
        at_once = -(-self.size // often) if often else 1
        if at_once > _MOST_AT_ONCE:
            key = "hop" if self.hop else "step"
            found = f"found {format_duration(often or DAY)}, with which an event is in {at_once:,} windows at once"
            least = format_duration(-(-self.size // _MOST_AT_ONCE))
            yield Problem(found, f"at most {_MOST_AT_ONCE:,} at once: here {least} or more", at=(key,))
        begins_every = self.hop or self.size
        if self.offset >= begins_every:
            step = format_duration(begins_every)
            found = f"found {format_duration(self.offset)}, which is not below the step of the grid, {step}"
            yield Problem(found, expected=f"zero or more, less than {step}", at=("offset",))


def _instead(key: str) -> str:
    kinds = [kind for kind, shape in SHAPES.items() if key in shape.needs or key in shape.may_have]
    return f"leave it out, or write `kind: {' or '.join(kinds)}`"


def _micros(length: timedelta | str | None) -> int:
    if not isinstance(length, timedelta):
        raise ValueError("a window of this kind has no such length")
    return micros(length)
