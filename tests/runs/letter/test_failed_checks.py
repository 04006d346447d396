"""Checks that fail: what each of them says, and what a failed one does to the batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from tests.clock import FixedClock
from tests.runs.landing import land, table
from tests.runs.running import pipeline
from tidemark.assets.alarms.losses.of_batch import BatchLosses
from tidemark.assets.batch import Batch
from tidemark.assets.checks import CHECKS, run_checks
from tidemark.assets.ingestion.raw_events import ingest
from tidemark.assets.judging.segment import judge
from tidemark.assets.planning import next_segment, take_on
from tidemark.assets.recount.windows import WrongResult, wrong_results
from tidemark.assets.schemas import create_tables
from tidemark.assets.time_adjustment import adjust_time, write_dead_letters
from tidemark.assets.windows import aggregate_windows
from tidemark.pipelines.cli import main
from tidemark.resources.batches.plans import Plan
from tidemark.resources.workspace import Workspace
from tidemark.timeops import engine
from tidemark.timeops.dead_letters import time_letters
from tidemark.timeops.rules.time_rules import TimeRules
from tidemark.timeops.spec.automation import Alerts
from tidemark.timeops.values.utc import instant_of

RUN = "a run of this test"


@dataclass(frozen=True)
class Written:
    """A batch whose tables are written and not yet committed."""

    batch: Batch

    @property
    def workspace(self) -> Workspace:
        return self.batch.workspace

    @property
    def plan(self) -> Plan:
        return self.batch.plan

    def delta(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.workspace.lake.path(name)))

    def rows(self, name: str) -> pa.Table:
        return self.workspace.lake.rows(name)


@pytest.fixture(scope="module")
def batch(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp("checked")
    file, settings = pipeline(root, "checked", "drop", sparse=False)
    allowed = Alerts.model_validate({"dead_letter_rate": {"warn": "20 %"}})  # a tenth of the records is lost
    file = replace(file, spec=file.spec.model_copy(update={"alerts": allowed}))
    land(root / "in_checked", 120, seed=6)
    workspace = Workspace(file, settings.warehouse, lambda: spark)
    create_tables(workspace)
    ingest(workspace, RUN)
    batch = Batch(workspace, take_on(workspace, next_segment(workspace, None, flush=False), RUN), judge)
    adjust_time(batch)
    aggregate_windows(batch)
    write_dead_letters(batch)
    return Written(batch)


def failures(batch: Written, asset: str) -> dict[str, str]:
    return {
        one.expectation.name: one.message
        for one in run_checks(batch.batch, asset, BatchLosses(batch.batch))
        if not one.passed
    }


def test_every_check_passes_on_what_a_batch_wrote(batch: Written) -> None:
    assert [failures(batch, asset) for asset in CHECKS] == [{}, {}, {}]


def renumber(batch: Written) -> None:
    batch.delta("ordered_events").update(predicate="_release_seq = 3", updates={"_release_seq": "1003"})


def swap(batch: Written) -> None:
    times = {"_release_seq": "CASE WHEN _release_seq = 3 THEN 4 ELSE 3 END"}
    batch.delta("ordered_events").update(predicate="_release_seq IN (3, 4)", updates=times)


def release_too_early(batch: Written) -> None:
    last = batch.rows("ordered_events")["_release_seq"].to_pylist()
    when = {"_timestamp": "CAST('2026-03-01T00:00:00Z' AS TIMESTAMP)"}
    batch.delta("ordered_events").update(predicate=f"_release_seq = {max(last)}", updates=when)


def double_a_window(batch: Written) -> None:
    rows = batch.rows("windows/per_minute")
    write_deltalake(str(batch.workspace.lake.path("windows/per_minute")), rows.slice(0, 1), mode="append")


def miscount_a_window(batch: Written) -> None:
    first = min(row["window_start"] for row in batch.rows("windows/per_minute").to_pylist())
    where = f"window_start = '{first:%Y-%m-%dT%H:%M:%S}Z' AND k = 'a'"
    batch.delta("windows/per_minute").update(predicate=where, updates={"total": "total + 1"})


def lose_a_drop(batch: Written) -> None:
    letters: pa.Table = batch.rows("dead_letters")
    first = min(row["_arrival_seq"] for row in letters.to_pylist() if row["reason"] == "out_of_order")
    batch.delta("dead_letters").delete(f"_arrival_seq = {first}")


def lose_a_held_event(batch: Written) -> None:
    held = batch.rows("held_events")["_arrival_seq"].to_pylist()
    batch.delta("held_events").delete(f"_arrival_seq = {min(held)}")


def contradict(batch: Written) -> None:
    batch.delta("dead_letters").update(predicate="reason = 'out_of_order'", updates={"lateness_us": "-1"})


@pytest.mark.parametrize(
    ("tamper", "written", "asset", "says"),
    [
        (
            renumber,
            "ordered_events",
            "ordered_events",
            {"release_order": "2 of {released} released rows that are out of order or misnumbered; expected none"},
        ),
        (
            swap,
            "ordered_events",
            "ordered_events",
            {"release_order": "1 of {released} released rows that are out of order or misnumbered; expected none"},
        ),
        (
            release_too_early,
            "ordered_events",
            "ordered_events",
            {"released_behind_watermark": "1 of {released} released rows that are not behind the watermark"},
        ),
        (
            double_a_window,
            "windows/per_minute",
            "window_results",
            {"one_final_row": "with several final rows: 1; expected none (such as window_name=per_minute"},
        ),
        (
            lose_a_drop,
            "dead_letters",
            "dead_letters",
            {
                "late_drop_recount": "{drops_less_one} dead letters out_of_order; expected {drops}, by the recount",
                "conservation": "Found 119 records ordered, held or refused; expected 120, all of the batch",
            },
        ),
        (
            lose_a_held_event,
            "held_events",
            "dead_letters",
            {"conservation": "Found 119 records ordered, held or refused; expected 120, all of the batch"},
        ),
        (
            contradict,
            "dead_letters",
            "dead_letters",
            {"dead_letter_reasons": "{drops} of {letters} dead letters that contradict themselves; expected none"},
        ),
    ],
)
def test_a_check_that_fails_says_what_was_found_and_what_to_do(
    batch: Written, tamper: Callable[[Written], None], written: str, asset: str, says: dict[str, str]
) -> None:
    good = batch.workspace.lake.version(written)
    drops = sum(row["reason"] == "out_of_order" for row in batch.rows("dead_letters").to_pylist())
    counts = {"letters": batch.rows("dead_letters").num_rows, "released": batch.rows("ordered_events").num_rows}
    tamper(batch)
    try:
        found = failures(batch, asset)
    finally:
        batch.delta(written).restore(good)
    assert found.keys() == says.keys()
    for name, words in says.items():
        assert words.format(drops=drops, drops_less_one=drops - 1, **counts) in found[name]
        assert found[name].startswith("Expected: ")
        assert "To do: " in found[name]


def lose_a_window(batch: Written) -> None:
    first = min(row["window_start"] for row in batch.rows("windows/per_minute").to_pylist())
    batch.delta("windows/per_minute").delete(f"window_start = '{first:%Y-%m-%dT%H:%M:%S}Z' AND k = 'a'")


def wrong_rows(batch: Written) -> list[WrongResult]:
    (window,) = (window for window in batch.workspace.spec.windows if window.name == "per_minute")
    return [*wrong_results(batch.workspace, window)]


@pytest.mark.parametrize("tamper", [miscount_a_window, lose_a_window])
def test_a_result_that_is_wrong_or_lost_is_found_by_computing_all_of_them_again(
    batch: Written, tamper: Callable[[Written], None]
) -> None:
    assert wrong_rows(batch) == []
    good = batch.workspace.lake.version("windows/per_minute")
    tamper(batch)
    try:
        [wrong] = wrong_rows(batch)
    finally:
        batch.delta("windows/per_minute").restore(good)
    assert wrong.key["k"] == "a"
    assert wrong.recomputed is not None
    if tamper is lose_a_window:
        assert wrong.written is None
    else:
        assert wrong.written == {**wrong.recomputed, "total": wrong.recomputed["total"] + 1}


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


def test_a_batch_with_a_failed_check_waits_until_an_operator_accepts_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, settings = pipeline(tmp_path, "doubted", "drop", sparse=False)
    land(tmp_path / "in_doubted", 120, seed=6)
    monkeypatch.setenv("DAGSTER_HOME", str(settings.dagster_home))

    def forgets_drops(refused: DataFrame, payload: list[str], rules: TimeRules) -> DataFrame:
        return time_letters(refused, payload, rules).where("reason <> 'out_of_order'")

    monkeypatch.setattr(engine, "time_letters", forgets_drops)
    failed = command("run", file.path, "--warehouse", settings.warehouse)
    assert failed.exit_code == 1
    assert (
        "check late_drop_recount failed. Expected: dead letters by reason equal an independent recount"
        in failed.stderr
    )
    assert "check conservation failed." in failed.stderr
    assert 'accept it as it is with `tidemark accept SPEC 1 --reason "…"`' in failed.stderr
    workspace = Workspace(file, settings.warehouse)
    assert workspace.progress.processed_end() == 0, "readers still see the last commit"
    assert workspace.base()["ordered_events"] == 0

    status = command("status", file.path, "--warehouse", settings.warehouse).stdout
    assert "batch 1 (process) is not committed: check late_drop_recount: Expected: dead letters by reason" in status
    assert "`tidemark accept SPEC 1 --reason …` takes it as it is" in status

    other = command("accept", file.path, 7, "--reason", "no such batch", "--warehouse", settings.warehouse)
    assert (other.exit_code, "batch 1 is waiting to be committed, not batch 7" in other.stderr) == (1, True)

    taken = command("accept", file.path, 1, "--reason", "seen with the shop", "--warehouse", settings.warehouse)
    assert taken.exit_code == 0, taken.stderr
    commit = workspace.batches.last_commit()
    assert commit is not None
    assert (commit.batch_id, commit.reason) == (1, "seen with the shop")
    assert workspace.progress.processed_end() == 120
    assert {row["state"] for row in table(settings.warehouse, file.spec, "batches") if row["_batch_id"] == 1} >= {
        "accepted"
    }
    status = command("status", file.path, "--warehouse", settings.warehouse).stdout
    assert "120 records in" in status
    assert ", accepted although a check failed: seen with the shop" in " ".join(status.split()), "lines are wrapped"
    assert status.rstrip().endswith("nothing"), "what was accepted is no news"


@pytest.mark.parametrize(
    ("asset", "alerts", "is_error", "says"),
    [
        ("dead_letters", {"dead_letter_rate": {"warn": "1 %", "error": "90 %"}}, False, "; limit 1 %"),
        ("dead_letters", {"dead_letter_rate": {"error": "2 %"}}, True, "; limit 2 %"),
        ("dead_letters", {"dead_letter_rate": {"warn": "90 %"}}, None, ""),
        (
            "ordered_events",
            {"freshness": {"warn": "1 min", "error": "90 min"}},
            False,
            "the watermark is 1 hour behind the clock; limit 1 minute",
        ),
        ("ordered_events", {"freshness": {"error": "30 min"}}, True, "limit 30 minutes"),
        ("ordered_events", {"freshness": {"error": "2 hours"}}, None, ""),
    ],
)
def test_alerts_are_told_with_their_level_and_hold_nothing_back(
    batch: Written, asset: str, alerts: dict[str, object], is_error: bool | None, says: str
) -> None:
    """Set the clock an hour after the watermark of the batch."""
    spec = batch.workspace.spec.model_copy(update={"alerts": Alerts.model_validate(alerts)})
    watermark_us = batch.workspace.progress.position_after(batch.plan.batch_id).watermark_us
    assert watermark_us is not None
    clock = FixedClock(instant_of(watermark_us) + timedelta(hours=1))
    file = replace(batch.workspace.file, spec=spec)
    workspace = replace(batch.workspace, file=file, clock=clock)
    again = Batch(workspace, batch.plan, judge)
    checked = run_checks(again, asset, BatchLosses(again))
    [told] = [one for one in checked if one.expectation.name in alerts]
    assert all(other.passed for other in checked if other is not told)
    assert not told.expectation.blocking
    assert told.passed == (is_error is None)
    assert told.is_error == bool(is_error)
    assert says in told.message
