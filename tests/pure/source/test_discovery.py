"""Discovery over real files: what is read, what waits, what is refused."""

import bz2
import gzip
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pure.source.landed import AN_HOUR_AGO, NOW, discover, land, names, source
from tidemark.resources.sources.files import FilesFound
from tidemark.resources.sources.known_files import FileRange, FileState, state_of
from tidemark.resources.sources.reader import HeldBack, still_held
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource


def remembered(found: FileRange, records: int) -> FileState:
    records += found.skip_lines
    return state_of(found, records)


def known(found: FilesFound, records: int = 1) -> dict[str, FileState]:
    return {file.path: remembered(file, records) for file in found.ready}


def look(base: Path, given: FilesSource | None = None, state: Mapping[str, FileState] | None = None) -> FilesFound:
    return discover(given or source(), base, list((state or {}).values()), NOW)


def only_error(found: FilesFound) -> str:
    assert found.ready == ()
    (error,) = found.errors
    return str(error)


def test_new_files_are_ready_in_path_order_with_absolute_paths(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "a b.csv", "c.txt"):
        land(tmp_path / "in" / name, f"{len(name)}\r\n{name[0]}")
    found = look(tmp_path)
    assert [file.path for file in found.ready] == [str(tmp_path / "in" / n) for n in ("a b.csv", "a.csv", "b.csv")]
    first = found.ready[0]
    assert (first.size, first.skip_lines, first.ends_with_newline) == (4, 0, False)
    assert first.modified_us == int(AN_HOUR_AGO.timestamp()) * 1_000_000
    assert (found.waiting, found.left, found.errors) == ((), 0, ())


def test_two_stars_reach_every_depth_and_hidden_or_unfinished_files_are_ignored(tmp_path: Path) -> None:
    for name in (
        "x.csv",
        "d/e/y.csv",
        ".h/x.csv",
        "_d/x.csv",
        "d/.x.csv",
        "d/_x.csv",
        "z.csv.tmp",
        "z.csv._COPYING_",
    ):
        land(tmp_path / "in" / name)
    assert names(look(tmp_path, source("in/**/*.csv*"))) == ["y.csv", "x.csv"]


def test_links_that_lead_back_end_and_a_file_is_there_once(tmp_path: Path) -> None:
    land(tmp_path / "in" / "sub" / "x.csv")
    (tmp_path / "in" / "sub" / "up").symlink_to("..")
    (tmp_path / "in" / "sub" / "again").symlink_to("../sub")  # with two, forty levels are 2 ** 40 paths
    (tmp_path / "in" / "a.csv").symlink_to("sub/x.csv")
    land(tmp_path / "elsewhere" / "deep" / "y.csv")
    (tmp_path / "in" / "a").symlink_to("../elsewhere")
    (tmp_path / "in" / "b").symlink_to("../elsewhere/deep")
    own, linked = [str(tmp_path / "in" / name) for name in ("sub/x.csv", "a/deep/y.csv")]
    assert [file.path for file in look(tmp_path, source("in/**/*.csv")).ready] == [linked, own]
    assert [file.path for file in look(tmp_path, source("in/**")).ready] == [linked, own]
    assert [file.path for file in look(tmp_path, source("in/**/**/sub/*.csv")).ready] == [own]
    assert names(look(tmp_path, source("in/*/*/*.csv"))) == ["y.csv", "x.csv"]


def test_signs_of_globs_and_dots_in_the_folder_of_the_spec_mean_nothing(tmp_path: Path) -> None:
    base = tmp_path / ".hidden" / "a[1]*"
    land(base / "in" / "x.csv")
    assert names(look(base)) == ["x.csv"]
    assert names(look(tmp_path, source(str(tmp_path / ".hidden" / "*" / "in" / "*.csv")))) == ["x.csv"]


def test_folders_that_match_any_name_are_no_error_but_folders_with_a_file_s_name_are(tmp_path: Path) -> None:
    land(tmp_path / "in" / "d.csv" / "x.csv")
    assert look(tmp_path, source("in/*")) == FilesFound()
    assert "d.csv: this is a folder" in only_error(look(tmp_path))


@pytest.mark.parametrize("path", ["nowhere/*.csv", "in/nowhere.csv", "in/x.csv/*.csv"])
def test_a_path_that_leads_nowhere_is_an_error(tmp_path: Path, path: str) -> None:
    land(tmp_path / "in" / "x.csv")
    with pytest.raises(InputError, match="wrong path"):
        look(tmp_path, source(path))


def test_an_empty_folder_or_a_vanished_file_is_nothing_new(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "x.csv")
    state = known(look(tmp_path))
    file.unlink()
    assert look(tmp_path) == FilesFound()
    file.parent.rmdir()
    assert look(tmp_path, state=state) == FilesFound()


def test_a_hidden_file_named_outright_is_an_error(tmp_path: Path) -> None:
    land(tmp_path / "_in.csv")
    with pytest.raises(InputError, match="hidden"):
        look(tmp_path, source("_in.csv"))


def test_a_file_younger_than_settle_waits(tmp_path: Path) -> None:
    young = land(tmp_path / "in" / "young.csv", modified=NOW - timedelta(seconds=4))
    land(tmp_path / "in" / "old.csv", modified=NOW - timedelta(seconds=5))
    found = look(tmp_path)
    assert (found.waiting, names(found)) == ((str(young),), ["old.csv"])


def test_without_settle_no_file_waits_even_one_from_the_future(tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv", modified=NOW + timedelta(days=1))
    assert names(look(tmp_path, source(settle="0 s"))) == ["x.csv"]
    assert look(tmp_path).ready == ()


def test_a_known_file_of_the_same_size_and_time_is_not_opened(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "x.csv", "1\n")
    state = known(look(tmp_path))
    land(file, "2\n")
    assert look(tmp_path, state=state) == FilesFound()


def test_a_touched_file_gives_a_state_to_remember_and_nothing_to_read(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "x.csv")
    state = known(look(tmp_path))
    land(file, modified=AN_HOUR_AGO + timedelta(seconds=1))
    found = look(tmp_path, state=state)
    assert (found.ready, found.errors) == ((), ())
    (touched,) = found.touched
    assert touched.modified_us == state[str(file)].modified_us + 1_000_000
    assert look(tmp_path, state={touched.name: touched}) == FilesFound()


def test_a_grown_file_is_read_on_after_the_lines_consumed(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "x.csv", "1\n2\n")
    state = known(look(tmp_path), records=2)
    land(file, "1\n2\n3")
    (grown,) = look(tmp_path, state=state).ready
    assert (grown.skip_lines, grown.size, grown.ends_with_newline) == (2, 5, False)
    land(file, "1\n2\n3\n4\n", modified=AN_HOUR_AGO + timedelta(seconds=9))
    (again,) = look(tmp_path, state={grown.path: remembered(grown, 1)}).ready
    assert (again.skip_lines, again.ends_with_newline) == (3, True)


def test_growth_past_the_size_of_a_hashing_block_is_seen(tmp_path: Path) -> None:
    old = b"x" * 1_500_000 + b"\n"
    file = land(tmp_path / "in" / "x.csv", old)
    state = known(look(tmp_path))
    land(file, old + b"y" * 1_500_000)
    (grown,) = look(tmp_path, state=state).ready
    land(tmp_path / "in" / "y.csv", old + b"y" * 1_500_000)
    [whole] = look(tmp_path, source("in/y.csv")).ready
    assert whole.digest == grown.digest
    land(file, b"z" + old[1:] + b"y" * 1_500_000)
    assert "was rewritten" in only_error(look(tmp_path, source("in/x.csv"), state=state))


def test_a_record_without_line_end_that_was_continued_is_an_error(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "x.csv", "1\n2")
    state = known(look(tmp_path), records=2)
    land(file, "1\n23\n")
    assert "line 2 was read without a line end" in only_error(look(tmp_path, state=state))


@pytest.mark.parametrize("content", ["1,2", "1\n3\n4\n", "", "7,8\n"])
def test_a_file_that_shrank_or_was_rewritten_is_an_error_with_a_remedy(tmp_path: Path, content: str) -> None:
    file = land(tmp_path / "in" / "x.csv", "1,2\n")
    state = known(look(tmp_path))
    land(file, content, modified=AN_HOUR_AGO + timedelta(seconds=1))
    message = only_error(look(tmp_path, state=state))
    assert str(file) in message
    assert "already read" in message
    assert "restore the old content, or land the new content under a new name" in message


def test_compressed_parquet_and_multiline_files_cannot_grow(tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv.gz", gzip.compress(b"1\n"))
    land(tmp_path / "in" / "y.csv", "1\n")
    state = known(look(tmp_path, source("in/*")))
    land(tmp_path / "in" / "x.csv.gz", gzip.compress(b"1\n") * 2)
    land(tmp_path / "in" / "y.csv", "1\n2\n")
    found = look(tmp_path, source("in/*", options={"multiLine": True}), state)
    assert ["compressed files" in str(found.errors[0]), "multiLine files" in str(found.errors[1])] == [True] * 2
    pq.write_table(pa.table({"a": [1]}), land(tmp_path / "p" / "x.parquet"))
    parquet = source("p/*.parquet", format="parquet", settle="0 s")
    state = known(look(tmp_path, parquet))
    pq.write_table(pa.table({"a": [1, 2, 3]}), tmp_path / "p" / "x.parquet")
    assert "already read" in only_error(look(tmp_path, parquet, state))


UNREADABLE = {
    "cut.csv.gz": gzip.compress(b"1\n" * 500)[:-9],
    "plain.csv.gz": b"1\n2\n",
    "flipped.csv.gz": gzip.compress(b"1\n" * 500)[:12] + b"\x00\xff" + gzip.compress(b"1\n" * 500)[14:],
    "cut.csv.bz2": bz2.compress(b"1\n" * 500)[:-9],
    "plain.csv.bz2": b"1\n2\n",
    "x.csv.zst": b"1\n",
    "x.csv.GZ": gzip.compress(b"1\n"),
    "a:b.csv": b"1\n",
}


# By name alone: gzip writes the second into its bytes, and two workers would name a test differently.
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_spark_could_not_read_holds_back_only_itself(tmp_path: Path, name: str) -> None:
    bad = land(tmp_path / "in" / name, UNREADABLE[name])
    land(tmp_path / "in" / "good.csv.gz", gzip.compress(b"1\n"))
    land(tmp_path / "in" / "good.csv.bz2", bz2.compress(b"1\n"))
    found = look(tmp_path, source("in/*"))
    assert names(found) == ["good.csv.bz2", "good.csv.gz"]
    (error,) = found.errors
    assert error.found.startswith(f"{bad}: ")
    assert error.remedy


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.csv").symlink_to("nowhere")
    assert "the link leads to no file" in only_error(look(tmp_path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_an_error(tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv").chmod(0)
    assert "cannot be read" in only_error(look(tmp_path))


@pytest.mark.parametrize(("name", "file_format"), [("x.csv", "csv"), ("x.gz", "csv"), ("x.parquet", "parquet")])
def test_an_empty_file_is_ready_and_may_be_filled_later(tmp_path: Path, name: str, file_format: str) -> None:
    given = source("in/*", format=file_format)
    file = land(tmp_path / "in" / name, "")
    found = look(tmp_path, given)
    assert [(range_.size, range_.skip_lines) for range_ in found.ready] == [(0, 0)]
    if file_format == "parquet":
        pq.write_table(pa.table({"a": [1]}), file)
    else:
        file.write_bytes(gzip.compress(b"1\n") if name.endswith(".gz") else b"1\n")
    os.utime(file, (AN_HOUR_AGO.timestamp(), AN_HOUR_AGO.timestamp()))
    filled = look(tmp_path, given, known(found, records=0))
    assert ([range_.skip_lines for range_ in filled.ready], filled.errors) == ([0], ())


def test_max_files_bounds_an_ingestion_and_bad_files_take_no_place(tmp_path: Path) -> None:
    land(tmp_path / "in" / "a.csv.gz", "no gzip")
    for name in "bcde":
        land(tmp_path / "in" / f"{name}.csv")
    given = source("in/*", max_files=2)
    found = look(tmp_path, given)
    assert (names(found), found.left, len(found.errors)) == (["b.csv", "c.csv"], 2, 1)
    after = look(tmp_path, given, known(found))
    assert (names(after), after.left) == (["d.csv", "e.csv"], 0)


def test_max_bytes_bounds_an_ingestion_but_at_least_one_file_is_read(tmp_path: Path) -> None:
    for name, size in (("a", 30), ("b", 5), ("c", 5), ("d", 1)):
        land(tmp_path / "in" / f"{name}.csv", name.encode() * size)
    given = source(max_bytes=10)
    found = look(tmp_path, given)
    assert (names(found), found.left) == (["a.csv"], 3)
    after = look(tmp_path, given, known(found))
    assert (names(after), after.left) == (["b.csv", "c.csv"], 1)


def aligned(path: str = "in/*.csv", **settings: object) -> FilesSource:
    return source(path, alignment={"group": "g", "max_drift": "1 min", "update_interval": "10 s"}, **settings)


def test_an_aligned_source_gives_one_interval_of_its_files_at_once_but_at_least_one(tmp_path: Path) -> None:
    for name, seconds in (("a", 20), ("b", 10), ("c", 15), ("d", 9), ("e", 200), ("f", 300)):
        land(tmp_path / "in" / f"{name}.csv", modified=AN_HOUR_AGO + timedelta(seconds=seconds))
    state: dict[str, FileState] = {}
    taken = []
    for left in (3, 2, 1, 0):
        found = look(tmp_path, aligned(), state)
        taken.append(names(found))
        assert (found.left, found.ahead) == (left, 0)
        state |= known(found)
    assert taken == [["a.csv", "b.csv", "c.csv"], ["d.csv"], ["e.csv"], ["f.csv"]], "d is 11 s before a"


def test_bad_files_are_no_part_of_an_interval_and_other_limits_hold_beside_it(tmp_path: Path) -> None:
    land(tmp_path / "in" / "a.csv.gz", "no gzip", AN_HOUR_AGO - timedelta(minutes=1))
    for name in "bcd":
        land(tmp_path / "in" / f"{name}.csv")
    found = look(tmp_path, aligned(path="in/*"))
    assert (names(found), found.left, len(found.errors)) == (["b.csv", "c.csv", "d.csv"], 0, 1)
    assert names(look(tmp_path, aligned(path="in/*", max_files=2))) == ["b.csv", "c.csv"]


def test_an_aligned_source_with_arrivals_of_its_own_gives_one_file_at_once(tmp_path: Path) -> None:
    for name in "bcd":
        land(tmp_path / "in" / f"{name}.csv")
    given = source(alignment={"group": "g", "max_drift": "1 min"}, arrival_time="timestamp_seconds(a)")
    found = look(tmp_path, given)
    assert (names(found), found.left) == (["b.csv"], 2)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("1,ü\n".encode("utf-16"), "text in UTF-16"),
        ("1,ü\n".encode("utf-16-le"), "text in UTF-16"),
        ("1,ü\n".encode("utf-16-be"), "text in UTF-16"),
        ("1,ü\n".encode("utf-32"), "text in UTF-32"),
        (b"PAR1" + b"x" * 90, "a parquet file, not text under the name of text"),
        (gzip.compress(b"1\n", mtime=0), "compressed with gzip, not text"),
        (bytes(range(256)), "binary, not text"),
    ],
)
def test_what_is_no_text_in_utf_8_is_refused_by_its_first_bytes(tmp_path: Path, content: bytes, found: str) -> None:
    land(tmp_path / "in" / "good.csv")
    land(tmp_path / "in" / "bad.csv", content)
    land(tmp_path / "in" / "bad.csv.gz", gzip.compress(content))
    looked = discover(source("in/*"), tmp_path, (), NOW)
    assert [Path(file.path).name for file in looked.ready] == ["good.csv"]
    assert [found in error.found for error in looked.errors] == [True, True]


@pytest.mark.parametrize(
    "content",
    [
        "été,größe\n".encode("latin-1"),
        ("привет,мир\n" * 9).encode("cp1251"),
        "こんにちは,世界\n".encode(),
        "こんにちは,世界\n".encode("shift-jis"),
        b"\xef\xbb\xbf1,2\n",
        b"1\t\x1b[0m\f\n",
        b"1," + b"x" * 90 + b"\x00\n",
        b"\n\n",
        b"1",
    ],
)
def test_text_is_taken_whatever_its_signs(tmp_path: Path, content: bytes) -> None:
    land(tmp_path / "in" / "x.csv", content)
    assert discover(source(), tmp_path, (), NOW).errors == ()


USGS = "time STRING, mag DOUBLE, magType STRING, nst INT"


@pytest.mark.parametrize(
    ("header", "remedy"),
    [
        (
            "time,mag,nst,magNst",
            "add `rename: {magNst: magType}` to the source if that is `magType` in this file, or",
        ),
        (
            "time,mag,nst,place",
            'correct `schema` or the file, or set `missing: "null"` in the source if files may lack',
        ),
        ("time,mag,nst,MAGTYPE", "did you mean `MAGTYPE`?"),
        ("time,magType,nst", "correct `schema` or the file, or set"),
        ("2026-01-01,1.5,ml,3", "add a first line with the names of its columns"),
    ],
)
def test_what_is_proposed_for_a_missing_column_is_no_other_column(tmp_path: Path, header: str, remedy: str) -> None:
    land(tmp_path / "in" / "x.csv", f"{header}\n")
    [error] = look(tmp_path, source(schema=USGS, options={"header": True})).errors
    assert error.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("time,mag,nst", ""),
        ("time,nst", ""),
        ("time,MAGTYPE,mag,nst", "column `magType` is missing from the header"),
        ("a,b", "column `time` is missing from the header"),
        ("time,mag,mag", "column `mag` is more than once"),
    ],
)
def test_a_file_may_lack_columns_but_not_all_and_not_for_the_case_of_a_letter(
    tmp_path: Path, header: str, found: str
) -> None:
    land(tmp_path / "in" / "x.csv", f"{header}\n")
    looked = look(tmp_path, source(schema=USGS, options={"header": True}, missing="null"))
    assert [found in error.found for error in looked.errors] == ([True] if found else [])


def test_a_column_by_any_of_its_names_is_there_but_not_by_two(tmp_path: Path) -> None:
    renamed = {"magNst": "nst", "nst": "nst", "n": "nst"}
    given = source(schema=USGS, options={"header": True}, rename=renamed)
    for number, name in enumerate(("magNst", "nst", "n")):
        land(tmp_path / "in" / f"{number}.csv", f"{name},time,mag,magType\n")
    assert look(tmp_path, given).errors == ()
    land(tmp_path / "in" / "3.csv", "n,time,mag,magType,nst\n")
    assert "`nst` and `n` are one column, and both in the header" in str(look(tmp_path, given).errors[0])


def test_a_file_that_could_not_be_read_is_not_opened_again_until_it_or_its_reading_changes(tmp_path: Path) -> None:
    given = source()
    land(tmp_path / "in" / "a.csv")
    path = str(land(tmp_path / "in" / "b.csv"))
    [_, bad] = discover(given, tmp_path, (), NOW).ready
    noted = HeldBack.of(bad, given, InputError(f"{path}: a page is damaged", remedy="land it again"))
    held = still_held([HeldBack.from_json(noted.to_json())], given)
    looked = discover(given, tmp_path, (), NOW, held=held)
    assert [Path(file.path).name for file in looked.ready] == ["a.csv"]
    assert [str(error) for error in looked.errors] == [f"{path}: a page is damaged\nTo do: land it again"]
    assert looked.held == (noted,)
    assert still_held([noted], source(schema="a BIGINT")) == {}
    land(tmp_path / "in" / "b.csv", modified=NOW - timedelta(minutes=1))
    assert len(discover(given, tmp_path, (), NOW, held=held).ready) == 2
