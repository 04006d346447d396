"""The oracle: a slow model of the time rules in plain Python, one item of the log at a time.

It is the referee for the product, so it shares no code with it: no Spark, no pandas, nothing of timeops.
Times are int microseconds since the epoch. Correct and readable comes before everything else here.
"""

from tests.oracle.grids import MIN_US, cumulative_windows, floor, grid_windows
from tests.oracle.model import Control, Record, TimeRules, Waiter, Window
from tests.oracle.outcome import Counts, DeadLetter, OrderedEvent, Outcome, WindowResult
from tests.oracle.referee import run

__all__ = [
    "MIN_US",
    "Control",
    "Counts",
    "DeadLetter",
    "OrderedEvent",
    "Outcome",
    "Record",
    "TimeRules",
    "Waiter",
    "Window",
    "WindowResult",
    "cumulative_windows",
    "floor",
    "grid_windows",
    "run",
]
