"""The reasons of dead letters: what is stored, and what the page says of each."""

import re
from pathlib import Path

from tidemark.timeops.reasons import Reason, Stage

PAGE = Path(__file__).parents[2] / "docs/semantics/dead-letters.md"


def test_the_page_lists_each_reason_with_its_stage() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (ingest|time|window) \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted([*((one, one.stage) for one in Reason), ("bad_expression", Stage.WINDOW)])


def test_a_watermark_decides_of_the_reasons_that_have_one() -> None:
    assert [one for one in Reason if one.by_watermark] == ["out_of_order", "window_closed"]
