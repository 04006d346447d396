"""The place that a stopped audit has reached: the next one continues there.

Here: what is kept, where, and until when it holds. Not here: judging (assets/audit/verdicts.py), recomputing results
(assets/audit/joins.py, assets/audit/windows.py).

Only the long parts are continued, judging the log again and recomputing results. Both only grow: what was compared
stays compared, whatever later batches add. Files and counts are looked at each time.
"""

import base64
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa

from tidemark.assets.audit.findings import Finding
from tidemark.resources.places.place import Place, write_whole
from tidemark.resources.tables import BOOKMARK
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec.scope import Scope
from tidemark.timeops.watermark.timelines import STATE

_LEAST_S = 10.0
"""Seconds between two notes: with many small batches an audit would otherwise write more than it compares."""


@dataclass(frozen=True)
class Bookmark:
    """The things that an audit has compared.

    Attributes:
        spec: The spec by which it began, canonical.
        as_of: The last commit when it began.
        judged: The last batch whose records were judged again; -1 before the first.
        timelines: The second opinion's watermarks after that batch.
        faults: What was wrong up to there, by the fields of the comparison in assets/audit/verdicts.py.
        windows: By window or join, the time up to which its results were recomputed, microseconds.
        findings: What was wrong with these results.
    """

    spec: str
    as_of: int
    judged: int = -1
    timelines: pa.Table = field(default_factory=STATE.empty_table)
    faults: Mapping[str, Any] = field(default_factory=dict)
    windows: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    def to_json(self) -> str:
        """Return it as a text."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.timelines.schema) as stream:
            stream.write_table(self.timelines)
        timelines = base64.b64encode(sink.getvalue()).decode()
        findings = [vars(finding) | {"scope": asdict(finding.scope)} for finding in self.findings]
        return json.dumps(vars(self) | {"timelines": timelines, "findings": findings})

    @classmethod
    def of_json(cls, text: str) -> "Bookmark":
        """Return what `to_json` has written."""
        fields = json.loads(text)
        with pa.ipc.open_stream(base64.b64decode(fields.pop("timelines"))) as stream:
            timelines = stream.read_all()
        findings = [
            Finding(**finding | {"scope": Scope(tuple(scope["windows"]), scope["of_all"])})
            for finding in fields.pop("findings")
            for scope in [finding["scope"]]
        ]
        return cls(timelines=timelines, findings=tuple(findings), **fields)


class Bookmarks:
    """The bookmark of one audit, written to its place from time to time.

    It is a help alone: where it cannot be written, as in a warehouse that is mounted to be read, the audit continues.
    """

    def __init__(self, workspace: Workspace, *, from_start: bool) -> None:
        self._place = workspace.folder / BOOKMARK
        stored = None if from_start else _stored(self._place)
        last = workspace.batches.last_commit()
        begun = Bookmark(workspace.spec.canonical_json(), -1 if last is None else last.batch_id)
        self.continues = stored is not None and _holds(stored, begun, workspace)
        self.bookmark = stored if stored is not None and self.continues else begun
        self._noted_s = time.monotonic()

    def note(self, **news: Any) -> None:
        """Note how far the audit has come: fields of Bookmark."""
        self.bookmark = replace(self.bookmark, **news)
        if time.monotonic() - self._noted_s >= _LEAST_S:
            text = self.bookmark.to_json()
            with suppress(OSError):
                write_whole(self._place, text)
            self._noted_s = time.monotonic()

    def end(self) -> None:
        """Take the bookmark away: the audit has reached its end."""
        with suppress(OSError):
            self._place.unlink(missing_ok=True)


def _stored(place: Place) -> Bookmark | None:
    try:
        return Bookmark.of_json(place.read_text(encoding="utf-8")) if place.is_file() else None
    except (OSError, ValueError, KeyError, TypeError):  # of another version, or cut off: the audit begins again
        return None


def _holds(stored: Bookmark, begun: Bookmark, workspace: Workspace) -> bool:
    """Return whether what was compared is still in the tables: nothing but new batches came since."""
    later = [commit for commit in workspace.batches.every_commit() if commit.batch_id > stored.as_of]
    return (
        stored.spec == begun.spec
        and stored.as_of <= begun.as_of
        and all(commit.plan.kind in ("ingest", "process") for commit in later)
    )
