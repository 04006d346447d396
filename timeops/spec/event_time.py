"""The `time` of a spec: what event time is, how late an event may come, and what becomes of the rest.

Here: the keys and the rules between them. Not here: their effect (timeops/events/, watermark/).
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tidemark.timeops.errors.problems import Path, Problem, raise_any
from tidemark.timeops.expressions.tokens import normal_form
from tidemark.timeops.spec.fields import (
    Duration,
    Expression,
    Instant,
    InstantExpression,
    PositiveDuration,
    SpecModel,
    TimeZone,
    word_or_keys,
)
from tidemark.timeops.values.durations import format_duration, micros
from tidemark.timeops.values.utc import us_of

_UNIT_US = {"second": 1_000_000, "millisecond": 1_000, "microsecond": 1}


class _Tolerance(SpecModel):
    """How far event time may be from arrival time."""

    tolerance: Duration = Field(description="How far event time may be from arrival time, such as 5 minutes.")

    @property
    def tolerance_us(self) -> int:
        """The tolerance in microseconds."""
        return micros(self.tolerance)


class LatePolicy(_Tolerance):
    """How long after its event time a record may arrive, and what becomes of an event that arrives later (A2)."""

    policy: Literal["drop", "adjust"] = Field(
        description="drop: to the dead letters; adjust: its timestamp is moved to the edge of the tolerance."
    )


class EarlyPolicy(_Tolerance):
    """How far event time may be ahead of arrival time, and what becomes of an event that is further ahead (A2)."""

    policy: Literal["drop", "adjust", "keep"] = Field(
        description="drop: to the dead letters; adjust: its timestamp is moved to the edge of the tolerance; "
        "keep: it is accepted with its own time, and moves no watermark."
    )


class Periodic(SpecModel):
    """Events see the watermark as it was at the end of the period before (F, on-periodic)."""

    every: PositiveDuration = Field(description="Length of a period of the clock, such as 200 ms (Flink's default).")


class Idle(SpecModel):
    """How the clock raises the watermark when no events do."""

    advance: Literal["exclude_split", "arrival_clock", "window_close"] = Field(
        description="exclude_split: a split without events for `timeout` no longer holds back the watermark (F); nor "
        "does a timeline hold back windows with `across: true`. "
        "arrival_clock: the watermark is at least the latest arrival less late.tolerance (A2). "
        "window_close: windows close although no event comes for `timeout` (M)."
    )
    timeout: PositiveDuration | None = Field(
        default=None, description="How long without an event, by the clock of the log, such as 1 minute."
    )


def _doubled(expressions: Sequence[str], key: str) -> Iterable[Problem]:
    normal_forms: set[str] = set()
    for position, expression in enumerate(expressions):
        if normal_form(expression) in normal_forms:
            yield Problem(f"`{expression}` occurs twice", at=(key, position))
        normal_forms.add(normal_form(expression))


_EMISSION = word_or_keys(Periodic, "on_event", expected="on_event, or {every: 200 ms}")


class TimeSpec(SpecModel):
    """Event time and its watermark."""

    timestamp_by: InstantExpression | None = Field(
        default=None,
        description="Event time: a Spark SQL expression over columns and _arrival_time; default: arrival time.",
    )
    time_zone: TimeZone = Field(
        default="UTC", description="Zone of times that are written without one, such as Europe/Berlin."
    )
    unit: Literal["second", "millisecond", "microsecond"] = Field(
        default="microsecond", description="Event times are rounded down to this unit."
    )
    over: tuple[Expression, ...] = Field(
        default=(),
        description="Columns or expressions; each of their values has its own watermark.",
    )
    deduplicate_by: tuple[Expression, ...] = Field(
        default=(),
        description="Columns or expressions whose values are equal in all records of one event; needs `within`.",
    )
    within: Duration | None = Field(
        default=None, description="How far apart the event times of duplicates are at most, such as 1 hour."
    )
    out_of_orderness: Duration = Field(
        default=timedelta(0), description="How far the watermark stays below the latest event time."
    )
    out_of_order: Literal["drop", "adjust", "keep"] = Field(
        default="drop",
        description="An event behind the watermark: drop (dead letter), adjust (moved to the watermark), or "
        "keep (the windows decide).",
    )
    late: LatePolicy | None = Field(
        default=None, description="Events that arrive too long after their time; default: no bound."
    )
    early: EarlyPolicy | None = Field(
        default=None, description="Events whose time is too far ahead of their arrival; default: no bound."
    )
    emit: Annotated[Literal["on_event"] | Periodic, _EMISSION] = Field(
        default="on_event",
        description="When events see the watermark move: after each event, or after each period of the clock.",
    )
    idle: Idle | None = Field(
        default=None, description="How the clock raises the watermark when no events come; default: not at all."
    )
    start_at: Instant | None = Field(
        default=None,
        description="Results for whole windows from this instant on (A2); records that arrived before it, and more "
        "than early.tolerance, are not read. UTC without an offset.",
    )
    end_of_input: Literal["hold", "flush"] = Field(
        default="hold",
        description="When all input is read: hold keeps what is open, flush releases and closes everything.",
    )

    def flushes(self, end_of_input: str | None = None) -> bool:
        """Return whether the end of input is flushed; `end_of_input` is what a run says of it, `flush` or `hold`."""
        return (end_of_input or self.end_of_input) == "flush"

    @property
    def start_us(self) -> int | None:
        """The instant from which on windows have results, microseconds since the epoch; None for all of them."""
        return None if self.start_at is None else us_of(self.start_at)

    @property
    def read_from_us(self) -> int | None:
        """The arrival from which on records are read, microseconds since the epoch; None for all (A2)."""
        if self.start_us is None:
            return None
        return self.start_us - (self.early.tolerance_us if self.early else 0)

    @property
    def unit_us(self) -> int:
        """The unit in microseconds."""
        return _UNIT_US[self.unit]

    @property
    def out_of_orderness_us(self) -> int:
        """How far the watermark stays below the largest t, in microseconds."""
        return micros(self.out_of_orderness)

    @property
    def within_us(self) -> int:
        """How far apart the event times of duplicates are at most, microseconds; 0 without `deduplicate_by`."""
        return 0 if self.within is None else micros(self.within)

    @property
    def idle_advance(self) -> str | None:
        """How the clock raises the watermark when no events do; None for not at all."""
        return self.idle.advance if self.idle else None

    @property
    def clock_tolerance_us(self) -> int | None:
        """How far the watermark may stay below the clock, microseconds; None when the clock moves no watermark."""
        return self.late.tolerance_us if self.late and self.idle_advance == "arrival_clock" else None

    @property
    def idle_timeout_us(self) -> int | None:
        """How long a split or timeline is without an event before it is idle, microseconds; None for never."""
        return micros(self.idle.timeout) if self.idle and self.idle.timeout else None

    @property
    def emit_every_us(self) -> int | None:
        """Length of a period of emission in microseconds; None when events see the watermark at once."""
        return micros(self.emit.every) if isinstance(self.emit, Periodic) else None

    @model_validator(mode="after")
    def _together(self) -> "TimeSpec":
        problems = [*self.unit_problems(self.out_of_orderness, ("out_of_orderness",)), *self._idle_problems()]
        problems += [*_doubled(self.over, "over"), *_doubled(self.deduplicate_by, "deduplicate_by")]
        raise_any([*problems, *self._duplicate_problems()])
        return self

    def _duplicate_problems(self) -> Iterable[Problem]:
        if self.deduplicate_by and self.within is None:
            fault = "`deduplicate_by` needs `within`: how far apart the event times of duplicates are at most"
            yield Problem(fault, expected="a duration such as `1 hour`", at=("within",))
        if self.within is not None and not self.deduplicate_by:
            fault = "`within` has no effect without `deduplicate_by`"
            remedy = "set `deduplicate_by` to the columns that identify an event, or leave `within` out"
            yield Problem(fault, remedy=remedy, at=("within",))

    def unit_problems(self, out_of_orderness: timedelta, at: Path) -> Iterable[Problem]:
        """Return what is wrong with an out-of-orderness under the unit (H): it has to be a whole number of it."""
        if micros(out_of_orderness) % self.unit_us:
            fault = f"found {format_duration(out_of_orderness)}, which is not a whole number of {self.unit}s"
            expected = f"a whole number of the unit, which is {self.unit}"
            yield Problem(fault, expected=expected, remedy="change it, or set a finer `unit`", at=at)

    def _idle_problems(self) -> Iterable[Problem]:
        if self.idle_advance == "arrival_clock" and self.late is None:
            fault = "arrival_clock needs `late`: it keeps the watermark at most late.tolerance below arrivals"
            remedy = "add `late: {tolerance: 5 s, policy: adjust}`, or leave `idle` out"
            yield Problem(fault, remedy=remedy, at=("idle",))
        if self.idle_advance == "arrival_clock" and self.idle_timeout_us is not None:
            fault = "`timeout` has no effect with arrival_clock, which follows the clock at every record"
            yield Problem(fault, remedy="leave it out", at=("idle", "timeout"))
        if self.idle_advance == "window_close" and self.idle_timeout_us is None:
            yield Problem("the key is missing", expected="a duration such as `1 minute`", at=("idle", "timeout"))
