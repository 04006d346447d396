"""Sources that get another name: what was read goes on, as in a pipeline that always called them so."""

import json
import random
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dagster import DagsterInstance
from deltalake import write_deltalake
from pyspark.sql import SparkSession

from tests.runs.landing import START, arrivals
from tests.runs.running import (
    FLUSH,
    Made,
    asked,
    commit_dies,
    committed,
    dies,
    go,
    public_tables,
    rebuild,
    workspace_of,
    written,
)
from tests.seeds import Dice
from tidemark.assets import live
from tidemark.assets.ingestion.waiting_input import largest_times
from tidemark.assets.live import BATCH
from tidemark.assets.rebuild import switch
from tidemark.pipelines.definitions import build_definitions, job_name
from tidemark.pipelines.running.runner import RunOptions
from tidemark.pipelines.views.report import accounts
from tidemark.pipelines.views.report.accounts import state_of
from tidemark.resources.settings import Settings
from tidemark.timeops.errors import SpecError

CASES = 1
FILES = """\
  - name: {name}
    kind: files
    path: {folder}/*.jsonl
    format: json
    schema: "id STRING, at STRING, got STRING, k STRING"
    arrival_time: got
    settle: 0 s
"""
ALIGNED = """\
    max_files: 1
    split: k
    alignment: {group: g, max_drift: 20 s}
"""
TABLE = """\
  - name: {name}
    kind: delta
    path: orders
    schema: "id STRING, at STRING, got STRING, k STRING"
    arrival_time: got
    start_version: 0
"""
TIMES = (
    "{timestamp_by: at, out_of_orderness: 2 s, idle: {timeout: 15 s, advance: exclude_split}}",
    "{timestamp_by: at, out_of_orderness: 2 s, idle: {timeout: 15 s, advance: window_close}}",
    "{timestamp_by: at, out_of_orderness: 2 s, over: [k], early: {tolerance: 1 s, policy: adjust}}",
    "{timestamp_by: at, out_of_orderness: 2 s, out_of_order: adjust, emit: {every: 5 s}}",
)
WINDOWS = """\
windows:
  - {name: minutes, kind: tumbling, size: 20 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {n: count(*)}}
"""
BY_SOURCE = (
    "  - {name: shares, kind: tumbling, size: 5 minutes, group_by: [_source AS of], aggregates: {n: count(*)}}\n"
)
OLD = ("fast", "slow", "orders")
NEW = ("quick", "steady", "sales")


def made(
    base: Path,
    warehouse: str,
    names: tuple[str, ...],
    *,
    time: str = TIMES[0],
    source: str = "",
    more: str = "",
    was: bool = False,
) -> Made:
    """Return a pipeline of two folders and a table that are its sources, under some names."""
    said = [f"{new}\n    was: {old}" if was else new for new, old in zip(names, OLD, strict=True)]
    folders = zip(said, ("in_fast", "in_slow"), strict=False)
    sources = [FILES.format(name=name, folder=folder) + source for name, folder in folders]
    text = f"name: twins\nsources:\n{''.join(sources)}{TABLE.format(name=said[2])}time: {time}\n{WINDOWS}{more}"
    return written(base, warehouse, text)[0], Settings(base / warehouse, base, base / "home")


def land(base: Path, part: int, seed: int) -> None:
    """Write two files for each folder, one of whose folders runs ahead, and a version of the table."""
    rng = random.Random(seed)
    start = START + timedelta(minutes=2 * part)
    events = [
        {"id": f"{part}-{n}", "at": at.isoformat(), "got": got.isoformat(), "k": rng.choice("ab")}
        for n, (got, at) in enumerate(arrivals(rng, 50, start))
    ]
    events[7]["at"] = "yesterday"
    for folder in ("in_fast", "in_slow"):
        (base / folder).mkdir(exist_ok=True)
    for n, chosen in enumerate((events[0:45:3], events[45:], events[1:25:3], events[25:45:3])):
        name = base / ("in_fast", "in_slow")[n // 2] / f"{part}{n}.jsonl"
        name.write_text("".join(json.dumps(event) + "\n" for event in chosen))
    write_deltalake(str(base / "orders"), pa.Table.from_pylist(events[2:45:3]), mode="append")


def one_run(made: Made, instance: DagsterInstance, most: int) -> None:
    """Run the pipeline once, as a schedule does: sources that are ahead of others stay where they are."""
    job = build_definitions(made[1], [made[0]]).resolve_job_def(job_name(made[0]))
    given = {"resources": {BATCH: {"config": {"max_events_per_batch": most}}}}
    assert job.execute_in_process(instance=instance, run_config=given).success


def bare(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted([{key: value for key, value in row.items() if key != "_source"} for row in rows], key=str)


def assert_as_always(made: Made, always: Made, *, but_source: bool) -> None:
    assert bare(committed(made, "raw_events")) == bare(committed(always, "raw_events")), "nothing is read twice"
    for name in public_tables(always):
        rows, wanted = committed(made, name), committed(always, name)
        assert bare(rows) == bare(wanted), name
        assert but_source or rows == wanted, name


def items(made: Made, kind: str) -> list[Mapping[str, Any]]:
    return [row for row in committed(made, "log_control") if row["kind"] == kind]


@pytest.mark.long
@pytest.mark.parametrize("source", ["    split: k\n", ALIGNED], ids=["split", "aligned"])
def test_sources_that_are_renamed_go_on_as_in_a_pipeline_that_always_called_them_so(
    spark: SparkSession, tmp_path: Path, dice: Dice, source: str
) -> None:
    time, most = dice.choice(TIMES), dice.choice((30, 1_000))
    runs = dice.choice((1, 2, 3)) if source == ALIGNED else 1
    end = dice.choice(("hold", "flush"))
    before = made(tmp_path, "renamed", OLD, time=time, source=source)
    always = made(tmp_path, "always", NEW, time=time, source=source)
    land(tmp_path, 0, dice.seed(1))
    with DagsterInstance.ephemeral() as instance:
        for one in (before, always):
            for _ in range(runs):
                one_run(one, instance, most)
        now = made(tmp_path, "renamed", NEW, time=time, source=source, was=True)
        planned = json.loads(asked(now, "plan", "--json").output.splitlines()[-1])
        assert [change["meaning"] for change in planned["changes"]] == ["from here on"] * 3, planned
        assert planned["changes"][0]["sentence"] == "`fast` is `quick` now"
        for one in (now, always):
            one_run(one, instance, most)
        assert largest_times(workspace_of(now)) == largest_times(workspace_of(always))
        assert len(items(now, "wait")) == len(items(always, "wait"))
        land(tmp_path, 1, dice.seed(2))
        for one in (now, always):
            go(one, instance, RunOptions(end_of_input=end))
        assert_as_always(now, always, but_source=True)
        assert asked(now, "plan").output.startswith("twins: nothing changed since")
        assert "by hand" not in asked(now, "status").output
        done = rebuild(now)
        assert done.exit_code == 0, done.output
    assert_as_always(now, always, but_source=False)
    assert {row["_source"] for row in committed(now, "raw_events")} == {*OLD, *NEW}


@pytest.mark.long
def test_a_run_that_dies_while_sources_are_renamed_has_changed_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path, 0, 1)
    with DagsterInstance.ephemeral() as instance:
        go(made(tmp_path, "renamed", OLD), instance)
        now = made(tmp_path, "renamed", NEW, was=True)
        land(tmp_path, 1, 2)
        for at in ("log_control", "batches"):
            with monkeypatch.context() as patched:
                if at == "log_control":
                    patched.setattr(switch, "end_tables", dies)
                else:
                    commit_dies(patched, lambda plan: "renamed_sources" in plan.input)
                with pytest.raises(Exception, match="dies here"):
                    go(now, instance)
            assert "`tidemark run` continues it" in asked(now, "status").output
        go(made(tmp_path, "renamed", OLD), instance)
        now = made(tmp_path, "renamed", NEW, was=True)
        go(now, instance)
        assert len({row["id"] for row in committed(now, "raw_events")}) == len(committed(now, "raw_events")) == 100
        with pytest.raises(SpecError, match="it would read again what `quick` has read: write `was: quick`"):
            go(made(tmp_path, "renamed", OLD), instance)


@pytest.mark.long
def test_a_window_that_goes_by_the_name_is_made_anew_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    before, always = made(tmp_path, "renamed", OLD, more=BY_SOURCE), made(tmp_path, "always", NEW, more=BY_SOURCE)
    land(tmp_path, 0, 1)
    with DagsterInstance.ephemeral() as instance:
        for one in (before, always):
            go(one, instance)
        now = made(tmp_path, "renamed", NEW, more=BY_SOURCE, was=True)
        refused = asked(now, "plan")
        assert (refused.exit_code, "tidemark rebuild" in refused.output, "--window shares" in refused.output) == (
            3,
            True,
            True,
        )
        done = rebuild(now, "--window", "shares")
        assert done.exit_code == 0, done.output
        land(tmp_path, 1, 2)
        for one in (now, always):
            go(one, instance, FLUSH)
    assert_as_always(now, always, but_source=True)
    shares = {row["of"] for row in committed(now, "windows/shares")}
    assert shares <= {*NEW}
    assert shares


@pytest.mark.long
def test_a_name_may_change_again_and_come_back_but_never_be_of_another_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = FILES.replace("    arrival_time: got\n", "")

    def plain(*sources: str) -> Made:
        return written(tmp_path, "plain", f"name: plain\nsources:\n{''.join(sources)}")

    def named(name: str, was: str = "", folder: str = "in_fast") -> str:
        return source.format(name=f"{name}\n    was: {was}" if was else name, folder=folder)

    land(tmp_path, 0, 1)
    with DagsterInstance.ephemeral() as instance:
        first = plain(named("a"))
        go(first, instance)
        before = workspace_of(first).progress.last_arrivals()["a"]
        assert before is not None
        for name, was in (("b", "a"), ("c", "b"), ("a", "c"), ("d", "a")):
            now = plain(named(name, was))
            assert workspace_of(now).progress.last_arrivals() == {name: before}, "ticks go by it"
            go(now, instance)
            assert workspace_of(now).progress.last_arrivals() == {name: before}
        now = plain(named("d"))
        go(now, instance)
        assert len(committed(now, "raw_events")) == 20
        state = state_of(workspace_of(now))
        assert state is not None
        assert accounts.sources(state) == [accounts.SourceInput("d", 2, 20)]
        for other in (named("a", folder="in_slow"), named("b", was="x", folder="in_slow")):
            with pytest.raises(
                SpecError, match=r"`d` was called `[ab]` before, and its records in the log have that name"
            ):
                go(plain(named("d"), other), instance)
        go(plain(named("d"), named("e", folder="in_slow")), instance)


@pytest.mark.long
def test_what_was_read_and_not_processed_keeps_its_name_until_it_is(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(tmp_path, 0, 1)
    with DagsterInstance.ephemeral() as instance:
        with monkeypatch.context() as patched:
            patched.setattr(live, "adjust_time", dies)
            with pytest.raises(Exception, match="dies here"):
                go(made(tmp_path, "renamed", OLD), instance)
        assert len(committed(made(tmp_path, "renamed", OLD), "raw_events")) > 0
        with pytest.raises(SpecError, match="has no source `fast` any more, and what was read of it"):
            go(made(tmp_path, "renamed", NEW, was=True), instance)
        go(made(tmp_path, "renamed", OLD), instance)
        go(made(tmp_path, "renamed", NEW, was=True), instance)
        assert len(committed(made(tmp_path, "renamed", NEW, was=True), "raw_events")) == 50
