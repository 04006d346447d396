"""Files as loggers and exports leave them: rotated, compressed, cut inside a line, overwritten each night."""

import bz2
import gzip
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from tests.pure.source.landed import NOW, discover, land, source
from tidemark.assets.pending_work import look
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources.sources.files import FilesFound
from tidemark.resources.sources.known_files import FileState, counted, state_of
from tidemark.resources.sources.local_files import LONGEST_LINE, open_bytes, read_content
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import FilesSource

LOGS = source("in/app.log*", format="json", schema="id BIGINT")
CSV = source("in/*.csv*", options={"header": True}, schema="at STRING, v BIGINT")


def lines(*ids: int) -> str:
    return "".join(f'{{"id": {number}}}\n' for number in ids)


class Landing:
    """A landing zone, with what its runs remember and the records that they have read, as text by file."""

    def __init__(self, base: Path, given: FilesSource = LOGS) -> None:
        self.base, self.given = base, given
        self.states: list[FileState] = []
        self.records: list[str] = []

    def land(self, name: str, content: str | bytes, age: timedelta = timedelta(hours=1)) -> Path:
        return land(self.base / "in" / name, content, NOW - age)

    def look(self, **asked: Any) -> FilesFound:
        return discover(self.given, self.base, self.states, NOW, **asked)

    def run(self, **asked: Any) -> FilesFound:
        """One ingestion, and what it found."""
        found = self.look(**asked)
        for file in found.ready:
            with open_bytes(file.path) as opened:
                text = opened.read().decode()
            if file.left_bytes:
                text = text.encode()[: file.size].decode()
            there = text.splitlines()
            self.records += there[file.skip_lines :]
            self.states.append(state_of(file, len(there)))
        self.states += [*found.touched, *counted(found.copies, self.states)]
        return found


@pytest.fixture
def zone(tmp_path: Path) -> Landing:
    return Landing(tmp_path)


def ids(landing: Landing) -> list[int]:
    return [int(record.partition(": ")[2].rstrip("}")) for record in landing.records]


def test_a_log_that_grew_and_was_rotated_goes_on_under_its_new_name_and_the_new_one_is_read(zone: Landing) -> None:
    zone.land("app.log", lines(1, 2, 3))
    zone.run()
    zone.land("app.log.1", lines(1, 2, 3, 4))
    zone.land("app.log", lines(5, 6))
    found = zone.run()
    assert (sorted(ids(zone)), found.errors) == ([1, 2, 3, 4, 5, 6], ())
    assert found.notes == ("app.log.1: its first 3 lines were read as app.log, and are not read again",)
    (zone.base / "in" / "app.log.1").unlink()
    zone.land("app.log.1.gz", gzip.compress(lines(1, 2, 3, 4).encode()))
    assert [copy.copy_of for copy in zone.run().copies] == ["app.log.1"]
    assert sorted(ids(zone)) == [1, 2, 3, 4, 5, 6]
    assert zone.look() == FilesFound()


def test_a_chain_of_rotations_reads_each_record_once_also_where_the_last_file_was_compressed(zone: Landing) -> None:
    first, second, third = lines(1, 2), lines(3, 4), lines(5)
    zone.land("app.log", first)
    zone.run()
    zone.land("app.log.1", first + lines(20))
    zone.land("app.log", second, age=timedelta(minutes=50))
    zone.run()
    (zone.base / "in" / "app.log.1").unlink()
    zone.land("app.log.2.gz", gzip.compress((first + lines(20)).encode()))
    zone.land("app.log.1", second + lines(40, 41), age=timedelta(minutes=40))
    zone.land("app.log", third, age=timedelta(minutes=30))
    assert zone.run().errors == ()
    assert sorted(ids(zone)) == [1, 2, 3, 4, 5, 20, 40, 41]
    assert zone.look() == FilesFound()


@pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_log_that_is_compressed_when_it_is_rotated_goes_on_in_its_archive(
    zone: Landing, ending: str, compress: Any
) -> None:
    zone.land("app.log", lines(1, 2))
    zone.run()
    zone.land(f"app.log.1.{ending}", compress(lines(1, 2, 3).encode()))
    zone.land("app.log", lines(4))
    assert zone.run().errors == ()
    assert sorted(ids(zone)) == [1, 2, 3, 4]
    (zone.base / "in" / f"app.log.1.{ending}").unlink()
    zone.land("app.log.1", lines(1, 2, 3))
    assert [copy.copy_of for copy in zone.run().copies] == [f"app.log.1.{ending}"]


def test_a_new_file_may_come_long_after_the_old_one_was_renamed(zone: Landing) -> None:
    zone.land("app.log", lines(1, 2))
    zone.run()
    (zone.base / "in" / "app.log").rename(zone.base / "in" / "app.log.1")
    zone.land("app.log.1", lines(1, 2, 3))
    zone.run()
    zone.land("app.log.1", lines(1, 2, 3, 5), age=timedelta(minutes=50))
    zone.run()
    zone.land("app.log", lines(4))
    assert (zone.run().errors, sorted(ids(zone))) == ((), [1, 2, 3, 4, 5])


def test_a_log_that_is_copied_and_truncated_goes_on_under_both_names(zone: Landing) -> None:
    zone.land("app.log", lines(1, 2))
    zone.run()
    zone.land("app.log.1", lines(1, 2, 3), age=timedelta(seconds=1))  # younger than `settle`
    zone.land("app.log", "")
    found = zone.run()
    assert (found.errors, [Path(path).name for path in found.waiting]) == ((), ["app.log.1"])
    zone.land("app.log.1", lines(1, 2, 3))
    zone.land("app.log", lines(4))
    assert (zone.run().errors, sorted(ids(zone))) == ((), [1, 2, 3, 4])


def test_files_that_only_begin_alike_are_read_whole(tmp_path: Path) -> None:
    zone = Landing(tmp_path, CSV)
    zone.land("header.csv", "at,v\n")
    zone.run()
    zone.land("a.csv", "at,v\nx,1\n")
    assert [(file.skip_lines, file.note) for file in zone.run().ready] == [(0, "")], (
        "files of one kind share a header"
    )
    zone.land("b.csv", "at,v\nx,12\n")
    assert [file.skip_lines for file in zone.run().ready] == [0]


def test_a_log_goes_on_under_its_new_name_whatever_became_of_it_between_two_runs(zone: Landing) -> None:
    zone.land("app.log", lines(1).strip())
    zone.run()
    (zone.base / "in" / "app.log").rename(zone.base / "in" / "app.log.1")
    zone.run()
    zone.land("app.log.1", lines(1, 2))
    zone.run()
    zone.land("app.log", lines(3), age=timedelta(minutes=50))
    assert (zone.run().errors, ids(zone)) == ((), [1, 2, 3])
    zone.land("app.log", lines(3).strip() + "\n" + lines(4), age=timedelta(minutes=40))
    zone.run()
    assert ids(zone) == [1, 2, 3, 4]


def test_a_last_line_that_was_read_without_its_end_is_not_read_again_under_another_name(zone: Landing) -> None:
    zone.land("app.log", lines(1, 2).strip())
    zone.run()
    zone.land("app.log", lines(4), age=timedelta(minutes=50))
    zone.land("app.log.1", lines(1, 2, 3))
    assert (zone.run().errors, sorted(ids(zone))) == ((), [1, 2, 3, 4])


@pytest.mark.parametrize("grown", ["", lines(3)])
def test_a_file_that_begins_as_one_that_is_still_there_is_another(zone: Landing, grown: str) -> None:
    zone.land("app.log.a", lines(1))
    zone.land("app.log.b", lines(1, 1))
    zone.run()
    zone.land("app.log.a", lines(1) + grown, age=timedelta(minutes=9))
    zone.land("app.log.c", lines(1, 2))
    zone.land("app.log.d.gz", gzip.compress(lines(1, 1).encode()))
    zone.run()
    assert sorted(ids(zone)) == sorted([1, 1, 1, *([3] if grown else []), 1, 2, 1, 1])


def test_an_unfinished_last_line_is_left_for_the_next_run_and_told(zone: Landing) -> None:
    zone.land("app.log", lines(1) + '{"id": 2, "at": "2026-0', age=timedelta(seconds=9))
    found = zone.run()
    assert found.notes == ("app.log: the last line is not finished: its 23 bytes wait for the rest",)
    assert (ids(zone), found.errors) == ([1], ())
    again = zone.look()
    assert (again.ready, again.notes, again.new) == ((), found.notes, 0)
    zone.land("app.log", lines(1) + '{"id": 2, "at": "2026-0"}\n' + lines(4), age=timedelta(seconds=8))
    [file] = zone.look().ready
    assert (file.skip_lines, file.left_bytes) == (1, 0)
    assert zone.run().errors == ()
    assert len(zone.records) == 3


def test_status_and_the_look_of_a_sensor_tell_of_an_unfinished_line(tmp_path: Path) -> None:
    spec = tmp_path / "p.yaml"
    spec.write_text(
        "name: p\nsources:\n"
        "  - {name: s, kind: files, path: in/*.log, format: json, schema: id BIGINT, settle: 0 s}\n"
    )
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.log").write_text('{"id": 1')
    words = ["status", str(spec), "--warehouse", str(tmp_path / "warehouse")]
    told = CliRunner().invoke(main, words, catch_exceptions=False, env={"DAGSTER_HOME": str(tmp_path / "home")})
    assert "a.log: the last line is not finished: its 8 bytes wait for the rest" in told.stdout
    due = look(Workspace(read_spec(spec), tmp_path / "warehouse"))
    assert (due.is_there, due.may_ripen) == (False, True)


def test_a_file_of_nothing_but_an_unfinished_line_is_no_input_yet(zone: Landing) -> None:
    zone.land("app.log", '{"id": ', age=timedelta(minutes=5))
    found = zone.look()
    assert (found.is_ready, len(found.notes)) == (False, 1)


@pytest.mark.parametrize(
    ("line", "age", "is_read"),
    [
        ("x,12", timedelta(seconds=59), False),
        ("x,12", timedelta(seconds=60), True),
        ('"x,y",12', timedelta(minutes=2), True),
        ("x", timedelta(hours=23), False),
        ('"x,12', timedelta(hours=23), False),
        ("x", timedelta(hours=24), True),
    ],
)
def test_a_csv_line_without_its_end_waits_a_minute_or_a_day_where_fields_are_missing(
    tmp_path: Path, line: str, age: timedelta, is_read: bool
) -> None:
    zone = Landing(tmp_path, CSV)
    zone.land("a.csv", f"at,v\ny,1\n{line}", age=age)
    assert bool(zone.run().notes) != is_read
    assert zone.records[2:] == ([line] if is_read else [])


def test_a_whole_object_and_the_last_line_at_the_end_of_input_need_no_line_end(zone: Landing) -> None:
    zone.land("app.log", lines(1).strip(), age=timedelta(seconds=6))
    assert (zone.run().notes, ids(zone)) == ((), [1])
    zone.land("app.log", lines(1, 2).strip(), age=timedelta(seconds=5))
    zone.run()
    assert ids(zone) == [1, 2]
    zone.land("app.log.1", '{"id": 3', age=timedelta(seconds=6))
    assert zone.look().ready == ()
    assert [file.left_bytes for file in zone.look(is_at_end=True).ready] == [0]


def test_the_last_line_of_a_file_of_the_future_does_not_wait_until_then(tmp_path: Path) -> None:
    given = source("in/*.csv*", options={"header": True}, schema="at STRING, v BIGINT", settle="0 s")
    zone = Landing(tmp_path, given)
    zone.land("a.csv", "at,v\nx,1", age=timedelta(days=-9_000))
    zone.land("b.csv", "at,v\nx,2", age=timedelta(seconds=-9))
    found = zone.run()
    assert (zone.records, len(found.notes)) == (["at,v", "x,1", "at,v"], 1)


def test_half_a_line_that_was_read_after_a_day_does_not_hold_back_its_file(zone: Landing) -> None:
    zone.land("app.log", lines(1) + '{"id"', age=timedelta(days=2))
    zone.run()
    assert zone.records[-1] == '{"id"'
    zone.land("app.log", lines(1, 2, 3))
    assert zone.run().errors == ()
    assert zone.records[2:] == lines(2, 3).splitlines()


def test_a_value_that_goes_on_after_it_was_read_holds_back_its_file(tmp_path: Path) -> None:
    zone = Landing(tmp_path, CSV)
    zone.land("a.csv", "at,v\nx,12")
    zone.run()
    zone.land("a.csv", "at,v\nx,1234\n", age=timedelta(minutes=50))
    [error] = zone.look().errors
    assert "line 2 was read without a line end, and has been continued since" in error.found


@pytest.mark.parametrize("content", ["at,v\nx,7\n", "at,v\n", "at,v\nx,1\ny,2\nz,9\n", "at,v\nx,5\ny,6\nz,7\n"])
def test_a_file_that_is_overwritten_is_read_whole_where_the_source_says_so(tmp_path: Path, content: str) -> None:
    given = source("in/*.csv", options={"header": True}, schema="at STRING, v BIGINT", on_rewrite="read")
    zone = Landing(tmp_path, given)
    zone.land("a.csv", "at,v\nx,1\ny,2\n")
    zone.run()
    zone.land("a.csv", content, age=timedelta(minutes=50))
    found = zone.look()
    if content.startswith("at,v\nx,1\ny,2\n"):
        assert [one.skip_lines for one in found.ready] == [3], "it grew"
    else:
        assert [one.skip_lines for one in found.ready] == [0]
        assert found.notes == ("a.csv: it was rewritten, and is read whole as new records",)
    zone.run()
    assert zone.look() == FilesFound()


def test_a_file_that_is_overwritten_with_what_it_was_before_is_read_again(tmp_path: Path) -> None:
    zone = Landing(tmp_path, source("in/*.csv", on_rewrite="read"))
    for number, content in enumerate(("1\n", "2\n", "1\n")):
        zone.land("a.csv", content, age=timedelta(hours=9 - number))
        zone.run()
    assert zone.records == ["1", "2", "1"]


def test_other_formats_are_overwritten_too_and_by_default_all_are_held_back(tmp_path: Path) -> None:
    for name, given in (
        ("a.parquet", {"format": "parquet", "schema": "v BIGINT"}),
        ("a.csv.gz", {"schema": "v BIGINT"}),
        ("a.csv", {"schema": "v BIGINT", "options": {"multiLine": True}}),
    ):
        for on_rewrite, outcome in (("read", (1, 0)), ("hold", (0, 1))):
            zone = Landing(tmp_path / on_rewrite / name, source("in/*", on_rewrite=on_rewrite, **given))
            found = FilesFound()
            for values in ([1], [1, 2]):
                if name.endswith("parquet"):
                    path = zone.land(name, "")
                    pq.write_table(pa.table({"v": values}), path)
                    zone.land(name, path.read_bytes(), age=timedelta(hours=3 - len(values)))
                else:
                    text = "".join(f"{value}\n" for value in values).encode()
                    content = gzip.compress(text) if name.endswith("gz") else text
                    zone.land(name, content, age=timedelta(hours=3 - len(values)))
                found = zone.look()
                zone.states += [state_of(file, 1) for file in found.ready]
            assert (len(found.ready), len(found.errors)) == outcome, (name, on_rewrite)
            assert all("on_rewrite: read" in str(error) for error in found.errors)


def test_lines_that_are_too_long_are_found_in_one_pass_wherever_chunks_end(tmp_path: Path) -> None:
    long, short = b"x" * (LONGEST_LINE + 1), b"y" * LONGEST_LINE
    content = b"a\r\n" + short + b"\n" + long + b"\r" + long + b"\nb\n" + long
    file = land(tmp_path / "x.csv", content)
    found = read_content(str(file), len(content))
    starts = [content.index(b"x"), content.index(b"\rx") + 1, content.index(b"\nb\n") + 3]
    assert found.long_lines == tuple((start, start + len(long)) for start in starts)
    land(tmp_path / "x.csv.gz", gzip.compress(content, 1))
    packed = tmp_path / "x.csv.gz"
    assert read_content(str(packed), packed.stat().st_size).long_lines == found.long_lines
