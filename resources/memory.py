"""Memory that this process has freed, and that Arrow or C keep for themselves: it goes back to the system.

Here: when it goes back. Not here: which allocator Arrow uses, which `import tidemark` chooses; Java's memory
(resources/spark/session.py).
"""

import ctypes
from collections.abc import Callable
from functools import cache

import pyarrow as pa


def release_memory() -> None:
    """Return freed memory to the system: Arrow's, and where the C library is glibc its pages too."""
    pa.default_memory_pool().release_unused()
    _trim()(0)


@cache
def _trim() -> Callable[[int], int]:
    """Return glibc's `malloc_trim`: by itself a heap shrinks only from its end, which a few bytes can hold."""
    trim: Callable[[int], int] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _pad: 0)
    return trim
