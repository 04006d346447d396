"""The page: what it says of a pipeline in each of its states, and that no text of others becomes markup."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests.chromium import chromium
from tests.pure.report.shop import HOSTILE, SPEC, WINDOWS, Shop, at
from tidemark.pipelines.report.page import page_of
from tidemark.resources import tables


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


def shop(folder: Path, text: str = SPEC, *, refused: int = 0, **given: Any) -> Shop:
    """Return a shop with 6 ordered and 4 held events."""
    made = Shop(folder, text).create()
    made.ingest(10 + refused)
    made.process(ordered=6, held=4, refused=[{}] * refused, **given)
    return made


def test_a_pipeline_that_has_not_run_says_so_with_its_settings(tmp_path: Path) -> None:
    page = said(page_of(Shop(tmp_path).workspace))
    assert "This pipeline has not run yet" in page
    assert "Stays 10 seconds behind the newest event" in page


def test_a_pipeline_without_a_commit_has_not_run(tmp_path: Path) -> None:
    assert "This pipeline has not run yet" in page_of(Shop(tmp_path).create().workspace)


def test_records_that_are_read_and_not_processed_are_told(tmp_path: Path) -> None:
    made = Shop(tmp_path, SPEC + WINDOWS).create()
    made.ingest(7)
    page = said(page_of(made.workspace))
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
    made = Shop(tmp_path).create()
    made.ingest(10)
    made.process(ordered=10, held=0, flush=True)
    page = said(page_of(made.workspace))
    assert "Watermark: past every event: the end of input was flushed." in page
    assert "0 are held" in page


def test_text_of_others_is_never_markup_and_nothing_is_loaded(tmp_path: Path) -> None:
    spec = (SPEC + WINDOWS).replace("timestamp_by: at", """timestamp_by: "coalesce(at, '<b onload=1>')" """)
    made = Shop(tmp_path, spec).create()
    made.ingest(12)
    rows = [
        {"window_start": at(60 * n), "window_end": at(60 * n + 60), "till": HOSTILE, "events": n} for n in range(3)
    ]
    made.add(tables.window_table("per_minute"), rows)
    made.process(
        ordered=6, held=4, refused=[{"detail": HOSTILE}, {"_source": HOSTILE, "payload": "]]>\x00" + HOSTILE}]
    )
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
    made.add(
        tables.window_table("per_minute"), [{"window_start": at(0), "window_end": at(60), "till": "uncommitted"}]
    )
    page = page_of(made.workspace)
    assert "uncommitted" not in page
    assert "No window has closed yet." in page


def test_a_changed_spec_is_told_and_a_window_without_a_table_waits(tmp_path: Path) -> None:
    made = shop(tmp_path)
    (tmp_path / "shop.yaml").write_text(SPEC + WINDOWS.replace("per_minute", "new"))
    page = said(page_of(made.workspace))
    assert "The spec has changed since" in page
    assert "The table is made by the next run." in page


def test_a_browser_runs_the_filter_and_no_script_of_a_payload(tmp_path: Path) -> None:
    page = page_of(shop(tmp_path, refused=3).workspace)
    assert "3 of 3 shown</output>" in dumped(tmp_path, page)
    dom = dumped(tmp_path, page.replace('<input id="text"', '<input id="text" value="RECORD 11"'))
    assert "1 of 3 shown</output>" in dom
    assert len(re.findall(r'<tr data-reason="out_of_order" hidden="">', dom)) == 2


def dumped(folder: Path, page: str) -> str:
    """Return what a browser makes of a page."""
    (folder / "page.html").write_text(page, encoding="utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [chromium(), *words, (folder / "page.html").as_uri()],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.stdout
