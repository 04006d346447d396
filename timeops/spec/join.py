"""The `joins` of a spec: which sources meet, by which columns and how far apart in time, and when answers are due.

Here: the keys of a join, what is wrong between them, and the lengths of time that follow from them. Not here: what
they ask of sources and of `time` (pipeline.py), the answers themselves (joins/).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from tidemark.timeops.durations import micros
from tidemark.timeops.problems import Problem, misfit, raise_any
from tidemark.timeops.spec.fields import Duration, Name, SpecModel, Text

RIGHT_PREFIX = "right_"
"""Begins the name of a column of the right side where the left side has one of that name."""


def _kind(value: object) -> object:
    if value == "interval":
        raise misfit(value, "as_of", "interval joins are not there yet: only as-of joins can be computed")
    return value


def _side(value: object) -> object:
    if isinstance(value, dict) and "table" in value:
        remedy = "make the table a source of the pipeline: tables that are not streams cannot be joined yet"
        raise misfit(value, "{source: name}", remedy)
    return value


class JoinSide(SpecModel):
    """One side of a join."""

    source: Name = Field(description="Name of the source whose accepted events are this side.")


Side = Annotated[JoinSide, BeforeValidator(_side)]


class JoinSpec(SpecModel):
    """One join: per event of the left side, the event of the right side that held at its time."""

    name: Name = Field(description="Name of the join; its table is joins/<name>.")
    kind: Annotated[Literal["as_of"], BeforeValidator(_kind)] = Field(
        description="as_of: each event of the left side gets the event of the right side that is nearest in time, on "
        "the side that `direction` says."
    )
    left: Side = Field(description="The side whose events are answered, one row each.")
    right: Side = Field(description="The side that the answers come from.")
    on: tuple[Text, ...] = Field(
        default=(),
        description="Columns of both sides that are equal; an event that lacks one has no partner. Default: none.",
    )
    how: Literal["inner", "left"] = Field(
        default="inner",
        description="inner: only answers that have an event of the right side; left: all of them.",
    )
    within: Duration = Field(description="How far apart in time the two events are at most, such as 5 minutes.")
    direction: Literal["backward", "forward", "nearest"] = Field(
        default="backward",
        description="backward: the last event of the right side at or before the left one; forward: the first at or "
        "after it; nearest: the nearer of both, of two as near the one before. Of several at one instant it is the "
        "one that arrived last.",
    )
    allowed_lateness: Duration = Field(
        default=timedelta(0),
        description="How long after an answer was due late events still revise it; needs time.out_of_order: keep.",
    )
    emit: Literal["on_time", "on_close"] = Field(
        default="on_time",
        description="on_time: an answer when the watermark has passed all events that it may come from, and a "
        "revision for each late event that changes it; on_close: one answer, when no revision can come any more.",
    )

    @property
    def within_us(self) -> int:
        """How far apart two events are at most, microseconds."""
        return micros(self.within)

    @property
    def looks_back_us(self) -> int:
        """How far before a left event its partner may be, microseconds."""
        return 0 if self.direction == "forward" else self.within_us

    @property
    def looks_ahead_us(self) -> int:
        """How far after a left event its partner may be, microseconds: the answer waits for the watermark to pass."""
        return 0 if self.direction == "backward" else self.within_us

    @property
    def allowed_lateness_us(self) -> int:
        """How long after an answer was due late events still revise it, microseconds."""
        return micros(self.allowed_lateness)

    @property
    def closes_after_us(self) -> int:
        """An answer is final when the watermark is further than this past the left event, microseconds."""
        return self.looks_ahead_us + self.allowed_lateness_us

    @property
    def useful_for_us(self) -> int:
        """A right event is needed until the watermark is further than this past it, microseconds.

        Until then a left event that takes it may be open, or may yet come.
        """
        return self.looks_back_us + self.closes_after_us

    @property
    def revises(self) -> bool:
        """True if an event may have more than one answer."""
        return self.emit == "on_time" and bool(self.allowed_lateness)

    @property
    def sources(self) -> tuple[str, str]:
        """The sources of the left and of the right side."""
        return self.left.source, self.right.source

    @model_validator(mode="after")
    def _together(self) -> "JoinSpec":
        raise_any(self._problems())
        return self

    def _problems(self) -> Iterable[Problem]:
        if self.left.source == self.right.source:
            fault = f"`{self.right.source}` is the left side too: a source cannot be joined with itself yet"
            yield Problem(fault, expected="another source of the pipeline", at=("right", "source"))
        for position, column in enumerate(self.on):
            if column.lower() in [earlier.lower() for earlier in self.on[:position]]:
                yield Problem(f"`{column}` is there twice", remedy="leave it out", at=("on", position))
        if "direction" in self.model_fields_set and self.direction != "backward" and not self.within:
            fault = f"`{self.direction}` has no effect with `within: 0 s`: only events of one instant meet"
            yield Problem(fault, remedy="set `within`, or leave `direction` out", at=("direction",))
        if self.emit == "on_close" and not self.allowed_lateness:
            fault = "`on_close` has no effect without `allowed_lateness`: an answer is then final at once"
            yield Problem(fault, remedy="set `allowed_lateness`, or leave `emit` out", at=("emit",))


@dataclass(frozen=True)
class JoinColumns:
    """The payload columns of a join's rows.

    Attributes:
        left: The columns of the left source.
        right: The columns of the right source, each with its name in the rows.
    """

    left: tuple[str, ...]
    right: tuple[tuple[str, str], ...]

    @staticmethod
    def of(left: Iterable[str], right: Iterable[str]) -> "JoinColumns":
        """Return the columns of a join of two sources with some columns."""
        of_left = tuple(left)
        taken = {name.lower() for name in of_left}
        named = tuple((name, RIGHT_PREFIX + name if name.lower() in taken else name) for name in right)
        return JoinColumns(of_left, named)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them in the rows, in order."""
        return (*self.left, *(name for _, name in self.right))
