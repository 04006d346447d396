"""Which sources are read on and which wait: by cases, by what holds for all, and for files by the state in tables."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pure.batch.batches import START, planned
from tidemark.assets.ingestion.waiting_input import largest_times, must_process_first, waiting_input
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.batches.plans import BatchKind
from tidemark.resources.workspace import Workspace
from tidemark.timeops.rules.time_rules import SourceTime
from tidemark.timeops.watermark.alignment import Progress, source_watermark, split_watermark, those_ahead

S = 1_000_000
Splits = Mapping[tuple[str, str | None], int | None]


def source(tolerance_s: int = 0, splits: tuple[str, ...] = ()) -> SourceTime:
    return SourceTime("a", "t", "UTC", tolerance_s * S, splits=splits)


LOWEST: dict[str, tuple[SourceTime, Splits, int | None]] = {
    "no event": (source(), {}, None),
    "events of another source": (source(), {("b", None): 5 * S}, None),
    "one split": (source(), {("a", None): 5 * S, ("b", None): 1 * S}, 5 * S),
    "two splits and a tolerance": (source(2), {("a", "x"): 5 * S, ("a", None): 3 * S}, 1 * S),
    "a split of refused events": (source(), {("a", "x"): 5 * S, ("a", "only_refused"): None}, 5 * S),
    "a named split without events": (source(splits=("x", "y")), {("a", "x"): 5 * S}, None),
    "a named split of refused events": (source(splits=("x", "y")), {("a", "x"): 5 * S, ("a", "y"): None}, None),
    "both named splits": (source(splits=("x", "y")), {("a", "x"): 5 * S, ("a", "y"): 4 * S}, 4 * S),
}


@pytest.mark.parametrize(("given_source", "largest", "watermark_us"), LOWEST.values(), ids=LOWEST)
def test_a_source_has_the_watermark_of_its_lowest_split(
    given_source: SourceTime, largest: Splits, watermark_us: int | None
) -> None:
    assert source_watermark(given_source, largest) == watermark_us


@pytest.mark.parametrize(("split", "watermark_us"), [("x", 3 * S), ("y", 7 * S), ("none_timed", None), ("z", None)])
def test_a_split_that_is_read_by_itself_has_a_watermark_of_its_own(split: str, watermark_us: int | None) -> None:
    largest: Splits = {("a", "x"): 5 * S, ("a", "y"): 9 * S, ("a", "none_timed"): None, ("b", "z"): 1 * S}
    assert split_watermark(source(2), split, largest) == watermark_us


def at(watermark_s: int | None, *, drift_s: int = 60, group: str = "g") -> Progress:
    return Progress(group, drift_s * S, None if watermark_s is None else watermark_s * S)


AHEAD: dict[str, tuple[dict[str, Progress], str]] = {
    "nothing waits": ({}, ""),
    "the others have nothing waiting": ({"a": at(100)}, ""),
    "exactly the drift": ({"a": at(0), "b": at(60)}, ""),
    "beyond the drift": ({"a": at(0), "b": at(61)}, "b"),
    "two beyond the drift": ({"a": at(0), "b": at(61), "c": at(200)}, "bc"),
    "each its own drift": ({"a": at(0), "b": at(61, drift_s=90), "c": at(61)}, "c"),
    "no drift": ({"a": at(0, drift_s=0), "b": at(0, drift_s=0), "c": at(1, drift_s=0)}, "c"),
    "no event yet in any": ({"a": at(None), "b": at(None)}, ""),
    "no event yet is lowest": ({"a": at(None), "b": at(-100)}, "b"),
    "groups know nothing of each other": ({"a": at(0), "b": at(100), "c": at(100, group="h")}, "b"),
}


@pytest.mark.parametrize(("waiting", "ahead"), AHEAD.values(), ids=AHEAD)
def test_a_source_waits_for_its_groups_lowest_beyond_the_drift(waiting: dict[str, Progress], ahead: str) -> None:
    assert those_ahead(waiting) == set(ahead)


progress = st.builds(Progress, st.sampled_from("gh"), st.integers(0, 5), st.none() | st.integers(-10, 10))
some_waiting = st.dictionaries(st.sampled_from("abcdef"), progress)


@given(some_waiting)
def test_something_of_each_group_is_read_and_never_a_source_that_is_ahead(waiting: dict[str, Progress]) -> None:
    ahead = those_ahead(waiting)
    for group in {one.group for one in waiting.values()}:
        of_group = {name: one for name, one in waiting.items() if one.group == group}
        read = [one for name, one in of_group.items() if name not in ahead]
        assert read, "else the pipeline would stand still"
        for one in read:
            for other in of_group.values():
                if one.watermark_us is not None:
                    assert other.watermark_us is not None, "who has no event yet is waited for"
                    assert one.watermark_us - other.watermark_us <= one.max_drift_us


@given(some_waiting, st.integers(-1000, 1000))
def test_only_distances_count(waiting: dict[str, Progress], shift: int) -> None:
    moved = {
        name: one if one.watermark_us is None else replace(one, watermark_us=one.watermark_us + shift)
        for name, one in waiting.items()
    }
    assert those_ahead(moved) == those_ahead(waiting)


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

    def commit(self, kind: BatchKind, end_seq: int) -> None:
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
        return [str(Path(file.path).relative_to(self.folder)) for file in found.parts], found.ahead


def test_the_state_tells_the_largest_time_of_each_split_over_timelines_and_batches(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    assert largest_times(pair.workspace) == {}
    pair.write('["x"]', {("a", "k"): 5, ("a", None): None, ("b", None): 3})
    pair.write('["y"]', {("a", "k"): 4, ("b", None): None})
    pair.write('["y"]', {("a", "k"): 9, ("b", None): 2})
    pair.commit("process", 0)
    pair.write('["y"]', {("a", "k"): 99, ("b", None): 99})  # by a batch that was not committed
    assert largest_times(pair.workspace) == {("a", "k"): 9, ("a", None): None, ("b", None): 3}


ALL = ["in_a/1", "in_b/1", "in_b/2"]
WAITING: dict[str, tuple[Splits, list[str], int]] = {
    "no event yet": ({}, ALL, 0),
    "exactly the drift": ({("a", "x"): 20, ("b", None): 10}, ALL, 0),
    "beyond the drift": ({("a", "x"): 21, ("b", None): 10}, ALL[1:], 1),
    "one split beyond it": ({("a", "x"): 21, ("a", "y"): 10, ("b", None): 10}, ALL, 0),
    "the other source beyond it": ({("a", "x"): 10, ("b", None): 21}, ALL[:1], 2),
    "no event yet in one": ({("b", None): 21}, ALL[:1], 2),
}


@pytest.mark.parametrize(("splits", "read", "ahead"), WAITING.values(), ids=WAITING)
def test_a_source_that_is_ahead_leaves_its_files(tmp_path: Path, splits: Splits, read: list[str], ahead: int) -> None:
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
