"""Dead letters that are let in again: what changes, what stays, how long it lasts, and how it is taken back."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from dagster import AssetKey, DagsterInstance
from pyspark.sql import SparkSession

import tidemark as tm
from tests.runs.landing import LINES, assert_tables_equal_the_oracle, land, table
from tests.runs.running import Made, asked, backfill, go, rebuild, written
from tests.runs.running import changed as changed_spec
from tidemark.assets.judging import replay as replay_module
from tidemark.assets.recount.windows import wrong_results
from tidemark.pipelines.definitions import build_definitions
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.workspace import Workspace

WINDOWS = """\
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: pairs, kind: tumbling, size: 2 minutes, from: minutes, group_by: [k], aggregates: {n: sum(n)}}
  - {name: quiet, kind: tumbling, size: 10 s, empty: true, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, max_duration: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: last_20_s, kind: sliding, size: 20 s, group_by: [k], aggregates: {n: count(*)}}
partitions: {start: 2026-01-01}
"""
DROPS = (
    f"name: shop\n{LINES}"
    "time: {timestamp_by: at, out_of_orderness: 1 s, late: {tolerance: 25 s, policy: drop}}\n" + WINDOWS
)

KEEPS = (
    f"name: shop\n{LINES}"
    """\
time: {timestamp_by: at, out_of_orderness: 2 s, out_of_order: keep}
windows:
  - {name: minutes, kind: tumbling, size: 20 s, allowed_lateness: 2 s, emit: on_time, revise_every: 10 s,
     history: true, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 6 s, allowed_lateness: 1 s, group_by: [k], aggregates: {n: count(*)}}
partitions: {start: 2026-01-01}
"""
)


def replay(made: Made, where: str, *words: str, reason: str = "the gateway was offline") -> Result:
    return asked(made, "replay", "--where", where, "--reason", reason, *words)


def replayed(made: Made, where: str, *words: str) -> dict[str, Any]:
    done = replay(made, where, "--json", *words)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    return found


def rows_of(made: Made, name: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = table(made[1].warehouse, made[0].spec, f"windows/{name}")
    return {(row["window_start"], row["window_end"], row.get("k")): row for row in rows}


def assert_only_these_rows_changed(
    made: Made, before: dict[str, dict[tuple[Any, ...], dict[str, Any]]], done: dict[str, Any]
) -> None:
    """Compare the tables of windows with the ones before: what is told is exactly what differs."""
    for window in done["windows"]:
        name, after = window["window"], rows_of(made, window["window"])
        changed = {key for key, row in after.items() if before[name].get(key) != row}
        assert len(changed) == window["changed"] + window["new"], name
        assert changed, name
        gone = before[name].keys() - after.keys()
        assert len(gone) == window["gone"], name
        assert {key[0].date().isoformat() for key in changed | gone} == {*window["days"]}, "exactly these days"
        assert {after[key]["_batch_id"] for key in changed} == {done["batch"]}
        assert all(after[key]["_revision"] == (1 if key in before[name] else 0) for key in changed), name


def assert_explained_as_let_in(made: Made, seqs: list[int]) -> None:
    for seq in seqs:
        answer = tm.explain(made[0].path, seq=seq, warehouse=str(made[1].warehouse)).to_dict()
        assert (answer["outcome"], answer["reason"]) == ("kept", None)
        assert "let in again" in answer["detail"]
        assert {window["outcome"] for window in answer["windows"]} <= {"counted", "open"}
        assert {window["name"] for window in answer["windows"]} >= {"minutes", "visits", "last_20_s"}


@pytest.mark.long
def test_chosen_letters_come_into_their_windows_and_nothing_else_changes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_module, "MOST_IN_A_PIECE", 70)  # a rebuild judges the log in several pieces
    made = written(tmp_path, "shop", DROPS)
    warehouse, spec = made[1].warehouse, made[0].spec
    where = "reason IN ('out_of_order', 'late_arrival') AND _arrival_seq < 120"
    with DagsterInstance.ephemeral() as instance:
        land(tmp_path / "in", 150, seed=3, prefix="a")
        go(made, instance, RunOptions(max_events_per_batch=40))
        letters = [row for row in table(warehouse, spec, "dead_letters") if row["stage"] == "time"]
        before = {window.name: rows_of(made, window.name) for window in spec.windows}
        looked = replayed(made, where, "--dry-run")
        assert {window.name: rows_of(made, window.name) for window in spec.windows} == before, "nothing is written"
        done = replayed(made, where)
        assert {**looked, "dry_run": False, "batch": done["batch"], "committed_at": done["committed_at"]} == done
        chosen = {row["_arrival_seq"] for row in letters if row["reason"] in done["letters"]}
        assert sum(done["letters"].values()) == done["records"] == len([seq for seq in chosen if seq < 120]) > 10
        assert_tables_equal_the_oracle(warehouse, spec, revisions=False)
        assert_only_these_rows_changed(made, before, done)
        assert_explained_as_let_in(made, [seq for seq in sorted(chosen) if seq < 120][::4])
        workspace = Workspace(made[0], warehouse, lambda: spark)
        assert [wrong for window in spec.windows for wrong in wrong_results(workspace, window)] == []
        at = {row["replayed_at"] for row in table(warehouse, spec, "dead_letters")} - {None}
        assert len(at) == 1
        again = replay(made, where)
        assert (again.exit_code, "nothing to do" in again.output) == (0, True), again.output
        status = asked(made, "status")
        assert (status.exit_code, "by hand" in status.output) == (0, False), status.output
        land(tmp_path / "in", 60, seed=4, prefix="b", start=max(row["_arrival_time"] for row in letters))
        go(made, instance, RunOptions(max_events_per_batch=25))
        assert_tables_equal_the_oracle(warehouse, spec, revisions=False)
        live = {window.name: values_of(made, window.name) for window in spec.windows}
        assert backfill(*made, "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
        assert {window.name: values_of(made, window.name) for window in spec.windows} == live
        assert rebuild(made).exit_code == 0, "it lasts"
        assert_tables_equal_the_oracle(warehouse, spec)
        assert {window.name: values_of(made, window.name) for window in spec.windows} == live
        undone = replayed(made, where, "--undo")
        assert undone["records"] == done["records"]
        assert_tables_equal_the_oracle(warehouse, spec, revisions=False)
        land(tmp_path / "in", 30, seed=5, prefix="c", start=max(row["_arrival_time"] for row in letters))
        go(made, instance)
    assert_tables_equal_the_oracle(warehouse, spec, revisions=False)
    kinds = [row["kind"] for row in table(warehouse, spec, "log_control")]
    assert kinds.count("admit") == 2, "of the decision, and of the rebuild after it"
    assert not any(row["replayed_at"] for row in table(warehouse, spec, "dead_letters"))


def values_of(made: Made, name: str) -> dict[tuple[Any, ...], Any]:
    return {key: (row["n"], row["_is_final"]) for key, row in rows_of(made, name).items()}


@pytest.mark.long
def test_letters_of_closed_windows_come_into_all_windows_of_their_records(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "shop", KEEPS)
    warehouse, spec = made[1].warehouse, made[0].spec
    with DagsterInstance.ephemeral() as instance:
        land(tmp_path / "in", 160, seed=7, prefix="a")
        go(made, instance, RunOptions(max_events_per_batch=90))
        where = "reason = 'window_closed'"
        done = replayed(made, where)
        assert done["records"] > 3
        assert_tables_equal_the_oracle(warehouse, spec, revisions=False)
        after = max(row["_clock"] for row in table(warehouse, spec, "raw_events") if row["_clock"])
        land(tmp_path / "in", 40, seed=8, prefix="b", start=after)
        go(made, instance)
        assert_tables_equal_the_oracle(warehouse, spec, revisions=False)
        status = asked(made, "status")
        assert (status.exit_code, "by hand" in status.output) == (0, False), status.output
        assert rebuild(made).exit_code == 0
        assert_tables_equal_the_oracle(warehouse, spec, revisions=False)
        assert replayed(made, where, "--undo")["records"] == done["records"]
    assert_tables_equal_the_oracle(warehouse, spec, revisions=False)


@pytest.mark.long
def test_the_job_in_dagster_and_the_library_let_letters_in_and_say_what_they_cannot(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "shop", DROPS[: DROPS.index("  - {name: pairs")] + "partitions: {start: 2026-01-01}\n")
    warehouse, spec, path = made[1].warehouse, made[0].spec, made[0].path
    land(tmp_path / "in", 120, seed=3, prefix="a")
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        for where, said in (
            ("reason = 'nothing'", "No dead letter of shop meets the condition"),
            ("reson = 'early'", "No field named reson"),
            ("reason = 'bad_timestamp'", "have no time or cannot be computed"),
        ):
            refused = replay(made, where)
            assert (refused.exit_code, said in refused.output) == (2, True), refused.output
        found = tm.replay(
            path, "reason = 'out_of_order'", "late", dry_run=True, warehouse=str(warehouse), instance=instance
        )
        assert "Nothing was written" in str(found)
        assert (found.batch, found.to_dict()["records"]) == (None, found.records)
        job = build_definitions(made[1], [made[0]]).resolve_job_def("shop_replay")
        config = {"where": "reason = 'out_of_order'", "reason": "late"}
        done = job.execute_in_process(run_config={"ops": {"shop__replay": {"config": config}}}, instance=instance)
        assert done.success
        [output] = [event for event in done.all_events if event.is_successful_output]
        metadata = output.step_output_data.metadata
        assert metadata["records let in or refused again"].value == found.records
        days = instance.get_materialized_partitions(AssetKey(["shop", "windows", "minutes"]))
        assert {day for window in found.windows for day in window.days} <= days
        again = tm.replay(path, "reason = 'out_of_order'", "late", warehouse=str(warehouse), instance=instance)
        assert (again.records, again.already) == (0, found.records)
        assert_a_corrected_record_comes_in(made, tmp_path / "fixes.jsonl")
        changed = changed_spec(made, "size: 1 minute", "size: 2 minutes")
        refused = replay(changed, "reason = 'late_arrival'")
        assert (refused.exit_code, "asks for the past of minutes" in refused.output) == (2, True), refused.output
    assert len([row for row in table(warehouse, spec, "dead_letters") if row["replayed_at"]]) == found.records + 1


def assert_a_corrected_record_comes_in(made: Made, fixes: Path) -> None:
    """Correct the time of a record by hand: it is in its window, with its old arrival, and after a rebuild too."""
    warehouse, spec = made[1].warehouse, made[0].spec
    wrong = next(row for row in table(warehouse, spec, "dead_letters") if row["reason"] == "bad_timestamp")
    seq, raw = wrong["_arrival_seq"], table(warehouse, spec, "raw_events")
    of_place = next(row for row in raw if row["_arrival_seq"] == seq)
    key = next(key for key in rows_of(made, "minutes") if key[2] == "a")
    values = {"id": of_place["id"], "at": f"{key[0].isoformat()}", "k": "a", "v": 7}
    where, before = f"_arrival_seq = {seq}", rows_of(made, "minutes")
    for line, said in (
        ("no JSON", "Corrected record 1 is 'no JSON'"),
        ({**values, "_arrival_seq": seq + 1_000}, "is not among the dead letters that meet the condition"),
        ({**values, "_arrival_seq": seq, "w": 1}, "has `w`"),
        ({**values, "_arrival_seq": seq, "at": "tomorrow"}, "does not fit the schema, or has no time"),
        ({**values, "_arrival_seq": seq, "v": "many"}, "does not fit the schema, or has no time"),
    ):
        fixes.write_text(line if isinstance(line, str) else json.dumps(line) + "\n")
        refused = replay(made, where, "--with", str(fixes))
        assert (refused.exit_code, said in refused.output) == (2, True), refused.output
    fixes.write_text(json.dumps({**values, "_arrival_seq": seq}) + "\n")
    done = replayed(made, where, "--with", str(fixes))
    assert done["letters"] == {"bad_timestamp": 1}
    after = rows_of(made, "minutes")
    assert {each for each, row in after.items() if before.get(each) != row} == {key}
    assert (after[key]["n"], after[key]["_revision"]) == (before[key]["n"] + 1, before[key]["_revision"] + 1)
    [ordered] = [row for row in table(warehouse, spec, "ordered_events") if row["_arrival_seq"] == seq]
    assert (ordered["v"], ordered["_arrival_time"]) == (7, of_place["_arrival_time"] or of_place["_clock"])
    assert rebuild(made).exit_code == 0
    assert {each: row["n"] for each, row in rows_of(made, "minutes").items()} == {
        each: row["n"] for each, row in after.items()
    }
    status = asked(made, "status")
    assert (status.exit_code, "by hand" in status.output) == (0, False), status.output
