"""When a pipeline is looked at for messages about alerts: after a batch, when one fails, by a look that runs none.

Not here: which messages are due (assets/alert_messages.py), how they are delivered (resources/notifying.py). No look
fails a batch, whatever becomes of its messages.
"""

import logging

from tidemark.assets.alert_messages import notify, say_once
from tidemark.resources.batches.plans import BatchEvent
from tidemark.resources.notifying import deliver
from tidemark.resources.workspace import Watch, Workspace

_LOG = logging.getLogger("tidemark.notify")


def alert_watch(then: Watch | None = None) -> Watch:
    """Return what looks at a pipeline after each batch that wrote results, or failed to; `then` comes before it."""

    def watch(workspace: Workspace, happened: BatchEvent) -> None:
        if then is not None:
            then(workspace, happened)
        is_over = happened.commit is not None or happened.ended
        if is_over and (happened.ended or happened.plan.kind != "ingest"):  # what was read is judged next
            alert_look(workspace)

    return watch


def alert_look(workspace: Workspace) -> None:
    """Look at a pipeline, and send the messages that are due."""
    if not workspace.spec.alerts.notify:
        return
    try:
        say_once(workspace, notify(workspace, deliver))
    except Exception as error:
        _LOG.debug("notify", exc_info=True)
        say_once(workspace, [f"messages about alerts could not be sent: {type(error).__name__}"])
