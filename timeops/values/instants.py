"""Instants and lengths as the loops take them: BIGINT microseconds in arrays, with one number for null.

Here: that number, the bounds of instants, columns of Arrow as such arrays and back, distinct numbers. Not here:
instants in SQL (timeops/columns.py), in Python (timeops/values/utc.py).
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.timeops.values.utc import FIRST_US

Array = NDArray[Any]

NONE = -(2**63)
"""No value. It is below all instants and lengths."""
NEVER = 2**63 - 1
MIN_US = FIRST_US  # 0001-01-01T00:00:00Z, the lowest watermark


def no_numbers() -> Array:
    """Return an empty array."""
    return np.zeros(0, np.int64)


def integers(column: pa.ChunkedArray | pa.Array) -> Array:
    """Return a column of BIGINT, with NONE for null."""
    numbers = column if column.type == pa.int64() else column.cast(pa.int64())
    filled = pc.fill_null(numbers, NONE) if numbers.null_count else numbers
    return np.asarray(filled.to_numpy(), np.int64)


def nulled(numbers: Array) -> pa.Array:
    """Return a column of BIGINT, with null for NONE."""
    return pa.array(numbers, pa.int64(), mask=numbers == NONE)


def distinct(numbers: Array) -> Array:
    """Return numbers in ascending order, each once.

    `np.unique` has hashed them since NumPy 2.3: 16 s for ten million different ones, and this takes 0.2.
    """
    ordered = np.sort(numbers)
    firsts: Array = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return firsts


def floored(value: Any, step: Any) -> Any:
    """Return the largest multiple of a step that is at most a value; of a number, or of each in an array."""
    return value // step * step
