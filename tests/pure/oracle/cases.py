"""Instants, logs and views of outcomes, short enough for cases by hand."""

from collections.abc import Sequence
from typing import Any

from tests.oracle import Control, Outcome, Record, WindowResult

SECOND, HOUR = 1_000_000, 3_600_000_000  # microseconds
MIDNIGHT = 20_454 * 24 * HOUR  # 2026-01-01


def log(*times: int, **same: Any) -> list[Record | Control]:
    """Records with these event times, which arrive one microsecond apart."""
    return [Record(seq, MIDNIGHT + seq, e, **same) for seq, e in enumerate(times)]


def last_watermark(outcome: Outcome, timeline: str = "[]") -> int | None:
    return outcome.watermarks[-1][timeline]


def order(outcome: Outcome) -> list[int]:
    return [event.seq for event in outcome.ordered]


def reasons(outcome: Outcome) -> dict[int, str]:
    return {letter.seq: letter.reason for letter in outcome.dead_letters}


def contents(results: Sequence[WindowResult]) -> dict[tuple[int, int], tuple[int, ...]]:
    return {(result.window_start, result.window_end): result.events for result in results}
