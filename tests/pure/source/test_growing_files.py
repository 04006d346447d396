"""Files that were read before: grown, rotated, compressed, overwritten, moved, renamed, copied, cut inside a line."""

import bz2
import gzip
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.pure.report.shop import Shop
from tests.pure.source.landed import NOW, discover, land, names, only_error, parquet_of, read, source
from tidemark.assets.ingestion.pending_work import look
from tidemark.assets.state.files import copies_after
from tidemark.pipelines.cli import main
from tidemark.pipelines.spec_files import read_spec
from tidemark.resources import tables
from tidemark.resources.sources import known_files, local_files
from tidemark.resources.sources.files import FilesFound
from tidemark.resources.sources.known_files import FileState, counted, state_of
from tidemark.resources.sources.local_files import LONGEST_LINE, open_bytes, read_content
from tidemark.resources.workspace import Workspace
from tidemark.timeops.spec import FilesSource

LOGS = source("in/app.log*", format="json", schema="id BIGINT")
CSV = source("in/*.csv*", options={"header": True}, schema="at STRING, v BIGINT")
NOTHING_NEW = FilesFound()


def lines(*ids: int) -> str:
    return "".join(f'{{"id": {number}}}\n' for number in ids)


def gz(*ids: int) -> bytes:
    return gzip.compress(lines(*ids).encode())


class Landing:
    """A landing zone, with what its runs remember and the records that they have read, as text by file."""

    def __init__(self, base: Path, given: FilesSource = LOGS) -> None:
        self.base, self.given = base, given
        self.states: list[FileState] = []
        self.records: list[str] = []

    def land(self, name: str, content: str | bytes, age: timedelta = timedelta(hours=1)) -> Path:
        return land(self.base / "in" / name, content, NOW - age)

    def rename(self, old: str, new: str) -> None:
        (self.base / "in" / old).rename(self.base / "in" / new)

    def remove(self, name: str) -> None:
        (self.base / "in" / name).unlink()

    def look(self, **asked: Any) -> FilesFound:
        return discover(self.given, self.base, self.states, **asked)

    def run(self, **asked: Any) -> FilesFound:
        """One ingestion, and what it found."""
        found = self.look(**asked)
        for file in found.ready:
            with open_bytes(file.path) as opened:
                text = opened.read()
            there = (text[: file.size] if file.left_bytes else text).decode().splitlines()
            self.records += there[file.skip_lines :]
            self.states.append(state_of(file, len(there)))
        self.states += [*found.touched, *counted(found.copies, self.states)]
        return found

    def ids(self) -> list[int]:
        return [int(record.partition(": ")[2].rstrip("}")) for record in self.records]


@pytest.fixture
def zone(tmp_path: Path) -> Landing:
    return Landing(tmp_path)


@pytest.fixture
def csv_zone(tmp_path: Path) -> Landing:
    return Landing(tmp_path, CSV)


@pytest.fixture
def plain(tmp_path: Path) -> Landing:
    """Return a zone of files of one column without a header."""
    return Landing(tmp_path, source())


def parts(found: FilesFound) -> list[tuple[str, int]]:
    """Name of each file that is to be read, and after how many lines."""
    return [(file.name, file.skip_lines) for file in found.ready]


def copies(found: FilesFound) -> list[tuple[str, str | None]]:
    return [(copy.name, copy.copy_of) for copy in found.copies]


def test_an_empty_folder_or_a_vanished_file_is_nothing_new(zone: Landing) -> None:
    zone.land("app.log", lines(1))
    zone.run()
    zone.remove("app.log")
    assert zone.look() == discover(LOGS, zone.base) == NOTHING_NEW
    (zone.base / "in").rmdir()
    assert zone.look() == NOTHING_NEW


def test_a_known_file_of_the_same_size_and_time_is_not_opened(zone: Landing) -> None:
    zone.land("app.log", lines(1))
    zone.run()
    zone.land("app.log", lines(2))
    assert zone.look() == NOTHING_NEW


def test_a_touched_file_gives_a_state_to_remember_and_nothing_to_read(zone: Landing) -> None:
    zone.land("app.log", lines(1))
    zone.run()
    zone.land("app.log", lines(1), age=timedelta(minutes=59))
    found = zone.look()
    assert (found.ready, found.errors) == ((), ())
    assert [one.modified_us for one in found.touched] == [zone.states[0].modified_us + 60_000_000]
    zone.run()
    assert zone.look() == NOTHING_NEW


def test_a_grown_file_is_read_on_after_the_lines_consumed(plain: Landing) -> None:
    plain.land("x.csv", "1\n2\n")
    plain.run()
    plain.land("x.csv", "1\n2\n3")
    [grown] = plain.run().ready
    assert (grown.skip_lines, grown.size, grown.ends_with_newline) == (2, 5, False)
    plain.land("x.csv", "1\n2\n3\n4\n", age=timedelta(minutes=59))
    [again] = plain.look().ready
    assert (again.skip_lines, again.ends_with_newline) == (3, True)


def test_growth_past_the_size_of_a_hashing_block_is_seen(tmp_path: Path) -> None:
    zone = Landing(tmp_path, source("in/x.csv"))
    old, more = b"x" * 1_500_000 + b"\n", b"y" * 1_500_000
    zone.land("x.csv", old)
    zone.run()
    zone.land("x.csv", old + more)
    [grown] = zone.look().ready
    zone.land("y.csv", old + more)
    [whole] = discover(source("in/y.csv"), tmp_path).ready
    assert whole.digest == grown.digest
    zone.land("x.csv", b"z" + old[1:] + more)
    assert "was rewritten" in only_error(zone.look())


def test_a_log_that_grew_and_was_rotated_goes_on_under_its_new_name_and_the_new_one_is_read(zone: Landing) -> None:
    zone.land("app.log", lines(1, 2, 3))
    zone.run()
    zone.land("app.log.1", lines(1, 2, 3, 4))
    zone.land("app.log", lines(5, 6))
    found = zone.run()
    assert (sorted(zone.ids()), found.errors) == ([1, 2, 3, 4, 5, 6], ())
    assert found.notes == ("app.log.1: its first 3 lines were read as app.log, and are not read again",)
    zone.remove("app.log.1")
    zone.land("app.log.1.gz", gz(1, 2, 3, 4))
    assert copies(zone.run()) == [("app.log.1.gz", "app.log.1")]
    assert sorted(zone.ids()) == [1, 2, 3, 4, 5, 6]
    assert zone.look() == NOTHING_NEW


# What is landed before each run, nothing where a file is gone, and the records that the run reads.
ROTATIONS: dict[str, list[tuple[dict[str, str | bytes | None], list[int]]]] = {
    "a chain whose last file is compressed": [
        ({"app.log": lines(1, 2)}, [1, 2]),
        ({"app.log": lines(3, 4), "app.log.1": lines(1, 2, 20)}, [3, 4, 20]),
        ({"app.log": lines(5), "app.log.1": lines(3, 4, 40, 41), "app.log.2.gz": gz(1, 2, 20)}, [5, 40, 41]),
    ],
    "compressed with gzip at once, and unpacked": [
        ({"app.log": lines(1, 2)}, [1, 2]),
        ({"app.log": lines(4), "app.log.1.gz": gz(1, 2, 3)}, [3, 4]),
        ({"app.log.1.gz": None, "app.log.1": lines(1, 2, 3)}, []),
    ],
    "compressed with bzip2 at once, and unpacked": [
        ({"app.log": lines(1, 2)}, [1, 2]),
        ({"app.log": lines(4), "app.log.1.bz2": bz2.compress(lines(1, 2, 3).encode())}, [3, 4]),
        ({"app.log.1.bz2": None, "app.log.1": lines(1, 2, 3)}, []),
    ],
    "renamed long before the new file comes": [
        ({"app.log": lines(1, 2)}, [1, 2]),
        ({"app.log": None, "app.log.1": lines(1, 2, 3)}, [3]),
        ({"app.log.1": lines(1, 2, 3, 5)}, [5]),
        ({"app.log": lines(4)}, [4]),
    ],
    "renamed with a last line without its end": [
        ({"app.log": lines(1).strip()}, [1]),
        ({"app.log": None, "app.log.1": lines(1).strip()}, []),
        ({"app.log.1": lines(1, 2)}, [2]),
        ({"app.log": lines(3)}, [3]),
        ({"app.log": lines(3, 4)}, [4]),
    ],
    "grown after a last line without its end, and renamed": [
        ({"app.log": lines(1, 2).strip()}, [1, 2]),
        ({"app.log": lines(4), "app.log.1": lines(1, 2, 3)}, [3, 4]),
    ],
    "others that begin alike while it is there": [
        ({"app.log.a": lines(1), "app.log.b": lines(1, 1)}, [1, 1, 1]),
        ({"app.log.a": lines(1), "app.log.c": lines(1, 2), "app.log.d.gz": gz(1, 1)}, [1, 1, 1, 2]),
    ],
    "others that begin alike while it grows": [
        ({"app.log.a": lines(1), "app.log.b": lines(1, 1)}, [1, 1, 1]),
        ({"app.log.a": lines(1, 3), "app.log.c": lines(1, 2), "app.log.d.gz": gz(1, 1)}, [1, 1, 1, 2, 3]),
    ],
}


# By name alone: gzip writes the second into its bytes, and two workers would name a test differently.
@pytest.mark.parametrize("name", ROTATIONS)
def test_each_record_of_a_log_that_is_rotated_is_read_once(zone: Landing, name: str) -> None:
    for number, (landed, read_then) in enumerate(ROTATIONS[name]):
        for file, content in landed.items():
            if content is None:
                zone.remove(file)
            else:
                zone.land(file, content, age=timedelta(minutes=60 - number))
        zone.records.clear()
        assert (zone.run().errors, sorted(zone.ids())) == ((), read_then)
    assert zone.look() == NOTHING_NEW


def test_a_log_that_is_copied_and_truncated_goes_on_under_both_names(zone: Landing) -> None:
    zone.land("app.log", lines(1, 2))
    zone.run()
    zone.land("app.log.1", lines(1, 2, 3), age=timedelta(seconds=1))  # younger than `settle`
    zone.land("app.log", "")
    found = zone.run()
    assert (found.errors, [Path(path).name for path in found.waiting]) == ((), ["app.log.1"])
    zone.land("app.log.1", lines(1, 2, 3))
    zone.land("app.log", lines(4))
    assert (zone.run().errors, sorted(zone.ids())) == ((), [1, 2, 3, 4])


def test_files_that_only_begin_alike_are_read_whole(csv_zone: Landing) -> None:
    csv_zone.land("header.csv", "at,v\n")
    csv_zone.run()
    csv_zone.land("a.csv", "at,v\nx,1\n")
    found = csv_zone.run()
    assert (parts(found), found.notes) == ([("a.csv", 0)], ()), "files of one kind share a header"
    csv_zone.land("b.csv", "at,v\nx,12\n")
    assert parts(csv_zone.run()) == [("b.csv", 0)]


def test_an_unfinished_last_line_is_left_for_the_next_run_and_told(zone: Landing) -> None:
    zone.land("app.log", lines(1) + '{"id": 2, "at": "2026-0', age=timedelta(seconds=9))
    found = zone.run()
    assert found.notes == ("app.log: the last line is not finished: its 23 bytes wait for the rest",)
    assert (zone.ids(), found.errors) == ([1], ())
    again = zone.look()
    assert (again.ready, again.notes, again.new) == ((), found.notes, 0)
    zone.land("app.log", lines(1) + '{"id": 2, "at": "2026-0"}\n' + lines(4), age=timedelta(seconds=8))
    [file] = zone.run().ready
    assert (file.skip_lines, file.left_bytes) == (1, 0)
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
    csv_zone: Landing, line: str, age: timedelta, is_read: bool
) -> None:
    csv_zone.land("a.csv", f"at,v\ny,1\n{line}", age=age)
    assert bool(csv_zone.run().notes) != is_read
    assert csv_zone.records[2:] == ([line] if is_read else [])


def test_a_whole_object_and_the_last_line_at_the_end_of_input_need_no_line_end(zone: Landing) -> None:
    zone.land("app.log", lines(1).strip(), age=timedelta(seconds=6))
    assert (zone.run().notes, zone.ids()) == ((), [1])
    zone.land("app.log", lines(1, 2).strip(), age=timedelta(seconds=5))
    zone.run()
    assert zone.ids() == [1, 2]
    zone.land("app.log.1", '{"id": 3', age=timedelta(seconds=6))
    assert zone.look().ready == ()
    assert [file.left_bytes for file in zone.look(is_at_end=True).ready] == [0]


def test_the_last_line_of_a_file_of_the_future_does_not_wait_until_then(tmp_path: Path) -> None:
    zone = Landing(tmp_path, source(options={"header": True}, schema="at STRING, v BIGINT", settle="0 s"))
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


def test_a_value_that_goes_on_after_it_was_read_holds_back_its_file(csv_zone: Landing) -> None:
    csv_zone.land("a.csv", "at,v\nx,12")
    csv_zone.run()
    csv_zone.land("a.csv", "at,v\nx,1234\n", age=timedelta(minutes=50))
    assert "line 2 was read without a line end, and has been continued since" in only_error(csv_zone.look())


@pytest.mark.parametrize("content", ["1,2", "1\n3\n4\n", "", "7,8\n"])
def test_a_file_that_shrank_or_was_rewritten_is_an_error_with_a_remedy(plain: Landing, content: str) -> None:
    plain.land("x.csv", "1,2\n")
    plain.run()
    path = plain.land("x.csv", content, age=timedelta(minutes=59))
    message = only_error(plain.look())
    for said in (str(path), "already read", "restore the old content, or land the new content under a new name"):
        assert said in message


REWRITTEN = ("a.csv: it was rewritten, and is read whole as new records",)


@pytest.mark.parametrize(
    ("content", "skipped", "notes"),
    [
        ("at,v\nx,7\n", 0, REWRITTEN),
        ("at,v\n", 0, REWRITTEN),
        ("at,v\nx,5\ny,6\nz,7\n", 0, REWRITTEN),
        ("at,v\nx,1\ny,2\nz,9\n", 3, ()),  # it grew
    ],
)
def test_a_file_that_is_overwritten_is_read_whole_where_the_source_says_so(
    tmp_path: Path, content: str, skipped: int, notes: tuple[str, ...]
) -> None:
    zone = Landing(tmp_path, source(options={"header": True}, schema="at STRING, v BIGINT", on_rewrite="read"))
    zone.land("a.csv", "at,v\nx,1\ny,2\n")
    zone.run()
    zone.land("a.csv", content, age=timedelta(minutes=50))
    found = zone.run()
    assert (parts(found), found.notes) == ([("a.csv", skipped)], notes)
    assert zone.look() == NOTHING_NEW


def test_a_file_that_is_overwritten_with_what_it_was_before_is_read_again(tmp_path: Path) -> None:
    zone = Landing(tmp_path, source(on_rewrite="read"))
    for number, content in enumerate(("1\n", "2\n", "1\n")):
        zone.land("a.csv", content, age=timedelta(hours=9 - number))
        zone.run()
    assert zone.records == ["1", "2", "1"]


def content_of(name: str, *values: int) -> bytes:
    """Return a file of one column in the format of its name."""
    if name.endswith("parquet"):
        return parquet_of(pa.table({"v": values}))
    text = "".join(f"{value}\n" for value in values).encode()
    return gzip.compress(text) if name.endswith("gz") else text


@pytest.mark.parametrize(
    ("name", "settings", "why"),
    [
        ("a.parquet", {"format": "parquet"}, "already read"),
        ("a.csv.gz", {}, "compressed files"),
        ("a.csv", {"options": {"multiLine": True}}, "multiLine files"),
    ],
)
def test_a_file_that_cannot_grow_is_held_back_when_it_changes_or_read_whole_where_the_source_says_so(
    tmp_path: Path, name: str, settings: dict[str, object], why: str
) -> None:
    def given(on_rewrite: str) -> FilesSource:
        return source("in/*", schema="v BIGINT", on_rewrite=on_rewrite, **settings)

    path = land(tmp_path / "in" / name, content_of(name, 1))
    states = read(discover(given("hold"), tmp_path))
    land(path, content_of(name, 1, 2))
    held = only_error(discover(given("hold"), tmp_path, states))
    assert why in held
    assert "on_rewrite: read" in held
    whole = discover(given("read"), tmp_path, states)
    assert (parts(whole), whole.errors) == ([(name, 0)], ())


@pytest.mark.parametrize(("name", "form"), [("x.csv", "csv"), ("x.gz", "csv"), ("x.parquet", "parquet")])
def test_an_empty_file_is_ready_and_may_be_filled_later(tmp_path: Path, name: str, form: str) -> None:
    given = source("in/*", format=form, schema="v BIGINT")
    path = land(tmp_path / "in" / name, "")
    found = discover(given, tmp_path)
    assert [(file.size, file.skip_lines) for file in found.ready] == [(0, 0)]
    land(path, content_of(name, 1))
    filled = discover(given, tmp_path, read(found, records=0))
    assert (parts(filled), filled.errors) == ([(name, 0)], ())


def test_a_project_that_moves_keeps_its_files_and_they_grow_on(tmp_path: Path) -> None:
    zone = Landing(tmp_path / "project", source())
    zone.land("x.csv", "1\n")
    zone.run()
    zone.base = zone.base.rename(tmp_path / "moved")
    assert zone.look() == NOTHING_NEW
    path = zone.land("x.csv", "1\n", age=timedelta(minutes=59))  # restored by a backup
    assert [state.place for state in zone.look().touched] == [str(path)]
    zone.land("x.csv", "1\n2\n")
    assert parts(zone.look()) == [("x.csv", 1)]


@pytest.mark.parametrize(
    ("path", "new_folder", "new_path"),
    [("in/**/*.csv", "archive", "archive/**/*.csv"), ("in/a/*.csv", "in", "in/*/*.csv")],
)
def test_a_file_is_known_in_a_folder_of_another_name_and_by_its_place_where_another_path_means_it(
    tmp_path: Path, path: str, new_folder: str, new_path: str
) -> None:
    zone = Landing(tmp_path, source(path))
    zone.land("a/x.csv", "1\n")
    zone.run()
    (tmp_path / "in").rename(tmp_path / new_folder)
    zone.given = source(new_path)
    assert zone.look() == NOTHING_NEW
    land(tmp_path / new_folder / "a" / "x.csv", "1\n2\n")
    assert parts(zone.look()) == [("a/x.csv", 1)]


def test_a_name_in_another_folder_is_another_file_while_the_known_one_stays_where_it_was(tmp_path: Path) -> None:
    zone = Landing(tmp_path, source("in/2024/*.csv"))
    known = zone.land("2024/01.csv", "1\n2\n")
    zone.run()
    zone.land("2025/01.csv", "3\n4\n5\n")
    zone.given = source("in/2025/*.csv")
    assert parts(zone.look()) == [("01.csv", 0)]
    known.unlink()
    error = only_error(zone.look())
    assert "was rewritten" in error, "the folder may have been moved, and the file changed"
    assert f"if it is another file than {known} was, `tidemark run --reread` reads it" in error
    assert parts(zone.look(reread=True)) == [("01.csv", 0)]


def test_known_bytes_under_another_name_are_told_once_and_read_only_if_asked_for(plain: Landing) -> None:
    plain.land("x.csv", "1\n")
    plain.run()
    plain.rename("x.csv", "y.csv")
    plain.land("z.csv", "1\n")
    asked = plain.look(reread=True)
    assert (names(asked), asked.copies) == (["y.csv", "z.csv"], ())
    found = plain.run()
    assert (found.ready, copies(found)) == ((), [("y.csv", "x.csv"), ("z.csv", "x.csv")])
    assert [copy.records for copy in found.copies] == [1, 1]
    assert plain.look() == NOTHING_NEW
    asked = plain.run(reread=True)
    assert (names(asked), asked.copies) == (["y.csv", "z.csv"], ())
    assert plain.look() == plain.look(reread=True) == NOTHING_NEW


def test_of_new_files_with_the_same_bytes_the_first_is_read_and_empty_ones_are_no_copies(plain: Landing) -> None:
    for name in ("a", "b", "c"):
        plain.land(f"{name}.csv", "1\n")
        plain.land(f"{name}_empty.csv", "")
    found = plain.look()
    assert names(found) == ["a.csv", "a_empty.csv", "b_empty.csv", "c_empty.csv"]
    assert copies(found) == [("b.csv", "a.csv"), ("c.csv", "a.csv")]
    assert names(plain.look(reread=True))[:4] == ["a.csv", "a_empty.csv", "b.csv", "b_empty.csv"]


def test_a_copy_grows_with_its_original_and_without_it(plain: Landing) -> None:
    for name in ("a.csv", "b.csv"):
        plain.land(name, "1\n")
    plain.run()
    for name in ("a.csv", "b.csv"):
        plain.land(name, "1\n2\n")
    found = plain.look()
    assert (parts(found), copies(found)) == ([("a.csv", 1)], [("b.csv", "a.csv")])
    plain.remove("a.csv")
    assert parts(plain.look()) == [("b.csv", 1)], "a renamed file is read on"


def test_an_older_lake_remembers_absolute_paths_and_nothing_is_read_again(plain: Landing) -> None:
    paths = [str(plain.land(name, f"{name}\n")) for name in ("x.csv", "y.csv")]
    plain.run()
    plain.states = [replace(state, name=str(state.place), place=None) for state in plain.states]
    assert plain.look() == NOTHING_NEW
    plain.land("x.csv", "x.csv\nmore\n")
    assert parts(plain.look()) == [("x.csv", 1)]
    plain.land("x.csv", "x.csv\n")
    (plain.base / "in").rename(plain.base / "moved")
    plain.given = source("moved/*.csv")
    found = plain.run()
    assert (found.ready, found.errors) == ((), ())
    assert copies(found) == [("x.csv", paths[0]), ("y.csv", paths[1])]
    assert plain.look() == NOTHING_NEW


def test_a_file_is_hashed_once_until_it_changes(plain: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def reading(path: str, *sizes: Any, as_text: bool) -> local_files.Content:
        hashed.append(os.path.basename(path))
        return read_content(path, *sizes, as_text=as_text)

    monkeypatch.setattr(known_files, "read_content", reading)
    for name in ("x.csv", "y.csv"):
        plain.land(name, f"{name}\n")
    assert plain.look() == plain.look()
    plain.land("x.csv", "z.csv\n")  # as long, and at the same time
    assert plain.look().ready[0].digest
    assert hashed == ["x.csv", "y.csv", "x.csv"]


def test_a_run_names_the_copies_that_its_batches_found_and_no_older_ones(tmp_path: Path) -> None:
    """By what was stored: a copy may come when the run has looked already."""
    made = Shop(tmp_path).create()
    stored = [(0, "b.csv", "one"), (2, "c.csv", "one"), (2, "b.csv", "one"), (3, "b.csv", "two")]
    for batch, name, digest in stored:
        row = {"source": "tills", "path": name, "digest": digest, "size": 1, "modified_us": batch, "records": 1}
        made.add(tables.FILES, [row | {"copy_of": "a.csv", "_batch_id": batch, "ends_with_newline": True}])
    made.ingest(10)
    found = [copy.copy_sentence for copy in copies_after(made.workspace, 0)]
    assert found == [f"{name}: the same bytes were read as a.csv" for name in ("c.csv", "b.csv")]


def test_lines_that_are_too_long_are_found_in_one_pass_wherever_chunks_end(tmp_path: Path) -> None:
    long, short = b"x" * (LONGEST_LINE + 1), b"y" * LONGEST_LINE
    content = b"a\r\n" + short + b"\n" + long + b"\r" + long + b"\nb\n" + long
    starts = [content.index(b"x"), content.index(b"\rx") + 1, content.index(b"\nb\n") + 3]
    for name, stored in (("x.csv", content), ("x.csv.gz", gzip.compress(content, 1))):
        found = read_content(str(land(tmp_path / name, stored)), len(stored))
        assert found.long_lines == tuple((start, start + len(long)) for start in starts)
