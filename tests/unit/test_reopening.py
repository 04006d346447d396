"""The next batch of a flushed pipeline: what it processes, and what is said of it. No Spark session is started."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.report.shop import START, Shop
from tidemark.assets.planning import LogSegment, next_segment
from tidemark.resources.batches.plans import this_process
from tidemark.resources.workspace import Workspace
from tidemark.timeops.errors import LakeError
from tidemark.timeops.spec import WindowSpec


def shop(tmp_path: Path, *, flush: bool, new: int = 0) -> Workspace:
    """Return a pipeline of ten records, all processed, and of so many new ones."""
    made = Shop(tmp_path).create()
    made.ingest(10)
    made.process(ordered=10, held=0, flush=flush)
    if new:
        made.commit("ingest", 10 + new, {"records": new})
    return made.workspace


def test_a_flushed_pipeline_takes_new_records_only_when_it_is_told_why(tmp_path: Path) -> None:
    workspace = shop(tmp_path, flush=True, new=5)
    with pytest.raises(LakeError, match="was flushed at the end of its input") as caught:
        next_segment(workspace, None, flush=False)
    assert '--reopen "why"' in caught.value.remedy
    assert next_segment(workspace, None, flush=False, reopen="why") == LogSegment(10, 15, False, reopens="why")
    assert next_segment(workspace, 3, flush=True, reopen="why") == LogSegment(10, 13, False, reopens="why")


def test_a_reopened_pipeline_may_be_flushed_again_behind_the_new_records(tmp_path: Path) -> None:
    workspace = shop(tmp_path, flush=True, new=5)
    assert next_segment(workspace, None, flush=True, reopen="why") == LogSegment(10, 15, True, reopens="why")


def test_without_new_records_there_is_nothing_to_reopen_for(tmp_path: Path) -> None:
    workspace = shop(tmp_path, flush=True)
    assert next_segment(workspace, None, flush=True, reopen="why").is_empty


def test_a_pipeline_that_is_open_cannot_be_reopened(tmp_path: Path) -> None:
    workspace = shop(tmp_path, flush=False, new=5)
    with pytest.raises(LakeError, match="its end of input is not flushed"):
        next_segment(workspace, None, flush=False, reopen="why")


def test_a_pipeline_with_a_session_of_results_cannot_be_reopened(tmp_path: Path) -> None:
    workspace = shop(tmp_path, flush=True, new=5)
    inner = WindowSpec(name="m", kind="tumbling", size="1 minute", aggregates={"n": "count(*)"})
    spells = {"name": "spells", "kind": "session", "gap": "1 hour", "from": "m", "aggregates": {"n": "sum(n)"}}
    windows = (inner, WindowSpec.model_validate(spells))
    file = replace(workspace.file, spec=workspace.spec.model_copy(update={"windows": windows}))
    with pytest.raises(LakeError, match="spells is a session window over the results of another"):
        next_segment(replace(workspace, file=file), None, flush=False, reopen="why")


def test_a_pipeline_with_a_session_that_revises_its_results_cannot_be_reopened(tmp_path: Path) -> None:
    workspace = shop(tmp_path, flush=True, new=5)
    visits = WindowSpec(
        name="visits", kind="session", gap="1 hour", emit={"early": "1 minute"}, aggregates={"n": "count(*)"}
    )
    file = replace(workspace.file, spec=workspace.spec.model_copy(update={"windows": (visits,)}))
    with pytest.raises(LakeError, match="visits is a session window that revises its results"):
        next_segment(replace(workspace, file=file), None, flush=False, reopen="why")


def test_a_batch_that_was_not_committed_reopens_again_without_being_told(tmp_path: Path) -> None:
    workspace = shop(tmp_path, flush=True, new=5)
    workspace.batches.begin(
        "process",
        this_process("run"),
        START,
        after=2,
        first_seq=10,
        end_seq=15,
        input={"flush": False, "reopen": "why"},
        fingerprint="f",
    )
    assert next_segment(workspace, None, flush=False) == LogSegment(10, 15, False, reopens="why")
