"""Events by key and time: how many are before another one, and which is the last of equal ones.

Here: both sides are put in one order, in which one pass counts; the pairs of events that are in reach of each other.
Not here: what follows for a join (timeops/joins/as_of.py, timeops/joins/interval.py).
"""

from collections.abc import Iterator

import numpy as np

from tidemark.timeops.joins.events import Events, Places
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.values.instants import Array

PAIRS = 2_000_000
"""Pairs of events in reach of each other that are looked at together."""


def passed(keys: Array, us: Array, of_keys: Array, of_us: Array, *, and_equal: bool) -> Array:
    """Return how many of some events are before each of others in the order of key and time.

    Args:
        keys: The keys of the events, in this order; at least -1.
        us: Their times.
        of_keys: The keys of the others, in any order; at least -1.
        of_us: Their times.
        and_equal: Whether events of the same key and time count as before them.
    """
    count = len(keys)
    if not count or not len(of_keys):
        return np.zeros(len(of_keys), np.int64)
    both = ((keys, us), (of_keys, of_us)) if and_equal else ((of_keys, of_us), (keys, us))
    both_keys, both_us = (np.concatenate(arrays) for arrays in zip(*both, strict=True))
    order = np.argsort(both_us, kind="stable")
    order = order[np.argsort(_narrow(both_keys)[order], kind="stable")]
    is_event = order < count if and_equal else order >= len(of_keys)
    counts = np.empty(len(of_keys), np.int64)
    counts[order[~is_event] - (count if and_equal else 0)] = np.cumsum(is_event)[~is_event]
    return counts


def last_of_equal(keys: Array, us: Array) -> Array:
    """Return for each of some events, in the order of key and time, the last one with the same key and time."""
    places = np.arange(len(keys))
    is_last = np.append((keys[1:] != keys[:-1]) | (us[1:] != us[:-1]), True)[: len(keys)]
    last = np.where(is_last, places, len(keys))
    return np.minimum.accumulate(last[::-1])[::-1]


def _narrow(keys: Array) -> Array:
    """Return keys in few bytes, which are sorted in a fraction of the time, by counting."""
    return (keys + 1).astype(np.uint16) if len(keys) and int(keys.max()) < np.iinfo(np.uint16).max else keys


def in_reach(events: Events, join: JoinSpec, lefts: Places, rights: Places) -> Iterator[tuple[slice, Places, Places]]:
    """Yield left events with the right ones of their key in reach, so many at a time that they have about PAIRS.

    Args:
        events: The events.
        join: The join.
        lefts: The left events.
        rights: The right events, in the order of key and time; all have a key.

    Returns:
        Which of `lefts` are looked at; then of each pair the left event, by its place among these, and the right one.
    """
    keys, us = events.key[lefts], events.us[lefts]
    of_rights = events.key[rights], events.us[rights]
    begin = passed(*of_rights, keys, us - join.looks_back_us, and_equal=False)
    end = passed(*of_rights, keys, us + join.looks_ahead_us, and_equal=True)
    cuts = np.flatnonzero(np.diff(np.cumsum(end - begin) // PAIRS)) + 1
    for first, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(lefts)], strict=True):
        span = slice(first, stop)
        sizes = (end - begin)[span]
        of_left = np.repeat(np.arange(len(sizes)), sizes)
        nth = np.arange(len(of_left)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        yield span, of_left, rights[begin[span][of_left] + nth]
