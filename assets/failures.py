"""Failures of a stage: which pass by themselves and are tried again, and which last until somebody acts.

Here: the judgement, and how Dagster is told. Not here: the errors themselves (timeops/errors.py), when a run that
failed is launched anew (pipelines/launching.py).
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dagster import AssetExecutionContext, Backoff, Failure, RetryPolicy

from tidemark.resources.batches.plans import this_process
from tidemark.resources.lake.lake import ConflictError
from tidemark.timeops.errors import BusyError, MachineError, TidemarkError

RETRIES = RetryPolicy(max_retries=3, delay=5, backoff=Backoff.EXPONENTIAL)
"""A stage is tried again after 5, 15 and 35 seconds: for a machine that was short of something, or another run."""

FAILURE_TAG = "tidemark/failure"
LASTING = "lasting"
ATTENDED_TAG = "tidemark/attended"
"""Of a run that a person waits for, who sees at once what is wrong and decides what to try again."""
PROCESS_TAG = "tidemark/process"
"""Of a run, the process that works on it, so that others can see whether it still does."""

Given = ParamSpec("Given")
Result = TypeVar("Result")


def lasts(error: Exception) -> bool:
    """Whether trying again without a change of the spec, the input or the lake ends the same way."""
    return isinstance(error, TidemarkError) and not isinstance(error, BusyError | ConflictError | MachineError)


def say_who_runs(context: AssetExecutionContext) -> None:
    """Names this process on its run: a machine that goes down says no more, and leaves its run as «started»."""
    run_id = context.run.run_id
    context.instance.add_run_tags(run_id, {PROCESS_TAG: this_process(run_id).text})


def told_to_dagster(stage: Callable[Given, Iterator[Result]]) -> Callable[Given, Iterator[Result]]:
    """Makes an asset or check fail for good where that is so, and marks its run.

    Args:
        stage: What the asset or check does; its first argument is Dagster's context.
    """

    @wraps(stage)
    def telling(*args: Given.args, **kwargs: Given.kwargs) -> Iterator[Result]:
        try:
            yield from stage(*args, **kwargs)
        except Exception as error:
            context: Any = args[0]
            if lasts(error):
                context.instance.add_run_tags(context.run.run_id, {FAILURE_TAG: LASTING})
            elif ATTENDED_TAG not in context.run.tags:
                raise
            raise Failure(str(error), allow_retries=False) from error

    return telling
