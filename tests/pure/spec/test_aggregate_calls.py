"""Aggregates: what they evaluate on rows, what they add up, what they make of it."""

import pytest

from tidemark.timeops.expressions.aggregates import SUMS, calls_of, cut, on_rows

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


@pytest.mark.parametrize("aggregate", ON_ROWS)
def test_arguments_are_evaluated_on_rows_where_a_filter_is_true(aggregate: str) -> None:
    assert cut(aggregate).on_rows == ON_ROWS[aggregate]


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
    assert [text[one.start : one.stop] for one in found] == [
        "sum(DISTINCT a)",
        "try_sum(b + 1) FILTER (WHERE c > 0)",
    ]
