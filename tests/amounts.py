"""Batches of any size, written as large ones are.

Here: the bounds below which rows are few. Not here: what is done with few rows and with many
(tidemark/resources/spark/amount.py).
"""

import pytest

from tidemark.resources.spark import amount


def all_rows_are_many(patched: pytest.MonkeyPatch) -> None:
    """Let Spark write all that it computes, as of a large batch."""
    for bound in ("FEW_ROWS", "_FEW_BYTES"):
        patched.setattr(amount, bound, 0)


def no_records_are_kept(patched: pytest.MonkeyPatch) -> None:
    """Let each stage judge the records of a batch again, as of a large one."""
    patched.setattr(amount, "KEPT_ROWS", 0)
