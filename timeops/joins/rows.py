"""The rows of a join of either kind in a segment of the log.

Here: which kind computes what, and which rows are revisions of one. Not here: how (as_of.py, interval.py).
"""

from pyspark.sql import DataFrame

from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.joins import as_of
from tidemark.timeops.joins.interval import ROW_LEFT, ROW_RIGHT, Interval
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import LEFT_SEQ, JoinColumns
from tidemark.timeops.windows.segment import WindowSegment


def answers(segment: WindowSegment, join: JoinSpec, columns: JoinColumns) -> DataFrame:
    """Return the rows of a join in a segment, `as_of.answers` or `Interval.answers`."""
    return Interval(segment, join, columns).answers() if join.is_interval else as_of.answers(segment, join, columns)


def shown(rows: DataFrame) -> DataFrame:
    """Return rows of `answers` with the columns of the join's table alone, but its batch."""
    return rows.drop(c.TIMELINE, ROW_LEFT, ROW_RIGHT)


def as_events(rows: DataFrame, columns: JoinColumns) -> DataFrame:
    """Return the final rows of `answers` as accepted events of windows over them.

    Returns:
        `JoinColumns.in_windows`, `_timeline`, `_timestamp`, `__tm_timestamp`, and a null `__tm_w_before`: none is
        late, as such a window closes after all rows that it can hold.
    """
    final = rows.where("_is_final").select(*map(quoted, columns.in_windows), c.TIMESTAMP, c.TIMELINE)
    return c.with_sql(final, {c.T_FINAL: f"unix_micros({c.TIMESTAMP})", c.W_BEFORE: "CAST(NULL AS BIGINT)"})


def row_keys(join: JoinSpec) -> tuple[str, ...]:
    """Return the columns of `answers` that all revisions of one row share."""
    return (ROW_LEFT, ROW_RIGHT) if join.is_interval else (LEFT_SEQ,)
