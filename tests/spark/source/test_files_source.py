"""Reading files: which records come out, where they lay, and what is malformed."""

import bz2
import gzip
import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F

from tests.pure.source import landed
from tests.pure.source.landed import NOW, discover, land, read_files
from tidemark.resources.sources import lines, local_files
from tidemark.resources.sources.known_files import FileRange, FileState, ensure_unchanged
from tidemark.resources.sources.reader import SourceRead
from tidemark.resources.sources.records import payload_schema
from tidemark.timeops.errors import InputError, SpecError
from tidemark.timeops.spec import FilesSource

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)


def source(schema: str, *, path: str = "in/*", **settings: object) -> FilesSource:
    return landed.source(path, schema=schema, settle="0 s", **settings)


def ready(given: FilesSource, base: Path, states: Sequence[FileState] = ()) -> tuple[FileRange, ...]:
    found = discover(given, base, states, NOW)
    assert found.errors == ()
    return found.ready


def held_back(given: FilesSource, base: Path) -> tuple[InputError, ...]:
    """Return what is said of the files of a source that cannot read any of them."""
    found = discover(given, base, (), NOW)
    assert found.ready == ()
    return found.errors


def read(spark: SparkSession, given: FilesSource, base: Path, states: Sequence[FileState] = ()) -> SourceRead:
    return by_spark(read_files(spark, given, ready(given, base, states), base / "copies"))


def by_spark(found: SourceRead) -> SourceRead:
    """Leave also to Spark what Arrow can read."""
    return found.leaving(found.plain)


def values(row: Row) -> tuple[object, ...]:
    """Return the values of a row, instants as aware ones: PySpark returns them in the zone of the machine."""
    return tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)


def rows(found: SourceRead) -> list[Row]:
    return sorted(by_spark(found).records.collect(), key=lambda row: (row["_file"], row["_position"]))


def tasks(found: SourceRead) -> int:
    """Return how many tasks read at least one record."""
    return found.records.select(F.spark_partition_id()).distinct().count()


def payload(found: SourceRead) -> dict[int, tuple[object, ...]]:
    """Return sound records by position, of a source of one file: the columns before `_malformed`."""
    return {
        row["_position"]: values(row)[: row.__fields__.index("_malformed")]
        for row in rows(found)
        if row["_malformed"] is None
    }


def malformed(found: SourceRead) -> dict[int, str]:
    """Malformed records by position; all else in them must be null."""
    bad = [row for row in rows(found) if row["_malformed"] is not None]
    assert all(set(tuple(row)[: row.__fields__.index("_malformed")]) == {None} for row in bad)
    return {row["_position"]: row["_malformed"] for row in bad}


@contextmanager
def splits_of(spark: SparkSession, size_bytes: int) -> Iterator[None]:
    """Let Spark cut files into tasks of so many bytes."""
    settings = {"spark.sql.files.maxPartitionBytes": size_bytes, "spark.sql.files.openCostInBytes": 8}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        spark.conf.set(name, str(old))


def test_a_record_has_payload_then_malformed_file_position_and_modified(spark: SparkSession, tmp_path: Path) -> None:
    at = datetime(2025, 12, 31, 23, 59, 58, 250_001, tzinfo=UTC)
    file = land(tmp_path / "in" / "x.csv", "1,a\n")
    os.utime(file, ns=(0, int(at.timestamp()) * 10**9 + 250_001_999))
    found = read(spark, source("n INT, t STRING", rename={"t": "text"}), tmp_path)
    assert found.records.dtypes == [
        ("n", "int"),
        ("text", "string"),
        ("_malformed", "string"),
        ("_file", "string"),
        ("_position", "bigint"),
        ("_modified", "timestamp"),
    ]
    assert [values(row) for row in rows(found)] == [(1, "a", None, "x.csv", 1, at)]


def test_without_records_the_shape_is_the_same(spark: SparkSession, tmp_path: Path) -> None:
    given = source("n INT", keep_unknown=True, rename={"n": "m"}, format="json")
    land(tmp_path / "in" / "empty", "")
    nothing = read(spark, given, tmp_path)
    assert (nothing.records.count(), [state.records for state in nothing.states]) == (0, [0])
    land(tmp_path / "in" / "x", "{}\n")
    assert nothing.records.dtypes == read(spark, given, tmp_path).records.dtypes
    assert read_files(spark, given, (), tmp_path).states == ()


def test_a_last_line_that_is_left_is_no_record(spark: SparkSession, tmp_path: Path) -> None:
    given = source("n INT, t STRING")
    land(tmp_path / "in" / "a.csv", "1,a\n2,b\n" + "3" * 200, modified=NOW)
    land(tmp_path / "in" / "b.csv", "1,a\r\n2,b\r\n3,c", modified=NOW)
    found = read(spark, given, tmp_path)
    assert [(row["_file"], row["_position"]) for row in rows(found)] == [
        *(("a.csv", 1), ("a.csv", 2)),
        *(("b.csv", 1), ("b.csv", 2)),
    ]
    assert [(state.records, state.size, state.ends_with_newline) for state in found.states] == [
        *((2, 8, True), (2, 10, True))
    ]
    land(tmp_path / "in" / "a.csv", "1,a\n2,b\n3,c\n4,d\n")
    land(tmp_path / "in" / "b.csv", "1,a\r\n2,b\r\n3,c\r\n")
    later = read(spark, given, tmp_path, found.states)
    assert [(row["_file"], row["_position"], row["n"]) for row in rows(later)] == [
        *(("a.csv", 3, 3), ("a.csv", 4, 4), ("b.csv", 3, 3)),
    ]


def numbered_text(lines: int, ends: Sequence[str], *, final: bool, blanks: str = "") -> tuple[bytes, list[int]]:
    """Return lines of random length, some blank; the others hold their numbers, which are returned beside them."""
    rng, text, full = random.Random(lines), "", []
    for number in range(1, lines + 1):
        if number % 7 == 3 and number < lines:
            text += blanks
        else:
            text += f"{number},{'x' * rng.randrange(60)}"
            full.append(number)
        text += rng.choice(ends) if final or number < lines else ""
    return text.encode(), full


@pytest.mark.parametrize("block_bytes", [1, 40, 1000])
def test_positions_are_exact_however_files_are_read(
    spark: SparkSession, tmp_path: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_BLOCK_CHUNKS", 1)
    monkeypatch.setattr(local_files, "_CHUNK_BYTES", block_bytes)
    contents = {
        "lf.csv": numbered_text(60, ["\n"], final=True),
        "crlf.csv": numbered_text(61, ["\r\n"], final=False, blanks="  "),
        "mixed.csv": numbered_text(62, ["\n", "\r\n", "\r"], final=False, blanks=" "),
        "one.csv": numbered_text(1, ["\n"], final=False),
    }
    for name, (content, _) in contents.items():
        land(tmp_path / "in" / name, content)
        land(tmp_path / "in" / f"{name}.gz", gzip.compress(content))
    given = source("n INT, t STRING", order="position")
    found = read(spark, given, tmp_path)
    got = [(os.path.basename(row["_file"]), row["n"], row["_position"]) for row in rows(found)]
    expected = [
        (f"{name}{ending}", number, number)
        for name, (_, numbers) in contents.items()
        for ending in ("", ".gz")
        for number in numbers
    ]
    assert sorted(got) == sorted(expected)
    assert {state.name: state.records for state in found.states} == {
        f"{n}{e}": c
        for n, c in (("lf.csv", 60), ("crlf.csv", 61), ("mixed.csv", 62), ("one.csv", 1))
        for e in ("", ".gz")
    }


@pytest.mark.parametrize("sizes", [(40, 10_000), (10_000, 40)])
def test_records_of_many_lines_have_their_numbers_whatever_a_task_of_spark_reads(
    spark: SparkSession, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    for name, n in (("a.csv", 30), ("b.csv", 1), ("c.csv", 50)):
        land(tmp_path / "in" / name, "".join(f'{number},"x\n{number}"\n' for number in range(1, n + 1)))
    with splits_of(spark, sizes[0]):
        found = read(spark, source("n INT, t STRING", options={"multiLine": True}), tmp_path)
    with splits_of(spark, sizes[1]):
        assert [(row["_file"], row["_position"]) for row in rows(found) if row["n"] == row["_position"]] == [
            (name, number) for name, n in (("a.csv", 30), ("b.csv", 1), ("c.csv", 50)) for number in range(1, n + 1)
        ]
    assert [state.records for state in found.states] == [30, 1, 50]


@pytest.mark.parametrize("ending", [".bz2", ".gz"])
def test_positions_are_exact_in_archives_of_several_parts(spark: SparkSession, tmp_path: Path, ending: str) -> None:
    rng, pack = random.Random(1), bz2.compress if ending == ".bz2" else gzip.compress
    text = "".join(f"{i},{rng.randbytes(20).hex()}\n" for i in range(1, 9001)).encode()
    land(tmp_path / "in" / f"x.csv{ending}", pack(text[:99_999], 1) + pack(text[99_999:], 9))
    found = read(spark, source("n INT, t STRING"), tmp_path)
    assert found.records.where("n = _position").count() == 9000
    assert found.states[0].records == 9000


@pytest.mark.parametrize(
    "name", ["a b", "c[1]", "d%20e", "ü日", "x{a,b}", "q?*", "back\\slash", "h#1", "p+q", "k=1/p", "t 12:00/x"]
)
@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_any_path_is_read_under_the_name_the_driver_knows(
    spark: SparkSession, tmp_path: Path, name: str, file_format: str
) -> None:
    file = land(tmp_path / "in" / name, "1\n")
    land(file.with_name("c1"), "2\n")
    if file_format == "parquet":
        pq.write_table(pa.table({"n": pa.array([1], pa.int32())}), file)
        pq.write_table(pa.table({"n": pa.array([2], pa.int32())}), file.with_name("c1"))
    given = source("n INT", path="in/**/*", format=file_format)
    found = read_files(
        spark, given, [part for part in ready(given, tmp_path) if part.path == str(file)], tmp_path / "copies"
    )
    assert [(row["n"], row["_file"]) for row in rows(found)] == [(1, f"{name}")]


def test_a_grown_file_gives_its_new_lines_only(spark: SparkSession, tmp_path: Path) -> None:
    given = source("n INT", options={"header": True})
    file = land(tmp_path / "in" / "x.csv", "n\n1\n\n2")
    first = read(spark, given, tmp_path)
    assert (payload(first), first.states[0].records) == ({2: (1,), 4: (2,)}, 4)
    land(file, "n\n1\n\n2\n3\n4\n")
    second = read(spark, given, tmp_path, first.states)
    assert (payload(second), second.states[0].records) == ({5: (3,), 6: (4,)}, 6)
    assert ready(given, tmp_path, second.states) == ()


@pytest.mark.parametrize("header", ["n\n", ""])
def test_lines_above_the_records_are_skipped_also_while_the_file_grows(
    spark: SparkSession, tmp_path: Path, header: str
) -> None:
    given = source("n INT", options={"header": bool(header)}, skip_lines=2)
    top = f'A title, "with a quote\n\n{header}'
    first_line = top.count("\n") + 1
    file = land(tmp_path / "in" / "x.csv", 'A title, "with a quote\n')
    title = read(spark, given, tmp_path)
    assert payload(title) == {}
    land(file, f"{top}1\n")
    first = read(spark, given, tmp_path, title.states)
    assert payload(first) == {first_line: (1,)}
    land(file, f"{top}1\n2\n")
    assert payload(read(spark, given, tmp_path, first.states)) == {first_line + 1: (2,)}


def test_lines_that_come_after_the_count_are_left_to_the_next_ingestion(spark: SparkSession, tmp_path: Path) -> None:
    given = source("n INT")
    file = land(tmp_path / "in" / "x.csv", "1\n2\n")
    ranges = ready(given, tmp_path)
    found = read_files(spark, given, ranges, tmp_path / "copies")
    land(file, "1\n2\n3\n")
    assert payload(found) == {1: (1,), 2: (2,)}
    with pytest.raises(InputError, match="still being written"):
        ensure_unchanged(ranges)
    assert payload(read(spark, given, tmp_path, found.states)) == {3: (3,)}


def test_a_file_that_changes_between_discovery_and_reading_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    given = source("n INT")
    file = land(tmp_path / "in" / "x.csv", "1\n")
    ranges = ready(given, tmp_path)
    land(file, "1\n2\n")
    with pytest.raises(InputError, match=r"(?s)x\.csv: the file is still being written.*longer `settle`"):
        read_files(spark, given, ranges, tmp_path / "copies")


def test_csv_columns_are_found_by_name_whatever_the_order_in_each_file(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in" / "a.csv", '\ufeffmag,"pl,ace",net\n1.5,here,us\n')
    land(tmp_path / "in" / "b.csv.gz", gzip.compress(b"net,other,mag\r\nak,,2.5\r\n,x,\r\n"))
    land(tmp_path / "in" / "c.csv", "mag,net\n")
    land(tmp_path / "in" / "d.csv", "\n\n")
    given = source("net STRING, mag DOUBLE", options={"header": True}, keep_unknown=True, rename={"net": "Net"})
    found = read(spark, given, tmp_path)
    assert found.records.columns[:4] == ["Net", "mag", "_rescued", "_malformed"]
    assert [tuple(row)[:4] for row in rows(found)] == [
        ("us", 1.5, '{"pl,ace":"here"}', None),
        ("ak", 2.5, None, None),
        (None, None, '{"other":"x"}', None),
    ]
    assert [state.records for state in found.states] == [2, 3, 1, 2]


@pytest.mark.parametrize("form", ["csv", "parquet", "json"])
def test_a_column_may_have_several_names_over_time_and_be_missing(
    spark: SparkSession, tmp_path: Path, form: str
) -> None:
    """`magNst`, then `mag_nst`, then no such column; and what a file has beside it."""
    given_columns: list[dict[str, list[object]]] = [
        {"magNst": [1]},
        {"mag_nst": [2], "other": ["x"]},
        {"other": ["y"]},
    ]
    for number, columns in enumerate(given_columns):
        rows_ = pa.table({"id": [f"e{number}"], **columns})
        if form == "parquet":
            pq.write_table(rows_, land(tmp_path / "in" / f"{number}", ""))
        elif form == "csv":
            pyarrow.csv.write_csv(rows_, land(tmp_path / "in" / f"{number}", ""))
        else:
            land(tmp_path / "in" / f"{number}", "".join(json.dumps(row) + "\n" for row in rows_.to_pylist()))
    settings: dict[str, dict[str, Any]] = {
        "csv": {"options": {"header": True}, "missing": "null"},
        "parquet": {"missing": "null"},
        "json": {},
    }
    names = {"magNst": "nst", "mag_nst": "nst"}
    given = source("id STRING, nst BIGINT", format=form, rename=names, keep_unknown=True, **settings[form])
    found = rows(read(spark, given, tmp_path))
    assert [tuple(row)[:4] for row in found] == [
        ("e0", 1, None, None),
        ("e1", 2, '{"other":"x"}', None),
        ("e2", None, '{"other":"y"}', None),
    ]


def test_a_record_with_two_names_of_one_column_is_malformed_unless_one_is_null(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = ['{"a": 1}', '{"b": 2}', '{"a": 1, "b": 2}', '{"a": null, "b": 4}', "{}"]
    land(tmp_path / "in" / "x", "\n".join(lines) + "\n")
    found = read(spark, source("n INT", format="json", rename={"a": "n", "b": "n"}), tmp_path)
    assert payload(found) == {1: (1,), 2: (2,), 4: (4,), 5: (None,)}
    assert malformed(found) == {3: lines[2]}


def test_a_wanted_column_that_no_header_names_is_an_error_that_helps(tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "x.csv", "Mag,net\n1,us\n")
    [error] = held_back(source("mag DOUBLE", options={"header": True}), tmp_path)
    assert error.found == f"{file}: column `mag` is missing from the header: Mag, net"
    assert error.remedy == "did you mean `Mag`?"
    land(file, "mag,net,mag\n")
    [error] = held_back(source("mag DOUBLE", options={"header": True}), tmp_path)
    assert "occurs more than once in the header" in error.found


def test_csv_lines_that_do_not_fit_are_malformed_and_no_other(spark: SparkSession, tmp_path: Path) -> None:
    bad = ["1", "1,a,b", "x,a", "1.0,a", "9999999999,a", '1,"open', '"1,a', '1,"a\\"', "1" + "," * 30_000]
    good = ['1,"a,b"', "1,", '1,5" pipe', '1,"a\\"b"', ",", '"2","x"', '1,"a\\\\"']
    land(tmp_path / "in" / "x.csv", "\n".join([*bad, *good]))
    found = read(spark, source("n INT, t STRING"), tmp_path)
    assert malformed(found) == dict(enumerate(bad, start=1))
    assert [value for _, value in sorted(payload(found).items())] == [
        (1, "a,b"),
        (1, None),
        (1, '5" pipe'),
        (1, 'a"b'),
        (None, None),
        (2, "x"),
        (1, "a\\"),
    ]


def test_csv_signs_can_be_chosen(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv", "# about\n\nn\tt\n1\t'it''s'\n#2\tx\n3\t'open\n4\t'''\n5\tNA\n 6\t 'a\tb'\n\t\n")
    options = {"header": True, "sep": "\t", "quote": "'", "escape": "'", "comment": "#", "nullValue": "NA"}
    options["ignoreLeadingWhiteSpace"] = True
    found = read(spark, source("n INT, t STRING", options=options), tmp_path)
    assert payload(found) == {4: (1, "it's"), 8: (5, None), 9: (6, "a\tb"), 10: (None, None)}
    assert malformed(found) == {6: "3\t'open", 7: "4\t'''"}


def test_a_csv_sign_of_two_characters_is_a_spec_error(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv", "1||a\n")
    with pytest.raises(SpecError, match="option `sep`"):
        read(spark, source("n INT, t STRING", options={"sep": "||"}), tmp_path)


def test_csv_without_quotes_takes_them_as_text(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.csv", 'n,t\n1,"a\n')
    found = read(spark, source("n INT, t STRING", options={"quote": "", "header": True}), tmp_path)
    assert payload(found) == {2: (1, '"a')}


def test_multiline_csv_counts_records_and_cannot_be_read_on(spark: SparkSession, tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "x.csv", '"a\nb",n\n"x\ny",1\n\nz,q\nu,2,3\nv,4\n')
    land(tmp_path / "in" / "y.csv", "n,a,c\n7,w,more\n")
    given = source("n INT, a STRING", options={"header": True, "multiLine": True})
    errors = discover(given, tmp_path, (), NOW).errors
    assert [error.found for error in errors] == [f"{file}: column `a` is missing from the header: a\\nb, n"]
    land(file, file.read_bytes().replace(b'"a\nb"', b"a"))
    kept = source("n INT, a STRING", options={"header": True, "multiLine": True}, keep_unknown=True)
    found = read(spark, kept, tmp_path)
    assert [(*tuple(row)[:4], row["_position"]) for row in rows(found)] == [
        (1, "x\ny", None, None, 2),
        (None, None, None, "z,q", 3),
        (None, None, None, "u,2,3", 4),
        (4, "v", None, None, 5),
        (7, "w", '{"c":"more"}', None, 2),
    ]
    assert [state.records for state in found.states] == [5, 2]
    land(file, file.read_bytes() + b"w,5\n")
    after = discover(given, tmp_path, found.states, NOW)
    assert "multiLine files cannot be continued" in str(after.errors[0])


def test_json_lines_that_are_no_single_fitting_object_are_malformed(spark: SparkSession, tmp_path: Path) -> None:
    bad = [
        "{",
        '{"n":1,}',
        "[1]",
        '[{"n":1}]',
        "[]",
        "5",
        "null",
        '"s"',
        "text",
        '{"n":"x"}',
        '{"n":1.5}',
        '{"n":99999999999}',
        '{"s":{"k":"x"}}',
        '{"at":"no time"}',
        '{"n":1} rest',
        '{"n":1}{"n":2}',
        '{"n":1},{"n":2}',
        '{"n":1}]',
        '{"n":1}}',
        '{"n":1}] [{}',
        '{"n":1,"t":"a","n":2}',
        '{"n":1,"other":1,"other":1}',
        '{"s":{"k":1,"k":2}}',
    ]
    good = [
        '{"n":1,"t":"a","s":{"k":2}}',
        "{}",
        ' {"t":5}\t',
        '{"t":{"k":[1]},"n":null}',
        '{"at":"2026-01-01T01:00:00+01:00"}',
    ]
    land(tmp_path / "in" / "x.json", "\n".join([*bad, "", " \t", *good]))
    given = source("n INT, t STRING, s STRUCT<k: INT>, at TIMESTAMP", format="json")
    found = read(spark, given, tmp_path)
    assert malformed(found) == dict(enumerate(bad, start=1))
    assert payload(found) == {
        26: (1, "a", Row(k=2), None),
        27: (None, None, None, None),
        28: (None, "5", None, None),
        29: (None, '{"k":[1]}', None, None),
        30: (None, None, None, MIDNIGHT),
    }


def test_json_numbers_are_those_of_json_and_fit_their_column(spark: SparkSession, tmp_path: Path) -> None:
    bad = ["1e400", "-1e400", '"1e400"', "1d", '"1d"', "1f", "0x1p3", "+1", ".5", "1."]
    bad = [f'{{"f":{number}}}' for number in bad]
    bad += ['{"g":1e39,"k":"INF"}', '{"f":1,"f":1}', '{"f":1e400,"k":"Infinity"}']
    nested = ['{"a":[null,{"b":{"x":1e400}}]}', '{"a":[{"b":{"x":1,"x":2}}]}']
    good = {'{"f":1E+2,"g":-0.5}': "100.0 -0.5", '{"f":Infinity,"k":"1e400"}': "inf None"}
    good |= {'{"f":"-Infinity","g":"+INF"}': "-inf inf", '{"f":1e308,"g":NaN}': "1e+308 nan"}
    land(tmp_path / "in" / "x.json", "\n".join([*bad, *good]))
    found = read(spark, source("f DOUBLE, g FLOAT, k STRING", format="json"), tmp_path)
    assert malformed(found) == dict(enumerate(bad, start=1))
    assert [f"{f} {g}" for f, g, _ in payload(found).values()] == list(good.values())
    deep = ['{"a":[null,{"b":{"x":1e39}},{"b":{"x":"Infinity"}},{"b":null}]}']
    land(tmp_path / "deep" / "x.json", "\n".join([*nested, *deep]))
    given = source("a ARRAY<STRUCT<b: MAP<STRING, DOUBLE>>>", format="json", path="deep/*.json")
    assert malformed(read(spark, given, tmp_path)) == dict(enumerate(nested, start=1))


def test_json_options_hold_for_every_check_of_a_line(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.json", "{n:1} // why\n{'n':NaN}\n{\"n\":01}\n")
    options = {"allowUnquotedFieldNames": True, "allowComments": True, "allowNumericLeadingZeros": True}
    found = read(spark, source("n DOUBLE", format="json", options=options), tmp_path)
    assert {position: str(value) for position, (value,) in payload(found).items()} == {1: "1.0", 2: "nan", 3: "1.0"}


def test_json_keys_that_the_schema_does_not_name_are_rescued_with_their_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = ['{"a.b":1,"x":{"k":[1,"2",null]},"y":null,"A.b":true}', '{"a.b":2}', '{"a.b":"x","z":1}']
    land(tmp_path / "in" / "x.json", "\ufeff" + "\n".join(lines))
    given = source("`a.b` INT", format="json", keep_unknown=True, rename={"a.b": "ab"})
    found = read(spark, given, tmp_path)
    first, second, third = rows(found)
    assert json.loads(first["_rescued"]) == {"x": {"k": [1, "2", None]}, "y": None, "A.b": True}
    assert (first["ab"], second["ab"], second["_rescued"]) == (1, 2, None)
    assert (third["_malformed"], third["_rescued"]) == (lines[2], None)


def test_bytes_that_are_no_utf8_never_fail_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    land(tmp_path / "in" / "x.json", b'{"t":"\xff"}\n\xc3(\n{"t":"\xc3\xbc"}\n')
    found = read(spark, source("t STRING", format="json"), tmp_path)
    assert payload(found) == {1: ("\ufffd",), 3: ("ü",)}
    assert malformed(found) == {2: "\ufffd("}


def test_parquet_rows_are_numbered_over_row_groups_and_splits(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("a", "b"):
        table = pa.table({"n": pa.array(range(1, 301), pa.int64()), "x": pa.array([name] * 300)})
        pq.write_table(table, land(tmp_path / "in" / f"{name}.parquet"), row_group_size=50)
    with splits_of(spark, 1000):
        found = read(spark, source("n BIGINT, x STRING", format="parquet"), tmp_path)
        assert tasks(found) > 2
        assert found.records.where("n = _position AND _file = concat(x, '.parquet')").count() == 600
    assert [state.records for state in found.states] == [300, 300]


def test_parquet_columns_are_widened_without_loss(spark: SparkSession, tmp_path: Path) -> None:
    columns = {
        "i": pa.array([2**31 - 1], pa.int32()),
        "u": pa.array([2**32 - 1], pa.uint32()),
        "f": pa.array([1.5], pa.float32()),
        "d": pa.array([Decimal("1.50")], pa.decimal128(5, 2)),
        "c": pa.array(["x"]).dictionary_encode(),
        "t": pa.array([MIDNIGHT], pa.timestamp("ms")),
        "z": pa.array([MIDNIGHT], pa.timestamp("us", tz="Europe/Berlin")),
        "day": pa.array([date(2026, 1, 1)]),
        "none": pa.nulls(1),
    }
    pq.write_table(pa.table(columns), land(tmp_path / "in" / "x.parquet"))
    land(tmp_path / "in" / "spark.parquet", b"")
    given = source(
        "z TIMESTAMP, none STRING, t TIMESTAMP, c STRING, d DECIMAL(8,3), f DOUBLE, u BIGINT, i BIGINT, day DATE",
        format="parquet",
    )
    wide = Decimal("1.500")
    expected = (MIDNIGHT, None, MIDNIGHT, "x", wide, 1.5, 2**32 - 1, 2**31 - 1, date(2026, 1, 1))
    assert payload(read(spark, given, tmp_path)) == {1: expected}


@pytest.mark.parametrize(
    ("column", "wanted", "said"),
    [
        (pa.array([1], pa.int64()), "INT", "`n` has the type BIGINT"),
        (pa.array([1], pa.int32()), "SMALLINT", "`n` has the type INT"),
        (pa.array([1], pa.int32()), "DATE", "`n` has the type INT"),
        (pa.array([1], pa.int32()), "STRING", "`n` has the type INT"),
        (pa.array([1], pa.int64()), "DOUBLE", "`n` has the type BIGINT"),
        (pa.array([1], pa.uint32()), "DOUBLE", "`n` has the type BIGINT"),
        (pa.array([b"1"]), "STRING", "`n` has the type BINARY"),
        (pa.array([1], pa.timestamp("ns")), "BIGINT", "`n` has the type timestamp[ns]"),
        (pa.array([1], pa.timestamp("ns", tz="UTC")), "TIMESTAMP", "`n` has the type timestamp[ns, UTC]"),
        (pa.array([1], pa.time64("us")), "BIGINT", "`n` has the type time[us]"),
        (pa.array([{"a": 1}]), "STRUCT<a: INT>", "`n.a` has the type BIGINT"),
    ],
)
def test_a_parquet_type_that_would_lose_or_change_values_is_an_error(
    spark: SparkSession, tmp_path: Path, column: pa.Array, wanted: str, said: str
) -> None:
    file = land(tmp_path / "in" / "x.parquet", b"")
    pq.write_table(pa.table({"n": column}), file)
    with pytest.raises(InputError) as caught:
        read(spark, source(f"n {wanted}", format="parquet"), tmp_path)
    assert f"{file}: column {said}" in str(caught.value)
    assert f"Expected: {wanted.removeprefix('STRUCT<a: ').rstrip('>')}, or" in str(caught.value)


def test_a_parquet_file_with_names_that_spark_takes_for_one_is_an_error_where_they_are_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    one = pa.array([1])
    inner = pa.StructArray.from_arrays([one, one], names=["a", "A"])
    file = land(tmp_path / "in" / "x.parquet", b"")
    lists = pa.ListArray.from_arrays(pa.array([0, 1]), inner)
    for column, kept, said in (
        (inner, False, "`s.a` occurs more than once (in any case) in the file"),
        (lists, True, "`s` has the type ARRAY<STRUCT<a: BIGINT, A: BIGINT>>, whose values cannot be kept"),
    ):
        pq.write_table(pa.table({"n": one, "s": column}), file)
        wanted = source("n BIGINT" if kept else "n BIGINT, s STRUCT<a: BIGINT>", format="parquet", keep_unknown=kept)
        with pytest.raises(InputError) as caught:
            read(spark, wanted, tmp_path)
        assert f"{file}: column {said}" in str(caught.value)
    pq.write_table(pa.table([one, one, one], names=["n", "zz", "ZZ"]), file)
    [error] = held_back(source("n BIGINT", format="parquet", keep_unknown=True), tmp_path)
    assert error.found == f"{file}: column `zz` occurs more than once (in any case) in the file, which has: n, zz, ZZ"
    assert payload(read(spark, source("n BIGINT", format="parquet"), tmp_path)) == {1: (1,)}


def test_timestamps_of_the_old_parquet_type_are_read(spark: SparkSession, tmp_path: Path) -> None:
    file = land(tmp_path / "in" / "x.parquet", b"")
    table = pa.table({"at": pa.array([MIDNIGHT], pa.timestamp("us"))})
    pq.write_table(table, file, use_deprecated_int96_timestamps=True)
    found = read(spark, source("at TIMESTAMP", format="parquet"), tmp_path)
    assert payload(found) == {1: (MIDNIGHT,)}


def test_a_missing_parquet_column_is_an_error_and_unknown_ones_are_rescued(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"a.b": ["x"], "n": [1], "o": [{"k": 2}]}), tmp_path / "in" / "1.parquet")
    pq.write_table(pa.table({"p": [True], "n": [2], "nil": pa.nulls(1)}), tmp_path / "in" / "2.parquet")
    pq.write_table(pa.table({"n": [3]}), tmp_path / "in" / "3.parquet")
    found = read(spark, source("n BIGINT", format="parquet", keep_unknown=True), tmp_path)
    expected = [(1, '{"a.b":"x","o":{"k":2}}'), (2, '{"p":true}'), (3, None)]
    assert [(row["n"], row["_rescued"]) for row in rows(found)] == expected
    [error] = held_back(source("N BIGINT", path="in/3*", format="parquet"), tmp_path)
    assert "3.parquet: column `N` is missing from the file" in error.found
    assert error.remedy == "did you mean `n`?"


def test_the_payload_schema_needs_no_file(spark: SparkSession) -> None:
    given = source("`a.b` INT, c ARRAY<STRING> COMMENT 'x'", format="json", rename={"a.b": "ab", "c": "d"})
    assert payload_schema(spark, given).simpleString() == "struct<ab:int,d:array<string>>"


@pytest.mark.parametrize(
    ("schema", "file_format", "found"),
    [
        ("a STRNG", "csv", "STRNG"),
        ("a STRUCT<b: INT", "json", "Syntax error"),
        ("INT", "csv", "found 'INT'"),
        ("a INT NOT NULL", "csv", "NOT NULL"),
        ("a STRUCT<b: INT NOT NULL>", "json", "NOT NULL"),
        ("a ARRAY<INT>", "csv", "csv has no array<int>"),
        ("s ARRAY<STRUCT<`a b`: INT>>", "json", "column `s`: the name `a b` inside of it holds ' '"),
        ("s ARRAY<STRUCT<a: INT, A: INT>>", "json", "column `s` has a field inside twice, in any case"),
        ("a VARCHAR(3)", "json", "VARCHAR(3), which no table can hold"),
        ("a VARCHAR(3)", "parquet", "VARCHAR(3), which no table can hold"),
    ],
)
def test_a_wrong_schema_is_a_spec_error_that_names_its_place(
    spark: SparkSession, schema: str, file_format: str, found: str
) -> None:
    with pytest.raises(SpecError) as caught:
        payload_schema(spark, source(schema, format=file_format))
    assert caught.value.found.startswith("`sources[s].schema`: ")
    assert found in caught.value.found
