"""`tidemark report` on what a run has written.

Here: the page against the tables. Not here: its parts one by one (tests/unit/report/).
"""

import re
from pathlib import Path

from click.testing import CliRunner

from tests.orchestration.landing import table
from tidemark.pipelines.cli import main
from tidemark.resources.places.place import Place
from tidemark.resources.workspace import SpecFile


def assert_the_report_tells_what_the_tables_hold(warehouse: Place, file: SpecFile) -> str:
    """Writes the page, by the command, and holds its numbers against the tables; gives the page."""
    out = (warehouse if isinstance(warehouse, Path) else file.path.parent) / "page.html"
    words = ["report", str(file.path), "--warehouse", str(warehouse), "--out", str(out)]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, f"{file.spec.name}: {out}\n")
    page = out.read_text(encoding="utf-8")
    tables = {"records in": "raw_events", "ordered": "ordered_events", "held": "held_events"}
    tables |= {f"rows of {window.name}": f"windows/{window.name}" for window in file.spec.windows}
    wanted = {name: len(table(warehouse, file.spec, of)) for name, of in tables.items()}
    stages = [letter["stage"] for letter in table(warehouse, file.spec, "dead_letters")]
    wanted["refused"] = len(stages) - stages.count("window")
    if "window" in stages:
        wanted["accepted, but too late for a window"] = stages.count("window")
    shown = re.findall(r"<li><b>([0-9,]+)</b> ([^<]+)</li>", page)
    assert {name: int(n.replace(",", "")) for n, name in shown} == wanted
    assert "the rows above add up to it" in page
    return page
