"""Expressions: which are functions of the arrival log, what is said of the others, and aggregates cut into sums."""

import pytest

from tidemark.timeops.expressions.aggregate_calls import calls_of
from tidemark.timeops.expressions.aggregates import SUMS, cut, on_rows
from tidemark.timeops.expressions.determinism import determinism_problems, in_event_order, order_problems
from tidemark.timeops.expressions.tokens import normal_form, plain_column, split_alias, top_level_names

DETERMINISTIC = [
    # A column of any name: only a call is the function.
    *["time", "now", "rand", "uuid", "a.now", "`now`", "current_user.name", "struct(id AS user)"],
    *["transform(xs, user -> user + 1)", "aggregate(xs, 0, (total, user) -> total + user)"],
    # Words of SQL that begin no query here.
    *["selected", "max(from)", "(from + 1)", "(table)", "(from IS NULL)", "over > 3", "id IN (1, 2)"],
    *["overlay(name PLACING 'x' FROM 1)", "extract(day FROM time)", "trim(BOTH 'x' FROM name)"],
    # Functions of the record.
    *["timestamp_millis(epoch)", "unix_timestamp(time)", "current_timezone()", "named_struct('a', 1).a"],
    *["CASE type WHEN 'a' THEN t1 ELSE t2 END", "count(*) FILTER (WHERE mag > 1)"],
    # Texts and comments.
    *["timestamp'2026-01-01 00:00:00'", "timestamp'epoch'", "parts['epoch']", "id || 'to' || 'day'", r"r'n\u006fw'"],
    *[
        "'now()'",
        '"rand()"',
        "r'now()'",
        "'it''s now()'",
        "'it\\'s now()'",
        "1 -- now()",
        "/* /* now() */ rand() */ 1",
    ],
    *["status LIKE 'now'", "status = 'now playing'", "status = 'todays'"],
]


@pytest.mark.parametrize("expression", DETERMINISTIC)
def test_a_function_of_the_record_is_accepted(expression: str) -> None:
    assert determinism_problems(expression) == []


REFUSED = [
    ("reads the clock", "_arrival_time", ["now()", "NOW ( )", "now/* x */()", "`now`()", "system.builtin.now()"]),
    ("reads the clock", "_arrival_time", ["'it\\'s' || now()", "r'\\' || now()", "unix_timestamp()", "curdate()"]),
    ("reads the clock", "_arrival_time", ["current_timestamp", "CURRENT_DATE", "`current_date`", "current_date()"]),
    ("reads the clock", "_arrival_time", ["current_time(3)", "localtimestamp()", "localtimestamp"]),
    ("as the clock", "_arrival_time", ["timestamp'now'", 'timestamp /* x */ " Today UTC"', "date'yesterday'"]),
    ("as the clock", "_arrival_time", ["date r'tomorrow Europe/Berlin'", "CAST('now' AS TIMESTAMP)"]),
    ("as the clock", "_arrival_time", ["CAST('n' 'ow' AS TIMESTAMP)", "CAST(concat('n', 'ow') AS TIMESTAMP)"]),
    ("as the clock", "_arrival_time", [r"CAST('n\u006fw' AS TIMESTAMP)", r"CAST('n\157w' AS TIMESTAMP)"]),
    ("as the clock", "_arrival_time", ["('to' || 'morrow') :: date"]),
    ("as the clock", "LIKE 'now'", ["time < 'now'"]),
    ("as 1970-01-01", "LIKE 'epoch'", ["CAST('epoch' AS TIMESTAMP)"]),
    ("random", "_arrival_seq", ["rand()", "rand(7)", "random()", "randn()", "uniform(1, 2)", "randstr(3)", "uuid()"]),
    ("random", "_arrival_seq", ["shuffle(xs)", "base64(aes_encrypt(a, b))"]),
    ("random", "percentile(x, 0.5)", ["kll_sketch_get_n_bigint(kll_sketch_agg_bigint(n))"]),
    (
        "split into files",
        "_arrival_seq",
        ["monotonically_increasing_id()", "spark_partition_id()", "input_file_name()"],
    ),
    ("split into files", "_arrival_seq", ["input_file_block_start()", "input_file_block_length()"]),
    ("who runs the pipeline", "as text", ["current_user", "current_user()", "user", "user()", "session_user"]),
    ("who runs the pipeline", "as text", ["current_database()", "version()"]),
    ("Tidemark cannot check", "Spark SQL", ["reflect('java.lang.System', 'nanoTime')", "java_method('a', 'b')"]),
    ("hides the name", "the name itself", ["identifier('no' || 'w')()"]),
    ("fails the whole batch", "null", ["raise_error('x')", "assert_true(a > 1)"]),
    ("reads other tables", "columns of the record", ["(SELECT 1)", "id IN (select id FROM t)", "(TABLE t)"]),
    ("reads other tables", "columns of the record", ["exists(FROM t SELECT 1)", "(VALUES 1)"]),
    ("reads other tables", "columns of the record", ["(WITH q AS (VALUES 1) TABLE q)"]),
    ("order of rows", "theta_sketch_agg", ["tuple_sketch_agg_double(k, x)"]),
    ("order of rows", "sum(v[0])", ["vector_sum(v)"]),
    ("metric views", "sum(n)", ["measure(n)"]),
    ("window function", "`windows`", ["count(*) OVER (PARTITION BY id)", "lag(x) IGNORE NULLS OVER (ORDER BY y)"]),
]


@pytest.mark.parametrize(
    ("why", "instead", "expression"), [(*words, one) for *words, expressions in REFUSED for one in expressions]
)
def test_what_is_no_function_of_the_record_is_refused_with_another_way(
    why: str, instead: str, expression: str
) -> None:
    problem = determinism_problems(expression)[0]
    assert why in problem.found
    assert "the same log leads to the same tables" in problem.expected
    assert instead in problem.remedy


@pytest.mark.parametrize("expression", ["(a", "a)", "'a", '"a', "`a", "a /* b", "[a)", "a /* /* b */"])
def test_an_expression_that_is_not_whole_is_refused(expression: str) -> None:
    [problem] = determinism_problems(expression)
    assert "is incomplete" in problem.found


def test_a_column_called_user_hides_the_function_but_not_its_call() -> None:
    assert determinism_problems("user = 'x'", columns=["User"]) == []
    assert determinism_problems("user()", columns=["user"]) != []


def test_all_problems_of_an_expression_are_found() -> None:
    found = [problem.found for problem in determinism_problems("rand() + unix_timestamp() + rand()")]
    assert found == ["`rand()` is random", "`unix_timestamp()` reads the clock"]


ORDER_FREE = [
    *["count(*)", "sum(mag)", "count(DISTINCT user_name)", "percentile(mag, 0.5)", "approx_percentile(mag, 0.5)"],
    *["'first(x)'", "max(first)", "max(struct(y, x)).x", "mode(x, true)", "mode() WITHIN GROUP (ORDER BY x)"],
    # The arrival number makes the order a total one.
    *["max_by(x, _arrival_seq)", "max_by(x, (y, _arrival_seq))", "min_by(x, struct(_timestamp, _arrival_seq))"],
    *["max_by(x, struct(y, _arrival_seq))", "max_by(x, struct(y, `_arrival_seq`), 3)", "max_by(x, struct(n, x))"],
    *["min_by(x, struct(y, -_arrival_seq AS latest))", "max_by(x, array(y, struct(z, _arrival_seq)))"],
    # Lists that are sorted, and sets that are only counted.
    "transform(array_sort(collect_list(struct(_timestamp, _arrival_seq, x))), s -> s.x)",
    *["array_sort(collect_list(x) FILTER (WHERE x > (1 + 2)))", "sort_array(collect_list(x), false)"],
    *["array_sort(collect_set(x))", "sort_array(collect_set(DISTINCT x))", "size(collect_set(x))"],
    "array_join(array_sort(array_agg(x)), ',')",
    # Sketches.
    *["theta_sketch_agg(x)", "count_min_sketch(x, 0.01D, 0.9D, 1)"],
    "hll_sketch_estimate(hll_sketch_agg(x) FILTER (WHERE y))",
]


@pytest.mark.parametrize("expression", ORDER_FREE)
def test_an_aggregate_that_needs_no_order_of_rows_is_accepted(expression: str) -> None:
    assert order_problems(expression) == []


FIRST = "min_by(x, struct(_timestamp, _arrival_seq))"
LAST = "max_by(x, struct(_timestamp, _arrival_seq))"
WITH_VALUE = f"{FIRST} FILTER (WHERE (x) IS NOT NULL)"
IN_EVENT_ORDER = {
    **dict.fromkeys(["first(x)", "FIRST_VALUE( x )", "any_value(x)", "first(x, FALSE)", "first(DISTINCT x)"], FIRST),
    **dict.fromkeys(["first(x) RESPECT NULLS", "first(x) -- first"], FIRST),
    **dict.fromkeys(["first(x, true)", "first(x) IGNORE NULLS", "any_value(x ignore nulls)"], WITH_VALUE),
    "last_value(x)": LAST,
    "`last`(x)": LAST,
    "1 + coalesce(last(x), 0)": f"1 + coalesce({LAST}, 0)",
    "last(x) - first(x)": f"{LAST} - {FIRST}",
    "last(a.b + 1)": "max_by(a.b + 1, struct(_timestamp, _arrival_seq))",
    "last(x) FILTER (WHERE y > 1)": f"{LAST} FILTER (WHERE (y > 1))",
    "first(x) FILTER (WHERE y IN (1, 2) OR z) IGNORE NULLS + 1": (
        f"{FIRST} FILTER (WHERE (y IN (1, 2) OR z) AND (x) IS NOT NULL) + 1"
    ),
    **{
        text: text
        for text in ["count(first)", "'first(x)'", "first + last", "max(s.first)", "first()", "first(x, y)"]
    },
}


@pytest.mark.parametrize("expression", IN_EVENT_ORDER)
def test_a_first_or_last_value_is_that_of_the_first_or_last_event(expression: str) -> None:
    assert in_event_order(expression).removesuffix(" -- first") == IN_EVENT_ORDER[expression]


@pytest.mark.parametrize("expression", ["first()", "first(x, y)", "any_value(x, 1)", "last(x, true, 1)"])
def test_a_first_value_of_anything_else_is_refused(expression: str) -> None:
    assert "among `aggregates`" in order_problems(in_event_order(expression))[0].remedy


LIST = "transform(array_sort(collect_list(struct(_timestamp, _arrival_seq, x))), s -> s.x)"
REWRITTEN = [
    (LIST, ["collect_list(x)", "array_agg(x)", "array_sort(collect_list(x), (l, r) -> 0)"]),
    (LIST, ["array_sort(slice(collect_list(x), 1, 2))", "array_sort(collect_list(x)[0])"]),
    (LIST, ["transform(collect_list(x), s -> s)"]),
    (LIST.replace("seq, x", "seq, a + b AS value").replace("s.x", "s.value"), ["collect_list(a + b)"]),
    ("array_sort(collect_set(x))", ["array_agg(DISTINCT x)", "collect_set(x)"]),
    ("array_join(array_sort(collect_set(x)), ',')", ["listagg(DISTINCT x, ',')"]),
    (f"array_join({LIST}, ', ')", ["listagg(x, ', ')"]),
    (f"array_join({LIST}, '')", ["string_agg(x)"]),
    ("mode(x, true)", ["mode(x)", "mode(x, false)"]),
    ("max_by(x, struct(y, _arrival_seq))", ["max_by(x, y)"]),
    ("min_by(_arrival_seq, struct(f(y, 1), _arrival_seq))", ["min_by(_arrival_seq, f(y, 1))"]),
    ("max_by(x, struct(_arrival_seq % 2, _arrival_seq))", ["max_by(x, _arrival_seq % 2)"]),
    ("max_by(x, struct(struct(y, _arrival_seq % 2), _arrival_seq))", ["max_by(x, struct(y, _arrival_seq % 2))"]),
    ("max_by(x, struct(y + x, _arrival_seq))", ["max_by(x, y + x)"]),
    ("hll_sketch_estimate(hll_sketch_agg(x))", ["hll_sketch_agg(x)"]),
    ("hll_sketch_estimate(hll_union_agg(x, true))", ["hll_union_agg(x, true)"]),
    ("group_by: [x]", ["approx_top_k(x, 3)"]),
    ("percentile(x, array(0.25, 0.5, 0.75))", ["histogram_numeric(x, 5)"]),
]


@pytest.mark.parametrize(
    ("instead", "expression"), [(instead, one) for instead, expressions in REWRITTEN for one in expressions]
)
def test_an_order_dependent_aggregate_is_refused_with_a_rewriting_that_is_accepted(
    instead: str, expression: str
) -> None:
    problem = order_problems(expression)[0]
    assert "depends on the order" in problem.found
    assert instead in problem.remedy
    assert order_problems(problem.remedy.split("`")[1]) == []


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("net", ("net", None)),
        ("upper(net) AS region", ("upper(net)", "region")),
        ("upper(net) as `region`", ("upper(net)", "region")),
        ("CAST(net AS STRING)", ("CAST(net AS STRING)", None)),
        ("'x AS y'", ("'x AS y'", None)),
    ],
)
def test_a_name_after_as_is_split_off(text: str, parts: tuple[str, str | None]) -> None:
    assert split_alias(text) == parts


@pytest.mark.parametrize(
    ("text", "name"),
    [("net", "net"), ("`a b`", "a b"), ("a.b", None), ("1", None), ("f(x)", None), ("'x'", None)],
)
def test_a_plain_column_is_one_name(text: str, name: str | None) -> None:
    assert plain_column(text) == name


def test_expressions_that_differ_in_space_and_case_have_one_normal_form() -> None:
    assert normal_form("Upper( `net` )--x") == normal_form("upper(NET)")
    assert normal_form("f('A')") != normal_form("f('a')")


def test_the_column_names_of_a_ddl_text_are_read() -> None:
    ddl = "a STRING, `b c` MAP<STRING, STRUCT<user: INT, d: INT>>, e DECIMAL(3, 1) COMMENT 'x, y INT'"
    assert top_level_names(ddl) == ["a", "b c", "e"]


ON_ROWS = {
    "count(*)": (),
    "sum(v)": ("v",),
    "Max ( timestamp_millis(n) )": ("timestamp_millis(n)",),
    "count(DISTINCT a, f(b))": ("a", "f(b)"),
    "max_by(v, struct(t, _arrival_seq))": ("v", "struct(t, _arrival_seq)"),
    "array_sort(collect_list(struct(a, f(b))))": ("struct(a, f(b))",),
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY f(v) DESC)": ("0.5", "f(v)"),
    "any_value(f(x)) IGNORE NULLS": ("f(x)",),
    "listagg(DISTINCT f(a), ',') WITHIN GROUP (ORDER BY f(a) NULLS LAST)": ("f(a)", "','"),
    "sum(a) / count(b)": ("a", "b"),
    "max(a + last)": ("a + last",),
    "mode() WITHIN GROUP (ORDER BY last)": ("last",),
    "count(*) FILTER (WHERE f(x) > 1)": ("f(x) > 1",),
    "max(f(n)) FILTER (WHERE n < 9)": ("CASE WHEN n < 9\nTHEN f(n)\nEND",),
    "'max(f(n))'": (),
    "percentile(v, 0.5)": ("v", "0.5"),
    "hll_union_agg(sketch)": ("sketch", "hll_sketch_estimate(sketch\n)"),
}


@pytest.mark.parametrize(("aggregate", "arguments"), ON_ROWS.items())
def test_arguments_are_evaluated_on_rows_where_a_filter_is_true(aggregate: str, arguments: tuple[str, ...]) -> None:
    assert cut(aggregate).on_rows == arguments


def test_what_is_made_of_the_sums_is_apart_from_them() -> None:
    made = cut("timestamp_millis(max(a) + min(f(b)) FILTER (WHERE c > 0)) -- of both", "s")
    assert made.sums == {"s0": "max(a)", "s1": "min(f(b)) FILTER (WHERE c > 0)"}
    assert made.result == "timestamp_millis(s0 + s1) -- of both"


@pytest.mark.parametrize("aggregate", ["sum(v)", " count(*) FILTER (WHERE v > 1) ", "any_value(v) IGNORE NULLS"])
def test_one_call_and_no_more_is_its_own_result(aggregate: str) -> None:
    assert cut(aggregate).result is None


def test_expressions_of_several_aggregates_are_named_once() -> None:
    assert on_rows(["max(f(n))", "min(f(n)) + count(*)"]) == ("f(n)",)


def test_calls_of_one_argument_are_found_with_their_clauses() -> None:
    text = "coalesce(sum(DISTINCT a), 0) + try_sum(b + 1) FILTER (WHERE c > 0) / count(d) + max(sum)"
    found = calls_of(text, SUMS)
    assert [(one.function, one.argument, one.is_distinct, one.clauses) for one in found] == [
        ("sum", "a", True, ""),
        ("try_sum", "b + 1", False, " FILTER (WHERE c > 0)"),
    ]
    assert [text[one.start : one.stop] for one in found] == ["sum(DISTINCT a)", "try_sum(b + 1) FILTER (WHERE c > 0)"]
