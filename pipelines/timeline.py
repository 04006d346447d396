"""Runs of the command line, told to Dagster as runs of the code location, so that its timeline shows them.

Here: where a run says it is from. Not here: the runs (runner.py, days.py), the code location (definitions.py).

The timeline leaves out a run that names no code location, and a job that is executed in this process names none.
"""

import json
from typing import Any

from dagster import DagsterInstance, deserialize_value

LOCATION = "tidemark"
"""Name of the code location, as `workspace.yaml` has it."""

_REPOSITORY = "__repository__"  # what Dagster calls the only one of a location
_LABEL_TAG = ".dagster/repository"  # by which the page of a job finds its runs


def show_on_timeline(instance: DagsterInstance, run_id: str) -> None:
    """Says of a run that ended that it is the code location's, as `dagster run migrate-repository` does."""
    if instance.get_run_by_id(run_id) is None:
        return
    instance.add_run_tags(run_id, {_LABEL_TAG: f"{_REPOSITORY}@{LOCATION}"})
    run = instance.get_run_by_id(run_id)
    if run is not None:
        origin: Any = deserialize_value(_stored_origin(run.job_name))
        instance.run_storage.replace_job_origin(run, origin)


def _stored_origin(job: str) -> str:
    """Where a job of the code location comes from, in the form in which Dagster stores it with a run.

    Dagster has no public class for it. It reads the stored form as long as it reads the runs of today.
    """
    location = {"__class__": "RegisteredRepositoryLocationOrigin", "location_name": LOCATION}
    repository = {"__class__": "ExternalRepositoryOrigin", "repository_location_origin": location}
    return json.dumps(
        {
            "__class__": "ExternalPipelineOrigin",
            "external_repository_origin": {**repository, "repository_name": _REPOSITORY},
            "pipeline_name": job,
        }
    )
