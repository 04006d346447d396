"""MEANING: what event time, watermarks, order and windows are. Pure functions from DataFrame to DataFrame.

Not here: Dagster, Delta, files, the environment, the clock; nothing in this package knows what a micro-batch is.

As a library (docs/library.md): `adjust`, `windowed`, `window_dead_letters`. They are imported when they are asked
for, as Spark takes its time and whoever reads a spec needs none of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemark.timeops.library.frames import AdjustedEvents, adjust, window_dead_letters, windowed

__all__ = ["AdjustedEvents", "adjust", "window_dead_letters", "windowed"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidemark.timeops.library import frames as library  # noqa: PLC0415 - the reason stands above

    return getattr(library, name)
