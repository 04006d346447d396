"""The `joins` of a spec: which sources meet, by which columns and how far apart in time, and when answers are due.

Here: the keys of a join, what is wrong between them, and the lengths of time that follow from them. Not here: what
they ask of sources and of `time` (timeops/spec/between_parts.py), the answers themselves (timeops/joins/).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from tidemark.timeops.errors.problems import Problem, did_you_mean, misfit, raise_any
from tidemark.timeops.spec.fields import Duration, Name, SpecModel, Text, columns_in_tables, schema_problems
from tidemark.timeops.values.durations import micros
from tidemark.timeops.values.utc import FIRST_US, LAST_US

LEFT_SEQ, RIGHT_SEQ = "_left_seq", "_right_seq"
"""The columns with the numbers of both events of a row."""
OF_TABLE = "__tm_right_"
"""Begins the names of the columns of a table in the events that are joined."""
RIGHT_PREFIX = "right_"
"""Begins the name of a column of the right side where the left side has one of that name."""


def _side(value: object) -> object:
    if isinstance(value, dict) and "table" in value:
        raise misfit(value, "{source: name}", "make the table the right side: its rows are what answers have")
    return value


class JoinSide(SpecModel):
    """One side of a join."""

    source: Name = Field(description="Name of the source whose accepted events are this side.")


Side = Annotated[JoinSide, BeforeValidator(_side)]


class RightSide(SpecModel):
    """The right side of a join: a source, or a table that is not a stream."""

    source: Name | None = Field(default=None, description="Name of the source whose accepted events are this side.")
    table: Text | None = Field(
        default=None,
        description="Of an as-of join, in place of a source: the folder of a Delta table, or a csv or parquet file, "
        "relative to the spec file. Each batch has its rows as they are when it is planned.",
        json_schema_extra={"since": "0.2.0"},
    )
    valid_from: Name | None = Field(
        default=None,
        description="Of a table the column with the instant from which a row holds.",
        json_schema_extra={"since": "0.2.0"},
    )
    columns: Text | None = Field(
        default=None,
        alias="schema",
        description="Of a table its columns as Spark DDL; other columns are left out. Default, of a Delta table and "
        "a parquet file: the columns that it has when the first batch has it.",
        json_schema_extra={"since": "0.2.0"},
    )
    _there: str | None = PrivateAttr(default=None)

    @property
    def name(self) -> str:
        """The name of the source; of a table one that no source can have."""
        return self.source or f"table {self.table}"

    @property
    def table_format(self) -> Literal["csv", "parquet", "delta"]:
        """The format of a table, by the end of its name."""
        suffix = (self.table or "").rstrip("/").rpartition(".")[2].lower()
        return "csv" if suffix == "csv" else "parquet" if suffix == "parquet" else "delta"

    @property
    def takes_all_columns(self) -> bool:
        """True if the side is a table and `schema` does not say which of its columns are read."""
        return self.table is not None and self.columns is None

    @property
    def ddl(self) -> str | None:
        """The columns of a table as Spark DDL; None without `schema`, until the table has been looked at."""
        return self.columns or self._there

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns of a table, as far as they are known."""
        return tuple(columns_in_tables(self.ddl or "", {}))

    def with_columns_there(self, ddl: str) -> "RightSide":
        """Return the side with the columns, as Spark DDL, that its table has where `schema` says nothing.

        They are apart from the keys of the spec: a table with another column makes no other spec.
        """
        side = self.model_copy()
        side._there = ddl
        return side

    @model_validator(mode="after")
    def _together(self) -> "RightSide":
        raise_any(self._problems())
        return self

    def _problems(self) -> Iterable[Problem]:
        if (self.source is None) == (self.table is None):
            expected = "`source`, or `table` with `valid_from`"
            yield Problem("found both" if self.source else "the key is missing", expected=expected, at=("source",))
        for key, value in (("valid_from", self.valid_from), ("schema", self.columns)):
            if self.source is not None and self.table is None and value is not None:
                yield Problem(f"`{key}` has no effect next to `source`", remedy="leave it out", at=(key,))
        if self.table is not None and self.valid_from is None:
            yield Problem("the key is missing", expected="it: the side is a table", at=("valid_from",))
        if self.takes_all_columns and self.table_format == "csv":
            expected = "the columns as Spark DDL: a csv file does not say what is a time or a number"
            yield Problem("the key is missing", expected=expected, at=("schema",))
        yield from self.column_problems()

    def column_problems(self) -> Iterable[Problem]:
        """Find what is wrong with the columns of a table, as far as they are known."""
        if self.table is None or self.ddl is None:
            return
        problems = schema_problems(self.ddl, {})
        if self.columns is None:
            remedy = "name the columns that the join reads in `schema`"
            problems = [replace(problem, remedy=remedy, at=("table",)) for problem in problems]
        yield from problems
        if not problems and self.valid_from is not None and self.valid_from not in self.column_names:
            fault = f"`{self.valid_from}` is not a column of {'`schema`' if self.columns else 'the table'}"
            yield Problem(fault, remedy=did_you_mean(self.valid_from, self.column_names), at=("valid_from",))


class JoinSpec(SpecModel):
    """One join: events of one source with events of another that are near in time."""

    name: Name = Field(description="Name of the join; its table is joins/<name>.")
    kind: Literal["as_of", "interval"] = Field(
        description="as_of: each event of the left side gets the one event of the right side that is nearest in "
        "time, on the side that `direction` says. interval: each pair of events that are near in time is a row."
    )
    left: Side = Field(description="The left side. Of an as-of join its events are answered, one row each.")
    right: RightSide = Field(description="The right side. Of an as-of join it is where the answers come from.")
    on: tuple[Text, ...] = Field(
        default=(),
        description="Columns of both sides that are equal; an event that lacks one has no partner. Default: none.",
    )
    how: Literal["inner", "left", "right", "full"] = Field(
        default="inner",
        description="inner: only rows with an event of both sides; left: also events of the left side that have no "
        "partner. Of an interval join also right: the same for the right side; full: for both.",
    )
    within: Duration | None = Field(
        default=None,
        description="Of an as-of join how far apart in time the two events are at most, such as 5 minutes.",
    )
    before: Duration | None = Field(
        default=None,
        description="Of an interval join how far before the left event the right one may be. Default: 0 s, if "
        "`after` is there.",
    )
    after: Duration | None = Field(
        default=None,
        description="Of an interval join how far after the left event the right one may be. Default: 0 s, if "
        "`before` is there.",
    )
    direction: Literal["backward", "forward", "nearest"] = Field(
        default="backward",
        description="backward: the last event of the right side at or before the left one; forward: the first at or "
        "after it; nearest: the nearer of both, of two as near the one before. Of several at one instant it is the "
        "one that arrived last.",
    )
    allowed_lateness: Duration = Field(
        default=timedelta(0),
        description="How long after the watermark has passed all partners of an event late ones still count; needs "
        "time.out_of_order: keep.",
    )
    emit: Literal["on_time", "on_close"] = Field(
        default="on_time",
        description="on_time: an answer, or a row without a partner, when the watermark has passed all events that "
        "it may come from, and a revision for each late event that changes it; on_close: one, when no "
        "revision can come any more.",
    )

    @property
    def is_interval(self) -> bool:
        """True if its rows are pairs of events; of an as-of join each is an answer to an event of the left side."""
        return self.kind == "interval"

    @property
    def has_table(self) -> bool:
        """True if the right side is a table."""
        return self.right.table is not None

    @property
    def keeps_left(self) -> bool:
        """True if an event of the left side without a partner has a row."""
        return self.how in ("left", "full")

    @property
    def keeps_right(self) -> bool:
        """True if an event of the right side without a partner has a row."""
        return self.how in ("right", "full")

    @property
    def within_us(self) -> int:
        """How far apart two events of an as-of join are at most, microseconds."""
        return LAST_US - FIRST_US if self.within is None else micros(self.within)

    @property
    def looks_back_us(self) -> int:
        """How far before a left event its partner may be, microseconds."""
        if self.is_interval:
            return micros(self.before or timedelta(0))
        return 0 if self.direction == "forward" else self.within_us

    @property
    def looks_ahead_us(self) -> int:
        """How far after a left event its partner may be, microseconds: the answer waits for the watermark to pass."""
        if self.is_interval:
            return micros(self.after or timedelta(0))
        return 0 if self.direction == "backward" else self.within_us

    @property
    def reach_us(self) -> int:
        """How far apart two events that meet are at most, microseconds."""
        return max(self.looks_back_us, self.looks_ahead_us)

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

        Until then a left event that takes it may be open, or may yet come. In an interval join both sides are alike:
        until then a partner of it may come.
        """
        return self.looks_back_us + (self.allowed_lateness_us if self.is_interval else self.closes_after_us)

    @property
    def final_after(self) -> timedelta:
        """The rows of a time are all final when the watermark is further than this past it.

        So a window over the rows, which have the time of their left event, or else of the right one, closes later.
        """
        of_right = self.useful_for_us if self.is_interval and self.keeps_right else 0
        return timedelta(microseconds=max(self.closes_after_us, of_right))

    @property
    def revises(self) -> bool:
        """True if a row may have more than one revision: a pair is final, a row without a partner may not be."""
        return self.emit == "on_time" and bool(self.allowed_lateness) and not (self.is_interval and self.is_inner)

    @property
    def is_inner(self) -> bool:
        """True if each row has an event of both sides."""
        return self.how == "inner"

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that name a row of its table: an event of the left side, or a pair with null for nothing."""
        return (LEFT_SEQ, RIGHT_SEQ) if self.is_interval else (LEFT_SEQ,)

    @property
    def sources(self) -> tuple[str, str]:
        """The sources of the left and of the right side; of a table the name in place of one."""
        return self.left.source, self.right.name

    @model_validator(mode="after")
    def _together(self) -> "JoinSpec":
        raise_any(self._problems())
        return self

    def _problems(self) -> Iterable[Problem]:
        if self.left.source == self.right.source:
            fault = f"`{self.right.source}` is the left side too: a source cannot be joined with itself"
            remedy = "to pair its events with each other, add a source that reads the same input under another name"
            if not self.is_interval:
                fault += ", as each event would be its own partner"
                remedy += ", and use `kind: interval`"
            yield Problem(fault, expected="another source", remedy=remedy, at=("right", "source"))
        for position, column in enumerate(self.on):
            if column.lower() in [earlier.lower() for earlier in self.on[:position]]:
                yield Problem(f"`{column}` is there twice", remedy="leave it out", at=("on", position))
        yield from self._interval_problems() if self.is_interval else self._as_of_problems()
        if self.emit == "on_close" and not self.allowed_lateness:
            fault = "`on_close` has no effect without `allowed_lateness`: an answer is then final at once"
            yield Problem(fault, remedy="set `allowed_lateness`, or leave `emit` out", at=("emit",))

    def _as_of_problems(self) -> Iterable[Problem]:
        if self.has_table and self.direction != "backward":
            fault = "a row of a table holds from its time on, so an answer can only look back"
            yield Problem(fault, expected="backward", remedy="leave `direction` out", at=("direction",))
        if self.within is None and not self.has_table:
            expected = "how far apart the two events are at most, such as 5 minutes"
            yield Problem("the key is missing", expected=expected, at=("within",))
        for key in ("before", "after"):
            if getattr(self, key) is not None:
                fault = f"`{key}` has no effect with `kind: as_of`"
                yield Problem(fault, remedy="use `within` and `direction`, or `kind: interval`", at=(key,))
        if self.keeps_right:
            fault = f"found {self.how}, but an as-of join has rows of the left side alone"
            yield Problem(fault, expected="inner or left", at=("how",))
        if "direction" in self.model_fields_set and self.direction != "backward" and self.within == timedelta(0):
            fault = f"`{self.direction}` has no effect with `within: 0 s`: only events of one instant meet"
            yield Problem(fault, remedy="set `within`, or leave `direction` out", at=("direction",))

    def _interval_problems(self) -> Iterable[Problem]:
        if self.has_table:
            fault = "a table is not a stream: nothing of it comes at a time"
            remedy = "use `kind: as_of`, or make the table a source"
            yield Problem(fault, expected="{source: name}", remedy=remedy, at=("right", "table"))
        for key in ("within", "direction"):
            if key in self.model_fields_set:
                fault = f"`{key}` has no effect with `kind: interval`"
                yield Problem(fault, remedy="use `before` and `after`, or `kind: as_of`", at=(key,))
        if self.before is None and self.after is None:
            expected = (
                "`before`, `after` or both: how far from the left event the right one may be, such as 5 minutes"
            )
            yield Problem("the key is missing", expected=expected, at=("before",))
        if self.emit == "on_close" and self.allowed_lateness and self.is_inner:
            fault = "`on_close` has no effect with `how: inner`: a pair is final when it is given"
            yield Problem(fault, remedy="leave `emit` out, or set `how`", at=("emit",))


@dataclass(frozen=True)
class JoinColumns:
    """The payload columns of a join's rows.

    Attributes:
        left: The columns of the left source.
        right: The columns of the right source, each with its name in the rows.
        shared: Columns in which the events of a row are always equal, whichever side they are of.
        right_prefix: What the names of the right columns begin with in the events that are joined: the rows of a
            table are apart from the payload, whose columns may have their names.
    """

    left: tuple[str, ...]
    right: tuple[tuple[str, str], ...]
    shared: tuple[str, ...] = ()
    right_prefix: str = ""

    @staticmethod
    def of(left: Iterable[str], right: Iterable[str], right_prefix: str = "") -> "JoinColumns":
        """Return the columns of a join of two sources with some columns."""
        of_left = tuple(left)
        taken = {name.lower() for name in of_left}
        named = tuple((name, RIGHT_PREFIX + name if name.lower() in taken else name) for name in right)
        return JoinColumns(of_left, named, right_prefix=right_prefix)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them in the rows, in order."""
        return (*self.shared, *self.left, *(name for _, name in self.right))

    @property
    def in_windows(self) -> tuple[str, ...]:
        """The names of the columns that a window over the rows may name, in addition to `_timestamp`."""
        return (*self.names, LEFT_SEQ, RIGHT_SEQ)
