"""`tidemark report` and Dagster on what a run has written.

Here: the page, and row counts, against the tables. Not here: its parts one by one (tests/unit/report/).
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from dagster import AssetKey, DagsterInstance, MetadataValue

from tests.orchestration.landing import table
from tidemark.pipelines.cli import main
from tidemark.resources.places.place import Place
from tidemark.resources.workspace import SpecFile
from tidemark.timeops.spec import Spec


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
    assert "by hand" not in page
    return page


def assert_dagster_shows_the_rows_of_the_tables(instance: DagsterInstance, warehouse: Place, spec: Spec) -> None:
    """Row counts are of the tables and of their days; what the batches wrote adds up to them."""
    window = AssetKey([spec.name, "windows", "per_minute"])
    for name in ("raw_events", "ordered_events", "dead_letters"):
        shown = _materializations(instance, AssetKey([spec.name, name]))
        rows = len(table(warehouse, spec, name))
        assert shown[0]["dagster/row_count"].value == rows, name
        assert sum(one["rows_written"].value for one in shown) == rows, name
    days = Counter(str(row["window_start"].date()) for row in table(warehouse, spec, "windows/per_minute"))
    newest: dict[str | None, Mapping[str, MetadataValue[Any]]] = {}
    for event in instance.fetch_materializations(window, limit=100).records:
        assert event.asset_materialization is not None
        newest.setdefault(event.asset_materialization.partition, event.asset_materialization.metadata)
    assert {day: shown["dagster/partition_row_count"].value for day, shown in newest.items()} == days
    last = _materializations(instance, window)[0]
    assert last["dagster/row_count"].value == days.total()


def _materializations(instance: DagsterInstance, asset: AssetKey) -> list[Mapping[str, MetadataValue[Any]]]:
    """Metadata of the materializations of an asset, the newest first."""
    events = instance.fetch_materializations(asset, limit=100).records
    return [event.asset_materialization.metadata for event in events if event.asset_materialization is not None]
