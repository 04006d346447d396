"""Every YAML block of README and docs is put to the use that its page names; specs run word for word on files."""

import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from dagster import DagsterInstance, validate_run_config
from dagster.components.testing.utils import create_defs_folder_sandbox
from deltalake import write_deltalake

import tidemark as tm
from examples.kafka.broker import LocalBroker
from tests import ROOT
from tests.kafka import Topic
from tidemark.pipelines.cli import main
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import from_environment
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import KafkaSource
from tidemark.timeops.spec.text import read_yaml

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {
    f"{page.relative_to(ROOT).with_suffix('')}-{number}": text
    for page in PAGES
    for number, text in enumerate(re.findall(r"^```ya?ml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))
}
README = BLOCKS["README-0"]
# These run a pipeline with every key, many cases, a broker, pipelines over a table and over files of others.
LATER = (
    "docs/reference/spec-0",
    "docs/how-to/test-a-spec-0",
    "docs/how-to/read-kafka-0",
    "docs/how-to/read-delta-tables-0",
    "docs/how-to/read-delta-tables-1",
    "docs/how-to/see-lineage-and-versions-0",
)
QUAKES = """\
time,mag,net,id,updated,place
2026-01-01T12:10:00Z,4.1,us,e1,2026-01-01T12:11:00Z,here
2026-01-01T12:20:00Z,4.7,us,e4,2026-01-01T12:21:00Z,here
2026-01-01T13:05:00Z,2.0,us,e2,2026-01-01T13:06:00Z,there
2026-01-01T18:05:00Z,2.0,ak,e3,2026-01-01T18:06:00Z,
"""


def tidemark(*words: str) -> None:
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output


def is_run(text: str, folder: Path) -> None:
    """Run a spec on a file of quakes: it writes windows."""
    data = folder / "data" / "quakes" / "day.csv"
    data.parent.mkdir(parents=True)
    data.write_text(QUAKES)
    os.utime(data, (1_767_300_000, 1_767_300_000))
    (folder / "quakes.yaml").write_text(text)
    tidemark("run", "quakes.yaml")
    lake = Workspace(read_spec(folder / "quakes.yaml"), folder / "warehouse").lake
    assert lake.rows("raw_events").num_rows == 4
    assert lake.rows("windows/by_hour").num_rows > 0


def reads_a_source(text: str, folder: Path) -> None:
    """Source and time of a spec: it gets the rows of a table or file with the columns of the source, or a topic."""
    [source] = yaml.safe_load(text)["sources"]
    fields = dict(field.split() for field in source["schema"].split(", "))
    some = {"STRING": "a", "DOUBLE": 1.5, "BIGINT": 3, "TIMESTAMP": datetime(2026, 1, 1, tzinfo=UTC)}
    spec = folder / "specs" / "of_a_table.yaml"
    spec.parent.mkdir()
    spec.write_text(f"name: of_a_table\n{text}")
    if source["kind"] == "delta":
        rows = pa.table({name: [some[kind]] * 2 for name, kind in fields.items()})
        write_deltalake(spec.parent / source["path"], rows)
    if source["kind"] == "files":
        landed = spec.parent / source["path"].replace("*", "new")
        landed.parent.mkdir(parents=True)
        landed.write_text(json.dumps({name: str(some[kind]) for name, kind in fields.items()}) + "\n", "utf-8")
        landed.write_text(landed.read_text("utf-8") * 2, "utf-8")
        os.utime(landed, (1_767_300_000, 1_767_300_000))
    tidemark("run", str(spec))
    workspace = Workspace(read_spec(spec), folder / "warehouse")
    assert workspace.lake.rows("raw_events").num_rows == 2
    assert workspace.lake.rows("dead_letters").num_rows == 0


def with_records(text: str, broker: LocalBroker) -> str:
    """Return a source of Kafka at a real broker, whose topic has two records."""
    [source] = yaml.safe_load(text)["sources"]
    orders = Topic(broker, source["topics"][0])
    orders.make(1)
    order = {"order_id": "a", "amount": 1.5, "placed": "2026-01-01T00:00:00Z"}
    orders.write([{"value": json.dumps(order), "partition": 0}] * 2)
    return text.replace(source["bootstrap_servers"], broker.address)


def is_of_a_source(text: str, folder: Path) -> None:
    """Check the keys as part of a source of Kafka."""
    values = {"name": "s", "kind": "kafka", "bootstrap_servers": "kafka:9092", "topics": ["orders"], "format": "json"}
    assert KafkaSource.model_validate({**values, "schema": "a INT", **yaml.safe_load(text)})


def is_part_of_a_spec(text: str, folder: Path) -> None:
    (folder / "quakes.yaml").write_text(README + text)
    read_spec(folder / "quakes.yaml")


def takes_the_place_of_keys(text: str, folder: Path) -> None:
    """Put the keys into the spec of the README, in place of its own."""
    (folder / "quakes.yaml").write_text(yaml.safe_dump({**yaml.safe_load(README), **yaml.safe_load(text)}))
    read_spec(folder / "quakes.yaml")


def joins_the_sources_of_the_example(text: str, folder: Path) -> None:
    of = "paid_orders" if "kind: interval" in text else "joined_quotes"
    example, _, _ = (ROOT / "examples" / f"{of}.yaml").read_text().partition("joins:")
    (folder / "quotes.yaml").write_text(example + text)
    assert len(read_spec(folder / "quotes.yaml").spec.joins) == 1


def goes_with_the_source_of_the_example(text: str, folder: Path) -> None:
    example, _, _ = (ROOT / "examples" / "lying_clocks.yaml").read_text().partition("\ntime:")
    (folder / "meters.yaml").write_text(f"{example}\n{text}")
    assert [window.across for window in read_spec(folder / "meters.yaml").spec.windows] == [False, True]


def has_windows(text: str, folder: Path) -> None:
    """Put them into the spec of the README, or into the example whose columns they name."""
    examples = {"from: paid": "paid_orders", "max_gap": "own_gaps"}
    name = next((name for part, name in examples.items() if part in text), None)
    if name is None:
        takes_the_place_of_keys(text, folder)
        return
    example, _, _ = (ROOT / "examples" / f"{name}.yaml").read_text().partition("windows:")
    (folder / "example.yaml").write_text(example + text)
    assert len(read_spec(folder / "example.yaml").spec.windows) == 1


def is_the_port_of_a_server(text: str, folder: Path) -> None:
    """Compare it with the command of the page; a real Prometheus asks in test_prometheus.py."""
    [job] = yaml.safe_load(text)["scrape_configs"]
    [target] = job["static_configs"][0]["targets"]
    page = (ROOT / "docs" / "how-to" / "watch-with-prometheus.md").read_text()
    assert f"--metrics-port {target.partition(':')[2]}" in page


def is_an_arrival_time(text: str, folder: Path) -> None:
    """Of the source in the README, instead of its own: Spark knows all that it names."""
    [source] = re.findall(r"^    arrival_time: .*\n", README, re.MULTILINE)
    (folder / "quakes.yaml").write_text(README.replace(source, f"    {text}"))
    tidemark("validate", "quakes.yaml")


def hold_for_the_readme(text: str, folder: Path) -> None:
    """Cases: of the spec in the README, as their page says."""
    (folder / "quakes.yaml").write_text(README)
    (folder / "quakes.cases.yaml").write_text(text)
    tidemark("test", "quakes.yaml", "quakes.cases.yaml")


def configures_a_run(text: str, folder: Path) -> None:
    """Run config: of the job of the pipeline in the README that has its op, or of the live one."""
    (folder / "quakes.yaml").write_text(README)
    file, config = read_spec(folder / "quakes.yaml"), yaml.safe_load(text)
    ops = list(config.get("ops", {"quakes__live": None}))
    name = str(ops[0]).replace("__", "_")
    job = build_definitions(from_environment(folder), [file]).resolve_job_def(name)
    assert validate_run_config(job, config)


def configures_an_instance(text: str, folder: Path) -> None:
    """Load a dagster.yaml: Dagster refuses keys that it does not know."""
    (folder / "home").mkdir()
    (folder / "home" / "dagster.yaml").write_text(text)
    with DagsterInstance.get() as instance:
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1


def names_a_module(text: str, folder: Path) -> None:
    """Load a workspace.yaml: its module is there."""
    [location] = yaml.safe_load(text)["load_from"]
    module = location["python_module"]["module_name"]
    assert (ROOT / Path(*module.split("."))).with_suffix(".py").is_file()


def is_a_source_of_dbt(text: str, folder: Path) -> None:
    """It names the table that the page's Python reads."""
    [source] = yaml.safe_load(text)["sources"]
    assert [table["config"]["delta_table_path"] for table in source["tables"]] == ["warehouse/quakes/windows/by_hour"]


def is_a_component(text: str, folder: Path) -> None:
    """Load it in a project, with the pipeline of the README as its specs."""
    with create_defs_folder_sandbox() as project:
        place = project.defs_folder_path / "pipelines"
        (place / "specs").mkdir(parents=True)
        (place / "specs" / "quakes.yaml").write_text(README)
        (place / "defs.yaml").write_text(text)
        with project.build_component_tree() as tree:
            key = tree.load_component(place, tm.TidemarkPipelines).asset_key("quakes", "windows/by_hour")
            assert key in tree.build_defs().resolve_asset_graph().get_all_asset_keys()


USES: Mapping[str, Callable[[str, Path], None]] = {
    "name": is_run,
    "sources": reads_a_source,
    "alignment": is_of_a_source,
    "options": is_of_a_source,
    "arrival_time": is_an_arrival_time,
    "schedule": is_part_of_a_spec,
    "catalog": is_part_of_a_spec,
    "events": is_part_of_a_spec,
    "alerts": takes_the_place_of_keys,
    "retention": takes_the_place_of_keys,
    "windows": has_windows,
    "joins": joins_the_sources_of_the_example,
    "time": goes_with_the_source_of_the_example,
    "scrape_configs": is_the_port_of_a_server,
    "version": is_a_source_of_dbt,
    "cases": hold_for_the_readme,
    "ops": configures_a_run,
    "resources": configures_a_run,
    "concurrency": configures_an_instance,
    "load_from": names_a_module,
    "type": is_a_component,
}
"""Check of a block, by its first key."""


@pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated")  # of Dagster about itself, as are the next
@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
@pytest.mark.filterwarnings("ignore::dagster.PreviewWarning")
@pytest.mark.parametrize(
    "text",
    [pytest.param(text, id=name, marks=[pytest.mark.long] if name in LATER else []) for name, text in BLOCKS.items()],
)
def test_a_block_of_yaml_does_what_its_page_says(folder: Path, text: str, request: pytest.FixtureRequest) -> None:
    document = read_yaml(text)
    assert document.problems == ()
    if "kind: kafka" in text:
        text = with_records(text, request.getfixturevalue("broker"))
    USES[next(iter(document.data))](text, folder)
