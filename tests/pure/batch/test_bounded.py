"""Newest rows of a table of several files: which they are, and that files after them stay closed."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidemark.resources.delta.lake import Lake
from tidemark.resources.delta.queries import newest_rows, pieces, python_rows
from tidemark.timeops.utc import Instant

T = "t"
SCHEMA = pa.schema([("n", pa.int64()), ("kind", pa.string())])


def lake_of(folder: Path, *files: list[int]) -> Lake:
    made = Lake(folder)
    made.create(T, SCHEMA)
    for numbers in files:
        rows = pa.table({"n": pa.array(numbers, pa.int64()), "kind": ["odd" if n % 2 else "even" for n in numbers]})
        made.append_rows(T, rows, expect=made.version(T))
    return made


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=8), max_size=4), st.integers(1, 12), st.booleans())
def test_the_newest_rows_are_the_largest_of_all_files(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], most: int, odd: bool
) -> None:
    lake = lake_of(tmp_path_factory.mktemp("lake"), *files)
    filters = [("kind", "=", "odd")] if odd else []
    found = newest_rows(lake, T, lake.version(T), ["kind", "n"], by="n", most=most, filters=filters)
    wanted = sorted((n for numbers in files for n in numbers if not odd or n % 2), reverse=True)
    assert found["n"].to_pylist() == wanted[:most]
    assert found.column_names == ["kind", "n"]


def test_files_without_a_newest_row_are_not_opened(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [1, 2, 3], [7, 8, 9])
    [old] = [path for path in (tmp_path / T).glob("*.parquet") if 1 in pa.parquet.read_table(path)["n"].to_pylist()]
    old.write_bytes(b"")
    assert newest_rows(lake, T, 2, ["n"], by="n", most=2)["n"].to_pylist() == [9, 8]


def test_pieces_are_those_of_a_version(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [1, 2], [3])
    read = [[n for piece in pieces(lake, T, version, ["n"]) for n in piece["n"].to_pylist()] for version in (1, 2)]
    assert [sorted(numbers) for numbers in read] == [[1, 2], [1, 2, 3]]
    some = [n for piece in pieces(lake, T, 2, ["n"], [("n", ">", 1)]) for n in piece["n"].to_pylist()]
    assert sorted(some) == [2, 3]


def test_instants_before_and_behind_the_years_of_python_are_found_by_every_condition(tmp_path: Path) -> None:
    """Of a file with the year 10000 in its statistics delta-rs would find no row by any of them."""
    ends = [Instant(-62_135_600_400_000_000), Instant(0), Instant(253_402_300_800_000_000)]
    lake, kind = Lake(tmp_path), pa.timestamp("us", "UTC")
    lake.create(T, pa.schema([("at", kind)]))
    for one in ends:
        lake.append_rows(T, pa.table({"at": pa.array([one.us], kind)}), expect=lake.version(T))
    assert list(map(str, ends)) == ["0000-12-31 23:00:00", "1970-01-01 00:00:00", "+10000-01-01 00:00:00"]
    for number, end in enumerate(ends):
        found = {sign: lake.rows(T, filters=[("at", sign, end)]).num_rows for sign in ("<", "=", ">=")}
        assert found == {"<": number, "=": 1, ">=": 3 - number}
    spans = pa.array(
        [[{"end": end.us, "n": 1}, None] for end in ends], pa.list_(pa.struct([("end", kind), ("n", pa.int8())]))
    )
    assert [row["spans"][0] for row in python_rows(pa.table({"spans": spans}))] == [
        {"end": end, "n": 1} for end in ends
    ]
    newest = newest_rows(lake, T, lake.version(T), ["at"], by="at", most=2)
    assert python_rows(newest) == [{"at": ends[2]}, {"at": ends[1]}]
