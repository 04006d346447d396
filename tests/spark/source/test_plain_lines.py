"""Lines are found as Spark finds them; values of JSON that Arrow parses equal what Spark reads."""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.pure.source.landed import source
from tests.seeds import Dice
from tidemark.resources.sources import lines, local_files
from tidemark.resources.sources.file_records import FORMATS
from tidemark.resources.sources.known_files import FileRange
from tidemark.resources.sources.lines import LINES, ROWS, Copies, copied_lines, parser_of, read_lines
from tidemark.resources.sources.records import schema_in_input
from tidemark.timeops.spec import FilesSource

CASES = 1
FILES = 400
SCHEMA = "s STRING, v DOUBLE, i BIGINT, n INT, h SMALLINT, y TINYINT, b BOOLEAN, t TIMESTAMP"
GOOD = {"s": '"a"', "v": "1.5", "i": "1", "n": "2", "h": "3", "y": "4", "b": "true", "t": '"2026-01-01T00:00:00Z"'}
INTEGERS = (
    *("-1", "-0", "00", "+5", "127", "128", "-128", "-129", "32767", "32768", "2147483648", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775809", "1.0", "1.5", "1e3", '"5"', '""', "null", "true"),
)
TIMES = (
    *("2026-01-01T00:00:00.123456Z", "2026-01-01 00:00:00", "2026-01-01T00:00:00+01:00", "2026-01-01T00:00:00-17:59"),
    *("2026-01-01T00:00:00+18:00", "2026-01-01T00:00:00+18:01", "2026-01-01T00:00:00+0100", "2026-01-01T00:00:00+1"),
    *("2026-01-01", "2026-01-01T00:00", "2026-01-01T00Z", "2026-02-29T00:00:00Z", "2026-01-01T24:00:00Z"),
    *("2026-01-01T23:59:60Z", "2026-13-01T00:00:00Z", "0000-01-01T00:00:00Z", "1582-10-10T00:00:00Z", "x", ""),
    *("1900-01-01T00:00:00Z", "9999-12-31T23:59:59-17:00", "10000-01-01T00:00:00Z", "2026-01-01T00:00:00.1234567Z"),
    *("2026-01-01T00:00:00,5Z", "2026-01-01t00:00:00z", "2026-01-01T00:00:00 Z", "2026-01-01T00:00:00+01:60"),
    *("2026-01-01T00:00:00Z ", "2026-01-01T00:00:00Z\\n", "1969-12-31T23:59:59.9Z", "\uff12026-01-01T00:00:00Z"),
    *("2026-03-29T02:30:00", "2026-10-25T02:30:00"),
)
HOSTILE: Mapping[str, Sequence[str | bytes]] = {
    "s": (
        *('"1.50"', '"{x"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00"', '"a\tb"', '"\\u0000"'),
        '"\\/"',
        *('"\\\'"', '"\\a"', '"é"', b'"\xff"', b'"\xed\xa0\x80"', "1.50", "true", '{"a":1}', "[1.50]", "NaN", '""'),
        *("'a'", '"}"', '"}{"', '"\u2028"', '"\u0085"', '"\\n"', '"//"', "null"),
    ),
    "v": (
        *("-0", "-0.0", "1E400", "-1e400", "1e-400", "0.1", "12345678901234567890", "1.", ".5", "01", "NaN", "1e23"),
        *("Infinity", '"1.5"', '"NaN"', "null", "2.4703282292062327e-324", "1.7976931348623159e308", "9.5e-7"),
        *("1" * 1_001, "0." + "1" * 1_200, "9007199254740993", "1.0E+2", "1e", "0e5", "1d"),
    ),
    **dict.fromkeys("inhy", INTEGERS),
    "b": ("false", "null", '"true"', "1", "TRUE"),
    "t": (*(f'"{one}"' for one in TIMES), "null", "1767225600", "{}"),
}
OTHER_KEYS = ('"u"', '"u.x"', '"S"', '"\\u0073"', '""', '"\\ud800"', "u", "'u'", '"u" ', '"s"', '"t"', '"\\u0000"')
OTHER_VALUES = ("1", '"2026-01-01"', '{"a":1}', '{"a":1,"a":2}', '[1,"x"]', "null", "1.5", "[]", "1e999", '"\\ud800"')
BENT: Sequence[Callable[[bytes], bytes]] = (
    *(lambda line: line + b" ", lambda line: b" " + line, lambda line: line + b",", lambda line: line[:-1] + b",}"),
    *(lambda line: line + line, lambda line: line + b"// x", lambda line: line[:-1], lambda line: b"[" + line + b"]"),
    *(
        lambda line: line.replace(b",", b"\n,", 1),
        lambda line: line.replace(b",", b"\n,", 1) + line,
        lambda line: line.replace(b",", b"}\n{", 1),
        lambda _: b"{}",
    ),
    *(lambda _: b"", lambda line: b"\xef\xbb\xbf" + line, lambda line: line.replace(b":", b" : "), lambda _: b"{"),
    *(lambda line: line + b"}", lambda line: line.replace(b",", b"\r,", 1), lambda line: line + b"\r"),
)


def line_of(pairs: Sequence[tuple[str, str | bytes]]) -> bytes:
    values = [(key.encode(), value if isinstance(value, bytes) else value.encode()) for key, value in pairs]
    return b"{" + b",".join(key + b":" + value for key, value in values) + b"}"


def with_value(key: str, value: str | bytes) -> bytes:
    """Return a line in which one value is as few write it."""
    return line_of([(f'"{name}"', value if name == key else GOOD[name]) for name in GOOD])


def with_other_key(key: str, value: str) -> bytes:
    return line_of([(key, value), *((f'"{name}"', GOOD[name]) for name in GOOD)])


def each_alone() -> list[bytes]:
    """Return a line for each way to write what few write so."""
    values = [with_value(key, value) for key, hostile in HOSTILE.items() for value in hostile]
    others = [
        *(with_other_key(key, "1") for key in OTHER_KEYS),
        *(with_other_key('"u"', one) for one in OTHER_VALUES),
    ]
    return [*values, *others, *(bend(with_value("", "")) for bend in BENT)]


def random_lines(dice: Dice) -> bytes:
    """Return up to three lines; nearly each has several keys and one thing that few write so."""
    lines = []
    for _ in dice.choice(["x", "x", "xyz"]):
        what = dice.choice([*HOSTILE, *HOSTILE, "other", "bent", ""])
        keys = [key for key in GOOD if key == what or dice.choice([True, True, False])]
        pairs = [(f'"{key}"', dice.choice(HOSTILE[key]) if key == what else GOOD[key]) for key in keys]
        if what == "other":
            others = [(dice.choice(OTHER_KEYS), dice.choice(OTHER_VALUES)) for _ in dice.choice(["x", "xx"])]
            pairs = [*others, *pairs] if dice.choice([True, False]) else [*pairs, *others]
        lines.append(dice.choice(BENT)(line_of(pairs)) if what == "bent" else line_of(pairs))
    return b"\n".join(lines)


def lines_of(folder: Path, name: str, content: bytes, skip: int = 0) -> FileRange:
    (folder / name).write_bytes(content)
    modified_us = (folder / name).stat().st_mtime_ns // 1_000
    whole = content.endswith(b"\n")
    return FileRange(str(folder / name), name, len(content), modified_us, "", skip, ends_with_newline=whole)


def rows_of(records: DataFrame) -> Mapping[str, list[str]]:
    """Return each row of a file as a text with its place; instants by the microsecond, to read times before 1970."""
    found: dict[str, list[str]] = {}
    columns = [*"svinhyb", "unix_micros(t) AS t", "_malformed", "_file", "_position", "_modified"]
    for row in records.selectExpr(*columns).orderBy("_position").collect():
        found.setdefault(row["_file"], []).append(repr(tuple(row)))
    return found


def read_copies(
    spark: SparkSession, given: FilesSource, copies: Copies, zone: str = "UTC"
) -> Mapping[str, list[str]]:
    """Return the records of copies, as `FilesReader.read` reads them."""
    frames = []
    for kind, form in ((ROWS, "parquet"), (LINES, "json")):
        files = [file for file in copies.files if file.read_as == kind]
        if files:
            schema = schema_in_input(spark, given)
            frames.append(FORMATS[form].read(spark, given, schema, files, zone).records)
    return rows_of(reduce(DataFrame.unionByName, frames))


def check_copies(spark: SparkSession, folder: Path, contents: Sequence[bytes], zone: str) -> None:
    """Check that the lines have the values that Spark reads, also in blocks; Arrow parses some files, and not all."""
    given = source("*", format="json", schema=SCHEMA)
    schema = schema_in_input(spark, given)
    files = [lines_of(folder, f"{number:03}", content + b"\n") for number, content in enumerate(contents)]
    by_arrow = copied_lines(files, folder / "copies", parser_of(given, schema, zone))
    by_spark = copied_lines(files, folder / "lines", lambda: lambda _: None)
    odd = {file.path for file in by_arrow.files if file.read_as == LINES}
    assert 0.1 < 1 - len(odd) / len(files) < 0.5
    assert {file.read_as for file in by_spark.files} == {LINES}
    assert by_arrow.counts == by_spark.counts
    assert read_copies(spark, given, by_arrow, zone) == read_copies(spark, given, by_spark, zone)


@pytest.mark.parametrize("zone", [pytest.param("UTC", marks=pytest.mark.long), "Europe/Rome"])
def test_every_way_to_write_a_line_is_read_as_by_spark(spark: SparkSession, tmp_path: Path, zone: str) -> None:
    check_copies(spark, tmp_path, each_alone(), zone)


def test_random_lines_are_read_as_by_spark(spark: SparkSession, tmp_path: Path, dice: Dice) -> None:
    check_copies(spark, tmp_path, [random_lines(dice) for _ in range(FILES)], dice.choice(["UTC", "Europe/Rome"]))


PLAIN = b"".join(with_value("i", str(number)) + b"\n" for number in range(7))


def copied(
    spark: SparkSession, folder: Path, content: bytes, skip: int = 0, **more: object
) -> list[tuple[str, list[int]]]:
    """Return the parts of a copy: whether they are rows or lines, and the numbers of their lines."""
    given = source("*", format="json", **{"schema": SCHEMA, **more})
    parser = parser_of(given, schema_in_input(spark, given), "UTC")
    file = lines_of(folder, "x", content, skip)
    copies = copied_lines([file], folder / "copies", parser)
    assert copies.counts == {file.path: content.rstrip(b"\n").count(b"\n") + 1}
    parts = []
    for part in copies.files:
        rows = pq.read_table(part.read_at)
        numbers = rows["_position"].to_pylist() if part.read_as == LINES else range(len(rows))
        parts.append(
            (part.read_as, [*numbers] if part.read_as == LINES else [part.skip_lines + 1 + n for n in numbers])
        )
    return parts


def test_a_file_that_grew_is_copied_from_its_new_lines_on(spark: SparkSession, tmp_path: Path) -> None:
    assert copied(spark, tmp_path, PLAIN) == [(ROWS, [1, 2, 3, 4, 5, 6, 7])]
    assert copied(spark, tmp_path, PLAIN, skip=5) == [(ROWS, [6, 7])]
    assert copied(spark, tmp_path, PLAIN.rstrip(b"\n"), skip=6) == [(ROWS, [7])]
    assert copied(spark, tmp_path, b"bad\n" + PLAIN, skip=1) == [(ROWS, [2, 3, 4, 5, 6, 7, 8])]
    assert copied(spark, tmp_path, PLAIN, skip=7) == []


def test_spark_reads_the_lines_of_a_block_that_is_not_plain_and_arrow_all_others(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_BLOCK_CHUNKS", 1)
    monkeypatch.setattr(local_files, "_CHUNK_BYTES", 2 * len(PLAIN.splitlines()[0]) + 2)
    assert copied(spark, tmp_path, PLAIN) == [(ROWS, [1, 2, 3, 4, 5, 6, 7])]
    assert copied(spark, tmp_path, PLAIN, skip=3) == [(ROWS, [4, 5, 6, 7])]
    odd = b"".join(line + b"\n" if number != 4 else b"bad\n" for number, line in enumerate(PLAIN.splitlines(), 1))
    assert copied(spark, tmp_path, odd) == [(ROWS, [1, 2]), (ROWS, [5, 6, 7]), (LINES, [3, 4])]
    with_new_key = PLAIN + with_other_key('"u"', "1") + b"\n"
    assert copied(spark, tmp_path, with_new_key) == [(ROWS, [1, 2, 3, 4, 5, 6, 7, 8])], (
        "a key that no line had before"
    )


def test_lines_are_left_to_spark_where_the_source_changes_what_they_mean(spark: SparkSession, tmp_path: Path) -> None:
    to_spark, to_arrow = [(LINES, [1, 2, 3, 4, 5, 6, 7])], [(ROWS, [1, 2, 3, 4, 5, 6, 7])]
    assert copied(spark, tmp_path, PLAIN, keep_unknown=True) == to_spark
    assert copied(spark, tmp_path, PLAIN, options={"allowComments": True}) == to_spark
    assert copied(spark, tmp_path, PLAIN, schema="s STRING, v DECIMAL(9, 2)") == to_spark
    assert copied(spark, tmp_path, PLAIN, schema="i INT", rename={"i": "k", "n": "k"}) == to_spark
    assert copied(spark, tmp_path, PLAIN, schema="i INT", rename={"i": "k"}) == to_arrow


ENDS = (b"\n", b"\r", b"\r\n", b"", b"\n\r", b"\r\r", b" ", b"\x0b", b"\x0c", "\u0085".encode(), "\u2028".encode())
PIECES = (
    b"a",
    "é".encode(),
    "\U0001f600".encode(),
    b"\xff",
    b"\xc3",
    b"\xe2\x82",
    b"\xf0\x9f\x98",
    b"\xed\xa0\x80",
    b"\x00",
)
STARTS = (b"", b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf", b"\xff\xfe")


def test_lines_are_the_ones_that_spark_finds_in_a_file(
    spark: SparkSession, tmp_path: Path, dice: Dice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "_BLOCK_CHUNKS", 1)
    monkeypatch.setattr(local_files, "_CHUNK_BYTES", 7)
    files = []
    for number in range(dice.some(300)):
        pieces = [dice.choice(STARTS), *(dice.choice((*PIECES, *ENDS)) for _ in range(dice.choice(range(10))))]
        files.append(lines_of(tmp_path, f"{number:03}", b"".join(pieces) or b"\n"))
    copies = copied_lines(files, tmp_path / "copies", lambda: lambda _: None)
    found: dict[str, list[str]] = {file.name: [] for file in files}
    if copies.files:
        for row in sorted(read_lines(spark, copies.files).collect(), key=lambda row: row["_position"]):
            found[row["_file"]].append(row["__tm_line"])
    texts = spark.read.text([file.path for file in files]).selectExpr(
        "_metadata.file_name AS name", "make_valid_utf8(value) AS line", "monotonically_increasing_id() AS id"
    )
    expected: dict[str, list[str]] = {file.name: [] for file in files}
    for row in sorted(texts.collect(), key=lambda row: row["id"]):
        expected[row["name"]].append(row["line"])
    assert found == expected
    assert copies.counts == {file.path: len(expected[file.name]) for file in files}
