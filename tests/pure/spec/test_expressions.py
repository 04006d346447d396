"""Expressions: which are functions of the arrival log, and what is said of the others."""

import pytest

from tidemark.timeops.expressions.determinism import determinism_problems, order_problems
from tidemark.timeops.expressions.tokens import normal_form, plain_column, split_alias, top_level_names

DETERMINISTIC = [
    "time",
    "now",  # Spark takes it for a column: only now() is the function
    "rand",
    "uuid",
    "a.now",
    "`now`",
    "timestamp_millis(epoch)",
    "CASE type WHEN 'a' THEN t1 ELSE t2 END",
    "timestamp'2026-01-01 00:00:00'",
    "timestamp'epoch'",
    "parts['epoch']",
    "id || 'to' || 'day'",
    r"r'n\u006fw'",
    "unix_timestamp(time)",
    "'now()'",
    '"rand()"',
    "r'now()'",
    "'it''s now()'",
    "'it\\'s now()'",
    "1 -- now()",
    "/* /* now() */ rand() */ 1",
    "status LIKE 'now'",
    "status = 'now playing'",
    "status = 'todays'",
    "current_user.name",
    "struct(id AS user)",
    "transform(xs, user -> user + 1)",
    "aggregate(xs, 0, (total, user) -> total + user)",
    "selected",
    "max(from)",
    "(from + 1)",
    "(table)",
    "(from IS NULL)",
    "over > 3",
    "id IN (1, 2)",
    "named_struct('a', 1).a",
    "overlay(name PLACING 'x' FROM 1)",
    "extract(day FROM time)",
    "trim(BOTH 'x' FROM name)",
    "count(*) FILTER (WHERE mag > 1)",
    "current_timezone()",
]


@pytest.mark.parametrize("expression", DETERMINISTIC)
def test_a_function_of_the_record_is_accepted(expression: str) -> None:
    assert determinism_problems(expression) == []


REFUSED = {
    "now()": ("reads the clock", "_arrival_time"),
    "NOW ( )": ("reads the clock", "_arrival_time"),
    "now/* x */()": ("reads the clock", "_arrival_time"),
    "`now`()": ("reads the clock", "_arrival_time"),
    "system.builtin.now()": ("reads the clock", "_arrival_time"),
    "'it\\'s' || now()": ("reads the clock", "_arrival_time"),
    "r'\\' || now()": ("reads the clock", "_arrival_time"),
    "current_timestamp": ("reads the clock", "_arrival_time"),
    "CURRENT_DATE": ("reads the clock", "_arrival_time"),
    "`current_date`": ("reads the clock", "_arrival_time"),
    "current_date()": ("reads the clock", "_arrival_time"),
    "curdate()": ("reads the clock", "_arrival_time"),
    "current_time(3)": ("reads the clock", "_arrival_time"),
    "localtimestamp()": ("reads the clock", "_arrival_time"),
    "localtimestamp": ("reads the clock", "_arrival_time"),
    "unix_timestamp()": ("reads the clock", "_arrival_time"),
    "timestamp'now'": ("as the clock", "_arrival_time"),
    'timestamp /* x */ " Today UTC"': ("as the clock", "_arrival_time"),
    "date'yesterday'": ("as the clock", "_arrival_time"),
    "date r'tomorrow Europe/Berlin'": ("as the clock", "_arrival_time"),
    "CAST('now' AS TIMESTAMP)": ("as the clock", "_arrival_time"),
    "time < 'now'": ("as the clock", "LIKE 'now'"),
    "CAST('n' 'ow' AS TIMESTAMP)": ("as the clock", "_arrival_time"),
    "CAST(concat('n', 'ow') AS TIMESTAMP)": ("as the clock", "_arrival_time"),
    "('to' || 'morrow') :: date": ("as the clock", "_arrival_time"),
    r"CAST('n\u006fw' AS TIMESTAMP)": ("as the clock", "_arrival_time"),
    r"CAST('n\157w' AS TIMESTAMP)": ("as the clock", "_arrival_time"),
    "CAST('epoch' AS TIMESTAMP)": ("as 1970-01-01", "LIKE 'epoch'"),
    "rand()": ("random", "_arrival_seq"),
    "rand(7)": ("random", "_arrival_seq"),
    "random()": ("random", "_arrival_seq"),
    "randn()": ("random", "_arrival_seq"),
    "uniform(1, 2)": ("random", "_arrival_seq"),
    "randstr(3)": ("random", "_arrival_seq"),
    "uuid()": ("random", "_arrival_seq"),
    "shuffle(xs)": ("random", "_arrival_seq"),
    "base64(aes_encrypt(a, b))": ("random", "_arrival_seq"),
    "monotonically_increasing_id()": ("cut into files", "_arrival_seq"),
    "spark_partition_id()": ("cut into files", "_arrival_seq"),
    "input_file_name()": ("cut into files", "_arrival_seq"),
    "input_file_block_start()": ("cut into files", "_arrival_seq"),
    "input_file_block_length()": ("cut into files", "_arrival_seq"),
    "current_user": ("who runs the pipeline", "as text"),
    "current_user()": ("who runs the pipeline", "as text"),
    "user": ("who runs the pipeline", "as text"),
    "user()": ("who runs the pipeline", "as text"),
    "session_user": ("who runs the pipeline", "as text"),
    "current_database()": ("who runs the pipeline", "as text"),
    "version()": ("who runs the pipeline", "as text"),
    "reflect('java.lang.System', 'nanoTime')": ("Tidemark cannot check", "Spark SQL"),
    "java_method('a', 'b')": ("Tidemark cannot check", "Spark SQL"),
    "identifier('no' || 'w')()": ("hides the name", "the name itself"),
    "raise_error('x')": ("fails the whole batch", "null"),
    "assert_true(a > 1)": ("fails the whole batch", "null"),
    "(SELECT 1)": ("reads other tables", "columns of the record"),
    "id IN (select id FROM t)": ("reads other tables", "columns of the record"),
    "exists(FROM t SELECT 1)": ("reads other tables", "columns of the record"),
    "(TABLE t)": ("reads other tables", "columns of the record"),
    "(VALUES 1)": ("reads other tables", "columns of the record"),
    "(WITH q AS (VALUES 1) TABLE q)": ("reads other tables", "columns of the record"),
    "kll_sketch_get_n_bigint(kll_sketch_agg_bigint(n))": ("random", "percentile(x, 0.5)"),
    "tuple_sketch_agg_double(k, x)": ("order of rows", "theta_sketch_agg"),
    "vector_sum(v)": ("order of rows", "sum(v[0])"),
    "measure(n)": ("metric views", "sum(n)"),
    "count(*) OVER (PARTITION BY id)": ("window function", "`windows`"),
    "lag(x) IGNORE NULLS OVER (ORDER BY y)": ("window function", "`windows`"),
}


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_no_function_of_the_record_is_refused_with_another_way(expression: str) -> None:
    why, instead = REFUSED[expression]
    problem = determinism_problems(expression)[0]
    assert why in problem.found
    assert "the same log leads to the same tables" in problem.expected
    assert instead in problem.remedy


@pytest.mark.parametrize("expression", ["(a", "a)", "'a", '"a', "`a", "a /* b", "[a)", "a /* /* b */"])
def test_an_expression_that_is_not_whole_is_refused(expression: str) -> None:
    [problem] = determinism_problems(expression)
    assert "not whole" in problem.found


def test_a_column_called_user_hides_the_function_but_not_its_call() -> None:
    assert determinism_problems("user = 'x'", columns=["User"]) == []
    assert determinism_problems("user()", columns=["user"]) != []


def test_all_problems_of_an_expression_are_found() -> None:
    found = [problem.found for problem in determinism_problems("rand() + unix_timestamp() + rand()")]
    assert found == ["`rand()` is random", "`unix_timestamp()` reads the clock"]


ORDER_FREE = [
    "count(*)",
    "sum(mag)",
    "count(DISTINCT user_name)",
    "percentile(mag, 0.5)",
    "approx_percentile(mag, 0.5)",
    "min_by(x, struct(_timestamp, _arrival_seq))",
    "max_by(x, struct(y, _arrival_seq))",
    "max_by(x, struct(y, `_arrival_seq`), 3)",
    "transform(array_sort(collect_list(struct(_timestamp, _arrival_seq, x))), s -> s.x)",
    "max_by(x, _arrival_seq)",
    "max_by(x, (y, _arrival_seq))",
    "min_by(x, struct(y, -_arrival_seq AS latest))",
    "max_by(x, struct(n, x))",
    "max_by(x, array(y, struct(z, _arrival_seq)))",
    "theta_sketch_agg(x)",
    "count_min_sketch(x, 0.01D, 0.9D, 1)",
    "hll_sketch_estimate(hll_sketch_agg(x) FILTER (WHERE y))",
    "array_sort(collect_list(x) FILTER (WHERE x > (1 + 2)))",
    "sort_array(collect_list(x), false)",
    "array_sort(collect_set(x))",
    "sort_array(collect_set(DISTINCT x))",
    "size(collect_set(x))",
    "array_join(array_sort(array_agg(x)), ',')",
    "mode(x, true)",
    "mode() WITHIN GROUP (ORDER BY x)",
    "'first(x)'",
    "max(first)",
    "max(struct(y, x)).x",
]


@pytest.mark.parametrize("expression", ORDER_FREE)
def test_an_aggregate_that_needs_no_order_of_rows_is_accepted(expression: str) -> None:
    assert order_problems(expression) == []


LIST = "transform(array_sort(collect_list(struct(_timestamp, _arrival_seq, x))), s -> s.x)"
REWRITTEN = {
    "first(x)": "min_by(x, struct(_timestamp, _arrival_seq))",
    "FIRST_VALUE(x)": "min_by(x, struct(_timestamp, _arrival_seq))",
    "any_value(x)": "min_by(x, struct(_timestamp, _arrival_seq))",
    "first(x, true)": "min_by(x, struct(_timestamp, _arrival_seq)) FILTER (WHERE x IS NOT NULL)",
    "first(x) IGNORE NULLS": "min_by(x, struct(_timestamp, _arrival_seq)) FILTER (WHERE x IS NOT NULL)",
    "any_value(x ignore nulls)": "min_by(x, struct(_timestamp, _arrival_seq)) FILTER (WHERE x IS NOT NULL)",
    "last(a.b + 1)": "max_by(a.b + 1, struct(_timestamp, _arrival_seq))",
    "last_value(x)": "max_by(x, struct(_timestamp, _arrival_seq))",
    "`last`(x)": "max_by(x, struct(_timestamp, _arrival_seq))",
    "1 + coalesce(last(x), 0)": "max_by(x, struct(_timestamp, _arrival_seq))",
    "collect_list(x)": LIST,
    "array_agg(x)": LIST,
    "array_agg(DISTINCT x)": "array_sort(collect_set(x))",
    "listagg(DISTINCT x, ',')": "array_join(array_sort(collect_set(x)), ',')",
    "collect_list(a + b)": LIST.replace("seq, x", "seq, a + b AS value").replace("s.x", "s.value"),
    "array_sort(collect_list(x), (l, r) -> 0)": LIST,
    "array_sort(slice(collect_list(x), 1, 2))": LIST,
    "array_sort(collect_list(x)[0])": LIST,
    "transform(collect_list(x), s -> s)": LIST,
    "collect_set(x)": "array_sort(collect_set(x))",
    "listagg(x, ', ')": f"array_join({LIST}, ', ')",
    "string_agg(x)": f"array_join({LIST}, '')",
    "mode(x)": "mode(x, true)",
    "mode(x, false)": "mode(x, true)",
    "max_by(x, y)": "max_by(x, struct(y, _arrival_seq))",
    "min_by(_arrival_seq, f(y, 1))": "min_by(_arrival_seq, struct(f(y, 1), _arrival_seq))",
    "max_by(x, _arrival_seq % 2)": "max_by(x, struct(_arrival_seq % 2, _arrival_seq))",
    "max_by(x, struct(y, _arrival_seq % 2))": "max_by(x, struct(struct(y, _arrival_seq % 2), _arrival_seq))",
    "max_by(x, y + x)": "max_by(x, struct(y + x, _arrival_seq))",
    "hll_sketch_agg(x)": "hll_sketch_estimate(hll_sketch_agg(x))",
    "hll_union_agg(x, true)": "hll_sketch_estimate(hll_union_agg(x, true))",
    "approx_top_k(x, 3)": "group_by: [x]",
    "histogram_numeric(x, 5)": "percentile(x, array(0.25, 0.5, 0.75))",
}


@pytest.mark.parametrize("expression", REWRITTEN)
def test_an_order_dependent_aggregate_is_refused_with_the_rewriting(expression: str) -> None:
    problem = order_problems(expression)[0]
    assert "depends on the order" in problem.found
    assert REWRITTEN[expression] in problem.remedy


@pytest.mark.parametrize("expression", [text for text in REWRITTEN if not text.startswith("histogram")])
def test_the_rewriting_itself_is_accepted(expression: str) -> None:
    remedy = order_problems(expression)[0].remedy
    assert order_problems(remedy.split("`")[1]) == []


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
def test_a_name_behind_as_is_split_off(text: str, parts: tuple[str, str | None]) -> None:
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
