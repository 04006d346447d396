"""The next batch of a flushed pipeline: what it processes, and what is said of it. No Spark session is started."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pure.batch.batches import planned
from tests.pure.report.shop import Shop
from tidemark.assets.planning import LogSegment, next_segment
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


SESSION = {"name": "visits", "kind": "session", "gap": "1 hour"}
MINUTES = {"name": "m", "kind": "tumbling", "size": "1 minute", "aggregates": {"n": "count(*)"}}


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ([MINUTES, {**SESSION, "from": "m", "aggregates": {"n": "sum(n)"}}], "over the results of another"),
        ([{**SESSION, "emit": {"early": "1 minute"}, "aggregates": {"n": "count(*)"}}], "that revises its results"),
    ],
)
def test_a_pipeline_with_a_session_of_results_or_one_that_revises_its_results_cannot_be_reopened(
    tmp_path: Path, windows: list[dict[str, Any]], said: str
) -> None:
    workspace = shop(tmp_path, flush=True, new=5)
    made = tuple(map(WindowSpec.model_validate, windows))
    file = replace(workspace.file, spec=workspace.spec.model_copy(update={"windows": made}))
    with pytest.raises(LakeError, match=f"visits is a session window {said}"):
        next_segment(replace(workspace, file=file), None, flush=False, reopen="why")


def test_a_batch_that_was_not_committed_reopens_again_without_being_told(tmp_path: Path) -> None:
    workspace = shop(tmp_path, flush=True, new=5)
    planned(workspace.batches, first_seq=10, end_seq=15, input={"flush": False, "reopen": "why"})
    assert next_segment(workspace, None, flush=False) == LogSegment(10, 15, False, reopens="why")
