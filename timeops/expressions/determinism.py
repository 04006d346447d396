"""Which Spark SQL expressions give results that are a function of the arrival log.

Here: checks on the words of an expression: clocks, randomness, subqueries, windows over rows. Not here: the
order of rows (aggregate_order.py); types and columns: Spark may still refuse an expression that passes.
"""

from collections.abc import Collection, Iterable, Sequence

from tidemark.timeops.expressions.aggregate_order import order_problems
from tidemark.timeops.expressions.clock_texts import is_clock, why, written_texts
from tidemark.timeops.expressions.tokens import Token, balance_fault, calls, lambda_names, tokenize
from tidemark.timeops.problems import Problem, told

_USE_ARRIVAL = "use `_arrival_time`, the instant at which the record arrived"
_USE_LOG = "use `_arrival_seq`, the record's place in the log, or a hash of its columns such as `xxhash64(id)`"
_USE_VALUE = "write the value itself as text"
_USE_NULL = "filter such rows with `where`, or give null for them"
_USE_ARRAY = "keep the array, or take one value of it, such as `array_max(x)` or `element_at(x, 1)`"
_USE_WINDOWS = "write `kind`, `size` and `hop` of the window, or `date_trunc('HOUR', x)` for a part of a time"
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
        (
            "monotonically_increasing_id",
            "spark_partition_id",
            "input_file_name",
            "input_file_block_start",
            "input_file_block_length",
        ),
        ("depends on how the input is cut into files and partitions", _USE_LOG),
    ),
    **dict.fromkeys(
        (
            "current_user",
            "user",
            "session_user",
            "current_catalog",
            "current_database",
            "current_schema",
            "current_path",
            "version",
        ),
        ("depends on who runs the pipeline, and where", _USE_VALUE),
    ),
    **dict.fromkeys(
        ("reflect", "java_method", "try_reflect"),
        ("calls code that cannot be judged", "use Spark SQL functions"),
    ),
    **dict.fromkeys(
        ("raise_error", "assert_true"), ("fails the whole batch, where one row must never do so", _USE_NULL)
    ),
    **dict.fromkeys(
        (
            "explode",
            "explode_outer",
            "posexplode",
            "posexplode_outer",
            "inline",
            "inline_outer",
            "stack",
            "json_tuple",
        ),
        ("makes several rows of one, where one value is asked for", _USE_ARRAY),
    ),
    **dict.fromkeys(
        ("window", "session_window", "window_time"),
        ("makes windows of its own, beside those of `windows`", _USE_WINDOWS),
    ),
    "identifier": ("hides the name that it stands for", "write the name itself"),
}
_BARE = frozenset(
    (
        "current_timestamp",
        "current_date",
        "current_time",
        "localtimestamp",
        "current_user",
        "session_user",
        "user",
    )
)
_PRINCIPLE = "a result that is a function of the arrival log: the same log gives the same tables"

_LIKE = frozenset({"like", "ilike", "rlike", "regexp"})
_AFTER_NAME = frozenset({"is", "in", "like", "between", "and", "or", "not", "as", "ilike", "rlike", "div"})


def check_deterministic(expression: str, *, where: str, columns: Collection[str] = ()) -> None:
    """Refuse clocks, randomness, subqueries and window functions: what is no function of the record.

    Args:
        expression: Spark SQL.
        where: Name of the place, such as `time.timestamp_by`, for the message.
        columns: Columns in sight. One that is called `user` or `current_date` hides the function of this
            name, as in Spark.

    Raises:
        SpecError: With why, and what to use instead.
    """
    _raise_first(determinism_problems(expression, columns), where)


def check_aggregate(expression: str, *, where: str) -> None:
    """Refuse an aggregate whose value depends on the order in which Spark meets the rows.

    Raises:
        SpecError: With the rewriting that goes by (`_timestamp`, `_arrival_seq`) or needs no order.
    """
    _raise_first(order_problems(expression), where)


def _raise_first(problems: Iterable[Problem], where: str) -> None:
    for problem in problems:
        raise told(problem, where)


def determinism_problems(expression: str, columns: Collection[str] = ()) -> list[Problem]:
    """Return what `check_deterministic` would refuse."""
    tokens = tokenize(expression)
    fault = balance_fault(tokens)
    if fault:
        return [Problem(f"the expression {expression!r} is not whole: {fault}", expected="a Spark SQL expression")]
    hidden = {name.lower() for name in columns} | lambda_names(tokens)
    checks = (
        _refused_calls(tokens),
        _refused_names(tokens, hidden),
        _clock_words(expression, tokens),
        _queries(tokens),
    )
    return list(dict.fromkeys(problem for found in checks for problem in found))


def _refused(shown: str, why: str, remedy: str) -> Problem:
    return Problem(f"`{shown}` {why}", expected=_PRINCIPLE, remedy=remedy)


def _refused_calls(tokens: Sequence[Token]) -> Iterable[Problem]:
    for call in calls(tokens):
        if call.name in _REASONS:
            yield _refused(f"{call.name}()", *_REASONS[call.name])
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
        if before.lower not in _LIKE and is_clock(text):
            remedy = f"{_USE_ARRIVAL}; to compare with the text itself write `LIKE '{text.strip()}'`"
            yield _refused(f"'{text}'", why(text), remedy)


def _queries(tokens: Sequence[Token]) -> Iterable[Problem]:
    """Find subqueries and window functions."""
    for position, token in enumerate(tokens):
        before = tokens[position - 1].lower if position else ""
        after = tokens[position + 1] if position + 1 < len(tokens) else Token("symbol", "", 0, 0)
        if token.kind == "word" and before == "(" and _opens_query(token.lower, after):
            yield _refused(
                "subquery", "reads other tables, which are not in the log", "use columns of the record only"
            )
        elif token.lower == "over" and after.lower == "(":
            why = "is a window function over rows, whose neighbours depend on how the log is cut"
            yield _refused("OVER (...)", why, "use an entry of `windows` with `aggregates`")


def _opens_query(word: str, after: Token) -> bool:
    """Whether these two words, behind a bracket, begin a query; `from` and `table` may be columns too."""
    if word == "select":
        return after.text not in (")", ".", ",")
    if word in ("from", "table", "with"):
        return after.is_name and after.lower not in _AFTER_NAME
    return word == "values" and (after.lower == "(" or after.kind in ("word", "string", "quoted"))
