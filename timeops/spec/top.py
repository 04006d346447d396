"""The `top` of a window: how many of its events are rows, and in which order they are the first.

Here: its keys, and the parts of an order as SQL writes them. Not here: the rows (timeops/windows/aggregates.py), the
types of the expressions (timeops/spec_check.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from tidemark.timeops.errors.problems import Problem, ProblemsError
from tidemark.timeops.expressions.tokens import Token, balance_fault, listed_parts, normal_form, part_of, tokenize
from tidemark.timeops.spec.fields import SpecModel, WholeNumber, read_expression, read_text, text_schema

TOP_RANK = "_rank"
"""INT: the place of an event among the first ones of its window and group, from 1."""


@dataclass(frozen=True)
class Order:
    """A part of an order of events.

    Attributes:
        expression: Spark SQL over an event.
        descends: The largest value is first.
        nulls_first: Events for which it is null are before all others.
    """

    expression: str
    descends: bool
    nulls_first: bool

    def sql(self, value: str) -> str:
        """Return it as a part of ORDER BY; `value` is SQL of the expression's value."""
        return f"{value} {'DESC' if self.descends else 'ASC'} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


def orders_of(by: str) -> tuple[Order, ...]:
    """Return the parts of an order such as `amount DESC, name`; nulls are where Spark SQL puts them."""
    return tuple(_order(by, part) for part in listed_parts(by))


def _order(by: str, part: Sequence[Token]) -> Order:
    words = [token.lower if token.kind == "word" else "" for token in part]
    nulls = ""
    if len(words) > 2 and words[-2] == "nulls" and words[-1] in ("first", "last"):
        nulls, words = words[-1], words[:-2]
    descends = len(words) > 1 and words[-1] == "desc"
    if len(words) > 1 and words[-1] in ("asc", "desc"):
        words = words[:-1]
    nulls_first = nulls == "first" if nulls else not descends
    return Order(part_of(by, part[: len(words)]), descends, nulls_first)


def _by(value: object) -> str:
    text = read_text(value)
    fault = balance_fault(tokenize(text))
    if fault:
        raise ProblemsError([Problem(f"the order {text!r} is incomplete: {fault}", expected="Spark SQL")])
    names = set[str]()
    for order in orders_of(text):
        if not order.expression:
            raise ProblemsError([Problem(f"found nothing next to a comma in {text!r}", expected="an expression")])
        read_expression(order.expression)
        if normal_form(order.expression) in names:
            fault = f"`{order.expression}` is in the order twice: the second one has no effect"
            raise ProblemsError([Problem(fault, remedy="leave it out")])
        names.add(normal_form(order.expression))
    return text


class Top(SpecModel):
    """The first events of each window and group, one row each."""

    n: WholeNumber = Field(description="How many events of a window and group are rows, at most.")
    by: Annotated[str, BeforeValidator(_by), text_schema()] = Field(
        description="Their order: expressions over events, each with ASC (default) or DESC and, if wanted, NULLS "
        "FIRST or NULLS LAST, such as `amount DESC, name`. Nulls come first with ASC and last with DESC."
    )
    ties: Literal["arrival"] = Field(
        default="arrival",
        description="Which of equal events is first: the one with the lower _timestamp, then the lower _arrival_seq.",
    )

    @property
    def orders(self) -> tuple[Order, ...]:
        """The parts of `by`."""
        return orders_of(self.by)
