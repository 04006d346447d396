"""Which settings of a spec go by the arrival of records, so that records without an arrival cannot be judged.

Here: reading the spec for it. Not here: the rules themselves (arrival_policies.py, timelines.py).
"""

from collections.abc import Iterable

from tidemark.timeops.columns import ARRIVAL
from tidemark.timeops.expressions.tokens import mentions
from tidemark.timeops.spec import TimeSpec, WindowSpec


def keys_by_arrival(time: TimeSpec, windows: Iterable[WindowSpec] = ()) -> list[str]:
    """Keys of the spec whose effect depends on when records arrived, such as `time.late`.

    Args:
        time: The spec's `time` section.
        windows: The spec's windows.
    """
    keys = []
    if time.timestamp_by is None:
        keys.append("time (without `timestamp_by` event time is arrival time)")
    elif mentions(time.timestamp_by, ARRIVAL):
        keys.append("time.timestamp_by")
    keys += ["time.deduplicate_by"] * any(mentions(text, ARRIVAL) for text in time.deduplicate_by)
    keys += ["time.over"] * any(mentions(text, ARRIVAL) for text in time.over)
    given = {"late": time.late, "early": time.early, "idle": time.idle, "emit": time.emit_every_us}
    keys += [f"time.{name}" for name, value in given.items() if value is not None]
    for window in windows:
        texts = [window.where or "", *window.aggregates.values(), *(text for _, text in window.group_expressions)]
        if any(mentions(text, ARRIVAL) for text in texts):
            keys.append(f"windows ({window.name})")
        if window.revises and (window.early_every_us or window.revise_every_us):
            keys.append(f"windows ({window.name}), whose results are revised by the clock")
    return keys
