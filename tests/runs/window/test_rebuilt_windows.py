"""Single windows that are rebuilt from the log: with what was changed, added, or lost; the others stay."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, assert_tables_equal_the_oracle, land, table
from tests.runs.running import (
    FLUSH,
    Made,
    asked,
    assert_as_new,
    assert_same,
    changed,
    command,
    committed,
    go,
    rebuild,
    workspace_of,
    written,
)
from tidemark.pipelines.running.runner import RunOptions

SPEC = (
    f"name: shop\n{LINES}    order: position\n"
    """\
time: {timestamp_by: at, out_of_orderness: 3 s, out_of_order: keep}
windows:
  - {name: minutes, kind: tumbling, size: 1 minute, group_by: [k], aggregates: {n: count(*)}}
  - {name: hours, kind: tumbling, size: 1 hour, from: minutes, group_by: [k], aggregates: {n: sum(n)}}
  - {name: visits, kind: session, gap: 8 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: last, kind: sliding, size: 10 s, group_by: [k], aggregates: {n: count(*)}}
  - {name: revised, kind: tumbling, size: 20 s, allowed_lateness: 10 s, emit: on_time, history: true, group_by: [k],
     aggregates: {n: count(*)}}
  - {name: stays, kind: session, gap: 5 s, allowed_lateness: 5 s, emit: on_time, group_by: [k],
     aggregates: {n: count(*)}}
  - {name: last_one, kind: tumbling, size: 10 s, group_by: [k], aggregates: {n: count(*)}}
"""
)
LAST = "  - {name: last_one, kind: tumbling, size: 10 s, group_by: [k], aggregates: {n: count(*)}}\n"
ADDED = (
    "  - {name: added, kind: hopping, size: 30 s, hop: 10 s, empty: true, group_by: [k], aggregates: {n: count(*)}}\n"
)
WRITTEN = ("raw_events", "ordered_events", "held_events", "watermarks", "windows/", "history/")
CHANGES = (
    ("added", (LAST, LAST + ADDED)),
    ("minutes", ("size: 1 minute,", "size: 30 s,")),  # which `hours` is over
    ("revised", ("allowed_lateness: 10 s", "allowed_lateness: 1 minute")),
    ("stays", ("emit: on_time, group_by", "emit: on_time, where: v > 2, group_by")),
)
"""Windows that are changed, each with what its spec says before and after it."""


@pytest.fixture
def made(tmp_path: Path) -> Made:
    land(tmp_path / "in", 80, seed=3, prefix="a")
    return written(tmp_path, "shop", SPEC)


@pytest.mark.long
def test_windows_alone_are_made_anew_and_all_goes_on_as_in_a_new_pipeline(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    given = [name for name, _ in CHANGES]
    names = [one for name in given for one in ((name, "hours") if name == "minutes" else (name,))]
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=30))
        before = versions(made)
        for _, change in CHANGES:
            made = changed(made, *change)
        refused = command(tmp_path, "shop")
        options = " ".join(f"--window {name}" for name in names)
        assert refused.exit_code == 2
        assert f"`tidemark rebuild {made[0].path} {options}`" in refused.output
        done = rebuild(made, *(word for name in given for word in ("--window", name)), "--reason", "we looked again")
        assert done.exit_code == 0, done.output
        mine = {f"{folder}/{name}" for name in names for folder in ("windows", "history")}
        others = {name: version for name, version in before.items() if name.startswith(WRITTEN) and name not in mine}
        assert {name: versions(made)[name] for name in others} == others, "nothing else is written"
        fresh = assert_as_new(made, instance)
        land(tmp_path / "in", 60, seed=4, prefix="b")
        for one in (made, fresh):
            go(one, instance, FLUSH)
    assert_same(made, fresh)
    status = asked(made, "status")
    assert status.exit_code == 0, status.output
    assert "by hand" not in status.output, "counts and tables agree"
    specs = [row for row in table(made[1].warehouse, made[0].spec, "log_control") if row["kind"] == "spec"]
    last = max(specs, key=lambda row: int(row["_control_seq"]))
    assert (len(specs), last["_after_seq"], last["reason"]) == (2, 79, "we looked again")


def versions(made: Made) -> Mapping[str, int]:
    last = workspace_of(made).batches.last_commit()
    assert last is not None
    return last.table_versions


@pytest.mark.long
def test_a_lost_window_is_made_anew_alone_and_what_asks_for_more_is_refused(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    go(made)
    rows = committed(made, "windows/visits")
    shutil.rmtree(tmp_path / "warehouse" / "shop" / "windows" / "visits")
    done = rebuild(made, "--window", "visits")
    assert done.exit_code == 0, done.output
    assert committed(made, "windows/visits") == rows
    land(tmp_path / "in", 30, seed=4, prefix="b")
    go(made, options=FLUSH)
    assert_tables_equal_the_oracle(made[1].warehouse, made[0].spec, flush=True)
    unknown = rebuild(made, "--window", "visit")
    assert (unknown.exit_code, "did you mean `visits`" in unknown.output) == (2, True), unknown.output
    other = rebuild(changed(made, "out_of_orderness: 3 s", "out_of_orderness: 9 s"), "--window", "visits")
    assert (other.exit_code, "tidemark rebuild SPEC`" in other.output) == (2, True), other.output
