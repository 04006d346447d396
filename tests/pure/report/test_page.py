"""The page of a report: what it says of a pipeline in each of its states, and its parts.

Here: texts, accounts, dead letters and charts; that no text of others becomes markup. Not here: pictures of a batch
(letter/test_pictures.py).
"""

import re
import subprocess
from base64 import b64decode
from datetime import UTC, date, datetime
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion

from tests.chromium import chromium
from tests.pure.report.shop import HOSTILE, PER_MINUTE, SPEC, WINDOWS, Shop, at, us, window_row
from tidemark.assets.catalog.display.pictures import draw_windows, svg
from tidemark.pipelines.views.report import accounts
from tidemark.pipelines.views.report.accounts import State, state_of
from tidemark.pipelines.views.report.page import (
    MOST_ROWS,
    SHOWN_ROWS,
    of_sources,
    of_time,
    of_window,
    page_of,
    window_part,
)
from tidemark.pipelines.views.terminal import any_value, length, no_more_than, share
from tidemark.resources import tables
from tidemark.timeops.spec import parse_spec


class Markup(HTMLParser):
    """Collects what a browser would load, run and show."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "action", "xlink:href"}]

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "  # a cell ends a word


def said(page: str) -> str:
    return " ".join(Markup(page).text.split())


def shop(folder: Path, text: str = SPEC, *, refused: int = 0) -> Shop:
    """Return a shop with 6 ordered and 4 held events."""
    made = Shop.with_log(folder, 10 + refused, text)
    made.process(ordered=6, held=4, refused=[{}] * refused)
    return made


def test_a_pipeline_that_has_not_run_says_so_with_its_settings(tmp_path: Path) -> None:
    page = said(page_of(Shop(tmp_path).workspace))
    assert "This pipeline has not run yet" in page
    assert "Stays 10 seconds behind the newest event" in page
    assert "This pipeline has not run yet" in page_of(Shop(tmp_path).create().workspace), "without a commit"


def test_records_that_are_read_and_not_processed_are_told(tmp_path: Path) -> None:
    page = said(page_of(Shop.with_log(tmp_path, 7, SPEC + WINDOWS).workspace))
    assert "7 records came in; none has been processed yet." in page
    assert "7 records of the log wait to be processed." in page
    assert "No window has closed yet." in page


def test_every_record_has_its_place_and_the_places_add_up(tmp_path: Path) -> None:
    page = said(page_of(shop(tmp_path, refused=2).workspace))
    assert "Of 12 records, 6 are in event-time order, 4 are held until the watermark passes them" in page
    assert "dead letter: out_of_order time 2 16.7 % it came behind the watermark" in page
    assert "the rows above add up to it" in page
    assert "First arrival 2026-01-01 00:00:00, last arrival 2026-01-01 00:00:11" in page
    assert "Watermark: 2026-01-01 00:00:06 UTC." in page


def test_without_windows_and_dead_letters_the_page_says_what_there_is(tmp_path: Path) -> None:
    page = page_of(shop(tmp_path).workspace)
    assert "There are none: no record was refused." in page
    assert 'id="windows"' not in page
    assert "<script" not in page


def test_a_flushed_pipeline_is_past_every_event(tmp_path: Path) -> None:
    made = Shop.with_log(tmp_path, 10)
    made.process(ordered=10, held=0, flush=True)
    page = said(page_of(made.workspace))
    assert "Watermark: past every event: the end of input was flushed." in page
    assert "0 are held" in page


def test_text_of_others_is_never_markup_and_nothing_is_loaded(tmp_path: Path) -> None:
    spec = (SPEC + WINDOWS).replace("timestamp_by: at", """timestamp_by: "coalesce(at, '<b onload=1>')" """)
    made = Shop.with_log(tmp_path, 12, spec)
    made.add(PER_MINUTE, [window_row(n, HOSTILE, n) for n in range(3)])
    letters = [{"detail": HOSTILE}, {"_source": HOSTILE, "payload": "]]>\x00" + HOSTILE}]
    made.process(ordered=6, held=4, refused=letters)
    page = page_of(made.workspace)
    markup = Markup(page)
    assert page.count(HOSTILE) == 0
    assert markup.tags.count("script") == 1
    assert "onload" not in markup.attributes
    assert markup.text.count(HOSTILE) >= 6, "it is shown"
    assert [link for link in markup.links if not link.startswith(("#", "data:image/svg+xml;base64,"))] == []
    assert "default-src &#39;none&#39;" in page


def test_a_table_is_read_at_the_last_commit_whatever_was_written_since(tmp_path: Path) -> None:
    made = shop(tmp_path, SPEC + WINDOWS, refused=1)
    made.add(tables.DEAD_LETTERS, [{"_arrival_seq": 99, "reason": "out_of_order", "payload": "uncommitted"}])
    made.add(PER_MINUTE, [window_row(0, "uncommitted")])
    page = page_of(made.workspace)
    assert "uncommitted" not in page
    assert "No window has closed yet." in page


def test_a_changed_spec_is_told_and_a_window_without_a_table_waits(tmp_path: Path) -> None:
    made = shop(tmp_path)
    (tmp_path / "shop.yaml").write_text(SPEC + WINDOWS.replace("per_minute", "new"))
    page = said(page_of(made.workspace))
    assert "The spec has changed since" in page
    assert "The next run creates the table." in page


def dumped(folder: Path, page: str) -> str:
    """Return what a browser makes of a page."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    command = [chromium(), *words, (folder / "page.html").as_uri()]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_a_browser_runs_the_filter_and_no_script_of_a_payload(tmp_path: Path) -> None:
    page = page_of(shop(tmp_path, refused=3).workspace)
    assert "3 of 3 shown</output>" in dumped(tmp_path, page)
    dom = dumped(tmp_path, page.replace('<input id="text"', '<input id="text" value="RECORD 11"'))
    assert "1 of 3 shown</output>" in dom
    assert len(re.findall(r'<tr data-reason="out_of_order" hidden="">', dom)) == 2


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
        ("x" * 3_000, "x" * 2_000 + "… (3,000 characters in all)"),
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
    shares = [share(n, 100_000) for n in (0, 1, 500, 99_999, 100_000)]
    assert shares == ["0.0 %", "< 0.1 %", "0.5 %", "> 99.9 %", "100.0 %"]


def test_reasons_share_what_is_shown_and_few_leave_their_part_to_the_others() -> None:
    assert accounts.allotted({"a": 10_000, "b": 3, "c": 9_000}, 503) == {"b": 3, "c": 250, "a": 250}
    assert accounts.allotted({"a": 2, "b": 1}, 500) == {"b": 1, "a": 2}
    assert accounts.allotted({}, 500) == {}


def test_the_newest_dead_letters_of_each_reason_are_shown(tmp_path: Path) -> None:
    made = Shop.with_log(tmp_path, 1_000)
    early = [{"reason": "early"}] * 5
    made.process(ordered=1, held=0, refused=[*early, *([{}] * 994)])
    state = state_in(made)
    by_reason = state.dead_letters
    assert by_reason == {"early": 5, "out_of_order": 994}
    shown = accounts.newest_dead_letters(state, by_reason)
    assert [one["_arrival_seq"] for one in shown] == [*range(999, 504, -1), 5, 4, 3, 2, 1]


def test_dead_letters_of_windows_count_beside_the_records(tmp_path: Path) -> None:
    made = Shop.with_log(tmp_path, 10, SPEC + WINDOWS)
    made.counts |= {"per_minute.in_windows": 7, "per_minute.window_closed": 3}
    made.process(ordered=6, held=4)
    state = state_in(made)
    assert state.dead_letters == {"window_closed": 3}
    assert [(place.name, place.records) for place in accounts.places(state)] == [("ordered", 6), ("held", 4)]
    [window] = accounts.windows(state)
    assert (window.accepted, window.inside, window.closed) == (10, 7, 3)


def test_a_window_s_last_rows_are_shown_newest_first_and_drawn_for_a_few_groups(tmp_path: Path) -> None:
    made = Shop.with_log(tmp_path, 1, SPEC + WINDOWS)
    for first in (0, 400, 200):  # a file each, the newest in the middle
        rows = [window_row(n, f"till {till}", n) for n in range(first, first + 200) for till in range(10)]
        made.add(PER_MINUTE, rows)
    made.process(ordered=1, held=0)
    part_of_page = window_part(state_in(made), made.file.spec.windows[0])
    assert part_of_page.in_all == 6_000 > MOST_ROWS
    assert [column.name for column in part_of_page.columns] == ["window_start", "window_end", "till", "events"]
    assert len(part_of_page.rows) == SHOWN_ROWS
    assert {row[3] for row in part_of_page.rows} == {"599", "598", "597", "596", "595"}
    assert part_of_page.rows[0][0] == "2026-01-01 09:59:00"
    assert part_of_page.drawn == "events: count(*)"
    assert part_of_page.sentence == (
        "Over the last 168 window starts; 6 of 10 groups, the ones with the largest sums of it."
    )


def chart(groups: dict[str, list[tuple[int, float]]], *, up: str = "n", step_us: int | None = None) -> Figure:
    return draw_windows(groups, across="window_start", up=up, step_us=step_us)


def test_names_of_groups_are_drawn_as_they_are() -> None:
    names = ["$\\frac{1}$", "_hidden", "<b>&", "#000000", "two\nlines"]
    drawn = svg(chart({name: [(us(at(0)), 1.0)] for name in names}, up="$n$")).decode()
    for text in ("$\\frac{1}$", "_hidden", "&lt;b&gt;&amp;", "#000000", "two lines", "$n$"):
        assert f">{text}</text>" in drawn.replace("\u200b", ""), text


def test_the_groups_of_a_chart_are_those_with_the_largest_values_not_the_most_rows(tmp_path: Path) -> None:
    made = Shop.with_log(tmp_path, 1, SPEC + WINDOWS)
    often = [window_row(n, f"often {till}") for till in range(6) for n in range(5)]
    made.add(PER_MINUTE, [*often, window_row(4, "once", 1_000)])
    made.process(ordered=1, held=0)
    picture = window_part(state_in(made), made.file.spec.windows[0]).chart
    assert picture is not None
    drawn = b64decode(picture.partition(",")[2]).decode()
    assert ">once</text>" in drawn
    assert ">often 5</text>" not in drawn


def test_labels_are_no_shorter_than_they_differ() -> None:
    long = ["a" * 50 + letter + "b" * 50 for letter in "xy"]
    names = ["Central Alaska region", "Central Alaska regions", *long, "z"]
    legend = chart({name: [(us(at(0)), 1.0)] for name in names}).axes[0].get_legend()
    assert legend is not None
    shown = [text.get_text() for text in legend.get_texts()]
    assert shown[:2] == names[:2]
    assert len(set(shown)) == 5
    assert max(map(len, shown)) < 70


def test_one_outlier_does_not_flatten_the_rest() -> None:
    points = [(us(at(60 * n)), float(n % 7 + 1)) for n in range(50)]
    points[20] = (points[20][0], 1_000_000.0)
    axes = chart({"a": points}).axes[0]
    low, high = (axes.transAxes.inverted().transform(axes.transData.transform([(0, y)]))[0][1] for y in (1, 7))
    assert high - low > 0.3, "what is usual has a third of the height"
    assert axes.get_ylim()[1] >= 1_000_000
    assert "1,000,000" in [label.get_text() for label in axes.get_yticklabels()]
    assert chart({"a": points[:20]}).axes[0].get_yscale() == "linear"


def test_a_line_breaks_where_windows_have_no_rows() -> None:
    points = [(us(at(60 * n)), 1.0) for n in (0, 1, 5, 6)]
    [line] = chart({"a": points}, step_us=60_000_000).axes[0].get_lines()
    assert np.isfinite(np.asarray(line.get_ydata())).tolist() == [True, True, False, True, True]


def test_settings_are_told_in_words_and_expressions_are_escaped(snapshot: SnapshotAssertion) -> None:
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
  - {name: first, kind: tumbling, size: 1 day, group_by: [k], top: {n: 3, by: "at DESC"}}
""",
        file="all.yaml",
    )
    told = [*of_sources(spec), *of_time(spec), *[(window.name, of_window(window)) for window in spec.windows]]
    assert {name: str(text) for name, text in told} == snapshot
