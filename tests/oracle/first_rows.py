"""The first events of a window, as a list that is sorted: rows of a window with `top`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.oracle.outcome import Outcome


def times_of(outcome: Outcome) -> dict[int, int]:
    """Return the `_timestamp` of each accepted event by its number, microseconds."""
    return {event.seq: event.timestamp_us for event in (*outcome.ordered, *outcome.held)}


def first_events(
    seqs: Sequence[int], n: int, order: Callable[[int], Any], times: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Return the first n events of a window with their ranks: by their order, then their time, then arrival."""
    return list(enumerate(sorted(seqs, key=lambda seq: (order(seq), times[seq], seq))[:n], start=1))
