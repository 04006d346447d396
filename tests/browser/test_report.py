"""The page of `tidemark report` in a real browser: what a person sees of it on a common screen."""

from datetime import timedelta
from pathlib import Path

import pytest

from tests.browser.served import browser_page
from tests.pure.report.shop import SPEC, WINDOWS, Shop, at, letter
from tidemark.pipelines.views.report.page import page_of
from tidemark.resources import tables

pytestmark = pytest.mark.long

COMMON_WIDTH = 1_400  # pixels
HIDDEN = "tables => tables.filter(one => one.scrollWidth > one.clientWidth).map(one => one.innerText.slice(0, 80))"


def test_no_table_of_a_report_is_cut_on_a_common_screen(tmp_path: Path) -> None:
    made = Shop.with_log(tmp_path, 40, SPEC + WINDOWS)
    fine = {
        "_event_time": at(1) + timedelta(microseconds=123_456),
        "_arrival_time": at(9) + timedelta(microseconds=1),
    }
    detail = (
        "its time 2026-01-01 00:00:01.123456 is 7.876544 s behind the watermark of its timeline, 2026-01-01 00:00:09"
    )
    made.process(ordered=6, held=4, refused=[fine | {"detail": detail, "reason": "no_arrival_time"}] * 3)
    made.add(tables.DEAD_LETTERS, [letter(60) | fine | {"window_name": "per_minute", "reason": "window_closed"}])
    with browser_page() as page:
        page.set_viewport_size({"width": COMMON_WIDTH, "height": 900})
        page.set_content(page_of(made.workspace))
        assert page.locator(".scroll").count() > 3
        assert page.eval_on_selector_all(".scroll", HIDDEN) == []
