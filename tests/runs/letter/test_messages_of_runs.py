"""Messages and lineage of whole runs whose batch a blocking check holds back."""

from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import DataFrame, SparkSession

from tests.receiver import receiving
from tests.runs.landing import land
from tests.runs.running import go, pipeline, written
from tidemark.pipelines.definitions import build_definitions
from tidemark.resources import openlineage
from tidemark.timeops import engine
from tidemark.timeops.dead_letters import time_letters
from tidemark.timeops.rules.time_rules import TimeRules


@pytest.mark.long  # tests/pure/letter/test_alert_messages.py and tests/pure/batch/test_openlineage.py have the parts
def test_a_batch_that_a_check_holds_back_is_sent_by_dagsters_run_and_resolved_by_a_command(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = pipeline(tmp_path, "doubted", "drop", sparse=False)
    made = written(tmp_path, "doubted", file.path.read_text() + 'alerts: {notify: [{to: "${ALERTS_HOOK}"}]}\n')
    land(tmp_path / "in_doubted", 120, seed=6)

    def forgets_drops(refused: DataFrame, payload: list[str], rules: TimeRules) -> DataFrame:
        return time_letters(refused, payload, rules).where("reason <> 'out_of_order'")

    monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "http")
    openlineage._sender.cache_clear()
    with receiving() as hook, receiving() as lineage, DagsterInstance.ephemeral() as instance:
        monkeypatch.setenv("ALERTS_HOOK", hook.url.replace("http://", "json://"))
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", lineage.url)
        with monkeypatch.context() as broken:
            broken.setattr(engine, "time_letters", forgets_drops)
            job = build_definitions(made[1], [made[0]]).resolve_job_def("doubted_live")
            assert not job.execute_in_process(instance=instance, raise_on_error=False).success
        errors = [message["title"] for message in hook.got if ": error, " in message["title"]]
        assert {"doubted: error, late_drop_recount", "doubted: error, conservation"} <= {*errors}
        assert "batch 1 (process) is not committed" in hook.got[0]["message"]
        assert go(made, instance).batches == 1
        resolved = [message["title"] for message in hook.got if ": resolved, " in message["title"]]
        assert sorted(resolved) == sorted(title.replace("error", "resolved") for title in errors)
        events = lineage.wait_for(6, seconds=20)
        openlineage._sender.cache_clear()
    states = [(one["job"]["name"], one["eventType"]) for one in events]
    assert states[2:] == [("doubted.process", state) for state in ("START", "FAIL", "START", "COMPLETE")]
    assert "late_drop_recount" in events[3]["run"]["facets"]["errorMessage"]["message"]
