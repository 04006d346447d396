"""Instants, logs and views of outcomes, short enough for cases by hand."""

from collections.abc import Sequence
from typing import Any

import yaml

from tests import ROOT
from tests.oracle import Control, Outcome, Record, WindowResult

TABLES = ROOT / "tests" / "tables" / "worked_tables.yaml"
UNITS = {"us": 1, "ms": 1_000, "second": 1_000_000, "minute": 60_000_000, "hour": 3_600_000_000}
MIDNIGHT = 20_454 * 24 * UNITS["hour"]  # 2026-01-01
MINUTE = UNITS["minute"]
SECOND = UNITS["second"]


def table(name: str) -> dict[str, Any]:
    for case in yaml.safe_load(TABLES.read_text(encoding="utf-8")):
        if case["id"] == name:
            return dict(case)
    raise AssertionError(f"no worked table {name}")


def at(text: str) -> int:
    """Return an instant of the day, hh:mm[:ss[.fraction]]; what is finer than a microsecond is cut off."""
    clock, _, fraction = text.partition(".")
    hours, minutes, *seconds = [int(part) for part in clock.split(":")]
    whole = hours * 3600 + minutes * 60 + (seconds[0] if seconds else 0)
    return MIDNIGHT + whole * SECOND + int((fraction + "000000")[:6])


def length(text: str) -> int:
    number, unit = text.split()
    return int(number) * UNITS[unit if unit in UNITS else unit.rstrip("s")]


def span(text: str) -> tuple[int, int]:
    start, end = text.split("-")
    return at(start), at(end)


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
