"""The first events of each window and group, one row each (`top`).

Here: their order and their columns. Not here: which events are in a window (aligned.py, sessions.py, sliding.py),
aggregates next to them (aggregates.py), the keys (spec/top.py).

Spark keeps no more than the first rows of each group while it sorts, so that no group is in memory as a whole.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import types as T

from tidemark.timeops import columns as c
from tidemark.timeops.expressions.tokens import quoted
from tidemark.timeops.expressions.try_expression import Columns, parts, without_minus_zero
from tidemark.timeops.spec import WindowSpec, is_reserved
from tidemark.timeops.spec.join import LEFT_SEQ, RIGHT_SEQ
from tidemark.timeops.spec.top import PLACE
from tidemark.timeops.windows.membership import group_names

_WITHOUT_ORDER = (T.MapType, T.VariantType)


def has_order(kind: T.DataType) -> bool:
    """Return whether of two values of a type one is the lower one, or they are equal."""
    return not any(isinstance(part, _WITHOUT_ORDER) for part in parts(kind))


def first_rows(contents: DataFrame, keys: Sequence[str], window: WindowSpec) -> DataFrame:
    """Return the first events of each window and group of a window with `top`.

    `contents` are events with the columns of `membership.with_groups`; `keys` distinguish the windows of a group.

    Returns:
        `keys`, the columns of groups, `_rank` from 1, and `WindowSpec.event_columns`.
    """
    assert window.top is not None
    columns = Columns.of(contents)
    # Rows of one group have one value of it, as they have in aggregates.
    groups = [f"{without_minus_zero(name, columns.types[name])} AS {name}" for name in group_names(window)]
    same, order = ", ".join([*keys, *group_names(window)]), ", ".join(_order(columns, window))
    place = f"row_number() OVER (PARTITION BY {same} ORDER BY {order}) AS {PLACE}"
    shown = map(quoted, window.event_columns(contents.columns))
    return contents.selectExpr(*keys, *groups, place, *shown).where(f"{PLACE} <= {window.top.n}")


def _order(columns: Columns, window: WindowSpec) -> list[str]:
    """Return the parts of ORDER BY that say which events are first; no two events are the same in all of them.

    Results have no number. They differ in their own columns, which begin with start, end and groups. Rows of a join
    have the numbers of their events.
    """
    assert window.top is not None
    values = [(order, columns.read(order.expression)) for order in window.top.orders]
    by = [order.sql(without_minus_zero(value.sql, value.type)) for order, value in values]
    if window.input is None:
        return [*by, c.TIMESTAMP, c.SEQ]
    of_result = [quoted(name) for name, kind in columns.types.items() if not is_reserved(name) and has_order(kind)]
    return [*by, c.TIMESTAMP, *(name for name in (LEFT_SEQ, RIGHT_SEQ) if name in columns.types), *of_result]
