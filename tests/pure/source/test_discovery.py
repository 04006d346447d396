"""Discovery over real files: what is read, what waits, what is refused, and which columns files have."""

import bz2
import gzip
import json
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pure.source.landed import AN_HOUR_AGO, NOW, discover, land, names, only_error, parquet_of, read, source
from tidemark.resources.sources.columns import columns_of_json, line_to_add, not_to_add, unknown_of
from tidemark.resources.sources.files import FilesFound
from tidemark.resources.sources.known_files import FileState
from tidemark.resources.sources.reader import HeldBack, still_held
from tidemark.timeops.errors import InputError
from tidemark.timeops.spec import FilesSource


def test_new_files_are_ready_in_path_order_with_absolute_paths(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", "a b.csv", "c.txt"):
        land(tmp_path / "in" / name, f"{len(name)}\r\n{name[0]}")
    found = discover(source(), tmp_path)
    assert [file.path for file in found.ready] == [str(tmp_path / "in" / n) for n in ("a b.csv", "a.csv", "b.csv")]
    first = found.ready[0]
    assert (first.size, first.skip_lines, first.ends_with_newline) == (4, 0, False)
    assert first.modified_us == int(AN_HOUR_AGO.timestamp()) * 1_000_000
    assert (found.waiting, found.left, found.errors) == ((), 0, ())


def test_two_stars_reach_every_depth_and_hidden_or_unfinished_files_are_ignored(tmp_path: Path) -> None:
    ignored = (".h/x.csv", "_d/x.csv", "d/.x.csv", "d/_x.csv", "z.csv.tmp", "z.csv._COPYING_")
    for name in ("x.csv", "d/e/y.csv", *ignored):
        land(tmp_path / "in" / name)
    assert names(discover(source("in/**/*.csv*"), tmp_path)) == ["y.csv", "x.csv"]


def test_links_that_lead_back_end_and_a_file_is_there_once(tmp_path: Path) -> None:
    land(tmp_path / "in" / "sub" / "x.csv")
    (tmp_path / "in" / "sub" / "up").symlink_to("..")
    (tmp_path / "in" / "sub" / "again").symlink_to("../sub")  # with two, forty levels are 2 ** 40 paths
    (tmp_path / "in" / "a.csv").symlink_to("sub/x.csv")
    land(tmp_path / "elsewhere" / "deep" / "y.csv")
    (tmp_path / "in" / "a").symlink_to("../elsewhere")
    (tmp_path / "in" / "b").symlink_to("../elsewhere/deep")
    own, linked = [str(tmp_path / "in" / name) for name in ("sub/x.csv", "a/deep/y.csv")]
    for path, found in (("in/**/*.csv", [linked, own]), ("in/**", [linked, own]), ("in/**/**/sub/*.csv", [own])):
        assert [file.path for file in discover(source(path), tmp_path).ready] == found
    assert names(discover(source("in/*/*/*.csv"), tmp_path)) == ["y.csv", "x.csv"]


def test_signs_of_globs_and_dots_in_the_folder_of_the_spec_mean_nothing(tmp_path: Path) -> None:
    base = tmp_path / ".hidden" / "a[1]*"
    land(base / "in" / "x.csv")
    for path, folder in (("in/*.csv", base), (f"{tmp_path}/.hidden/*/in/*.csv", tmp_path)):
        assert names(discover(source(path), folder)) == ["x.csv"]


def test_a_folder_with_a_file_s_name_and_a_broken_link_are_errors(tmp_path: Path) -> None:
    land(tmp_path / "in" / "d.csv" / "x.csv")
    assert discover(source("in/*"), tmp_path) == FilesFound(), "any name may be a folder's"
    assert "d.csv: this is a folder" in only_error(discover(source(), tmp_path))
    (tmp_path / "in" / "x").symlink_to("nowhere")
    assert "the link leads to no file" in only_error(discover(source("in/x"), tmp_path))


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere/*.csv", "wrong path"),
        ("in/nowhere.csv", "wrong path"),
        ("in/x.csv/*.csv", "wrong path"),
        ("in/_x.csv", "hidden"),
    ],
)
def test_a_path_that_leads_nowhere_or_names_a_hidden_file_is_an_error(tmp_path: Path, path: str, said: str) -> None:
    for name in ("x.csv", "_x.csv"):
        land(tmp_path / "in" / name)
    with pytest.raises(InputError, match=said):
        discover(source(path), tmp_path)


def test_a_file_younger_than_settle_waits_and_without_settle_not_even_one_from_the_future(tmp_path: Path) -> None:
    young = str(land(tmp_path / "in" / "young.csv", modified=NOW - timedelta(seconds=4)))
    land(tmp_path / "in" / "old.csv", modified=NOW - timedelta(seconds=5))
    land(tmp_path / "in" / "future.csv", modified=NOW + timedelta(days=1))
    found = discover(source(), tmp_path)
    assert (found.waiting, names(found), len(found.errors)) == ((young,), ["old.csv"], 1)
    assert names(discover(source(settle="0 s"), tmp_path)) == ["future.csv", "old.csv", "young.csv"]


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
    found = discover(source("in/*"), tmp_path)
    assert names(found) == ["good.csv.bz2", "good.csv.gz"]
    (error,) = found.errors
    assert error.found.startswith(f"{bad}: ")
    assert error.remedy


def test_a_folder_with_a_colon_and_a_bracket_in_one_path_hold_back_that_file_alone(tmp_path: Path) -> None:
    """Spark takes the bracket for a wildcard, if it is quoted too, and then the colon for the end of a scheme."""
    for name in ("08:00/x.csv", "b[1]/x.csv", "08:00/x[1].csv"):
        land(tmp_path / "in" / name, f"{name}\n")
    found = discover(source("in/**/*.csv"), tmp_path)
    assert [file.name for file in found.ready] == ["08:00/x.csv", "b[1]/x.csv"]
    [error] = found.errors
    assert "x[1].csv: Spark cannot read a path that has both a colon and one of" in error.found


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_an_error(tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv").chmod(0)
    assert "cannot be read" in only_error(discover(source(), tmp_path))


def rounds(given: FilesSource, base: Path) -> list[tuple[list[str], int]]:
    """Return what each ingestion reads until nothing is left, and how many files are left after it."""
    states: list[FileState] = []
    found: list[tuple[list[str], int]] = []
    while not found or found[-1][1]:
        looked = discover(given, base, states)
        assert looked.ahead == 0
        found.append((names(looked), looked.left))
        states += read(looked)
    return found


def aligned(path: str = "in/*.csv", **settings: object) -> FilesSource:
    return source(path, alignment={"group": "g", "max_drift": "1 min", "update_interval": "10 s"}, **settings)


def test_max_files_bounds_an_ingestion_and_bad_files_take_no_place(tmp_path: Path) -> None:
    land(tmp_path / "in" / "a.csv.gz", "no gzip")
    for name in "bcde":
        land(tmp_path / "in" / f"{name}.csv")
    given = source("in/*", max_files=2)
    assert rounds(given, tmp_path) == [(["b.csv", "c.csv"], 2), (["d.csv", "e.csv"], 0)]
    assert len(discover(given, tmp_path).errors) == 1


def test_max_bytes_bounds_an_ingestion_but_at_least_one_file_is_read(tmp_path: Path) -> None:
    for name, size in (("a", 30), ("b", 5), ("c", 5), ("d", 1)):
        land(tmp_path / "in" / f"{name}.csv", name.encode() * size)
    found = rounds(source(max_bytes=10), tmp_path)
    assert found == [(["a.csv"], 3), (["b.csv", "c.csv"], 1), (["d.csv"], 0)]


def test_an_aligned_source_gives_one_interval_of_its_files_at_once_but_at_least_one(tmp_path: Path) -> None:
    for name, seconds in (("a", 20), ("b", 10), ("c", 15), ("d", 9), ("e", 200), ("f", 300)):
        land(tmp_path / "in" / f"{name}.csv", modified=AN_HOUR_AGO + timedelta(seconds=seconds))
    a_to_c = ["a.csv", "b.csv", "c.csv"]  # d is 11 s before a
    assert rounds(aligned(), tmp_path) == [(a_to_c, 3), (["d.csv"], 2), (["e.csv"], 1), (["f.csv"], 0)]


def test_bad_files_are_no_part_of_an_interval_and_other_limits_hold_beside_it(tmp_path: Path) -> None:
    land(tmp_path / "in" / "a.csv.gz", "no gzip", AN_HOUR_AGO - timedelta(minutes=1))
    for name in "bcd":
        land(tmp_path / "in" / f"{name}.csv")
    assert rounds(aligned("in/*"), tmp_path) == [(["b.csv", "c.csv", "d.csv"], 0)]
    assert rounds(aligned("in/*", max_files=2), tmp_path) == [(["b.csv", "c.csv"], 1), (["d.csv"], 0)]
    assert len(discover(aligned("in/*"), tmp_path).errors) == 1


def test_an_aligned_source_with_arrivals_of_its_own_gives_one_file_at_once(tmp_path: Path) -> None:
    for name in "bcd":
        land(tmp_path / "in" / f"{name}.csv")
    given = source(alignment={"group": "g", "max_drift": "1 min"}, arrival_time="timestamp_seconds(a)")
    assert rounds(given, tmp_path) == [(["b.csv"], 2), (["c.csv"], 1), (["d.csv"], 0)]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("1,ü\n".encode("utf-16"), "text in UTF-16"),
        ("1,ü\n".encode("utf-16-le"), "text in UTF-16"),
        ("1,ü\n".encode("utf-16-be"), "text in UTF-16"),
        ("1,ü\n".encode("utf-32"), "text in UTF-32"),
        (b"PAR1" + b"x" * 90, "a parquet file, not text with the name of a text file"),
        (gzip.compress(b"1\n", mtime=0), "compressed with gzip, not text"),
        (bytes(range(256)), "binary, not text"),
    ],
)
def test_what_is_no_text_in_utf_8_is_refused_by_its_first_bytes(tmp_path: Path, content: bytes, found: str) -> None:
    land(tmp_path / "in" / "good.csv")
    land(tmp_path / "in" / "bad.csv", content)
    land(tmp_path / "in" / "bad.csv.gz", gzip.compress(content))
    looked = discover(source("in/*"), tmp_path)
    assert names(looked) == ["good.csv"]
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
    assert discover(source(), tmp_path).errors == ()


def test_a_file_that_could_not_be_read_is_not_opened_again_until_it_or_its_reading_changes(tmp_path: Path) -> None:
    given = source()
    land(tmp_path / "in" / "a.csv")
    path = str(land(tmp_path / "in" / "b.csv"))
    [_, bad] = discover(given, tmp_path).ready
    noted = HeldBack.of(bad, given, InputError(f"{path}: a page is damaged", remedy="land it again"))
    held = still_held([HeldBack.from_json(noted.to_json())], given)
    looked = discover(given, tmp_path, held=held)
    assert names(looked) == ["a.csv"]
    assert [str(error) for error in looked.errors] == [f"{path}: a page is damaged\nTo do: land it again"]
    assert looked.held == (noted,)
    assert still_held([noted], source(schema="a BIGINT")) == {}
    land(tmp_path / "in" / "b.csv", modified=NOW - timedelta(minutes=1))
    assert len(discover(given, tmp_path, held=held).ready) == 2


def with_header(**more: object) -> FilesSource:
    schema = "time STRING, mag DOUBLE, magType STRING, nst INT"
    return source("in/*.csv", schema=schema, options={"header": True}, **more)


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
        ("Quakes, 2026\ntime,magType,mag,nst\n1,2,3,4", "write `skip_lines: 1` in the source: line 2 is the header"),
        ('"an open quote\n\n\ntime,mag,magType,nst', "write `skip_lines: 3` in the source: line 4 is the header"),
    ],
)
def test_what_is_proposed_for_a_missing_column_is_no_other_column(tmp_path: Path, header: str, remedy: str) -> None:
    land(tmp_path / "in" / "x.csv", f"{header}\n")
    [error] = discover(with_header(), tmp_path).errors
    assert error.remedy.startswith(remedy)


def test_a_header_below_other_lines_is_found_as_the_message_says(tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv", "Quakes\ntime,magType,mag,nst\n1,2,3,4\n")
    assert tuple(discover(with_header(skip_lines=1), tmp_path).errors) == ()
    [error] = discover(with_header(skip_lines=2), tmp_path).errors
    assert error.remedy == "write `skip_lines: 1` in the source: line 2 is the header"
    land(tmp_path / "in" / "x.csv", "time,magType,mag,nst\n1,2,3,4\n")
    [error] = discover(with_header(skip_lines=1), tmp_path).errors
    assert error.remedy == "leave `skip_lines` out of the source: line 1 is the header"


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("time,mag,nst", ""),
        ("time,nst", ""),
        ("time,MAGTYPE,mag,nst", "column `magType` is missing from the header"),
        ("a,b", "column `time` is missing from the header"),
        ("time,mag,mag", "column `mag` occurs more than once"),
    ],
)
def test_a_file_may_lack_columns_but_not_all_nor_for_a_letters_case(tmp_path: Path, header: str, found: str) -> None:
    land(tmp_path / "in" / "x.csv", f"{header}\n")
    looked = discover(with_header(missing="null"), tmp_path)
    assert [found in error.found for error in looked.errors] == ([True] if found else [])


def test_a_column_by_any_of_its_names_is_there_but_not_by_two(tmp_path: Path) -> None:
    given = with_header(rename={"magNst": "nst", "nst": "nst", "n": "nst"})
    for name in ("magNst", "nst", "n"):
        land(tmp_path / "in" / f"{name}.csv", f"{name},time,mag,magType\n")
    assert discover(given, tmp_path).errors == ()
    land(tmp_path / "in" / "two.csv", "n,time,mag,magType,nst\n")
    [error] = discover(given, tmp_path).errors
    assert "`nst` and `n` are the same column, and both are in the header" in str(error)


def any_names(form: str, **more: object) -> FilesSource:
    """Return a source of two columns, one by two names: what else is in its files is unknown."""
    renamed = {"ident": "id", "id": "id"}
    return source(f"in/*.{form}*", format=form, schema="id STRING, n INT", rename=renamed, **more)


def unknown_in(folder: Path, given: FilesSource) -> dict[str, str]:
    (file,) = discover(given, folder).ready
    return dict(file.unknown)


@pytest.mark.parametrize("zipped", [False, True])
def test_unknown_keys_of_json_have_a_type_that_holds_the_first_values(tmp_path: Path, zipped: bool) -> None:
    lines = [
        {"ident": "a", "n": 1, "who": "me", "size": 1, "ok": True, "nothing": None},
        {"id": "b", "n": 2, "who": 5, "size": 1.5, "tags": ["x"]},
    ]
    text = "\n".join([*map(json.dumps, lines), '{"broken', "5", ""])
    land(tmp_path / "in" / ("a.json.gz" if zipped else "a.json"), gzip.compress(text.encode()) if zipped else text)
    found = {"who": "STRING", "size": "DOUBLE", "ok": "BOOLEAN", "tags": "STRING"}
    assert unknown_in(tmp_path, any_names("json")) == found


def test_of_a_file_that_grew_the_new_lines_are_searched_for_unknown_columns(tmp_path: Path) -> None:
    path = land(tmp_path / "in" / "a.json", '{"id": "a"}\n')
    states = read(discover(any_names("json"), tmp_path))
    land(path, '{"id": "a"}\n{"id": "b", "late": 1}\n')
    (grown,) = discover(any_names("json"), tmp_path, states).ready
    assert (grown.skip_lines, dict(grown.unknown)) == (1, {"late": "BIGINT"})


def test_unknown_columns_of_csv_are_texts_and_without_a_header_there_are_none(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "a.csv", "id,n,who,N\n")
    assert unknown_in(tmp_path, any_names("csv", options={"header": True})) == {"who": "STRING", "N": "STRING"}
    land(file, "a,1\n")
    assert unknown_in(tmp_path, any_names("csv")) == {}


def test_unknown_columns_of_parquet_have_the_type_of_the_footer(tmp_path: Path) -> None:
    columns = {
        "day": (pa.array([date(2026, 1, 1)]), "DATE"),
        "at": (pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")), "TIMESTAMP"),
        "cost": (pa.array([Decimal("1.20")], pa.decimal128(9, 2)), "DECIMAL(9,2)"),
        "small": (pa.array([1], pa.uint8()), "SMALLINT"),
        "kind": (pa.array(["x"]).dictionary_encode(), "STRING"),
        "tags": (pa.array([[{"k": 1.5}]], pa.list_(pa.struct([("k", pa.float32())]))), "ARRAY<STRUCT<k: FLOAT>>"),
        "by": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "MAP<STRING, BIGINT>"),
    }
    known = {"id": pa.array(["a"]), "n": pa.array([1], pa.int32())}
    rows = pa.table(known | {name: values for name, (values, _) in columns.items()})
    land(tmp_path / "in" / "a.parquet", parquet_of(rows))
    assert unknown_in(tmp_path, any_names("parquet")) == {name: kind for name, (_, kind) in columns.items()}


def test_a_name_that_no_table_can_have_comes_with_its_rename() -> None:
    told = line_to_add(any_names("json"), [("who", "STRING"), ("a.b", "INT"), ("_batch_id", "INT")])
    assert told == (
        'add `who STRING, a_b INT, batch_id INT` to `schema` and `"a.b": a_b, "_batch_id": batch_id` to `rename`'
    )


def test_a_name_that_differs_in_case_only_comes_with_a_way_to_read_it() -> None:
    told = [("N", "BIGINT")]
    assert line_to_add(any_names("json"), told) == 'add `"N": n, "n": n` to `rename`'
    assert line_to_add(any_names("csv"), told) == 'add `N_2 BIGINT` to `schema` and `"N": N_2` to `rename`'


def test_a_field_inside_comes_with_the_whole_type_and_what_cannot_be_added_with_a_word() -> None:
    given = source(
        "in/*.json", format="json", schema="loc STRUCT<lat: DOUBLE>, m: ARRAY<MAP<STRING, STRUCT<v: INT>>>"
    )
    told = [("who", "STRING"), ("loc.alt", "FLOAT"), ("m.element.value.u.v", "INT"), ("loc.Lat", "INT"), ("x", "")]
    assert line_to_add(given, told) == (
        "add `who STRING` to `schema` and write `loc STRUCT<lat: DOUBLE, alt: FLOAT>, "
        "m ARRAY<MAP<STRING, STRUCT<v: INT, `u.v`: INT>>>` in `schema`"
    )
    assert not_to_add(given, told) == [
        "No column of `schema` can have the type of `x`: leave it out.",
        (
            "`loc.Lat` differs from `lat` in case only, and a column can have only one of them: correct the name in "
            "the input."
        ),
    ]
    grown = source("in/*.json", format="json", schema="who STRING, loc STRUCT<lat: DOUBLE, alt: FLOAT>, m STRING")
    assert unknown_of(grown, told) == (("m.element.value.u.v", "INT"), ("loc.Lat", "INT"), ("x", ""))


def test_lines_of_json_that_are_no_objects_have_no_keys() -> None:
    assert columns_of_json(b"[1]\n\xff\n" + b"[" * 100_000, any_names("json")) == ()
