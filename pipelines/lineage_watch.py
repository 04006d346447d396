"""Events for OpenLineage as batches begin and end: who asks for them.

Here: what is looked at while the batch waits, which is next to nothing. Not here: what the events say
(assets/run_events.py), how they leave (resources/openlineage.py).
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidemark.assets.batch_tables import BatchTables, tables_of
from tidemark.resources import openlineage
from tidemark.resources.batches.plans import BatchEvent
from tidemark.resources.workspace import Watch, Workspace

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent


def lineage_watch(job: Callable[[], str | None]) -> Watch | None:
    """Return what sends an event whenever a batch begins or ends; None where OpenLineage is not set up.

    `job` returns the name of the job of Dagster whose run is at work, or None where there is no such run. Without
    OpenLineage nothing of it is imported.
    """
    if not openlineage.is_wanted():
        return None

    def watch(workspace: Workspace, happened: BatchEvent) -> None:
        with openlineage.harmless():
            tables = tables_of(workspace, happened.plan)
            if tables is not None:
                openlineage.send(partial(_event, tables, happened, job()))

    return watch


def _event(tables: BatchTables, happened: BatchEvent, job: str | None) -> "RunEvent":
    from tidemark.assets.run_events import event_of  # noqa: PLC0415 - it imports OpenLineage, which takes a moment

    return event_of(tables, happened, job)
