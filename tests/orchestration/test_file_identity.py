"""What a file is: found by several paths, moved, copied, renamed; and the time that its name tells."""

import json
from datetime import UTC, datetime
from pathlib import Path

from click.testing import CliRunner, Result
from dagster import AssetKey, DagsterInstance, DailyPartitionsDefinition
from pyspark.sql import SparkSession

from pipelines.cli import main
from pipelines.definitions import build_definitions
from pipelines.runner import RunOptions, run_pipeline
from pipelines.specfiles import read_spec
from resources.settings import Settings
from resources.workspace import SpecFile
from tests.orchestration.landing import table

SPEC = """
name: {name}
sources:
  - name: trail
    kind: files
    path: landing/**/*.jsonl
    format: json
    schema: "at STRING, k STRING"
    settle: 0 s
    {arrival}
time: {{timestamp_by: at}}
windows:
  - {{name: by_hour, kind: tumbling, size: 1 hour, group_by: [k], aggregates: {{n: count(*)}}}}
"""
IN_NAME = (
    """arrival_time: "to_timestamp(regexp_extract(_file, '_([0-9]{8}T[0-9]{4})Z_', 1), \\"yyyyMMdd'T'HHmm\\")" """
)


def made(folder: Path, name: str, arrival: str = "") -> tuple[SpecFile, Settings]:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(SPEC.format(name=name, arrival=arrival))
    return read_spec(path), Settings(folder / "warehouse", folder, folder / "home")


def land(file: Path, *hours: int, k: str = "a") -> Path:
    """A file with an event for each of these hours of a day in 2018."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"at": f"2018-03-05T{hour:02}:00:00Z", "k": k}) for hour in hours]
    file.write_text("\n".join(lines) + "\n")
    return file


def command(monkeyed_home: Path, *words: str) -> Result:
    return CliRunner().invoke(main, words, catch_exceptions=False, env={"DAGSTER_HOME": str(monkeyed_home)})


def test_names_give_arrivals_links_lead_to_a_file_once_and_days_begin_with_the_first_window(
    spark: SparkSession, tmp_path: Path
) -> None:
    file, settings = made(tmp_path, "trail", IN_NAME)
    name = "2018/03/05/123_CloudTrail_20180305T1205Z_x.jsonl"
    land(tmp_path / "landing" / name, 9, 10, 11)
    land(tmp_path / "landing" / "nothing_of_a_time.jsonl", 12)
    (tmp_path / "landing" / "2018" / "up").symlink_to("..")  # without its end, forty-one times each file
    with DagsterInstance.ephemeral() as instance:
        assert run_pipeline(file, settings, RunOptions(), instance=instance).counts["records"] == 4
    log = table(settings.warehouse, file.spec, "raw_events")
    arrived = datetime(2018, 3, 5, 12, 5, tzinfo=UTC)
    assert {(row["_file"], row["_arrival_time"]) for row in log} == {
        (name, arrived),
        ("nothing_of_a_time.jsonl", None),
    }
    assert [row["reason"] for row in table(settings.warehouse, file.spec, "dead_letters")] == ["no_arrival_time"]

    graph = build_definitions(settings, [file]).resolve_asset_graph()
    days = graph.get(AssetKey(["trail", "windows", "by_hour"])).partitions_def
    assert isinstance(days, DailyPartitionsDefinition)
    assert days.get_first_partition_key() == "2018-03-05"
    asked = ("--from", "2018-03-01", "--to", "2018-03-05", "--warehouse", str(settings.warehouse))
    done = command(settings.dagster_home, "backfill", str(file.path), *asked)
    assert done.exit_code == 0, done.stderr
    rows = table(settings.warehouse, file.spec, "windows/by_hour")
    assert [row["window_start"].hour for row in sorted(rows, key=lambda row: row["window_start"])] == [9, 10]
