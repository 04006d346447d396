"""Which files lie in the order of the log already, told from their arrivals; without Spark."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.parquet_files import MOST_FILES, Stretch, stretches_in_order
from tidemark.timeops.spec import FilesSource

AT_US = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
US = pa.timestamp("us", "UTC")


def source(**more: object) -> FilesSource:
    given = {"name": "s", "kind": "files", "path": "in/*", "format": "parquet", "arrival_time": "at", **more}
    return FilesSource.model_validate({"schema": "at TIMESTAMP", **given})


def land(
    folder: Path, name: str, seconds: Sequence[int | None], kind: pa.DataType = US, column: str = "at"
) -> FileRange:
    us = [None if one is None else AT_US + one * 1_000_000 for one in seconds]
    pq.write_table(pa.table({column: pa.array(us, US).cast(kind)}), folder / name, row_group_size=2)
    return FileRange(str(folder / name), name, 1, 77, "", 0, ends_with_newline=True)


def names(found: list[Stretch] | None) -> list[str] | None:
    return None if found is None else [one.name for one in found]


def test_files_are_in_the_order_of_their_arrivals_with_rows_and_bounds(tmp_path: Path) -> None:
    files = [land(tmp_path, "b", [1, 1, 2]), land(tmp_path, "a", [5, 9]), land(tmp_path, "c", [])]
    found = stretches_in_order([(source(), files)], by_arrival=True)
    assert found == [
        Stretch("s", "b", files[0].path, 3, AT_US + 1_000_000, AT_US + 2_000_000),
        Stretch("s", "a", files[1].path, 2, AT_US + 5_000_000, AT_US + 9_000_000),
    ]


@pytest.mark.parametrize("seconds", [[1, 3, 2], [1, 2, 3, 1], [1, None, 2], [None, 1], [-4_000_000_000, 1]])
def test_a_file_whose_arrivals_fall_lack_or_are_older_than_1900_is_sorted(tmp_path: Path, seconds: list[int]) -> None:
    files = [land(tmp_path, "a", seconds), land(tmp_path, "b", [50])]
    assert stretches_in_order([(source(), files)], by_arrival=True) is None


def test_files_that_overlap_are_sorted(tmp_path: Path) -> None:
    files = [land(tmp_path, "a", [1, 5]), land(tmp_path, "b", [4, 9])]
    assert stretches_in_order([(source(), files)], by_arrival=True) is None


def test_files_that_meet_at_one_moment_are_in_order_if_their_names_are(tmp_path: Path) -> None:
    up = [land(tmp_path, "a", [1, 5]), land(tmp_path, "b", [5, 5]), land(tmp_path, "c", [5, 6])]
    assert names(stretches_in_order([(source(), up)], by_arrival=True)) == ["a", "b", "c"]
    down = [land(tmp_path, "b", [1, 5]), land(tmp_path, "a", [5, 6])]
    assert stretches_in_order([(source(), down)], by_arrival=True) is None


def test_a_log_by_position_takes_files_by_name_if_their_arrivals_rise_so(tmp_path: Path) -> None:
    up = [land(tmp_path, "a", [1, 5]), land(tmp_path, "b", [6])]
    assert names(stretches_in_order([(source(), up[::-1])], by_arrival=False)) == ["a", "b"]
    down = [land(tmp_path, "b", [1, 5]), land(tmp_path, "a", [6])]
    assert stretches_in_order([(source(), down)], by_arrival=False) is None, "the clock is not each record's arrival"


def test_files_of_two_sources_are_in_one_order(tmp_path: Path) -> None:
    one, two = [land(tmp_path, "a", [1, 2]), land(tmp_path, "c", [7])], [land(tmp_path, "b", [3, 4])]
    found = stretches_in_order([(source(), one), (source(name="o"), two)], by_arrival=True)
    assert [(stretch.source, stretch.name) for stretch in found or ()] == [("s", "a"), ("o", "b"), ("s", "c")]


def test_without_an_arrival_time_a_file_arrives_when_it_was_modified(tmp_path: Path) -> None:
    found = stretches_in_order([(source(arrival_time=None), [file := land(tmp_path, "a", [9, 1])])], by_arrival=True)
    assert found == [Stretch("s", "a", file.path, 2, 77, 77)]


def test_milliseconds_local_times_and_renamed_columns_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    files = [land(tmp_path, "a", [1], pa.timestamp("ms"), "got"), land(tmp_path, "b", [2], column="got")]
    renamed = source(schema="got TIMESTAMP", rename={"got": "at"}, arrival_time="`at`")
    found = stretches_in_order([(renamed, files)], by_arrival=True)
    assert [one.first_us - AT_US for one in found or ()] == [1_000_000, 2_000_000]


def test_local_times_of_another_zone_are_sorted_as_their_instants_are_not_in_the_file(tmp_path: Path) -> None:
    local, instants = land(tmp_path, "a", [1], pa.timestamp("us")), land(tmp_path, "b", [2])
    for given, zone in ((source(), "Europe/Rome"), (source(time_zone="Asia/Tokyo"), "UTC")):
        assert stretches_in_order([(given, [local])], by_arrival=True, time_zone=zone) is None
        assert names(stretches_in_order([(given, [instants])], by_arrival=True, time_zone=zone)) == ["b"]


def test_what_cannot_be_told_is_sorted(tmp_path: Path) -> None:
    file = land(tmp_path, "a", [1])
    assert stretches_in_order([(source(format="json"), [file])], by_arrival=True) is None
    assert stretches_in_order([(source(arrival_time="at + INTERVAL 1 DAY"), [file])], by_arrival=True) is None
    texts = land(tmp_path, "b", [1], pa.string())
    assert stretches_in_order([(source(), [texts])], by_arrival=True) is None
    (tmp_path / "c").write_bytes(b"PAR1 no parquet")
    damaged = FileRange(str(tmp_path / "c"), "c", 15, 77, "", 0, ends_with_newline=True)
    assert stretches_in_order([(source(), [damaged])], by_arrival=True) is None
    many = [land(tmp_path, f"{number:03}", [number]) for number in range(MOST_FILES + 1)]
    assert stretches_in_order([(source(), many)], by_arrival=True) is None
    assert len(stretches_in_order([(source(), many[1:])], by_arrival=True) or ()) == MOST_FILES
