"""The `windows` of a spec: their shape, groups and aggregates.

Here: the keys of a window. Not here: which keys give a shape (shapes.py), which window an event is in
(aligned.py, sessions.py, sliding.py).
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from tidemark.timeops.expressions.tokens import mentions, plain_column, split_alias
from tidemark.timeops.problems import Path, Problem, ProblemsError, raise_any
from tidemark.timeops.spec.emission import WindowEmission
from tidemark.timeops.spec.expressions import RESERVED_COLUMNS, Aggregate, Expression, GroupItem
from tidemark.timeops.spec.fields import ALIAS, Alias, Name

RESERVED_IN_WINDOWS = RESERVED_COLUMNS | {"window_start", "window_end", "_change_type", "_late_events"}


def _not_empty(value: object) -> object:
    if isinstance(value, Mapping) and not value:
        expected = "at least one aggregate, such as {events: count(*)}"
        raise ProblemsError([Problem("found an empty mapping", expected=expected)])
    return value


class WindowSpec(WindowEmission):
    """One window table: per window and group, one row of aggregates."""

    name: Name = Field(description="Name of the window; its table is windows/<name>.")
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
        description="Columns of the result: {name: Spark SQL aggregate}, such as {events: count(*)}."
    )
    having: Aggregate | None = Field(
        default=None, description="Only results for which this is true; over aggregates and group columns."
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
        """Names of the columns that tell the results of the table from one another, but for their revision."""
        return ("window_start", "window_end", *self.group_columns)

    @model_validator(mode="after")
    def _together(self) -> "WindowSpec":
        raise_any([*self.shape_problems(), *self._result_problems()])
        return self

    def _result_problems(self) -> list[Problem]:
        return [*self.emission_problems(), *self._name_problems(), *self._input_problems()]

    def _input_problems(self) -> Iterable[Problem]:
        if self.input is None:
            return
        if self.revises:
            found = "a window over results gives one itself: they are final, and none of them is late"
            yield Problem(found, "on_close", at=("emit",))
        if self.empty and self.closes_on_grid:  # of others it is said already
            found = "rows without a result, of a window over the results of another, are not supported yet"
            yield Problem(found, remedy="leave it out", at=("empty",))
        for alias, aggregate in self.aggregates.items():
            if mentions(aggregate, "_arrival_seq"):
                found = "`_arrival_seq` is a number of records, and the events here are results"
                remedy = "of several take one by their columns, such as `max(struct(n, window_start)).window_start`"
                yield Problem(found, remedy=remedy, at=("aggregates", alias))

    def _name_problems(self) -> list[Problem]:
        problems: list[Problem] = []
        seen: set[str] = set()
        named: list[tuple[str, Path]] = [
            *((name, ("group_by", position)) for position, name in enumerate(self.group_columns)),
            *((alias, ("aggregates", alias)) for alias in self.aggregates),
        ]
        for name, at in named:
            if name.lower() in RESERVED_IN_WINDOWS or name.startswith("__"):
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
