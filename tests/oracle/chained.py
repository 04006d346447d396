"""Windows over the final results of another window, from what the oracle says of that one.

Slow and plain: every result is put into every window that holds its end, and each window is closed by the first item
behind which the watermark has passed it.
"""

from collections.abc import Callable, Sequence

from tests.oracle.grids import windows_of
from tests.oracle.model import Control, Group, Record, Window
from tests.oracle.outcome import Outcome, WindowResult


def results_over(
    outcome: Outcome,
    items: Sequence[Record | Control],
    source: str,
    window: Window,
    group_of: Callable[[WindowResult], Group],
) -> list[WindowResult]:
    """The results of a window over those of `source`; `events` are those of all results in it."""
    contents: dict[tuple[str, int, int, Group], list[int]] = {}
    for result in outcome.windows[source]:
        if result.is_final:
            for start, end in windows_of(window, result.window_end):
                key = (result.timeline, start, end, group_of(result))
                contents.setdefault(key, []).extend(result.events)
    found: list[WindowResult] = []
    for (timeline, start, end, group), events in contents.items():
        place = closed_by(outcome, items, window, timeline, end)
        if place is not None:
            after = outcome.watermarks[place].get(timeline)
            found.append(WindowResult(start, end, group, tuple(events), 0, True, after, timeline))
    return found


def closed_by(
    outcome: Outcome, items: Sequence[Record | Control], window: Window, timeline: str, end: int
) -> int | None:
    """The position of the first item that closes a window: it flushes, or the watermark behind it has passed it."""
    close = end + window.allowed_lateness_us + (1 if window.end_is_inside else 0)
    for place, item in enumerate(items):
        after = outcome.watermarks[place].get(timeline)
        if (isinstance(item, Control) and item.kind == "flush") or (after is not None and after >= close):
            return place
    return None
