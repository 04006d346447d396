"""Looks at a pipeline as its batches begin and end: events for OpenLineage, and messages about alerts.

Here: who asks for them, and when; it fails no batch, whatever becomes of it. Not here: what the events say
(assets/catalog/run_events.py), how they leave (resources/openlineage.py), which messages are due
(assets/alarms/messages.py), how they are delivered (resources/notifying.py).
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidemark.assets.catalog.batch_tables import BatchTables, tables_of
from tidemark.resources import openlineage
from tidemark.resources.batches.plans import BatchEvent
from tidemark.resources.notifying import deliver
from tidemark.resources.workspace import Watch, Workspace

if TYPE_CHECKING:
    from openlineage.client.event_v2 import RunEvent

_LOG = logging.getLogger("tidemark.notify")


def batch_watch(job: Callable[[], str | None]) -> Watch:
    """Return what looks at a pipeline whenever a batch begins or ends: for lineage, then for alerts.

    `job` returns the name of the job of Dagster whose run is at work, or None where there is no such run. Alerts are
    looked at after a batch that wrote results, or failed to.
    """
    for_lineage = lineage_watch(job)

    def watch(workspace: Workspace, happened: BatchEvent) -> None:
        if for_lineage is not None:
            for_lineage(workspace, happened)
        is_over = happened.commit is not None or happened.ended
        if is_over and (happened.ended or happened.plan.kind != "ingest"):  # what was read is judged next
            alert_look(workspace)

    return watch


def lineage_watch(job: Callable[[], str | None]) -> Watch | None:
    """Return what sends an event whenever a batch begins or ends; None where OpenLineage is not set up.

    While the batch waits next to nothing is looked at. Without OpenLineage nothing of it is imported.
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
    from tidemark.assets.catalog.run_events import event_of  # noqa: PLC0415 - it imports OpenLineage, which takes a moment

    return event_of(tables, happened, job)


def alert_look(workspace: Workspace) -> None:
    """Look at a pipeline, and send the messages that are due."""
    if not workspace.spec.alerts.notify:
        return
    from tidemark.assets.alarms.messages import notify_channels, say_once  # noqa: PLC0415 - few pipelines send messages

    try:
        say_once(workspace, notify_channels(workspace, deliver))
    except Exception as error:
        _LOG.debug("notify", exc_info=True)
        say_once(workspace, [f"messages about alerts could not be sent: {type(error).__name__}"])
