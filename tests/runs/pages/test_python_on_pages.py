"""The Python of the pages on reading results, word for word, on the pipeline of the README with revised windows."""

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tests import ROOT
from tests.feeds import between
from tests.runs.pages.test_yaml_on_pages import QUAKES, README
from tidemark.pipelines.cli import main

FIRST = f"{QUAKES}2026-01-01T19:05:00Z,3.0,us,e5,2026-01-01T19:06:00Z,\n"
"""After it the row of 18:00 is written, and not final."""
MORE = """\
time,mag,net,id,updated,place
2026-01-01T18:50:00Z,7.0,ak,e6,2026-01-01T19:07:00Z,
2026-01-01T19:09:00Z,3.5,us,e7,2026-01-01T19:10:00Z,
"""
"""It revises that row."""


def blocks(page: str) -> list[str]:
    text = (ROOT / "docs" / "how-to" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def run(data: str, name: str) -> None:
    (Path("data") / "quakes" / name).write_text(data)
    done = CliRunner().invoke(main, ["run", "quakes.yaml", "--set", "sources[0].settle=0 s"], catch_exceptions=False)
    assert done.exit_code == 0, done.output


@pytest.mark.long
def test_the_page_on_using_results_reads_them_with_each_program(spark: SparkSession, folder: Path) -> None:
    (folder / "data" / "quakes").mkdir(parents=True)
    window = "    group_by: [net]\n"
    assert window in README
    (folder / "quakes.yaml").write_text(README.replace(window, f"    emit: on_time\n    change_feed: true\n{window}"))
    run(FIRST, "first.csv")
    run(MORE, "more.csv")
    known: dict[str, Any] = {"spark": spark}
    for block in blocks("use-results-downstream.md"):
        exec(compile(block, "use-results-downstream.md", "exec"), known)
    assert known["hours"].count() == known["rows"].num_rows > known["final"].height > 0
    shown = {(row["net"], row["strongest"]) for row in known["final"].to_dicts()}
    assert dict(known["strongest"]) == {net: max(mag for one, mag in shown if one == net) for net, _ in shown}
    told = known["changes"].read_all()
    assert told.num_rows == known["feed"].count() > 0
    net = {row["count"] for row in known["net"].collect()}
    assert net == {1, -1}, "a row was revised"
    differing = between(known["folder"], known["before"], known["now"])
    assert known["net"].count() == sum(abs(count) for count in differing.values())
