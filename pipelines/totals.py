"""Sums over the counts of committed batches: what came in, and what became of it.

Here: names of counts to numbers. Not here: showing them (report_text.py, report/).
"""

from collections.abc import Iterable, Mapping

from resources.plans import Commit

Counts = Mapping[str, int]


def sums(commits: Iterable[Commit]) -> dict[str, int]:
    """Each count, summed over commits."""
    found: dict[str, int] = {}
    for commit in commits:
        for name, count in commit.counts.items():
            found[name] = found.get(name, 0) + count
    return found


def ordered(counts: Counts) -> int:
    """Rows of `ordered_events`: released in order, or kept out of order."""
    return counts.get("released", 0) + counts.get("kept_out_of_order", 0)


def refused(counts: Counts) -> dict[str, int]:
    """Dead letters of the stages `ingest` and `time`, by reason."""
    return {
        name.removeprefix("refused."): count
        for name, count in counts.items()
        if name.startswith("refused.") and count
    }


def window_closed(counts: Counts, windows: Iterable[str]) -> dict[str, int]:
    """Dead letters of the stage `window`, by window."""
    found = {name: counts.get(f"{name}.window_closed", 0) for name in windows}
    return {name: count for name, count in found.items() if count}
