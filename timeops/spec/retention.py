"""How long rows of tables stay: the key `retention`, in whole days.

Here: the keys, and which of them have an effect. Not here: which rows go (assets/upkeep/removal.py), and what is said
of them afterwards (assets/log/retention.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from tidemark.timeops.errors.problems import Problem, ProblemsError, raise_any
from tidemark.timeops.spec.automation import Alerts
from tidemark.timeops.spec.fields import PositiveDuration, SpecModel

_DAY = timedelta(days=1)


def _whole_days(length: timedelta) -> timedelta:
    if length % _DAY:
        raise ProblemsError(
            [
                Problem(
                    f"found {length.total_seconds() / 3600:g} hours, which are not whole days",
                    expected="whole days, such as `30 days`: rows go by days",
                )
            ]
        )
    return length


Days = Annotated[PositiveDuration, AfterValidator(_whole_days)]


class Retention(SpecModel):
    """How many whole days of rows tables keep; older rows are removed by `tidemark maintain`."""

    raw_events: Days | None = Field(
        default=None,
        description="Records of the log, by days of its clock, in whole batches: 400 days. Without them nothing from "
        "before can be computed again: no rebuild, rejudging, replay, forgetting or simulation. Default: for ever.",
        json_schema_extra={"since": "0.2.0"},
    )
    dead_letters: Days | None = Field(
        default=None,
        description="Dead letters, by days of the log's clock: 90 days; default: for ever.",
        json_schema_extra={"since": "0.2.0"},
    )
    ordered_events: Days | None = Field(
        default=None,
        description="Released events, by days of the log's clock; default: for ever.",
        json_schema_extra={"since": "0.2.0"},
    )
    windows: Days | None = Field(
        default=None,
        description="Final results of windows, their histories, and final answers of joins, by the day on which they "
        "end; default: for ever.",
        json_schema_extra={"since": "0.2.0"},
    )

    @model_validator(mode="after")
    def _some(self) -> "Retention":
        if not any(self.of.values()):
            expected = "`raw_events`, `dead_letters`, `ordered_events` or `windows`, each on its own or together"
            raise_any([Problem("no key is set, so nothing is ever removed", expected=expected)])
        return self

    @property
    def of(self) -> Mapping[str, timedelta | None]:
        """The length of each key, None for ever."""
        return {
            "raw_events": self.raw_events,
            "dead_letters": self.dead_letters,
            "ordered_events": self.ordered_events,
            "windows": self.windows,
        }


def retention_problems(
    retention: Retention, alerts: Alerts, *, writes_events: bool, has_results: bool, corrected: Sequence[str]
) -> Iterable[Problem]:
    """Find lengths that have no effect, or take away what a rule still asks for.

    Args:
        retention: The lengths.
        alerts: Limits of dead letters, which compare periods.
        writes_events: Whether the spec writes `ordered_events`.
        has_results: Whether it has windows or joins.
        corrected: The sources whose corrections are followed.
    """
    if retention.raw_events is not None and corrected:
        names = ", ".join(f"`{name}`" for name in corrected)
        yield Problem(
            f"`raw_events` with `changes: follow` of {names}: a correction computes all tables again from the first "
            "record of the log",
            remedy="leave `raw_events` out, or read the table with `changes: rows` or `ignore`",
            at=("retention", "raw_events"),
        )
    if retention.ordered_events is not None and not writes_events:
        fault = "`ordered_events` has no effect with `outputs: {ordered_events: false}`"
        yield Problem(fault, remedy="leave one of them out", at=("retention", "ordered_events"))
    if retention.windows is not None and not has_results:
        fault = "`windows` has no effect without windows and joins"
        yield Problem(fault, remedy="leave it out", at=("retention", "windows"))
    needed = 2 * alerts.dead_letter_rate.period
    for key in ("raw_events", "dead_letters", "ordered_events"):
        length = retention.of[key]
        if length is not None and length < needed:
            days = -(-needed // _DAY)
            yield Problem(
                f"`{key}` is shorter than two periods of `alerts.dead_letter_rate`, which compares each with the one "
                "before it",
                expected=f"at least {days} days",
                remedy="keep rows for longer, or set a shorter `period`",
                at=("retention", key),
            )
