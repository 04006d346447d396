"""The rows of a table as the right side of an as-of join.

Here: which events they are to the join. Not here: how they are read and which rows a batch has (assets/), the
partners (timeops/joins/as_of.py).

A row holds from the instant in `valid_from` on. To the join it is an event that came before all others, so it is
never late. Of rows of one key and instant, which a table should not have, one is taken by all their columns.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame

from tidemark.timeops import columns as c
from tidemark.timeops.events.event_time import timeline
from tidemark.timeops.expressions.tokens import literal, quoted
from tidemark.timeops.expressions.try_expression import Columns, as_json
from tidemark.timeops.spec import JoinSpec
from tidemark.timeops.spec.join import OF_TABLE

VALID_FROM = "__tm_valid_from"
"""TIMESTAMP, never null: the instant from which a row of a table holds."""


def right_events(rows: DataFrame, join: JoinSpec, over: Sequence[str], payload: Sequence[str] = ()) -> DataFrame:
    """Return the rows of a table as events of the right side.

    Args:
        rows: The rows: the columns of `right.schema`, and VALID_FROM.
        join: The join.
        over: `time.over`, whose columns are among `on`.
        payload: Columns of the rows that are kept as they are.
    """
    columns = join.right.column_names
    place = f"row_number() OVER (ORDER BY {VALID_FROM}, {as_json(*map(quoted, columns))})"
    working = {
        c.SOURCE: literal(join.right.name),
        c.SEQ: f"CAST({place} AS BIGINT)",
        c.T_FINAL: f"unix_micros({VALID_FROM})",
        c.TIMESTAMP: VALID_FROM,
        c.W_BEFORE: "CAST(NULL AS BIGINT)",
    }
    events = rows.selectExpr(
        *map(quoted, [*payload, *join.on]),
        *[f"{quoted(name)} AS {quoted(OF_TABLE + name)}" for name in columns],
        *[f"{value} AS {name}" for name, value in working.items()],
    )
    return events.selectExpr("*", f"{timeline(Columns.of(events), tuple(over))} AS {c.TIMELINE}")
