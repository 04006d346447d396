"""Metrics for Prometheus of a pipeline whose tables are written without Spark: the text, the file, the endpoint."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import tidemark as tm
from tests import ROOT
from tests.pure.report.shop import PER_MINUTE, SPEC, WINDOWS, Shop, window_row
from tidemark.pipelines.cli import main
from tidemark.pipelines.views.metrics import ADDRESS, MEASURES, Look, endpoint, look, text_of

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Ten records: six ordered, two held, two refused; a window has two rows, and one input is new."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TIDEMARK_WAREHOUSE", raising=False)
    (tmp_path / "in").mkdir()
    made = Shop.with_log(tmp_path, 10, SPEC + WINDOWS)
    made.add(PER_MINUTE, [{**window_row(n, events=n), "_batch_id": 1} for n in (1, 2)])
    made.counts = {"per_minute.window_closed": 3}
    made.process(ordered=6, held=2, refused=[{"reason": "early"}, {}])
    (tmp_path / "in" / "new.csv").write_text("2026-01-01T00:00:00Z,1\n")
    os.utime(tmp_path / "in" / "new.csv", (0, 0))
    (tmp_path / "broken.yaml").write_text("name: broken\n")
    return made


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["metrics", *words], catch_exceptions=False)


def values(text: str) -> dict[str, float]:
    """Return the samples of a text that a strict parser of OpenMetrics reads."""
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples]
    shown = {
        one.name.removeprefix("tidemark_")
        + "".join(f" {value}" for name, value in one.labels.items() if name != "pipeline" and value): one.value
        for one in samples
    }
    assert len(shown) == len(samples)
    assert {one.labels["pipeline"] for one in samples} == {"shop"}
    return shown


def test_the_numbers_are_those_of_the_tables(shop: Shop) -> None:
    done = call("shop.yaml")
    assert done.exit_code == 0
    found = values(done.stdout)
    assert {name: n for name, n in found.items() if not re.match(r"table_|watermark|last_commit|look", name)} == {
        "up": 1,
        "records_total": 10,
        "processed_records_total": 10,
        "held_events": 2,
        "dead_letters early": 1,
        "dead_letters out_of_order": 1,
        "dead_letters window_closed per_minute": 3,
        "last_batch_seconds": 3,
        "last_batch_records": 10,
        "at_work": 0,
        "inputs_waiting tills": 1,
        "inputs_unsettled tills": 0,
        "inputs_held_back tills": 0,
        "problems": 0,
    }
    assert found["table_rows windows/per_minute"] == 2
    assert found["table_files raw_events"] == 1
    files = (shop.folder / "warehouse" / "shop" / "raw_events").rglob("*.parquet")
    assert found["table_bytes raw_events"] == sum(file.stat().st_size for file in files)
    state = tm.status("shop.yaml")
    assert state.watermark is not None
    assert found["watermark_timestamp_seconds"] == state.watermark.timestamp()
    assert state.last is not None
    assert found["last_commit_timestamp_seconds"] == state.last.committed_at.timestamp()
    for of in ("watermark_delay", "last_commit_age"):
        assert found[f"{of}_seconds"] > 0


def test_a_pipeline_that_has_not_run_and_one_that_is_flushed_have_no_watermark(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text(shop.text)
    before = values(call("empty.yaml", "--warehouse", "elsewhere").stdout)
    assert {name for name in before if "watermark" in name or "commit" in name or "batch" in name} == set()
    assert (before["up"], before["records_total"]) == (1, 0)
    (tmp_path / "done" / "in").mkdir(parents=True)
    flushed = Shop.with_log(tmp_path / "done", 4)
    flushed.process(ordered=4, held=0, flush=True)
    after = values(call("done/shop.yaml", "--warehouse", "done/warehouse").stdout)
    assert {name for name in after if "watermark" in name} == {
        "table_rows watermarks",
        "table_files watermarks",
        "table_bytes watermarks",
    }


def test_a_broken_pipeline_hides_no_other_and_the_exit_code_tells(shop: Shop) -> None:
    done = call("broken.yaml", "shop.yaml")
    assert done.exit_code == 2
    assert "broken.yaml, line 1, sources: the key is missing" in done.stderr
    assert 'tidemark_up{pipeline="broken"} 0.0' in done.stdout
    assert 'tidemark_records_total{pipeline="shop"} 10.0' in done.stdout
    [log] = (shop.folder / "warehouse" / "shop" / "raw_events" / "_delta_log").glob("*0.json")
    log.unlink()
    lost = call("shop.yaml")
    assert (lost.exit_code, 'tidemark_up{pipeline="shop"} 0.0' in lost.stdout) == (1, True)
    twice = call("shop.yaml", "shop.yaml")
    assert (twice.exit_code, twice.stdout) == (2, "")


def test_two_specs_of_one_name_are_down_as_their_numbers_would_be_mixed(shop: Shop) -> None:
    found = look(shop.folder / "shop.yaml", shop.folder / "warehouse")
    text = text_of([found, found])
    assert values(text).keys() == {"up", "look_seconds"}
    assert 'tidemark_up{pipeline="shop"} 0.0' in text


def test_a_file_for_node_exporter_is_replaced_whole_and_may_be_read_by_others(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "textfile" / "shop.prom"
    file.parent.mkdir()
    file.write_text("old")
    with file.open() as opened:
        assert call("shop.yaml", "--to", str(file)).exit_code == 0
        assert opened.read() == "old", "who reads it has the old one"
    assert stat.S_IMODE(file.stat().st_mode) & 0o044 == 0o044
    assert [path.name for path in file.parent.iterdir()] == ["shop.prom"]
    assert "# TYPE tidemark_records_total counter\n" in file.read_text(), "in OpenMetrics the name has no _total here"
    refused = call("shop.yaml", "--to", str(tmp_path / "shop.txt"))
    assert (refused.exit_code, "only names that end in .prom" in refused.stderr) == (2, True)


def test_metrics_import_neither_dagster_nor_start_spark(shop: Shop) -> None:
    code = (
        "import sys; from tidemark.pipelines.cli import main\n"
        "try: main(['metrics', 'shop.yaml'], standalone_mode=False)\n"
        "except SystemExit as ended:\n"
        "    if ended.code: raise\n"
        "from pyspark import SparkContext\n"
        "sys.exit('imported Dagster' if 'dagster' in sys.modules else SparkContext._active_spark_context)"
    )
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=here, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def free_port() -> int:
    with socket.socket() as found:
        found.bind((ADDRESS, 0))
        return int(found.getsockname()[1])


def get(port: int, accept: str = OPENMETRICS) -> tuple[str, str]:
    asked = urllib.request.Request(f"http://{ADDRESS}:{port}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_the_endpoint_looks_when_it_is_asked_and_once_for_all_that_ask_within_some_seconds(shop: Shop) -> None:
    looks: list[Look] = []

    def look_at_all() -> list[Look]:
        looks.append(look(shop.folder / "shop.yaml", shop.folder / "warehouse"))
        return looks[-1:]

    port = free_port()
    with endpoint(port, look_at_all):
        assert looks == []
        kind, text = get(port)
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        assert values(text)["records_total"] == 10
        kind, text = get(port, "text/plain")
        assert kind.startswith("text/plain")
        assert 'tidemark_records_total{pipeline="shop"} 10.0' in text
        assert len(looks) == 1
        with pytest.raises(tm.TidemarkError, match=f"Port {port} cannot be used"), endpoint(port, look_at_all):
            pass
        with socket.socket() as other, pytest.raises(OSError, match="refused"):
            other.connect(("127.0.0.2", port))  # another address of this machine


def written(page: str) -> set[str]:
    return set(re.findall(r"tidemark_(\w+)", (ROOT / "docs" / page).read_text()))


def test_the_board_the_alerts_and_the_page_name_metrics_that_there_are() -> None:
    names = {f"{one.name}_total" if one.grows else one.name for one in MEASURES} | {"up", "look_seconds"}
    page = written("how-to/watch-with-prometheus.md")
    assert page == names
    assert written("prometheus-alerts.yaml") - names == set()
    board = json.loads((ROOT / "docs" / "grafana.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for one in panel["targets"]
        for name in re.findall(r"tidemark_(\w+)", one["expr"])
    }
    assert asked - names == set()
    assert len(asked) > 12
    assert [panel["title"] for panel in board["panels"] if panel["datasource"]["uid"] != "${datasource}"] == []
