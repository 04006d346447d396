"""Parts of the page: values as texts, which dead letters are shown, the accounts, charts of windows."""

from base64 import b64decode
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from tests.pure.report.shop import SPEC, WINDOWS, Shop, at, us
from tidemark.assets.display.pictures import draw_windows, svg
from tidemark.pipelines.report import accounts
from tidemark.pipelines.report.accounts import State, state_of
from tidemark.pipelines.report.page import MOST_ROWS, SHOWN_ROWS, of_sources, of_time, of_window, window_part
from tidemark.pipelines.terminal import any_value, length, no_more_than, share
from tidemark.resources import tables
from tidemark.timeops.spec import parse_spec


def state_in(made: Shop) -> State:
    state = state_of(made.workspace)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1234567, "1,234,567"),
        (0.1 + 0.2, "0.3"),
        (1234567.8, "1,234,568"),
        (Decimal("1234.50"), "1,234.50"),
        (datetime(2026, 1, 1, 12, tzinfo=UTC), "2026-01-01 12:00:00"),
        (datetime(2026, 1, 1, 12, 0, 0, 120_000, tzinfo=UTC), "2026-01-01 12:00:00.12"),
        (date(2026, 1, 1), "2026-01-01"),
        (b"\x01", "01"),
        (["a", None, date(2026, 1, 1)], '["a", null, "2026-01-01"]'),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, '{"at": "2026-01-01 00:00:00"}'),
        ("x" * 3_000, "x" * 2_000 + "… (3,000 letters in all)"),
    ],
)
def test_a_value_of_any_type_has_a_text(value: object, text: str) -> None:
    assert any_value(value) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (None, ""),
        (0, "0 µs"),
        (999, "999 µs"),
        (1_500_000, "1 s 500 ms"),
        (-3_600_000_000, "-1 h"),
        (90_061_000_000, "1 d 1 h"),
    ],
)
def test_a_length_is_told_by_its_two_largest_units(us: int | None, text: str) -> None:
    assert length(us) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0 µs"), (141_800_001, "2 min 21 s 801 ms"), (90_061_000_000, "1 d 1 h 2 min"), (-61_000_000, "-1 min 1 s")],
)
def test_a_bound_is_rounded_up(us: int, text: str) -> None:
    assert no_more_than(us) == text


def test_a_share_is_never_rounded_to_nothing_or_to_all() -> None:
    assert [share(n, 100_000) for n in (0, 1, 500, 99_999, 100_000)] == [
        "0.0 %",
        "< 0.1 %",
        "0.5 %",
        "> 99.9 %",
        "100.0 %",
    ]


def test_reasons_share_what_is_shown_and_few_leave_their_part_to_the_others() -> None:
    assert accounts.allotted({"a": 10_000, "b": 3, "c": 9_000}, 503) == {"b": 3, "c": 250, "a": 250}
    assert accounts.allotted({"a": 2, "b": 1}, 500) == {"b": 1, "a": 2}
    assert accounts.allotted({}, 500) == {}


def test_the_newest_dead_letters_of_each_reason_are_shown(tmp_path: Path) -> None:
    made = Shop(tmp_path).create()
    made.ingest(1_000)
    early = [{"reason": "early"}] * 5
    made.process(ordered=1, held=0, refused=[*early, *([{}] * 994)])
    state = state_in(made)
    by_reason = state.dead_letters
    assert by_reason == {"early": 5, "out_of_order": 994}
    shown = accounts.newest_dead_letters(state, by_reason)
    assert [one["_arrival_seq"] for one in shown] == [*range(999, 504, -1), 5, 4, 3, 2, 1]


def test_dead_letters_of_windows_count_beside_the_records(tmp_path: Path) -> None:
    made = Shop(tmp_path, SPEC + WINDOWS).create()
    made.ingest(10)
    made.counts |= {"per_minute.in_windows": 7, "per_minute.window_closed": 3}
    made.process(ordered=6, held=4)
    state = state_in(made)
    assert state.dead_letters == {"window_closed": 3}
    assert [(place.name, place.records) for place in accounts.places(state)] == [("ordered", 6), ("held", 4)]
    [window] = accounts.windows(state)
    assert (window.accepted, window.inside, window.closed) == (10, 7, 3)


def test_a_window_s_last_rows_are_shown_newest_first_and_drawn_for_a_few_groups(tmp_path: Path) -> None:
    made = Shop(tmp_path, SPEC + WINDOWS).create()
    made.ingest(1)
    for part in range(3):  # a file each, the newest in the middle
        rows = [
            {"window_start": at(60 * n), "window_end": at(60 * n + 60), "till": f"till {till}", "events": n}
            for n in range([0, 400, 200][part], [200, 600, 400][part])
            for till in range(10)
        ]
        made.add(tables.window_table("per_minute"), rows)
    made.process(ordered=1, held=0)
    part_of_page = window_part(state_in(made), made.file.spec.windows[0])
    assert part_of_page.in_all == 6_000 > MOST_ROWS
    assert [column.name for column in part_of_page.columns] == ["window_start", "window_end", "till", "events"]
    assert len(part_of_page.rows) == SHOWN_ROWS
    assert {row[3] for row in part_of_page.rows} == {"599", "598", "597", "596", "595"}
    assert part_of_page.rows[0][0] == "2026-01-01 09:59:00"
    assert part_of_page.drawn == "events: count(*)"
    assert part_of_page.said == "Over the last 168 window starts; 6 of 10 groups, those with the largest sums of it."


def test_names_of_groups_are_drawn_as_they_are() -> None:
    names = ["$\\frac{1}$", "_hidden", "<b>&", "#000000", "two\nlines"]
    figure = draw_windows({name: [(us(at(0)), 1.0)] for name in names}, across="window_start", up="$n$", step_us=None)
    drawn = svg(figure).decode()
    for text in ("$\\frac{1}$", "_hidden", "&lt;b&gt;&amp;", "#000000", "two lines", "$n$"):
        assert f">{text}</text>" in drawn.replace("\u200b", ""), text


def test_the_groups_of_a_chart_are_those_with_the_largest_values_not_the_most_rows(tmp_path: Path) -> None:
    made = Shop(tmp_path, SPEC + WINDOWS).create()
    made.ingest(1)
    often = [(f"often {till}", n, 1) for till in range(6) for n in range(5)]
    rows = [
        {"window_start": at(60 * n), "window_end": at(60 * n + 60), "till": till, "events": events}
        for till, n, events in [*often, ("once", 4, 1_000)]
    ]
    made.add(tables.window_table("per_minute"), rows)
    made.process(ordered=1, held=0)
    chart = window_part(state_in(made), made.file.spec.windows[0]).chart
    assert chart is not None
    drawn = b64decode(chart.partition(",")[2]).decode()
    assert ">once</text>" in drawn
    assert ">often 5</text>" not in drawn


def test_labels_are_no_shorter_than_they_differ() -> None:
    names = [
        "Central Alaska region",
        "Central Alaska regions",
        "a" * 50 + "x" + "b" * 50,
        "a" * 50 + "y" + "b" * 50,
        "z",
    ]
    figure = draw_windows({name: [(us(at(0)), 1.0)] for name in names}, across="at", up="n", step_us=None)
    legend = figure.axes[0].get_legend()
    assert legend is not None
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown[:2] == names[:2]
    assert len(set(shown)) == 5
    assert max(map(len, shown)) < 70


def test_one_outlier_does_not_flatten_the_rest() -> None:
    points = [(us(at(60 * n)), float(n % 7 + 1)) for n in range(50)]
    points[20] = (points[20][0], 1_000_000.0)
    axes = draw_windows({"a": points}, across="window_start", up="n", step_us=None).axes[0]
    low, high = (axes.transAxes.inverted().transform(axes.transData.transform([(0, y)]))[0][1] for y in (1, 7))
    assert high - low > 0.3, "what is usual has a third of the height"
    assert axes.get_ylim()[1] >= 1_000_000
    assert "1,000,000" in [label.get_text() for label in axes.get_yticklabels()]
    plain = draw_windows({"a": points[:20]}, across="window_start", up="n", step_us=None).axes[0]
    assert plain.get_yscale() == "linear"


def test_a_line_breaks_where_windows_have_no_rows() -> None:
    points = [(us(at(60 * n)), 1.0) for n in (0, 1, 5, 6)]
    [line] = draw_windows({"a": points}, across="window_start", up="n", step_us=60_000_000).axes[0].get_lines()
    assert np.isfinite(np.asarray(line.get_ydata())).tolist() == [True, True, False, True, True]


def test_settings_are_told_in_words_and_expressions_are_escaped() -> None:
    spec = parse_spec(
        """
name: all
sources:
  - {name: a, kind: files, path: "a/*.csv", format: csv, schema: "at STRING, k STRING", split: "k <> 'x'"}
time:
  timestamp_by: at
  time_zone: Europe/Berlin
  unit: second
  over: [k]
  out_of_orderness: 1 minute
  out_of_order: keep
  late: {tolerance: 5 s, policy: adjust}
  early: {tolerance: 1 hour, policy: drop}
  deduplicate_by: [k]
  within: 1 day
  start_at: "2026-01-01T00:00:00Z"
  end_of_input: flush
windows:
  - {name: w, kind: hopping, size: 1 hour, hop: 5 minutes, allowed_lateness: 1 minute, emit: on_time,
     where: "k < 'b'", group_by: [k], aggregates: {n: count(*)}}
""",
        file="all.yaml",
    )
    told = {name: str(text) for name, text in [*of_sources(spec), *of_time(spec)]}
    assert "Split by <code>k &lt;&gt; &#39;x&#39;</code>." in told["a"]
    assert (
        told["Event time"]
        == "<code>at</code>. Times without a zone are those of Europe/Berlin. Rounded down to the second."
    )
    assert told["Watermark"] == (
        "Stays 1 minute behind the newest event of the slowest split; what is older is final. "
        "Each <code>k</code> has a watermark of its own (a timeline)."
    )
    assert (
        told["Late"] == "An event that arrives more than 5 seconds after its event time is moved to the edge of that."
    )
    assert told["Early"] == "An event that has an event time more than 1 hour ahead of its arrival is refused."
    assert "event times at most 1 day apart the first counts" in told["Duplicates"]
    assert told["Start"] == "Results for whole windows from 2026-01-01 00:00:00 UTC on."
    assert str(of_window(spec.windows[0])).startswith(
        "Hopping window: size 1 hour, hop 5 minutes. One row for each <code>k</code>."
    )
