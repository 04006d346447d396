"""Windows over the final results of another window, from what the oracle says of that one.

Slow and plain: every result is put into every window that holds its end, and each window is closed by the first item
after which the watermark has passed it, or that flushes. A result that comes later is in none that a flush closed.
"""

from collections.abc import Callable, Sequence
from operator import itemgetter

from tests.oracle.grids import windows_of
from tests.oracle.model import Control, Group, Interval, Record, Window
from tests.oracle.outcome import Outcome, WindowResult
from tests.oracle.windows import WindowKeeper


def results_over(
    outcome: Outcome,
    items: Sequence[Record | Control],
    source: str,
    window: Window,
    group_of: Callable[[WindowResult], Group],
    takes: Callable[[WindowResult], bool] = lambda _: True,
    gap_of: Callable[[WindowResult], int] | None = None,
) -> tuple[list[WindowResult], list[int]]:
    """Return the results of a window over those of `source`, and the position of the item that made each.

    `events` are those of all results in it; it holds the ones that it takes. `gap_of` says how long a result keeps
    its session open; None where all do so equally long.
    """
    of_groups: dict[tuple[str, Group], list[tuple[WindowResult, int]]] = {}
    results = zip(outcome.windows[source], outcome.given[source], strict=True)
    for result, given in sorted(results, key=itemgetter(1)):
        if result.is_final and takes(result):
            of_groups.setdefault((result.timeline, group_of(result)), []).append((result, given))
    found: list[WindowResult] = []
    places: list[int] = []
    for (timeline, group), came in of_groups.items():
        for (start, end), inside in contents(window, came, gap_of).items():
            first = inside[0][1]
            place = closed_by(outcome, items, window, timeline, end, first)
            if place is not None:
                after = outcome.watermarks[place].get(timeline)
                in_time = [result for result, given in inside if given <= place]
                events = tuple(sorted(seq for result in in_time for seq in result.events))
                found.append(WindowResult(start, end, group, events, 0, True, after, timeline))
                places.append(place)
    return found, places


def contents(
    window: Window, came: Sequence[tuple[WindowResult, int]], gap_of: Callable[[WindowResult], int] | None = None
) -> dict[Interval, list[tuple[WindowResult, int]]]:
    """Return the windows of the results of one timeline and group, each with its results and when they were made."""
    if window.kind == "session":
        in_order = sorted((result.window_end, place) for place, (result, _) in enumerate(came))
        keeper = WindowKeeper(window)
        keeper.gaps = {} if gap_of is None else {place: gap_of(result) for place, (result, _) in enumerate(came)}
        runs = keeper.sessions_of(in_order, "", ())
        return {(run.start, run.end): [came[place] for place in sorted(run.seqs)] for run in runs}
    if window.kind == "sliding":
        size = window.size_us
        instants = {result.window_end + after for result, _ in came for after in (0, size)}
        held = {at: [one for one in came if at - size < one[0].window_end <= at] for at in instants}
        return {(at - size, at): inside for at, inside in held.items() if inside}
    found: dict[Interval, list[tuple[WindowResult, int]]] = {}
    for one in came:
        for interval in windows_of(window, one[0].window_end):
            found.setdefault(interval, []).append(one)
    return found


def closed_by(
    outcome: Outcome, items: Sequence[Record | Control], window: Window, timeline: str, end: int, first: int
) -> int | None:
    """Return the position of the first item, from `first` on, that flushes or after which W has passed the window."""
    close = end + window.allowed_lateness_us + (1 if window.end_is_inside else 0)
    for place, item in enumerate(items[first:], start=first):
        after = outcome.watermarks[place].get(timeline)
        if (isinstance(item, Control) and item.kind == "flush") or (after is not None and after >= close):
            return place
    return None
