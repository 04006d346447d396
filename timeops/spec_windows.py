"""The `windows` of a spec: grids of time, sessions, groups and aggregates.

Here: the keys of a window and the rules between them. Not here: which window an event is in (gridded.py,
sessions.py).
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from timeops.durations import format_duration, micros
from timeops.expression_tokens import plain_column, split_alias
from timeops.spec_expressions import RESERVED_COLUMNS, Aggregate, Expression, GroupItem
from timeops.spec_fields import ALIAS, Alias, Duration, Name, PositiveDuration, SpecModel, one_of
from timeops.spec_messages import Path, Problem, ProblemsError, raise_any, show

RESERVED_IN_WINDOWS = RESERVED_COLUMNS | {"window_start", "window_end"}
WINDOW_KINDS = ("tumbling", "hopping", "session")
LATER_WINDOW_KINDS = ("sliding", "snapshot", "cumulative")


_NOT_OF_SESSIONS = {
    "size": "which lasts as long as its events go on",
    "hop": "which begins with its first event",
    "offset": "which lies on no grid",
    "closed": "whose end always belongs to it",
}


def _micros(length: timedelta | None) -> int:
    if length is None:
        raise ValueError("a window of this kind has no such length")
    return micros(length)


def _not_empty(value: object) -> object:
    if isinstance(value, Mapping) and not value:
        expected = "at least one aggregate, such as {events: count(*)}"
        raise ProblemsError([Problem("found an empty mapping", expected=expected)])
    return value


class WindowSpec(SpecModel):
    """One window table: per window and group, one row of aggregates."""

    LATER: ClassVar[Mapping[str, str]] = {
        "step": "cumulative windows",
        "time_zone": "calendar grids",
        "empty": "rows for windows with no event",
        "empty_max": "rows for windows with no event",
        "history": "all revisions of a result",
        "revise_every": "revisions of a result",
        "early": "results before the end of a window",
        "from": "windows over other tables",
    }

    name: Name = Field(description="Name of the window; its table is windows/<name>.")
    kind: Annotated[Literal["tumbling", "hopping", "session"], one_of(*WINDOW_KINDS, later=LATER_WINDOW_KINDS)] = (
        Field(
            description="tumbling: one window after the other; hopping: a window of `size` every `hop`; "
            "session: events of a group that are at most `gap` apart."
        )
    )
    size: PositiveDuration | None = Field(
        default=None, description="tumbling and hopping: length of a window, such as 1 hour."
    )
    hop: PositiveDuration | None = Field(
        default=None, description="hopping only: how far one start is from the next; may exceed the size."
    )
    offset: Duration = Field(
        default=timedelta(0), description="Shift of the grid against 1970-01-01T00:00Z, less than one step."
    )
    gap: PositiveDuration | None = Field(
        default=None, description="session only: how far apart two events of one session are at most."
    )
    max_duration: PositiveDuration | None = Field(
        default=None,
        description="session only: a session ends at the latest so long after its first event, and the next event "
        "begins a new one; not with time.out_of_order: keep.",
    )
    closed: Annotated[Literal["left"], one_of("left", later=("right",))] = Field(
        default="left", description="The end that belongs to the window: left, so [start, end)."
    )
    allowed_lateness: Duration = Field(
        default=timedelta(0),
        description="How long after its end a window still takes events; needs time.out_of_order: keep.",
    )
    where: Expression | None = Field(default=None, description="Only events for which this is true.")
    group_by: tuple[GroupItem, ...] = Field(
        default=(), description="One result per value of these: columns, or `expression AS name`."
    )
    aggregates: Annotated[dict[Alias, Aggregate], BeforeValidator(_not_empty)] = Field(
        description="Columns of the result: {name: Spark SQL aggregate}, such as {events: count(*)}."
    )
    having: Aggregate | None = Field(
        default=None, description="Only results for which this is true; over aggregates and group columns."
    )
    emit: Annotated[Literal["on_close"], one_of("on_close", later=("on_time", "early"))] = Field(
        default="on_close", description="on_close: one result, when the window is closed."
    )

    @property
    def size_us(self) -> int:
        """Length of a window of a grid in microseconds."""
        return _micros(self.size)

    @property
    def hop_us(self) -> int:
        """The step of the grid in microseconds: the size when the window is tumbling."""
        return _micros(self.hop or self.size)

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

    @property
    def allowed_lateness_us(self) -> int:
        """How long after its end a window still takes events, in microseconds."""
        return micros(self.allowed_lateness)

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

    @model_validator(mode="before")
    @classmethod
    def _kind_first(cls, data: Any) -> Any:
        """Say that a kind is not supported yet before its keys are judged as those of other kinds."""
        if isinstance(data, Mapping) and data.get("kind") in LATER_WINDOW_KINDS:
            found = f"found {show(data['kind'])}: windows of this kind are not supported yet"
            raise ProblemsError([Problem(found, expected=" or ".join(WINDOW_KINDS), at=("kind",))])
        return data

    @model_validator(mode="after")
    def _together(self) -> "WindowSpec":
        shape = self._session_problems() if self.kind == "session" else self._grid_problems()
        raise_any([*shape, *self._name_problems()])
        return self

    def _session_problems(self) -> list[Problem]:
        problems = [
            Problem(f"`{key}` has no effect on a session window, {why}", remedy="leave it out", at=(key,))
            for key, why in _NOT_OF_SESSIONS.items()
            if key in self.model_fields_set
        ]
        if self.gap is None:
            found = "the key is missing: a session window needs a gap"
            problems.append(Problem(found, expected="a duration such as `30 minutes`", at=("gap",)))
        return problems

    def _grid_problems(self) -> list[Problem]:
        problems = [
            Problem(
                f"`{key}` has no effect on a {self.kind} window",
                remedy="leave it out, or write `kind: session`",
                at=(key,),
            )
            for key in ("gap", "max_duration")
            if key in self.model_fields_set
        ]
        return [*problems, *self._step_problems()]

    def _step_problems(self) -> list[Problem]:
        if self.size is None:
            found = f"the key is missing: a {self.kind} window needs a size"
            return [Problem(found, expected="a duration such as `1 hour`", at=("size",))]
        if self.kind == "tumbling" and self.hop is not None:
            found = "`hop` has no effect on a tumbling window, whose step is its size"
            return [Problem(found, remedy="leave it out, or write `kind: hopping`", at=("hop",))]
        if self.kind == "hopping" and self.hop is None:
            found = "the key is missing: a hopping window needs a hop"
            return [Problem(found, expected="a duration such as `5 minutes`", at=("hop",))]
        if self.offset_us >= self.hop_us:
            step = format_duration(self.hop or self.size)
            found = f"found {format_duration(self.offset)}, which is no less than the step of the grid, {step}"
            return [Problem(found, expected=f"zero or more, less than {step}", at=("offset",))]
        return []

    def _name_problems(self) -> list[Problem]:
        problems: list[Problem] = []
        seen: set[str] = set()
        named: list[tuple[str, Path]] = [
            *((name, ("group_by", position)) for position, name in enumerate(self.group_columns)),
            *((alias, ("aggregates", alias)) for alias in self.aggregates),
        ]
        for name, at in named:
            if name.lower() in RESERVED_IN_WINDOWS:
                found = f"the name `{name}` is reserved for a column of the product"
                problems.append(Problem(found, remedy="choose another name", at=at))
            elif name.lower() in seen:
                found = f"two columns of this window are called `{name}`"
                problems.append(Problem(found, "distinct names of groups and aggregates", at=at))
            seen.add(name.lower())
        return problems


ALIAS_SCHEMA: Mapping[str, Any] = {
    "pattern": f"^{ALIAS}$",
    "not": {"enum": sorted(RESERVED_IN_WINDOWS)},
}
"""JSON Schema of the name of an aggregate."""
