"""Messages about the conditions of a pipeline: one for each change of state, to each channel of `alerts.notify`.

Here: which messages are due, their words, and what was delivered. Not here: the conditions
(assets/alarms/conditions.py), delivery (resources/notifying.py), when a pipeline is looked at
(pipelines/code_location/watches.py).

What is wrong is read from the tables, the sources and the failed checks, so a process that dies between a commit
and its message loses nothing: the next look finds the same condition, and that its message was not delivered. The
file `_quality/notified.json` has the level of each check, how often it has changed, and the level that each channel
knows. It is written before a message leaves, so that one that is sent again has the same id.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

from filelock import FileLock, Timeout

from tidemark.assets.alarms.conditions import OF_NO_BATCH, Condition, look_at_pipeline
from tidemark.resources.places.place import Place, write_whole
from tidemark.resources.quality.failures import FOLDER
from tidemark.resources.settings import variable
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors.printable import printable
from tidemark.timeops.spec import Spec
from tidemark.timeops.spec.automation import Channel

NOTIFIED_FILE = "notified.json"
_LOG = logging.getLogger("tidemark.notify")
_IDS = UUID("4c0b7c1e-5d0c-4f6f-9a53-2f6f3e0e8b57")
_OK = "ok"
_RANK = {_OK: 0, "warn": 1, "error": 2}
_IN_WORDS = {"warn": "warning", "error": "error", _OK: "resolved"}
_WAIT_FOR_OTHER_S = 20.0
_MOST_SENTENCES = 3

Deliver = Callable[..., str]
"""Sends a message, see `notifying.deliver`."""


@dataclass(frozen=True)
class _State:
    """The state of a check.

    Attributes:
        level: `ok`, `warn` or `error`.
        changes: How often the level has changed.
        sentence: What was wrong when it last was.
        delivered: The level that each channel knows, by its variable; without one `ok`.
    """

    level: str = _OK
    changes: int = 0
    sentence: str = ""
    delivered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """A message about a check.

    Attributes:
        title: Pipeline, severity and check.
        text: What was found, what to do, and the id, each on a line of its own.
        level: `warn`, `error`, or `ok`.
    """

    title: str
    text: str
    level: str


def notify_channels(workspace: Workspace, deliver: Deliver) -> list[str]:
    """Look at a pipeline and send what has changed since each channel last took a message.

    One process at a time does so. Messages that are not taken are due again at the next look.

    Args:
        workspace: The pipeline.
        deliver: Sends a message.

    Returns:
        A sentence for each channel that did not take its message.
    """
    channels = workspace.spec.alerts.notify
    if not channels:
        return []
    with _one_at_a_time(workspace.folder):
        look = look_at_pipeline(workspace)
        now = _worst(look.conditions)
        states = _after(_read_states(workspace.folder), now, is_at_work=look.at_work is not None)
        _write(workspace.folder, states)
        return [failed for channel in channels for failed in _deliver_to(channel, workspace, states, deliver)]


def send_test_messages(spec: Spec, folder: Place, deliver: Deliver) -> dict[str, str]:
    """Send a message to each channel that says nothing is wrong; return why it was not taken, by its variable."""
    reasons = {}
    for channel in spec.alerts.notify:
        levels = "warnings and errors" if channel.level == "warn" else "errors"
        text = (
            f"Messages about the pipeline {spec.name} arrive here: {levels}, and when they are resolved.\n"
            f"Nothing is wrong: this is a test of `alerts.notify`.\nTables: {folder}"
        )
        reasons[channel.to] = _sent(channel, Message(f"{spec.name}: test", text, _OK), deliver)
    return reasons


def say_once(workspace: Workspace, failed: list[str]) -> None:
    """Log the sentences about channels that did not take a message, once for each in this process."""
    for sentence in failed:
        if sentence not in _said:
            _LOG.error("%s: %s", workspace.spec.name, sentence)
    _said.difference_update([sentence for sentence in _said if sentence not in failed])
    _said.update(failed)


_said: set[str] = set()


def _worst(conditions: tuple[Condition, ...]) -> dict[str, _State]:
    """Return the conditions by their names: of several the worst level, and some of the sentences."""
    states: dict[str, _State] = {}
    for name in dict.fromkeys(condition.name for condition in conditions):
        of_name = [condition for condition in conditions if condition.name == name]
        # A look knows more than the check of the last batch: how old results are now.
        same = [condition for condition in of_name if not condition.is_checked] or of_name
        level = max((condition.level for condition in same), key=lambda level: _RANK[level])
        some = [condition.sentence for condition in same if condition.level == level]
        ending = [f"And {len(some) - _MOST_SENTENCES} more."] if len(some) > _MOST_SENTENCES else []
        states[name] = _State(level, 0, "\n".join([*some[:_MOST_SENTENCES], *ending]))
    return states


def _after(
    old_states: Mapping[str, _State], states_now: Mapping[str, _State], *, is_at_work: bool
) -> dict[str, _State]:
    """Return the states after a look; a batch that is at work may be one that failed, and is not well yet."""
    states = {}
    for name in dict.fromkeys([*old_states, *states_now]):
        old, new = old_states.get(name, _State()), states_now.get(name)
        if new is None:
            is_open = is_at_work and name not in OF_NO_BATCH
            is_as_before = old.level == _OK or is_open
            states[name] = old if is_as_before else replace(old, level=_OK, changes=old.changes + 1)
        elif new.level == old.level:
            states[name] = old  # the message that is due says how it began
        else:
            states[name] = replace(new, changes=old.changes + 1, delivered=old.delivered)
    return states


def _deliver_to(channel: Channel, workspace: Workspace, states: dict[str, _State], deliver: Deliver) -> Iterator[str]:
    """Send a channel what it does not know, and note it in `states`; after a failure no more in this look."""
    for name, state in states.items():
        level = state.level if _RANK[state.level] >= _RANK[channel.level] else _OK
        if level == state.delivered.get(channel.to, _OK):
            continue
        why = _sent(channel, _message(workspace, name, state, level), deliver)
        if why:
            yield f"{channel.text} did not accept the message about {name}: {why}. It is sent again at the next look"
            return
        states[name] = replace(state, delivered={**state.delivered, channel.to: level})
        _write(workspace.folder, states)  # at once: a process that dies now must not send it again


def _message(workspace: Workspace, name: str, state: _State, level: str) -> Message:
    pipeline = workspace.spec.name
    # A message that is sent again has the same number, so that a receiver can know it.
    number = uuid5(_IDS, f"{workspace.folder}:{name}:{state.changes}:{level}")
    sentence = printable(state.sentence, keep="\n")
    if level == _OK:
        is_warning = state.level == "warn"
        sentence = f"{'It is a warning now' if is_warning else 'It was'}: {sentence}"
    text = [sentence, "", f"Check: {name}", f"Pipeline: {pipeline}, {workspace.folder}", f"Message: {number}"]
    return Message(f"{pipeline}: {_IN_WORDS[level]}, {name}", "\n".join(text), level)


def _sent(channel: Channel, message: Message, deliver: Deliver) -> str:
    url = variable(channel.to)
    if not url:
        return "the variable is not set in the environment of this process"
    return deliver(url.strip(), title=message.title, text=message.text, level=message.level)


@contextmanager
def _one_at_a_time(folder: Place) -> Iterator[None]:
    """Let another process that sends messages come to its end, where files can be locked."""
    lock = None
    if isinstance(folder, Path):
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / FOLDER / f".{NOTIFIED_FILE}.lock", timeout=_WAIT_FOR_OTHER_S)
        with suppress(Timeout):  # a message that comes twice is better than none
            lock.acquire()
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _read_states(folder: Place) -> dict[str, _State]:
    try:
        noted: Mapping[str, Mapping[str, Any]] = json.loads(
            (folder / FOLDER / NOTIFIED_FILE).read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return {}
    names = [field.name for field in fields(_State)]  # earlier versions noted a page as well
    return {name: _State(**{key: state[key] for key in names if key in state}) for name, state in noted.items()}


def _write(folder: Place, states: Mapping[str, _State]) -> None:
    if states:
        noted = {name: asdict(state) for name, state in states.items()}
        write_whole(folder / FOLDER / NOTIFIED_FILE, json.dumps(noted, indent=2))
