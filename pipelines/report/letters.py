"""Dead letters to browse: the newest of each reason.

Here: which of them, and their texts. Not here: how many there are (accounts.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark.pipelines.report.state import State
from tidemark.pipelines.report.values import instant, length, shortened
from tidemark.resources.lake.queries import newest_rows
from tidemark.resources.tables import DEAD_LETTERS

MOST_LETTERS = 500
_COLUMNS = (
    *("_arrival_seq", "_arrival_time", "_event_time", "_source", "_position"),
    *("stage", "reason", "detail", "window_name", "lateness_us", "payload"),
)
_MOST_PAYLOAD = 1_000


@dataclass(frozen=True)
class Letter:
    """A dead letter as texts."""

    seq: int | None
    reason: str
    stage: str
    window: str
    detail: str
    event_time: str
    arrival: str
    late_by: str
    place: str
    payload: str


def newest_letters(state: State, by_reason: Mapping[str, int]) -> list[Letter]:
    """The newest dead letters of each reason, at most MOST_LETTERS in all, the newest first."""
    rows: list[Mapping[str, Any]] = []
    for reason, most in allotted(by_reason, MOST_LETTERS).items():
        version = state.versions[DEAD_LETTERS]
        only = [("reason", "=", reason)]
        found = newest_rows(state.lake, DEAD_LETTERS, version, _COLUMNS, by="_arrival_seq", most=most, filters=only)
        rows += found.to_pylist()
    return [_letter(row) for row in sorted(rows, key=lambda row: -(row["_arrival_seq"] or 0))]


def allotted(by_reason: Mapping[str, int], most: int) -> dict[str, int]:
    """How many of each reason are shown: an equal part, and what those that are few leave goes to the others."""
    found: Counter[str] = Counter()
    reasons: Sequence[tuple[int, str]] = sorted((n, reason) for reason, n in by_reason.items() if n)
    for place, (n, reason) in enumerate(reasons):
        found[reason] = min(n, (most - found.total()) // (len(reasons) - place))
    return dict(found)


def _letter(row: Mapping[str, Any]) -> Letter:
    return Letter(
        seq=row["_arrival_seq"],
        reason=row["reason"],
        stage=row["stage"],
        window=row["window_name"] or "",
        detail=row["detail"] or "",
        event_time=instant(row["_event_time"]),
        arrival=instant(row["_arrival_time"]),
        late_by=length(row["lateness_us"]),
        place="" if row["_source"] is None else f"{row['_source']}, {row['_position']}",
        payload=shortened(row["payload"] or "", _MOST_PAYLOAD),
    )
