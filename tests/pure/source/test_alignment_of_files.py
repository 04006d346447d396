"""Files that wait for other sources, by the state between batches as tables hold it; without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pure.batch.batches import START, planned
from tidemark.assets.waiting_input import Waiting, largest_times, must_process_first, waiting_input
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.batches.plans import Kind
from tidemark.resources.workspace import Workspace

SPEC = """
name: pair
sources:
  - {name: a, kind: files, path: in_a/*, format: csv, schema: "at STRING, k STRING", split: k, settle: 0 s,
     alignment: {group: g, max_drift: 10 us}}
  - {name: b, kind: files, path: in_b/*, format: csv, schema: "at STRING, k STRING", settle: 0 s,
     alignment: {group: g, max_drift: 10 us, update_interval: 1 hour}}
time: {timestamp_by: at}
"""
_SPLIT = [("source", pa.string()), ("split", pa.string()), ("max_t", pa.int64()), ("last_clock", pa.int64())]
_STATE = pa.schema([("_timeline", pa.string()), ("splits", pa.list_(pa.struct(_SPLIT))), ("_batch_id", pa.int64())])
Splits = Mapping[tuple[str, str | None], int | None]


@dataclass
class Pair:
    """The pipeline `pair`, of two aligned sources."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "pair.yaml").write_text(SPEC)
        self.workspace = Workspace(read_spec(self.folder / "pair.yaml"), self.folder / "warehouse")
        for table, schema in {tables.TIMELINES: _STATE, **tables.CONTROL_SCHEMAS}.items():
            self.workspace.lake.create(table, schema)

    def land(self, *names: str) -> None:
        for name in names:
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(f"1970-01-01,{name}\n")

    def write(self, timeline: str, splits: Splits) -> None:
        """Adds a row of the state."""
        each = [{"source": name, "split": value, "max_t": t} for (name, value), t in splits.items()]
        rows = pa.Table.from_pylist([{"_timeline": timeline, "splits": each}], schema=_STATE)
        lake = self.workspace.lake
        lake.append_rows(tables.TIMELINES, rows, expect=lake.version(tables.TIMELINES))

    def commit(self, kind: Kind, end_seq: int) -> None:
        """Commits a batch with the tables as they are."""
        log = self.workspace.batches
        plan = planned(log, kind, end_seq=end_seq, fingerprint=self.workspace.spec.fingerprint())
        names = (tables.TIMELINES, tables.FILES)
        log.commit(plan, {}, {name: self.workspace.lake.version(name) for name in names}, START)

    def processed(self, splits: Splits) -> "Pair":
        """Return the state after a record was read and processed."""
        self.commit("ingest", 1)
        self.write("[]", splits)
        self.commit("process", 1)
        return self

    def look(self) -> tuple[list[str], int]:
        """Return the files to be read, and how many wait for the other source."""
        found = waiting_input(self.workspace)
        return files(found), found.ahead


def files(found: Waiting) -> list[str]:
    return [f"{Path(file.path).parent.name}/{Path(file.path).name}" for file in found.parts]


def test_the_state_tells_the_largest_time_of_each_split_over_timelines_and_batches(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    assert largest_times(pair.workspace) == {}
    pair.write('["x"]', {("a", "k"): 5, ("a", None): None, ("b", None): 3})
    pair.write('["y"]', {("a", "k"): 4, ("b", None): None})
    pair.write('["y"]', {("a", "k"): 9, ("b", None): 2})
    pair.commit("process", 0)
    pair.write('["y"]', {("a", "k"): 99, ("b", None): 99})  # by a batch that was not committed
    assert largest_times(pair.workspace) == {("a", "k"): 9, ("a", None): None, ("b", None): 3}


@pytest.mark.parametrize(
    ("splits", "read", "ahead"),
    [
        ({}, ["in_a/1", "in_b/1", "in_b/2"], 0),
        ({("a", "x"): 20, ("b", None): 10}, ["in_a/1", "in_b/1", "in_b/2"], 0),
        ({("a", "x"): 21, ("b", None): 10}, ["in_b/1", "in_b/2"], 1),
        ({("a", "x"): 21, ("a", "y"): 10, ("b", None): 10}, ["in_a/1", "in_b/1", "in_b/2"], 0),
        ({("a", "x"): 10, ("b", None): 21}, ["in_a/1"], 2),
        ({("b", None): 21}, ["in_a/1"], 2),
    ],
)
def test_a_source_that_is_ahead_leaves_all_its_files(
    tmp_path: Path, splits: Splits, read: list[str], ahead: int
) -> None:
    pair = Pair(tmp_path).processed(splits)
    pair.land("in_a/1", "in_b/1", "in_b/2")
    assert pair.look() == (read, ahead)


def test_nobody_waits_for_a_source_without_files_that_can_be_read(tmp_path: Path) -> None:
    pair = Pair(tmp_path).processed({("a", "x"): 100, ("b", None): 0})
    pair.land("in_a/1", "in_b/broken.gz")
    assert pair.look() == (["in_a/1"], 0)
    pair.land("in_b/1")
    assert pair.look() == (["in_b/1"], 1)


def test_records_of_the_log_are_processed_before_sources_are_judged_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path).processed({})
    assert not must_process_first(pair.workspace)
    pair.commit("ingest", 2)
    assert must_process_first(pair.workspace)
    pair.commit("process", 2)
    assert not must_process_first(pair.workspace)
