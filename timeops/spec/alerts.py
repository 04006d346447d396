"""The `alerts` of a spec: how many dead letters, how old results, events how far ahead are worth telling of.

Here: the keys. Not here: what is measured (assets/alerts.py); no alert changes a result or holds a batch back.
"""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import Field, PlainSerializer, PlainValidator, WithJsonSchema, model_validator

from tidemark.timeops.problems import Problem, ProblemsError, show
from tidemark.timeops.spec.fields import PositiveDuration, SpecModel

_PERCENT = r"^ *([0-9]+(?:\.[0-9]+)?) *% *$"
_SHORTEST = timedelta(minutes=1)  # Dagster looks at the age of assets no more often


def _share(value: object) -> float:
    match = re.match(_PERCENT, value) if isinstance(value, str) else None
    if match is None or float(match[1]) > 100:
        raise ProblemsError([Problem(f"found {show(value)}", "a share such as `1 %`, at most 100 %")])
    return float(match[1]) / 100


Share = Annotated[
    float,
    PlainValidator(_share),
    PlainSerializer(lambda share: f"{share * 100:g} %", return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": _PERCENT}),
]
"""A part of a whole, from 0 to 1; written in percent."""


class ShareLevels(SpecModel):
    """From which share on something is a warning, and from which an error."""

    warn: Share | None = Field(default=None, description="More than this is a warning, such as 1 %.")
    error: Share | None = Field(default=None, description="More than this is an error, such as 10 %.")

    @model_validator(mode="after")
    def _together(self) -> "ShareLevels":
        given = [share for share in (self.warn, self.error) if share is not None]
        _check_levels(one_given=bool(given), in_order=len(given) < 2 or given[0] < given[1])
        return self


class AgeLevels(SpecModel):
    """From which age on something is a warning, and from which an error."""

    warn: PositiveDuration | None = Field(default=None, description="More than this is a warning, such as 10 min.")
    error: PositiveDuration | None = Field(default=None, description="More than this is an error, such as 1 hour.")

    @model_validator(mode="after")
    def _together(self) -> "AgeLevels":
        given = [age for age in (self.warn, self.error) if age is not None]
        _check_levels(one_given=bool(given), in_order=len(given) < 2 or given[0] < given[1])
        for name in ("warn", "error"):
            age = getattr(self, name)
            if age is not None and age < _SHORTEST:
                found = f"found {age.total_seconds():g} s"
                raise ProblemsError([Problem(found, "at least 1 minute: Dagster looks no more often", at=(name,))])
        return self


def _check_levels(*, one_given: bool, in_order: bool) -> None:
    if not one_given:
        raise ProblemsError([Problem("neither `warn` nor `error` is given", "one of them, or both")])
    if not in_order:
        raise ProblemsError([Problem("`warn` is no less than `error`", "a warning before the error", at=("warn",))])


class Alerts(SpecModel):
    """What is worth telling somebody of."""

    dead_letter_rate: ShareLevels | None = Field(
        default=None,
        description="Records of a batch that ingestion or the rules of time refused: {warn: 1 %, error: 10 %}.",
    )
    far_ahead: PositiveDuration = Field(
        default=timedelta(days=1),
        description="How far ahead of the clock of arrivals an event, or the watermark, may be without a warning.",
    )
    freshness: AgeLevels | None = Field(
        default=None,
        description="How far the watermark of a batch may be behind the clock, and how long ago the last batch may "
        "be: {warn: 15 minutes, error: 1 hour}.",
    )
