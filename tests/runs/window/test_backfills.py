"""`tidemark backfill`: days recomputed equal the live ones, and new aggregates reach the past."""

from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus
from pyspark.sql import DataFrame, SparkSession

from tests.runs.landing import land, table
from tests.runs.running import asked, backfill, pipeline
from tidemark.pipelines.running.runner import RunOptions, run_pipeline
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.settings import Settings
from tidemark.resources.workspace import SpecFile, Workspace

BEFORE = "{n: count(*), total: sum(v), seen: array_sort(collect_set(id))}"
AFTER = "{n: count(*), total: sum(2 * v), largest: max(v)}"
WINDOW = "windows/per_minute"


def results(spark: SparkSession, made: tuple[SpecFile, Settings], *columns: str) -> DataFrame:
    workspace = Workspace(made[0], made[1].warehouse, lambda: spark)
    return workspace.read_base(WINDOW).select("window_start", "k", "n", "total", *columns, "_watermark")


def assert_same(one: DataFrame, other: DataFrame) -> None:
    assert one.exceptAll(other).union(other.exceptAll(one)).count() == 0
    assert one.count() > 10, "equal empty tables would show nothing"


def assert_each_day_has_its_own_row_count(rows: DataFrame, home: Path) -> None:
    """As Dagster has it of the backfill, whose run is on the timeline: that shows runs with a place of origin."""
    counted = rows.groupBy(rows["window_start"].cast("date").cast("string").alias("day")).count().collect()
    with DagsterInstance.from_config(str(home)) as instance:
        shown = {}
        for event in instance.fetch_materializations(AssetKey(["daily", "windows", "per_minute"]), limit=10).records:
            materialization = event.asset_materialization
            assert materialization is not None
            shown[materialization.partition] = materialization.metadata["dagster/partition_row_count"].value
        [run] = instance.get_runs()
    assert shown == {row["day"]: row["count"] for row in counted}
    assert len(shown) == 2
    assert run.remote_job_origin is not None
    assert run.remote_job_origin.repository_origin.get_label() == "__repository__@tidemark"
    assert run.status == DagsterRunStatus.SUCCESS
    assert int(run.tags["tidemark/batch"]) == 2


@pytest.mark.long
def test_recomputed_days_equal_the_live_ones_and_new_aggregates_reach_the_past_and_go_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare with a pipeline that had the new aggregates from the beginning."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    file, settings = made = pipeline(tmp_path, "daily", "keep", sparse=False)
    reference = Settings(tmp_path / "reference", tmp_path, tmp_path / "home")
    land(tmp_path / "in_daily", 400, seed=1)
    with DagsterInstance.ephemeral() as instance:
        run_pipeline(file, settings, RunOptions(), instance=instance)
        live = results(spark, made, "seen").localCheckpoint()
        done = backfill(file, settings, "--from", "2026-01-01", "--to", "2026-01-02")
        assert done.exit_code == 0, done.stderr
        said = "daily: 2026-01-01 to 2026-01-02, 2 days recomputed, as batch 2\n  windows/per_minute"
        assert done.stdout.startswith(said)
        assert_same(results(spark, made, "seen"), live)
        assert_each_day_has_its_own_row_count(live, tmp_path / "home")

        file.path.write_text(file.path.read_text().replace(BEFORE, AFTER))
        changed = read_spec(file.path)
        run_pipeline(changed, reference, RunOptions(), instance=instance)
        assert backfill(changed, settings, "--from", "2026-01-01", "--to", "2026-01-01").exit_code == 0
        rows = table(settings.warehouse, file.spec, WINDOW)
        assert {row["largest"] is None for row in rows if row["window_start"].day == 1} == {False}
        assert {row["largest"] is None for row in rows if row["window_start"].day == 2} == {True}
        assert {row["seen"] is None for row in rows if row["window_start"].day == 1} == {True}

        again = backfill(changed, settings, "--from", "2026-01-01", "--to", "2026-01-02", "--window", "per_minute")
        assert again.exit_code == 0, again.stderr
        assert_same(results(spark, made, "largest"), results(spark, (changed, reference), "largest"))

        land(tmp_path / "more", 200, seed=2, files=1)
        (tmp_path / "more" / "f0.jsonl").rename(tmp_path / "in_daily" / "later.jsonl")
        for where in (settings, reference):
            assert run_pipeline(changed, where, RunOptions(end_of_input="flush"), instance=instance).batches == 1
        assert_same(results(spark, made, "largest"), results(spark, (changed, reference), "largest"))
    specs = [row for row in table(settings.warehouse, file.spec, "log_control") if row["kind"] == "spec"]
    specs.sort(key=lambda row: int(row["_control_seq"]))
    assert [row["reason"] for row in specs] == ["the pipeline's first batch", "the spec file changed"]

    other_time = backfill(
        changed, settings, *("--from", "2026-01-01", "--to", "2026-01-02", "--set", "time.out_of_orderness=1 s")
    )
    assert other_time.exit_code == 2
    assert "judges events in another way than when its log was processed" in other_time.stderr
    assert "Traceback" not in other_time.stderr


@pytest.mark.long
def test_a_day_that_a_zone_skipped_leaves_the_rows_of_the_days_beside_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samoa never had 30 December 2011."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    path, settings = tmp_path / "samoa.yaml", Settings(tmp_path / "warehouse", tmp_path, tmp_path / "home")
    path.write_text(
        "name: samoa\nsources:\n  - {name: s, kind: files, path: in/*.csv, format: csv, options: {header: true},\n"
        "     schema: 't STRING', settle: 0 s}\ntime: {timestamp_by: t}\n"
        "windows: [{name: hours, kind: tumbling, size: 1 hour, aggregates: {n: count(*)}}]\n"
        "partitions: {time_zone: Pacific/Apia, start: 2011-12-28}\n"
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_text("t\n2011-12-30T09:30:00Z\n2011-12-30T10:30:00Z\n2011-12-31T00:00:00Z\n")
    file = read_spec(path)
    assert asked((file, settings), "run").exit_code == 0

    def batches() -> dict[int, int]:
        rows = table(settings.warehouse, file.spec, "windows/hours")
        return {row["window_start"].hour: row["_batch_id"] for row in rows}

    live = batches()
    assert live.keys() == {9, 10}  # the last hour of the 29th, the first of the 31st
    skipped = backfill(file, settings, "--from", "2011-12-30", "--to", "2011-12-30")
    assert (skipped.exit_code, skipped.stdout) == (2, "")
    assert "Pacific/Apia had no 2011-12-30" in skipped.stderr
    done = backfill(file, settings, "--from", "2011-12-29", "--to", "2011-12-30")
    assert (done.exit_code, batches()[10]) == (0, live[10])
    assert "2011-12-29 to 2011-12-29, 1 day recomputed" in done.stdout
    assert batches()[9] > live[9]
    with DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        assert list(instance.get_dynamic_partitions("samoa/windows/hours")) == ["2011-12-29", "2011-12-31"]


def test_days_that_cannot_be_asked_for_are_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    file, settings = pipeline(tmp_path, "asked", "keep", sparse=False)

    def refused(*words: str) -> str:
        done = backfill(file, settings, *words)
        assert (done.exit_code, done.stdout) == (2, "")
        return done.stderr

    day = ("--from", "2026-01-02", "--to", "2026-01-02")
    assert "has no window `per_minutes`" in (said := refused(*day, "--window", "per_minutes"))
    assert "did you mean `per_minute`?" in said
    assert "The first day, 2026-01-03, is after the last one, 2026-01-02" in refused(
        "--from", "2026-01-03", "--to", "2026-01-02"
    )
    said = refused("--from", "2025-12-31", "--to", "2026-01-02")
    assert "before the first partition of asked, 2026-01-01" in said
    assert "set `partitions: {start: 2025-12-31}`" in said
    assert "The last day, 9000-01-01, is in the future" in refused("--from", "2026-01-02", "--to", "9000-01-01")
    file.path.write_text("".join(file.path.read_text().partition("windows:")[:1]))
    assert "asked has no windows, and only windows have days" in refused(*day)
    assert not settings.warehouse.exists()
