"""Delivery of messages to people: chat, mail, pagers and webhooks, by Apprise, which knows the URLs of all of them.

Here: one message to one URL, and why it was not taken. Not here: which messages there are
(assets/alarms/messages.py), which variables hold the URLs (the spec). A URL holds secrets: no text here repeats one,
nor what Apprise logs.
"""

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

_LONGEST_S = 10.0
"""How long a receiver may take: a batch that has just been committed waits for it."""
_STATUS = re.compile(r"error=(\d{3})\b")  # how Apprise logs what a web server answered


def deliver(url: str, *, title: str, text: str, level: str) -> str:
    """Send a message.

    Args:
        url: The receiver, in the words of Apprise, such as `slack://…`, `mailto://…` or `jsons://…`.
        title: The subject.
        text: Plain text, in lines.
        level: `warn`, `error`, or `ok` for what is well again.

    Returns:
        Why it was not taken, to follow «the message was not taken:»; empty if it was.
    """
    if find_spec("apprise") is None:
        return "Apprise is not installed. To do: `pip install 'tidemark[notify]'`"
    with _silent():
        import apprise  # noqa: PLC0415 - only where a message is sent

        kinds = apprise.NotifyType
        kind = {"warn": kinds.WARNING, "error": kinds.FAILURE}.get(level, kinds.SUCCESS)
        receivers = apprise.Apprise()
        if not receivers.add(url):
            return "the variable does not hold the URL of a receiver that Apprise knows, such as `slack://…`"
        try:
            outcome = receivers.notify(
                text, title, notify_type=kind, body_format=apprise.NotifyFormat.TEXT, timeout=_LONGEST_S
            )
        except Exception as error:
            return f"Apprise raised {type(error).__name__}"
    if outcome:
        return ""
    if outcome.status == apprise.AppriseResultStatus.TIMEOUT:
        return f"the receiver did not answer within {_LONGEST_S:g} s"
    answers = {match[1] for entry in outcome.logs() if (match := _STATUS.search(str(entry.message)))}
    return f"the receiver answered with status {' and '.join(sorted(answers))}" if answers else "it cannot be reached"


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what Apprise logs to itself, as it may show URLs."""
    logger = logging.getLogger("apprise")
    propagates, nothing = logger.propagate, logging.NullHandler()
    logger.propagate = False
    logger.addHandler(nothing)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # modules that it imports for some of its receivers are deprecated
            yield
    finally:
        logger.propagate = propagates
        logger.removeHandler(nothing)
