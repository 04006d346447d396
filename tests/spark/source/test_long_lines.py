"""Lines that are too long for a record: dead letters that show how they begin, and all others are read."""

import gzip
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pure.source.landed import NOW, discover, land, read_files, source
from tidemark.resources.sources.file_records import unreadable
from tidemark.resources.sources.local_files import LONGEST_LINE

LONG = LONGEST_LINE + 5


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_line_that_is_too_long_is_malformed_in_its_place_and_shows_how_it_begins(
    spark: SparkSession, tmp_path: Path, form: str, ending: str
) -> None:
    short, begin, end = ("{},x\n", b"7,", b"\n") if form == "csv" else ('{{"n": {}}}\n', b'{"t": "', b'"}\n')
    long_line = begin + "é".encode() * ((LONG - len(begin) - len(end) + 1) // 2 + 2) + end
    content = short.format(1).encode() + long_line + short.format(3).encode() + long_line.rstrip(b"\n")
    land(tmp_path / "in" / f"x{ending}", gzip.compress(content, 1) if ending else content, NOW - timedelta(days=2))
    given = source("in/*", format=form, schema="n INT, t STRING")
    place = tmp_path / "warehouse" / "_state" / "reading"
    [file] = ready = discover(given, tmp_path, (), NOW).ready
    assert len(file.long_lines) == 2
    found = read_files(spark, given, ready, place)
    rows = {row["_position"]: row for row in found.records.collect()}
    assert {position: row["n"] for position, row in rows.items()} == {1: 1, 2: None, 3: 3, 4: None}
    for position in (2, 4):
        text = rows[position]["_malformed"]
        assert text.startswith(begin.decode() + "ééé")
        assert text.endswith(f"é… (the line has {len(long_line) - 1:,} bytes)")
        assert len(text) < 1_100
        assert (rows[position]["_file"], rows[position]["t"]) == (f"x{ending}", None)
    assert [state.records for state in found.states] == [4]
    assert found.states[0].place == file.path


def test_a_field_of_many_lines_that_is_too_long_holds_back_its_file(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv", '1,"' + "x\n" * LONG, NOW - timedelta(days=2))
    given = source("in/*", schema="n INT, t STRING", options={"multiLine": True})
    [file] = ready = discover(given, tmp_path, (), NOW).ready
    found = unreadable(spark, given, ready)
    assert [
        str(error).startswith(f"{file.path}: the file cannot be read to its end") for error in found.values()
    ] == [True]
