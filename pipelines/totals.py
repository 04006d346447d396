"""Sums over the counts of committed batches: what came in, and what became of it.

Here: names of counts to numbers. Not here: showing them (report_text.py, report/).
"""

from collections.abc import Iterable, Mapping

from tidemark.resources.batches.plans import Commit

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
    """Events that came too late, by window."""
    return _of_windows("window_closed", counts, windows)


def unfit(counts: Counts, windows: Iterable[str]) -> dict[str, int]:
    """Events on which an aggregate fails, by window."""
    return _of_windows("bad_expression", counts, windows)


def _of_windows(outcome: str, counts: Counts, windows: Iterable[str]) -> dict[str, int]:
    """Dead letters of the stage `window` for a reason, by window."""
    found = {name: counts.get(f"{name}.{outcome}", 0) for name in windows}
    return {name: count for name, count in found.items() if count}
