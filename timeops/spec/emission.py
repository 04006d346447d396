"""When a window gives results: the keys `emit`, `revise_every`, `history` and `empty` of a spec's windows.

Here: the keys, and what they ask of the other keys of a window. Not here: what they ask of `time` (pipeline.py),
the results (revisions.py).
"""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tidemark.timeops.durations import micros
from tidemark.timeops.problems import Problem, ProblemsError, did_you_mean, show
from tidemark.timeops.spec.fields import Duration, Flag, PositiveDuration, SpecModel, WholeNumber, read_keys
from tidemark.timeops.spec.shapes import WindowShape

_WAYS = ("on_close", "on_time")


class Early(SpecModel):
    """Results before a window closes, once per period of the clock in which events came."""

    early: PositiveDuration = Field(description="Length of a period, such as 1 minute.")


def _emission(value: object) -> object:
    if isinstance(value, Mapping):
        return read_keys(value, Early)
    if value in _WAYS or isinstance(value, Early):
        return value
    remedy = did_you_mean(value, [*_WAYS, "early"]) if isinstance(value, str) else ""
    raise ProblemsError([Problem(f"found {show(value)}", "on_close, on_time, or {early: 1 minute}", remedy)])


class WindowEmission(WindowShape):
    """The part of a window that says when it gives results."""

    allowed_lateness: Duration = Field(
        default=timedelta(0),
        description="How long after its end a window still takes events; needs time.out_of_order: keep.",
    )
    emit: Annotated[Literal["on_close", "on_time"] | Early, BeforeValidator(_emission)] = Field(
        default="on_close",
        description="on_close: one result, when the window is closed; on_time: one when the watermark passes its "
        "end, and revisions for late events until it is closed; {early: 1 minute}: a revision for each such period "
        "of the clock in which events came, before the end and, with an allowed lateness, behind it.",
    )
    revise_every: Duration = Field(
        default=timedelta(minutes=1),
        description="With emit: on_time: all late events of one such period of the clock make one revision; 0 s: "
        "each event makes one.",
    )

    history: Flag = Field(
        default=False,
        description="Write every revision to the table history/<name>, with what it replaced and the late events "
        "that caused it.",
    )
    empty: Flag = Field(
        default=False,
        description="tumbling, hopping, cumulative: also give windows with no event, between a group's first and the "
        "timeline's last window that holds one.",
    )
    empty_max: WholeNumber = Field(
        default=10_000,
        description="With empty: at most so many windows with no event of one group in one batch; more are refused.",
    )

    @property
    def allowed_lateness_us(self) -> int:
        """How long after its end a window still takes events, in microseconds."""
        return micros(self.allowed_lateness)

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
        """Whether a window may give more than one result."""
        return self.emit != "on_close"

    @property
    def may_take_back(self) -> bool:
        """Whether results may be taken back: those of a session that late events made another."""
        return self.revises and self.kind == "session"

    @property
    def follows_clock(self) -> bool:
        """Whether the clock of the log alone may give a revision: where a period ends in which events came."""
        return self.early_every_us is not None or (self.emit == "on_time" and self.revise_every_us > 0)

    def emission_problems(self) -> Iterable[Problem]:
        """Return what is wrong between the keys."""
        if "revise_every" in self.model_fields_set and self.emit != "on_time":
            found = "`revise_every` has no effect without `emit: on_time`"
            yield Problem(found, remedy="write that, or leave it out", at=("revise_every",))
        yield from self._empty_problems()
        if not self.revises:
            if self.history:
                found = "`history` has no effect on a window that gives one result"
                yield Problem(
                    found, remedy="write `emit: on_time` or `emit: {early: …}`, or leave it out", at=("history",)
                )
            return
        if self.kind == "session" and self.max_duration is not None:
            found = "an event may move all the ends that `max_duration` gives behind it, back and forth"
            remedy = "leave `emit` or `max_duration` out"
            yield Problem(found, "on_close for a session with `max_duration`", remedy, at=("emit",))
        elif self.emit == "on_time" and not self.allowed_lateness:
            found = "`on_time` has no effect without `allowed_lateness`: a window is then closed when it ends"
            yield Problem(found, remedy="set `allowed_lateness`, or leave `emit` out", at=("emit",))

    def _empty_problems(self) -> Iterable[Problem]:
        if "empty_max" in self.model_fields_set and not self.empty:
            found = "`empty_max` has no effect without `empty: true`"
            yield Problem(found, remedy="write that, or leave it out", at=("empty_max",))
        if self.empty and not self.closes_on_grid:
            found = f"`empty` has no effect on a {self.kind} window, which lies on no grid: it is there by its events"
            remedy = "leave it out, or write `kind: tumbling or hopping or cumulative`"
            yield Problem(found, remedy=remedy, at=("empty",))
