"""Windows that get another name, or are gone: their tables go on, are marked as ended, and are deleted on demand."""

import json
import random
from pathlib import Path

import pytest
from dagster import DagsterInstance
from pyspark.sql import SparkSession

from tests.runs.landing import LINES, SHIFTS, land
from tests.runs.running import (
    FLUSH,
    Made,
    asked,
    assert_as_new,
    assert_same,
    changed,
    commit_dies,
    committed,
    dies,
    go,
    rebuild,
    workspace_of,
    written,
)
from tidemark.assets.rebuild import switch
from tidemark.assets.rebuild.shadow import begin_without_records
from tidemark.pipelines.running.runner import RunOptions
from tidemark.resources.delta.lake import Lake

NEW = {"visits": "calls", "revised": "minutes", "last_20_s": "lately", "quiet": "stillness"}
"""Names of windows: sessions, revised ones with a history, sliding ones, windows that remember groups."""


@pytest.fixture
def made(tmp_path: Path) -> Made:
    land(tmp_path / "in", 80, seed=3, prefix="a")
    return written(tmp_path, "shifts", SHIFTS.replace(LINES, f"{LINES}    order: position\n"))


def renamed(made: Made) -> Made:
    path = made[0].path
    text = path.read_text().replace("from: revised", "from: minutes")
    for old, new in NEW.items():
        text = text.replace(f"{{name: {old},", f"{{name: {new}, was: {old},")
    return written(path.parent, path.stem, text)


@pytest.mark.long
def test_windows_that_are_renamed_go_on_as_in_a_pipeline_that_always_called_them_so(
    spark: SparkSession, made: Made, tmp_path: Path
) -> None:
    with DagsterInstance.ephemeral() as instance:
        go(made, instance, RunOptions(max_events_per_batch=random.randint(20, 60)))
        kept = committed(made, "windows/visits")
        made = renamed(made)
        planned = json.loads(asked(made, "plan", "--json").output.splitlines()[-1])
        assert [change["meaning"] for change in planned["changes"]] == ["from here on"] * len(NEW)
        assert planned["changes"][0]["sentence"] == "`visits` is `calls` now"
        go(made, instance)  # without new input
        fresh = assert_as_new(made, instance)
        assert asked(made, "plan").output.startswith("shifts: nothing changed since")
        land(tmp_path / "in", 60, seed=4, prefix="b")
        for one in (made, fresh):
            go(one, instance, FLUSH)
        assert_same(made, fresh)
    assert committed(made, "windows/visits") == kept, "the old table stays as it was"
    status = asked(made, "status").output
    assert "by hand" not in status, "counts and tables agree"
    assert "windows/visits" in status
    said = workspace_of(made).lake.opened.take("windows/visits").metadata().description
    assert said == "Ended: it continues as windows/calls"
    without = changed(made, ", was: visits,", ",")
    assert asked(without, "plan").exit_code == 0
    assert "no result changes" in asked(without, "plan").output


@pytest.mark.long
def test_a_run_that_dies_while_it_renames_is_repeated_by_the_next(
    spark: SparkSession, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run takes up what the one before it left, and dies a table later."""
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        before = committed(made, "dead_letters")
        made = renamed(made)
        for at in ("windows/minutes", "_state/session_events", "dead_letters", "log_control", "batches"):
            with monkeypatch.context() as patched:
                _dies(patched, at)
                with pytest.raises(Exception, match="dies here"):
                    go(made, instance)
            assert committed(made, "dead_letters") == before, "readers still see the last commit"
        go(made, instance)
        assert_as_new(made, instance)


def _dies(patched: pytest.MonkeyPatch, at: str) -> None:
    """Let a rename die right after it has written a table, or before its commit."""
    if at == "batches":
        commit_dies(patched, lambda plan: "renamed" in plan.input)
        return
    begun = begin_without_records
    committed_here = Lake._committed

    def after(lake: Lake, table: str, version: int) -> None:
        committed_here(lake, table, version)
        if table == at:
            dies()

    def begin(*given: object) -> object:
        patched.setattr(Lake, "_committed", after)
        return begun(*given)  # type: ignore[arg-type]

    patched.setattr(switch, "begin_without_records", begin)


@pytest.mark.long
def test_a_window_that_is_renamed_and_changed_is_made_anew_under_its_new_name(
    spark: SparkSession, made: Made
) -> None:
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        made = changed(
            made, "{name: visits, kind: session, gap: 8 s", "{name: calls, was: visits, kind: session, gap: 5 s"
        )
        refused = asked(made, "plan")
        assert (refused.exit_code, f"tidemark rebuild {made[0].path} --window calls" in refused.output) == (3, True)
        done = rebuild(made, "--to-spec")
        assert done.exit_code == 0, done.output
        assert "the spec asks for the past of calls" in done.output
        assert_as_new(made, instance)
    assert "by hand" not in asked(made, "status").output
    assert "nothing needs the past" in rebuild(made, "--to-spec").output


@pytest.mark.long
def test_a_window_that_is_gone_is_marked_keeps_its_table_until_it_is_dropped_and_has_its_past_if_it_comes_back(
    spark: SparkSession, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = next(one for one in SHIFTS.splitlines(keepends=True) if "name: visits" in one)
    tens = "  - {name: tens, kind: tumbling, size: 10 s, group_by: [k], aggregates: {n: count(*)}}\n"
    made = changed(made, line, line + tens)
    folder = tmp_path / "warehouse" / "shifts" / "windows" / "visits"
    with DagsterInstance.ephemeral() as instance:
        go(made, instance)
        refused = rebuild(made, "--drop", "visits")
        assert (refused.exit_code, "take it out of `windows` first" in refused.output) == (2, True)
        made = changed(made, line, "")
        land(tmp_path / "in", 30, seed=4, prefix="b")
        go(made, instance)
        opened = workspace_of(made).lake.opened.take("windows/visits")
        assert opened.metadata().description == "Ended: shifts has no window visits any more"
        assert "windows/visits: no longer in the spec" in asked(made, "status").output
        assert "one of visits" in rebuild(made, "--drop", "visit").output
        with monkeypatch.context() as patched:
            patched.setattr(switch, "remove_tree", dies)
            assert "dies here" in rebuild(made, "--drop", "visits").output
        assert folder.exists()
        done = rebuild(made, "--drop", "visits", "--reason", "nobody reads it")
        assert (done.exit_code, folder.exists()) == (0, False), done.output
        last = workspace_of(made).batches.last_commit()
        assert last is not None
        assert not [table for table in last.table_versions if table.endswith("/visits")]
        status = asked(made, "status").output
        assert ("ended" in status, "by hand" in status) == (False, False)
        kept = committed(made, "windows/tens")
        made = changed(made, tens, "")
        land(tmp_path / "in", 30, seed=5, prefix="c")
        go(made, instance)
        assert committed(made, "windows/tens") == kept, "it is not dropped"
        for name, text in (("tens", tens), ("visits", line)):
            made = changed(made, "windows:\n", f"windows:\n{text}")
            assert rebuild(made, "--window", name).exit_code == 0
        assert_as_new(made, instance)
