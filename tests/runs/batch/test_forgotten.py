"""Records that are forgotten: no file of the warehouse or of Dagster has a value of them, all else is in order."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.runs.landing import assert_tables_equal_the_oracle, table
from tests.runs.running import Made, asked, backfill, changed, rebuild, workspace_of, written
from tidemark.resources.delta.lake import Lake

SHOP = """\
name: shop
sources:
  - name: orders
    kind: files
    path: in/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING, v BIGINT, email STRING, tags ARRAY<STRING>"
    arrival_time: got
    keep_unknown: true
    settle: 0 s
time:
  timestamp_by: at
  over: [email]
  out_of_orderness: 10 s
  out_of_order: keep
  deduplicate_by: [id]
  within: 1 day
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, allowed_lateness: 1 minute, emit: on_time, revise_every: 20 s,
     history: true, group_by: [email], aggregates: {n: count(*), most: max(v), who: max(email)}}
  - {name: visits, kind: session, gap: 30 s, group_by: [email], aggregates: {n: count(*)}}
partitions: {start: 2026-01-01}
"""
PEOPLE = ("ada@example.org", "bob@example.org", "cyd@example.org")
ADA, TOWN, TAG, ID = PEOPLE[0], "Ada's Ñandúville", "tag-of-ada", 4_711_815
START = datetime.fromisoformat("2026-01-01T00:00:00+00:00")
OF_ADA = f"email = '{ADA}'"


def order(number: int, email: str, at: datetime, *, late_s: int = 0) -> dict[str, Any]:
    is_ada = email == ADA
    return {
        "id": f"{email[:3]}-order-{number}",
        "at": (at - timedelta(seconds=late_s)).isoformat(),
        "got": (at + timedelta(seconds=1)).isoformat(),
        "k": "abc"[number % 3],
        "v": ID if is_ada else number,
        "email": email,
        "tags": [TAG, "shared tag"] if is_ada else ["shared tag"],
        **({"town": TOWN} if is_ada else {}),
    }


def land(base: Path, name: str, first: int, count: int = 24) -> None:
    """Write orders of all people: some are late, some come twice, one line cannot be read."""
    at = [START + timedelta(seconds=20 * (first + n)) for n in range(count)]
    rows = [order(first + n, PEOPLE[n % 3], at[n], late_s=900 if n % 8 == 7 else 0) for n in range(count)]
    rows += [rows[-1], rows[-3]]
    lines = [json.dumps(row, ensure_ascii=number % 2 == 0) for number, row in enumerate(rows)]
    (base / "in").mkdir(exist_ok=True)
    (base / "in" / f"{name}.jsonl").write_text("\n".join([*lines, f'{{"email": "{ADA}", broken']) + "\n")


def texts_in(file: Path) -> Iterator[str]:
    """Yield all that a file holds as text, read by others than the product; SQLite removes some files of its own."""
    if not file.is_file():
        return
    yield file.read_bytes().decode("utf-8", "replace")
    if file.suffix == ".parquet":
        yield str(pq.read_table(file).to_pylist())
    if file.read_bytes()[:15] == b"SQLite format 3":
        with closing(sqlite3.connect(file)) as base:
            yield "\n".join(base.iterdump())


def holding(folder: Path, *values: str) -> list[str]:
    """Return the files that hold one of some values, also as JSON spells it."""
    spelled = {spelling for value in values for spelling in (value, json.dumps(value)[1:-1])}
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return [str(file) for file in files if any(value in text for text in texts_in(file) for value in spelled)]


VALUES = (ADA, TOWN, TAG, str(ID), "ada-order-")


def forget(made: Made, where: str = f"{OF_ADA} OR _malformed LIKE '%{ADA}%'", *words: str) -> Result:
    return asked(made, "forget", "--where", where, "--reason", "request 17", *words)


def seqs_of_ada(made: Made) -> list[int]:
    rows = table(made[1].warehouse, made[0].spec, "raw_events")
    return [row["_arrival_seq"] for row in rows if row["email"] == ADA or ADA in str(row["_malformed"])]


def quote_in_dagster(home: Path) -> str:
    """Let Dagster store values in a run: in its output, as metadata and as the result of a check; return the run."""
    asset = dg.AssetKey(["shop", "raw_events"])
    letters = dg.AssetKey(["shop", "dead_letters"])

    @dg.op(out=dg.Out(dg.Nothing))
    def look(context: dg.OpExecutionContext) -> Iterator[object]:
        context.log.info(f"most orders are of {ADA}")
        yield dg.AssetMaterialization(asset, metadata={"who": ADA, "where": TOWN})
        yield dg.AssetCheckEvaluation(
            asset_key=letters, check_name="conservation", passed=True, description=f"{ADA} has all", metadata={}
        )
        yield dg.Output(None)

    job = dg.GraphDefinition(name="shop_live", node_defs=[look]).to_job()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        return job.execute_in_process(instance=instance).run_id


@contextmanager
def opened_by_a_daemon(home: Path) -> Iterator[None]:
    """Have Dagster's databases open during the block, so that what is written stays in SQLite's log at first."""
    with ExitStack() as until_the_end:
        for name in ("runs.db", "runs/index.db"):
            base = until_the_end.enter_context(closing(sqlite3.connect(home / "history" / name)))
            base.execute("SELECT count(*) FROM sqlite_master").fetchall()
        yield


def assert_dagster_has_the_present(home: Path, run_id: str, records: int) -> None:
    """Check that a run is gone, and that the log is shown with its rows."""
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        assert instance.get_run_by_id(run_id) is None
        event = instance.get_latest_materialization_event(dg.AssetKey(["shop", "raw_events"]))
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["dagster/row_count"].value == records


def assert_only_payload_is_blank(before: list[dict[str, Any]], after: list[dict[str, Any]], seqs: list[int]) -> None:
    """Check that the log is dense, and that rows that were forgotten have lost their payload and nothing else."""
    kept = ("_arrival_seq", "_arrival_time", "_clock", "_source", "_position", "_file", "_batch_id")
    now = {row["_arrival_seq"]: row for row in after}
    assert sorted(now) == list(range(len(before)))
    for row in before:
        blank = {name: value if name in kept else None for name, value in row.items()}
        assert now[row["_arrival_seq"]] == (blank if row["_arrival_seq"] in seqs else row)


def run(made: Made) -> None:
    done = asked(made, "run")
    assert done.exit_code == 0, done.output


@pytest.mark.long
def test_nothing_of_a_forgotten_person_is_left_in_any_file_and_all_else_is_as_without_their_records(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    made = written(tmp_path, "shop", SHOP)
    warehouse, spec = made[1].warehouse, made[0].spec
    assert isinstance(warehouse, Path)
    for number in range(2):
        land(tmp_path, f"{number}", 24 * number)
        run(made)
    seqs, before = seqs_of_ada(made), table(warehouse, spec, "raw_events")
    clock = workspace_of(made).progress.log_clock_us()
    assert len(seqs) > 16
    assert len(holding(warehouse, *VALUES)) > 20
    daemon = ExitStack()
    daemon.enter_context(opened_by_a_daemon(tmp_path / "home"))
    run_id = quote_in_dagster(tmp_path / "home")
    assert any(file.endswith("index.db-wal") for file in holding(tmp_path / "home", ADA, TOWN))
    looked = forget(made, f"{OF_ADA} OR _malformed LIKE '%{ADA}%'", "--dry-run", "--json")
    found = json.loads(looked.output.splitlines()[-1])
    assert (looked.exit_code, found["records"], found["dry_run"]) == (0, len(seqs), True), looked.output
    assert len(found["holding"]) > 20
    assert table(warehouse, spec, "raw_events") == before

    done = forget(made, f"{OF_ADA} OR _malformed LIKE '%{ADA}%'", "--json")
    said = json.loads(done.output.splitlines()[-1])
    assert (done.exit_code, said["records"], said["left"]) == (0, len(seqs), []), done.output
    assert said["sought"] > 20
    assert said["inputs"] == {"orders": ["0.jsonl", "1.jsonl"]}
    assert holding(warehouse, *VALUES) == []
    assert holding(tmp_path / "home", *VALUES) == []
    daemon.close()
    assert_dagster_has_the_present(tmp_path / "home", run_id, len(before))
    assert_only_payload_is_blank(before, table(warehouse, spec, "raw_events"), seqs)
    assert_tables_equal_the_oracle(warehouse, spec, without=seqs, revisions=False)
    assert workspace_of(made).progress.log_clock_us() == clock

    again = forget(made)
    assert (again.exit_code, "No record of shop that has a payload" in again.output) == (2, True), again.output
    status = asked(made, "status", "--json")
    state = json.loads(status.output.splitlines()[-1])
    assert (state["forgotten"], state["forgetting"], state["by_hand"]) == (len(seqs), False, [])
    explained = json.loads(asked(made, "explain", "--seq", str(seqs[0]), "--json").output)
    assert (explained["outcome"], explained["reason"]) == ("excluded", "request 17")
    back = asked(made, "rejudge", "--include", str(seqs[0]), "--reason", "no")
    assert (back.exit_code, "is forgotten" in back.output) == (2, True), back.output

    land(tmp_path, "2", 48)
    run(made)
    assert rebuild(made).exit_code == 0, "they stay out"
    assert backfill(*made, "--from", "2026-01-01", "--to", "2026-01-02").exit_code == 0
    assert_tables_equal_the_oracle(warehouse, spec, without=seqs, revisions=False)
    assert asked(made, "maintain").exit_code == 0
    assert all(row["email"] is None for row in table(warehouse, spec, "raw_events") if row["_arrival_seq"] in seqs)


@pytest.mark.long
def test_a_file_that_still_holds_a_value_is_named_and_the_exit_code_says_so(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = written(tmp_path, "shop", SHOP)
    warehouse = made[1].warehouse
    assert isinstance(warehouse, Path)
    land(tmp_path, "0", 0)
    run(made)
    (warehouse / "shop" / "case.yaml").write_text(f"person: {ADA}\n")
    looked = forget(made, OF_ADA, "--dry-run")
    [broken] = [row for row in table(warehouse, made[0].spec, "raw_events") if row["_malformed"]]
    assert f"records {broken['_arrival_seq']} stay and have some of the same values" in looked.output, looked.output
    left = forget(made)
    assert (left.exit_code, "LEFT in shop/case.yaml: its bytes" in left.output) == (1, True), left.output
    assert holding(warehouse, *VALUES) == [str(warehouse / "shop" / "case.yaml")]


@pytest.mark.long
def test_what_others_wrote_into_logs_of_tables_is_taken_out_of_them(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "shop", SHOP.replace("  over: [email]\n", ""))
    warehouse = made[1].warehouse
    assert isinstance(warehouse, Path)
    land(tmp_path, "0", 0)
    run(made)
    folder = warehouse / "shop" / "raw_events"
    DeltaTable(folder).delete(f"{OF_ADA} AND v < 0")
    DeltaTable(folder).delete(f"{OF_ADA} AND k = 'a'")
    assert asked(made, "changes", "--take-back", "by mistake").exit_code == 0
    DeltaTable(folder).optimize.z_order(["_arrival_seq"])  # with bounds of texts
    DeltaTable(folder).create_checkpoint()
    assert [file for file in holding(folder / "_delta_log", ADA) if file.endswith(".json")]
    done = forget(made)
    assert done.exit_code == 0, done.output
    assert holding(warehouse, *VALUES) == []
    assert DeltaTable(folder).history()
    land(tmp_path, "1", 24)
    run(made)
    assert rebuild(made).exit_code == 0


@pytest.mark.long
def test_what_cannot_be_forgotten_is_refused_before_anything_is_done(spark: SparkSession, tmp_path: Path) -> None:
    made = written(tmp_path, "shop", SHOP)
    land(tmp_path, "0", 0)
    nothing = forget(made, OF_ADA)
    assert (nothing.exit_code, "has processed nothing" in nothing.output) == (1, True), nothing.output
    run(made)
    batches = len(Lake(made[1].warehouse / "shop").rows("batches"))
    for where, reason, said in (
        ("nothing > 1", "17", "No field named nothing"),
        ("email = 'nobody'", "17", "No record of shop that has a payload meets the condition"),
        (OF_ADA, f"the person in {TOWN} has asked", "--reason holds a value of a record"),
    ):
        for more in ([], ["--dry-run"]):
            done = asked(made, "forget", "--where", where, "--reason", reason, *more)
            assert (done.exit_code, said in done.output) == (2, True), done.output
    other = changed(made, "gap: 30 s", "gap: 20 s")
    refused = forget(other)
    assert (refused.exit_code, "asks for the past" in refused.output) == (2, True), refused.output
    assert len(Lake(made[1].warehouse / "shop").rows("batches")) == batches


FOLLOWER = """\
name: copy
sources:
  - name: minutes
    kind: delta
    path: warehouse/shop/windows/minutes
    changes: follow
    schema: "window_start TIMESTAMP, window_end TIMESTAMP, email STRING, n BIGINT, most BIGINT"
time: {timestamp_by: window_start}
windows:
  - {name: hours, kind: tumbling, size: 1 hour, group_by: [email], aggregates: {n: sum(n)}}
"""


@pytest.mark.long
def test_a_pipeline_that_follows_a_table_reads_the_correction_before_old_files_go(
    spark: SparkSession, tmp_path: Path
) -> None:
    made, copy = written(tmp_path, "shop", SHOP), written(tmp_path, "copy", FOLLOWER)
    warehouse = made[1].warehouse
    assert isinstance(warehouse, Path)
    land(tmp_path, "0", 0)
    run(made)
    run(copy)
    waits = forget(made)
    assert (waits.exit_code, "copy follows windows/minutes" in waits.output) == (1, True), waits.output
    assert holding(warehouse / "shop", ADA), "its old files are still there"
    kept = asked(made, "maintain")
    assert (kept.exit_code, "`tidemark forget` has blanked records" in kept.output) == (1, True), kept.output
    state = json.loads(asked(made, "status", "--json").output.splitlines()[-1])
    assert state["forgetting"] is True
    run(copy)
    log = table(warehouse, copy[0].spec, "ordered_events") + table(warehouse, copy[0].spec, "held_events")
    assert ADA not in {row["email"] for row in log}
    left = forget(made)
    assert (left.exit_code, "LEFT in copy/" in left.output) == (1, True), left.output
    assert holding(warehouse / "shop", *VALUES) == []
    done = forget(copy, OF_ADA)
    assert done.exit_code == 0, done.output
    assert holding(warehouse, *VALUES) == []
    land(tmp_path, "1", 24)
    run(made)
    run(copy)
