"""The expressions and column names a spec file may hold.

Here: reading one expression. Not here: what makes it depend on the clock or on the order of rows
(determinism.py, aggregate_order.py).
"""

import re
from typing import Annotated

from pydantic import BeforeValidator

from tidemark.timeops.expressions.aggregate_order import order_problems
from tidemark.timeops.expressions.determinism import determinism_problems
from tidemark.timeops.expressions.tokens import is_number, plain_column, split_alias
from tidemark.timeops.problems import Problem, ProblemsError, raise_any, show
from tidemark.timeops.spec.fields import read_text, text_schema

RESERVED_COLUMNS: frozenset[str] = frozenset(
    (
        "_adjusted_by",
        "_arrival_seq",
        "_arrival_time",
        "_batch_id",
        "_clock",
        "_event_time",
        "_file",
        "_is_final",
        "_malformed",
        "_position",
        "_release_seq",
        "_rescued",
        "_revision",
        "_source",
        "_split",
        "_timeline",
        "_timestamp",
        "_watermark",
    )
)
"""Columns that the product writes; no payload column, group column or aggregate may have these names."""

ILLEGAL_IN_STRUCTS = frozenset(" ,;{}()\n\t=")
"""Characters that no name in a Delta table may have, those inside of structs included."""

ILLEGAL_IN_COLUMNS = ILLEGAL_IN_STRUCTS | frozenset(".`")
"""Characters that no column may have in its name; SQL takes `a.b` for the field of a struct."""


def _expression(value: object) -> str:
    """Read Spark SQL without an `AS` name; the place that takes one reads it with `_group_item`."""
    text = read_text(value)
    expression, alias = split_alias(text)
    problems = determinism_problems(expression, columns=["user"])  # declared columns: see spec_model.py
    if alias is not None:
        found = f"found {show(text)}: the name `{alias}` has no effect here"
        problems.append(Problem(found, expected="an expression without AS", remedy=f"write `{expression}`"))
    raise_any(problems)
    return text


def _instant(value: object) -> str:
    if (isinstance(value, int | float) and not isinstance(value, bool)) or is_number(str(value)):
        expected = "an expression that gives a time; the unit of a bare number cannot be known"
        remedy = "name the column and its unit: timestamp_seconds(x), timestamp_millis(x) or timestamp_micros(x)"
        raise ProblemsError([Problem(f"found the bare number {value}", expected=expected, remedy=remedy)])
    return _expression(value)


def _aggregate(value: object) -> str:
    text = _expression(value)
    raise_any(order_problems(text))
    return text


def _group_item(value: object) -> str:
    text = read_text(value)
    expression, alias = split_alias(text)
    problems = determinism_problems(expression, columns=["user"])
    name = alias if alias is not None else plain_column(expression)
    if name is None:
        suggested = "_".join(re.findall(r"[a-z]\w*", expression.lower())[:3]) or "name"
        found = f"found {show(text)}, an expression without a name"
        expected = "a column, or `expression AS name`"
        problems.append(Problem(found, expected=expected, remedy=f"write `{expression} AS {suggested}`"))
    else:
        problems.extend(column_name_problems(name, f"write `{expression} AS another_name`"))
    raise_any(problems)
    return text


def column_name_problems(name: str, remedy: str) -> list[Problem]:
    """Return why a column of a table may not have this name."""
    if name.lower() in RESERVED_COLUMNS:
        return [Problem(f"the name `{name}` is reserved for a column of the product", remedy=remedy)]
    illegal = sorted(ILLEGAL_IN_COLUMNS & set(name))
    if illegal or not name:
        found = f"the column name {name!r} holds {', '.join(map(repr, illegal)) or 'nothing'}"
        return [Problem(found, expected="a name without any of ' ,;{}()=.`', tab and new line", remedy=remedy)]
    return []


Expression = Annotated[str, BeforeValidator(_expression), text_schema()]
InstantExpression = Annotated[
    str, BeforeValidator(_instant), text_schema(**{"not": {"pattern": r"^\s*[-+]?[0-9.]+\s*$"}})
]
Aggregate = Annotated[str, BeforeValidator(_aggregate), text_schema()]
GroupItem = Annotated[str, BeforeValidator(_group_item), text_schema()]
