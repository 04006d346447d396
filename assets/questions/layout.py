"""Answers as text: columns side by side.

Here: alignment. Not here: the words of an answer.
"""

from collections.abc import Sequence


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Sequence[int] = (0,)) -> list[str]:
    """Return a head and rows as lines, two blanks between columns; nothing without rows.

    Args:
        head: The name of each column.
        rows: The cells.
        texts: The columns that begin at the left; numbers end at the right.
    """
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if place in texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def percent(share: float) -> str:
    """Return a share in percent, so that small ones are not zero."""
    value = 100 * share
    if not value:
        return "0 %"
    return f"{value:.1f} %" if value >= 1 else f"{value:.2g} %"
