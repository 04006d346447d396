"""Settings of a run, for all of its assets at once. No Spark session is started."""

from pathlib import Path

import pytest
from dagster import DagsterInvalidConfigError, validate_run_config

from tidemark.assets.live import BATCH
from tidemark.pipelines.definitions import build_definitions, job_name
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import from_environment

SPEC = """
name: shop
sources: [{name: tills, kind: files, path: "in/*.csv", format: csv, schema: "at STRING"}]
time: {timestamp_by: at}
"""


def test_the_settings_of_a_run_are_those_of_one_resource_and_its_assets_take_none(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(SPEC)
    file = read_spec(tmp_path / "shop.yaml")
    job = build_definitions(from_environment(tmp_path), [file]).resolve_job_def(job_name(file))
    asked = {"max_events_per_batch": 5, "end_of_input": "flush", "reread": True, "live": True, "reopen": "why"}
    assert validate_run_config(job, {})
    assert validate_run_config(job, {"resources": {BATCH: {"config": asked}}})
    for asset in ("raw_events", "ordered_events"):
        with pytest.raises(DagsterInvalidConfigError):
            validate_run_config(job, {"ops": {f"shop__{asset}": {"config": {"live": True}}}})
