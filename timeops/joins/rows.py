"""The rows of a join of either kind in a segment of the log.

Here: which kind computes what, and what tells one row from another. Not here: how (as_of.py, interval.py).
"""

from pyspark.sql import DataFrame

from tidemark.timeops.joins import as_of
from tidemark.timeops.joins.interval import ROW_LEFT, ROW_RIGHT, Interval
from tidemark.timeops.joins.sides import LEFT_SEQ
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import JoinColumns
from tidemark.timeops.windows.segment import WindowSegment


def answers(segment: WindowSegment, join: JoinSpec, columns: JoinColumns) -> DataFrame:
    """Return the rows of a join in a segment, `as_of.answers` or `Interval.answers`."""
    return Interval(segment, join, columns).answers() if join.is_interval else as_of.answers(segment, join, columns)


def row_keys(join: JoinSpec) -> tuple[str, ...]:
    """Return the columns of `answers` that all revisions of one row share."""
    return (ROW_LEFT, ROW_RIGHT) if join.is_interval else (LEFT_SEQ,)
