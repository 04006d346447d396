"""Audit of windows: all final results recomputed from the events in the tables, in stretches of time.

Here: each window, stretch by stretch. Not here: which stretches (assets/audit/stretches.py), recomputing, by
comparing each event with each window (assets/recount/windows.py), counts and revisions (assets/audit/counts.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tidemark.assets.audit.bookmark import Bookmarks
from tidemark.assets.audit.findings import Finding, of_window, some
from tidemark.assets.audit.stretches import EVENTS, by_hour, stretches, whole_from
from tidemark.assets.recount.lost_results import events_without_result, shows_lost_results
from tidemark.assets.recount.windows import (
    WINDOW_START,
    WindowStretch,
    WrongResult,
    can_recompute,
    doubled_results,
    wrong_results,
)
from tidemark.resources import tables
from tidemark.resources.memory import release_memory
from tidemark.resources.workspace import Workspace
from tidemark.timeops import columns as c
from tidemark.timeops.errors.printable import plural
from tidemark.timeops.spec import WindowSpec
from tidemark.timeops.values.utc import Instant

_MOST_NAMED = 1_000


def audit_windows(
    workspace: Workspace, bookmarks: Bookmarks, readable: Callable[[str], bool], note: Callable[[str], None]
) -> Iterator[Finding]:
    """Recompute the results of each window; arguments as of `audit_verdicts`."""
    spec = workspace.spec
    if spec.windows and not spec.outputs.ordered_events:
        note(
            "results of windows were not recomputed: `outputs.ordered_events` is off, so their events are not stored"
        )
        return
    yield from bookmarks.bookmark.findings
    of_events = Counter[int]()  # counted once, when a window asks for it
    for window in spec.windows:
        table = tables.window_table(window.name)
        inputs, column = _read_by(workspace, window)
        if not all(map(readable, (table, *inputs))):
            note(f"results of {window.name} were not recomputed: a table that this takes cannot be read")
        elif not can_recompute(window):
            note(f"results of {window.name} were not recomputed: it names `{c.SOURCE}` or `{c.SPLIT}`")
        else:
            if window.input is None:
                of_events = of_events or by_hour(workspace, EVENTS, column)
                hours = Counter(of_events)
            else:
                hours = by_hour(workspace, inputs, column)
            hours.update(by_hour(workspace, [table], WINDOW_START))
            whole_from_us = whole_from(workspace, [table, *inputs])
            if whole_from_us is not None:
                first = f"results of {window.name} that start before {Instant(whole_from_us)}"
                note(f"{first} were not recomputed: `retention` has removed rows of them, or of what they take")
            of_lost = (tables.DEAD_LETTERS, tables.needed_table(window))
            finds_lost = shows_lost_results(workspace, window) and all(map(readable, of_lost))
            yield from _audit_window(workspace, bookmarks, window, hours, whole_from_us, finds_lost=finds_lost)


def _read_by(workspace: Workspace, window: WindowSpec) -> tuple[Sequence[str], str]:
    """Return the tables whose rows a window reads, and the column of their time."""
    if window.input is None:
        return (*EVENTS, *([tables.DEAD_LETTERS] if window.across else [])), c.TIMESTAMP
    if window.input in {join.name for join in workspace.spec.joins}:
        return [tables.join_table(window.input)], c.TIMESTAMP
    return [tables.window_table(window.input)], WINDOW_START


def _audit_window(
    workspace: Workspace,
    bookmarks: Bookmarks,
    window: WindowSpec,
    hours: Counter[int],
    whole_from_us: int | None,
    *,
    finds_lost: bool,
) -> Iterator[Finding]:
    position, bookmark = workspace.progress.position(), bookmarks.bookmark
    closed_us = c.MAX_US if position.final else position.watermark_us
    since_us = max(bookmark.windows.get(window.name, c.MIN_US), c.MIN_US if whole_from_us is None else whole_from_us)
    reach_us = window.longest_us if window.closes_on_grid else window.reach_us
    parts = [
        WindowStretch(max(first_us, since_us), end_us, closed_us) for first_us, end_us in stretches(hours, reach_us)
    ]
    wrong, doubled, nowhere_seqs = list[WrongResult](), list[Mapping[str, Any]](), list[int]()
    for number, part in enumerate(parts, start=1):
        if part.end_us <= since_us:
            continue
        workspace.tell(f"recomputing the results of {window.name}, part {number} of {len(parts)}")
        for result in wrong_results(workspace, window, part, workspace.base_of):
            if len(wrong) < _MOST_NAMED:
                wrong.append(result)
        doubled += doubled_results(workspace, window, part, workspace.base_of)
        nowhere_seqs += events_without_result(workspace, window, part) if finds_lost else []
        until = {**bookmarks.bookmark.windows, window.name: min(part.end_us, _final_before_us(window, closed_us))}
        findings = tuple(_findings(workspace, window, wrong, doubled, nowhere_seqs))
        bookmarks.note(windows=until, findings=(*bookmark.findings, *findings))
        release_memory()
    yield from _findings(workspace, window, wrong, doubled, nowhere_seqs)


def _final_before_us(window: WindowSpec, closed_us: int | None) -> int:
    """Return a start before which all windows are final: later ones may be so when a stopped audit continues.

    A session that is open may have started at any time.
    """
    if closed_us in (None, c.MAX_US) or not window.closes_on_grid:
        return c.MAX_US if closed_us == c.MAX_US else c.MIN_US
    return closed_us - window.longest_us - window.allowed_lateness_us


def _findings(
    workspace: Workspace,
    window: WindowSpec,
    wrong: Sequence[WrongResult],
    doubled: Sequence[Mapping[str, Any]],
    nowhere_seqs: Sequence[int],
) -> Iterator[Finding]:
    if wrong:
        yield of_window(workspace, window, _sentence_on(wrong))
    if doubled:
        sentence = f"{plural(len(doubled), 'window and group is', 'windows and groups are')} there more than once"
        yield of_window(workspace, window, f"{sentence}: {_key_of(doubled[0])}")
    if nowhere_seqs:
        sentence, pronoun = (
            plural(len(nowhere_seqs), "event is", "events are"),
            "it" if len(nowhere_seqs) == 1 else "them",
        )
        sentence = f"{sentence} in no final result, and no open window needs {pronoun}: {some(nowhere_seqs)}"
        yield of_window(workspace, window, sentence)


def _sentence_on(wrong: Sequence[WrongResult]) -> str:
    """Return wrong results in words: how many, and the first."""
    lacking = sum(result.written is None for result in wrong)
    surplus = sum(result.recomputed is None for result in wrong)
    other = len(wrong) - lacking - surplus
    counts = {"lacking": lacking, "too many": surplus, "with other values": other}
    kinds = ", ".join(f"{n:,} {kind}" for kind, n in counts.items() if n)
    first = wrong[0]
    sentence = (
        f"{plural(len(wrong), 'result is', 'results are')} not as recomputed ({kinds}), such as {_key_of(first.key)}"
    )
    if first.written is None or first.recomputed is None:
        return sentence
    name = next((n for n in first.written if first.written[n] != first.recomputed[n]), None)
    return (
        sentence
        if name is None
        else f"{sentence}: {name} {first.written[name]}, and {first.recomputed[name]} recomputed"
    )


def _key_of(key: Mapping[str, Any]) -> str:
    """Return a window and group in words."""
    return ", ".join(f"{name} {value}" for name, value in key.items())
