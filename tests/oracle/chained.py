"""Windows over the final results of another window, from what the oracle says of that one.

Slow and plain: every result is put into every window that holds its end, and each window is closed by the first item
behind which the watermark has passed it, or that flushes. A result that comes later is in none that a flush closed.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

from tests.oracle.grids import windows_of
from tests.oracle.model import Control, Group, Record, Window
from tests.oracle.outcome import Outcome, WindowResult


def results_over(
    outcome: Outcome,
    items: Sequence[Record | Control],
    source: str,
    window: Window,
    group_of: Callable[[WindowResult], Group],
) -> tuple[list[WindowResult], list[int]]:
    """The results of a window over those of `source`, and the position of the item that made each.

    `events` are those of all results in it.
    """
    contents: dict[tuple[str, int, int, Group], list[int]] = {}
    closed: dict[tuple[str, int, int, Group], int | None] = {}
    results = zip(outcome.windows[source], outcome.given[source], strict=True)
    for result, given in sorted(results, key=itemgetter(1)):
        if result.is_final:
            for start, end in windows_of(window, result.window_end):
                key = (result.timeline, start, end, group_of(result))
                place = closed.setdefault(key, closed_by(outcome, items, window, result.timeline, end, given))
                if place is None or given <= place:
                    contents.setdefault(key, []).extend(result.events)
    found: list[WindowResult] = []
    places: list[int] = []
    for (timeline, start, end, group), events in contents.items():
        place = closed[timeline, start, end, group]
        if place is not None:
            after = outcome.watermarks[place].get(timeline)
            found.append(WindowResult(start, end, group, tuple(events), 0, True, after, timeline))
            places.append(place)
    return found, places


def closed_by(
    outcome: Outcome, items: Sequence[Record | Control], window: Window, timeline: str, end: int, first: int
) -> int | None:
    """The position of the first item, from `first` on, that flushes, or behind which W has passed the window."""
    close = end + window.allowed_lateness_us + (1 if window.end_is_inside else 0)
    for place, item in enumerate(items[first:], start=first):
        after = outcome.watermarks[place].get(timeline)
        if (isinstance(item, Control) and item.kind == "flush") or (after is not None and after >= close):
            return place
    return None
