"""Right results of windows of a minute, event by event in order of arrival, with no code of any system compared.

Here: the rules, the exact results of each, and how far others are from them. Not here: who is compared with what.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds

DELAY_US = 5_000_000
SIZE_US = 60_000_000
_NEVER = np.iinfo(np.int64).min
_ROW = ["start_us", "k"]
_TOLERANCE = 1e-9  # relative, of sums and averages, which depend on the order of adding up

Instants = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Rule(Enum):
    """Which events count, by the watermark just before each: the largest time so far less 5 seconds."""

    BEHIND_IS_DROPPED = "an event behind the watermark is dropped"
    WINDOW_OPEN = "an event counts while its window is open"
    WINDOW_OPEN_IN_MS = "the same, and windows close at their last millisecond"
    """Flink's watermark says that no time up to and including it is to come."""

    def closes_us(self, start_us: Instants) -> Instants:
        """Return the watermark at which a window closes."""
        return start_us + SIZE_US - (1_000 if self is Rule.WINDOW_OPEN_IN_MS else 0)

    def counts(self, t_us: Instants, before_us: Instants) -> Mask:
        """Return which events count."""
        if self is Rule.BEHIND_IS_DROPPED:
            return t_us >= before_us
        return self.closes_us(_start_us(t_us)) > before_us


@dataclass(frozen=True)
class Truth:
    """Exact results of the windows that have closed, and which events are dropped, by their places in the log."""

    rule: Rule
    rows: pd.DataFrame
    dropped: frozenset[int]
    last_us: int

    def of_closed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Of results those whose windows have closed: others may be written or not, as systems end differently."""
        return rows[self.rule.closes_us(rows["start_us"].to_numpy()) <= self.last_us]


@dataclass(frozen=True)
class Difference:
    """How far results are from others.

    Attributes:
        rows: How many there are in either.
        wrong: Rows that one side lacks, has twice, or has with other values.
        lost: Events that the others count and these do not.
        more: Events that these count and the others do not.
    """

    rows: int
    wrong: int
    lost: int
    more: int


def read_events(files: Path) -> pd.DataFrame:
    """All events of a folder of parquet files in order of arrival: `t_us`, `k`, `v`."""
    table = ds.dataset(sorted(files.iterdir()), format="parquet").to_table().sort_by("at")
    times = table["t"].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    return pd.DataFrame({"t_us": times.to_numpy(), "k": table["k"].to_pandas(), "v": table["v"].to_numpy()})


def truth_of(events: pd.DataFrame, rule: Rule) -> Truth:
    """Return the exact results of a rule."""
    t_us: Instants = events["t_us"].to_numpy()
    reached = np.maximum.accumulate(t_us) - DELAY_US
    before = np.concatenate([[_NEVER], reached[:-1]])
    counts = rule.counts(t_us, before)
    counted = events[counts].assign(start_us=_start_us(t_us[counts]))
    groups = counted.groupby(_ROW)["v"]
    rows = pd.DataFrame(
        {
            "n": groups.count(),
            "total": groups.sum(),
            "lowest": groups.min(),
            "highest": groups.max(),
            "mean": groups.mean(),
        }
    ).reset_index()
    last_us = int(reached[-1])
    closed = rule.closes_us(rows["start_us"].to_numpy()) <= last_us
    return Truth(rule, rows[closed].reset_index(drop=True), frozenset(np.flatnonzero(~counts).tolist()), last_us)


def compare(found: pd.DataFrame, wanted: pd.DataFrame) -> Difference:
    """Compare rows of `start_us`, `k`, `n`, `total`, `lowest`, `highest`, `mean` with the right ones."""
    twice = int(found.duplicated(_ROW).sum())
    both = found.drop_duplicates(_ROW).merge(wanted, on=_ROW, how="outer", suffixes=("", "_wanted"))
    same = (both["n"] == both["n_wanted"]).to_numpy()
    for name in ("lowest", "highest"):
        same &= (both[name] == both[f"{name}_wanted"]).to_numpy()
    for name in ("total", "mean"):
        same &= np.isclose(both[name], both[f"{name}_wanted"], rtol=_TOLERANCE, atol=0)
    surplus = (both["n"].fillna(0) - both["n_wanted"].fillna(0)).to_numpy()
    return Difference(
        rows=len(both),
        wrong=int((~same).sum()) + twice,
        lost=int(-surplus[surplus < 0].sum()),
        more=int(surplus[surplus > 0].sum()),
    )


def _start_us(t_us: Instants) -> Instants:
    """Of the window that an event is in."""
    return t_us // SIZE_US * SIZE_US
