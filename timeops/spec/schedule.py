"""The `schedule` of a spec: when Dagster runs a pipeline by itself.

Here: the two forms of the key. Not here: who acts on it (pipelines/launching.py).
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from tidemark.timeops.errors import SpecError
from tidemark.timeops.problems import Problem, ProblemsError, show
from tidemark.timeops.spec.cron import CRON_PATTERN, check_cron
from tidemark.timeops.spec.fields import PositiveDuration, SpecModel, read_keys

_SHORTEST = timedelta(seconds=5)  # Dagster looks at its sensors every five seconds


def _looks(value: timedelta) -> timedelta:
    if value < _SHORTEST or value % timedelta(seconds=1):
        expected = "whole seconds, at least 5: Dagster does not look more often"
        raise ProblemsError([Problem(f"found {value.total_seconds():g} s", expected=expected)])
    return value


class OnNewInput(SpecModel):
    """A run as soon as input is waiting."""

    on_new_input: Annotated[PositiveDuration, AfterValidator(_looks)] = Field(
        description="How often to look for new input, such as 15 seconds."
    )


def _schedule(value: object) -> object:
    if isinstance(value, OnNewInput):
        return value
    if isinstance(value, Mapping):
        return read_keys(value, OnNewInput)
    if not isinstance(value, str):
        expected = 'a cron text such as "*/5 * * * *", or {on_new_input: 15 seconds}'
        raise ProblemsError([Problem(f"found {show(value)}", expected=expected)])
    try:
        return check_cron(value)
    except SpecError as error:
        raise ProblemsError([Problem(error.found, error.expected, error.remedy)]) from None


Cron = Annotated[str, WithJsonSchema({"type": "string", "pattern": CRON_PATTERN})]
Schedule = Annotated[Cron | OnNewInput, BeforeValidator(_schedule)]
