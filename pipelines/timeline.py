"""Runs of the command line, told to Dagster as runs of the code location, so that its timeline shows them.

Here: where a run says it is from. Not here: the runs (runner.py, days.py), the code location (definitions.py).

The timeline leaves out a run that names no code location, and a job that is executed in this process names none.
"""

from dagster import DagsterInstance
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin

LOCATION = "tidemark"
"""Name of the code location, as `workspace.yaml` has it."""

_REPOSITORY = "__repository__"  # what Dagster calls the only one of a location
_LABEL_TAG = ".dagster/repository"  # by which the page of a job finds its runs


def show_on_timeline(instance: DagsterInstance, run_id: str) -> None:
    """Says of a run that ended that it is the code location's, as `dagster run migrate-repository` does."""
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location_name=LOCATION), _REPOSITORY)
    if instance.get_run_by_id(run_id) is None:
        return
    instance.add_run_tags(run_id, {_LABEL_TAG: origin.get_label()})
    run = instance.get_run_by_id(run_id)
    if run is not None:
        instance.run_storage.replace_job_origin(run, origin.get_job_origin(run.job_name))
