"""Which Spark SQL expressions have results that are a function of the arrival log, and how to write the others so.

Here: checks on the words of an expression: clocks, randomness, subqueries, windows over rows, and aggregates that
depend on the order in which Spark meets the rows. Not here: types and columns: Spark may still refuse an expression
that passes.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from tidemark.timeops.errors.problems import Problem
from tidemark.timeops.expressions.aggregate_calls import AggregateCall, aggregate_calls
from tidemark.timeops.expressions.text_times import (
    PRINCIPLE,
    is_clock,
    is_time_of_day,
    parsed_time_problems,
    why,
    written_texts,
)
from tidemark.timeops.expressions.tokens import (
    Call,
    Token,
    balance_fault,
    calls,
    lambda_names,
    normal_form,
    part_of,
    plain_column,
    split_alias,
    tokenize,
)

_USE_ARRIVAL = "use `_arrival_time`, the instant at which the record arrived"
_USE_LOG = "use `_arrival_seq`, the record's place in the log, or a hash of its columns such as `xxhash64(id)`"
_USE_VALUE = "write the value itself as text"
_USE_NULL = "filter such rows with `where`, or return null for them"
_USE_ARRAY = "keep the array, or take one value of it, such as `array_max(x)` or `element_at(x, 1)`"
_USE_WINDOWS = "write `kind`, `size` and `hop` of the window, or `date_trunc('HOUR', x)` for a part of a time"
_USE_AGGREGATE = "write the aggregate itself, such as `sum(n)`"
_USE_ELEMENTS = "add up the elements, such as `array(sum(v[0]), sum(v[1]))`"
_USE_THETA = "use `theta_sketch_agg(key)` for the keys and `sum(n)` for what they add up to"
_USE_PERCENTILE = "use `percentile(x, 0.5)`, which is exact, or `approx_percentile(x, 0.5)`"
_REASONS = {
    **dict.fromkeys(
        ("now", "current_timestamp", "current_date", "current_time", "curdate", "localtimestamp"),
        ("reads the clock", _USE_ARRIVAL),
    ),
    **dict.fromkeys(
        ("rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "aes_encrypt"),
        ("is random", _USE_LOG),
    ),
    **dict.fromkeys(
        """monotonically_increasing_id spark_partition_id input_file_name input_file_block_start
        input_file_block_length""".split(),  # noqa: SIM905
        ("depends on how the input is split into files and partitions", _USE_LOG),
    ),
    **dict.fromkeys(
        """current_user user session_user current_catalog current_database current_schema
        current_path version""".split(),  # noqa: SIM905
        ("depends on who runs the pipeline, and where", _USE_VALUE),
    ),
    **dict.fromkeys(
        ("reflect", "java_method", "try_reflect"),
        ("calls code that Tidemark cannot check", "use Spark SQL functions"),
    ),
    **dict.fromkeys(("raise_error", "assert_true"), ("fails the whole batch because of one row", _USE_NULL)),
    **dict.fromkeys(
        """explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple""".split(),  # noqa: SIM905
        ("turns one row into several, but an expression has one value", _USE_ARRAY),
    ),
    **dict.fromkeys(
        ("window", "session_window", "window_time"),
        ("makes its own windows, in addition to the entries of `windows`", _USE_WINDOWS),
    ),
    "measure": ("is a function of metric views, which a pipeline does not read", _USE_AGGREGATE),
    **dict.fromkeys(
        ("vector_avg", "vector_sum"),
        ("adds up in the seven digits of FLOAT, which depends on the order of rows", _USE_ELEMENTS),
    ),
    **dict.fromkeys(
        (f"tuple_{kind}_agg_{of}" for kind in ("sketch", "union", "intersection") for of in ("double", "integer")),
        ("makes a sketch whose bytes depend on the order of rows", _USE_THETA),
    ),
    "identifier": ("hides the name that it refers to", "write the name itself"),
}
_BARE = frozenset(
    """current_timestamp current_date current_time localtimestamp current_user session_user
    user""".split()  # noqa: SIM905
)

_INSTANT_LITERALS = frozenset({"timestamp", "timestamp_ltz"})
_LIKE = frozenset({"like", "ilike", "rlike", "regexp"})
_AFTER_NAME = frozenset({"is", "in", "like", "between", "and", "or", "not", "as", "ilike", "rlike", "div"})
_EVENT_ORDER = "struct(_timestamp, _arrival_seq)"
_OF_EVENT_ORDER = {
    **dict.fromkeys(("first", "first_value", "any_value"), "min_by"),
    **dict.fromkeys(("last", "last_value"), "max_by"),
}
_ORDER_FREE = frozenset({"array_sort", "sort_array", "size", "cardinality", "array_size", "array_min", "array_max"})
_HOLDERS = frozenset({"struct", "named_struct", "array"})


def determinism_problems(expression: str, columns: Collection[str] = ()) -> list[Problem]:
    """Find clocks, randomness, subqueries and window functions: what is not a function of the record.

    Args:
        expression: Spark SQL.
        columns: Columns in sight. One that is called `user` or `current_date` hides the function of this name, as in
            Spark.

    Returns:
        What is wrong, with why, and what to use instead.
    """
    tokens = tokenize(expression)
    fault = balance_fault(tokens)
    if fault:
        return [Problem(f"the expression {expression!r} is incomplete: {fault}", expected="a Spark SQL expression")]
    hidden = {name.lower() for name in columns} | lambda_names(tokens)
    checks = (
        _refused_calls(tokens),
        _refused_names(tokens, hidden),
        _clock_words(expression, tokens),
        parsed_time_problems(expression, tokens),
        _queries(tokens),
    )
    return list(dict.fromkeys(problem for problems in checks for problem in problems))


def _refused(shown: str, why: str, remedy: str) -> Problem:
    return Problem(f"`{shown}` {why}", expected=PRINCIPLE, remedy=remedy)


def _refused_calls(tokens: Sequence[Token]) -> Iterable[Problem]:
    for call in calls(tokens):
        if call.name in _REASONS:
            yield _refused(f"{call.name}()", *_REASONS[call.name])
        elif call.name.startswith("kll_"):
            yield _refused(f"{call.name}()", "is random", _USE_PERCENTILE)
        elif call.name == "unix_timestamp" and not call.arguments:
            yield _refused("unix_timestamp()", "reads the clock", f"name a column, or {_USE_ARRIVAL}")


def _refused_names(tokens: Sequence[Token], hidden: Collection[str]) -> Iterable[Problem]:
    """Find functions that Spark calls without brackets when no column has their name."""
    for position, token in enumerate(tokens):
        if not token.is_name or token.lower not in _BARE or token.lower in hidden:
            continue
        before = tokens[position - 1].lower if position else ""
        after = "".join(other.lower for other in tokens[position + 1 : position + 3])
        is_field_or_alias = before in (".", "as") or after.startswith((".", "(", "->"))
        if not is_field_or_alias:
            yield _refused(token.lower, *_REASONS[token.lower])


def _clock_words(expression: str, tokens: Sequence[Token]) -> Iterable[Problem]:
    for before, text in written_texts(expression, tokens):
        if before.lower in _INSTANT_LITERALS and is_time_of_day(text):
            yield _refused(
                f"{before.text} '{text}'", "means that time today, by the machine's clock", "write the date too"
            )
        elif before.lower not in _LIKE and is_clock(text):
            remedy = f"{_USE_ARRIVAL}; to compare with the text itself write `LIKE '{text.strip()}'`"
            yield _refused(f"'{text}'", why(text), remedy)


def _queries(tokens: Sequence[Token]) -> Iterable[Problem]:
    """Find subqueries and window functions."""
    for position, token in enumerate(tokens):
        before = tokens[position - 1].lower if position else ""
        after = tokens[position + 1] if position + 1 < len(tokens) else Token("symbol", "", 0, 0)
        if token.kind == "word" and before == "(" and _opens_query(token.lower, after):
            yield _refused(
                "subquery", "reads other tables, which are not in the log", "use only columns of the record"
            )
        elif token.lower == "over" and after.lower == "(":
            why = "is a SQL window function, and the rows that it sees depend on how the log is cut into batches"
            yield _refused(
                "OVER (...)", why, "use an entry of `windows` with `aggregates`, or `top` for the first rows"
            )


def _opens_query(word: str, after: Token) -> bool:
    """Return whether these two words, after a bracket, begin a query; `from` and `table` may be columns too."""
    if word == "select":
        return after.text not in (")", ".", ",")
    if word in ("from", "table", "with"):
        return after.is_name and after.lower not in _AFTER_NAME
    return word == "values" and (after.lower == "(" or after.kind in ("word", "string", "quoted"))


def in_event_order(aggregate: str) -> str:
    """Return an aggregate in which a first or last value is that of the first or last event.

    Events are in the order of (`_timestamp`, `_arrival_seq`), so that the value is the same however Spark reads the
    rows. The value may be null, unless nulls are left out by `IGNORE NULLS` or true as second argument.
    """
    text, copied = "", 0
    for call in aggregate_calls(aggregate):
        if _takes_one_value(call):
            text += aggregate[copied : call.start] + _by_event_order(call)
            copied = call.stop
    return text + aggregate[copied:]


def _takes_one_value(call: AggregateCall) -> bool:
    """Return whether a call is of a first or last value, perhaps with true or false as a second argument."""
    skips = [argument.lower() for argument in call.arguments[1:]]
    return call.function in _OF_EVENT_ORDER and any(call.arguments[:1]) and skips in ([], ["true"], ["false"])


def _by_event_order(call: AggregateCall) -> str:
    value, conditions = call.arguments[0], [f"({call.condition})"] if call.condition else []
    if call.skips_nulls or [argument.lower() for argument in call.arguments[1:]] == ["true"]:
        conditions.append(f"({value}) IS NOT NULL")
    only = f" FILTER (WHERE {' AND '.join(conditions)})" if conditions else ""
    return f"{_OF_EVENT_ORDER[call.function]}({value}, {_EVENT_ORDER}){only}"


def order_problems(expression: str) -> list[Problem]:
    """Find aggregates whose value depends on the order in which Spark meets the rows.

    Returns:
        What is wrong, with the rewriting that goes by (`_timestamp`, `_arrival_seq`) or needs no order.
    """
    tokens = tokenize(expression)
    every = calls(tokens)
    problems = []
    for call in every:
        use = _Use(expression, tokens, call, every)
        instead = _REWRITES[call.name](use) if call.name in _REWRITES else ""
        if instead:
            problems.append(
                Problem(
                    f"`{use.text}` depends on the order in which Spark reads rows, which differs from run to run",
                    expected="an aggregate ordered by (_timestamp, _arrival_seq), or one that needs no order",
                    remedy=f"write {instead}",
                )
            )
    return problems


@dataclass(frozen=True)
class _Use:
    """One call, and the expression that it is in."""

    expression: str
    tokens: Sequence[Token]
    call: Call
    every: Sequence[Call]

    @property
    def text(self) -> str:
        return self.expression[self.call.start : self.call.stop]

    def argument(self, position: int) -> str:
        """Return the text of an argument without DISTINCT and null treatment; `x` when there is none."""
        if position >= len(self.call.arguments):
            return "x"
        text = part_of(self.expression, self.call.arguments[position])
        text = re.sub(r"^distinct\s+", "", text, flags=re.IGNORECASE)
        return re.sub(r"\s+(?:ignore|respect)\s+nulls$", "", text, flags=re.IGNORECASE)

    def is_distinct(self) -> bool:
        """Return whether `DISTINCT` is before the first argument."""
        first = self.call.arguments[0] if self.call.arguments else ()
        return len(first) > 1 and first[0].lower == "distinct"

    def is_taken_by(self, functions: Collection[str]) -> bool:
        """Return whether the call, with a FILTER or not, is just what one of some functions takes.

        A comparator as second argument of `array_sort` may leave ties, so it does not count as a sort.
        """
        for outer in self.every:
            first = outer.arguments[0] if outer.arguments else ()
            if outer.name not in functions or not first or first[0] is not self.tokens[self.call.position]:
                continue
            tokens = self.tokens[self.call.end : outer.position + 2 + len(first)]
            is_filtered = bool(tokens) and tokens[0].lower == "filter" and tokens[-1].lower == ")"
            has_comparator = outer.name == "array_sort" and len(outer.arguments) > 1
            return (not tokens or is_filtered) and not has_comparator
        return False


def _in_event_order(column: str) -> str:
    is_plain = plain_column(column) is not None
    named, field = (column, column) if is_plain else (f"{column} AS value", "value")
    return f"transform(array_sort(collect_list(struct(_timestamp, _arrival_seq, {named}))), s -> s.{field})"


def _list(use: _Use) -> str:
    if use.is_taken_by(_ORDER_FREE):
        return ""
    if use.is_distinct():
        return f"`array_sort(collect_set({use.argument(0)}))`"
    nulls = f"`FILTER (WHERE {use.argument(0)} IS NOT NULL)`"
    return f"`{_in_event_order(use.argument(0))}`; {nulls} after collect_list(...) leaves nulls out"


def _set(use: _Use) -> str:
    return "" if use.is_taken_by(_ORDER_FREE) else f"`array_sort(collect_set({use.argument(0)}))`"


def _joined(use: _Use) -> str:
    separator = use.argument(1) if len(use.call.arguments) > 1 else "''"
    column = use.argument(0)
    values = f"array_sort(collect_set({column}))" if use.is_distinct() else _in_event_order(column)
    return f"`array_join({values}, {separator})`"


def _mode(use: _Use) -> str:
    # mode() WITHIN GROUP (ORDER BY x) settles ties by the order it names.
    is_settled = not use.call.arguments or use.argument(1).lower() == "true"
    return "" if is_settled else f"`mode({use.argument(0)}, true)`"


def _extreme(use: _Use) -> str:
    value, order = use.argument(0), use.argument(1)
    if _settles_ties(order, value):
        return ""
    return f"`{use.call.name}({value}, struct({order}, _arrival_seq))`, which settles ties"


def _settles_ties(order: str, value: str) -> bool:
    """Return whether a rank is or holds the place in the log, or the value: rows of one rank then have one value."""
    settling = {"_arrival_seq", "- _arrival_seq", normal_form(value)}
    if normal_form(split_alias(order)[0]) in settling:
        return True
    text = f"struct{order}" if order.startswith("(") else order
    tokens = tokenize(text)
    for call in calls(tokens)[:1]:
        if call.name in _HOLDERS and call.position == 0 and call.end == len(tokens):
            return any(_settles_ties(part_of(text, argument), value) for argument in call.arguments if argument)
    return False


def _sketch(use: _Use) -> str:
    if use.is_taken_by({"hll_sketch_estimate"}):
        return ""
    return f"`hll_sketch_estimate({use.text})`: the estimate, as the bytes of a sketch differ"


def _most_frequent(use: _Use) -> str:
    item = use.argument(0)
    counted = f"`count(*)` in a window with `group_by: [{item}]`"
    return f"{counted}, and `max_by(item, struct(n, item), 3)` in one that reads it with `from`"


def _histogram(use: _Use) -> str:
    return f"`percentile({use.argument(0)}, array(0.25, 0.5, 0.75))`, or one `count_if` per range"


_REWRITES: dict[str, Callable[[_Use], str]] = {
    **dict.fromkeys(
        _OF_EVENT_ORDER, lambda use: f"{use.call.name}(x) among `aggregates`, with `IGNORE NULLS` or not"
    ),
    **dict.fromkeys(("collect_list", "array_agg"), _list),
    "collect_set": _set,
    **dict.fromkeys(("listagg", "string_agg"), _joined),
    "mode": _mode,
    **dict.fromkeys(("max_by", "min_by"), _extreme),
    "histogram_numeric": _histogram,
    **dict.fromkeys(("hll_sketch_agg", "hll_union_agg"), _sketch),
    **dict.fromkeys(("approx_top_k", "approx_top_k_accumulate", "approx_top_k_combine"), _most_frequent),
}
